import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopf._kits.sandbox import builtins, kinds, patching, schemas, statuses
from tests._kits.sandbox import recorded

KIND = kinds.Kinds(kinds.builtin_kinds()).get('apps', 'v1', 'deployments')
SCHEMA = schemas.schema_of(KIND)
HEAD, *ROWS = recorded.load('strategicpatches')
DEPLOYMENT = HEAD['object']


@pytest.mark.parametrize('row', ROWS, ids=lambda row: json.dumps(row['patch'])[-80:])
def test_a_strategic_patch_does_what_it_does_in_the_real_api(row):
    if row['code'] != 200:
        with pytest.raises(statuses.APIError) as e:
            patching.apply_strategic_merge_patch(DEPLOYMENT, row['patch'], SCHEMA)
        assert e.value.code == row['code']
        assert row['answer'].startswith(e.value.message)
        return
    result = patching.apply_strategic_merge_patch(DEPLOYMENT, row['patch'], SCHEMA)
    result.pop('status', None)
    result, _ = schemas.decode(SCHEMA, result)
    expected = patching.apply_merge_patch(DEPLOYMENT, row['answer'])
    completed = builtins.complete(KIND, result)
    assert completed['spec'] == expected['spec']
    assert completed['metadata'] == expected['metadata']


CONTAINERS = st.lists(
    st.fixed_dictionaries({'name': st.sampled_from('abcd'), 'image': st.sampled_from('xy')}),
    unique_by=lambda item: item['name'], max_size=4)


def containers(items):
    return {'spec': {'template': {'spec': {'containers': items}}}}


def named(obj):
    return {item['name']: item for item in obj['spec']['template']['spec']['containers']}


@given(CONTAINERS, CONTAINERS)
def test_items_are_merged_by_their_names(old, new):
    result = patching.apply_strategic_merge_patch(containers(old), containers(new), SCHEMA)
    assert named(result) == {**named(containers(old)), **named(containers(new))}


@given(CONTAINERS, CONTAINERS)
def test_a_strategic_patch_is_applied_twice_as_once(old, new):
    once = patching.apply_strategic_merge_patch(containers(old), containers(new), SCHEMA)
    assert patching.apply_strategic_merge_patch(once, containers(new), SCHEMA) == once


@given(CONTAINERS, CONTAINERS)
def test_the_items_of_the_patch_are_in_its_order(old, new):
    result = patching.apply_strategic_merge_patch(containers(old), containers(new), SCHEMA)
    names = [item['name'] for item in new]
    assert [name for name in named(result) if name in names] == names


@given(CONTAINERS, CONTAINERS)
def test_neither_the_object_nor_the_patch_are_changed(old, new):
    before = copy.deepcopy((old, new))
    patching.apply_strategic_merge_patch(containers(old), containers(new), SCHEMA)
    assert (old, new) == before


DIRECTIVES = st.sampled_from([
    '$patch', '$retainKeys', '$setElementOrder/containers', '$deleteFromPrimitiveList/args',
    'containers', 'name', 'args', 'spec', 'template', 'metadata', 'labels', 'finalizers'])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers()
    | st.sampled_from(['a', 'delete', 'replace', 'merge']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(DIRECTIVES, inner, max_size=4))


@given(JUNK)
@example({'finalizers': [[]]})
def test_no_junk_in_a_patch_breaks_anything(junk):
    for patch in (junk, containers(junk), {'spec': junk}, {'metadata': junk}):
        try:
            patching.apply_strategic_merge_patch(DEPLOYMENT, patch, SCHEMA)
        except statuses.APIError:
            pass
