"""
Contents of Secrets, which never get into the log. In virtual time, on the sandbox.
"""
import asyncio
import base64
import json

import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
LAST_APPLIED = 'kubectl.kubernetes.io/last-applied-configuration'


def encode(text):
    return base64.b64encode(text.encode()).decode()


PASSWORDS = ['created-by-hand', 'changed-by-hand', 'merged-by-handler', 'set-by-function',
             'made-for-parent']


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.on.create('v1', 'secrets', labels={'handled': 'yes'}, registry=registry)
    def create_fn(patch, **_):
        patch['stringData'] = {'merged': 'merged-by-handler'}

    @kopf.on.update('v1', 'secrets', labels={'handled': 'yes'}, registry=registry)
    def update_fn(patch, **_):
        patch.fns.append(lambda body: body['data'].update(by_function=encode('set-by-function')))

    @kopf.on.delete('v1', 'secrets', labels={'handled': 'yes'}, registry=registry)
    def delete_fn(**_):
        pass

    @kopf.reconcile('kopfexamples', owns=['secrets'], registry=registry)
    async def reconcile_fn(name, **_):
        yield make('made', stringData={'password': 'made-for-parent'})

    return registry


def make(name, **fields):
    return {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': name}, **fields}


@testing.virtual_time
async def test_no_line_of_the_log_has_a_value_of_a_secret(registry):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry) as operator:
            data = {'password': encode('created-by-hand')}
            await api.client.create(
                'secrets', 'one', data=data, metadata={
                    'labels': {'handled': 'yes'},
                    'annotations': {LAST_APPLIED: json.dumps(make('one', data=data))}})
            await api.client.wait('secrets', 'one', lambda obj: 'merged' in obj['data'])
            await asyncio.sleep(60)
            await api.client.patch(
                'secrets', 'one', {'data': {'password': encode('changed-by-hand')}})
            await api.client.wait('secrets', 'one', lambda obj: 'by_function' in obj['data'])
            await api.client.create('kopfexamples', 'parent')
            await api.client.wait('secrets', 'made')
            await asyncio.sleep(60)
            await api.client.delete('secrets', 'one')
            await api.client.wait_gone('secrets', 'one')
    for start in ('Creation is in progress: ', 'Updating is in progress: ', 'Updating diff: ',
                  'Deletion is in progress: ', 'Patching with: {', 'Patching with: ['):
        assert any(start in line for line in operator.log), start
    for password in PASSWORDS:
        exposed = [line for line in operator.log if password in line or encode(password) in line]
        assert not exposed, exposed


@testing.virtual_time
async def test_errors_of_the_api_have_no_values_of_secrets():
    registry = kopf.OperatorRegistry()

    @kopf.on.create('v1', 'secrets', registry=registry)
    async def create_fn(patch, **_):
        patch['data'] = {'password': 'no base64: hunter2'}

    async with testing.open_api('sandbox') as api:
        async with api.operator(registry=registry) as operator:
            await api.client.create('secrets', 'one')
            assert await operator.wait_log("create_fn' failed permanently: its patch is refused")
            obj = await api.client.get('secrets', 'one')
    assert any('illegal base64 data' in line for line in operator.log)
    assert not [line for line in operator.log if 'hunter2' in line]
    assert 'hunter2' not in str(obj)
