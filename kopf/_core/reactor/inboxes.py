"""
Inboxes: what has arrived for an object, from the watch and from the responses to own writes.

An inbox keeps the newest state, not a queue of states. For event handlers, the inbox also keeps
the raw events, in their order. There can be many thousands of inboxes, so an inbox at rest has only
a few references.
"""
import collections
import json

from kopf._cogs.structs import bodies

MAX_EVENTS = 1000
"""How many unseen raw events of one object are kept. A later event replaces the last of them."""


class Inbox:
    """
    What has arrived for one object and is not processed yet.

    Guarantees: a state is taken once. A state older than a known one is never taken. If raw events
    are recorded and there are too many of them, the newest one is never dropped.

    Assumption: all versions are of the same object. Numeric versions are compared as integers,
    other versions only by equality.
    """
    __slots__ = (
        '_events', '_expected', '_expected_until', '_is_due', '_kept', '_pending', '_shown',
        '_version')

    def __init__(self) -> None:
        self._version: bodies.Version = None
        """The newest known version, from the watch or from responses to own writes."""
        self._shown: bodies.Version = None
        """The version of the last raw event. Responses to own writes make no raw events."""
        self._pending: bodies.RawBody | None = None
        self._kept: bodies.RawBody | bytes | None = None
        """The newest reconciled state, if it will be needed; packed after a longer rest."""
        self._is_due = False
        self._events: collections.deque[bodies.RawEvent] | None = None
        self._expected: bodies.Version = None
        """The version of the own write whose echo is expected, if versions are not comparable."""
        self._expected_until = 0.0

    # What is there.

    @property
    def version(self) -> bodies.Version:
        """The newest known version."""
        return self._version

    @property
    def pending(self) -> bodies.RawBody | None:
        """The newest state, if it is not reconciled yet."""
        return self._pending

    @property
    def is_due(self) -> bool:
        """Whether the kept state must be reconciled again, though it is not new."""
        return self._is_due

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to process."""
        return self._pending is not None or self._is_due or bool(self._events)

    @property
    def is_keeping(self) -> bool:
        return self._kept is not None

    @property
    def is_packed(self) -> bool:
        """Whether nothing needs packing: no state is kept, or the kept state is packed."""
        return self._kept is None or isinstance(self._kept, bytes)

    def peek(self) -> bodies.RawBody | None:
        """Return the state with which the processing would begin, without taking it."""
        if self._pending is not None:
            return self._pending
        return self._events[0]['object'] if self._events else self.recall()

    def recall(self) -> bodies.RawBody | None:
        """Return the kept state; None if none is kept."""
        if isinstance(self._kept, bytes):
            event: bodies.RawEvent = json.loads(self._kept)
            return event['object']
        return self._kept

    def is_unseen(self, raw: bodies.RawBody) -> bool:
        """Whether the event handlers have not been shown this state or a newer one."""
        return self._shown is None or bodies.is_newer(bodies.parse_version(raw), self._shown)

    def get_patience(self, now: float) -> float | None:
        """Return until when (monotonic time) to wait for the echo; None if no echo is expected."""
        return self._expected_until if self._expected is not None and (
            now < self._expected_until) else None

    # What comes.

    def offer(self, raw: bodies.RawBody, *, now: float) -> bool:
        """Take a state from the watch; false if the state is an echo, or not newer."""
        version = bodies.parse_version(raw)
        if self._expected is not None:
            if version == self._expected:
                self._expected = None
                self._pending = None
                return False
            if now >= self._expected_until:
                self._expected = None
        if self._version is not None and not bodies.is_newer(version, self._version):
            return False
        if self._expected is None:
            self._version = version
        self._pending = raw
        return True

    def accept(self, raw: bodies.RawBody, *, patience: float) -> bool:
        """
        Take the response to an own write; false if a newer state is known.

        If versions are not comparable, the states from the watch are taken as older than this one,
        until the echo arrives, or until the monotonic time ``patience``.
        """
        version = bodies.parse_version(raw)
        if isinstance(version, int) and not isinstance(self._version, str):
            if self._version is not None and version < self._version:
                return False
            self._version = version
        elif version != self._version:
            self._expected, self._expected_until = version, patience
            self._version = version
        if self._pending is not None and bodies.is_newer(
                bodies.parse_version(self._pending), version):
            return False
        self._pending = None
        return True

    def put(self, raw: bodies.RawBody) -> None:
        """Set the state with which the next reconciliation begins."""
        self._pending = raw

    def remind(self) -> None:
        """Let the next reconciliation begin with the kept state, unless a newer one arrives."""
        self._is_due = True

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
        self._shown = bodies.parse_version(raw)
        if type != 'DELETED' and (self._pending is raw or self._version == self._shown):
            self.keep(raw, packed)
        return has_room

    # What is done with it.

    def take(self) -> bodies.RawBody | None:
        """Take the newest state that is not reconciled; or the kept state after a reminder."""
        raw, self._pending = self._pending, None
        if raw is None and self._is_due:
            raw = self.recall()
        self._is_due = False
        return raw

    def take_event(self) -> bodies.RawEvent | None:
        """Take the next raw event."""
        return self._events.popleft() if self._events else None

    def begin(self) -> None:
        """Drop the reminder: a reconciliation looks at the state now."""
        self._is_due = False

    def keep(self, raw: bodies.RawBody, packed: bytes | None = None) -> None:
        """Keep a state until it is needed; ``packed`` is the same as a raw event in JSON."""
        self._kept = raw if packed is None else packed

    def drop(self) -> None:
        """Forget the kept state."""
        self._kept = None

    def pack(self) -> None:
        """Convert the kept state to JSON, which takes less memory."""
        if not self.is_packed:
            self._kept = json.dumps({'object': self._kept}, separators=(',', ':')).encode()

    def forget_versions(self) -> None:
        """Take the next state as new, whatever its version."""
        self._version = self._shown = self._expected = None

    def distrust(self, *, is_at_work: bool) -> None:
        """
        Forget the unprocessed states and events, as the object was not watched for a while.

        If there were any states, or if the processing has begun, the object is processed again.
        """
        if self._events:  # the next list must make a new event, for the newest state
            self._events.clear()
            self._shown = None
        self._is_due = self._is_due or is_at_work or self._pending is not None
        self._pending = self._expected = None

    def end(self, raw: bodies.RawBody | None) -> bodies.RawBody | None:
        """Note that the object is gone; return its last state, as far as it is known."""
        last = raw if raw is not None else self._pending
        self._pending = last if last is not None else self.recall()
        self._kept = None
        return self._pending

    def clear(self) -> None:
        """Forget everything."""
        self._pending = self._kept = self._events = None
        self._is_due = False
