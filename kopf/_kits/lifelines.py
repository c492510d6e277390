"""
Lifelines: a child process learns from a pipe that the process which has started it is gone.

Only the parent holds the writing end, so the pipe is closed at the end of the parent, even if the
parent is killed.
"""
import atexit
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import click

VARIABLE = 'KOPF_LIFELINE'


class Lifeline:
    """The parent's end of the pipe. It stays open until `close`, or until the process ends."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def start(
            self, args: Sequence[str], env: Mapping[str, str] = os.environ,
    ) -> 'subprocess.Popen[bytes]':
        """
        Start ``kopf`` with these arguments in a child process. It stops when this process is gone.

        Until the child process follows the lifeline, the terminal's Ctrl+C is blocked there: it
        would interrupt the imports. The caller must forward the signal to it as SIGTERM.
        """
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return subprocess.Popen(
                [sys.executable, '-m', 'kopf', *args], pass_fds=[self._reading],
                env={**env, VARIABLE: str(self._reading)})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


def get_exit_code(process: 'subprocess.Popen[bytes]', *, is_stopped: bool) -> int:
    """
    Get the exit code of an ended process as shells show it.

    Operators handle SIGTERM. If the signal has killed a process that should stop, the operator had
    not begun yet, so nothing has failed.
    """
    code: int = process.returncode
    if is_stopped and code == -signal.SIGTERM:
        return 0
    return code if code >= 0 else 128 - code


def follow() -> None:
    """
    Stop this process as SIGTERM does when its parent is gone, if the parent holds a lifeline.

    Until the operator handles signals, Ctrl+C does nothing here: the parent sends SIGTERM instead.
    """
    reading = os.environ.pop(VARIABLE, None)
    if reading is not None:
        # Not SIG_IGN: the commands that handlers run would inherit it.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        os.set_inheritable(int(reading), False)
        ending, ended = os.pipe()
        thread = threading.Thread(
            target=_wait, args=[int(reading), ending], name='lifeline', daemon=True)
        thread.start()
        atexit.register(_end, thread, ended)


def _end(thread: threading.Thread, ended: int) -> None:
    """End the thread before the interpreter does: a thread that is left can crash it."""
    if thread.is_alive():  # not in forks of this process
        os.write(ended, b'.')
        thread.join()


def _wait(reading: int, ending: int) -> None:
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(ending, select.POLLIN)
    if ending in dict(poll.poll()):
        return
    click.echo("The process that has started this one is gone. Stopping.", err=True)
    os.kill(os.getpid(), signal.SIGTERM)
