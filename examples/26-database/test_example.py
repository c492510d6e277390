import asyncio
import base64
import contextlib
import os
import pathlib

import pytest
from kopf import testing

HERE = pathlib.Path(__file__).parent
FAULTS = tuple(os.environ.get('FAULTS', 'crash call-after').split())
"""Some of the faults; ``FAULTS='crash stop lose …'`` tries others."""


@pytest.fixture()
def server(monkeypatch):
    server = testing.FakeCloud()
    monkeypatch.syspath_prepend(HERE / 'fakes')
    monkeypatch.setenv('FAKE_SERVER_URL', server.url)
    return server


@contextlib.asynccontextmanager
async def run(server):
    """Run the operator with the least permissions, and a database; the tests get a client."""
    async with testing.open_api('sandbox') as api, server:
        async with api.operator(HERE / 'example.py', rbac=True) as operator:
            await create_database(api.client)
            yield api.client
        assert operator.confinement is not None and not operator.confinement.refused


async def create_database(client):
    await client.create('databases', 'shop', spec={})
    await client.wait('statefulsets', 'shop', timeout=1000)
    await client.patch('statefulsets', 'shop', {'status': {'replicas': 1, 'readyReplicas': 1}},
                       subresource='status')
    await client.wait('databases', 'shop', lambda obj: obj['status']['ready'], timeout=1000)


async def create_user(client):
    await client.create('databaseusers', 'web', spec={'database': 'shop'})
    return await client.wait(
        'databaseusers', 'web', lambda obj: obj['status']['role']['key'], timeout=1000)


async def get_password(client, secret):
    found = await client.get('secrets', secret)
    return base64.b64decode(found['data']['password']).decode()


async def live(client):
    """The life of a database and of a user."""
    await create_database(client)
    await create_user(client)
    await client.patch('databaseusers', 'web', {'spec': {'connections': 5}})
    await asyncio.sleep(200)
    await client.delete('databaseusers', 'web')
    await client.wait_gone('databaseusers', 'web', timeout=1000)
    await client.delete('databases', 'shop')


def test_no_fault_leaves_a_wrong_role(server):
    explored = testing.explore(
        live, HERE / 'example.py', external=[server], strikes=FAULTS,
        ignore=['secrets:data.password', 'roles:password'])
    assert explored.runs > len(FAULTS)


@testing.virtual_time
async def test_a_user_can_log_in_with_the_password_in_the_secret(server):
    async with run(server) as client:
        await create_user(client)
        [role] = server.things('roles')
        assert role['name'] == 'shop.default/web' and role['connections'] == 10
        assert role['password'] == await get_password(client, 'web-login')


@testing.virtual_time
async def test_a_rotated_password_is_that_of_the_role(server):
    async with run(server) as client:
        await create_user(client)
        before = await get_password(client, 'web-login')
        await client.patch(
            'secrets', 'web-login', {'metadata': {'annotations': {'kopf.dev/rotate': 'now'}}})
        await asyncio.sleep(10)
        [role] = server.things('roles')
        assert role['password'] == await get_password(client, 'web-login') != before


@testing.virtual_time
async def test_what_others_change_in_the_role_is_corrected(server):
    async with run(server) as client:
        await create_user(client)
        [role] = server.things('roles')
        await server.update('roles', role['id'], {'password': '123', 'connections': -1})
        await asyncio.sleep(100)
        assert server.things('roles') == [role]


@testing.virtual_time
async def test_the_data_outlive_the_database_and_have_their_password(server):
    async with run(server) as client:
        password = await get_password(client, 'shop-admin')
        await client.delete('databases', 'shop')
        await client.wait_gone('statefulsets', 'shop')
        await client.get('persistentvolumeclaims', 'shop-backups')
        await create_database(client)
        assert await get_password(client, 'shop-admin') == password


@testing.virtual_time
async def test_a_user_goes_even_if_its_database_has_gone(server):
    async with run(server) as client:
        await create_user(client)
        await client.delete('databases', 'shop')
        await client.wait_gone('databases', 'shop')
        await client.delete('databaseusers', 'web')
        await client.wait_gone('databaseusers', 'web', timeout=200)


@testing.virtual_time
async def test_a_new_database_begins_with_a_backup(server):
    async with run(server) as client:
        restore = {'database': 'shop', 'file': '20261127-030000.sql.gz'}
        await client.create('databases', 'copy', spec={'restore': restore})
        found = await client.wait('statefulsets', 'copy')
        template = found['spec']['template']['spec']
        [volume] = template['volumes']
        assert volume['persistentVolumeClaim'] == {'claimName': 'shop-backups'}
        mount = template['containers'][0]['volumeMounts'][1]
        assert (mount['subPath'], mount['readOnly']) == ('20261127-030000.sql.gz', True)
        with pytest.raises(testing.APIError, match="cannot be changed"):
            await client.patch('databases', 'copy', {'spec': {'restore': None}})
