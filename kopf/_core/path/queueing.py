"""
The work queue: which objects are processed, and when.

An object is processed by at most one worker at a time. The worker begins with the newest state.
`priorities` decides which object is next.
"""
import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from kopf._cogs.aiokits import wakeups
from kopf._cogs.configs import configuration
from kopf._core.actions import observers
from kopf._core.path import inboxes, indexgates, priorities, switches, turns
from kopf._core.path.objects import Item, Phase

logger = logging.getLogger(__name__)

PATIENT_STEP = 16
"""
How many workers for objects that can wait are started in one iteration of the event loop.

Objects that need no worker are not counted: most objects need none after a restart.
"""

PATIENT_TIME = 0.005
"""For how long (seconds) objects that can wait are started in one iteration of the event loop."""

PATIENT_PAUSE = 0.02
"""How often (seconds) to look for spare capacity again, if no worker ends before."""

PATIENT_MINIMUM = 4
"""How many of the objects that can wait are processed at the same time without spare capacity."""

LONG_QUEUE = 2000
"""How many objects wait with unpacked states; the states of further ones are packed."""

LAST_ATTEMPT = 1.0
"""
When to cancel hanging writes at exit (seconds before the deadline).

The rest of the time is for one more attempt to write.
"""

Work = Callable[[], Awaitable[None]]
"""The remaining work for an item. It raises no errors: an error throttles only its object."""


class WorkerPool:
    """The workers of all queues of an operator, which ``settings.queueing.worker_limit`` limits."""

    def __init__(self) -> None:
        self._queues: dict[WorkQueue, None] = {}

    def join(self, queue: 'WorkQueue') -> None:
        self._queues[queue] = None

    def leave(self, queue: 'WorkQueue') -> None:
        self._queues.pop(queue, None)

    def has_room(self, limit: int | None) -> bool:
        """Whether one more worker can start."""
        return limit is None or sum(queue.size for queue in self._queues) < limit

    def note_end(self, limit: int | None) -> None:
        """Let others start after the end of a worker, if they could not before."""
        if limit is not None:
            for queue in list(self._queues):
                queue.pump()


class WorkQueue:
    """
    Decides which items are processed, and when.

    Guarantees: an item has at most one worker at a time. An item with news gets a worker, unless
    the item is held or throttled, or the operator is paused or exits. An error of a worker stops
    no other worker.
    """

    def __init__(
            self,
            *,
            settings: configuration.OperatorSettings,
            switch: switches.Switch,
            alarms: wakeups.Wakeups,
            processor: turns.Processor,
            pool: WorkerPool | None = None,
            observer: observers.Notifier = observers.NOBODY,
    ) -> None:
        """
        The ``alarms`` schedule the items that wait until some time. Several queues can share a
        ``pool``, and so the limit of workers.

        :raises SettingsError: if the settings allow no workers.
        """
        limit = settings.queueing.worker_limit
        if limit is not None and limit < 1:
            raise configuration.SettingsError(
                f"settings.queueing.worker_limit must be at least 1, or None for no limit, not "
                f"{limit!r}: no object would ever be handled.")
        self.settings = settings
        self.switch = switch
        self.alarms = alarms
        self.processor = processor
        self._pool = pool if pool is not None else WorkerPool()
        self._pool.join(self)
        self._observer = observer
        self.gate = indexgates.Gate(
            switch=switch, index=processor.index, discard=processor.discard, release=self._release)
        self._waiting = priorities.PriorityQueue(is_overloaded=processor.is_overloaded)
        self._lenient: set[Item] = set()
        """The items at work that could wait for capacity."""
        self._workers: dict[Item, asyncio.Task[None]] = {}
        self._pumping: asyncio.Handle | None = None
        self.packer = inboxes.Packer(settings)

    @property
    def size(self) -> int:
        """How many workers run."""
        return len(self._workers)

    def add(self, item: Item, *, urgent: bool = True, packed: bytes | None = None) -> None:
        """
        Queue the item, unless it is queued or processed already, or has to wait.

        ``packed`` is its newest state as a raw event in JSON, if that is available.
        """
        if item.phase is not Phase.RESTING or self.gate.is_indexing(item) or (
                self.switch.is_stopping):
            if urgent and self._waiting.promote(item):
                self.pump()
            elif self.gate.is_closed_for(item):
                item.inbox.pack_pending(packed)
            return
        if not item.gone and (self.switch.is_paused or self._is_postponed(item)):
            if self.switch.is_standby:
                self.defer(item)
            return
        item.enter(Phase.QUEUED)
        self._observer.passage(item.source.resource, item, observers.Passage.QUEUED)
        if self.gate.detain(item, urgent=urgent):
            item.inbox.pack_pending(packed)
            return
        if self._waiting.put(item, urgent=urgent) > LONG_QUEUE:
            item.inbox.pack_pending(packed)
        self.pump()

    def drop(self, item: Item) -> None:
        """Tell the observers that the item does not wait any more, if it did."""
        self._observer.passage(item.source.resource, item, observers.Passage.DROPPED)

    def _release(self, item: Item, urgent: bool) -> None:
        """
        Take an item from the gate: the indices are filled, or the item is just indexed.

        The item can be queued already. It must not be queued, and so processed, twice.
        """
        item.source.schedule(item) if urgent else self.add(item, urgent=False)

    def pause(self) -> None:
        """
        Start no items; the workers end between two handlers.

        The items of gone objects stay in the queue, so that deletions are still reported.
        """
        for item in self._waiting.clear():
            if item.gone:
                self._waiting.put(item, urgent=True)
            else:
                item.enter(Phase.RESTING)
                item.inbox.remind()
                self.drop(item)

    def defer(self, item: Item, packed: bytes | None = None) -> None:
        """
        Keep the newest state of an item until the operator leads; ``packed`` is this state in JSON.
        """
        if item.inbox.pending is not None:
            self.processor.reconsider(item, item.inbox.pending)
            item.inbox.defer(packed)
            if not item.inbox.is_packed:
                self.packer.add(item.inbox)

    def interrupt(self) -> None:
        """
        Interrupt the running handlers: another replica calls them again.

        Async handlers are cancelled. Kopf waits for threads, but does not write their outcomes.
        """
        calling = [task for item, task in self._workers.items() if item.phase is Phase.CALLING]
        if calling:
            logger.warning(
                f"{len(calling)} objects are being handled; interrupting their handlers.")
        for task in calling:
            task.cancel()

    async def rest(self) -> None:
        """Wait until no workers run."""
        while self._workers:
            await asyncio.wait(self._workers.values())
        self._pool.note_end(self.settings.queueing.worker_limit)

    def _is_postponed(self, item: Item) -> bool:
        """Whether the item is throttled, or waits for the echo of its own write."""
        if item.throttler is not None and item.due is not None:
            return True
        if not item.inbox.is_expecting:
            return False
        patience = item.inbox.get_patience(asyncio.get_running_loop().time())
        if patience is not None:
            self.alarms.sleep(item, patience)
        return patience is not None

    def pump(self) -> None:
        """Start what is queued, as far as there is room for more workers."""
        while self._waiting and self._may_start:
            if self._start_next(priorities.Capacity.NONE) is None:
                if self._pumping is None or isinstance(self._pumping, asyncio.TimerHandle):
                    if self._pumping is not None:
                        self._pumping.cancel()
                    self._pumping = asyncio.get_running_loop().call_soon(self._pump_patient)
                return

    def _pump_patient(self) -> None:
        """Start what waits for capacity: several objects in a row, while there is capacity."""
        self._pumping = None
        loop = asyncio.get_running_loop()
        started, until = 0, loop.time() + PATIENT_TIME
        while self._waiting and self._may_start:
            if started >= PATIENT_STEP or loop.time() > until:
                self._pumping = loop.call_soon(self._pump_patient)
                return
            is_working = self._start_next(self._find_capacity())
            if is_working is None:
                self._pumping = loop.call_later(PATIENT_PAUSE, self._pump_patient)
                return
            started += is_working

    @property
    def _may_start(self) -> bool:
        return self.switch.admits() and self._pool.has_room(self.settings.queueing.worker_limit)

    def _find_capacity(self) -> priorities.Capacity:
        if len(self._lenient) < PATIENT_MINIMUM or not self.processor.is_congested():
            return priorities.Capacity.SPARE  # without any capacity, they must not starve
        is_overloaded = self.processor.is_overloaded()
        return priorities.Capacity.NONE if is_overloaded else priorities.Capacity.SOME

    def _start_next(self, capacity: priorities.Capacity) -> bool | None:
        """Start the next item; return whether it has a worker, or None if nothing is started."""
        picked = self._waiting.pick(capacity)
        if picked is None:
            return None
        item, rank = picked
        self._observer.passage(item.source.resource, item, observers.Passage.STARTED)
        item.enter(Phase.WORKING)
        work = self.processor.start(item)
        if work is None:
            self._finish(item)
            return False
        self._workers[item] = asyncio.get_running_loop().create_task(self._run(item, work))
        if rank is not priorities.Rank.LIVE:
            self._lenient.add(item)
        return True

    async def _run(self, item: Item, work: Work) -> None:
        try:
            await work()
            while item.gone and item.inbox.has_news and not self.switch.is_stopping:
                again = self.processor.start(item)  # the object has gone during the work
                if again is None:
                    break
                await again()
            if self.switch.is_stopping:
                await self._save(item)
        except asyncio.CancelledError:
            if self.switch.is_stopping:
                await self._save(item)
            raise
        finally:
            del self._workers[item]  # not in a callback, which costs one more iteration of the loop
            self._lenient.discard(item)
            self._finish(item)
        if not self.switch.is_stopping:
            self.pump()
            self._pool.note_end(self.settings.queueing.worker_limit)

    def _finish(self, item: Item) -> None:
        self._observer.passage(item.source.resource, item, observers.Passage.ENDED)
        if item.gone:
            item.enter(Phase.ENDED)
            item.source.forget(item)
            return
        item.identify(None)
        item.enter(Phase.RESTING)
        if not item.inbox.is_packed:
            self.packer.add(item.inbox)
        if item.inbox.has_news and not self.switch.is_stopping:
            item.source.schedule(item)

    async def stop(
            self, deadline: float, items: Iterable[Item], *, patience: float | None = None,
    ) -> None:
        """
        Start no more items; let the workers finish, then interrupt them.

        The workers have ``patience`` seconds to finish, by default
        ``settings.queueing.exit_timeout``. After that, async handlers are interrupted; Kopf waits
        for threads. The outcomes are written until the deadline (a time of the event loop),
        including those of items without workers. Only hanging writes are interrupted: the effect of
        an interrupted write is unknown.
        """
        self.switch.stop(deadline)
        self.alarms.close()
        self._waiting.clear()
        self.packer.close()
        if self._pumping is not None:
            self._pumping.cancel()
        for item in items:
            if item.cycle is not None and item.cycle.dirty and not item.is_at_work:
                self._workers[item] = asyncio.get_running_loop().create_task(self._run_saving(item))
        await self.gate.stop()
        if self._workers:
            if patience is None:
                patience = self.settings.queueing.exit_timeout
            await asyncio.wait(self._workers.values(), timeout=patience)
        if calling := [task for item, task in self._workers.items() if item.phase is Phase.CALLING]:
            logger.warning(
                f"{len(calling)} objects are still being handled; interrupting their handlers.")
            for task in calling:
                task.cancel()
        if self._workers:
            # If the event loop was blocked until the deadline, some writes only begin now.
            left = deadline - LAST_ATTEMPT - asyncio.get_running_loop().time()
            await asyncio.wait(self._workers.values(), timeout=max(LAST_ATTEMPT, left))
        hanging = self._get_writing()
        # Tasks that were cancelled before their start are done, but remain in the dict.
        while running := [task for task in self._workers.values() if not task.done()]:
            for task in hanging & self._get_writing():
                task.cancel()
            hanging = self._get_writing()  # including those whose threads have just returned
            await asyncio.wait(running, timeout=LAST_ATTEMPT)
        self.alarms.close()
        self._pool.leave(self)
        self._pool.note_end(self.settings.queueing.worker_limit)

    async def _run_saving(self, item: Item) -> None:
        try:
            await self._save(item)
        finally:
            del self._workers[item]

    async def _save(self, item: Item) -> None:
        item.enter(Phase.LEAVING)
        await self.processor.save(item)

    def _get_writing(self) -> set[asyncio.Task[None]]:
        """Find the workers that neither wait for a handler nor make the last attempt to write."""
        return {task for item, task in self._workers.items() if item.phase is Phase.WORKING}
