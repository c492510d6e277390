import asyncio

import pytest

from kopf._kits.sandbox import collecting
from kopf._kits.sandbox.statuses import APIError, NotFound
from tests._kits.sandbox.conftest import CRD, cm, toy


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(collecting, 'NAMESPACE_DELAY', 0.01)


async def gone(sandbox, resource, name, namespace=None):
    for _ in range(300):
        try:
            await sandbox.get(resource, name, namespace)
        except NotFound:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{resource} {name} is still there")


def owned(*owners, block=None, **kwargs):
    refs = [{'apiVersion': owner['apiVersion'], 'kind': owner['kind'],
             'name': owner['metadata']['name'], 'uid': owner['metadata']['uid'],
             **({} if block is None else {'blockOwnerDeletion': block})} for owner in owners]
    return {'ownerReferences': refs, **kwargs}


async def test_dependents_go_after_their_owner(sandbox):
    owner = await sandbox.create(cm('owner'))
    child = await sandbox.create(cm('child', metadata=owned(owner)))
    await sandbox.create(cm('grandchild', metadata=owned(child)))
    await sandbox.delete('cm', 'owner')
    await gone(sandbox, 'cm', 'grandchild')


async def test_dependents_of_several_owners_stay_with_the_others(sandbox):
    owners = [await sandbox.create(cm(name)) for name in ('one', 'two')]
    await sandbox.create(cm('child', metadata=owned(*owners)))
    await sandbox.delete('cm', 'one')
    for _ in range(100):
        refs = (await sandbox.get('cm', 'child'))['metadata']['ownerReferences']
        if len(refs) == 1:
            break
        await asyncio.sleep(0.01)
    assert [ref['name'] for ref in refs] == ['two']


async def test_dependents_that_get_an_absent_owner_go(sandbox):
    owner = await sandbox.create(cm('owner'))
    await sandbox.create(cm('child', metadata=owned(owner)))
    owner['metadata']['uid'] = 'of-a-former-one'
    await sandbox.patch('cm', 'child', {'metadata': owned(owner)})
    await gone(sandbox, 'cm', 'child')


async def test_orphans_stay(sandbox):
    owner = await sandbox.create(cm('owner'))
    await sandbox.create(cm('child', metadata=owned(owner)))
    await sandbox.delete('cm', 'owner', propagationPolicy='Orphan')
    await gone(sandbox, 'cm', 'owner')
    assert 'ownerReferences' not in (await sandbox.get('cm', 'child'))['metadata']


async def test_in_the_foreground_the_owner_waits_for_those_that_block_it(sandbox):
    owner = await sandbox.create(cm('owner'))
    await sandbox.create(cm('child', metadata=owned(owner, block=True, finalizers=['a.b/c'])))
    await sandbox.delete('cm', 'owner', propagationPolicy='Foreground')
    for _ in range(100):
        if 'deletionTimestamp' in (await sandbox.get('cm', 'child'))['metadata']:
            break
        await asyncio.sleep(0.01)
    assert (await sandbox.get('cm', 'owner'))['metadata']['finalizers'] == ['foregroundDeletion']
    await sandbox.patch('cm', 'child', {'metadata': {'finalizers': None}})
    await gone(sandbox, 'cm', 'owner')


async def test_those_with_owners_that_never_were_go(sandbox):
    owner = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x', 'uid': 'y'}}
    await sandbox.create(cm('child', metadata=owned(owner)))
    await gone(sandbox, 'cm', 'child')


async def test_those_with_owners_of_unknown_kinds_stay(sandbox):
    owner = {'apiVersion': 'x.y/v1', 'kind': 'Unknown', 'metadata': {'name': 'x', 'uid': 'y'}}
    await sandbox.create(cm('child', metadata=owned(owner)))
    await asyncio.sleep(0.05)
    assert await sandbox.get('cm', 'child')


async def test_a_namespace_goes_with_all_in_it(sandbox):
    await sandbox.load({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'x'}})
    await sandbox.create(cm('a', metadata={'namespace': 'x', 'finalizers': ['a.b/c']}))
    await sandbox.delete('ns', 'x')
    with pytest.raises(APIError, match="because it is being terminated"):
        await sandbox.create(cm('b', metadata={'namespace': 'x'}))
    for _ in range(100):
        status = (await sandbox.get('ns', 'x'))['status']
        if 'conditions' in status:
            break
        await asyncio.sleep(0.01)
    assert any("a.b/c in 1 resource instances" in c['message'] for c in status['conditions'])
    await sandbox.patch('cm', 'a', {'metadata': {'finalizers': None}}, 'x')
    await gone(sandbox, 'ns', 'x')


async def test_a_namespace_with_a_label_like_a_deletion_stays_with_all_in_it(sandbox):
    labels = {'deletionTimestamp': 'never'}
    await sandbox.create({
        'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'x', 'labels': labels}})
    await sandbox.create(cm('a', metadata={'namespace': 'x'}))
    await asyncio.sleep(0.1)
    assert 'deletionTimestamp' not in (await sandbox.get('cm', 'a', 'x'))['metadata']


async def test_a_kind_goes_with_all_of_it(sandbox):
    await sandbox.load(CRD)
    await sandbox.create(toy('a', metadata={'name': 'a', 'finalizers': ['a.b/c']}))
    await sandbox.delete('crd', 'toys.sandbox.test')
    await asyncio.sleep(0.05)
    assert 'deletionTimestamp' in (await sandbox.get('toys', 'a'))['metadata']
    await sandbox.patch('toys', 'a', {'metadata': {'finalizers': None}})
    await gone(sandbox, 'crd', 'toys.sandbox.test')
    with pytest.raises(NotFound):
        await sandbox.list('toys')


async def test_protected_claims_are_released_as_nothing_uses_them(sandbox):
    await sandbox.create({
        'apiVersion': 'v1', 'kind': 'PersistentVolumeClaim', 'metadata': {'name': 'a'},
        'spec': {'accessModes': ['ReadWriteOnce'], 'resources': {'requests': {'storage': '1Gi'}}}})
    await sandbox.delete('pvc', 'a')
    await gone(sandbox, 'pvc', 'a')
