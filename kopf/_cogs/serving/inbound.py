"""
Connections of clients. A connection answers one request at a time.
"""
import asyncio
import contextlib
import logging
import socket
from typing import Any, cast

from aiohttp import web

from kopf._cogs.aiokits import timeouts
from kopf._cogs.serving import exchanges, rooms

logger = logging.getLogger(__name__)

LINGERING_TIMEOUT = 2.0
"""
How long (seconds) the client has to read the last response, and to close the connection.

If the server closed the connection while the client still sends, the response could be lost.
"""

SMALL = 64 * 1024
"""How many bytes a connection can hold without a reservation."""


class Connection(web.RequestHandler):
    """A connection of one client. It exists before the TLS handshake."""

    def __init__(
            self, sock: socket.socket, room: rooms.Room, service: exchanges.Service,
    ) -> None:
        self.policy = policy = room.policy
        super().__init__(
            web.Server(self._handle, request_factory=self._begin, handler_cancellation=True),
            loop=asyncio.get_running_loop(), logger=logger,
            access_log=None,  # type: ignore[arg-type]  # as documented; the path can be a secret
            max_line_size=policy.head, max_field_size=policy.head, max_headers=policy.fields,
            auto_decompress=False, lingering_time=0)
        self.busy = self.served = False
        self._sock = sock
        self._room = room
        self._service = service
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_begun = False
        """Whether a request has begun to arrive, and is not complete."""
        self._ahead = 0
        """How many bytes have arrived since the latest head, without its body."""
        self._content: Any = None
        self._reserved = 0
        self._error: exchanges.Refusal | None = None
        """Why nothing else is read from the client."""

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
        if self._error is not None:
            return
        if data and not self._is_begun and not self.busy:
            self._is_begun = True
            self.limit(self.policy.receiving)
        if self._ahead > self.policy.head:
            self._interrupt(exchanges.Refusal(431))
            return
        if self._content is None or self._content.is_eof():
            self._ahead += len(data)
        super().data_received(data)

    def leave(self) -> None:
        if self.busy:
            self.close()
        elif self.connected:
            self.force_close()
        else:
            self.abort()

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()
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
        if self._is_begun and self._error is None:
            self._interrupt(exchanges.Refusal(408))
        else:
            self.abort()

    def _interrupt(self, error: exchanges.Refusal) -> None:
        """Refuse what arrives. To aiohttp, a head that is not complete becomes a malformed one."""
        self._error = error
        if not self.busy:
            super().data_received(b'\0')

    def handle_error(
            self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
            message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to a malformed request. The error is not logged, as it contains the request."""
        if status >= 500:
            logger.error(f"A request to the {self._room.title} has failed: {exc!r}", exc_info=exc)
            return self._refuse(exchanges.Refusal(status))
        is_large = 'Too many' in str(exc) or 'Got more than' in str(exc)
        return self._refuse(self._error or (
            exchanges.Refusal(431) if is_large else exchanges.Refusal(400, "Not HTTP/1.1.")))

    def _begin(
            self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any,
    ) -> web.BaseRequest:
        self._content, self._ahead = payload, 0
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop)

    async def _handle(self, message: web.BaseRequest) -> web.StreamResponse:
        """Respond to a request, of which the head has come."""
        if not self._is_begun:  # it came together with the previous one
            self._is_begun = True
            self.limit(self.policy.receiving)
        assert self._timer is not None
        deadline = self._timer.when()
        self.limit(None)
        try:
            request = self._read_head(message)
            self._service.admit(request)
            async with timeouts.timeout_at(deadline):
                request = request._replace(body=await self._read_body(message, request))
        except exchanges.Refusal as e:
            return self._refuse(e)
        except TimeoutError:
            return self._refuse(exchanges.Refusal(408))
        except web.RequestPayloadError:
            return self._refuse(exchanges.Refusal(400, "Not HTTP/1.1."))
        return Reply(
            self, await self._answer(request), lasting=self.policy.idle is not None)

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
            message.get_extra_info('peercert') or None)

    async def _read_body(self, message: web.BaseRequest, request: exchanges.Request) -> bytes:
        self._reserve(request.length or 0)
        if request.get_header('Expect'):
            await message.writer.write(b'HTTP/1.1 100 Continue\r\n\r\n')
        parts: list[bytes] = []
        size = 0
        async for part in message.content.iter_any():
            size += len(part)
            if size > self.policy.body:
                raise exchanges.Refusal(413)
            self._reserve(size)
            parts.append(part)
        return b''.join(parts)

    async def _answer(self, request: exchanges.Request) -> exchanges.Response:
        self._is_begun, self.busy = False, True
        task = asyncio.current_task()
        assert task is not None
        self._room.answering.add(task)
        task.add_done_callback(self._room.answering.discard)
        try:
            response = await self._service.respond(request)
        except exchanges.Refusal as e:
            return self._describe(e)
        except Exception as e:
            logger.error(f"A request to the {self._room.title} has failed: {e!r}", exc_info=True)
            return exchanges.Response(500, b'Internal error.', 'text/plain; charset=utf-8')
        finally:
            self._release()
        self.served = True
        return response

    async def rest(self, *, lasting: bool) -> None:
        """Wait for the next request; or, after the last response, until the client has read it."""
        self.busy = False
        self._room.prefer(self)
        if self._error is None:
            if lasting:
                self.limit(self.policy.idle)
        elif self._wire is not None:
            self.limit(LINGERING_TIMEOUT)
            self._wire.resume_reading()  # and drop what the client still sends
            if self._wire.can_write_eof():
                self._wire.write_eof()
            await self._loop.create_future()  # until the connection is lost

    def _refuse(self, error: exchanges.Refusal) -> web.StreamResponse:
        self._error = error
        self._release()
        return Reply(self, self._describe(error), lasting=False)

    def _describe(self, error: exchanges.Refusal) -> exchanges.Response:
        peer = None if self._wire is None else self._wire.get_extra_info('peername')
        address = peer[0] if isinstance(peer, tuple) else peer
        self._room.warn(
            'known' if self.served else 'strangers',
            f"A request to the {self._room.title} from {address} is refused: {error.status} "
            f"{str(error)!r}")
        return exchanges.Response(
            error.status, f'{error}\n'.encode(errors='replace'), 'text/plain; charset=utf-8',
            error.headers)

    def _reserve(self, size: int) -> None:
        if size > SMALL and size > self._reserved:
            if not self._room.reserve(size - self._reserved):
                raise exchanges.Refusal(503)
            self._reserved = size

    def _release(self) -> None:
        self._room.release(self._reserved)
        self._reserved = 0


class Reply(web.Response):
    """A response of which the writing takes a limited time."""

    def __init__(
            self, connection: Connection, response: exchanges.Response, *, lasting: bool,
    ) -> None:
        super().__init__(status=response.status, body=response.body, headers={
            'Content-Type': response.content_type, 'Server': 'kopf', **response.headers})
        if not lasting:
            self.force_close()
        self._connection = connection

    async def write_eof(self, data: bytes = b'') -> None:
        self._connection.limit(self._connection.policy.writing)
        await super().write_eof(data)
        await self._connection.rest(lasting=bool(self.keep_alive))
