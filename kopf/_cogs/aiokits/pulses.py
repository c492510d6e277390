"""
Pulses: the heartbeats of endless tasks, for health checks.
"""
import asyncio


class Pulse:
    """The heartbeat of one task: by when the task has to make progress."""
    __slots__ = ('due',)

    def __init__(self) -> None:
        self.due: float | None = None
        """The time of the event loop by which the task has to make progress; None for no limit."""

    def expect(self, within: float | None) -> None:
        """Note progress; the next one is expected within so many seconds (None: at any time)."""
        self.due = None if within is None else asyncio.get_running_loop().time() + within

    def is_late(self, now: float, *, slack: float = 0.0) -> bool:
        return self.due is not None and now > self.due + slack
