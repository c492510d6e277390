"""
Throttling of one object after errors of Kopf or of the API.

Errors of handlers are not throttled: handlers have their own backoffs.
"""
import dataclasses
from collections.abc import Iterable, Iterator


@dataclasses.dataclass(slots=True)
class Throttler:
    """The delays after consecutive errors. The last delay repeats."""
    _delays: Iterator[float] | None = None
    _last: float | None = None
    _conflicts: int = 0
    is_told: bool = False
    """Whether the log says that the object is throttled."""

    def tolerate(self, conflicts: int) -> bool:
        """Count a conflict (HTTP 409); return whether there were not more than so many."""
        self._conflicts += 1
        return self._conflicts <= conflicts

    def note_telling(self) -> None:
        self.is_told = True

    def next_delay(self, delays: Iterable[float] | float) -> float | None:
        """Get the pause (seconds) after one more error; None if ``delays`` are empty."""
        if self._delays is None:
            self._delays = iter([delays] if isinstance(delays, (int, float)) else delays)
        self._last = next(self._delays, self._last)
        return self._last
