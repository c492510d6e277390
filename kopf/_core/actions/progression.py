"""
The progress of handlers over their attempts, as pure data.

A `HandlerState` belongs to one handler in one handling cycle. It is restored from a record on the
object, changes with the outcome of each attempt, and is recorded on the object again. No function
does I/O or reads the clock: the callers pass the records and the time.
"""
import datetime
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import progress
from kopf._cogs.structs import ids, patches, texts
from kopf._core.intents import causes, handlers

HandlerT = TypeVar('HandlerT', bound=handlers.Handler)

MIN_PAUSE = 0.02
"""
The shortest time (seconds) from one attempt to the next of a handler that wants to be called again
at once. Meanwhile, it is the turn of other objects.
"""

NEVER = math.inf
"""The due time of a handler that only a change of its object can call."""

MAX_DELAY = 1_000_000_000.0
"""The longest delay (seconds): 31 years. Delays can be infinite, but dates cannot."""


class Outcome(NamedTuple):
    """
    The outcome of one attempt.

    If ``final``, the handler is not called again in this cycle; otherwise, it is called again after
    ``delay`` (seconds). If ``waiting``, the call does not count as an attempt: some sub-handlers
    are not finished yet, or the object does not fit the types of a timer.
    """
    final: bool
    delay: float | None = None
    result: Any = None
    exception: BaseException | None = None
    ignored: BaseException | None = None
    """What the handler has raised if such errors are ignored: it counts as succeeded."""
    message: str | None = None
    subrefs: Collection[ids.HandlerId] = ()
    waiting: bool = False
    patch: patches.Patch | None = None
    """The patch of the handler, whether it has succeeded or failed; None if empty."""

    @property
    def is_immediate(self) -> bool:
        """Whether Kopf calls the handler again at once."""
        return not self.final and not self.waiting and (self.delay or 0) < MIN_PAUSE


class HandlerState(NamedTuple):
    """
    The progress of one handler.

    ``started``, ``delayed``, and ``stopped`` are wall times, for the record on the object. Kopf
    calculates with the monotonic times, ``began`` and ``due``.
    """
    started: datetime.datetime
    began: float
    """When the first attempt began (monotonic time); before that, when it could be due."""
    due: float = float('-inf')
    """When the next attempt can start (monotonic time)."""
    delayed: datetime.datetime | None = None
    stopped: datetime.datetime | None = None
    purpose: str | None = None
    retries: int = 0
    """How many calls have ended."""
    waits: int = 0
    """How many of these have only waited for their sub-handlers, and are no attempts."""
    success: bool = False
    failure: bool = False
    message: str | None = None
    subrefs: frozenset[ids.HandlerId] = frozenset()

    @property
    def attempts(self) -> int:
        return self.retries - self.waits

    @property
    def finished(self) -> bool:
        return self.success or self.failure

    @property
    def is_new(self) -> bool:
        """Whether no attempt has ended yet, not even one that waits for its sub-handlers."""
        return not self.retries and self.message is None and not self.subrefs and not self.finished

    @classmethod
    def new(cls, *, now: clocks.Moment, purpose: causes.Reason | None = None) -> 'HandlerState':
        return cls(started=now.wall, began=now.mono, purpose=purpose.value if purpose else None)

    def anew(self, *, now: clocks.Moment) -> 'HandlerState':
        """Begin anew for the same purpose."""
        return self.new(now=now)._replace(purpose=self.purpose)

    @classmethod
    def from_record(cls, record: progress.ProgressRecord, *, now: clocks.Moment) -> 'HandlerState':
        """
        Restore from a record. Records of other versions can be incomplete.

        :raises ValueError: if the record is not readable.
        """
        try:
            started = _parse_time(record.get('started')) or now.wall
            delayed = _parse_time(record.get('delayed'))
            waits = int(bool(record.get('subrefs')))  # their number is not in the record
            return cls(
                started=started,
                began=now.at(started),
                delayed=delayed,
                due=now.at(delayed) if delayed is not None else float('-inf'),
                stopped=_parse_time(record.get('stopped')),
                purpose=record.get('purpose') or None,
                retries=int(record.get('retries') or 0) + waits,
                waits=waits,
                success=bool(record.get('success')),
                failure=bool(record.get('failure')),
                message=record.get('message'),
                subrefs=frozenset(record.get('subrefs') or ()),
            )
        except (AttributeError, TypeError, ValueError) as e:
            raise ValueError(f"The progress of a handler is not readable: {record!r}") from e

    def as_record(self, *, max_message: int | None = None) -> progress.ProgressRecord:
        """
        Make a record. A message with more bytes of UTF-8 than ``max_message`` is cut in the middle;
        with 0, there is no message.
        """
        message = self.message
        if message and max_message is not None and len(message) > max_message // 4:
            message = texts.cut(message, max_message, marker=' [...] ') if max_message else None
        return {
            'started': self.started.isoformat(),
            'stopped': self.stopped.isoformat() if self.stopped is not None else None,
            'delayed': self.delayed.isoformat() if self.delayed is not None else None,
            'purpose': self.purpose,
            'retries': self.attempts,
            'success': self.success,
            'failure': self.failure,
            'message': message,
            'subrefs': sorted(self.subrefs) or None,
        }

    def after(self, outcome: Outcome, *, now: clocks.Moment) -> 'HandlerState':
        """Make the state after one more attempt."""
        delay = None if outcome.final or outcome.delay is None else (
            max(0.0, float(min(outcome.delay, MAX_DELAY))))
        success = outcome.final and outcome.exception is None
        subrefs = self.subrefs | frozenset(outcome.subrefs)
        return HandlerState(
            started=self.started,
            began=self.began,
            purpose=self.purpose,
            stopped=now.wall if outcome.final else None,
            delayed=now.wall + datetime.timedelta(seconds=delay) if delay is not None else None,
            due=now.mono + delay if delay is not None else float('-inf'),
            retries=self.retries + (not outcome.waiting or bool(subrefs)),
            waits=self.waits + (outcome.waiting and bool(subrefs)),
            success=success,
            failure=outcome.final and outcome.exception is not None,
            message=None if success else outcome.message,
            subrefs=subrefs,
        )

    def begun(self, *, now: clocks.Moment) -> 'HandlerState':
        """
        Make the state when an attempt begins: the time of a handler runs from its first attempt.

        Other handlers can have taken any time since the handler could be due.
        """
        if not self.is_new or now.mono - self.began <= clocks.PRECISION:
            return self
        return self._replace(started=now.wall, began=now.mono)

    def is_due(self, mono: float) -> bool:
        """Whether the next attempt can start at this monotonic time."""
        return not self.finished and self.due <= mono + clocks.PRECISION

    def age(self, mono: float) -> float:
        """How many seconds have passed since the first attempt began."""
        return max(0.0, mono - self.began)


class State(dict[ids.HandlerId, HandlerState]):
    """
    The progress of the handlers of a cycle by their ids, as lifecycles get it.

    A handler without progress has zero retries.
    """

    def retries_of(self, handler_id: ids.HandlerId) -> int:
        return self[handler_id].retries if handler_id in self else 0


def find_due(
        candidates: Collection[HandlerT], states: State, *, now: float,
) -> tuple[list[HandlerT], float | None]:
    """
    Find the handlers whose next attempt can start at this monotonic time.

    If there are none, also find in how many seconds the first one can; None if all have finished.
    """
    due = [handler for handler in candidates if states[handler.id].is_due(now)]
    if due:
        return due, 0.0
    left = [states[handler.id].due for handler in candidates if not states[handler.id].finished]
    return due, min(left) - now if left else None


def space(due: float, *, invoked: float) -> float:
    """Postpone the next attempt a bit, if it is due soon after the last one was ``invoked``."""
    return max(due, invoked + MIN_PAUSE)


def count(
        states: Mapping[ids.HandlerId, HandlerState], handler_ids: Iterable[ids.HandlerId],
) -> tuple[int, int]:
    """Count the handlers that have succeeded, and those that have failed."""
    known = [states[id_] for id_ in handler_ids if id_ in states]
    return sum(state.success for state in known), sum(state.failure for state in known)


def _parse_time(value: str | None) -> datetime.datetime | None:
    if not value:
        return None
    import iso8601  # its import takes long, and objects without progress do not need it
    return iso8601.parse_date(value)
