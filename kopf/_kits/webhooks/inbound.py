"""
Connections of clients. A client can be anyone who reaches the port, so clients are not trusted.

A connection answers one request at a time. Its size, time, and share of the memory are limited, so
that no client has an effect on the others.
"""
import asyncio
import collections
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from kopf._cogs.helpers import parsing
from kopf._kits.webhooks import messages

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT = 15.0
"""
How long (seconds) a request can take from its first to its last byte.

A new connection has the same time until its first request.
"""

IDLE_TIMEOUT = 150.0
"""
How long (seconds) a connection is kept between requests.

API servers close idle connections after 90 seconds. If this server closed them first, a request
that is sent at the same time could be lost.
"""

LINGERING_TIMEOUT = 2.0
"""
How long (seconds) the client has to read the last response, and to close the connection.

If the server closed the connection while the client still sends, the response could be lost.
"""

WRITING_TIMEOUT = 15.0
"""How long (seconds) the client can take to receive a response."""

MAX_LOGGED = 300
"""How many bytes of a refusal are logged."""

SMALL = 64 * 1024
"""How many bytes a connection can hold without a reservation."""


Respond = Callable[[messages.Request], Awaitable[messages.Response]]


class Host(Protocol):
    """The common limits of all connections: their number, their tasks, and their memory."""

    def has_path(self, path: str) -> bool:
        """Whether there are webhooks at this path."""

    def admit(self, connection: 'Connection') -> None:
        """Add a connection."""

    def prefer(self, connection: 'Connection') -> None:
        """Note that the connection was just used: among the idle ones, it is closed last."""

    def forget(self, connection: 'Connection') -> None:
        """Remove a closed connection."""

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to the task until it has ended."""

    def reserve(self, size: int) -> bool:
        """Reserve a part of the common memory (bytes); false if there is not enough."""

    def release(self, size: int) -> None:
        """Release reserved memory (bytes)."""

    def warn(self, key: str, text: str) -> None:
        """Log a warning. The number of warnings with the same key is limited."""


class Connection(asyncio.Protocol):
    """A connection of one client."""

    def __init__(self, host: Host, respond: Respond) -> None:
        super().__init__()
        self._host = host
        self._respond = respond
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = parsing.RequestReader(messages.LIMITS, self._take_head, self._take_body)
        self._head: messages.Head | None = None
        self._requests: collections.deque[tuple[messages.Head, bytes]] = collections.deque()
        self._error: parsing.MessageError | None = None
        self._reserved = self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._served = False
        self._started = False
        self._expecting = False
        self._writable = True
        self._paused = False
        self._ended = False
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    @property
    def served(self) -> bool:
        """Whether a review was answered. If so, the client is trusted more than strangers."""
        return self._served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of no such class in uvloop
        self._host.admit(self)
        self._set_timer(REQUEST_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._transport = None
        self._release()
        self._cancel_timer()
        self._host.forget(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._ended or self._error is not None:
            return
        try:
            self._reader.feed(data)
            if self._reader.is_begun:
                self._reserve(self._reader.size)
        except parsing.MessageError as e:
            self._error = e
        self._advance()

    def close(self) -> None:
        """Close the connection; if a request is being answered, then after the response."""
        self._closing = True
        if not self.busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Process the received requests and errors."""
        if self._transport is None or self._ended:
            return
        if self._requests and (self.busy or not self._writable):
            if not self._paused:
                self._paused = True
                self._transport.pause_reading()
            return
        if self.busy or not self._writable:
            return
        if self._requests:
            self._cancel_timer()
            self._started = False
            head, body = self._requests.popleft()
            peer = self._transport.get_extra_info('peercert')
            self._task = self._loop.create_task(
                self._answer(messages.Request(head, body, peer or None)))
            self._host.keep(self._task)
            return
        if self._error is not None:
            self._refuse(self._error)
            return
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._reader.is_begun and not self._started:
            self._started = True
            self._set_timer(REQUEST_TIMEOUT)
        if self._expecting and self._reader.is_body_awaited:
            self._expecting = False
            self._transport.write(messages.CONTINUE)

    def _take_head(self, raw: parsing.RequestHead) -> None:
        """Check a request before its body has arrived."""
        if not self._host.has_path(messages.read_path(raw.target)):
            raise parsing.MessageError(404)
        self._head = head = messages.read_head(raw)
        self._reserve(head.length or 0)
        self._expecting = head.expecting

    def _take_body(self, body: bytes) -> None:
        """Queue a complete request."""
        assert self._head is not None
        self._reserve(len(body))
        self._held += self._reserved
        self._reserved = 0
        self._requests.append((self._head, body))

    def _reserve(self, size: int) -> None:
        if size > SMALL and size > self._reserved:
            if not self._host.reserve(size - self._reserved):
                raise parsing.MessageError(503)
            self._reserved = size

    def _release(self) -> None:
        self._host.release(self._reserved + self._held)
        self._reserved = self._held = 0

    async def _answer(self, request: messages.Request) -> None:
        started = time.monotonic()
        try:
            response = await self._respond(request)
        except Exception as e:
            logger.error(f"A request to the webhooks has failed: {e!r}", exc_info=True)
            response = messages.Response(500, b'Internal error.')
        finally:
            self._task = None
            if not self._requests:
                self._host.release(self._held)
                self._held = 0
        if response.status >= 400:
            self._log(response.status, response.body[:MAX_LOGGED].decode(errors='replace'))
        else:
            self._served = True
        if self._transport is None:
            logger.debug(f"A client of the webhooks has not waited for the answer, "
                         f"which took {time.monotonic() - started:.1f}s.")
            return
        lasting = request.head.lasting and not self._closing
        self._write(response, lasting=lasting)
        if lasting:
            self._host.prefer(self)
            self._set_timer(IDLE_TIMEOUT if self._writable else WRITING_TIMEOUT)
            self._advance()

    def _refuse(self, error: parsing.MessageError) -> None:
        self._log(error.status, str(error))
        self._release()
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
        self._host.warn(
            'known' if self._served else 'strangers',
            f"A request to the webhooks from {address} is refused: {status} {text!r}")

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
            self._refuse(parsing.MessageError(408))
        elif self._ended and self._writable:
            self._transport.close()
        else:
            self._transport.abort()
