"""
Alarms: timers of the event loop that can be set to an earlier time.
"""
import asyncio
import contextvars
import math
from collections.abc import Callable


class Alarm:
    """
    A timer that is set again and again. It rings once, at the earliest of the times that are set.

    It remembers its time: the handles of uvloop round theirs to milliseconds, or have none.
    """

    def __init__(
            self, ring: Callable[[float], None], context: contextvars.Context | None = None,
    ) -> None:
        self._ring = ring
        self._context = context
        self._timer: asyncio.Handle | None = None
        self._time = math.inf

    def set(self, when: float) -> None:
        """Ring at this time of the event loop, or earlier if the alarm is set to an earlier one."""
        if when < self._time:
            self.cancel()
            self._time = when
            self._timer = asyncio.get_running_loop().call_at(
                when, self._go_off, context=self._context)

    def cancel(self) -> None:
        """Do not ring until the alarm is set again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._time = None, math.inf

    def _go_off(self) -> None:
        when, self._timer, self._time = self._time, None, math.inf
        self._ring(when)
