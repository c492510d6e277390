"""
Pulses: signs of life of the tasks that run for ever.
"""
import asyncio


class Pulse:
    """By when a task has to show life again, if all is well with it."""
    __slots__ = ('due',)

    def __init__(self) -> None:
        self.due: float | None = None
        """In the time of the event loop; None if there is no limit."""

    def expect(self, within: float | None) -> None:
        """There is life; the next sign of it comes within so many seconds, or nobody knows when."""
        self.due = None if within is None else asyncio.get_running_loop().time() + within

    def is_late(self, now: float, *, slack: float = 0.0) -> bool:
        return self.due is not None and now > self.due + slack
