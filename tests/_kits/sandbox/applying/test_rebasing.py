import copy

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.sandbox.applying.rebasing import ABSENT, rebase
from kopf._kits.sandbox.schemas import definitions

DEPLOYMENT = definitions.define('io.k8s.api.apps.v1.Deployment')


def deployment(*containers, labels=None, finalizers=None, **spec):
    meta = {'labels': labels, 'finalizers': finalizers}
    return {
        'metadata': {key: value for key, value in meta.items() if value is not None},
        'spec': {**spec, 'template': {'spec': {'containers': list(containers)}}}}


def container(name, image, **fields):
    return {'name': name, 'image': image, **fields}


def merge(base, new, local):
    return rebase(DEPLOYMENT, base, new, local)


@pytest.mark.parametrize('base, new, local, expected', [
    pytest.param({'replicas': 1}, {'replicas': 2}, {'replicas': 1}, {'replicas': 2}, id='follows'),
    pytest.param({'replicas': 1}, {'replicas': 1}, {'replicas': 3}, {'replicas': 3}, id='stays'),
    pytest.param({'replicas': 1}, {'replicas': 2}, {'replicas': 3}, {'replicas': 3}, id='both'),
    pytest.param({'replicas': 1}, {'replicas': 1, 'paused': True}, {'replicas': 3},
                 {'replicas': 3, 'paused': True}, id='others'),
    pytest.param({'replicas': 1}, {}, {'replicas': 1, 'paused': True}, {'paused': True},
                 id='removed-there'),
    pytest.param({'replicas': 1}, {'replicas': 2}, {}, {}, id='removed-here'),
    pytest.param({'strategy': {'type': 'Recreate'}}, {}, {'strategy': {'type': 'RollingUpdate'}},
                 {'strategy': {'type': 'RollingUpdate'}}, id='structure-removed-there'),
    pytest.param({'strategy': {'type': 'Recreate'}}, {'strategy': {'type': 'RollingUpdate'}}, {},
                 {}, id='structure-removed-here'),
])
def test_fields_stay_where_they_were_changed_and_follow_elsewhere(base, new, local, expected):
    assert merge(deployment(**base), deployment(**new), deployment(**local)) == (
        deployment(**expected))


@pytest.mark.parametrize('base, new, local, expected', [
    ({'a': '1'}, {'a': '1', 'b': '2'}, {'a': '1', 'c': '3'}, {'a': '1', 'b': '2', 'c': '3'}),
    ({'a': '1', 'b': '2'}, {'b': '2'}, {'a': '1', 'b': '3'}, {'b': '3'}),
    (None, {'a': '1'}, {'b': '2'}, {'a': '1', 'b': '2'}),
    ({'a': '1'}, {'a': '1', 'b': '2'}, None, {'b': '2'}),
    ({'a': '1'}, None, {'a': '1', 'b': '2'}, {'b': '2'}),
    ({'a': '1'}, {'a': '2'}, None, None),
])
def test_labels_are_merged_one_by_one(base, new, local, expected):
    made = merge(deployment(labels=base), deployment(labels=new), deployment(labels=local))
    assert made == deployment(labels=expected)


@pytest.mark.parametrize('base, new, local, expected', [
    (['a'], ['a', 'b'], ['a', 'c'], ['a', 'b', 'c']),
    (['a', 'b'], ['b'], ['a', 'b', 'c'], ['b', 'c']),
    (['a'], None, ['a', 'b'], ['b']),
    (['a'], ['a', 'b'], None, ['b']),
    (['a'], ['a', 'b'], [], ['b']),
])
def test_finalizers_are_merged_one_by_one(base, new, local, expected):
    made = merge(
        deployment(finalizers=base), deployment(finalizers=new), deployment(finalizers=local))
    assert made == deployment(finalizers=expected)


def test_lists_with_keys_are_merged_by_their_items():
    base = deployment(container('app', '1'), container('old', '1'))
    new = deployment(container('side', '1'), container('app', '1', command=['run']))
    local = deployment(container('app', '2'), container('old', '1'), container('own', '1'))
    assert merge(base, new, local) == deployment(
        container('side', '1'), container('app', '2', command=['run']), container('own', '1'))


def test_items_that_are_removed_there_and_changed_here_stay_whole():
    base, local = deployment(container('app', '1')), deployment(container('app', '2'))
    assert merge(base, deployment(), local) == local


def test_items_have_the_local_order_if_it_was_changed():
    one, two, three = (container(name, '1') for name in ('one', 'two', 'three'))
    assert merge(deployment(one, two), deployment(one, two, three), deployment(two, one)) == (
        deployment(two, one, three))


def test_lists_without_keys_are_one_value():
    base, new, local = (
        deployment(container('app', '1', command=command))
        for command in (['a'], ['a', 'b'], ['a', 'c']))
    assert merge(base, new, local) == local


def test_without_a_schema_maps_are_merged_and_lists_are_one_value():
    assert rebase(None, {'a': {'x': 1}, 'l': [1]}, {'a': {'x': 1, 'y': 2}, 'l': [2]},
                  {'a': {'x': 3}, 'l': [3]}) == {'a': {'x': 3, 'y': 2}, 'l': [3]}


def test_a_value_whose_type_was_changed_stays():
    assert rebase(None, {'a': {'x': 1}}, {'a': {'x': 2}}, {'a': [1]}) == {'a': [1]}


leaves = st.dictionaries(st.sampled_from('abcde'), st.integers(0, 2), max_size=4)
trees = st.dictionaries(st.sampled_from('ab'), leaves | st.integers(0, 2), max_size=2)


@hypothesis.given(trees, trees)
def test_what_is_changed_on_one_side_only_is_as_it_is_there(base, changed):
    assert rebase(None, base, changed, base) == changed
    assert rebase(None, base, base, changed) == changed
    assert rebase(None, base, changed, changed) == changed


@hypothesis.given(leaves, leaves, leaves)
def test_each_key_is_merged_by_itself(base, new, local):
    expected = {
        key: value for key in 'abcde' if (value := (
            new if local.get(key) == base.get(key) else local).get(key)) is not None}
    assert rebase(None, base, new, local) == expected


@hypothesis.given(trees, trees, trees)
def test_the_arguments_are_not_changed(base, new, local):
    before = copy.deepcopy((base, new, local))
    made = rebase(None, *(base, new, local))
    assert made is not ABSENT
    assert (base, new, local) == before
