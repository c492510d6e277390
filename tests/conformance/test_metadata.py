import re
import time

import pytest

from tests.conformance.apis import JSONPATCH, make

SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')")


@pytest.mark.parametrize('name', ['UPPER', 'under_score', '-begin', 'end-', '.dot', 'spa ce', 'ä'])
def test_names_are_subdomains(api, cms, name):
    answer = api.post(cms, make(name))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'metadata.name')]
    assert answer.messages == [f'Invalid value: "{name}": {SUBDOMAIN}']
    assert answer['message'] == (
        f'ConfigMap "{name}" is invalid: metadata.name: {answer.messages[0]}')
    assert {key: answer['details'][key] for key in ('name', 'kind')} == {
        'name': name, 'kind': 'ConfigMap'}


def test_long_names_are_refused(api, cms):
    answer = api.post(cms, make('x' * 254))
    assert answer.messages == [f'Invalid value: "{"x" * 254}": must be no more than 253 characters']


@pytest.mark.parametrize('name', ['a/b', 'a%b', '.', '..'])
def test_names_that_cannot_be_in_paths_are_refused_for_custom_objects(api, frees, kinds, name):
    answer = api.post(frees, kinds.make('frees', name))
    assert answer.error == (422, 'Invalid')
    assert ('FieldValueInvalid', 'metadata.name') in answer.causes


def test_a_name_is_required(api, cms):
    answer = api.post(cms, make())
    assert answer.error == (422, 'Invalid')
    assert answer['message'] == (
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required')
    assert answer.causes == [('FieldValueRequired', 'metadata.name')]


def test_names_are_generated_with_a_random_end(api, cms):
    meta = api.post(cms, make(metadata={'generateName': 'some-'})).ok['metadata']
    assert re.fullmatch(r'some-[bcdfghjklmnpqrstvwxz2456789]{5}', meta['name'])
    assert meta['generateName'] == 'some-'


def test_a_name_goes_before_generating_one(api, cms):
    assert api.post(cms, make('one', metadata={'generateName': 'some-'})).ok['metadata'][
        'name'] == 'one'


def test_long_prefixes_of_generated_names_are_refused(api, cms):
    answer = api.post(cms, make(metadata={'generateName': 'x' * 300}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'metadata.generateName')]
    assert len(answer['details']['name']) == 63


def test_the_generation_grows_with_the_spec_only(api, things, kinds):
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    assert obj['metadata']['generation'] == 1
    path = f'{things}/one'
    assert api.patch(path, {'spec': {'size': 4}}).ok['metadata']['generation'] == 2
    assert api.patch(path, {'metadata': {'labels': {'a': 'b'}}}).ok['metadata']['generation'] == 2
    assert api.patch(f'{path}/status', {'status': {'phase': 'x'}}).ok['metadata'][
        'generation'] == 2


def test_the_generation_grows_with_the_status_where_it_is_no_subresource(api, frees, kinds):
    api.post(frees, kinds.make('frees', 'one')).ok
    assert api.patch(f'{frees}/one', {'status': {'a': 1}}).ok['metadata']['generation'] == 2


def test_config_maps_have_no_generation(api, cms):
    api.post(cms, make('one')).ok
    assert 'generation' not in api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok['metadata']


@pytest.mark.parametrize(('labels', 'message'), [
    ({'a b': 'c'}, "name part must consist of alphanumeric characters, '-', '_' or '.', and must "
                   "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  "
                   "or '123-abc', regex used for validation is "
                   "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"),
    ({'a/b/c': 'd'}, "a valid label key must consist of alphanumeric characters"),
    ({'/a': 'b'}, "prefix part must be non-empty"),
    ({'a': 'b c'}, "a valid label must be an empty string or consist of alphanumeric characters"),
    ({'a': 'x' * 64}, "must be no more than 63"),
    ({'x' * 64: 'a'}, "name part must be no more than 63"),
])
def test_labels_are_limited_in_what_they_are(api, cms, labels, message):
    answer = api.post(cms, make('one', metadata={'labels': labels}))
    assert answer.error == (422, 'Invalid')
    assert set(answer.causes) == {('FieldValueInvalid', 'metadata.labels')}
    assert any(message in text for text in answer.messages), answer.messages


def test_labels_must_be_strings(api, cms):
    answer = api.post(cms, make('one', metadata={'labels': {'a': 1}}))
    assert answer.error == (400, 'BadRequest')
    assert 'json: cannot unmarshal number into Go struct field ObjectMeta' in answer['message']


@pytest.mark.parametrize('annotations', [{'a b': 'c'}, {'a/b/c': 'd'}, {'': 'x'}])
def test_annotations_are_limited_in_their_names(api, cms, annotations):
    answer = api.post(cms, make('one', metadata={'annotations': annotations}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes[0] == ('FieldValueInvalid', 'metadata.annotations')


def test_annotations_can_be_anything_up_to_a_size(api, cms):
    api.post(cms, make('one', metadata={'annotations': {'a': 'ä \n' * 1000}})).ok
    answer = api.post(cms, make('two', metadata={'annotations': {'a': 'x' * 263000}}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueTooLong', 'metadata.annotations')]
    assert answer.messages == ['Too long: may not be more than 262144 bytes']


@pytest.mark.parametrize(('finalizer', 'message'), [
    ('a b/c', f'prefix part {SUBDOMAIN}'),
    ('x/' + 'y' * 64, 'name part must be no more than 63 bytes'),
    ('', 'name part must be non-empty'),
])
def test_finalizers_are_qualified_names(api, frees, kinds, finalizer, message):
    answer = api.post(frees, kinds.make('frees', 'one', metadata={'finalizers': [finalizer]}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes[0] == ('FieldValueInvalid', 'metadata.finalizers')
    assert answer.messages[0] == f'Invalid value: "{finalizer}": {message}'


def test_finalizers_of_core_kinds_have_a_domain(api, cms):
    answer = api.post(cms, make('one', metadata={'finalizers': ['nodomain']}))
    assert answer.causes == [('FieldValueInvalid', 'metadata.finalizers[0]')]
    assert answer.messages == ['Invalid value: "nodomain": name is neither a standard finalizer '
                               'name nor is it fully qualified']


def test_finalizers_of_custom_kinds_need_no_domain(api, frees, kinds):
    api.post(frees, kinds.make('frees', 'one', metadata={'finalizers': ['nodomain']})).ok
    api.patch(f'{frees}/one', {'metadata': {'finalizers': None}}).ok


def test_a_deleted_object_waits_for_its_finalizers(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    answer = api.delete(f'{cms}/one').ok
    assert answer['kind'] == 'ConfigMap'
    assert answer['metadata']['deletionTimestamp']
    assert answer['metadata']['deletionGracePeriodSeconds'] == 0
    assert api.get(f'{cms}/one').ok['metadata']['deletionTimestamp']


def test_an_object_without_its_last_finalizer_is_gone(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    api.delete(f'{cms}/one').ok
    answer = api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok
    assert 'finalizers' not in answer['metadata']
    assert api.get(f'{cms}/one').status == 404


def test_a_second_deletion_changes_nothing(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    first = api.delete(f'{cms}/one').ok
    assert api.delete(f'{cms}/one').ok['metadata']['deletionTimestamp'] == (
        first['metadata']['deletionTimestamp'])
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok


def test_deleted_objects_get_no_new_finalizers(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    api.delete(f'{cms}/one').ok
    answer = api.patch(f'{cms}/one', {'metadata': {'finalizers': ['x.test/f', 'x.test/g']}})
    assert answer.error == (422, 'Invalid')
    assert set(answer.causes) == {('FieldValueForbidden', 'metadata.finalizers')}
    assert answer['message'] == (
        'ConfigMap "one" is invalid: metadata.finalizers: Forbidden: no new finalizers can be '
        'added if the object is being deleted, found new finalizers []string{"x.test/g"}')
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok


def test_deleted_objects_can_be_changed_otherwise(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    api.delete(f'{cms}/one').ok
    assert api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok['data'] == {'a': 'b'}
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok


def test_the_deletion_cannot_be_taken_back(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/f']})).ok
    deleted = api.delete(f'{cms}/one').ok
    answer = api.patch(f'{cms}/one', {'metadata': {'deletionTimestamp': None}})
    assert answer.ok['metadata']['deletionTimestamp'] == deleted['metadata']['deletionTimestamp']
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok


def test_the_name_cannot_be_changed(api, cms):
    api.post(cms, make('one')).ok
    answer = api.patch(f'{cms}/one', {'metadata': {'name': 'two'}})
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'the name of the object (two) does not match the name on the URL (one)')


def test_the_namespace_cannot_be_changed(api, cms):
    api.post(cms, make('one')).ok
    assert api.patch(f'{cms}/one', {'metadata': {'namespace': 'default'}}).error == (
        400, 'BadRequest')


@pytest.mark.parametrize(('field', 'value'), [
    ('creationTimestamp', '2020-01-01T00:00:00Z'), ('generation', 9), ('selfLink', '/x')])
def test_the_servers_own_fields_cannot_be_changed(api, frees, kinds, field, value):
    old = api.post(frees, kinds.make('frees', 'one')).ok
    answer = api.patch(f'{frees}/one', {'metadata': {field: value}})
    assert answer.ok['metadata'].get(field) == old['metadata'].get(field)


def test_patching_another_uid_is_refused(api, frees, cms, kinds):
    api.post(frees, kinds.make('frees', 'one')).ok
    answer = api.patch(f'{frees}/one', {'metadata': {'uid': 'another'}})
    assert answer.error == (422, 'Invalid')
    assert set(answer.causes) == {('FieldValueInvalid', 'metadata.uid')}
    assert set(answer.messages) == {'Invalid value: "another": field is immutable'}


@pytest.mark.parametrize(('owner', 'field'), [
    ({'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'x'}, 'uid'),
    ({'apiVersion': 'v1', 'kind': 'ConfigMap', 'uid': 'x'}, 'name'),
    ({'apiVersion': 'v1', 'name': 'x', 'uid': 'x'}, 'kind'),
    ({'kind': 'ConfigMap', 'name': 'x', 'uid': 'x'}, 'apiVersion'),
])
def test_owners_must_be_told_completely(api, cms, owner, field):
    answer = api.post(cms, make('one', metadata={'ownerReferences': [owner]}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', f'metadata.ownerReferences.{field}')]


def test_there_is_one_controller_at_most(api, cms):
    owners = [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': name, 'uid': name,
               'controller': True} for name in ('x', 'y')]
    answer = api.post(cms, make('one', metadata={'ownerReferences': owners}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'metadata.ownerReferences')]
    assert 'Only one reference can have Controller set to true' in answer.messages[0]


def test_writing_nothing_new_keeps_the_version(api, cms):
    old = api.post(cms, make('one', data={'a': 'b'})).ok
    assert api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok == old
    time.sleep(0.01)
    assert api.patch(f'{cms}/one', [], JSONPATCH).ok == old
