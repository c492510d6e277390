"""
Deletion of objects whose owned resources have no owner references. In virtual time.
"""
import asyncio

import pytest

import kopf
from kopf import testing
from kopf._cogs.clients import scanning
from tests._core.engines.test_reconciling_order import TENANTS
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
FINALIZER = 'kopf.dev/children'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.reconciling.max_error_delay = 10

    return registry


@pytest.fixture()
def tenancy(registry):
    @kopf.reconcile('kopfexamples', owns=['tenants.example.com'], registry=registry)
    async def fn(name, **_):
        yield {'apiVersion': 'example.com/v1', 'kind': 'Tenant', 'metadata': {'name': name}}

    return registry


async def is_there(api, resource, name, **where):
    return name in [obj['metadata']['name'] for obj in await api.client.list(resource, **where)]


async def is_gone(api, resource, name, **where):
    return not await is_there(api, resource, name, **where)


@testing.virtual_time
async def test_objects_are_not_released_before_their_kinds_are_discovered(tenancy, monkeypatch):
    monkeypatch.setattr(scanning, 'AGGREGATED', 'application/json')  # as before Kubernetes 1.26
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.load(TENANTS)
        async with api.operator(registry=tenancy):
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('tenants', 'parent')
        fault = api.sandbox.faults.add(testing.Fault(
            action='refuse', status=503, resource='/apis/example.com/v1'))
        await api.client.delete('kopfexamples', 'parent')
        async with api.operator(registry=tenancy):
            await asyncio.sleep(600)
            assert await is_there(api, 'kopfexamples', 'parent')
            api.sandbox.faults.remove(fault)
            await testing.wait_for(
                lambda: is_gone(api, 'kopfexamples', 'parent'), timeout=600)
            assert not await is_there(api, 'tenants', 'parent')


@testing.virtual_time
async def test_objects_are_released_if_their_kinds_are_certainly_absent(tenancy):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.load(TENANTS)
        async with api.operator(registry=tenancy):
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('tenants', 'parent')
        await api.client.delete('customresourcedefinitions', TENANTS['metadata']['name'])
        await api.client.delete('kopfexamples', 'parent')
        async with api.operator(registry=tenancy):
            await testing.wait_for(lambda: is_gone(api, 'kopfexamples', 'parent'), timeout=60)


NAMESPACES = ['default', 'open', 'closed']


@pytest.fixture()
def spreading(registry):
    """A cluster-scoped object with an owned resource in each of the namespaces in its spec."""
    @kopf.reconcile('tenants', owns=['configmaps'], conditions=True, registry=registry)
    async def fn(name, spec, **_):
        for namespace in spec['namespaces']:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
                   'metadata': {'name': name, 'namespace': namespace}}

    return registry


def close_namespace(api):
    return [api.sandbox.faults.add(testing.Fault(
        action='refuse', status=403, verb=verb, resource='configmaps', namespace='closed'))
        for verb in ('list', 'watch')]


@testing.virtual_time
async def test_cluster_scoped_objects_are_handled_in_the_namespaces_with_rights(spreading):
    async with testing.open_api('sandbox') as api:
        await api.client.load(TENANTS)
        for namespace in NAMESPACES[1:]:
            await api.client.create('namespaces', namespace)
        faults = close_namespace(api)
        async with api.operator(registry=spreading, namespaces=NAMESPACES) as operator:
            await api.client.create('tenants', 'one', spec={'namespaces': ['open']})
            await api.client.create('tenants', 'two', spec={'namespaces': ['open', 'closed']})
            await api.client.wait('configmaps', 'one', namespace='open')
            await api.client.wait('configmaps', 'two', namespace='open')
            await api.client.wait('tenants', 'two', lambda obj: (
                "ConfigMap closed/two: the operator does not serve the namespace" in (
                    obj['status']['conditions'][0]['message'])))
            warnings = [line for line in operator.log if "will not be called" in line]
            assert len(warnings) == 1 and "in the namespace 'closed'" in warnings[0]
            for fault in faults:
                api.sandbox.faults.remove(fault)
            await api.client.wait('configmaps', 'two', namespace='closed', timeout=3600)


@testing.virtual_time
async def test_what_the_deletion_waits_for_is_told(registry):
    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(name, **_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
               'metadata': {'name': name, 'namespace': 'closed'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        for namespace in NAMESPACES[1:]:
            await api.client.create('namespaces', namespace)
        async with api.operator(registry=registry, namespaces=NAMESPACES):
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('configmaps', 'parent', namespace='closed')
        faults = close_namespace(api)
        await api.client.delete('kopfexamples', 'parent')
        async with api.operator(registry=registry, namespaces=NAMESPACES) as operator:
            await operator.wait_log("The deletion waits until configmaps.v1 can be listed in the "
                                    "namespace 'closed'")
            await api.client.create('kopfexamples', 'other')
            await asyncio.sleep(600)
            assert await is_there(api, 'kopfexamples', 'parent')
            assert len([line for line in operator.log if "The deletion waits" in line]) == 1
            for fault in faults:
                api.sandbox.faults.remove(fault)
            await testing.wait_for(lambda: is_gone(api, 'kopfexamples', 'parent'), timeout=3600)
            assert await is_gone(api, 'configmaps', 'parent', namespace='closed')


@pytest.mark.parametrize('change', [
    {'metadata': {'finalizers': ['example.com/other']}},
    {'spec': {'n': 2}},
])
@testing.virtual_time
async def test_changes_by_others_while_the_object_is_held_are_not_lost(registry, change):
    changes = [change]

    @kopf.reconcile('kopfexamples', owns=['tenants.example.com'], registry=registry)
    async def fn(name, spec, **_):
        if changes:
            await api.client.patch('kopfexamples', name, changes.pop())
        yield {'apiVersion': 'example.com/v1', 'kind': 'Tenant', 'metadata': {'name': name},
               'spec': {'n': spec.get('n', 1)}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.create(TENANTS)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            await asyncio.sleep(10)
            parent = await api.client.get('kopfexamples', 'parent')
            child = await api.client.get('tenants', 'parent')
            assert parent['metadata']['finalizers'] == [
                *change.get('metadata', {}).get('finalizers', ()), FINALIZER]
            assert child['spec']['n'] == parent['spec']['n']
            await api.client.patch('kopfexamples', 'parent', {'metadata': {
                'finalizers': [FINALIZER]}})
            await api.client.delete('kopfexamples', 'parent')
            await api.client.wait_gone('kopfexamples', 'parent')
            assert await is_gone(api, 'tenants', 'parent')
        assert not any('Traceback' in line for line in operator.log)
