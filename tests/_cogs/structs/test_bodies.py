import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import (
    Body,
    build_object_reference,
    build_owner_reference,
    is_newer,
    parse_version,
)

FULL = {
    'apiVersion': 'group.dev/v1',
    'kind': 'Thing',
    'metadata': {
        'name': 'name1',
        'namespace': 'ns1',
        'uid': 'uid1',
        'labels': {'label': 'l'},
        'annotations': {'annotation': 'a'},
        'creationTimestamp': '2020-01-01T00:00:00Z',
        'deletionTimestamp': '2020-12-31T23:59:59Z',
    },
    'spec': {'field': {'nested': 1}},
    'status': {'phase': 'x'},
}

STANZAS = st.none() | st.dictionaries(st.sampled_from(['a', 'b', 'name']), st.integers())
RAWS = st.dictionaries(st.sampled_from(['metadata', 'spec', 'status', 'kind']), STANZAS)


@given(raw=RAWS)
def test_bodies_equal_what_they_are_made_of(raw):
    body = Body(raw)
    assert body == raw
    assert dict(body) == raw
    assert (list(body), len(body)) == (list(raw), len(raw))
    assert repr(body) == repr(raw)


@given(raw=RAWS)
def test_stanzas_equal_what_is_there_or_are_empty(raw):
    body = Body(raw)
    assert body.spec == (raw.get('spec') or {})
    assert body.status == (raw.get('status') or {})
    assert body.meta == body.metadata == (raw.get('metadata') or {})


def test_metadata_have_attributes_for_what_all_objects_have():
    meta = Body(FULL).meta
    assert (meta.name, meta.namespace, meta.uid) == ('name1', 'ns1', 'uid1')
    assert meta.creation_timestamp == '2020-01-01T00:00:00Z'
    assert meta.deletion_timestamp == '2020-12-31T23:59:59Z'
    assert meta.labels == {'label': 'l'}
    assert meta.annotations == {'annotation': 'a'}


@pytest.mark.parametrize('raw', [{}, {'metadata': None}, {'metadata': {}}, {
    'metadata': {'labels': None, 'annotations': None}}])
def test_absent_metadata_are_none_or_empty(raw):
    meta = Body(raw).meta
    assert (meta.name, meta.namespace, meta.uid) == (None, None, None)
    assert (meta.creation_timestamp, meta.deletion_timestamp) == (None, None)
    assert (dict(meta.labels), dict(meta.annotations)) == ({}, {})


def test_bodies_cannot_be_changed():
    body = Body(FULL)
    for stanza in (body, body.spec, body.meta, body.meta.labels, body.status):
        with pytest.raises(TypeError):
            stanza['field'] = 1


def test_live_bodies_show_their_newest_state_in_all_their_stanzas():
    body = Body({})
    spec, meta, labels = body.spec, body.meta, body.meta.labels
    body._replace_with(FULL)
    assert body == FULL
    assert spec == FULL['spec']
    assert meta.name == 'name1'
    assert labels == {'label': 'l'}


def test_references_to_objects_have_all_that_identifies_them():
    assert build_object_reference(Body(FULL)) == {
        'apiVersion': 'group.dev/v1', 'kind': 'Thing', 'namespace': 'ns1', 'name': 'name1',
        'uid': 'uid1'}


def test_references_to_objects_have_only_what_the_objects_have():
    raw = {'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': 'node1', 'namespace': ''}}
    assert build_object_reference(Body(raw)) == {
        'apiVersion': 'v1', 'kind': 'Node', 'name': 'node1'}
    assert build_object_reference(Body({})) == {}


def test_references_to_owners_are_of_controllers_that_block_deletion_by_default():
    assert build_owner_reference(Body(FULL)) == {
        'apiVersion': 'group.dev/v1', 'kind': 'Thing', 'name': 'name1', 'uid': 'uid1',
        'controller': True, 'blockOwnerDeletion': True}


def test_references_to_owners_can_say_that_these_are_none_or_do_not_block():
    reference = build_owner_reference(Body(FULL), controller=False, block_owner_deletion=False)
    assert (reference['controller'], reference['blockOwnerDeletion']) == (False, False)
    reference = build_owner_reference(Body(FULL), controller=None, block_owner_deletion=None)
    assert not reference.keys() & {'controller', 'blockOwnerDeletion'}


@pytest.mark.parametrize('a, b, newer', [
    ('10', '9', True), ('9', '10', False), ('9', '9', False),
    ('a', 'b', True), ('b', 'a', True), ('a', 'a', False), ('a', '9', True), (None, '9', True),
])
def test_versions_are_compared_as_numbers_if_they_are_such_and_else_by_equality(a, b, newer):
    versions = [parse_version({'metadata': {'resourceVersion': value}}) for value in (a, b)]
    assert is_newer(*versions) is newer
