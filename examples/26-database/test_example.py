import asyncio
import base64
import contextlib
import os
import pathlib
import subprocess

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


async def create_database(client, name='shop', **spec):
    await client.create('databases', name, spec=spec)
    await client.wait('statefulsets', name, timeout=1000)
    await client.patch('statefulsets', name, {'status': {'replicas': 1, 'readyReplicas': 1}},
                       subresource='status')
    await client.wait('databases', name, lambda obj: obj['status']['ready'], timeout=1000)


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
        await client.patch(
            'secrets', 'shop-admin', {'metadata': {'annotations': {'kopf.dev/rotate': 'now'}}})
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
async def test_a_user_goes_even_if_its_role_could_never_be_created(server):
    async with run(server) as client:
        server.faults.add(testing.Fault(action='refuse', status=500, verb='create'))
        await client.create('databaseusers', 'web', spec={'database': 'shop'})
        await asyncio.sleep(100)
        await client.delete('databases', 'shop')
        await client.wait_gone('databases', 'shop')
        await client.delete('databaseusers', 'web')
        await client.wait_gone('databaseusers', 'web', timeout=1000)


@testing.virtual_time
async def test_a_new_database_begins_with_a_backup(server):
    async with run(server) as client:
        restore = {'database': 'shop', 'file': '20261127-030000.sql.gz'}
        await client.create('databases', 'copy', spec={'restore': restore})
        found = await client.wait('statefulsets', 'copy')
        template = found['spec']['template']['spec']
        [volume] = template['volumes']
        assert volume['persistentVolumeClaim'] == {'claimName': 'shop-backups', 'readOnly': True}
        mount = template['containers'][0]['volumeMounts'][1]
        assert (mount['subPath'], mount['readOnly']) == ('20261127-030000.sql.gz', True)


@testing.virtual_time
async def test_a_complete_copy_does_not_need_the_backup_any_more(server):
    async with run(server) as client:
        restore = {'database': 'shop', 'file': '20261127-030000.sql.gz'}
        await create_database(client, 'copy', restore=restore)
        for ready in 1, 0:  # it remembers that
            await client.patch(
                'statefulsets', 'copy', {'status': {'readyReplicas': ready}}, subresource='status')
            await asyncio.sleep(10)
            found = await client.get('statefulsets', 'copy')
            template = found['spec']['template']['spec']
            assert not template.get('volumes')
            assert len(template['containers'][0]['volumeMounts']) == 1


@testing.virtual_time
async def test_a_database_with_data_cannot_begin_with_a_backup(server):
    async with run(server) as client:
        restore = {'database': 'shop', 'file': '20261127-030000.sql.gz'}
        with pytest.raises(testing.APIError, match="Only a new database can begin with a backup"):
            await client.patch('databases', 'shop', {'spec': {'restore': restore}})


@pytest.fixture()
def back_up(tmp_path):
    """Execute the script of the backups; the dump writes a line, and then succeeds or not."""
    (tmp_path / 'backups').mkdir()
    script = (HERE / 'backup.sh').read_text().replace('cd /backups', f'cd {tmp_path}/backups')

    def back_up(time, *, keep=2, succeeds=True):
        for name, line in [
                ('date', f'echo {time}'), ('pg_dump', f'echo dump; {str(succeeds).lower()}')]:
            (tmp_path / name).write_text(f'#!/bin/bash\n{line}\n')
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            ['bash', '-c', script], check=False, capture_output=True, env={
                **os.environ, 'PATH': f"{tmp_path}:{os.environ['PATH']}", 'KEEP': str(keep),
                'OWNER': 'app_owner', 'PGDATABASE': 'app'})
        assert (done.returncode == 0) == succeeds, done.stderr
        return sorted(path.name for path in (tmp_path / 'backups').iterdir())

    return back_up


def test_the_newest_backups_are_kept(back_up):
    assert [back_up(str(time)) for time in (1, 2, 3)][-1] == ['2.sql.gz', '3.sql.gz']


def test_a_broken_backup_leaves_nothing_and_replaces_nothing(back_up):
    back_up('1')
    assert back_up('2', succeeds=False) == ['1.sql.gz']
    assert back_up('3') == ['1.sql.gz', '3.sql.gz']


def test_old_backups_go_even_if_there_is_no_room_for_new_ones(back_up):
    for time in 1, 2, 3:
        back_up(str(time), keep=7)
    assert back_up('4', keep=2, succeeds=False) == ['2.sql.gz', '3.sql.gz']


def test_a_server_without_its_complete_data_does_not_start(tmp_path):
    (tmp_path / 'docker-entrypoint.sh').write_text('#!/bin/bash\n')
    (tmp_path / 'docker-entrypoint.sh').chmod(0o755)
    script = (HERE / 'start.sh').read_text().replace('/docker-entrypoint-initdb.d', str(tmp_path))

    def start():
        return subprocess.run(['bash', '-c', script], check=False, capture_output=True, env={
            **os.environ, 'PATH': f"{tmp_path}:{os.environ['PATH']}", 'PGDATA': str(tmp_path),
        }).returncode

    assert start() == 0
    (tmp_path / 'PG_VERSION').touch()  # as the image begins, before it executes the scripts
    assert start() == 1
    (tmp_path / 'complete').touch()  # as the last script does
    assert start() == 0
