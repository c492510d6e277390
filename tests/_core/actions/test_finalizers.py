"""
Finalizers: how they are added and removed, and what must not change meanwhile.
"""
import pytest

from kopf._core.actions import finalizers

ALWAYS = [('metadata', 'uid'), ('metadata', 'finalizers')]


@pytest.mark.parametrize(('annotations', 'patch', 'fields'), [
    (None, {}, []),
    ({'a': 'x'}, {}, []),
    (None, {'metadata': {'annotations': {'b': 'y'}}}, [('metadata', 'annotations')]),
    ({}, {'metadata': {'annotations': {'b': 'y'}}}, [('metadata', 'annotations')]),
    ({'a': 'x'}, {'metadata': {'annotations': {'b/c': 'y', 'd': None}}},
     [('metadata', 'annotations', 'b/c'), ('metadata', 'annotations', 'd')]),
])
def test_finalizers_are_added_if_they_and_the_fields_of_the_patch_are_the_same(
        annotations, patch, fields):
    raw = {'metadata': {'name': 'obj', 'annotations': annotations}}
    assert finalizers.guard(raw, patch) == [*ALWAYS, *fields]


@pytest.mark.parametrize('patch', [
    {'status': {'handled': {}}},
    {'status': {}, 'metadata': {'annotations': {'a': 'x'}}},
    {'metadata': {'labels': {'a': 'x'}}},
])
def test_with_other_patches_finalizers_are_added_only_to_the_same_version(patch):
    assert finalizers.guard({'metadata': {'name': 'obj'}}, patch) is None


def test_finalizers_are_added_after_the_others_and_removed_without_a_trace():
    raw = {'metadata': {'name': 'x'}, 'spec': {}}
    one = finalizers.switch(raw, 'one', is_added=True)
    two = finalizers.switch(one, 'two', is_added=True)
    assert one == {'metadata': {'name': 'x', 'finalizers': ['one']}, 'spec': {}}
    assert two['metadata']['finalizers'] == ['one', 'two']
    assert finalizers.switch(two, 'two', is_added=False) == one
    assert finalizers.switch(one, 'one', is_added=False) == raw
    assert finalizers.switch(raw, 'one', is_added=False) == raw
    assert raw == {'metadata': {'name': 'x'}, 'spec': {}}
