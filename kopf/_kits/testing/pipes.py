"""
Connections in memory, between a client and a server in the same event loop.

Written data reaches the other side in the next iterations of the loop. No data is buffered in the
operating system, so the loop knows whether anything is in transit.
"""
import asyncio
import collections
import contextvars
import socket
import types
from typing import Any

HIGH_WATER = 256 * 1024
"""How many bytes can be in transit to one side before the other side must pause."""


class Pipe(asyncio.Transport):
    """
    One end of a connection. As with a socket, its protocol receives all data, and then the end.

    Until it has a protocol, the data waits.
    """

    def __init__(
            self, loop: asyncio.AbstractEventLoop, context: contextvars.Context,
            extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self.other: Pipe | None = None
        self.sender: contextvars.Context | None = None
        """The context in which this end has written the latest data."""
        self._loop = loop
        self._protocol: Any = asyncio.Protocol()
        self._context = context
        self._incoming: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._reading = False
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._eof_coming = False
        self._blocked = False
        self._scheduled = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == 'socket' and type(self._protocol).__module__.startswith('anyio.'):
            peer, own = super().get_extra_info('peername'), super().get_extra_info('sockname')
            return types.SimpleNamespace(  # anyio, which is in httpx, demands a socket
                family=socket.AF_UNSPEC, getpeername=lambda: peer, getsockname=lambda: own,
                fileno=lambda: -1)
        return super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule()

    def get_write_buffer_size(self) -> int:
        return 0 if self.other is None else self.other._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._eof_sent or self.other is None or not len(data):
            return
        self.sender = contextvars.copy_context()
        self.other._receive(bytes(data))
        if not self._blocked and self.other._size > HIGH_WATER:
            self._blocked = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._eof_sent and self.other is not None:
            self._eof_sent = True
            self.other._eof_coming = True
            self.other._schedule()

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._loop.call_soon(self._lose, context=self._context)

    def abort(self) -> None:
        self.close()

    def _force_close(self, exc: BaseException | None) -> None:  # called by asyncio's TLS
        self.close()

    def sever(self) -> None:
        """
        Break the connection without a word to this end, as when its process is killed.

        The other end gets what is in transit, and then the end of the data.
        """
        self._closing = True
        if self.other is not None:
            self.other._eof_coming = True
            self.other._schedule()

    def lose(self) -> None:
        """Notify the protocol of a severed connection, unless it is notified already."""
        self._loop.call_soon(self._lose, context=self._context)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Begin with this protocol, and read what has arrived meanwhile."""
        self._protocol = protocol
        self._context.run(protocol.connection_made, self)
        self.resume_reading()

    def _receive(self, data: bytes) -> None:
        if not self._closing:
            self._incoming.append(data)
            self._size += len(data)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._closing:
            self._scheduled = True
            self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._incoming and self._reading and not self._closing:
            data = self._incoming.popleft()
            self._size -= len(data)
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                asyncio.protocols._feed_data_to_buffered_proto(  # type: ignore[attr-defined]
                    self._protocol, data)
            else:
                self._protocol.data_received(data)
        if self.other is not None and self.other._blocked and self._size <= HIGH_WATER // 4:
            self.other._blocked = False
            self.other._protocol.resume_writing()
        if self._eof_coming and not self._incoming and self._reading and not self._closing:
            self._eof_coming = False
            if not self._protocol.eof_received():
                self.close()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._incoming.clear()
            self._size = 0
            self._protocol.connection_lost(None)
