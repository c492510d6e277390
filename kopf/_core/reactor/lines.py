"""
Lines: what is known about one object in this process, and what is new about it.

A line keeps the newest state of its object, not a queue of states; and its raw events in order,
only where someone wants to see each of them. At rest, a line is a few references.
"""
import asyncio
import collections
import json
from typing import TYPE_CHECKING, Any

from kopf._cogs.structs import bodies
from kopf._core.actions import cycles, throttlers
from kopf._core.engines.daemons import spawning

if TYPE_CHECKING:
    from kopf._core.reactor import streams


class Line:
    """An object with everything that is known about it in this process."""
    __slots__ = (
        'busy', 'companions', 'cycle', 'epoch', 'events', 'expected', 'expected_until', 'follower',
        'gone', 'held', 'indexing', 'initial', 'interruptible', 'kept', 'memo', 'name', 'noticed',
        'pending', 'queued', 'stream', 'throttler', 'timer', 'uid', 'unindexed', 'version', 'woken',
    )

    def __init__(self, stream: 'streams.Stream', uid: str, *, initial: bool) -> None:
        self.stream = stream
        self.uid = uid
        self.initial = initial
        """Whether it existed before the operator, and is not resumed yet."""
        self.version: bodies.Version = None
        """The newest known version, also by the responses to the own writes."""
        self.epoch = stream.epoch
        self.pending: bodies.RawBody | None = None
        """The newest state which is not processed yet."""
        self.kept: bodies.RawBody | bytes | None = None
        """The newest processed state, where it will be needed; packed when it rests for long."""
        self.woken = False
        """Whether it is time to look at the kept state again, though it is not new."""
        self.events: collections.deque[bodies.RawEvent] | None = None
        self.expected: bodies.Version = None
        """The own write that is to come by the watch, if versions are not comparable."""
        self.expected_until = 0.0
        self.cycle: cycles.Cycle | None = None
        self.memo: Any = None
        self.companions: spawning.Companions | None = None
        self.unindexed: bodies.RawBody | None = None
        """The newest state that is not in the indices yet."""
        self.indexing = False
        """Whether it is being indexed now; its passes wait for that."""
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
        version = bodies.parse_version(raw)
        if isinstance(version, int) and isinstance(self.version, int):
            self.version = max(self.version, version)
        elif version != self.version:
            loop_time = asyncio.get_running_loop().time()
            timeout = self.stream.lines.settings.persistence.consistency_timeout
            self.expected, self.expected_until = version, loop_time + timeout
            self.version = version
        if self.pending is not None and not bodies.is_newer(
                bodies.parse_version(self.pending), version):
            self.pending = None
        if self.pending is None:
            self.show(raw)

    def show(self, raw: bodies.RawBody, packed: bytes | None = None) -> None:
        """Let the state be seen by those who look at the object all the time."""
        if self.companions is not None:
            self.keep(raw, packed)
            self.companions.show(raw)
        if self.stream.handlers.indexing:
            self.stream.lines.index(self, raw)

    def take_over(self, raw: bodies.RawBody) -> None:
        """Take the response to a write besides the passes: the next pass will look at it."""
        self.accept(raw)
        if self.pending is None:
            self.pending = raw
        self.stream.lines.schedule(self)

    def wake_up(self) -> None:
        """Look at the kept state again, unless a newer one comes first."""
        if not self.gone:
            self.woken = True
            self.stream.lines.schedule(self)

    def peek(self) -> bodies.RawBody | None:
        """The state that a pass would begin with."""
        if self.pending is not None:
            return self.pending
        return self.events[0]['object'] if self.events else self.recall()

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
        if not self.stream.handlers.watching and self.companions is None:
            self.kept = None

    def pack(self) -> None:
        if self.kept is not None and not isinstance(self.kept, bytes):
            self.kept = json.dumps({'object': self.kept}, separators=(',', ':')).encode()

    def offer(self, raw: bodies.RawBody) -> bool:
        """Take a state from the watch; false if there is nothing new in it."""
        version = bodies.parse_version(raw)
        if self.expected is not None:
            if version == self.expected:
                self.expected = None
                self.pending = None
                return False
            if asyncio.get_running_loop().time() >= self.expected_until:
                self.expected = None
        if self.version is not None and not bodies.is_newer(version, self.version):
            return False
        if self.expected is None:
            self.version = version
        self.pending = raw
        return True

    def wait_until(self, when: float) -> None:
        """Wake up at that time of the event loop, if nothing comes before."""
        self.cancel_timer()
        self.timer = asyncio.get_running_loop().call_at(when, self._end_waiting)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _end_waiting(self) -> None:
        self.timer = None
        self.wake_up()


def get_uid(body: bodies.RawBody) -> str:
    """What identifies an object; some resources of API extensions have no uids."""
    meta = body['metadata']
    return meta.get('uid') or f"{body.get('kind')}/{meta.get('namespace')}/{meta['name']}"


def get_name(body: bodies.RawBody) -> tuple[str | None, str]:
    return body['metadata'].get('namespace'), body['metadata']['name']
