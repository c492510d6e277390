import copy
import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.configs.diffbase import DiffBaseStorage
from kopf._cogs.configs.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    ProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge

RECORD = {
    'started': '2020-01-01T00:00:00+00:00', 'stopped': None, 'delayed': None, 'purpose': 'create',
    'retries': 0, 'success': False, 'failure': False, 'message': None, 'subrefs': None,
}

STORAGES = {
    'annotations': lambda: AnnotationsProgressStorage(),
    'verbose': lambda: AnnotationsProgressStorage(verbose=True),
    'prefix': lambda: AnnotationsProgressStorage(prefix='my.dev'),
    'long prefix': lambda: AnnotationsProgressStorage(prefix='x' * 60 + '.my.dev'),
    'no v1': lambda: AnnotationsProgressStorage(prefix='my.dev', v1=False, touch_key='t'),
    'status': lambda: StatusProgressStorage(),
    'named status': lambda: StatusProgressStorage(name='mine'),
    'field': lambda: StatusProgressStorage(field='spec.mine', touch_field='spec.touched'),
    'smart': lambda: SmartProgressStorage(),
    'multi': lambda: MultiProgressStorage([
        AnnotationsProgressStorage(prefix='my.dev'), StatusProgressStorage(name='mine')]),
}

IDS = st.sampled_from([
    'fn', 'fn/spec.field', 'parent/child', '_fn', '<lambda>', 'long' * 20, 'other' * 30])
TIMES = st.none() | st.datetimes(
    min_value=datetime.datetime(2000, 1, 1), max_value=datetime.datetime(2100, 1, 1),
    timezones=st.just(datetime.UTC)).map(datetime.datetime.isoformat)
RECORDS = st.fixed_dictionaries({
    'started': TIMES,
    'stopped': TIMES,
    'delayed': TIMES,
    'purpose': st.none() | st.sampled_from(['create', 'update']),
    'retries': st.none() | st.integers(0, 1000),
    'success': st.none() | st.booleans(),
    'failure': st.none() | st.booleans(),
    'message': st.none() | st.text(),
    'subrefs': st.none() | st.lists(IDS),
})
STANZAS = st.dictionaries(st.sampled_from(['kopf', 'mine', 'a']), st.just({'a': 1}))
ANNOTATIONS = st.dictionaries(
    st.sampled_from(['a', 'other.dev/fn', 'my.dev.x/fn', 'x.my.dev/fn']), st.text())
BODIES = st.fixed_dictionaries(
    {'metadata': st.fixed_dictionaries({}, optional={'annotations': ANNOTATIONS})},
    optional={'spec': STANZAS, 'status': STANZAS})

storages = pytest.mark.parametrize('make', STORAGES.values(), ids=STORAGES)


def annotate(annotations, **meta):
    return {'metadata': {**meta, 'annotations': annotations}}


def without_values(value):
    """What is left when what is put there was removed again."""
    if isinstance(value, dict):
        return {key: without_values(val) for key, val in value.items() if val != 'x'}
    return value


@storages
@given(raw=BODIES, key=IDS, record=RECORDS)
def test_what_is_stored_is_fetched(make, raw, key, record):
    raw = store(make(), raw, key, record)
    assert without_nones(make().fetch(key=key, body=Body(raw))) == without_nones(record)


@storages
@given(raw=BODIES, key=IDS, old=RECORDS, new=RECORDS)
def test_nothing_of_the_old_records_is_left_in_the_new_ones(make, raw, key, old, new):
    raw = store(make(), store(make(), raw, key, old), key, new)
    assert without_nones(make().fetch(key=key, body=Body(raw))) == without_nones(new)


@storages
@given(raw=BODIES, key=IDS, other=IDS, record=RECORDS, value=st.text())
def test_the_records_of_others_are_not_affected(make, raw, key, other, record, value):
    storage = make()
    if key != other:
        raw = store(storage, raw, other, RECORD)
        before = storage.fetch(key=other, body=Body(raw))
        raw = store(storage, raw, key, record)
        raw = touch(storage, raw, value)
        raw = purge(storage, raw, key)
        assert storage.fetch(key=other, body=Body(raw)) == before


@storages
@given(raw=BODIES, key=IDS)
def test_nothing_is_fetched_if_nothing_is_stored(make, raw, key):
    assert make().fetch(key=key, body=Body(raw)) is None
    assert make().touched(body=Body(raw)) is None


@storages
@pytest.mark.parametrize('raw', [
    {}, {'metadata': None}, {'metadata': {'annotations': None}, 'status': None},
    {'metadata': {}, 'status': {'kopf': None, 'mine': {'progress': None}}}])
def test_nothing_is_fetched_from_what_is_not_there(make, raw):
    assert make().fetch(key='fn', body=Body(raw)) is None
    assert make().touched(body=Body(raw)) is None


@storages
@given(raw=BODIES, key=IDS, record=RECORDS)
def test_purged_records_are_not_fetched(make, raw, key, record):
    raw = purge(make(), store(make(), raw, key, record), key)
    assert make().fetch(key=key, body=Body(raw)) is None


@storages
@given(raw=BODIES, key=IDS, record=RECORDS)
def test_what_is_stored_and_purged_at_once_leaves_nothing(make, raw, key, record):
    patch = Patch()
    make().store(key=key, record=record, body=Body(raw), patch=patch)
    make().purge(key=key, body=Body(raw), patch=patch)
    assert without_marks(patch) == {}


@storages
@given(raw=BODIES, key=IDS)
def test_nothing_is_purged_if_nothing_is_stored(make, raw, key):
    patch = Patch()
    make().purge(key=key, body=Body(raw), patch=patch)
    make().touch(body=Body(raw), patch=patch, value=None)
    assert patch == {}


@storages
@given(raw=BODIES, key=IDS, record=RECORDS)
def test_what_is_purged_and_stored_at_once_is_stored(make, raw, key, record):
    raw = store(make(), raw, key, RECORD)
    patch = Patch()
    make().purge(key=key, body=Body(raw), patch=patch)
    make().store(key=key, record=record, body=Body(raw), patch=patch)
    stored = make().fetch(key=key, body=Body(merge(raw, patch)))
    assert without_nones(stored) == without_nones(record)


@storages
@given(raw=BODIES, value=st.text(), newer=st.text())
def test_a_touch_is_there_until_it_is_removed(make, raw, value, newer):
    storage = make()
    raw = touch(storage, raw, value)
    if not isinstance(storage, SmartProgressStorage):
        assert storage.touched(body=Body(raw)) == value
    raw = touch(storage, raw, newer)
    assert storage.touched(body=Body(raw)) == newer
    raw = touch(storage, raw, None)
    assert storage.touched(body=Body(raw)) is None


@storages
@given(raw=BODIES, records=st.dictionaries(IDS, RECORDS, min_size=1), value=st.text())
def test_no_traces_are_in_the_essence(make, raw, records, value):
    storage = make()
    before = get_essence(storage, raw)
    for key, record in records.items():
        raw = store(storage, raw, key, record)
    raw = touch(storage, raw, value)
    assert get_essence(storage, raw) == before
    for key in records:
        raw = purge(storage, raw, key)
    raw = touch(storage, raw, None)
    assert get_essence(storage, raw) == before


@storages
@given(raw=BODIES, key=IDS, record=RECORDS)
def test_bodies_and_essences_are_not_changed_in_place(make, raw, key, record):
    storage = make()
    raw = store(storage, raw, key, record)
    before = copy.deepcopy(raw)
    storage.fetch(key=key, body=Body(raw))
    store(storage, raw, key, RECORD)
    purge(storage, raw, key)
    touch(storage, raw, 'x')
    storage.clear(essence=raw)
    assert raw == before


@storages
def test_the_record_of_the_cycle_is_there_until_it_is_removed(make):
    storage, raw = make(), {'spec': {'a': 1}, 'status': {'a': 1}, 'metadata': {'annotations': {}}}
    recorded = store_cycle(storage, store_cycle(storage, raw, 'x'), 'y')
    assert storage.fetch_cycle(body=Body(recorded)) == 'y'
    assert storage.clear(essence=recorded)['spec'] == raw['spec']
    assert storage.clear(essence=recorded)['status'] == raw['status']
    removed = store_cycle(storage, recorded, None)
    assert storage.fetch_cycle(body=Body(removed)) is None
    assert storage.fetch_cycle(body=Body(raw)) is None
    assert store_cycle(storage, {}, None) == {}


NAMES = {'name': 'mine', 'field': 'status.{name}.f', 'touch_field': 'status.{name}.t'}


@pytest.mark.parametrize(('storage', 'touched', 'recorded'), [
    (AnnotationsProgressStorage(),
     annotate({'kopf.zalando.org/touch-dummy': 'x'}),
     annotate({'kopf.zalando.org/handling-cycle': 'x'})),
    (AnnotationsProgressStorage(touch_key='t'),
     annotate({'kopf.zalando.org/t': 'x'}),
     annotate({'kopf.zalando.org/handling-cycle': 'x'})),
    (AnnotationsProgressStorage(prefix='my.dev'),
     annotate({'my.dev/touch-dummy': 'x', 'my.dev/kopf-managed': 'yes'}),
     annotate({'my.dev/handling-cycle': 'x', 'my.dev/kopf-managed': 'yes'})),
    (StatusProgressStorage(),
     {'status': {'kopf': {'dummy': 'x'}}},
     {'status': {'kopf': {'progress': {'handling-cycle': 'x'}}}}),
    (StatusProgressStorage(**NAMES),
     {'status': {'mine': {'t': 'x'}}}, {'status': {'mine': {'f': {'handling-cycle': 'x'}}}}),
    (StatusProgressStorage(field='status.f'),
     {'status': {'kopf': {'dummy': 'x'}}}, {'status': {'f': {'handling-cycle': 'x'}}}),
    (SmartProgressStorage(),
     annotate({'kopf.zalando.org/touch-dummy': 'x'}),
     annotate({'kopf.zalando.org/handling-cycle': 'x'})),
    (SmartProgressStorage(touch_key='t', **NAMES),
     annotate({'kopf.zalando.org/t': 'x'}),
     annotate({'kopf.zalando.org/handling-cycle': 'x'})),
])
def test_touches_and_records_of_cycles_are_where_the_options_say(storage, touched, recorded):
    assert touch(storage, {}, 'x') == touched
    assert store_cycle(storage, {}, 'x') == recorded
    assert touch(storage, touched, None) == without_values(touched)
    assert store_cycle(storage, recorded, None) == without_values(recorded)


@pytest.mark.parametrize('value', [1, {}, ['x'], True])
def test_touches_and_records_of_cycles_in_the_status_are_ignored_if_they_are_no_strings(value):
    body = Body({'status': {'kopf': {'dummy': value, 'progress': {'handling-cycle': value}}}})
    storage = StatusProgressStorage()
    assert (storage.touched(body=body), storage.fetch_cycle(body=body)) == (None, None)


@pytest.mark.parametrize(('options', 'count'), [({}, 2), ({'v1': True}, 2), ({'v1': False}, 1)])
@pytest.mark.parametrize('cls', [AnnotationsProgressStorage, SmartProgressStorage])
def test_very_old_names_are_used_too_unless_disabled(cls, options, count):
    raw = store(cls(**options), {}, 'k' * 60, RECORD)
    assert len(raw['metadata']['annotations']) == count


def test_the_default_storage_has_the_options_of_both_of_its_parts():
    storage = SmartProgressStorage(prefix='my.dev', verbose=True, **NAMES)
    raw = store(storage, {}, 'fn', RECORD)
    assert json.loads(raw['metadata']['annotations']['my.dev/fn']) == RECORD
    old = StatusProgressStorage(**NAMES)
    raw = touch(old, store(old, {}, 'fn', RECORD), 'x')
    assert storage.fetch(key='fn', body=Body(raw)) == without_nones(RECORD)
    assert storage.touched(body=Body(raw)) == 'x'


def test_the_first_of_several_storages_that_knows_a_cycle_is_right():
    first, second = STORAGES['prefix'](), STORAGES['status']()
    storage = MultiProgressStorage([first, second])
    raw = store_cycle(second, {}, 'y')
    assert storage.fetch_cycle(body=Body(raw)) == 'y'
    assert storage.fetch_cycle(body=Body(store_cycle(first, raw, 'x'))) == 'x'


def test_what_deployments_copy_to_their_replica_sets_is_not_their_progress():
    storage = AnnotationsProgressStorage()
    deployment = store_cycle(storage, touch(storage, store(storage, {}, 'fn', RECORD), 'x'), 'y')
    raw = merge(deployment, {
        'kind': 'ReplicaSet', 'metadata': {'ownerReferences': [{'kind': 'Deployment'}]}})
    assert storage.fetch(key='fn', body=Body(raw)) is None
    assert storage.touched(body=Body(raw)) is None
    assert storage.fetch_cycle(body=Body(raw)) is None
    own = store_cycle(storage, touch(storage, store(storage, raw, 'fn', RECORD), 'x'), 'y')
    assert storage.fetch(key='fn', body=Body(own)) == without_nones(RECORD)
    assert (storage.touched(body=Body(own)), storage.fetch_cycle(body=Body(own))) == ('x', 'y')
    assert store_cycle(storage, touch(storage, purge(storage, own, 'fn'), None), None) == raw


def test_what_is_purged_does_not_take_along_what_is_stored_at_once():
    storage, patch = AnnotationsProgressStorage(), Patch()
    storage.store(key='fn', record=RECORD, body=Body({}), patch=patch)
    storage.purge(key='other', body=Body({}), patch=patch)
    assert storage.fetch(key='fn', body=Body(merge({}, patch))) == without_nones(RECORD)


def test_the_stored_record_is_another_one_than_the_given():
    patch, record = Patch(), dict(RECORD)
    StatusProgressStorage().store(key='fn', record=record, body=Body({}), patch=patch)
    patch['status']['kopf']['progress']['fn']['retries'] = 9
    assert record == RECORD


@pytest.mark.parametrize(('essence', 'cleared'), [
    ({'spec': 1}, {'spec': 1}),
    (annotate({'a': 'b', 'my.dev.x/fn': 'c'}), annotate({'a': 'b', 'my.dev.x/fn': 'c'})),
    ({'spec': 1, **annotate({'my.dev/fn': 'x'})}, {'spec': 1}),
    ({'spec': 1, **annotate({'my.dev/fn': 'x', 'a': 'b'}, labels={'l': 'm'})},
     {'spec': 1, **annotate({'a': 'b'}, labels={'l': 'm'})}),
    (annotate({'my.dev/fn': 'x'}, labels={'l': 'm'}), {'metadata': {'labels': {'l': 'm'}}}),
])
def test_own_annotations_are_cleared_from_the_essence(essence, cleared):
    result = AnnotationsProgressStorage(prefix='my.dev').clear(essence=essence)
    assert result == cleared
    assert (result is essence) == (essence == cleared)


@pytest.mark.parametrize(('essence', 'cleared'), [
    ({'spec': 1}, {'spec': 1}),
    ({'status': {}}, {}),
    ({'status': {'kopf': {}}}, {}),
    ({'status': None}, {'status': None}),
    ({'status': 'text'}, {'status': 'text'}),
    ({'status': {'a': 1}}, {'status': {'a': 1}}),
    ({'status': {'kopf': 1}}, {'status': {'kopf': 1}}),
    ({'status': {'kopf': {'a': 1}}}, {'status': {'kopf': {'a': 1}}}),
    ({'spec': 1, 'status': {'kopf': {'progress': {'fn': {}}}}}, {'spec': 1}),
    ({'status': {'kopf': {'progress': 'text'}}}, {}),
    ({'status': {'kopf': {'progress': None}}}, {}),
    ({'status': {'kopf': {'dummy': 'x', 'progress': {'handling-cycle': 'y'}, 'a': 1}, 'b': 2}},
     {'status': {'kopf': {'a': 1}, 'b': 2}}),
    ({'status': {'kopf': {'progress': {}}, 'b': 2}}, {'status': {'b': 2}}),
    ({'status': {'kopf': {'progress': {}}, 'b': 2}, 'spec': 1}, {'status': {'b': 2}, 'spec': 1}),
])
def test_own_fields_are_cleared_from_the_essence(essence, cleared):
    result = StatusProgressStorage().clear(essence=essence)
    assert result == cleared
    assert [*result] == [*cleared]
    assert (result is essence) == (essence == cleared)
    assert SmartProgressStorage().clear(essence=essence) == cleared


@pytest.mark.parametrize('make', [STORAGES['annotations'], STORAGES['smart']])
def test_only_what_is_set_is_written_to_annotations(make):
    raw = store(make(), {}, 'fn', RECORD)
    assert raw == {'metadata': {'annotations': {'kopf.zalando.org/fn': (
        '{"started":"2020-01-01T00:00:00+00:00","purpose":"create","retries":0,'
        '"success":false,"failure":false}')}}}


def test_everything_is_written_to_annotations_if_verbose():
    raw = store(AnnotationsProgressStorage(verbose=True), {}, 'fn', RECORD)
    [encoded] = raw['metadata']['annotations'].values()
    assert json.loads(encoded) == RECORD


def test_own_prefixes_are_marked_with_the_records():
    raw = store(AnnotationsProgressStorage(prefix='my.dev'), {}, 'fn', RECORD)
    assert raw['metadata']['annotations'].keys() == {'my.dev/fn', 'my.dev/kopf-managed'}
    assert raw['metadata']['annotations']['my.dev/kopf-managed'] == 'yes'


def test_the_status_has_the_records_by_the_ids_of_handlers():
    raw = store(StatusProgressStorage(), {}, 'fn/spec.field', RECORD)
    assert raw == {'status': {'kopf': {'progress': {'fn/spec.field': without_nones(RECORD)}}}}


def test_the_fields_of_the_status_storages_can_be_changed_later():
    storage = StatusProgressStorage(name='mine')
    storage.field = 'status.{name}.records'
    storage.touch_field = ['status', 'my.touch']
    assert storage.field == ('status', 'mine', 'records')
    assert storage.touch_field == ('status', 'my.touch')


@pytest.mark.parametrize('value', ['', '{', 'text'])
def test_unreadable_records_are_errors_that_name_them(value):
    raw = {'metadata': {'annotations': {'kopf.zalando.org/fn': value}}}
    with pytest.raises(ValueError, match=r'kopf\.zalando\.org/fn is not readable'):
        AnnotationsProgressStorage().fetch(key='fn', body=Body(raw))


def test_records_of_the_status_are_read_and_cleaned_by_default_but_not_written():
    raw = store(StatusProgressStorage(), {}, 'fn', RECORD)
    storage = SmartProgressStorage()
    assert storage.fetch(key='fn', body=Body(raw)) == without_nones(RECORD)
    assert 'status' not in store(storage, {}, 'fn', RECORD)
    assert storage.fetch(key='fn', body=Body(purge(storage, raw, 'fn'))) is None


def test_the_first_of_several_storages_that_knows_a_record_is_right():
    first, second = STORAGES['prefix'](), STORAGES['status']()
    storage = MultiProgressStorage([first, second])
    raw = store(second, {}, 'fn', {**RECORD, 'retries': 2})
    assert storage.fetch(key='fn', body=Body(raw))['retries'] == 2
    raw = store(first, raw, 'fn', {**RECORD, 'retries': 1})
    assert storage.fetch(key='fn', body=Body(raw))['retries'] == 1


def test_several_storages_are_flushed_together():
    class Flushable(AnnotationsProgressStorage):
        flushed = False

        def flush(self):
            self.flushed = True

    members = [Flushable(), Flushable()]
    MultiProgressStorage(members).flush()
    assert [member.flushed for member in members] == [True, True]


def test_storages_have_to_fetch_and_to_store_and_to_purge():
    storage = ProgressStorage()
    with pytest.raises(NotImplementedError):
        storage.fetch(key='fn', body=Body({}))
    with pytest.raises(NotImplementedError):
        storage.store(key='fn', record=RECORD, body=Body({}), patch=Patch())
    with pytest.raises(NotImplementedError):
        storage.purge(key='fn', body=Body({}), patch=Patch())


def test_storages_of_others_need_not_know_how_to_touch_or_clean():
    storage = ProgressStorage()
    assert storage.touched(body=Body({})) is None
    assert storage.clear(essence={'spec': {'a': 1}}) == {'spec': {'a': 1}}
    storage.flush()


def store(storage, raw, key, record):
    patch = Patch()
    storage.store(key=key, record=record, body=Body(raw), patch=patch)
    return merge(raw, patch)


def purge(storage, raw, key):
    patch = Patch()
    storage.purge(key=key, body=Body(raw), patch=patch)
    return merge(raw, patch)


def touch(storage, raw, value):
    patch = Patch()
    storage.touch(body=Body(raw), patch=patch, value=value)
    return merge(raw, patch)


def store_cycle(storage, raw, value):
    patch = Patch()
    storage.store_cycle(body=Body(raw), patch=patch, value=value)
    return merge(raw, patch)


def get_essence(storage, raw):
    essence = DiffBaseStorage().build(body=Body(raw), extra_fields=['spec', 'status'])
    return storage.clear(essence=essence)


def without_nones(record):
    return {key: val for key, val in record.items() if val is not None}


def without_marks(patch):
    """Annotations that mark prefixes are left for good."""
    annotations = dict(patch.get('metadata', {}).get('annotations', {}))
    annotations.pop('my.dev/kopf-managed', None)
    annotations.pop(f"{'x' * 60}.my.dev/kopf-managed", None)
    return {'metadata': {'annotations': annotations}} if annotations else {
        key: val for key, val in patch.items() if key != 'metadata'}


class Foreign(AnnotationsProgressStorage):
    """Keeps the records elsewhere; all the rest is inherited."""

    def __init__(self):
        super().__init__()
        self.records = {}

    def fetch(self, *, key, body):
        return self.records.get(key)

    def store(self, *, key, record, body, patch):
        self.records[key] = record

    def purge(self, *, key, body, patch):
        self.records.pop(key, None)


def test_what_was_put_by_touching_is_removed_though_the_records_are_kept_elsewhere():
    storage, patch = Foreign(), Patch()
    storage.touch(body=Body({}), patch=patch, value='x')
    body = Body(merge({}, patch))
    assert storage.touched(body=body) == 'x'
    patch = Patch()
    storage.touch(body=body, patch=patch, value=None)
    assert storage.touched(body=Body(merge(body, patch))) is None
