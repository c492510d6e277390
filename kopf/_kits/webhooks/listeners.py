"""
Listeners: the sockets that accept connections, and the common limits of the connections.
"""
import asyncio
import errno
import logging
import random
import socket
import ssl
from collections.abc import Sequence

from kopf._cogs.aiokits import forks, tasks
from kopf._cogs.clients import sockets
from kopf._cogs.helpers import quotas
from kopf._kits.webhooks import inbound

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 500
"""
The maximal number of connections, including those in the TLS handshake.

If there are more, a random connection that has sent no review is closed, so that nobody can keep
the others out by connecting first, or often. If all connections have sent reviews, the one that is
idle for the longest time is closed. If all of them have requests in progress, the new connection is
refused.
"""

MAX_MEMORY = 64 * 1024 * 1024
"""How many bytes of large requests are held at the same time."""

HANDSHAKE_TIMEOUT = 10.0
"""How long (seconds) the TLS handshake can take."""

ACCEPTING_PAUSE = 1.0
"""How long (seconds) to accept nothing after a failure, which is usually too many open files."""

WARNING_PERIOD = 60.0
"""The shortest time (seconds) between two warnings with the same key."""

LEAVING_TIMEOUT = 5.0
"""How long (seconds) to wait for the requests in progress when the listener is closed."""


CLOSING_STEPS, CLOSING_PAUSE = 20, 0.01
"""How often, and with which delay (seconds), to check whether all connections are closed."""


class Listener:
    """The listening sockets, the connections, and their limits."""

    def __init__(
            self,
            listening: Sequence[socket.socket],
            respond: inbound.Respond,
            *,
            root: str,
    ) -> None:
        super().__init__()
        self._sockets = listening
        self._respond = respond
        self._prefix = f'{root}/'
        self._context: ssl.SSLContext | None = None
        self._is_accepting = False
        self._greeting: dict[socket.socket, asyncio.Task[None]] = {}
        self._connections: dict[inbound.Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._memory = 0
        self._warnings = quotas.Quotas(burst=1, period=WARNING_PERIOD)

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

        If this is cancelled, the requests in progress are, too.
        """
        self._is_accepting = False
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        try:
            await asyncio.sleep(0)  # all greetings have begun, so that asyncio has their sockets
            for client in self._greeting:
                sockets.hang_up(client)
            await tasks.cancel(list(self._greeting.values()))
            for connection in list(self._connections):
                connection.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=LEAVING_TIMEOUT)
        finally:
            await tasks.cancel(self._tasks)
            await self._close_connections()

    async def _close_connections(self) -> None:
        for connection in list(self._connections):
            connection.close()
        for _ in range(CLOSING_STEPS):
            if not self._connections:
                return
            await asyncio.sleep(CLOSING_PAUSE)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to the task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def has_path(self, path: str) -> bool:
        return path.startswith(self._prefix) or f'{path}/' == self._prefix

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
            self.warn('accepting', f"Connections to the webhooks cannot be accepted: {e}")
            loop.remove_reader(sock)
            loop.call_later(ACCEPTING_PAUSE, self._watch, sock)
            return
        if not self._make_room():
            client.close()
            return
        client.setblocking(False)
        forks.keep_socket(client)
        task = loop.create_task(self._greet(client))
        self._greeting[client] = task
        task.add_done_callback(lambda _: self._greeting.pop(client, None))

    async def _greet(self, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: inbound.Connection(self, self._respond), client, ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else HANDSHAKE_TIMEOUT)
        except OSError as e:  # errors of TLS are OSErrors too
            logger.debug(f"A client of the webhooks has not agreed on TLS: {e}")

    def _make_room(self) -> bool:
        """Close another connection if there are too many; false if none can be closed."""
        if len(self._connections) + len(self._greeting) < MAX_CONNECTIONS:
            return True
        idle = [other for other in self._connections if not other.busy]
        strangers: list[socket.socket | inbound.Connection] = [
            *self._greeting, *(other for other in idle if not other.served)]
        victim = random.choice(strangers) if strangers else next(iter(idle), None)
        self.warn('crowd', "There are too many connections to the webhooks; " + (
            "new ones are refused." if victim is None else
            "those without reviews are dropped." if strangers else "idle ones are dropped."))
        if isinstance(victim, inbound.Connection):
            victim.abort()
            self.forget(victim)
        elif victim is not None:
            sockets.hang_up(victim)
            del self._greeting[victim]
        return victim is not None

    def admit(self, connection: inbound.Connection) -> None:
        """Add a connection."""
        self._connections[connection] = None

    def prefer(self, connection: inbound.Connection) -> None:
        """Note that the connection was just used: among the idle ones, it is closed last."""
        if connection in self._connections:
            self._connections[connection] = self._connections.pop(connection)

    def warn(self, key: str, text: str) -> None:
        """Log a warning, or, if there are too many with the same key, a debug message."""
        skipped = self._warnings.take(key, asyncio.get_running_loop().time())
        if skipped is None:
            logger.debug(text)
        else:
            logger.warning(f"{text} ({skipped} more since the last warning.)" if skipped else text)

    def forget(self, connection: inbound.Connection) -> None:
        self._connections.pop(connection, None)

    def reserve(self, size: int) -> bool:
        """Reserve a part of the common memory (bytes); false if there is not enough."""
        if self._memory + size > MAX_MEMORY:
            return False
        self._memory += size
        return True

    def release(self, size: int) -> None:
        self._memory -= size


def bind(addr: str | None, port: int, *, shared: bool = False) -> list[socket.socket]:
    """
    Open the sockets for all addresses of the name, all with the same port.

    If the name is None, these are all addresses of the host. If the port is ``shared``, other
    processes can listen at it, too; each connection comes to one of them.

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
    found = socket.getaddrinfo(
        addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    failure: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as e:  # the system does not support this family of addresses
                failure = e
                continue
            opened.append(sock)
            forks.keep_socket(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as e:
                if e.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                failure = e
                opened.remove(sock)
                sock.close()
                continue
            sock.listen(128)
            sock.setblocking(False)
            port = sock.getsockname()[1]
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    if not opened:
        raise failure or OSError(errno.EADDRNOTAVAIL, f"There are no addresses of {addr}.")
    return opened
