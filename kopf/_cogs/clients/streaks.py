"""
Streaks: failures in a row of something that goes on for ever; told about once, and paused after.
"""
import time

from kopf._cogs.clients import api, errors, pausing
from kopf._cogs.configs import configuration

# Errors that are usual for a moment: a kind that goes away, or one that has just come.
PASSING = (errors.APINotFoundError, errors.APITooManyRequestsError)


class Streak:
    """
    The failures in a row of one activity, which is named for the logs.

    One warning is logged for a streak: at its first failure, or at its second if such failures use
    to pass by themselves. One line is logged when it is over and was warned of.
    """

    def __init__(
            self, what: str, *, settings: configuration.OperatorSettings, logger: api.Logger,
    ) -> None:
        super().__init__()
        self.failures = 0
        self._what = what
        self._settings = settings
        self._logger = logger
        self._pauses: pausing.EndlessBackoffs | None = None
        self._warned = False
        self._since = 0.0

    def fail(self, error: Exception) -> float:
        """Count a failure, and tell how long to pause after it."""
        networking = self._settings.networking
        if self._pauses is None:
            self._pauses = pausing.EndlessBackoffs(networking.error_backoffs)
        if self.failures == 0 and not self._warned:
            self._since = time.monotonic()
        self.failures += 1
        pause = pausing.combine(
            next(self._pauses),
            error.retry_after if isinstance(error, errors.APIError) else None,
            enforced=networking.enforce_retry_after,
        )
        text = f"{error}" or repr(error)
        if self._warned or (isinstance(error, PASSING) and self.failures == 1):
            self._logger.debug(
                f"{self._what} has failed, will be tried again in {pause:.1f}s: {text}")
        else:
            self._warned = True
            self._logger.warning(f"{self._what} has failed, and will be tried again: {text}")
        return pause

    def ease(self) -> None:
        """Something works, maybe not for long: next time, begin with the shortest pauses."""
        self.failures = 0
        self._pauses = None

    def end(self) -> None:
        """It works again, and reliably."""
        self.ease()
        if self._warned:
            self._warned = False
            seconds = time.monotonic() - self._since
            self._logger.info(f"{self._what} works again, after {seconds:.0f}s of failures.")
