"""An account for each tenant: created by a creation handler, which stores its key in the status."""

from typing import Any

import kopf
from billing import KIND, call


@kopf.on.create(*KIND, backoff=1)
async def create(spec: Any, namespace: str, name: str, patch: kopf.Patch, **_: Any) -> None:
    account = {'plan': spec['plan'], 'tenant': f'{namespace}/{name}'}
    patch.status['key'] = (await call('POST', '/accounts', json=account))['id']


@kopf.on.update(*KIND, field='spec', backoff=1)
async def update(spec: Any, status: Any, **_: Any) -> None:
    await call('PATCH', f"/accounts/{status['key']}", json={'plan': spec['plan']})


@kopf.on.delete(*KIND, backoff=1)
async def delete(status: Any, **_: Any) -> None:
    if 'key' in status:
        await call('DELETE', f"/accounts/{status['key']}")
