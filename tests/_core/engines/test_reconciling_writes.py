"""
What reconciling handlers write to their own object. In virtual time, on the sandbox.
"""
import asyncio

import pytest

import kopf
from kopf import testing
from kopf._core.engines.reconciling import children
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


def spoil_labels(body):
    body['metadata']['labels'] = {'not valid!': ''}


def spoil_itself(body):
    raise ValueError("boo!")


@pytest.mark.parametrize(('spoil', 'how'), [
    (spoil_labels, "is refused by the API"),
    (spoil_itself, "cannot be made"),
])
@testing.virtual_time
async def test_a_refused_patch_fails_only_its_handler(registry, spoil, how):
    calls = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def bad_fn(patch, **_):
        calls.append('bad')
        patch.fns.append(spoil)

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def good_fn(spec, **_):
        calls.append('good')
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'},
               'data': {'n': str(spec['n'])}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await api.client.wait('configmaps', 'child', timeout=5)
            assert await operator.wait_log(f"bad_fn' failed permanently: its patch {how}: ")
            await asyncio.sleep(1000)
            assert sorted(calls) == ['bad', 'good']  # at once, not throttled
            assert not any('Throttling' in line for line in operator.log)
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await api.client.wait(
                'configmaps', 'child', lambda obj: obj['data'] == {'n': '2'}, timeout=5)
            assert sorted(calls) == ['bad', 'bad', 'good', 'good']


@testing.virtual_time
async def test_a_refused_patch_is_reported_in_the_conditions(registry):

    @kopf.reconcile('kopfexamples', conditions=True, registry=registry)
    async def fn(spec, patch, **_):
        if spec.get('bad'):
            patch.meta.labels['not valid!'] = ''

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'bad': True})
            obj = await api.client.wait('kopfexamples', 'parent', lambda obj: (
                'conditions' in obj.get('status', {})), timeout=60)
            stalled = next(item for item in obj['status']['conditions']
                           if item['type'] == 'Stalled')
            assert stalled['status'] == 'True'
            assert stalled['message'].startswith("its patch is refused by the API: ")
            await api.client.patch('kopfexamples', 'parent', {'spec': {'bad': None}})
            await api.client.wait('kopfexamples', 'parent', lambda obj: (
                obj['status']['conditions'][0]['status'] == 'True'), timeout=60)


@testing.virtual_time
async def test_refused_conditions_fail_only_their_handler(registry):

    @kopf.reconcile('kopfexamples', conditions=True, registry=registry)
    async def bad_fn(patch, **_):
        patch.status['n'] = 1

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def good_fn(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        api.sandbox.faults.add(testing.Fault(
            action='refuse', status=400, verb='patch', resource='kopfexamples*'))
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('configmaps', 'child', timeout=5)
            assert not any('Throttling' in line for line in operator.log)


def make_counter(called):
    def count(body):
        called.append(body['metadata']['resourceVersion'])
        status = body.setdefault('status', {})
        status['n'] = status.get('n', 0) + 1
    return count


@testing.virtual_time
async def test_functions_of_patches_are_called_once_and_do_not_call_the_handler_again(registry):
    calls, called = [], []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(patch, **_):
        calls.append(1)
        if len(calls) < 10:
            patch.fns.append(make_counter(called))

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent')
            await asyncio.sleep(1000)
            assert (await api.client.get('kopfexamples', 'parent'))['status']['n'] == 1
            assert len(calls) == len(called) == 1


@testing.virtual_time
async def test_a_change_by_others_that_an_own_write_has_met_calls_the_handler_again(registry):
    seen = []
    async with testing.open_api('sandbox') as api:

        @kopf.reconcile('kopfexamples', registry=registry)
        async def fn(spec, patch, **_):
            seen.append(spec['n'])
            if spec['n'] == 1:
                await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
                patch.fns.append(make_counter([]))

        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await asyncio.sleep(10)
            assert seen == [1, 2]


@testing.virtual_time
async def test_an_object_that_is_changed_with_each_own_write_is_written_at_a_limited_rate(registry):
    times = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(status, patch, **_):
        times.append(asyncio.get_running_loop().time())
        if len(times) < 1000:
            patch.status['n'] = status.get('n', 0) + 1

    @kopf.on.mutate('kopfexamples', operations=['UPDATE'], registry=registry)
    async def spoil(body, patch, **_):
        patch.meta.labels['n'] = str(body.get('status', {}).get('n'))

    @kopf.on.startup(registry=registry)
    def configure_webhooks(settings, **_):
        settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=0)
        settings.admission.managed = 'kopf.dev'

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await asyncio.sleep(5)
            await api.client.create('kopfexamples', 'parent')
            await asyncio.sleep(60)
            assert 60 < len(times) < 80


@testing.virtual_time
async def test_handlers_of_changes_handle_what_the_handler_writes_into_the_spec(registry):
    calls = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(spec, patch, **_):
        calls.append('reconcile')
        patch.spec['field'] = str(spec['n'])

    @kopf.on.update('kopfexamples', field='spec.field', registry=registry)
    async def update(new, **_):
        calls.append(new)

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await asyncio.sleep(100)
            assert calls == ['reconcile', '1']
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            await asyncio.sleep(100)
            assert calls == ['reconcile', '1', 'reconcile', '2']


@testing.virtual_time
async def test_daemons_start_and_stop_by_what_the_handler_writes(registry):
    calls = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(spec, patch, **_):
        patch.meta.labels['size'] = spec['size']

    @kopf.daemon('kopfexamples', labels={'size': 'large'}, registry=registry)
    async def daemon(stopped, **_):
        calls.append('begin')
        await stopped.wait()
        calls.append('end')

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'size': 'large'})
            await asyncio.sleep(10)
            assert calls == ['begin']
            await api.client.patch('kopfexamples', 'parent', {'spec': {'size': 'small'}})
            await asyncio.sleep(10)
            assert calls == ['begin', 'end']


@testing.virtual_time
async def test_handlers_that_answer_the_writes_of_each_other_are_called_at_a_limited_rate(registry):
    calls = []

    @kopf.reconcile('kopfexamples', registry=registry)
    async def fn(spec, patch, **_):
        calls.append('reconcile')
        if len(calls) < 1000:
            patch.spec['n'] = spec['n'] + 1

    @kopf.on.update('kopfexamples', field='spec.n', registry=registry)
    async def update(new, patch, **_):
        patch.spec['seen'] = new

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await asyncio.sleep(60)
            assert 10 < len(calls) < 80


@testing.virtual_time
async def test_changed_children_without_a_status_are_not_unpacked(registry, monkeypatch):
    unpacked = []

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'},
               'data': {'n': str(spec['n'])}}

    def unpack(self, packed, *, unpack=children.Shape.unpack):
        unpacked.append(packed)
        return unpack(self, packed)

    monkeypatch.setattr(children.Shape, 'unpack', unpack)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 0})
            for n in range(1, 11):
                await api.client.patch('kopfexamples', 'parent', {'spec': {'n': n}})
                await api.client.wait('configmaps', 'child', lambda obj: obj['data']['n'] == str(n))
    assert not unpacked
