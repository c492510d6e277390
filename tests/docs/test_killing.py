"""The comparison of operators under strikes judges rightly, and the documentation shows it."""
import asyncio
import pathlib
import re

import aiohttp
import pytest

from benchmarks import killing
from benchmarks.killing import Billing, Life, Strike

PAGE = (pathlib.Path(__file__).parents[2] / 'docs' / 'external.md').read_text()


@pytest.fixture()
def client():
    """A billing system, and a function that calls it: returns the status, or None without any."""
    billing = Billing(late=0)

    async def call(strike, method, path='/accounts', **options):
        billing.strikes = [] if strike is None else strike.get_all()
        async with billing.serve() as url, aiohttp.ClientSession(url) as session:
            try:
                async with session.request(method, path, **options) as response:
                    status = response.status
            except aiohttp.ClientError:
                status = None
            while billing.pending:
                await asyncio.sleep(0)
        return status

    return billing, call


@pytest.mark.parametrize('life, findings', [
    (Life(accounts=1, is_settled=True), []),
    (Life(accounts=2, is_settled=True), ['two accounts']),
    (Life(accounts=1, left=1, is_settled=True), ['left behind']),
    (Life(accounts=1, is_settled=False), ['never settled']),
    (Life(accounts=3, left=2), ['two accounts', 'left behind', 'never settled']),
])
def test_a_life_is_judged(life, findings):
    assert life.judge() == findings


@pytest.mark.parametrize('what, kills, accounts, status', [
    ('killed before', 1, 0, None),
    ('killed after', 1, 1, None),
    ('killed, carried out later', 1, 1, None),
    ('response lost', 0, 1, None),
    ('timeout, carried out later', 0, 1, None),
    ('error 500', 0, 0, 500),
    ('error 429', 0, 0, 429),
])
async def test_a_strike_hits_one_call(client, what, kills, accounts, status):
    billing, call = client
    killed = []
    billing.kill = lambda: killed.append(len(billing.accounts))
    content = {'tenant': 'default/a', 'plan': 'small'}
    assert await call(Strike('create', what), 'POST', json=content) == status
    assert len(billing.accounts) == accounts
    assert len(killed) == kills
    assert not billing.strikes
    assert await call(None, 'POST', json=content) == 200
    assert billing.most['default/a'] == accounts + 1


async def test_a_strike_waits_for_its_call(client):
    billing, call = client
    strike = Strike('delete', 'error 500')
    assert await call(strike, 'POST', json={'tenant': 'default/a'}) == 200
    assert billing.strikes == [strike]
    assert await call(strike, 'DELETE', f'/accounts/{next(iter(billing.accounts))}') == 500


async def test_accounts_that_were_deleted_do_not_count_as_two(client):
    billing, call = client
    for _ in range(2):
        await call(None, 'POST', json={'tenant': 'default/a'})
        key, = billing.accounts
        assert await call(None, 'DELETE', f'/accounts/{key}') == 200
    assert await call(None, 'DELETE', f'/accounts/{key}') == 404
    assert billing.most['default/a'] == 1


def test_all_calls_and_writes_that_are_made_are_struck():
    strikes = killing.make_strikes(['create', 'update'], 2)
    assert [strike.at for strike in strikes] == [
        *['create'] * 7, *['update'] * 7, *['search'] * 7, 1, 1, 2, 2]
    assert sum(strike.is_lost_creation for strike in strikes) == 4


def test_a_search_that_is_made_only_after_a_lost_creation_is_struck_then():
    strike, = [strike for strike in killing.make_strikes(['create'], 0)
               if str(strike) == 'search after a lost creation: error 500']
    assert [str(item) for item in strike.get_all()] == ['create: response lost', str(strike)]
    assert not any(strike.is_second for strike in killing.make_strikes(['create', 'search'], 0))


def test_only_lines_with_code_count():
    assert killing.count_lines('"""Text."""\n\nimport os  # a comment\n  # another\n//\n') == 1


def test_only_strikes_that_hit_are_in_the_table():
    lost = Strike('create', 'response lost')
    table = killing.show({'external': [
        Life(accounts=1, is_settled=True, calls=4, writes=3),
        Life(lost, is_hit=True, accounts=2, is_settled=True, seconds=2.0),
        Life(Strike(1, 'killed after'), is_hit=True, accounts=1, is_settled=True),
        Life(Strike('search', 'error 500'), accounts=2)]})
    rows = dict(re.findall(r'^\| (.*?) \| (.*) \|$', table, re.MULTILINE))
    assert rows['calls without any strike'] == '4'
    assert rows['writes without any strike'] == '3'
    assert rows['strikes'] == '2'
    assert rows['two accounts'] == '1'
    assert rows['of these, after lost creations'] == '1 of 1'
    assert rows['of these, killed at a write'] == '0 of 1'
    assert rows['settled after a lost creation, s'] == '2.0 to 2.0'
    assert table.endswith('\n\nexternal: create: response lost: two accounts')


def test_the_documentation_has_the_lines_of_the_versions():
    lines = [str(version.count_lines()) for version in killing.VERSIONS.values()]
    assert f"| lines of code | {' | '.join(lines)} |\n" in PAGE
