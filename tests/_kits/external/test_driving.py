"""
A thing in an external system follows its object. In virtual time, on the sandbox.
"""
import asyncio
import contextlib
import json

import kopf
from kopf import testing
from kopf.testing import virtual_time
from tests._kits.external.clouds import Cloud, declare
from tests.crds import make_crd

RECORD = 'external.kopf.dev/account'
FINALIZER = 'kopf.dev/external'


def make_registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


def get_record(obj):
    return json.loads(obj['metadata'].get('annotations', {}).get(RECORD, 'null'))


@contextlib.asynccontextmanager
async def running(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            yield api


async def known(api, name='a'):
    return await api.client.wait(
        'things', name, lambda obj: (get_record(obj) or {}).get('phase') == 'known')


@virtual_time
async def test_a_thing_is_created_kept_and_deleted_with_its_object():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        obj = await known(api)
        thing, = cloud.living
        assert get_record(obj)['key'] == thing.key
        assert thing.content == {'plan': 'small'}
        assert obj['metadata']['finalizers'] == [FINALIZER]
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(5)
        assert thing.content == {'plan': 'large'}
        await api.client.delete('things', 'a')
        await asyncio.sleep(100)
        assert not cloud.living
        assert await api.client.list('things') == []
    assert [call.verb for call in cloud.calls].count('create') == 1
