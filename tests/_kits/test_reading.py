"""
Reading of other objects in handlers. In virtual time, on the sandbox.
"""
import asyncio
import dataclasses

import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


def configmap(name, **labels):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, 'labels': labels}}


async def call(fn, registry, prepare, *, requests=None):
    """Call the function in a handler; return its result."""
    done = asyncio.Event()
    results = []

    @kopf.on.create('kopfexamples', registry=registry)
    async def create_fn(**_):
        results.append(await fn())
        done.set()

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await prepare(api.client)
        async with api.operator(registry=registry):
            await asyncio.sleep(1)
            await api.client.create('kopfexamples', 'obj', spec={'duration': 5})
            async with asyncio.timeout(5):
                await done.wait()
    return results[0]


async def prepare(client):
    await client.create('configmaps', 'a', metadata={'labels': {'l': '1'}})
    await client.create('configmaps', 'b', metadata={'labels': {'l': '2'}})
    await client.create('configmaps', 'c', namespace='other')


@testing.virtual_time
async def test_an_object_is_read_by_its_name_in_the_own_namespace(registry):
    obj = await call(lambda: kopf.get('configmaps', 'a'), registry, prepare)
    assert isinstance(obj, kopf.Body)
    assert (obj.metadata.name, obj.metadata.namespace) == ('a', 'default')
