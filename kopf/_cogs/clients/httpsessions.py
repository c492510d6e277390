"""
Sessions: requests by aiohttp, for what the `wires` do not speak.

These are proxies, and sessions that an author's login handler returns. The interface is that of the
wires. This module is imported only when it is needed: aiohttp takes much memory.
"""
import contextlib
import io
import ssl as ssl_
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypedDict

import aiohttp
import yarl

from kopf._cogs.clients import sockets, wires
from kopf._cogs.helpers import parsing

LARGE_BODY = 100_000
"""The size (bytes) beyond which the body of a request is sent in chunks."""


class Options(TypedDict, total=False):
    server_hostname: str
    proxy: str


class Sessions:
    """
    The sessions with one server. `close` them at the end.

    ``regular`` is a small pool for short requests; ``streaming`` has a separate connection for each
    watch, so that watches do not occupy the pool.
    """

    def __init__(
            self,
            origin: str,
            *,
            regular: aiohttp.ClientSession,
            streaming: aiohttp.ClientSession,
            options: Options,
    ) -> None:
        """``origin`` is the URL of the server without any path."""
        super().__init__()
        self.regular = regular
        self._origin = origin
        self._streaming = streaming
        self._options = options
        self._timeouts: dict[float | None, aiohttp.ClientTimeout] = {}

    async def close(self) -> None:
        """Close the sessions, also if they are in use."""
        await self.regular.close()
        await self._streaming.close()

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
        Send a request and return its response, as `wires.Wire.exchange` does.

        :raises WireError: if the request fails.
        """
        data: Any = io.BytesIO(body) if body and len(body) > LARGE_BODY else body
        if permit is not None and body is not None:
            data = _PermittedBody(body, permit)
        with convert_errors():
            async with self.regular.request(
                method, self._make_url(target), data=data, headers=headers, allow_redirects=False,
                timeout=self._get_timeout(connect_timeout), **self._options,
            ) as response:
                return parsing.Response(
                    response.status, list(response.raw_headers), await response.read())

    @contextlib.asynccontextmanager
    async def stream(
            self,
            target: str,
            *,
            headers: Mapping[str, str],
            connect_timeout: float | None = None,
    ) -> 'AsyncIterator[Stream]':
        """
        Make a GET request, and yield the response after its head, as `wires.Wire.stream` does.

        :raises WireError: if the request fails.
        """
        with convert_errors():
            async with self._streaming.get(
                self._make_url(target), headers=headers, allow_redirects=False,
                timeout=self._get_timeout(connect_timeout), **self._options,
            ) as response:
                stream = Stream(response)
                try:
                    yield stream
                finally:
                    stream.abort()

    def _make_url(self, target: str) -> yarl.URL:
        return yarl.URL(self._origin + target, encoded=True)

    def _get_timeout(self, connect: float | None) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(connect)
        if timeout is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect)
            self._timeouts[connect] = timeout
        return timeout


class Stream:
    """A response of which the body is read while it comes, see `wires.Stream`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__()
        self._response = response
        self._is_ended = False
        connection = response.connection
        self._transport = connection.transport if connection is not None else None

    @property
    def head(self) -> parsing.Response:
        return parsing.Response(self._response.status, list(self._response.raw_headers), b'')

    async def readany(self) -> bytes:
        try:
            with convert_errors():
                return await self._response.content.readany()
        except wires.WireError:
            if self._is_ended:
                return b''
            raise

    async def read(self) -> bytes:
        with convert_errors():
            return await self._response.read()

    def end(self) -> None:
        """Drop the connection; for the reader, the body ends there, as if it were complete."""
        self._is_ended = True
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _PermittedBody(aiohttp.BytesPayload):
    """A body that is sent only if the permit raises no error right before that."""

    def __init__(self, body: bytes, permit: Callable[[], None]) -> None:
        super().__init__(body)
        self._permit = permit

    async def write_with_length(
            self, writer: aiohttp.abc.AbstractStreamWriter, content_length: int | None,
    ) -> None:
        self._permit()
        await super().write_with_length(writer, content_length)


def make_sessions(
        origin: str, *, ssl: ssl_.SSLContext | None, pool_size: int, keepalive: float,
        trust_env: bool, options: Options,
) -> Sessions:
    """Make new sessions. With ``trust_env``, aiohttp takes passwords from ``~/.netrc``."""
    regular = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=ssl or True, limit=pool_size, keepalive_timeout=keepalive,
            socket_factory=sockets.make_socket),
        cookie_jar=aiohttp.DummyCookieJar(), trust_env=trust_env)
    streaming = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=ssl or True, limit=0, force_close=True, socket_factory=sockets.make_socket),
        cookie_jar=aiohttp.DummyCookieJar(), trust_env=trust_env,
        read_bufsize=wires.READ_BUFFER)
    return Sessions(origin, regular=regular, streaming=streaming, options=options)


@contextlib.contextmanager
def convert_errors() -> Iterator[None]:
    """Raise the errors of aiohttp as those of the wires."""
    try:
        yield
    except aiohttp.ClientError as e:
        raise wires.WireError(str(e) or e.__class__.__name__) from e
