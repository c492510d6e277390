"""
Reconcilers are called when objects change that their objects use; and one-off applies.
"""
import asyncio
import uuid

import pytest

import kopf
from tests.e2e.kubes import CONFIGMAPS


@pytest.fixture()
async def prefix(kube):
    """A prefix for the names of config maps; they are gone after the test."""
    text = f'a{uuid.uuid4().hex[:8]}'
    yield text
    for obj in await kube.list_objects(CONFIGMAPS, namespace='default'):
        if obj['metadata']['name'].startswith(text):
            await kube.delete(CONFIGMAPS, obj['metadata']['name'])


def find_users(labels, **_):
    return labels.get('used-by', '').split('.') if 'used-by' in labels else None


async def test_users_of_a_watched_object_are_reconciled(kube, kind, embedded, journal, prefix):

    @kopf.reconcile(*kind.selector, watches={'configmaps': find_users})
    def reconcile(name, **_):
        journal.append(name)

    x, y, z = f'{prefix}x', f'{prefix}y', f'{prefix}z'
    for name in (x, y, z):
        await kube.create(kind, name)
    embedded()
    await journal.wait(x, y, z)
    await kube.create(CONFIGMAPS, f'{prefix}-other')
    await kube.create(CONFIGMAPS, prefix, labels={'used-by': f'{x}.absent'})
    await journal.wait(x, x)
    await kube.patch(CONFIGMAPS, prefix, {'metadata': {'labels': {'used-by': y}}})
    await journal.wait(x, x, x, y, y)  # the former user, too
    await kube.patch(CONFIGMAPS, prefix, {'data': {'k': 'v'}})
    await journal.wait(y, y, y)
    await kube.delete(CONFIGMAPS, prefix)
    await journal.wait(y, y, y, y)
    assert journal.count() == {x: 3, y: 4, z: 1}


async def test_functions_can_have_the_content_and_name_namespaces(
        kube, kind, embedded, journal, prefix):

    def find(body, **_):
        return [(body['metadata']['namespace'], body.get('data', {}).get('user', 'absent'))]

    @kopf.reconcile(*kind.selector, watches={'configmaps': find})
    async def reconcile(name, **_):
        journal.append(name)

    embedded()
    await kube.create(kind, 'x')
    await journal.wait('x')
    await kube.request('POST', CONFIGMAPS.get_path(namespace='default'), body={
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': prefix},
        'data': {'user': 'x'}})
    await journal.wait('x', 'x')


async def test_users_of_a_watched_object_are_found_by_an_index(
        kube, kind, embedded, journal, prefix):

    @kopf.index(*kind.selector)
    def users(name, spec, **_):
        return {f'{prefix}{suffix}': name for suffix in spec['uses']}

    @kopf.reconcile(*kind.selector, watches={'configmaps': users})
    def reconcile(name, **_):
        journal.append(name)

    for name, suffixes in (('x', ['a', 'b']), ('y', ['b']), ('z', [])):
        await kube.create(kind, name, spec={'uses': suffixes})
    embedded()
    await journal.wait('x', 'y', 'z')
    await kube.create(CONFIGMAPS, f'{prefix}-other')
    await kube.create(CONFIGMAPS, f'{prefix}a')
    await journal.wait('x', 'x')
    await kube.create(CONFIGMAPS, f'{prefix}b')
    await journal.wait('x', 'x', 'x', 'y', 'y')
    await kube.patch(kind, 'z', {'spec': {'uses': ['a']}})
    await journal.wait('z', 'z')
    await kube.delete(CONFIGMAPS, f'{prefix}a')
    await journal.wait('z', 'z', 'z', 'x', 'x', 'x', 'x')
    assert journal.count() == {'x': 4, 'y': 2, 'z': 3}


async def test_a_failing_function_does_no_harm(kube, kind, embedded, journal, prefix, caplog):

    def find(labels, **_):
        return labels['used-by']

    @kopf.reconcile(*kind.selector, watches={'configmaps': find})
    def reconcile(name, **_):
        journal.append(name)

    embedded()
    await kube.create(kind, 'x')
    await journal.wait('x')
    await kube.create(CONFIGMAPS, f'{prefix}-bad')
    await kube.create(CONFIGMAPS, prefix, labels={'used-by': 'x'})
    await journal.wait('x', 'x')
    assert f"has failed for '{prefix}-bad': KeyError('used-by')" in caplog.text


async def test_objects_are_applied_by_any_handlers(kube, kind, embedded, journal, prefix):

    @kopf.on.create(*kind.selector)
    def create(name, **_):
        obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{prefix}-sync'},
               'data': {'k': 'v'}}
        kopf.adopt(obj)
        journal.append(kopf.apply(obj).result(10)['data'])

    @kopf.on.create(*kind.selector)
    async def create_async(name, spec, **_):
        obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{prefix}-async'},
               'data': {'n': 'm'}}
        kopf.adopt(obj)
        application = kopf.apply(obj, manager='somebody')
        with pytest.raises(RuntimeError, match="use `await"):
            application.result()
        journal.append((await application)['data'])

    embedded()
    parent = await kube.create(kind, 'x')
    await journal.wait({'k': 'v'}, {'n': 'm'})
    made = await kube.get(CONFIGMAPS, f'{prefix}-async')
    assert made['metadata']['managedFields'][0]['manager'] == 'somebody'
    assert made['metadata']['ownerReferences'][0]['uid'] == parent['metadata']['uid']
    made = await kube.get(CONFIGMAPS, f'{prefix}-sync')
    assert made['metadata']['managedFields'][0]['manager'] == 'kopf'


async def test_unsuitable_manifests_are_refused_by_apply(kube, kind, embedded, journal, prefix):
    manifests = {
        'unnamed': {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {}},
        'nowhere': {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': prefix}},
        'unknown': {'apiVersion': 'v1', 'kind': 'Unknown', 'metadata': {'name': prefix}},
        'no manifest': 'text',
    }

    @kopf.on.create(*kind.selector)
    async def create(**_):
        for case, manifest in manifests.items():
            try:
                await kopf.apply(manifest)
            except Exception as e:
                journal.append((case, str(e)))

    embedded()
    await kube.create(kind, 'x')
    await journal.wait_length(4)
    texts = dict(journal)
    assert 'needs apiVersion, kind, and metadata with a name' in texts['unnamed']
    assert f"ConfigMap '{prefix}' needs a namespace" in texts['nowhere']
    assert 'There is no kind Unknown of v1 in the cluster.' in texts['unknown']
    assert 'Neither a manifest' in texts['no manifest']


async def test_applying_conflicts_are_errors_if_not_forced(kube, kind, embedded, journal, prefix):
    obj = {'apiVersion': 'v1', 'kind': 'ConfigMap',
           'metadata': {'name': prefix, 'namespace': 'default'}, 'data': {'k': 'theirs'}}
    await kube.request('POST', CONFIGMAPS.get_path(namespace='default'), body=obj)

    @kopf.on.create(*kind.selector)
    async def create(**_):
        ours = {**obj, 'data': {'k': 'ours'}}
        try:
            await kopf.apply(ours, force=False)
        except Exception as e:
            journal.append(type(e).__name__)
        journal.append((await kopf.apply(ours))['data']['k'])

    embedded()
    await kube.create(kind, 'x')
    await journal.wait('APIConflictError', 'ours')


def test_apply_is_only_for_handlers():
    with pytest.raises(LookupError, match="for the handlers of a running operator"):
        kopf.apply({})


async def test_resyncs_do_not_delay_live_changes(kube, kind, embedded, journal, settings):
    settings.queueing.worker_limit = 1

    @kopf.reconcile(*kind.selector, interval=0.5)
    async def reconcile(name, spec, **_):
        journal.append((name, spec.get('n')))
        await asyncio.sleep(0.1)

    for i in range(40):  # each round takes 4 seconds, so all are overdue all the time
        await kube.create(kind, f'x{i}', spec={'n': 0})
    embedded()
    await journal.wait(*[(f'x{i}', 0) for i in range(40)])
    await journal.wait_length(len(journal) + 40)
    latest, _ = journal[-1]  # among the resyncs, it would be the last one of the next round
    await kube.patch(kind, latest, {'spec': {'n': 1}})
    before = len(journal)
    await journal.wait((latest, 1))
    assert journal.index((latest, 1)) - before < 20


async def test_objects_that_are_gone_are_forgotten(kube, kind, embedded, journal, prefix):

    @kopf.reconcile(*kind.selector, watches={'configmaps': find_users}, owns=['configmaps'])
    def reconcile(name, uid, **_):
        journal.append(uid)

    embedded()
    first = await kube.create(kind, 'x')
    await journal.wait(first['metadata']['uid'])
    await kube.delete(kind, 'x')
    second = await kube.create(kind, 'x')
    await journal.wait(second['metadata']['uid'])
    await kube.create(CONFIGMAPS, prefix, labels={'used-by': 'x'})
    await journal.wait(second['metadata']['uid'], second['metadata']['uid'])
    assert journal.count()[first['metadata']['uid']] == 1
