"""
Peerings: in which objects the operator meets others, and whether it has to freeze because of them.

It is a member of every peering object of its name, in each served namespace or in the cluster, and
in each API group where there is one. It is frozen if it is so in any of them. A frozen operator
handles nothing; afterwards, everything is listed anew before anything is handled.
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
from kopf._core.reactor import peeringstreams

logger = logging.getLogger('kopf._core.engines.peering')

Standing = memberships.Standing
_Key = tuple[references.Resource, references.Namespace]


class Pausable(Protocol):
    """What must do nothing while the operator is frozen."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def rest(self) -> None:
        """Wait until nothing is under way."""


class Peerings:
    """All memberships of an operator. `subscribe` to know when anything changes."""

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
        """Whether the work has been stopped; as opposed to whether it should be."""
        self._client = client
        self._settings = settings
        self._clock = clock
        self._identity = identity if identity is not None else records.make_identity()
        self._pausables = pausables
        self._streams: dict[_Key, peeringstreams.PeeringStream] = {}
        self._namespaces: Collection[references.Namespace] = ()
        self._woken: asyncio.Event | None = None
        self._told: set[object] = set()
        self._begun = False
        self._left = False
        self._idle = False
        self._resting: asyncio.Task[None] | None = None

    @property
    def groups(self) -> Collection[str]:
        """The API groups of which the resources have to be known."""
        return () if self._settings.peering.standalone else records.GROUPS

    def subscribe(self, woken: asyncio.Event) -> None:
        self._woken = woken

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """Be a member in those peerings that there can be, by these resources and namespaces."""
        if self._settings.peering.standalone:
            return
        clusterwide = self._settings.peering.clusterwide
        self._namespaces = [None] if clusterwide else list(namespaces)
        needed = {
            (resource, namespace)
            for resource in resources
            if records.is_peering(resource, clusterwide=clusterwide)
            for namespace in self._namespaces
        }
        gone = [self._streams.pop(key) for key in self._streams.keys() - needed]
        for resource, namespace in needed - self._streams.keys():
            self._streams[resource, namespace] = peeringstreams.PeeringStream(
                resource, namespace, client=self._client, settings=self._settings,
                clock=self._clock, identity=self._identity, on_change=self._note_change,
                is_idle=lambda: self._idle)
        if gone:
            await asyncio.gather(*(stream.leave() for stream in gone))
        self._check()

    def check(self) -> None:
        """Raise the error of any membership that has failed: only when logging in does."""
        for stream in self._streams.values():
            stream.check()

    @property
    def frozen(self) -> bool:
        """Whether the operator has to do nothing."""
        if not self._begun and any(stream.is_unknown for stream in self._streams.values()):
            return True
        return bool(self._get_missing()) or any(
            membership.standing in memberships.FROZEN for membership in self._iter_memberships())

    def is_settled(self, namespace: references.Namespace) -> bool:
        """Whether it is known who else serves the namespace."""
        return not any(
            stream.is_unknown for stream in self._streams.values()
            if stream.namespace is None or stream.namespace == namespace)

    def resume(self) -> None:
        """Go on with the work after it was paused; what is listed from now on can be handled."""
        self._begun = True
        if self.paused:
            self.paused = self._idle = False
            if self._resting is not None:
                self._resting.cancel()
            for pausable in self._pausables:
                pausable.resume()

    def confirm(self) -> None:
        """Pause the work if the operator is dead to the others by now, though not told so yet."""
        for stream in self._streams.values():
            for membership in stream.memberships.values():
                membership.confirm()

    async def leave(self) -> None:
        """Leave all peerings: the very last thing that the operator does in the cluster."""
        self._left = True
        if self._resting is not None:
            await tasks.cancel([self._resting])
        streams, self._streams = self._streams, {}
        await asyncio.gather(*(stream.leave() for stream in streams.values()))

    def _note_change(self) -> None:
        if self._left:
            return
        self._check()
        if self._woken is not None:
            self._woken.set()

    def _check(self) -> None:
        self._tell_absent()
        if self.frozen and not self.paused:
            self.paused = True
            for pausable in self._pausables:
                pausable.pause()
            self._resting = asyncio.get_running_loop().create_task(self._rest())

    async def _rest(self) -> None:
        """Let the others know when nothing is under way any more."""
        for pausable in self._pausables:
            await pausable.rest()
        self._idle = True
        for membership in self._iter_memberships():
            membership.judge()

    def _iter_memberships(self) -> Iterable[memberships.Membership]:
        return (item for stream in self._streams.values() for item in stream.memberships.values())

    def _get_missing(self) -> Collection[references.Namespace]:
        """Where there must be a peering object, but there is none."""
        return self._get_absent() if self._settings.peering.mandatory else []

    def _get_absent(self) -> Collection[references.Namespace]:
        return [
            namespace for namespace in self._namespaces
            if all(stream.is_absent for stream in self._streams.values()
                   if stream.namespace == namespace)]

    def _tell_absent(self) -> None:
        """Say once for each namespace what it means that there is no peering object."""
        peering = self._settings.peering
        absent = set(self._get_absent())
        self._told &= absent
        for namespace in sorted(absent - self._told, key=str):
            self._told.add(namespace)
            where = '' if namespace is None else f' in {namespace!r}'
            kind = 'ClusterKopfPeering' if peering.clusterwide else 'KopfPeering'
            if peering.mandatory:
                logger.warning(f"There is no {kind} {peering.name!r}{where}, but it is mandatory. "
                               f"Pausing operations until it exists.")
            else:
                title = 'Default' if peering.name == 'default' else repr(peering.name)
                logger.warning(f"{title} peering object is not found{where}, "
                               f"falling back to the standalone mode.")
