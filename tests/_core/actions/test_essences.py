import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.dicts import ensure
from kopf._cogs.structs.patches import merge
from kopf._core.actions.essences import advance, rebase, strip

SCALARS = st.booleans() | st.integers(0, 3) | st.text(max_size=2)
KEYS = st.sampled_from(['a', 'b', 'c'])
SPECS = st.dictionaries(KEYS, st.recursive(
    SCALARS, lambda values: st.dictionaries(KEYS, values, max_size=3), max_leaves=5), max_size=3)
CHANGES = st.dictionaries(KEYS, st.recursive(
    st.none() | SCALARS, lambda values: st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5), max_size=3)
NAMES = st.dictionaries(KEYS, st.text(max_size=2))
RAWS = st.fixed_dictionaries(
    {'metadata': st.fixed_dictionaries({}, optional={'labels': NAMES, 'annotations': NAMES})},
    optional={'spec': SPECS, 'status': SPECS, 'data': SPECS})
PATCHES = st.fixed_dictionaries({}, optional={
    'spec': CHANGES, 'status': CHANGES, 'data': st.none() | CHANGES,
    'metadata': st.fixed_dictionaries({}, optional={
        'labels': st.dictionaries(KEYS, st.none() | st.text(max_size=2)),
        'annotations': st.dictionaries(
            st.sampled_from(['a', 'b', 'kopf.zalando.org/x']), st.none() | st.text(max_size=2)),
    })})
FLAT = st.dictionaries(KEYS, st.integers(0, 2))
NESTED = st.dictionaries(KEYS, st.integers(0, 2) | FLAT, max_size=3)


def get_essence(raw):
    return kopf.AnnotationsDiffBaseStorage().build(body=Body(raw))


def sort(value):
    return {key: sort(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


# What handlers have seen, with the own changes since then.


@given(raw=RAWS, changes=st.lists(PATCHES, max_size=3))
def test_what_was_seen_with_own_changes_is_the_new_state_if_nobody_else_has_changed_it(
        raw, changes,
):
    newer = raw
    for patch in changes:
        newer = merge(newer, patch)
    assert advance(get_essence(raw), changes, get_essence(newer)) == get_essence(newer)


@given(raw=RAWS, own=CHANGES, foreign=CHANGES)
def test_what_was_seen_is_without_the_changes_of_others_beside_the_own_ones(raw, own, foreign):
    own = {'spec': {f'own-{key}': val for key, val in own.items()}}
    foreign = {'spec': {f'foreign-{key}': val for key, val in foreign.items()}}
    before = merge(raw, {'spec': {'own-a': {'a': 1}, 'foreign-b': {'c': 1}}})
    after = merge(merge(before, foreign), own)
    advanced = advance(get_essence(before), [own], get_essence(after))
    assert advanced == get_essence(merge(before, own))


@given(raw=RAWS, own=PATCHES, stored=PATCHES)
def test_own_changes_are_seen_as_the_server_has_stored_them(raw, own, stored):
    stored = {'spec': {'a': stored.get('spec')}}
    own = {'spec': {'a': 'something'}}
    after = merge(raw, stored)
    advanced = advance(get_essence(raw), [own], get_essence(after))
    assert advanced.get('spec', {}).get('a') == after.get('spec', {}).get('a')


@given(raw=RAWS, changes=st.lists(PATCHES, max_size=3))
def test_what_was_seen_is_stored_in_the_order_of_the_server(raw, changes):
    newer = raw
    for patch in changes:
        newer = merge(newer, patch)
    newer = sort(newer)
    advanced = advance(get_essence(raw), changes, get_essence(newer))
    assert repr(advanced) == repr(get_essence(newer))


def test_what_the_server_does_not_have_is_last_at_every_depth():
    seen = {'y': 1, 'spec': {'y': 2, 'z': 3, 'a': 4}}
    advanced = advance(seen, [], {'spec': {'a': 0, 'z': 0, 'x': 0}, 'x': 0})
    assert repr(advanced) == repr({'spec': {'a': 4, 'z': 3, 'y': 2}, 'y': 1})


@pytest.mark.parametrize(('seen', 'patch', 'stored', 'advanced'), [
    # set, removed, not stored (e.g. pruned)
    ({'a': 0}, {'a': 1}, {'a': 1}, {'a': 1}),
    ({'a': 0}, {'a': None}, {}, {}),
    ({}, {'a': None}, {}, {}),
    ({'a': 0}, {'a': 1}, {}, {}),
    # with foreign changes beside it
    ({'s': {'a': 0, 'b': 0}}, {'s': {'a': 1}}, {'s': {'a': 1, 'b': 9}}, {'s': {'a': 1, 'b': 0}}),
    ({'s': {'b': 0}}, {'s': {'a': 1}}, {'s': {'a': 1}}, {'s': {'a': 1, 'b': 0}}),
    ({'s': {'b': 0}}, {'s': {'a': 1}}, {}, {'s': {'b': 0}}),
    # a parent which becomes empty is there only if the server has it
    ({'s': {'a': 0}}, {'s': {'a': None}}, {'s': {}}, {'s': {}}),
    ({'s': {'a': 0}}, {'s': {'a': None}}, {}, {}),
    ({'s': {'a': 0}}, {'s': {'a': None}}, {'s': {'b': 1}}, {}),
    ({}, {'s': {'a': None}}, {'s': {}}, {'s': {}}),
    # an empty stanza in the patch makes one where there is none, and changes none that is there
    ({}, {'s': {}}, {'s': {}}, {'s': {}}),
    ({'s': {'b': 0}}, {'s': {}}, {'s': {'b': 9}}, {'s': {'b': 0}}),
    ({'s': 0}, {'s': {}}, {'s': {}}, {'s': {}}),
    # a value becomes a stanza, and a stanza a value
    ({'s': 0}, {'s': {'a': 1}}, {'s': {'a': 1}}, {'s': {'a': 1}}),
    ({'s': {'a': 1}}, {'s': 0}, {'s': 0}, {'s': 0}),
    ({'s': {'a': 1}}, {'s': {'a': {'b': 1}}}, {'s': 0}, {}),
    # what others have made a stanza meanwhile
    ({'s': {'a': 0, 'b': 'x'}}, {'s': {'a': 1}}, {'s': {'a': 1, 'b': {'c': 1}}},
     {'s': {'a': 1, 'b': 'x'}}),
    # lists are values
    ({'s': [1]}, {'s': [2, {}]}, {'s': [2, {}]}, {'s': [2, {}]}),
])
def test_the_own_fields_are_taken_from_what_is_stored(seen, patch, stored, advanced):
    assert advance(seen, [patch], stored) == advanced


@given(raw=RAWS, patch=PATCHES)
def test_nothing_is_changed_in_place(raw, patch):
    seen, newer = get_essence(raw), get_essence(merge(raw, patch))
    before = copy.deepcopy((seen, newer, patch))
    advance(seen, [patch], newer)
    rebase(seen, newer, seen)
    assert (seen, newer, patch) == before


@pytest.mark.parametrize(('patch', 'fields'), [
    ({}, []),
    ({'a': 1}, [('a',)]),
    ({'a': None}, [('a',)]),
    ({'a': {}}, [('a',)]),
    ({'a': {'b': 1, 'c': {'d': None}}, 'e': [{'f': 1}]}, [('a', 'b'), ('a', 'c', 'd'), ('e',)]),
])
def test_patches_touch_the_fields_that_they_set_or_remove(patch, fields):
    stored = {}
    for field in fields:
        ensure(stored, field, 'stored')
    others = {'a': {'x': 'stored', 'c': {'x': 'stored'}}, 'x': 'stored'}
    assert advance({}, [patch], {**merge(others, stored), 'y': 'stored'}) == stored


# The return to the base.


@pytest.mark.parametrize(('base', 'divergent', 'current', 'rebased'), [
    # returned; went on; stayed; never was
    ({'a': 0}, {'a': 5}, {'a': 0}, {'a': 5}),
    ({'a': 0}, {'a': 5}, {'a': 7}, {'a': 0}),
    ({'a': 0}, {'a': 5}, {'a': 5}, {'a': 0}),
    ({'a': 0}, {'a': 0}, {'a': 7}, {'a': 0}),
    # added and removed fields are states as well
    ({}, {'a': 5}, {}, {'a': 5}),
    ({'a': 0}, {}, {'a': 0}, {}),
    ({}, {}, {'a': 7}, {}),
    ({}, {'a': 5}, {'a': 7}, {}),
    ({'a': 0}, {}, {}, {'a': 0}),
    # nested ones
    ({'s': {'a': 0, 'b': 0}}, {'s': {'a': 5, 'b': 0}}, {'s': {'a': 0, 'b': 7}},
     {'s': {'a': 5, 'b': 0}}),
    ({'s': {'a': 0}}, {}, {'s': {'a': 0}}, {}),
    ({'s': {'a': 0}}, {}, {'s': {'a': 0, 'b': 7}}, {}),
    ({}, {'s': {'a': 5}}, {}, {'s': {'a': 5}}),
    ({'s': {'a': 0}}, {'s': 5}, {'s': {'a': 0}}, {'s': 5}),
    ({'s': 0}, {'s': {'a': 5}}, {'s': 0}, {'s': {'a': 5}}),
    ({'s': 0}, {'s': {'a': 5}}, {'s': 7}, {'s': 0}),
    ({'s': {'a': 0}}, {'s': {'a': 5}}, {'s': 7}, {'s': {'a': 0}}),
    # empty ones are not absent ones
    ({}, {'s': {}}, {}, {'s': {}}),
    ({'s': {}}, {}, {'s': {}}, {}),
    ({'s': {'a': 0}}, {'s': {}}, {'s': {'a': 0}}, {'s': {}}),
    ({'s': {'c': 0}}, {'s': {'a': 5}}, {'s': {'c': 0, 'a': 5}}, {'s': {}}),
    ({}, {'s': {'a': 5}}, {'s': {'a': 5, 'b': 0}}, {}),
])
def test_what_has_returned_to_the_base_is_as_in_the_divergent_state(
        base, divergent, current, rebased,
):
    assert rebase(base, divergent, current) == rebased


@given(base=NESTED, divergent=NESTED)
def test_an_object_that_is_in_the_divergent_state_has_not_returned(base, divergent):
    assert rebase(base, divergent, divergent) == base


@given(base=NESTED, divergent=NESTED)
def test_a_return_of_the_whole_object_shows_the_whole_divergent_state(base, divergent):
    assert rebase(base, divergent, base) == divergent


@given(base=NESTED, current=NESTED)
def test_there_is_no_return_where_nothing_diverges(base, current):
    assert rebase(base, base, current) == base


@given(base=FLAT, divergent=FLAT, current=FLAT)
def test_every_field_that_differs_from_the_divergent_state_differs_from_the_rebased_one(
        base, divergent, current,
):
    rebased = rebase(base, divergent, current)
    for key in 'abc':
        if divergent.get(key) != current.get(key):
            assert rebased.get(key) != current.get(key)
        else:
            assert rebased.get(key) == base.get(key)


OWN = {'kopf.dev/owner': 'uid', 'kopf.dev/reconciler': 'digest'}


@pytest.mark.parametrize('stanza', ['labels', 'annotations'])
@pytest.mark.parametrize('others', [{}, {'a': 'b'}, {'kopf.dev': 'c', 'x.kopf.dev/y': 'd'}])
def test_what_kopf_sets_on_owned_resources_is_not_essential(stanza, others):
    essence = {'metadata': {stanza: {**OWN, **others}}, 'spec': {}}
    before = copy.deepcopy(essence)
    expected = {'metadata': {stanza: others}} if others else {}
    assert strip(essence) == {**expected, 'spec': {}} and essence == before


@given(raw=RAWS)
def test_essences_without_that_remain_as_they_are(raw):
    assert strip(get_essence(raw)) == get_essence(raw)


@pytest.mark.parametrize('metadata', [None, {}, {'labels': None}, {'annotations': {}}])
def test_essences_without_metadata_remain_as_they_are(metadata):
    assert strip({'metadata': metadata}) == {'metadata': metadata}
