import asyncio
import json

import aiohttp
import pytest

from kopf import testing
from tests._kits.testing.httpclients import CLIENTS


@testing.virtual_time
async def test_a_thing_gets_a_random_id_and_keeps_its_fields():
    async with testing.FakeCloud(seed=1) as cloud:
        one = await cloud.create('accounts', {'name': 'x', 'plan': 'small'})
        two = await cloud.create('accounts', {'name': 'y'})
        assert one != two
        assert await cloud.get('accounts', one) == {'id': one, 'name': 'x', 'plan': 'small'}
        assert await cloud.get('accounts', 'unknown') is None
        assert await cloud.get('accounts', None) is None
        assert await cloud.get('tenants', one) is None
    async with testing.FakeCloud(seed=1) as other:
        assert await other.create('accounts', {}) == one
    async with testing.FakeCloud(seed=2) as other:
        assert await other.create('accounts', {}) != one


@testing.virtual_time
async def test_things_are_found_by_their_fields():
    async with testing.FakeCloud() as cloud:
        key = await cloud.create('accounts', {'name': 'x', 'size': 1})
        await cloud.create('accounts', {'name': 'y', 'size': 1})
        assert await cloud.find('accounts', name='x', size='1') == [
            {'id': key, 'name': 'x', 'size': 1}]
        assert len(await cloud.find('accounts')) == 2
        assert await cloud.find('accounts', name='z') == []


@testing.virtual_time
async def test_things_are_changed_and_deleted():
    async with testing.FakeCloud() as cloud:
        key = await cloud.create('accounts', {'name': 'x', 'plan': 'small'})
        changed = await cloud.update('accounts', key, {'plan': 'large'})
        assert changed == {'id': key, 'name': 'x', 'plan': 'large'}
        assert cloud.things('accounts') == [changed]
        await cloud.delete('accounts', key)
        assert cloud.things('accounts') == []
        with pytest.raises(aiohttp.ClientResponseError, match='404'):
            await cloud.delete('accounts', key)
        with pytest.raises(aiohttp.ClientResponseError, match='404'):
            await cloud.update('accounts', key, {})


@testing.virtual_time
async def test_reads_show_writes_when_the_system_is_consistent_again():
    async with testing.FakeCloud(consistency=30) as cloud:
        key = await cloud.create('accounts', {'name': 'x', 'plan': 'small'})
        await asyncio.sleep(29)
        assert await cloud.get('accounts', key) is None
        assert await cloud.find('accounts', name='x') == []
        assert cloud.things('accounts')
        await cloud.update('accounts', key, {'plan': 'large'})  # writes know everything
        await asyncio.sleep(2)
        assert [thing['plan'] for thing in await cloud.find('accounts', name='x')] == ['small']
        await cloud.delete('accounts', key)
        await asyncio.sleep(29)
        assert (await cloud.get('accounts', key))['plan'] == 'large'
        await asyncio.sleep(2)
        assert await cloud.get('accounts', key) is None


@testing.virtual_time
async def test_too_many_calls_in_a_second_are_refused():
    async with testing.FakeCloud(rate=2) as cloud:
        await cloud.find('accounts')
        await asyncio.sleep(0.5)
        await cloud.find('accounts')
        with pytest.raises(aiohttp.ClientResponseError) as refused:
            await cloud.find('accounts')
        assert refused.value.status == 429
        assert refused.value.headers['Retry-After'] == '1'
        await asyncio.sleep(0.6)
        await cloud.find('accounts')
        with pytest.raises(aiohttp.ClientResponseError):
            await cloud.find('accounts')


@testing.virtual_time
async def test_a_creation_is_repeated_by_its_token_only_if_the_system_is_idempotent():
    async with testing.FakeCloud(idempotent=True, consistency=30) as cloud:
        key = await cloud.create('accounts', {'name': 'x'}, token='t')
        assert await cloud.create('accounts', {'name': 'x'}, token='t') == key
        assert await cloud.create('accounts', {'name': 'x'}, token='u') != key
        assert await cloud.create('tenants', {'name': 'x'}, token='t') != key
        await cloud.delete('accounts', key)
        assert await cloud.create('accounts', {'name': 'x'}, token='t') != key
    async with testing.FakeCloud() as cloud:
        key = await cloud.create('accounts', {'name': 'x'}, token='t')
        assert await cloud.create('accounts', {'name': 'x'}, token='t') != key


@testing.virtual_time
async def test_duplicates_are_things_of_a_kind_with_the_same_unique_value():
    async with testing.FakeCloud(unique='tenant') as cloud:
        keys = [await cloud.create('accounts', {'tenant': 'x', 'name': 'n'}) for _ in range(3)]
        await cloud.create('accounts', {'tenant': 'y', 'name': 'n'})
        await cloud.create('users', {'tenant': 'x'})
        await cloud.create('accounts', {})
        await cloud.create('accounts', {})
        await cloud.delete('accounts', keys[0])
        [(found, things)] = cloud.duplicates.items()
        assert found == ('accounts', 'x')
        assert [thing['id'] for thing in things] == keys[1:]
        await cloud.delete('accounts', keys[1])
        assert not cloud.duplicates


@testing.virtual_time
async def test_all_calls_are_recorded():
    async with testing.FakeCloud() as cloud:
        await asyncio.sleep(5)
        key = await cloud.create('accounts', {'name': 'x'}, token='t')
        await cloud.find('accounts', name='x y')
        await cloud.get('accounts', 'other')
        cloud.faults.add(testing.Fault(action='drop'))
        with pytest.raises(ConnectionError):
            await cloud.delete('accounts', key)
        thing = {'name': 'x', 'id': key}
        assert [
            (call.time, call.method, call.path, call.token, call.status, call.answer)
            for call in cloud.calls
        ] == [
            (5, 'POST', '/accounts', 't', 201, thing),
            (5, 'GET', '/accounts?name=x+y', None, 200, {'items': []}),
            (5, 'GET', '/accounts/other', None, 404, {'error': 'not found'}),
            (5, 'DELETE', f'/accounts/{key}', None, None, None)]


@testing.virtual_time
async def test_an_outage_lasts_until_its_fault_is_removed():
    async with testing.FakeCloud() as cloud:
        outage = cloud.faults.add(testing.Fault(action='refuse', status=503))
        for _ in range(2):
            with pytest.raises(aiohttp.ClientResponseError, match='503'):
                await cloud.create('accounts', {})
        assert outage.hits == 2
        cloud.faults.remove(outage)
        assert cloud.things('accounts') == []
        await cloud.create('accounts', {})


@pytest.mark.parametrize('action, is_done', [('drop', False), ('lose', True)])
@testing.virtual_time
async def test_a_broken_connection_hits_matching_calls(action, is_done):
    async with testing.FakeCloud() as cloud:
        cloud.faults.add(testing.Fault(action=action, verb='create', resource='acc*', count=1))
        await cloud.create('users', {})
        await cloud.find('accounts')
        with pytest.raises(ConnectionError):
            await cloud.create('accounts', {})
        assert bool(cloud.things('accounts')) is is_done


@pytest.mark.parametrize('action, done_at', [('delay', 3.0), ('slow', 0.0)])
@testing.virtual_time
async def test_a_slow_system_carries_out_calls_before_or_after_its_delay(action, done_at):
    loop = asyncio.get_running_loop()
    async with testing.FakeCloud() as cloud:
        cloud.faults.add(testing.Fault(action=action, seconds=3))
        creating = asyncio.create_task(cloud.create('accounts', {}))
        await testing.wait_for(lambda: cloud.things('accounts'))
        assert loop.time() == pytest.approx(done_at, abs=0.1)
        await creating
        assert loop.time() == 3


@testing.virtual_time
async def test_each_block_begins_anew():
    cloud = testing.FakeCloud()
    url = cloud.url
    kept = cloud.faults.add(testing.Fault(action='refuse', count=1))
    for _ in range(2):
        async with cloud:
            assert cloud.url == url
            assert cloud.calls == []
            assert kept.hits == 0
            cloud.faults.add(testing.Fault(action='refuse', status=500, verb='get'))
            with pytest.raises(aiohttp.ClientResponseError, match='503'):
                await cloud.create('accounts', {})
            await cloud.create('accounts', {})
            assert len(cloud.things('accounts')) == 1
            cloud.faults.clear()
        assert list(cloud.faults) == [kept]


@testing.virtual_time
async def test_it_can_be_called_directly_without_its_server():
    cloud = testing.FakeCloud()
    assert await cloud.get('accounts', await cloud.create('accounts', {'name': 'x'}))


@pytest.mark.parametrize('ask', CLIENTS)
@testing.virtual_time
async def test_any_http_client_can_call_it(ask):
    async with testing.FakeCloud(idempotent=True) as cloud:
        accounts, headers = f'{cloud.url}/accounts', {'Idempotency-Key': 't'}
        status, body = await ask('POST', accounts, json.dumps({'name': 'ü'}).encode(), headers)
        thing = json.loads(body)
        assert (status, thing) == (201, {'name': 'ü', 'id': thing['id']})
        assert (await ask('POST', accounts, b'{}', headers)) == (200, body)
        assert (await ask('GET', f'{accounts}?name=%C3%BC'))[1] == b'{"items": [' + body + b']}'
        assert (await ask('GET', f"{accounts}/{thing['id']}")) == (200, body)
        assert (await ask('PATCH', f"{accounts}/{thing['id']}", b'{"a": 1}'))[0] == 200
        assert cloud.things('accounts') == [{**thing, 'a': 1}]
        assert (await ask('PUT', f"{accounts}/{thing['id']}", b'{"b": 1}'))[0] == 200
        assert cloud.things('accounts') == [{'b': 1, 'id': thing['id']}]
        assert (await ask('DELETE', f"{accounts}/{thing['id']}")) == (204, b'')
        assert (await ask('GET', f"{accounts}/{thing['id']}"))[0] == 404


@pytest.mark.parametrize('method, path, body, status', [
    ('POST', '/accounts', b'{', 400),
    ('POST', '/accounts', b'[1]', 400),
    ('POST', '/accounts/x', b'{}', 405),
    ('DELETE', '/accounts', b'', 405),
    ('GET', '/', b'', 404),
])
@testing.virtual_time
async def test_wrong_calls_are_refused(method, path, body, status):
    async with testing.FakeCloud() as cloud, aiohttp.ClientSession(cloud.url) as session:
        async with session.request(method, path, data=body) as response:
            assert response.status == status


async def test_it_works_in_real_time():
    async with testing.FakeCloud() as cloud, aiohttp.ClientSession(cloud.url) as session:
        async with session.post('/accounts', json={'name': 'x'}) as response:
            assert response.status == 201
        assert [thing['name'] for thing in cloud.things('accounts')] == ['x']


@pytest.mark.parametrize('rate', [0, -1])
def test_rates_of_no_calls_are_refused(rate):
    with pytest.raises(ValueError, match=f"at least 1 call in a second, not {rate}"):
        testing.FakeCloud(rate=rate)
