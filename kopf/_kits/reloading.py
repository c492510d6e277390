"""
Reloading: an operator in a child process, which is restarted when its files change.
"""
import pathlib
import signal
import subprocess
import threading
from collections.abc import Sequence

import click

from kopf._kits import lifelines, supervising

POLLING_MS = 200
"""How often to check whether the process has ended, in milliseconds."""


def run(args: Sequence[str], *, folders: Sequence[pathlib.Path]) -> int:
    """
    Run ``kopf`` with these arguments, and restart it when a Python file in the folders changes.

    If the operator ends by itself, e.g. because a file cannot be loaded, the next change starts it
    again. Return the exit code of the last process after SIGINT or SIGTERM.
    """
    try:
        import watchfiles
    except ImportError:
        raise click.ClickException(
            "--reload needs the library watchfiles: install the extra `reload` of Kopf, "
            "or `pip install watchfiles`.") from None

    supervisor = _Supervisor(args)
    with supervising.forward_signals(supervisor.forward):
        supervisor.start()
        for changes in watchfiles.watch(
                *folders, watch_filter=watchfiles.PythonFilter(), stop_event=supervisor.stopped,
                rust_timeout=POLLING_MS, yield_on_timeout=True, raise_interrupt=False):
            if changes:
                names = sorted({pathlib.Path(path).name for _, path in changes})
                click.echo(f"Reloading, as {', '.join(names)} has changed.", err=True)
                supervisor.stop()
                supervisor.start()
            elif supervisor.has_ended():
                click.echo("The operator has ended. It starts again when a file changes.", err=True)
        return supervisor.finish()


class _Supervisor:
    """The process of the operator, and the signals for it."""

    def __init__(self, args: Sequence[str]) -> None:
        super().__init__()
        self.stopped = threading.Event()
        self._args = args
        self._lifeline = lifelines.Lifeline()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_told = False

    def start(self) -> None:
        if not self.stopped.is_set():
            self._is_told = False
            self._process = self._lifeline.start(self._args)

    def has_ended(self) -> bool:
        """Whether the process has ended by itself; true only once per process."""
        assert self._process is not None
        has_ended = self._process.poll() is not None and not self._is_told
        self._is_told = self._is_told or has_ended
        return has_ended

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def finish(self) -> int:
        assert self._process is not None
        code = self._process.wait()
        self._lifeline.close()
        return code if code >= 0 else 128 - code

    def forward(self, number: int) -> None:
        """Stop restarting, and send the signal to the process."""
        self.stopped.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
