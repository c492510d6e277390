"""
The wire for writes: HTTP/1.1 over a small warm pool of connections, and nothing else.

A PATCH per object is most of what an operator pays for. General HTTP clients spend half of that on
what the API of Kubernetes never uses: redirects, cookies, compression, streaming of requests,
tracing. This one sends a request at once, and gives the response at once. Whatever is not plain
HTTP/1.1 as servers send it closes the connection and is an error of the connection.
"""
import asyncio
import collections
import ssl
from collections.abc import Mapping
from typing import NamedTuple, cast

from kopf._cogs.clients import sockets

MAX_HEAD = 64 * 1024
"""The longest head of a response, in bytes."""


class Response(NamedTuple):
    status: int
    head: bytes
    """The status line & headers as they came, without the blank line at the end."""
    body: bytes

    def get_headers(self, name: str) -> list[str]:
        """All values of a header, for those few who need any."""
        prefix = name.lower().encode() + b':'
        return [
            line[len(prefix):].strip().decode('latin-1')
            for line in self.head.split(b'\r\n')[1:] if line.lower().startswith(prefix)]


class WireError(Exception):
    """The connection has failed, or what came is no HTTP. The request could have been done."""


class Wire:
    """A pool of connections to one server. To be closed at the end."""

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
        self._open: set[_Connection] = set()
        self._vacant = limit
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    def close(self) -> None:
        """Close all connections, also those in use."""
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()

    async def exchange(
            self,
            method: str,
            target: str,
            *,
            headers: Mapping[str, str],
            body: bytes,
            connect_timeout: float | None = None,
    ) -> Response:
        """
        Send a request and return its response.

        A connection that was kept can turn out to be closed by the server. If nothing was answered
        on it, the request is sent again at once over a new one, unless doing it twice could matter.

        :raises WireError: if it fails.
        """
        lines = [f'{method} {target} HTTP/1.1', f'Host: {self._host}']
        lines += [f'{key}: {value}' for key, value in headers.items()]
        lines += [f'Content-Length: {len(body)}', '', '']
        head = '\r\n'.join(lines).encode('latin-1')
        if head.count(b'\n') != len(lines) - 1:
            raise WireError("There are line breaks in the target or the headers.")
        await self._enter()
        try:
            while True:
                connection = self._take()
                is_kept = connection is not None
                if connection is None:
                    connection = await self._connect(connect_timeout)
                try:
                    response = await connection.exchange(head + body)
                except asyncio.CancelledError:
                    if is_kept:
                        self._drop_idle()
                    raise
                except _Silence:
                    if not is_kept or method == 'POST':
                        raise
                    continue
                if connection.is_reusable:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                return response
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._vacant > 0:
            self._vacant -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place was given, but is of no use any more
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._vacant += 1

    def _drop_idle(self) -> None:
        """If nothing comes over a kept connection, the others kept with it can be dead, too."""
        while self._idle:
            self._idle.pop().abort()

    def _take(self) -> '_Connection | None':
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, timeout: float | None) -> '_Connection':
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), *self._address,
                    ssl=self._ssl, server_hostname=self._server_hostname)
        except TimeoutError:
            raise WireError(f"cannot connect in {timeout} seconds") from None
        except OSError as e:  # that of TLS is one, too
            raise WireError(f"cannot connect: {e}") from e
        return connection


class _Silence(WireError):
    """The connection is closed, and nothing was answered."""


class _Connection(asyncio.Protocol):
    """One connection: one request at a time."""

    def __init__(self, registry: 'set[_Connection]') -> None:
        super().__init__()
        self.is_reusable = True
        self.idle_since = 0.0
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._parser = _Parser()
        self._result: asyncio.Future[Response] | None = None

    async def exchange(self, request: bytes) -> Response:
        if self._transport is None:
            raise _Silence("the connection is closed")
        self._result = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._result
        finally:
            if not self._result.done() or self._result.cancelled() or self._result.exception():
                self.abort()
            self._result = None

    def abort(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._registry.add(self)
        sockets.probe_silence(transport.get_extra_info('socket'))

    def data_received(self, data: bytes) -> None:
        try:
            response = self._parser.feed(data)
        except (ValueError, IndexError):
            self._fail(WireError("the response is no HTTP"))
            return
        if response is not None:
            self._finish(response)

    def eof_received(self) -> None:
        response = self._parser.end()
        if response is not None:
            self._finish(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        self._transport = None
        self._registry.discard(self)
        reason = f"the connection is lost{f': {exc}' if exc else ''}"
        self._fail(WireError(reason) if self._parser.is_begun else _Silence(reason))

    def _finish(self, response: Response) -> None:
        if self._result is None or self._result.done():
            self.abort()  # nobody has asked
            return
        self.is_reusable = self.is_reusable and self._parser.keeps_alive
        self._parser = _Parser()
        self._result.set_result(response)
        if not self.is_reusable:
            self.abort()

    def _fail(self, error: WireError) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_exception(error)
        self.abort()


class _Parser:
    """Makes one response of the bytes that come; ValueError and IndexError if it is none."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_alive = True
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._status = 0
        self._length: int | None = None
        self._is_chunked = False
        self._chunks: list[bytes] = []

    @property
    def is_begun(self) -> bool:
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> Response | None:
        self._buffer += data
        if self._head is None and not self._parse_head():
            return None
        if self._is_chunked:
            return self._parse_chunks()
        if self._length is None or len(self._buffer) < self._length:
            return None
        if len(self._buffer) > self._length:
            raise ValueError("There is more than was announced.")
        return self._make(bytes(self._buffer))

    def end(self) -> Response | None:
        """The connection is closed; for some responses, that is how they end."""
        self.keeps_alive = False
        if self._head is not None and self._length is None and not self._is_chunked:
            return self._make(bytes(self._buffer))
        return None

    def _parse_head(self) -> bool:
        while True:
            end = self._buffer.find(b'\r\n\r\n')
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    raise ValueError("The head is too long.")
                return False
            head = bytes(self._buffer[:end])
            del self._buffer[:end + 4]
            version, status, *_ = head.split(b'\r\n', 1)[0].split(b' ', 2)
            if version not in (b'HTTP/1.1', b'HTTP/1.0') or len(status) != 3:
                raise ValueError("Not a response of HTTP/1.")
            self._status = int(status)
            if self._status == 101 or self._status < 100:
                raise ValueError("Not a response to a usual request.")
            if self._status >= 200:
                break
        self._head = head
        headers = Response(self._status, head, b'')
        connection = ','.join(headers.get_headers('Connection')).lower()
        self.keeps_alive = 'close' not in connection and (
            version == b'HTTP/1.1' or 'keep-alive' in connection)
        coding = ','.join(headers.get_headers('Transfer-Encoding')).lower()
        lengths = {int(value) for value in headers.get_headers('Content-Length')}
        if coding not in ('', 'chunked') or len(lengths) > 1 or (coding and lengths):
            raise ValueError("The length of the response is not clear.")
        self._is_chunked = bool(coding)
        self._length = lengths.pop() if lengths else None
        if self._status in (204, 304):
            self._is_chunked, self._length = False, 0
        return True

    def _parse_chunks(self) -> Response | None:
        buffer, position = self._buffer, 0
        while (end := buffer.find(b'\r\n', position)) >= 0:
            size = int(buffer[position:end].split(b';', 1)[0], 16)
            start = end + 2
            if size == 0:
                stop = buffer.find(b'\r\n', start)
                if stop < 0:
                    break
                if stop > start:  # a trailer: skip the line, stay at the last chunk
                    del buffer[start:stop + 2]
                    continue
                if len(buffer) > stop + 2:
                    raise ValueError("There is more than was announced.")
                return self._make(b''.join(self._chunks))
            if size < 0 or len(buffer) < start + size + 2:
                break
            if buffer[start + size:start + size + 2] != b'\r\n':
                raise ValueError("A chunk does not end where it should.")
            self._chunks.append(bytes(buffer[start:start + size]))
            position = start + size + 2
        del buffer[:position]
        return None

    def _make(self, body: bytes) -> Response:
        assert self._head is not None
        return Response(self._status, self._head, body)
