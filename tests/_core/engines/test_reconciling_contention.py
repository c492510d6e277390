"""
Objects that others have, or want, too. In virtual time, on the sandbox.
"""
import asyncio
import itertools

import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
HANDLED = 'kopf.zalando.org/last-handled-configuration'
OWNER = 'kopf.dev/owner'
SHARED = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'shared'}}


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.reconciling.max_error_delay = 10

    @kopf.reconcile('kopfexamples', owns=['configmaps'], conditions=True, registry=registry)
    async def fn(spec, **_):
        yield {**SHARED, 'data': {'a': spec.get('a', 'b')}}

    return registry


async def create(api, name, **spec):
    return (await api.client.create('kopfexamples', name, spec=spec))['metadata']['uid']


async def wait_ready(api, name, status='True'):
    obj = await api.client.wait('kopfexamples', name, lambda obj: (
        obj['status']['conditions'][0]['status'] == status), timeout=600)
    return obj['status']['conditions'][0]['message']


async def get_owner(api):
    return (await api.client.get('configmaps', 'shared'))['metadata']['labels'][OWNER]


@testing.virtual_time
async def test_the_child_of_another_parent_is_not_taken_over_and_that_is_said(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            first = await create(api, 'first')
            await wait_ready(api, 'first')
            await create(api, 'second')
            message = await wait_ready(api, 'second', 'False')
            assert message.startswith("ConfigMap default/shared: an object of this name exists")
            assert message.endswith("it belongs to KopfExample first.")
            assert await get_owner(api) == first
            await api.client.patch('kopfexamples', 'first', {'spec': {'a': 'c'}})
            await api.client.wait('configmaps', 'shared', lambda obj: obj['data'] == {'a': 'c'})


@testing.virtual_time
async def test_the_child_of_another_parent_is_not_taken_over_after_a_restart(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            first = await create(api, 'x-first')
            await wait_ready(api, 'x-first')
        await create(api, 'a-second')
        async with api.operator(registry=registry):
            await wait_ready(api, 'a-second', 'False')
            await asyncio.sleep(60)
            assert await get_owner(api) == first
            await wait_ready(api, 'x-first')


@testing.virtual_time
async def test_a_child_comes_to_the_other_parent_when_the_first_one_is_gone(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await create(api, 'first')
            await wait_ready(api, 'first')
            second = await create(api, 'second')
            await wait_ready(api, 'second', 'False')
            await api.client.delete('kopfexamples', 'first')
            await wait_ready(api, 'second')
            assert await get_owner(api) == second


@testing.virtual_time
async def test_of_parents_that_want_a_child_at_once_exactly_one_has_it(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        for number in range(5):
            await create(api, f'parent-{number}')
        async with api.operator(registry=registry):
            await asyncio.sleep(60)
            objs = await api.client.list('kopfexamples')
            ready = [obj['metadata']['uid'] for obj in objs
                     if obj['status']['conditions'][0]['status'] == 'True']
            assert ready == [await get_owner(api)]
            child = await api.client.get('configmaps', 'shared')
            await asyncio.sleep(600)
            assert await api.client.get('configmaps', 'shared') == child


@testing.virtual_time
async def test_the_children_of_a_former_parent_of_the_same_name_are_taken_over(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            former = await create(api, 'parent')
            await wait_ready(api, 'parent')
        before = await api.client.get('configmaps', 'shared')
        await api.client.delete('kopfexamples', 'parent')
        uid = await create(api, 'parent')
        assert uid != former
        async with api.operator(registry=registry):
            await wait_ready(api, 'parent')
            assert await get_owner(api) == uid
            after = await api.client.get('configmaps', 'shared')
            assert [ref['uid'] for ref in after['metadata']['ownerReferences']] == [uid]
            assert before['metadata']['name'] == after['metadata']['name']


@testing.virtual_time
async def test_objects_without_controllers_are_adopted_and_that_is_said(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        before = await api.client.create('configmaps', 'shared', data={'a': 'b', 'c': 'd'})
        async with api.operator(registry=registry) as operator:
            uid = await create(api, 'parent')
            await wait_ready(api, 'parent')
            after = await api.client.get('configmaps', 'shared')
            assert after['metadata']['uid'] == before['metadata']['uid']
            assert await get_owner(api) == uid and after['data'] == before['data']
            assert await operator.wait_log(
                "has adopted ConfigMap default/shared, which existed before")


@testing.virtual_time
async def test_creations_are_no_adoptions(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await create(api, 'parent')
            await wait_ready(api, 'parent')
            await api.client.delete('configmaps', 'shared')
            await api.client.wait('configmaps', 'shared')
        assert not any('adopted' in line for line in operator.log)


@testing.virtual_time
async def test_of_two_handlers_that_want_the_same_child_exactly_one_has_it():
    calls, registry = [], kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.reconciling.max_error_delay = 10

    for number in range(2):
        @kopf.reconcile('kopfexamples', owns=['configmaps'], id=f'fn{number}', registry=registry,
                        param=number)
        async def fn(param, **_):
            calls.append(param)
            yield {**SHARED, 'data': {'n': str(param)}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await create(api, 'parent')
            assert await operator.wait_log("default/shared: an object of this name exists")
            child = await api.client.get('configmaps', 'shared')
            await asyncio.sleep(60)
            assert await api.client.get('configmaps', 'shared') == child
            assert len(calls) < 100


@testing.virtual_time
async def test_copies_of_children_are_left_alone(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await create(api, 'parent')
            await wait_ready(api, 'parent')
            child = await api.client.get('configmaps', 'shared')
            meta = {key: child['metadata'][key]
                    for key in ('labels', 'annotations', 'ownerReferences')}
            await api.client.create('configmaps', 'copy', metadata=meta, data=child['data'])
            await api.client.patch('kopfexamples', 'parent', {'spec': {'a': 'c'}})
            await api.client.wait('configmaps', 'shared', lambda obj: obj['data'] == {'a': 'c'})
            await asyncio.sleep(60)
            assert (await api.client.get('configmaps', 'copy'))['data'] == {'a': 'b'}


@testing.virtual_time
async def test_controlled_objects_in_other_namespaces_are_not_taken_over():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(**_):
        yield {**SHARED, 'metadata': {'name': 'shared', 'namespace': 'kube-system'},
               'data': {'a': 'b'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        controller = await api.client.create('configmaps', 'other', namespace='kube-system')
        before = await api.client.create(
            'configmaps', 'shared', namespace='kube-system', data={'a': 'b'}, metadata={
                'ownerReferences': [{
                    'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'other', 'controller': True,
                    'uid': controller['metadata']['uid']}]})
        async with api.operator(registry=registry) as operator:
            await create(api, 'parent')
            assert await operator.wait_log("it belongs to ConfigMap other.")
            await asyncio.sleep(60)
        assert before == await api.client.get('configmaps', 'shared', namespace='kube-system')


@testing.virtual_time
async def test_objects_that_the_parent_controls_are_taken_over_from_former_operators(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        uid = await create(api, 'parent', a='new')
        await api.client.create('configmaps', 'shared', data={'a': 'old', 'x': 'y'}, metadata={
            'ownerReferences': [{'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'uid': uid,
                                 'name': 'parent', 'controller': True}]})
        async with api.operator(registry=registry) as operator:
            await wait_ready(api, 'parent')
            child = await api.client.get('configmaps', 'shared')
            assert child['data'] == {'a': 'new', 'x': 'y'} and await get_owner(api) == uid
            assert await operator.wait_log("has taken over ConfigMap default/shared")


@testing.virtual_time
async def test_renamed_handlers_take_their_children_over():
    def make_registry(id):
        registry = kopf.OperatorRegistry()

        @kopf.reconcile('kopfexamples', owns=['configmaps'], id=id, registry=registry,
                        conditions=True)
        async def fn(spec, **_):
            yield {**SHARED, 'data': {'a': spec['a']}}
            if id == 'old':
                yield {**SHARED, 'metadata': {'name': 'other'}}

        return registry

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=make_registry('old')):
            await create(api, 'parent', a='1')
            await wait_ready(api, 'parent')
        await api.client.patch('kopfexamples', 'parent', {'spec': {'a': '2'}})
        async with api.operator(registry=make_registry('new')):
            await api.client.wait('configmaps', 'shared', lambda obj: obj['data'] == {'a': '2'})
            await wait_ready(api, 'parent')
            assert await api.client.get('configmaps', 'other')


ELSEWHERE = {'apiVersion': 'v1', 'kind': 'ConfigMap',
             'metadata': {'name': 'shared', 'namespace': 'kube-system'}}
CLUSTER_SCOPED = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'shared'}}


def make_registry(manifest):
    """An operator whose objects all want the same child, which cannot have owner references."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.reconciling.max_error_delay = 10
        settings.watching.chunk_size = 1

    @kopf.reconcile('kopfexamples', owns=['configmaps', 'namespaces'], conditions=True,
                    errors=kopf.ErrorsMode.PERMANENT, labels={'idle': kopf.ABSENT},
                    registry=registry)
    async def fn(**_):
        yield manifest

    return registry


async def get_shared_owner(api, manifest):
    child = await api.client.get(manifest['kind'], 'shared', **(
        {'namespace': 'kube-system'} if manifest is ELSEWHERE else {}))
    return child['metadata']['labels'][OWNER]


@pytest.mark.parametrize('manifest', [ELSEWHERE, CLUSTER_SCOPED], ids=['elsewhere', 'cluster'])
@testing.virtual_time
async def test_a_child_of_a_parent_on_a_later_page_is_not_taken_over_after_a_restart(manifest):
    registry = make_registry(manifest)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            first = await create(api, 'x-first')
            await wait_ready(api, 'x-first')
        await create(api, 'a-second')
        api.sandbox.faults.add(testing.Fault(
            action='delay', verb='list', resource='kopfexamples', skip=1, count=1, seconds=60))
        async with api.operator(registry=registry):
            await wait_ready(api, 'a-second', 'False')
            await asyncio.sleep(30)
            assert await get_shared_owner(api, manifest) == first
            await asyncio.sleep(60)
            assert await get_shared_owner(api, manifest) == first


@testing.virtual_time
async def test_a_child_of_a_parent_in_a_namespace_that_is_listed_later_is_not_taken_over():
    registry, namespaces = make_registry(CLUSTER_SCOPED), ['default', 'later']
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('namespaces', 'later')
        async with api.operator(registry=registry, namespaces=namespaces):
            first = await api.client.create('kopfexamples', 'first', namespace='later')
            await api.client.wait('namespaces', 'shared')
        await create(api, 'second')
        api.sandbox.faults.add(testing.Fault(
            action='delay', verb='list', resource='kopfexamples', namespace='later', count=1,
            seconds=60))
        async with api.operator(registry=registry, namespaces=namespaces):
            message = await wait_ready(api, 'second', 'False')
            assert "not all objects are listed here" in message
            await asyncio.sleep(90)
            assert await get_shared_owner(api, CLUSTER_SCOPED) == first['metadata']['uid']


@pytest.mark.parametrize(('namespaces', 'selector'), [
    (['default', 'kube-system'], ''), ([], 'app=second')], ids=['namespaces', 'labels'])
@testing.virtual_time
async def test_a_child_is_not_taken_over_if_its_parent_can_be_one_of_another_operator(
        namespaces, selector):
    registry, settings = make_registry(ELSEWHERE), kopf.OperatorSettings()
    settings.watching.label_selectors['kopfexamples'] = selector
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('namespaces', 'other')
        async with api.operator(registry=registry):
            first = await api.client.create('kopfexamples', 'first', namespace='other')
            await api.client.wait('configmaps', 'shared', namespace='kube-system')
        meta = {'labels': {'app': 'second'}}
        await api.client.create('kopfexamples', 'second', metadata=meta)
        async with api.operator(registry=registry, settings=settings, namespaces=namespaces):
            message = await wait_ready(api, 'second', 'False')
            assert "not all objects are listed here" in message
            await asyncio.sleep(60)
            assert await get_shared_owner(api, ELSEWHERE) == first['metadata']['uid']


@testing.virtual_time
async def test_an_orphan_is_taken_over_as_soon_as_all_objects_are_listed():
    registry = make_registry(ELSEWHERE)
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await create(api, 'first')
            await wait_ready(api, 'first')
        await api.client.patch('kopfexamples', 'first', {'metadata': {'finalizers': None}})
        await api.client.delete('kopfexamples', 'first')
        second = await create(api, 'a-second')
        await api.client.create('kopfexamples', 'x-third', metadata={'labels': {'idle': 'yes'}})
        api.sandbox.faults.add(testing.Fault(
            action='delay', verb='list', resource='kopfexamples', skip=1, count=1, seconds=60))
        async with api.operator(registry=registry) as operator:
            await wait_ready(api, 'a-second', 'False')
            await wait_ready(api, 'a-second')
            assert await get_shared_owner(api, ELSEWHERE) == second
            assert await operator.wait_log("has taken over ConfigMap kube-system/shared")


@testing.virtual_time
async def test_controllers_are_seen_whatever_labels_the_author_selects():
    registry = make_registry(ELSEWHERE)
    settings = kopf.OperatorSettings()
    settings.watching.label_selectors['configmaps'] = 'app=example'
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        other = await api.client.create('configmaps', 'other', namespace='kube-system')
        meta = {'ownerReferences': [{
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'other', 'controller': True,
            'uid': other['metadata']['uid']}]}
        before = await api.client.create(
            'configmaps', 'shared', namespace='kube-system', metadata=meta)
        async with api.operator(registry=registry, settings=settings):
            await create(api, 'parent')
            message = await wait_ready(api, 'parent', 'False')
            assert "it belongs to ConfigMap other" in message
        assert before == await api.client.get('configmaps', 'shared', namespace='kube-system')


@testing.virtual_time
async def test_objects_with_the_labels_of_children_are_not_seen_as_children():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(children, **_):
        seen.append([
            len(children), children.get('configmaps', 'shared'),
            children.get('configmaps', 'shared', namespace='tenant'),
            children.get('configmaps', 'forged')])
        yield ELSEWHERE

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('namespaces', 'tenant')
        async with api.operator(registry=registry):
            await create(api, 'parent')
            await api.client.wait('configmaps', 'shared', namespace='kube-system')
            child = await api.client.get('configmaps', 'shared', namespace='kube-system')
            meta = {key: child['metadata'][key] for key in ('labels', 'annotations')}
            await api.client.create('configmaps', 'shared', namespace='tenant', metadata=meta)
            await api.client.create('configmaps', 'forged', metadata=meta)
            await asyncio.sleep(10)
            await api.client.patch('kopfexamples', 'parent', {'spec': {'a': 'b'}})
            await testing.wait_for(lambda: len(seen) > 1)
            assert seen[-1] == [1, None, None, None]


@testing.virtual_time
async def test_what_kopf_sets_on_owned_resources_is_no_change_for_their_own_handlers():
    registry, diffs = make_registry(SHARED), []

    @kopf.on.create('configmaps', registry=registry)
    @kopf.on.update('configmaps', registry=registry)
    def child_fn(diff, **_):
        diffs.append([(change.operation, change.field, change.new) for change in diff])

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await create(api, 'parent')
            child = await api.client.wait(
                'configmaps', 'shared', lambda obj: HANDLED in obj['metadata']['annotations'])
            assert child['metadata']['annotations'][HANDLED] == '{}\n'
            await api.client.patch(
                'configmaps', 'shared', {'metadata': {'annotations': {'kopf.dev/applied': 'x'}}})
            await asyncio.sleep(60)
    assert diffs == [[('add', (), {})]]


# Children whose labels others have changed.

def make_minting_registry(namespace=None, id='fn'):
    """An operator that makes a new value whenever it does not see the former one."""
    registry = kopf.OperatorRegistry()
    numbers = itertools.count(1)

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['configmaps'], id=id, registry=registry)
    async def fn(spec, children, **_):
        known = children.get('configmaps', 'shared', namespace=namespace)
        value = known['data']['value'] if known else f'{id} {next(numbers)}'
        yield {**SHARED, 'metadata': {'name': 'shared', **(
            {'namespace': namespace} if namespace else {})}, 'data': {'value': value}}

    return registry


@pytest.mark.parametrize('is_restarted', [False, True], ids=['live', 'restarted'])
@pytest.mark.parametrize('namespace', ['default', 'kube-system'])
@pytest.mark.parametrize('label', [OWNER, 'kopf.dev/reconciler'])
@pytest.mark.parametrize('value', [None, 'x'], ids=['removed', 'changed'])
@testing.virtual_time
async def test_owned_resources_are_seen_whatever_their_labels_say(
        label, value, namespace, is_restarted):
    change = {'metadata': {'labels': {label: value}}}

    def is_restored(obj):
        return obj['metadata']['labels'].get(label) not in (None, 'x')

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=make_minting_registry(namespace, 'fn')) as operator:
            await create(api, 'parent')
            before = await api.client.wait('configmaps', 'shared', namespace=namespace)
            if not is_restarted:
                await api.client.patch('configmaps', 'shared', change, namespace=namespace)
                await api.client.wait('configmaps', 'shared', is_restored, namespace=namespace)
        if is_restarted:
            await api.client.patch('configmaps', 'shared', change, namespace=namespace)
            async with api.operator(registry=make_minting_registry(namespace, 'fn')) as operator:
                await api.client.wait('configmaps', 'shared', is_restored, namespace=namespace)
        after = await api.client.get('configmaps', 'shared', namespace=namespace)
        assert after['data'] == before['data'] == {'value': 'fn 1'}
        assert after['metadata']['labels'] == before['metadata']['labels']
        told = [line for line in operator.log if "taken over" in line]
        assert len(told) == 1 and (
            f"has taken over ConfigMap {namespace}/shared again, which belongs to this object, "
            f"though others have changed its labels.") in told[0]


@testing.virtual_time
async def test_what_the_object_controls_is_seen_before_it_is_taken_over():
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        uid = await create(api, 'parent')
        await api.client.create('configmaps', 'shared', data={'value': 'old'}, metadata={
            'ownerReferences': [{'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'uid': uid,
                                 'name': 'parent', 'controller': True}]})
        async with api.operator(registry=make_minting_registry()) as operator:
            child = await api.client.wait(
                'configmaps', 'shared', lambda obj: OWNER in obj['metadata'].get('labels', {}))
            assert child['data'] == {'value': 'old'}
            assert await operator.wait_log("has taken over ConfigMap default/shared")


@testing.virtual_time
async def test_renamed_handlers_see_what_they_take_over():
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=make_minting_registry(id='old')):
            await create(api, 'parent')
            before = await api.client.wait('configmaps', 'shared')
        async with api.operator(registry=make_minting_registry(id='new')) as operator:
            assert await operator.wait_log("has taken over ConfigMap default/shared")
            after = await api.client.get('configmaps', 'shared')
        assert after['data'] == before['data'] == {'value': 'old 1'}


@testing.virtual_time
async def test_what_another_handler_has_applied_is_left_alone_whatever_its_labels_say(registry):
    @kopf.reconcile('kopfexamples', owns=['configmaps'], id='other', registry=registry)
    async def other(spec, **_):
        if spec.get('all'):
            yield {**SHARED, 'data': {'a': 'other'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await create(api, 'parent')
            await wait_ready(api, 'parent')
            await api.client.patch(
                'configmaps', 'shared', {'metadata': {'labels': {'kopf.dev/reconciler': None}}})
            await api.client.patch('kopfexamples', 'parent', {'spec': {'all': True}})
            assert await operator.wait_log("it belongs to another handler of this object")
            await asyncio.sleep(60)
            assert (await api.client.get('configmaps', 'shared'))['data'] == {'a': 'b'}


@testing.virtual_time
async def test_what_cannot_be_looked_for_is_not_written_unless_the_object_is_new(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await create(api, 'old')
        async with api.operator(registry=registry):
            await wait_ready(api, 'old')
            await api.client.delete('configmaps', 'shared')
            await api.client.delete('kopfexamples', 'old')
            await asyncio.sleep(10)
            api.sandbox.faults.add(testing.Fault(
                action='refuse', status=403, verb='list', resource='configmaps'))
            await create(api, 'new')
            await wait_ready(api, 'new')
            await api.client.delete('configmaps', 'shared')
            message = await wait_ready(api, 'new', 'False')
            assert message.startswith("ConfigMap default/shared: ")
            api.sandbox.faults.clear()
            await wait_ready(api, 'new')
