"""
Backing off on one object after errors of the framework or of the API.

Errors of handlers are not throttled here: handlers have backoffs of their own.
"""
import dataclasses
from collections.abc import Iterable, Iterator


@dataclasses.dataclass(slots=True)
class Throttler:
    """The delays of one series of errors; the last one repeats; the first success ends it."""
    _delays: Iterator[float] | None = None
    _last: float | None = None

    @property
    def active(self) -> bool:
        return self._delays is not None

    def next_delay(self, delays: Iterable[float] | float) -> float | None:
        """The pause after one more error, in seconds; None if no delays are configured."""
        if self._delays is None:
            self._delays = iter([delays] if isinstance(delays, (int, float)) else delays)
        self._last = next(self._delays, self._last)
        return self._last

    def reset(self) -> None:
        self._delays = None
        self._last = None
