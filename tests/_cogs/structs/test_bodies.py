import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import (
    Body,
    LiveBody,
    OwnBody,
    build_object_reference,
    build_owner_reference,
    get_copies,
    get_raw,
    is_newer,
    parse_version,
)
from kopf._cogs.structs.patches import Patch

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


@pytest.fixture()
def raw():
    return {'metadata': {'name': 'a', 'labels': {'l': '1'}, 'owners': [{'n': 1}]},
            'spec': {'deep': {'n': 1}, 'list': [{'n': 1}], 'plain': 5}}


@pytest.mark.parametrize('change', [
    lambda body: body['spec']['deep'].update(n=2),
    lambda body: body.get('spec')['deep'].update(n=2),
    lambda body: dict(body)['spec']['deep'].update(n=2),
    lambda body: dict(body.items())['spec']['deep'].update(n=2),
    lambda body: body.spec['deep'].update(n=2),
    lambda body: body.spec.get('deep').update(n=2),
    lambda body: dict(body.spec)['deep'].update(n=2),
    lambda body: next(iter(body.spec.values())).update(n=2),
    lambda body: body.spec['list'][0].update(n=2),
    lambda body: body.metadata['owners'][0].update(n=2),
    lambda body: body.metadata['labels'].update(l='2'),
])
def test_what_is_changed_in_an_own_body_is_seen_only_there(raw, change):
    original, body = copy.deepcopy(raw), OwnBody(raw)
    change(body)
    assert raw == original == get_raw(body)
    assert body != original
    assert OwnBody(raw) == original


def test_the_parts_of_an_own_body_agree(raw):
    body = OwnBody(raw)
    body.spec['deep']['n'] = 2
    body['metadata']['labels']['l'] = '2'
    assert body.spec['deep'] is body['spec']['deep'] is body.spec.get('deep')
    assert (body.spec['deep'], body.metadata.labels['l'], body.spec['plain']) == ({'n': 2}, '2', 5)
    assert get_copies(body)['spec']['deep'] == {'n': 2}
    assert 'status' not in get_copies(body)
    assert "'n': 2" in repr(body)


def test_an_own_body_that_is_only_read_is_not_copied(raw):
    body = OwnBody(raw)
    assert (body.metadata.name, body.spec['plain'], body.metadata.labels['l']) == ('a', 5, '1')
    assert 'status' not in body and body.get('status', raw) is raw
    assert body._copies is None


def test_a_live_body_forgets_what_was_changed_when_there_is_a_newer_state(raw):
    body = LiveBody(lambda: raw)
    body.spec['deep']['n'] = 2
    assert body.spec['deep'] == {'n': 2}
    body._replace_with({'spec': {'deep': {'n': 3}}})
    assert body.spec['deep'] == {'n': 3}
    assert raw['spec']['deep'] == {'n': 1}


def test_patches_are_relative_to_what_the_object_is(raw):
    body = OwnBody(raw)
    body.spec['deep']['n'] = 2
    patch = Patch({'spec': {'deep': body.spec['deep']}}, body=body)
    assert patch.as_json_patch() == [{'op': 'replace', 'path': '/spec/deep/n', 'value': 2}]


@pytest.mark.parametrize('duplicate', [
    copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)),
])
@pytest.mark.parametrize('make', [OwnBody, lambda raw: LiveBody(lambda: raw)])
def test_bodies_and_their_stanzas_can_be_copied_as_they_are_seen(raw, make, duplicate):
    body = make(raw)
    body.spec['deep']['n'] = 2
    copies = duplicate(body), duplicate(body.spec), duplicate(body.metadata.labels)
    assert copies == (body, body.spec, body.metadata.labels)
    assert type(copies[0]) is Body and copies[0]['spec']['deep'] == {'n': 2}
    if duplicate is not copy.copy:
        copies[1]['deep']['n'] = 3
        body._replace_with({'spec': {}})
        assert copies[0].spec['deep'] == {'n': 2} and copies[1]['deep'] == {'n': 3}
    assert raw['spec']['deep'] == {'n': 1}


@pytest.mark.parametrize('read', [
    repr,
    lambda body: body.spec['deep'],
    lambda body: body.spec.get('deep'),
])
def test_a_live_body_can_be_replaced_while_a_thread_reads_it(raw, read):

    class Interrupted(LiveBody):
        __slots__ = ()
        reads = 0

        @property
        def _raw(self):
            Interrupted.reads += 1
            if Interrupted.reads == moment:
                self._replace_with({'spec': {}})
            return super()._raw

    for moment in range(1, 9):
        Interrupted.reads = 0
        body = Interrupted(lambda: raw)
        body._copies = {'metadata': raw['metadata']}
        try:
            read(body)
        except KeyError:
            assert moment == 1  # it has been replaced before
