import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.dicts import (
    MappingView,
    MutableMappingView,
    ensure,
    parse_field,
    remove,
    resolve,
    without,
)

KEYS = st.sampled_from(['a', 'b', 'c.d', ''])
PATHS = st.lists(KEYS, min_size=1, max_size=4).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5)
DICTS = st.dictionaries(KEYS, VALUES, max_size=3)


@pytest.mark.parametrize(('spec', 'path'), [
    (None, ()),
    ('', ()),
    ((), ()),
    ([], ()),
    ('spec', ('spec',)),
    ('spec.field', ('spec', 'field')),
    (('spec', 'field'), ('spec', 'field')),
    (['spec', 'field'], ('spec', 'field')),
    (['metadata', 'labels', 'dotted.key/name'], ('metadata', 'labels', 'dotted.key/name')),
])
def test_fields_are_named_by_dotted_strings_or_by_sequences_of_keys(spec, path):
    assert parse_field(spec) == path


@pytest.mark.parametrize('spec', [1, b'spec', {'spec': 1}, ('spec', 1), ['spec', None], object()])
def test_anything_else_names_no_field(spec):
    with pytest.raises(ValueError, match='A field must be'):
        parse_field(spec)


@given(path=PATHS)
def test_a_parsed_field_names_the_same_field(path):
    assert parse_field(parse_field(list(path))) == path


@given(d=DICTS)
def test_no_field_is_the_whole_object(d):
    assert resolve(d, None) is d


@pytest.mark.parametrize(('d', 'path', 'value'), [
    ({'a': {'b': 1}}, 'a.b', 1),
    ({'a': {'b': None}}, 'a.b', None),
    ({'a': {'b': False}}, ('a', 'b'), False),
    ({'a.b': 1}, ['a.b'], 1),
    (MappingView({'a': MappingView({'b': 1})}), 'a.b', 1),
])
def test_present_fields_are_resolved_to_their_values(d, path, value):
    assert resolve(d, path) is value
    assert resolve(d, path, 'default') is value


@pytest.mark.parametrize(
    'd', [{}, {'a': {}}, {'a': None}, {'a': 1}, {'a': 'b'}, {'a': ['b']}, None])
def test_absent_fields_are_resolved_to_the_default_if_there_is_one(d):
    assert resolve(d, 'a.b', 'default') == 'default'
    assert resolve(d, 'a.b', None) is None


@pytest.mark.parametrize('d', [{}, {'a': {}}, {'a': None}, {'a': 1}, None])
def test_absent_fields_without_a_default_are_errors_with_their_names(d):
    with pytest.raises(KeyError, match=r'a\.b'):
        resolve(d, 'a.b')


@pytest.mark.parametrize(('d', 'path', 'expected'), [
    ({}, 'a', {'a': 9}),
    ({'a': 1}, 'a', {'a': 9}),
    ({}, 'a.b', {'a': {'b': 9}}),
    ({'a': {'b': 1}}, 'a.c', {'a': {'b': 1, 'c': 9}}),
    ({'a': 1}, 'a.b', {'a': {'b': 9}}),
    ({'a': None}, 'a.b', {'a': {'b': 9}}),
    ({'a': ['b']}, 'a.b', {'a': {'b': 9}}),
])
def test_what_is_put_in_replaces_only_what_is_no_dict(d, path, expected):
    ensure(d, path, 9)
    assert d == expected


def test_what_is_put_into_a_mutable_view_is_put_to_where_it_looks():
    source = {'x': {'y': 1}}
    d = {'a': MutableMappingView(source, 'x')}
    ensure(d, 'a.z', 9)
    assert source == {'x': {'y': 1, 'z': 9}}
    remove(d, 'a.y')
    assert source == {'x': {'z': 9}}
    MutableMappingView(d, 'a')['w'] = 8
    assert source == {'x': {'z': 9, 'w': 8}}


@pytest.mark.parametrize(('d', 'path', 'expected'), [
    ({'a': 1, 'b': 2}, 'a', {'b': 2}),
    ({'a': {'b': {'c': 1}}}, 'a.b.c', {}),
    ({'a': {'b': {'c': 1}}}, 'a.b', {}),
    ({'a': {'b': {'c': 1, 'd': 2}}}, 'a.b.c', {'a': {'b': {'d': 2}}}),
    ({'a': {'b': {'c': 1}, 'd': 2}}, 'a.b.c', {'a': {'d': 2}}),
    ({'a': {'b': {'c': 1}}, 'd': 2}, 'a.b.c', {'d': 2}),
    ({'a': {'b': {'c': 1}}}, 'a.b.x', {'a': {'b': {'c': 1}}}),
    ({'a': {}}, 'a.b', {'a': {}}),
    ({'a': 1}, 'a.b', {'a': 1}),
])
def test_parents_that_become_empty_are_removed_and_no_others(d, path, expected):
    remove(d, path)
    assert d == expected


@given(d=DICTS, path=PATHS, value=VALUES)
def test_what_is_put_in_is_there(d, path, value):
    ensure(d, path, value)
    assert resolve(d, path) is value


@given(d=DICTS, path=PATHS, value=VALUES)
def test_what_is_put_in_changes_nothing_beside_it(d, path, value):
    before = get_leaves(copy.deepcopy(d))
    beside = {
        other: val for other, val in before.items()
        if other[:len(path)] != path and other != path[:len(other)]}
    ensure(d, path, value)
    assert get_leaves(d) == beside | {(*path, *sub): val for sub, val in get_leaves(value).items()}


@given(d=DICTS, path=PATHS)
def test_what_is_removed_is_not_there_nor_are_the_parents_that_it_leaves_empty(d, path):
    left = {other: val for other, val in get_leaves(d).items() if other[:len(path)] != path}
    remove(d, path)
    assert get_leaves(d) == (left or {(): {}})


@given(d=DICTS, path=PATHS)
def test_removing_what_is_absent_changes_nothing(d, path):
    before = copy.deepcopy(d)
    if resolve(d, path, 'absent') == 'absent':
        remove(d, path)
        assert d == before


@given(d=DICTS, path=st.just(()) | PATHS)
def test_copies_are_without_what_would_be_removed(d, path):
    before = copy.deepcopy(d)
    left = {other: val for other, val in get_leaves(d).items() if other[:len(path)] != path}
    copied = without(d, path)
    assert d == before
    assert (copied is d) == (copied == d)
    if path and not any(val == {} for val in left.values()):
        assert get_leaves(copied) == (left or {(): {}})


@pytest.mark.parametrize(('d', 'path', 'expected'), [
    ({'a': {}}, ('a', 'b'), {}),
    ({'a': {'b': {}}, 'c': 1}, ('a', 'b', 'd'), {'c': 1}),
    ({'a': 1}, ('a', 'b'), {'a': 1}),
    ({'a': None}, ('a', 'b'), {'a': None}),
    ({'a': 1}, (), {'a': 1}),
])
def test_copies_are_also_without_parents_that_were_empty_before(d, path, expected):
    assert without(d, path) == expected


@pytest.mark.parametrize('fn', [lambda d: ensure(d, '', 1), lambda d: remove(d, ())])
def test_the_whole_object_can_be_neither_set_nor_removed(fn):
    with pytest.raises(ValueError, match='whole object'):
        fn({'a': 1})


@given(d=DICTS, path=PATHS)
def test_views_are_equal_to_what_they_show(d, path):
    value = resolve(d, path, None)
    assert MappingView(d, path) == (value if isinstance(value, dict) else {})


@given(d=DICTS, path=PATHS, key=KEYS)
def test_views_know_the_same_keys_as_what_they_show(d, path, key):
    value = resolve(d, path, None)
    shown = value if isinstance(value, dict) else {}
    view = MappingView(d, path)
    assert (list(view), len(view), bool(view)) == (list(shown), len(shown), bool(shown))
    assert (key in view, view.get(key, 'none')) == (key in shown, shown.get(key, 'none'))


def test_views_show_what_is_there_now():
    d = {}
    view = MappingView(d, 'spec.field')
    assert dict(view) == {}
    d['spec'] = {'field': {'a': 1}}
    assert dict(view) == {'a': 1}
    d['spec'] = None
    assert dict(view) == {}


def test_views_of_views_show_what_is_there_now():
    d = {}
    view = MappingView(MappingView(d, 'spec'), 'field')
    d['spec'] = {'field': {'a': 1}}
    assert dict(view) == {'a': 1}


def test_views_show_what_is_in_views():
    view = MappingView({'a': MappingView({'b': 1})}, 'a')
    assert dict(view) == {'b': 1}
    assert 'b' in view
    assert 'c' not in view


def test_views_are_shown_as_dicts():
    assert repr(MappingView({'a': {'b': 1}}, 'a')) == "{'b': 1}"
    assert repr(MappingView(MappingView({'a': {'b': 1}}), 'a')) == "{'b': 1}"
    assert repr(MappingView({'a': MappingView({'b': 1})}, 'a')) == "{'b': 1}"


def test_missing_keys_of_views_are_errors():
    with pytest.raises(KeyError, match='key'):
        MappingView({}, 'spec')['key']


def test_views_cannot_be_written_to():
    with pytest.raises(TypeError):
        MappingView({'spec': {}}, 'spec')['key'] = 1


@given(d=DICTS, path=PATHS, key=KEYS, value=VALUES)
def test_writing_to_a_mutable_view_is_writing_to_what_it_shows(d, path, key, value):
    expected = copy.deepcopy(d)
    ensure(expected, (*path, key), value)
    MutableMappingView(d, path)[key] = value
    assert d == expected


@given(d=DICTS, path=PATHS)
def test_reading_from_a_mutable_view_creates_nothing(d, path):
    before = copy.deepcopy(d)
    view = MutableMappingView(d, path)
    assert view.get('key') is None
    assert dict(view) == resolve(d, path, None) or not dict(view)
    assert d == before


@given(d=DICTS, path=PATHS, key=KEYS)
def test_deleting_from_a_mutable_view_leaves_its_stanza(d, path, key):
    view = MutableMappingView(d, path)
    view[key] = 1
    view['other'] = 2
    del view[key]
    assert key not in view
    assert resolve(d, path)['other'] == 2


def test_deleting_what_is_absent_from_a_mutable_view_is_an_error():
    d = {}
    with pytest.raises(KeyError, match='key'):
        del MutableMappingView(d, 'spec')['key']
    assert d == {}


def get_leaves(value, path=()):
    """The plain model of nested dicts: all their innermost values (or empty dicts) by the paths."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {
        subpath: leaf for key, val in value.items()
        for subpath, leaf in get_leaves(val, (*path, key)).items()}
