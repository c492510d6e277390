"""
Tenures: whether this replica holds its Lease, as told to other threads by the one that renews it.
"""
import functools
import time
from collections.abc import Callable
from typing import NamedTuple


def _choose_clock() -> Callable[[], float]:
    # Both clocks go on while the process is stopped by a signal. CLOCK_BOOTTIME also goes on while
    # the whole machine is suspended: by then, other replicas have taken over.
    boottime: int | None = getattr(time, 'CLOCK_BOOTTIME', None)
    return time.monotonic if boottime is None else functools.partial(time.clock_gettime, boottime)


read_clock: Callable[[], float] = _choose_clock()
"""Read the clock of Leases, in seconds. It neither jumps nor stops."""


class _State(NamedTuple):
    term: int
    until: float


class Tenure:
    """
    The time for which this replica holds its Lease: in terms, numbered from 1.

    A term goes on as long as the Lease is renewed in time. Only the thread that renews the Lease
    calls the methods which change that. Other threads can ask at any time: the answer is by the
    clock, and so it is right also if that thread is late.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.now = read_clock if clock is None else clock
        self._state = _State(0, 0.0)  # replaced as a whole: other threads read it without locks

    @property
    def term(self) -> int | None:
        """The number of the current term; None if this replica does not hold the Lease."""
        state = self._state
        return state.term if self.now() < state.until else None

    @property
    def left(self) -> float:
        """How long (seconds) the term lasts without a further renewal; 0 if there is none."""
        return max(0.0, self._state.until - self.now())

    def renew(self, until: float, *, anew: bool = False) -> bool:
        """Prolong the term; or begin a new one if it has ended, or if asked. Return which."""
        begins = anew or self.term is None
        self._state = _State(self._state.term + begins, until)
        return begins

    def end(self) -> None:
        """End the term before its time."""
        self._state = self._state._replace(until=0.0)
