"""
All peerings of one operator: in which peering objects it takes part, and whether it must be paused.

An operator takes part in all peering objects named ``settings.peering.name``: in each served
namespace or, if it is cluster-wide, in the cluster; and in each API group that has peering objects.
The operator is paused as long as any of these peerings requires that. A paused operator handles
nothing. When the operator resumes, it lists all resources again before it handles any object:
others may have changed them.
"""
import asyncio
import functools
import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api
from kopf._cogs.cluster import discovery
from kopf._cogs.structs import references
from kopf._core.engines.peering import memberships, records
from kopf._core.reactor.roles import coordination
from kopf._core.reactor.roles.works import Works
from kopf._core.reactor.watches import peers, watchsets
from kopf._core.reactor.watches.watchsets import Key

logger = logging.getLogger('kopf._core.engines.peering')

Standing = memberships.Standing

FAREWELL_TIMEOUT = 5.0
"""How long (seconds) it may take to leave the peering of a namespace that is no longer served."""


class Peerings(coordination.Coordination):
    """All peering memberships of an operator."""

    def __init__(
            self,
            *,
            client: api.Client,
            clock: clocks.Clock,
            identity: str | None,
            works: Works,
            parts: Collection[coordination.Standby],
    ) -> None:
        super().__init__(works)
        self._paused = False
        """Whether the operator has been paused."""
        self._is_unwatched = False
        """Whether `select` has reported the pause, so that the objects are not watched any more."""
        self._client = client
        settings = self._settings = client.settings
        self._clock = clock
        self._identity = identity if identity is not None else records.make_identity()
        self._whole, self._parts = works, parts
        self._watches: dict[Key, peers.PeeringWatch] = {}
        self._set = watchsets.WatchSet[Key](self.woken.set)
        self._resources: Collection[references.Resource] = ()
        self._served: Collection[references.Namespace] = ()
        """The namespaces in which peering objects are expected."""
        self.groups = () if settings.peering.standalone else records.GROUPS
        self._warned: set[references.Namespace] = set()
        self._sound_until = 0.0
        """The monotonic time before which no own record expires; see `confirm`."""
        self._begun = False
        self._idle = False
        self._resting: asyncio.Task[None] | None = None

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """Join the peerings of these resources and namespaces, and leave all others."""
        if self._settings.peering.standalone:
            return
        clusterwide = self._settings.peering.clusterwide
        self._served = [None] if clusterwide else namespaces
        self._resources = dict.fromkeys(
            resource for resource in resources
            if records.is_peering(resource, clusterwide=clusterwide))
        needed = dict.fromkeys(
            (resource, namespace) for resource in self._resources for namespace in self._served)
        gone = {key: self._watches.pop(key) for key in [*self._watches] if key not in needed}
        for key in needed:
            if key not in self._watches:
                note_change = functools.partial(self._note_change, key)
                self._watches[key] = peers.PeeringWatch(
                    *key, client=self._client, on_synced=note_change,
                    join=functools.partial(
                        memberships.Membership, client=self._client, clock=self._clock,
                        resource=key[0], identity=self._identity, on_change=note_change,
                        on_end=self._set.note_end, is_idle=lambda: self._idle,
                        on_stall=functools.partial(self._watch, key)))
                self._watch(key)
        if gone:
            await self._leave(gone, asyncio.get_running_loop().time() + FAREWELL_TIMEOUT)

    def _watch(self, key: Key) -> None:
        """Begin the watch; or replace it, if it is stalled: open, but without any news."""
        if key in self._watches:
            self._set.start(
                key, self._watches[key].watch, name="watching of {} in {!r}".format(*key))

    async def _leave(
            self, gone: Mapping[Key, peers.PeeringWatch], deadline: float, *,
            is_released: bool = True,
    ) -> None:
        await self._set.stop(gone)
        self._set.forget(gone)
        await asyncio.gather(*(
            watch.leave(deadline, is_released=is_released) for watch in gone.values()))

    def select(
            self, namespaces: Sequence[references.Namespace],
    ) -> Sequence[references.Namespace] | None:
        """
        Select the namespaces that can be served now; None if the operator is paused.

        A namespace is not served until its peers are known: some may have a higher priority.

        :raises LoginError: the only error that memberships do not handle themselves.
        """
        self._set.check()
        unknown = {
            key for key, watch in self._watches.items() if Standing.UNKNOWN in watch.standings}
        if unknown and not self._begun:
            self._pause()
            self._is_unwatched = True
            return None
        absent = {namespace for namespace in self._served if self._is_absent(namespace)}
        self._warn_of_absence(absent)
        must_pause = (absent and self._settings.peering.mandatory) or any(
            watch.standings & memberships.PAUSED for watch in self._watches.values())
        if must_pause or (self._paused and not self._is_unwatched):
            self._pause()
            self._is_unwatched = True
            if not must_pause:
                self.woken.set()  # the pause is over, but all objects must be listed again
            return None
        if self._paused or not self._begun:
            self._resume()
        unsettled = {namespace for _, namespace in unknown}
        return [] if None in unsettled else [
            namespace for namespace in namespaces if namespace not in unsettled]

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._whole.pause()
            for part in self._parts:
                part.stand_by()
            self._resting = asyncio.get_running_loop().create_task(self._rest())

    def _resume(self) -> None:
        """Let the parts begin or resume; objects that are listed from now on can be handled."""
        self._begun = True
        self._paused = self._is_unwatched = self._idle = False
        if self._resting is not None:
            self._resting.cancel()
        self._whole.resume()
        for part in self._parts:
            part.take_over()

    def confirm(self) -> None:
        """
        Pause the operator if its own record has expired, even if the timer for that is late.

        The timer is late e.g. after the process was suspended or the event loop was blocked. By
        then, other operators may have taken over.
        """
        if self._sound_until < math.inf and self._clock.mono() >= self._sound_until:
            for membership in self._iter_memberships():
                membership.confirm()
            self._sound_until = min(
                (membership.expires_at for membership in self._iter_memberships()),
                default=math.inf)

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        watches, self._watches = self._watches, {}
        if self._resting is not None:
            await tasks.cancel([self._resting])
        await self._leave(watches, deadline, is_released=is_released)

    def _note_change(self, key: Key) -> None:
        """Pause at once if the peers require that. The next `select` does everything else."""
        if key not in self._watches:
            return
        self._sound_until = 0.0
        if self._watches[key].standings & memberships.PAUSED or (
                self._settings.peering.mandatory and self._is_absent(key[1])):
            self._pause()
        self.woken.set()

    def _is_absent(self, namespace: references.Namespace) -> bool:
        return all(self._watches[resource, namespace].standings == {Standing.ABSENT}
                   for resource in self._resources)

    async def _rest(self) -> None:
        """
        Wait until nothing is under way, and let the own records tell the other operators about it.
        """
        await self._whole.rest()
        self._idle = True
        for membership in self._iter_memberships():
            membership.judge()

    def _iter_memberships(self) -> Iterable[memberships.Membership]:
        return (item for watch in self._watches.values() for item in watch.memberships.values())

    def _warn_of_absence(self, namespaces: set[references.Namespace]) -> None:
        """Warn once of each namespace that has no peering object, and say what follows."""
        absent = sorted(namespaces - self._warned, key=str)
        self._warned = namespaces
        if not absent:
            return
        peering = self._settings.peering
        names = discovery.enumerate_names(map(repr, absent))
        where = '' if peering.clusterwide else f' in {names}'
        kind = 'ClusterKopfPeering' if peering.clusterwide else 'KopfPeering'
        if peering.mandatory:
            logger.warning(f"There is no {kind} {peering.name!r}{where}, but it is mandatory. "
                           f"Pausing operations until it exists. "
                           f"To create it: {self._make_command(kind, absent)}")
        else:
            title = 'Default' if peering.name == 'default' else repr(peering.name)
            logger.warning(f"{title} peering object is not found{where}, "
                           f"falling back to the standalone mode: other operators are not "
                           f"noticed. If others handle the same objects, all of them do so at the "
                           f"same time. If there are none, add --standalone. Otherwise, create "
                           f"the object: {self._make_command(kind, absent)}")

    def _make_command(self, kind: str, namespaces: Sequence[references.Namespace]) -> str:
        """Make the shell command that creates the peering object."""
        resource = next(iter(self._resources), None)
        obj = json.dumps({
            'apiVersion': 'kopf.dev/v1' if resource is None else resource.api_version,
            'kind': kind, 'metadata': {'name': self._settings.peering.name}})
        option = '' if namespaces[0] is None else (
            f' -n {namespaces[0]}' if len(namespaces) == 1 else ' -n NAMESPACE')
        definition = "kopf crd --peering | kubectl apply -f -; " if resource is None else ""
        return f"{definition}echo '{obj}' | kubectl create{option} -f -"
