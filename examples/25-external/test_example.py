import asyncio
import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent


@pytest.fixture()
def cloud(monkeypatch):
    cloud = testing.FakeCloud(unique='tenant')
    monkeypatch.setenv('BILLING_URL', cloud.url)
    return cloud


async def live(client):
    """The life of a tenant: created, changed, deleted."""
    await client.create('tenants', 'hello', spec={'plan': 'team', 'limit': 20})
    await client.wait('tenants', 'hello', has_account, timeout=1000)
    await client.patch('tenants', 'hello', {'spec': {'limit': 30}})
    await asyncio.sleep(100)
    await client.delete('tenants', 'hello')
    await client.wait_gone('tenants', 'hello', timeout=1000)


def has_account(obj):
    return obj['status']['billing']['key']


def test_no_fault_makes_a_second_account_or_leaves_one(cloud):
    testing.explore(live, HERE / 'example.py', external=[cloud])


@testing.virtual_time
async def test_what_others_change_is_corrected(cloud):
    async with testing.open_api('sandbox') as api, cloud, api.operator(HERE / 'example.py'):
        await api.client.create('tenants', 'hello', spec={'plan': 'team', 'limit': 20})
        tenant = await api.client.wait('tenants', 'hello', has_account)
        await cloud.update('accounts', tenant['status']['billing']['key'], {'limit': 99})
        await asyncio.sleep(400)
        [account] = cloud.things('accounts')
        assert (account['tenant'], account['limit']) == ('default/hello', 20)
