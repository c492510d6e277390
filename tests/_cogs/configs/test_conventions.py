import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kopf._cogs.configs.conventions import (
    StorageKeyFormingConvention,
    StorageKeyMarkingConvention,
    StorageStanzaCleaner,
)
from kopf._cogs.structs.bodies import Body

NAME = re.compile(r'[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?')
"""The names of annotations that Kubernetes accepts, after the prefix."""

IDS = (
    st.text(min_size=1, max_size=150) |
    st.text('abc/-_.<>:', min_size=1, max_size=80) |
    st.lists(st.sampled_from(['fn', 'spec.field', '<lambda>', '_x', 'Y' * 40]), min_size=1).map(
        '/'.join))
LABELS = st.from_regex(r'[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?', fullmatch=True)
PREFIXES = st.lists(LABELS, min_size=1, max_size=6).map('.'.join)


@given(prefix=PREFIXES, v1=st.booleans(), key=IDS)
@example(prefix='x' * 60 + '.example.com', v1=True, key='fn')
@example(prefix='x' * 55, v1=True, key='fn' * 40)
def test_any_id_makes_names_that_are_valid_for_kubernetes(prefix, v1, key):
    for full_key in StorageKeyFormingConvention(prefix=prefix, v1=v1).make_keys(key):
        full_prefix, _, name = full_key.rpartition('/')
        assert full_prefix == prefix
        assert NAME.fullmatch(name)


@given(prefix=PREFIXES, v1=st.booleans(), key=IDS)
def test_names_are_the_same_every_time(prefix, v1, key):
    a = StorageKeyFormingConvention(prefix=prefix, v1=v1)
    b = StorageKeyFormingConvention(prefix=prefix, v1=v1)
    assert list(a.make_keys(key)) == list(a.make_keys(key)) == list(b.make_keys(key))


@given(prefix=PREFIXES, a=IDS, b=IDS)
def test_different_ids_make_different_names(prefix, a, b):
    assume(make_safe(a) != make_safe(b))
    convention = StorageKeyFormingConvention(prefix=prefix, v1=True)
    assert not set(convention.make_keys(a)) & set(convention.make_keys(b))


@pytest.mark.parametrize(('a', 'b'), [
    ('x' * 70, 'x' * 71),
    ('x' * 70 + '/spec.a', 'x' * 70 + '/spec.b'),
    ('fn:a', 'fn;a'),
    ('_fn', '__fn'),
    ('fn_', '_fn'),
    ('ä', 'ö'),
])
def test_similar_ids_make_different_names(a, b):
    convention = StorageKeyFormingConvention(prefix='my.dev', v1=True)
    assert not set(convention.make_keys(a)) & set(convention.make_keys(b))


@pytest.mark.parametrize(('key', 'names'), [
    ('fn', ['fn']),
    ('fn/spec.field', ['fn.spec.field']),
    ('parent/child/grandchild', ['parent.child.grandchild']),
    ('Fn-x_y.z', ['Fn-x_y.z']),
    ('f' * 46, ['f' * 46]),
    ('f' * 47, ['f' * 47, 'f' * 39 + '-NM0OWg']),
    ('f' * 64, ['f' * 56 + '-PUfAvQ', 'f' * 39 + '-PUfAvQ']),
    ('fn/' + 'x' * 70, ['fn.' + 'x' * 53 + '-KYcb.g', 'fn.' + 'x' * 36 + '-aiRgbw']),
])
def test_names_are_those_which_are_on_the_objects_in_the_clusters(key, names):
    convention = StorageKeyFormingConvention(prefix='kopf.zalando.org', v1=True)
    assert convention.make_keys(key) == [f'kopf.zalando.org/{name}' for name in names]


@given(key=IDS)
def test_the_old_names_are_not_made_if_they_are_not_wanted(key):
    convention = StorageKeyFormingConvention(prefix='kopf.zalando.org', v1=False)
    assert list(convention.make_keys(key)) == [convention.make_v2_key(key)]


@given(key=st.from_regex(r'[a-z]([-a-z0-9/]{0,44}[a-z])?', fullmatch=True))
def test_the_old_names_of_short_ids_are_the_new_ones(key):
    convention = StorageKeyFormingConvention(prefix='kopf.zalando.org', v1=True)
    assert list(convention.make_keys(key)) == [f"kopf.zalando.org/{key.replace('/', '.')}"]


@pytest.mark.parametrize(('raw', 'name'), [
    ({'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}},
     'fn-ofDRS'),
    ({'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{'kind': 'Rollout'}]}}, 'fn'),
    ({'kind': 'ReplicaSet', 'metadata': {}}, 'fn'),
    ({'kind': 'Pod', 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}}, 'fn'),
])
def test_replica_sets_of_deployments_have_names_of_their_own(raw, name):
    convention = StorageKeyFormingConvention(prefix='my.dev', v1=True)
    assert convention.make_keys('fn', body=Body(raw)) == [f'my.dev/{name}']


def test_a_prefix_is_required():
    with pytest.raises(ValueError, match='need a prefix'):
        StorageKeyFormingConvention(prefix='', v1=True)


def test_own_prefixes_are_marked_once():
    mark_key = StorageKeyMarkingConvention().mark_key
    marked = Body({'metadata': {'annotations': {'my.dev/kopf-managed': 'yes'}}})
    assert mark_key('my.dev/fn', body=Body({})) == 'my.dev/kopf-managed'
    assert mark_key('my.dev/fn', body=Body({'metadata': None})) == 'my.dev/kopf-managed'
    assert mark_key('my.dev/fn', body=marked) is None
    assert mark_key('your.dev/fn', body=marked) == 'your.dev/kopf-managed'


def test_the_default_prefix_is_not_marked():
    assert StorageKeyMarkingConvention().mark_key('kopf.zalando.org/fn', body=Body({})) is None


@given(prefixes=st.sets(PREFIXES, max_size=3))
def test_marked_prefixes_are_detected_along_with_the_default_one(prefixes):
    annotations = {f'{prefix}/kopf-managed': 'yes' for prefix in prefixes}
    found = StorageKeyMarkingConvention.detect_prefixes({**annotations, 'other.dev/x': 'y'})
    assert set(found) == {'kopf.zalando.org', *prefixes}


def test_annotations_are_removed_by_their_names():
    essence = {'metadata': {'annotations': {'a': '1', 'b': '2'}}}
    StorageStanzaCleaner.remove_annotations(essence, ['a', 'c'])
    assert essence == {'metadata': {'annotations': {'b': '2'}}}


@pytest.mark.parametrize(('essence', 'cleaned'), [
    ({}, {}),
    ({'metadata': {}}, {}),
    ({'metadata': {'annotations': {}, 'labels': {}}}, {}),
    ({'metadata': {'annotations': {}, 'labels': {'a': 'b'}}}, {'metadata': {'labels': {'a': 'b'}}}),
    ({'status': {}}, {}),
    ({'status': {'a': {}}, 'spec': {}}, {'status': {'a': {}}, 'spec': {}}),
])
def test_only_the_stanzas_that_are_not_of_the_author_are_removed_if_empty(essence, cleaned):
    StorageStanzaCleaner.remove_empty_stanzas(essence)
    assert essence == cleaned


def make_safe(key):
    """Slashes and angle brackets have always been made dots and underscores."""
    return StorageKeyFormingConvention.make_safe_key(key)
