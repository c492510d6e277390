"""
Forks: what a child process must not share with its parent.

Handlers can fork, e.g. by `multiprocessing`. A child process inherits:

* The signal handlers of the event loop, with the file descriptor that wakes up the loop. A signal
  to the child would have the same effect as a signal to the parent.
* The sockets: the connections, and the listening sockets. They would stay open as long as the child
  lives: the other side would not notice the end of a connection, and the next operator could not
  listen on the same port. And when the child closes a connection (e.g. by a closing message of
  TLS), it would close the connection of the parent.
"""
import asyncio.trsock
import os
import signal
import socket
import stat
import threading
from typing import Any

_signals: dict[signal.Signals, Any] = {}
"""The signals that the event loop handles, and their previous handlers."""

_sockets: dict[int, tuple[int, int]] = {}
"""
The sockets of the operator: their file descriptors, with device and inode numbers.

The numbers identify the socket: after it is closed, another file can get the same descriptor.
"""

_masks = threading.local()


def keep_signal(number: signal.Signals, previous: Any) -> None:
    """Note that the event loop handles the signal; children get the previous handler back."""
    _signals[number] = previous


def forget_signal(number: signal.Signals) -> None:
    """Note that the event loop does not handle the signal any more."""
    _signals.pop(number, None)


def keep_socket(sock: socket.socket | asyncio.trsock.TransportSocket) -> None:
    """Note that the socket is of the operator, so that children must let it go."""
    known = os.fstat(sock.fileno())
    _sockets[sock.fileno()] = (known.st_dev, known.st_ino)


def _begin() -> None:
    # Block the signals until the child has got the previous handlers back: the handlers that it
    # inherits would pass its signals to the parent.
    _masks.previous = signal.pthread_sigmask(signal.SIG_BLOCK, _signals) if _signals else None


def _end() -> None:
    if _masks.previous is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.previous)


def _end_in_child() -> None:
    if _signals:
        signal.set_wakeup_fd(-1)
        for number, previous in _signals.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        _signals.clear()
    if _sockets:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor, identity in _sockets.items():
            if _identify(descriptor) == identity:
                # Replaced by /dev/null, not closed. The inherited Python objects would close the
                # descriptor again later, and by then it can be of another file.
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _sockets.clear()
    _end()


def _identify(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


if hasattr(os, 'register_at_fork'):  # not on Windows
    os.register_at_fork(before=_begin, after_in_parent=_end, after_in_child=_end_in_child)
