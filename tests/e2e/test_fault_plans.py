"""
The same life of some objects with each fault of a plan: an operator that is killed after its n-th
write, that reads an older list after its start, or that misses what its watches should show. In the
end, everything is as it is without faults.
"""

import asyncio
import contextlib
import json
import pathlib
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.journals import LAST_HANDLED, is_handled
from tests.e2e.kubes import CONFIGMAPS, NAMESPACES, Kind, Kube, Object
from tests.e2e.operators import Operator
from tests.e2e.proxy import Proxy, is_list, is_watch, make_error_event
from tests.e2e.strikes import Strike

CONCURRENCY = 3
"""How many plans are tried at once, each in a namespace of its own."""

HANDLERS = '''
import json, os, pathlib
OUTSIDE = pathlib.Path(os.environ['OUTSIDE'])

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.execution.default_backoff = 0.1
    settings.queueing.error_delays = [0.2, 0.5, 1]
    settings.networking.error_backoffs = [0.1, 0.2, 0.5]

@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
async def child(name, namespace, spec, **_):
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'ConfigMap',
        'metadata': {'name': f'{name}-child', 'namespace': namespace},
        'data': {'size': str(spec['size'])}})

@kopf.on.create(*KIND)
def outside(name, retry, **_):
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=0.1)
    with open(OUTSIDE / 'calls', 'a') as file:
        file.write(name + chr(10))
    (OUTSIDE / name).write_text('here')
    return {'retries': retry}

@kopf.on.update(*KIND)
def patched(spec, patch, **_):
    patch.status['size'] = spec['size']

@kopf.on.delete(*KIND)
def removed(name, retry, **_):
    if retry < 1:
        raise kopf.TemporaryError("not yet", delay=0.1)
    (OUTSIDE / name).unlink(missing_ok=True)
'''


def is_write(request: web.Request) -> bool:
    return request.method in ('POST', 'PATCH', 'PUT', 'DELETE')


class Place:
    """A namespace, in which the objects live their lives once, and something outside of the API."""

    def __init__(
            self,
            *,
            kube: Kube,
            kind: Kind,
            proxy: Proxy,
            outside: pathlib.Path,
            namespace: str,
            run: Callable[..., Operator],
    ) -> None:
        self.kube = kube
        self.kind = kind
        self.proxy = proxy
        self.outside = outside
        self.namespace = namespace
        self._run = run

    def start(self) -> Operator:
        return self._run(
            HANDLERS, kind=self.kind, env={'OUTSIDE': str(self.outside)},
            kubeconfig=self.proxy.write_kubeconfig(self.outside / 'kubeconfig'),
            scope=('--namespace', self.namespace, '--standalone', '--verbose'))

    async def create(self) -> None:
        for name in ('stays', 'goes'):
            await self.kube.create(self.kind, name, namespace=self.namespace, spec={'size': 1})

    async def handle(self) -> None:
        """Wait until the objects are handled."""
        for name in ('stays', 'goes'):
            await self.kube.wait_for(self.kind, name, is_handled, namespace=self.namespace)

    async def change(self) -> None:
        """Go on as soon as the objects are handled: one is changed, one is deleted."""
        await self.handle()
        await self.kube.patch(
            self.kind, 'stays', {'spec': {'size': 2}}, namespace=self.namespace)
        await self.kube.delete(self.kind, 'goes', namespace=self.namespace)

    async def rest(self) -> None:
        def is_done(obj: Object) -> bool:
            return is_handled(obj) and obj['status'].get('size') == 2

        await self.kube.wait_for(self.kind, 'stays', is_done, namespace=self.namespace)
        await self.kube.wait_gone(self.kind, 'goes', namespace=self.namespace)

    async def prove(self) -> None:
        """See that the operator of now works."""
        await self.kube.create(self.kind, 'later', namespace=self.namespace, spec={'size': 1})
        await self.kube.wait_for(self.kind, 'later', is_handled, namespace=self.namespace)

    async def take(self) -> Any:
        """Take all that is there in the end, but what differs in each life."""
        objects = [
            await self.kube.get(self.kind, 'stays', namespace=self.namespace),
            await self.kube.get(CONFIGMAPS, 'stays-child', namespace=self.namespace)]
        files = {path.name: path.read_text() for path in self.outside.iterdir()}
        return [*map(simplify, objects), files.keys() - {'calls', 'kubeconfig', 'later'}]

    def count_calls(self) -> dict[str, int]:
        """How often the handler has changed something outside for each object."""
        names = (self.outside / 'calls').read_text().split()
        return {name: names.count(name) for name in names}


def simplify(obj: Object) -> Object:
    meta = obj['metadata']
    handled = meta.get('annotations', {}).get(LAST_HANDLED)
    owners = [{**owner, 'uid': None} for owner in meta.get('ownerReferences', [])]
    return {
        **{key: obj.get(key) for key in ('kind', 'spec', 'status', 'data')},
        'labels': meta.get('labels'), 'finalizers': meta.get('finalizers'), 'owners': owners,
        'annotations': sorted(meta.get('annotations', {})),
        'handled': None if handled is None else json.loads(handled)}


Make = Callable[[], contextlib.AbstractAsyncContextManager[Place]]


@pytest.fixture()
def make(
        kube: Kube,
        kind: Kind,
        operator: Callable[..., Operator],
        cluster: str,
        tmp_path: pathlib.Path,
) -> Make:
    """Make places for the same life."""
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Place]:
        namespace = f'ns-{uuid.uuid4().hex[:8]}'
        outside = tmp_path / namespace
        outside.mkdir()
        await kube.create(NAMESPACES, namespace)
        try:
            with Proxy(cluster) as proxy:
                yield Place(
                    kube=kube, kind=kind, proxy=proxy, outside=outside, namespace=namespace,
                    run=operator)
        finally:
            await kube.delete(NAMESPACES, namespace)

    return make


@pytest.fixture()
async def expected(make: Make) -> tuple[Any, int]:
    """What there is in the end without faults, and the number of writes until then."""
    async with make() as place:
        instance = place.start()
        await place.create()
        await place.change()
        await place.rest()
        assert instance.stop() == 0
        assert place.count_calls() == {'stays': 1, 'goes': 1}
        return await place.take(), sum(
            request.method != 'GET' for request in place.proxy.requests)


async def live_with_crash(make: Make, step: int) -> tuple[Any, bool]:
    """Kill the operator right after its n-th write, and start another one."""
    async with make() as place:
        strike = Strike(step, 'after', signal.SIGKILL, does_count=is_write)
        fault = place.proxy.inject(strike.act, match=is_write, times=None)
        strike.operator = first = place.start()
        second: list[Operator] = []

        async def replace() -> None:
            while strike.request is None:
                await asyncio.sleep(0.02)
            assert await first.wait() == -signal.SIGKILL
            fault.end()
            second.append(place.start())

        replacing = asyncio.create_task(replace())
        try:
            await place.create()
            await place.change()
            await place.rest()
            if strike.request is not None:
                await replacing
                await place.prove()
        finally:
            strike.call_off()
            replacing.cancel()
        for instance in second or [first]:
            assert instance.stop() == 0
        assert all(count <= 2 for count in place.count_calls().values())
        return await place.take(), bool(second)


async def test_killed_after_each_of_its_writes_it_comes_to_the_same_end(
        make: Make, expected: tuple[Any, int],
) -> None:
    end, writes = expected
    assert writes >= 8
    limit = asyncio.Semaphore(CONCURRENCY)

    async def try_step(step: int) -> None:
        async with limit:
            found, was_killed = await live_with_crash(make, step)
            assert found == end, f"killed after write #{step}"
            assert was_killed or step > writes // 2, f"there is no write #{step}"

    async with asyncio.TaskGroup() as group:
        for step in range(1, writes + 1):
            group.create_task(try_step(step))


def repeat(body: bytes) -> Callable[[web.Request, Proxy], Any]:
    """The fault that a list is an older one."""
    async def act(request: web.Request, proxy: Proxy) -> web.StreamResponse:
        return web.Response(body=body, content_type='application/json')
    return act


@pytest.mark.parametrize('continued', [True, False], ids=['continued', 'expired'])
@pytest.mark.parametrize('handled', [False, True], ids=['unhandled', 'handled'])
async def test_an_older_list_after_the_start_is_corrected_by_what_follows(
        make: Make, expected: tuple[Any, int], handled: bool, continued: bool,
) -> None:
    """
    The older list is of before or after the first handling. The watch goes on from there; or that
    is too old, and the next list is right.
    """
    end, _ = expected
    async with make() as place:
        def concerns(request: web.Request) -> bool:
            return request.path.endswith(f'/{place.kind.plural}')

        await place.create()
        path = place.kind.get_path(namespace=place.namespace)
        older = await place.kube.request('GET', path)
        first = place.start()
        await place.handle()
        older = json.dumps(await place.kube.request('GET', path) if handled else older).encode()
        await place.change()
        await place.rest()
        assert first.stop() == 0

        stale = place.proxy.inject(
            repeat(older), match=lambda request: is_list(request) and concerns(request))
        expired = None if continued else place.proxy.fail(
            410, 'too old', reason='Expired',
            match=lambda request: is_watch(request) and concerns(request))
        second = place.start()
        await place.prove()
        await place.rest()
        assert stale.hits == 1 and (expired is None or expired.hits == 1)
        assert second.stop() == 0
        assert await place.take() == end
        assert place.count_calls() == {'stays': 1, 'goes': 1, 'later': 1}


async def miss(request: web.Request, proxy: Proxy) -> web.StreamResponse:
    """The fault that a watch shows nothing for a while, and then cannot be continued."""
    async with proxy.forward(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.7)
        await response.write(make_error_event(410, 'too old', reason='Expired'))
        return response


async def test_what_its_watches_miss_it_sees_in_the_next_lists(
        make: Make, expected: tuple[Any, int],
) -> None:
    end, _ = expected
    async with make() as place:
        fault = place.proxy.inject(miss, match=lambda request: is_watch(request) and (
            request.path.endswith(f'/{place.kind.plural}')), times=None)
        instance = place.start()
        await place.create()
        await place.change()
        await place.rest()
        assert fault.hits > 1
        assert instance.stop() == 0
        assert await place.take() == end
        assert place.count_calls() == {'stays': 1, 'goes': 1}


async def test_whenever_its_watches_break_it_comes_to_the_same_end(
        make: Make, expected: tuple[Any, int],
) -> None:
    end, _ = expected
    async with make() as place:
        instance = place.start()
        cuts = 0

        async def cut() -> None:
            nonlocal cuts
            while True:
                await asyncio.sleep(0.1)
                cuts += place.proxy.write_to_streams(b'{"type": "MODI', cut=True)

        cutting = asyncio.create_task(cut())
        try:
            await place.create()
            await place.change()
            await place.rest()
        finally:
            cutting.cancel()
        assert cuts > 2
        assert instance.stop() == 0
        assert await place.take() == end
        assert place.count_calls() == {'stays': 1, 'goes': 1}
