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
