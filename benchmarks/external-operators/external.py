"""An account for each tenant, by ``kopf.external``."""

from typing import Any

import aiohttp

import kopf
from billing import KIND, call

# The billing API gives up its calls after 5 seconds, and then shows what they have done.
billing = kopf.external(*KIND, id='billing', timeout=5, consistency=5)


@billing.desired
def desired(spec: Any, **_: Any) -> Any:
    return {'plan': spec['plan']}


@billing.observe
async def observe(key: str, **_: Any) -> Any:
    try:
        return await call('GET', f'/accounts/{key}')
    except aiohttp.ClientResponseError as e:
        if e.status == 404:
            return None
        raise


@billing.find
async def find(token: str, **_: Any) -> Any:
    found = (await call('GET', '/accounts', params={'reference': token}))['items']
    return found[0]['id'] if found else None


@billing.create
async def create(desired: Any, namespace: str, name: str, token: str, **_: Any) -> Any:
    account = {**desired, 'tenant': f'{namespace}/{name}', 'reference': token}
    return (await call('POST', '/accounts', json=account))['id']


@billing.update
async def update(key: str, desired: Any, **_: Any) -> None:
    await call('PATCH', f'/accounts/{key}', json=desired)


@billing.delete
async def delete(key: str, **_: Any) -> None:
    await call('DELETE', f'/accounts/{key}')
