"""
Errors of the API.

`APIError` has these branches, so that callers catch as little as they need:

- `APIConnectionError`: there was no (complete) answer: network, TLS, timeouts;
- `APIClientError`: 4xx, "the request is wrong", it makes no sense to repeat it unchanged:
  `APIUnauthorizedError` (401), `APIForbiddenError` (403), `APINotFoundError` (404),
  `APIConflictError` (409), `APIGoneError` (410), `APITooLargeError` (413),
  `APIUnprocessableError` (422), `APITooManyRequestsError` (429; this one can be repeated);
- `APIServerError`: 5xx, "the server is wrong", usually for a while.
"""
import datetime
import email.utils
import json
import math
from collections.abc import Mapping
from typing import Any


class APIError(Exception):
    """
    An error that the API has answered with, or the absence of an answer.

    ``status`` is that of HTTP, and 0 if there was no answer; ``payload`` is Kubernetes' own object
    of kind ``Status``, empty if the answer was none.
    """

    def __init__(
            self,
            message: str | None = None,
            *,
            status: int = 0,
            payload: Mapping[str, Any] | None = None,
            retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.payload: Mapping[str, Any] = payload or {}
        self._retry_after = retry_after

    def __str__(self) -> str:
        return self.message or f"HTTP {self.status}"

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({str(self)!r}, status={self.status})"

    @property
    def message(self) -> str | None:
        return self.args[0] or None

    @property
    def code(self) -> int:
        code = self.payload.get('code')
        return code if isinstance(code, int) else self.status

    @property
    def reason(self) -> str | None:
        """Kubernetes' word for what has happened, e.g. ``AlreadyExists``."""
        reason = self.payload.get('reason')
        return reason if isinstance(reason, str) else None

    @property
    def details(self) -> Mapping[str, Any]:
        details = self.payload.get('details')
        return details if isinstance(details, Mapping) else {}

    @property
    def retry_after(self) -> float | None:
        """For how many seconds the server asks not to come again, if it does."""
        seconds = self.details.get('retryAfterSeconds')
        if not isinstance(seconds, int | float) or not seconds:
            return self._retry_after
        return max(seconds, self._retry_after or 0)


class APIConnectionError(APIError):
    """There was no complete answer. The cause is in ``__cause__``."""


class APIClientError(APIError):
    pass


class APIServerError(APIError):
    pass


class APIUnauthorizedError(APIClientError):
    pass


class APIForbiddenError(APIClientError):
    pass


class APINotFoundError(APIClientError):
    pass


class APIConflictError(APIClientError):
    pass


class APIGoneError(APIClientError):
    pass


class APITooLargeError(APIClientError):
    pass


class APIUnprocessableError(APIClientError):
    pass


class APITooManyRequestsError(APIClientError):
    pass


_CLASSES: Mapping[int, type[APIError]] = {
    401: APIUnauthorizedError,
    403: APIForbiddenError,
    404: APINotFoundError,
    409: APIConflictError,
    410: APIGoneError,
    413: APITooLargeError,
    422: APIUnprocessableError,
    429: APITooManyRequestsError,
}


_OVERSIZE_MESSAGES = ('etcdserver: request is too large', 'trying to send message larger than max')
"""What the API says with a status of 500 if an object is too large not for it, but for its etcd."""


def make_error(status: int, raw: bytes, *, retry_after: str | None = None) -> APIError:
    """Make an error of the HTTP response: its status, its body, its ``Retry-After`` header."""
    try:
        payload = json.loads(raw)
    except ValueError:
        payload = None
    if not isinstance(payload, dict) or payload.get('kind') != 'Status':
        text = raw[:1000].decode('utf-8', errors='replace').strip()
        payload = {'message': text} if text and not text.startswith('<') else {}
    return make_status_error(payload, status=status, retry_after=parse_retry_after(retry_after))


def make_status_error(
        payload: Mapping[str, Any],
        *,
        status: int | None = None,
        retry_after: float | None = None,
) -> APIError:
    """Make an error of the object of kind ``Status``, e.g. from a watch-stream."""
    if status is None:
        code = payload.get('code')
        status = code if isinstance(code, int) else 0
    message = payload.get('message')
    if status == 0 and payload.get('reason') in ('Expired', 'Gone'):
        status = 410
    if status == 500 and isinstance(message, str) and any(
            text in message for text in _OVERSIZE_MESSAGES):
        status = 413
    cls = _CLASSES.get(status)
    if cls is None:
        cls = (APIServerError if 500 <= status < 600 else
               APIClientError if 400 <= status < 500 else APIError)
    return cls(
        message if isinstance(message, str) else None,
        status=status, payload=payload, retry_after=retry_after,
    )


def parse_retry_after(value: str | None) -> float | None:
    """Seconds from now by the header, which is either a number or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())
