"""
The time: the monotonic one for all decisions, the wall one for people and for persistence.

Both are taken together as one moment, so that a persisted wall time becomes a monotonic deadline
once, when it is read; later jumps of the wall clock do not move it.
"""
import asyncio
import datetime
from typing import NamedTuple


class Moment(NamedTuple):
    mono: float
    """Seconds of the event loop's clock."""
    wall: datetime.datetime
    """The same moment in UTC, timezone-aware."""

    def at(self, wall: datetime.datetime) -> float:
        """The monotonic time of another wall time."""
        return self.mono + (wall - self.wall).total_seconds()


class Clock:
    """The time of the running event loop, real or virtual; such a loop has a `wall_time`, too."""

    def now(self) -> Moment:
        loop = asyncio.get_running_loop()
        wall: datetime.datetime | None = getattr(loop, 'wall_time', None)
        return Moment(loop.time(), wall or datetime.datetime.now(datetime.UTC))

    def mono(self) -> float:
        return asyncio.get_running_loop().time()
