"""
Wake-ups of many sleepers, at the cost of one timer of the event loop, and of one tuple for each.

A timer of the loop is four objects, which the garbage collector has to look at again and again, as
long as it is there; with tens of thousands of sleepers, that is what blocks the loop for longest.
"""
import asyncio
import contextvars
import heapq
import itertools
from typing import Protocol

WAKEUPS_PER_TURN = 500
"""How many are woken up per turn of the event loop, so that it is not blocked."""

MIN_STALE = 100
"""How many outdated entries are worth no cleaning up."""


class Sleeper(Protocol):
    due: float | None
    """When it is to be woken up, by the time of the loop; None if it is not. Not to be set."""

    def wake_up(self) -> None:
        """It is time."""


class Wakeups:
    """
    The sleepers of one event loop, each with the time at which it is to be woken up.

    Guarantees: everyone is woken up once, not before the time, and in the order of the times. The
    callbacks run in the context in which this was made, whoever has gone to sleep first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._context = contextvars.copy_context()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Sleeper]] = []
        self._stale = 0
        self._timer: asyncio.TimerHandle | None = None

    def sleep(self, sleeper: Sleeper, until: float) -> None:
        """Wake it up at that time instead of any other."""
        self.cancel(sleeper)
        sleeper.due = until
        heapq.heappush(self._heap, (until, next(self._numbers), sleeper))
        if self._timer is None or until < self._timer.when():
            self._arm(until)

    def cancel(self, sleeper: Sleeper) -> None:
        """Do not wake it up, if it is asleep at all."""
        if sleeper.due is not None:
            sleeper.due = None
            self._stale += 1
            if self._stale > MIN_STALE and self._stale > len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
                heapq.heapify(self._heap)
                self._stale = 0

    def close(self) -> None:
        """Wake up nobody any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(when, self._wake_up, context=self._context)

    def _wake_up(self) -> None:
        assert self._timer is not None
        now = max(asyncio.get_running_loop().time(), self._timer.when())
        self._timer = None
        try:
            for _ in range(WAKEUPS_PER_TURN):
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
                self._arm(self._heap[0][0])
