"""
Connections of clients, and what all clients of a server take together: connections, memory, and
lines of the log. A connection answers one request at a time.
"""
import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Iterator
from typing import Any, cast

from aiohttp import EMPTY_PAYLOAD, web

from kopf._cogs.aiokits import transports
from kopf._cogs.helpers import quotas
from kopf._cogs.serving import exchanges

logger = logging.getLogger(__name__)

LINGERING_TIMEOUT = 2.0
"""
How long (seconds) the client has to read the last response, and to close the connection.

If the server closed the connection while the client still sends, the response could be lost.
"""

WARNING_PERIOD = 60.0
"""The shortest time (seconds) between two warnings with the same key."""

SMALL = 64 * 1024
"""How many bytes a connection can hold without a reservation."""


class Room:
    """The connections of one server, and their common limits."""

    def __init__(self, policy: exchanges.Policy, title: str) -> None:
        super().__init__()
        self.policy = policy
        self.title = title
        """What is served, for messages: e.g. "webhooks"."""
        self.tasks: set[asyncio.Task[object]] = set()
        """Those that answer requests."""
        self._guests: dict[Connection, None] = {}
        self._memory = 0
        self._warnings = quotas.Quotas(burst=1, period=WARNING_PERIOD)

    def __iter__(self) -> Iterator['Connection']:
        return iter(list(self._guests))

    def make_place(self) -> bool:
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

    def add(self, guest: 'Connection') -> None:
        self._guests[guest] = None

    def prefer(self, guest: 'Connection') -> None:
        """Note that the connection was just used: among the idle ones, it is closed last."""
        if guest in self._guests:
            self._guests[guest] = self._guests.pop(guest)

    def remove(self, guest: 'Connection') -> None:
        self._guests.pop(guest, None)

    def enter_task(self) -> None:
        """Note that the current task answers a request."""
        if task := asyncio.current_task():
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def reserve(self, size: int) -> bool:
        """Reserve a part of the common memory (bytes); false if there is not enough."""
        if self._memory + size > self.policy.memory:
            return False
        self._memory += size
        return True

    def release(self, size: int) -> None:
        self._memory -= size

    def warn(self, key: str, text: str, *, level: int | None = None) -> None:
        """Log it at the level, or, if there are too many with the same key, as a debug message."""
        skipped = self._warnings.take(key, asyncio.get_running_loop().time())
        if skipped is None:
            logger.debug(text)
        else:
            logger.log(level or self.policy.level, (
                f"{text} ({skipped} more since the last warning.)" if skipped else text))


class Connection(web.RequestHandler):
    """A connection of one client. It exists before the TLS handshake."""

    def __init__(
            self, sock: socket.socket, room: Room, respond: exchanges.Respond,
    ) -> None:
        self.policy = policy = room.policy
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
        self._room = room
        self._respond = respond
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
        self._room.remove(self)
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
            response = await self._respond(self._read_head(message))
        except exchanges.Refusal as e:
            response = self._describe(e)
        except Exception as e:
            logger.error(f"A request to the {self._room.title} has failed: {e!r}", exc_info=True)
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
        self._room.enter_task()
        return b''.join(parts)

    async def rest(self, *, lasting: bool) -> None:
        """Wait for the next request; or, after the last response, until the client has read it."""
        is_complete, self.busy = self.busy and not self._is_deaf, False
        self._room.prefer(self)
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
        self._room.warn(
            'known' if self.served else 'strangers',
            f"A request to the {self._room.title} from {address} is refused: {error.status} "
            f"{str(error)!r}")
        return exchanges.Response(
            error.status, f'{error}\n'.encode(errors='replace'), exchanges.TEXT, error.headers)

    def _reserve(self, size: int) -> None:
        if size > SMALL and size > self._reserved:
            if not self._room.reserve(size - self._reserved):
                raise exchanges.Refusal(503)
            self._reserved = size

    def _release(self) -> None:
        self._room.release(self._reserved)
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
