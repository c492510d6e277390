import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.sandbox import applying, kinds, patching, schemas, statuses
from kopf._kits.sandbox.applying import fieldsets
from tests._kits.sandbox import recorded

SCHEMA, CASES = recorded.load_with_schema('applying')
VERSION = 's2v.test/v1'
TIME = '2026-01-01T00:00:00Z'
KIND = kinds.Kind(
    group='s2v.test', version='v1', plural='mfs', kind='Mf', custom=True, schema=SCHEMA)
PLAIN, TYPED = schemas.schema_of(KIND), schemas.typed_schema_of(KIND)


def complete(obj, nulls=False):
    metadata, _ = schemas.decode_metadata(obj['metadata'])
    obj, _ = schemas.prune(PLAIN, {**obj, 'metadata': metadata})
    obj = schemas.default(PLAIN, obj, nulls=nulls)
    causes = schemas.validate(PLAIN, obj)
    if causes:
        raise statuses.Invalid.on('s2v.test', 'Mf', 'n', causes)
    return obj


def with_status_of(new, live):
    rest = {key: value for key, value in live.items() if key != 'status'}
    return {**rest, **({'status': new['status']} if 'status' in new else {})}


def write(live, verb, manager, body, options=(), time=TIME):
    """What a server does with a write, as far as ownership is concerned."""
    sub = 'status' if 'status' in options else ''
    obj = {'apiVersion': VERSION, 'kind': 'Mf', 'metadata': {'name': 'n'}, **copy.deepcopy(body)}
    if verb == 'apply':
        return complete(applying.apply(
            live, obj, manager=manager, force='force' in options, schema=TYPED,
            api_version=VERSION, time=time, subresource=sub,
            without=['spec'] if sub else ['status']), nulls=True)
    if verb == 'merge':
        obj = patching.apply_merge_patch(live, body)
    if verb == 'create':
        obj.pop('status', None)
    obj = complete(obj)
    if sub:
        obj = with_status_of(obj, live)
    entries = applying.track_update(
        None if verb == 'create' else live, obj, manager=manager, schema=TYPED,
        api_version=VERSION, time=time, subresource=sub)
    return {**obj, 'metadata': {**obj['metadata'], 'managedFields': entries}}


def normalized(obj):
    obj = copy.deepcopy({key: obj[key] for key in obj if key not in ('apiVersion', 'kind')})
    for entry in obj['metadata'].get('managedFields') or ():
        entry.pop('time', None)
    obj['metadata'] = {key: value for key, value in obj['metadata'].items() if value}
    return obj


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['name'])
def test_a_sequence_of_writes_yields_the_owners_and_the_conflicts_of_the_real_api(case):
    live = None
    for step in case['steps']:
        args = (live, step['verb'], step['manager'], step['body'], step['options'])
        if step['code'] >= 300:
            with pytest.raises(statuses.APIError) as e:
                write(*args)
            assert (e.value.code, e.value.message) == (step['code'], step['answer']['message'])
            theirs = (step['answer']['details'] or {}).get('causes', [])
            ours = (e.value.details or {}).get('causes', [])
            assert recorded.by_content(ours) == recorded.by_content(theirs)
        else:
            live = write(*args)
            assert normalized(live) == normalized(step['answer'])


LABELS = st.dictionaries(st.sampled_from('abc'), st.sampled_from('xyz'), max_size=3)
SPECS = st.fixed_dictionaries({}, optional={
    'a': st.sampled_from('xyz'),
    'b': st.integers(1, 3),
    'o': st.dictionaries(st.sampled_from('xy'), st.sampled_from('pq'), min_size=1),
    'm': st.dictionaries(st.sampled_from('kl'), st.sampled_from('pq'), min_size=1),
    'set': st.lists(st.sampled_from('abc'), unique=True, min_size=1),
    'map': st.lists(
        st.fixed_dictionaries({'k': st.sampled_from('abc')}, optional={'v': st.integers(1, 2)}),
        unique_by=lambda item: item['k'], min_size=1),
    'l': st.lists(st.sampled_from('ab'), min_size=1),
})
BODIES = st.builds(lambda labels, spec: {'metadata': {'name': 'n', 'labels': labels}, 'spec': spec},
                   LABELS, SPECS)


def entries_of(obj):
    return obj['metadata'].get('managedFields', [])


@given(BODIES)
def test_what_is_applied_to_nothing_is_there(body):
    created = write(None, 'apply', 'one', body)
    assert created['spec'] == {'d': 1, **body['spec']}
    assert created['metadata'].get('labels', {}) == body['metadata']['labels']


@given(BODIES, BODIES)
def test_what_is_applied_twice_is_as_if_applied_once(live, body):
    created = write(None, 'create', 'u', live)
    once = write(created, 'apply', 'one', body, ['force'])
    assert write(once, 'apply', 'one', body) == once


@given(BODIES, BODIES)
def test_a_sole_applier_never_conflicts_and_its_last_word_is_all_there_is(first, second):
    created = write(None, 'apply', 'one', first)
    try:
        result = write(created, 'apply', 'one', second)
    except statuses.Invalid:
        return  # emptied containers are nulls: the API does so too
    expected = write(None, 'apply', 'one', second)
    for key in second['spec']:
        if not isinstance(second['spec'][key], list):
            assert result['spec'][key] == expected['spec'][key]
        else:
            assert len(result['spec'][key]) == len(expected['spec'][key])
    assert set(first['spec']) - set(second['spec']) - {'d'} <= set() | (
        set(first['spec']) - set(result['spec']))
    assert [entry['fieldsV1'] for entry in entries_of(result)] == [
        entry['fieldsV1'] for entry in entries_of(expected)]


@given(BODIES, BODIES)
def test_no_field_that_is_changed_by_an_update_has_two_owners(first, second):
    live = write(None, 'create', 'one', first)
    updated = write(live, 'put', 'two', second)
    owned = {entry['manager']: entry['fieldsV1'] for entry in entries_of(updated)}
    if 'one' in owned and 'two' in owned:
        assert not fieldsets.intersect(owned['one'], owned['two'])


@given(BODIES)
def test_an_update_that_changes_nothing_changes_no_owners(body):
    live = write(None, 'create', 'one', body)
    assert write(live, 'put', 'two', body, time='2027-01-01T00:00:00Z') == live


@given(BODIES)
def test_all_that_is_created_is_owned_by_its_creator(body):
    live = write(None, 'create', 'one', body)
    entry, = entries_of(live)
    owned = set(fieldsets.iterate(entry['fieldsV1']))
    assert {f'.spec.{key}' for key in live['spec']} <= owned


def test_the_name_stays_when_nothing_else_is_applied():
    live = write(None, 'apply', 'one', {'metadata': {'name': 'n', 'labels': {'a': 'b'}}})
    assert write(live, 'apply', 'one', {})['metadata'] == {'name': 'n'}


def test_who_replaces_a_scalar_by_an_object_owns_all_of_it_alone():
    live = write(None, 'create', 'one', {'spec': {'p': {'x': 1, 'y': {'z': 1}}}})
    live = write(live, 'put', 'two', {'spec': {'p': {'x': {'q': 1}, 'y': 1}}})
    owned = {entry['manager']: entry['fieldsV1']['f:spec'] for entry in entries_of(live)}
    assert owned['one']['f:p'] == {}
    assert owned['two']['f:p'] == {'f:x': {'.': {}, 'f:q': {}}, 'f:y': {}}


def test_nobody_is_made_up_for_what_has_no_fields():
    live = {'apiVersion': VERSION, 'kind': 'Mf', 'metadata': {'name': 'n'}}
    [entry] = entries_of(write(live, 'apply', 'one', {'spec': {'a': 'x'}}))
    assert entry['manager'] == 'one'


def test_the_oldest_of_too_many_updaters_are_joined():
    live = write(None, 'create', 'u0', {'spec': {'a': '0'}})
    for number in range(1, 15):
        live = write(live, 'merge', f'u{number}', {'metadata': {'labels': {f'l{number}': 'x'}}},
                     time=f'2026-01-01T00:{number:02}:00Z')
    assert len(entries_of(live)) == 10
    assert entries_of(live)[0]['manager'] == 'ancient-changes'


SETS = st.recursive(
    st.just({}), lambda inner: st.dictionaries(
        st.sampled_from(['f:a', 'f:b', 'k:{"x":1}', 'v:1']), inner, max_size=3).flatmap(
            lambda node: st.sampled_from([node, {'.': {}, **node} if node else {}])), max_leaves=8)


@given(SETS, SETS)
def test_a_union_has_the_members_of_both(one, two):
    members = set(fieldsets.iterate(fieldsets.unite(one, two)))
    assert members == {*fieldsets.iterate(one), *fieldsets.iterate(two)}


@given(SETS, SETS)
def test_an_intersection_has_the_members_that_are_in_both(one, two):
    members = set(fieldsets.iterate(fieldsets.intersect(one, two)))
    assert members == set(fieldsets.iterate(one)) & set(fieldsets.iterate(two))


@given(SETS, SETS)
def test_a_difference_has_the_members_of_the_first_alone(one, two):
    members = set(fieldsets.iterate(fieldsets.subtract(one, two)))
    assert members == set(fieldsets.iterate(one)) - set(fieldsets.iterate(two))


@pytest.mark.parametrize('raw', [
    [], 'x', {'bad': {}}, {'f:a': 5}, {'k:x': {}}, {'k:5': {}}, {'v:x': {}}, {'x:y': {}}])
def test_what_are_no_fields_is_refused(raw):
    with pytest.raises(fieldsets.Malformed):
        fieldsets.parse(raw)


def test_parts_of_what_is_atomic_now_are_owned_as_a_whole():
    """Kubernetes 1.20 has stored the fields of owner references one by one."""
    owner = {'apiVersion': 'v1', 'kind': 'X', 'name': 'x', 'uid': 'u'}
    applied = {'apiVersion': VERSION, 'kind': 'Mf', 'metadata': {
        'name': 'n', 'ownerReferences': [owner]}}
    live = {**applied, 'metadata': {**applied['metadata'], 'managedFields': [{
        'manager': 'm', 'operation': 'Apply', 'apiVersion': VERSION, 'fieldsType': 'FieldsV1',
        'time': TIME, 'fieldsV1': {'f:metadata': {'f:ownerReferences': {'k:{"uid":"u"}': {
            '.': {}, 'f:apiVersion': {}, 'f:kind': {}, 'f:name': {}, 'f:uid': {}}}}}}]}}
    made = write(live, 'apply', 'm', applied)
    assert made['metadata']['ownerReferences'] == [owner]
    assert made['metadata']['managedFields'][0]['fieldsV1'] == {
        'f:metadata': {'f:ownerReferences': {'k:{"uid":"u"}': {}}}}
