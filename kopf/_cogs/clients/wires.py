"""
Wires: a fast HTTP/1.1 client, over a small pool of connections, and one connection per stream.

Most of an operator's CPU time goes into its PATCH requests, one or more per object. General HTTP
clients spend half of that time on features that are not needed for Kubernetes: redirects, cookies,
streaming of requests, tracing. Also, a quarter of the memory of a small operator would be theirs.
This client sends a request as one piece, and returns the response as one piece, or as a stream. If
the server sends anything but the plain response of HTTP/1.1, the connection is closed. Responses
can be compressed by gzip, but not streams.
"""
import asyncio
import collections
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import aiohappyeyeballs

from kopf._cogs.aiokits import timeouts
from kopf._cogs.clients import sockets
from kopf._cogs.helpers import parsing

LIMITS = parsing.Limits(head=64 * 1024, fields=1000, body=1024 * 1024 * 1024)
"""
The limits (bytes) of a response, also of a decompressed one. The longest ones are pages of lists:
by default, of 500 objects, which etcd limits to 1.5 MB each.
"""

READ_BUFFER = 256 * 1024
"""How many bytes of a stream can wait to be read before the server has to wait."""

TLS_BUFFER = 64 * 1024
"""How many bytes of TLS are read at once. asyncio has 256 KB of memory for that per connection."""

C = TypeVar('C', bound='_Closable')

ATTEMPT_DELAY = 0.25
"""How long (seconds) to wait for one address before the next one is tried, too (RFC 8305)."""


class WireError(Exception):
    """The connection or the response is broken. The server may have executed the request or not."""


class Wire:
    """A pool of connections to one server. `close` it at the end."""

    def __init__(
            self,
            *,
            host: str,
            port: int,
            ssl: ssl.SSLContext | None,
            server_hostname: str | None = None,
            limit: int,
            keepalive: float,
    ) -> None:
        super().__init__()
        self._address = (host, port)
        self._ssl = ssl
        self._server_hostname = (server_hostname or host) if ssl is not None else None
        self._keepalive = keepalive
        name = f'[{host}]' if ':' in host else host
        is_default = port == (443 if ssl is not None else 80)
        self._host = name if is_default else f'{name}:{port}'
        self._idle: list[_Connection] = []
        self._open: set[_Closable] = set()
        self._streams: set[_Closable] = set()
        self._closed = False
        self._vacant = limit
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    def close(self) -> None:
        """Close all connections, also those in use. Requests fail after that."""
        self._closed = True
        for connection in [*self._open, *self._streams]:
            connection.abort()
        self._open.clear()
        self._streams.clear()
        self._idle.clear()

    def reset(self) -> None:
        """
        Drop all connections, so that nothing which they have not delivered is delivered later.

        The requests under way fail. New requests make new connections. Streams go on: they deliver
        nothing.
        """
        for connection in list(self._open):
            connection.reset()
        self._idle.clear()

    async def exchange(
            self,
            method: str,
            target: str,
            *,
            headers: Mapping[str, str],
            body: bytes | None,
            connect_timeout: float | None = None,
            permit: Callable[[], None] | None = None,
    ) -> parsing.Response:
        """
        Send a request and return its response.

        The server can close an idle connection at the same moment when a request is sent. If there
        was no response at all on a reused connection, the request is sent again over another
        connection. A POST is not sent again: it is not idempotent, and the server may have executed
        it.

        ``permit`` is called right before each sending. If it raises an error, nothing is sent.

        :raises WireError: if the request fails.
        """
        request = self._encode(method, target, headers, body)
        await self._enter()
        is_repeated = False
        try:
            while True:
                if self._closed:
                    raise WireError("the connections are closed")
                connection = self._take()
                is_kept = connection is not None
                if connection is None:
                    connection = await self._connect(
                        lambda: _Connection(self._open), connect_timeout)
                try:
                    if permit is not None:
                        permit()
                    response = await connection.exchange(request)
                except asyncio.CancelledError:
                    if is_kept:
                        self._drop_idle()
                    raise
                except _Silence:
                    if not is_kept or method == 'POST':
                        raise
                    is_repeated = True
                    continue
                except BaseException:
                    connection.abort()  # of a refused permit; otherwise, it is aborted already
                    raise
                if connection.is_reusable:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                return response._replace(is_repeated=True) if is_repeated else response
        finally:
            self._leave()

    @contextlib.asynccontextmanager
    async def stream(
            self,
            target: str,
            *,
            headers: Mapping[str, str],
            connect_timeout: float | None = None,
    ) -> 'AsyncIterator[Stream]':
        """
        Make a GET request over a connection of its own, and yield the response after its head.

        The connection is dropped at the end: a regular closing of TLS would wait for the server.

        :raises WireError: if the request fails.
        """
        request = self._encode('GET', target, headers, None)
        stream = await self._connect(lambda: Stream(self._streams), connect_timeout)
        try:
            await stream.begin(request)
            yield stream
        finally:
            stream.abort()

    def _encode(
            self, method: str, target: str, headers: Mapping[str, str], body: bytes | None,
    ) -> bytes:
        lines = [f'{method} {target} HTTP/1.1', f'Host: {self._host}']
        lines += [f'{key}: {value}' for key, value in headers.items()]
        if body is not None:
            lines.append(f'Content-Length: {len(body)}')
        lines += ['', '']
        head = '\r\n'.join(lines).encode('latin-1')
        if head.count(b'\n') != len(lines) - 1:
            raise WireError("There are line breaks in the target or the headers.")
        return head if body is None else head + body

    async def _enter(self) -> None:
        if self._vacant > 0:
            self._vacant -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave()  # the place is already given to this request: pass it on
            raise

    def _leave(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._vacant += 1

    def _drop_idle(self) -> None:
        """
        Drop all idle connections: if one reused connection is dead, the others can be dead, too.
        """
        while self._idle:
            self._idle.pop().abort()

    def _take(self) -> '_Connection | None':
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, factory: 'Callable[[], C]', timeout: float | None) -> 'C':
        loop = asyncio.get_running_loop()
        host, port = self._address
        try:
            async with timeouts.timeout(timeout):
                addresses = await _resolve(host, port)
                sock = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=ATTEMPT_DELAY,
                    socket_factory=sockets.make_socket)
                try:
                    transport, connection = await loop.create_connection(
                        factory, sock=sock,
                        ssl=self._ssl, server_hostname=self._server_hostname)
                    _shrink_buffer(transport)
                except BaseException:
                    sockets.hang_up(sock)
                    raise
        except TimeoutError:
            raise WireError(f"cannot connect to {self._host} in {timeout} seconds") from None
        except OSError as e:  # also ssl.SSLError
            raise WireError(f"cannot connect to {self._host}: {e}") from e
        if self._closed:
            connection.abort()
            raise WireError("the connections are closed")
        return connection


async def _resolve(host: str, port: int) -> Sequence[aiohappyeyeballs.AddrInfoType]:
    try:  # an IP address needs no DNS, and so no thread
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _shrink_buffer(transport: asyncio.Transport) -> None:
    """Take less memory for TLS, if it is that of asyncio: there are no public means for that."""
    protocol: Any = getattr(transport, '_ssl_protocol', None)
    if hasattr(protocol, '_ssl_buffer_view'):
        protocol.max_size = TLS_BUFFER
        protocol._ssl_buffer = bytearray(TLS_BUFFER)
        protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)


class _Silence(WireError):
    """The connection was closed before any byte of the response."""


class _Closable(asyncio.Protocol):
    """One connection, which is in the registry while it is open."""

    def __init__(self, registry: 'set[_Closable]') -> None:
        super().__init__()
        self._registry = registry
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Drop the connection with everything that the system has not transmitted yet."""
        if self._transport is not None:
            sockets.discard_unsent(self._transport.get_extra_info('socket'))
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._registry.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._registry.discard(self)


class _Connection(_Closable):
    """A connection for one request at a time."""

    def __init__(self, registry: set[_Closable]) -> None:
        super().__init__(registry)
        self.is_reusable = True
        self.idle_since = 0.0
        self._reader = parsing.ResponseReader(LIMITS)
        self._result: asyncio.Future[parsing.Response] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the connection can be reused: it is open, and nothing unexpected has come."""
        return self.is_reusable and self._transport is not None and not sockets.is_readable(
            self._transport.get_extra_info('socket'))

    async def exchange(self, request: bytes) -> parsing.Response:
        if self._transport is None:
            raise _Silence("the connection is closed")
        self._result = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._result
        except BaseException:  # also if the response has come at the same moment as a cancellation
            self.abort()
            raise
        finally:
            self._result = None

    def abort(self) -> None:
        self.is_reusable = False
        super().abort()

    def data_received(self, data: bytes) -> None:
        if self._result is None or self._result.done():
            self.abort()  # there was no request
            return
        self._read(self._reader.feed, data)

    def eof_received(self) -> None:
        self._read(self._reader.end)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_reusable = False
        reason = f"the connection is lost{f': {exc}' if exc else ''}"
        self._fail(WireError(reason) if self._reader.is_begun else _Silence(reason))

    def _read(self, read: Callable[..., parsing.Response | None], *args: bytes) -> None:
        try:
            response = read(*args)
        except parsing.MessageError as e:
            self._fail(WireError(f"the response is not understood: {e}"))
            return
        if response is not None:
            self._finish(response)

    def _finish(self, response: parsing.Response) -> None:
        if self._result is None or self._result.done():
            self.abort()  # the request was cancelled
            return
        self.is_reusable = self.is_reusable and self._reader.keeps_alive
        self._result.set_result(response)
        if not self.is_reusable:
            self.abort()

    def _fail(self, error: WireError) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_exception(error)
        self.abort()


class Stream(_Closable):
    """
    A response of which the body is read while it comes.

    The errors of reading are `WireError`. One task at a time can read.
    """

    def __init__(self, registry: set[_Closable]) -> None:
        super().__init__(registry)
        self._reader = parsing.ResponseStreamReader(LIMITS)
        self._error: WireError | None = None
        self._news: asyncio.Future[None] | None = None
        self._is_paused = False

    async def begin(self, request: bytes) -> None:
        """Send the request, and wait for the head of its response."""
        if self._transport is not None:
            self._transport.write(request)
        while self._reader.head is None:
            await self._wait()

    @property
    def head(self) -> parsing.Response:
        """The response without its body."""
        assert self._reader.head is not None, "The stream is not given out before."
        return self._reader.head

    async def readany(self) -> bytes:
        """Wait for more of the body, and return all that has come; empty at its end."""
        while not self._reader.size and not self._reader.is_complete:
            await self._wait()
        body = self._reader.take_body()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    async def read(self) -> bytes:
        """Read the whole body."""
        parts: list[bytes] = []
        while part := await self.readany():
            parts.append(part)
        return b''.join(parts)

    def end(self) -> None:
        """Drop the connection; for the reader, the body ends there, as if it were complete."""
        self._reader.is_complete = True
        self.abort()
        self._tell()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        if self._reader.is_complete:
            raise WireError("the response has ended too early")
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._error is not None or self._reader.is_complete:
            self.abort()
            return
        try:
            self._reader.feed(data)
        except parsing.MessageError as e:
            self._error = WireError(f"the response is not understood: {e}")
            self.abort()
        if self._reader.size > READ_BUFFER and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        self._reader.end()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._error is None and not self._reader.is_complete:
            self._error = WireError(f"the connection is lost{f': {exc}' if exc else ''}")
        self._tell()
