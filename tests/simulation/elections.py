"""
The election of a leader by a Lease, in the event loop of the simulation and by its clock.

Reality has a thread for this, so that handlers cannot delay the renewals. Here, nothing blocks the
event loop, and the seed decides when the election continues.
"""
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kopf._cogs.aiokits import tasks, tenures
from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._core.engines.leadership import candidacies, electing
from tests.simulation.guarantees import Violation

LEASE = 'simulation'
LEASES = ('coordination.k8s.io', 'leases')


class Elector:
    """Does the same as the class of this name in `kopf._core.engines.leadership.electors`."""

    def __init__(
            self, *, candidate: electing.Candidate, settings: configuration.OperatorSettings,
            vault: vaults.Vault, on_change: Callable[[], None],
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.tenure = tenures.Tenure(clock)
        self._client = api.Client(credentials=vault, settings=settings)
        self._candidacy = candidacies.Candidacy(
            self._client, candidate=candidate, settings=settings.leadership, tenure=self.tenure,
            on_change=on_change, clock=clock)

    def start(self) -> None:
        self._task = asyncio.create_task(self._candidacy.run(), name="candidacy")

    def check(self) -> None:
        if self._task.done():
            self._task.result()

    async def stop(self, *, release_in: float | None) -> None:
        await tasks.cancel([self._task])
        if release_in is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(release_in):
                    await self._candidacy.release()
        await self._client.close()


class Elections:
    """Hears of all Leases, calls, and writes, and raises `Violation`."""

    def __init__(self) -> None:
        self.leader: str | None = None
        """The holder of the Lease, by its name; None if it is released."""
        self._has_begun = False

    def hold(self, lease: Any) -> bool:
        """Take a new state of the Lease; return whether the leader is another one now."""
        holder = lease['spec'].get('holderIdentity') or None
        is_other = holder is not None and holder != self.leader
        if is_other:
            self._has_begun = False
        self.leader = holder or self.leader
        return is_other

    def act(self, name: str, what: str) -> None:
        """Note an act of a replica: after the first act of a leader, the others do nothing."""
        if name == self.leader:
            self._has_begun = True
        elif self._has_begun:
            raise Violation('one leader', f"{name} {what} in the term of {self.leader}")
