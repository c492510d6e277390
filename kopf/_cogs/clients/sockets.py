"""
Sockets that notice half-open connections: the other side is gone without closing the connection.

Otherwise, requests over such a connection would wait for their whole timeouts, i.e. minutes.
"""
import contextlib
import select
import socket
import struct

import aiohttp

from kopf._cogs.aiokits import forks

SILENCE = 30
"""How long (seconds) the other side may acknowledge nothing before the connection is dropped."""


def make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """
    Make a socket; a ``socket_factory`` for aiohttp.

    It has the TCP keep-alive and the TCP user timeout (RFC 5482), as far as the system has these.
    Child processes do not share the socket, see `forks`.
    """
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    forks.keep_socket(sock)
    options = {
        'SO_KEEPALIVE': (socket.SOL_SOCKET, 1),
        'TCP_KEEPIDLE': (socket.IPPROTO_TCP, SILENCE // 2),
        'TCP_KEEPINTVL': (socket.IPPROTO_TCP, SILENCE // 6),
        'TCP_KEEPCNT': (socket.IPPROTO_TCP, 3),
        'TCP_USER_TIMEOUT': (socket.IPPROTO_TCP, SILENCE * 1000),
    }
    for name, (level, value) in options.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(level, getattr(socket, name), value)
    return sock


def is_readable(sock: socket.socket | None) -> bool:
    """Whether there are data to read from the socket, or the other side has closed it."""
    if sock is None:  # a connection in memory, in tests: its transport is notified at once
        return False
    if not hasattr(select, 'poll'):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def discard_unsent(sock: socket.socket | None) -> None:
    """
    Let the closing of the socket discard what is not transmitted yet.

    Otherwise, the system goes on with the transmission in the background, e.g. when a network is
    available again.
    """
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
