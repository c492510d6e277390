"""
The errors with which handlers control their retries, and how all other errors are treated.
"""
import enum

from kopf._cogs.configs import sections


class ErrorsMode(enum.Enum):
    """
    What exceptions of a handler mean, other than `kopf.TemporaryError` and `kopf.PermanentError`.

    Decorators take it as ``errors``. See "Handle errors and retries" in the documentation.
    """

    IGNORED = enum.auto()
    """The handler counts as succeeded, without a result."""

    TEMPORARY = enum.auto()
    """The handler is retried after its ``backoff``. This is the default for most handlers."""

    PERMANENT = enum.auto()
    """The handler has failed, and is not retried."""


class PermanentError(Exception):
    """
    Raise this error to stop the retries: the handler has failed permanently.

    ::

        @kopf.on.create('websites')
        def created(spec, **_):
            if spec['replicas'] > 10:
                raise kopf.PermanentError("There can be at most 10 replicas.")

    See "Handle errors and retries" in the documentation.
    """


class TemporaryError(Exception):
    """
    Raise this error to retry the handler after a delay.

    ::

        @kopf.on.create('websites')
        def created(spec, **_):
            if not is_resolved(spec['host']):
                raise kopf.TemporaryError("The host is not resolved yet.", delay=10)

    See "Handle errors and retries" in the documentation.

    :param msg: the message for the log. Default: none.
    :param delay: the delay in seconds before the next attempt; `None` means no delay. Default: 60.
    :raises TypeError: if the delay is not a number.
    """

    delay: float | None = 60  # for subclasses that do not call the constructor

    def __init__(self, msg: str | None = None, /, delay: float | None = 60) -> None:
        if delay is not None and not sections.is_number(delay):
            raise TypeError(f"delay= must be a number of seconds, not {delay!r}.")
        super().__init__(*(() if msg is None else (msg,)))
        self.delay = delay


class HandlerTimeoutError(PermanentError):
    """The handler has not succeeded within its ``timeout``. Kopf raises it."""


class HandlerRetriesError(PermanentError):
    """
    The handler has not succeeded within as many attempts as its ``retries`` allow. Kopf raises it.
    """


class HandlerChildrenRetry(TemporaryError):
    """Some sub-handlers have not finished: the handler is called again. Only Kopf raises it."""


class AdmissionError(PermanentError):
    """
    Raise this error in an admission handler to refuse the change.

    ::

        @kopf.on.validate('websites')
        def check_title(spec, **_):
            if not spec.get('title'):
                raise kopf.AdmissionError("spec.title must not be empty.", code=422)

    See "Validate and mutate objects" in the documentation.

    :param message: what the user who makes the change sees, e.g. in ``kubectl``. Default: empty.
    :param code: the HTTP status code of the response, from 400 to 999.
    """

    code: int | None = 500  # for subclasses that do not call the constructor

    def __init__(self, message: str | None = '', code: int | None = 500) -> None:
        super().__init__(message)
        self.code = code
