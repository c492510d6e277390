"""
Objects whose custom resource definition is being deleted. In virtual time, on the sandbox.
"""
import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.delete('kopfexamples', registry=registry)
    def delete_fn(name, retry, **_):
        if retry == 0:
            raise kopf.TemporaryError("Later, when discovery does not name all verbs.", delay=5)
        calls.append(('delete', name))

    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon_fn(name, stopped, **_):
        await stopped.wait()
        calls.append(('stopped', name))

    calls = registry.calls = []
    return registry


async def delete_definition(api):
    await api.client.delete('crd', 'kopfexamples.kopf.dev')


async def wait_gone(api):
    await api.client.wait_gone('crd', 'kopfexamples.kopf.dev')


@testing.virtual_time
async def test_objects_are_handled_when_their_definition_is_deleted(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'one')
            await api.client.wait(
                'kopfexamples', 'one', lambda obj: obj['metadata'].get('finalizers'))
            await delete_definition(api)
            await wait_gone(api)
    assert set(registry.calls) == {('delete', 'one'), ('stopped', 'one')}
    assert not [line for line in operator.log if 'will not be served' in line]


@testing.virtual_time
async def test_objects_are_handled_if_their_definition_was_deleted_before_the_start(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'one')
            await api.client.wait(
                'kopfexamples', 'one', lambda obj: obj['metadata'].get('finalizers'))
        registry.calls.clear()
        await delete_definition(api)
        await api.client.wait(
            'kopfexamples', 'one', lambda obj: obj['metadata'].get('deletionTimestamp'))
        async with api.operator(registry=registry) as operator:
            await wait_gone(api)
    assert registry.calls == [('delete', 'one')]
    assert not [line for line in operator.log if 'will not be served' in line]
