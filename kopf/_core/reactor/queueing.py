"""
Queueing: one line of work per object, and who of them is at work.

At most one pass is at work for an object at a time; it takes what is newest when it starts. Live
changes go before the backlog of the lists. The backlog is let in as fast as it is digested, so the
memory and the connections are not flooded by it.
"""
import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.intents import registries, stopping
from kopf._core.reactor import gates
from kopf._core.reactor.lines import Line, get_name
from kopf._core.reactor.streams import Stream

logger = logging.getLogger(__name__)

BACKLOG_STEP = 16
"""How many objects of the backlog are let in per turn of the event loop."""

BACKLOG_PAUSE = 0.005
"""How long (seconds) the backlog waits when there is enough to do without it."""

PACKING_STEP = 100
"""How many objects that rest are packed per turn of the event loop."""

WRITING_TIMEOUT = 5.0
"""How long (seconds) the writes under way have to finish when the operator exits."""

Process = Callable[[Line], Awaitable[None]]
Index = Callable[[Line, bodies.RawBody], Awaitable[float | None]]


class Lines:
    """
    All lines of an operator, and who of them is at work.

    Guarantees: one pass per object at a time; a state that lasts is processed; a deletion is told
    before anything of a namesake; errors of a pass stop nothing but that pass.
    """

    def __init__(
            self,
            *,
            settings: configuration.OperatorSettings,
            process: Process,
            settle: Callable[[Line], bool] = lambda line: False,
            is_congested: Callable[[], bool] = lambda: False,
            index: Index | None = None,
            discard: Callable[[Line], None] = lambda line: None,
            reconsider: Callable[[Line, bodies.RawBody], None] = lambda line, raw: None,
            confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """
        The passes are made by `process`; the states for which `settle` returns true need none.
        While congested, the backlog waits. States are put to the indices by `index`, before any
        pass sees them; it returns when to do it again, if so. `discard` removes an object there.
        `reconsider` is told the states that have come in a pause, of objects with something begun.
        `confirm` pauses it if that is overdue, for a process can be late: if it did not run at all.
        """
        super().__init__()
        self.settings = settings
        self.stopping = False
        self.paused = False
        self.pauses = 0
        """How many times it was paused: what was decided before a pause is to be decided anew."""
        self.is_congested = is_congested
        self._process = process
        self._settle = settle
        self._gate = gates.Gate(self, index=index)
        self.discard = discard
        self.reconsider = reconsider
        self._confirm = confirm
        self._streams: dict[tuple[references.Resource, str | None], Stream] = {}
        self._resumed: dict[tuple[str, str, str | None], frozenset[str]] = {}
        self._live: collections.deque[Line] = collections.deque()
        self._backlog: collections.deque[Line] = collections.deque()
        self._tasks: dict[asyncio.Task[None], Line] = {}
        self._pumping: asyncio.Handle | None = None
        self._packing: asyncio.TimerHandle | None = None
        self._warm: set[Line] = set()
        self._cooling: set[Line] = set()
        self._cold: list[Line] = []

    def sink(
            self,
            resource: references.Resource,
            namespace: str | None,
            handlers: registries.ResourceHandlers,
    ) -> Stream:
        """
        Begin to serve a resource in a namespace; the result is to be fed by the watch.

        If it is served already, it goes on with the new handlers: the next list shows all objects.
        """
        known = self._streams.pop((resource, namespace), None)
        if known is not None:
            known.resource, known.handlers = resource, handlers
            for line in known.by_uid.values():
                line.version = line.expected = None
            self._streams[resource, namespace] = known
            return known
        key = resource.group, resource.plural, namespace
        stream = Stream(self, resource, handlers, self._resumed.pop(key, frozenset()))
        if handlers.indexing:
            self._gate.close_for(stream)
        self._streams[resource, namespace] = stream
        return stream

    def drop(self, resource: references.Resource, namespace: str | None) -> None:
        """The resource is no longer served there: forget its objects, as if they did not exist."""
        stream = self._streams.pop((resource, namespace), None)
        if stream is not None:
            # Another version of the same resource can follow: the objects are the same then.
            key = resource.group, resource.plural, namespace
            self._resumed[key] = frozenset(stream.iter_resumed())
            for line in stream.by_uid.values():
                line.cancel_timer()
                line.gone = True
                line.pending = None
                if line.companions is not None:
                    line.companions.stop(stopping.DaemonStoppingReason.RESOURCE_DELETED)
                if stream.handlers.indexing:
                    self.discard(line)
            stream.by_uid.clear()
            self._gate.open_for(stream)

    def find(self, resource: references.Resource, uid: str) -> Line | None:
        """The line of an object, in whatever namespace; None if it is not known."""
        for (served, _), stream in self._streams.items():
            if (served.group, served.plural) == (resource.group, resource.plural):
                line = stream.by_uid.get(uid)
                if line is not None:
                    return line
        return None

    def schedule(self, line: Line, *, urgent: bool = True) -> None:
        """Let the line have a pass as soon as possible, if it has none already."""
        if line.busy or line.queued or line.held or line.indexing or self.stopping:
            return
        if not line.gone and (
                self.paused or line.epoch < line.stream.since or self._is_postponed(line)):
            return
        line.queued = True
        if self._gate.detain(line, urgent=urgent):
            return
        (self._live if urgent else self._backlog).append(line)
        self._pump()

    def pause(self) -> None:
        """Begin no passes; those at work end between two handlers. What is gone is still told."""
        self.paused = True
        self.pauses += 1
        queued = [*self._live, *self._backlog]
        for line in queued:
            line.queued = line.gone
            line.woken = True
        self._live = collections.deque(line for line in queued if line.gone)
        self._backlog.clear()

    def check_paused(self) -> bool:
        """Whether nothing must be begun, as of this very moment."""
        self._confirm()
        return self.paused

    async def rest(self) -> None:
        """Wait until no passes are at work."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def resume(self) -> None:
        """Go on; the objects that are known by now have to be listed before their passes."""
        self.paused = False
        for stream in self._streams.values():
            stream.distrust()
        self._gate.reset(stream for stream in self._streams.values() if stream.handlers.indexing)
        self._pump()

    def known(self) -> None:
        """All that is to be served from the beginning is known."""
        self._gate.known()

    def index(self, line: Line, raw: bodies.RawBody) -> None:
        """Put the state into the indices; the passes of the object wait for that."""
        self._gate.index(line, raw)

    def check_filled(self, stream: Stream) -> None:
        """A list has ended, or an object of it is indexed."""
        if not stream.listing and not stream.unindexed:
            self._gate.open_for(stream)

    def stop_filling(self, stream: Stream, error: Exception) -> None:
        """The objects cannot be had now; nobody waits for them any longer."""
        self._gate.open_for(stream, error)

    def _is_postponed(self, line: Line) -> bool:
        """Whether the line is backing off, or waits for its own write to come; it wakes up then."""
        if line.throttler is not None and line.timer is not None:
            return True
        if line.expected is not None:
            if asyncio.get_running_loop().time() < line.expected_until:
                line.wait_until(line.expected_until)
                return True
            line.expected = None
        return False

    def _pump(self) -> None:
        limit = self.settings.queueing.worker_limit
        while self._live and not self.paused and (limit is None or len(self._tasks) < limit):
            self._start(self._live.popleft())
        if self._backlog and self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump_backlog)

    def _pump_backlog(self) -> None:
        self._pumping = None
        loop = asyncio.get_running_loop()
        limit = self.settings.queueing.worker_limit
        for _ in range(BACKLOG_STEP):
            if not self._backlog or self.stopping or self.paused or (
                    limit is not None and len(self._tasks) >= limit):
                return
            if self._live or self.is_congested():
                self._pumping = loop.call_later(BACKLOG_PAUSE, self._pump_backlog)
                return
            self._start(self._backlog.popleft())
        self._pumping = loop.call_soon(self._pump_backlog)

    def _start(self, line: Line) -> None:
        line.queued = False
        if not line.events and not line.gone and self._settle(line):
            return
        line.busy = True
        first = line.peek()
        line.name = get_name(first) if first is not None else None
        self._tasks[asyncio.get_running_loop().create_task(self._run(line))] = line

    async def _run(self, line: Line) -> None:
        try:
            await self._process(line)
            while line.gone and line.pending is not None and not self.stopping:
                await self._process(line)
        finally:
            line.busy = False
            if line.gone:
                line.stream.forget(line)
            line.name = None
            task = asyncio.current_task()
            assert task is not None
            del self._tasks[task]  # here, for a callback would cost one more turn of the loop
        if not self.stopping:
            if not line.gone and (line.pending is not None or line.events or line.woken):
                self.schedule(line)
            self._pump()

    def pack_later(self, line: Line) -> None:
        """Pack what the line keeps when it has rested for ``settings.queueing.idle_timeout``."""
        self._warm.add(line)
        if self._packing is None:
            self._packing = asyncio.get_running_loop().call_later(
                self.settings.queueing.idle_timeout, self._pack)

    def _pack(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._cold:
            self._cold = list(self._cooling - self._warm)
            self._cooling, self._warm = self._warm, set()
        for line in self._cold[-PACKING_STEP:]:
            line.pack()
        del self._cold[-PACKING_STEP:]
        self._packing = None
        if self._cold:
            self._packing = loop.call_later(0, self._pack)
        elif (self._cooling or self._warm) and not self.stopping:
            self._packing = loop.call_later(self.settings.queueing.idle_timeout, self._pack)

    async def stop(self) -> None:
        """
        Take no more work; let the running passes finish, then interrupt them.

        The passes get ``settings.queueing.exit_timeout`` seconds. After that, async handlers are
        interrupted, threads are waited for, what is done is written. Writes are interrupted only
        if they hang: nobody would know what has become of them.
        """
        self.stopping = True
        for stream in self._streams.values():
            for line in stream.by_uid.values():
                line.cancel_timer()
        self._live.clear()
        self._backlog.clear()
        for handle in (self._pumping, self._packing):
            if handle is not None:
                handle.cancel()
        await self._gate.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.queueing.exit_timeout)
        if self._tasks:
            logger.warning(
                f"{len(self._tasks)} objects are still being handled; interrupting their handlers.")
            self._interrupt(handlers=True)
            await asyncio.wait(self._tasks, timeout=WRITING_TIMEOUT)
        if self._tasks:
            self._interrupt(handlers=False)
            await asyncio.wait(self._tasks)

    def _interrupt(self, *, handlers: bool) -> None:
        for task, line in self._tasks.items():
            if line.interruptible == handlers:
                task.cancel()
