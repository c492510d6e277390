"""
Timers: handlers that are called periodically.

The due time of the next call is calculated by pure functions. All times are monotonic, in seconds.
"""
import math

from kopf._cogs.aiokits import clocks
from kopf._core.actions import progression
from kopf._core.engines.daemons.companions import Companion, Companions
from kopf._core.intents import handlers, stopping


class Timer(Companion):
    """A companion that is called by its interval, and only if the object is idle."""
    __slots__ = ('_is_interrupted', '_is_paused', '_is_waiting')
    handler: handlers.TimerHandler

    def __init__(self, companions: Companions, handler: handlers.SpawningHandler) -> None:
        super().__init__(companions, handler)
        self._is_waiting = False
        """Whether the timer is not called again before the next change of the object."""
        self._is_paused = False
        self._is_interrupted = False
        """Whether the call under way was cancelled; then, it is repeated after the pause."""

    def pause(self, reason: stopping.DaemonStoppingReason) -> None:
        self._is_paused = True

    def interrupt(self) -> None:
        if self.task is not None and self.handler.is_async:
            self._is_interrupted = self.task.cancel()

    def _get_repetition(self) -> float | None:
        is_repeated, self._is_interrupted = self._is_interrupted, False
        state, now = self.state, self.spawner.clock.mono()
        if not is_repeated or (state is not None and state.failure):
            return None
        if state is None or state.success:  # its patch was cut off, so the next call is a new one
            self.state = None
            return now
        return max(now, state.due)

    def resume(self) -> None:
        self._is_paused = False
        if self.task is None and self.due is None and not self._is_waiting:
            self._sleep(self.spawner.clock.mono())  # the due time came during the pause

    def begin(self) -> None:
        if self._is_paused:
            return
        if self.handler.idle and self.task is None and not self.stopper.is_set():
            due = get_idle_due(self.handler, idle_since=self.companions.idle_since)
            if due > self.spawner.clock.mono() + clocks.PRECISION:
                self._sleep(due)
                return
        super().begin()

    def note_change(self) -> None:
        if self._is_waiting and self.task is None:
            self._is_waiting = False
            self._sleep(get_idle_due(self.handler, idle_since=self.companions.idle_since))

    def _repeat(self, *, invoked: float) -> float | None:
        self.state = None
        until = get_next(self.handler, invoked=invoked, ended=self.spawner.clock.mono())
        if until != progression.NEVER:
            return until
        if not self.handler.idle:
            return None
        if self.companions.idle_since > invoked:
            return get_idle_due(self.handler, idle_since=self.companions.idle_since)
        self._is_waiting = True
        return until


def get_next(handler: handlers.TimerHandler, *, invoked: float, ended: float) -> float:
    """
    Calculate when a timer is due after a successful call, without regard to ``idle``.

    By default, the interval is between the end of a call and the beginning of the next one. With
    ``sharp``, the interval is between the beginnings; beginnings that were missed are skipped.
    Without an interval, the timer is not due until the object changes. With an interval of 0, it is
    due at once, but a bit after the beginning of this call: other objects must get their turn.
    """
    if handler.interval is None:
        return progression.NEVER
    if handler.interval <= 0:
        return progression.space(ended, invoked=invoked)
    if not handler.sharp:
        return ended + handler.interval
    return invoked + handler.interval * (math.floor((ended - invoked) / handler.interval) + 1)


def get_idle_due(handler: handlers.TimerHandler, *, idle_since: float) -> float:
    """Calculate when the object has been idle for ``idle`` seconds, unless it changes before."""
    return idle_since + (handler.idle or 0)
