import json

import pytest

from tests.conformance.apis import APPLY, JSONPATCH, MERGE, STRATEGIC, make

POD = {'containers': [{'name': 'a', 'image': 'x:1', 'env': [{'name': 'E', 'value': '1'}]},
                      {'name': 'b', 'image': 'y:1'}]}


@pytest.fixture()
def one(api, cms):
    """The path of a config map."""
    api.post(cms, make('one', data={'a': '1', 'b': '2'})).ok
    return f'{cms}/one'


@pytest.fixture()
def free(api, frees, kinds):
    """The path of an object with any content."""
    api.post(frees, kinds.make('frees', 'one', spec={
        'map': {'a': 1, 'b': 2}, 'list': [1, 2, 3], 'text': 'x'})).ok
    return f'{frees}/one'


@pytest.fixture()
def pod(api, ns):
    """The path of a pod with two containers."""
    path = f'/api/v1/namespaces/{ns}/pods'
    api.post(path, make('one', kind='Pod', spec=POD)).ok
    return f'{path}/one'


@pytest.mark.parametrize(('patch', 'expected'), [
    ({'map': {'a': 9}}, {'map': {'a': 9, 'b': 2}, 'list': [1, 2, 3], 'text': 'x'}),
    ({'map': {'a': None}}, {'map': {'b': 2}, 'list': [1, 2, 3], 'text': 'x'}),
    ({'map': None}, {'list': [1, 2, 3], 'text': 'x'}),
    ({'list': [9]}, {'map': {'a': 1, 'b': 2}, 'list': [9], 'text': 'x'}),
    ({'list': {'a': 1}}, {'map': {'a': 1, 'b': 2}, 'list': {'a': 1}, 'text': 'x'}),
    ({'text': {'a': None, 'b': 1}}, {'map': {'a': 1, 'b': 2}, 'list': [1, 2, 3], 'text': {'b': 1}}),
    ({'new': {'a': {'b': None}}}, {'map': {'a': 1, 'b': 2}, 'list': [1, 2, 3], 'text': 'x',
                                   'new': {'a': {}}}),
    ({'absent': None}, {'map': {'a': 1, 'b': 2}, 'list': [1, 2, 3], 'text': 'x'}),
    ({'list': [{'a': None, 'b': [{'c': None}]}, None]},
     {'map': {'a': 1, 'b': 2}, 'list': [{'b': [{}]}, None], 'text': 'x'}),
])
def test_a_merge_patch_merges_maps_and_replaces_the_rest(api, free, patch, expected):
    assert api.patch(free, {'spec': patch}, MERGE).ok['spec'] == expected


@pytest.mark.parametrize(('ops', 'expected'), [
    ([{'op': 'add', 'path': '/spec/new', 'value': 1}], {'new': 1}),
    ([{'op': 'add', 'path': '/spec/list/1', 'value': 9}], {'list': [1, 9, 2, 3]}),
    ([{'op': 'add', 'path': '/spec/list/-', 'value': 9}], {'list': [1, 2, 3, 9]}),
    ([{'op': 'remove', 'path': '/spec/list/0'}], {'list': [2, 3]}),
    ([{'op': 'replace', 'path': '/spec/map/a', 'value': 9}], {'map': {'a': 9, 'b': 2}}),
    ([{'op': 'move', 'from': '/spec/map/a', 'path': '/spec/c'}], {'map': {'b': 2}, 'c': 1}),
    ([{'op': 'copy', 'from': '/spec/map', 'path': '/spec/c'}], {'c': {'a': 1, 'b': 2}}),
    ([{'op': 'test', 'path': '/spec/text', 'value': 'x'},
      {'op': 'replace', 'path': '/spec/text', 'value': 'y'}], {'text': 'y'}),
    ([{'op': 'add', 'path': '/spec/a~1b~0c', 'value': 1}], {'a/b~c': 1}),
])
def test_a_json_patch_does_its_operations(api, free, ops, expected):
    old = api.get(free).ok['spec']
    new = api.patch(free, ops, JSONPATCH).ok['spec']
    assert new == {**{key: val for key, val in old.items() if key in new}, **expected}


@pytest.mark.parametrize('op', [
    {'op': 'test', 'path': '/spec/text', 'value': 'y'},
    {'op': 'remove', 'path': '/spec/absent'},
    {'op': 'add', 'path': '/spec/absent/x', 'value': 1},
    {'op': 'nonsense', 'path': '/spec'},
])
def test_a_json_patch_that_does_not_apply_is_unprocessable(api, free, op):
    answer = api.patch(free, [op], JSONPATCH)
    assert answer.error == (422, 'Invalid')
    assert answer['message'] == 'the server rejected our request due to an error in our request'


def test_a_json_patch_can_replace_what_is_not_there(api, free):
    ops = [{'op': 'replace', 'path': '/spec/absent', 'value': 1}]
    assert api.patch(free, ops, JSONPATCH).ok['spec']['absent'] == 1


@pytest.mark.parametrize('path', ['/metadata/finalizers', '/data/absent'])
def test_an_absent_field_is_tested_as_null(api, one, path):
    test = {'op': 'test', 'path': path, 'value': None}
    added = ['example.com/one'] if path.startswith('/metadata/') else 'text'
    ops = [test, {'op': 'add', 'path': path, 'value': added}]
    api.patch(one, ops, JSONPATCH).ok
    assert api.patch(one, ops, JSONPATCH).error == (422, 'Invalid')
    api.patch(one, [{'op': 'remove', 'path': path}], JSONPATCH).ok


def test_operations_are_done_all_or_none(api, free):
    old = api.get(free).ok
    api.patch(free, [{'op': 'add', 'path': '/spec/new', 'value': 1},
                     {'op': 'remove', 'path': '/spec/absent'}], JSONPATCH)
    assert api.get(free).ok == old


@pytest.mark.parametrize('content_type', [MERGE, STRATEGIC, JSONPATCH])
def test_a_patch_with_an_old_version_is_a_conflict(api, one, content_type):
    version = api.get(one).ok['metadata']['resourceVersion']
    api.patch(one, {'data': {'a': '5'}}).ok
    patch = {'metadata': {'resourceVersion': version}, 'data': {'a': '6'}}
    if content_type == JSONPATCH:
        patch = [{'op': 'replace', 'path': '/metadata/resourceVersion', 'value': version},
                 {'op': 'replace', 'path': '/data/a', 'value': '6'}]
    answer = api.patch(one, patch, content_type)
    assert answer.error == (409, 'Conflict')
    assert answer['message'] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; please '
        'apply your changes to the latest version and try again')


def test_an_absent_object_cannot_be_patched(api, cms):
    assert api.patch(f'{cms}/absent', {}).error == (404, 'NotFound')


def test_unknown_sorts_of_patches_are_refused(api, one):
    answer = api.patch(one, {}, 'application/json')
    assert answer.error == (415, 'UnsupportedMediaType')
    assert answer['message'] == '415: Unsupported Media Type'


def test_custom_objects_know_no_strategic_patches(api, free):
    answer = api.patch(free, {}, STRATEGIC)
    assert answer.error == (415, 'UnsupportedMediaType')


@pytest.mark.parametrize('path', ['/status', '/scale'])
def test_absent_subresources_are_not_found(api, free, path):
    assert api.patch(free + path, {}).status == 404


def test_a_strategic_patch_merges_lists_by_their_keys(api, pod):
    new = api.patch(pod, {'spec': {'containers': [{'name': 'b', 'image': 'y:2'}]}}, STRATEGIC).ok
    assert [(item['name'], item['image']) for item in new['spec']['containers']] == [
        ('a', 'x:1'), ('b', 'y:2')]


def test_a_strategic_patch_replaces_atomic_lists(api, ns):
    path = f'/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles'
    rule = {'apiGroups': [''], 'resources': ['pods'], 'verbs': ['get']}
    role = make('one', kind='Role', version='rbac.authorization.k8s.io/v1', rules=[rule, rule])
    api.post(path, role).ok
    assert api.patch(f'{path}/one', {'rules': [rule]}, STRATEGIC).ok['rules'] == [rule]


def test_a_strategic_patch_removes_members_by_a_directive(api, ns):
    path = f'/apis/apps/v1/namespaces/{ns}/deployments'
    api.post(path, make('one', kind='Deployment', version='apps/v1', spec={
        'selector': {'matchLabels': {'a': 'b'}},
        'template': {'metadata': {'labels': {'a': 'b'}}, 'spec': POD}})).ok
    patch = {'spec': {'template': {'spec': {'containers': [{'name': 'a', '$patch': 'delete'}]}}}}
    new = api.patch(f'{path}/one', patch, STRATEGIC).ok
    assert [item['name'] for item in new['spec']['template']['spec']['containers']] == ['b']


def test_a_strategic_patch_replaces_by_a_directive(api, one):
    new = api.patch(one, {'data': {'$patch': 'replace', 'c': '3'}}, STRATEGIC).ok
    assert new['data'] == {'c': '3'}


def test_a_strategic_patch_merges_primitive_lists_of_finalizers(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['x.test/a']})).ok
    new = api.patch(f'{cms}/one', {'metadata': {'finalizers': ['x.test/b']}}, STRATEGIC).ok
    assert new['metadata']['finalizers'] == ['x.test/b', 'x.test/a']
    gone = api.patch(f'{cms}/one', {'metadata': {'$deleteFromPrimitiveList/finalizers': [
        'x.test/a', 'x.test/b']}}, STRATEGIC).ok
    assert not gone['metadata'].get('finalizers')


def test_a_strategic_patch_merges_maps(api, one):
    new = api.patch(one, {'data': {'a': None, 'c': '3'}}, STRATEGIC).ok
    assert new['data'] == {'b': '2', 'c': '3'}


def test_a_patch_of_the_status_changes_nothing_else(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    new = api.patch(f'{things}/one/status', {
        'spec': {'size': 4}, 'metadata': {'labels': {'a': 'b'}},
        'status': {'phase': 'x'}}).ok
    assert new['spec']['size'] == 3
    assert new['status'] == {'phase': 'x'}
    assert 'labels' not in new['metadata']


def test_a_patch_of_the_object_does_not_change_its_status(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3}, status={'phase': 'a'})).ok
    new = api.patch(f'{things}/one', {'spec': {'size': 4}, 'status': {'phase': 'x'}}).ok
    assert new['spec']['size'] == 4
    assert 'status' not in new


def test_applying_creates_an_object(api, cms):
    answer = api.apply(f'{cms}/one', make('one', data={'a': '1'}))
    assert answer.status == 201
    [entry] = answer.json['metadata']['managedFields']
    assert (entry['manager'], entry['operation']) == ('me', 'Apply')
    assert entry['fieldsV1'] == {'f:data': {'f:a': {}}}


def test_applying_needs_a_manager(api, cms):
    answer = api.patch(f'{cms}/one', make('one'), APPLY)
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueRequired', 'fieldManager')]
    assert answer.messages == ['Required value: is required for apply patch']


@pytest.mark.parametrize(('change', 'shown'), [
    ({'kind': None}, '/v1, Kind='),
    ({'apiVersion': None}, '/, Kind=ConfigMap'),
    ({'kind': 'Other'}, '/v1, Kind=Other'),
    ({'apiVersion': 'x/v2'}, 'x/v2, Kind=ConfigMap'),
])
def test_applied_objects_have_the_type_of_the_resource(api, one, change, shown):
    answer = api.apply(one, {**make('one'), 'apiVersion': 'v1', 'kind': 'ConfigMap', **change})
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == f'invalid object type: {shown}'


def test_builtin_objects_are_patched_without_a_kind(api, one):
    assert api.patch(one, {'kind': None}, MERGE).ok['kind'] == 'ConfigMap'


def test_custom_objects_are_not_patched_without_a_kind(api, free):
    answer = api.patch(free, {'kind': None}, MERGE)
    assert answer.error == (422, 'Invalid')
    assert "Object 'Kind' is missing in '{" in answer['message']


def test_applying_again_removes_what_is_not_told_any_more(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1', 'b': '2'})).ok
    assert api.apply(f'{cms}/one', make('one', data={'b': '2'})).ok['data'] == {'b': '2'}


def test_applying_leaves_what_others_have_set(api, one):
    assert api.apply(one, make('one', data={'c': '3'})).ok['data'] == {
        'a': '1', 'b': '2', 'c': '3'}


def test_applying_over_others_is_a_conflict(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1'}), 'first').ok
    answer = api.apply(f'{cms}/one', make('one', data={'a': '2'}), 'second')
    assert answer.error == (409, 'Conflict')
    assert answer['message'] == 'Apply failed with 1 conflict: conflict with "first": .data.a'
    assert answer.causes == [('FieldManagerConflict', '.data.a')]
    assert answer.messages == ['conflict with "first"']


def test_applying_over_updates_tells_by_what_and_when(api, cms):
    api.post(cms, make('one', data={'a': '1'}), fieldManager='first').ok
    answer = api.apply(f'{cms}/one', make('one', data={'a': '2'}))
    [message] = answer.messages
    assert message.startswith('conflict with "first" using v1')


def test_several_conflicts_are_told_at_once(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1', 'b': '1'}), 'first').ok
    answer = api.apply(f'{cms}/one', make('one', data={'a': '2', 'b': '2'}), 'second')
    assert answer['message'] == (
        'Apply failed with 2 conflicts: conflicts with "first":\n- .data.a\n- .data.b')


def test_conflicts_can_be_forced(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1', 'b': '1'}), 'first').ok
    new = api.apply(f'{cms}/one', make('one', data={'a': '2'}), 'second', force='true').ok
    assert new['data'] == {'a': '2', 'b': '1'}
    owned = {entry['manager']: entry['fieldsV1'] for entry in new['metadata']['managedFields']}
    assert owned == {'first': {'f:data': {'f:b': {}}}, 'second': {'f:data': {'f:a': {}}}}


def test_applying_the_same_value_shares_it(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1'}), 'first').ok
    new = api.apply(f'{cms}/one', make('one', data={'a': '1'}), 'second').ok
    owned = {entry['manager']: entry['fieldsV1'] for entry in new['metadata']['managedFields']}
    assert owned == {'first': {'f:data': {'f:a': {}}}, 'second': {'f:data': {'f:a': {}}}}


def test_a_shared_value_stays_until_nobody_tells_it(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1'}), 'first').ok
    api.apply(f'{cms}/one', make('one', data={'a': '1'}), 'second').ok
    assert api.apply(f'{cms}/one', make('one'), 'first').ok['data'] == {'a': '1'}
    assert not api.apply(f'{cms}/one', make('one'), 'second').ok.get('data')


def test_applying_the_same_again_changes_nothing(api, cms):
    first = api.apply(f'{cms}/one', make('one', data={'a': '1'})).ok
    assert api.apply(f'{cms}/one', make('one', data={'a': '1'})).ok == first


LAST = 'kubectl.kubernetes.io/last-applied-configuration'


def last_applied(name, **data):
    obj = make(name, data=data)
    return {**obj, 'metadata': {**obj['metadata'], 'annotations': {LAST: json.dumps(obj)}}}


def test_kubectl_asks_nobody_for_what_it_has_applied_by_itself(api, cms):
    api.post(cms, last_applied('one', a='1'), fieldManager='kubectl-client-side-apply').ok
    new = make('one', data={'a': '2'})
    assert api.apply(f'{cms}/one', new, 'other').error == (409, 'Conflict')
    applied = api.apply(f'{cms}/one', new, 'kubectl').ok
    assert applied['data'] == {'a': '2'}
    assert json.loads(applied['metadata']['annotations'][LAST]) == new


def test_kubectl_asks_for_what_has_changed_since_it_has_applied_it(api, cms):
    api.post(cms, last_applied('one', a='1', b='1'), fieldManager='kubectl-client-side-apply').ok
    api.patch(f'{cms}/one', {'data': {'a': '5'}}, fieldManager='editor').ok
    answer = api.apply(f'{cms}/one', make('one', data={'a': '2', 'b': '2'}), 'kubectl')
    assert answer.causes == [('FieldManagerConflict', '.data.a')]


def test_only_what_has_to_be_sent_can_be_applied(api, cms):
    answer = api.apply(f'{cms}/one', make('one', metadata={'managedFields': [
        {'manager': 'x', 'operation': 'Apply', 'apiVersion': 'v1'}]}))
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == 'metadata.managedFields must be nil'


def test_lists_of_maps_are_applied_by_their_keys(api, things, kinds):
    path = f'{things}/one'
    api.apply(path, kinds.make('things', 'one', spec={
        'size': 1, 'ports': [{'name': 'a', 'port': 1}]}), 'first').ok
    new = api.apply(path, kinds.make('things', 'one', spec={
        'ports': [{'name': 'b', 'port': 2}]}), 'second').ok
    assert new['spec']['ports'] == [{'name': 'a', 'port': 1, 'protocol': 'TCP'},
                                    {'name': 'b', 'port': 2, 'protocol': 'TCP'}]
    gone = api.apply(path, kinds.make('things', 'one', spec={'size': 1}), 'first').ok
    assert [port['name'] for port in gone['spec']['ports']] == ['b']


def test_sets_are_applied_by_their_values(api, things, kinds):
    path = f'{things}/one'
    api.apply(path, kinds.make('things', 'one', spec={'size': 1, 'tags': ['a', 'b']}), 'first').ok
    new = api.apply(path, kinds.make('things', 'one', spec={'tags': ['b', 'c']}), 'second').ok
    assert sorted(new['spec']['tags']) == ['a', 'b', 'c']


def test_atomic_maps_are_owned_as_a_whole(api, things, kinds):
    path = f'{things}/one'
    api.apply(path, kinds.make('things', 'one', spec={'size': 1, 'atomic': {'a': 'x'}}), 'a').ok
    answer = api.apply(path, kinds.make('things', 'one', spec={'atomic': {'b': 'y'}}), 'b')
    assert answer.causes == [('FieldManagerConflict', '.spec.atomic')]


def test_plain_lists_are_owned_as_a_whole(api, things, kinds):
    path = f'{things}/one'
    api.apply(path, kinds.make('things', 'one', spec={'size': 1, 'items': ['a']}), 'a').ok
    answer = api.apply(path, kinds.make('things', 'one', spec={'items': ['b']}), 'b')
    assert answer.causes == [('FieldManagerConflict', '.spec.items')]


@pytest.mark.parametrize('field', ['ports', 'tags', 'labels', 'any', 'template'])
def test_an_applied_null_leaves_what_others_have_put_there(api, things, kinds, field):
    path = f'{things}/one'
    values = {'ports': [{'name': 'a', 'port': 1, 'protocol': 'TCP'}], 'tags': ['a'],
              'labels': {'a': 'b'}, 'any': {'a': 1}, 'template': {'apiVersion': 'v1', 'kind': 'X'}}
    api.apply(path, kinds.make('things', 'one', spec={'size': 1, **values}), 'first').ok
    for spec in {'size': 1, field: None}, None:
        new = api.apply(path, kinds.make('things', 'one', spec=spec), 'second').ok
        assert new['spec'] == {'size': 1, 'replicas': 1, 'color': 'red', **values}
        assert new['metadata']['generation'] == 1


@pytest.mark.parametrize('field', ['port', 'tags', 'atomic', 'code'])
def test_nulls_are_applied_where_there_is_a_type(api, things, kinds, field):
    answer = api.apply(f'{things}/one', kinds.make('things', 'one', spec={'size': 1, field: None}))
    assert answer.causes == [('FieldValueTypeInvalid', f'spec.{field}')]


def test_nulls_are_dropped_where_there_is_no_type(api, things, kinds):
    new = api.apply(f'{things}/one', kinds.make('things', 'one', spec={'size': 1, 'any': None})).ok
    assert 'any' not in new['spec']


@pytest.mark.parametrize(('field', 'value', 'status', 'message'), [
    ('flag', 'x', 500, 'expected boolean, got &{x}'),
    ('size', True, 500, 'expected numeric (int or float), got bool'),
    ('size', {}, 500, 'expected numeric (int or float), got map[string]interface {}'),
    ('code', 5, 500, 'expected string, got &value.valueUnstructured{Value:5}'),
    ('email', [5], 500, 'expected any scalar, got &{[5]}'),
    ('email', 5, 422, 'spec.email in body must be of type date-time: "int64"'),
])
def test_applied_scalars_have_their_types(api, things, kinds, field, value, status, message):
    answer = api.apply(f'{things}/one', kinds.make('things', 'one', spec={'size': 1, field: value}))
    assert answer.status == status
    assert answer['message'].endswith(message)


def test_the_status_is_applied_by_itself(api, things, kinds):
    path = f'{things}/one'
    api.apply(path, kinds.make('things', 'one', spec={'size': 1})).ok
    new = api.apply(f'{path}/status', kinds.make('things', 'one', status={'phase': 'x'})).ok
    assert new['status'] == {'phase': 'x'}
    entries = [(entry['manager'], entry.get('subresource'))
               for entry in new['metadata']['managedFields']]
    assert sorted(entries, key=str) == [('me', 'status'), ('me', None)]


def test_updates_take_fields_over(api, cms):
    api.apply(f'{cms}/one', make('one', data={'a': '1', 'b': '1'}), 'first').ok
    new = api.patch(f'{cms}/one', {'data': {'a': '2'}}, fieldManager='second').ok
    owned = {(entry['manager'], entry['operation']): entry['fieldsV1']
             for entry in new['metadata']['managedFields']}
    assert owned == {('first', 'Apply'): {'f:data': {'f:b': {}}},
                     ('second', 'Update'): {'f:data': {'f:a': {}}}}


def test_updates_by_the_same_manager_are_one_entry(api, cms):
    api.post(cms, make('one', data={'a': '1'}), fieldManager='me').ok
    new = api.patch(f'{cms}/one', {'data': {'b': '2'}}, fieldManager='me').ok
    [entry] = new['metadata']['managedFields']
    assert entry['fieldsV1'] == {'f:data': {'.': {}, 'f:a': {}, 'f:b': {}}}


def test_the_managers_can_be_forgotten(api, cms):
    api.post(cms, make('one', data={'a': '1'})).ok
    new = api.patch(f'{cms}/one', {'metadata': {'managedFields': [{}]}}).ok
    assert 'managedFields' not in new['metadata']


@pytest.mark.parametrize(('manager', 'message'), [
    ('x' * 129, 'may not be more than 128 bytes'),
    ('a\tb', 'invalid character U+0009 (at position 1)'),
])
def test_managers_have_proper_names(api, cms, manager, message):
    answer = api.post(cms, make('one'), fieldManager=manager)
    assert answer.error == (422, 'Invalid')
    assert message in answer.messages[0]


@pytest.mark.parametrize(('validation', 'status'), [
    ('Strict', 422), ('Warn', 200), ('Ignore', 200)])
def test_unknown_members_of_operations_are_told_as_unknown_fields(api, one, validation, status):
    ops = [{'op': 'add', 'path': '/data/c', 'value': '3', 'extra': 1}]
    answer = api.patch(one, ops, JSONPATCH, fieldValidation=validation)
    told = 'json patch unknown field "[0].extra"'
    assert answer.status == status
    assert answer.headers.get_all('Warning', []) == (
        [f'299 - "{told}"'.replace('"[0].extra"', r'\"[0].extra\"')]
        if validation == 'Warn' else [])
    if validation == 'Strict':
        assert answer['message'].endswith(f': strict decoding error: {told}')


def test_unknown_members_of_operations_are_told_before_unknown_fields(api, one):
    ops = [{'op': 'add', 'path': '/data/c', 'value': '3', 'extra': 1},
           {'op': 'add', 'path': '/bogus', 'value': 1}]
    answer = api.patch(one, ops, JSONPATCH, fieldValidation='Strict')
    assert answer['message'].endswith(
        ': strict decoding error: json patch unknown field "[0].extra", unknown field "bogus"')
