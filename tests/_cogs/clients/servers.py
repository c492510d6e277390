"""
A small server on loopback which answers as the test says: for faults that no real API makes to
order.
"""
import asyncio
import dataclasses
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    time: float
    peer: tuple[str, int]
    """The address of the client: another one for each connection."""


class Server:
    """
    Answers the requests with the scripted replies, one after another; the last one for ever.

    Scripts are either for all requests, or for those with a path (which then goes first), or for
    watches only (``'watch'``, ``'watch /path'``). It runs in a thread, with a loop of its own.
    """

    def __init__(self, *, ssl: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.url = ''
        self._ssl = ssl
        self._scripts: dict[str, list[Reply]] = {}
        self._thread = threading.Thread(target=self._run)
        self._started = threading.Event()
        self._stopped = asyncio.Event()

    def script(self, *replies: Reply, on: str = '') -> None:
        self._scripts[on] = list(replies)

    def count(self, **query: str) -> int:
        """How many requests had these parameters."""
        return sum(1 for req in self.requests if query.items() <= dict(req.query).items())

    @property
    def watches(self) -> list[Received]:
        return [req for req in self.requests if 'watch' in req.query]

    @property
    def lists(self) -> list[Received]:
        return [req for req in self.requests if 'watch' not in req.query]

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_route('*', '/{path:.*}', self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True,
                               access_log=None)
        await runner.setup()
        await web.TCPSite(runner, '127.0.0.1', 0, ssl_context=self._ssl).start()
        host, port = runner.addresses[0][:2]
        self.url = f"{'https' if self._ssl else 'http'}://{host}:{port}"
        self._started.set()
        await self._stopped.wait()
        await asyncio.sleep(0.01)  # let the connections be accepted
        await runner.cleanup()
        leftovers = asyncio.all_tasks() - {asyncio.current_task()}
        if leftovers:
            await asyncio.wait(leftovers, timeout=1)
        await asyncio.sleep(0.01)  # let the transports be closed

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(Received(
            request.method, request.path, request.query.copy(), request.headers.copy(),
            await request.read(), asyncio.get_running_loop().time(),
            request.get_extra_info('peername')))
        keys = [request.path, '']
        if 'watch' in request.query:
            keys = [f'watch {request.path}', 'watch', *keys]
        script = next((self._scripts[key] for key in keys if key in self._scripts), None)
        if not script:
            return web.json_response({'kind': 'Status', 'message': 'not scripted'}, status=404)
        reply = script.pop(0) if len(script) > 1 else script[0]
        return await reply(request)


def say(payload: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Answer with JSON."""
    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response(payload, status=status, headers=headers)
    return reply


def say_raw(raw: bytes, *, status: int = 200) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, status=status)
    return reply


def refuse(
        status: int,
        message: str = 'no',
        *,
        reason: str = '',
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
) -> Reply:
    """Answer with an error, as Kubernetes does it."""
    return say(make_status(status, message, reason=reason, details=details),
               status=status, headers=headers)


def make_status(
        status: int,
        message: str = 'no',
        *,
        reason: str = '',
        details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'message': message,
        'reason': reason, 'code': status, 'details': details or {},
    }


def drop() -> Reply:
    """Close the connection without any answer."""
    async def reply(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    return reply


def hang() -> Reply:
    """Never answer."""
    async def reply(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()
    return reply


def show(
        *names: str,
        version: str = '100',
        more: str | None = None,
) -> Reply:
    """Answer with a list of objects."""
    return say({
        'kind': 'ThingList', 'apiVersion': 'g.test/v1',
        'metadata': {'resourceVersion': version, **({'continue': more} if more else {})},
        'items': [make_object(name, version=version) for name in names],
    })


def make_object(name: str, *, version: str = '100') -> dict[str, Any]:
    return {'metadata': {'name': name, 'uid': f'uid-{name}', 'resourceVersion': version}}


def make_event(type: str, name: str, version: str) -> bytes:
    body = {'apiVersion': 'g.test/v1', 'kind': 'Thing', **make_object(name, version=version)}
    return json.dumps({'type': type, 'object': body}).encode() + b'\n'


def make_bookmark(version: str, **annotations: str) -> bytes:
    body = {'metadata': {'resourceVersion': version, 'annotations': annotations}}
    return json.dumps({'type': 'BOOKMARK', 'object': body}).encode() + b'\n'


def make_initial_end(version: str) -> bytes:
    body = {'metadata': {
        'resourceVersion': version, 'annotations': {'k8s.io/initial-events-end': 'true'}}}
    return json.dumps({'type': 'BOOKMARK', 'object': body}).encode() + b'\n'


def make_error(status: int, message: str = 'no', *, reason: str = '') -> bytes:
    error = make_status(status, message, reason=reason)
    return json.dumps({'type': 'ERROR', 'object': error}).encode() + b'\n'


def flow(*chunks: bytes | float, then: str = 'hang') -> Reply:
    """
    Answer with a stream of chunks; numbers are pauses. Then hang, drop the connection, or end.
    """
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            if isinstance(chunk, bytes):
                await response.write(chunk)
            else:
                await asyncio.sleep(chunk)
        if then == 'hang':
            await asyncio.Event().wait()
        if then == 'drop':
            await asyncio.sleep(0.01)
            assert request.transport is not None
            request.transport.abort()
        return response
    return reply
