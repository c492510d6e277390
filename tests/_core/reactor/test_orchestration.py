import asyncio
import contextlib
import gc
import logging

import pytest

import kopf
from kopf import testing
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.aiokits.pulses import Pulse
from kopf._cogs.clients import vaults
from kopf._cogs.cluster import discovery, tracking
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.references import Resource
from kopf._core.actions import execution
from kopf._core.engines.reconciling.children import ChildWatch
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.path.intake import Informer
from kopf._core.reactor.watches import consumers, orchestration
from tests._cogs.clients.conftest import Recorder
from tests._cogs.clients.servers import flow, make_event, refuse, say, show
from tests._cogs.clients.test_scanning import NODE, THING, aggregate, serve
from tests._cogs.cluster.test_discovery import (  # noqa: F401
    CRDS,
    NAMESPACES,
    cluster,
    set_group,
)
from tests._core.path.test_queueing import Passes, make_informers
from tests.crds import make_crd

FULL = ['list', 'watch', 'patch']


class Lines:
    """Remembers what was asked for."""

    def __init__(self):
        self.calls = []
        self.sinks = {}
        self.namespaces = set()

    def open(self, resource, namespace, handlers):
        self.calls.append(('sink', resource.plural, namespace))
        self.sinks[resource.plural, namespace] = Recorder()
        return self.sinks[resource.plural, namespace]

    def close(self, resource, namespace, *, deleted):
        self.calls.append(('delete' if deleted else 'drop', resource.plural, namespace))

    def forget_except(self, namespaces):
        self.namespaces = set(namespaces)

    def seal(self):
        pass

    def shows(self, name, plural, namespace):
        sink = self.sinks.get((plural, namespace))
        return sink is not None and ('listed', name) in sink.seen


def make_hub(client, settings):
    return Hub(get_memo=lambda host: None, context=execution.Context(
        settings=settings, clock=Clock(), indices={}))


@pytest.fixture()
def lines():
    return Lines()


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def watched(cluster):  # noqa: F811
    """The things can be watched, the nodes too; and one thing in each namespace."""
    cluster.script(aggregate(('', [serve('v1', {**NODE, 'verbs': FULL})])), on='/api')
    cluster.script(aggregate(('g.test', [serve('v1', {**THING, 'verbs': FULL})])), on='/apis')
    for namespace in ['ns1', 'ns2']:
        cluster.script(show('obj'), on=f'/apis/g.test/v1/namespaces/{namespace}/things')
    cluster.script(show('obj'), on='/apis/g.test/v1/things')
    cluster.script(show('node'), on='/api/v1/nodes')
    return cluster


@pytest.fixture()
def serve_all(client, settings, registry, lines):
    @contextlib.asynccontextmanager
    async def run(*namespaces, consumer=None, hub=None):
        consumer = consumers.Consumer() if consumer is None else consumer
        consumer.informers = lines
        run.watches = orchestration.Orchestration(
            client=client, registry=registry, consumer=consumer,
            hub=make_hub(client, settings) if hub is None else hub, insights=discovery.Insights(),
            namespaces=namespaces, clusterwide=not namespaces, logger=logging.getLogger('test'))
        task = asyncio.create_task(run.watches.serve())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert {task.get_name() for task in asyncio.all_tasks()} == {
            asyncio.current_task().get_name()}

    return run


@pytest.fixture()
def handle(registry):
    """Declare a handler for the resource."""
    def declare(*args, decorator=kopf.on.event, **kwargs):
        @decorator(*args, registry=registry, **kwargs)
        def fn(**_):
            pass
    return declare


async def test_the_whole_cluster_is_watched_at_once(watched, serve_all, handle, lines, until):
    handle('g.test', 'things')
    async with serve_all():
        await until(lambda: ('things', None) in lines.sinks)
        await lines.sinks['things', None].wait('listed', 'obj')
    assert lines.calls == [('sink', 'things', None)]


async def test_namespaces_are_watched_one_by_one(watched, serve_all, handle, lines, until):
    handle('g.test', 'things')
    async with serve_all('ns*'):
        await until(lambda: len(lines.sinks) == 2)
        for sink in lines.sinks.values():
            await sink.wait('listed', 'obj')
    assert set(lines.calls) == {('sink', 'things', 'ns1'), ('sink', 'things', 'ns2')}


async def test_cluster_scoped_resources_are_watched_once(watched, serve_all, handle, lines, until):
    handle('nodes')
    async with serve_all('ns*'):
        await until(lambda: bool(lines.sinks))
        await lines.sinks['nodes', None].wait('listed', 'node')
    assert lines.calls == [('sink', 'nodes', None)]


@pytest.mark.parametrize('selector', ['nodes', lambda resource: resource.plural == 'nodes'])
async def test_resources_without_handlers_are_not_watched(
        watched, serve_all, handle, lines, until, selector):
    handle(selector)
    async with serve_all():
        await until(lambda: bool(lines.sinks))
        await lines.sinks['nodes', None].wait('end')
    assert all('things' not in request.path for request in watched.requests)


async def test_resources_of_webhooks_alone_are_not_watched(
        watched, serve_all, handle, lines, until,
):
    handle('things', decorator=kopf.on.validate)
    handle('nodes')
    async with serve_all():
        await until(lambda: bool(lines.sinks))
    assert lines.calls == [('sink', 'nodes', None)]


async def test_without_handlers_nothing_is_asked(watched, serve_all, lines):
    async with serve_all():
        await asyncio.sleep(0.05)
    assert not watched.requests


async def test_late_kinds_are_watched_as_they_come(watched, serve_all, handle, lines, until):
    watched.script(flow(0.05, make_event('ADDED', 'lates.h.test', '101')), on=f'watch {CRDS}')
    set_group(watched, 'h.test', 'lates')
    watched.script(show('late'), on='/apis/h.test/v1/lates')
    handle('h.test', 'lates')
    async with serve_all():
        await until(lambda: bool(lines.sinks))
        await lines.sinks['lates', None].wait('listed', 'late')


async def test_vanished_kinds_are_dropped(watched, serve_all, handle, lines, until):
    watched.script(flow(0.05, make_event('DELETED', 'things.g.test', '101')), on=f'watch {CRDS}')
    watched.script(refuse(404), on='/apis/g.test')
    handle('g.test', 'things')
    async with serve_all('ns*'):
        await until(lambda: len(lines.calls) == 4)
    assert set(lines.calls[2:]) == {('delete', 'things', 'ns1'), ('delete', 'things', 'ns2')}


async def test_objects_of_kinds_that_only_are_not_served_any_more_are_not_deleted(
        watched, serve_all, handle, lines, until, monkeypatch,
):
    monkeypatch.setattr(tracking, 'SETTLING', (0.01, 0.01))
    watched.script(flow(0.05, make_event('MODIFIED', 'things.g.test', '101')), on=f'watch {CRDS}')
    watched.script(refuse(404), on='/apis/g.test')
    handle('g.test', 'things')
    async with serve_all():
        await until(lambda: len(lines.calls) == 2)
    assert lines.calls[1:] == [('drop', 'things', None)]


async def test_a_stopped_task_feeds_nothing_after_the_drop(
        watched, serve_all, handle, lines, until,
):
    watched.script(flow(0.05, make_event('DELETED', 'things.g.test', '101')), on=f'watch {CRDS}')
    watched.script(refuse(404), on='/apis/g.test')
    watched.script(flow(*[
        item for n in range(200) for item in [make_event('ADDED', f'n{n}', f'{n + 200}'), 0.005]
    ]), on='watch /apis/g.test/v1/things')
    handle('g.test', 'things')
    async with serve_all():
        await until(lambda: ('delete', 'things', None) in lines.calls)
        count = len(lines.sinks['things', None].seen)
        await asyncio.sleep(0.05)
        assert len(lines.sinks['things', None].seen) == count


async def test_late_and_vanished_namespaces_are_followed(watched, serve_all, handle, lines, until):
    watched.script(flow(
        0.05, make_event('ADDED', 'ns3', '101'), 0.05, make_event('DELETED', 'ns1', '102'),
    ), on=f'watch {NAMESPACES}')
    watched.script(show('obj'), on='/apis/g.test/v1/namespaces/ns3/things')
    handle('g.test', 'things')
    async with serve_all('ns*'):
        await until(lambda: len(lines.calls) == 4)
        await lines.sinks['things', 'ns3'].wait('listed', 'obj')
        await until(lambda: lines.namespaces == {'ns2', 'ns3'})
    assert set(lines.calls[2:]) == {('sink', 'things', 'ns3'), ('drop', 'things', 'ns1')}


async def test_nothing_is_left_of_namespaces_that_come_and_go(
        watched, registry, settings, client, handle, until):
    def find_all():
        return [each for each in gc.get_objects() if type(each) in (Informer, Pulse, ChildWatch)]

    gc.collect()
    foreign = find_all()  # of other tests
    names = [f'tmp{number}' for number in range(6)]
    for name in names:
        path = f'/apis/g.test/v1/namespaces/{name}'
        watched.script(show(name), on=f'{path}/things')
        watched.script(refuse(403) if name < 'tmp3' else show(), on=f'{path}/parts')
        watched.script(refuse(403) if name < 'tmp3' else show(), on=f'{path}/others')
    handle('things', decorator=kopf.index)
    handle('others', decorator=kopf.index)
    handle('things', decorator=kopf.on.resume)
    handle('things', decorator=kopf.reconcile, owns=['parts'])
    resources = [
        Resource('g.test', 'v1', plural, kind=plural.title(), namespaced=True,
                 preferred=True, verbs=frozenset({'list', 'watch', 'patch', 'create', 'delete'}))
        for plural in ['things', 'parts', 'others']]
    informers = make_informers(settings, Passes())
    hub, consumer = make_hub(client, settings), consumers.Consumer()
    consumer.informers = informers
    watches = orchestration.Orchestration(
        client=client, registry=registry, consumer=consumer, hub=hub,
        insights=discovery.Insights(), namespaces=names, clusterwide=False,
        logger=logging.getLogger('test'))
    things, parts, others = resources
    for name in names:
        def is_settled(name=name):
            return informers.find(things, f'uid-{name}') is not None and (
                not informers.get(others, name).is_awaited) and (
                hub.store.is_listed(parts, name) or bool(hub.store.find_forbidden(parts)))

        await watches.adjust(resources, [name])
        await until(is_settled)
        informers.find(things, f'uid-{name}').resume()
    await watches.adjust(resources, [])
    watches.check()
    informers.forget_except([])
    await watches.close()
    await informers.stop(asyncio.get_running_loop().time() + 1)
    gc.collect()
    assert [each for each in find_all() if not any(each is other for other in foreign)] == []
    assert [*informers._closed] == []


async def test_changed_details_make_a_new_sink_but_drop_nothing(
        watched, serve_all, handle, lines, until,
):
    watched.script(flow(0.05, make_event('MODIFIED', 'things.g.test', '101')), on=f'watch {CRDS}')
    watched.script(say({'name': 'g.test', 'versions': [{'version': 'v1'}]}), on='/apis/g.test')
    watched.script(say({'resources': [
        {'name': 'things', 'kind': 'Thing', 'namespaced': True, 'verbs': FULL},
    ]}), on='/apis/g.test/v1')
    handle('g.test', 'things')
    async with serve_all():
        await until(lambda: len(lines.calls) == 2)
        await lines.sinks['things', None].wait('listed', 'obj')
    assert lines.calls == [('sink', 'things', None), ('sink', 'things', None)]


async def test_while_a_kind_is_being_deleted_its_stream_goes_on(
        watched, serve_all, handle, lines, until, caplog,
):
    watched.script(flow(0.05, make_event('MODIFIED', 'things.g.test', '101')), on=f'watch {CRDS}')
    watched.script(say({'name': 'g.test', 'versions': [{'version': 'v1'}]}), on='/apis/g.test')
    watched.script(say({'resources': [
        {'name': 'things', 'singularName': 'thing', 'namespaced': True, 'kind': 'Thing',
         'shortNames': ['th'], 'categories': ['all'],
         'verbs': ['delete', 'deletecollection', 'get', 'list', 'watch']},
        {'name': 'things/status', 'verbs': []}, {'name': 'things/scale', 'verbs': []},
    ]}), on='/apis/g.test/v1')
    handle('g.test', 'things')
    handle('g.test', 'things', decorator=kopf.on.update)
    async with serve_all():
        await until(lambda: sum(req.path == '/apis/g.test/v1' for req in watched.requests) >= 2)
        await lines.sinks['things', None].wait('listed', 'obj')
    assert lines.calls == [('sink', 'things', None)]
    assert 'will not be served' not in caplog.text


async def test_what_cannot_be_served_is_warned_of_once_and_again_if_it_is_lost(
        watched, serve_all, handle, lines, until, caplog,
):
    watched.script(flow(
        0.05, make_event('ADDED', 'lates.h.test', '101'),
        0.2, make_event('DELETED', 'lates.h.test', '102')), on=f'watch {CRDS}')
    watched.script(*[say({'name': 'h.test', 'versions': [{'version': 'v1'}]})] * 3, refuse(404),
                   on='/apis/h.test')
    watched.script(say({'resources': [
        {'name': 'lates', 'kind': 'Late', 'namespaced': True}]}), on='/apis/h.test/v1')
    watched.script(show(), on='/apis/h.test/v1/lates')
    handle('nosuch')
    handle('h.test', 'lates')
    async with serve_all():
        await until(lambda: ('delete', 'lates', None) in lines.calls)
    texts = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert len([text for text in texts if 'nosuch' in text]) == 1
    assert len([text for text in texts if 'lates' in text and 'cannot be served' in text]) == 2


async def test_resources_that_cannot_be_watched_are_not(watched, serve_all, handle, caplog, until):
    watched.script(aggregate(('g.test', [serve('v1', {**THING, 'verbs': ['get']})])), on='/apis')
    handle('g.test', 'things')
    async with serve_all():
        await until(lambda: "Non-watchable" in caplog.text)
    assert all('/things' not in request.path for request in watched.requests)


async def test_rejected_credentials_end_it(watched, serve_all, handle, lines, monkeypatch):
    monkeypatch.setattr(vaults, 'PAUSES', (0.01, 0.01))
    watched.script(refuse(401), on='/apis/g.test/v1/things')
    handle('g.test', 'things')
    async with serve_all() as task:
        with pytest.raises(LoginError):
            await asyncio.wait_for(task, 20)


async def test_cancelling_at_any_moment_leaves_no_tasks(watched, serve_all, handle):
    handle('g.test', 'things')
    for delay in range(30):
        async with serve_all('ns*'):
            await asyncio.sleep(delay * 0.002)


@pytest.mark.parametrize('specs, expected', [
    ([], set()),
    ([('g.test', 'things')], {'g.test'}),
    ([('g.test', 'things'), ('v1', 'pods')], {'g.test', ''}),
    ([('g.test', 'things'), ('things',)], None),
    ([(kopf.EVERYTHING,)], None),
])
def test_groups_of_interest_are_those_of_handlers(registry, handle, specs, expected):
    for spec in specs:
        handle(*spec)
    assert orchestration.get_groups(registry) == expected


async def test_a_watch_that_somebody_has_stopped_is_started_again(
        watched, serve_all, handle, lines, until, caplog):
    handle('things')
    async with serve_all('ns1'):
        await until(lambda: lines.shows('obj', 'things', 'ns1'))
        def find():
            return [task for task in asyncio.all_tasks()
                    if task.get_name().startswith("watching of things")]

        first, = find()
        first.cancel()
        await until(lambda: first not in find() and find())
    assert "Somebody has stopped watching of things.v1.g.test; starting it again." in (
        caplog.messages)


class Relisting(consumers.Consumer):
    keys = ()
    idle = ()

    def subscribe(self, woken):
        self.woken = woken

    def take_relisting(self):
        keys, self.keys = self.keys, ()
        return keys

    def is_idle(self, key):
        return key[1] in self.idle


async def test_only_what_has_to_be_listed_anew_is_listed_anew(
        watched, serve_all, handle, lines, until):
    relisting = Relisting()
    handle('things')
    async with serve_all('ns1', 'ns2', consumer=relisting):
        await until(lambda: all(
            lines.shows('obj', 'things', namespace) for namespace in ['ns1', 'ns2']))
        relisting.keys = [(Resource('g.test', 'v1', 'things'), 'ns1')]
        relisting.woken.set()
        await lines.sinks['things', 'ns1'].wait('listed', 'obj', count=2)
        assert lines.sinks['things', 'ns2'].seen.count(('listed', 'obj')) == 1


async def test_idle_namespaces_are_not_watched_until_they_are_needed(
        watched, serve_all, handle, lines, until):
    def find_watched():
        return {task for task in asyncio.all_tasks() if task.get_name().startswith('watching of')}

    relisting = Relisting()
    relisting.idle = ['ns2']
    handle('things')
    async with serve_all('ns1', 'ns2', consumer=relisting):
        await until(lambda: lines.shows('obj', 'things', 'ns1'))
        assert len(find_watched()) == 1
        assert not lines.sinks['things', 'ns2'].seen
        relisting.idle = ['ns1']
        relisting.woken.set()
        await until(lambda: lines.shows('obj', 'things', 'ns2'))
        assert len(find_watched()) == 1
        relisting.idle = []
        relisting.woken.set()
        await lines.sinks['things', 'ns1'].wait('listed', 'obj', count=2)
        assert len(find_watched()) == 2
        relisting.idle = ['ns1', 'ns2']
        relisting.woken.set()
        await until(lambda: not find_watched())
    assert [call for call in lines.calls if call[0] != 'sink'] == []


async def test_watches_without_progress_are_told_of(
        watched, serve_all, handle, lines, until, settings):
    handle('things')
    async with serve_all('ns1'):
        loop = asyncio.get_running_loop()
        timeout = settings.watching.inactivity_timeout + orchestration.WATCHING_SLACK
        started = loop.time()
        await until(lambda: lines.shows('obj', 'things', 'ns1'))
        await until(lambda: serve_all.watches.diagnose(loop.time() + timeout + 1) == (
            "no progress: things.v1.g.test in 'ns1'."))
        assert serve_all.watches.diagnose(loop.time()) is None
        assert serve_all.watches.diagnose(started + timeout - 1) is None


async def test_watches_of_owned_resources_without_progress_are_told_of(
        watched, serve_all, handle, lines, until, settings, client):
    hub = make_hub(client, settings)
    handle('things', decorator=kopf.reconcile, owns=['nodes'])
    async with serve_all('ns1', hub=hub):
        loop = asyncio.get_running_loop()
        timeout = settings.watching.inactivity_timeout + orchestration.WATCHING_SLACK
        await until(lambda: lines.shows('obj', 'things', 'ns1'))
        await until(lambda: serve_all.watches.diagnose(loop.time() + timeout + 1) == (
            "no progress: things.v1.g.test in 'ns1', nodes.v1 cluster-wide."))
        assert serve_all.watches.diagnose(loop.time()) is None


@pytest.mark.parametrize('namespaces, where', [
    ((), "all namespaces"), (('ns*',), "ns1, ns2")])
async def test_it_is_said_once_what_is_watched(
        watched, serve_all, handle, until, caplog, namespaces, where):
    caplog.set_level('INFO')
    handle('g.test', 'things')
    handle('g.test', 'things', decorator=kopf.on.create)
    async with serve_all(*namespaces):
        await until(lambda: any('Watching' in text for text in caplog.messages))
    texts = [text for text in caplog.messages if text.startswith("Watching ")]
    assert texts == [f"Watching things.v1.g.test in {where}, 2 handlers."]


# Conversions.

class Same:
    name = 'things.g.test'

    def find_fault(self):
        return None


def define(strategy):
    return say({'metadata': {'resourceVersion': '100'}, 'items': [{
        'metadata': {
            'name': 'things.g.test', 'uid': 'u', 'resourceVersion': '99', 'managedFields': [{
                'time': '2020-01-01T00:00:00Z', 'fieldsV1': {'f:spec': {'f:conversion': {}}}}]},
        'spec': {'versions': [{'name': 'v1'}, {'name': 'v2'}],
                 'conversion': {'strategy': strategy}}}]})


def count_looks(cluster):  # noqa: F811
    return sum(request.path == CRDS and 'fieldSelector' in request.query
               for request in cluster.requests)


async def test_one_of_the_namespaces_asks_whether_objects_are_converted(
        watched, serve_all, registry, handle, lines, until):
    registry._converters['things.g.test'] = Same()
    handle('g.test', 'things')
    watched.script(define('Webhook'), on=CRDS)
    async with serve_all('ns*'):
        await until(lambda: len(lines.sinks) == 2)
        for sink in lines.sinks.values():
            await sink.wait('listed', 'obj')
    assert count_looks(watched) == 1


async def test_nothing_is_listed_before_it_is_converted(
        watched, serve_all, registry, handle, lines, until):
    registry._converters['things.g.test'] = Same()
    handle('g.test', 'things')
    watched.script(define('None'), on=CRDS)
    async with serve_all():
        await until(lambda: count_looks(watched) >= 2)
        assert not any(request.path.endswith('/things') for request in watched.requests)
        watched.script(define('Webhook'), on=CRDS)
        await lines.sinks['things', None].wait('listed', 'obj')


async def test_what_is_no_list_of_definitions_says_nothing_about_the_conversion(
        watched, serve_all, registry, handle, lines, until):
    registry._converters['things.g.test'] = Same()
    handle('g.test', 'things')
    watched.script(say({}), on=CRDS)
    async with serve_all():
        await until(lambda: count_looks(watched) >= 2)
        watched.script(define('Webhook'), on=CRDS)
        await lines.sinks['things', None].wait('listed', 'obj')


@pytest.mark.parametrize('decorate', [kopf.on.create, kopf.reconcile])
@testing.virtual_time
async def test_in_another_version_of_the_kind_handlers_wait_for_the_end_of_the_former(
        registry, decorate):
    running, most = [], []

    @decorate('things.example.com', registry=registry)
    async def fn(resource, **_):
        running.append(resource.version)
        most.append([*running])
        await asyncio.sleep(20)
        running.remove(resource.version)

    definition = make_crd('Thing', 'things')
    [version] = definition['spec']['versions']
    versions = [version, {**version, 'name': 'v2', 'storage': False}]
    async with testing.open_api('sandbox') as api:
        await api.client.create(definition)
        async with api.operator(registry=registry):
            await api.client.create('things', 'thing')
            await testing.wait_for(lambda: running == ['v1'])
            await api.client.patch(
                'customresourcedefinitions', 'things.example.com', {'spec': {'versions': versions}})
            await testing.wait_for(lambda: running == ['v2'], timeout=60)
            await testing.wait_for(lambda: not running, timeout=60)
    assert most == [['v1'], ['v2']]
