import asyncio
import json
import time

import aiohttp
import pytest

from kopf._kits.sandbox import faults
from kopf._kits.sandbox.faults import Fault
from kopf._kits.sandbox.requests import Target
from tests._kits.sandbox.conftest import CMS, cm

POD = Target(
    verb='patch', group='apps', resource='deployments', namespace='default', name='one')


@pytest.mark.parametrize(('options', 'is_about'), [
    ({}, True), ({'verb': 'patch'}, True), ({'verb': 'list'}, False),
    ({'resource': 'deployments'}, True), ({'resource': 'deployments.apps'}, True),
    ({'resource': 'deployments/status'}, False), ({'resource': 'deploy*'}, True),
    ({'namespace': 'default', 'name': 'one'}, True), ({'name': 'two'}, False),
])
def test_faults_are_about_what_they_say(options, is_about):
    assert Fault(action='refuse', **options).hit(POD) is is_about


def test_a_fault_hits_only_so_often():
    fault = Fault(action='refuse', count=2, skip=1)
    assert [fault.hit(POD) for _ in range(5)] == [False, True, True, False, False]
    assert fault.hits == 2


def test_chances_are_the_same_with_the_same_seed():
    def hits():
        fault = Fault(action='drop', chance=0.5, seed=42)
        return [fault.hit(POD) for _ in range(100)]

    assert hits() == hits()
    assert 20 < sum(hits()) < 80


def test_faults_are_parsed():
    fault = faults.parse('refuse:verb=patch,resource=pods,status=500,count=3,chance=0.5')
    assert (fault.action, fault.verb, fault.resource) == ('refuse', 'patch', 'pods')
    assert (fault.status, fault.count, fault.chance) == (500, 3, 0.5)
    assert faults.parse('drop').action == 'drop'


@pytest.mark.parametrize('text', [
    '', 'explode', 'refuse:status', 'refuse:color=red', 'refuse:count=x', 'refuse:status=7',
    'refuse:status=200', 'delay:seconds=-1', 'delay:seconds=nan', 'cut:chance=2', 'cut:chance=-1',
    'refuse:verb=patch,verb=get'])
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(ValueError):
        faults.parse(text)


async def test_requests_are_refused_as_often_as_told(sandbox, http):
    sandbox.faults.add(Fault(action='refuse', verb='create', status=429, count=1))
    answer = await http('POST', CMS, cm('a'))
    assert (answer.status, answer.body['reason']) == (429, 'TooManyRequests')
    assert answer.headers['Retry-After'] == '1'
    assert (await http('POST', CMS, cm('a'))).status == 201


async def test_removed_faults_happen_no_more(sandbox, http):
    fault = sandbox.faults.add(Fault(action='refuse'))
    assert (await http('GET', CMS)).status == 503
    sandbox.faults.remove(fault)
    assert (await http('GET', CMS)).status == 200


async def test_delays_delay(sandbox, http):
    sandbox.faults.add(Fault(action='delay', seconds=0.1))
    began = time.monotonic()
    assert (await http('GET', CMS)).status == 200
    assert time.monotonic() - began >= 0.1


async def test_dropped_requests_do_nothing(sandbox, http):
    sandbox.faults.add(Fault(action='drop', verb='create', count=10))
    with pytest.raises(aiohttp.ClientError):
        await http('POST', CMS, cm('a'))
    assert await sandbox.list('configmaps') == []


async def test_lost_replies_are_of_what_is_done(sandbox, http):
    sandbox.faults.add(Fault(action='lose', verb='create'))
    with pytest.raises(aiohttp.ClientError):
        await http('POST', CMS, cm('a'))
    assert len(await sandbox.list('configmaps')) == 1


async def test_answers_break_off(sandbox, http):
    sandbox.faults.add(Fault(action='cut', verb='list'))
    with pytest.raises(aiohttp.ClientPayloadError):
        await http('GET', CMS)


async def test_slow_answers_are_complete(sandbox, http):
    sandbox.faults.add(Fault(action='slow', verb='list', seconds=0.05))
    assert (await http('GET', CMS)).body['items'] == []


async def test_expired_lists_are_gone(sandbox, http):
    sandbox.faults.add(Fault(action='expire', verb='list', count=1))
    assert (await http('GET', CMS)).status == 410


async def test_a_watch_breaks_off_in_the_middle_of_a_line(sandbox, http, session):
    sandbox.faults.add(Fault(action='cut', verb='watch'))
    raw = b''
    async with session.get(f'{http.url}{CMS}?watch=true') as response:
        await http('POST', CMS, cm('a'))
        with pytest.raises(aiohttp.ClientPayloadError):
            async for chunk in response.content.iter_any():
                raw += chunk
    assert raw.startswith(b'{"type":"ADDED"')
    assert not raw.endswith(b'\n')


async def test_open_watches_expire(sandbox, http, session):
    async with session.get(f'{http.url}{CMS}?watch=true') as response:
        sandbox.faults.add(Fault(action='expire', verb='watch'))
        await http('POST', CMS, cm('a'))
        event = json.loads(await asyncio.wait_for(response.content.readline(), 5))
        assert (event['type'], event['object']['code']) == ('ERROR', 410)
        assert await response.content.readline() == b''


async def test_compacted_histories_are_gone(sandbox, http):
    since = (await http('GET', CMS)).body['metadata']['resourceVersion']
    await http('POST', CMS, cm('a'))
    sandbox.faults.add(Fault(action='compact', verb='watch', count=1))
    event, = await http.watch(CMS, resourceVersion=since)
    assert event['object']['reason'] == 'Expired'


async def test_paths_fail_too(sandbox, http):
    sandbox.faults.add(Fault(action='refuse', resource='/version'))
    assert (await http('GET', '/version')).status == 503
    assert (await http('GET', '/api')).status == 200
