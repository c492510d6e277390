"""
Timers: functions that are called again and again while the object exists.

When the next invocation is due is a matter of pure functions: all the times are handed in, they are
monotonic, in seconds.
"""
import math
from typing import TYPE_CHECKING

from kopf._core.actions import progression
from kopf._core.engines.daemons.companions import NEVER, PRECISION, Companion
from kopf._core.intents import causes, handlers

if TYPE_CHECKING:
    from kopf._core.engines.daemons import spawning


class Timer(Companion):
    """A function that is called again and again, when its time comes and the object is quiet."""
    sort = 'Timer'
    __slots__ = ('_is_due', '_is_paused', '_is_waiting')
    handler: handlers.TimerHandler

    def __init__(
            self, companions: 'spawning.Companions', handler: handlers.SpawningHandler,
    ) -> None:
        super().__init__(companions, handler)
        self._is_waiting = False
        """Whether it is not due before the next change of the object."""
        self._is_paused = False
        self._is_due = False
        """Whether its time has come while it was paused."""

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._is_due:
            self._is_due = False
            self.spawner.start(self)

    def begin(self) -> None:
        if self._is_paused:
            self._is_due = True
            return
        if self.handler.idle and self.state is None and self.task is None and (
                not self.stopper.is_set()):
            quiet = get_quiet(self.handler, changed=self.companions.changed)
            if quiet > self.spawner.clock.mono() + PRECISION:
                self._sleep(quiet)
                return
        super().begin()

    def note_change(self) -> None:
        if self._is_waiting and self.task is None:
            self._is_waiting = False
            self._sleep(get_quiet(self.handler, changed=self.companions.changed))

    def _judge(
            self, outcome: progression.Outcome, cause: causes.SpawningCause, *, invoked: float,
    ) -> float | None:
        if not outcome.final or outcome.exception is not None:
            return super()._judge(outcome, cause, invoked=invoked)
        self.state = None
        ended = self.spawner.clock.mono()
        until = get_next(self.handler, invoked=invoked, ended=ended)
        if until != NEVER:
            return until
        if not self.handler.idle:
            return None
        if self.companions.changed > invoked:
            return get_quiet(self.handler, changed=self.companions.changed)
        self._is_waiting = True
        return until


def get_next(handler: handlers.TimerHandler, *, invoked: float, ended: float) -> float:
    """
    When a timer is due after a success, the quietness of the object aside.

    With the sharp schedule, it goes by the beginnings of the invocations, and leaves out those
    that were missed. Without an interval, it is not repeated unless the object changes.
    """
    if handler.interval is None:
        return NEVER
    if not handler.sharp:
        return ended + handler.interval
    if handler.interval <= 0:
        return ended
    missed = math.floor((ended - invoked) / handler.interval)
    return invoked + handler.interval * (missed + 1)


def get_quiet(handler: handlers.TimerHandler, *, changed: float) -> float:
    """From when on the object counts as quiet if it does not change any more."""
    return changed + (handler.idle or 0)
