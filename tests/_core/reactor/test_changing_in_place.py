"""
Handlers that change the object in place: nobody else sees that. In virtual time, on the sandbox.
"""
import asyncio
import contextlib
import dataclasses
import functools
from typing import Any

import pytest

import kopf
from kopf import testing
from kopf._kits.typed import kinds
from kopf.testing import virtual_time
from tests.crds import make_crd

MARK = 'kopf.zalando.org/last-handled-configuration'


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
async def test_what_is_changed_in_place_is_not_seen_by_the_next_handler(registry):
    seen = []

    @kopf.on.create('things', registry=registry, id='two')
    @kopf.on.create('things', registry=registry, id='one')
    @kopf.on.create('things', registry=registry, id='last')
    def change(spec, **_):
        seen.append(spec['deep']['n'])
        spec['deep']['n'] += 1

    async with running(registry):
        assert seen == [1, 1, 1]


@pytest.mark.parametrize('change, field', [
    (lambda body: body['metadata'].update(labels={'a': 'b'}), 'metadata.labels'),
    (lambda body: body['metadata'].setdefault('annotations', {}).update(a='b'),
     'metadata.annotations.a'),
    (lambda body: body['metadata'].pop('managedFields'), None),
], ids=['labels', 'annotations', 'others'])
@virtual_time
async def test_what_is_changed_in_place_of_the_metadata_is_told(registry, caplog, change, field):
    @kopf.on.update('things', registry=registry)
    async def fn(body, **_):
        change(body)

    async with running(registry) as client:
        await client.patch('things', 'a', {'spec': {'other': 1}})
        await asyncio.sleep(10)
    told = [record.message for record in caplog.records if 'in memory only' in record.message]
    assert [text.split()[5] for text in told] == ([field] if field else [])


@pytest.mark.parametrize('change', [
    lambda event, **_: event['object']['metadata'].clear(),
    lambda event, **_: event['object']['spec']['deep'].update(n=5),
    lambda event, **_: event.clear(),
])
@virtual_time
async def test_raw_events_that_are_changed_in_place_are_for_their_handler_only(registry, change):
    calls, types = [], []
    kopf.on.event('things', registry=registry, id='change')(change)

    @kopf.on.event('things', registry=registry)
    def seen(event, **_):
        types.append(event['type'])
        assert event['object']['metadata']['name'] == 'a'
        return 'seen'

    @kopf.on.create('things', registry=registry)
    @kopf.on.update('things', registry=registry)
    def fn(spec, reason, **_):
        calls.append((reason, spec['deep']['n']))

    async with running(registry) as client:
        await client.patch('things', 'a', {'spec': {'deep': {'n': 2}}})
        await asyncio.sleep(10)
    assert calls == [('create', 1), ('update', 2)]
    assert types[-1] == 'MODIFIED'


@pytest.mark.parametrize('change', [
    lambda new, **_: new['spec'].update(size=1),
    lambda new, **_: new.clear(),
    lambda old, **_: (old or {}).clear(),
    lambda diff, **_: [item.new.clear() for item in diff if isinstance(item.new, dict)],
    functools.partial(lambda new, **_: new.clear()),
    functools.wraps(lambda new, **_: None)(lambda **kwargs: kwargs['new'].clear()),
], ids=['deep', 'new', 'old', 'diff', 'partial', 'wrapped'])
@virtual_time
async def test_states_that_are_changed_in_place_are_for_their_handler_only(registry, change):
    calls = []
    kopf.on.create('things', registry=registry, id='change')(change)
    kopf.on.update('things', registry=registry, id='change')(change)

    @kopf.on.create('things', registry=registry)
    @kopf.on.update('things', registry=registry)
    def fn(old, new, diff, reason, **_):
        states = [state and state['spec']['deep'] for state in (old, new)]
        calls.append((reason, *states, len(diff)))

    async with running(registry) as client:
        await client.patch('things', 'a', {'spec': {'deep': {'n': 2}}})
        await asyncio.sleep(10)
        obj = await client.get('things', 'a')
    assert calls == [('create', None, {'n': 1}, 1), ('update', {'n': 1}, {'n': 2}, 1)]
    assert obj['metadata']['annotations'][MARK] == '{"spec":{"deep":{"n":2}}}\n'


@virtual_time
async def test_values_that_are_changed_in_place_are_for_their_handler_only(registry):
    seen = []

    @kopf.on.field('things', field='spec.deep', registry=registry)
    def change(new, **_):
        new['n'] += 10

    @kopf.on.field('things', field='spec.deep', registry=registry)
    def other(new, **_):
        seen.append(new)

    async with running(registry):
        assert seen == [{'n': 1}]


@virtual_time
async def test_what_is_changed_and_written_is_no_mistake(registry, caplog):
    @kopf.on.create('things', registry=registry)
    async def fn(spec, patch, **_):
        spec['deep']['n'] = 2
        patch.spec['deep'] = spec['deep']

    async with running(registry):
        assert 'in memory only' not in caplog.text


@pytest.mark.parametrize('decorate', [
    kopf.on.create, kopf.on.event, kopf.index, kopf.reconcile, kopf.daemon])
@virtual_time
async def test_nothing_is_copied_for_handlers_that_read_only_plain_values(registry, decorate):
    bodies = []

    @decorate('things', registry=registry, field='spec.deep', labels={'l': kopf.ABSENT}, id='fn')
    async def fn(body, name, meta, labels, **_):
        bodies.append((body, name, meta['generation'], labels.get('l')))

    kopf.on.event('things', registry=registry)(lambda **_: None)
    async with running(registry):
        pass
    assert bodies
    assert all(body._copies is None for body, *_ in bodies)


@dataclasses.dataclass(frozen=True)
class Spec:
    deep: dict[str, Any]


@virtual_time
async def test_what_is_changed_in_place_in_a_value_of_a_class_is_its_own_copy(registry):
    seen = []
    with kinds.separated():
        @kopf.crd('example.com', 'v1', plural='things')
        class Thing:
            spec: Spec

    @kopf.reconcile(Thing, registry=registry, interval=3)
    async def fn(spec: Spec, **_):
        seen.append(dict(spec.deep))
        spec.deep['n'] += 1

    async with running(registry):
        assert len(seen) > 1
    assert seen == [{'n': 1}] * len(seen)
