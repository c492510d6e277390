"""
Objects that do not match any more, and kinds that must not be listed. In virtual time.
"""
import asyncio

import pytest

import kopf
from kopf import testing
from kopf.testing import Fault
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


def make(kind, name):
    return {'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': name}}


@pytest.fixture()
def filtered(registry):
    @kopf.reconcile('kopfexamples', owns=['configmaps'], labels={'on': 'yes'}, conditions=True,
                    id='fn', registry=registry)
    async def fn(name, spec, **_):
        for number in range(spec.get('count', 1)):
            yield make('ConfigMap', f'{name}-{number}')

    return registry


def get_notes(operator):
    return [line.partition("does not match")[2] for line in operator.log
            if "does not match" in line]


async def label(api, value):
    await api.client.patch('kopfexamples', 'parent', {'metadata': {'labels': {'on': value}}})


@testing.virtual_time
async def test_children_of_objects_that_do_not_match_any_more_are_kept_and_that_is_said_once(
        filtered):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=filtered) as operator:
            await api.client.create(
                'kopfexamples', 'parent', metadata={'labels': {'on': 'yes'}}, spec={'count': 6})
            await api.client.wait('configmaps', 'parent-5')
            await label(api, 'no')
            await label(api, 'never')
            await api.client.delete('configmaps', 'parent-0')
            await asyncio.sleep(60)
            names = [f'ConfigMap default/parent-{number}' for number in range(5)]
            assert get_notes(operator) == [
                f" this object any more. Its owned resources stay as they are: {', '.join(names)}"
                f" and 1 more."]
            assert len(await api.client.list('configmaps')) == 5
            obj = await api.client.get('kopfexamples', 'parent')
            assert obj['status']['conditions'][0]['status'] == 'True'
            await label(api, 'yes')
            await api.client.wait('configmaps', 'parent-0')
            await label(api, 'no')
            await asyncio.sleep(60)
            assert len(get_notes(operator)) == 2


@testing.virtual_time
async def test_children_of_objects_that_do_not_match_after_a_restart_are_named(filtered):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=filtered) as operator:
            await api.client.create('kopfexamples', 'parent', metadata={'labels': {'on': 'yes'}})
            await api.client.wait('configmaps', 'parent-0')
        await label(api, 'no')
        async with api.operator(registry=filtered) as operator:
            assert await operator.wait_log("stay as they are: ConfigMap default/parent-0.")


@testing.virtual_time
async def test_nothing_is_said_of_objects_without_children(filtered):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=filtered) as operator:
            await api.client.create('kopfexamples', 'parent')
            await asyncio.sleep(60)
        assert get_notes(operator) == []


@testing.virtual_time
async def test_a_kind_that_must_not_be_listed_is_named_and_holds_no_other_handlers(registry):
    calls = []

    @kopf.reconcile('kopfexamples', owns=['secrets', 'configmaps'], id='first', registry=registry)
    async def first(name, **_):
        calls.append(name)
        yield make('Secret', name)

    @kopf.reconcile('kopfexamples', owns=['configmaps'], id='second', registry=registry)
    async def second(name, **_):
        yield make('ConfigMap', name)

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        faults = [api.sandbox.faults.add(Fault(
            action='refuse', status=403, verb=verb, resource='secrets'))
            for verb in ('list', 'watch')]
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('configmaps', 'parent')
            await asyncio.sleep(600)
            warnings = [line for line in operator.log if "will not be called" in line]
            assert len(warnings) == 1 and "Reconciler 'first' will not be called until secrets" in (
                warnings[0])
            assert "rights to list, watch, create, patch, and delete secrets.v1" in warnings[0]
            assert calls == []
            for fault in faults:
                api.sandbox.faults.remove(fault)
            await api.client.wait('secrets', 'parent', timeout=3600)
