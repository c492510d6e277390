"""
Listeners: where the connections come from, and what they all have together.
"""
import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence

from kopf._cogs.aiokits import tasks
from kopf._kits.webhooks import connections

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 500
"""How many connections there are at most; then the ones that have been idle for longest must go."""

MAX_MEMORY = 64 * 1024 * 1024
"""How much (bytes) of large requests is held at the same time."""

HANDSHAKE_TIMEOUT = 10.0
"""How long (seconds) a client can take to agree on TLS."""

LEAVING_TIMEOUT = 5.0
"""How long (seconds) the requests at work have when the listener is closed."""


CLOSING_STEPS, CLOSING_PAUSE = 20, 0.01
"""How often, and after how many seconds, it is looked whether the connections have closed."""


class Listener:
    """The listening sockets, the connections, and their limits."""

    def __init__(
            self,
            sockets: Sequence[socket.socket],
            respond: connections.Respond,
            *,
            root: str,
    ) -> None:
        super().__init__()
        self._sockets = sockets
        self._respond = respond
        self._prefix = f'{root}/'
        self._servers: list[asyncio.Server] = []
        self._connections: dict[connections.Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._memory = 0

    @property
    def port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Serve with this context from now on. The connections that there are keep theirs."""
        previous, self._servers = self._servers, []
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._servers.append(await loop.create_server(
                lambda: connections.Connection(self, self._respond), sock=sock.dup(), ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_TIMEOUT))
        for server in previous:
            server.close()

    async def close(self) -> None:
        """Take no more requests, let those at work be answered if they are quick, and leave."""
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        for connection in list(self._connections):
            connection.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVING_TIMEOUT)
        await tasks.cancel(self._tasks)
        for _ in range(CLOSING_STEPS):
            if not self._connections:
                return
            await asyncio.sleep(CLOSING_PAUSE)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Remember the task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def has_path(self, path: str) -> bool:
        return path.startswith(self._prefix) or f'{path}/' == self._prefix

    def admit(self, connection: connections.Connection) -> None:
        """Have one more connection; maybe at the cost of another one."""
        if len(self._connections) >= MAX_CONNECTIONS:
            victim = next((other for other in self._connections if not other.busy), connection)
            logger.warning("There are too many connections to the webhooks; dropping the oldest.")
            victim.abort()
            self._connections.pop(victim, None)
            if victim is connection:
                return
        self._connections[connection] = None

    def forget(self, connection: connections.Connection) -> None:
        self._connections.pop(connection, None)

    def reserve(self, size: int) -> bool:
        """Take a part of the common memory, if there is so much left."""
        if self._memory + size > MAX_MEMORY:
            return False
        self._memory += size
        return True

    def release(self, size: int) -> None:
        self._memory -= size


def bind(addr: str | None, port: int) -> list[socket.socket]:
    """
    Open the sockets for all addresses of the name (None: all of the host), all with the same port.

    :raises OSError: if that is not possible.
    """
    for _ in range(10):
        try:
            return _bind(addr, port)
        except OSError as e:
            if port or e.errno != errno.EADDRINUSE:
                raise
    return _bind(addr, port)


def _bind(addr: str | None, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(
        addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as e:  # the system does not have such addresses
                failure = e
                continue
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as e:
                if e.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                failure = e
                sockets.remove(sock)
                sock.close()
                continue
            sock.listen(128)
            sock.setblocking(False)
            port = sock.getsockname()[1]
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise failure or OSError(errno.EADDRNOTAVAIL, f"There are no addresses of {addr}.")
    return sockets
