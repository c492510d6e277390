"""
Conversions on the sandbox: when the webhook of a definition is called, and what it may answer.
"""
import copy

import pytest
from aiohttp import web

from kopf._kits.sandbox import tls
from kopf._kits.sandbox.statuses import APIError

DEFINITION = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'things.example.com'},
    'spec': {
        'group': 'example.com', 'scope': 'Namespaced',
        'names': {'plural': 'things', 'kind': 'Thing', 'singular': 'thing',
                  'listKind': 'ThingList'},
        'versions': [{
            'name': version, 'served': True, 'storage': version == 'v2',
            'subresources': {'status': {}},
            'schema': {'openAPIV3Schema': {'type': 'object', 'properties': {
                'spec': {'type': 'object', 'properties': {
                    field: {'type': 'integer'}, 'extra': {'type': 'string', 'default': version}}},
                'status': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}}}
            for version, field in [('v1', 'one'), ('v2', 'two')]]}}


class Hook:
    """Renames the field, and remembers what it was asked; or answers what it is told to."""

    def __init__(self):
        self.asked = []
        self.spoil = lambda response: response
        self.status = 200

    async def __call__(self, request):
        review = await request.json()
        self.asked.append(review['request'])
        made = [self.convert(obj, review['request']['desiredAPIVersion'])
                for obj in review['request']['objects']]
        response = self.spoil({'uid': review['request']['uid'], 'convertedObjects': made,
                               'result': {'status': 'Success'}})
        return web.json_response({**review, 'response': response}, status=self.status)

    def convert(self, obj, desired):
        made = {**copy.deepcopy(obj), 'apiVersion': desired}
        names = ('two', 'one') if desired.endswith('v1') else ('one', 'two')
        spec = made.get('spec') or {}
        if names[0] in spec:
            spec[names[1]] = spec.pop(names[0])
        spec.setdefault('unknown', 'pruned')
        return made


@pytest.fixture()
async def hook(sandbox):
    pytest.importorskip('cryptography')
    hook, made = Hook(), tls.make('127.0.0.1')
    runner = web.ServerRunner(web.Server(hook), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, '127.0.0.1', 0, ssl_context=made.context()).start()
    definition = copy.deepcopy(DEFINITION)
    definition['spec']['conversion'] = {'strategy': 'Webhook', 'webhook': {
        'conversionReviewVersions': ['v1'], 'clientConfig': {
            'url': f'https://127.0.0.1:{runner.addresses[0][1]}/',
            'caBundle': tls.encoded(made.authority)}}}
    await sandbox.create(definition)
    yield hook
    await runner.cleanup()


def make(version, name='a', **spec):
    return {'apiVersion': f'example.com/{version}', 'kind': 'Thing',
            'metadata': {'name': name, 'namespace': 'default'}, 'spec': spec}


OLD, NEW = 'things.v1.example.com', 'things.v2.example.com'


async def get_spec(sandbox, kind, name='a'):
    return (await sandbox.get(kind, name))['spec']


async def test_objects_are_stored_in_one_version_and_shown_in_all(sandbox, hook):
    created = await sandbox.create(make('v1', one=1))
    assert created['spec'] == {'one': 1, 'extra': 'v1'}
    assert [asked['desiredAPIVersion'] for asked in hook.asked] == [
        'example.com/v2', 'example.com/v1']  # what is stored, and what is shown of it
    assert await get_spec(sandbox, NEW) == {'two': 1, 'extra': 'v1'}
    assert len(hook.asked) == 2  # it is stored like that
    assert await get_spec(sandbox, OLD) == {'one': 1, 'extra': 'v1'}
    assert len(hook.asked) == 3


async def test_what_is_converted_is_pruned_but_gets_no_defaults(sandbox, hook):
    await sandbox.create(make('v2', two=1, extra='x'))
    await sandbox.patch(NEW, 'a', {'spec': {'extra': None}})
    assert await get_spec(sandbox, NEW) == {'two': 1, 'extra': 'v2'}
    assert await get_spec(sandbox, OLD) == {'one': 1, 'extra': 'v2'}


async def test_a_list_is_converted_by_one_call(sandbox, hook):
    for n in range(3):
        await sandbox.create(make('v2', f'a{n}', two=n))
    assert not hook.asked
    found = await sandbox.list(OLD)
    assert [obj['spec']['one'] for obj in found] == [0, 1, 2]
    assert [len(asked['objects']) for asked in hook.asked] == [3]


@pytest.mark.parametrize('kind', [OLD, NEW])
async def test_patches_are_made_in_the_version_of_the_request(sandbox, hook, kind):
    await sandbox.create(make('v2', two=1))
    field = 'one' if kind == OLD else 'two'
    patched = await sandbox.patch(kind, 'a', {'spec': {field: 5}})
    assert patched['spec'][field] == 5
    assert (await get_spec(sandbox, OLD))['one'] == 5
    await sandbox.patch(kind, 'a', {'status': {'x': 1}}, subresource='status')
    assert (await sandbox.get(NEW, 'a'))['status'] == {'x': 1}
    await sandbox.delete(kind, 'a')
    assert await sandbox.list(NEW) == []


async def test_objects_in_the_stored_version_need_no_webhook(sandbox, hook):
    hook.status = 500
    await sandbox.create(make('v2', two=1))
    await sandbox.patch(NEW, 'a', {'spec': {'two': 2}})
    assert (await get_spec(sandbox, NEW))['two'] == 2
    await sandbox.delete(NEW, 'a')


@pytest.mark.parametrize(('spoil', 'message'), [
    (lambda r: {**r, 'uid': 'another'}, "expected response.uid="),
    (lambda r: {**r, 'result': {'status': 'Failure', 'message': "not this one"}}, "not this one"),
    (lambda r: {**r, 'convertedObjects': []}, "returned 0 objects, expected 1"),
    (lambda r: {**r, 'convertedObjects': ['text']}, "invalid converted object"),
    (lambda r: {**r, 'convertedObjects': [{**r['convertedObjects'][0], 'apiVersion': 'v9'}]},
     "invalid groupVersion"),
    (lambda r: {**r, 'convertedObjects': [{**r['convertedObjects'][0], 'metadata': {
        **r['convertedObjects'][0]['metadata'], 'name': 'other'}}]}, "name must not be changed"),
    (lambda r: 'text', ""),
])
async def test_wrong_answers_fail_the_request(sandbox, hook, spoil, message):
    await sandbox.create(make('v2', two=1))
    hook.spoil = spoil
    with pytest.raises(APIError) as error:
        await sandbox.get(OLD, 'a')
    assert error.value.code == 500
    assert "conversion webhook for example.com/v2, Kind=Thing " in error.value.message
    assert message in error.value.message


async def test_objects_are_deleted_once_even_if_the_way_back_differs(sandbox, hook):
    await sandbox.create(make('v2', two=1))

    def spoil(response):
        for obj in response['convertedObjects']:
            seen = obj['metadata'].get('annotations', {}).get('seen', '')
            obj['metadata'] = {**obj['metadata'], 'annotations': {'seen': f'{seen}x'}}
        return response

    hook.spoil = spoil
    deleted = await sandbox.delete(OLD, 'a')
    assert deleted['status'] == 'Success'
    assert await sandbox.list(NEW) == []


async def test_labels_and_annotations_can_be_changed(sandbox, hook):
    def spoil(response):
        for obj in response['convertedObjects']:
            obj['metadata'] = {**obj['metadata'], 'labels': {'a': 'b'}}
        return response

    await sandbox.create(make('v2', two=1))
    hook.spoil = spoil
    assert (await sandbox.get(OLD, 'a'))['metadata']['labels'] == {'a': 'b'}


async def test_an_unreachable_webhook_fails_the_request(sandbox, hook):
    await sandbox.create(make('v2', two=1))
    await sandbox.patch('crds', 'things.example.com', {'spec': {'conversion': {'webhook': {
        'clientConfig': {'url': 'https://127.0.0.1:1/'}}}}})
    with pytest.raises(APIError, match=r"failed to call webhook: Post"):
        await sandbox.get(OLD, 'a')
