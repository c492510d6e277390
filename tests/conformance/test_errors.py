import json

import pytest

from tests.conformance.apis import make


def test_broken_json_is_a_bad_request(api, cms):
    answer = api.post(cms, b'{"a": ')
    assert answer.error == (400, 'BadRequest')


@pytest.mark.parametrize('body', [b'', b'[]', b'"x"', b'1', b'null', b'\xff\xfe', b'{"a": 1}x'])
def test_other_than_objects_are_bad_requests(api, cms, body):
    answer = api.post(cms, body)
    assert answer.status in (400, 422)
    assert answer.json['kind'] == 'Status'


def test_unknown_types_of_bodies_are_refused(api, cms):
    answer = api.post(cms, b'x', content_type='text/plain')
    assert answer.error == (415, 'UnsupportedMediaType')
    assert answer['message'].startswith(
        'the body of the request was in an unknown format - accepted media types include: ')


def test_unknown_types_of_answers_are_refused(api, cms):
    answer = api.get(cms, accept='text/html')
    assert answer.error == (406, 'NotAcceptable')
    assert answer['message'].startswith(
        '406: Not Acceptable\n\nAvailable representations: application/json, application/yaml')


@pytest.mark.parametrize('accept', ['*/*', 'application/*', 'text/html, application/json;q=0.5'])
def test_json_is_answered_where_it_is_accepted_too(api, cms, accept):
    answer = api.get(cms, accept=accept)
    assert answer.headers['Content-Type'] == 'application/json'


@pytest.mark.parametrize(('method', 'suffix'), [
    ('PUT', ''), ('PATCH', ''), ('POST', '/one')])
def test_what_cannot_be_done_is_not_allowed(api, cms, method, suffix):
    answer = api.request(method, cms + suffix, {})
    assert answer.error == (405, 'MethodNotAllowed')
    assert answer['message'] == (
        'the server does not allow this method on the requested resource')


@pytest.mark.parametrize('kind', ['Secret', 'Pod', 'Nonsense'])
def test_other_kinds_are_bad_requests(api, cms, kind):
    answer = api.post(cms, make('one', kind=kind))
    assert answer.error == (400, 'BadRequest')


def test_other_versions_are_bad_requests(api, cms):
    answer = api.post(cms, make('one', version='v9'))
    assert answer.error == (400, 'BadRequest')


def test_wrong_types_in_core_kinds_are_bad_requests(api, cms):
    answer = api.post(cms, make('one', data={'a': 1}))
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number '
        'into Go struct field ConfigMap.data of type string')


def test_metadata_must_be_an_object(api, cms):
    assert api.post(cms, {**make('one'), 'metadata': 'x'}).error == (400, 'BadRequest')


def test_a_status_is_told_as_an_object_is(api, cms):
    answer = api.get(f'{cms}/absent')
    assert answer.headers['Content-Type'] == 'application/json'
    assert list(answer.json) == [
        'kind', 'apiVersion', 'metadata', 'status', 'message', 'reason', 'details', 'code']
    assert answer.json['metadata'] == {}


def test_too_large_bodies_are_refused(api, cms):
    body = json.dumps(make('one', data={'a': 'x' * 3_500_000})).encode()
    answer = api.post(cms, body)
    assert answer.error == (413, 'RequestEntityTooLarge')


def test_large_config_maps_are_invalid(api, cms):
    answer = api.post(cms, make('one', data={'a': 'x' * 1_100_000}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueTooLong', '[]')]


def test_deep_bodies_are_no_harm(api, frees, kinds):
    deep: object = 1
    for _ in range(200):
        deep = {'a': deep}
    assert api.post(frees, kinds.make('frees', 'one', spec=deep)).status == 201
    body = b'{"a":' * 20000 + b'1' + b'}' * 20000
    assert api.post(frees, body).status in (400, 413, 422)
    assert api.get(f'{frees}/one').ok


@pytest.mark.parametrize('params', [
    {'unknown': 'x'}, {'pretty': 'true'}, {'timeout': '5s'}])
def test_other_parameters_are_no_harm(api, cms, params):
    assert api.get(cms, **params).ok


def test_parameters_of_wrong_types_are_bad_requests(api, cms):
    assert api.get(cms, timeoutSeconds='x').error == (400, 'BadRequest')


def test_the_config_maps_keys_are_checked(api, cms):
    answer = api.post(cms, make('one', data={'a b': 'c'}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'data[a b]')]


def test_an_immutable_config_map_stays_as_it_is(api, cms):
    api.post(cms, make('one', data={'a': 'b'}, immutable=True)).ok
    answer = api.patch(f'{cms}/one', {'data': {'a': 'c'}})
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueForbidden', 'data')]
    assert answer.messages == ['Forbidden: field is immutable when `immutable` is set']


def test_the_type_of_a_secret_stays_as_it_is(api, ns):
    path = f'/api/v1/namespaces/{ns}/secrets'
    secret = api.post(path, make('one', kind='Secret', stringData={'a': 'b'})).ok
    assert (secret['type'], secret['data']) == ('Opaque', {'a': 'Yg=='})
    answer = api.patch(f'{path}/one', {'type': 'other'})
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'type')]
    assert answer.messages == ['Invalid value: "other": field is immutable']


def test_a_pod_needs_containers(api, ns):
    answer = api.post(f'/api/v1/namespaces/{ns}/pods', make('one', kind='Pod', spec={}))
    assert answer.error == (422, 'Invalid')
    assert ('FieldValueRequired', 'spec.containers') in answer.causes


@pytest.mark.parametrize(('expression', 'problems'), [
    ({'key': 'a', 'operator': 'Gt'},
     ['operator: Invalid value: "Gt": not a valid selector operator']),
    ({'key': 'a', 'operator': 'Gt', 'values': ['3']},
     ['operator: Invalid value: "Gt": not a valid selector operator']),
    ({'key': 'a', 'operator': 'In'},
     ["values: Required value: must be specified when `operator` is 'In' or 'NotIn'"]),
    ({'key': 'a', 'operator': 'Exists', 'values': ['x']},
     ["values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"]),
    ({'key': 'a b', 'operator': 'Exists'},
     ["key: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or "
      "'.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  "
      "or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"]),
    ({'key': 'a', 'operator': 'DoesNotExist', 'values': ['-x']},
     ["values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
      "values[0]: Invalid value: \"-x\": a valid label must be an empty string or consist of "
      "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
      "character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
      "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"]),
])
def test_wrong_expressions_of_selectors_are_invalid(api, ns, expression, problems):
    template = {'metadata': {'labels': {'a': '5'}},
                'spec': {'containers': [{'name': 'c', 'image': 'i'}]}}
    answer = api.post(f'/apis/apps/v1/namespaces/{ns}/deployments', make(
        'd', 'Deployment', 'apps/v1',
        spec={'selector': {'matchExpressions': [expression]}, 'template': template}))
    shown = json.dumps({'matchExpressions': [expression]}, separators=(',', ':'))
    place = 'spec.selector.matchExpressions[0]'
    assert answer.error == (422, 'Invalid')
    assert answer['message'] == 'Deployment.apps "d" is invalid: [{}]'.format(', '.join([
        *(f'{place}.{problem}' for problem in problems),
        f'spec.selector: Invalid value: {shown}: invalid label selector']))

    hook = {'name': 'a.b.c', 'admissionReviewVersions': ['v1'], 'sideEffects': 'None',
            'clientConfig': {'url': 'https://a.b/c'},
            'objectSelector': {'matchExpressions': [expression]}}
    answer = api.post(
        '/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations',
        make('h', 'ValidatingWebhookConfiguration', 'admissionregistration.k8s.io/v1',
             webhooks=[hook]), dryRun='All')
    place = 'webhooks[0].objectSelector.matchExpressions[0]'
    assert answer.error == (422, 'Invalid')
    for problem in problems:
        assert f'{place}.{problem}' in answer['message']
