import copy
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kopf._kits.sandbox import patching, statuses
from tests._kits.sandbox import recorded

KEYS = st.sampled_from(['a', 'b', 'c', 'a/b', 'm~n', ''])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=2)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
PATHS = st.lists(KEYS | st.sampled_from(['0', '1', '-', '-1']), min_size=1, max_size=3).map(
    lambda keys: ''.join('/' + key.replace('~', '~0').replace('/', '~1') for key in keys))
OPS = st.lists(st.one_of(
    st.fixed_dictionaries({'op': st.sampled_from(['add', 'replace']), 'path': PATHS,
                           'value': VALUES}),
    st.fixed_dictionaries({'op': st.just('remove'), 'path': PATHS}),
    st.fixed_dictionaries({'op': st.sampled_from(['move', 'copy']), 'path': PATHS, 'from': PATHS}),
), max_size=5)


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


@given(OBJECTS)
def test_an_empty_merge_patch_changes_nothing(obj):
    assert patching.apply_merge_patch(obj, {}) == obj


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_is_applied_twice_as_once(obj, patch):
    once = patching.apply_merge_patch(obj, patch)
    assert patching.apply_merge_patch(once, patch) == once


@given(OBJECTS)
def test_a_merge_patch_to_nothing_is_itself_without_its_nulls(patch):
    assert patching.apply_merge_patch({}, patch) == without_nulls(patch)


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_leaves_no_nulls_of_its_own(obj, patch):
    result = patching.apply_merge_patch(obj, patch)
    for key, value in patch.items():
        assert (key in result) == (value is not None)


@given(OBJECTS, OBJECTS, OPS)
def test_patches_change_neither_the_object_nor_themselves(obj, patch, ops):
    before = copy.deepcopy((obj, patch, ops))
    patching.apply_merge_patch(obj, patch)
    try:
        patching.apply_json_patch(obj, ops)
    except statuses.APIError:
        pass
    assert (obj, patch, ops) == before


@given(OBJECTS, OPS)
def test_a_json_patch_yields_a_document_of_no_shared_parts_that_change(obj, ops):
    """Each operation alone, on copies, gives the same as all together on shared structures."""
    try:
        expected = copy.deepcopy(obj)
        for op in ops:
            expected = copy.deepcopy(patching.apply_json_patch(expected, [copy.deepcopy(op)]))
    except statuses.APIError:
        with pytest.raises(statuses.APIError):
            patching.apply_json_patch(obj, ops)
        return
    assert patching.apply_json_patch(obj, ops) == expected


@given(OBJECTS, KEYS, VALUES)
def test_what_is_added_is_there_and_removed_is_gone(obj, key, value):
    path = '/' + key.replace('~', '~0').replace('/', '~1')
    added = patching.apply_json_patch(obj, [{'op': 'add', 'path': path, 'value': value},
                                            {'op': 'test', 'path': path, 'value': value}])
    assert added == {**obj, key: value}
    assume(key not in obj)
    assert patching.apply_json_patch(added, [{'op': 'remove', 'path': path}]) == obj


@pytest.mark.parametrize(
    'row', recorded.load('jsonpatches'), ids=lambda row: json.dumps(row['ops'])[:80])
def test_a_json_patch_does_what_it_does_in_the_real_api(row):
    obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'a'},
           'data': {'x': '1', 'y': '2'}}
    if row['code'] != 200:
        with pytest.raises(statuses.APIError) as e:
            patching.apply_json_patch(obj, row['ops'])
        assert (e.value.code, e.value.message) == (row['code'], row['answer'])
    else:
        result = patching.apply_json_patch(obj, row['ops'])
        assert result.get('data') == row['answer']['data']
        for key in ('labels', 'finalizers'):
            assert (result['metadata'].get(key) or None) == row['answer'][key]


@pytest.mark.parametrize('one, two', [(1, 1.0), (1, True), (0, False), ('1', 1), (None, False)])
def test_values_of_different_types_are_not_the_same(one, two):
    with pytest.raises(statuses.Invalid):
        patching.apply_json_patch({'a': one}, [{'op': 'test', 'path': '/a', 'value': two}])


def test_too_many_operations_are_refused():
    with pytest.raises(statuses.APIError, match="is 10000, got 10001") as e:
        patching.apply_json_patch({}, [{'op': 'add', 'path': '/a', 'value': 1}] * 10_001)
    assert e.value.code == 413


def test_copies_cannot_grow_without_bounds():
    ops = [{'op': 'copy', 'from': '/a', 'path': '/a/-'}] * 100
    with pytest.raises(statuses.APIError) as e:
        patching.apply_json_patch({'a': ['x' * 100]}, ops)
    assert e.value.code in (400, 413)


def test_unknown_members_of_operations_are_told():
    ops = [{'op': 'add', 'path': '/a'}, {'op': 'add', 'path': '/b', 'extra': 1}]
    assert patching.find_unknown_members(ops) == ['[1].extra']


@pytest.mark.parametrize('patch, text', [
    ([], "error decoding patch: json: cannot unmarshal array into Go value of type "
         "map[string]interface {}"),
    (5, "error decoding patch: json: cannot unmarshal number into Go value of type "
        "map[string]interface {}"),
    (None, "Invalid JSON Patch"),
])
def test_a_merge_patch_is_an_object(patch, text):
    with pytest.raises(statuses.BadRequest) as e:
        patching.apply_merge_patch({}, patch)
    assert e.value.message == text
