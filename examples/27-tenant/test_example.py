import asyncio
import contextlib
import os
import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent
FAULTS = tuple(os.environ.get('FAULTS', 'crash call-after').split())
"""Some of the faults; ``FAULTS='crash stop lose …'`` tries others."""

SHOP = {'contact': 'shop@example.com', 'members': [{'name': 'ann', 'role': 'admin'}]}


@pytest.fixture()
def service(monkeypatch):
    service = testing.FakeCloud(unique='team')
    monkeypatch.setenv('BILLING_URL', service.url)
    return service


@contextlib.asynccontextmanager
async def run(service):
    """Run the operator with the least permissions; the tests get a client."""
    async with testing.open_api('sandbox') as api, service:
        async with api.operator(HERE / 'example.py', rbac=True, clusterwide=True) as operator:
            yield api.client
        assert operator.confinement is not None and not operator.confinement.refused


def has_account(obj):
    return obj['status']['billing']['key']


async def live(client):
    """The life of a team: created, changed, deleted."""
    await client.create('teams', 'shop', spec=SHOP)
    await client.wait('teams', 'shop', has_account, timeout=1000)
    await client.wait('rolebindings', 'members-admin', namespace='team-shop-dev', timeout=1000)
    await client.patch('teams', 'shop', {'spec': {'plan': 'Standard', 'members': []}})
    await asyncio.sleep(200)
    await client.delete('teams', 'shop')
    await client.wait_gone('teams', 'shop', timeout=1000)


def test_no_fault_makes_a_second_account_or_leaves_anything(service):
    explored = testing.explore(
        live, HERE / 'example.py', external=[service], strikes=FAULTS, clusterwide=True)
    assert explored.runs > len(FAULTS)


@testing.virtual_time
async def test_each_namespace_has_what_the_plan_says(service):
    async with run(service) as client:
        await client.create('teams', 'shop', spec={**SHOP, 'environments': ['dev', 'prod']})
        team = await client.wait('teams', 'shop', lambda obj: obj['status']['namespaces'])
        assert team['status']['namespaces'] == ['team-shop-dev', 'team-shop-prod']
        for namespace in team['status']['namespaces']:
            quota = await client.wait('resourcequotas', 'plan', namespace=namespace)
            assert quota['spec']['hard']['pods'] == '20'
            binding = await client.wait('rolebindings', 'members-admin', namespace=namespace)
            assert [subject['name'] for subject in binding['subjects']] == ['ann']


@testing.virtual_time
async def test_a_suspended_team_can_start_no_pods_until_it_has_paid(service):
    async with run(service) as client:
        await client.create('teams', 'shop', spec=SHOP)
        team = await client.wait('teams', 'shop', has_account)
        for state, pods in ('suspended', '0'), ('active', '20'):
            await service.update('accounts', team['status']['billing']['key'], {'state': state})
            await client.wait(
                'resourcequotas', 'plan',
                lambda obj, pods=pods: obj['spec']['hard']['pods'] == pods,
                namespace='team-shop-dev', timeout=400)


@testing.virtual_time
async def test_members_who_leave_lose_their_roles(service):
    async with run(service) as client:
        await client.create('teams', 'shop', spec=SHOP)
        team = await client.wait('teams', 'shop', has_account)
        await client.patch('teams', 'shop', {'spec': {'members': [{'name': 'bob'}]}})
        binding = await client.wait('rolebindings', 'members-edit', namespace='team-shop-dev')
        assert [subject['name'] for subject in binding['subjects']] == ['bob']
        await client.wait_gone('rolebindings', 'members-admin', namespace='team-shop-dev')
        [account] = service.things('accounts')
        assert (account['id'], account['seats']) == (team['status']['billing']['key'], 1)


@testing.virtual_time
async def test_environments_cannot_be_lost_by_a_mistake(service):
    async with run(service) as client:
        await client.create('teams', 'shop', spec={**SHOP, 'environments': ['dev', 'prod']})
        with pytest.raises(testing.APIError, match="deleted with their team only"):
            await client.patch('teams', 'shop', {'spec': {'environments': ['dev']}})


@testing.virtual_time
async def test_a_closed_account_is_not_opened_again(service):
    async with run(service) as client:
        await client.create('teams', 'shop', spec=SHOP)
        team = await client.wait('teams', 'shop', has_account)
        key = team['status']['billing']['key']
        await service.update('accounts', key, {'state': 'suspended'})
        await client.wait('resourcequotas', 'plan', lambda obj: obj['spec']['hard']['pods'] == '0',
                          namespace='team-shop-dev', timeout=400)
        await service.delete('accounts', key)
        await asyncio.sleep(1000)
        assert service.things('accounts') == []
        quota = await client.get('resourcequotas', 'plan', namespace='team-shop-dev')
        assert quota['spec']['hard']['pods'] == '0'


@pytest.mark.parametrize('name, spec', [
    ('shop.v2', SHOP), ('shop', {**SHOP, 'environments': ['eu-dev']}),  # of the team "shop-eu"
    ('shop', {**SHOP, 'environments': ['dev', 'dev']}),
    ('shop', {**SHOP, 'members': [{'name': 'system:anonymous'}]})])
@testing.virtual_time
async def test_teams_that_cannot_be_provided_for_are_refused(service, name, spec):
    async with run(service) as client:
        with pytest.raises(testing.APIError, match=r'nvalid|Duplicate'):
            await client.create('teams', name, spec=spec)
