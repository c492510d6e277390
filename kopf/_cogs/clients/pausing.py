"""
Backoffs: the pauses between attempts, in seconds.
"""
import random
from collections.abc import Iterable, Iterator, Sized

Backoffs = float | Iterable[float]
"""Either one pause, or the pauses of one sequence of attempts; in seconds."""


def iterate(backoffs: Backoffs) -> Iterator[float]:
    """Iterate over the pauses of a new sequence of attempts."""
    return iter((backoffs,)) if isinstance(backoffs, int | float) else iter(backoffs)


def count_attempts(backoffs: Backoffs) -> int | None:
    """Get the maximal number of attempts; None if it is not known, e.g. for generators."""
    if isinstance(backoffs, int | float):
        return 2
    return len(backoffs) + 1 if isinstance(backoffs, Sized) else None


def combine(pause: float, retry_after: float | None, *, enforced: bool) -> float:
    """
    Calculate the pause (seconds) from the settings and from what the server has asked for.

    It is the longer one; with ``enforced``, it is what the server has asked for, even if shorter.
    """
    if retry_after is None:
        return pause
    return retry_after if enforced else max(pause, retry_after)


class EndlessBackoffs:
    """
    The pauses of something that is retried endlessly, such as a watch.

    At first, these are the pauses of the settings; then, the last of them repeats, but not shorter
    than 1 second. If the settings have no pauses, the pauses double from 1 to 30 seconds.

    Each pause is prolonged randomly by up to 30%: clients that were disconnected at the same moment
    must not reconnect at the same moment.
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
