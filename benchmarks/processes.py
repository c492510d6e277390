"""
Processes under measurement: how much of the processors and of the memory they use, and what they
record.
"""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Self


class Process:
    """An operator as a process, whose costs are looked at from outside. A context manager."""

    def __init__(self, command: list[str], *, env: Mapping[str, str]) -> None:
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix='kopf-benchmark-'))
        self._calls = self._folder / 'calls.json'
        self._log = (self._folder / 'log').open('wb')
        self.started = time.time()
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,  # not in the project: its own kopf would be imported
            env={**os.environ, **env, 'BENCH_CALLS': str(self._calls)},
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        if exc_type is not None:
            print(self.log[-5000:], file=sys.stderr)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    @property
    def log(self) -> str:
        return (self._folder / 'log').read_text(errors='replace')

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise if it has ended."""
        if self.has_ended:
            raise RuntimeError(f"The operator has ended unexpectedly:\n{self.log[-5000:]}")

    def get_cpu(self) -> float:
        """
        The seconds of processor time used so far by all the threads, also by those that ended.
        """
        self.check()
        clock = (~self._process.pid << 3) | 2  # the clock of another process, as Linux numbers them
        return time.clock_gettime(clock)

    def get_memory(self) -> float:
        """The resident memory, in MB."""
        return self._read_status('VmRSS') / 1024

    def get_peak_memory(self) -> float:
        """The most resident memory that it has had, in MB."""
        return self._read_status('VmHWM') / 1024

    def _read_status(self, field: str) -> int:
        status = pathlib.Path(f'/proc/{self._process.pid}/status').read_text()
        line = next(line for line in status.splitlines() if line.startswith(f'{field}:'))
        return int(line.split()[1])

    async def measure_idle(self, seconds: float) -> float:
        """The share of a processor that it takes when there is nothing to do."""
        before = self.get_cpu()
        await asyncio.sleep(seconds)
        return (self.get_cpu() - before) / seconds

    async def wait_quiet(self, seconds: float, *, timeout: float = 120) -> None:
        """Wait until it has used less than 3% of a processor for so long."""
        deadline = time.monotonic() + timeout
        while await self.measure_idle(seconds) > 0.03:
            if time.monotonic() > deadline:
                raise TimeoutError("The operator does not come to rest.")

    async def count_calls(self) -> int:
        """How many times the handlers have been called by now."""
        await self._wait_calls()  # from now on, it understands the signal
        self._calls.unlink()
        self._process.send_signal(signal.SIGUSR1)
        await self._wait_calls()
        return int(json.loads(self._calls.read_text(encoding='utf-8'))['count'])

    async def wait_calls(self, count: int, *, timeout: float = 120) -> None:
        """Wait until the handlers have been called so many times."""
        deadline = time.monotonic() + timeout
        while await self.count_calls() < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The handlers are not called {count} times.")
            await asyncio.sleep(0.5)

    async def _wait_calls(self) -> None:
        while not self._calls.exists():
            self.check()
            await asyncio.sleep(0.01)

    def finish(self) -> dict[str, Any]:
        """End it gracefully; returns what its handlers have recorded."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"The operator does not end:\n{self.log[-5000:]}") from None
        with self._calls.open(encoding='utf-8') as file:
            calls: dict[str, Any] = json.load(file)
        return calls
