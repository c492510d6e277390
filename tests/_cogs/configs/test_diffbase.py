import copy
import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.configs.diffbase import (
    RESERVE,
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)
from kopf._cogs.configs.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge

STORAGES = {
    'annotations': lambda: AnnotationsDiffBaseStorage(),
    'prefix': lambda: AnnotationsDiffBaseStorage(prefix='my.dev'),
    'key': lambda: AnnotationsDiffBaseStorage(prefix='my.dev', key='long/key' * 20, v1=False),
    'ignoring': lambda: AnnotationsDiffBaseStorage(ignored_fields=['spec.a', 'metadata.labels']),
    'status': lambda: StatusDiffBaseStorage(),
    'named status': lambda: StatusDiffBaseStorage(name='mine'),
    'field': lambda: StatusDiffBaseStorage(field='spec.mine', ignored_fields=['data']),
    'multi': lambda: MultiDiffBaseStorage([
        AnnotationsDiffBaseStorage(prefix='my.dev'), StatusDiffBaseStorage(name='mine')]),
}
PROGRESS_STORAGES = {
    'annotations': lambda: AnnotationsProgressStorage(),
    'prefix': lambda: AnnotationsProgressStorage(prefix='my.dev'),
    'other prefix': lambda: AnnotationsProgressStorage(prefix='other.dev'),
    'status': lambda: StatusProgressStorage(name='mine'),
    'smart': lambda: SmartProgressStorage(),
    'multi': lambda: MultiProgressStorage([
        AnnotationsProgressStorage(prefix='my.dev'), StatusProgressStorage()]),
}
RECORD = {
    'started': '2020-01-01T00:00:00+00:00', 'stopped': None, 'delayed': None, 'purpose': 'create',
    'retries': 0, 'success': False, 'failure': False, 'message': None, 'subrefs': None,
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(
        st.sampled_from('abc'), values, max_size=2),
    max_leaves=5)
STANZAS = st.dictionaries(st.sampled_from(['kopf', 'a', 'b']), st.just({}) | st.just({'a': 1}))
NAMES = st.dictionaries(st.sampled_from(['a', 'b.dev/c', 'my.dev.x/y']), st.text(max_size=5))
BODIES = st.fixed_dictionaries(
    {'apiVersion': st.just('v1'), 'kind': st.just('Thing'), 'metadata': st.fixed_dictionaries(
        {'name': st.just('name1'), 'resourceVersion': st.text()},
        optional={'labels': NAMES, 'annotations': NAMES})},
    optional={'spec': STANZAS, 'status': STANZAS, 'data': VALUES})
EXTRA_FIELDS = st.lists(st.sampled_from([
    'spec', 'status', 'status.a', 'status.kopf', 'metadata.name', 'metadata.labels', 'metadata']))

storages = pytest.mark.parametrize('make', STORAGES.values(), ids=STORAGES)
progress_storages = pytest.mark.parametrize(
    'make_progress', PROGRESS_STORAGES.values(), ids=PROGRESS_STORAGES)


@storages
@given(raw=BODIES, extra_fields=EXTRA_FIELDS)
def test_what_is_stored_is_fetched(make, raw, extra_fields):
    essence = make().build(body=Body(raw), extra_fields=extra_fields)
    raw = store(make(), raw, essence)
    assert make().fetch(body=Body(raw)) == essence


@storages
@given(raw=BODIES)
def test_the_last_stored_state_is_fetched(make, raw):
    raw = store(make(), store(make(), raw, {'spec': 1, 'data': 2}), {'spec': 3})
    assert make().fetch(body=Body(raw)) == {'spec': 3}


@storages
@given(raw=BODIES)
def test_nothing_is_fetched_if_nothing_is_stored(make, raw):
    assert make().fetch(body=Body(raw)) is None


@storages
@pytest.mark.parametrize('raw', [
    {}, {'metadata': None}, {'metadata': {'annotations': None}, 'status': None, 'spec': None}])
def test_nothing_is_fetched_from_what_is_not_there(make, raw):
    assert make().fetch(body=Body(raw)) is None
    assert make().build(body=Body({**raw, 'spec': {}, 'x': {}}), extra_fields=['status'])['x'] == {}


@storages
@progress_storages
@given(raw=BODIES, extra_fields=EXTRA_FIELDS)
def test_no_traces_of_the_framework_are_in_the_essence(make, make_progress, raw, extra_fields):
    storage, progress = make(), make_progress()

    def build(raw):
        return progress.clear(essence=storage.build(body=Body(raw), extra_fields=extra_fields))

    essence = build(raw)
    handled = store(storage, raw, essence)
    assert build(handled) == essence

    patch = Patch()
    progress.store(key='parent/fn', record=RECORD, body=Body(raw), patch=patch)
    progress.touch(body=Body(raw), patch=patch, value='value')
    for state in (raw, handled):
        assert build(merge(state, patch)) == essence


@storages
@given(raw=BODIES, extra_fields=EXTRA_FIELDS)
def test_bodies_are_not_changed_in_place(make, raw, extra_fields):
    before = copy.deepcopy(raw)
    essence = make().build(body=Body(raw), extra_fields=extra_fields)
    make().remove_empty_stanzas(essence)
    store(make(), raw, essence)
    assert raw == before


@given(raw=BODIES)
def test_the_essence_is_all_but_the_status_and_the_system_metadata(raw):
    essence = AnnotationsDiffBaseStorage().build(body=Body(raw))
    stanzas = {
        key: raw['metadata'][key] for key in ('labels', 'annotations') if raw['metadata'].get(key)}
    assert essence == {
        **{key: raw[key] for key in ('spec', 'data') if key in raw},
        **({'metadata': stanzas} if stanzas else {})}


@given(raw=BODIES, extra_fields=EXTRA_FIELDS)
def test_the_extra_fields_are_in_the_essence_with_their_values(raw, extra_fields):
    essence = AnnotationsDiffBaseStorage().build(body=Body(raw), extra_fields=extra_fields)
    for field in extra_fields:
        if field in ('status', 'status.a', 'status.kopf', 'metadata.name'):
            assert (find(essence, field) or None) == (find(raw, field) or None)


@storages
@pytest.mark.parametrize('as_fields', [list, iter])
def test_extra_fields_are_in_the_essence_of_any_storage(make, as_fields):
    raw = {'apiVersion': 'v1', 'status': {'a': 1, 'b': 2}, 'metadata': {'name': 'name1'}}
    essence = make().build(
        body=Body(raw), extra_fields=as_fields(['status.a', 'metadata.name', '']))
    assert essence == {'status': {'a': 1}, 'metadata': {'name': 'name1'}}


@storages
@pytest.mark.parametrize(('raw', 'extra_field'), [
    ({'status': {}}, 'status'),
    ({'metadata': {'labels': {}}}, 'metadata.labels'),
    ({'metadata': {'labels': {}}}, 'metadata'),
])
def test_extra_fields_that_are_empty_are_not_in_the_essence(make, raw, extra_field):
    essence = make().build(body=Body(raw), extra_fields=[extra_field])
    assert essence in ({}, {'metadata': {}})


@given(raw=BODIES)
def test_the_metadata_as_an_extra_field_are_without_what_own_writes_change(raw):
    raw['metadata'] |= {'generation': 1, 'managedFields': [], 'finalizers': ['a']}
    essence = AnnotationsDiffBaseStorage().build(body=Body(raw), extra_fields=['metadata'])
    assert essence['metadata']['name'] == 'name1'
    assert essence['metadata']['finalizers'] == ['a']
    assert not essence['metadata'].keys() & {'generation', 'managedFields', 'resourceVersion'}


@pytest.mark.parametrize('field', [
    'metadata.labels', 'metadata.labels.a', 'metadata.annotations', 'metadata.resourceVersion',
    'metadata.generation', 'metadata.managedFields',
])
def test_extra_fields_bring_neither_own_annotations_nor_what_own_writes_change(field):
    raw = {'metadata': {
        'resourceVersion': '1', 'generation': 1, 'managedFields': [{}], 'labels': {'a': 'b'},
        'annotations': {'a': 'b', 'kopf.zalando.org/fn': '{}'}}}
    storage = AnnotationsDiffBaseStorage()
    assert storage.build(body=Body(raw), extra_fields=[field]) == {
        'metadata': {'labels': {'a': 'b'}, 'annotations': {'a': 'b'}}}


def test_extra_fields_of_the_status_can_have_any_names():
    raw = {'status': {'labels': 1, 'generation': 2, 'other': 3}}
    essence = AnnotationsDiffBaseStorage().build(
        body=Body(raw), extra_fields=['status.labels', 'status.generation'])
    assert essence == {'status': {'labels': 1, 'generation': 2}}


@given(raw=BODIES)
def test_ignored_fields_are_not_in_the_essence_nor_are_the_parents_left_empty(raw):
    storage = AnnotationsDiffBaseStorage(ignored_fields=['spec.a', ['metadata', 'annotations']])
    essence = storage.build(body=Body(raw))
    assert find(essence, 'spec.a') is None
    assert find(essence, 'metadata.annotations') is None
    assert essence.get('metadata') != {}
    assert find(essence, 'spec.b') == find(raw, 'spec.b')


def test_ignored_fields_stay_in_the_object():
    raw = {'spec': {'a': {'b': 1}, 'c': 2}}
    storage = AnnotationsDiffBaseStorage(ignored_fields=['spec.a.b', ''])
    assert storage.build(body=Body(raw)) == {'spec': {'c': 2}}
    assert raw == {'spec': {'a': {'b': 1}, 'c': 2}}


@pytest.mark.parametrize('name', [
    'kubectl.kubernetes.io/last-applied-configuration',
    'kopf.zalando.org/last-handled-configuration',
    'kopf.zalando.org/fn',
    'my.dev/kopf-managed',
    'my.dev/fn',
    'other.dev/anything',
])
def test_annotations_of_kubectl_and_of_any_operators_are_not_essential(name):
    raw = {'metadata': {'annotations': {
        name: 'x', 'a': 'b', 'my.dev/kopf-managed': 'yes', 'other.dev/kopf-managed': 'yes'}}}
    essence = AnnotationsDiffBaseStorage().build(body=Body(raw))
    assert essence == {'metadata': {'annotations': {'a': 'b'}}}


@pytest.mark.parametrize('name', [
    'kubectl.kubernetes.io/restartedAt', 'sub.my.dev/fn', 'my.dev.x/fn', 'kopf.dev/fn', 'my.dev'])
def test_other_annotations_are_essential(name):
    raw = {'metadata': {'annotations': {name: 'x', 'my.dev/kopf-managed': 'yes'}}}
    essence = AnnotationsDiffBaseStorage().build(body=Body(raw))
    assert essence == {'metadata': {'annotations': {name: 'x'}}}


@pytest.mark.parametrize('make', [
    lambda: AnnotationsDiffBaseStorage(prefix='my.dev'),
    lambda: MultiDiffBaseStorage([
        AnnotationsDiffBaseStorage(prefix='my.dev'), StatusDiffBaseStorage()]),
    lambda: MultiDiffBaseStorage([
        AnnotationsDiffBaseStorage(prefix='my.dev', key='a'),
        AnnotationsDiffBaseStorage(prefix='my.dev', key='b')]),
])
@pytest.mark.parametrize('kind', ['Thing', 'ReplicaSet'])
def test_own_annotations_are_not_essential_even_if_their_prefix_is_not_marked(make, kind):
    raw = store(make(), make_owned(kind), {'spec': 1})
    del raw['metadata']['annotations']['my.dev/kopf-managed']
    owners = {'metadata': {'ownerReferences': raw['metadata']['ownerReferences']}}
    assert make().build(body=Body(raw)) == {}
    assert make().build(body=Body(raw), extra_fields=['metadata']) == owners


def test_what_deployments_copy_to_their_replica_sets_is_not_their_state():
    storage = AnnotationsDiffBaseStorage()
    name = 'kopf.zalando.org/last-handled-configuration'
    raw = store(storage, make_owned('ReplicaSet'), {'spec': 1})
    assert raw['metadata']['annotations'] == {f'{name}-ofDRS': '{"spec":1}\n'}
    copied = merge(make_owned('ReplicaSet'), {'metadata': {'annotations': {name: '{}'}}})
    assert storage.fetch(body=Body(raw)) == {'spec': 1}
    assert storage.fetch(body=Body(copied)) is None


def make_owned(kind):
    return {'kind': kind, 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}}


@pytest.mark.parametrize(('options', 'count'), [({}, 2), ({'v1': True}, 2), ({'v1': False}, 1)])
def test_very_old_names_are_used_too_unless_disabled(options, count):
    raw = store(AnnotationsDiffBaseStorage(key='k' * 60, **options), {}, {'spec': 1})
    assert [*raw['metadata']['annotations'].values()] == ['{"spec":1}\n'] * count


RAW = {
    'apiVersion': 'v1', 'kind': 'Thing', 'spec': {'z': 1, 'a': {'ü': None}},
    'metadata': {'name': 'name1', 'labels': {'b': 'c'}}, 'status': {'a': 1}, 'data': [1.5, True],
}
ENCODED = '{"spec":{"z":1,"a":{"\\u00fc":null}},"data":[1.5,true],"metadata":{"labels":{"b":"c"}}}'


def test_annotations_have_the_state_as_one_line():
    storage = AnnotationsDiffBaseStorage()
    patch = Patch()
    storage.store(body=Body(RAW), patch=patch, essence=storage.build(body=Body(RAW)))
    assert patch == {'metadata': {'annotations': {
        'kopf.zalando.org/last-handled-configuration': f'{ENCODED}\n'}}}


def test_own_prefixes_are_marked():
    raw = store(AnnotationsDiffBaseStorage(prefix='my.dev', key='k'), {}, {})
    assert raw == {'metadata': {'annotations': {'my.dev/k': '{}\n', 'my.dev/kopf-managed': 'yes'}}}


def test_the_status_has_the_state_as_a_string():
    storage = StatusDiffBaseStorage()
    patch = Patch()
    storage.store(body=Body(RAW), patch=patch, essence=storage.build(body=Body(RAW)))
    assert patch == {'status': {'kopf': {'last-handled-configuration': ENCODED}}}


def test_the_field_of_the_status_storage_can_be_changed_later():
    storage = StatusDiffBaseStorage(name='mine')
    storage.field = 'spec.{name}.state'
    assert storage.field == ('spec', 'mine', 'state')


@storages
def test_unreadable_states_are_errors_that_tell_what_to_do(make):
    raw = replace_strings(store(make(), {}, {}), '{broken')
    with pytest.raises(ValueError, match=r'not readable .* remove it'):
        make().fetch(body=Body(raw))


@storages
def test_unreadable_states_are_not_quoted_as_they_can_be_of_secrets(make):
    raw = replace_strings(store(make(), {}, {}), '{"data":{"password":"cGFzcw==')
    with pytest.raises(ValueError) as e:
        make().fetch(body=Body(raw))
    assert 'cGFzcw' not in str(e.value)


@pytest.mark.parametrize('value', ['[]', '1', '"text"', 'true', ''])
def test_states_that_are_no_objects_are_not_readable(value):
    raw = replace_strings(store(AnnotationsDiffBaseStorage(), {}, {}), value)
    with pytest.raises(ValueError, match=r'not readable'):
        AnnotationsDiffBaseStorage().fetch(body=Body(raw))


@pytest.mark.parametrize('value', [1, True, {}, [], {'spec': {}}])
def test_states_that_are_no_strings_are_not_readable(value):
    raw = {'status': {'kopf': {'last-handled-configuration': value}}}
    with pytest.raises(ValueError, match=r'not readable'):
        StatusDiffBaseStorage().fetch(body=Body(raw))


@pytest.mark.parametrize(['annotations', 'left'], [
    ({'my-op.example.com/kopf-managed': 'yes'}, {}),
    ({'my-op.example.com/kopf-managed': 'yes', 'people.example.com/x': 'y'},
     {'annotations': {'people.example.com/x': 'y'}}),
    ({'people.example.com/x': 'y'}, {'annotations': {'people.example.com/x': 'y'}}),
])
def test_marks_that_the_release_has_stored_are_no_change(annotations, left):
    """Where only this storage has the prefix, the release takes its own mark for a change."""
    stored = json.dumps({
        'spec': {}, 'metadata': {'labels': {'l': 'v'}, 'annotations': annotations}})
    body = Body({'metadata': {'annotations': {
        'my-op.example.com/last-handled-configuration': stored, **annotations}}})
    storage = AnnotationsDiffBaseStorage(prefix='my-op.example.com')
    assert storage.fetch(body=body) == {'spec': {}, 'metadata': {'labels': {'l': 'v'}, **left}}


def test_a_null_as_the_state_means_that_the_object_was_never_handled():
    raw = replace_strings(store(AnnotationsDiffBaseStorage(), {}, {}), 'null')
    assert AnnotationsDiffBaseStorage().fetch(body=Body(raw)) is None


def test_the_first_of_several_storages_that_knows_a_state_is_right():
    first, second = STORAGES['prefix'](), STORAGES['status']()
    storage = MultiDiffBaseStorage([first, second])
    raw = store(second, {}, {'spec': 2})
    assert storage.fetch(body=Body(raw)) == {'spec': 2}
    raw = store(first, raw, {'spec': 1})
    assert storage.fetch(body=Body(raw)) == {'spec': 1}


def test_what_is_ignored_by_any_of_several_storages_is_ignored_by_all():
    storage = MultiDiffBaseStorage([
        AnnotationsDiffBaseStorage(ignored_fields=['spec.a']),
        StatusDiffBaseStorage(ignored_fields=['spec.b'])])
    raw = {'spec': {'a': 1, 'b': 2, 'c': 3}}
    assert storage.build(body=Body(raw)) == {'spec': {'c': 3}}


def test_several_storages_can_have_essences_of_other_forms():
    class DigestStorage(AnnotationsDiffBaseStorage):
        def build(self, *, body, extra_fields=None):
            return {'spec': 'digest', 'data': {'digest': 1}}

    storage = MultiDiffBaseStorage([DigestStorage(), AnnotationsDiffBaseStorage()])
    raw = {'spec': {'a': 1}, 'data': 'x', 'other': 2}
    assert storage.build(body=Body(raw)) == {'spec': {'a': 1}, 'data': 'x'}


def test_storages_have_to_fetch_and_to_store():
    with pytest.raises(NotImplementedError):
        DiffBaseStorage().fetch(body=Body({}))
    with pytest.raises(NotImplementedError):
        DiffBaseStorage().store(body=Body({}), patch=Patch(), essence={})


def test_storages_of_others_have_only_to_fetch_and_to_store():
    class MemoryStorage(DiffBaseStorage):
        essence = None

        def fetch(self, *, body):
            return self.essence

        def store(self, *, body, patch, essence):
            self.essence = essence

    storage = MemoryStorage(ignored_fields=['spec.a'])
    essence = storage.build(body=Body({'spec': {'a': 1, 'b': 2}}))
    assert store(storage, {}, essence) == {}
    assert storage.fetch(body=Body({})) == {'spec': {'b': 2}}


def store(storage, raw, essence):
    patch = Patch()
    storage.store(body=Body(raw), patch=patch, essence=essence)
    return merge(raw, patch)


def find(value, field):
    for key in field.split('.'):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def replace_strings(value, new):
    return {
        key: replace_strings(val, new) if isinstance(val, dict) else new
        for key, val in value.items()}


# Where there is little room.


def make_noise(length, seed=0):
    """A text which can be compressed by a quarter at most."""
    return ''.join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


def count_annotations(raw):
    return sum(len(key.encode()) + len(value.encode())
               for key, value in raw['metadata']['annotations'].items())


SIZES = st.sampled_from([0, 100_000, 200_000, 256 * 1024, 300_000, 1_000_000])
large_storages = pytest.mark.parametrize('make', [
    STORAGES['annotations'], STORAGES['prefix'], STORAGES['status'], STORAGES['multi'],
    lambda: AnnotationsDiffBaseStorage(key='k' * 60)])


@large_storages
@given(size=SIZES, others=st.sampled_from([0, 10_000, 100_000, 200_000, 260_000]))
def test_there_is_room_for_the_state_of_any_object(make, size, others):
    spec = {'small': 1, 'large': make_noise(size)}
    raw = {'metadata': {'annotations': {'kubectl.kubernetes.io/x': 'ü' * (others // 2)}},
           'spec': spec}
    for new in (spec, {**spec, 'small': 2}):
        raw = store(make(), raw, {'spec': new})
        assert count_annotations(raw) < 256 * 1024
        assert len(json.dumps(raw, ensure_ascii=False).encode()) < 1.5 * 1024 * 1024
        assert make().fetch(body=Body(raw)) == {'spec': new}
        assert make().fetch(body=Body(raw)) != {'spec': {**new, 'large': 'other'}}


@large_storages
def test_the_states_of_large_objects_are_said_to_be_reduced(make):
    raw = store(make(), {}, {'spec': {'large': make_noise(100)}})
    assert not make()._is_reduced(raw)
    raw = store(make(), {'spec': {'large': make_noise(1_400_000)}},
                {'spec': {'large': make_noise(1_400_000)}})
    assert make()._is_reduced(raw)
    assert not make()._is_reduced({})


def test_the_state_leaves_room_for_the_progress_of_handlers():
    rest = len('kopf.zalando.org/last-handled-configuration{"spec":""}\n')
    for more, is_plain in [(0, True), (1, False)]:
        raw = store(STORAGES['annotations'](), {}, {
            'spec': 'x' * (256 * 1024 - RESERVE - rest + more)})
        value, = raw['metadata']['annotations'].values()
        assert value.startswith('{"spec":"') is is_plain


def test_progress_that_is_removed_at_the_same_time_takes_no_room():
    raw = {'metadata': {'annotations': {'kopf.zalando.org/fn': 'x' * 200_000}}}
    patch = Patch({'metadata': {'annotations': {'kopf.zalando.org/fn': None}}})
    STORAGES['annotations']().store(
        body=Body(raw), patch=patch, essence={'spec': 'x' * 200_000})
    assert len(patch['metadata']['annotations'][
        'kopf.zalando.org/last-handled-configuration']) > 200_000
