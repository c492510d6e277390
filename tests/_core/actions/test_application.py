import pytest

from kopf._core.actions.application import VERSION, guard_finalizer

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
    assert guard_finalizer(raw, patch) == [*ALWAYS, *fields]


@pytest.mark.parametrize('patch', [
    {'status': {'handled': {}}},
    {'status': {}, 'metadata': {'annotations': {'a': 'x'}}},
    {'metadata': {'labels': {'a': 'x'}}},
])
def test_with_other_patches_finalizers_are_added_only_to_the_same_version(patch):
    assert guard_finalizer({'metadata': {'name': 'obj'}}, patch) is VERSION
