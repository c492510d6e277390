"""
API servers that lag behind the database: their lists and watches end with a past revision.

Single objects are read from the database, and are always the newest.
"""
from collections.abc import Callable


class Lag:
    """How far a server lags behind: it knows the changes up to the ``revision``, until `end`."""

    def __init__(self, revision: int) -> None:
        self.revision: int = revision
        self.is_over: bool = False
        self._waiting: list[Callable[[], None]] = []

    def wait(self, callback: Callable[[], None]) -> None:
        """Have a function called at the end of the lag, if it is not over yet."""
        if not self.is_over:
            self._waiting.append(callback)

    def end(self) -> None:
        """Catch up: watches continue with all that they have missed."""
        self.is_over = True
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
