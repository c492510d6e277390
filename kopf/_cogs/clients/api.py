"""
The API client: requests with retries, streams, and automatic re-authentication.
"""
import asyncio
import contextlib
import contextvars
import copy
import functools
import logging
import re
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol, cast

from kopf._cogs.aiokits import deadlines, timeouts
from kopf._cogs.clients import errors, outages, pausing, pools, transfers, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, credentials, nesting

if TYPE_CHECKING:
    from kopf._cogs.clients import httpsessions

default_logger = logging.getLogger(__name__)

Logger = logging.Logger | logging.LoggerAdapter[Any]

JSON = 'application/json'
READ_ENCODING = 'gzip'
"""
The encoding for responses that can be large: lists shrink to a tenth, or to less.

API servers compress only what is larger than 128 KB ("APIResponseCompression"), and never a stream.
"""
REPEATABLE = (errors.APIConnectionError, errors.APIServerError, errors.APITooManyRequestsError)
NETWORK_ERRORS = (transfers.TransferError, OSError, TimeoutError)
MAX_WARNINGS_REMEMBERED = 1000

OVERLOAD = 8
"""How many times as many regular requests as connections are an overload."""

CLOSING_ITERATIONS = 5
"""
How many iterations of the event loop asyncio needs to close the sockets of aborted transports.
"""


class Tenure(Protocol):
    """The time in which a client may write: in terms, which can end at any moment."""

    @property
    def term(self) -> int | None:
        """The number of the current term; None if nothing may be written now."""

    def verify(self, term: int | None) -> None:
        """
        Check that what was begun in this term may be written now.

        :raises errors.NotLeadingError: if it may not.
        """


_term_var: contextvars.ContextVar[tuple[Tenure, int | None] | None] = contextvars.ContextVar(
    'term_var', default=None)
"""The term to which the writes of this context belong; see `Client.enter_term`."""


Count = Callable[[int | None, str, str], None]
"""Counts a request by the HTTP status (None for errors of the network), the method, the host."""

MakeHeaders = Callable[[], Mapping[str, str]]
"""Makes headers for the next request, in the context in which it is sent."""


class _Traffic:
    """The requests of a client and of its copies `unfenced`, which share it."""

    def __init__(self) -> None:
        self.in_flight = 0
        """How many regular requests there are now."""
        self.count: Count = lambda *_: None
        self.make_headers: MakeHeaders | None = None


class Client(contextlib.AbstractAsyncContextManager['Client']):
    """
    A client of one API server, for one event loop.

    The credentials come either directly or from a vault. If the API server rejects the credentials
    (HTTP 401), the request is repeated with other credentials of the vault. Expired credentials are
    not used.

    The settings are read at every request. The connections are opened on demand; `close` them.

    The paths of requests begin with a slash, are quoted, and can have a query. They are appended to
    the URL of the server in the credentials.

    All requests can raise `credentials.LoginError` if there are no usable credentials.
    """

    def __init__(
            self,
            *,
            credentials: credentials.Credentials | vaults.Vault,
            settings: configuration.OperatorSettings,
            logger: Logger = default_logger,
    ) -> None:
        super().__init__()
        self.vault: vaults.Vault = (
            credentials if isinstance(credentials, vaults.Vault)
            else vaults.Vault({'': credentials}))
        self.settings = settings
        self.logger = logger
        self.unstreamable: set[str] = set()
        """
        The paths of lists for which the server does not support streaming lists.

        See KEP-3157: a watch with ``sendInitialEvents``.
        """
        self.unselectable: set[str] = set()
        """The paths of lists for which the server does not support `shardselectors`."""
        self._tenure: Tenure | None = None
        self._streams: dict[httpsessions.Stream, float] = {}
        """The open streams, with the times when they were opened."""
        self._traffic = _Traffic()
        self._outages = outages.Outages()
        self._deadlines = deadlines.Deadlines()
        self._pool = pools.Pool(self.vault, settings, logger)
        self._warnings: set[str] = set()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, also those in use."""
        self._deadlines.close()
        self._outages.end_all()
        await self._pool.close()
        for _ in range(CLOSING_ITERATIONS):
            await asyncio.sleep(0)

    def fence_writes(self, tenure: Tenure) -> None:
        """
        Send no writes outside of the terms, nor those that belong to a former term.

        This is checked right before each attempt is sent. Such requests raise
        `errors.NotLeadingError`. A write is any request with a body.
        """
        self._tenure = tenure

    def enter_term(self) -> None:
        """
        Let all later writes of this context (`contextvars`) belong to the present term.

        After its end, they raise `errors.NotLeadingError`, even if there is another term by then:
        what they write was decided before. Writes in other contexts belong to the term in which
        they begin.
        """
        if self._tenure is not None:
            _term_var.set((self._tenure, self._tenure.term))

    def verify_term(self) -> None:
        """
        Check that the term has not ended to which the writes of this context belong.

        :raises errors.NotLeadingError: if it has.
        """
        if self._tenure is not None:
            self._tenure.verify(self._find_term(self._tenure))

    def _find_term(self, tenure: Tenure) -> int | None:
        entered = _term_var.get()
        return entered[1] if entered is not None and entered[0] is tenure else tenure.term

    def unfenced(self) -> 'Client':
        """Get a client with the same connections, whose writes `fence_writes` does not affect."""
        other = copy.copy(self)
        other._tenure = None
        return other

    def count_requests(self, count: Count) -> None:
        """Count all requests of this client and of its copies from now on: each attempt of each."""
        self._traffic.count = count

    def add_headers(self, make: MakeHeaders) -> None:
        """
        Add headers to all requests of this client and of its copies from now on, except for
        streams.
        """
        known = self._traffic.make_headers
        self._traffic.make_headers = make if known is None else lambda: {**known(), **make()}

    def reset_writes(self) -> None:
        """Let the writes under way fail, and discard what of them is not transmitted yet."""
        self._pool.reset_writes()

    def reset_streams(self, *, age: float) -> None:
        """
        Drop the connections of the streams that have been open for longer than that (seconds).

        For the caller of `stream`, the stream ends there, and can be continued by a new connection.
        So, a stream is replaced that has stalled without notice.
        """
        until = asyncio.get_running_loop().time() - age
        for stream, opened in list(self._streams.items()):
            if opened <= until:
                stream.end()

    @property
    def congested(self) -> bool:
        """Whether there are as many regular requests as connections, so that further ones wait."""
        return self._traffic.in_flight >= transfers.POOL_SIZE

    @property
    def overloaded(self) -> bool:
        """Whether so many regular requests wait that new ones would wait for many rounds."""
        return self._traffic.in_flight >= transfers.POOL_SIZE * OVERLOAD

    async def request(
            self,
            method: str,
            path: str,
            *,
            body: bytes | None = None,
            content_type: str | None = None,
            accept: str = JSON,
            params: Mapping[str, str] | None = None,
            timeout: float | None = None,
            logger: Logger | None = None,
            retry: bool = True,
            backoffs: pausing.Backoffs | None = None,
            permit: Callable[[], None] | None = None,
            parsed: bool = True,
    ) -> Any:
        """
        Make a request, and return the parsed JSON of the response; None if the response is empty.

        If it is not to be ``parsed``, its bytes are returned.

        The request is retried after errors of the network, HTTP 5xx, and HTTP 429, unless ``retry``
        is false. ``backoffs`` are the pauses between the attempts, in seconds; by default,
        ``settings.networking.error_backoffs``. The pauses are longer while many requests fail, see
        `outages`. ``timeout`` is for one attempt, in seconds; by default,
        ``settings.networking.request_timeout``. ``permit`` is called right before each attempt is
        sent, if the request has a body. If it raises an error, nothing is sent.

        :raises errors.APIError: one of its subclasses, see `errors`.
        :raises credentials.LoginError: if there are no usable credentials.
        """
        if params:
            path = add_params(path, params)
        if content_type is None and body is not None:
            content_type = JSON
        if self._tenure is not None and body is not None:
            verify = functools.partial(self._tenure.verify, self._find_term(self._tenure))
            permit = verify if permit is None else functools.partial(_verify_all, permit, verify)
        pauses: Iterator[float] | None = None
        failure: errors.APIError | None = None
        attempt = 0
        while True:
            attempt += 1
            if self._outages and retry:
                await self._outages.wait(path)
            try:
                raw = await self._try(method, path, body, content_type, accept, timeout, permit)
                break
            except REPEATABLE as error:
                if permit is not None:
                    permit()
                failure = error
                self._outages.begin(path)
                if not retry:
                    raise
                networking = self.settings.networking
                if pauses is None:
                    sequence = pausing.as_iterable(
                        networking.error_backoffs if backoffs is None else backoffs)
                    pauses = iter(sequence)
                    total = f'/{len(sequence) + 1}' if isinstance(sequence, Sized) else ''
                pause = next(pauses, None)
                if pause is None:
                    raise
                pause = pausing.combine(
                    pause, error.retry_after, enforced=networking.enforce_retry_after)
                (logger or self.logger).debug(
                    f"Request attempt #{attempt}{total} failed; will retry: "
                    f"{method} {self._pool.shown}{path} -> {error!r}")
                await asyncio.sleep(pause)
            except errors.APIError as error:
                error.follow(failure)
                raise
        if not parsed:
            return raw
        try:
            return nesting.parse(raw) if raw else None
        except nesting.TooDeepError as e:
            raise errors.APITooDeepError(f"The answer of the API is of no use: {e}.") from e
        except ValueError as e:
            raise errors.APIServerError("The API has answered with no valid JSON.") from e

    @contextlib.asynccontextmanager
    async def stream(
            self,
            path: str,
            *,
            accept: str = JSON,
            params: Mapping[str, str] | None = None,
    ) -> 'AsyncIterator[httpsessions.Stream]':
        """
        Make a long-lasting GET request, and yield the stream of the response.

        The request is never retried, and its duration is not limited: that is up to the caller.

        :raises errors.APIError: if the status of the response is not HTTP 200, or if the network
            fails, also while the stream is read.
        :raises credentials.LoginError: if there are no usable credentials.
        """
        if params:
            path = add_params(path, params)
        watching, networking = self.settings.watching, self.settings.networking
        connect = watching.connect_timeout
        connect = networking.connect_timeout if connect is None else connect
        connect = networking.request_timeout if connect is None else connect
        while True:
            connection = await self._pool.connect()
            connection.users += 1
            headers = connection.get_headers(accept, None)
            stream: httpsessions.Stream | None = None
            try:
                stream = await connection.open(
                    connection.root + path, headers=headers,
                    connect_timeout=timeouts.read(connect))
                head = stream.head
                self._traffic.count(head.status, 'GET', connection.host)
                if head.status != 401:
                    if self.vault.on_trial and head.status < 500:
                        self.vault.accept(connection.origin)
                    if head.status != 200:
                        raise _make_error(head, await stream.read())
                    self._outages.end(path)
                    self._log_warnings(head)
                    self._streams[stream] = asyncio.get_running_loop().time()
                    yield stream
                    return
            except NETWORK_ERRORS as e:
                if stream is None:
                    self._traffic.count(None, 'GET', connection.host)
                raise await self._make_network_error(e) from e
            finally:
                if stream is not None:
                    self._streams.pop(stream, None)
                    stream.close()
                connection.users -= 1
                await connection.release()
            await self._pool.reject(connection, headers)

    async def _try(
            self,
            method: str,
            path: str,
            body: bytes | None,
            content_type: str | None,
            accept: str,
            timeout: float | None,
            permit: Callable[[], None] | None,
    ) -> bytes:
        networking = self.settings.networking
        timeout = timeouts.read(networking.request_timeout) if timeout is None else timeout
        while True:
            connection = await self._pool.connect()
            headers = connection.get_headers(
                accept, content_type, encoding=READ_ENCODING if method == 'GET' else 'identity')
            if self._traffic.make_headers is not None:  # it can raise errors of the author's code
                headers = {**headers, **self._traffic.make_headers()}
            connection.users += 1
            self._traffic.in_flight += 1
            try:
                with self._deadlines.limit(timeout):
                    answer = await connection.exchange(
                        method, connection.root + path, headers=headers, body=body,
                        connect_timeout=timeouts.read(networking.connect_timeout), permit=permit)
            except NETWORK_ERRORS as e:
                self._traffic.count(None, method, connection.host)
                raise await self._make_network_error(e) from e
            finally:
                self._traffic.in_flight -= 1
                connection.users -= 1
                if connection.users == 0:
                    await connection.release()
            self._traffic.count(answer.status, method, connection.host)
            if self.vault.on_trial and answer.status != 401 and answer.status < 500:
                self.vault.accept(connection.origin)
            self._log_warnings(answer)
            if 200 <= answer.status < 300:
                if self._outages:
                    self._outages.end(path)
                return answer.body
            if answer.status != 401:
                error = _make_error(answer, answer.body)
                if body is not None and method != 'DELETE':
                    from kopf._cogs.structs import concealing  # only for errors
                    error.shown = concealing.conceal_message(str(error), path, body)
                if answer.is_repeated:
                    error.earlier = errors.APIConnectionError("there was no response")
                if self._outages and not isinstance(error, REPEATABLE):
                    self._outages.end(path)
                raise error
            await self._pool.reject(connection, headers)

    async def _make_network_error(self, e: Exception) -> errors.APIConnectionError:
        text = re.sub(r'//[^/@\s]+@', '//', str(e)) or e.__class__.__name__
        cause: BaseException | None = e
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__
        if cause is None:
            return errors.APIConnectionError(text)
        await self.vault.refresh()
        return errors.APIUntrustedError(
            f"{text} The server is not trusted: check the CA of the cluster in the kubeconfig or "
            f"in the credentials (ca_path, ca_data), and the name of the server.")

    def _log_warnings(self, response: transfers.Response) -> None:
        for header in response.headers.getall('Warning', []):
            for text in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header):
                if text not in self._warnings and len(self._warnings) < MAX_WARNINGS_REMEMBERED:
                    self._warnings.add(text)
                    warning = re.sub(r'\\(.)', r'\1', text)
                    self.logger.warning(f"The API warns: {warning}")


def verify_object(answer: Any) -> bodies.RawBody:
    """
    Check that the answer to a write is an object, and return it.

    :raises errors.APIServerError: if it is not; e.g. a proxy has answered instead of the server.
    """
    damage = bodies.find_damage(answer)
    if damage is not None:
        raise errors.APIServerError(f"The API has answered with no proper object: {damage}.")
    return cast(bodies.RawBody, answer)


def _verify_all(*permits: Callable[[], None]) -> None:
    for permit in permits:
        permit()


def add_params(path: str, params: Mapping[str, str]) -> str:
    """Append the parameters to the query of the path."""
    return f"{path}{'&' if '?' in path else '?'}{_encode_params(*params.items())}"


@functools.lru_cache(maxsize=100)
def _encode_params(*params: tuple[str, str]) -> str:
    return urllib.parse.urlencode(params)


def _make_error(response: transfers.Response, body: bytes) -> errors.APIError:
    error = errors.make_error(
        response.status, body, retry_after=response.headers.get('Retry-After'))
    location = response.headers.get('Location')
    if 300 <= response.status < 400 and location:
        where = credentials.strip_userinfo(location.partition('?')[0])
        error.shown = (f"HTTP {response.status}: the server redirects to {where}, which is not "
                       f"followed. Check the URL of the server in the credentials.")
    return error
