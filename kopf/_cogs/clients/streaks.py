"""
Streaks: consecutive failures of an endless activity, e.g. of a watch. A streak is logged once for
each reason that does not pass by itself.
"""
import asyncio
from collections.abc import Iterator

from kopf._cogs.clients import api, errors, pausing
from kopf._cogs.configs import configuration

TEMPORARY = (errors.APINotFoundError, errors.APITooManyRequestsError)
"""The errors that are usual for a moment, e.g. when a CRD has just been created or deleted."""

LASTING = (errors.APIForbiddenError, errors.APIUntrustedError)
"""The errors about which people must do something, unlike a server that is away for a moment."""


class Streak:
    """
    The consecutive failures of one activity. ``what`` is the name of the activity for the log.

    One warning is logged for a streak: at its first failure, or at the second one if the first one
    is of the `TEMPORARY` errors. Each kind of the `LASTING` errors that comes later is one more
    warning. If there was a warning, the end of the streak is also logged.
    """

    def __init__(
            self, what: str, *, settings: configuration.OperatorSettings, logger: api.Logger,
    ) -> None:
        self.failures = 0
        self._what = what
        self._settings = settings
        self._logger = logger
        self._pauses: Iterator[float] | None = None
        self._warned: set[type[Exception]] = set()
        self._since = 0.0

    def fail(self, error: Exception) -> float:
        """Count a failure; return how long (seconds) to pause before the next attempt."""
        networking = self._settings.networking
        if self._pauses is None:
            self._pauses = pausing.repeat(networking.error_backoffs)
        if self.failures == 0 and not self._warned:
            self._since = asyncio.get_running_loop().time()
        self.failures += 1
        pause = pausing.combine(
            next(self._pauses),
            error.retry_after if isinstance(error, errors.APIError) else None,
            enforced=networking.enforce_retry_after,
        )
        text = (f"{error}" or repr(error)) + errors.advise(error)
        kind = type(error) if isinstance(error, LASTING) else Exception
        if kind in self._warned or (isinstance(error, TEMPORARY) and self.failures == 1):
            self._logger.debug(
                f"{self._what} has failed, will be tried again in {pause:.1f}s: {text}")
        else:
            self._warned |= {Exception, kind}
            self._logger.warning(f"{self._what} has failed, and will be tried again: {text}")
        return pause

    def ease(self) -> None:
        """
        Reset the pauses after some progress, but do not end the streak: it may fail soon again.
        """
        self.failures = 0
        self._pauses = None

    def end(self) -> None:
        """End the streak: the activity works reliably again."""
        self.ease()
        if self._warned:
            self._warned.clear()
            seconds = asyncio.get_running_loop().time() - self._since
            self._logger.info(f"{self._what} works again, after {seconds:.0f}s of failures.")
