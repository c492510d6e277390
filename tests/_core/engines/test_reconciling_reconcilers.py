"""
Whatever happens, owned resources end up as the function says. In virtual time, on the sandbox.
"""
import asyncio
import contextlib

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf import testing
from kopf._cogs.clients.errors import APIError
from kopf._core.engines.reconciling.hub import Hub
from kopf._kits.testing import virtual
from kopf.testing import virtual_time

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'things.example.com'},
    'spec': {
        'group': 'example.com', 'scope': 'Namespaced',
        'names': {'kind': 'Thing', 'plural': 'things', 'singular': 'thing'},
        'versions': [{
            'name': 'v1', 'served': True, 'storage': True, 'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}]}}
OWNER = 'kopf.dev/owner'

NAMES = st.sampled_from(['a', 'b', 'c'])
VALUES = st.sampled_from(['1', '2'])
STEPS = st.one_of(
    st.tuples(st.just('want'), st.dictionaries(NAMES, VALUES)),
    st.tuples(st.just('edit'), NAMES, VALUES | st.none()),
    st.tuples(st.just('relabel'), NAMES),
    st.tuples(st.just('delete'), NAMES),
    st.tuples(st.just('hold'), NAMES),
    st.tuples(st.just('release'), NAMES),
    st.tuples(st.just('refuse'), st.sampled_from(['patch', 'delete']), NAMES),
    st.tuples(st.just('wait'), st.sampled_from([0.001, 0.1, 10])),
    st.tuples(st.just('restart')),
)


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


def make_registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('things', owns=['configmaps'], registry=registry)
    async def fn(spec, **_):
        for name, value in spec.get('children', {}).items():
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                   'data': {'v': value}}

    return registry


class World:
    """A cluster with one parent, and an operator that can be restarted."""

    def __init__(self, api):
        self.api = api
        self.client = api.client
        self.registry = make_registry()
        self.children = {}
        self.operator = None

    async def start(self):
        self.operator = self.api.operator(registry=self.registry)
        await self.operator.__aenter__()

    async def stop(self):
        await self.operator.__aexit__(None, None, None)

    async def do(self, what, *args):
        match what:
            case 'want':
                self.children, = args
                removed = dict.fromkeys('abc') | self.children
                await self.client.patch('things', 'parent', {'spec': {'children': removed}})
            case 'edit':
                await self.patch(args[0], {'data': {'v': args[1]}})
            case 'relabel':
                await self.patch(args[0], {'metadata': {'labels': {OWNER: None}}})
            case 'hold':
                await self.patch(args[0], {'metadata': {'finalizers': ['example.com/held']}})
            case 'release':
                await self.patch(args[0], {'metadata': {'finalizers': None}})
            case 'delete':
                with contextlib.suppress(APIError):  # it is gone, or the refusal is for this one
                    await self.client.delete('configmaps', args[0])
            case 'refuse':
                self.api.sandbox.faults.add(testing.Fault(
                    action='refuse', status=403, verb=args[0], name=args[1], count=2))
            case 'wait':
                await asyncio.sleep(args[0])
            case 'restart':
                await self.stop()
                await self.start()

    async def patch(self, name, patch):
        with contextlib.suppress(APIError):
            await self.client.patch('configmaps', name, patch)

    async def list(self):
        return {obj['metadata']['name']: obj for obj in await self.client.list('configmaps')}

    async def is_converged(self):
        found = await self.list()
        uid = (await self.client.get('things', 'parent'))['metadata']['uid']
        return {name: obj.get('data', {}) for name, obj in found.items()} == {
            name: {'v': value} for name, value in self.children.items()} and all(
            obj['metadata']['labels'].get(OWNER) == uid
            and obj['metadata']['ownerReferences'][0]['uid'] == uid
            and 'deletionTimestamp' not in obj['metadata'] for obj in found.values())


async def live(steps):
    async with testing.open_api('sandbox') as api:
        world = World(api)
        await world.client.load(CRD)
        await world.client.create('things', 'parent', spec={'children': {}})
        await world.start()
        try:
            for step in steps:
                await world.do(*step)
            for name in 'abc':
                await world.do('release', name)
            await testing.wait_for(world.is_converged, timeout=3600)
            before = await world.list()
            await asyncio.sleep(3600)
            assert await world.list() == before
            await world.do('restart')
            await asyncio.sleep(60)
            assert await world.list() == before
        finally:
            await world.stop()


@given(steps=st.lists(STEPS, max_size=12))
@hypothesis.example(steps=[('want', {'a': '1'}), ('wait', 0.1), ('relabel', 'a')])
@hypothesis.example(steps=[('want', {'a': '1'}), ('hold', 'a'), ('want', {}), ('wait', 0.1),
                           ('want', {'a': '1'})])
@hypothesis.example(steps=[('want', {'a': '1'}), ('wait', 0.1), ('edit', 'a', '2'),
                           ('relabel', 'a')])
def test_at_rest_the_cluster_is_what_the_function_says_of_the_last_spec(steps):
    virtual.run(live(steps))


@virtual_time
async def test_the_delay_after_errors_doubles_up_to_its_limit(registry):
    calls = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.reconciling.error_delay = 2
        settings.reconciling.max_error_delay = 10

    @kopf.reconcile('things', registry=registry)
    async def fn(**_):
        calls.append(asyncio.get_running_loop().time())
        raise Exception("boo!")

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'parent')
            await testing.wait_for(lambda: len(calls) == 6, timeout=100)
    assert [round(two - one) for one, two in zip(calls, calls[1:], strict=False)] == [
        2, 4, 8, 10, 10]


@virtual_time
async def test_a_success_resets_the_delay_after_errors(registry):
    calls = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.reconciling.error_delay = 2

    @kopf.reconcile('things', registry=registry)
    async def fn(spec, **_):
        calls.append(asyncio.get_running_loop().time())
        if len(calls) != 3:
            raise Exception("boo!")

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'parent', spec={})
            await testing.wait_for(lambda: len(calls) == 3, timeout=100)
            await api.client.patch('things', 'parent', {'spec': {'x': 'y'}})
            await testing.wait_for(lambda: len(calls) == 5, timeout=100)
    assert [round(two - one) for one, two in zip(calls, calls[1:], strict=False)] == [2, 4, 0, 2]


@virtual_time
async def test_children_that_others_delete_again_and_again_are_restored_at_a_limited_rate():
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=make_registry()):
            await api.client.create('things', 'parent', spec={'children': {'a': '1'}})
            deletions = []
            end = asyncio.get_running_loop().time() + 30
            while asyncio.get_running_loop().time() < end:
                with contextlib.suppress(APIError):
                    await api.client.delete('configmaps', 'a')
                    deletions.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.01)
            assert 38 <= len(deletions) <= 42  # ten at once, and then one each second
            await asyncio.sleep(2)
            assert [obj['metadata']['name'] for obj in await api.client.list('configmaps')] == ['a']
            for value in '23':  # changes of the object are not limited
                changed = asyncio.get_running_loop().time()
                await api.client.patch('things', 'parent', {'spec': {'children': {'a': value}}})
                while (await api.client.get('configmaps', 'a'))['data']['v'] != value:
                    await asyncio.sleep(0.01)
                assert asyncio.get_running_loop().time() < changed + 0.5


async def reconcile_often(registry, *, interval, count):
    """Let one object be reconciled so many times at least; return when that began."""
    calls = []

    @kopf.reconcile('things', interval=interval, registry=registry)
    async def fn(**_):
        calls.append(asyncio.get_running_loop().time())

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'parent')
            await testing.wait_for(lambda: len(calls) >= count, timeout=10000)
    return calls


@virtual_time
async def test_intervals_vary_by_a_tenth(registry):
    calls = await reconcile_often(registry, interval=1000, count=5)
    delays = [two - one for one, two in zip(calls, calls[1:], strict=False)]
    assert all(899 <= delay <= 1101 for delay in delays) and len(set(delays)) == 4


@virtual_time
async def test_an_interval_of_zero_leaves_time_for_others(registry):
    calls = await reconcile_often(registry, interval=0, count=100)
    assert 40 <= len([time for time in calls if time <= calls[0] + 1]) <= 51


@virtual_time
async def test_what_a_handler_changes_in_the_object_is_its_own_copy(registry):
    calls = []

    @kopf.reconcile('things', owns=['configmaps'], interval=10, registry=registry)
    async def fn(spec, **_):
        items = spec['items']
        items.append('added')
        calls.append(len(items))
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'items': ','.join(items)}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'parent', spec={'items': ['first']})
            await testing.wait_for(lambda: len(calls) >= 3, timeout=100)
            child = await api.client.get('configmaps', 'parent')
    assert set(calls) == {2}
    assert child['data'] == {'items': 'first,added'}


@virtual_time
async def test_the_field_manager_has_the_name_of_the_operator(registry):
    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.reconciling.manager = 'example'

    @kopf.reconcile('things', owns=['configmaps'], id='fn', registry=registry)
    async def fn(**_):
        return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'a': 'b'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'parent')
            child = await api.client.wait('configmaps', 'parent')
    assert [entry['manager'] for entry in child['metadata']['managedFields']] == ['example/fn']


def test_objects_that_other_replicas_can_handle_do_not_count_as_gone():
    """With shards, nobody tells the hub which objects are gone."""
    hub = Hub(context=None, get_memo=None)
    assert not hub.is_gone('uid')
    hub.rely_on(lambda uid: True)
    assert hub.is_gone('uid')


@virtual_time
async def test_a_timer_that_writes_what_is_there_calls_no_handlers(registry):
    calls = []

    @kopf.timer('things', interval=10, registry=registry)
    async def tick(spec, patch, **_):
        calls.append('tick')
        patch.setdefault('status', {})['level'] = spec['level']

    @kopf.reconcile('things', registry=registry)
    async def fn(status, **_):
        calls.append(status.get('level'))

    async with testing.open_api('sandbox') as api:
        await api.client.create(CRD)
        async with api.operator(registry=registry):
            await api.client.create('things', 'x', spec={'level': 1})
            await asyncio.sleep(5)
            calls.clear()
            await asyncio.sleep(30)
            assert calls == ['tick'] * 3
            await api.client.patch('things', 'x', {'spec': {'level': 2}})
            await asyncio.sleep(10)
    assert calls == ['tick'] * 3 + [1, 'tick', 2]
