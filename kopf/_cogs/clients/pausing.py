"""
Backoffs: the pauses between attempts, in seconds.
"""
import random
from collections.abc import Iterable, Iterator

Backoffs = float | Iterable[float]
"""Either one pause, or the pauses of one sequence of attempts; in seconds."""

MIN_ENDLESS, MAX_ENDLESS = 1.0, 30.0
"""The limits (seconds) of the pauses which follow those of the settings."""


def as_iterable(backoffs: Backoffs) -> Iterable[float]:
    """Get the pauses of one sequence of attempts; each iteration over them is a new sequence."""
    return (backoffs,) if isinstance(backoffs, int | float) else backoffs


def combine(pause: float, retry_after: float | None, *, enforced: bool) -> float:
    """
    Calculate the pause (seconds) from the settings and from what the server has asked for.

    It is the longer one; with ``enforced``, it is what the server has asked for, even if shorter.
    """
    if retry_after is None:
        return pause
    return retry_after if enforced else max(pause, retry_after)


def repeat(backoffs: Backoffs) -> Iterator[float]:
    """
    Iterate over the pauses of something that is retried endlessly, such as a watch.

    At first, these are the pauses of the settings; then, the last of them repeats, but not shorter
    than 1 second. If the settings have no pauses, the pauses double from 1 to 30 seconds.

    Each pause is prolonged randomly by up to 30%: clients that were disconnected at the same moment
    must not reconnect at the same moment.
    """
    last: float | None = None
    for last in as_iterable(backoffs):
        yield last * random.uniform(1.0, 1.3)
    pause = max(last or 0.0, MIN_ENDLESS)
    while True:
        yield pause * random.uniform(1.0, 1.3)
        if last is None:
            pause = min(pause * 2, MAX_ENDLESS)
