"""
A proxy between an operator and the API server, which makes faults: whatever the API server is.

It forwards bytes and knows nothing of HTTP, except for that a client which sends something on a
connection waits for a response. So it keeps up with an hour of load, and does not grow. The proxy
of the end-to-end tests, `tests.e2e.proxy`, parses all requests and remembers them.
"""

import asyncio
import base64
import contextlib
import dataclasses
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any, Self

import yaml

from kopf._cogs.structs import credentials
from kopf._kits.sandbox import tls

WINDOW = 256 * 1024
"""How many bytes are forwarded at once."""

HEAD = b' HTTP/1.1\r\n'
"""The end of the first line of a request."""

REASONS = {429: 'Too Many Requests', 500: 'Internal Server Error', 503: 'Service Unavailable'}


@dataclasses.dataclass
class Traffic:
    """What an operator and the API server have exchanged."""
    connections: int = 0
    requests: int = 0
    sent: int = 0
    """The bytes from the operator."""
    received: int = 0
    """The bytes to the operator."""


class Proxy:
    """
    The proxy, as a context manager. It makes no faults until it is told to.

    Clients in Go send tokens only to a ``secure`` server: one with TLS.
    """

    def __init__(self, kubeconfig: str, *, secure: bool = False) -> None:
        self._own = tls.make('127.0.0.1') if secure else None
        self._config = yaml.safe_load(pathlib.Path(kubeconfig).read_text(encoding='utf-8'))
        self._cluster: dict[str, Any] = self._config['clusters'][0]['cluster']
        self._target = urllib.parse.urlsplit(self._cluster['server'])
        self._ssl = credentials.make_client_context(
            cadata=base64.b64decode(self._cluster['certificate-authority-data']).decode())
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self.traffic = Traffic()
        self._is_down = False
        self._refusal: int | None = None
        self._latency = 0.0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, '127.0.0.1', limit=WINDOW, ssl=self._own and self._own.context())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def write_kubeconfig(self, path: pathlib.Path) -> None:
        """Write the kubeconfig with the same users and the proxy as the server."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        cluster = {'server': f'http://127.0.0.1:{port}'} if self._own is None else {
            'server': f'https://127.0.0.1:{port}',
            'certificate-authority-data': base64.b64encode(self._own.authority).decode()}
        clusters = [{'name': each['name'], 'cluster': cluster} for each in self._config['clusters']]
        path.write_text(yaml.safe_dump({**self._config, 'clusters': clusters}), encoding='utf-8')

    def cut(self) -> None:
        """Break all connections, those of the watches included."""
        for writer in self._connections:
            writer.transport.abort()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Close all new connections at once."""
        self._is_down = True
        try:
            yield
        finally:
            self._is_down = False

    @contextlib.contextmanager
    def refusing(self, status: int) -> Iterator[None]:
        """Refuse all requests with this status."""
        self._refusal = status
        try:
            yield
        finally:
            self._refusal = None

    @contextlib.contextmanager
    def delaying(self, seconds: float) -> Iterator[None]:
        """
        Delay everything that comes from the API server. It comes at most as a window at a time.

        So each connection has a throughput, as by the windows of TCP.
        """
        self._latency = seconds
        try:
            yield
        finally:
            self._latency = 0.0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        if self._is_down:
            writer.close()
            return
        self._connections.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            backend, upstream = await asyncio.open_connection(
                self._target.hostname, self._target.port, ssl=self._ssl, limit=WINDOW)
            self._connections.add(upstream)
            requests = asyncio.create_task(self._request(reader, writer, upstream))
            responses = asyncio.create_task(self._respond(backend, writer))
            both = {requests, responses}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass  # the API server is away
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._connections.discard(end)
                    end.close()

    async def _request(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
            upstream: asyncio.StreamWriter,
    ) -> None:
        while chunk := await reader.read(WINDOW):
            self.traffic.requests += chunk.count(HEAD)
            self.traffic.sent += len(chunk)
            if self._refusal is not None:
                writer.write(
                    f'HTTP/1.1 {self._refusal} {REASONS[self._refusal]}\r\nRetry-After: 1\r\n'
                    'Content-Length: 0\r\nConnection: close\r\n\r\n'.encode())
                await writer.drain()
                return
            upstream.write(chunk)
            await upstream.drain()

    async def _respond(self, backend: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await backend.read(WINDOW):
            self.traffic.received += len(chunk)
            if self._latency:
                await asyncio.sleep(self._latency)
            writer.write(chunk)
            await writer.drain()
