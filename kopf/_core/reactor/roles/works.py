"""
Works: everything that handles objects, from the informers to the daemons.
"""
from collections.abc import Callable

from kopf._cogs.aiokits import tasks, wakeups
from kopf._core.engines import indexing
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import handlers, stopping
from kopf._core.path import intake, queueing, saving, switches, turns


class Works:
    """
    What handles all objects of an operator, or those of one shard.

    What it wakes up later runs in the context (`contextvars`) in which the instance is made.
    """

    def __init__(
            self,
            env: saving.Environment,
            *,
            switch: switches.Switch,
            hub: Hub,
            indexers: indexing.OperatorIndexers,
            fills: Callable[[handlers.IndexingHandler], bool] = lambda handler: True,
            await_indexing: turns.AwaitIndexing | None = None,
            only_indexing: bool = False,
            pool: queueing.WorkerPool | None = None,
            on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        These works put objects only into the indices for which ``fills`` is true; for all others,
        ``await_indexing`` waits. With ``only_indexing``, no other handlers are called.
        ``on_listed`` is called after each complete list.
        """
        env.enter()
        alarms = wakeups.Wakeups()
        processor = turns.Processor(
            env, switch=switch, alarms=alarms, indexers=indexers, hub=hub, fills=fills,
            await_indexing=await_indexing, only_indexing=only_indexing)
        self.spawner = processor.spawner
        self.queue = queueing.WorkQueue(
            settings=env.settings, switch=switch, alarms=alarms, processor=processor, pool=pool,
            observer=env.observer)
        self.informers = intake.InformerFactory(self.queue, on_listed=on_listed)

    @property
    def is_busy(self) -> bool:
        """Whether any object is being handled. Other threads also read it."""
        return self.queue.size > 0

    def pause(self) -> None:
        """Begin nothing, and let what is under way end."""
        self.informers.pause()
        self.spawner.pause()

    def resume(self) -> None:
        """End the pause, before everything is listed again."""
        self.informers.resume()
        self.spawner.resume()

    async def rest(self) -> None:
        """Wait, after `pause`, until what was under way has ended."""
        await self.queue.rest()
        await self.spawner.rest()

    def stand_by(self) -> None:
        """Begin nothing, and interrupt what is under way."""
        self.informers.stand_by()
        self.spawner.stand_by()

    def take_over(self) -> None:
        """End the standby."""
        self.informers.take_over()
        self.spawner.resume()

    async def stop(
            self, reason: stopping.DaemonStoppingReason, deadline: float, *,
            patience: float | None = None,
    ) -> None:
        """
        End all work by the deadline (a time of the event loop), but wait for threads of handlers.

        ``patience`` is how long (seconds) the handlers have; by default, as at an exit. Daemons in
        threads that do not stop are left behind.
        """
        await tasks.gather(
            self.informers.stop(deadline, patience=patience), self.spawner.stop(reason, deadline))
