import copy
import time

import pytest

from tests.conformance.apis import MERGE, unique

hooks = pytest.importorskip('tests.conformance.hooks', reason="It needs trustme.")

CRDS = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'


def convert(obj, desired):
    """Rename the field by the version; add what the schema does not know."""
    made = {**copy.deepcopy(obj), 'apiVersion': desired}
    names = ('two', 'one') if desired.endswith('v1') else ('one', 'two')
    spec = made.get('spec')
    if spec is not None:
        if names[0] in spec:
            spec[names[1]] = spec.pop(names[0])
        spec['unknown'] = 'pruned'
    return made


@pytest.fixture()
def hook():
    with hooks.Hook() as hook:
        hook.answer = lambda request: {
            'convertedObjects': [convert(obj, request['desiredAPIVersion'])
                                 for obj in request['objects']],
            'result': {'status': 'Success'}}
        yield hook


@pytest.fixture()
def paths(api, hook):
    """The paths of the objects in both versions, of which the second one is stored."""
    group = f"{unique('c')}.test"
    name = f'things.{group}'
    api.post(CRDS, {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
        'metadata': {'name': name},
        'spec': {
            'group': group, 'scope': 'Namespaced',
            'names': {'plural': 'things', 'kind': 'Thing', 'singular': 'thing'},
            'conversion': {'strategy': 'Webhook', 'webhook': {
                'conversionReviewVersions': ['v1'], 'clientConfig': hook.client_config}},
            'versions': [{
                'name': version, 'served': True, 'storage': version == 'v2',
                'subresources': {'status': {}},
                'schema': {'openAPIV3Schema': {'type': 'object', 'properties': {
                    'spec': {'type': 'object', 'properties': {
                        field: {'type': 'integer'},
                        'extra': {'type': 'string', 'default': version}}},
                    'status': {'type': 'object',
                               'x-kubernetes-preserve-unknown-fields': True}}}}}
                for version, field in [('v1', 'one'), ('v2', 'two')]]}}).ok
    found = {version: f'/apis/{group}/{version}/namespaces/default/things'
             for version in ('v1', 'v2')}
    deadline = time.monotonic() + 30
    while create(api, found, 'v2', 'first').status != 201:  # at first, creations are refused
        assert time.monotonic() < deadline
        time.sleep(0.1)
    api.delete(f"{found['v2']}/first").ok
    yield found
    hook.answer = lambda request: {
        'convertedObjects': [convert(obj, request['desiredAPIVersion'])
                             for obj in request['objects']], 'result': {'status': 'Success'}}
    api.delete(f'{CRDS}/{name}')


def create(api, paths, version, name='a', **spec):
    path = paths[version]
    group = path.split('/')[2]
    return api.post(path, {'apiVersion': f'{group}/{version}', 'kind': 'Thing',
                           'metadata': {'name': name}, 'spec': spec})


def test_conversions_are_pruned_and_get_no_defaults(api, paths):
    assert create(api, paths, 'v1', one=1).ok['spec'] == {'one': 1, 'extra': 'v1'}
    assert api.get(f"{paths['v2']}/a").ok['spec'] == {'two': 1, 'extra': 'v1'}
    assert api.get(f"{paths['v1']}/a").ok['spec'] == {'one': 1, 'extra': 'v1'}
    api.patch(f"{paths['v2']}/a", {'spec': {'extra': None}}, MERGE).ok
    assert api.get(f"{paths['v1']}/a").ok['spec'] == {'one': 1, 'extra': 'v2'}


def test_lists_and_watches_are_converted(api, paths):
    for n in range(3):
        create(api, paths, 'v2', f'a{n}', two=n).ok
    items = api.get(paths['v1']).ok['items']
    assert [item['spec']['one'] for item in items] == [0, 1, 2]
    assert {item['apiVersion'] for item in items} == {items[0]['apiVersion']}


def test_patches_are_made_in_the_version_of_the_request(api, paths):
    create(api, paths, 'v2', two=1).ok
    assert api.patch(f"{paths['v1']}/a", {'spec': {'one': 5}}, MERGE).ok['spec']['one'] == 5
    assert api.get(f"{paths['v2']}/a").ok['spec']['two'] == 5
    api.patch(f"{paths['v1']}/a/status", {'status': {'x': 1}}, MERGE).ok
    assert api.get(f"{paths['v2']}/a").ok['status'] == {'x': 1}
    api.delete(f"{paths['v1']}/a").ok
    assert api.get(f"{paths['v2']}/a").status == 404


def test_the_stored_version_needs_no_webhook(api, paths, hook):
    hook.answer = lambda request: {'result': {'status': 'Failure', 'message': "no"}}
    create(api, paths, 'v2', two=1).ok
    assert api.patch(f"{paths['v2']}/a", {'spec': {'two': 2}}, MERGE).ok['spec']['two'] == 2
    assert api.get(paths['v2']).ok['items'][0]['spec']['two'] == 2
    api.delete(f"{paths['v2']}/a").ok


@pytest.mark.parametrize(('spoil', 'message'), [
    (lambda r: {**r, 'result': {'status': 'Failure', 'message': "not this one"}}, "not this one"),
    (lambda r: {**r, 'convertedObjects': []}, "returned 0 objects, expected 1"),
    (lambda r: {**r, 'uid': 'another'}, 'expected response.uid='),
])
def test_failures_fail_the_request(api, paths, hook, spoil, message):
    create(api, paths, 'v2', two=1).ok
    proper = hook.answer
    hook.answer = lambda request: spoil(proper(request))
    answer = api.get(f"{paths['v1']}/a")
    assert answer.status == 500
    group = paths['v1'].split('/')[2]
    assert f"conversion webhook for {group}/v2, Kind=Thing " in answer['message']
    assert message in answer['message']


def test_metadata_cannot_be_changed_but_for_labels_and_annotations(api, paths, hook):
    create(api, paths, 'v2', two=1).ok
    proper = hook.answer

    def answer(request):
        response = proper(request)
        for obj in response['convertedObjects']:
            obj['metadata'] = {**obj['metadata'], 'labels': {'a': 'b'}, 'finalizers': ['x.test/y']}
        return response

    hook.answer = answer
    meta = api.get(f"{paths['v1']}/a").ok['metadata']
    assert meta['labels'] == {'a': 'b'}
    assert 'finalizers' not in meta


def test_responses_to_writes_are_what_is_read_then(api, paths, hook):
    proper = hook.answer

    def answer(request):
        response = proper(request)
        for obj in response['convertedObjects']:
            if 'two' in obj.get('spec', {}):
                obj['spec']['two'] -= obj['spec']['two'] % 10  # lossy
        return response

    hook.answer = answer
    path = f"{paths['v1']}/a"
    held = {'metadata': {'finalizers': ['example.com/held']}}
    answers = [
        lambda: create(api, paths, 'v1', one=11),
        lambda: api.put(path, {**api.get(path).ok, 'spec': {'one': 22}}),
        lambda: api.patch(path, {'spec': {'one': 33}}, MERGE),
        lambda: api.patch(path, {'spec': {'one': 34}}, MERGE),  # it is stored as before
        lambda: api.patch(f'{path}/status', {'status': {'x': 1}}, MERGE),
        lambda: api.patch(path, held, MERGE),
        lambda: api.delete(path),
    ]
    found = []
    for write in answers:
        response = write().ok
        assert response == api.get(path).ok
        found.append((response['spec']['one'], response['metadata'].get('generation')))
    api.patch(path, {'metadata': {'finalizers': None}}, MERGE).ok
    assert found == [(10, 1), (20, 2), (30, 3), (30, 4), (30, 4), (30, 4), (30, 5)]
