import asyncio
import base64
import json

import pytest
from aiohttp import web

from kopf._kits.sandbox import tls
from kopf._kits.sandbox.statuses import APIError
from tests._kits.sandbox.conftest import cm

GROUP = 'admissionregistration.k8s.io/v1'


class Hook:
    """A webhook server that answers what it is told to, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.response = {'allowed': True}
        self.delay = 0
        self.url = self.ca = ''

    async def __call__(self, request):
        review = await request.json()
        self.asked.append(review['request'])
        await asyncio.sleep(self.delay)
        response = self.response(review['request']) if callable(self.response) else self.response
        return web.json_response({**review, 'response': {
            'uid': review['request']['uid'], **response}})

    def patch(self, *ops):
        self.response = {'allowed': True, 'patchType': 'JSONPatch',
                         'patch': base64.b64encode(json.dumps(ops).encode()).decode()}


@pytest.fixture()
async def hook():
    pytest.importorskip('cryptography')
    hook, made = Hook(), tls.make('127.0.0.1')
    server = web.Server(hook, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, '127.0.0.1', 0, ssl_context=made.context()).start()
    hook.url = f'https://127.0.0.1:{runner.addresses[0][1]}/'
    hook.ca = tls.encoded(made.authority)
    yield hook
    await runner.cleanup()


@pytest.fixture()
async def register(sandbox, hook):
    async def register(kind='Validating', name='x', **options):
        rule = {'apiGroups': [''], 'apiVersions': ['v1'], 'resources': ['configmaps'],
                'operations': ['*']}
        config = {
            'name': f'{name}.sandbox.test', 'admissionReviewVersions': ['v1'],
            'sideEffects': 'None', 'clientConfig': {'url': hook.url, 'caBundle': hook.ca},
            'rules': [{**rule, **options.pop('rule', {})}], **options}
        await sandbox.create({
            'apiVersion': GROUP, 'kind': f'{kind}WebhookConfiguration', 'metadata': {'name': name},
            'webhooks': [config]})
    return register


async def test_what_is_denied_is_not_written(sandbox, hook, register):
    await register()
    hook.response = {'allowed': False, 'status': {'message': "not today", 'code': 418}}
    with pytest.raises(APIError) as error:
        await sandbox.create(cm('a'))
    assert error.value.code == 418
    assert error.value.message == (
        'admission webhook "x.sandbox.test" denied the request: not today')
    assert await sandbox.list('cm') == []


async def test_all_about_the_operation_is_told(sandbox, hook, register):
    await register()
    await sandbox.create(cm('a'))
    await sandbox.patch('cm', 'a', {'data': {'x': 'y'}})
    await sandbox.delete('cm', 'a')
    created, updated, deleted = hook.asked
    assert [asked['operation'] for asked in hook.asked] == ['CREATE', 'UPDATE', 'DELETE']
    assert {(asked['name'], asked['namespace']) for asked in hook.asked} == {('a', 'default')}
    assert created['oldObject'] is None
    assert updated['object']['data'] == {'x': 'y'}
    assert 'data' not in updated['oldObject']
    assert deleted['object'] is None
    assert deleted['oldObject']['data'] == {'x': 'y'}
    assert created['kind'] == {'group': '', 'version': 'v1', 'kind': 'ConfigMap'}
    assert created['userInfo']['username'] == 'admin'
    assert created['dryRun'] is False


async def test_patches_are_applied(sandbox, hook, register):
    await register('Mutating')
    hook.patch({'op': 'add', 'path': '/data', 'value': {'by': 'hook'}})
    assert (await sandbox.create(cm('a')))['data'] == {'by': 'hook'}
    assert (await sandbox.get('cm', 'a'))['data'] == {'by': 'hook'}


async def test_earlier_hooks_see_later_changes_if_they_want(sandbox, hook, register):
    await register('Mutating', 'a', reinvocationPolicy='IfNeeded')
    await register('Mutating', 'b')

    def respond(request):
        if len(hook.asked) == 2:
            hook.patch({'op': 'add', 'path': '/data', 'value': {'x': 'y'}})
            return hook.response
        return {'allowed': True}

    hook.response = respond
    await sandbox.create(cm('a'))
    assert len(hook.asked) == 3
    assert hook.asked[2]['object']['data'] == {'x': 'y'}


@pytest.mark.parametrize(('options', 'is_asked'), [
    ({}, True),
    ({'rule': {'operations': ['UPDATE']}}, False),
    ({'rule': {'resources': ['*']}}, True),
    ({'rule': {'resources': ['configmaps/status']}}, False),
    ({'rule': {'apiGroups': ['apps']}}, False),
    ({'rule': {'scope': 'Cluster'}}, False),
    ({'objectSelector': {'matchLabels': {'x': 'y'}}}, False),
    ({'objectSelector': {'matchLabels': {'a': 'b'}}}, True),
    ({'namespaceSelector': {'matchLabels': {'kubernetes.io/metadata.name': 'default'}}}, True),
    ({'namespaceSelector': {'matchLabels': {'x': 'y'}}}, False),
])
async def test_only_those_who_want_are_asked(sandbox, hook, register, options, is_asked):
    await register(**options)
    await sandbox.create(cm('a', metadata={'labels': {'a': 'b'}}))
    assert bool(hook.asked) is is_asked


@pytest.mark.parametrize(('expression', 'is_asked'), [
    ("object.metadata.name == 'a'", True), ("object.metadata.name == 'b'", False),
    ("request.operation == 'UPDATE'", False), ("oldObject == null", True)])
async def test_conditions_must_hold(sandbox, hook, register, expression, is_asked):
    pytest.importorskip('cel')
    await register(matchConditions=[{'name': 'x', 'expression': expression}])
    await sandbox.create(cm('a'))
    assert bool(hook.asked) is is_asked


async def test_failures_refuse_by_default(sandbox, register):
    await register(clientConfig={'url': 'https://127.0.0.1:1/'})
    with pytest.raises(APIError, match='failed calling webhook "x.sandbox.test"') as error:
        await sandbox.create(cm('a'))
    assert error.value.code == 500


async def test_failures_are_ignored_if_told(sandbox, register):
    await register(clientConfig={'url': 'https://127.0.0.1:1/'}, failurePolicy='Ignore')
    assert await sandbox.create(cm('a'))


async def test_foreign_certificates_are_failures(sandbox, hook, register):
    hook.ca = tls.encoded(tls.make('127.0.0.1').authority)
    await register()
    with pytest.raises(APIError, match='failed to call webhook'):
        await sandbox.create(cm('a'))


async def test_silence_is_a_failure(sandbox, hook, register):
    await register(timeoutSeconds=1)
    hook.delay = 3
    with pytest.raises(APIError, match='context deadline exceeded'):
        await sandbox.create(cm('a'))


@pytest.mark.parametrize('response', [
    {'uid': 'other', 'allowed': True},
    {'allowed': True, 'patch': 'e30=', 'patchType': 'Other'},
])
async def test_nonsense_is_a_failure(sandbox, hook, register, response):
    await register('Mutating')
    hook.response = response
    with pytest.raises(APIError, match='failed calling webhook'):
        await sandbox.create(cm('a'))


async def test_services_have_nothing_behind_them(sandbox, register):
    await register(clientConfig={'service': {'namespace': 'default', 'name': 'none'}})
    with pytest.raises(APIError, match='service "none" not found'):
        await sandbox.create(cm('a'))


async def test_an_object_that_changes_meanwhile_is_patched_as_it_is_then(sandbox, hook, register):
    await sandbox.create(cm('a', data={'x': '1'}))
    await register(rule={'operations': ['UPDATE']})
    hook.delay = 0.05
    await asyncio.gather(sandbox.patch('cm', 'a', {'data': {'y': '2'}}),
                         sandbox.patch('cm', 'a', {'data': {'z': '3'}}))
    assert (await sandbox.get('cm', 'a'))['data'] == {'x': '1', 'y': '2', 'z': '3'}
