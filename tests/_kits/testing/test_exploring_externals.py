"""What happens to operators at their calls of external systems, and how it is told."""
import gc
import warnings

import pytest

import kopf
from kopf import testing
from kopf._kits.testing.exploring import STRIKES

CALLS = tuple(kind for kind in STRIKES if kind.startswith('call-'))

NAIVE = '''
import os
import aiohttp

@kopf.on.create('kopfexamples')
async def open_account(name, patch, **_):
    async with aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session:
        async with session.post('/accounts', json={'name': name}) as response:
            patch.status['account'] = (await response.json())['id']
'''

CAREFUL = '''
import asyncio
import os
import aiohttp

async def call(method, path, **options):
    async with (aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session,
                session.request(method, path, **options) as response):
        return await response.json()

async def find(name, retry):
    return (await call('GET', '/accounts', params={'name': name}))['items']

async def create(name):
    return await call('POST', '/accounts', json={'name': name})

@kopf.on.create('kopfexamples')
async def open_account(name, patch, retry, **_):
    found = await find(name, retry) or [await create(name)]
    patch.status['account'] = found[0]['id']
'''


@pytest.fixture()
def cloud(monkeypatch):
    cloud = testing.FakeCloud()
    monkeypatch.setenv('BILLING_URL', cloud.url)
    return cloud


async def scenario(client):
    await client.create('kopfexamples', 'obj', spec={})
    await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['account'], timeout=600)


async def delete(client):
    await scenario(client)
    await client.delete('kopfexamples', 'obj')
    await client.wait_gone('kopfexamples', 'obj', timeout=600)


def find_failed(*sources, **options):
    """Explore; return the faults that are not survived."""
    try:
        testing.explore(scenario, *sources, **options)
    except testing.ExplorationError as e:
        return {str(finding.strike) for finding in e.findings}
    return set()


def test_a_careful_operator_survives_all_faults(cloud, crd, script):
    explored = testing.explore(scenario, script(CAREFUL), load=[crd], external=[cloud])
    found, created = explored.calls
    assert found == 'GET /accounts?name=obj: 200 {"items": []}'
    assert created.startswith('POST /accounts: 201 {"name": "obj", "id": ')
    assert len(explored.writes) == 1
    assert explored.runs == 10 * 1 + 7 * 2 - 1  # what a write is answered is never older


LOOKING = CAREFUL + '''
@kopf.on.startup()
async def look(**_):
    await call('GET', '/plans')
'''


def test_an_operator_can_be_killed_while_it_starts(cloud, crd, script):
    explored = testing.explore(
        scenario, script(LOOKING), load=[crd], external=[cloud],
        strikes=['call-before', 'call-after'])
    assert explored.calls[0].startswith('GET /plans: ')


def test_what_a_killed_process_leaves_open_is_no_warning(cloud, crd, script):
    lasting = '''
import os
import aiohttp

@kopf.on.startup()
async def connect(memo, **_):
    memo.session = aiohttp.ClientSession(os.environ['BILLING_URL'])

@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.session.close()

@kopf.on.create('kopfexamples')
async def open_account(name, memo, patch, **_):
    async with memo.session.get('/accounts') as response:
        patch.status['account'] = str(response.status)
'''
    gc.collect()  # what earlier tests have left
    with warnings.catch_warnings(record=True) as caught:
        testing.explore(
            scenario, script(lasting), load=[crd], external=[cloud], strikes=['crash'])
        gc.collect()
    assert caught == []


def test_two_accounts_for_one_tenant_are_found_with_their_story(cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(NAIVE), load=[crd], external=[cloud])
    findings = {str(finding.strike): finding for finding in found.value.findings}
    assert findings.keys() == {'stale:1', 'call-after:1', 'call-lose:1'}
    text = str(findings['call-after:1'])
    assert text.startswith("If the operator is killed after call 1:\n  call 1: POST /accounts: 20")
    assert "There are 2 accounts for one name, 'obj': " in text
    assert "the handler 'open_account' for [default/obj] was called 2 times, not 1" in text
    assert "What to change: A call can be repeated after it has succeeded: before you cre" in text
    assert text.endswith("To run only this: only='call-after:1'")
    lines = [line.strip()[7:] for line in text.splitlines()]
    order = [next(number for number, line in enumerate(lines) if line.startswith(start))
             for start in ("call 1: POST /accounts: 201 ", "*** the operator is killed after call",
                           "the operator starts again", "call 2: POST /accounts: 20", "write 1: ")]
    assert order == sorted(order)


HASTY = '''
search = find

async def find(name, retry):
    return await search(name, retry) if retry else []
'''

CONFIRMING = '''
async def create(name):
    created = await call('POST', '/accounts', json={'name': name})
    found = await find(name, 0)
    return found[0] if found else await call('POST', '/accounts', json={'name': name})
'''

DESPAIRING = '''
ask = call

async def call(method, path, **options):
    try:
        async with asyncio.timeout(60):
            return await ask(method, path, **options)
    except ERROR:
        raise kopf.PermanentError("It will never work.")
'''

REFUSED = DESPAIRING.replace(
    "ERROR:",
    "aiohttp.ClientResponseError as e:\n        if e.status != STATUS:\n            raise")

REPEATING = "A call can be repeated after it has succeeded"
GIVING_UP = "Do not give up after an error of the API"


@pytest.mark.parametrize('mistake, failed, advice', [
    (HASTY, {'call-after:1'}, REPEATING),
    (CONFIRMING, {'call-stale:3'}, REPEATING),
    (DESPAIRING.replace('ERROR', 'TimeoutError'), {'call-timeout:1', 'call-timeout:2'}, GIVING_UP),
    (DESPAIRING.replace('ERROR', 'aiohttp.ServerDisconnectedError'),
     {'call-lose:2'}, GIVING_UP),  # aiohttp itself repeats the read
    (REFUSED.replace('STATUS', '429'), {'call-429:1', 'call-429:2'}, GIVING_UP),
    (REFUSED.replace('STATUS', '500'), {'call-500:1', 'call-500:2'}, GIVING_UP),
])
def test_each_mistake_shows_at_its_fault_only(mistake, failed, advice, cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(
            outlast, script(CAREFUL + mistake), load=[crd], external=[cloud], strikes=CALLS)
    assert {str(finding.strike) for finding in found.value.findings} == failed
    for finding in found.value.findings:
        assert any(advice in hint for hint in finding.hints)


async def outlast(client):
    await client.create('kopfexamples', 'obj', spec={})


DELETING = '''
@kopf.on.delete('kopfexamples')
async def close_account(status, **_):
    async with aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session:
        await session.delete(f"/accounts/{status['account']}")
'''


def test_a_deletion_that_fails_when_it_is_repeated_is_told(cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(
            delete, script(CAREFUL + DELETING), load=[crd], external=[cloud], only='call-after:3')
    assert "What to change: A deletion can be repeated after it has suc" in str(found.value)


TRUSTING = '''
@kopf.index('configmaps')
async def intents(name, **_):
    return {name: None}

async def find(name, retry):
    if name in INTENTS[0]:
        return [{'id': 'unknown'}]
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': name, 'namespace': 'default'}})
    return []

INTENTS = []

@kopf.on.event('kopfexamples')
async def keep(intents, **_):
    INTENTS.append(intents)
'''


def test_an_intent_that_is_taken_for_a_success_is_found(cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(
            scenario, script(CAREFUL + TRUSTING), load=[crd], external=[cloud],
            only='call-before:1', ignore=['kopfexamples:status.account'])
    [finding] = found.value.findings
    assert finding.problems == ['accounts obj is missing.']
    assert any(line.endswith('  call 1: POST /accounts') for line in finding.story)
    assert "do not leave out any because of what an earlier call has done" in finding.hints[-1]


CLOSING = '''
@kopf.on.delete('kopfexamples')
async def close_account(status, **_):
    try:
        await call('DELETE', f"/accounts/{status['account']}")
    except Exception:
        pass
'''


def test_an_account_that_is_left_behind_is_found(cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(
            delete, script(CAREFUL + CLOSING), load=[crd], external=[cloud], strikes=['call-500'])
    [finding] = found.value.findings
    assert finding.problems[0].startswith('accounts obj is there, but should not be')


def test_there_is_no_rest_before_a_call_is_answered(cloud, crd, script):
    testing.explore(
        outlast, script(CAREFUL), load=[crd], external=[cloud], only='call-timeout:2', rest=10)


POLLING = '''
@kopf.timer('kopfexamples', interval=60)
async def poll(name, **_):
    await call(METHOD, '/accounts')
'''


def test_reads_of_an_external_system_do_not_prevent_the_rest_but_writes_do(cloud, crd, script):
    handlers = CAREFUL + POLLING
    explored = testing.explore(
        scenario, script(handlers.replace('METHOD', "'GET'")), load=[crd], external=[cloud],
        only='call-500:1')
    assert len(explored.calls) >= 4
    with pytest.raises(AssertionError, match="There is no rest in 1000 seconds"):
        testing.explore(
            scenario, script(handlers.replace('METHOD', "'POST'"), 'posting.py'), load=[crd],
            external=[cloud], only='call-500:1', limit=1000)


def test_a_scenario_fails_if_there_are_two_accounts_without_any_fault(cloud, crd, script):
    handlers = NAIVE.replace('open_account', 'open_other') + CAREFUL + HASTY
    with pytest.raises(AssertionError, match="There are 2 accounts for one name, 'obj'"):
        testing.explore(scenario, script(handlers), load=[crd], external=[cloud])


def test_the_calls_of_the_scenario_are_not_hit(cloud, crd, script):
    async def call(client):
        await cloud.create('accounts', {'name': 'other'})
        await scenario(client)
        assert len(await cloud.find('accounts')) == 2

    explored = testing.explore(
        call, script(CAREFUL), load=[crd], external=[cloud], strikes=['call-500'])
    assert len(explored.calls) == 2
    assert len(cloud.calls) > 2


THREADED = '''
import json
import os
import urllib.error
import urllib.request

@kopf.on.create('kopfexamples')
def open_account(name, patch, **_):
    data = json.dumps({'name': name}).encode()
    url = os.environ['BILLING_URL'] + '/accounts'
    try:
        with urllib.request.urlopen(url, data=data, timeout=60) as response:
            patch.status['account'] = json.load(response)['id']
    except urllib.error.HTTPError as e:
        e.close()  # it is the response
        raise
'''


def test_calls_from_threads_are_hit(cloud, crd, script):
    failed = find_failed(script(THREADED), load=[crd], external=[cloud], strikes=CALLS)
    assert failed == {'call-after:1', 'call-lose:1', 'call-timeout:1'}


@pytest.mark.parametrize('is_careful, failed', [
    (True, set()), (False, {'call-after:1', 'call-lose:1'})])
def test_direct_calls_are_hit(is_careful, failed, crd):
    cloud = testing.FakeCloud(idempotent=is_careful)
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    async def open_account(name, uid, patch, **_):
        patch.status['account'] = await cloud.create('accounts', {'name': name}, token=uid)

    assert failed == find_failed(
        registry=registry, load=[crd], external=[cloud], strikes=CALLS)


@pytest.mark.parametrize('strike', ['call-before:1', 'call-after:1'])
def test_nothing_of_a_killed_operator_runs_after_its_direct_call(strike, crd):
    cloud = testing.FakeCloud(idempotent=True)
    registry = kopf.OperatorRegistry()
    continued = []

    @kopf.on.create('kopfexamples', registry=registry)
    async def open_account(name, uid, patch, **_):
        try:
            patch.status['account'] = await cloud.create('accounts', {'name': name}, token=uid)
        except ConnectionError:
            continued.append(name)
            raise

    testing.explore(scenario, registry=registry, load=[crd], external=[cloud], only=strike)
    assert continued == []


def test_calls_of_several_systems_are_numbered_together(crd):
    one, two = testing.FakeCloud(), testing.FakeCloud(seed=1)
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    async def open_accounts(name, patch, **_):
        await one.create('accounts', {'name': name}, token=name)
        patch.status['account'] = await two.create('users', {'name': name})

    failed = find_failed(registry=registry, load=[crd], external=[one, two], strikes=['call-after'])
    assert failed == {'call-after:1', 'call-after:2'}


def test_all_runs_are_the_same(cloud, crd, script):
    texts = set()
    for _ in range(2):
        with pytest.raises(testing.ExplorationError) as found:
            testing.explore(
                scenario, script(NAIVE), load=[crd], external=[cloud], only='call-lose:1')
        texts.add(str(found.value))
    assert len(texts) == 1
