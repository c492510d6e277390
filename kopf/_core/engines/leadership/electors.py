"""
Electors: the thread of the election, with an event loop and connections of its own.

The handlers of an operator can block its event loop for any time. The Lease has to be renewed
meanwhile. See `outposts`.
"""
from collections.abc import Callable

from kopf._cogs.aiokits import tenures
from kopf._cogs.clients import api, outposts, vaults
from kopf._cogs.configs import configuration
from kopf._core.engines.leadership import candidacies, electing


class Elector:
    """
    The election of one operator. `start` and `stop` are called in the operator's event loop.

    ``on_change`` is also called there: soon after a term of the tenure has begun or ended, and when
    the thread has failed.
    """

    def __init__(
            self,
            *,
            candidate: electing.Candidate,
            settings: configuration.OperatorSettings,
            vault: vaults.Vault,
            on_change: Callable[[], None],
    ) -> None:
        super().__init__()
        self.tenure: tenures.Tenure = tenures.Tenure()
        self._candidate = candidate
        self._settings = settings
        self._outpost = outposts.Outpost(
            name='kopf-leadership', assign=self._stand, settings=settings, vault=vault,
            on_change=on_change, on_end=self.tenure.end)

    def start(self) -> None:
        self._outpost.start()

    def check(self) -> None:
        """
        Raise the error of the thread if it has failed.

        :raises Exception: a bug; errors of the API are retried.
        """
        self._outpost.check()

    async def stop(self, *, release_in: float | None) -> None:
        """
        End the candidacy, and release the Lease within that time (seconds); None to keep it.
        """
        await self._outpost.stop(release_in=release_in)

    def _stand(self, client: api.Client) -> candidacies.Candidacy:
        return candidacies.Candidacy(
            client, candidate=self._candidate, settings=self._settings.leadership,
            tenure=self.tenure, on_change=self._outpost.notify)
