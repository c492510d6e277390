"""
The leadership of an operator: it works while it holds its Lease, and stands by otherwise.

A standby watches and indexes, but handles and writes nothing. When it takes over, it knows the
newest states of all objects, so it lists nothing again. An operator that loses the Lease becomes a
standby at once: another replica is about to handle the objects. So, its handlers are interrupted,
and their outcomes are not written.
"""
import asyncio
import logging
from collections.abc import Collection, Mapping

from kopf._cogs.aiokits import clocks, tenures
from kopf._cogs.clients import api, errors, outposts, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.logins import serviceaccounts
from kopf._cogs.structs import credentials
from kopf._core.engines import leadership
from kopf._core.engines.peering import records
from kopf._core.path import switches
from kopf._core.reactor.roles import coordination
from kopf._core.reactor.roles.works import Works

logger = logging.getLogger('kopf._core.engines.leadership')

SETTLING = 0.5
"""
How long (seconds) to wait before the first handling after the Lease was acquired.

The watches must have shown the last writes of the former leader, right before it has released the
Lease. Meanwhile, new connections continue the watches: the present ones can have stalled without
notice, e.g. if the same outage has cut off the former leader and this operator.
"""

MIN_AGE = 1.0
"""How long (seconds) a watch must have been open before a new connection continues it."""


class Leadership(coordination.Coordination, api.Tenure):
    """The leadership as the operator's event loop sees it. The operator begins as a standby."""

    def __init__(
            self,
            *,
            client: api.Client,
            vault: vaults.Vault,
            identity: str | None,
            works: Works,
            parts: Collection[coordination.Standby],
    ) -> None:
        """
        ``identity`` must be unique among the replicas. Make the instance when the credentials are
        known, and before anything is handled.

        :raises SettingsError: if the settings contradict each other, or if there is no namespace.
        """
        super().__init__(works)
        settings = self._settings = client.settings
        verify(settings)
        self._client = client
        self._parts = [works, *parts]
        self._term: int | None = None
        """The term in which the parts work; None if they stand by."""
        self._changed = asyncio.Event()
        name = settings.leadership.name
        assert name is not None
        me = identity if identity is not None else records.make_identity()
        namespace = find_namespace(settings, vault.select_all())
        self._tenure = tenures.Tenure(clocks.choose(tenures.read_clock))
        self._outpost = outposts.Outpost(
            name='kopf-leadership', settings=settings, vault=vault,
            assign=lambda client: leadership.Candidacy(
                client, identity=me, namespace=namespace, name=name, settings=settings.leadership,
                tenure=self._tenure, on_change=self._outpost.notify),
            on_change=self._changed.set, on_end=self._tenure.end)
        for part in self._parts:
            part.stand_by()
        client.fence_writes(self)
        self._outpost.start()

    @property
    def term(self) -> int | None:
        return self._term

    def verify(self, term: int | None) -> None:
        """
        Check by the clock that this term has not ended.

        :raises errors.NotLeadingError: if it has.
        """
        if term is None or term != self._term or term != self._tenure.term:
            raise errors.NotLeadingError(
                "Nothing is written: the operator does not hold its Lease any more.")

    def describe(self) -> Mapping[str, str]:
        return {'leadership': 'standby' if self._term is None else 'leader'}

    def confirm(self) -> None:
        """Stand by if the term has ended by the clock, even if nobody has noticed it yet."""
        if self._term is not None and self._tenure.term != self._term:
            self._stand_by()

    async def run(self) -> None:
        """
        Take over and stand by as the election goes, until cancelled.

        :raises switches.LeadershipLostError: at a loss, if the settings say that this is an exit.
        """
        was_leading = False
        while True:
            self._changed.clear()
            self._outpost.check()
            self.confirm()
            if self._term is None and was_leading and self._settings.leadership.exit_on_loss:
                raise switches.LeadershipLostError(
                    "The operator has lost its Lease, and exits, as settings.leadership."
                    "exit_on_loss says. Start it again to let it stand by.")
            if self._term is None and self._tenure.term is not None:
                await self._take_over(self._tenure.term)
                was_leading = was_leading or self._term is not None
            else:
                await self._changed.wait()

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        is_released = is_released and self._settings.leadership.release_on_exit
        await self._outpost.stop(release_by=deadline if is_released else None)

    async def _take_over(self, term: int) -> None:
        self._client.reset_streams(age=MIN_AGE)
        await asyncio.sleep(SETTLING)
        if self._tenure.term == term:
            self._term = term
            logger.info("Leading: handling the objects from now on.")
            for part in self._parts:
                part.take_over()

    def _stand_by(self) -> None:
        self._term = None
        logger.warning("Standing by: the operator does not lead any more.")
        for part in self._parts:
            part.stand_by()
        self._client.reset_writes()
        self._changed.set()


def verify(settings: configuration.OperatorSettings) -> None:
    """
    Check that the settings do not contradict each other; the durations as client-go does.

    :raises SettingsError: if they do.
    """
    own = settings.leadership
    if has_peering(settings):
        raise configuration.SettingsError(
            "Peering and leader election exclude each other: omit either --peering, --priority, "
            "--dev (settings.peering), or --leader-elect (settings.leadership.name).")
    verify_durations(own)


def has_peering(settings: configuration.OperatorSettings) -> bool:
    """Whether any of the settings asks for a peering."""
    peering = settings.peering
    return not peering.standalone and bool(
        peering.mandatory or peering.priority or peering.name != 'default')


def verify_durations(own: configuration.LeadershipSettings) -> None:
    """
    Check the durations of a Lease.

    :raises SettingsError: if they do not fit together.
    """
    if not own.lease_duration > own.renew_deadline > leadership.JITTER * own.retry_period > 0:
        raise configuration.SettingsError(
            f"The durations of settings.leadership do not fit: lease_duration "
            f"({own.lease_duration:g}) must be longer than renew_deadline "
            f"({own.renew_deadline:g}), and that longer than {leadership.JITTER} times the "
            f"retry_period ({own.retry_period:g}).")
    if own.lease_duration != int(own.lease_duration):
        raise configuration.SettingsError(
            "settings.leadership.lease_duration must be in whole seconds: Leases have no others.")


def find_namespace(
        settings: configuration.OperatorSettings, known: Collection[credentials.Credentials],
) -> str:
    """
    Find the namespace of the Leases: in the settings, or that of the credentials or of the pod.

    :raises SettingsError: if there is none, or if the thread that keeps the Leases cannot use these
        credentials.
    """
    if any(isinstance(item, credentials.AiohttpSession) for item in known):
        raise configuration.SettingsError(
            "Leases need connections of their own, but the login handler returns "
            "kopf.AiohttpSession. Return kopf.ConnectionInfo.")
    namespaces = [
        settings.leadership.namespace, *sorted(item.default_namespace or '' for item in known),
        serviceaccounts.get_namespace()]
    namespace = next(filter(None, namespaces), None)
    if namespace is None:
        raise configuration.SettingsError(
            "In which namespace is the Lease? Set settings.leadership.namespace, or select a "
            "namespace: kubectl config set-context --current --namespace=NAME")
    return namespace
