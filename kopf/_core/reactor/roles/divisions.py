"""
Divisions: pass each object of a watch to the works of its shard; drop objects of other replicas.

This module puts all objects into the complete indices, whoever holds their shards. The works of
each shard fill the sharded indices.
"""
import asyncio
import math
from collections.abc import Collection, Iterator

from kopf._cogs.aiokits import alarms
from kopf._cogs.clients import screening, shardselectors
from kopf._cogs.structs import bodies, references
from kopf._core.engines import indexing
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.sharding import holdings, partitions
from kopf._core.intents import registries
from kopf._core.path import intake, saving, switches
from kopf._core.reactor.roles import coordination, shardworks, works
from kopf._core.reactor.watches.watchsets import Key

GATHERING_TIME = 1.0
"""How long (seconds) after a list the next one begins at the earliest, for more shards to come."""


class Division(coordination.Coordination):
    """
    The coordination of an operator whose objects are divided into shards, which come and go.

    For `orchestration`, it replaces the informers of an operator, and uses those of the shards.
    The objects of an acquired shard come with the next lists, so the watches begin again. But no
    list is interrupted for that: the shards that are acquired during one list share the next list.
    """

    def __init__(
            self,
            env: saving.Environment,
            *,
            hub: Hub,
            indexers: indexing.OperatorIndexers,
            partition: partitions.Partition,
    ) -> None:
        super().__init__()
        self.informers = self
        self.partition = partition
        self.held: dict[int, shardworks.Shard] = {}
        """The works of the shards that are held and not being released."""
        self._distributors: dict[Key, Distributor] = {}
        self._alarm = alarms.Alarm(lambda _: self.woken.set())
        self.indices = works.Works(
            env, switch=switches.Switch(), hub=hub, indexers=indexers, only_indexing=True).informers

    @property
    def works(self) -> Collection[shardworks.Shard]:
        return self.held.values()

    def include(self, shard: shardworks.Shard) -> None:
        """Let these works take part from the next lists on, which are requested soon."""
        self.held[shard.grant.shard] = shard
        for distributor in self._distributors.values():
            if self._is_for(distributor, shard):
                distributor.open_for(shard)
        self.indices.call_when_filled(shard.informers.seal)
        self.woken.set()

    def exclude(self, grant: holdings.Grant) -> shardworks.Shard:
        """Pass no more objects to the works of this shard; return them."""
        self.woken.set()  # its namespaces can be idle now
        return self.held.pop(grant.shard)

    async def stop_indexing(self, deadline: float) -> None:
        """Stop the indexing until the deadline (a time of the loop)."""
        self._alarm.cancel()
        await self.indices.stop(deadline)

    # As the consumer of the watches.

    def take_relisting(self) -> Collection[Key]:
        self._alarm.cancel()
        now = asyncio.get_running_loop().time()
        due = [key for key, item in self._distributors.items() if item.take_relisting(now)]
        self._alarm.set(min((
            item.relisting_at for item in self._distributors.values() if item.is_unlisted),
            default=math.inf))
        return due

    def is_idle(self, key: Key) -> bool:
        """Whether all objects of a namespace belong to other replicas, and no index needs them."""
        shard = self.partition.find_only(key[1])
        return shard is not None and shard not in self.held and self.indices.get(*key) is None

    def open(
            self, resource: references.Resource, namespace: references.Namespace,
            served: registries.ResourceHandlers,
    ) -> 'Distributor':
        key = resource, namespace
        distributor = self._distributors.setdefault(key, Distributor(self, key, served))
        distributor.serve(key, served)
        complete = registries.ResourceHandlers(
            indexing=tuple(handler for handler in served.indexing if not handler.sharded))
        if complete.indexing:
            self.indices.open(resource, namespace, complete)
        else:
            self.indices.close(resource, namespace)
        for shard in self.held.values():
            if self._is_for(distributor, shard):
                shard.informers.open(resource, namespace, served)
            else:
                shard.informers.close(resource, namespace)
        return distributor

    def close(
            self, resource: references.Resource, namespace: references.Namespace, *,
            deleted: bool = False,
    ) -> None:
        del self._distributors[resource, namespace]
        self.indices.close(resource, namespace, deleted=deleted)
        for shard in self.held.values():
            shard.informers.close(resource, namespace, deleted=deleted)

    def forget_except(self, namespaces: Collection[references.Namespace]) -> None:
        self.indices.forget_except(namespaces)
        for shard in self.held.values():
            shard.informers.forget_except(namespaces)

    def seal(self) -> None:
        self.indices.seal()

    def _is_for(self, distributor: 'Distributor', shard: shardworks.Shard) -> bool:
        """Whether the watch can have objects that the shard needs, not only complete indices."""
        served = distributor.served  # admission handlers use the memos of objects
        return bool(
            served.watching or served.spawning or served.changing or served.reconciling
            or served.webhooks or any(handler.sharded for handler in served.indexing)
        ) and self.partition.find_only(distributor.key[1]) in (None, shard.grant.shard)


class Distributor:
    """Takes the events of one watch."""

    def __init__(self, division: Division, key: Key, served: registries.ResourceHandlers) -> None:
        self.key = key
        self.served = served
        self._division = division
        self._selected: frozenset[shardworks.Shard] = frozenset()
        """The shards for which the last list was requested, and that are held since then."""
        self._fed: dict[shardworks.Shard, intake.Informer] = {}
        """The informers of the shards whose objects the last list has brought, or will bring."""
        self.is_unlisted = False
        """Whether any shards have begun since the last list was requested."""
        self.relisting_at = math.inf
        """When the next list may be requested; infinite until the present list has ended."""
        self.listing: int | None = 0
        """How many objects of the first list have come so far; None when the list has ended."""
        self.expected: int | None = None
        """About how many objects the first list has; None if the API server has not said."""

    def serve(self, key: Key, served: registries.ResourceHandlers) -> None:
        """Switch to other handlers or other details of the resource. A new list must follow."""
        self.key, self.served = key, served

    def open_for(self, shard: shardworks.Shard) -> None:
        """Pass objects to the works of this shard from the next list on, which must follow."""
        shard.informers.open(*self.key, self.served)
        self.is_unlisted = True

    def take_relisting(self, now: float) -> bool:
        """Whether to request a new list now. The same list is not requested twice."""
        is_due = self.is_unlisted and self.relisting_at <= now
        self.is_unlisted = self.is_unlisted and not is_due
        return is_due

    @property
    def filling(self) -> tuple[int, int] | None:
        """How many objects are indexed, and of how many; None if the indices are filled."""
        if self._index is not None:
            return self._index.filling
        counts = [count for informer in self._fed.values() if (count := informer.filling)]
        return (sum(done for done, _ in counts), sum(total for _, total in counts)) if (
            counts) else None

    @property
    def screen(self) -> screening.Screen | None:
        """The function that recognises objects of other replicas; None if an index needs them."""
        is_enough = self._division.partition.is_by_metadata and self._index is None
        return self._screen if is_enough else None

    def _screen(self, type: screening.EventType | None, body: bodies.RawBody) -> bool:
        if self._find(body) is not None:
            return False
        if type is None:
            self._count_listed()
        return True

    @property
    def _index(self) -> intake.Informer | None:
        return self._division.indices.get(*self.key)

    def select(self, *, anew: bool) -> shardselectors.ShardSelector | None:
        held = frozenset(self._division.held.values())
        self._selected = held if anew else held & self._selected
        if anew:
            self.is_unlisted, self.relisting_at = False, math.inf
        return None if self._index is not None else self._division.partition.select(
            [shard.grant.shard for shard in self._selected])

    def list_started(self, *, restored: bool) -> None:
        self._fed = {
            shard: informer for shard in self._division.held.values() if shard in self._selected
            and (informer := shard.informers.get(*self.key)) is not None}
        for informer in self._get_all():
            informer.list_started(restored=restored)

    def expect(self, remaining: int | None) -> None:
        if self.listing is not None:
            self.expected = None if remaining is None else self.listing + remaining
        if self._index is not None:
            self._index.expect(remaining)

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        self._count_listed()
        for informer in self._route(body):
            informer.listed(body, packed)

    def list_ended(self) -> None:
        self.listing = None
        for informer in self._get_all():
            informer.list_ended()
        self.relisting_at = asyncio.get_running_loop().time() + GATHERING_TIME
        if self.is_unlisted:
            self._division.woken.set()

    def unavailable(self, error: Exception) -> None:
        unlogged: Exception | None = error
        if self._index is not None and self._index.is_awaited:
            self._index.unavailable(error)
            unlogged = None
        for shard in self._division.held.values():
            informer = shard.informers.get(*self.key)
            if informer is not None and informer.is_awaited:
                is_filling = any(handler.sharded for handler in informer.handlers.indexing)
                informer.unavailable(unlogged if is_filling else None)
                unlogged = None if is_filling else unlogged

    def changed(
            self, type: screening.EventType, body: bodies.RawBody, packed: bytes | None = None,
    ) -> None:
        for informer in self._route(body):
            informer.changed(type, body, packed)

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        for informer in self._route(body):
            informer.skipped(type, body)

    def _count_listed(self) -> None:
        if self.listing is not None:
            self.listing += 1

    def _get_all(self) -> list[intake.Informer]:
        """Get the informers of the indices and of the shards that are still held."""
        held = set(self._division.held.values())
        found = [informer for shard, informer in self._fed.items() if shard in held]
        return found if self._index is None else [self._index, *found]

    def _route(self, body: bodies.RawBody) -> Iterator[intake.Informer]:
        """Find the informers that need the object: for the indices first."""
        if (index := self._index) is not None:
            yield index
        if (informer := self._find(body)) is not None:
            yield informer

    def _find(self, body: bodies.RawBody) -> intake.Informer | None:
        """
        Find the informer of the object; those of other shards forget it.

        Works that are ending keep the object, to finish the running handlers and write outcomes.
        """
        if not self._fed:
            return None
        number = self._division.partition.find(body)
        owner = self._division.held.get(number)
        uid = bodies.get_uid(body)
        for shard, informer in self._fed.items():
            if shard.grant.shard != number and informer.find(uid) is not None:
                informer.dismiss(uid)
        return None if owner is None else self._fed.get(owner)
