"""
Reading of other objects in handlers. In virtual time, on the sandbox.
"""
import asyncio
import contextlib
import dataclasses

import pytest

import kopf
from kopf import testing
from kopf._kits.sandbox.faults import Fault
from tests.crds import make_crd
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@dataclasses.dataclass
class ThingSpec:
    size: int


@kopf.crd('reading.test', 'v1', plural='readthings')
@dataclasses.dataclass
class ReadThing:
    spec: ThingSpec


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


class Calls:
    """Calls functions in a handler of an object in the namespace ``default``."""

    def __init__(self, api, registry):
        self.api = api
        self.lists = api.sandbox.faults.add(
            Fault(action='delay', seconds=0, verb='list', resource='configmaps'))
        kopf.on.create('kopfexamples', registry=registry, retries=1, id='fn')(self._handle)

    async def _handle(self, **_):
        self.number = self.lists.hits
        self.result = await self.fn()
        self.number = self.lists.hits - self.number

    async def __call__(self, fn):
        """Return the result, and the number of the requests."""
        self.fn, self.result = fn, LookupError
        await self.api.client.create('kopfexamples', 'obj', spec={'duration': 5})
        obj = await self.api.client.wait(
            'kopfexamples', 'obj', lambda obj: 'kopf.zalando.org/last-handled-configuration' in (
                obj['metadata'].get('annotations') or {}), timeout=50)
        await self.api.client.delete('kopfexamples', obj['metadata']['name'])
        return self.result, self.number


@contextlib.asynccontextmanager
async def calling(registry, **options):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('namespaces', 'other')
        await api.client.create('configmaps', 'a', metadata={'labels': {'l': '1'}})
        await api.client.create('configmaps', 'b', metadata={'labels': {'l': '2'}})
        await api.client.create('configmaps', 'c', namespace='other')
        call = Calls(api, registry)
        async with api.operator(registry=registry, **options):
            await asyncio.sleep(1)
            yield call


def get_names(objs):
    return sorted(obj.metadata.name for obj in objs)


@testing.virtual_time
async def test_an_object_is_read_by_its_name_in_the_own_namespace(registry):
    async with calling(registry) as call:
        obj, number = await call(lambda: kopf.get('configmaps', 'a'))
        assert isinstance(obj, kopf.Body)
        assert (obj.metadata.name, obj.metadata.namespace, number) == ('a', 'default', 1)
        obj, _ = await call(lambda: kopf.get(('v1', 'configmaps'), 'c', namespace='other'))
        assert obj.metadata.namespace == 'other'


@testing.virtual_time
async def test_an_absent_object_is_none(registry):
    async with calling(registry) as call:
        assert await call(lambda: kopf.get('configmaps', 'c')) == (None, 1)


@testing.virtual_time
async def test_objects_are_listed_by_namespaces_and_labels(registry):
    async with calling(registry) as call:
        for options, expected in [
                ({}, ['a', 'b']), ({'namespace': 'other'}, ['c']), ({'labels': {'l': '2'}}, ['b']),
                ({'namespace': kopf.EVERYTHING}, ['a', 'b', 'c'])]:
            objs, number = await call(lambda: kopf.list_('configmaps', **options))
            assert (get_names(objs), number) == (expected, 1)


@testing.virtual_time
async def test_the_selectors_of_the_operator_do_not_matter(registry):
    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.watching.label_selectors['configmaps'] = 'l=1'

    @kopf.on.event('configmaps', registry=registry)
    async def event_fn(**_):
        pass

    async with calling(registry) as call:
        objs, _ = await call(lambda: kopf.list_('configmaps'))
        assert get_names(objs) == ['a', 'b']


@testing.virtual_time
async def test_kept_objects_are_read_without_requests(registry):
    @kopf.on.event('configmaps', registry=registry)
    async def event_fn(**_):
        pass

    async with calling(registry) as call:
        obj, number = await call(lambda: kopf.get('configmaps', 'a'))
        assert (obj.metadata.name, number) == ('a', 0)
        for options, expected in [
                ({}, ['a', 'b']), ({'namespace': 'other'}, ['c']), ({'labels': {'l': '2'}}, ['b']),
                ({'namespace': kopf.EVERYTHING}, ['a', 'b', 'c'])]:
            objs, number = await call(lambda: kopf.list_('configmaps', **options))
            assert (get_names(objs), number) == (expected, 0)
        await call.api.client.patch('configmaps', 'a', {'data': {'k': 'v'}})
        await asyncio.sleep(1)
        obj, number = await call(lambda: kopf.get('configmaps', 'a'))
        assert (obj['data'], number) == ({'k': 'v'}, 0)
        await asyncio.sleep(1000)  # now, the states are packed
        assert (await call(lambda: kopf.get('configmaps', 'a')))[1] == 0
        assert await call(lambda: kopf.get('configmaps', 'c')) == (None, 1)  # it could be new


@testing.virtual_time
async def test_what_a_handler_changes_in_an_object_is_its_own_copy(registry):
    kopf.on.event('configmaps', registry=registry)(lambda **_: None)

    async def fn():
        [first] = await kopf.list_('configmaps', labels={'l': '1'})
        first['metadata']['labels']['l'] = '2'
        second = await kopf.get('configmaps', 'a')
        second['metadata']['labels']['l'] = '3'
        return (await kopf.get('configmaps', 'a')).metadata.labels['l']

    async with calling(registry) as call:
        assert await call(fn) == ('1', 0)


@testing.virtual_time
async def test_objects_that_are_not_kept_are_requested(registry):
    @kopf.on.update('configmaps', registry=registry)
    async def update_fn(**_):
        pass

    async with calling(registry) as call:
        objs, number = await call(lambda: kopf.list_('configmaps'))
        assert (get_names(objs), number) == (['a', 'b'], 1)


@testing.virtual_time
async def test_a_class_makes_its_instances(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        call = Calls(api, registry)
        async with api.operator(registry=registry):
            await asyncio.sleep(1)
            await api.client.create('customresourcedefinitions', 'readthings.reading.test', spec={
                'group': 'reading.test', 'scope': 'Namespaced',
                'names': {'plural': 'readthings', 'singular': 'readthing', 'kind': 'ReadThing'},
                'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': {
                    'openAPIV3Schema': {'type': 'object', 'properties': {'spec': {
                        'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}}}]})
            await api.client.create('readthings', 'good', spec={'size': 1})
            await api.client.create('readthings', 'bad', spec={'size': 'big'})
            assert (await call(lambda: kopf.get(ReadThing, 'good')))[0] == ReadThing(ThingSpec(1))

            async def fail():
                with pytest.raises(kopf.MisfitError, match='spec.size'):
                    await kopf.list_(ReadThing)
                return 'failed'

            assert (await call(fail))[0] == 'failed'


@testing.virtual_time
async def test_an_unknown_kind_is_an_error(registry):
    async def fail():
        with pytest.raises(testing.APIError, match="no 'unknowns' in the cluster"):
            await kopf.get('unknowns', 'name')
        return 'failed'

    async with calling(registry) as call:
        assert (await call(fail))[0] == 'failed'


@testing.virtual_time
async def test_sync_handlers_wait_for_the_result(registry):
    found = []

    @kopf.on.create('configmaps', registry=registry)
    def create_fn(name, **_):
        found.append(kopf.get('configmaps', name).result(timeout=5).metadata.name)
        found.append(get_names(kopf.list_('configmaps').result(timeout=5)))

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('configmaps', 'a')
            await asyncio.sleep(5)
    assert found == ['a', ['a']]


@testing.virtual_time
async def test_a_forgotten_await_is_an_error_and_not_true(registry):
    async def fn():
        with pytest.raises(TypeError, match="a request, and not its result. Use `await`"):
            bool(kopf.get('configmaps', 'c'))

    async with calling(registry) as call:
        assert (await call(fn))[0] is None


@pytest.mark.parametrize('is_awaited', [True, False])
@testing.virtual_time
async def test_the_error_of_a_request_for_which_nobody_waits_is_logged(
        registry, caplog, is_awaited):
    wrong = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': 'Wrong', 'namespace': 'default'}}

    async def fn():
        request = kopf.apply(wrong)
        if is_awaited:
            with pytest.raises(kopf.APIError):
                await request

    async with calling(registry) as call:
        await call(fn)
        await asyncio.sleep(1)
    told = [record.message for record in caplog.records if 'nobody has waited' in record.message]
    assert len(told) == (0 if is_awaited else 1)
    assert all(text.startswith("kopf.apply() in a handler of default/obj has failed, and")
               for text in told)


@pytest.mark.parametrize('read', [
    lambda: kopf.get('configmaps', None), lambda: kopf.get('configmaps', 5),
    lambda: kopf.get('configmaps', 'a', namespace=kopf.EVERYTHING),
    lambda: kopf.list_('configmaps', namespace=['default']),
    lambda: kopf.list_('configmaps', labels={'l': 1}),
    lambda: kopf.list_('configmaps', labels={'l': kopf.PRESENT}),
])
async def test_what_cannot_be_read_is_an_error_and_not_another_object(registry, read):
    kopf.on.event('configmaps', registry=registry)(lambda **_: None)

    async def fn():
        with pytest.raises(TypeError, match='None|5|EVERYTHING|default|1|PRESENT'):
            await read()
        return 'refused'

    async with calling(registry) as call:
        assert await call(fn) == ('refused', 0)


async def test_another_version_is_found_when_the_known_one_is_gone(registry):
    crd = make_crd('MovedThing', 'movedthings')

    async def fn():
        assert await kopf.get('movedthings', 'a') is None
        crd['spec']['versions'][0]['name'] = 'v2'
        await call.api.client.delete('customresourcedefinitions', crd['metadata']['name'])
        await call.api.client.load(crd)
        await call.api.client.create({
            'apiVersion': 'example.com/v2', 'kind': 'MovedThing', 'metadata': {'name': 'a'}})
        with pytest.raises(testing.APIError):
            await kopf.get('movedthings', 'a')
        return (await kopf.get('movedthings', 'a'))['apiVersion']

    async with calling(registry) as call:
        await call.api.client.load(crd)
        assert (await call(fn))[0] == 'example.com/v2'


def test_outside_of_handlers_nothing_is_read():
    with pytest.raises(LookupError, match=r'kopf.get\(\)'):
        kopf.get('configmaps', 'a')
    with pytest.raises(LookupError, match=r'kopf.list_\(\)'):
        kopf.list_('configmaps')
