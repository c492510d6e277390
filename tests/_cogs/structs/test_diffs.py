import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.diffs import EMPTY, Diff, DiffItem, DiffOperation, diff, reduce

KEYS = st.sampled_from(['a', 'b', 'c.d'])
PATHS = st.lists(KEYS, max_size=3).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(['', 'x']),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=8)


@pytest.mark.parametrize(('a', 'b', 'expected'), [
    (None, None, []),
    (None, 1, [('add', (), None, 1)]),
    (1, None, [('remove', (), 1, None)]),
    (1, 2, [('change', (), 1, 2)]),
    (1, [1], [('change', (), 1, [1])]),
    ({}, [], [('change', (), {}, [])]),
    (None, {}, [('add', (), None, {})]),
    ({'x': 1}, {'x': 2}, [('change', ('x',), 1, 2)]),
    ({'x': 1}, {}, [('remove', ('x',), 1, None)]),
    ({}, {'x': 1}, [('add', ('x',), None, 1)]),
    ({'x': None}, {}, []),
    ({}, {'x': None}, []),
    ({'x': None}, {'x': 1}, [('add', ('x',), None, 1)]),
    ({'x': 1}, {'x': None}, [('remove', ('x',), 1, None)]),
    ({'x': 1, 'y': 1}, {'x': 1, 'y': 2}, [('change', ('y',), 1, 2)]),
    ({'x': {'y': {'z': 1}}}, {'x': {'y': {'z': 2}}}, [('change', ('x', 'y', 'z'), 1, 2)]),
    ({'x': {'y': 1}}, {'x': {'y': 1, 'z': 2}}, [('add', ('x', 'z'), None, 2)]),
    ({'x': {'y': 1, 'z': 2}}, {'x': {'y': 1}}, [('remove', ('x', 'z'), 2, None)]),
    ({'x': {'y': 1}}, {'x': None}, [('remove', ('x',), {'y': 1}, None)]),
    ({'x': {'y': 1}}, {'x': 1}, [('change', ('x',), {'y': 1}, 1)]),
    ({'x': [1, 2]}, {'x': [1, 3]}, [('change', ('x',), [1, 2], [1, 3])]),
    ({'x': [{'y': 1}]}, {'x': [{'y': 2}]}, [('change', ('x',), [{'y': 1}], [{'y': 2}])]),
])
def test_changes_of_values_are_told_with_their_fields(a, b, expected):
    assert diff(a, b) == expected


def test_items_and_operations_are_shown_as_tuples_and_strings():
    assert repr(diff({'a': 1}, {'a': 2})) == "(('change', ('a',), 1, 2),)"
    assert repr(DiffItem('add', ('a',), None, 1)) == "('add', ('a',), None, 1)"
    assert repr(DiffOperation.REMOVE) == "'remove'"


def test_additions_go_before_removals_and_these_before_changes_by_the_order_of_keys():
    a = {'z': 1, 'y': 1, 'gone2': 1, 'gone1': 1}
    b = {'new2': 1, 'y': 2, 'z': 2, 'new1': 1}
    assert [(item.op.value, *item.field) for item in diff(a, b)] == [
        ('add', 'new2'), ('add', 'new1'), ('remove', 'gone2'), ('remove', 'gone1'),
        ('change', 'z'), ('change', 'y')]


@given(value=VALUES)
def test_nothing_differs_from_itself(value):
    assert not diff(value, copy.deepcopy(value))


@given(a=VALUES, b=VALUES)
def test_values_differ_only_if_they_are_not_equal_where_none_is_absence(a, b):
    assert bool(diff(a, b)) == (without_nones(a) != without_nones(b))


@given(a=VALUES, b=VALUES)
def test_the_new_value_is_the_old_one_with_the_changes_applied(a, b):
    assert without_nones(apply(diff(a, b), a)) == without_nones(b)


@given(a=VALUES, b=VALUES)
def test_the_old_value_is_the_new_one_with_the_opposite_changes_applied(a, b):
    assert without_nones(apply(diff(b, a), b)) == without_nones(a)


@given(a=VALUES, b=VALUES)
def test_the_items_tell_what_the_values_were_and_have_become(a, b):
    for item in diff(a, b):
        assert item.old == find(a, item.field)
        assert item.new == find(b, item.field)


@given(a=VALUES, b=VALUES)
def test_the_operations_tell_whether_there_was_and_is_anything(a, b):
    for op, _, old, new in diff(a, b):
        assert op == {
            (True, False): DiffOperation.ADD,
            (False, True): DiffOperation.REMOVE,
            (False, False): DiffOperation.CHANGE,
        }[old is None, new is None]


@given(a=VALUES, b=VALUES)
def test_no_field_is_told_of_twice_nor_together_with_what_is_above_it(a, b):
    fields = [item.field for item in diff(a, b)]
    for i, field in enumerate(fields):
        for other in fields[:i] + fields[i + 1:]:
            assert field[:len(other)] != other


@given(a=VALUES, b=VALUES)
def test_the_values_are_not_changed_by_comparing_them(a, b):
    before = copy.deepcopy((a, b))
    diff(a, b)
    assert (a, b) == before


@pytest.mark.parametrize(('a', 'b', 'path', 'expected'), [
    ({'x': 1, 'y': 1}, {'x': 2, 'y': 2}, ('x',), [('change', (), 1, 2)]),
    ({'x': {'y': 1}}, {'x': {'y': 2}}, ('x',), [('change', ('y',), 1, 2)]),
    ({'x': {'y': 1}}, {'x': {'y': 2}}, ('x', 'y'), [('change', (), 1, 2)]),
    ({'x': {'y': 1}}, {'x': {'y': 2}}, ('y',), []),
    ({'x': {'y': 1}}, {'x': {'y': 2}}, ('x', 'z'), []),
    # the parent is added, removed, or changed
    (None, {'x': {'y': 1, 'z': 2}}, ('x', 'y'), [('add', (), None, 1)]),
    ({'x': {'y': 1, 'z': 2}}, {}, ('x', 'y'), [('remove', (), 1, None)]),
    ({'x': 0}, {'x': {'y': {'z': 2}}}, ('x', 'y'), [('add', (), None, {'z': 2})]),
    ({'x': 0}, {'x': {'y': 1}}, ('x', 'z'), []),
])
def test_changes_of_a_field_and_of_what_is_above_it_are_told_from_the_field_on(
        a, b, path, expected,
):
    assert reduce(diff(a, b), path) == expected


@given(a=VALUES, b=VALUES, path=PATHS)
def test_a_reduced_diff_is_the_diff_of_the_field(a, b, path):
    assert reduce(diff(a, b), path) == diff(find(a, path), find(b, path))


@given(a=VALUES, b=VALUES, path=PATHS, subpath=PATHS)
def test_a_diff_reduced_twice_is_as_if_it_were_reduced_at_once(a, b, path, subpath):
    reduced = reduce(reduce(diff(a, b), path), subpath)
    assert reduced == reduce(diff(a, b), (*path, *subpath))


@given(a=VALUES, b=VALUES)
def test_a_diff_reduced_to_nothing_in_particular_is_the_same(a, b):
    d = diff(a, b)
    assert reduce(d, ()) is d


@given(a=VALUES, b=VALUES)
def test_diffs_equal_their_items_in_other_sequences(a, b):
    d = diff(a, b)
    assert d == tuple(d) == Diff(d) == list(d)
    assert [d[i] for i in range(len(d))] == list(d[:]) == list(d)


def test_equal_diffs_have_equal_hashes():
    items = [DiffItem(DiffOperation.ADD, ('x',), None, 1)]
    assert hash(Diff(items)) == hash(Diff(items))


def test_diffs_equal_nothing_else():
    assert (diff(1, 2) == 'change') is False
    assert (diff(1, 2) == 12) is False
    assert diff(1, 2) != diff(1, 3)


def test_empty_diffs_are_falsy():
    assert not EMPTY
    assert EMPTY == ()


def test_items_are_tuples_with_the_operation_as_a_string():
    [item] = diff({'x': 1}, {'x': 2})
    assert item == ('change', ('x',), 1, 2)
    assert item.op == item.operation == 'change'
    assert (item.field, item.old, item.new) == (('x',), 1, 2)


def test_diffs_are_shown_as_their_items():
    assert repr(diff({'x': 1}, {'x': 2})) == "(('change', ('x',), 1, 2),)"


def apply(changes, value):
    """The plain model of what changes mean."""
    for _, field, _, new in changes:
        value = put(value, field, new)
    return value


def put(value, path, new):
    if not path:
        return new
    value = dict(value)
    child = put(value.get(path[0], {}), path[1:], new)
    if child is None:
        del value[path[0]]
    else:
        value[path[0]] = child
    return value


def find(value, path):
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def without_nones(value):
    if isinstance(value, dict):
        return {key: without_nones(val) for key, val in value.items() if val is not None}
    return value
