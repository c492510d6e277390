"""
Listeners: the sockets of servers, and the connections of clients. A connection answers one request
at a time. The clients of a server share its connections, memory, and lines of the log.
"""
import asyncio
import contextlib
import errno
import logging
import os
import random
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

from aiohttp import EMPTY_PAYLOAD, web

from kopf._cogs.aiokits import forks, tasks, transports
from kopf._cogs.helpers import ratelimits
from kopf._cogs.serving import exchanges

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 10.0
"""How long (seconds) the TLS handshake can take."""

ACCEPTING_PAUSE = 1.0
"""How long (seconds) to accept nothing after a failure, which is usually too many open files."""

CLOSING_STEPS, CLOSING_PAUSE = 20, 0.01
"""How often, and with which delay (seconds), to check whether all connections are closed."""

LINGERING_TIMEOUT = 2.0
"""
How long (seconds) the client has to read the last response, and to close the connection.

If the server closed the connection while the client still sends, the response could be lost.
"""

WARNING_PERIOD = 60.0
"""The shortest time (seconds) between two warnings with the same key."""

SMALL = 64 * 1024
"""How many bytes a connection can hold without a reservation."""


class Listener:
    """The listening sockets and their connections, with common limits."""

    def __init__(
            self,
            listening: Sequence[socket.socket],
            respond: exchanges.Respond,
            *,
            policy: exchanges.Policy,
            title: str,
    ) -> None:
        self.respond = respond
        self.policy = policy
        self.title = title
        """What is served, for messages: e.g. "webhooks"."""
        self._sockets = listening
        self._context: ssl.SSLContext | None = None
        self._is_accepting = False
        self._greeting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        """Those that answer requests."""
        self._guests: dict[Connection, None] = {}
        self._memory = 0
        self._warnings = ratelimits.KeyedBuckets(burst=1, period=WARNING_PERIOD)

    @property
    def port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    def listen(self, context: ssl.SSLContext | None) -> None:
        """Serve new connections with this context. Existing connections are not affected."""
        self._context = context
        if not self._is_accepting:
            self._is_accepting = True
            for sock in self._sockets:
                self._watch(sock)

    async def close(self) -> None:
        """
        Accept no more requests, wait for those in progress, and close all connections.

        If this is cancelled, it cancels the requests in progress.
        """
        self._is_accepting = False
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        try:
            await asyncio.sleep(0)  # all greetings have begun, so that asyncio has their sockets
            for guest in list(self._guests):
                guest.leave()
            await tasks.cancel(self._greeting.copy())
            if self._tasks:
                await asyncio.wait(self._tasks.copy(), timeout=self.policy.leaving)
        finally:
            await tasks.cancel(self._tasks.copy())
            await self._close_connections()

    async def _close_connections(self) -> None:
        for guest in list(self._guests):
            guest.leave()
        for _ in range(CLOSING_STEPS):
            if not self._guests:
                return
            await asyncio.sleep(CLOSING_PAUSE)
        for guest in list(self._guests):
            guest.abort()
        await asyncio.sleep(0)

    def _watch(self, sock: socket.socket) -> None:
        if self._is_accepting:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            client, _ = sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:
            self.warn(
                'accepting', f"Connections to the {self.title} cannot be accepted: {e}",
                level=logging.WARNING)
            loop.remove_reader(sock)
            loop.call_later(ACCEPTING_PAUSE, self._watch, sock)
            return
        if not self._make_place():
            client.close()
            return
        client.setblocking(False)
        forks.keep_socket(client)
        connection = Connection(client, self)
        self._guests[connection] = None
        task = loop.create_task(self._greet(client, connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, client: socket.socket, connection: 'Connection') -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else HANDSHAKE_TIMEOUT)
        except OSError as e:  # errors of TLS are also OSErrors
            logger.debug(f"A client of the {self.title} has not agreed on TLS: {e}")
        finally:
            if not connection.connected:
                self.remove(connection)

    def _make_place(self) -> bool:
        """Close another connection if there are too many; false if none can be closed."""
        if len(self._guests) < self.policy.connections:
            return True
        idle = [guest for guest in self._guests if not (guest.busy and self.policy.leaving)]
        strangers = [guest for guest in idle if not guest.served]
        victim = random.choice(strangers) if strangers else next(iter(idle), None)
        self.warn('crowd', f"There are too many connections to the {self.title}; " + (
            "new ones are refused." if victim is None else
            "unused ones are dropped." if strangers else "idle ones are dropped."))
        if victim is not None:
            victim.abort()
            self.remove(victim)
        return victim is not None

    def prefer(self, guest: 'Connection') -> None:
        """Note that the connection was just used: among the idle ones, it is closed last."""
        if guest in self._guests:
            self._guests[guest] = self._guests.pop(guest)

    def remove(self, guest: 'Connection') -> None:
        self._guests.pop(guest, None)

    def enter_task(self) -> None:
        """Note that the current task answers a request."""
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def reserve(self, size: int) -> bool:
        """Reserve a part of the common memory (bytes); false if there is not enough."""
        if self._memory + size > self.policy.memory:
            return False
        self._memory += size
        return True

    def release(self, size: int) -> None:
        self._memory -= size

    def warn(
            self, key: str, text: str, *, level: int | None = None, exc_info: bool = False,
    ) -> None:
        """Log it at the level, or, if there are too many with the same key, as a debug message."""
        skipped = self._warnings.take(key, asyncio.get_running_loop().time())
        if skipped is None:
            logger.debug(text, exc_info=exc_info)
        else:
            logger.log(level or self.policy.level, (
                f"{text} ({skipped} more since the last warning.)" if skipped else text),
                exc_info=exc_info)


class Connection(web.RequestHandler):
    """A connection of one client. It exists before the TLS handshake."""

    def __init__(self, sock: socket.socket, listener: Listener) -> None:
        self.policy = policy = listener.policy
        super().__init__(
            web.Server(self._handle, request_factory=self._begin, handler_cancellation=True),
            loop=asyncio.get_running_loop(), logger=logger,
            access_log=None,  # type: ignore[arg-type]  # as documented; the path can be a secret
            max_line_size=policy.head, max_field_size=policy.head, max_headers=policy.fields,
            auto_decompress=False, lingering_time=0)
        self.busy = False
        """Whether a request is being answered."""
        self.served = False
        """Whether a request was answered well. If so, the client is trusted more than strangers."""
        self._sock = sock
        self._listener = listener
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_begun = False
        """Whether a request has begun to arrive, and is not complete."""
        self._is_deaf = False
        """Whether nothing is read any more."""
        self._error: exchanges.Refusal | None = None
        """Why a request is refused before its head is complete."""
        self._ahead = 0
        """How many bytes have arrived since the latest head, without its body."""
        self._content: Any = EMPTY_PAYLOAD
        self._reserved = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)  # of no such class in uvloop
        self.limit(self.policy.receiving)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.limit(None)
        self._release()
        self._listener.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if data and not self.busy:
            self._note_begin()
        if self._ahead > self.policy.head:
            self._interrupt(exchanges.Refusal(431))
            return
        if self._content.is_eof():
            self._ahead += len(data)
        super().data_received(data)

    def leave(self) -> None:
        """Close the connection; if a request is being answered, then after the response."""
        if self.busy:
            self.close()
        elif self.connected:
            self.force_close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._wire is not None:
            transports.abort(self._wire)
            return
        # asyncio notices that, and closes the socket. If it were closed here, the next socket could
        # get the same descriptor while asyncio still uses it for the handshake, which goes on after
        # a cancellation.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def limit(self, delay: float | None) -> None:
        """Limit the time (seconds) until the next limit is set; None for no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._loop.call_later(delay, self._time_out)

    def _time_out(self) -> None:
        if not self._is_begun or self._is_deaf:
            self.abort()
        elif self._content.is_eof():
            self._interrupt(exchanges.Refusal(408))
        else:
            self._content.set_exception(exchanges.Refusal(408))

    def _interrupt(self, error: exchanges.Refusal) -> None:
        """Read no more. For aiohttp, a head that is not complete becomes a malformed one."""
        self._error, self._is_deaf = error, True
        if not self.busy:
            super().data_received(b'\0')

    def handle_error(
            self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
            message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to a malformed request. The error is not logged, as it contains the request."""
        is_large = 'Too many' in str(exc) or 'Got more than' in str(exc)
        return Reply(self, self._describe(self._error or (
            exchanges.Refusal(431) if is_large else exchanges.Refusal(400, "Not HTTP/1.1."))))

    def _note_begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            self.limit(self.policy.receiving)

    def _begin(
            self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any,
    ) -> web.BaseRequest:
        self._note_begin()  # it can have come together with the previous request
        self._content, self._ahead = payload, 0
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop)

    async def _handle(self, message: web.BaseRequest) -> web.StreamResponse:
        """Respond to a request, of which the head has come."""
        try:
            response = await self._listener.respond(self._read_head(message))
        except exchanges.Refusal as e:
            response = self._describe(e)
        except Exception as e:
            self._listener.warn(
                'known failures' if self.served else 'failures',
                f"A request to the {self._listener.title} has failed: {e!r}",
                level=logging.ERROR, exc_info=True)
            response = exchanges.Response(500, b'Internal error.', exchanges.TEXT)
        else:
            self.served = True
        finally:
            self._release()
        return Reply(self, response)

    def _read_head(self, message: web.BaseRequest) -> exchanges.Request:
        fields = [(name.decode('latin-1'), value.decode('latin-1'))
                  for name, value in message.raw_headers]
        path, length = exchanges.check_head(message.version[:2], message.raw_path, fields)
        if len(path) + sum(len(name) + len(value) for name, value in fields) > self.policy.head:
            raise exchanges.Refusal(431)
        if length is not None and length > self.policy.body:
            raise exchanges.Refusal(413)
        return exchanges.Request(
            message.method, path, fields, length, message.remote or '',
            message.get_extra_info('peercert') or None, lambda: self._read_body(message, length))

    async def _read_body(self, message: web.BaseRequest, length: int | None) -> bytes:
        self._reserve(length or 0)
        if 'Expect' in message.headers:
            await message.writer.write(b'HTTP/1.1 100 Continue\r\n\r\n')
        parts: list[bytes] = []
        size = 0
        async for part in message.content.iter_any():
            size += len(part)
            if size > self.policy.body:
                raise exchanges.Refusal(413)
            self._reserve(size)
            parts.append(part)
        self._is_begun, self.busy = False, True
        self.limit(None)
        self._listener.enter_task()
        return b''.join(parts)

    async def rest(self, *, lasting: bool) -> None:
        """Wait for the next request; or, after the last response, until the client has read it."""
        is_complete, self.busy = self.busy and not self._is_deaf, False
        self._listener.prefer(self)
        if is_complete and lasting:
            self.limit(self.policy.idle)
        elif not is_complete and self._wire is not None:
            self._is_deaf = True
            self.limit(LINGERING_TIMEOUT)
            self._wire.resume_reading()  # and drop what the client still sends
            if self._wire.can_write_eof():
                with contextlib.suppress(OSError):  # the client is gone, which is not noticed yet
                    self._wire.write_eof()
            await self._loop.create_future()  # until the connection is lost

    def _describe(self, error: exchanges.Refusal) -> exchanges.Response:
        address = self.peername[0] if isinstance(self.peername, tuple) else self.peername
        self._listener.warn(
            'known' if self.served else 'strangers',
            f"A request to the {self._listener.title} from {address} is refused: {error.status} "
            f"{str(error)!r}")
        return exchanges.Response(
            error.status, f'{error}\n'.encode(errors='replace'), exchanges.TEXT, error.headers)

    def _reserve(self, size: int) -> None:
        if size > SMALL and size > self._reserved:
            if not self._listener.reserve(size - self._reserved):
                raise exchanges.Refusal(503)
            self._reserved = size

    def _release(self) -> None:
        self._listener.release(self._reserved)
        self._reserved = 0


class Reply(web.Response):
    """A response. It is the last one, unless the request is complete."""

    def __init__(self, connection: Connection, response: exchanges.Response) -> None:
        super().__init__(status=response.status, body=response.body, headers={
            'Content-Type': response.content_type, 'Server': 'kopf', **response.headers})
        if not connection.busy or connection.policy.idle is None:
            self.force_close()
        self._connection = connection

    async def write_eof(self, data: bytes = b'') -> None:
        self._connection.limit(self._connection.policy.writing)
        await super().write_eof(data)
        await self._connection.rest(lasting=bool(self.keep_alive))


def bind(addr: str | None, port: int, *, shared: bool = False) -> list[socket.socket]:
    """
    Open the sockets for all addresses of the name, all with the same port.

    If the name is None, these are all addresses of the host. If the port is ``shared``, other
    processes can also listen at it; each connection comes to one of them.

    :raises OSError: if the sockets cannot be opened.
    """
    for _ in range(10):
        try:
            return _bind(addr, port, shared)
        except OSError as e:
            if port or e.errno != errno.EADDRINUSE:
                raise
    return _bind(addr, port, shared)


def _bind(addr: str | None, port: int, shared: bool) -> list[socket.socket]:
    found = socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    failure: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sock = socket.create_server(
                    (address[0], port, *address[2:]), family=family, backlog=128,
                    reuse_port=shared)
            except OSError as e:
                failure = OSError(e.errno, os.strerror(e.errno or 0))  # without the address
                if e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise failure from None
                # the system has no such address, or does not support this family
                continue
            stack.callback(sock.close)
            opened.append(sock)
            forks.keep_socket(sock)
            sock.setblocking(False)
            port = sock.getsockname()[1]
        stack.pop_all()
    if not opened:
        raise failure or OSError(errno.EADDRNOTAVAIL, f"There are no addresses of {addr}.")
    return opened
