"""
A proxy before a real Kubernetes API that does to requests and streams what networks and servers
do.

It listens by plain HTTP on loopback, and puts the credentials of the kubeconfig into the requests
by itself. It runs in a thread with an event loop of its own, so it can be used from anywhere.

    with Proxy(kubeconfig) as proxy:
        proxy.write_kubeconfig(path)                    # for those who go through it
        proxy.fail(503, match=is_watch, times=3)        # the next 3 watches
        outage = proxy.refuse()                         # all new requests, and nothing gets through
        outage.end()
        proxy.cut_streams()                             # the watches of now
        proxy.requests                                  # all that came
"""
import asyncio
import base64
import contextlib
import dataclasses
import json
import pathlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

from kopf._cogs.structs import credentials

Match = Callable[[web.Request], bool]
Act = Callable[[web.Request, 'Proxy'], Awaitable[web.StreamResponse]]

HOP_BY_HOP = frozenset({
    'connection', 'content-length', 'host', 'keep-alive', 'te', 'trailer', 'transfer-encoding',
    'upgrade', 'authorization', 'content-encoding', 'accept-encoding',
})


def is_watch(request: web.Request) -> bool:
    return 'watch' in request.query


def is_list(request: web.Request) -> bool:
    return request.method == 'GET' and 'watch' not in request.query


def is_patch(request: web.Request) -> bool:
    return request.method == 'PATCH'


@dataclasses.dataclass
class Request:
    """What has come; the status is that of the answer, None if there was none."""
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    time: float
    status: int | None = None
    faulty: bool = False

    @property
    def is_watch(self) -> bool:
        return 'watch' in self.query


class Fault:
    """Something that happens to the requests that match, so many times, or until it is ended."""

    def __init__(self, act: Act, match: Match | None, times: int | None) -> None:
        self.act = act
        self.hits = 0
        self._match = match
        self._left = times

    def end(self) -> None:
        self._left = 0

    def takes(self, request: web.Request) -> bool:
        if self._left == 0 or (self._match is not None and not self._match(request)):
            return False
        self.hits += 1
        if self._left is not None:
            self._left -= 1
        return True


class Stream:
    """A watch that is forwarded; it is open when the API has begun its response."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.response: web.StreamResponse | None = None
        self.stalled = False


class Proxy:

    def __init__(self, kubeconfig: str, *, agent: str | None = None) -> None:
        """With an agent, all requests have that ``User-Agent``: e.g. for the audit log."""
        config = yaml.safe_load(pathlib.Path(kubeconfig).read_text(encoding='utf-8'))
        cluster = config['clusters'][0]['cluster']
        self.url = ''
        self.requests: list[Request] = []
        self._added = {'Accept-Encoding': 'identity',
                       'Authorization': f'Bearer {config["users"][0]["user"]["token"]}',
                       **({} if agent is None else {'User-Agent': agent})}
        self._server = cluster['server']
        self._ssl = credentials.make_client_context(
            cadata=base64.b64decode(cluster['certificate-authority-data']).decode())
        self._faults: list[Fault] = []
        self._streams: set[Stream] = set()
        self._passing: set[asyncio.Task[web.StreamResponse]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def write_kubeconfig(self, path: pathlib.Path) -> str:
        """Write a kubeconfig for those who are to go through the proxy; returns its path."""
        path.write_text(yaml.safe_dump({
            'current-context': 'proxy',
            'contexts': [{'name': 'proxy', 'context': {'cluster': 'proxy', 'user': 'proxy'}}],
            'clusters': [{'name': 'proxy', 'cluster': {'server': self.url}}],
            'users': [{'name': 'proxy', 'user': {'token': 'of-no-use'}}],
        }), encoding='utf-8')
        return str(path)

    @property
    def watches(self) -> list[Request]:
        return [request for request in self.requests if request.is_watch]

    @property
    def lists(self) -> list[Request]:
        return [req for req in self.requests if req.method == 'GET' and not req.is_watch]

    @property
    def patches(self) -> list[Request]:
        return [request for request in self.requests if request.method == 'PATCH']

    @property
    def is_idle(self) -> bool:
        """Whether all that has come is forwarded and answered, and all clients are gone."""
        return not self._passing and not self._runner.server.connections

    # What can happen to requests.

    def inject(self, act: Act, *, match: Match | None = None, times: int | None = 1) -> Fault:
        """Let this happen instead of forwarding; ``times=None`` means: until it is ended."""
        fault = Fault(act, match, times)
        self._faults.append(fault)
        return fault

    def fail(
            self,
            status: int,
            message: str = 'injected',
            *,
            reason: str = '',
            headers: Mapping[str, str] | None = None,
            match: Match | None = None,
            times: int | None = 1,
    ) -> Fault:
        """Answer with an error, as the API does."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            return web.json_response({
                'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'code': status,
                'message': message, 'reason': reason,
            }, status=status, headers=headers)
        return self.inject(act, match=match, times=times)

    def say(
            self,
            *chunks: bytes,
            drop: bool = False,
            match: Match | None = None,
            times: int | None = 1,
    ) -> Fault:
        """Answer 200 with these bytes, then end the answer, or drop the connection."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            response = web.StreamResponse(headers={'Content-Type': 'application/json'})
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            if drop:
                await asyncio.sleep(0.05)
                abort(request)
            return response
        return self.inject(act, match=match, times=times)

    def refuse(self, *, match: Match | None = None, times: int | None = None) -> Fault:
        """Close the connection without an answer; nothing gets to the API."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            abort(request)
            return web.Response()
        return self.inject(act, match=match, times=times)

    def drop_replies(self, *, match: Match | None = None, times: int | None = 1) -> Fault:
        """Forward to the API, but close the connection instead of giving the answer back."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            async with proxy.forward(request) as upstream:
                await upstream.read()
            abort(request)
            return web.Response()
        return self.inject(act, match=match, times=times)

    def hang(self, *, match: Match | None = None, times: int | None = 1) -> Fault:
        """Never answer; nothing gets to the API."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            await asyncio.Event().wait()
            return web.Response()
        return self.inject(act, match=match, times=times)

    def delay(
            self, seconds: float, *, match: Match | None = None, times: int | None = 1,
    ) -> Fault:
        """Wait, then forward."""
        async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
            await asyncio.sleep(seconds)
            return await proxy.pass_through(request)
        return self.inject(act, match=match, times=times)

    # What can happen to streams; it happens to those that are forwarded now, open or not yet: so,
    # each watch either is one of them or has met the faults before. Returns their number.

    def cut_streams(self, match: Match | None = None) -> int:
        """Drop the connections, in the midst of whatever is sent."""
        return self._act(match, lambda stream: abort(stream.request))

    def stall_streams(self, match: Match | None = None) -> int:
        """Let nothing through any more, but keep the connections open."""
        def stall(stream: Stream) -> None:
            stream.stalled = True
        return self._act(match, stall)

    def write_to_streams(
            self, data: bytes, match: Match | None = None, *, cut: bool = False,
    ) -> int:
        """
        Put something into those that are open: an event, garbage, half a line. Then, maybe, drop
        the connections.
        """
        async def write(stream: Stream) -> None:
            await stream.response.write(data)
            if cut:
                await asyncio.sleep(0.05)
                abort(stream.request)
        return self._act(
            match, lambda stream: asyncio.ensure_future(write(stream)), only_open=True)

    def count_streams(self, match: Match | None = None) -> int:
        """Count those that are open."""
        return len(self._choose(match, only_open=True))

    def _choose(self, match: Match | None, *, only_open: bool) -> list[Stream]:
        return [item for item in self._streams
                if (match is None or match(item.request))
                and (item.response is not None or not only_open)]

    def _act(
            self, match: Match | None, fn: Callable[[Stream], Any], *, only_open: bool = False,
    ) -> int:
        async def act() -> int:
            chosen = self._choose(match, only_open=only_open)
            for stream in chosen:
                fn(stream)
            return len(chosen)
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(timeout=10)

    # Its work.

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        app = web.Application(client_max_size=100 * 1024 * 1024)
        app.router.add_route('*', '/{path:.*}', self._handle)
        runner = self._runner = web.AppRunner(
            app, shutdown_timeout=0.01, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, '127.0.0.1', 0).start()
        host, port = runner.addresses[0][:2]
        self.url = f'http://{host}:{port}'
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._ssl, limit=0),
            timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False,
        ) as self._session:
            self._started.set()
            await self._stopped.wait()
            for stream in self._streams:
                abort(stream.request)
            await asyncio.sleep(0.01)
            await runner.cleanup()
            await asyncio.gather(*self._passing, return_exceptions=True)
        await asyncio.sleep(0.05)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        record = Request(
            request.method, request.path, dict(request.query), dict(request.headers),
            await request.read(), time.monotonic())
        self.requests.append(record)
        fault = next((fault for fault in self._faults if fault.takes(request)), None)
        record.faulty = fault is not None
        if fault is not None:
            response = await fault.act(request, self)
        else:
            response = await self.pass_through(request)
        record.status = response.status
        return response

    @contextlib.asynccontextmanager
    async def forward(self, request: web.Request) -> 'Iterator[aiohttp.ClientResponse]':
        headers = {
            key: val for key, val in request.headers.items() if key.lower() not in HOP_BY_HOP}
        async with self._session.request(
            request.method, self._server + request.raw_path, data=await request.read() or None,
            headers={**headers, **self._added},
            skip_auto_headers=['Content-Type'],
        ) as response:
            yield response

    async def pass_through(self, request: web.Request) -> web.StreamResponse:
        """Forward to the API, and make the response; a watch is over when this returns."""
        if is_watch(request):
            stream = Stream(request)
            self._streams.add(stream)
            try:
                return await self._stream_through(stream)
            finally:
                self._streams.discard(stream)
        # The API finishes what it was sent, whether or not the client lives to see that.
        task = asyncio.ensure_future(self._pass_through(request))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        return await asyncio.shield(task)

    async def _pass_through(self, request: web.Request) -> web.StreamResponse:
        async with self.forward(request) as upstream:
            return await respond(upstream)

    async def _stream_through(self, stream: Stream) -> web.StreamResponse:
        async with self.forward(stream.request) as upstream:
            if upstream.status != 200:
                return await respond(upstream)
            response = web.StreamResponse(headers=select_headers(upstream))
            await response.prepare(stream.request)
            stream.response = response
            async for chunk in upstream.content.iter_any():
                if stream.stalled:
                    await asyncio.Event().wait()
                await response.write(chunk)
            return response


def select_headers(upstream: aiohttp.ClientResponse) -> dict[str, str]:
    return {key: val for key, val in upstream.headers.items() if key.lower() not in HOP_BY_HOP}


async def respond(upstream: aiohttp.ClientResponse) -> web.Response:
    return web.Response(
        status=upstream.status, headers=select_headers(upstream), body=await upstream.read())


def make_error_event(status: int, message: str = 'injected', *, reason: str = '') -> bytes:
    """A line for streams."""
    return json.dumps({'type': 'ERROR', 'object': {
        'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'code': status,
        'message': message, 'reason': reason,
    }}).encode() + b'\n'


def abort(request: web.Request) -> None:
    """Drop the connection."""
    if request.transport is not None:
        request.transport.abort()
