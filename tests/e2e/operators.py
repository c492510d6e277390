"""
Operators under test: as real processes of ``kopf run``, or in a thread of this process.
"""

import array
import asyncio
import concurrent.futures
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence

import kopf
from tests.e2e import forks


class Operator:
    """
    A process of ``kopf run``: a fork which starts in no time, unless another command is given.

    Its log is captured; it can be waited for, and the process be signalled.
    """

    def __init__(
            self,
            args: list[str],
            *,
            kubeconfig: str,
            env: Mapping[str, str] | None = None,
            command: Sequence[str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        """The lines of its log (and of stdout), without line ends."""
        env = {**os.environ, 'PYTHONUNBUFFERED': '1', 'KUBECONFIG': kubeconfig, **(env or {})}
        self.command = command
        """What runs it instead of this framework, if anything."""
        self._process = self._start(args, env=env, command=command)
        self._reading = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """The whole log so far."""
        self._catch_up()
        return '\n'.join(self.lines)

    def find(self, pattern: str) -> list[str]:
        """
        The lines in which the regular expression is found: of all that was written by now.

        So, what an operator says before it writes to the API is found after that is seen there.
        """
        self._catch_up()
        return [line for line in list(self.lines) if re.search(pattern, line)]

    async def wait_for(self, pattern: str, *, count: int = 1, timeout: float = 30) -> list[str]:
        """Wait until the regular expression is found in so many lines of the log; returns them."""
        deadline = time.monotonic() + timeout
        while True:
            ended = not self._reader.is_alive()
            found = self.find(pattern)
            if len(found) >= count:
                return found
            if ended:
                raise AssertionError(f"The operator has ended without {pattern!r}:\n{self.text}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"There is no {pattern!r} in the log:\n{self.text}")
            await asyncio.sleep(0.02)

    async def wait(self, *, timeout: float = 30) -> int:
        """
        Wait until it ends by itself, or because of a signal sent before; returns the exit code.
        """
        deadline = time.monotonic() + timeout
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The operator does not end:\n{self.text}")
            await asyncio.sleep(0.02)
        self._reader.join()
        assert self._process.returncode is not None
        return self._process.returncode

    def send(self, signum: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(signum)

    def kill(self) -> None:
        """Kill it as with ``kill -9``: it has no chance to do anything. Returns when it is dead."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def stop(self, *, timeout: float = 30) -> int:
        """Stop it gracefully, unless it has ended already; returns the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._reader.join()
        assert self._process.returncode is not None
        return self._process.returncode

    def _start(
            self, args: Sequence[str], *, env: Mapping[str, str], command: Sequence[str] | None,
    ) -> 'forks.Fork | subprocess.Popen[str]':
        if command:
            return start_process([*command, 'run', *args], env=env)
        return forks.Fork(['run', *args], env=env)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            fd, rest = stream.fileno(), b''
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while True:
                poll.poll()
                with self._reading:
                    data = os.read(fd, 65536)
                    *lines, rest = (rest + data).split(b'\n')
                    if not data and rest:
                        lines.append(rest)
                    self.lines += [line.decode(errors='replace') for line in lines]
                    if not data:
                        return

    def _catch_up(self) -> None:
        """Wait until the reader has taken what is in the pipe now."""
        while self._reader.is_alive():
            with self._reading:
                size = array.array('i', [0])
                try:
                    fcntl.ioctl(self._process.stdout, termios.FIONREAD, size)
                except ValueError:  # it is closed: all is read
                    return
                if size[0] == 0:
                    return
            time.sleep(0.001)


class Program(Operator):
    """A process of a Python script, with operators inside."""

    def _start(
            self, args: Sequence[str], *, env: Mapping[str, str], command: Sequence[str] | None,
    ) -> 'subprocess.Popen[str]':
        return start_process([sys.executable, *args], env=env)


def start_process(command: Sequence[str], *, env: Mapping[str, str]) -> 'subprocess.Popen[str]':
    return subprocess.Popen(
        command, env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class EmbeddedOperator:
    """An operator in a thread of this process; its arguments are those of `kopf.operator`."""

    def __init__(self, **kwargs: object) -> None:
        kwargs.setdefault('clusterwide', not kwargs.get('namespaces'))
        kwargs.setdefault('standalone', True)
        self._kwargs = kwargs
        self._ready = threading.Event()
        self._stop: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_ready(self, *, timeout: float = 30) -> None:
        """Wait until the operator is started. If it fails, raise its error."""
        deadline = time.monotonic() + timeout
        while not self._ready.wait(0.02):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("The operator has not become ready.")

    def stop(self, *, timeout: float = 30) -> None:
        """Stop it, and raise its error if there was one."""
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "The operator does not stop."
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            asyncio.run(kopf.operator(
                ready_flag=self._ready, stop_flag=self._stop, **self._kwargs))
        except BaseException as e:
            self._error = e
