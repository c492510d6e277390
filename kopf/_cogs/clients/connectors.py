"""
Connectors: the connections that aiohttp makes and keeps, and what it does not notice about them.

A kept connection can be dead, or can have an answer that nobody has asked for. A `Guard` stands
between each connection and the parser of aiohttp. It knows whether anything has come since the
request, and what comes while the connection is idle.
"""
import asyncio
import contextvars
import ssl as ssl_
from typing import Any

import aiohttp

from kopf._cogs.aiokits import transports
from kopf._cogs.clients import sockets
from kopf._cogs.clients.transfers import TransferError

DAY = 24 * 60 * 60.0

TLS_BUFFER = 64 * 1024
"""How many bytes of TLS are read at once. asyncio has 256 KB of memory for that per connection."""


class Attempt:
    """One sending of a request: its connection, and its response."""
    __slots__ = ('_response', 'guard', 'is_kept')

    def __init__(self) -> None:
        self.guard: Guard | None = None
        """What guards the connection, if there was one: then, the request may have been sent."""
        self.is_kept = False
        """Whether the connection was used for other requests before."""
        self._response: aiohttp.ClientResponse | None = None

    @property
    def is_unheard(self) -> bool:
        """Whether a kept connection was used, and no byte of the response has come."""
        return self.guard is not None and self.is_kept and self.guard.is_silent

    def receive(self, response: aiohttp.ClientResponse) -> None:
        """Begin to read the body of the response."""
        self._response = response
        if self.guard is not None and self.guard.is_lost:
            self.lose()

    def lose(self) -> None:
        """Notify the reader that nothing will come: aiohttp does not if it is not understood."""
        content = None if self._response is None else self._response.content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(TransferError("the response is not understood"))

    def end(self) -> None:
        """Forget the response: the connection can be idle for a long time."""
        self._response = None

    def abort(self) -> None:
        """Drop the connection, unless it is used for another request by now."""
        if self._response is not None:
            self._response.close()
        if self.guard is not None and self.guard.attempt is self:
            transports.abort(self.guard.transport)


current_attempt: contextvars.ContextVar[Attempt] = contextvars.ContextVar('current_attempt')
"""The attempt that gets the next connection."""


class Guard(asyncio.Protocol):
    """The protocol of a connection; it passes on to the protocol of aiohttp what was asked for."""

    def __init__(
            self,
            transport: asyncio.Transport,
            protocol: asyncio.Protocol,
            registry: 'dict[Guard, None]',
    ) -> None:
        super().__init__()
        self.transport = transport
        self.attempt: Attempt | None = None
        """The present attempt, or the last one."""
        self.is_silent = True
        """Whether nothing has come since the present attempt has begun."""
        self.is_lost = False
        self.idle_since: float | None = None
        self._protocol = protocol
        self._registry = registry
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        registry[self] = None

    def begin(self, attempt: Attempt) -> None:
        self.attempt, self.is_silent, self.idle_since = attempt, True, None

    def rest(self) -> None:
        if self.attempt is not None:
            self.attempt.end()
        self.idle_since = asyncio.get_running_loop().time()

    def is_usable(self, oldest: float) -> bool:
        """Whether the idle connection can be used again: nothing has come, nor the end."""
        return (
            self.idle_since is not None and self.idle_since >= oldest
            and not sockets.is_readable(self.transport.get_extra_info('socket')))

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            transports.abort(self.transport)  # there was no request
            return
        self.is_silent = False
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._registry.pop(self, None)
        self._protocol.connection_lost(exc)
        if self.attempt is not None:
            self.attempt.lose()


class Connector(aiohttp.TCPConnector):
    """The connections to one server, which can be dropped at once. `current_attempt` is needed."""

    def __init__(self, *, ssl: ssl_.SSLContext | None, keepalive: float | None) -> None:
        """``keepalive`` is how long (seconds) idle connections are kept; None for not at all."""
        # Without a cache, one DNS answer that never comes holds up one request only. The idle time
        # is measured here, by the clock of the event loop. The limit of aiohttp must only be
        # longer; before 3.14.4, it cannot be None.
        super().__init__(
            ssl=ssl or True, limit=0, keepalive_timeout=None if keepalive is None else DAY,
            force_close=keepalive is None, use_dns_cache=False, resolver=aiohttp.ThreadedResolver(),
            socket_factory=sockets.make_socket)
        self._keepalive = keepalive or 0.0
        self._guards: dict[Guard, None] = {}

    async def connect(
            self,
            req: aiohttp.ClientRequest,
            traces: list[Any],
            timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.connector.Connection:
        """Get a connection on which nothing has come since the last response."""
        attempt = current_attempt.get()
        if attempt.guard is not None:  # aiohttp sends some requests again, and tells nobody
            raise TransferError("the connection was closed without a response")
        while True:
            connection = await super().connect(req, traces, timeout)
            guard = self._guard(connection)
            is_kept = guard.idle_since is not None
            is_clean = connection.protocol is not None and not connection.protocol.should_close
            if is_clean and (not is_kept or guard.is_usable(
                    asyncio.get_running_loop().time() - self._keepalive)):
                break
            transports.abort(guard.transport)
            connection.close()
            if not is_kept:
                raise TransferError("the server has not waited for the request")
        guard.begin(attempt)
        attempt.guard, attempt.is_kept = guard, is_kept
        connection.add_callback(guard.rest)
        return connection

    def _guard(self, connection: aiohttp.connector.Connection) -> Guard:
        transport, protocol = connection.transport, connection.protocol
        if transport is None or protocol is None:
            connection.close()
            raise TransferError("the connection is lost")
        guard = transport.get_protocol()
        if not isinstance(guard, Guard):
            guard = Guard(transport, protocol, self._guards)
            transport.set_protocol(guard)
            _shrink_buffer(transport)
        return guard

    def abort(self, *, only_idle: bool = False) -> None:
        """Drop all connections, or those which are not in use."""
        for guard in self._guards:
            if guard.idle_since is not None or not only_idle:
                transports.abort(guard.transport)

    def reset(self) -> None:
        """Drop all connections, with what the system has not transmitted yet."""
        for guard in self._guards:
            sockets.discard_unsent(guard.transport.get_extra_info('socket'))
            transports.abort(guard.transport)


def _shrink_buffer(transport: asyncio.Transport) -> None:
    """Take less memory for TLS, if it is that of asyncio: there are no public means for that."""
    protocol: Any = getattr(transport, '_ssl_protocol', None)
    if hasattr(protocol, '_ssl_buffer_view'):
        protocol.max_size = TLS_BUFFER
        protocol._ssl_buffer = bytearray(TLS_BUFFER)
        protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)
