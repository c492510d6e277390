"""An account for each tenant: found by its reference, the UID of the tenant, or created."""

from typing import Any

import kopf
from billing import KIND, call


async def find(uid: str) -> list[Any]:
    return list((await call('GET', '/accounts', params={'reference': uid}))['items'])


@kopf.on.create(*KIND, backoff=1)
async def create(
        spec: Any, namespace: str, name: str, uid: str, patch: kopf.Patch, **_: Any) -> None:
    account = {'plan': spec['plan'], 'tenant': f'{namespace}/{name}', 'reference': uid}
    found = await find(uid) or [await call('POST', '/accounts', json=account)]
    patch.status['key'] = found[0]['id']
    if found[0]['plan'] != spec['plan']:
        await call('PATCH', f"/accounts/{found[0]['id']}", json={'plan': spec['plan']})


@kopf.on.update(*KIND, field='spec', backoff=1)
async def update(spec: Any, status: Any, **_: Any) -> None:
    await call('PATCH', f"/accounts/{status['key']}", json={'plan': spec['plan']})


@kopf.on.delete(*KIND, backoff=1)
async def delete(uid: str, **_: Any) -> None:
    for account in await find(uid):
        await call('DELETE', f"/accounts/{account['id']}")
