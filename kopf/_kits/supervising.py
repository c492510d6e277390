"""
Supervising: several processes of one operator on one machine, which share its objects by shards.
"""
import asyncio
import contextlib
import http.client
import json
import queue
import signal
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import click

from kopf._cogs.serving import endpoints, exchanges
from kopf._core.engines.liveness import answering
from kopf._kits import lifelines, siblings

LIVENESS = '--liveness'

ANSWER_TIMEOUT = answering.LOOP_TIMEOUT + 5.0
"""How long (seconds) the answer of a process about its health can take."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(args: Sequence[str], *, number: int, served: Mapping[str, str]) -> int:
    """
    Run this number of ``kopf`` processes with these arguments until they end; return the exit code.

    If one process ends by itself, this function stops the others, so that the supervisor of all of
    them can start them again. The exit code is that of the process which has ended first. If the
    parent process is killed, its processes stop by themselves.

    ``served`` are the URLs at which the processes serve something, by their options. The first
    process uses their ports; each next process uses the next port. But the URL of the health checks
    is for all processes together, so there the first process uses the next port.

    :raises endpoints.EndpointError: if the health checks cannot be served, or the ports clash.
    """
    own = assign(number, served)
    processes: list[subprocess.Popen[bytes]] = []

    def send(number: int) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    ended: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        forwarded = stack.enter_context(forward_signals(send))
        lifeline = stack.enter_context(contextlib.closing(lifelines.Lifeline()))
        if LIVENESS in served:
            stack.enter_context(serve_health(served[LIVENESS], [urls[LIVENESS] for urls in own]))
        for urls in own:
            options = [f'{option}={url}' for option, url in urls.items()]
            process = lifeline.start([*args, *options], siblings.make_environment(number))
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
    return lifelines.get_exit_code(first, is_stopped=forwarded.is_set())


def assign(number: int, served: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    """
    Get the URLs of each process.

    :raises endpoints.EndpointError: if several processes would use the same port.
    """
    own = [
        {option: shift(url, i + (option == LIVENESS)) for option, url in served.items()}
        for i in range(number)]
    common = {option: url for option, url in served.items() if option == LIVENESS}
    ports = [
        {endpoints.Endpoint.parse(url).port for url in urls.values()} - {0}
        for urls in (common, *own)]
    if sum(map(len, ports)) > len(set().union(*ports)):
        raise endpoints.EndpointError(
            f"Each of the {number} processes has ports of its own for {' and '.join(served)}. Let "
            f"the ports of these options be at least {number + 1} apart.")
    return own


def _wait(
        process: 'subprocess.Popen[bytes]',
        ended: 'queue.SimpleQueue[subprocess.Popen[bytes]]',
) -> None:
    process.wait()
    ended.put(process)


@contextlib.contextmanager
def serve_health(url: str, asked: Sequence[str]) -> Iterator[None]:
    """
    Serve the health of several processes together. Each process serves its own health at one of the
    ``asked`` URLs.

    Serve nothing if the port is 0, i.e. any free port: then, nobody knows the ports of the
    processes.
    """
    endpoint = endpoints.Endpoint.parse(url)
    processes = [endpoints.Endpoint.parse(item) for item in asked]
    if not endpoint.port:
        yield
        return
    from kopf._cogs.serving import pages  # only if it is used
    server = pages.Server([endpoints.Page(
        'health checks of all processes', LIVENESS, endpoint, lambda _: gather_health(processes))])
    asyncio.run(server.start())  # it serves in a thread of its own
    try:
        yield
    finally:
        asyncio.run(server.stop())


async def gather_health(processes: Sequence[endpoints.Endpoint]) -> exchanges.Response:
    """Ask all processes for their health; the status is the worst one."""
    answers = await asyncio.gather(*(asyncio.to_thread(_ask, process) for process in processes))
    return exchanges.Response(
        max(status for status, _ in answers),
        json.dumps({'processes': [body for _, body in answers]}).encode())


def _ask(process: endpoints.Endpoint) -> tuple[int, Any]:
    host = {'0.0.0.0': '127.0.0.1', '::': '::1'}.get(process.host or '', process.host)
    connection = http.client.HTTPConnection(
        host or '127.0.0.1', process.port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request('GET', process.path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as e:
        return 503, {'problems': {'process': f"no answer at {process}: {e or 'timeout'}"}}
    finally:
        connection.close()


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
    Call the function for SIGINT and SIGTERM, to send these signals to child processes.

    The event is set at the first signal. On Ctrl+C, the terminal also signals the child processes.
    So the first signal is sent to them as SIGTERM: however late it comes, operators do not take it
    for a second Ctrl+C.
    """
    known: dict[signal.Signals, Any] = {}
    forwarded = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        is_first = not forwarded.is_set()
        forwarded.set()
        forward(signal.SIGTERM if is_first else number)

    for number in SIGNALS:
        known[number] = signal.signal(number, handle)
    try:
        yield forwarded
    finally:
        for number, previous in known.items():
            signal.signal(number, previous)
