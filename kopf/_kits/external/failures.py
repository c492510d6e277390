"""
Failures: what the errors of a call say about the system, and about what has become of the call.

The errors of HTTP libraries are recognised by their attributes and names, so none is imported.
"""
import datetime
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from kopf._cogs.clients import errors
from kopf._cogs.helpers import ratelimits
from kopf._core.intents import handlererrors

UNSENT = frozenset({
    'builtins.ConnectionRefusedError', 'aiohttp.ClientConnectorError',
    'aiohttp.ConnectionTimeoutError', 'httpx.ConnectError', 'httpx.ConnectTimeout',
    'httpx.PoolTimeout', 'requests.ConnectTimeout', 'urllib3.NewConnectionError',
    'urllib3.ConnectTimeoutError', 'socket.gaierror', 'ssl.SSLCertVerificationError'})
"""The errors before anything is sent. Botocore repeats calls by itself, so its ones say nothing."""

CONNECTIONS = frozenset({
    'aiohttp.ClientConnectionError', 'aiohttp.ClientPayloadError', 'httpx.TransportError',
    'requests.ConnectionError', 'requests.Timeout', 'requests.ChunkedEncodingError',
    'requests.RetryError',
    'botocore.HTTPClientError', 'botocore.ConnectionError'})
"""The errors of connections in the HTTP libraries."""

BROKEN = CONNECTIONS | {'builtins.OSError', 'kopf.HandlerTimeoutError'}
"""The errors of connections, and of calls that take too long."""

THROTTLED = frozenset({
    'Throttling', 'ThrottlingException', 'ThrottledException', 'TooManyRequestsException',
    'RequestLimitExceeded', 'RequestThrottled', 'RequestThrottledException', 'SlowDown',
    'BandwidthLimitExceeded', 'LimitExceededException', 'ProvisionedThroughputExceededException'})
"""The codes of AWS for too many calls."""

AMBIGUOUS = (408, 409)
"""The statuses of refusals that do not tell whether an earlier call was executed."""

MAX_DELAY = 3600.0
DEFAULT_DELAY = 5.0
"""How long (seconds) to wait if a system wants fewer calls and does not say for how long."""


class RetryAfter(handlererrors.TemporaryError):
    """
    Raise this error when a system wants no calls for a while: no object calls it before.

    ::

        @billing.create
        def open_account(name, token, **_):
            response = requests.post(URL, json={'name': name, 'token': token})
            if response.status_code == 429:
                raise kopf.RetryAfter(float(response.headers['Retry-After']))

    See "Keep things in external systems" in the documentation.

    :param delay: the time in seconds.
    :raises TypeError: if it is not a number.
    """

    def __init__(self, delay: float) -> None:
        shown = f"{delay:g}" if isinstance(delay, int | float) else repr(delay)
        super().__init__(f"The system wants no calls for {shown} seconds.", delay=delay)


class NotSent(Exception):
    """
    Raise this error in a function that creates something, if nothing was sent to the system.

    Kopf calls the function again, even if nobody could tell what a call has done.

    ::

        @billing.create
        def open_account(name, token, **_):
            if not pool.is_connected:
                raise kopf.NotSent("There is no connection.")

    See "Keep things in external systems" in the documentation.
    """


class Failure(NamedTuple):
    """What an error means."""
    is_system: bool | None = False
    """Whether the system has failed, and not only this call; None if it was not asked."""
    is_refused: bool = False
    """Whether the call has certainly done nothing."""
    delay: float | None = None
    """How long (seconds) the system wants no calls."""
    status: int | None = None


def read(e: BaseException | None, *, now: datetime.datetime) -> Failure:
    """Read an error of a call."""
    if isinstance(e, RetryAfter):
        return Failure(is_refused=True, delay=min(e.delay or 0.0, MAX_DELAY))
    if isinstance(e, NotSent):
        return Failure(is_system=None, is_refused=True)
    if isinstance(e, errors.APIError):  # of `kopf.apply`: the call itself can have succeeded
        return Failure()
    status, headers, code = _read_response(e)
    if status is None:
        args = () if e is None else e.args[:1]
        names = _name(e).union(*(  # urllib has a reason itself, requests in what it wraps
            _name(getattr(each, 'reason', None)) for each in (e, *args)))
        if 'requests.RequestException' in names:  # e.g. of a wrong URL, or of an answer
            names.discard('builtins.OSError')
        is_unsent = not UNSENT.isdisjoint(names)
        return Failure(is_system=is_unsent or not BROKEN.isdisjoint(names), is_refused=is_unsent)
    delay = ratelimits.parse_retry_after(
        headers.get('Retry-After') or headers.get('retry-after'), limit=MAX_DELAY, now=now)
    if status == 429 or code in THROTTLED:
        return Failure(
            is_refused=True, delay=DEFAULT_DELAY if delay is None else delay, status=status)
    return Failure(
        is_system=status >= 500, is_refused=400 <= status < 500 and status not in AMBIGUOUS,
        delay=delay if status == 503 else None, status=status)


def is_of_connection(e: BaseException) -> bool:
    """Whether a connection has failed: then, the frames of its library tell nothing."""
    return any(isinstance(each, (ConnectionError, socket.gaierror)) or (
        not CONNECTIONS.isdisjoint(_name(each)))
        for each in (e, getattr(e, 'reason', None)))  # the latter is that of urllib


def _name(e: object) -> set[str]:
    return {f'{cls.__module__.partition(".")[0]}.{cls.__name__}' for cls in type(e).__mro__}


def _read_response(e: Any) -> tuple[int | None, Mapping[str, str], str | None]:
    """Find the status, the headers, and the code of AWS in an error of a response, if it is one."""
    status: Any
    headers: Any
    response = getattr(e, 'response', None)
    if isinstance(response, Mapping):  # botocore
        meta = response.get('ResponseMetadata') or {}
        status, headers = meta.get('HTTPStatusCode'), meta.get('HTTPHeaders')
        code = (response.get('Error') or {}).get('Code')
    else:
        code, source = None, e if response is None else response
        found = (getattr(source, name, None) for name in ('status_code', 'status', 'code'))
        status = next((value for value in found if isinstance(value, int)), None)
        headers = getattr(source, 'headers', None)
    is_status = isinstance(status, int) and 100 <= status < 600
    return status if is_status else None, headers if hasattr(headers, 'get') else {}, code
