"""
The progress of handlers over their attempts, as pure data.

A state is of one handler in one handling cycle. It comes from the object (a record of the storage),
changes by the outcomes of attempts, and goes to the object again. Nothing here does I/O or asks
for the time: both are handed in.
"""
import datetime
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import progress
from kopf._cogs.structs import ids
from kopf._core.intents import causes


class Outcome(NamedTuple):
    """
    What came of one attempt.

    Final: the handler is not to be called again in this cycle; otherwise, only after the delay
    (seconds). Waiting: nothing was tried, only some sub-handlers are not finished yet.
    """
    final: bool
    delay: float | None = None
    result: Any = None
    exception: BaseException | None = None
    message: str | None = None
    subrefs: Collection[ids.HandlerId] = ()
    waiting: bool = False


class HandlerState(NamedTuple):
    """The progress of one handler. The wall times are for persistence; `began` & `due` count."""
    started: datetime.datetime
    began: float
    """When the first attempt was due to start, in the monotonic time."""
    due: float = float('-inf')
    """When the next attempt can start, in the monotonic time."""
    delayed: datetime.datetime | None = None
    stopped: datetime.datetime | None = None
    purpose: str | None = None
    retries: int = 0
    success: bool = False
    failure: bool = False
    message: str | None = None
    subrefs: frozenset[ids.HandlerId] = frozenset()

    @property
    def finished(self) -> bool:
        return self.success or self.failure

    @classmethod
    def new(cls, *, now: clocks.Moment, purpose: causes.Reason | None = None) -> 'HandlerState':
        return cls(started=now.wall, began=now.mono, purpose=purpose.value if purpose else None)

    @classmethod
    def from_record(cls, record: progress.ProgressRecord, *, now: clocks.Moment) -> 'HandlerState':
        """
        Restore from a record, also from a partial one, or one of other versions.

        :raises ValueError: if the record is not understandable.
        """
        try:
            started = _parse_time(record.get('started')) or now.wall
            delayed = _parse_time(record.get('delayed'))
            return cls(
                started=started,
                began=now.at(started),
                delayed=delayed,
                due=now.at(delayed) if delayed is not None else float('-inf'),
                stopped=_parse_time(record.get('stopped')),
                purpose=record.get('purpose') or None,
                retries=int(record.get('retries') or 0),
                success=bool(record.get('success')),
                failure=bool(record.get('failure')),
                message=record.get('message'),
                subrefs=frozenset(record.get('subrefs') or ()),
            )
        except (AttributeError, TypeError, ValueError) as e:
            raise ValueError(f"The progress of a handler is not readable: {record!r}") from e

    def as_record(self) -> progress.ProgressRecord:
        return {
            'started': self.started.isoformat(),
            'stopped': self.stopped.isoformat() if self.stopped is not None else None,
            'delayed': self.delayed.isoformat() if self.delayed is not None else None,
            'purpose': self.purpose,
            'retries': self.retries,
            'success': self.success,
            'failure': self.failure,
            'message': self.message,
            'subrefs': sorted(self.subrefs) or None,
        }

    def after(self, outcome: Outcome, *, now: clocks.Moment) -> 'HandlerState':
        """The state after one more attempt."""
        delay = outcome.delay if not outcome.final else None
        success = outcome.final and outcome.exception is None
        return HandlerState(
            started=self.started,
            began=self.began,
            purpose=self.purpose,
            stopped=now.wall if outcome.final else None,
            delayed=now.wall + datetime.timedelta(seconds=delay) if delay is not None else None,
            due=now.mono + delay if delay is not None else float('-inf'),
            retries=self.retries if outcome.waiting else self.retries + 1,
            success=success,
            failure=outcome.final and outcome.exception is not None,
            message=None if success else outcome.message,
            subrefs=self.subrefs | frozenset(outcome.subrefs),
        )

    def age(self, mono: float) -> float:
        """For how long the handler is being tried, in seconds."""
        return max(0.0, mono - self.began)


class State(dict[ids.HandlerId, HandlerState]):
    """
    The progress of the handlers of a cycle by their ids, as lifecycles get it.

    Handlers that are not known yet count as those not yet tried.
    """

    def retries_of(self, handler_id: ids.HandlerId) -> int:
        state = self.get(handler_id)
        return 0 if state is None else state.retries


def count(
        states: Mapping[ids.HandlerId, HandlerState], handler_ids: Iterable[ids.HandlerId],
) -> tuple[int, int]:
    """How many of the handlers have succeeded, and how many have failed."""
    known = [states[id_] for id_ in handler_ids if id_ in states]
    return sum(state.success for state in known), sum(state.failure for state in known)


def _parse_time(value: str | None) -> datetime.datetime | None:
    if not value:
        return None
    parsed = datetime.datetime.fromisoformat(value)
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=datetime.UTC)
