"""
Throttling of one object after errors of Kopf or of the API.

Errors of handlers are not throttled: handlers have their own backoffs.
"""
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies, credentials
from kopf._core.actions import application


@dataclasses.dataclass(slots=True)
class Throttler:
    """The delays after consecutive errors. The last delay repeats."""
    _delays: Iterator[float] | None = None
    _last: float | None = None
    _conflicts: int = 0
    is_told: bool = False
    """Whether the log says that the object is throttled."""
    basis: bodies.RawBody | None = None
    """The state that was handled when the error came, if it can be outdated."""

    def note_basis(self, raw: bodies.RawBody | None) -> None:
        self.basis = raw

    def tell(self, e: Exception, delay: float, logger: Any) -> None:
        """Log an error, and the delay (seconds) after it. A few conflicts in a row are no error."""
        if isinstance(e, errors.APIConflictError):
            self._conflicts += 1
            if self._conflicts <= application.MAX_CONFLICTS:
                logger.debug(
                    f"A conflict; trying again in {delay} seconds on the newest state: {e}")
                return
        self.is_told = True
        is_own = not isinstance(e, errors.APIError | credentials.LoginError)  # by Kopf's code
        logger.error(
            f"Throttling for {delay} seconds due to an unexpected error: {e!r}{errors.advise(e)}",
            exc_info=(type(e), e, e.__traceback__) if is_own else None)

    def next_delay(self, delays: Iterable[float] | float) -> float | None:
        """Get the pause (seconds) after one more error; None if ``delays`` are empty."""
        if self._delays is None:
            self._delays = iter([delays] if isinstance(delays, (int, float)) else delays)
        self._last = next(self._delays, self._last)
        return self._last
