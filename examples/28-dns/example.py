"""
DNS records: each object is a record at a DNS provider, whose API serves few calls, and says with
``Retry-After`` when it wants fewer. The operator keeps below the limit, waits as long as asked, and
corrects what others change at the provider. Services get their records by an annotation, so most
users write no object. ``docs/example-dns.md`` says why it is built so. This example needs
``pip install annotated-types``, and its tests need ``kopf[sandbox]``. Type ``pytest
examples/28-dns``: the tests use a fake provider. If you have a provider with such an API, type
``DNS_URL=http://localhost:8080 kopf run --sandbox -A examples/28-dns/example.py``, apply
``obj.yaml``, and see the record in ``kubectl get dnsrecords``.
"""
import dataclasses
import enum
import os
from typing import Annotated, Any

import aiohttp
import kopf
from annotated_types import Ge, Le, Len

ANNOTATION = 'example.com/dns-name'
ZONE = os.environ.get('DNS_ZONE', 'example.org')


# The kind.

class Type(enum.StrEnum):
    A = 'A'
    AAAA = 'AAAA'
    CNAME = 'CNAME'
    TXT = 'TXT'


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSpec:
    """What the name servers should answer."""
    name: Annotated[str, Len(1, 253), kopf.Pattern(r'^([*]|[a-z0-9_-]+)([.][a-z0-9_-]+)*$')]
    """The full name, such as ``www.example.org``, without a dot at its end."""
    type: Type = Type.A
    values: Annotated[list[Annotated[str, Len(1, 255)]], Len(1, 20)]
    ttl: Annotated[int, Ge(30), Le(86400)] = 300  # How long (seconds) resolvers keep the answer.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordStatus:
    record: dict[str, Any] = dataclasses.field(default_factory=dict)
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='dnsrecords', kind='DNSRecord', short=['dns'],
          columns=[kopf.Column('Name', '.spec.name'),
                   kopf.Column('Type', '.spec.type'),
                   kopf.Column('Synced', '.status.conditions[?(@.type=="Synced")].status')],
          rules=[kopf.CEL("self.spec.type != 'CNAME' || size(self.spec.values) == 1",
                          "A CNAME has one value", field='.spec.values'),
                 *(kopf.CEL(f"self.spec.type != '{type_}' || "
                            f"self.spec.values.all(value, value.matches('{pattern}'))",
                            f"The values of {type_} are {what}", field='.spec.values')
                   for type_, pattern, what in [
                       (Type.A, '^[0-9]{1,3}([.][0-9]{1,3}){3}$', "IPv4 addresses"),
                       (Type.AAAA, '^[0-9a-f:]*:[0-9a-f:.]*$', "IPv6 addresses, in lower case")])])
class DNSRecord:
    spec: RecordSpec
    status: RecordStatus = RecordStatus()


# The client of the provider: one session for the operator, as each new connection costs time.

@kopf.on.startup()
async def connect(memo: kopf.Memo, **_):
    memo.session = aiohttp.ClientSession(
        os.environ.get('DNS_URL', 'http://127.0.0.1:8080'),
        headers={'Authorization': f"Bearer {os.environ.get('DNS_TOKEN', '')}"},
        timeout=aiohttp.ClientTimeout(total=20), raise_for_status=True)


@kopf.on.cleanup()
async def disconnect(memo: kopf.Memo, **_):
    await memo.session.close()


async def call(memo: kopf.Memo, method: str, path: str, **options: Any) -> Any:
    async with memo.session.request(method, path, **options) as response:
        return None if response.status == 204 else await response.json()


# One record at the provider for each object.

record = kopf.external(
    DNSRecord, id='record', interval=600, limit=kopf.Rate(4, per=1.0, concurrency=2),
    immutable=['name', 'type'], replace=True, shown=['name', 'type'], conditions=True)


@kopf.index(DNSRecord)
def claims(spec: RecordSpec, status: RecordStatus, body, meta, namespace, name, **_):
    held = [status.record.get(field) for field in ('name', 'type')]
    is_holder = record.get_key(body) is not None and held in ([None, None], [spec.name, spec.type])
    return {(spec.name, spec.type): (not is_holder, meta['creationTimestamp'], namespace, name)}


@record.desired
def desired(spec: RecordSpec, namespace, name, claims: kopf.Index, **_):
    _, _, *owner = min(claims.get((spec.name, spec.type)) or [(True, '', namespace, name)])
    if owner != [namespace, name]:
        raise kopf.TemporaryError(f"{spec.name} belongs to {'/'.join(owner)}.", delay=60)
    return {'name': spec.name, 'type': spec.type, 'values': sorted({*spec.values}),
            'ttl': spec.ttl}


@record.observe
async def observe(key, namespace, name, memo: kopf.Memo, **_):
    try:
        found = await call(memo, 'GET', f'/records/{key}')
    except aiohttp.ClientResponseError as e:
        if e.status == 404:
            return None
        raise
    if not found.get('comment', '').startswith(f'{namespace}/{name} '):
        return None  # whoever may annotate objects could let them adopt a record of others
    return {**found, 'values': sorted(found['values'])}


@record.find
async def find(token, namespace, name, memo: kopf.Memo, **_):
    found = await call(memo, 'GET', '/records', params={'comment': f'{namespace}/{name} {token}'})
    return found['items'][0]['id'] if found['items'] else None


@record.create
async def create(token, desired, namespace, name, memo: kopf.Memo, **_):
    created = await call(
        memo, 'POST', '/records', json={**desired, 'comment': f'{namespace}/{name} {token}'})
    return created['id']


@record.update
async def update(key, desired, memo: kopf.Memo, **_):
    await call(memo, 'PATCH', f'/records/{key}', json=desired)


@record.delete
async def delete(key, memo: kopf.Memo, **_):
    await call(memo, 'DELETE', f'/records/{key}')


# Records for services: objects as those of users, which follow the addresses of the service.

@kopf.reconcile('services', owns=['dnsrecords.example.com'])
def publish(name, annotations, status, **_):
    label = annotations.get(ANNOTATION, '').lower().removesuffix(f'.{ZONE}')
    if not label:
        return []
    ingress = status.get('loadBalancer', {}).get('ingress', [])
    if not ingress:  # the addresses can vanish for a moment: the records stay as they are
        return None
    addresses = sorted(item['ip'].lower() for item in ingress if 'ip' in item)
    hostnames = [item['hostname'] for item in ingress if 'hostname' in item]
    return [{
        'apiVersion': 'example.com/v1',
        'kind': 'DNSRecord',
        'metadata': {'name': f'{name}-{suffix}'},
        'spec': {'name': f'{label}.{ZONE}', 'type': type_, 'values': values},
    } for suffix, type_, values in [
        ('a', Type.A, [address for address in addresses if ':' not in address]),
        ('aaaa', Type.AAAA, [address for address in addresses if ':' in address]),
        ('cname', Type.CNAME, [] if addresses else hostnames[:1]),
    ] if values]
