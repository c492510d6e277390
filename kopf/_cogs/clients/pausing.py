"""
Backoffs: pauses between tries, as the settings give them.
"""
import random
from collections.abc import Iterable, Iterator, Sized

Backoffs = float | Iterable[float]


def iterate(backoffs: Backoffs) -> Iterator[float]:
    """The pauses of a new sequence of tries. A number is one pause."""
    return iter((backoffs,)) if isinstance(backoffs, int | float) else iter(backoffs)


def count_attempts(backoffs: Backoffs) -> int | None:
    """How many tries there will be at most, if this can be known."""
    if isinstance(backoffs, int | float):
        return 2
    return len(backoffs) + 1 if isinstance(backoffs, Sized) else None


def combine(pause: float, retry_after: float | None, *, enforced: bool) -> float:
    """The pause by both the settings and the server: never less than the server has asked for."""
    if retry_after is None:
        return pause
    return retry_after if enforced else max(pause, retry_after)


class EndlessBackoffs:
    """
    The pauses of something that is tried again for ever.

    First those of the settings, then the last of them again and again, but no less than a second.
    Without any in the settings, they double from 1 to 30 seconds. Those who were cut off together
    do not come back together: pauses vary upwards by up to 30%.
    """
    MIN, MAX = 1.0, 30.0

    def __init__(self, backoffs: Backoffs) -> None:
        super().__init__()
        self._source = iterate(backoffs)
        self._last: float | None = None
        self._doubled = self.MIN

    def __next__(self) -> float:
        pause = next(self._source, None)
        if pause is not None:
            self._last = pause
        elif self._last is not None:
            pause = max(self._last, self.MIN)
        else:
            pause = self._doubled
            self._doubled = min(self._doubled * 2, self.MAX)
        return pause * random.uniform(1.0, 1.3)
