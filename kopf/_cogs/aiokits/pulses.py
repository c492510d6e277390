"""
Pulses: the heartbeats of endless tasks, for health checks and metrics.
"""
import asyncio


class Pulse:
    """The heartbeat of one task: by when the task has to make progress, and what it has done."""
    __slots__ = ('begun', 'due', 'heard', 'quiet_since', 'reached')

    def __init__(self) -> None:
        self.due: float | None = None
        """The time of the event loop by which the task has to make progress; None for no limit."""
        self.heard: float | None = None
        """The time of the event loop when something has come; None if nothing has come yet."""
        self.quiet_since: float | None = None
        """The same, or else when the task has begun at first; None if it has not begun yet."""
        self.begun = 0
        """How many times the task has begun, also again after a failure."""
        self.reached: str | None = None
        """How far the task has come, if it is one that goes on from there when it begins again."""

    def expect(self, within: float | None) -> None:
        """Note progress; the next one is expected within so many seconds (None: at any time)."""
        self.due = None if within is None else asyncio.get_running_loop().time() + within

    def begin(self) -> None:
        """Note that the task begins, or begins again."""
        self.begun += 1
        if self.quiet_since is None:
            self.quiet_since = asyncio.get_running_loop().time()

    @property
    def restarts(self) -> int:
        """How many times the task has begun again."""
        return max(0, self.begun - 1)

    def hear(self, within: float | None) -> None:
        """The same as `expect`, as something has come."""
        self.heard = self.quiet_since = asyncio.get_running_loop().time()
        self.expect(within)

    def is_late(self, now: float, *, slack: float = 0.0) -> bool:
        return self.due is not None and now > self.due + slack
