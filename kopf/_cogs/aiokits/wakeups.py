"""
Wake-ups of many sleepers by one timer of the event loop.

Each sleeper costs one tuple. A timer of the event loop for each would be four objects, which the
garbage collector traverses again and again. With tens of thousands of sleepers, garbage collection
would block the event loop for longer than anything else.
"""
import asyncio
import contextvars
import heapq
import itertools
from typing import Protocol

from kopf._cogs.aiokits import alarms

WAKEUPS_PER_ITERATION = 500
"""How many sleepers are woken up per iteration of the event loop at most, if not told otherwise."""

MIN_STALE = 100
"""How many outdated entries are tolerated in the heap before it is cleaned up."""


class Sleeper(Protocol):
    due: float | None
    """The time of the event loop to wake up, or None if awake. Only `Wakeups` may set it."""

    def wake_up(self) -> None:
        """Called when the time has come."""


class Wakeups:
    """
    The sleepers of one event loop, each with its time to wake up.

    Each sleeper is woken up once, not before its time, and in the order of the times: ``batch`` of
    them per iteration of the event loop at most, so that it is not blocked. ``wake_up`` is called
    in the context (`contextvars`) in which this instance was made.
    """

    def __init__(self, *, batch: int = WAKEUPS_PER_ITERATION) -> None:
        self._batch = batch
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Sleeper]] = []
        self._stale = 0
        self._alarm = alarms.Alarm(self._wake_up, contextvars.copy_context())

    def sleep(self, sleeper: Sleeper, until: float) -> None:
        """Wake up the sleeper at this time of the event loop, instead of any earlier given time."""
        self.cancel(sleeper)
        sleeper.due = until
        heapq.heappush(self._heap, (until, next(self._numbers), sleeper))
        self._alarm.set(until)

    def cancel(self, sleeper: Sleeper) -> None:
        """Do not wake up the sleeper. Nothing happens if it is awake."""
        if sleeper.due is not None:
            sleeper.due = None
            self._stale += 1
            if self._stale > MIN_STALE and self._stale > len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
                heapq.heapify(self._heap)
                self._stale = 0

    def close(self) -> None:
        """Wake up no sleepers any more."""
        self._heap.clear()
        self._alarm.cancel()

    def _wake_up(self, due: float) -> None:
        now = max(asyncio.get_running_loop().time(), due)
        try:
            for _ in range(self._batch):
                if not self._heap or self._heap[0][0] > now:
                    break
                when, _, sleeper = heapq.heappop(self._heap)
                if sleeper.due == when:
                    sleeper.due = None
                    sleeper.wake_up()
                else:
                    self._stale -= 1
        finally:
            if self._heap:
                self._alarm.set(self._heap[0][0])
