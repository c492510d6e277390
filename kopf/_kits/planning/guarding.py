"""
Guarding: while an operator is planned, it connects to nothing but the sandbox, and starts nothing.

What handlers try is refused, and noted. Python tells of it by its audit events, in all threads.
"""
import contextlib
import contextvars
import errno
import os
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from kopf._kits.planning import attribution

CONNECTING = ('socket.connect', 'socket.sendto', 'socket.sendmsg')
RESOLVING = ('socket.getaddrinfo', 'socket.gethostbyname', 'socket.gethostbyaddr')
STARTING = ('subprocess.Popen', 'os.posix_spawn', 'os.exec', 'os.system')
UNSEEN = frozenset({
    'MySQLdb', '_ldap', '_mysql_connector', 'confluent_kafka', 'curl_cffi', 'cx_Oracle', 'grpc',
    'multiprocessing.popen_spawn_posix', 'psycopg', 'psycopg2', 'pycurl', 'pygit2', 'pymssql',
    'pyodbc', 'temporalio', 'zmq'})
"""The modules that connect, or start programs, by native code: of it, there are no audit events."""

LOCAL = ('localhost', '127.0.0.1', '::1')

EXEMPT = ('upstream', 'sandbox')
"""The names of the threads that connect to the cluster: with GET requests only."""


class Guard:
    """
    Refuses what leads out of this process, except for the allowed hosts and programs.

    ``attempts`` are what was refused, with the name to allow it by, and the handlers. ``senders``
    are the handlers that are behind the latest requests of blocking clients, by the ports of these.
    """

    def __init__(
            self, allowed: Collection[str], *, command: str = 'kopf plan', is_wide: bool = True,
    ) -> None:
        """
        ``command`` is what refuses. Unless it ``is_wide``, it guards only the handlers, and what
        they start: then, the rest of the process can connect to anything.
        """
        self.attempts: dict[tuple[str, str], dict[str, None]] = {}
        self.senders: dict[int, Sequence[str]] = {}
        self.port = 0
        """The port of the sandbox."""
        self._allowed = frozenset(allowed)
        self._command = command
        self._is_wide = is_wide

    def describe_unseen(self) -> str | None:
        """Describe the loaded modules whose connections cannot be refused; None if all can."""
        names = sorted((UNSEEN & sys.modules.keys()) - self._allowed)
        options = ' '.join(f'--allow {name}' for name in names)
        return None if not names else (
            f"The connections of {', '.join(names)} cannot be refused by {self._command}. If "
            f"handlers change nothing by them: {options}")

    @contextlib.contextmanager
    def stand(self) -> Iterator[None]:
        """Refuse everything until the end of the block."""
        global _guard, _is_hooked
        if not _is_hooked:
            _is_hooked = True
            sys.addaudithook(_audit)  # it cannot be removed
        _guard = self
        try:
            yield
        finally:
            _guard = None

    def check(self, event: str, args: Sequence[Any]) -> None:
        """:raises ConnectionRefusedError: if it is refused."""
        if not self._is_wide and attribution.handler_var.get() is None:
            return
        if event == 'http.client.send':
            self._note_sender(args[0].sock)
        elif event in RESOLVING:
            if attribution.work_var.get() is not None and args[0] is not None:
                port = args[1] if event == 'socket.getaddrinfo' else None
                self._check_address(os.fsdecode(args[0]), port, LOCAL)
        elif event in CONNECTING and isinstance(args[1], tuple):
            host, port, *_ = args[1]
            self._check_address(host, port, LOCAL if port == self.port else ())
        elif event in CONNECTING and args[1] is not None:
            path = os.fsdecode(args[1])
            if path not in self._allowed:
                self._refuse(path, path)
        elif event == 'import':
            if args[0] in UNSEEN - self._allowed:
                self._refuse(args[0], args[0])
        elif event in STARTING:
            command = os.fsdecode(args[0] or args[1][0])
            program = os.path.basename(command.split()[0] if event == 'os.system' else command)
            if program not in self._allowed:
                self._refuse(f"the program {program}", program)

    def _check_address(self, host: str, port: object, own: Collection[str]) -> None:
        if host not in (*own, *self._allowed) and not any(
                host == found[4][0] for name in self._allowed
                for found in _resolve(name) if name not in LOCAL):
            self._refuse(host if port is None else f"{host}:{port}", host)

    def _refuse(self, what: str, name: str) -> None:
        handlers = attribution.find_handlers(contextvars.copy_context())
        self.attempts.setdefault((what, name), {}).update(dict.fromkeys(handlers or ['?']))
        raise ConnectionRefusedError(
            errno.ECONNREFUSED,  # aiohttp shows no message without a number
            f"{self._command} lets handlers reach only the Kubernetes API, not {what}. "
            f"If it changes nothing there: --allow {name}")

    def _note_sender(self, sock: object) -> None:
        if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
            handlers = attribution.find_handlers(contextvars.copy_context())
            self.senders[sock.getsockname()[1]] = handlers


def _resolve(name: str) -> list[Any]:
    try:
        return socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):  # e.g. a label that is too long
        return []


_guard: Guard | None = None
_is_hooked = False


def _audit(event: str, args: Any) -> None:
    if _guard is not None and event[:3] in ('soc', 'sub', 'os.', 'htt', 'imp') and (
            threading.current_thread().name not in EXEMPT):
        _guard.check(event, args)
