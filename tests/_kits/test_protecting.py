"""
Protection of objects from deletion. In virtual time, on the sandbox.
"""
import asyncio
import contextlib
import dataclasses

import pytest

import kopf
from kopf import testing
from kopf._kits import operatorchecks
from kopf._kits.typed import kinds
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')

    kopf.protected('kopfexamples', registry=registry)
    return registry


@pytest.fixture()
def calls(registry):
    calls = []

    @kopf.on.update('kopfexamples', registry=registry)
    async def update_fn(**_):
        calls.append('update')

    @kopf.on.delete('kopfexamples', registry=registry)
    async def delete_fn(**_):
        calls.append('delete')

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(name, **_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
               'metadata': {'name': 'child', 'namespace': 'other'}}

    return calls


@contextlib.asynccontextmanager
async def running(registry):
    """Without configurations of webhooks: the API does not ask the operator."""
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create('namespaces', 'other')
        async with api.operator(registry=registry) as operator:
            await asyncio.sleep(1)
            yield api.client, operator


def get_condition(obj):
    conditions = obj.get('status', {}).get('conditions') or []
    return next((item for item in conditions if item['type'] == 'Protected'), None)


def has_condition(obj):
    return get_condition(obj) is not None


@testing.virtual_time
async def test_a_deletion_waits_until_the_object_is_protected_no_more(registry, calls):
    async with running(registry) as (client, operator):
        await client.create('kopfexamples', 'obj', spec={'protected': True})
        await client.wait('configmaps', 'child', namespace='other', timeout=5)
        await client.delete('kopfexamples', 'obj')
        obj = await client.wait('kopfexamples', 'obj', has_condition, timeout=5)
        assert get_condition(obj) | {'lastTransitionTime': ''} == {
            'type': 'Protected', 'status': 'True', 'reason': 'DeletionWaits', 'message': (
                "The deletion waits, as spec.protected is true. To go on: kubectl patch … "
                "--type=merge -p '{\"spec\":{\"protected\":false}}'"),
            'lastTransitionTime': ''}
        await asyncio.sleep(1000)
        assert calls == []
        assert await client.get('configmaps', 'child', namespace='other')
        assert await client.get('kopfexamples', 'obj') == obj
        assert len([line for line in operator.log if '] The deletion waits' in line]) == 1
        await client.patch('kopfexamples', 'obj', {'spec': {'protected': False}})
        await client.wait_gone('kopfexamples', 'obj', timeout=5)
        await client.wait_gone('configmaps', 'child', namespace='other', timeout=5)
        assert calls == ['delete']


@testing.virtual_time
async def test_an_object_has_the_finalizer_only_as_long_as_it_is_protected(registry):
    async with running(registry) as (client, _):
        await client.create('kopfexamples', 'obj', spec={})
        await asyncio.sleep(1)
        assert 'finalizers' not in (await client.get('kopfexamples', 'obj'))['metadata']
        for is_protected in (True, False, True):
            await client.patch('kopfexamples', 'obj', {'spec': {'protected': is_protected}})
            obj = await client.wait('kopfexamples', 'obj', lambda obj: is_protected == bool(
                obj['metadata'].get('finalizers')), timeout=5)
            assert get_condition(obj) is None
        await client.patch('kopfexamples', 'obj', {'spec': {'protected': 'other'}})
        await client.delete('kopfexamples', 'obj')
        await client.wait_gone('kopfexamples', 'obj', timeout=5)


@testing.virtual_time
async def test_an_object_can_be_protected_by_each_of_several_fields(registry):
    kopf.protected('kopfexamples', field='spec.locked', registry=registry)
    assert not list(operatorchecks.find_faults(registry))
    async with running(registry) as (client, _):
        for name in ('protected', 'locked'):
            await client.create('kopfexamples', 'obj', spec={name: True})
            await asyncio.sleep(1)
            await client.delete('kopfexamples', 'obj')
            obj = await client.wait('kopfexamples', 'obj', has_condition, timeout=5)
            assert f"as spec.{name} is true" in get_condition(obj)['message']
            await client.patch('kopfexamples', 'obj', {'spec': {name: False}})
            await client.wait_gone('kopfexamples', 'obj', timeout=5)


@testing.virtual_time
async def test_the_condition_names_the_field_that_still_protects_the_object(registry):
    kopf.protected('kopfexamples', field='spec.locked', registry=registry)
    async with running(registry) as (client, _):
        await client.create('kopfexamples', 'obj', spec={'protected': True, 'locked': True})
        await asyncio.sleep(1)
        await client.delete('kopfexamples', 'obj')
        await client.wait('kopfexamples', 'obj', has_condition, timeout=5)
        await client.patch('kopfexamples', 'obj', {'spec': {'protected': False}})
        await client.wait(
            'kopfexamples', 'obj',
            lambda obj: 'as spec.locked is true' in get_condition(obj)['message'], timeout=5)
        await client.patch('kopfexamples', 'obj', {'spec': {'locked': False}})
        await client.wait_gone('kopfexamples', 'obj', timeout=5)


@testing.virtual_time
async def test_what_is_done_is_written_before_a_deletion_waits(registry):
    @kopf.on.update('kopfexamples', id='a', registry=registry)
    async def update_a(**_):
        await asyncio.sleep(0.5)
        return 'done'

    @kopf.on.update('kopfexamples', id='b', registry=registry)
    async def update_b(**_):
        return 'done'

    async with running(registry) as (client, _):
        await client.create('kopfexamples', 'obj', spec={'protected': True})
        await asyncio.sleep(1)
        await client.patch('kopfexamples', 'obj', {'spec': {'n': 1}})
        await asyncio.sleep(0.2)
        await client.delete('kopfexamples', 'obj')
        obj = await client.wait('kopfexamples', 'obj', has_condition, timeout=5)
        assert obj['status']['a'] == 'done'
        assert 'b' not in obj['status']


@testing.virtual_time
async def test_the_next_operator_does_not_write_the_condition_again(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'obj', spec={'protected': True})
            await asyncio.sleep(1)
            await api.client.delete('kopfexamples', 'obj')
            obj = await api.client.wait('kopfexamples', 'obj', has_condition, timeout=5)
        async with api.operator(registry=registry) as operator:
            await operator.wait_log('The deletion waits')
            await asyncio.sleep(100)
            assert await api.client.get('kopfexamples', 'obj') == obj


@dataclasses.dataclass(frozen=True)
class TenantSpec:
    protected: bool = False


@dataclasses.dataclass(frozen=True)
class TenantStatus:
    phase: str = ''


def test_a_class_has_what_its_protection_reads_and_writes():
    registry = kopf.OperatorRegistry()
    with kinds.separated():
        @kopf.crd('example.com', 'v1', plural='tenants')
        class Tenant:
            spec: TenantSpec = TenantSpec()
            status: TenantStatus = TenantStatus()

    with pytest.raises(TypeError, match=r"no field 'spec\.protectd'"):
        kopf.protected(Tenant, field='spec.protectd', registry=registry)
    kopf.protected(Tenant, registry=registry)
    [fault] = operatorchecks.find_faults(registry)
    assert "the API does not store status.conditions" in fault


@pytest.mark.parametrize('field', ['metadata.labels.protected', ('metadata', 'annotations', 'x/y')])
def test_labels_and_annotations_are_never_true(field):
    with pytest.raises(ValueError, match='must be a field that can be true'):
        kopf.protected('kopfexamples', field=field, registry=kopf.OperatorRegistry())
