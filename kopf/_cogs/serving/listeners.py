"""
Listeners: the sockets that accept connections.
"""
import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Sequence

from kopf._cogs.aiokits import forks, tasks
from kopf._cogs.serving import exchanges, inbound

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 10.0
"""How long (seconds) the TLS handshake can take."""

ACCEPTING_PAUSE = 1.0
"""How long (seconds) to accept nothing after a failure, which is usually too many open files."""

CLOSING_STEPS, CLOSING_PAUSE = 20, 0.01
"""How often, and with which delay (seconds), to check whether all connections are closed."""


class Listener:
    """The listening sockets and their connections."""

    def __init__(
            self,
            listening: Sequence[socket.socket],
            respond: exchanges.Respond,
            *,
            policy: exchanges.Policy,
            title: str,
    ) -> None:
        super().__init__()
        self._sockets = listening
        self._respond = respond
        self._room = inbound.Room(policy, title)
        self._context: ssl.SSLContext | None = None
        self._is_accepting = False
        self._greeting: set[asyncio.Task[None]] = set()

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
            for guest in self._room:
                guest.leave()
            await tasks.cancel(self._greeting.copy())
            if self._room.tasks:
                await asyncio.wait(
                    self._room.tasks.copy(), timeout=self._room.policy.leaving)
        finally:
            await tasks.cancel(self._room.tasks.copy())
            await self._close_connections()

    async def _close_connections(self) -> None:
        for guest in self._room:
            guest.leave()
        for _ in range(CLOSING_STEPS):
            if not any(self._room):
                return
            await asyncio.sleep(CLOSING_PAUSE)
        for guest in self._room:
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
            self._room.warn(
                'accepting', f"Connections to the {self._room.title} cannot be accepted: {e}",
                level=logging.WARNING)
            loop.remove_reader(sock)
            loop.call_later(ACCEPTING_PAUSE, self._watch, sock)
            return
        if not self._room.make_place():
            client.close()
            return
        client.setblocking(False)
        forks.keep_socket(client)
        connection = inbound.Connection(client, self._room, self._respond)
        self._room.add(connection)
        task = loop.create_task(self._greet(client, connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, client: socket.socket, connection: inbound.Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else HANDSHAKE_TIMEOUT)
        except OSError as e:  # errors of TLS are OSErrors too
            logger.debug(f"A client of the {self._room.title} has not agreed on TLS: {e}")
        finally:
            if not connection.connected:
                self._room.remove(connection)


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
