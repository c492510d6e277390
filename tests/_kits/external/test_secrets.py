"""
What a system shows only once is never lost: a Secret is applied before the key is known.
"""
import base64

from kopf import testing

OPERATOR = '''
import os
import aiohttp

billing = kopf.external('kopfexamples', id='billing', timeout=5)

async def call(method, path, **options):
    async with (aiohttp.ClientSession(os.environ['BILLING_URL'], raise_for_status=True) as session,
                session.request(method, path, **options) as response):
        return await response.json()

async def keep(account, meta):
    data = {'password': account['password']}
    manifest = {'apiVersion': 'v1', 'kind': 'Secret', 'stringData': data}
    if 'deletionTimestamp' not in meta:
        kopf.adopt(manifest, strict=True)
        await kopf.apply(manifest)
    return account['id']

@billing.desired
def desired(**_):
    return {}

@billing.observe
async def observe(key, **_):
    found = await call('GET', '/accounts', params={'id': key})
    return found['items'][0] if found['items'] else None

@billing.find
async def find(token, meta, **_):
    found = (await call('GET', '/accounts', params={'reference': token}))['items']
    return await keep(await call(
        'PATCH', f"/accounts/{found[0]['id']}", json={'password': 'p'}), meta) if found else None

@billing.create
async def create(token, meta, **_):
    return await keep(await call(
        'POST', '/accounts', json={'reference': token, 'password': 'p'}), meta)

@billing.delete
async def delete(**_):
    pass
'''


def test_the_secret_is_there_when_the_key_is_known(monkeypatch, crd, script):
    cloud = testing.FakeCloud()
    monkeypatch.setenv('BILLING_URL', cloud.url)

    async def scenario(client):
        await client.create('kopfexamples', 'obj', spec={})
        await client.wait('kopfexamples', 'obj', lambda obj: (
            '"known"' in obj['metadata']['annotations']['external.kopf.dev/billing']), timeout=600)
        secret = await client.get('secrets', 'obj')
        assert base64.b64decode(secret['data']['password']) == b'p'

    explored = testing.explore(scenario, script(OPERATOR), load=[crd], external=[cloud])
    assert explored.runs > 20
    assert not cloud.duplicates
