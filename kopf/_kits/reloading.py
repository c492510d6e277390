"""
Reloading: an operator in a child process, which is restarted when its files change.
"""
import contextlib
import logging
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

import click

from kopf._kits import lifelines, supervising

UNCACHED = {'PYTHONDONTWRITEBYTECODE': '1'}
"""
What makes a change seen: cached bytecode is valid by the size of a file and the second of its last
change, and two changes can share both.
"""

POLLING_MS = 200
"""How often to check whether the process has ended, in milliseconds."""


def run(args: Sequence[str], *, paths: Collection[pathlib.Path]) -> int:
    """
    Run ``kopf`` with these arguments, and restart it when a Python file in the folders of these
    absolute paths changes, or when there is another such folder.

    If the operator ends by itself, e.g. because a file cannot be loaded, the next change starts it
    again. Return the exit code of the last process after SIGINT or SIGTERM.
    """
    try:
        import watchfiles
    except ImportError:
        raise click.ClickException(
            "--reload needs the library watchfiles: install the extra `reload` of Kopf, "
            "or `pip install watchfiles`.") from None
    logging.getLogger(watchfiles.__name__).setLevel(logging.WARNING)  # changes are told below

    def send(number: int) -> None:
        if process is not None and process.poll() is None:
            process.send_signal(number)

    process: subprocess.Popen[bytes] | None = None
    is_told = False
    env = {**os.environ, **UNCACHED}
    with (contextlib.closing(lifelines.Lifeline()) as lifeline,
          supervising.forward_signals(send) as stopped):
        process = lifeline.start(args, env)
        for names in _watch(paths, stopped):
            if names:
                click.echo(f"Reloading, as {', '.join(sorted(names))} has changed.", err=True)
                send(signal.SIGTERM)
                process.wait()
                if not stopped.is_set():
                    process, is_told = lifeline.start(args, env), False
            elif process.poll() is not None and not is_told:
                click.echo("The operator has ended. It starts again when a file changes.", err=True)
                is_told = True
        process.wait()
    return lifelines.get_exit_code(process, is_stopped=True)


def _watch(
        paths: Collection[pathlib.Path], stopped: threading.Event,
) -> Iterator[Collection[str]]:
    """Yield the names of what has changed, until it is stopped; meanwhile, yield none of them."""
    import watchfiles
    is_polling: bool | None = None
    while not stopped.is_set():
        places = _locate(paths)
        try:
            for changes in watchfiles.watch(
                    *{folder for each in places.values() for folder, _ in each},
                    watch_filter=watchfiles.PythonFilter(), stop_event=stopped,
                    rust_timeout=POLLING_MS, yield_on_timeout=True, raise_interrupt=False,
                    force_polling=is_polling, ignore_permission_denied=True):
                names = {os.path.basename(path) for _, path in changes}
                names |= {
                    path.name for path, now in _locate(paths).items() if now != places[path]}
                yield names
                if names:
                    break
        except FileNotFoundError:  # a folder has just been removed
            pass
        except RuntimeError as e:  # e.g. others use all inotify instances of the system
            if is_polling:
                raise
            click.echo(f"The files are polled, as they cannot be watched: {e}", err=True)
            is_polling = True


def _locate(paths: Collection[pathlib.Path]) -> Mapping[pathlib.Path, Collection[tuple[str, int]]]:
    """
    Find the existing folders of each path: of its name, and of the file that a symlink leads to.

    A folder that was removed and made again is another one: so, there are also their inodes.
    """
    places: dict[pathlib.Path, set[tuple[str, int]]] = {path: set() for path in paths}
    for path, found in places.items():
        for file in (str(path), os.path.realpath(path)):
            with contextlib.suppress(OSError):
                found.add((folder := os.path.dirname(file), os.stat(folder).st_ino))
    return places
