"""
Processes of the command line that start in no time: forked from one that has everything imported.

They are as real as any other process: with a pid, with signals, with exit codes. For the tests that
start hundreds of them.
"""

import atexit
import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import IO

CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload([
    'kopf.cli', 'kopf._kits.running', 'aiohttp', 'pykube', 'kubernetes.client',
    'kubernetes.config'])


class Fork:
    """A process of the command line, which can be used as `subprocess.Popen`."""

    def __init__(self, args: Sequence[str], *, env: Mapping[str, str]) -> None:
        receiving, sending = CONTEXT.Pipe(duplex=False)
        with sending:
            self._process = CONTEXT.Process(target=run, args=(args, env, sending), daemon=True)
            self._process.start()
        with receiving:
            self.stdout: IO[str] = os.fdopen(os.dup(receiving.fileno()), encoding='utf-8')
        self._lock = threading.Lock()  # the exit code can be read only once
        self._is_killed = False

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with self._lock:
            code = self._process.exitcode
        # The server of the forks can lose the exit code of what is killed at once.
        return -signal.SIGKILL if code == 255 and self._is_killed else code

    def wait(self, timeout: float | None = None) -> None:
        connection.wait([self._process.sentinel], timeout)
        if self.poll() is None and timeout is not None:
            raise subprocess.TimeoutExpired('kopf', timeout)

    def send_signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self._is_killed = True
        self.send_signal(signal.SIGKILL)


def run(args: Sequence[str], env: Mapping[str, str], output: connection.Connection) -> None:
    """Be the command line: with that environment, with everything written to one place."""
    from kopf import cli

    os.environ.clear()
    os.environ.update(env)
    for fd in (1, 2):
        os.dup2(output.fileno(), fd)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    try:
        cli.main(args)
    finally:
        atexit._run_exitfuncs()  # these processes do not do so: e.g. client libraries leave files
