"""
A fake of asyncpg for tests. Of all SQL, it knows the statements of this example; the roles are in
the `kopf.testing.FakeCloud` at ``$FAKE_SERVER_URL``, so that faults can hit each access.
"""
import json
import os
from typing import Any

import aiohttp


class InvalidAuthorizationSpecificationError(Exception):
    pass


class TooManyConnectionsError(Exception):
    pass


async def connect(*, host, user, password, **_):
    connection = Connection(host)
    if user != 'postgres':
        role = await connection.find(user)
        if role is None or role.get('password') != password:
            raise InvalidAuthorizationSpecificationError("The password is wrong.")
    return connection


class Connection:

    def __init__(self, host):
        self.host = host

    async def close(self, **_):
        pass

    async def fetchval(self, query, *values):
        if query == 'SELECT format($1, VARIADIC $2::text[])':
            template, values = values
            return json.dumps([template, *values])
        assert query.startswith('SELECT json_build_object('), query
        if values == ('app_owner',):
            return '{}'
        role = await self.find(*values)
        return role and json.dumps({
            'connections': role['connections'], 'is_superuser': role['superuser']})

    async def execute(self, statement):
        match json.loads(statement):
            case ['CREATE ROLE %I', name]:
                await self.call('POST', '/roles', json={
                    'name': f'{self.host}/{name}', 'connections': -1, 'superuser': False})
            case [template, name, password, limit] if template.startswith('ALTER ROLE %I LOGIN '):
                role = await self.find(name)
                await self.call('PATCH', f"/roles/{role['id']}", json={
                    'password': password, 'connections': int(limit), 'superuser': False})
            case ['DROP ROLE %I', name]:
                role = await self.find(name)
                await self.call('DELETE', f"/roles/{role['id']}")
            case [template, *_]:
                assert template.startswith((
                    'GRANT ', 'REVOKE ', 'ALTER ', 'REASSIGN OWNED ', 'DROP OWNED ')), template

    async def find(self, name) -> Any:
        found = await self.call('GET', '/roles', params={'name': f'{self.host}/{name}'})
        return found['items'][0] if found['items'] else None

    async def call(self, method, path, **options) -> Any:
        try:
            async with (
                    aiohttp.ClientSession(
                        os.environ['FAKE_SERVER_URL'], raise_for_status=True) as session,
                    session.request(method, path, **options) as response):
                return None if response.status == 204 else await response.json()
        except aiohttp.ClientError as e:
            raise ConnectionError(f"The connection is lost: {e!r}") from e
