import base64
import copy
import json

import pytest

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.concealing import conceal, conceal_message
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.references import Resource

SECRETS = Resource('', 'v1', 'secrets', kind='Secret')
OTHERS = [Resource('', 'v1', 'configmaps', kind='ConfigMap'),
          Resource('kopf.dev', 'v1', 'secrets', kind='Secret')]

METADATA = {'name': 'one', 'labels': {'a': 'x'}, 'finalizers': ['f'], 'ownerReferences': [{}]}
BODY = {'apiVersion': 'v1', 'kind': 'Secret', 'type': 'Opaque', 'immutable': True,
        'metadata': {**METADATA, 'annotations': {'a': 'x'}},
        'data': {'a': 'x', 'b': ''}, 'stringData': {'c': 'x'}, 'status': {'kopf': {'d': ['x']}}}
SHOWN = {'apiVersion': 'v1', 'kind': 'Secret', 'type': 'Opaque', 'immutable': True,
         'metadata': {**METADATA, 'annotations': {'a': '***'}},
         'data': {'a': '***', 'b': '***'}, 'stringData': {'c': '***'},
         'status': {'kopf': {'d': '***'}}}


@pytest.mark.parametrize('make', [dict, Body])
def test_bodies_of_secrets_have_their_keys_but_not_their_values(make):
    body = copy.deepcopy(BODY)
    assert conceal(make(body), SECRETS) == SHOWN
    assert body == BODY


@pytest.mark.parametrize('patch, shown', [
    ({'data': {'a': 'x', 'b': None}}, {'data': {'a': '***', 'b': None}}),
    ({'data': None, 'stringData': {}}, {'data': None, 'stringData': {}}),
    ({'data': 'x'}, {'data': '***'}),
    ({'metadata': {'annotations': {'a': 'x', 'b': None}, 'labels': {'a': 'x'}}},
     {'metadata': {'annotations': {'a': '***', 'b': None}, 'labels': {'a': 'x'}}}),
    ({'metadata': {'annotations': 'x'}}, {'metadata': {'annotations': '***'}}),
])
def test_merge_patches_of_secrets_show_what_is_removed_but_no_values(patch, shown):
    assert conceal(patch, SECRETS) == shown


@pytest.mark.parametrize('path, value, shown', [
    ('/data/a', 'x', '***'),
    ('/data', {'a': 'x'}, {'a': '***'}),
    ('/stringData/a~1b', 'x', '***'),
    ('/metadata/annotations/kopf.zalando.org~1last-handled-configuration', 'x', '***'),
    ('/metadata/annotations', {'a': 'x'}, {'a': '***'}),
    ('/metadata', {'annotations': {'a': 'x'}, 'name': 'x'},
     {'annotations': {'a': '***'}, 'name': 'x'}),
    ('', BODY, SHOWN),
    ('', 'x', '***'),
    ('/metadata/finalizers', ['f'], ['f']),
    ('/metadata/labels/a', 'x', 'x'),
])
def test_json_patches_of_secrets_have_no_values(path, value, shown):
    assert conceal([{'op': 'add', 'path': path, 'value': value},
                    {'op': 'remove', 'path': path}], SECRETS) == [
        {'op': 'add', 'path': path, 'value': shown}, {'op': 'remove', 'path': path}]


@pytest.mark.parametrize('old, new, shown', [
    ({'data': {'a': 'x'}}, {'data': {'a': 'y'}}, [('change', ('data', 'a'), '***', '***')]),
    ({}, {'data': {'a': 'x'}}, [('add', ('data',), None, {'a': '***'})]),
    ({'data': {'a': 'x'}}, {}, [('remove', ('data',), {'a': '***'}, None)]),
    ({'type': 'x'}, {'type': 'y'}, [('change', ('type',), 'x', 'y')]),
    (None, BODY, [('add', (), None, SHOWN)]),
])
def test_diffs_of_secrets_have_no_values(old, new, shown):
    assert conceal(diff(old, new), SECRETS) == shown


@pytest.mark.parametrize('what', [BODY, Body(BODY), [{'op': 'remove', 'path': '/data'}],
                                  diff({}, BODY)], ids=['body', 'view', 'json-patch', 'diff'])
@pytest.mark.parametrize('resource', OTHERS, ids=repr)
def test_other_resources_are_shown_as_they_are_and_not_copied(resource, what):
    assert conceal(what, resource) is what


PATH = '/api/v1/namespaces/default/secrets/one?fieldManager=kopf'
ENCODED = base64.b64encode(b'hunter2').decode()
PATCH = {'data': {'a': ENCODED, 'b': 1}, 'metadata': {'name': 'one'}}


@pytest.mark.parametrize('text, shown', [
    ('Secret "one" is invalid: data[a]: Invalid value: "x: \\"y\\"": must be valid',
     'Secret "one" is invalid: data[a]: Invalid value: ***: must be valid'),
    ('.data.b: expected string, got &value.valueUnstructured{Value:1}',
     '.data.b: expected string, got &value.valueUnstructured{Value:***}'),
    ('admission webhook "x.dev" denied the request: hunter2 is too weak in v1, not 1',
     'admission webhook "x.dev" denied the request: *** is too weak in v1, not ***'),
    (f'{ENCODED} is no secret', '*** is no secret'),
    ('secrets "one" is forbidden', 'secrets "one" is forbidden'),
])
@pytest.mark.parametrize('body', [
    PATCH, [{'op': 'test', 'path': '/metadata/name', 'value': 'one'},
            {'op': 'add', 'path': '/data/a', 'value': ENCODED},
            {'op': 'replace', 'path': '/data', 'value': {'b': 1}}]])
def test_messages_of_errors_have_no_values_of_secrets(text, shown, body):
    assert conceal_message(text, PATH, json.dumps(body).encode()) == shown


@pytest.mark.parametrize('path', [
    '/api/v1/namespaces/default/configmaps/one', '/apis/kopf.dev/v1/secrets/one',
    '/api/v1/namespaces/secrets', '/api/v1/secretstores'])
def test_messages_about_other_resources_are_shown_as_they_are(path):
    assert conceal_message('hunter2', path, json.dumps(PATCH).encode()) == 'hunter2'
