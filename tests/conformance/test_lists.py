import base64
import gzip
import json

import pytest

from tests.conformance.apis import PARTIAL_LIST, make


def names(answer):
    return [item['metadata']['name'] for item in answer.ok['items']]


@pytest.fixture()
def five(api, cms):
    """The path of five config maps, a to e."""
    for name in 'cabed':
        labels = {'name': name, 'half': 'first' if name in 'ab' else 'second'}
        labels |= {'odd': ''} if name in 'ace' else {}
        api.post(cms, make(name, metadata={'labels': labels}, data={'x': name})).ok
    return cms


def test_an_empty_list_has_a_version(api, cms):
    answer = api.get(cms).ok
    assert (answer['kind'], answer['apiVersion'], answer['items']) == ('ConfigMapList', 'v1', [])
    assert int(answer['metadata']['resourceVersion']) > 0


def test_items_of_core_kinds_are_without_kind_and_version(api, five):
    assert all(not {'kind', 'apiVersion'} & set(item) for item in api.get(five).ok['items'])


def test_items_of_custom_kinds_are_with_kind_and_version(api, frees, kinds):
    api.post(frees, kinds.make('frees', 'one')).ok
    answer = api.get(frees).ok
    assert (answer['kind'], answer['apiVersion']) == ('FreeList', f'{kinds.group}/v1')
    [item] = answer['items']
    assert (item['kind'], item['apiVersion']) == ('Free', f'{kinds.group}/v1')


def test_items_are_in_the_order_of_names(api, five):
    assert names(api.get(five)) == ['a', 'b', 'c', 'd', 'e']


def test_the_version_of_a_list_is_not_older_than_its_items(api, five):
    answer = api.get(five).ok
    newest = max(int(item['metadata']['resourceVersion']) for item in answer['items'])
    assert int(answer['metadata']['resourceVersion']) >= newest


def test_large_responses_are_compressed_on_demand(api, cms):
    for i in range(2):
        api.post(cms, make(f'large{i}', data={'x': 'y' * 70_000})).ok
    wanted = {'Accept-Encoding': 'gzip'}
    plain, compressed = api.get(cms), api.get(cms, headers=wanted)
    assert compressed.headers['Content-Encoding'] == 'gzip'
    assert compressed.headers['Vary'] == 'Accept-Encoding'
    assert len(compressed.raw) < len(plain.raw) / 10
    assert json.loads(gzip.decompress(compressed.raw))['items'] == plain.ok['items']
    small = api.get(f'{cms}/large0', headers=wanted)
    assert (plain.headers['Content-Encoding'], small.headers['Content-Encoding']) == (None, None)
    assert small.ok['kind'] == 'ConfigMap'


def test_all_namespaces_are_listed_together(api, five, ns):
    items = api.get('/api/v1/configmaps').ok['items']
    assert [item['metadata']['name'] for item in items
            if item['metadata']['namespace'] == ns] == ['a', 'b', 'c', 'd', 'e']


def test_absent_namespaces_are_empty(api):
    assert api.get('/api/v1/namespaces/absent/configmaps').ok['items'] == []


@pytest.mark.parametrize(('selector', 'expected'), [
    ('name=a', 'a'), ('name==a', 'a'), ('name!=a', 'bcde'), ('name in (a, b)', 'ab'),
    ('name notin (a,b)', 'cde'), ('odd', 'ace'), ('!odd', 'bd'), ('half=first,odd', 'a'),
    ('half=first,!odd', 'b'), ('absent=x', ''), ('absent!=x', 'abcde'), ('odd=', 'ace'),
    ('absent notin (x)', 'abcde'), ('', 'abcde'), ('name in (a,z),half', 'a'),
    ('name in (a,)', 'a'),
    (' name = a ', 'a'), ('name>1', ''),
])
def test_items_are_selected_by_labels(api, five, selector, expected):
    assert names(api.get(five, labelSelector=selector)) == list(expected)


@pytest.mark.parametrize(('selector', 'message'), [
    ('a in b', 'unable to parse requirement: '), ('a in (b', 'unable to parse requirement: '),
    ('a in (b,=)', "unable to parse requirement: found '=', expected: ',', or identifier"),
    ('!', 'unable to parse requirement: '), ('a b', 'unable to parse requirement: '),
    ('a=b=c', "found '=', expected: ',' or 'end of string'"),
    ('=a', "found '=', expected: !, identifier, or 'end of string'"),
    ('a,,b', "found ',', expected: identifier after ','"),
    (',', "found ',', expected: !, identifier, or 'end of string'"),
])
def test_bad_selectors_of_labels_are_refused(api, cms, selector, message):
    answer = api.get(cms, labelSelector=selector)
    assert answer.error == (400, 'BadRequest')
    assert answer['message'].startswith(message)


def test_bad_values_in_selectors_are_refused(api, cms):
    answer = api.get(cms, labelSelector='a=b c')
    assert answer.error == (400, 'BadRequest')


@pytest.mark.parametrize(('selector', 'expected'), [
    ('metadata.name=a', 'a'), ('metadata.name==a', 'a'), ('metadata.name!=a', 'bcde'),
    ('metadata.name=absent', ''), ('metadata.name=a,metadata.name=b', ''), ('', 'abcde'),
])
def test_items_are_selected_by_fields(api, five, selector, expected):
    assert names(api.get(five, fieldSelector=selector)) == list(expected)


def test_items_are_selected_by_namespaces(api, five, ns):
    assert names(api.get('/api/v1/configmaps', fieldSelector=f'metadata.namespace={ns}')) == [
        'a', 'b', 'c', 'd', 'e']


def test_unknown_fields_cannot_be_selected(api, cms):
    answer = api.get(cms, fieldSelector='data.x=1')
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        '"data.x" is not a known field selector: only "metadata.name", "metadata.namespace"')


def test_custom_kinds_tell_which_fields_can_be_selected(api, things, kinds):
    for name, color in [('a', 'red'), ('b', 'green')]:
        api.post(things, kinds.make('things', name, spec={'size': 1, 'color': color})).ok
    assert names(api.get(things, fieldSelector='spec.color=green')) == ['b']
    answer = api.get(things, fieldSelector='spec.size=1')
    assert answer.error == (400, 'BadRequest')
    assert 'field label not supported: spec.size' in answer['message']


def test_pods_are_selected_by_their_phase_and_node(api, ns):
    path = f'/api/v1/namespaces/{ns}/pods'
    spec = {'containers': [{'name': 'a', 'image': 'x'}]}
    api.post(path, make('a', kind='Pod', spec=spec)).ok
    api.post(path, make('b', kind='Pod', spec={**spec, 'nodeName': 'n1'})).ok
    assert names(api.get(path, fieldSelector='spec.nodeName=n1')) == ['b']
    assert names(api.get(path, fieldSelector='status.phase=Pending')) == ['a', 'b']
    assert names(api.get(path, fieldSelector='status.phase=Running')) == []
    for name in 'ab':
        api.delete(f'{path}/{name}', gracePeriodSeconds='0').ok


def test_a_page_is_limited_and_tells_how_to_go_on(api, five):
    first = api.get(five, limit='2')
    assert names(first) == ['a', 'b']
    meta = first['metadata']
    assert meta['remainingItemCount'] == 3
    second = api.get(five, limit='2', **{'continue': meta['continue']})
    assert names(second) == ['c', 'd']
    assert second['metadata']['remainingItemCount'] == 1
    last = api.get(five, limit='2', **{'continue': second['metadata']['continue']})
    assert names(last) == ['e']
    assert not {'continue', 'remainingItemCount'} & set(last['metadata'])


def test_pages_are_all_of_the_same_state(api, five):
    first = api.get(five, limit='2').ok
    api.post(five, make('bb')).ok
    api.delete(f'{five}/c').ok
    rest = api.get(five, **{'continue': first['metadata']['continue']})
    assert names(rest) == ['c', 'd', 'e']
    assert rest['metadata']['resourceVersion'] == first['metadata']['resourceVersion']


def test_pages_of_a_selection_tell_no_rest(api, five):
    answer = api.get(five, limit='1', labelSelector='odd').ok
    assert 'remainingItemCount' not in answer['metadata']
    assert answer['metadata']['continue']


def test_a_limit_beyond_the_end_changes_nothing(api, five):
    assert 'continue' not in api.get(five, limit='5').ok['metadata']


def test_a_broken_token_is_refused(api, cms):
    answer = api.get(cms, **{'continue': 'nonsense'})
    assert answer.error == (400, 'BadRequest')
    assert answer['message'].startswith('invalid continue token: continue key is not valid: ')


def test_a_token_of_a_forgotten_state_is_expired(api, five):
    token = api.get(five, limit='1').ok['metadata']['continue']
    known = json.loads(base64.urlsafe_b64decode(token + '=' * (-len(token) % 4)))
    old = base64.urlsafe_b64encode(json.dumps({**known, 'rv': 1}).encode()).decode().rstrip('=')
    answer = api.get(five, **{'continue': old})
    assert answer.error == (410, 'Expired')
    assert answer['message'].startswith('The provided continue parameter is too old to display')
    fresh = api.get(five, **{'continue': answer['metadata']['continue']})
    assert names(fresh) == ['b', 'c', 'd', 'e']


def test_a_token_goes_without_a_version(api, five):
    token = api.get(five, limit='1').ok['metadata']['continue']
    answer = api.get(five, resourceVersion='1', **{'continue': token})
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'specifying resource version is not allowed when using continue')


@pytest.mark.parametrize('limit', ['x', '1.5'])
def test_bad_limits_are_refused(api, cms, limit):
    assert api.get(cms, limit=limit).error == (400, 'BadRequest')


def test_version_zero_means_any_state(api, five):
    assert set(names(api.get(five, resourceVersion='0'))) <= set('abcde')


def test_a_version_can_be_exact(api, five):
    version = api.get(five).ok['metadata']['resourceVersion']
    api.delete(f'{five}/a').ok
    answer = api.get(five, resourceVersion=version, resourceVersionMatch='Exact')
    assert names(answer) == ['a', 'b', 'c', 'd', 'e']
    assert answer['metadata']['resourceVersion'] == version


def test_a_version_can_be_at_least(api, five):
    version = api.get(five).ok['metadata']['resourceVersion']
    answer = api.get(five, resourceVersion=version, resourceVersionMatch='NotOlderThan')
    assert names(answer) == ['a', 'b', 'c', 'd', 'e']


@pytest.mark.parametrize(('params', 'causes'), [
    ({'resourceVersionMatch': 'Exact'}, ('FieldValueForbidden', 'resourceVersionMatch')),
    ({'resourceVersionMatch': 'Nonsense', 'resourceVersion': '1'},
     ('FieldValueNotSupported', 'resourceVersionMatch')),
    ({'resourceVersionMatch': 'Exact', 'resourceVersion': '0'},
     ('FieldValueForbidden', 'resourceVersionMatch')),
    ({'sendInitialEvents': 'true'}, ('FieldValueForbidden', 'sendInitialEvents')),
])
def test_options_must_make_sense_together(api, cms, params, causes):
    answer = api.get(cms, **params)
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [causes]


@pytest.mark.parametrize('version', ['x', '-1', '1.5'])
def test_bad_versions_are_refused(api, cms, version):
    answer = api.get(cms, resourceVersion=version)
    assert answer.error == (400, 'BadRequest')


def test_far_future_versions_are_waited_for_in_vain(api, cms):
    answer = api.get(cms, resourceVersion='99999999999', timeoutSeconds='1')
    assert answer.error == (504, 'Timeout')
    assert answer['message'] == 'Timeout: Too large resource version: 99999999999, current: ' + (
        answer['message'].rpartition(' ')[2])
    assert answer.causes == [('ResourceVersionTooLarge', None)]
    assert answer['details']['retryAfterSeconds'] == 1


def test_only_the_metadata_is_listed_to_those_who_ask(api, five):
    answer = api.get(five, accept=PARTIAL_LIST).ok
    assert (answer['kind'], answer['apiVersion']) == (
        'PartialObjectMetadataList', 'meta.k8s.io/v1')
    assert all('data' not in item for item in answer['items'])
    assert {item.get('kind') for item in answer['items']} <= {'PartialObjectMetadata', None}


def test_lists_from_the_cache_have_no_pages(api, cms):
    for name in ('one', 'two', 'three'):
        api.post(cms, make(name)).ok
    api.wait(cms, lambda answer: len(answer['items']) == 3, resourceVersion='0')
    found = api.get(cms, resourceVersion='0', limit='1').ok
    assert [item['metadata']['name'] for item in found['items']] == ['one', 'three', 'two']
    assert 'continue' not in found['metadata']


def test_all_that_is_wrong_with_the_version_of_a_list_is_told(api, cms):
    answer = api.get(cms, resourceVersionMatch='Any', **{'continue': 'x'})
    assert answer.causes == [
        ('FieldValueForbidden', 'resourceVersionMatch'),
        ('FieldValueForbidden', 'resourceVersionMatch'),
        ('FieldValueNotSupported', 'resourceVersionMatch')]
