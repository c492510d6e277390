"""
Spawning: starts and stops the companions of objects, and has what the companions share.
"""
import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

from kopf._cogs.aiokits import threads, timeouts, wakeups
from kopf._cogs.clients import api
from kopf._cogs.structs import bodies, patches, references
from kopf._core.actions import execution, loggers
from kopf._core.engines.daemons.companions import Companion, Host, Reason
from kopf._core.engines.daemons.daemons import Daemon
from kopf._core.engines.daemons.timers import Timer
from kopf._core.intents import causes, handlers, stopping

STARTS_PER_ITERATION = 16
"""
How many companions are started per iteration of the event loop.

There can be thousands of them at once, e.g. when the operator starts; the loop must not be blocked.
"""

LAST_WRITING = 1.0
"""How long (seconds) a companion can write its patch at exit, however late it ends."""


NONE: frozenset[object] = frozenset()


class Spawner:
    """The companions of all objects of an operator."""

    def __init__(
            self,
            *,
            client: api.Client,
            context: execution.Context,
            get_memo: Callable[[Any], Any],
            confirm: Callable[[], object] = lambda: None,
    ) -> None:
        """
        ``get_memo`` returns the memo of an object by its `Host`. ``confirm`` is called before
        handlers are; it pauses the operator if that is overdue by the clock.
        """
        super().__init__()
        self.get_memo = get_memo
        self._confirm = confirm
        self.client = client
        self.context = context
        self.settings = context.settings
        self.clock = context.clock
        self.stopping: stopping.DaemonStoppingReason | None = None
        self.paused = False
        self.alive: set[Companion] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.wakeups = wakeups.Wakeups()
        self._due: collections.deque[Companion] = collections.deque()
        self._pumping: asyncio.Handle | None = None
        self._running: set[Companion] = set()
        self._flushing: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._writings: dict[timeouts.Timeout, Companion] = {}
        self._threads = threads.ThreadPerCall('kopf-daemon')

    @property
    def daemons_executor(self) -> Any:
        """
        The executor that calls synchronous daemons.

        By default, each daemon has a thread of its own: in a pool with a limited number of threads,
        long-running daemons would block all other handlers. If ``settings.execution.executor`` is
        set, it is used for daemons, too.
        """
        own = self.settings.execution
        return self._threads if own.has_default_executor else own.executor

    def start(self, companion: 'Companion') -> None:
        """Begin the companion in one of the next iterations of the event loop, in this order."""
        self._due.append(companion)
        if self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        self._confirm()
        for _ in range(min(STARTS_PER_ITERATION, len(self._due))):
            self._due.popleft().begin()
        if self._due:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def note_running(self, daemon: Companion) -> None:
        """Flush the patch of the running daemon every ``settings.persistence.flush_delay``."""
        self._running.add(daemon)
        if self._flushing is None:
            delay = max(0.1, self.settings.persistence.flush_delay)
            self._flushing = asyncio.get_running_loop().call_later(delay, self._flush)

    def note_ended(self, daemon: Companion) -> None:
        self._running.discard(daemon)

    def _flush(self) -> None:
        self._flushing = None
        for daemon in list(self._running):
            daemon.flush()
            self.note_running(daemon)

    def pause(self) -> None:
        """Stop all daemons, and let all timers wait, while the operator is paused."""
        self.paused = True
        for companion in list(self.alive):
            companion.pause()

    async def rest(self) -> None:
        """Wait until no handlers of companions run, except for those of abandoned companions."""
        while running := {companion: companion.task for companion in self.alive
                          if companion.task is not None}:
            await asyncio.wait([
                companion.ended if companion.stopper.is_set() else task
                for companion, task in running.items()])

    def stand_by(self) -> None:
        """The same as `pause`, but timers are interrupted; it can be called again."""
        self.pause()
        for companion in list(self.alive):
            companion.interrupt()

    def resume(self) -> None:
        """End the pause. The companions of an object go on after its next reconciliation."""
        self.paused = False

    @contextlib.asynccontextmanager
    async def writing(self, companion: Companion) -> AsyncIterator[None]:
        """
        Limit the time of the block when the operator exits: of a write, or of a pause before it.

        :raises TimeoutError: if the block has not ended in time, or if the companion is abandoned.
        """
        until = self._deadline
        if until is not None:
            until = max(until, asyncio.get_running_loop().time() + LAST_WRITING)
        async with timeouts.timeout_at(until) as limit:
            self._writings[limit] = companion
            try:
                yield
            finally:
                del self._writings[limit]

    def give_up(self, companion: Companion) -> None:
        """End the writes of the companion, which is abandoned."""
        for limit, owner in self._writings.items():
            if owner is companion and not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    async def stop(self, reason: stopping.DaemonStoppingReason, deadline: float) -> None:
        """
        Stop all companions, by their stages of stopping.

        The deadline is a time of the event loop. Companions without a ``cancellation_timeout`` are
        cancelled at the deadline. Writes are given up before the deadline.

        Threads cannot be cancelled. This method returns without them; Python waits for them at
        exit.
        """
        self.stopping, self._deadline = reason, deadline - LAST_WRITING
        for limit, companion in self._writings.items():
            if companion in self.alive:
                limit.reschedule(self._deadline)
        for companion in list(self.alive):
            companion.stop(reason)
        if self._flushing is not None:
            self._flushing.cancel()
        await self._wait_for([item for item in self.alive if item.has_limit], None)
        left = deadline - asyncio.get_running_loop().time()
        await self._wait_for(self.alive, max(0.0, left))
        for companion in self.alive:
            companion.stopper.set(stopping.DaemonStoppingReason.DAEMON_CANCELLED)
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=LAST_WRITING)
        self.wakeups.close()

    async def _wait_for(self, companions: Iterable['Companion'], timeout: float | None) -> None:
        futures = [companion.ended for companion in companions]
        if futures:
            await asyncio.wait(futures, timeout=timeout)


class Companions:
    """
    The companions of one object, and the live view of the object that they share.

    There is an instance for each object that has companions. So, an instance takes little memory:
    everything that can be made on demand is made on demand.
    """
    __slots__ = (
        '_alive', '_done', '_identity', '_live', 'changed', 'host', 'resource', 'spawner')

    def __init__(
            self,
            spawner: Spawner,
            host: Host,
            resource: references.Resource,
            raw: bodies.RawBody,
    ) -> None:
        self.spawner = spawner
        meta = raw['metadata']
        self._identity = meta.get('uid'), meta['name'], meta.get('namespace')
        self.host = host
        self.resource = resource
        self.changed = spawner.clock.mono()
        """The monotonic time of the latest change of the object, or of its first sight."""
        self._alive: tuple[Companion, ...] = ()
        self._done = NONE
        self._live: bodies.LiveBody | None = None

    @property
    def logger(self) -> loggers.ObjectLogger:
        """The logger of the object. It refers to the object's name, and does not keep its state."""
        uid, name, namespace = self._identity
        known: Any = {
            'apiVersion': self.resource.api_version, 'kind': self.resource.kind,
            'metadata': {'name': name, 'namespace': namespace, 'uid': uid}}
        return loggers.ObjectLogger(body=bodies.Body(known), settings=self.spawner.settings)

    @property
    def alive(self) -> bool:
        """Whether any companion runs, sleeps, or is being stopped."""
        return bool(self._alive)

    @property
    def forgettable(self) -> bool:
        """Whether there are no companions, and none that have ended and must not start again."""
        return not self._alive and not self._done

    def select(
            self, declared: Iterable[handlers.SpawningHandler], raw: bodies.RawBody,
    ) -> Collection[handlers.SpawningHandler]:
        """
        Select the handlers that match the object in this state, except for those that are done.
        """
        cause = self.make_cause(bodies.Body(raw))
        selected: dict[object, handlers.SpawningHandler] = {}
        for handler in declared:
            if handler.key in self._done:
                continue
            if execution.is_matching(handler, cause):
                selected.setdefault(handler.key, handler)
        return list(selected.values())

    def adjust(self, selected: Collection[handlers.SpawningHandler]) -> None:
        """
        Start companions of the selected handlers, and stop all others.

        If a companion of a selected handler is still being stopped, the next one is not started
        until the former ends: there must be only one at a time.
        """
        keys = {handler.key for handler in selected}
        for companion in self._alive:
            if companion.handler.key not in keys:
                companion.stop(Reason.FILTERS_MISMATCH)
        if self.spawner.paused:
            return
        for companion in self._alive:
            companion.resume()
        keys = {companion.handler.key for companion in self._alive}
        for handler in selected:
            if handler.key not in keys and self.spawner.stopping is None:
                companion = get_class(handler)(self, handler)
                self._alive += (companion,)
                companion.spawn()

    def stop(self, reason: stopping.DaemonStoppingReason) -> None:
        if self._live is not None:
            self._live.load()  # they can read the object until they end; the item can forget it now
        for companion in self._alive:
            companion.stop(reason)

    def show(self, raw: bodies.RawBody) -> None:
        """Take a new state of the object."""
        self.changed = self.spawner.clock.mono()
        if self._live is not None:
            self._live._replace_with(raw)
        for companion in self._alive:
            companion.note_change()

    def get_body(self) -> bodies.Body:
        """A body that always shows the newest state; all running companions share it."""
        if self._live is None:
            self._live = bodies.LiveBody(self.host.recall)
        return self._live

    def make_cause(self, body: bodies.Body) -> causes.SpawningCause:
        return causes.SpawningCause(
            logger=self.logger,
            identity=self._identity,
            memo=self.spawner.get_memo(self.host),
            indices=self.spawner.context.indices,
            resource=self.resource,
            body=body,
            patch=patches.Patch(body=body),
        )

    def forget(self, companion: 'Companion', *, done: bool) -> None:
        """Remove the companion, which has ended. If ``done``, it must not be started again."""
        self._alive = tuple(other for other in self._alive if other is not companion)
        if done:
            self._done |= {companion.handler.key}
        self.rest()
        self.host.wake_up()

    def rest(self) -> None:
        """
        Note that a handler has returned. When none runs, the live body is not needed any more.
        """
        if not any(companion.task is not None for companion in self._alive):
            self._live = None


def get_class(handler: handlers.SpawningHandler) -> type[Companion]:
    return Timer if isinstance(handler, handlers.TimerHandler) else Daemon
