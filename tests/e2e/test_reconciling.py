"""
Owned resources are as the functions of `kopf.reconcile` say, whatever happens to them and to Kopf.
"""
import asyncio
import datetime
import logging
import signal
import time
import uuid

import pykube
import pytest

import kopf
from tests.e2e.kubes import CONFIGMAPS, NAMESPACES, Kind, KubeError
from tests.e2e.proxy import Proxy, is_list, is_watch
from tests.e2e.test_killing import Strike
from tests.e2e.test_peering import NARROW, install

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')

DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')
SECRETS = Kind('', 'v1', 'secrets', 'Secret')
SERVICES = Kind('', 'v1', 'services', 'Service')
CLUSTER_ROLES = Kind('rbac.authorization.k8s.io', 'v1', 'clusterroles', 'ClusterRole', False)

OWNER = 'kopf.dev/owner'
FINALIZER = 'kopf.dev/children'
WRITING = ('POST', 'PUT', 'PATCH', 'DELETE')
SENTINEL = 'sentinel'


@pytest.fixture()
def parent():
    """A name that nobody else uses: owned resources are collected only long after the test."""
    return f'parent-{uuid.uuid4().hex[:8]}'


@pytest.fixture()
def proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


@pytest.fixture()
def run(proxy, embedded, monkeypatch, tmp_path):
    """Run an embedded operator through the proxy."""
    def start(**kwargs):
        monkeypatch.setenv('KUBECONFIG', proxy.write_kubeconfig(tmp_path / 'proxy.yaml'))
        return embedded(**kwargs)
    return start


@pytest.fixture()
async def namespace(kube):
    """Another namespace."""
    name = f'ns-{uuid.uuid4().hex[:8]}'
    await kube.create(NAMESPACES, name)
    yield name
    await kube.delete(NAMESPACES, name)


@pytest.fixture()
async def peering(kube, parent):
    """A peering object that nobody else uses; its name."""
    await install(kube, 'kopf.dev', 'zalando.org')
    while True:
        try:
            await kube.create(NARROW, parent)
            break
        except KubeError as e:  # the API lets nobody create objects of new kinds at once
            assert e.status in (404, 429)
            await asyncio.sleep(0.1)
    yield parent
    await kube.delete(NARROW, parent)


def configmap(name, *, namespace=None, metadata=None, **data):
    metadata = {'name': name, **({'namespace': namespace} if namespace else {}), **(metadata or {})}
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, 'data': data}


def deployment(name, *, cpu='1000m', label=None):
    labels = {'app': label or name}
    return {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}, 'spec': {
        'replicas': 1, 'selector': {'matchLabels': labels}, 'template': {
            'metadata': {'labels': labels}, 'spec': {'containers': [{
                'name': 'main', 'image': 'image', 'ports': [{'containerPort': 80}],
                'resources': {'limits': {'cpu': cpu, 'memory': '1024Mi'}}}]}}}}


def get_writes(proxy, name):
    """All requests that were to change objects whose names begin so, in short."""
    return [f'{request.method} {request.path.rpartition("/")[2]}' for request in proxy.requests
            if request.method in WRITING and request.path.rpartition('/')[2].startswith(name)]


async def rest(kube, kind):
    """Wait until operators have processed another object, some times, and so all before it."""
    for _ in range(3):
        name = f'{SENTINEL}-{uuid.uuid4().hex[:8]}'
        await kube.create(kind, name, spec={})
        await kube.wait_for(CONFIGMAPS, name, bool)


async def find_children(kube, kind, parent_obj):
    return await kube.list_objects(kind, selector=f'{OWNER}={parent_obj["metadata"]["uid"]}')


def is_about(kind, *, watching=False):
    """Match the lists or the watches of a kind."""
    is_wanted = is_watch if watching else is_list
    return lambda request: request.path.endswith(f'/{kind.plural}') and is_wanted(request)


# Creation, restoration, and pruning.

async def test_children_are_created_with_owners_and_labels(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'deployments'])
    def fn(name, **_):
        yield configmap(f'{name}-map', a='b')
        yield deployment(name)

    run()
    owner = await kube.create(kind, parent, labels={'l': 'v'})
    for child_kind, name in ((CONFIGMAPS, f'{parent}-map'), (DEPLOYMENTS, parent)):
        child = await kube.wait_for(child_kind, name, bool)
        assert child['metadata']['labels'] | {'l': 'v', OWNER: owner['metadata']['uid']} == (
            child['metadata']['labels'])
        reference, = child['metadata']['ownerReferences']
        assert reference['uid'] == owner['metadata']['uid'] and reference['controller'] is True
    assert 'finalizers' not in (await kube.get(kind, parent))['metadata']


async def test_children_are_restored_when_they_are_deleted_or_edited(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name, a='b', c='d')

    run()
    await kube.create(kind, parent)
    child = await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.delete(CONFIGMAPS, parent)
    child = await kube.wait_for(
        CONFIGMAPS, parent, lambda obj: obj['metadata']['uid'] != child['metadata']['uid'])
    for edit in ({'data': {'a': 'other'}}, {'data': {'c': None}}, {'data': None},
                 {'metadata': {'ownerReferences': None}},
                 {'metadata': {'labels': {OWNER: None}}},
                 {'metadata': {'labels': {OWNER: 'other'}}, 'data': {'a': 'other'}},
                 {'metadata': {'labels': {'kopf.dev/reconciler': None}}, 'data': {'a': 'other'}},
                 {'metadata': {'annotations': {'kopf.dev/applied': 'x'}}}):
        await kube.patch(CONFIGMAPS, parent, edit)
        restored = await kube.wait_for(CONFIGMAPS, parent, lambda obj: all(
            obj.get('data') == child['data']
            and obj['metadata'].get(key) == child['metadata'][key]
            for key in ('labels', 'annotations', 'ownerReferences')))
        assert restored['metadata']['uid'] == child['metadata']['uid'], edit


@pytest.mark.parametrize('is_elsewhere', [False, True], ids=['here', 'elsewhere'])
@pytest.mark.parametrize('label', [OWNER, 'kopf.dev/reconciler'])
async def test_owned_resources_are_seen_whatever_their_labels_say(
        kube, kind, run, journal, parent, namespace, label, is_elsewhere):
    namespace = namespace if is_elsewhere else 'default'
    where = {'namespace': namespace}

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, children, **_):
        known = children.get('configmaps', name, namespace=namespace)
        if known is None:
            journal.append((name,))
        yield configmap(name, namespace=namespace, value=known['data']['value'] if known else (
            str(len(journal))))

    def is_restored(obj):
        return obj['metadata']['labels'].get(label) not in (None, 'x')

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool, **where)
    for value in (None, 'x'):
        await kube.patch(CONFIGMAPS, parent, {'metadata': {'labels': {label: value}}}, **where)
        child = await kube.wait_for(CONFIGMAPS, parent, is_restored, **where)
        assert child['data'] == {'value': '1'}
    await kube.delete(kind, parent)
    if is_elsewhere:
        await kube.wait_gone(CONFIGMAPS, parent, **where)


async def test_children_that_are_not_wanted_any_more_are_deleted(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        for suffix in spec['children']:
            yield configmap(f'{name}-{suffix}')

    run()
    await kube.create(kind, parent, spec={'children': ['a', 'b']})
    await kube.wait_for(CONFIGMAPS, f'{parent}-a', bool)
    await kube.patch(kind, parent, {'spec': {'children': ['b', 'c']}})
    await kube.wait_gone(CONFIGMAPS, f'{parent}-a')
    await kube.wait_for(CONFIGMAPS, f'{parent}-c', bool)
    assert await kube.get(CONFIGMAPS, f'{parent}-b')
    await kube.patch(kind, parent, {'spec': {'children': []}})
    await kube.wait_gone(CONFIGMAPS, f'{parent}-b')
    await kube.wait_gone(CONFIGMAPS, f'{parent}-c')


async def test_children_are_kept_without_pruning(kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], prune=False)
    def fn(name, spec, **_):
        yield configmap(name)
        for suffix in spec.get('children', []):
            yield configmap(f'{name}-{suffix}')

    run()
    await kube.create(kind, parent, spec={'children': ['a']})
    await kube.wait_for(CONFIGMAPS, f'{parent}-a', bool)
    await kube.patch(kind, parent, {'spec': {'children': ['b']}})
    await kube.wait_for(CONFIGMAPS, f'{parent}-b', bool)
    await rest(kube, kind)
    assert await kube.get(CONFIGMAPS, f'{parent}-a')


async def test_nothing_is_applied_or_pruned_by_functions_that_return_nothing(
        kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        return None if spec.get('manual') else configmap(name)

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.patch(kind, parent, {'spec': {'manual': True}})
    await rest(kube, kind)
    assert get_writes(proxy, parent) == [f'PATCH {parent}']


# At rest.

async def test_nothing_is_written_at_rest(kube, kind, run, proxy, journal, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'deployments', 'secrets', 'services'])
    def fn(name, **_):
        journal.append(name)
        yield configmap(name, a='b')
        yield deployment(name)
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'stringData': {'a': 'b'}, 'type': 'Opaque'}
        yield {'apiVersion': 'v1', 'kind': 'Service', 'spec': {
            'selector': {'a': 'b'}, 'ports': [{'port': 80, 'protocol': 'TCP'}]}, 'status': {}}

    run()
    await kube.create(kind, parent)
    for child_kind in (CONFIGMAPS, DEPLOYMENTS, SECRETS, SERVICES):
        await kube.wait_for(child_kind, parent, bool)
    await rest(kube, kind)
    assert get_writes(proxy, parent) == [f'PATCH {parent}'] * 4
    assert [name for name in journal if name == parent] == [parent]


async def test_nothing_is_written_after_a_restart(kube, kind, run, proxy, journal, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'deployments', 'secrets', 'services'])
    def fn(name, **_):
        journal.append(name)
        yield configmap(name, a='b')
        manifest = deployment(name)
        template = manifest['spec']['template']['spec']
        template.update(volumes=[], initContainers=[], imagePullSecrets=[], tolerations=[])
        template['containers'][0].update(env=[], ports=[], volumeMounts=[], args=[])
        yield manifest
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'stringData': {'a': 'b'}, 'type': 'Opaque'}
        yield {'apiVersion': 'v1', 'kind': 'Service', 'spec': {
            'selector': {'a': 'b'}, 'ports': [{'port': 80, 'protocol': 'TCP'}]}, 'status': {}}

    instance = run()
    await kube.create(kind, parent)
    for child_kind in (CONFIGMAPS, DEPLOYMENTS, SECRETS, SERVICES):
        await kube.wait_for(child_kind, parent, bool)
    instance.stop()
    proxy.requests.clear()
    journal.clear()
    run()
    await journal.wait(parent)
    await rest(kube, kind)
    assert get_writes(proxy, parent) == []


async def test_empty_mappings_are_written_at_most_once_after_a_restart(
        kube, kind, run, proxy, journal, parent, settings):
    settings.queueing.worker_limit = 1
    settings.reconciling.manager = parent

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'deployments'])
    def fn(name, **_):
        journal.append(name)
        manifest = deployment(name)
        template = manifest['spec']['template']['spec']
        template['volumes'] = [{'name': 'v', 'emptyDir': {}}]
        template['securityContext'] = {}
        yield manifest
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {}}

    names = [f'{parent}-{number}' for number in range(5)]
    instance = run()
    for name in names:
        await kube.create(kind, name)
    for name in names:
        await kube.wait_for(CONFIGMAPS, name, bool)
        await kube.wait_for(DEPLOYMENTS, name, bool)
    instance.stop()
    proxy.requests.clear()
    journal.clear()
    run()
    await journal.wait(*names)
    await rest(kube, kind)
    # The oldest Kubernetes does not record them, which is learned once of each kind.
    assert len(get_writes(proxy, parent)) in (0, 2)


async def test_the_status_of_children_is_no_reason_to_write(
        kube, kind, run, proxy, journal, parent):

    @kopf.reconcile(*kind.selector, owns=['deployments', 'configmaps'])
    def fn(name, children, patch, **_):
        child = children.get('deployments', name)
        journal.append((name, None if child is None else child.status.get('replicas')))
        yield deployment(name)
        yield configmap(name)

    run()
    await kube.create(kind, parent)
    await kube.wait_for(DEPLOYMENTS, parent, bool)
    await rest(kube, kind)
    await kube.patch(DEPLOYMENTS, parent, {'status': {'replicas': 7}}, subresource='status')
    await journal.wait((parent, 7))
    await rest(kube, kind)
    assert get_writes(proxy, parent) == [f'PATCH {parent}'] * 2


# While the operator is down.

@pytest.mark.parametrize('edit', [
    {'data': {'a': 'other'}}, {'data': {'a': None}}, {'data': None},
    {'metadata': {'ownerReferences': None}},
    {'metadata': {'managedFields': [{}]}, 'data': {'a': 'other'}}, None,
], ids=['changed', 'removed', 'emptied', 'disowned', 'unmanaged', 'deleted'])
async def test_drift_while_the_operator_is_down_is_mended_in_5_seconds_of_the_start(
        kube, kind, run, parent, edit):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name, a='b', c='d')

    instance = run()
    await kube.create(kind, parent)
    child = await kube.wait_for(CONFIGMAPS, parent, bool)
    instance.stop()
    if edit is None:
        await kube.delete(CONFIGMAPS, parent)
    else:
        await kube.patch(CONFIGMAPS, parent, edit)
    run()
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: (
        obj['data'] == child['data'] and obj['metadata']['ownerReferences']))


async def test_what_is_wanted_while_the_operator_is_down_is_made_after_the_start(
        kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        return [configmap(f'{name}-{suffix}') for suffix in spec['children']]

    instance = run()
    await kube.create(kind, parent, spec={'children': ['a', 'b']})
    await kube.wait_for(CONFIGMAPS, f'{parent}-b', bool)
    instance.stop()
    await kube.patch(kind, parent, {'spec': {'children': ['b', 'c']}})
    run()
    await kube.wait_gone(CONFIGMAPS, f'{parent}-a')
    await kube.wait_for(CONFIGMAPS, f'{parent}-c', bool)


async def test_handlers_wait_until_the_children_are_listed(kube, kind, run, proxy, parent):
    calls = []

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, children, **_):
        calls.append((name, len(children)))
        return configmap(name, a='b')

    instance = run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    instance.stop()
    proxy.requests.clear()
    calls.clear()
    watch, listing = (proxy.delay(1, match=is_about(CONFIGMAPS, watching=flag), times=None)
                      for flag in (True, False))
    run()
    while not (watch.hits or listing.hits):
        await asyncio.sleep(0.01)
    watch.end()
    listing.end()
    while not calls:  # before there are new objects, which can be handled before old ones
        await asyncio.sleep(0.01)
    assert calls[0] == (parent, 1)
    await rest(kube, kind)
    assert get_writes(proxy, parent) == []


# Others.

async def test_foreign_fields_survive(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        return configmap(name, a=spec['a'])

    run()
    await kube.create(kind, parent, spec={'a': '1'})
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.patch(CONFIGMAPS, parent, {
        'data': {'foreign': 'yes'}, 'metadata': {'labels': {'foreign': 'yes'}}})
    await kube.patch(kind, parent, {'spec': {'a': '2'}})
    child = await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data']['a'] == '2')
    assert child['data'] == {'a': '2', 'foreign': 'yes'}
    assert child['metadata']['labels']['foreign'] == 'yes'


@pytest.mark.parametrize('foreign', [
    {'data': {'a': 'foreign'}},
    {'owner': 'other'},
], ids=['with other values', 'of another owner'])
async def test_foreign_objects_of_the_same_name_are_not_taken_over_and_that_is_said(
        kube, kind, run, parent, caplog, foreign):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, **_):
        return configmap(name, a='b')

    before = await kube.create(CONFIGMAPS, parent, data=foreign.get('data', {}))
    if 'owner' in foreign:
        owner = await kube.create(CONFIGMAPS, f'{parent}-{foreign["owner"]}')
        before = await kube.patch(CONFIGMAPS, parent, {'metadata': {'ownerReferences': [{
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': owner['metadata']['name'],
            'uid': owner['metadata']['uid'], 'controller': True}]}})
    run()
    await kube.create(kind, parent)
    await kube.wait_for(kind, parent, lambda obj: any(
        condition['type'] == 'Ready' and condition['status'] == 'False'
        and f"ConfigMap default/{parent}: an object of this name exists" in condition['message']
        for condition in obj['status']['conditions']))
    assert (await kube.get(CONFIGMAPS, parent))['metadata']['resourceVersion'] == (
        before['metadata']['resourceVersion'])
    assert f"ConfigMap default/{parent}: an object of this name exists" in caplog.text
    await kube.delete(CONFIGMAPS, parent)
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'a': 'b'})


async def test_objects_without_controllers_are_adopted_and_that_is_said(
        kube, kind, run, parent, caplog):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, **_):
        yield configmap(name, a='b')
        yield configmap(f'{name}-new')

    caplog.set_level(logging.INFO)
    before = await kube.create(CONFIGMAPS, parent, data={'a': 'b', 'c': 'd'})
    run()
    owner = await kube.create(kind, parent)
    child = await kube.wait_for(
        CONFIGMAPS, parent, lambda obj: obj['metadata']['ownerReferences'])
    await kube.wait_for(CONFIGMAPS, f'{parent}-new', bool)
    await kube.wait_for(kind, parent, lambda obj: obj['status']['conditions'])
    assert child['metadata']['uid'] == before['metadata']['uid']
    assert child['metadata']['labels'][OWNER] == owner['metadata']['uid']
    assert child['data'] == before['data']
    assert f"has adopted ConfigMap default/{parent}, which existed before" in caplog.text
    assert f"has adopted ConfigMap default/{parent}-new" not in caplog.text


async def test_a_child_of_another_parent_is_not_taken_over(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, **_):
        return configmap(parent)

    run()
    owner = await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.create(kind, f'{parent}-other')
    await kube.wait_for(kind, f'{parent}-other', lambda obj: any(
        condition['type'] == 'Ready' and condition['status'] == 'False'
        and condition['message'].endswith(f"it belongs to {kind.kind} {parent}.")
        for condition in obj['status']['conditions']))
    child = await kube.get(CONFIGMAPS, parent)
    assert child['metadata']['labels'][OWNER] == owner['metadata']['uid']


async def test_handlers_touch_only_their_own_children(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn1(name, **_):
        return configmap(f'{name}-1')

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn2(name, spec, **_):
        return [configmap(f'{name}-2')] if spec['second'] else []

    run()
    await kube.create(kind, parent, spec={'second': True})
    await kube.wait_for(CONFIGMAPS, f'{parent}-2', bool)
    await kube.wait_for(CONFIGMAPS, f'{parent}-1', bool)
    await kube.patch(kind, parent, {'spec': {'second': False}})
    await kube.wait_gone(CONFIGMAPS, f'{parent}-2')
    assert await kube.get(CONFIGMAPS, f'{parent}-1')


async def test_copies_of_children_are_left_alone(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        return configmap(name, n=str(spec.get('n')))

    run()
    await kube.create(kind, parent, spec={'n': 1})
    child = await kube.wait_for(CONFIGMAPS, parent, bool)
    metadata = {key: child['metadata'][key]
                for key in ('labels', 'annotations', 'ownerReferences')}
    await kube.request('POST', CONFIGMAPS.get_path(namespace='default'), body=configmap(
        f'{parent}-copy', metadata=metadata, n='1'))
    await kube.patch(kind, parent, {'spec': {'n': 2}})
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'n': '2'})
    await rest(kube, kind)
    assert await kube.get(CONFIGMAPS, f'{parent}-copy')


# Changes that come fast, and watches that come late.

async def test_of_changes_back_and_forth_the_last_one_stands(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        number = spec.get('n', 0)
        yield configmap(f'{name}-{number % 2}', n=str(number))
        yield configmap(name, n=str(number))

    run()
    owner = await kube.create(kind, parent, spec={'n': 0})
    for number in range(1, 30):
        await kube.patch(kind, parent, {'spec': {'n': number}})
        await asyncio.sleep(number % 4 * 0.005)
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'n': '29'})
    await kube.wait_gone(CONFIGMAPS, f'{parent}-0')
    await rest(kube, kind)
    children = await find_children(kube, CONFIGMAPS, owner)
    assert {obj['metadata']['name']: obj['data']['n'] for obj in children} == {
        parent: '29', f'{parent}-1': '29'}


async def test_children_that_are_wanted_again_come_back_though_the_watch_is_late(
        kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        yield configmap(name, n=str(spec.get('n')))
        if spec.get('more'):
            yield configmap(f'{name}-more')

    run()
    await kube.create(kind, parent, spec={'n': 1, 'more': True})
    child = await kube.wait_for(CONFIGMAPS, f'{parent}-more', bool)
    proxy.stall_streams(lambda request: request.path.endswith('/configmaps'))
    await kube.patch(kind, parent, {'spec': {'n': 2, 'more': False}})
    await kube.wait_gone(CONFIGMAPS, f'{parent}-more')
    await kube.patch(kind, parent, {'spec': {'n': 3, 'more': True}})
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'n': '3'})
    proxy.cut_streams(lambda request: request.path.endswith('/configmaps'))
    again = await kube.wait_for(CONFIGMAPS, f'{parent}-more', bool)
    assert again['metadata']['uid'] != child['metadata']['uid']


async def test_a_namesake_of_a_child_is_left_alone_though_the_watch_is_late(
        kube, kind, run, proxy, parent, journal, caplog):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        return configmap(name, n=str(spec.get('n')))

    run()
    await kube.create(kind, parent, spec={'n': 1})
    await kube.wait_for(CONFIGMAPS, parent, bool)
    proxy.stall_streams(lambda request: request.path.endswith('/configmaps'))
    await kube.delete(CONFIGMAPS, parent)
    await kube.request(
        'POST', CONFIGMAPS.get_path(namespace='default'), body=configmap(parent, n='theirs'))
    await kube.patch(kind, parent, {'spec': {'n': 2}})
    await journal.wait_until(lambda: f"ConfigMap default/{parent}: " in caplog.text)
    assert (await kube.get(CONFIGMAPS, parent))['data'] == {'n': 'theirs'}


async def test_children_with_other_finalizers_come_back_when_they_are_gone(
        kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        yield configmap(name, n=str(spec.get('n')))
        if spec.get('more'):
            yield configmap(f'{name}-more')

    run()
    await kube.create(kind, parent, spec={'n': 1, 'more': True})
    child = await kube.wait_for(CONFIGMAPS, f'{parent}-more', bool)
    await kube.patch(
        CONFIGMAPS, f'{parent}-more', {'metadata': {'finalizers': ['example.com/f']}})
    await kube.patch(kind, parent, {'spec': {'n': 2, 'more': False}})
    await kube.wait_for(
        CONFIGMAPS, f'{parent}-more', lambda obj: obj['metadata']['deletionTimestamp'])
    await kube.patch(kind, parent, {'spec': {'n': 3, 'more': True}})
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'n': '3'})
    await kube.patch(CONFIGMAPS, f'{parent}-more', {'metadata': {'finalizers': None}})
    await kube.wait_for(CONFIGMAPS, f'{parent}-more', lambda obj: (
        obj['metadata']['uid'] != child['metadata']['uid']))


async def test_late_watches_make_no_duplicates_of_generated_names(
        kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, **_):
        yield configmap(name, n=str(spec.get('n')))
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
               'metadata': {'generateName': f'{name}-'}, 'data': {'n': str(spec.get('n'))}}

    run()
    await rest(kube, kind)
    proxy.stall_streams(lambda request: request.path.endswith('/configmaps'))
    owner = await kube.create(kind, parent, spec={'n': 0})
    for number in range(1, 6):
        await kube.patch(kind, parent, {'spec': {'n': number}})
        await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data']['n'] == str(number))
    assert len(await find_children(kube, CONFIGMAPS, owner)) == 2
    proxy.cut_streams(lambda request: request.path.endswith('/configmaps'))
    await rest(kube, kind)
    assert len(await find_children(kube, CONFIGMAPS, owner)) == 2


async def test_a_child_that_is_gone_while_nothing_was_watched_comes_back(
        kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name)

    run()
    await rest(kube, kind)
    proxy.stall_streams(lambda request: request.path.endswith('/configmaps'))
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.delete(CONFIGMAPS, parent)
    proxy.fail(410, reason='Expired', match=is_about(CONFIGMAPS, watching=True))
    proxy.cut_streams(lambda request: request.path.endswith('/configmaps'))
    await kube.wait_for(CONFIGMAPS, parent, bool)


async def test_changes_that_only_the_response_to_an_own_write_shows_are_not_missed(
        kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, spec, patch, **_):
        patch.status['x'] = 'y'
        return configmap(name, n=str(spec['n']))

    fault = proxy.delay(0.5, match=lambda request: request.method == 'PATCH' and (
        request.path.endswith(f'/{kind.plural}/{parent}')))
    run()
    await kube.create(kind, parent, spec={'n': 1})
    while not fault.hits:
        await asyncio.sleep(0.01)
    await kube.patch(kind, parent, {'spec': {'n': 2}})
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'n': '2'})


# Errors.

async def test_errors_of_the_api_back_off_and_recover(kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name)

    fault = proxy.fail(
        403, match=lambda request: request.path.endswith(f'/configmaps/{parent}'), times=4)
    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    times = [request.time for request in proxy.requests
             if request.path.endswith(f'/configmaps/{parent}')]
    assert fault.hits == 4 and len(times) == 5
    for number, (one, two) in enumerate(zip(times, times[1:], strict=False)):
        assert two - one >= 0.005 * 2 ** number


async def test_a_refused_patch_of_the_object_does_not_lose_the_reconciliation(
        kube, kind, run, proxy, parent, settings):
    settings.queueing.error_delays = [0.1]
    settings.networking.error_backoffs = []

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, patch, **_):
        patch.status['x'] = 'y'
        return configmap(name)

    proxy.fail(500, match=lambda request: request.method == 'PATCH' and (
        request.path.endswith(f'/{kind.plural}/{parent}')))
    run()
    await kube.create(kind, parent)
    await kube.wait_for(kind, parent, lambda obj: obj['status'] == {'x': 'y'})


async def test_errors_of_functions_back_off_and_recover(kube, kind, run, journal, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, retry, **_):
        journal.append(retry)
        if retry < 3:
            raise Exception("boo!")
        if retry < 4:
            raise kopf.TemporaryError("wait", delay=0.01)
        return configmap(name)

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    assert journal == [0, 1, 2, 3, 4]


async def test_permanent_errors_last_until_the_next_change(kube, kind, run, journal, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, spec, **_):
        if spec.get('bad'):
            journal.append(name)
            raise kopf.PermanentError("bad spec")
        return configmap(name)

    run()
    await kube.create(kind, parent, spec={'bad': True})
    await kube.wait_for(kind, parent, lambda obj: any(
        item['type'] == 'Stalled' and item['status'] == 'True' and item['message'] == 'bad spec'
        for item in obj['status']['conditions']))
    await rest(kube, kind)
    assert journal == [parent]
    await kube.patch(kind, parent, {'spec': {'bad': False}})
    await kube.wait_for(CONFIGMAPS, parent, bool)


async def test_an_error_of_one_child_does_not_hold_the_others(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, **_):
        yield configmap('Not A Name')
        yield {'kind': 'ConfigMap'}
        yield configmap(name)

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    obj = await kube.wait_for(kind, parent, lambda obj: obj['status']['conditions'])
    message = obj['status']['conditions'][0]['message']
    assert "A manifest needs apiVersion and kind: {'kind': 'ConfigMap'}" in message
    assert "ConfigMap default/Not A Name: " in message


async def test_immutable_fields_are_an_error_that_names_the_way_out(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['deployments'], conditions=True)
    def fn(name, spec, **_):
        return deployment(name, label=spec['label'])

    run()
    await kube.create(kind, parent, spec={'label': 'one'})
    child = await kube.wait_for(DEPLOYMENTS, parent, bool)
    await kube.patch(kind, parent, {'spec': {'label': 'two'}})
    obj = await kube.wait_for(kind, parent, lambda obj: (
        obj['status']['conditions'][0]['status'] == 'False' and obj))
    assert 'recreate=True' in obj['status']['conditions'][0]['message']
    assert (await kube.get(DEPLOYMENTS, parent))['metadata']['uid'] == child['metadata']['uid']


async def test_children_with_immutable_fields_are_created_again_on_request(
        kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['deployments'], recreate=True)
    def fn(name, spec, **_):
        return deployment(name, label=spec['label'])

    run()
    await kube.create(kind, parent, spec={'label': 'one'})
    child = await kube.wait_for(DEPLOYMENTS, parent, bool)
    await kube.patch(kind, parent, {'spec': {'label': 'two'}})
    again = await kube.wait_for(
        DEPLOYMENTS, parent, lambda obj: obj['spec']['selector']['matchLabels'] == {'app': 'two'})
    assert again['metadata']['uid'] != child['metadata']['uid']


async def test_children_are_not_deleted_for_manifests_that_cannot_be_created_either(
        kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['deployments'], recreate=True, conditions=True)
    def fn(name, spec, **_):
        manifest = deployment(name)
        manifest['spec']['replicas'] = spec['replicas']
        return manifest

    run()
    await kube.create(kind, parent, spec={'replicas': 1})
    child = await kube.wait_for(DEPLOYMENTS, parent, bool)
    await kube.patch(kind, parent, {'spec': {'replicas': -1}})
    await kube.wait_for(kind, parent, lambda obj: (
        obj['status']['conditions'][0]['status'] == 'False' and obj))
    assert (await kube.get(DEPLOYMENTS, parent))['metadata']['uid'] == child['metadata']['uid']


# The end of parents.

async def test_children_without_owner_references_are_removed_with_the_parent(
        kube, kind, run, parent, namespace):

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'clusterroles'])
    def fn(name, **_):
        yield configmap(name, namespace=namespace)
        yield {'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRole', 'rules': []}

    run()
    await kube.create(kind, parent)
    for child_kind in (CONFIGMAPS, CLUSTER_ROLES):
        child = await kube.wait_for(child_kind, parent, bool, namespace=namespace)
        assert 'ownerReferences' not in child['metadata']
    assert FINALIZER in (await kube.get(kind, parent))['metadata']['finalizers']
    await kube.delete(kind, parent)
    await kube.wait_gone(kind, parent)
    for child_kind in (CONFIGMAPS, CLUSTER_ROLES):
        await kube.wait_gone(child_kind, parent, namespace=namespace)


async def test_children_are_removed_also_if_the_parent_was_deleted_while_the_operator_was_down(
        kube, kind, run, proxy, parent, namespace):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name, namespace=namespace)

    instance = run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool, namespace=namespace)
    instance.stop()
    await kube.delete(kind, parent)
    for flag in (True, False):
        proxy.delay(0.5, match=is_about(CONFIGMAPS, watching=flag))
    run()
    await kube.wait_gone(kind, parent)
    with pytest.raises(KubeError, match=r"^HTTP 404"):
        await kube.get(CONFIGMAPS, parent, namespace=namespace)


async def test_children_of_cluster_scoped_parents_are_owned(kube, make_kind, run, parent):
    wide = await make_kind(namespaced=False)
    await kube.wait_known_as_owners(wide)

    @kopf.reconcile(*wide.selector, owns=['configmaps'])
    def fn(name, **_):
        return configmap(name, namespace='default')

    run(namespaces=['default'], clusterwide=False)
    owner = None
    while owner is None:
        try:
            owner = await kube.create(wide, parent)
        except KubeError as e:  # the API lets nobody create objects of new kinds at once
            assert e.status in (404, 405, 429)
            await asyncio.sleep(0.05)
    child = await kube.wait_for(CONFIGMAPS, parent, bool)
    assert child['metadata']['ownerReferences'][0]['uid'] == owner['metadata']['uid']


# Time.

async def test_functions_are_called_at_intervals(kube, kind, run, journal, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], interval=0.1)
    def fn(name, **_):
        journal.append(time.monotonic())
        return configmap(name)

    run()
    await kube.create(kind, parent)
    await journal.wait_length(4)
    assert all(two - one >= 0.09 for one, two in zip(journal, journal[1:], strict=False))
    assert get_writes(proxy, parent) == [f'PATCH {parent}']


# Conditions.

async def test_conditions_are_kept_and_written_only_when_they_change(
        kube, status_kind, run, proxy, parent):

    @kopf.reconcile(*status_kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, spec, **_):
        yield configmap(name)
        if spec.get('bad'):
            yield {}

    run()
    await kube.create(status_kind, parent, spec={})
    obj = await kube.wait_for(status_kind, parent, lambda obj: obj['status']['conditions'])
    conditions = {item['type']: item for item in obj['status']['conditions']}
    assert {type: item['status'] for type, item in conditions.items()} == {
        'Ready': 'True', 'Reconciling': 'False', 'Stalled': 'False'}
    assert {item['observedGeneration'] for item in conditions.values()} == {1}
    for item in conditions.values():
        datetime.datetime.fromisoformat(item['lastTransitionTime'])
    await rest(kube, status_kind)
    assert [request.method for request in proxy.requests
            if request.path.endswith(f'/{parent}/status')] == ['PATCH']
    await kube.patch(status_kind, parent, {'spec': {'bad': True}})
    obj = await kube.wait_for(status_kind, parent, lambda obj: any(
        item['type'] == 'Ready' and item['status'] == 'False' and item['observedGeneration'] == 2
        for item in obj['status']['conditions']))
    stalled = next(item for item in obj['status']['conditions'] if item['type'] == 'Stalled')
    assert stalled['lastTransitionTime'] == conditions['Stalled']['lastTransitionTime']


async def test_handlers_set_conditions_of_their_own(kube, kind, run, proxy, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, children, patch, **_):
        kopf.set_condition(patch, 'Complete', len(children) == 1, 'Counted', str(len(children)))
        return configmap(name)

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.patch(CONFIGMAPS, parent, {'data': {'x': 'y'}})
    obj = await kube.wait_for(
        kind, parent, lambda obj: obj['status']['conditions'][0]['status'] == 'True')
    assert len(obj['status']['conditions']) == 1


# Functions of all sorts, and other handlers.

async def test_functions_of_all_sorts(kube, kind, run, parent):

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def returning(name, **_):
        return [configmap(f'{name}-1')]

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def generating(name, **_):
        yield configmap(f'{name}-2')

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    async def returning_async(name, **_):
        await asyncio.sleep(0)
        return configmap(f'{name}-3')

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    async def generating_async(name, **_):
        await asyncio.sleep(0)
        yield pykube.ConfigMap(None, configmap(f'{name}-4'))

    run()
    await kube.create(kind, parent)
    for number in range(1, 5):
        await kube.wait_for(CONFIGMAPS, f'{parent}-{number}', bool)


async def test_reconcilers_see_what_handlers_of_changes_have_written(
        kube, kind, run, proxy, journal, parent):

    @kopf.on.create(*kind.selector)
    def create(patch, **_):
        patch.status['token'] = 'secret'

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, status, **_):
        journal.append(status.get('token'))
        return configmap(name, token=status.get('token', 'none'))

    @kopf.timer(*kind.selector, interval=0.05)
    def tick(retry, patch, **_):
        journal.append('tick')

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'token': 'secret'})
    await journal.wait('tick', 'tick', 'tick')
    assert [entry for entry in journal if entry != 'tick'] == ['secret']


async def test_reconcilers_see_what_handlers_of_changes_write_later(kube, kind, run, parent):

    @kopf.on.create(*kind.selector)
    def create(retry, patch, **_):
        if not retry:
            raise kopf.TemporaryError("later", delay=0.2)
        patch.status['token'] = 'secret'

    @kopf.reconcile(*kind.selector, owns=['configmaps'])
    def fn(name, status, **_):
        return configmap(name, token=status.get('token', 'none'))

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, lambda obj: obj['data'] == {'token': 'secret'})


async def test_paused_operators_mend_nothing_until_they_are_resumed(
        kube, kind, operator, parent, peering):
    text = '''
@kopf.reconcile(*KIND, owns=['configmaps'])
def fn(name, **_):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': {'a': 'b'}}
'''
    scope = ('--namespace', 'default', '--verbose')
    low = operator(text, '--priority', '1', '--peering', peering, kind=kind, scope=scope,
                   env={'POD_ID': 'low'})
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    high = operator('''
@kopf.on.event(*KIND)
def fn(**_):
    pass
''', '--priority', '2', '--peering', peering, kind=kind, scope=scope, env={'POD_ID': 'high'})
    await low.wait_for('Pausing operations|Freezing')
    await kube.delete(CONFIGMAPS, parent)
    await kube.create(kind, f'{parent}-2')
    high.stop()
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await kube.wait_for(CONFIGMAPS, f'{parent}-2', bool)


# Kinds that come later.

async def test_children_whose_kind_comes_later_are_created_then(kube, make_kind, kind, run, parent):
    later = Kind.make_unique()

    @kopf.reconcile(*kind.selector, owns=['configmaps', later.plural])
    def fn(name, **_):
        yield configmap(name)
        yield {'apiVersion': later.api_version, 'kind': later.kind}

    run()
    await kube.create(kind, parent)
    await kube.wait_for(CONFIGMAPS, parent, bool)
    await make_kind(later)
    await kube.wait_for(later, parent, bool)


# Kills.

KILLED = '''
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.reconcile(*KIND, owns=['configmaps'], conditions=True)
def fn(name, spec, **_):
    def make(**metadata):
        return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata,
                'data': {'n': str(spec['n'])}}
    for number in range(spec['n']):
        yield make(name=f'{name}-{number}')
    yield make(generateName=f'{name}-')
    yield make(name=name, namespace=spec['namespace'])
'''


class Killing:
    """A parent with children, whose operator is killed after some of its writes."""

    def __init__(self, kube, kind, operator, proxy, kubeconfig, parent, namespace):
        self.kube, self.kind, self.operator, self.proxy = kube, kind, operator, proxy
        self.kubeconfig, self.parent, self.namespace = kubeconfig, parent, namespace
        self.uid = None

    async def create(self, count):
        obj = await self.kube.create(
            self.kind, self.parent, spec={'n': count, 'namespace': self.namespace})
        self.uid = obj['metadata']['uid']

    async def is_settled(self, count):
        children = await self.kube.list_objects(CONFIGMAPS, selector=f'{OWNER}={self.uid}')
        if [obj['data']['n'] for obj in children] != [str(count)] * (count + 2):
            return False
        obj = await self.kube.get(self.kind, self.parent)
        return any(item['type'] == 'Ready' and item['status'] == 'True'
                   for item in obj.get('status', {}).get('conditions', []))

    async def is_gone(self):
        for kind, namespace in ((self.kind, 'default'), (CONFIGMAPS, self.namespace)):
            try:
                await self.kube.get(kind, self.parent, namespace=namespace)
                return False
            except KubeError as e:
                assert e.status == 404
        return True

    async def is_never(self):
        return False

    async def run(self, is_reached, *args, number):
        """Run an operator until this write of it, or to the end; return whether it was killed."""
        strike = Strike(number, 'after', signal.SIGKILL,
                        does_count=lambda request: request.method in WRITING)
        fault = self.proxy.inject(strike.act, match=strike.does_count, times=None)
        strike.operator = self.operator(KILLED, kind=self.kind, kubeconfig=self.kubeconfig)
        while strike.request is None and not await is_reached(*args):
            await asyncio.sleep(0.02)
        is_killed = not strike.call_off()
        if not is_killed:
            strike.operator.stop()
        await strike.operator.wait()
        fault.end()
        return is_killed

    async def converge(self, is_reached, *args):
        """Kill each operator after its first write, until there is nothing to write."""
        for _ in range(20):
            if not await self.run(is_reached, *args, number=1):
                return
        raise AssertionError("It does not converge.")


@pytest.fixture()
def killing(kube, kind, operator, proxy, tmp_path, parent, namespace):
    kubeconfig = proxy.write_kubeconfig(tmp_path / 'proxy.yaml')
    return Killing(kube, kind, operator, proxy, kubeconfig, parent, namespace)


async def test_killed_after_each_write_it_converges(kube, kind, killing, parent):
    await killing.create(2)
    await killing.converge(killing.is_settled, 2)
    await kube.patch(kind, parent, {'spec': {'n': 1}})
    await killing.converge(killing.is_settled, 1)
    children = await kube.list_objects(CONFIGMAPS, selector=f'{OWNER}={killing.uid}')
    names = {obj['metadata']['name'] for obj in children}
    assert names > {parent, f'{parent}-0'} and len(names) == 3
    await kube.delete(kind, parent)
    await killing.converge(killing.is_gone)


@pytest.mark.parametrize('number', range(2, 6))
async def test_killed_after_any_write_it_converges(kube, kind, killing, parent, number):
    await killing.create(1)
    # The finalizer, 3 children, and the conditions. After the last of them, it looks settled before
    # the strike: so, only the strike counts.
    assert await killing.run(killing.is_never, number=number)
    await killing.run(killing.is_settled, 1, number=None)
    await kube.patch(kind, parent, {'spec': {'n': 2}})
    await killing.run(killing.is_settled, 2, number=number)
    await killing.run(killing.is_settled, 2, number=None)
    await kube.delete(kind, parent)
    await killing.run(killing.is_gone, number=number)
    await killing.run(killing.is_gone, number=None)
