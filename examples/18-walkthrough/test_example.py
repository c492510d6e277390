import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent


@pytest.fixture()
def cloud(monkeypatch):
    cloud = testing.FakeCloud()
    monkeypatch.setenv('DNS_URL', cloud.url)
    return cloud


@testing.virtual_time
async def test_the_status_tells_how_many_servers_are_ready(cloud):
    async with testing.open_api('sandbox') as api, cloud:
        await api.client.load(HERE / 'crd.yaml')
        async with api.operator(HERE / 'example.py'):
            await api.client.load(HERE / 'website.yaml')
            await api.client.wait('deployments', 'hello')
            await api.client.patch(
                'deployments', 'hello', {'status': {'replicas': 1, 'readyReplicas': 1}},
                subresource='status')
            await api.client.wait('websites', 'hello', lambda obj: obj['status']['ready'] == 1)
            assert [record['name'] for record in cloud.things('records')] == ['hello.example.com']


async def live(client):
    """The life of a website: created, changed, deleted."""
    await client.load(HERE / 'website.yaml')
    await client.wait('websites', 'hello', lambda obj: obj['status']['dns']['key'], timeout=600)
    await client.patch('websites', 'hello', {'spec': {'title': 'Welcome!'}})
    await client.wait(
        'configmaps', 'hello', lambda obj: 'Welcome!' in obj['data']['index.html'], timeout=600)
    await client.delete('websites', 'hello')
    await client.wait_gone('websites', 'hello', timeout=600)


def test_a_killed_operator_leaves_no_mess(cloud):
    testing.explore(
        live, HERE / 'example.py', load=[HERE / 'crd.yaml'], external=[cloud], strikes=['crash'])
