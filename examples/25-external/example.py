"""
External systems: each tenant has an account in a billing service. The account is created once, even
if the operator is killed before it learns the key; it is corrected if somebody else changes it, and
it is deleted with the tenant. The service finds accounts by their reference, which is the token
that Kopf stores on the tenant before it creates the account. The test in ``test_example.py`` uses a
fake cloud, and kills the operator at each call of the service and at each write to Kubernetes. Type
``pytest examples/25-external``. If you have a service with such an API, type
``BILLING_URL=http://localhost:8080 kopf run --sandbox -A examples/25-external/example.py``, apply
``obj.yaml``, and see the account in ``kubectl get tenants``.
"""
import dataclasses
import os
from typing import Any

import aiohttp
import kopf

URL = os.environ.get('BILLING_URL', 'http://127.0.0.1:8080')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantSpec:
    plan: str = 'free'
    limit: int = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantStatus:
    billing: dict[str, Any] = dataclasses.field(default_factory=dict)
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='tenants',
          columns=[kopf.Column('Plan', '.spec.plan'),
                   kopf.Column('Account', '.status.billing.key')])
class Tenant:
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()


billing = kopf.external(
    Tenant, id='billing', interval=300, limit=kopf.Rate(10, per=1.0), conditions=True)


async def call(method: str, path: str, **options: Any) -> Any:
    async with (
            aiohttp.ClientSession(URL, raise_for_status=True) as session,
            session.request(method, path, **options) as response):
        return None if response.status == 204 else await response.json()


@billing.desired
def desired(spec: TenantSpec, **_):
    return {'plan': spec.plan, 'limit': spec.limit}


@billing.observe
async def observe(key, **_):
    try:
        return await call('GET', f'/accounts/{key}')
    except aiohttp.ClientResponseError as e:
        if e.status == 404:
            return None
        raise


@billing.find
async def find(token, **_):
    found = await call('GET', '/accounts', params={'reference': token})
    return found['items'][0]['id'] if found['items'] else None


@billing.create
async def create(name, namespace, token, desired, **_):
    account = {**desired, 'reference': token, 'tenant': f'{namespace}/{name}'}
    return (await call('POST', '/accounts', json=account))['id']


@billing.update
async def update(key, desired, **_):
    await call('PATCH', f'/accounts/{key}', json=desired)


@billing.delete
async def delete(key, **_):
    await call('DELETE', f'/accounts/{key}')
