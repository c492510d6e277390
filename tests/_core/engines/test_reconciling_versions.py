"""
Objects in several versions of a resource, and namesakes in several groups. In virtual time.
"""
import asyncio
import copy

import pytest

import kopf
from kopf import testing

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'things.example.com'},
    'spec': {
        'group': 'example.com', 'scope': 'Namespaced',
        'names': {'kind': 'Thing', 'plural': 'things', 'singular': 'thing'},
        'versions': [{
            'name': name, 'served': True, 'storage': name == 'v1', 'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}
            for name in ('v1', 'v2')]}}
OTHER_CRD = copy.deepcopy(CRD)
OTHER_CRD['metadata']['name'] = 'things.example.org'
OTHER_CRD['spec']['group'] = 'example.org'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


def make(name, **data):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, 'data': data}


async def create(api, group='example.com'):
    return (await api.client.create({
        'apiVersion': f'{group}/v1', 'kind': 'Thing',
        'metadata': {'name': 'parent', 'namespace': 'default'}, 'spec': {'a': 'b'}}))


@testing.virtual_time
async def test_a_handler_of_two_versions_is_called_with_objects_of_one(registry):
    calls = []

    @kopf.reconcile('example.com', 'v1', 'things', owns=['configmaps'], registry=registry)
    @kopf.reconcile('example.com', 'v2', 'things', owns=['configmaps'], registry=registry)
    async def fn(body, spec, **_):
        calls.append((body['apiVersion'], spec['a']))
        yield make('child', version=body['apiVersion'], a=spec['a'])

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            await create(api)
            child = await api.client.wait('configmaps', 'child')
            await asyncio.sleep(60)
            assert child == await api.client.get('configmaps', 'child')
            await api.client.patch('things', 'parent', {'spec': {'a': 'c'}})
            await api.client.wait('configmaps', 'child', lambda obj: obj['data']['a'] == 'c')
            await asyncio.sleep(60)
            await api.client.delete('configmaps', 'child')
            await api.client.wait('configmaps', 'child')
    version = child['data']['version']
    assert calls == [(version, 'b'), (version, 'c'), (version, 'c')]
    assert not any('Throttling' in line for line in operator.log)


@testing.virtual_time
async def test_handlers_of_two_versions_have_their_children_restored(registry):
    for version in ('v1', 'v2'):
        @kopf.reconcile('example.com', version, 'things', owns=['configmaps'], id=version,
                        param=version, registry=registry)
        async def fn(param, **_):
            yield make(param)

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await create(api)
            for version in ('v1', 'v2'):
                await api.client.wait('configmaps', version)
                await api.client.delete('configmaps', version)
            for version in ('v1', 'v2'):
                await api.client.wait('configmaps', version)


@pytest.mark.parametrize('namespace', ['default', 'kube-system'])
@testing.virtual_time
async def test_of_namesakes_in_two_groups_exactly_one_has_the_child(registry, namespace):
    @kopf.reconcile('example.com', 'things', owns=['configmaps'], registry=registry)
    @kopf.reconcile('example.org', 'things', owns=['configmaps'], registry=registry)
    async def fn(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
               'metadata': {'name': 'child', 'namespace': namespace}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        await api.client.load(OTHER_CRD)
        for group in ('example.com', 'example.org'):
            await create(api, group)
        for _ in range(2):  # also after a restart
            async with api.operator(registry=registry) as operator:
                child = await api.client.wait('configmaps', 'child', namespace=namespace)
                await operator.wait_log("Kopf leaves it alone")
                await asyncio.sleep(60)
                assert child == await api.client.get('configmaps', 'child', namespace=namespace)


@pytest.mark.parametrize('is_deleted', [False, True])
@testing.virtual_time
async def test_what_was_begun_in_a_former_version_or_for_a_gone_object_is_not_written(
        registry, is_deleted):
    ended = []

    @kopf.reconcile('things.example.com', owns=['configmaps'], registry=registry)
    async def fn(resource, **_):
        await asyncio.sleep(10 if resource.version == 'v1' else 1)
        ended.append(resource.version)
        yield make('child', version=resource.version)

    definition = copy.deepcopy(CRD)
    definition['spec']['versions'].pop()
    async with testing.open_api('sandbox') as api:
        await api.client.load(definition)
        async with api.operator(registry=registry) as operator:
            parent = await create(api)
            await asyncio.sleep(1)
            if is_deleted:
                await api.client.delete(parent)
            else:
                await api.client.patch(
                    'customresourcedefinitions', 'things.example.com', {'spec': CRD['spec']})
            await asyncio.sleep(60)
            writes = [line for line in operator.log if 'Applied' in line or 'Changed' in line]
            assert ended == (['v1'] if is_deleted else ['v1', 'v2'])
            assert len(writes) == (0 if is_deleted else 1)
