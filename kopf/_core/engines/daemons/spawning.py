"""
Spawning: which companions an object has to have; and what all of them have in common.
"""
import asyncio
import collections
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kopf._cogs.aiokits import clocks, threads, wakeups
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, patches, references
from kopf._core.actions import execution, loggers
from kopf._core.engines.daemons.companions import Companion, Host, Reason
from kopf._core.engines.daemons.running import Daemon
from kopf._core.engines.daemons.ticking import Timer
from kopf._core.intents import causes, filters, handlers, stopping

STARTS_PER_TURN = 16
"""How many companions are woken up per turn of the event loop, so that it is not blocked."""

EXIT_TIMEOUT = 5.0
"""How long (seconds) companions without a limit of their own have to end at exit."""


NONE: frozenset[object] = frozenset()


class Spawner:
    """All the companions of all the objects of an operator."""

    def __init__(
            self,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
            indices: Any,
            get_memo: Callable[[Any], Any],
    ) -> None:
        """The memo of an object is got by its host."""
        super().__init__()
        self.get_memo = get_memo
        self.client = client
        self.settings = settings
        self.clock = clock
        self.indices = indices
        self.stopping: stopping.DaemonStoppingReason | None = None
        self.paused = False
        self.alive: set[Companion] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.wakeups = wakeups.Wakeups()
        self._due: collections.deque[Companion] = collections.deque()
        self._pumping: asyncio.Handle | None = None
        self._running: set[Daemon] = set()
        self._flushing: asyncio.TimerHandle | None = None
        self._threads = threads.ThreadPerCall('kopf-daemon')

    @property
    def daemons_executor(self) -> Any:
        """A thread for each synchronous daemon, unless the author has chosen otherwise."""
        execution = self.settings.execution
        return self._threads if execution.has_default_executor else execution.executor

    def start(self, companion: 'Companion') -> None:
        """Let it run in one of the next turns of the event loop, in the order of requests."""
        self._due.append(companion)
        if self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        for _ in range(min(STARTS_PER_TURN, len(self._due))):
            self._due.popleft().begin()
        if self._due:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def note_running(self, daemon: 'Daemon') -> None:
        """Look at the patch of a long-running function from time to time."""
        self._running.add(daemon)
        if self._flushing is None:
            delay = max(0.1, self.settings.persistence.flush_delay)
            self._flushing = asyncio.get_running_loop().call_later(delay, self._flush)

    def note_ended(self, daemon: 'Daemon') -> None:
        self._running.discard(daemon)

    def _flush(self) -> None:
        self._flushing = None
        for daemon in list(self._running):
            daemon.flush()
            self.note_running(daemon)

    def pause(self) -> None:
        """Let nothing begin: daemons are stopped, timers wait."""
        self.paused = True
        for companion in list(self.alive):
            companion.pause()

    async def rest(self) -> None:
        """Wait until no functions run but those that were abandoned."""
        while self.tasks:
            await asyncio.wait(list(self.tasks))

    def resume(self) -> None:
        """Go on, but with each object only when it is looked at for the next time."""
        self.paused = False

    async def stop(self, reason: stopping.DaemonStoppingReason) -> None:
        """
        Stop all of them by their stages. Those which have no limit are cancelled after a while.

        Threads cannot be cancelled: it returns without them, and they are waited for at exit.
        """
        self.stopping = reason
        for companion in list(self.alive):
            companion.stop(reason)
        if self._flushing is not None:
            self._flushing.cancel()
        await self._wait_for([item for item in self.alive if item.has_limit], None)
        await self._wait_for(self.alive, EXIT_TIMEOUT)
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=EXIT_TIMEOUT)
        self.wakeups.close()

    async def _wait_for(self, companions: Iterable['Companion'], timeout: float | None) -> None:
        futures = [companion.ended for companion in companions]
        if futures:
            await asyncio.wait(futures, timeout=timeout)


class Companions:
    """
    The daemons and timers of one object, and the live view of it that they share.

    There are as many of these as there are objects, most of the time at rest: so they consist of
    as few other objects as possible.
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
        """When the object was changed for the last time, or was seen first."""
        self._alive: tuple[Companion, ...] = ()
        self._done = NONE
        self._live: bodies.Body | None = None

    @property
    def logger(self) -> loggers.ObjectLogger:
        """A logger that knows the object, but does not hold its state."""
        uid, name, namespace = self._identity
        known: Any = {
            'apiVersion': self.resource.api_version, 'kind': self.resource.kind,
            'metadata': {'name': name, 'namespace': namespace, 'uid': uid}}
        return loggers.ObjectLogger(body=bodies.Body(known), settings=self.spawner.settings)

    @property
    def alive(self) -> bool:
        """Whether any of them runs, sleeps, or is being stopped."""
        return bool(self._alive)

    @property
    def forgettable(self) -> bool:
        """Whether there is nothing to be known about them."""
        return not self._alive and not self._done

    def select(
            self, declared: Iterable[handlers.SpawningHandler], raw: bodies.RawBody,
    ) -> Collection[handlers.SpawningHandler]:
        """Those that should accompany the object in this state; not those that are done with it."""
        cause = self.make_cause(bodies.Body(raw))
        selected: dict[object, handlers.SpawningHandler] = {}
        for handler in declared:
            if handler.key in self._done:
                continue
            try:
                if handler.unfiltered or filters.matches(handler, cause):
                    selected.setdefault(handler.key, handler)
            except filters.FilterError as e:
                execution.fail(handler, e.error, cause.logger, title=get_class(handler).sort)
        return list(selected.values())

    def adjust(self, selected: Collection[handlers.SpawningHandler]) -> None:
        """Start those that are selected, stop the others; those being stopped are left alone."""
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
        for companion in self._alive:
            companion.stop(reason)

    def show(self, raw: bodies.RawBody) -> None:
        """There is a new state of the object."""
        self.changed = self.spawner.clock.mono()
        if self._live is not None:
            self._live._replace_with(raw)
        for companion in self._alive:
            companion.note_change()

    def get_body(self) -> bodies.Body:
        """A body that always shows the newest state; one for all those who run at a time."""
        if self._live is None:
            self._live = bodies.LiveBody(self.host.recall)
        return self._live

    def make_cause(self, body: bodies.Body) -> causes.SpawningCause:
        return causes.SpawningCause(
            logger=self.logger,
            identity=self._identity,
            memo=self.spawner.get_memo(self.host),
            indices=self.spawner.indices,
            resource=self.resource,
            body=body,
            patch=patches.Patch(body=body),
        )

    def forget(self, companion: 'Companion', *, done: bool) -> None:
        """It has ended; if it is done, it is not to be started again."""
        self._alive = tuple(other for other in self._alive if other is not companion)
        if done:
            self._done |= {companion.handler.key}
        self.rest()
        self.host.wake_up()

    def rest(self) -> None:
        """A function has returned: without any other one running, nobody looks at the object."""
        if not any(companion.task is not None for companion in self._alive):
            self._live = None


def get_class(handler: handlers.SpawningHandler) -> type[Companion]:
    return Timer if isinstance(handler, handlers.TimerHandler) else Daemon
