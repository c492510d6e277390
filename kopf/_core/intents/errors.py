"""
Errors by which handlers say what is to be done next, and the modes of treating all other errors.
"""
import enum


class ErrorsMode(enum.Enum):
    """What arbitrary errors of a handler mean, i.e. neither temporary nor permanent ones."""

    IGNORED = enum.auto()
    """The handler counts as succeeded, though without a result."""

    TEMPORARY = enum.auto()
    """The handler is tried again after its ``backoff``. The default for most handlers."""

    PERMANENT = enum.auto()
    """The handler has failed, and is not tried again."""


class PermanentError(Exception):
    """A failure which will not get better: the handler is not tried again."""


class TemporaryError(Exception):
    """
    A failure which can get better: the handler is tried again.

    The delay is in seconds. With None, there is no pause at all.
    """

    def __init__(self, msg: str | None = None, /, delay: float | None = 60) -> None:
        super().__init__(*(() if msg is None else (msg,)))
        self.delay = delay


class HandlerTimeoutError(PermanentError):
    """The handler has not succeeded within its ``timeout``."""


class HandlerRetriesError(PermanentError):
    """The handler has not succeeded in as many tries as its ``retries`` allow."""


class HandlerChildrenRetry(TemporaryError):
    """The handler itself is done, but it has sub-handlers that are not. Never raised by authors."""


class AdmissionError(PermanentError):
    """
    The object is refused by an admission handler.

    The message and the code go to the one who makes the change (e.g. `kubectl`). The code
    is as in HTTP.
    """

    def __init__(self, message: str | None = '', code: int | None = 500) -> None:
        super().__init__(message)
        self.code = code
