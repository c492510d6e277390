"""
Lifelines: a child process learns from a pipe that the process which has started it is gone.

Only the parent holds the writing end, so the pipe is closed at the end of the parent, also if the
parent is killed and can tell nobody.
"""
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import click

VARIABLE = 'KOPF_LIFELINE'


class Lifeline:
    """The end of the parent. It is held until the end of the process, or until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._reading, self._writing = os.pipe()

    def start(
            self, args: Sequence[str], env: Mapping[str, str] = os.environ,
    ) -> 'subprocess.Popen[bytes]':
        """Start ``kopf`` with these arguments. It stops when this process is gone."""
        return subprocess.Popen(
            [sys.executable, '-m', 'kopf', *args], pass_fds=[self._reading],
            env={**env, VARIABLE: str(self._reading)})

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


def follow() -> None:
    """Stop this process as by SIGTERM when its parent is gone, if the parent holds a lifeline."""
    reading = os.environ.pop(VARIABLE, None)
    if reading is not None:
        os.set_inheritable(int(reading), False)
        threading.Thread(target=_wait, args=[int(reading)], name='lifeline', daemon=True).start()


def _wait(reading: int) -> None:
    os.read(reading, 1)
    click.echo("The process that has started this one is gone. Stopping.", err=True)
    os.kill(os.getpid(), signal.SIGTERM)
