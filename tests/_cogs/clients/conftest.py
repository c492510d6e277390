import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import aresponses
import pytest

from kopf._cogs.clients import api, watching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from tests._cogs.clients.servers import Server

# Otherwise, a loop is made for every first synchronous fixture of a process, and is never closed.
asyncio.set_event_loop(None)


@pytest.fixture()
def settings() -> configuration.OperatorSettings:
    settings = configuration.OperatorSettings()
    settings.networking.error_backoffs = [0.01, 0.02, 0.03]
    settings.watching.reconnect_backoff = 0.01
    return settings


@pytest.fixture()
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture()
async def client(
        server: Server,
        settings: configuration.OperatorSettings,
) -> AsyncIterator[api.Client]:
    info = credentials.ConnectionInfo(server=server.url, token='s3cret-t0ken')
    async with api.Client(credentials=info, settings=settings) as client:
        yield client


@pytest.fixture()
async def odd(
        settings: configuration.OperatorSettings,
) -> AsyncIterator[Callable[[bytes], contextlib.AbstractAsyncContextManager[api.Client]]]:
    """A client whose next request to read anything gets this one odd answer."""
    async with aresponses.ResponsesMockServer() as server:
        @contextlib.asynccontextmanager
        async def answer(body: bytes, *, status: int = 200) -> AsyncIterator[api.Client]:
            server.add('api.test', response=server.Response(body=body, status=status))
            info = credentials.AiohttpSession(
                server='http://api.test', aiohttp_session=aiohttp.ClientSession())
            async with api.Client(credentials=info, settings=settings) as client:
                yield client
            server.assert_plan_strictly_followed()

        yield answer


@pytest.fixture()
def resource() -> references.Resource:
    return references.Resource('g.test', 'v1', 'things', kind='Thing', namespaced=True)


class Recorder(watching.Sink):
    """A sink that remembers what it got, and lets tests wait for it."""
    listing = filling = screen = None

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.bodies: list[Any] = []
        self._event = asyncio.Event()

    def list_started(self, *, restored: bool) -> None:
        self._add('restored' if restored else 'begin')

    def listed(self, body: Any, packed: bytes | None = None) -> None:
        self.bodies.append(body)
        self._add('listed', body['metadata']['name'])

    def list_ended(self) -> None:
        self._add('end')

    def changed(self, type: str, body: Any, line: bytes) -> None:
        self.bodies.append(body)
        self._add(type, body['metadata']['name'], body['metadata']['resourceVersion'])

    def skipped(self, type: str | None, body: Any) -> None:
        self._add('skipped', type, body['metadata']['name'])

    def _add(self, *item: Any) -> None:
        self.seen.append(item)
        self._event.set()

    async def wait(self, *item: Any, count: int = 1) -> None:
        """Wait until it has got that, so many times."""
        await self.wait_until(lambda: self.seen.count(item) >= count)

    async def wait_until(self, fn: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not fn():
                self._event.clear()
                await self._event.wait()


@pytest.fixture()
def sink() -> Recorder:
    return Recorder()


@pytest.fixture()
def watch(
        client: api.Client,
        settings: configuration.OperatorSettings,
        resource: references.Resource,
        sink: Recorder,
        monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., contextlib.AbstractAsyncContextManager['asyncio.Task[None]']]:
    """Watch in the background: ``async with watch(): ...``."""
    monkeypatch.setattr(watching, 'MIN_INTERVAL', 0.05)

    @contextlib.asynccontextmanager
    async def start(**kwargs: Any) -> AsyncIterator['asyncio.Task[None]']:
        kwargs.setdefault('namespace', None)
        task = asyncio.create_task(watching.watch(
            client, settings=settings, resource=resource, sink=sink, **kwargs))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return start


@pytest.fixture()
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until something is so."""
    async def wait(fn: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not fn():
                await asyncio.sleep(0.005)
    return wait
