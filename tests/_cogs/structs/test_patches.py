import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, combine, make_json_patch, merge

KEYS = st.sampled_from(['a', 'b', 'x/y', 'x~y', '~1', ''])
SCALARS = st.booleans() | st.integers(0, 1) | st.sampled_from(['', 'x'])
DOCUMENTS = st.dictionaries(KEYS, st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=2) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5), max_size=3)
PATCHES = st.dictionaries(KEYS, st.recursive(
    st.none() | SCALARS | st.lists(SCALARS, max_size=2),
    lambda values: st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5), max_size=3)


@pytest.mark.parametrize(('target', 'patch', 'result'), [
    ({'a': 'b'}, {'a': 'c'}, {'a': 'c'}),
    ({'a': 'b'}, {'b': 'c'}, {'a': 'b', 'b': 'c'}),
    ({'a': 'b'}, {'a': None}, {}),
    ({'a': 'b', 'b': 'c'}, {'a': None}, {'b': 'c'}),
    ({'a': ['b']}, {'a': 'c'}, {'a': 'c'}),
    ({'a': 'c'}, {'a': ['b']}, {'a': ['b']}),
    ({'a': {'b': 'c'}}, {'a': {'b': 'd', 'c': None}}, {'a': {'b': 'd'}}),
    ({'a': [{'b': 'c'}]}, {'a': [1]}, {'a': [1]}),
    ({'e': None}, {'a': 1}, {'e': None, 'a': 1}),
    ([1, 2], {'a': 'b', 'c': None}, {'a': 'b'}),
    ({}, {'a': {'bb': {'ccc': None}}}, {'a': {'bb': {}}}),
    (None, {'a': 1}, {'a': 1}),
])
def test_merge_patches_are_applied_as_the_rfc_7396_has_it(target, patch, result):
    assert merge(target, patch) == result


@given(target=DOCUMENTS, patch=PATCHES)
def test_nothing_is_changed_in_place_by_merging(target, patch):
    before = copy.deepcopy((target, patch))
    merge(target, patch)
    assert (target, patch) == before


@given(target=DOCUMENTS, patch=PATCHES)
def test_what_is_not_patched_is_shared_with_the_target(target, patch):
    result = merge(target, patch)
    assert all(result[key] is target[key] for key in target.keys() - patch.keys())


@given(target=DOCUMENTS, patch=PATCHES)
def test_merging_again_changes_nothing(target, patch):
    result = merge(target, patch)
    assert dump(merge(result, patch)) == dump(result)


@given(target=DOCUMENTS, first=PATCHES, second=PATCHES)
def test_a_combined_patch_does_the_same_as_both_one_after_another(target, first, second):
    combined = combine(first, second)
    if combined is not None:
        assert dump(merge(target, combined)) == dump(merge(merge(target, first), second))


@given(patch=PATCHES)
def test_patches_are_combined_with_empty_ones_to_themselves(patch):
    assert combine(patch, {}) == patch
    assert combine({}, patch) == patch


@given(first=PATCHES, second=PATCHES)
def test_nothing_is_changed_in_place_by_combining(first, second):
    before = copy.deepcopy((first, second))
    combine(first, second)
    assert (first, second) == before


@pytest.mark.parametrize('value', [None, 1, 'x', [{}]])
def test_what_is_replaced_by_a_dict_after_something_else_cannot_be_combined(value):
    assert combine({'a': value}, {'a': {'b': 1}}) is None
    assert combine({'x': {'a': value}}, {'x': {'a': {}}}) is None


@given(first=PATCHES, second=PATCHES)
def test_patches_are_not_combined_only_if_old_keys_could_survive_in_the_result(first, second):
    if combine(first, second) is None:
        assert has_dicts_over_others(first, second)


@given(a=DOCUMENTS, b=DOCUMENTS)
def test_json_patches_make_the_one_document_of_the_other(a, b):
    assert dump(apply_json_patch(a, make_json_patch(a, b))) == dump(b)


@given(a=DOCUMENTS)
def test_json_patches_of_equal_documents_are_empty(a):
    assert make_json_patch(a, copy.deepcopy(a)) == []


def test_json_patches_of_documents_that_were_parsed_twice_are_empty():
    text = '{"a": 1.5, "b": [1.5, {"c": 1000000}], "d": {"e": 1000000}}'
    assert make_json_patch(json.loads(text), json.loads(text)) == []


@given(a=DOCUMENTS, b=DOCUMENTS)
def test_json_patches_name_no_path_twice(a, b):
    paths = [op['path'] for op in make_json_patch(a, b)]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(('a', 'b', 'ops'), [
    ({}, {'a': 1}, [{'op': 'add', 'path': '/a', 'value': 1}]),
    ({'a': 1}, {}, [{'op': 'remove', 'path': '/a'}]),
    ({'a': 1}, {'a': 2}, [{'op': 'replace', 'path': '/a', 'value': 2}]),
    ({'a': 1}, {'a': None}, [{'op': 'replace', 'path': '/a', 'value': None}]),
    ({'a': 1}, {'a': True}, [{'op': 'replace', 'path': '/a', 'value': True}]),
    ({'a': {'b/c': 1}}, {'a': {'b/c': 2}}, [{'op': 'replace', 'path': '/a/b~1c', 'value': 2}]),
    ({'a': {'b~c': 1}}, {'a': {}}, [{'op': 'remove', 'path': '/a/b~0c'}]),
    ({'a~1b': 1}, {}, [{'op': 'remove', 'path': '/a~01b'}]),
    ({'a': [1, 2]}, {'a': [1, 3]}, [{'op': 'replace', 'path': '/a', 'value': [1, 3]}]),
    ({'a': [1]}, {'a': [True]}, [{'op': 'replace', 'path': '/a', 'value': [True]}]),
    ({'a': [{'b': 0}]}, {'a': [{'b': False}]}, [
        {'op': 'replace', 'path': '/a', 'value': [{'b': False}]}]),
    ({'a': [{'b': 1}]}, {'a': [{'b': 1, 'c': 2}]}, [
        {'op': 'replace', 'path': '/a', 'value': [{'b': 1, 'c': 2}]}]),
    ({'a': [{'b': 1}]}, {'a': [{'c': 1}]}, [
        {'op': 'replace', 'path': '/a', 'value': [{'c': 1}]}]),
    ({'a': 'x'}, {'a': ['x']}, [{'op': 'replace', 'path': '/a', 'value': ['x']}]),
    ({'a': {'b': 1}}, {'a': 1}, [{'op': 'replace', 'path': '/a', 'value': 1}]),
])
def test_json_patches_are_as_small_as_possible_but_for_lists(a, b, ops):
    assert make_json_patch(a, b) == ops


@given(body=DOCUMENTS, patch=PATCHES)
def test_patches_become_json_patches_of_the_body_they_were_made_with(body, patch):
    ops = Patch(patch, body=Body(body)).as_json_patch()
    assert dump(apply_json_patch(body, ops)) == dump(merge(body, patch))


@given(body=DOCUMENTS, other=DOCUMENTS, patch=PATCHES)
def test_patches_become_json_patches_of_any_other_body(body, other, patch):
    ops = Patch(patch, body=Body(body)).as_json_patch(other)
    assert dump(apply_json_patch(other, ops)) == dump(merge(other, patch))


def test_patches_without_any_body_are_not_converted():
    with pytest.raises(ValueError, match='no body is known'):
        Patch({'spec': {}}).as_json_patch()


def test_functions_are_called_after_merging_one_after_another():
    patch = Patch({'spec': {'list': [1]}})
    patch.fns.append(lambda body: body['spec']['list'].append(2))
    patch.fns.append(lambda body: body['spec']['list'].append(len(body['spec']['list'])))
    assert patch.apply({'spec': {'x': 'y'}}) == {'spec': {'x': 'y', 'list': [1, 2, 2]}}


def test_functions_change_neither_the_body_nor_the_patch():
    body = {'spec': {'nested': {'list': []}}}
    patch = Patch({'status': {'list': []}}, fns=[
        lambda body: body['spec']['nested']['list'].append(1),
        lambda body: body['status']['list'].append(1),
    ])
    assert patch.apply(body) == {'spec': {'nested': {'list': [1]}}, 'status': {'list': [1]}}
    assert body == {'spec': {'nested': {'list': []}}}
    assert patch == {'status': {'list': []}}


def test_functions_become_json_patches():
    patch = Patch(fns=[lambda body: body['metadata']['finalizers'].remove('b')])
    assert patch.as_json_patch({'metadata': {'finalizers': ['a', 'b']}}) == [
        {'op': 'replace', 'path': '/metadata/finalizers', 'value': ['a']}]


@pytest.mark.parametrize('body', [{'metadata': {}}, Body({'metadata': {}})])
def test_functions_get_plain_dicts_whatever_the_body_is(body):
    patch = Patch(fns=[lambda body: body.update(type=type(body['metadata']).__name__)])
    assert patch.apply(body)['type'] == 'dict'


def test_patches_are_true_if_there_is_anything_to_be_done():
    assert not Patch()
    assert Patch({'spec': {}})
    assert Patch(fns=[print])


def test_clearing_a_patch_takes_its_functions_too():
    patch = Patch({'spec': {}}, fns=[print])
    patch.clear()
    assert not patch
    assert patch.fns == []


def test_patches_made_of_patches_have_their_functions_and_their_body():
    patch = Patch(Patch({'spec': {'a': 1}}, body=Body({}), fns=[print]), fns=[repr])
    assert patch.fns == [print, repr]
    assert Patch(Patch({'a': 1}, body=Body({}))).as_json_patch() == [
        {'op': 'add', 'path': '/a', 'value': 1}]


def test_patches_made_of_patches_can_be_for_another_body():
    patch = Patch(Patch({'a': 1}, body=Body({})), body=Body({'a': 0}))
    assert patch.as_json_patch() == [{'op': 'replace', 'path': '/a', 'value': 1}]


@pytest.mark.parametrize('name', [
    'metadata', 'meta', 'spec', 'status', 'meta.labels', 'meta.annotations'])
def test_stanzas_are_not_assigned_which_is_told(name):
    patch = Patch()
    *parents, attribute = name.split('.')
    target = getattr(patch, parents[0]) if parents else patch
    with pytest.raises(AttributeError, match=rf"^patch\.{name} cannot be assigned"):
        setattr(target, attribute, {})
    assert patch == {}


def test_stanzas_are_made_when_something_is_put_into_them():
    patch = Patch()
    patch.spec['field'] = 1
    patch.status['field'] = 2
    patch.meta['field'] = 3
    patch.meta.labels['label'] = 'a'
    patch.metadata.annotations['annotation'] = None
    assert patch == {
        'spec': {'field': 1},
        'status': {'field': 2},
        'metadata': {'field': 3, 'labels': {'label': 'a'}, 'annotations': {'annotation': None}},
    }


def test_stanzas_are_not_made_by_looking_at_them():
    patch = Patch()
    assert (dict(patch.spec), dict(patch.status), dict(patch.meta.labels)) == ({}, {}, {})
    assert patch == {}


def test_stanzas_that_were_taken_before_show_what_is_put_in_later():
    patch = Patch()
    status = patch.status
    patch['status'] = {'field': 1}
    assert status['field'] == 1


def test_patches_are_shown_with_their_functions():
    assert repr(Patch({'spec': {}})) == "{'spec': {}}"
    assert 'fns=[<built-in function print>]' in repr(Patch(fns=[print]))


def dump(value):
    """JSON tells 1 from true, Python does not."""
    return json.dumps(value, sort_keys=True)


def apply_json_patch(document, ops):
    """The plain model of JSON patches (RFC 6902), as far as dicts are concerned."""
    document = copy.deepcopy(document)
    for op in ops:
        assert op['path'].startswith('/')
        *parents, key = [
            token.replace('~1', '/').replace('~0', '~') for token in op['path'].split('/')[1:]]
        target = document
        for parent in parents:
            target = target[parent]
        match op['op']:
            case 'add':
                target[key] = op['value']
            case 'remove':
                del target[key]
            case 'replace':
                assert key in target
                target[key] = op['value']
            case other:
                raise AssertionError(other)
    return document


def has_dicts_over_others(first, second):
    return any(
        has_dicts_over_others(first[key], val) if isinstance(first[key], dict) else True
        for key, val in second.items() if isinstance(val, dict) and key in first)


def test_misspelled_parts_are_errors():
    with pytest.raises(AttributeError, match='stauts'):
        Patch().stauts = {'field': 'value'}


def test_functions_of_patches_cannot_be_async():
    async def fn(body):
        raise AssertionError

    with pytest.raises(TypeError, match="is async"):
        Patch(fns=[fn]).apply({})


def test_functions_of_patches_cannot_return_new_bodies():
    body = {'kind': 'KopfExample', 'metadata': {'name': 'obj'}, 'spec': {}}
    with pytest.raises(TypeError, match="returns a new body.*in place"):
        Patch(fns=[lambda body: {**body, 'spec': {'field': 'value'}}]).apply(body)


@pytest.mark.parametrize('fn', [
    lambda body: body,
    lambda body: dict(body),
    lambda body: body['spec'].setdefault('template', {'metadata': {}}),
    lambda body: body['metadata'].setdefault('labels', {}),
    lambda body: body['spec'].get('field'),
])
def test_functions_of_patches_can_return_anything_else(fn):
    Patch(fns=[fn]).apply({'kind': 'KopfExample', 'metadata': {'name': 'obj'}, 'spec': {}})
