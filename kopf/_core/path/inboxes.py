"""
Inboxes: what has arrived for an object, from the watch and in the responses to own writes.

An inbox keeps the newest state, not a queue of states. For event handlers, the inbox also keeps
the raw events, in their order. There can be many thousands of inboxes, so an inbox at rest has only
a few references.
"""
import asyncio
import collections
import json

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies

MAX_EVENTS = 1000
"""How many unseen raw events of one object are kept. A later event replaces the last of them."""

PACKING_STEP = 100
"""How many states are packed in one iteration of the event loop."""


class Inbox:
    """
    What has arrived for one object and is not processed yet.

    Guarantees: a state is taken once. A state older than a known one is never taken. If raw events
    are recorded and there are too many of them, the newest one is never dropped.

    Assumption: all versions are of the same object. Numeric versions are compared as integers,
    other versions only by equality.
    """
    __slots__ = (
        '_events', '_expected', '_expected_until', '_kept', '_pending', '_shown', 'is_due',
        'version')

    def __init__(self) -> None:
        self.version: bodies.Version = None
        """The newest known version, from the watch or from responses to own writes."""
        self._pending: bodies.RawBody | bytes | None = None
        """The newest state, if it is not reconciled yet; packed if it waits in a long queue."""
        self.is_due = False
        """Whether the kept state must be reconciled again, though it is not new."""
        self._shown: bodies.Version = None
        """The version of the last raw event. Responses to own writes make no raw events."""
        self._kept: bodies.RawBody | bytes | None = None
        """The newest reconciled state, if it is needed later; packed after a longer rest."""
        self._events: collections.deque[bodies.RawEvent] | None = None
        self._expected: bodies.Version = None
        """The version of the own write whose echo is expected, if versions are not comparable."""
        self._expected_until = 0.0

    # What is there.

    @property
    def has_events(self) -> bool:
        return self._events is not None

    @property
    def has_news(self) -> bool:
        """Whether there is anything to process."""
        return self._pending is not None or self.is_due or self._events is not None

    @property
    def has_pending(self) -> bool:
        """Whether there is a state that is not reconciled yet."""
        return self._pending is not None

    @property
    def pending(self) -> bodies.RawBody | None:
        """The newest state, if it is not reconciled yet."""
        if isinstance(self._pending, bytes):
            self._pending = _unpack(self._pending)
        return self._pending

    @property
    def is_keeping(self) -> bool:
        return self._kept is not None

    @property
    def is_packed(self) -> bool:
        """Whether nothing needs packing: no state is kept, or the kept state is packed."""
        return self._kept is None or isinstance(self._kept, bytes)

    @property
    def newest(self) -> bodies.RawBody | None:
        """The newest state from the watch; None if it is not kept."""
        pending = self.pending
        return pending if pending is not None else self.recall()

    def peek(self) -> bodies.RawBody | None:
        """Return the state with which the processing would begin, without taking it."""
        pending = self.pending
        if pending is not None:
            return pending
        return self._events[0]['object'] if self._events else self.recall()

    def recall(self) -> bodies.RawBody | None:
        """Return the kept state; None if none is kept."""
        return _unpack(self._kept) if isinstance(self._kept, bytes) else self._kept

    def look_up(self, text: bytes) -> bodies.RawBody | None:
        """Return the newest state if it is kept and if its JSON can have this text."""
        state = self._pending if self._pending is not None else self._kept
        return None if isinstance(state, bytes) and text not in state else self.newest

    @property
    def is_ever_shown(self) -> bool:
        """Whether the event handlers have been shown any state."""
        return self._shown is not None

    @property
    def is_newest_shown(self) -> bool:
        """Whether the event handlers have been shown the newest known state."""
        return self._shown is not None and not bodies.is_newer(self.version, self._shown)

    def is_unseen(self, raw: bodies.RawBody) -> bool:
        """Whether the event handlers have not been shown this state or a newer one."""
        return self._shown is None or bodies.is_newer(bodies.parse_version(raw), self._shown)

    def is_outdated(self, raw: bodies.RawBody) -> bool:
        """Whether a newer state is known; false if versions are not comparable."""
        version = bodies.parse_version(raw)
        return isinstance(version, int) and isinstance(self.version, int) and version < self.version

    def get_patience(self, now: float) -> float | None:
        """Return until when (monotonic time) to wait for the echo; None if no echo is expected."""
        return self._expected_until if self._expected is not None and (
            now < self._expected_until) else None

    # What comes.

    @property
    def is_expecting(self) -> bool:
        """Whether the echo of an own write is expected, because versions are not comparable."""
        return self._expected is not None

    def offer(self, raw: bodies.RawBody, *, now: float) -> bool:
        """
        Take a state from the watch; false if the state is an echo, or not newer.

        The monotonic time ``now`` matters only if the inbox `is_expecting` an echo.
        """
        version = bodies.parse_version(raw)
        if self._expected is not None:
            if version == self._expected:
                self._expected = None
                self._pending = None
                return False
            if now >= self._expected_until:
                self._expected = None
        if self.version is not None and not bodies.is_newer(version, self.version):
            return False
        if self._expected is None:
            self.version = version
        self._pending = raw
        return True

    def accept(self, raw: bodies.RawBody, *, patience: float) -> bool:
        """
        Take the response to an own write; false if a newer state is known.

        If versions are not comparable, the states from the watch count as older than the response
        until its echo arrives, or until the monotonic time ``patience``.
        """
        version = bodies.parse_version(raw)
        if isinstance(version, int) and not isinstance(self.version, str):
            if self.version is not None and version < self.version:
                return False
            self.version = version
        elif version != self.version:
            self._expected, self._expected_until = version, patience
            self.version = version
        pending = self.pending
        if pending is not None and bodies.is_newer(bodies.parse_version(pending), version):
            return False
        self._pending = None
        return True

    def put(self, raw: bodies.RawBody) -> None:
        """Set the state with which the next handling begins, unless a newer one is waiting."""
        pending = self.pending
        if pending is None or not bodies.is_newer(
                bodies.parse_version(pending), bodies.parse_version(raw)):
            self._pending = raw

    def put_listed(self, raw: bodies.RawBody) -> None:
        """
        Set the state of a list as the next one to handle, unless a newer one is waiting or kept.

        The response to an own write can arrive before a list that is older than the write.
        """
        kept = self.recall() if self.is_outdated(raw) else None
        if kept is None or not bodies.is_newer(
                bodies.parse_version(kept), bodies.parse_version(raw)):
            self.put(raw)

    def remind(self) -> None:
        """Let the next reconciliation begin with the kept state, unless a newer one arrives."""
        self.is_due = True

    def defer(self, packed: bytes | None = None) -> None:
        """
        Keep the pending state until somebody takes it. As this can take long, it can be packed.

        ``packed`` is the same state as a raw event in JSON.
        """
        if self._pending is not None:
            self._kept = self._pending if packed is None else packed
            self._pending = None
        self.is_due = True

    def record(
            self, type: bodies.RawEventType, raw: bodies.RawBody, packed: bytes | None = None,
    ) -> bool:
        """Add a raw event; false if there are too many, so that the event has replaced another."""
        if self._events is None:
            self._events = collections.deque()
        has_room = len(self._events) < MAX_EVENTS
        if not has_room:
            self._events.pop()
        self._events.append({'type': type, 'object': raw})
        is_newest = self._pending is raw and self._expected is None
        self._shown = self.version if is_newest else bodies.parse_version(raw)
        if type != 'DELETED' and (self._pending is raw or self.version == self._shown):
            self.keep(raw, packed)
        return has_room

    # What is done with it.

    def take(self, peeked: bodies.RawBody | None = None) -> bodies.RawBody | None:
        """
        Take the newest state that is not reconciled; or the kept state after a reminder.

        ``peeked`` is what `peek` has returned: if it is still the kept state, nothing is unpacked.
        """
        raw, self._pending = self.pending, None
        if raw is None and self.is_due:
            is_same = peeked is not None and self._kept is not None and (
                self.version is not None and bodies.parse_version(peeked) == self.version)
            raw = peeked if is_same else self.recall()
        self.is_due = False
        return raw

    def absorb(self) -> None:
        """
        Take the pending state, as the running reconciliation continues from it.

        A reminder stays, because its reason is not handled yet.
        """
        self._pending = None

    def take_event(self) -> bodies.RawEvent | None:
        """Take the next raw event."""
        if self._events is None:
            return None
        event = self._events.popleft()
        if not self._events:
            self._events = None  # an empty queue takes several times the memory of an inbox
        return event

    def forget_reminder(self) -> None:
        """Drop the reminder: a reconciliation looks at the state now."""
        self.is_due = False

    def keep(self, raw: bodies.RawBody, packed: bytes | None = None) -> None:
        """Keep a state until it is needed; ``packed`` is the same as a raw event in JSON."""
        self._kept = raw if packed is None else packed

    def drop(self) -> None:
        """Forget the kept state."""
        self._kept = None

    def pack(self) -> None:
        """Convert the kept state to JSON, which takes less memory."""
        if self._kept is not None and not isinstance(self._kept, bytes):
            self._kept = _pack(self._kept)

    def pack_pending(self, packed: bytes | None = None) -> None:
        """
        Convert the pending state to JSON until it is needed, unless raw events also have it.

        ``packed`` is the same state as a raw event in JSON.
        """
        raw = self._pending
        if self._events is None and raw is not None and not isinstance(raw, bytes):
            self._pending = _pack(raw) if packed is None else packed
            if self._kept is raw:
                self._kept = self._pending

    def forget_versions(self) -> None:
        """Take the next state as new, whatever its version."""
        self.version = self._shown = self._expected = None

    def distrust(self, *, is_at_work: bool) -> None:
        """
        Forget the unprocessed states and events, as the object was not watched for a while.

        If there were any states, or if the processing has begun, the object is processed again.
        """
        if self._events:  # the next list must make a new event, for the newest state
            self._events = None
            self._shown = None
        self.is_due = self.is_due or is_at_work or self._pending is not None
        self._pending = self._expected = None

    def note_deletion(self, raw: bodies.RawBody | None) -> bodies.RawBody | None:
        """Note that the object is gone; return its last state, as far as it is known."""
        last = raw if raw is not None else self.pending
        last = self._pending = last if last is not None else self.recall()
        self._kept = None
        return last

    def clear(self) -> None:
        """Forget everything."""
        self._pending = self._kept = self._events = None
        self.is_due = False


def _pack(raw: bodies.RawBody) -> bytes:
    return json.dumps({'object': raw}, separators=(',', ':')).encode()


def _unpack(packed: bytes) -> bodies.RawBody:
    event: bodies.RawEvent = json.loads(packed.decode())
    return event['object']


class Packer:
    """
    Packs the kept states after a rest of at least ``settings.queueing.idle_timeout``.

    One timer is enough for all inboxes: at its second tick after an inbox has come to rest, the
    inbox is packed.
    """

    def __init__(self, settings: configuration.OperatorSettings) -> None:
        self._settings = settings
        self._warm: set[Inbox] = set()
        self._cooling: set[Inbox] = set()
        self._cold: list[Inbox] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def add(self, inbox: Inbox) -> None:
        """Pack the kept state of the inbox later."""
        self._warm.add(inbox)
        if self._timer is None and not self._is_closed:
            self._schedule(self._settings.queueing.idle_timeout)

    def close(self) -> None:
        """Pack nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._pack)

    def _pack(self) -> None:
        self._timer = None
        if not self._cold:
            self._cold = list(self._cooling - self._warm)
            self._cooling, self._warm = self._warm, set()
        for inbox in self._cold[-PACKING_STEP:]:
            inbox.pack()
        del self._cold[-PACKING_STEP:]
        if self._cold:
            self._schedule(0)
        elif self._cooling or self._warm:
            self._schedule(self._settings.queueing.idle_timeout)
