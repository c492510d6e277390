"""
A thing in an external system follows its object. In virtual time, on the sandbox.
"""
import asyncio
import contextlib
import dataclasses
import datetime
import json
import logging
import threading
import uuid

import pytest

import kopf
from kopf import testing
from kopf._kits.external import declaring, driving
from kopf.testing import virtual_time
from tests._kits.external.clouds import Cloud, CloudError, Thing, declare
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


def is_recorded(obj):
    return get_record(obj) is not None


def get_conditions(obj):
    return {condition['type']: condition for condition in obj['status']['conditions']}


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


@virtual_time
async def test_a_thing_is_left_while_its_object_does_not_match_and_goes_with_it():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0, interval=50, labels={'billed': 'yes'})
    async with running(registry) as api:
        for name in 'ab':
            await api.client.create(
                'things', name, spec={'plan': 'small'}, metadata={'labels': {'billed': 'yes'}})
            await known(api, name)
        await api.client.create('things', 'c')
        calls = len(cloud.calls)
        for name in 'ab':
            await api.client.patch('things', name, {
                'metadata': {'labels': {'billed': None}}, 'spec': {'plan': 'large'}})
        await asyncio.sleep(1000)
        assert len(cloud.calls) == calls
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
        thing, = cloud.living
        await api.client.patch('things', 'b', {'metadata': {'labels': {'billed': 'yes'}}})
        await asyncio.sleep(5)
        assert thing.content == {'plan': 'large'}
    assert [call.verb for call in cloud.calls].count('create') == 2


@virtual_time
async def test_a_change_is_made_once_in_a_system_that_shows_it_at_once():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0, interval=300)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        cloud.calls.clear()
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(100)
        assert [call.verb for call in cloud.calls].count('update') == 1
        assert cloud.calls[-1].verb == 'get'


@virtual_time
async def test_a_thing_that_others_have_deleted_is_no_error_at_the_deletion(caplog):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a')
        obj = await known(api)
        await asyncio.sleep(100)
        await cloud.delete(get_record(obj)['key'])
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert [call.verb for call in cloud.calls].count('delete') == 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@virtual_time
async def test_a_refused_repetition_tells_nothing_of_the_first_call():
    cloud, registry = Cloud(is_idempotent=True), make_registry()
    declare(cloud, registry=registry, finds=False)
    async with running(registry) as api:
        cloud.faults.extend(['after', 'refused', 'refused'])
        await api.client.create('things', 'a')
        await api.client.wait(
            'things', 'a', lambda obj: (get_record(obj) or {}).get('phase') == 'creating')
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a', timeout=1000)
    assert len(cloud.things) == 1
    assert not cloud.living


@virtual_time
async def test_a_lost_call_is_repeated_in_a_deletion_with_what_is_desired():
    cloud, registry = Cloud(is_idempotent=True), make_registry()
    external = declare(cloud, registry=registry, finds=False)
    received = []

    @external.create(idempotent=True)
    async def create(desired, token, **_):
        received.append(desired)
        return await cloud.create(desired, token)

    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'finalizers': [FINALIZER], 'annotations': {
                RECORD: '{"phase":"creating","token":"t","attempt":1,"by":"x"}'}})
        await api.client.delete('things', 'a')
        async with api.operator(registry=registry):
            await api.client.wait_gone('things', 'a', timeout=1000)
    assert received == [{'plan': 'small'}]
    assert not cloud.living


async def stop_unknown(api, cloud):
    """Let a call be lost that creates, in a system that cannot tell what became of it."""
    cloud.faults.append('after')
    await api.client.create('things', 'a', spec={'plan': 'small'})
    return await api.client.wait(
        'things', 'a', lambda obj: (get_record(obj) or {}).get('phase') == 'unknown')


@virtual_time
async def test_where_nobody_can_tell_it_stops_and_says_what_to_type(caplog):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, finds=False, conditions=True)
    async with running(registry) as api:
        obj = await stop_unknown(api, cloud)
        await asyncio.sleep(1000)
        obj = await api.client.get('things', 'a')
        conditions = {item['type']: item for item in obj['status']['conditions']}
        assert conditions['Synced']['reason'] == 'MayExist'
        assert conditions['Stalled']['status'] == 'True'
        assert 'kopf external adopt things a account --key KEY -n default' in (
            conditions['Synced']['message'])
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(1000)
    assert [call.verb for call in cloud.calls] == ['create']
    assert len([record for record in caplog.records if record.levelno == logging.ERROR
                and 'kopf external retry things a' in record.message]) == 1


@virtual_time
async def test_people_can_say_which_thing_it_is():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, finds=False)
    async with running(registry) as api:
        await stop_unknown(api, cloud)
        thing, = cloud.living
        await api.client.patch('things', 'a', {'metadata': {'annotations': {
            f'{RECORD}.adopt': thing.key}}})
        assert get_record(await known(api))['key'] == thing.key
        await asyncio.sleep(100)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert [call.verb for call in cloud.calls].count('create') == 1
    assert not cloud.living


@virtual_time
async def test_people_can_say_that_there_is_none():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, finds=False)
    async with running(registry) as api:
        await stop_unknown(api, cloud)
        cloud.things.clear()
        await api.client.patch('things', 'a', {'metadata': {'annotations': {
            f'{RECORD}.retry': 'true'}}})
        obj = await known(api)
        assert f'{RECORD}.retry' not in obj['metadata']['annotations']
    assert len(cloud.living) == 1


@virtual_time
async def test_an_answer_is_not_one_to_a_later_question():
    """Otherwise, what somebody has said long ago lets a second thing be created."""
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, finds=False, interval=10, consistency=0)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.patch('things', 'a', {'metadata': {'annotations': {
            f'{RECORD}.retry': 'true'}}})
        await asyncio.sleep(100)
        cloud.faults.extend([None, 'after'])  # of the observation, and of the creation
        cloud.living[0].deleted = cloud.now
        await asyncio.sleep(1000)
        obj = await api.client.get('things', 'a')
        assert get_record(obj)['phase'] == 'unknown'
        assert f'{RECORD}.retry' not in obj['metadata']['annotations']
    assert [call.verb for call in cloud.calls].count('create') == 2
    assert len(cloud.living) == 1


@virtual_time
async def test_an_existing_thing_is_adopted_by_an_annotation_once():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    key = 'theirs'
    async with running(registry) as api:
        cloud.things[key] = Thing(key, None, {'plan': 'old'}, 0.0)
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'annotations': {f'{RECORD}.adopt': key}})
        assert get_record(await known(api))['key'] == key
        await asyncio.sleep(100)
        assert cloud.things[key].content == {'plan': 'small'}
        cloud.things[key].deleted = cloud.now
        await asyncio.sleep(1000)
        assert get_record(await known(api))['key'] != key
    assert len(cloud.living) == 1


@virtual_time
async def test_people_are_asked_again_if_there_is_nothing_of_what_they_have_named(caplog):
    """Otherwise, a misspelt key makes a second thing."""
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    cloud.things['theirs'] = Thing('theirs', None, {'plan': 'small'}, 0.0)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'annotations': {f'{RECORD}.adopt': 'there'}})
        await asyncio.sleep(100)
        record = get_record(await api.client.get('things', 'a'))
        assert (record['phase'], record['key']) == ('unknown', 'there')
        assert "It was adopted by the key there, which the system does not have." in caplog.text
        await api.client.patch('things', 'a', {'metadata': {'annotations': {
            f'{RECORD}.adopt': 'theirs'}}})
        assert get_record(await known(api))['key'] == 'theirs'
    assert len(cloud.things) == 1


@virtual_time
async def test_what_people_have_named_is_looked_at_until_it_is_there():
    """It can be in another region, or the credentials can be wrong."""
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'large'}, metadata={
            'annotations': {f'{RECORD}.adopt': 'there'}})
        await asyncio.sleep(1000)
        condition = get_conditions(await api.client.get('things', 'a'))['Synced']
        assert condition['reason'] == 'MayExist'
        cloud.calls.clear()
        await asyncio.sleep(3000)
        assert 9 <= len(cloud.calls) <= 12  # no more often than at the interval
        cloud.things['there'] = Thing('there', None, {'plan': 'small'}, 0.0)
        await asyncio.sleep(400)
        assert get_record(await known(api))['key'] == 'there'
        thing, = cloud.living
        assert thing.content == {'plan': 'large'}


@virtual_time
async def test_a_thing_of_others_is_not_deleted_with_an_object_that_names_it():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)

    @external.observe
    async def observe(key, name, **_):
        found = await cloud.get(key)
        return found if found is None or found['owner'] == name else None

    async with running(registry) as api:
        for key, owner in ('k1', 'b'), ('k2', 'a'):
            cloud.things[key] = Thing(key, None, {'plan': 'small', 'owner': owner}, 0.0)
            await api.client.create('things', 'a', spec={'plan': 'large'}, metadata={
                'annotations': {f'{RECORD}.adopt': key}})
            await api.client.wait('things', 'a', is_recorded)
            await api.client.delete('things', 'a')
            await api.client.wait_gone('things', 'a', timeout=1000)
    assert [thing.key for thing in cloud.living] == ['k1']


@virtual_time
async def test_a_deletion_after_a_lost_creation_needs_no_desired_state_if_the_thing_can_be_found():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)

    @external.desired
    async def desired(spec, meta, **_):
        if 'deletionTimestamp' in meta:
            raise kopf.TemporaryError("It is wanted by nobody.", delay=60)
        return dict(spec)

    async with running(registry) as api:
        cloud.faults.append('after')
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await api.client.wait('things', 'a', lambda _: cloud.living)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a', timeout=1000)
    assert not cloud.living


@virtual_time
async def test_an_empty_key_is_no_answer():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'annotations': {f'{RECORD}.adopt': ' '}})
        assert get_record(await known(api))['key'] == cloud.living[0].key
    assert cloud.calls[0].verb == 'create'


def copy(obj, **metadata):
    """The object as people get it with ``kubectl get -o yaml``, and edit and apply it."""
    kept = {key: obj['metadata'][key]
            for key in ('name', 'namespace', 'annotations', 'finalizers')}
    return {**{key: obj[key] for key in ('apiVersion', 'kind', 'spec')},
            'metadata': {**kept, **metadata}}


@virtual_time
async def test_a_copy_of_an_object_has_a_thing_of_its_own():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0)
    async with running(registry) as api:
        await api.client.create('namespaces', 'other')
        await api.client.create('things', 'a', spec={'plan': 'small'})
        obj = await known(api)
        key = get_record(obj)['key']
        for copied in (copy(obj, name='b'), copy(obj, namespace='other')):
            await api.client.create(copied)
        await asyncio.sleep(100)
        assert len(cloud.living) == 3
        await api.client.delete('things', 'b')
        await api.client.delete('things', 'a', namespace='other')
        await asyncio.sleep(100)
        assert [thing.key for thing in cloud.living] == [key]


@virtual_time
async def test_a_restored_object_keeps_its_thing():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        obj = await known(api)
    async with running(registry) as api:
        await api.client.create(copy(obj))
        await asyncio.sleep(100)
        assert [thing.key for thing in cloud.living] == [get_record(obj)['key']]
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert not cloud.living


@pytest.mark.parametrize('removed', [
    {'annotations': None, 'finalizers': None}, {'annotations': None}, {'finalizers': None}])
@virtual_time
async def test_what_others_remove_from_the_object_is_written_again(removed):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        obj = await known(api)
        await asyncio.sleep(10)
        await api.client.patch('things', 'a', {'metadata': removed})
        await asyncio.sleep(10)
        newest = await api.client.get('things', 'a')
        assert get_record(newest) == get_record(obj)
        assert newest['metadata']['finalizers'] == [FINALIZER]
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert not cloud.living
    assert [call.verb for call in cloud.calls].count('create') == 1


@pytest.mark.parametrize('is_there', [False, True])
@virtual_time
async def test_a_record_that_was_removed_while_no_operator_ran_is_asked_for(is_there, caplog):
    cloud, registry = Cloud(), make_registry()
    account = declare(cloud, registry=registry, consistency=0, conditions=True)
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            await api.client.create('things', 'a', spec={'plan': 'small'})
            obj = await known(api)
            key = get_record(obj)['key']
            await api.client.wait('things', 'a', lambda obj: 'account' in obj.get('status', {}))
        await api.client.patch(
            'things', 'a', {'metadata': {'annotations': None, 'finalizers': None}})
        async with api.operator(registry=registry):
            await asyncio.sleep(100)
            assert f"It may exist by the key {key}, and its record was removed" in caplog.text
            stopped = await api.client.get('things', 'a')
            assert get_conditions(stopped)['Synced']['reason'] == 'MayExist'
            assert stopped['status']['account'] == {'phase': 'unknown', 'key': key}
            assert account.get_key(stopped) is None
            assert len(cloud.living) == 1
            if not is_there:
                cloud.things[key].deleted = cloud.now
            name, value = ('adopt', key) if is_there else ('retry', 'yes')
            await api.client.patch('things', 'a', {'metadata': {'annotations': {
                f'external.kopf.dev/account.{name}': value}}})
            await asyncio.sleep(100)
            newest = await api.client.get('things', 'a')
            assert [thing.key for thing in cloud.living] == [get_record(newest)['key']]
            assert (get_record(newest)['key'] == key) == is_there


@virtual_time
async def test_a_key_is_not_lost_if_the_record_is_removed_meanwhile():
    cloud, registry = Cloud(latency=10), make_registry()
    declare(cloud, registry=registry, finds=False)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await api.client.wait('things', 'a', is_recorded)
        await api.client.patch('things', 'a', {'metadata': {'annotations': None}})
        await asyncio.sleep(20)
        obj = await known(api)
    assert [thing.key for thing in cloud.living] == [get_record(obj)['key']]


@virtual_time
async def test_a_thing_is_deleted_though_others_have_removed_the_finalizer_in_the_deletion():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0)
    async with running(registry) as api:
        await api.client.create(
            'things', 'a', spec={'plan': 'small'}, metadata={'finalizers': ['others/one']})
        await known(api)
        cloud.is_down = True
        await api.client.delete('things', 'a')
        await asyncio.sleep(10)
        await api.client.patch('things', 'a', {'metadata': {'finalizers': ['others/one']}})
        cloud.is_down = False
        await api.client.wait('things', 'a', lambda obj: get_record(obj) is None)
        assert not cloud.living


@pytest.mark.parametrize('kind', ['configmaps', 'secrets'])
@virtual_time
async def test_a_status_that_is_not_stored_is_written_only_when_it_is_new(kind, caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, kind=kind, interval=10)
    external.desired(lambda **_: {'plan': 'small'})
    async with testing.open_api('sandbox') as api, api.operator(registry=registry):
        await api.client.create(kind, 'a')
        await asyncio.sleep(1000)
        await api.client.delete(kind, 'a')
        await api.client.wait_gone(kind, 'a')
    assert len(cloud.calls) > 50 and not cloud.living
    assert caplog.text.count('not stored: status') < 3


@pytest.mark.parametrize('key', [None, 'gone'])
@virtual_time
async def test_an_object_that_is_restored_from_its_deletion_gets_a_thing(key):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    record = {'phase': 'deleting', 'key': key, 'token': 't', 'of': 'default/a'}
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'annotations': {RECORD: json.dumps(record)}})
        obj = await known(api)
    assert [thing.key for thing in cloud.living] == [get_record(obj)['key']]


@virtual_time
async def test_a_trigger_knows_numbers_as_strings_as_people_adopt_them():
    cloud, registry = Cloud(), make_registry()
    external, looked = declare(cloud, registry=registry), []

    @external.observe
    def observe(key, **_):
        looked.append(key)
        return {}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={}, metadata={
            'annotations': {f'{RECORD}.adopt': '5'}})
        await known(api)
        await asyncio.sleep(10)
        looked.clear()
        external.trigger(5)
        await asyncio.sleep(10)
    assert looked == ['5']


@virtual_time
async def test_orphans_are_left():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, deletion='orphan')
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert len(cloud.living) == 1


@virtual_time
async def test_a_deleted_object_waits_until_the_system_says_that_its_thing_is_gone():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        cloud.is_down = True
        await api.client.delete('things', 'a')
        await asyncio.sleep(1000)
        assert len(await api.client.list('things')) == 1
        cloud.is_down = False
        await asyncio.sleep(60)
        assert await api.client.list('things') == []
    assert not cloud.living


@pytest.mark.parametrize('consistency', [30, 0])
@virtual_time
async def test_drift_is_corrected_once(consistency):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=60, consistency=consistency)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        thing, = cloud.living
        cloud.edit(thing.key, {'plan': 'drifted'})
        await asyncio.sleep(70)
    assert thing.content == {'plan': 'small'}
    assert [call.verb for call in cloud.calls].count('update') == 1


@virtual_time
async def test_drift_is_only_reported_on_request_but_changes_are_made():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=60, on_drift='report', conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        thing, = cloud.living
        cloud.edit(thing.key, {'plan': 'drifted'})
        await asyncio.sleep(70)
        assert thing.content == {'plan': 'drifted'}
        obj = await api.client.get('things', 'a')
        synced, = [item for item in obj['status']['conditions'] if item['type'] == 'Synced']
        assert (synced['reason'], synced['message']) == ('Drifted', 'This differs: plan.')
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(5)
    assert thing.content == {'plan': 'large'}


@virtual_time
async def test_what_has_vanished_is_created_again_by_a_change_if_drift_is_only_reported(caplog):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=60, on_drift='report', conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        cloud.living[0].deleted = cloud.now
        await asyncio.sleep(1000)
        assert not cloud.living
        condition = get_conditions(await api.client.get('things', 'a'))['Synced']
        assert condition['reason'] == 'Missing'
        line, = [record.message for record in caplog.records if record.levelname == 'ERROR']
        assert line.endswith("The system does not have it any more, and it is created again when "
                             "what is desired changes.")
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(10)
        assert [thing.content for thing in cloud.living] == [{'plan': 'large'}]


@virtual_time
async def test_immutable_fields_are_an_error():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, immutable=['plan'], conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(100)
        obj = await api.client.get('things', 'a')
        synced, = [item for item in obj['status']['conditions'] if item['type'] == 'Synced']
        assert synced['reason'] == 'Immutable'
    assert [thing.content for thing in cloud.living] == [{'plan': 'small'}]


@virtual_time
async def test_a_thing_is_replaced_if_it_cannot_be_changed():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, immutable=['plan'], replace=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        old = get_record(await known(api))['key']
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(100)
        thing, = cloud.living
        assert thing.content == {'plan': 'large'}
        assert get_record(await known(api))['key'] == thing.key != old
    verbs = [call.verb for call in cloud.calls]
    assert verbs.index('delete') > len(verbs) - 1 - verbs[::-1].index('create')


@pytest.mark.parametrize('is_late', [False, True])
@virtual_time
async def test_a_replaced_thing_is_not_the_new_one_though_people_have_confirmed_it(is_late):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, immutable=['plan'], replace=True, consistency=0,
            finds=not is_late)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        key = get_record(await known(api))['key']
        cloud.faults.extend([None, 'before'] if is_late else ())  # of an observation, a creation
        for change in [{'spec': {'plan': 'large'}}, {
                'metadata': {'annotations': {f'{RECORD}.adopt': key}}}][::1 if is_late else -1]:
            await api.client.patch('things', 'a', change)
            await asyncio.sleep(10)
        await asyncio.sleep(1000)
        thing, = cloud.living
        record = get_record(await known(api))
        assert (record['key'], thing.content) == (thing.key, {'plan': 'large'})
    assert all(call.key is not None for call in cloud.calls if call.verb == 'get')


@pytest.mark.parametrize('is_first', [False, True])
@virtual_time
async def test_what_differs_in_each_new_thing_is_replaced_only_twice(is_first, caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(
        cloud, registry=registry, immutable=['region'], replace=True, conditions=True, interval=60)

    @external.observe
    async def observe(key, **_):
        thing = await cloud.get(key)
        return None if thing is None else {**thing, 'region': thing['region'].lower()}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'region': 'EU' if is_first else 'eu'})
        await known(api)
        await asyncio.sleep(1000)
        await api.client.patch('things', 'a', {'spec': {'region': 'EU'}})
        await asyncio.sleep(10_000)
        assert [call.verb for call in cloud.calls].count('create') == 3
        condition = get_conditions(await api.client.get('things', 'a'))['Synced']
        assert condition['reason'] == 'Immutable'
        assert condition['message'].startswith(
            "This still differs after 2 replacements: region. Either create")

        await api.client.patch('things', 'a', {'spec': {'region': 'us'}})
        await asyncio.sleep(1000)
        thing, = cloud.living
        assert thing.content == {'region': 'us'}
        assert 'replaced' not in get_record(await api.client.get('things', 'a'))
        cloud.edit(thing.key, {'region': 'xx'})  # in the system: this thing is replaced again
        await asyncio.sleep(1000)
        thing, = cloud.living
        assert thing.content == {'region': 'us'}
        assert [call.verb for call in cloud.calls].count('create') == 5


@virtual_time
async def test_a_copy_of_an_object_does_not_adopt_what_the_object_was_told_to_adopt():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        key = cloud.add(None, {'plan': 'small'})
        await api.client.create('things', 'a', spec={'plan': 'small'}, metadata={
            'annotations': {f'{RECORD}.adopt': key}})
        metadata = (await known(api))['metadata']
        cloud.faults.extend(['refused', None])  # the first call that creates
        await api.client.create('things', 'b', spec={'plan': 'large'}, metadata={
            'annotations': metadata['annotations'], 'finalizers': metadata['finalizers']})
        await asyncio.sleep(1000)
        assert get_record(await known(api, 'b'))['key'] != key
        await api.client.delete('things', 'b')
        await api.client.wait_gone('things', 'b', timeout=1000)
        thing, = cloud.living
        assert (thing.key, thing.content) == (key, {'plan': 'small'})


@virtual_time
async def test_a_thing_of_another_object_is_not_adopted_until_that_one_leaves_it():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, deletion='orphan', conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        key = get_record(await known(api))['key']
        await api.client.create('things', 'b', spec={'plan': 'large'}, metadata={
            'annotations': {f'{RECORD}.adopt': key}})
        await asyncio.sleep(1000)
        obj = await api.client.get('things', 'b')
        assert get_conditions(obj)['Synced']['reason'] == 'Taken'
        assert get_conditions(obj)['Synced']['message'] == (
            f"Another object has {key}: it is not adopted.")
        assert cloud.things[key].content == {'plan': 'small'}
        await api.client.delete('things', 'a')
        await asyncio.sleep(200)
        assert get_record(await known(api, 'b'))['key'] == key
        await api.client.create('things', 'c', spec={'plan': 'large'})
        await known(api, 'c')
        await api.client.patch('things', 'b', {'metadata': {'annotations': {
            RECORD: None, f'{RECORD}.adopt': None}}})
        await asyncio.sleep(100)  # a record that others remove is written again
        assert get_record(await known(api, 'b'))['key'] == key
        assert cloud.things[key].content == {'plan': 'large'}


@virtual_time
async def test_values_of_other_forms_are_as_desired_and_not_updated(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, interval=60)
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

    @external.desired
    def desired(**_):
        return {'zones': ('a', 'b'), 'since': moment, 'quota': {'cpu': None, 'deep': {'a': None}}}

    @external.observe
    async def observe(key, **_):
        return {'zones': ('a', 'b'), 'since': moment, 'other': {1}}

    async with running(registry) as api:
        await api.client.create('things', 'a')
        await known(api)
        await asyncio.sleep(1000)
    assert [call.verb for call in cloud.calls] == ['create']
    assert "differs" not in caplog.text


@virtual_time
async def test_what_cannot_be_shown_as_json_is_shown_as_text():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, shown=['odd', 'nan', 'time'], interval=60)
    observed = []

    @external.observe
    async def observe(key, **_):
        observed.append(key)
        return {'plan': 'small', 'odd': {('a', 1): 2}, 'nan': float('nan'),
                'time': datetime.date(2026, 1, 2)}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(600)
        status = (await api.client.get('things', 'a'))['status']['account']
    assert (status['odd'], status['nan'], status['time']) == (
        "{('a', 1): 2}", 'nan', '2026-01-02')
    assert len(observed) >= 8


@virtual_time
async def test_what_a_schema_does_not_store_is_not_written_at_each_interval(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, kind='services', interval=60, conditions=True)
    external.desired(lambda **_: {'plan': 'small'})
    async with running(registry) as api:
        await api.client.create('services', 'a', spec={'ports': [{'port': 80}]})
        await asyncio.sleep(2000)
        obj = await api.client.get('services', 'a')
        assert get_conditions(obj)['Synced']['status'] == 'True'
    lines = [record.message for record in caplog.records]
    assert 1 <= sum("not stored: status.account" in line for line in lines) <= 2
    assert len([line for line in lines if line.startswith("Patching with")]) < 8


@virtual_time
async def test_a_deletion_is_not_given_up_though_things_are_not_observed_by_themselves():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, interval=None)
    calls = []

    @external.delete
    async def delete(key, **_):
        calls.append(key)
        if len(calls) < 3:
            raise kopf.PermanentError("The account has debts.")
        await cloud.delete(key)

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a', timeout=5000)
    assert not cloud.living


@virtual_time
async def test_paused_objects_that_do_not_match_any_more_are_not_even_observed():
    cloud, registry = Cloud(), make_registry()
    main, looks = asyncio.current_task(), []

    def is_on(labels, **_):
        looks.append(labels)
        if len(looks) > 1000:
            main.cancel()  # it is a hot loop
        return 'off' not in labels

    declare(cloud, registry=registry, interval=60, when=is_on)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        await api.client.patch('things', 'a', {
            'metadata': {'annotations': {'kopf.dev/paused': 'x'}, 'labels': {'off': 'yes'}}})
        await asyncio.sleep(1)
        cloud.calls.clear()
        await asyncio.sleep(600)
    assert not cloud.calls
    assert len(looks) < 50


@virtual_time
async def test_paused_objects_are_only_observed():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=60)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        await api.client.patch('things', 'a', {
            'metadata': {'annotations': {'kopf.dev/paused': 'x'}}, 'spec': {'plan': 'large'}})
        await asyncio.sleep(1)
        cloud.calls.clear()
        await asyncio.sleep(600)
        verbs = [call.verb for call in cloud.calls]
        assert set(verbs) == {'get'}
        assert 8 <= len(verbs) <= 12
        await api.client.patch('things', 'a', {
            'metadata': {'annotations': {'kopf.dev/paused': None}}})
        await asyncio.sleep(5)
    assert [thing.content for thing in cloud.living] == [{'plan': 'large'}]


@pytest.mark.parametrize('is_named', [False, True])
@virtual_time
async def test_externals_are_created_in_order_and_deleted_in_the_reverse_order(is_named):
    cloud, registry, events = Cloud(), make_registry(), []
    second = None
    if is_named:  # before the other one is declared
        second = kopf.external('things', id='second', registry=registry, after=['account'])
    first = declare(cloud, registry=registry)
    second = second or kopf.external('things', id='second', registry=registry, after=[first])

    @second.observe
    def observe(key, **_):
        return {} if 'delete' not in events else None

    @second.create
    def create(**_):
        events.append('create' if cloud.living else 'early')
        return 7

    @second.delete
    def delete(**_):
        events.append('delete' if cloud.living else 'late')

    @second.desired
    def desired(**_):
        return {}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(10)
        obj = await api.client.get('things', 'a')
        assert json.loads(obj['metadata']['annotations']['external.kopf.dev/second'])['key'] == 7
        await asyncio.sleep(100)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert events == ['create', 'delete']
    assert not cloud.living


@virtual_time
async def test_a_thing_is_kept_while_it_is_not_known_whether_another_one_needs_it():
    cloud, registry = Cloud(), make_registry()
    first = declare(cloud, registry=registry)
    second = kopf.external('things', id='second', registry=registry, after=[first])
    second.observe(lambda **_: {})
    second.create(lambda **_: 7)
    second.delete(lambda **_: None)
    record = 'external.kopf.dev/second'
    async with running(registry) as api:
        await api.client.create('things', 'a')
        await api.client.wait(
            'things', 'a', lambda obj: '"known"' in obj['metadata']['annotations'].get(record, ''))
        await api.client.patch('things', 'a', {'metadata': {'annotations': {record: 'damaged'}}})
        await api.client.delete('things', 'a')
        await asyncio.sleep(1000)
        assert cloud.living
        await api.client.patch('things', 'a', {'metadata': {'annotations': {record: None}}})
        await api.client.wait_gone('things', 'a', timeout=1000)
    assert not cloud.living


@virtual_time
async def test_a_key_is_found_that_is_no_json():
    cloud, registry, found = Cloud(), make_registry(), uuid.uuid4()
    external = declare(cloud, registry=registry)
    external.find(lambda **_: found)
    cloud.faults.append('after')
    async with running(registry) as api:
        await api.client.create('things', 'a')
        assert get_record(await known(api))['key'] == str(found)


@virtual_time
async def test_triggers_of_threads_observe_once():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, interval=10_000)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        thing, = cloud.living
        for trigger in (lambda: external.trigger(thing.key),
                        lambda: kopf.trigger('things', 'a', namespace='default')):
            cloud.edit(thing.key, {'plan': 'drifted'})
            cloud.calls.clear()
            threads = [threading.Thread(target=trigger) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            await asyncio.sleep(50)
            assert [call.verb for call in cloud.calls] == ['get', 'update', 'get']
            assert thing.content == {'plan': 'small'}


@pytest.mark.parametrize('interval', [300, None])
@virtual_time
async def test_a_trigger_during_an_observation_observes_again(interval):
    """What the answer shows, can be older than what the trigger is about."""
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, interval=interval)

    @external.observe
    async def observe(key, **_):
        found = await cloud.get(key)
        await asyncio.sleep(3)
        return found

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(10)
        thing, = cloud.living
        external.trigger(thing.key)
        await asyncio.sleep(1)
        cloud.edit(thing.key, {'plan': 'drifted'})
        external.trigger(thing.key)
        await asyncio.sleep(20)
        assert thing.content == {'plan': 'small'}


@pytest.mark.parametrize('finds', [False, True])
@virtual_time
async def test_a_few_objects_that_always_fail_do_not_stop_the_others(finds, caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, finds=finds)

    @external.delete
    async def delete(key, name, **_):
        if name.startswith('bad'):
            raise CloudError(500)
        await cloud.delete(key)

    async with running(registry) as api:
        for name in [f'bad{number}' for number in range(6)] + ['a', 'b', 'c']:
            await api.client.create('things', name, spec={'plan': 'small'})
            await known(api, name)
        for number in range(6):
            await api.client.delete('things', f'bad{number}')
        await asyncio.sleep(1000)
        caplog.clear()
        cloud.calls.clear()
        await api.client.create('things', 'new', spec={'plan': 'small'})
        await api.client.delete('things', 'a')
        await asyncio.sleep(40)
        await known(api, 'new')
        await api.client.wait_gone('things', 'a')
        await asyncio.sleep(3600)
    assert [call.verb for call in cloud.calls].count('get') > 20
    assert caplog.text.count("is unavailable") < 5


@virtual_time
async def test_edits_do_not_lead_to_more_observations():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        cloud.calls.clear()
        for number in range(50):
            await api.client.patch('things', 'a', {'metadata': {'labels': {'x': str(number)}}})
            await asyncio.sleep(0.1)
        assert not cloud.calls
        for number in range(50):
            await api.client.patch('things', 'a', {'spec': {'plan': str(number)}})
            await asyncio.sleep(0.1)
    assert sum(call.verb == 'get' for call in cloud.calls) <= 6


@virtual_time
async def test_at_a_start_known_things_are_observed_over_the_interval_and_new_ones_first():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, limit=kopf.Rate(10), interval=300)
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            for number in range(300):
                await api.client.create('things', f'a{number}', spec={'plan': 'small'})
            await asyncio.sleep(120)
            assert len(cloud.living) == 300
        cloud.calls.clear()
        began = cloud.now
        async with api.operator(registry=registry):
            await api.client.create('things', 'new', spec={'plan': 'small'})
            await asyncio.sleep(2)
            assert len(cloud.living) == 301
            assert len(cloud.calls) < 20
            await asyncio.sleep(330)
    times = [call.time for call in cloud.calls if call.verb == 'get']
    assert 300 <= len(times) <= 370
    assert all(sum(begin <= time < begin + 1 for time in times) <= 10 for time in times
               for begin in [time])
    assert sum(time < began + 150 for time in times) < 200


@virtual_time
async def test_an_outage_is_a_dozen_lines_and_all_are_well_soon_after_it(caplog):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=60, limit=kopf.Rate(100))
    async with running(registry) as api:
        for number in range(100):
            await api.client.create('things', f'a{number}', spec={'plan': 'small'})
        await asyncio.sleep(100)
        caplog.clear()
        cloud.is_down = True
        await asyncio.sleep(60)
        for number in range(100):
            await api.client.patch('things', f'a{number}', {'spec': {'plan': 'large'}})
        await asyncio.sleep(3 * 3600)
        lines = [record for record in caplog.records if record.levelno >= logging.INFO
                 and record.name.startswith('kopf')]
        assert len(lines) <= 12
        assert sum('is unavailable' in record.message for record in lines) == 1
        cloud.is_down = False
        await asyncio.sleep(60)
    assert {thing.content['plan'] for thing in cloud.living} == {'large'}
    assert sum('is available again' in record.message for record in caplog.records) == 1


@virtual_time
async def test_a_system_that_wants_fewer_calls_gets_none_for_a_while():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, limit=None)
    async with running(registry) as api:
        cloud.faults.append('busy')
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await api.client.create('things', 'b', spec={'plan': 'small'})
        await known(api)
        await known(api, 'b')
    times = [call.time for call in cloud.calls if call.verb == 'create']
    assert times[-1] >= 3.0
    assert len(cloud.living) == 2


@virtual_time
async def test_sync_functions_are_called_in_threads():
    registry, things, threads = make_registry(), {}, set()
    external = kopf.external('things', id='account', registry=registry)

    @external.observe
    def observe(key, **_):
        return things.get(key)

    @external.create
    def create(desired, token, **_):
        threads.add(threading.current_thread())
        things[token] = desired
        return token

    @external.delete
    def delete(key, **_):
        things.pop(key, None)

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        assert list(things.values()) == [{'plan': 'small'}]
        await asyncio.sleep(100)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert not things
    assert threading.main_thread() not in threads


def test_missing_functions_are_a_fault():
    registry = kopf.OperatorRegistry()
    kopf.external('things', id='account', registry=registry)
    with pytest.raises(LookupError, match='@account.observe, @account.create, @account.delete'):
        registry.verify()


def test_what_is_replaced_must_be_deleted_though_orphans_are_left():
    registry = kopf.OperatorRegistry()
    made = kopf.external('things', id='account', registry=registry, deletion='orphan', replace=True)
    made.observe(lambda **_: None)
    made.create(lambda **_: 'key')
    with pytest.raises(LookupError, match='@account.delete'):
        registry.verify()
    made.delete(lambda **_: None)
    registry.verify()


def test_externals_of_the_same_objects_have_different_ids():
    registry = kopf.OperatorRegistry()
    declare(Cloud(), registry=registry)
    declare(Cloud(), registry=registry, kind='others')
    registry.verify()
    declare(Cloud(), registry=registry, labels={'billed': 'yes'})
    with pytest.raises(LookupError, match="two reconcilers have the id 'account'"):
        registry.verify()


@pytest.mark.parametrize(['orders', 'problem'], [
    ({'a': ['b']}, "'a' comes after 'b', which is no external"),
    ({'a': ['a']}, "'a' comes after itself, by after= of a"),
    ({'a': ['b'], 'b': ['c'], 'c': ['b']}, "'b' comes after itself, by after= of c, b"),
])
def test_impossible_orders_are_faults(orders, problem):
    registry = kopf.OperatorRegistry()
    for id, after in orders.items():
        made = kopf.external('things', id=id, registry=registry, deletion='orphan', after=after)
        made.observe(lambda **_: None)
        made.create(lambda **_: 'key')
    with pytest.raises(LookupError, match=problem):
        registry.verify()


def test_an_order_is_that_of_the_externals_of_the_same_kind():
    registry = kopf.OperatorRegistry()
    for kind, id, after in [('x', 'a', ['b']), ('x', 'b', []), ('y', 'b', ['a']), ('y', 'a', [])]:
        made = kopf.external(kind, id=id, registry=registry, deletion='orphan', after=after)
        made.observe(lambda **_: None)
        made.create(lambda **_: 'key')
    registry.verify()


@pytest.mark.parametrize('options', [
    {'id': 'a.b'}, {'id': ''}, {'id': 'x' * 51}, {'id': 'a', 'on_drift': 'x'},
    {'id': 'kopf-managed'}, {'id': 'conditions'}, {'id': 'a', 'shown': ['plan', 'phase']},
    {'id': 'a', 'shown': iter(['key'])}, {'id': 'a', 'deletion': 'x'}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError):
        kopf.external('things', registry=kopf.OperatorRegistry(), **options)


@pytest.mark.parametrize('value', [float('nan'), -1, '5'])
@pytest.mark.parametrize('name', ['interval', 'max_interval', 'consistency', 'timeout'])
def test_wrong_times_are_refused(name, value):
    with pytest.raises(ValueError, match=f'{name}= must be'):
        kopf.external('things', id='a', registry=kopf.OperatorRegistry(), **{name: value})


def test_a_call_has_some_time():
    with pytest.raises(ValueError, match='timeout= must not be 0'):
        kopf.external('things', id='a', registry=kopf.OperatorRegistry(), timeout=0)


@pytest.mark.parametrize('name', ['consistency', 'timeout'])
def test_times_within_which_something_is_certain_are_finite(name):
    with pytest.raises(ValueError, match=f'{name}= must be a finite'):
        kopf.external('things', id='a', registry=kopf.OperatorRegistry(), **{name: float('inf')})


@pytest.mark.parametrize('name, value', [('limit', 5), ('limit_key', 'x'), ('shown', 'plan')])
def test_options_of_wrong_types_are_refused(name, value):
    with pytest.raises(TypeError, match=f'{name}= must be'):
        kopf.external('things', id='a', registry=kopf.OperatorRegistry(), **{name: value})


@virtual_time
async def test_the_handlers_of_changes_of_the_same_objects_go_on():
    cloud, registry, events = Cloud(), make_registry(), []
    declare(cloud, registry=registry, conditions=True)

    @kopf.on.create('things', registry=registry)
    @kopf.on.update('things', registry=registry)
    @kopf.on.delete('things', registry=registry)
    async def fn(reason, diff, **_):
        events.append((reason, [item.field for item in diff]))

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(5)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a')
    assert events == [('create', [()]), ('update', [('spec', 'plan')]), ('delete', [])]
    assert [call.verb for call in cloud.calls] == [
        'create', 'get', 'get', 'update', 'delete', 'get']


@virtual_time
async def test_a_thing_is_there_until_the_deletion_handlers_and_daemons_have_ended():
    cloud, registry, seen = Cloud(), make_registry(), []
    declare(cloud, registry=registry, consistency=0)

    @kopf.on.delete('things', registry=registry)
    def delete(retry, **_):
        seen.append(len(cloud.living))
        if retry < 3:
            raise kopf.TemporaryError("The backup is not complete.", delay=10)

    @kopf.daemon('things', registry=registry)
    async def use(stopped, **_):
        await stopped.wait()
        await asyncio.sleep(100)
        seen.append(len(cloud.living))

    async with running(registry) as api:
        await api.client.create('things', 'a')
        await known(api)
        await api.client.delete('things', 'a')
        await api.client.wait_gone('things', 'a', timeout=200)
    assert seen == [1] * 5
    assert not cloud.living


@virtual_time
async def test_nothing_is_called_while_a_deletion_waits():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, conditions=True)
    kopf.on.create('things', registry=registry)(lambda **_: None)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.delete('things', 'a')
        await asyncio.sleep(29)
        assert len(cloud.calls) <= 4
        await asyncio.sleep(5)
        assert await api.client.list('things') == []


@virtual_time
async def test_errors_of_the_functions_are_logged_once_and_tried_again(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)

    @external.desired
    async def desired(spec, **_):
        return {'plan': spec['plan']}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={})
        await asyncio.sleep(100)
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
        await api.client.patch('things', 'a', {'spec': {'plan': 'small'}})
        await known(api)


@pytest.mark.parametrize('error', [kopf.RetryAfter(0), kopf.TemporaryError("x", delay=-1)])
@virtual_time
async def test_attempts_without_a_delay_have_one(error):
    cloud, registry, attempts = Cloud(), make_registry(), []
    external = declare(cloud, registry=registry)

    @external.create
    def create(**_):
        attempts.append(cloud.now)
        raise error

    async with running(registry) as api:
        await api.client.create('things', 'a')
        await asyncio.sleep(100)
    assert len(attempts) < 101


@virtual_time
async def test_what_is_told_of_a_thing_stays_until_the_next_observation():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, on_drift='report', conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(400)
        thing, = cloud.living
        cloud.edit(thing.key, {'plan': 'drifted'})
        await asyncio.sleep(400)
        for patch in {'metadata': {'labels': {'a': 'b'}}}, {'spec': {'plan': 'small', 'x': None}}:
            await api.client.patch('things', 'a', patch)
            await asyncio.sleep(5)
            told = get_conditions(await api.client.get('things', 'a'))
            assert (told['Synced']['reason'], told['Ready']['status']) == ('Drifted', 'False')


@virtual_time
async def test_the_conditions_are_those_of_the_worst_of_several_things():
    registry = make_registry()
    for id in ('good', 'bad'):
        external = kopf.external(
            'things', id=id, registry=registry, deletion='orphan', consistency=0, interval=10,
            conditions=True, labels={id: 'yes'})
        external.observe(lambda **_: {'plan': 'small'})
        external.create(lambda **_: 'key')
    external.desired(lambda **_: {'plan': 'large'})

    @external.update
    def update(**_):
        raise RuntimeError("It is broken.")

    def has_conditions(obj):
        return [(item['type'], item['status'], item['message']) for item in (
            obj.get('status', {}).get('conditions', []))][:2] == expected

    async with running(registry) as api:
        await api.client.create('things', 'a', metadata={'labels': {'good': 'yes', 'bad': 'yes'}})
        expected = [('Synced', 'False', "bad: It is broken."),
                    ('Ready', 'False', "bad: It is broken.")]
        version = (await api.client.wait('things', 'a', has_conditions))['metadata'][
            'resourceVersion']
        await asyncio.sleep(1000)
        obj = await api.client.get('things', 'a')
        assert has_conditions(obj) and obj['metadata']['resourceVersion'] == version
        await api.client.patch('things', 'a', {'metadata': {'labels': {'bad': None}}})
        expected = [('Synced', 'True', ''), ('Ready', 'True', '')]
        await api.client.wait('things', 'a', has_conditions, timeout=100)


@virtual_time
async def test_what_is_told_of_a_thing_is_of_the_newest_generation():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, conditions=True)
    external.desired(lambda spec, **_: {'plan': spec['plan']})
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        await api.client.patch('things', 'a', {'spec': {'other': 'field'}})
        await asyncio.sleep(5)
        obj = await api.client.get('things', 'a')
        assert {told['observedGeneration'] for told in get_conditions(obj).values()} == {
            obj['metadata']['generation']}


@virtual_time
async def test_each_drift_is_counted_but_not_in_a_pause():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        driver, = (each for each in declaring._drivers if each.external is external)
        thing, = cloud.living
        for number in range(3):
            await asyncio.sleep(400)
            assert (thing.content, driver.drifts) == ({'plan': 'small'}, number)
            cloud.edit(thing.key, {'plan': 'drifted'})
        await asyncio.sleep(400)
        await api.client.patch('things', 'a', {
            'metadata': {'annotations': {'kopf.dev/paused': 'yes'}}})
        await asyncio.sleep(1000)
        assert driver.drifts == 3


@virtual_time
async def test_what_an_update_does_not_change_is_told_once_and_tried_at_the_interval(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, consistency=0, conditions=True)

    @external.observe
    async def observe(key, **_):
        found = await cloud.get(key)
        return found and {**found, 'plan': found['plan'].upper()}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(1200)
        told = get_conditions(await api.client.get('things', 'a'))
        assert (told['Synced']['reason'], told['Ready']['status']) == ('Drifted', 'False')
        message, = {record.message for record in caplog.records if record.levelname == 'ERROR'}
        assert "still differs after the update: plan." in message
        assert 4 <= [call.verb for call in cloud.calls].count('update') <= 7
        await api.client.patch('things', 'a', {'spec': {'plan': 'LARGE'}})
        await asyncio.sleep(100)
        told = get_conditions(await api.client.get('things', 'a'))
        assert (told['Synced']['reason'], told['Ready']['status']) == ('Synced', 'True')


@virtual_time
async def test_updates_that_fail_are_tried_more_and_more_seldom_and_told_once(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, conditions=True)
    times = []

    @external.update
    async def update(**_):
        times.append(cloud.now)
        raise RuntimeError("There is no such plan.")

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await api.client.patch('things', 'a', {'spec': {'plan': 'strange'}})
        for number in range(10):
            await asyncio.sleep(100)
            await api.client.patch('things', 'a', {'metadata': {'labels': {'a': f'{number}'}}})
        told = get_conditions(await api.client.get('things', 'a'))
        assert (told['Synced']['reason'], told['Ready']['status']) == ('Failed', 'False')
    assert len(times) < 30
    assert len([record for record in caplog.records if record.levelname == 'ERROR']) == 1


@pytest.mark.parametrize('result', [
    {'id': 1}, [], (1,), b'x', '', True, make_crd, {'id': 1}.keys(), Thing('x', None, {}, 0)])
@virtual_time
async def test_what_cannot_be_a_key_is_no_key(result, caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)

    @external.create
    async def create(desired, token, **_):
        await cloud.create(desired, token)
        return result

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(1000)
    assert len(cloud.things) == 1
    assert "create must return the key, which is a string or a number." in caplog.text


@pytest.mark.parametrize('verb, result, expected', [
    ('find', [], "find must return the key, which is a string or a number; or None if"),
    ('observe', False, "observe must return a dict; or None if there is nothing. It has returned "
                       "False."),
    ('observe', Thing('x', None, {}, 0), "It has returned a value of Thing."),
    ('desired', None, "desired must return a dict. It has returned None."),
    ('desired', {'regions': {'eu', 'us'}}, "What is desired is not JSON: set is not for JSON."),
])
@virtual_time
async def test_wrong_results_are_errors(verb, result, expected, caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)
    getattr(external, verb)(lambda **_: result)
    cloud.faults.append('after' if verb == 'find' else None)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(100)
    assert expected in caplog.text
    assert not {'update', 'delete'} & {call.verb for call in cloud.calls}


@virtual_time
async def test_shown_fields_need_not_be_json():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, shown=['since', 'tags'])

    @external.observe
    async def observe(key, **_):
        since = datetime.datetime(2030, 1, 2, 3, 4)
        return {**await cloud.get(key), 'since': since, 'tags': {'a': [1]}}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        obj = await api.client.wait('things', 'a', lambda obj: obj['status']['account']['since'])
    assert obj['status']['account'] == {
        'phase': 'known', 'key': obj['status']['account']['key'],
        'since': '2030-01-02 03:04:00', 'tags': {'a': [1]}}


@virtual_time
async def test_a_key_that_is_not_returned_is_an_error():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, finds=False)

    @external.create
    async def create(token, **_):
        await cloud.create({}, token)

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={})
        await api.client.wait('things', 'a', lambda obj: get_record(obj)['phase'] == 'unknown')
        await asyncio.sleep(100)
    assert len(cloud.living) == 1


@virtual_time
async def test_each_key_of_a_limit_has_its_own_limit():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, limit=kopf.Rate(1, per=10),
            limit_key=lambda name, **_: name)
    async with running(registry) as api:
        for name in 'abc':
            await api.client.create('things', name, spec={'plan': 'small'})
        await asyncio.sleep(2)
    assert len(cloud.living) == 3


@pytest.mark.parametrize('spec', [{}, {'region': ['not', 'hashable']}])
@virtual_time
async def test_errors_of_the_key_of_a_limit_are_of_this_external_only(spec, caplog):
    cloud, registry, seen = Cloud(), make_registry(), []
    declare(cloud, registry=registry, limit_key=lambda spec, **_: spec['region'])
    kopf.on.update('things', registry=registry)(lambda **_: seen.append(1))
    async with running(registry) as api:
        await api.client.create('things', 'a', spec=spec)
        await asyncio.sleep(100)
        assert not cloud.living
        await api.client.patch('things', 'a', {'spec': {'other': 1}})
        await asyncio.sleep(1)
        assert seen == [1]
        await api.client.patch('things', 'a', {'spec': {'region': 'eu'}})
        await known(api)
    [error] = [record for record in caplog.records if record.levelname == 'ERROR']
    assert error.getMessage().startswith("External 'account': limit_key= fails: ")


@virtual_time
async def test_nothing_is_left_of_the_keys_of_limits_that_come_and_go(monkeypatch):
    monkeypatch.setattr(driving, 'MIN_GATES', 5)
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, limit=kopf.Rate(1, per=10),
                       limit_key=lambda name, **_: name)
    sizes = []
    async with running(registry) as api:
        for number in range(30):
            await api.client.create('things', f'a{number}')
            await known(api, f'a{number}')
            await api.client.delete('things', f'a{number}')
            await api.client.wait_gone('things', f'a{number}', timeout=1000)
            driver, = (driver for driver in declaring._drivers if driver.external is external)
            sizes.append(len(driver.gates))
    assert max(sizes) == 5
    assert not cloud.living


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSpec:
    plan: str


@kopf.crd('example.com', 'v1', plural='typedthings')
class TypedThing:
    spec: PlanSpec


@virtual_time
async def test_an_object_that_does_not_fit_its_types_is_told_once(caplog):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, kind=TypedThing, interval=10)

    @external.desired
    def desired(spec: PlanSpec, **_):
        return {'plan': spec.plan}

    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('TypedThing', 'typedthings'))  # not as strict as the types
        async with api.operator(registry=registry):
            await api.client.create('typedthings', 'a', spec={'plan': 1})
            await asyncio.sleep(100)
    told, = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert told.getMessage() == (
        "External 'account': the object does not fit its types: "
        "spec.plan: is a number, not a string")
    assert not told.exc_info


@virtual_time
async def test_a_function_that_is_not_called_has_created_nothing():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, kind=TypedThing, finds=False)

    @external.create
    async def create(spec: PlanSpec, token, **_):
        return await cloud.create({'plan': spec.plan}, token)

    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('TypedThing', 'typedthings'))
        async with api.operator(registry=registry):
            await api.client.create('typedthings', 'a', spec={'plan': 1})
            await asyncio.sleep(100)
            await api.client.patch('typedthings', 'a', {'spec': {'plan': 'small'}})
            await api.client.wait('typedthings', 'a', lambda obj: (
                get_record(obj)['phase'] == 'known'))
    assert [thing.content for thing in cloud.living] == [{'plan': 'small'}]


@pytest.mark.parametrize(('error', 'is_short'), [
    (ConnectionRefusedError("Nobody listens at 10.0.0.1:80"), True),
    (FileNotFoundError("There is no file"), False),
])
@virtual_time
async def test_a_failed_connection_is_told_in_one_line_with_the_place_and_without_its_frames(
        caplog, error, is_short):
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry)

    @external.create
    async def create_account(**_):
        raise error

    async with running(registry) as api:
        await api.client.create('things', 'a')
        await asyncio.sleep(5)
    told = next(record for record in caplog.records if record.levelno >= logging.ERROR)
    line = create_account.__code__.co_firstlineno + 2
    place = f" (in create_account() at {__file__}:{line})" if is_short else ""
    assert told.getMessage() == f"External 'account': {error}{place}"
    assert bool(told.exc_info) is not is_short


def follow(external, registry, *, owns=(), **options):
    """Declare a reconciling handler after the external; return what it sees: keys and plans."""
    seen = []

    @kopf.reconcile('things', registry=registry, after=[external], owns=owns, **options)
    def website(body, status, **_):
        seen.append((external.get_key(body), status.get('account', {}).get('plan')))

    return seen


@virtual_time
async def test_a_reconciling_handler_is_called_when_the_key_is_known():
    cloud, registry = Cloud(latency=10), make_registry()
    external = declare(cloud, registry=registry)
    seen = follow(external, registry, conditions=True)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(5)
        assert not seen
        obj = await known(api)
        await asyncio.sleep(200)
        assert seen == [(get_record(obj)['key'], None)]
        obj = await api.client.get('things', 'a')
        assert {item['type']: item['status'] for item in obj['status']['conditions']} == {
            'Ready': 'True', 'Reconciling': 'False', 'Stalled': 'False'}


@virtual_time
async def test_a_waiting_handler_says_what_it_waits_for():
    cloud, registry = Cloud(), make_registry()
    follow(declare(cloud, registry=registry, finds=False), registry, conditions=True)
    async with running(registry) as api:
        await stop_unknown(api, cloud)
        await api.client.wait('things', 'a', lambda obj: any(
            'it waits for account' in item['message'] for item in obj['status']['conditions']))


@pytest.mark.parametrize('is_before', [True, False])
@virtual_time
async def test_a_reconciling_handler_is_called_again_for_what_it_can_see_of_an_external(is_before):
    cloud, registry = Cloud(), make_registry()
    late = kopf.OperatorRegistry()
    external = declare(cloud, registry=registry if not is_before else late, shown=['plan'],
                       replace=True, immutable=['region'])
    seen = follow(external, registry)
    for handler in late._reconciling:
        registry.append(handler)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small', 'region': 'x'})
        await known(api)
        await asyncio.sleep(100)
        first, = cloud.living
        assert set(seen[1:]) == {(first.key, 'small')}
        del seen[:]
        await asyncio.sleep(1000)
        assert not seen
        cloud.edit(first.key, {'plan': 'large'})
        external.trigger(first.key)
        await asyncio.sleep(100)
        assert (first.key, 'small') in seen
        del seen[:]
        await api.client.patch('things', 'a', {'spec': {'region': 'y'}})
        await asyncio.sleep(100)
        second, = cloud.living
        assert second.key != first.key
        assert seen[-1] == (second.key, 'small')


@virtual_time
async def test_a_handler_after_an_external_has_all_its_other_reasons_to_be_called():
    cloud, registry = Cloud(), make_registry()
    seen = follow(declare(cloud, registry=registry), registry, interval=600)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)
        await asyncio.sleep(100)
        count = len(seen)
        await asyncio.sleep(600)
        assert len(seen) == count + 1


@pytest.mark.parametrize('after', ['account', ['account']])
def test_what_a_reconciling_handler_comes_after_are_externals(after):
    with pytest.raises(TypeError, match='after='):
        kopf.reconcile('things', after=after)


def test_what_an_external_comes_after_is_no_string():
    with pytest.raises(TypeError, match='after='):
        kopf.external('things', id='account', after='other')


def test_the_key_of_a_limit_is_found_at_once():
    async def key(**_):
        """Nobody would wait for it."""

    with pytest.raises(TypeError, match='limit_key='):
        kopf.external('things', id='billing', limit_key=key, registry=make_registry())


@pytest.mark.parametrize('annotations, expected', [
    (None, None), ({}, None), ({RECORD: 'broken'}, None), ({RECORD: '{"phase":"wanted"}'}, None),
    ({RECORD: '{"phase":"known","key":"k1"}'}, 'k1')])
def test_the_key_of_an_object(annotations, expected):
    external = kopf.external('things', id='account', registry=kopf.OperatorRegistry())
    metadata = {} if annotations is None else {'annotations': annotations}
    assert external.get_key({'metadata': metadata}) == expected
    assert external.get_key(kopf.Body({'metadata': metadata})) == expected


@virtual_time
async def test_things_are_observed_more_seldom_while_nothing_changes():
    cloud, registry = Cloud(), make_registry()
    external = declare(cloud, registry=registry, interval=100, max_interval=800)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await known(api)

        async def measure(time):
            """Measure the pauses before the next observations, in hundreds of seconds."""
            count = len(cloud.calls)
            await asyncio.sleep(time)
            times = [call.time for call in cloud.calls[count - 1:] if call.verb == 'get']
            return [round((after - before) / 100, 1) for before, after in
                    zip(times, times[1:], strict=False)]

        async def check_slowing(time):
            pauses = await measure(time)
            assert len(pauses) >= 4
            for pause, expected in zip(pauses, [1, 2, 4, 8, 8, 8], strict=False):
                assert expected * 0.89 <= pause <= expected * 1.11

        await asyncio.sleep(10)
        await check_slowing(4000)
        cloud.edit(cloud.living[0].key, {'plan': 'drifted'})
        external.trigger(cloud.living[0].key)
        await asyncio.sleep(50)
        assert cloud.living[0].content['plan'] == 'small'
        await check_slowing(2500)
        await api.client.patch('things', 'a', {'spec': {'plan': 'large'}})
        await asyncio.sleep(50)
        assert cloud.living[0].content['plan'] == 'large'
        await check_slowing(2500)


@pytest.mark.parametrize('shown, expected', [([], 5), (['visits'], 11)])
@virtual_time
async def test_fields_that_nobody_uses_are_nothing_new(shown, expected):
    registry, visits = make_registry(), []
    external = kopf.external(
        'things', id='account', registry=registry, deletion='orphan', interval=100,
        max_interval=800, shown=shown)
    external.create(lambda **_: 'key')

    @external.observe
    def observe(**_):
        visits.append(1)
        return {'plan': 'small', 'visits': len(visits)}

    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(1060)
    assert abs(len(visits) - expected) <= 1


@virtual_time
async def test_things_are_observed_more_seldom_from_the_shortest_interval_on():
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, interval=0, max_interval=100)
    async with running(registry) as api:
        await api.client.create('things', 'a', spec={'plan': 'small'})
        await asyncio.sleep(1000)
    assert len(cloud.calls) < 25


@pytest.mark.parametrize('interval', [None, 101.0])
def test_the_longest_interval_is_not_less_than_the_shortest(interval):
    with pytest.raises(ValueError, match='max_interval='):
        kopf.external('things', id='account', interval=interval, max_interval=100.0)


@virtual_time
async def test_a_deletion_that_waits_for_unknown_externals_says_so_once(caplog):
    cloud, registry = Cloud(), make_registry()
    declare(cloud, registry=registry, consistency=0)
    async with running(registry) as api:
        await api.client.create('things', 'a', metadata={'annotations': {
            'external.kopf.dev/renamed': '{"phase":"known","key":"k"}'}})
        await known(api)
        await api.client.delete('things', 'a')
        await asyncio.sleep(100)
        await api.client.patch('things', 'a', {'metadata': {'labels': {'some': 'label'}}})
        await asyncio.sleep(100)
        assert not cloud.living
        obj = await api.client.get('things', 'a')
        assert obj['metadata']['finalizers'] == [FINALIZER]
        told, = [record.message for record in caplog.records if 'waits for' in record.message]
        assert "no externals for the records external.kopf.dev/renamed" in told
        await api.client.patch(
            'things', 'a', {'metadata': {'annotations': {'external.kopf.dev/renamed': None}}})
        await api.client.wait_gone('things', 'a')


@pytest.mark.parametrize('is_lost', [False, True])
@virtual_time
async def test_brakes_stop_mass_replacements(is_lost, caplog):
    cloud, registry, region = Cloud(), make_registry(), ['x']
    external = declare(
        cloud, registry=registry, interval=30, consistency=0, immutable=['region'], replace=True)

    @kopf.on.startup(registry=registry)
    def stop(settings, **_):
        settings.brakes.stop = True

    @external.desired
    def desired(spec, **_):
        return {'region': spec.get('region', region[0])}

    @external.observe
    async def observe(key, **_):
        found = await cloud.get(key)
        return None if is_lost and found['region'] != region[0] else found

    def count():
        return sum(thing.content == {'region': region[0]} for thing in cloud.living)

    async with running(registry) as api:
        for number in range(40):
            await api.client.create('things', f'a{number}')
            await known(api, f'a{number}')
        await asyncio.sleep(100)
        assert count() == 40
        region[0] = 'y'  # as if a new version had another default, or asked another region
        await asyncio.sleep(150)
        assert count() == 20
        told, = [record.message for record in caplog.records if 'Stopped' in record.message]
        assert "replacements in external systems for things" in told
        if not is_lost:  # an edit is no mistake of the operator
            left = next(thing for thing in cloud.living if thing.content == {'region': 'x'})
            name = next(obj['metadata']['name'] for obj in await api.client.list('things')
                        if get_record(obj)['key'] == left.key)
            await api.client.patch('things', name, {'spec': {'region': 'y'}})
            await asyncio.sleep(60)
            assert count() == 21
        for number in range(40):
            await api.client.patch('things', f'a{number}', {'metadata': {'annotations': {
                'kopf.dev/brakes-released-until': '2100-01-01T00:00Z'}}})
        await asyncio.sleep(60)
        assert count() == 40
