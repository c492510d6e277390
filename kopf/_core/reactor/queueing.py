"""
Lines: one line of work per object.

A line keeps the newest state of its object, not a queue of states; and its raw events in order,
only where someone wants to see each of them. At most one pass is at work for an object at a time;
it takes what is newest when it starts. At rest, a line is a few references.

Live changes go before the backlog of the lists. The backlog is let in as fast as it is digested,
so the memory and the connections are not flooded by it.
"""
import asyncio
import collections
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.actions import cycles, throttlers
from kopf._core.intents import registries

logger = logging.getLogger(__name__)

MAX_EVENTS = 1000
"""How many unseen raw events of one object are kept in order; later ones are coalesced."""

BACKLOG_STEP = 16
"""How many objects of the backlog are let in per turn of the event loop."""

BACKLOG_PAUSE = 0.005
"""How long (seconds) the backlog waits when there is enough to do without it."""

WRITING_TIMEOUT = 5.0
"""How long (seconds) the writes under way have to finish when the operator exits."""

Version = int | str | None


class Line:
    """An object with everything that is known about it in this process."""
    __slots__ = (
        'busy', 'cycle', 'epoch', 'events', 'expected', 'expected_until', 'follower', 'gone',
        'held', 'initial', 'interruptible', 'kept', 'memo', 'name', 'noticed', 'pending', 'queued',
        'stream', 'throttler', 'timer', 'uid', 'version', 'woken',
    )

    def __init__(self, stream: 'Stream', uid: str, *, initial: bool) -> None:
        self.stream = stream
        self.uid = uid
        self.initial = initial
        """Whether it existed before the operator, and is not resumed yet."""
        self.version: Version = None
        """The newest known version, also by the responses to the own writes."""
        self.epoch = stream.epoch
        self.pending: bodies.RawBody | None = None
        """The newest state which is not processed yet."""
        self.kept: bodies.RawBody | bytes | None = None
        """The newest processed state, where it will be needed; packed when it rests for long."""
        self.woken = False
        """Whether it is time to look at the kept state again, though it is not new."""
        self.events: collections.deque[bodies.RawEvent] | None = None
        self.expected: Version = None
        """The own write that is to come by the watch, if versions are not comparable."""
        self.expected_until = 0.0
        self.cycle: cycles.Cycle | None = None
        self.memo: Any = None
        self.throttler: throttlers.Throttler | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.name: tuple[str | None, str] | None = None
        """The namespace & name, known only while there is a pass."""
        self.follower: Line | None = None
        """The line of the next namesake, which waits for the end of this one."""
        self.held = False
        """Whether it has to wait until the line of an older namesake ends."""
        self.noticed = False
        """Whether anyone was concerned, so that the end of the object is worth a word."""
        self.interruptible = False
        """Whether a handler is running now; as opposed to writes, whose outcomes must be known."""
        self.busy = False
        self.queued = False
        self.gone = False

    def accept(self, raw: bodies.RawBody) -> None:
        """Take the response to an own write as the newest state."""
        version = parse_version(raw)
        if isinstance(version, int) and isinstance(self.version, int):
            self.version = max(self.version, version)
        elif version != self.version:
            loop_time = asyncio.get_running_loop().time()
            timeout = self.stream.lines.settings.persistence.consistency_timeout
            self.expected, self.expected_until = version, loop_time + timeout
            self.version = version
        if self.pending is not None and not self._is_newer(parse_version(self.pending), version):
            self.pending = None

    def take(self) -> bodies.RawBody | None:
        """The newest state that is not processed yet, once; or the kept one if it is its time."""
        raw, self.pending = self.pending, None
        if raw is None and self.woken:
            raw = self.recall()
        self.woken = False
        return raw

    def keep(self, raw: bodies.RawBody, packed: bytes | None = None) -> None:
        """Remember a processed state until it is needed again; packed, it is a raw event."""
        self.kept = packed if packed is not None else raw
        if packed is None:
            self.stream.lines.pack_later(self)

    def recall(self) -> bodies.RawBody | None:
        """The state that was kept, if any was."""
        if isinstance(self.kept, bytes):
            event: bodies.RawEvent = json.loads(self.kept)
            return event['object']
        return self.kept

    def drop(self) -> None:
        """The kept state will not be needed, except for those who want to see the deletion."""
        if not self.stream.handlers.watching:
            self.kept = None

    def pack(self) -> None:
        if self.kept is not None and not isinstance(self.kept, bytes):
            self.kept = json.dumps({'object': self.kept}, separators=(',', ':')).encode()

    def offer(self, raw: bodies.RawBody) -> bool:
        """Take a state from the watch; false if there is nothing new in it."""
        version = parse_version(raw)
        if self.expected is not None:
            if version == self.expected:
                self.expected = None
                self.pending = None
                return False
            if asyncio.get_running_loop().time() >= self.expected_until:
                self.expected = None
        if self.version is not None and not self._is_newer(version, self.version):
            return False
        if self.expected is None:
            self.version = version
        self.pending = raw
        return True

    @staticmethod
    def _is_newer(a: Version, b: Version) -> bool:
        return a > b if isinstance(a, int) and isinstance(b, int) else a != b

    def wait_until(self, when: float) -> None:
        """Wake up at that time of the event loop, if nothing comes before."""
        self.cancel_timer()
        self.timer = asyncio.get_running_loop().call_at(when, self._wake_up)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _wake_up(self) -> None:
        self.timer = None
        self.woken = True
        self.stream.lines.schedule(self)


class Stream:
    """All lines of one resource in one namespace (or in all of them), fed by its watch."""

    def __init__(
            self,
            lines: 'Lines',
            resource: references.Resource,
            handlers: registries.ResourceHandlers,
            resumed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.lines = lines
        self.resource = resource
        self.handlers = handlers
        self.by_uid: dict[str, Line] = {}
        self.leaving: dict[tuple[str | None, str], Line] = {}
        """The lines of the objects that are gone, but whose passes still run."""
        self.epoch = 0
        self.listing = False
        self._resumed = resumed
        self._held: list[Line] = []
        self._warned = False

    def begin(self, *, restored: bool) -> None:
        self.epoch += 1
        self.listing = True
        if restored:
            for line in self.by_uid.values():
                line.version = line.expected = None

    def listed(self, body: bodies.RawBody) -> None:
        first = self.epoch == 1
        line, new = self._find(body, initial=first)
        line.epoch = self.epoch
        if line.offer(body):
            type: Any = None if first else 'ADDED' if new else 'MODIFIED'
            self._record(line, type, body)
            if new and not first:
                self._held.append(line)  # its namesake may be not known to be gone yet
            else:
                self.lines.schedule(line, urgent=not first)

    def end(self) -> None:
        self.listing = False
        self._resumed = frozenset()
        for line in [line for line in self.by_uid.values() if line.epoch != self.epoch]:
            self._leave(line, None)
        held, self._held = self._held, []
        for line in held:
            if line.pending is not None:
                self._yield_to_namesake(line, line.pending)
            self.lines.schedule(line)

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes | None = None,
    ) -> None:
        if type == 'DELETED' and get_uid(body) not in self.by_uid and not self.handlers.watching:
            return
        line, new = self._find(body, initial=False)
        if type == 'DELETED':
            self._leave(line, body)
            return
        if new:
            self._yield_to_namesake(line, body)
        is_new_state = line.offer(body)
        if self._record(line, type, body, packed) or is_new_state:
            self.lines.schedule(line)

    def _find(self, body: bodies.RawBody, *, initial: bool) -> tuple[Line, bool]:
        uid = get_uid(body)
        line = self.by_uid.get(uid)
        if line is not None:
            return line, False
        line = self.by_uid[uid] = Line(self, uid, initial=initial and uid not in self._resumed)
        line.epoch = self.epoch
        return line, True

    def _record(
            self,
            line: Line,
            type: bodies.RawEventType,
            body: bodies.RawBody,
            packed: bytes | None = None,
    ) -> bool:
        """Keep the raw event where someone wants to see it."""
        if not self.handlers.watching:
            return False
        if line.events is None:
            line.events = collections.deque()
        if len(line.events) >= MAX_EVENTS:
            if not self._warned:
                self._warned = True
                logger.warning(
                    f"Events of {self.resource} come faster than their handlers see them; "
                    f"from now on, some of them are skipped (the newest ones never).")
            line.events.pop()
        line.events.append({'type': type, 'object': body})
        if type != 'DELETED':
            line.keep(body, packed)
        return True

    def _leave(self, line: Line, body: bodies.RawBody | None) -> None:
        """The object is gone; its line ends with the pass that tells so."""
        self.by_uid.pop(line.uid, None)
        line.gone = True
        line.cancel_timer()
        last = body if body is not None else line.pending
        last = last if last is not None else line.recall()
        line.pending = last
        line.kept = None
        if last is not None:
            self._record(line, 'DELETED', last)
            line.name = get_name(last)
        if line.name is not None:
            self.leaving[line.name] = line
        if line.events or line.noticed or line.busy:
            self.lines.schedule(line)
        else:
            self.forget(line)

    def _yield_to_namesake(self, line: Line, body: bodies.RawBody) -> None:
        if self.leaving:
            older = self.leaving.get(get_name(body))
            if older is not None:
                older.follower = line
                line.held = True

    def forget(self, line: Line) -> None:
        """The line has ended: let the one of its namesake begin."""
        if line.name is not None and self.leaving.get(line.name) is line:
            del self.leaving[line.name]
        if line.follower is not None:
            line.follower.held = False
            self.lines.schedule(line.follower)

    def iter_resumed(self) -> Iterator[str]:
        return (line.uid for line in self.by_uid.values() if not line.initial)


Process = Callable[[Line], Awaitable[None]]


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
    ) -> None:
        """
        The passes are made by `process`; the states for which `settle` returns true need none.
        While congested, the backlog waits.
        """
        super().__init__()
        self.settings = settings
        self.stopping = False
        self.is_congested = is_congested
        self._process = process
        self._settle = settle
        self._streams: dict[tuple[references.Resource, str | None], Stream] = {}
        self._resumed: dict[tuple[str, str, str | None], frozenset[str]] = {}
        self._live: collections.deque[Line] = collections.deque()
        self._backlog: collections.deque[Line] = collections.deque()
        self._tasks: dict[asyncio.Task[None], Line] = {}
        self._pumping: asyncio.Handle | None = None
        self._packing: asyncio.TimerHandle | None = None
        self._warm: set[Line] = set()
        self._cooling: set[Line] = set()

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
            stream.by_uid.clear()

    def schedule(self, line: Line, *, urgent: bool = True) -> None:
        """Let the line have a pass as soon as possible, if it has none already."""
        if line.busy or line.queued or line.held or self.stopping:
            return
        if not line.gone and self._is_postponed(line):
            return
        line.queued = True
        (self._live if urgent else self._backlog).append(line)
        self._pump()

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
        while self._live and (limit is None or len(self._tasks) < limit):
            self._start(self._live.popleft())
        if self._backlog and self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump_backlog)

    def _pump_backlog(self) -> None:
        self._pumping = None
        loop = asyncio.get_running_loop()
        limit = self.settings.queueing.worker_limit
        for _ in range(BACKLOG_STEP):
            if not self._backlog or self.stopping or (
                    limit is not None and len(self._tasks) >= limit):
                return
            if self._live or self.is_congested():
                self._pumping = loop.call_later(BACKLOG_PAUSE, self._pump_backlog)
                return
            self._start(self._backlog.popleft())
        self._pumping = loop.call_soon(self._pump_backlog)

    @property
    def backlog_size(self) -> int:
        return len(self._backlog)

    def _start(self, line: Line) -> None:
        line.queued = False
        if not line.events and not line.gone and self._settle(line):
            return
        line.busy = True
        first = line.pending if line.pending is not None else (
            line.events[0]['object'] if line.events else line.recall())
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
            self._tasks.pop(asyncio.current_task(), None)  # a callback would cost a turn of the loop
        if not self.stopping:
            if not line.gone and (line.pending is not None or line.events):
                self.schedule(line)
            self._pump()

    def pack_later(self, line: Line) -> None:
        """Pack what the line keeps when it has rested for ``settings.queueing.idle_timeout``."""
        self._warm.add(line)
        if self._packing is None:
            self._packing = asyncio.get_running_loop().call_later(
                self.settings.queueing.idle_timeout, self._pack)

    def _pack(self) -> None:
        self._packing = None
        cold, self._cooling, self._warm = self._cooling - self._warm, self._warm, set()
        for line in cold:
            line.pack()
        if self._cooling and not self.stopping:
            self._packing = asyncio.get_running_loop().call_later(
                self.settings.queueing.idle_timeout, self._pack)

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


def get_uid(body: bodies.RawBody) -> str:
    """What identifies an object; some resources of API extensions have no uids."""
    meta = body['metadata']
    return meta.get('uid') or f"{meta.get('namespace')}/{meta['name']}"


def get_name(body: bodies.RawBody) -> tuple[str | None, str]:
    return body['metadata'].get('namespace'), body['metadata']['name']


def parse_version(body: bodies.RawBody) -> Version:
    version = body['metadata'].get('resourceVersion')
    return int(version) if version is not None and version.isdecimal() else version
