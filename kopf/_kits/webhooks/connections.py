"""
Connections: one client each, which can be anyone who reaches the port.

A connection has one request at a time, and everything of it has a limit: its size, its time, its
share of the memory. What a client does or fails to do has no effect on the others.
"""
import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from kopf._kits.webhooks import messages

if TYPE_CHECKING:
    from kopf._kits.webhooks import listeners

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT = 15.0
"""From the first to the last byte of a request, in seconds; also from the first to the second."""

IDLE_TIMEOUT = 150.0
"""
How long a connection is kept between requests, in seconds. API servers close theirs after 90: if
the server were the first to close, a request could be lost to it.
"""

LINGERING_TIMEOUT = 2.0
"""
How long (seconds) the client has to read the last response, and to close the connection: if it was
closed while the client still sends, the response could be lost.
"""

WRITING_TIMEOUT = 15.0
"""How long a response can wait for the client to take it, in seconds."""

MAX_LOGGED = 300
"""How much (bytes) of a refusal goes to the log."""

SMALL = 64 * 1024
"""How much (bytes) a connection can have in its memory without asking."""


Respond = Callable[[messages.Request], Awaitable[messages.Response]]


class Connection(asyncio.Protocol):
    """A connection, for as long as it lasts."""

    def __init__(self, listener: 'listeners.Listener', respond: Respond) -> None:
        super().__init__()
        self._listener = listener
        self._respond = respond
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: messages.Head | None = None
        self._chunks: messages.Chunks | None = None
        self._reserved = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started = False
        self._writable = True
        self._paused = False
        self._ended = False
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of no such class in uvloop
        self._listener.admit(self)
        self._set_timer(REQUEST_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._transport = None
        self._release()
        self._cancel_timer()
        self._listener.forget(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._buffer += data
        self._advance()

    def close(self) -> None:
        """End it, unless a request is being answered; then after that."""
        self._closing = True
        if not self.busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it now."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Go on with what has come."""
        if self._transport is None or self._ended:
            return
        if self.busy or not self._writable:
            if len(self._buffer) > SMALL and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            return
        try:
            request = self._take()
        except messages.HTTPError as e:
            self._refuse(e)
            return
        if request is not None:
            self._cancel_timer()
            self._started = False
            self._task = self._loop.create_task(self._answer(request))
            self._listener.keep(self._task)
            return
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if (self._buffer or self._head is not None) and not self._started:
            self._started = True
            self._set_timer(REQUEST_TIMEOUT)

    def _take(self) -> messages.Request | None:
        """Take a request out of the buffer, if it is complete."""
        if self._head is None:
            while self._buffer.startswith(b'\r\n'):
                del self._buffer[:2]
            end = self._buffer.find(b'\r\n\r\n', 0, messages.MAX_HEAD)
            if end < 0:
                if len(self._buffer) >= messages.MAX_HEAD:
                    raise messages.HTTPError(431)
                return None
            self._head = messages.parse_head(bytes(self._buffer[:end]))
            del self._buffer[:end + 4]
            self._check(self._head)
        head = self._head
        if self._chunks is not None:
            complete = self._chunks.feed(self._buffer)
            self._reserve(len(self._chunks.body))
            if not complete:
                return None
            body = bytes(self._chunks.body)
        else:
            assert head.length is not None
            if len(self._buffer) < head.length:
                return None
            body = bytes(self._buffer[:head.length])
            del self._buffer[:head.length]
        self._head = self._chunks = None
        assert self._transport is not None
        peer = self._transport.get_extra_info('peercert')
        return messages.Request(head, body, peer or None)

    def _check(self, head: messages.Head) -> None:
        """Check a request before its body has come."""
        if not self._listener.has_path(head.path):
            raise messages.HTTPError(404)
        if head.method != 'POST':
            raise messages.HTTPError(405)
        if head.length == 0:
            raise messages.HTTPError(411)
        if head.length is None:
            self._chunks = messages.Chunks()
        else:
            self._reserve(head.length)
        if head.expecting and not self._buffer and self._transport is not None:
            self._transport.write(messages.CONTINUE)

    def _reserve(self, size: int) -> None:
        if size > SMALL and size > self._reserved:
            if not self._listener.reserve(size - self._reserved):
                raise messages.HTTPError(503)
            self._reserved = size

    def _release(self) -> None:
        self._listener.release(self._reserved)
        self._reserved = 0

    async def _answer(self, request: messages.Request) -> None:
        started = time.monotonic()
        try:
            response = await self._respond(request)
        except Exception as e:
            logger.error(f"A request to the webhooks has failed: {e!r}", exc_info=True)
            response = messages.Response(500, b'Internal error.')
        finally:
            self._task = None
            self._release()
        if response.status >= 400:
            self._log(response.status, response.body[:MAX_LOGGED].decode(errors='replace'))
        if self._transport is None:
            logger.debug(f"A client of the webhooks has not waited for the answer, "
                         f"which took {time.monotonic() - started:.1f}s.")
            return
        lasting = request.head.lasting and not self._closing
        self._write(response, lasting=lasting)
        if lasting:
            self._set_timer(IDLE_TIMEOUT if self._writable else WRITING_TIMEOUT)
            self._advance()

    def _refuse(self, error: messages.HTTPError) -> None:
        self._log(error.status, str(error))
        self._release()
        self._buffer.clear()
        self._write(messages.Response(error.status, f'{error}\n'.encode()), lasting=False)

    def _write(self, response: messages.Response, *, lasting: bool) -> None:
        assert self._transport is not None
        self._transport.write(messages.build_response(response, lasting=lasting))
        if not lasting:
            self._ended = True
            if self._closing:
                self._transport.close()
            self._set_timer(LINGERING_TIMEOUT)

    def _log(self, status: int, text: str) -> None:
        peer = None if self._transport is None else self._transport.get_extra_info('peername')
        address = peer[0] if isinstance(peer, tuple) else peer
        logger.warning(f"A request to the webhooks from {address} is refused: {status} {text!r}")

    def _set_timer(self, timeout: float) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(timeout, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self._transport is None:
            return
        if self._started and not self._ended and self._writable:
            self._refuse(messages.HTTPError(408))
        elif self._ended and self._writable:
            self._transport.close()
        else:
            self._transport.abort()
