"""
What holds for all schemas and all objects.
"""
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.sandbox import applying, patching, schemas, statuses
from kopf._kits.sandbox.schemas import nodes, patterns

KEYS = st.sampled_from('abcd')
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(['', 'x', 'yy'])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
LEAVES = st.sampled_from([
    {'type': 'string'}, {'type': 'string', 'default': 'x'}, {'type': 'integer', 'default': 1},
    {'type': 'integer', 'minimum': 0}, {'type': 'boolean'}, {'type': 'string', 'nullable': True},
    {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
    {'x-kubernetes-preserve-unknown-fields': True}, {'x-kubernetes-int-or-string': True},
    {'type': 'string', 'enum': ['x', 'yy'], 'default': 'yy'},
])
SCHEMAS = st.recursive(LEAVES, lambda inner: st.one_of(
    st.builds(lambda items: {'type': 'array', 'items': items}, inner),
    st.builds(lambda value: {'type': 'object', 'additionalProperties': value}, inner),
    st.builds(lambda properties: {'type': 'object', 'properties': properties},
              st.dictionaries(KEYS, inner, max_size=4)),
    st.builds(lambda properties: {'type': 'object', 'properties': properties, 'default': {}},
              st.dictionaries(KEYS, inner, max_size=4)),
))
ROOTS = st.builds(lambda properties: nodes.Schema({'type': 'object', 'properties': properties}),
                  st.dictionaries(KEYS, SCHEMAS, max_size=4))


@given(ROOTS, OBJECTS)
def test_what_is_pruned_once_has_nothing_to_be_pruned(schema, obj):
    pruned, _ = schemas.prune(schema, obj)
    again, unknown = schemas.prune(schema, pruned)
    assert again is pruned
    assert not unknown


@given(ROOTS, OBJECTS)
def test_nothing_is_unknown_if_nothing_is_pruned(schema, obj):
    pruned, unknown = schemas.prune(schema, obj)
    assert (pruned == obj) == (not unknown)


@given(ROOTS, OBJECTS)
def test_defaults_are_filled_in_once(schema, obj):
    filled = schemas.default(schema, obj)
    assert schemas.default(schema, filled) == filled


@given(ROOTS, OBJECTS)
def test_defaults_change_no_value_that_is_there(schema, obj):
    filled = schemas.default(schema, obj)
    for key, value in obj.items():
        if value is not None and not isinstance(value, dict | list):
            assert filled[key] == value


@given(ROOTS)
def test_an_object_of_defaults_alone_is_valid(schema):
    assert not schemas.validate(schema, schemas.default(schema, {}))


@given(ROOTS, OBJECTS)
def test_nothing_that_comes_in_is_changed(schema, obj):
    before = copy.deepcopy(obj)
    pruned, _ = schemas.prune(schema, obj)
    schemas.validate(schema, schemas.default(schema, pruned))
    assert obj == before


@given(ROOTS, OBJECTS)
def test_what_has_not_changed_is_not_validated_again(schema, obj):
    assert not schemas.validate(schema, obj, copy.deepcopy(obj))


@given(ROOTS, OBJECTS, OBJECTS)
def test_a_change_is_not_refused_for_more_than_the_new_object_is(schema, old, new):
    causes = set(map(str, schemas.validate(schema, new)))
    assert set(map(str, schemas.validate(schema, new, old))) <= causes


def test_an_item_of_a_map_is_the_same_item_wherever_it_is_in_the_list():
    schema = nodes.Schema({
        'type': 'array', 'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['k'],
        'items': {'type': 'object', 'properties': {'k': {'type': 'string'},
                                                   'v': {'type': 'integer', 'minimum': 5}}}})
    old = [{'k': 'a', 'v': 1}]
    assert not schemas.validate(schema, [{'k': 'b', 'v': 5}, {'k': 'a', 'v': 1}], old)
    [cause] = schemas.validate(schema, [{'k': 'b', 'v': 5}, {'k': 'a', 'v': 2}], old)
    assert cause.field == '[1].v'


def test_unchanged_fields_that_are_invalid_do_not_hinder_changes_of_others():
    schema = nodes.Schema({'type': 'object', 'properties': {
        'a': {'type': 'string', 'maxLength': 1}, 'b': {'type': 'string'}}})
    assert not schemas.validate(schema, {'a': 'long', 'b': 'y'}, {'a': 'long', 'b': 'x'})


def test_duplicates_that_were_there_are_tolerated():
    schema = nodes.Schema({'type': 'object', 'properties': {'s': {
        'type': 'array', 'x-kubernetes-list-type': 'set', 'items': {'type': 'string'}}}})
    assert schemas.validate(schema, {'s': ['a', 'a']}, {'s': ['a']})
    assert not schemas.validate(schema, {'s': ['a', 'a', 'b']}, {'s': ['a', 'a']})


def test_limits_of_one_are_told_in_the_singular():
    schema = nodes.Schema({'type': 'array', 'maxItems': 1, 'items': {
        'type': 'string', 'maxLength': 1}})
    assert [cause.message for cause in schemas.validate(schema, ['xx', 'y'])] == [
        "Too long: may not be more than 1 byte", "Too many: 2: must have at most 1 item"]


@pytest.mark.parametrize('pattern, text', [
    ('^a$', 'a'), ('a|^$', ''), (r'[[:alpha:]]+\z', '1b'), (r'^\$[$]$', '$$'), ('[]a]', ']'),
    ('[^]a]', 'b'), (r'^[\]$]+$', ']$'), (r'^[a-z[:digit:]]$', '7'), (r'\d+', '12'),
])
def test_patterns_match_as_in_the_dialect_of_the_api(pattern, text):
    assert patterns.compile(pattern)(text)


@pytest.mark.parametrize('pattern, text', [('^a$', 'a\n'), (r'^\d$', '٣'), ('[$]', 'x')])
def test_patterns_do_not_match_what_only_python_would(pattern, text):
    assert not patterns.compile(pattern)(text)


@pytest.mark.parametrize('depth', [251, 5000])
@pytest.mark.parametrize('wrap', [lambda value: {'a': value}, lambda value: [value]])
def test_objects_that_are_too_deep_are_refused(depth, wrap):
    value = 1
    for _ in range(depth + 1):
        value = wrap(value)
    with pytest.raises(statuses.BadRequest, match="exceeded max depth"):
        schemas.verify_depth(value)


def test_a_schema_as_deep_as_can_be_is_worked_with():
    raw, obj = {'type': 'string', 'default': 'x'}, 'y'
    for _ in range(120):
        raw, obj = {'type': 'object', 'properties': {'a': raw}}, {'a': obj}
    schema = nodes.Schema(raw)
    schemas.verify_depth(raw)
    assert schemas.prune(schema, obj) == (obj, [])
    assert schemas.default(schema, obj) == obj
    assert schemas.validate(schema, obj) == []


@pytest.mark.parametrize('work', [
    lambda obj: schemas.prune(nodes.Schema({'additionalProperties': {}}), obj),
    lambda obj: patching.apply_merge_patch({}, obj),
    lambda obj: applying.track_update(
        None, {'metadata': {}, **obj}, manager='m', schema=nodes.Schema({}), api_version='v1',
        time='t'),
    lambda obj: applying.apply(
        None, {'metadata': {}, **obj}, manager='m', schema=nodes.Schema({}), api_version='v1',
        time='t'),
    lambda obj: schemas.decode(
        schemas.define('io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps'),
        obj),
])
def test_what_is_too_deep_is_refused_or_done_wherever_it_comes_to(work):
    obj = {}
    for _ in range(20_000):
        obj = {'items': obj}
    try:
        work(obj)
    except statuses.BadRequest as e:
        assert e.message == "exceeded max depth"
