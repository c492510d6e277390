"""
The time: the monotonic time is for decisions, the wall-clock time is for people and persistence.

Both are read together, as one `Moment`. So, a persisted wall-clock time is converted to a monotonic
time when it is loaded (see `Moment.at`), and later jumps of the wall clock do not affect it.
"""
import asyncio
import concurrent.futures
import contextlib
import datetime
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

PRECISION = 0.001
"""
How much (seconds) a timer may be early.

A timer of the event loop can fire slightly before its time. Whatever is due by then, counts as due.
"""


class Moment(NamedTuple):
    """One moment by both clocks."""
    mono: float
    """The time of the event loop, in seconds."""
    wall: datetime.datetime
    """The wall-clock time in UTC, timezone-aware."""

    def at(self, wall: datetime.datetime) -> float:
        """Convert another wall-clock time to the monotonic time."""
        return self.mono + (wall - self.wall).total_seconds()


class Clock:
    """
    The clock of the running event loop.

    An event loop with virtual time (in tests) has an attribute ``wall_time`` for the wall clock.
    """

    def now(self) -> Moment:
        loop = asyncio.get_running_loop()
        wall: datetime.datetime | None = getattr(loop, 'wall_time', None)
        return Moment(loop.time(), wall or datetime.datetime.now(datetime.UTC))

    def mono(self) -> float:
        return asyncio.get_running_loop().time()


def is_virtual() -> bool:
    """Whether the time of the running event loop is virtual. It stands still while code runs."""
    return hasattr(asyncio.get_running_loop(), 'wall_time')


def choose(real: Callable[[], float]) -> Callable[[], float]:
    """Choose the clock of the running event loop if its time is virtual, or else the real one."""
    return asyncio.get_running_loop().time if is_virtual() else real


def stand_still() -> contextlib.AbstractContextManager[object]:
    """
    Let no time pass for the running event loop in the block, if its time is virtual.

    For real time, this does nothing.
    """
    block = getattr(asyncio.get_running_loop(), 'stand_still', contextlib.nullcontext)
    found: contextlib.AbstractContextManager[object] = block()
    return found


def hold_for(running: 'concurrent.futures.Future[Any]', call: object) -> None:
    """Let no time pass while a thread works on this call, if the time of the loop is virtual."""
    hold = getattr(asyncio.get_running_loop(), 'hold_for', None)
    if hold is not None:
        hold(running, call)


def wait_in_thread(
        loop: asyncio.AbstractEventLoop, work: 'concurrent.futures.Future[Any]',
        timeout: float | None,
) -> float | None:
    """
    Wait in a thread until this work of the loop is done, if the time of the loop is virtual.

    Returns how long to wait in real time then. For real time, this is the timeout.
    """
    wait = getattr(loop, 'wait_in_thread', None)
    left: float | None = timeout if wait is None else wait(work, timeout)
    return left


def make_flag() -> threading.Event | None:
    """Make an event for which threads wait in virtual time; None if that of the loop is real."""
    make = getattr(asyncio._get_running_loop(), 'make_flag', None)
    flag: threading.Event | None = None if make is None else make()
    return flag
