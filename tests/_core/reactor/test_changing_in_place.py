"""
Handlers that change the object in place: nobody else sees that. In virtual time, on the sandbox.
"""
import asyncio
import contextlib

import pytest

import kopf
from kopf import testing
from kopf.testing import virtual_time
from tests.crds import make_crd

MARK = 'kopf.zalando.org/last-handled-configuration'


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    return registry


@contextlib.asynccontextmanager
async def running(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            await api.client.create('things', 'a', spec={'deep': {'n': 1}})
            await asyncio.sleep(10)
            yield api.client


@pytest.mark.parametrize('decorate', [
    kopf.on.create, kopf.on.event, kopf.daemon, lambda *args, **kwargs: kopf.timer(
        *args, interval=100, **kwargs), kopf.reconcile,
], ids=['create', 'event', 'daemon', 'timer', 'reconcile'])
@virtual_time
async def test_what_is_changed_in_place_can_be_put_into_the_patch(registry, decorate):
    @decorate('things', registry=registry, id='fn')
    async def fn(spec, patch, **_):
        deep = spec['deep']
        deep['n'] = 2
        patch.spec['deep'] = deep

    async with running(registry) as client:
        assert (await client.get('things', 'a'))['spec'] == {'deep': {'n': 2}}


@virtual_time
async def test_what_is_changed_in_place_is_no_change_of_the_object(registry, caplog):
    calls = []

    @kopf.on.create('things', registry=registry, id='create')
    @kopf.on.update('things', registry=registry, id='update')
    async def fn(spec, diff, reason, **_):
        calls.append((reason, spec['deep']['n'], len(diff)))
        spec['deep']['n'] += 1

    async with running(registry) as client:
        await client.patch('things', 'a', {'spec': {'other': 1}})
        await asyncio.sleep(10)
        obj = await client.get('things', 'a')
    assert calls == [('create', 1, 1), ('update', 1, 1)]
    assert obj['metadata']['annotations'][MARK] == '{"spec":{"deep":{"n":1},"other":1}}\n'
    told = [record.message for record in caplog.records if 'in memory only' in record.message]
    assert told == ["[default/a] The handlers have changed spec.deep.n in memory only: this is not "
                    "written. To change the object, use the argument `patch`."] * 2


@virtual_time
async def test_the_handlers_of_one_change_see_what_the_others_have_changed(registry):
    seen = []

    @kopf.on.create('things', registry=registry)
    async def first(spec, **_):
        spec['deep']['n'] = 2

    @kopf.on.create('things', registry=registry)
    async def second(spec, **_):
        seen.append(spec['deep']['n'])

    async with running(registry):
        assert seen == [2]


@virtual_time
async def test_what_is_changed_and_written_is_no_mistake(registry, caplog):
    @kopf.on.create('things', registry=registry)
    async def fn(spec, patch, **_):
        spec['deep']['n'] = 2
        patch.spec['deep'] = spec['deep']

    async with running(registry):
        assert 'in memory only' not in caplog.text
