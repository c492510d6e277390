"""
Peerings: in which objects the operator meets others, and whether it has to freeze because of them.

It is a member of every peering object of its name, in each served namespace or in the cluster, and
in each API group where there is one. It is frozen if it is so in any of them. A frozen operator
handles nothing; afterwards, everything is listed anew before anything is handled.
"""
import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Literal, Protocol

from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api, errors, watching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.engines.peering import memberships, records
from kopf._core.reactor import observation

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
        self._halls: dict[_Key, Hall] = {}
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
        gone = [self._halls.pop(key) for key in self._halls.keys() - needed]
        for resource, namespace in needed - self._halls.keys():
            self._halls[resource, namespace] = Hall(
                resource, namespace, client=self._client, settings=self._settings,
                clock=self._clock, identity=self._identity, on_change=self._note_change,
                is_idle=lambda: self._idle)
        if gone:
            await asyncio.gather(*(hall.leave() for hall in gone))
        self._check()

    def check(self) -> None:
        """Raise the error of any membership that has failed: only when logging in does."""
        for hall in self._halls.values():
            hall.check()

    @property
    def frozen(self) -> bool:
        """Whether the operator has to do nothing."""
        if not self._begun and any(hall.is_unknown for hall in self._halls.values()):
            return True
        return bool(self._get_missing()) or any(
            membership.standing in memberships.FROZEN for membership in self._iter_memberships())

    def is_settled(self, namespace: references.Namespace) -> bool:
        """Whether it is known who else serves the namespace."""
        return not any(
            hall.is_unknown for hall in self._halls.values()
            if hall.namespace is None or hall.namespace == namespace)

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
        for hall in self._halls.values():
            for membership in hall.memberships.values():
                membership.confirm()

    async def leave(self) -> None:
        """Leave all peerings: the very last thing that the operator does in the cluster."""
        self._left = True
        if self._resting is not None:
            await tasks.cancel([self._resting])
        halls, self._halls = self._halls, {}
        await asyncio.gather(*(hall.leave() for hall in halls.values()))

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
        return (item for hall in self._halls.values() for item in hall.memberships.values())

    def _get_missing(self) -> Collection[references.Namespace]:
        """Where there must be a peering object, but there is none."""
        return self._get_absent() if self._settings.peering.mandatory else []

    def _get_absent(self) -> Collection[references.Namespace]:
        return [
            namespace for namespace in self._namespaces
            if all(hall.is_absent for hall in self._halls.values() if hall.namespace == namespace)]

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


class Hall(watching.Sink):
    """
    The peering objects of one kind in one namespace (or in all of them), and the memberships there.
    """

    def __init__(
            self,
            resource: references.Resource,
            namespace: references.Namespace,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
            identity: str,
            on_change: Callable[[], None],
            is_idle: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.namespace = namespace
        self.memberships: dict[references.Namespace, memberships.Membership] = {}
        self._resource = resource
        self._name = settings.peering.name
        self._client = client
        self._settings = settings
        self._clock = clock
        self._identity = identity
        self._on_change = on_change
        self._is_idle = is_idle
        self._listed: set[references.Namespace] = set()
        self._known = False
        self._restored = False
        self._task = self._start_watching()

    @property
    def is_unknown(self) -> bool:
        return not self._known or any(
            item.standing is Standing.UNKNOWN for item in self.memberships.values())

    @property
    def is_absent(self) -> bool:
        return self._known and all(
            item.standing is Standing.ABSENT for item in self.memberships.values())

    def check(self) -> None:
        for membership in self.memberships.values():
            membership.check()
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def leave(self) -> None:
        await tasks.cancel([self._task])
        await asyncio.gather(*(item.leave() for item in self.memberships.values()))

    def begin(self, *, restored: bool) -> None:
        self._listed = set()
        self._restored = restored

    def listed(self, body: bodies.RawBody) -> None:
        if body['metadata']['name'] == self._name:
            self._listed.add(self._get_place(body))
            self._enter(body).see(body, live=False, restored=self._restored)

    def end(self) -> None:
        self._set_known()
        for place, membership in self.memberships.items():
            if place not in self._listed:
                membership.miss()

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        if body['metadata']['name'] == self._name:
            if type != 'DELETED':
                self._enter(body).see(body, live=True)
            elif self._get_place(body) in self.memberships:
                self.memberships[self._get_place(body)].miss()

    def _get_place(self, body: bodies.RawBody) -> references.Namespace:
        return references.NamespaceName(body['metadata']['namespace']) if (
            self._resource.namespaced) else None

    def _enter(self, body: bodies.RawBody) -> memberships.Membership:
        place = self._get_place(body)
        if place not in self.memberships:
            self.memberships[place] = memberships.Membership(
                client=self._client, settings=self._settings, clock=self._clock,
                resource=self._resource, namespace=place, identity=self._identity,
                standing=Standing.ABSENT if self._known else Standing.UNKNOWN,
                on_change=self._on_change, is_idle=self._is_idle, on_stall=self._restart)
        return self.memberships[place]

    def _set_known(self) -> None:
        if not self._known:
            self._known = True
            self._on_change()

    def _start_watching(self) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            self._watch(), name=f"watching of {self._resource} in {self.namespace!r}")
        task.add_done_callback(lambda _: self._on_change())
        return task

    def _restart(self) -> None:
        """The connection is dead, though nobody has said so."""
        self._task.cancel()
        self._task = self._start_watching()

    async def _watch(self) -> None:
        """Watch for ever; while this is forbidden, try again now and then."""
        selector = references.SelectorMapping[str]()
        selector[references.EVERYTHING] = f'metadata.name={self._name}'
        settings = dataclasses.replace(self._settings, watching=dataclasses.replace(
            self._settings.watching, label_selectors=references.SelectorMapping(),
            field_selectors=selector, shard_selectors=references.SelectorMapping()))
        for pause in observation.iter_forbidden_pauses():
            try:
                await watching.watch(
                    self._client, settings=settings, resource=self._resource,
                    namespace=self.namespace, sink=self, logger=logger,
                    raising=(errors.APIForbiddenError,))
            except errors.APIForbiddenError:
                if not self._known:
                    where = '' if self.namespace is None else f' in {self.namespace!r}'
                    logger.warning(f"There are no rights to list and watch {self._resource}{where}:"
                                   f" other operators cannot be known.")
                for membership in self.memberships.values():
                    membership.forbid()
                self._set_known()
            await asyncio.sleep(pause)
