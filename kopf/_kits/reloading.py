"""
Reloading: an operator in a child process, which is restarted when its files change.
"""
import contextlib
import logging
import os
import pathlib
import signal
import subprocess
from collections.abc import Sequence

import click

from kopf._kits import lifelines, supervising

UNCACHED = {'PYTHONDONTWRITEBYTECODE': '1'}
"""
What makes a change seen: cached bytecode is valid by the size of a file and the second of its last
change, and two changes can share both.
"""

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
    logging.getLogger('watchfiles').setLevel(logging.WARNING)  # what has changed is told below

    def send(number: int) -> None:
        if process is not None and process.poll() is None:
            process.send_signal(number)

    process: subprocess.Popen[bytes] | None = None
    is_told = False
    env = {**os.environ, **UNCACHED}
    with (contextlib.closing(lifelines.Lifeline()) as lifeline,
          supervising.forward_signals(send) as stopped):
        process = lifeline.start(args, env)
        for changes in watchfiles.watch(
                *folders, watch_filter=watchfiles.PythonFilter(), stop_event=stopped,
                rust_timeout=POLLING_MS, yield_on_timeout=True, raise_interrupt=False):
            if changes:
                names = sorted({pathlib.Path(path).name for _, path in changes})
                click.echo(f"Reloading, as {', '.join(names)} has changed.", err=True)
                send(signal.SIGTERM)
                process.wait()
                if not stopped.is_set():
                    process, is_told = lifeline.start(args, env), False
            elif process.poll() is not None and not is_told:
                click.echo("The operator has ended. It starts again when a file changes.", err=True)
                is_told = True
        process.wait()
    return lifelines.get_exit_code(process, is_stopped=True)
