"""
Supervising: several processes of one operator on one machine, which share its objects by shards.
"""
import contextlib
import queue
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import click

from kopf._core.engines.liveness import endpoints

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(args: Sequence[str], *, number: int, served: Mapping[str, str]) -> int:
    """
    Run so many processes of ``kopf`` with these arguments, until they end; return the exit code.

    If a process ends by itself, the others are stopped, too: whoever has started all of them can
    start them again. The exit code is that of the process which has ended first.

    ``served`` are the URLs at which the processes serve something, by their options. The ports of
    the first process are these; those of the next ones are higher by 1 each.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def send(number: int) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    ended: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    with forward_signals(send) as forwarded:
        for i in range(number):
            options = [f'{option}={shift(url, i)}' for option, url in served.items()]
            process = subprocess.Popen([sys.executable, '-m', 'kopf', *args, *options])
            processes.append(process)
            threading.Thread(target=_wait, args=[process, ended], daemon=True).start()
        if forwarded.is_set():  # before all of them were there
            send(signal.SIGTERM)
        first = ended.get()
        if not forwarded.is_set():
            click.echo(f"A process of the operator has ended: {first.returncode}. Stopping all of "
                       f"them.", err=True)
            send(signal.SIGTERM)
        for process in processes:
            process.wait()
    code = first.returncode
    return code if code >= 0 else 128 - code


def _wait(
        process: 'subprocess.Popen[bytes]',
        ended: 'queue.SimpleQueue[subprocess.Popen[bytes]]',
) -> None:
    process.wait()
    ended.put(process)


def shift(url: str, offset: int) -> str:
    """Get the URL with a port that is so much higher; 0 stays, as it is any free port."""
    port = endpoints.Endpoint.parse(url).port
    port = port and port + offset
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition(':')[0] if parts.port is not None else parts.netloc
    return parts._replace(netloc=f'{host}:{port}').geturl()


@contextlib.contextmanager
def forward_signals(forward: Callable[[int], None]) -> Iterator[threading.Event]:
    """
    Call the function for SIGINT and SIGTERM, to send them to child processes.

    The event is set then. For Ctrl+C, the terminal signals the children too. Operators count both
    signals as one.
    """
    known: dict[signal.Signals, Any] = {}
    forwarded = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        forwarded.set()
        forward(number)

    for number in SIGNALS:
        known[number] = signal.signal(number, handle)
    try:
        yield forwarded
    finally:
        for number, previous in known.items():
            signal.signal(number, previous)
