"""What happens to operators at their calls of external systems, and how it is told."""
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

@kopf.on.create('kopfexamples')
async def open_account(name, namespace, patch, retry, **_):
    async with aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session:
        async with session.get('/accounts', params={'name': name}) as response:
            found = (await response.json())['items']
        if not found:
            async with session.post('/accounts', json={'name': name}) as response:
                found = [await response.json()]
        patch.status['account'] = found[0]['id']
'''

CLOSING = '''
@kopf.on.delete('kopfexamples')
async def close_account(status, **_):
    async with aiohttp.ClientSession(os.environ['BILLING_URL']) as session:
        async with session.delete(f"/accounts/{status['account']}") as response:
            pass
'''


@pytest.fixture()
def cloud(monkeypatch):
    cloud = testing.FakeCloud()
    monkeypatch.setenv('BILLING_URL', cloud.url)
    return cloud


async def scenario(client):
    await client.create('kopfexamples', 'obj', spec={})
    await client.wait('kopfexamples', 'obj', lambda obj: obj['status']['account'], timeout=600)


def find_failed(path, *, scenario=scenario, **options):
    """Explore; return the faults that are not survived."""
    try:
        testing.explore(scenario, path, **options)
    except testing.ExplorationError as e:
        return {str(finding.strike) for finding in e.findings}
    return set()


def test_a_careful_operator_survives_all_faults(cloud, crd, script):
    explored = testing.explore(scenario, script(CAREFUL), load=[crd], external=[cloud])
    assert explored.calls == ('GET /accounts?name=obj', 'POST /accounts')
    assert len(explored.writes) == 1
    assert explored.runs == 10 * 1 + 7 * 2 - 1  # what a write is answered is never older


def test_two_accounts_for_one_tenant_are_found_with_their_story(cloud, crd, script):
    with pytest.raises(testing.ExplorationError) as found:
        testing.explore(scenario, script(NAIVE), load=[crd], external=[cloud])
    findings = {str(finding.strike): finding for finding in found.value.findings}
    assert findings.keys() == {'stale:1', 'call-after:1', 'call-lose:1'}
    text = str(findings['call-after:1'])
    assert text.startswith("If the operator is killed after call 1:\n  call 1: POST /accounts: 201 ")
    assert "There are 2 accounts for one name, 'obj': " in text
    assert "the handler 'open_account' for [default/obj] was called 2 times, not 1" in text
    assert "What to change: A call can be repeated after it has succeeded: before you cre" in text
    assert text.endswith("To run only this: only='call-after:1'")
    lines = [line.strip()[7:] for line in text.splitlines()]
    order = [next(number for number, line in enumerate(lines) if line.startswith(start))
             for start in ("call 1: POST /accounts: 201 ", "*** the operator is killed after call 1",
                           "the operator starts again", "call 2: POST /accounts: 201 ", "write 1: ")]
    assert order == sorted(order)


def replace(old, new):
    assert old in CAREFUL
    return CAREFUL.replace(old, new)


INTENDING = replace('''
        if not found:
''', '''
        intent = {'apiVersion': 'v1', 'kind': 'ConfigMap',
                  'metadata': {'name': name, 'namespace': namespace}}
        try:
            async with asyncio.timeout(300):
                created = await kopf.apply(intent, server_side=False)
        finally:
            pass
''')

MISTAKES = {
    'it does not look at its first attempt': (
        replace("        async with session.get(", "        if retry:\n          async with session.get(")
        .replace("            found = (", "              found = (")
        .replace("        if not found", "        if not retry or not found"),
        {'call-after'}),
    'it gives up if it is refused': (
        replace("                found = [await", "                found = [await")
        .replace("raise_for_status=True", "raise_for_status=check"),
        {'call-429'}),
}
