"""
Sessions: the HTTP of the API client, by aiohttp, with the policies that the guarantees need.

aiohttp parses, frames, and connects. The policies are: which requests are sent again, a permit
right before the bytes leave, limits of the responses, a few connections for regular requests and
one for each stream, and the end of connections at once.
"""
import asyncio
import contextlib
import functools
import ssl as ssl_
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import aiohttp.payload
import yarl

from kopf._cogs.aiokits import transports
from kopf._cogs.clients import connectors, transfers
from kopf._cogs.clients.transfers import Response, TransferError

KEEPALIVE = 60.0
"""
How long (seconds) an idle connection is kept.

API servers close idle connections after 90 seconds. A shorter time here avoids requests over a
connection that the server is about to close.
"""

MAX_FIELD = 64 * 1024
"""The limit (bytes) of the first line and of each header of a response."""

MAX_FIELDS = 1000
"""How many headers a response can have."""

MAX_BODY = 1024 * 1024 * 1024
"""
The limit (bytes) of a response's body, also of a decompressed one. The longest ones are pages of
lists: by default, of 500 objects, which etcd limits to 1.5 MB each.
"""

STREAM_BUFFER = 128 * 1024
"""Twice as many bytes of a stream can wait to be read before the server has to wait."""

ERRORS = (
    TransferError, aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError,
    RuntimeError, ValueError)
"""
The errors of failed requests. aiohttp also raises RuntimeError, if the connections are closed, and
ValueError, for line breaks in headers.
"""


class Sessions:
    """
    The sessions with one server. `close` them at the end.

    There are ``pool_size`` connections for ``regular`` requests, and one more for each stream, so
    that streams never hold up requests.
    """

    def __init__(
            self,
            origin: str,
            *,
            session: aiohttp.ClientSession | None = None,
            ssl: ssl_.SSLContext | None = None,
            pool_size: int = transfers.POOL_SIZE,
            keepalive: float = KEEPALIVE,
            server_hostname: str | None = None,
            proxy: str | None = None,
    ) -> None:
        """
        ``origin`` is the URL of the server without any path. ``server_hostname`` is the name in the
        server's certificate, by default that of the ``origin``.

        A ``session`` of the author has a connector of its own: it keeps, repeats, and drops
        requests and connections as aiohttp does.
        """
        self.is_closed = False
        self._origin = origin
        self._server_hostname, self._proxy = server_hostname, proxy
        self._vacant = asyncio.Semaphore(pool_size)
        self._connectors = [] if session is not None else [
            connectors.Connector(ssl=ssl, keepalive=seconds) for seconds in (keepalive, None)]
        self._pool = self._connectors[0] if self._connectors else None
        self._regular, self._streaming = (session, session) if session is not None else [
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=MAX_FIELD, max_field_size=MAX_FIELD, max_headers=MAX_FIELDS)
            for connector in self._connectors]

    async def close(self) -> None:
        """Close all connections, also those in use. Requests fail after that."""
        self.is_closed = True
        for connector in self._connectors:
            connector.abort()
        async with contextlib.AsyncExitStack() as stack:  # both, even if one is cancelled
            for session in (self._regular, self._streaming):
                stack.push_async_callback(session.close)

    def reset(self) -> None:
        """
        Drop all connections, so that nothing which they have not delivered is delivered later.

        The requests under way fail. New requests make new connections. Streams go on: they deliver
        nothing.
        """
        if self._pool is not None:
            self._pool.reset()

    async def exchange(
            self,
            method: str,
            target: str,
            *,
            headers: Mapping[str, str],
            body: bytes | None,
            connect_timeout: float | None = None,
            permit: Callable[[], None] | None = None,
    ) -> Response:
        """
        Send a request and return its response.

        The server can close an idle connection at the same moment when a request is sent. If there
        was no response at all on a reused connection, the request is sent again over another
        connection. A POST is not sent again: it is not idempotent, and the server may have executed
        it.

        ``permit`` is called right before each sending of a body. If it raises an error, nothing is
        sent.

        :raises TransferError: if the request fails.
        """
        is_repeated = False
        async with self._vacant:
            while True:
                attempt = connectors.Attempt()
                data = None if body is None else _Body(body, permit)
                try:
                    response = await self._send(
                        self._regular, attempt, method, target, connect_timeout=connect_timeout,
                        headers=headers, data=data)
                    content = await _read(response)
                except asyncio.CancelledError:
                    attempt.abort()
                    if attempt.is_kept and self._pool is not None:
                        self._pool.abort(only_idle=True)  # if one is dead, so can others be
                    raise
                except BaseException as e:
                    attempt.abort()
                    if data is not None and data.refusal is not None:
                        raise data.refusal from None
                    if not isinstance(e, ERRORS):
                        raise
                    if self.is_closed or method == 'POST' or not attempt.is_unheard:
                        raise self._convert(e) from e
                    is_repeated = True
                else:
                    return Response(response.status, response.headers, content, is_repeated)

    async def open(
            self,
            target: str,
            *,
            headers: Mapping[str, str],
            connect_timeout: float | None = None,
    ) -> 'Stream':
        """
        Make a GET request over a connection of its own; return the response after its head.

        `Stream.close` it at the end.

        :raises TransferError: if the request fails.
        """
        attempt = connectors.Attempt()
        try:
            response = await self._send(
                self._streaming, attempt, 'GET', target, connect_timeout=connect_timeout,
                headers=headers, read_bufsize=STREAM_BUFFER)
            if _check_head(response):
                raise TransferError("a stream is compressed")
        except BaseException as e:
            attempt.abort()
            if not isinstance(e, ERRORS):
                raise
            raise self._convert(e) from e
        return Stream(response, attempt)

    async def _send(
            self,
            session: aiohttp.ClientSession,
            attempt: connectors.Attempt,
            method: str,
            target: str,
            *,
            connect_timeout: float | None,
            **options: Any,
    ) -> aiohttp.ClientResponse:
        token = connectors.current_attempt.set(attempt)
        try:
            response = await session.request(
                method, yarl.URL(self._origin + target, encoded=True), allow_redirects=False,
                timeout=_make_timeout(connect_timeout), auto_decompress=False, proxy=self._proxy,
                server_hostname=self._server_hostname, **options)
        finally:
            connectors.current_attempt.reset(token)
        attempt.receive(response)
        return response

    def _convert(self, error: Exception) -> TransferError:
        return TransferError(
            "the connections are closed" if self.is_closed
            else str(error) or error.__class__.__name__)


@functools.lru_cache(maxsize=100)
def _make_timeout(connect: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect)


class Stream:
    """
    A response of which the body is read while it comes.

    The errors of reading are `TransferError`. One task at a time can read.
    """

    def __init__(self, response: aiohttp.ClientResponse, attempt: connectors.Attempt) -> None:
        self.head = Response(response.status, response.headers, b'')
        """The response without its body."""
        self._response = response
        self._attempt = attempt
        self._is_ended = False
        connection = response.connection
        self._transport = connection.transport if connection is not None else None

    async def readany(self) -> bytes:
        """Wait for more of the body, and return all that has come; empty at its end."""
        try:
            return await self._response.content.readany()
        except ERRORS as e:
            if self._is_ended:
                return b''
            raise TransferError(str(e) or e.__class__.__name__) from e

    async def read(self) -> bytes:
        """Read the rest of the body."""
        try:
            return await _read(self._response)
        except ERRORS as e:
            raise TransferError(str(e) or e.__class__.__name__) from e

    def end(self) -> None:
        """Drop the connection; for the reader, the body ends there, as if it were complete."""
        self._is_ended = True
        if self._transport is not None:
            transports.abort(self._transport)

    def close(self) -> None:
        """Drop the connection: a regular closing of TLS would wait for the server."""
        self._attempt.abort()


class _Body(aiohttp.payload.Payload):
    """The body of a request. It leaves together with the head, if the permit still says so."""
    _autoclose = True

    def __init__(self, body: bytes, permit: Callable[[], None] | None) -> None:
        super().__init__(body)
        self.refusal: BaseException | None = None
        """The error of the permit."""
        self._size = len(body)
        self._permit = permit

    def decode(self, encoding: str = 'utf-8', errors: str = 'strict') -> str:
        text: str = self._value.decode(encoding, errors)
        return text

    async def write(self, writer: aiohttp.abc.AbstractStreamWriter) -> None:
        if self._permit is not None:
            try:
                self._permit()
            except BaseException as e:
                self.refusal = e
                raise
        await writer.write(self._value)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read the rest of the body; decompress it while it comes, so that this takes no time."""
    is_compressed = _check_head(response)
    content = response.content
    chunk = await content.readany()
    if content.at_eof() and not is_compressed and len(chunk) <= MAX_BODY:
        return chunk
    gunzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if is_compressed else None
    chunks, size = [], 0
    while chunk:
        if gunzip is not None:
            try:  # one byte more than allowed is enough to refuse it
                chunk = gunzip.decompress(chunk, MAX_BODY - size + 1)
            except zlib.error as e:
                raise TransferError(f"the response is not compressed properly: {e}") from None
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY:
            raise TransferError(f"the response is longer than {MAX_BODY} bytes")
        chunk = await content.readany()
    if gunzip is not None and chunks and (not gunzip.eof or gunzip.unused_data):
        raise TransferError("the compressed response is incomplete")
    return b''.join(chunks)


def _check_head(response: aiohttp.ClientResponse) -> bool:
    """Check that the body can be read; return whether it is compressed."""
    if response.status < 200:
        raise TransferError(f"other protocols are not spoken: {response.status}")
    for name, supported in [('Transfer-Encoding', 'chunked'), ('Content-Encoding', 'gzip')]:
        encodings = response.headers.getall(name, [])
        if encodings and ', '.join(encodings).strip(' \t').lower() != supported:
            raise TransferError(f"the encoding is not supported: {', '.join(encodings)!r}")
    return bool(encodings)
