"""
A world for hostile input: a sandbox, an operator, and a server before the sandbox that lies, all in
one event loop with virtual time; what the operator does is counted.
"""
import asyncio
import collections
import contextlib
import gc
import logging
import sys

import aiohttp
from aiohttp import web

import kopf
from kopf import testing
from kopf.testing import virtual_time

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'kopfexamples.kopf.dev'},
    'spec': {
        'group': 'kopf.dev', 'scope': 'Namespaced',
        'names': {'kind': 'KopfExample', 'plural': 'kopfexamples', 'singular': 'kopfexample'},
        'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': {
            'openAPIV3Schema': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}],
    },
}
"""Any JSON is accepted everywhere but in the metadata; the status is no subresource."""

FRAMEWORK = ('kopf._cogs.', 'kopf._core.')
CONNECTIONS = (
    'kopf._cogs.aiokits.timeouts', 'kopf._cogs.clients.connections',
    'kopf._cogs.clients.connectors', 'kopf._cogs.clients.httpsessions', 'kopf._cogs.clients.api')
STORMS = 3
MAX_GROWTH = 10
"""How many more objects of one type can there be after a storm than after the one before."""

__all__ = ['virtual_time']


class Liar:
    """
    A server that forwards all requests to the sandbox, and changes some of the answers.

    A lie is a function that takes the request and (a line of) the answer, and returns another one.
    """

    def __init__(self, url):
        self.requests = []
        self.lies = []
        self.statuses = {}
        """The HTTP status of the answers to some paths, whatever the real one is."""
        self._url = url

    def lie(self, is_meant, lie):
        self.lies.append((is_meant, lie))

    def count(self, is_meant=lambda method, path: True):
        return sum(is_meant(method, path) for method, path in self.requests)

    async def send(self, method, path, text, content_type):
        async with self._session.request(
            method, self._url + path, data=text, headers={'Content-Type': content_type},
        ) as response:
            await response.read()
            return response.status

    @contextlib.asynccontextmanager
    async def serve(self):
        runner = web.ServerRunner(web.Server(
            self._answer, handler_cancellation=True, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, '127.0.0.1', 0).start()
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            yield f'http://127.0.0.1:{runner.addresses[0][1]}'
            await runner.cleanup()
        for _ in range(10):
            await asyncio.sleep(0)

    async def _answer(self, request):
        path = request.raw_path
        self.requests.append((request.method, path))
        lies = [lie for is_meant, lie in self.lies if is_meant(request.method, path)]
        headers = {key: val for key, val in request.headers.items()
                   if key in ('Content-Type', 'Accept', 'Authorization', 'User-Agent')}
        async with self._session.request(
            request.method, self._url + path, data=await request.read() or None, headers=headers,
            timeout=aiohttp.ClientTimeout(total=None), skip_auto_headers=['Content-Type'],
        ) as real:
            if 'watch=' not in path:
                body = await real.read()
                for lie in lies:
                    body = lie(body)
                return web.Response(
                    status=self.statuses.get(path.partition('?')[0], real.status), body=body,
                    content_type='application/json')
            response = web.StreamResponse(status=real.status)
            await response.prepare(request)
            async for line in real.content:
                for lie in lies:
                    line = lie(line)
                await response.write(line)
            return response


class World:
    """What a test works with: the API, the operator, the lies, and the counts."""

    def __init__(self, api, liar, make):
        self.api = api
        self.liar = liar
        self.operator = make()
        self._make = make

    async def restart(self):
        """Replace the operator by another one."""
        await self.operator.stop()
        self.operator = self._make()
        await self.operator.start()

    async def send(self, method, text, name='', *, content_type='application/json'):
        """Send any text to the sandbox as it is; return the status of the answer."""
        path = f'/apis/kopf.dev/v1/namespaces/default/kopfexamples/{name}'
        return await self.liar.send(method, path.rstrip('/'), text, content_type)

    async def create(self, name, **fields):
        metadata = {'name': name, 'namespace': 'default', **fields.pop('metadata', {})}
        return await self.api.sandbox.create({
            'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', **fields, 'metadata': metadata})

    async def wait_handled(self, name, *, timeout=300):
        await self.api.client.wait(
            'kopfexamples', name, lambda obj: obj['status']['good'] == name, timeout=timeout)

    async def rest(self, seconds=300):
        """Let so much time pass; return the numbers of requests and of log lines in it."""
        requests, lines = len(self.liar.requests), len(self.operator.log)
        await asyncio.sleep(seconds)
        return len(self.liar.requests) - requests, len(self.operator.log) - lines

    async def check_memory(self, storm):
        """
        Check that a storm leaves nothing behind: after the last one, the framework keeps about as
        many objects as after the one before, of each type, and in its lists and dicts.
        """
        counts = []
        for _ in range(STORMS):
            await storm()
            await self.rest(1000)
            counts.append(count_objects())
        before, after = counts[-2:]
        grown = {key: (before[key], count) for key, count in after.items()
                 if count > before[key] + MAX_GROWTH}
        assert not grown, grown

    def show(self):
        """The most frequent log lines, for failed assertions."""
        return collections.Counter(line[:150] for line in self.operator.log).most_common(10)


def count_objects():
    """
    Count the instances of the framework's classes by their types, and whatever is in the lists,
    sets, and dicts of these instances and of the framework's modules.
    """
    gc.collect()
    own = list({id(each): each for each in [*EARLIER, *find_own()]}.values())
    found = collections.Counter(
        f'{type(each).__module__}.{type(each).__qualname__}' for each in own)
    modules = [module for name, module in sys.modules.items() if name.startswith(FRAMEWORK)]
    for place in [*own, *modules]:
        if type(place).__module__ in CONNECTIONS:
            continue  # how many of them are open, depends on the speed of the machine
        name = getattr(place, '__name__', type(place).__qualname__)
        for value in [*gc.get_referents(place), *getattr(place, '__dict__', {}).values()]:
            if isinstance(value, list | set | dict | collections.deque):
                found[f'contents of {name}'] += len(value)
    return found


def find_own():
    return [each for each in gc.get_objects() if str(type(each).__module__).startswith(FRAMEWORK)]


EARLIER = find_own()
"""What the framework keeps from before the tests: it can grow, but `gc` no longer lists it."""


def make_registry():
    """The handler by which good objects are recognised as handled."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.on.create('kopfexamples', id='good', registry=registry)
    async def good(name, **_):
        return name

    return registry


@contextlib.contextmanager
def unformatted():
    """Keep pytest from formatting and keeping all messages, which can be of any length."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


@contextlib.asynccontextmanager
async def open_world(registry, *, prepare=None, **options):
    """Open a world; ``prepare`` is called before the operator starts, without the operator."""
    with unformatted():
        async with testing.open_api('sandbox') as api:
            await api.sandbox.load(CRD)
            liar = Liar(api.sandbox.url)
            async with liar.serve() as url:
                world = World(api, liar, lambda: testing.Operator(
                    registry=registry, credentials=kopf.ConnectionInfo(server=url), **options))
                if prepare is not None:
                    await prepare(world)
                await world.operator.start()
                try:
                    yield world
                finally:
                    await world.operator.stop()
