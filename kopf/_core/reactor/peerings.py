"""
All peerings of one operator: in which peering objects it takes part, and whether it must be paused.

An operator takes part in all peering objects named ``settings.peering.name``: in each served
namespace or, if it is cluster-wide, in the cluster; and in each API group that has peering objects.
The operator is paused as long as any of these peerings requires that. A paused operator handles
nothing. When the operator resumes, it lists all resources again before it handles any object:
others may have changed them.
"""
import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Protocol

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.engines.peering import memberships, records
from kopf._core.reactor import peeringwatches

logger = logging.getLogger('kopf._core.engines.peering')

FAREWELL_TIMEOUT = 5.0
"""How long (seconds) it may take to leave the peering of a namespace that is no longer served."""

Standing = memberships.Standing
_Key = tuple[references.Resource, references.Namespace]


class Pausable(Protocol):
    """A part of the operator that must do nothing while the operator is paused."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def rest(self) -> None:
        """Wait, after `pause`, until what was under way has ended."""


class Peerings:
    """
    All peering memberships of an operator. The subscribed event is set when any of them changes.
    """

    def __init__(
            self,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
            identity: str | None = None,
            pausables: Collection[Pausable] = (),
    ) -> None:
        super().__init__()
        self.paused = False
        """Whether the operator's parts have been paused; compare with `must_pause`."""
        self._client = client
        self._settings = settings
        self._clock = clock
        self._identity = identity if identity is not None else records.make_identity()
        self._pausables = pausables
        self._watches: dict[_Key, peeringwatches.PeeringWatch] = {}
        self._namespaces: Collection[references.Namespace] = ()
        self._woken: asyncio.Event | None = None
        self._warned: set[object] = set()
        self._begun = False
        self._left = False
        self._idle = False
        self._resting: asyncio.Task[None] | None = None

    @property
    def groups(self) -> Collection[str]:
        """The API groups whose resources have to be discovered to find the peering resources."""
        return () if self._settings.peering.standalone else records.GROUPS

    def subscribe(self, woken: asyncio.Event) -> None:
        self._woken = woken

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """Join the peerings of these resources and namespaces, and leave all others."""
        if self._settings.peering.standalone:
            return
        clusterwide = self._settings.peering.clusterwide
        self._namespaces = [None] if clusterwide else list(namespaces)
        needed = dict.fromkeys(
            (resource, namespace)
            for resource in resources
            if records.is_peering(resource, clusterwide=clusterwide)
            for namespace in self._namespaces)
        gone = [self._watches.pop(key) for key in [*self._watches] if key not in needed]
        for resource, namespace in needed:
            if (resource, namespace) in self._watches:
                continue
            self._watches[resource, namespace] = peeringwatches.PeeringWatch(
                resource, namespace, client=self._client, settings=self._settings,
                clock=self._clock, identity=self._identity, on_change=self._note_change,
                is_idle=lambda: self._idle)
        if gone:
            deadline = asyncio.get_running_loop().time() + FAREWELL_TIMEOUT
            await asyncio.gather(*(watch.leave(deadline) for watch in gone))
        self._check()

    def check(self) -> None:
        """
        Raise the error of a failed membership, if there is any.

        :raises LoginError: the only error that memberships do not handle themselves.
        """
        for watch in self._watches.values():
            watch.check()

    @property
    def must_pause(self) -> bool:
        """Whether the operator must handle nothing, as of now."""
        if not self._begun and any(watch.is_unknown for watch in self._watches.values()):
            return True
        return bool(self._get_missing()) or any(
            membership.standing in memberships.PAUSED for membership in self._iter_memberships())

    def is_settled(self, namespace: references.Namespace) -> bool:
        """
        Whether the other operators that serve the namespace are known, or that there are none.
        """
        return not any(
            watch.is_unknown for watch in self._watches.values()
            if watch.namespace is None or watch.namespace == namespace)

    def resume(self) -> None:
        """Let the parts begin or resume; objects that are listed from now on can be handled."""
        if self.paused or not self._begun:
            self._begun = True
            self.paused = self._idle = False
            if self._resting is not None:
                self._resting.cancel()
            for pausable in self._pausables:
                pausable.resume()

    def confirm(self) -> None:
        """
        Pause the operator if its own record has expired, though the timer for that is late.

        The timer is late e.g. after the process was suspended or the event loop was blocked. By
        then, other operators may have taken over.
        """
        for watch in self._watches.values():
            for membership in watch.memberships.values():
                membership.confirm()

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        """
        Leave all peerings by the deadline, which is a time of the event loop.

        Call this after all other writes of the operator: from then on, other operators take over.
        If any work goes on, the records must not be removed but expire.
        """
        self._left = True
        if self._resting is not None:
            await tasks.cancel([self._resting])
        watches, self._watches = self._watches, {}
        await asyncio.gather(*(
            watch.leave(deadline, is_released=is_released) for watch in watches.values()))

    def _note_change(self) -> None:
        if self._left:
            return
        self._check()
        if self._woken is not None:
            self._woken.set()

    def _check(self) -> None:
        self._warn_of_absent()
        if self.must_pause and not self.paused:
            self.paused = True
            for pausable in self._pausables:
                pausable.pause()
            self._resting = asyncio.get_running_loop().create_task(self._rest())

    async def _rest(self) -> None:
        """
        Wait until nothing is under way, and write that into the records for the other operators.
        """
        for pausable in self._pausables:
            await pausable.rest()
        self._idle = True
        for membership in self._iter_memberships():
            membership.judge()

    def _iter_memberships(self) -> Iterable[memberships.Membership]:
        return (item for watch in self._watches.values() for item in watch.memberships.values())

    def _get_missing(self) -> Collection[references.Namespace]:
        """The namespaces without a peering object, if the peering is mandatory."""
        return self._get_absent() if self._settings.peering.mandatory else []

    def _get_absent(self) -> Collection[references.Namespace]:
        return [
            namespace for namespace in self._namespaces
            if all(watch.is_absent for watch in self._watches.values()
                   if watch.namespace == namespace)]

    def _warn_of_absent(self) -> None:
        """Warn once for each namespace that has no peering object, and say what follows."""
        peering = self._settings.peering
        absent = set(self._get_absent())
        self._warned &= absent
        for namespace in sorted(absent - self._warned, key=str):
            self._warned.add(namespace)
            where = '' if namespace is None else f' in {namespace!r}'
            kind = 'ClusterKopfPeering' if peering.clusterwide else 'KopfPeering'
            if peering.mandatory:
                logger.warning(f"There is no {kind} {peering.name!r}{where}, but it is mandatory. "
                               f"Pausing operations until it exists.")
            else:
                title = 'Default' if peering.name == 'default' else repr(peering.name)
                logger.warning(f"{title} peering object is not found{where}, "
                               f"falling back to the standalone mode.")
