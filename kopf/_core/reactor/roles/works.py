"""
Works: all that handles the objects of one shard, from the informers to the daemons.

They begin when the shard is acquired. They end when it is released, as an operator that exits; or
when it is lost, as an operator that loses its Lease. All their writes are checked by the clock.
"""
import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable

from kopf._cogs.aiokits import tasks, wakeups
from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies
from kopf._core.engines import indexing
from kopf._core.engines.reconciling import applications
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.sharding import holdings
from kopf._core.intents import handlers, stopping
from kopf._core.path import intake, objects, queueing, saving, switches, turns

WRITING_TIME = 2.0
"""How long (seconds) the outcomes can be written after the time of the handlers."""

AwaitIndexing = Callable[[objects.Item], Awaitable[None]]
"""Waits until the newest known state of an object is in the complete indices of the operator."""


class Permission(api.Tenure):
    """The permission to write about the objects of a shard: as long as it is held, by the clock."""

    def __init__(self, own: holdings.Holdings, grant: holdings.Grant) -> None:
        super().__init__()
        self._own = own
        self._grant = grant

    @property
    def term(self) -> int | None:
        return self._grant.term if self._own.covers(self._grant) else None

    def verify(self, term: int | None) -> None:
        if term is None or not self._own.covers(self._grant):
            raise errors.NotLeadingError(
                f"Nothing is written: the operator does not hold the shard {self._grant.shard} "
                f"any more.")


class _Processor(turns.Processor):
    """
    Processes the objects of one shard.

    Here, the objects are put only into the indices by shards. They are put into the complete ones
    elsewhere, together with those of all other shards.
    """

    def __init__(
            self,
            env: saving.Environment,
            *,
            switch: switches.Switch,
            alarms: wakeups.Wakeups,
            hub: Hub,
            applier: applications.Applier,
            indexers: indexing.OperatorIndexers,
            await_indexing: AwaitIndexing,
    ) -> None:
        super().__init__(env, switch=switch, alarms=alarms, indexers=indexers, hub=hub)
        self._await_indexing = await_indexing
        self._applier = applier

    def begin(self, item: objects.Item) -> Callable[[], Awaitable[None]] | None:
        work = super().begin(item)
        return None if work is None else functools.partial(self._enter, work)

    async def _enter(self, work: Callable[[], Awaitable[None]]) -> None:
        """
        Work so that `kopf.apply` of the handlers is limited to the time of this shard.

        The context can be that of the watches: e.g. they wake up the parents of owned resources.
        """
        self._applier.enter()
        await work()

    async def index(self, item: objects.Item, raw: bodies.RawBody) -> float | None:
        self._applier.enter()
        due = await super().index(item, raw)
        await self._await_indexing(item)
        return due

    def _find_indexing(self, item: objects.Item) -> Iterable[handlers.IndexingHandler]:
        return [handler for handler in item.handlers.indexing if handler.sharded]


class Works:
    """
    What handles the objects of one shard while it is held.

    Make the instance in a context (`contextvars`) of its own: what it wakes up later runs there,
    and the constructor limits `kopf.apply` in this context to the time of this shard.
    """

    def __init__(
            self,
            env: saving.Environment,
            grant: holdings.Grant,
            *,
            own: holdings.Holdings,
            hub: Hub,
            crew: queueing.Crew,
            indexers: indexing.OperatorIndexers,
            await_indexing: AwaitIndexing,
    ) -> None:
        super().__init__()
        self.grant = grant
        self._own = own
        self._is_lost = False
        client = env.client.without_limits()
        client.limit_writes(Permission(own, grant))
        applier = applications.Applier(client)
        applier.enter()
        env = dataclasses.replace(env, client=client)
        switch = switches.Switch(confirm=self.confirm)
        alarms = wakeups.Wakeups()
        processor = _Processor(
            env, switch=switch, alarms=alarms, hub=hub.for_shard(client),
            applier=applier, indexers=indexers, await_indexing=await_indexing)
        self.spawner = processor.spawner
        self.queue = queueing.WorkQueue(
            settings=env.settings, switch=switch, alarms=alarms, processor=processor, crew=crew,
            observer=env.observer)
        self.informers = intake.InformerFactory(self.queue, reconsider=processor.reconsider)

    @property
    def is_busy(self) -> bool:
        """Whether any object is being handled; read by other threads, too."""
        return not self.queue.is_idle

    def confirm(self) -> None:
        """Stop handling at once if the shard is lost by the clock, though it is not noted yet."""
        if not self._is_lost and not self._own.covers(self.grant):
            self._is_lost = True
            self.informers.stand_by()
            self.spawner.stand_by()

    async def finish(self, patience: float) -> None:
        """
        End all work within that time (seconds), then interrupt it. Threads are waited for.

        Daemons in threads that do not stop are left behind.
        """
        deadline = asyncio.get_running_loop().time() + patience + WRITING_TIME
        await tasks.gather(
            self.informers.stop(deadline, patience=patience),
            self.spawner.stop(stopping.DaemonStoppingReason.OPERATOR_PAUSING, deadline))

    async def release(self, patience: float) -> None:
        """End all work as `finish` does, and wait for all daemons, too, however long it takes."""
        await self.finish(patience)
        await self.spawner.rest()
        self._retire()

    async def lose(self) -> None:
        """End all work at once; nothing is written any more."""
        self.confirm()
        deadline = asyncio.get_running_loop().time() + WRITING_TIME
        await tasks.gather(
            self.informers.rest(),
            self.spawner.stop(stopping.DaemonStoppingReason.OPERATOR_PAUSING, deadline))
        await self.queue.stop(deadline, [])
        self._retire()

    def _retire(self) -> None:
        for informer in self.informers:
            informer.retire()
