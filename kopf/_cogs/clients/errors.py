"""
Errors of the API, by the HTTP status of the response, or by its absence.
"""
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.helpers import ratelimits
from kopf._cogs.structs import nesting

MAX_RETRY_AFTER = 300.0
"""The maximal pause (seconds) before a retry that the server can ask for; longer ones are cut."""


class APIError(Exception):
    """
    An error in the response of the API server, or the absence of a response.

    :param message: the message of the error. Default: none.
    :param status: the HTTP status code; 0 if there was no response.
    :param payload: the object of the kind ``Status`` in the response. Default: empty, there was
        none.
    :param retry_after: how long, in seconds, the API server asks to wait. Default: it does not ask.
    :param earlier: the failure of an earlier attempt, which the server may have executed
        nevertheless. Default: none, this was the first attempt.
    """

    def __init__(
            self,
            message: str | None = None,
            *,
            status: int = 0,
            payload: Mapping[str, Any] | None = None,
            retry_after: float | None = None,
            earlier: 'APIError | None' = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.payload: Mapping[str, Any] = payload or {}
        self._retry_after = retry_after
        self.earlier: APIError | None = earlier
        self.shown: str | None = None
        """What is shown instead of the message, if that can have values of a Secret."""

    def follow(self, earlier: 'APIError | None') -> None:
        """Note the failure of an earlier attempt, unless one is known."""
        self.earlier = self.earlier or earlier

    def show(self, text: str) -> None:
        """Show the text instead of the message."""
        self.shown = text

    def __str__(self) -> str:
        return self.shown or self.message or f"HTTP {self.status}"

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({str(self)!r}, status={self.status})"

    @property
    def message(self) -> str | None:
        """The message, or `None`."""
        return self.args[0] or None

    @property
    def code(self) -> int:
        """The code in the ``Status``, or else the HTTP status code."""
        code = self.payload.get('code')
        return code if isinstance(code, int) else self.status

    @property
    def reason(self) -> str | None:
        """The reason in the ``Status``, e.g. ``AlreadyExists``."""
        reason = self.payload.get('reason')
        return reason if isinstance(reason, str) else None

    @property
    def details(self) -> Mapping[str, Any]:
        """The details in the ``Status``, or an empty mapping."""
        details = self.payload.get('details')
        return details if isinstance(details, Mapping) else {}

    @property
    def causes(self) -> Collection[Mapping[str, Any]]:
        """The causes in the details, e.g. with the fields that are refused."""
        causes = self.details.get('causes')
        return causes if isinstance(causes, list) and all(
            isinstance(cause, Mapping) for cause in causes) else ()

    @property
    def retry_after(self) -> float | None:
        """How long (seconds) to wait before a retry, if the server asks for that."""
        seconds = self.details.get('retryAfterSeconds')
        if not isinstance(seconds, int | float) or not seconds > 0:
            return self._retry_after
        return max(min(seconds, MAX_RETRY_AFTER), self._retry_after or 0)


class APIConnectionError(APIError):
    """There was no complete response. The original error is in ``__cause__``."""


class APIUntrustedError(APIConnectionError):
    """The certificate of the server is not signed by the CA in the credentials, or is wrong."""


class APIClientError(APIError):
    """HTTP 4xx. The request is wrong, so it must not be repeated unchanged."""


class APIServerError(APIError):
    """HTTP 5xx. The server fails, usually temporarily."""


class NotLeadingError(APIError):
    """Nothing was sent, as the operator does not lead (any more), so that it must not write."""


class APITooDeepError(APIError):
    """The request has succeeded, but the object in the response is nested too deeply."""


class APIBadRequestError(APIClientError):
    """HTTP 400."""


class APIUnauthorizedError(APIClientError):
    """HTTP 401."""


class APIForbiddenError(APIClientError):
    """HTTP 403."""


class APINotFoundError(APIClientError):
    """HTTP 404."""


class APIConflictError(APIClientError):
    """HTTP 409."""


class APIGoneError(APIClientError):
    """HTTP 410."""


class APITooLargeError(APIClientError):
    """HTTP 413."""


class APIUnprocessableError(APIClientError):
    """HTTP 422."""


class APITooManyRequestsError(APIClientError):
    """HTTP 429. The request can be repeated later."""


_CLASSES: Mapping[int, type[APIError]] = {
    400: APIBadRequestError,
    401: APIUnauthorizedError,
    403: APIForbiddenError,
    404: APINotFoundError,
    409: APIConflictError,
    410: APIGoneError,
    413: APITooLargeError,
    422: APIUnprocessableError,
    429: APITooManyRequestsError,
}


_REAL_STATUSES = {
    'etcdserver: request is too large': 413,  # it is small enough for the API server itself
    'trying to send message larger than max': 413,
    'failed to create typed patch object': 400,  # the types of its fields are wrong
    'unable to convert unstructured object to': 400,  # e.g. a quantity or a time is not readable
}
"""What the messages of HTTP 500 mean if the request can never succeed."""


def advise(
        error: Exception, advice: str = "Print the roles that the operator needs: kopf rbac",
) -> str:
    """
    Say, as the end of a message, how to get the rights that the operator lacks; empty otherwise.

    HTTP 403 alone does not mean that: policies, webhooks, quotas, and namespaces that are being
    deleted also refuse with it. But all authorizers have the same message.
    """
    return f". {advice}" if 'forbidden: User "' in str(error) else ''


def make_error(status: int, raw: bytes, *, retry_after: str | None = None) -> APIError:
    """Make an error of a response: of its status, its body, and its header ``Retry-After``."""
    try:
        payload = nesting.parse(raw)
    except ValueError:
        payload = None
    if not isinstance(payload, dict) or payload.get('kind') != 'Status':
        text = raw[:1000].decode('utf-8', errors='replace').strip()
        payload = {'message': text} if text and not text.startswith('<') else {}
    seconds = ratelimits.parse_retry_after(retry_after, limit=MAX_RETRY_AFTER)
    return make_status_error(payload, status=status, retry_after=seconds)


def make_status_error(
        payload: Mapping[str, Any],
        *,
        status: int | None = None,
        retry_after: float | None = None,
) -> APIError:
    """Make an error of an object of the kind ``Status``, e.g. of an ERROR event of a watch."""
    if status is None:
        code = payload.get('code')
        status = code if isinstance(code, int) else 0
    message = payload.get('message')
    if status == 0 and payload.get('reason') in ('Expired', 'Gone'):
        status = 410
    if status == 500 and isinstance(message, str):
        status = next((real for text, real in _REAL_STATUSES.items() if text in message), 500)
    cls = _CLASSES.get(status)
    if cls is None:
        cls = (APIServerError if 500 <= status < 600 else
               APIClientError if 400 <= status < 500 else APIError)
    return cls(
        message if isinstance(message, str) else None,
        status=status, payload=payload, retry_after=retry_after,
    )
