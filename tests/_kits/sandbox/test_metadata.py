import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.sandbox import kinds, metadata, schemas
from tests._kits.sandbox import recorded

KINDS = kinds.Kinds(kinds.builtin_kinds())
CONFIGMAP = KINDS.get('', 'v1', 'configmaps')
CUSTOM = kinds.Kind(group='s2.test', version='v1', plural='foos', kind='Foo', custom=True)
SERVER = ('uid', 'creationTimestamp', 'managedFields')


@pytest.mark.parametrize(
    'row', recorded.load('metadata'),
    ids=lambda row: f"{row['kind']} {json.dumps(row['metadata'])[:60]}")
def test_metadata_is_taken_or_refused_as_by_the_real_api(row):
    kind = CUSTOM if row['kind'] == 'Foo' else CONFIGMAP
    if row['code'] == 400:
        with pytest.raises(schemas.Undecodable) as e:
            if kind.custom:
                schemas.decode_metadata(row['metadata'])
            else:
                schemas.decode(schemas.schema_of(kind), {'metadata': row['metadata']})
        assert row['message'].endswith(f': {e.value}')
        return
    meta, unknown = schemas.decode_metadata(row['metadata'])
    causes = metadata.validate(meta, kind)
    assert sorted((cause.type, cause.field, cause.message) for cause in causes) == sorted(
        map(tuple, row['causes']))
    warnings = [*(f'unknown field "{field}"' for field in unknown), *metadata.warn(meta, {}, kind)]
    if row['code'] == 201:
        assert warnings == row['warnings']


@pytest.mark.parametrize('kind, name, text', [
    (KINDS.get('', 'v1', 'namespaces'), '1a.b', "must not contain dots"),
    (KINDS.get('', 'v1', 'services'), 'a' * 64, "must be no more than 63 characters"),
    (KINDS.get('apps', 'v1', 'statefulsets'), '1a.b', "must not contain dots"),
    (KINDS.get('rbac.authorization.k8s.io', 'v1', 'roles'), '..', "may not be '..'"),
    (KINDS.get('rbac.authorization.k8s.io', 'v1', 'roles'), 'a/b', "may not contain '/'"),
])
def test_some_kinds_have_names_of_other_forms(kind, name, text):
    assert metadata.check_name(name, kind) == [text]


@pytest.mark.parametrize('name', ['A_b', 'system:x'])
def test_roles_can_have_any_names_that_fit_into_paths(name):
    assert not metadata.check_name(name, KINDS.get('rbac.authorization.k8s.io', 'v1', 'roles'))


@given(st.from_regex(r'[a-z]{1,80}-?', fullmatch=True), st.randoms(use_true_random=False))
def test_generated_names_are_valid_names(prefix, rng):
    name = metadata.generate_name(prefix, rng)
    assert len(name) <= 63
    assert name.startswith(prefix[:58])
    assert not metadata.check_name(name, CONFIGMAP)


def test_generated_names_differ():
    rng = random.Random(0)
    assert len({metadata.generate_name('x-', rng) for _ in range(100)}) == 100


@pytest.mark.parametrize('change, fields', [
    ({'uid': 'x'}, ['metadata.uid'] * 2),
    ({'deletionTimestamp': '2020-01-01T00:00:00Z'}, ['metadata.deletionTimestamp'] * 2),
    ({'labels': {'-': ''}}, ['metadata.labels'] * 2),
    ({'finalizers': ['A b']}, ['metadata.finalizers']),
    ({'generateName': 'abc'}, []),
    ({'selfLink': 'abc'}, []),
])
def test_a_change_of_metadata_is_refused_for_what_cannot_change(change, fields):
    old = {'name': 'x', 'uid': 'u', 'generation': 1}
    found = metadata.validate_update({**old, **change}, old, CUSTOM)
    assert [cause.field for cause in found] == fields


def test_no_finalizers_are_added_to_what_is_being_deleted():
    old = {'name': 'x', 'deletionTimestamp': '2020-01-01T00:00:00Z', 'finalizers': ['a.b/c']}
    new = {**old, 'finalizers': ['a.b/c', 'a.b/d']}
    assert metadata.validate_update(new, old, CUSTOM)[0].message == (
        "Forbidden: no new finalizers can be added if the object is being deleted, "
        'found new finalizers []string{"a.b/d"}')
    assert not metadata.validate_update({**old, 'finalizers': []}, old, CUSTOM)


def test_annotations_have_a_limit_in_bytes():
    limit = 256 * 1024
    assert not metadata.validate({'name': 'x', 'annotations': {'a': 'x' * (limit - 1)}}, CUSTOM)
    [cause] = metadata.validate({'name': 'x', 'annotations': {'a': 'x' * limit}}, CUSTOM)
    assert cause.message == "Too long: may not be more than 262144 bytes"
    [cause] = metadata.validate({'name': 'x', 'annotations': {'a': 'é' * (limit // 2)}}, CUSTOM)
    assert cause.type == 'FieldValueTooLong'
