"""
A proxy between an operator and the API, for the tests which have to know each of its requests,
or to meddle with them.
"""

import asyncio
import base64
import dataclasses
import json
import pathlib
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import aiohttp
import aiohttp.web
import yaml

HOP_HEADERS = {'host', 'connection', 'transfer-encoding', 'content-length', 'authorization'}


class Dropped(Exception):
    """To be raised by interceptors: the connection is closed without an answer."""


@dataclasses.dataclass(eq=False)
class Request:
    """A request of the operator, and what the API has answered to it, once it has."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    """What was sent, as it is parsed from JSON."""
    status: int | None = None
    result: Any = None
    """What was answered, as it is parsed from JSON; None for watches."""
    done: bool = False
    """Whether all is over: answered (a watch: ended), or dropped."""

    @property
    def is_watch(self) -> bool:
        return self.query.get('watch') in ('true', '1')

    def __str__(self) -> str:
        kind = 'WATCH' if self.is_watch else self.method
        body = '' if self.body is None else f' {json.dumps(self.body)}'
        return f'{kind} {self.path}{body} -> {self.status}'


Moment = Literal['before', 'after']
Interceptor = Callable[[Request, Moment], None]


class Proxy:
    """
    A server on loopback that passes all requests to the API of the kubeconfig, with its rights.

    The ``interceptor`` is called with each request before it is sent to the API, and after the
    answer is there: all of it, or the headers only if it is a watch. It can raise `Dropped`, or
    whatever else it takes its time for: other requests wait for it. It is called in another thread.

    ``kubeconfig`` is the path of a kubeconfig of the proxy. To be used as a context manager.
    """

    def __init__(
            self,
            kubeconfig: str,
            folder: pathlib.Path,
            interceptor: Interceptor = lambda request, moment: None,
    ) -> None:
        with open(kubeconfig, encoding='utf-8') as file:
            config = yaml.safe_load(file)
        cluster = config['clusters'][0]['cluster']
        self._server = cluster['server']
        self._headers = {'Authorization': f"Bearer {config['users'][0]['user']['token']}"}
        self._ssl = ssl.create_default_context(
            cadata=base64.b64decode(cluster['certificate-authority-data']).decode())
        self.interceptor = interceptor
        self.requests: list[Request] = []
        """All the requests so far, in the order of their arrival."""
        self.kubeconfig = str(folder / f'proxy-{id(self):x}.yaml')
        self._started = threading.Event()
        self._stopping: asyncio.Future[None]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name='proxy')

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set_result, None)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = self._loop.create_future()
        self._pending: set[asyncio.Task[aiohttp.web.StreamResponse]] = set()
        async with aiohttp.ClientSession(
                base_url=self._server, headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=self._ssl, limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
        ) as self._session:
            server = aiohttp.web.Server(self._handle, handler_cancellation=True)
            listener = await self._loop.create_server(server, '127.0.0.1', 0)
            self._write_kubeconfig(listener.sockets[0].getsockname()[1])
            self._started.set()
            await self._stopping
            listener.close()
            await server.shutdown(timeout=0)
            if self._pending:
                await asyncio.wait(self._pending)

    def _write_kubeconfig(self, port: int) -> None:
        config = {
            'current-context': 'proxy',
            'contexts': [{'name': 'proxy', 'context': {'cluster': 'proxy', 'user': 'proxy'}}],
            'clusters': [{'name': 'proxy', 'cluster': {'server': f'http://127.0.0.1:{port}'}}],
            'users': [{'name': 'proxy', 'user': {'token': 'proxy'}}],
        }
        pathlib.Path(self.kubeconfig).write_text(yaml.safe_dump(config), encoding='utf-8')

    async def _handle(self, incoming: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        data = await incoming.read()
        request = Request(
            incoming.method, incoming.path, dict(incoming.query), json.loads(data or 'null'))
        self.requests.append(request)
        try:
            try:
                self.interceptor(request, 'before')
            except Dropped:
                request.done = True
                raise
            if request.is_watch:
                return await self._stream(incoming, request)
            # What is sent, is sent, whether or not the one who has asked lives on.
            task = asyncio.create_task(self._forward(incoming, request, data))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            return await asyncio.shield(task)
        except Dropped:
            if incoming.transport is not None:
                incoming.transport.abort()
            raise asyncio.CancelledError from None

    async def _forward(
            self, incoming: aiohttp.web.BaseRequest, request: Request, data: bytes,
    ) -> aiohttp.web.StreamResponse:
        try:
            async with self._session.request(
                    incoming.method, incoming.rel_url, data=data or None,
                    headers=_get_headers(incoming.headers), auto_decompress=False) as response:
                content = await response.read()
            if response.headers.get('Content-Encoding') is None and (
                    response.content_type == 'application/json'):
                request.result = json.loads(content)
            request.status = response.status
            self.interceptor(request, 'after')
            return aiohttp.web.Response(
                status=response.status, headers=_get_headers(response.headers), body=content)
        finally:
            request.done = True

    async def _stream(
            self, incoming: aiohttp.web.BaseRequest, request: Request,
    ) -> aiohttp.web.StreamResponse:
        try:
            async with self._session.request(
                    incoming.method, incoming.rel_url, headers=_get_headers(incoming.headers),
                    auto_decompress=False) as response:
                request.status = response.status
                self.interceptor(request, 'after')
                outgoing = aiohttp.web.StreamResponse(
                    status=response.status, headers=_get_headers(response.headers))
                await outgoing.prepare(incoming)
                async for chunk in response.content.iter_any():
                    await outgoing.write(chunk)
                return outgoing
        finally:
            request.done = True


def _get_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: val for key, val in headers.items() if key.lower() not in HOP_HEADERS}
