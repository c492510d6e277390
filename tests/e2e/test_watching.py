"""
What a watch guarantees on a real API, whatever happens between it and us.
"""
import asyncio
import contextlib
import logging
import pathlib
import time

import aiohttp
import pytest
import yaml

from kopf._cogs.clients import api, watching
from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs
from kopf._cogs.structs import references
from tests._cogs.clients.conftest import Recorder
from tests.e2e.kubes import CONFIGMAPS
from tests.e2e.proxy import Proxy, is_list, is_watch, make_error_event


class State(Recorder):
    """What the watch says to be there: the names and their versions."""

    def __init__(self):
        self.objects = {}
        self._listed = None
        super().__init__()

    def list_started(self, *, restored):
        self._listed = {}
        super().list_started(restored=restored)

    def listed(self, body, packed=None):
        self._listed[body['metadata']['name']] = body['metadata']['resourceVersion']
        super().listed(body)

    def list_ended(self):
        self.objects = self._listed
        super().list_ended()

    def changed(self, type, body, line):
        if type == 'DELETED':
            self.objects.pop(body['metadata']['name'], None)
        else:
            self.objects[body['metadata']['name']] = body['metadata']['resourceVersion']
        super().changed(type, body, line)


@pytest.fixture()
def proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


@pytest.fixture()
def settings():
    settings = configuration.OperatorSettings()
    settings.networking.error_backoffs = [0.1, 0.2, 0.5]
    return settings


@pytest.fixture()
def state():
    return State()


@pytest.fixture()
def watch(proxy, settings, state, kind, tmp_path, monkeypatch):
    @contextlib.asynccontextmanager
    async def run():
        monkeypatch.setenv('KUBECONFIG', proxy.write_kubeconfig(tmp_path / 'proxied'))
        resource = references.Resource(kind.group, kind.version, kind.plural, namespaced=True)
        async with api.Client(
            credentials=kubeconfigs.login_with_kubeconfig(), settings=settings,
        ) as client:
            task = asyncio.create_task(watching.watch(
                client, settings=settings, resource=resource, namespace=None, sink=state))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    return run


@pytest.fixture()
def agree(kube, kind, state):
    """Wait until what the watch says is what is there."""
    async def wait(timeout=20):
        expected = {
            obj['metadata']['name']: obj['metadata']['resourceVersion']
            for obj in await kube.list_objects(kind)
        }
        async with asyncio.timeout(timeout):
            while state.objects != expected:
                await asyncio.sleep(0.02)
    return wait


@pytest.fixture()
def churn(kube, kind):
    """Create, change, and delete some objects."""
    count = 0

    async def make():
        nonlocal count
        count += 1
        for suffix in 'abc':
            await kube.create(kind, f'obj{count}{suffix}', spec={'n': 0})
        await kube.patch(kind, f'obj{count}a', {'spec': {'n': 1}})
        await kube.delete(kind, f'obj{count}b')
    return make


async def settle(proxy):
    """Wait until the stream is open."""
    async with asyncio.timeout(20):
        while not proxy.count_streams():
            await asyncio.sleep(0.02)


async def test_a_watch_that_is_not_open_yet_is_cut_too(cluster, tmp_path):
    async def say_nothing(reader, writer):
        while await reader.read(1000):
            pass
        writer.close()
        closed.set()
    closed = asyncio.Event()
    server = await asyncio.start_server(say_nothing, '127.0.0.1', 0)
    host, port = server.sockets[0].getsockname()
    config = yaml.safe_load(pathlib.Path(cluster).read_text(encoding='utf-8'))
    config['clusters'][0]['cluster']['server'] = f'http://{host}:{port}'
    path = tmp_path / 'silent'
    path.write_text(yaml.safe_dump(config))
    with Proxy(str(path)) as proxy:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20):
            getting = asyncio.create_task(session.get(f'{proxy.url}/api/v1/pods?watch=true'))
            while not getting.done():  # the client tries twice
                proxy.cut_streams()
                await asyncio.sleep(0.02)
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await getting
    await closed.wait()
    server.close()


async def test_all_is_seen_in_peaceful_times(watch, agree, churn, state, proxy):
    await churn()
    async with watch():
        await agree()
        await settle(proxy)
        await churn()
        await agree()
    assert state.seen.count(('begin',)) == 1


async def test_all_is_seen_with_the_first_state_streamed(watch, agree, churn, settings, proxy):
    settings.watching.initial_streaming = True
    await churn()
    async with watch():
        await agree()
        await settle(proxy)
        await churn()
        await agree()


async def test_lists_in_small_pages_are_complete(watch, agree, churn, settings, proxy):
    settings.watching.chunk_size = 2
    for _ in range(3):
        await churn()
    async with watch():
        await agree()
    assert len([req for req in proxy.lists if 'continue' in req.query]) == 2


@pytest.mark.parametrize('break_it', [
    pytest.param(lambda proxy: proxy.cut_streams(), id='cut'),
    pytest.param(lambda proxy: proxy.write_to_streams(b'{"type": "MODI', cut=True), id='half-line'),
    pytest.param(lambda proxy: proxy.write_to_streams(b'garbage\n'), id='garbage'),
    pytest.param(lambda proxy: proxy.write_to_streams(make_error_event(410)), id='410'),
    pytest.param(lambda proxy: proxy.write_to_streams(make_error_event(500)), id='500'),
    pytest.param(lambda proxy: proxy.write_to_streams(make_error_event(403)), id='403'),
    pytest.param(lambda proxy: proxy.write_to_streams(make_error_event(429)), id='429'),
])
async def test_broken_streams_lose_nothing(watch, agree, churn, proxy, break_it):
    async with watch():
        await settle(proxy)
        for _ in range(3):
            await churn()
            assert break_it(proxy) == 1
            await churn()
            await agree()
            await settle(proxy)


async def test_stalled_streams_lose_nothing(watch, agree, churn, proxy, settings):
    settings.watching.inactivity_timeout = 1
    async with watch():
        await settle(proxy)
        await churn()
        await agree()
        proxy.stall_streams()
        await churn()
        await agree()


@pytest.mark.parametrize('status', [403, 404, 410, 429, 500, 503])
@pytest.mark.parametrize('match', [is_watch, is_list], ids=['streams', 'lists'])
async def test_refused_requests_lose_nothing(watch, agree, churn, proxy, status, match):
    proxy.fail(status, match=match, times=3)
    await churn()
    async with watch():
        await agree()
        await settle(proxy)
        await churn()
        await agree()


async def test_an_outage_loses_nothing_and_is_told_once(
        watch, agree, churn, proxy, caplog, monkeypatch,
):
    monkeypatch.setattr(watching, 'PROVEN_AFTER', 0.3)
    caplog.set_level(logging.INFO, logger='kopf')
    async with watch():
        await settle(proxy)
        outage = proxy.refuse()
        proxy.cut_streams()
        await churn()
        await asyncio.sleep(4)
        outage.end()
        await churn()
        await agree()
        async with asyncio.timeout(20):
            while len(caplog.records) < 2:
                await asyncio.sleep(0.1)
    assert [record.levelname for record in caplog.records] == ['WARNING', 'INFO']


async def test_an_outage_is_not_made_worse(watch, proxy, settings):
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21)
    async with watch():
        await settle(proxy)
        proxy.fail(503, times=None)
        before = len(proxy.requests)
        proxy.cut_streams()
        await asyncio.sleep(6)
        assert len(proxy.requests) - before <= 7


async def test_a_kind_that_is_gone_and_back_is_watched_again(
        watch, agree, churn, proxy, kube, kind,
):
    async with watch():
        await settle(proxy)
        await churn()
        await agree()
        await kube.delete_kind(kind)
        await kube.wait_unserved(kind)
        await kube.create_kind(kind)
        await churn()
        await agree()


async def test_a_dropped_list_is_made_again(watch, agree, churn, proxy):
    await churn()
    proxy.drop_replies(match=is_list, times=2)
    async with watch():
        await agree()


async def test_a_broken_list_is_made_again(watch, agree, churn, proxy):
    await churn()
    proxy.say(b'{"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [{"meta',
              match=is_list)
    async with watch():
        await agree()


async def test_server_side_timeouts_lose_nothing(watch, agree, churn, settings, proxy, state):
    settings.watching.server_timeout = 1
    async with watch():
        for _ in range(50):
            await churn()
            await asyncio.sleep(0.6)
            if len(proxy.watches) >= 3:
                break
        await agree()
    assert len(proxy.watches) >= 3
    assert state.seen.count(('begin',)) == 1


async def test_client_side_timeouts_lose_nothing(watch, agree, churn, settings, proxy, state):
    settings.watching.client_timeout = 0.5
    async with watch():
        for _ in range(50):
            await churn()
            await asyncio.sleep(0.3)
            if len(proxy.watches) >= 3:
                break
        await agree()
    assert len(proxy.watches) >= 3
    assert state.seen.count(('begin',)) == 1


async def test_label_selectors_choose_on_the_side_of_the_server(
        watch, settings, proxy, kube, kind, state,
):
    settings.watching.label_selectors[kind.plural] = 'chosen=yes'
    await kube.create(kind, 'before', labels={'chosen': 'yes'})
    await kube.create(kind, 'other')
    async with watch():
        await settle(proxy)
        await kube.create(kind, 'after', labels={'chosen': 'yes'})
        await state.wait_until(lambda: set(state.objects) == {'before', 'after'})
        await kube.patch(kind, 'after', {'metadata': {'labels': {'chosen': 'no'}}})
        await state.wait_until(lambda: set(state.objects) == {'before'})


async def test_changes_come_quickly(watch, kube, kind, state, proxy):
    async with watch():
        await settle(proxy)
        await kube.create(kind, 'warm-up')
        await state.wait_until(lambda: 'warm-up' in state.objects)
        delays = []
        for name in ['a', 'b', 'c', 'd', 'e']:  # the machine can be slow, but not each time
            start = time.monotonic()
            await kube.create(kind, name)
            await state.wait_until(lambda: name in state.objects)
            delays.append(time.monotonic() - start)
        assert min(delays) < 0.5


async def test_built_in_kinds_have_their_kind_and_version(
        kube, cluster, settings, monkeypatch, state,
):
    monkeypatch.setenv('KUBECONFIG', cluster)
    await kube.create(CONFIGMAPS, 'kinds-test', data={})
    resource = references.Resource('', 'v1', 'configmaps', kind='ConfigMap', namespaced=True)
    async with api.Client(
        credentials=kubeconfigs.login_with_kubeconfig(), settings=settings,
    ) as client:
        task = asyncio.create_task(watching.watch(
            client, settings=settings, resource=resource, namespace='default', sink=state))
        await state.wait('listed', 'kinds-test')
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await kube.delete(CONFIGMAPS, 'kinds-test')
    assert {(body['kind'], body['apiVersion']) for body in state.bodies} == {('ConfigMap', 'v1')}
