"""
Sockets that notice when the other side is gone without a word: half-open connections.

Otherwise, requests would wait for their whole timeouts, which are minutes.
"""
import contextlib
import socket

import aiohttp

SILENCE = 30
"""After how many seconds a peer that acknowledges nothing is given up: it is not there any more."""


def make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A new socket, as connectors of aiohttp want it."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    probe_silence(sock)
    return sock


def probe_silence(sock: socket.socket | None) -> None:
    """Ask the system to find out when the other side is gone; not all systems can do that."""
    if sock is None:
        return
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
