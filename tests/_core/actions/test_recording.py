import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.configs import compaction
from kopf._cogs.structs import dicts
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge
from kopf._core.actions.cycles import Conclusion, Cycle
from kopf._core.actions.progression import HandlerState, Outcome
from kopf._core.actions.recording import (
    MAX_LENGTH,
    SeenStates,
    encode_seen,
    fetch_seen,
    fetch_state,
    is_committed,
    is_too_large,
    make_closing,
    make_progress,
    restore,
)
from kopf._core.intents.causes import Reason
from tests._core.actions.lives import Life, Plan, make_handler, make_moment

PREFIX = 'op.example.com'
CYCLE_KEY = 'kopf.zalando.org/handling-cycle'
DONE = Outcome(final=True)
RETRY = Outcome(final=False, delay=10, exception=Exception(), message="Not yet.")


class AuthorsStorage(kopf.ProgressStorage):
    """Such as authors could have written long ago: nothing but the records of handlers."""

    def fetch(self, *, key, body):
        return dicts.resolve(body, ('status', 'records', key), None)

    def store(self, *, key, record, body, patch):
        dicts.ensure(patch, ('status', 'records', key), dict(record))

    def purge(self, *, key, body, patch):
        if self.fetch(key=key, body=body) is not None:
            dicts.ensure(patch, ('status', 'records', key), None)
        else:
            dicts.remove(patch, ('status', 'records', key))


STORAGES = {
    'smart': lambda: kopf.SmartProgressStorage(),
    'annotations': lambda: kopf.AnnotationsProgressStorage(prefix=PREFIX),
    'status': lambda: kopf.StatusProgressStorage(),
    'multi': lambda: kopf.MultiProgressStorage([
        kopf.AnnotationsProgressStorage(prefix=PREFIX), kopf.StatusProgressStorage(name='op')]),
}
storages = pytest.mark.parametrize('make', STORAGES.values(), ids=STORAGES)
all_storages = pytest.mark.parametrize(
    'make', [*STORAGES.values(), AuthorsStorage], ids=[*STORAGES, "the author's"])

VALUES = st.booleans() | st.integers(0, 3) | st.text(max_size=2)
ESSENCES = st.dictionaries(st.sampled_from('ab'), st.dictionaries(
    st.sampled_from('ab'), VALUES | st.lists(VALUES, max_size=2), min_size=1), max_size=2)


def essence(f):
    return {'spec': {'f': f}}


def make_settings(make=kopf.SmartProgressStorage):
    settings = kopf.OperatorSettings()
    settings.persistence.progress_storage = make()
    return settings


def make_raw(settings, old=None):
    raw = {'metadata': {'name': 'name1'}}
    return raw if old is None else handle(settings, raw, old)


def handle(settings, raw, old):
    patch = Patch()
    settings.persistence.diffbase_storage.store(body=Body(raw), patch=patch, essence=old)
    return merge(raw, patch)


def make_cycle(*handler_ids, outcome=DONE, reason=Reason.UPDATE, **fields):
    """A cycle in which these handlers were tried once."""
    cycle = Cycle(reason=reason).join(
        [make_handler(id) for id in handler_ids], recall=lambda id: None, now=make_moment(0))
    for id in handler_ids:
        cycle = cycle.note(id, outcome, essence=essence(1), now=make_moment(1))
    return cycle._replace(**fields)


def record(settings, cycle, raw, *, expected=None, contributed=()):
    return merge(raw, make_progress(
        cycle, body=Body(raw), settings=settings, expected=expected or essence(1),
        contributed=contributed).patch)


def reload(settings, raw, *handler_ids, at=2):
    return restore(
        [make_handler(id) for id in handler_ids], body=Body(raw), settings=settings,
        now=make_moment(at))


def close(settings, cycle, raw, *handler_ids, conclusion=None):
    return merge(raw, make_closing(
        cycle, handler_ids, body=Body(raw), settings=settings, conclusion=conclusion))


def get_annotations(raw):
    return raw['metadata'].get('annotations', {})


# Round trips.


@all_storages
def test_the_progress_of_handlers_is_restored(make):
    settings = make_settings(make)
    cycle = make_cycle('fn', outcome=RETRY).join(
        [make_handler('new')], recall=lambda id: None, now=make_moment(1))
    raw = record(settings, cycle, make_raw(settings, essence(0)))
    restored = reload(settings, raw, 'fn', 'new', 'unknown')
    assert restored.reason == Reason.UPDATE
    assert restored.states == cycle.states
    assert restored.roots == {'fn', 'new'}
    assert restored.has_records
    assert not restored.dirty
    assert (restored.base, restored.divergent) == (None, None)


@pytest.mark.parametrize('initial, called, is_done', [
    (False, [], True), (True, [], False), (True, ['fn'], True)])
def test_resuming_handlers_are_done_only_if_this_process_has_called_them(initial, called, is_done):
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings, essence(0)))
    restored = restore(
        [make_handler('fn', initial=True)], body=Body(raw), settings=settings, now=make_moment(2),
        initial=initial, called=called)
    assert restored.states['fn'].finished == is_done


@storages
@given(old=st.none() | ESSENCES, base=ESSENCES, divergent=st.none() | ESSENCES)
def test_what_handlers_have_seen_is_restored(make, old, base, divergent):
    settings = make_settings(make)
    cycle = make_cycle('fn', base=base, divergent=divergent)
    raw = record(settings, cycle, make_raw(settings, old))
    restored = reload(settings, raw, 'fn')
    assert (restored.base, restored.divergent) == (base, divergent)


@storages
@given(base=ESSENCES, divergent=ESSENCES)
def test_what_diverges_at_the_end_is_restored_for_the_next_cycle(make, base, divergent):
    settings = make_settings(make)
    cycle = make_cycle('fn', base=base, divergent=divergent, has_records=True)
    raw = record(settings, cycle, make_raw(settings))
    raw = close(settings, cycle, raw, conclusion=Conclusion(base, divergent))
    raw = handle(settings, raw, base)
    restored = reload(settings, raw, 'fn')
    assert restored.reason == Reason.NOOP
    assert (restored.states, restored.roots) == ({}, frozenset())
    assert (restored.base, restored.divergent) == (None, divergent)


@all_storages
def test_where_nothing_is_recorded_there_is_no_cycle(make):
    settings = make_settings(make)
    assert reload(settings, make_raw(settings, essence(0)), 'fn') is None


def test_what_others_have_put_next_to_the_records_is_a_cycle_to_be_cleaned():
    settings, patch = make_settings(), Patch()
    settings.persistence.progress_storage.touch(body=Body({}), patch=patch, value='2020')
    raw = merge(make_raw(settings, essence(0)), patch)
    restored = reload(settings, raw, 'fn')
    assert (restored.reason, restored.has_records, restored.states) == (Reason.NOOP, True, {})
    raw = close(settings, restored, raw, 'fn', conclusion=Conclusion(essence(0), None))
    assert raw == make_raw(settings, essence(0))


def test_an_authors_storage_keeps_all_but_what_handlers_have_seen():
    settings = make_settings(AuthorsStorage)
    cycle = make_cycle('fn', base=essence(1), divergent=essence(2))
    restored = reload(settings, record(settings, cycle, make_raw(settings, essence(0))), 'fn')
    assert restored.states == cycle.states
    assert (restored.base, restored.divergent) == (None, None)


def test_the_base_can_be_what_only_sub_handlers_have_seen():
    """Sub-handlers are not declared before their parent is called."""
    settings = make_settings()
    cycle = make_cycle('fn', outcome=RETRY, base=essence(1), divergent=essence(2))
    restored = reload(settings, record(settings, cycle, make_raw(settings, essence(0))), 'fn')
    assert (restored.base, restored.divergent) == (essence(1), essence(2))


def test_one_finished_handler_of_many_has_seen_the_base():
    settings = make_settings()
    raw = make_raw(settings, essence(0))
    cycle = make_cycle('a', 'b').join(
        [make_handler('c')], recall=lambda id: None, now=make_moment(1))
    restored = reload(settings, record(settings, cycle, raw), 'c', 'b')
    assert restored.base == essence(1)


def test_the_base_of_handlers_that_are_not_declared_any_more_does_not_count():
    settings = make_settings()
    cycle = make_cycle('fn', base=essence(1), divergent=essence(2))
    restored = reload(settings, record(settings, cycle, make_raw(settings, essence(0))), 'new')
    assert (restored.states, restored.base, restored.divergent) == ({}, None, essence(2))


def test_records_without_a_purpose_are_of_no_cause():
    settings, patch = make_settings(), Patch()
    state = HandlerState.new(now=make_moment(0))
    settings.persistence.progress_storage.store(
        key='fn', record=state.as_record(), body=Body({}), patch=patch)
    assert reload(settings, merge(make_raw(settings), patch), 'fn').reason == Reason.NOOP


@pytest.mark.parametrize('value', ['{"purpose":"unheard-of"}', '{"retries":"many"}', '{'])
def test_unreadable_records_of_handlers_are_errors(value):
    settings = make_settings()
    raw = merge(make_raw(settings), {'metadata': {'annotations': {'kopf.zalando.org/fn': value}}})
    with pytest.raises(ValueError):
        reload(settings, raw, 'fn')


def test_the_times_of_records_are_relative_to_now():
    settings = make_settings()
    raw = record(settings, make_cycle('fn', outcome=RETRY), make_raw(settings))
    state = fetch_state('fn', body=Body(raw), settings=settings, now=make_moment(5))
    assert state.due == make_moment(11).mono
    assert fetch_state('no', body=Body(raw), settings=settings, now=make_moment(5)) is None


# What is recorded while the cycle goes on.


def test_what_is_recorded_is_tagged_with_its_version_and_the_last_handled_state():
    settings = make_settings()
    raw = make_raw(settings, {'spec': {'g': [1, 2], 'f': 0}})
    raw = record(settings, make_cycle('fn', divergent=essence(2)), raw)
    value = json.loads(get_annotations(raw)[CYCLE_KEY])
    assert value == {
        'version': 1, 'since': 'd705645d5ba8d10d', 'base': essence(1), 'divergent': essence(2)}


@pytest.mark.parametrize('seen', [{'base': essence(1)}, {'divergent': essence(1)}])
def test_states_that_nobody_has_seen_take_no_place_in_the_record(seen):
    value = json.loads(encode_seen(SeenStates(**seen), since=None))
    assert value == {'version': 1, 'since': 'b5daf1f36ac2d78a', **seen}


def test_only_what_is_not_there_yet_is_recorded():
    settings = make_settings()
    cycle = make_cycle('fn', 'other', unsaved={'fn': None})
    raw = make_raw(settings, essence(0))
    progress = make_progress(
        cycle, body=Body(raw), settings=settings, expected=essence(1), contributed=())
    assert set(progress.patch['metadata']['annotations']) == {'kopf.zalando.org/fn', CYCLE_KEY}
    assert progress.repeated == frozenset()
    saved = cycle.saved(dict(cycle.states), now=5.0)
    raw = merge(raw, progress.patch)
    progress = make_progress(
        saved, body=Body(raw), settings=settings, expected=essence(1), contributed=())
    assert progress == (Patch(), frozenset())


def test_the_base_is_recorded_as_it_becomes_by_what_is_contributed():
    settings = make_settings()
    cycle = make_cycle('fn')
    raw = record(
        settings, cycle, make_raw(settings, essence(0)),
        expected={'spec': {'f': 2, 'own': 1}}, contributed=[{'spec': {'own': 1}}])
    assert fetch_seen(Body(raw), settings=settings).base == {'spec': {'f': 1, 'own': 1}}


def test_without_finished_handlers_nothing_is_recorded_of_what_was_seen():
    settings = make_settings()
    raw = record(settings, make_cycle('fn', outcome=RETRY), make_raw(settings))
    assert set(get_annotations(raw)) == {'kopf.zalando.org/fn'}


def test_what_was_seen_is_removed_when_nobody_has_seen_it_any_more():
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings))
    raw = record(settings, make_cycle('fn', base=None), raw)
    assert set(get_annotations(raw)) == {'kopf.zalando.org/fn'}


@pytest.mark.parametrize('reason', [Reason.DELETE, Reason.RESUME])
def test_cycles_that_are_no_changes_do_not_touch_what_was_seen(reason):
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings, essence(0)))
    after = record(settings, make_cycle('fn', reason=reason, base=essence(3)), raw)
    assert get_annotations(after)[CYCLE_KEY] == get_annotations(raw)[CYCLE_KEY]


# Records that do not count.


@storages
def test_what_was_seen_before_the_object_was_handled_by_others_does_not_count(make):
    settings = make_settings(make)
    raw = record(
        settings, make_cycle('fn', divergent=essence(2)), make_raw(settings, essence(0)))
    assert fetch_seen(Body(raw), settings=settings) == (essence(1), essence(2))
    raw = handle(settings, raw, essence(7))
    assert fetch_seen(Body(raw), settings=settings) == SeenStates()
    restored = reload(settings, raw, 'fn')
    assert (restored.base, restored.divergent, restored.has_records) == (None, None, True)


def test_the_order_of_fields_in_the_last_handled_state_does_not_matter():
    settings = make_settings()
    raw = record(
        settings, make_cycle('fn'), make_raw(settings, {'spec': {'a': 1, 'b': {'c': 1, 'd': 2}}}))
    raw = handle(settings, raw, {'spec': {'b': {'d': 2, 'c': 1}, 'a': 1}})
    assert fetch_seen(Body(raw), settings=settings).base == essence(1)


DAMAGED = [
    '', '{', 'null', '1', '"text"', '[]', '{}', '[' * 100_000,
    '2020-01-01T00:00:00',
    '{"version":1}',
    '{"version":2,"since":SINCE,"base":{}}',
    '{"since":SINCE,"base":{}}',
    '{"version":1,"since":null,"base":{}}',
    '{"version":1,"since":SINCE,"base":1}',
    '{"version":1,"since":SINCE,"base":{},"divergent":["text"]}',
]


@pytest.mark.parametrize('value', DAMAGED, ids=range(len(DAMAGED)))
def test_unknown_and_damaged_records_of_a_cycle_are_ignored_and_then_removed(value):
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings, essence(0)))
    since = json.loads(get_annotations(raw)[CYCLE_KEY])['since']
    value = value.replace('SINCE', f'"{since}"')
    raw = merge(raw, {'metadata': {'annotations': {CYCLE_KEY: value}}})
    assert fetch_seen(Body(raw), settings=settings) == SeenStates()
    cycle = reload(settings, raw, 'fn')
    assert (cycle.base, cycle.divergent) == (None, None)
    raw = close(settings, cycle, raw, conclusion=Conclusion(essence(1), None))
    assert raw == make_raw(settings, essence(0))


def test_unreadable_last_handled_states_make_no_record_count():
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings, essence(0)))
    raw = merge(raw, {'metadata': {'annotations': {
        'kopf.zalando.org/last-handled-configuration': '{'}}})
    assert fetch_seen(Body(raw), settings=settings) == SeenStates()


def test_there_is_nothing_to_be_read_where_nothing_is_recorded():
    settings = make_settings()
    assert fetch_seen(Body(make_raw(settings, essence(0))), settings=settings) is None
    assert encode_seen(SeenStates(), since=essence(0)) is None


# Records that are too large.


def fill(length, since=None):
    """A base of which the record is of this length."""
    rest = len(encode_seen(SeenStates(essence('')), since=since))
    return essence('x' * (length - rest))


@pytest.mark.parametrize(('length', 'is_large'), [(MAX_LENGTH, False), (MAX_LENGTH + 1, True)])
def test_with_too_large_records_finished_handlers_are_to_be_repeated(length, is_large):
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings))
    cycle = make_cycle('fn').join(
        [make_handler('new')], recall=lambda id: None, now=make_moment(1))
    cycle = cycle._replace(base=fill(length))
    progress = make_progress(
        cycle, body=Body(raw), settings=settings, expected=essence(1), contributed=())
    restored = reload(settings, merge(raw, progress.patch), 'fn', 'new')
    if is_large:
        assert progress.repeated == {'fn'}
        assert set(restored.states) == {'new'}
        assert restored.base is None
        assert fetch_seen(Body(merge(raw, progress.patch)), settings=settings) is None
    else:
        assert progress.repeated == frozenset()
        assert set(restored.states) == {'fn', 'new'}
        assert restored.base == fill(length)


@pytest.mark.parametrize(('length', 'is_large'), [(MAX_LENGTH, False), (MAX_LENGTH + 1, True)])
def test_conclusions_are_too_large_if_what_diverges_is(length, is_large):
    base = essence(0)
    rest = len(encode_seen(SeenStates(divergent=essence('')), since=base))
    conclusion = Conclusion(base, essence('x' * (length - rest)))
    assert is_too_large(conclusion, body=Body({})) is is_large
    assert not is_too_large(Conclusion(conclusion.divergent, None), body=Body({}))


@pytest.mark.parametrize(('name', 'is_large'), [
    ('others', True), ('kubectl.kubernetes.io/last-applied-configuration', True),
    ('kopf.zalando.org/last-handled-configuration', False), ('kopf.zalando.org/fn', False)])
def test_conclusions_are_too_large_if_others_need_the_room(name, is_large):
    conclusion = Conclusion(essence(0), essence('x' * 50_000))
    raw = {'metadata': {'annotations': {name: 'x' * 200_000}}}
    assert is_too_large(conclusion, body=Body(raw)) is is_large


# Records for which there is little room.


def count_annotations(raw):
    return sum(len(key.encode()) + len(value.encode())
               for key, value in get_annotations(raw).items())


@pytest.mark.parametrize('text', ['x', 'é', '\U0001f600', '\0', '\ud800'])
@given(count=st.integers(1, 50), length=st.sampled_from([10, 3_000, 300_000]),
       others=st.sampled_from([0, 100_000, 230_000, 250_000, 261_000]), size=st.sampled_from([
           1, 50_000, 90_000]))
def test_there_is_room_for_the_progress_of_all_handlers(text, count, length, others, size):
    settings = make_settings()
    raw = {'metadata': {'name': 'name1', 'annotations': {'others': 'x' * others}},
           'spec': {'f': 'x' * size}}
    cycle = make_cycle('done')
    outcome = Outcome(final=False, delay=10, exception=Exception(), message=text * length)
    for i in range(count):
        cycle = cycle.join([make_handler(f'fn{i}')], recall=lambda id: None, now=make_moment(1))
        cycle = cycle.note(f'fn{i}', outcome, essence=essence('x' * size), now=make_moment(1))
        if i in (0, count // 2, count - 1):
            raw = record(settings, cycle, raw, expected=essence('x' * size))
            cycle = cycle.saved(cycle.states, now=2)
            assert count_annotations(raw) <= 256 * 1024
            reload(settings, raw, *cycle.states)


def test_long_messages_are_recorded_with_their_ends():
    settings = make_settings()
    outcome = RETRY._replace(message='a' * 200_000 + 'b' * 100_000)
    raw = record(settings, make_cycle('fn', outcome=outcome), make_raw(settings))
    message = reload(settings, raw, 'fn').states['fn'].message
    assert message == 'a' * 1020 + ' [...] ' + 'b' * 1021


def test_the_progress_that_has_no_room_is_to_be_repeated():
    settings = make_settings()
    raw = make_raw(settings)
    raw = merge(raw, {'metadata': {'annotations': {'others': 'x' * (256 * 1024 - 10)}}})
    progress = make_progress(
        make_cycle('fn'), body=Body(raw), settings=settings, expected=essence(1), contributed=())
    assert progress.repeated == {'fn'}
    assert merge(raw, progress.patch) == raw


def test_what_was_seen_is_recorded_also_of_objects_whose_old_values_are_not_known():
    settings = make_settings()
    unknown = essence(compaction.digest('x' * 1000))
    raw = handle(settings, make_raw(settings), unknown)
    cycle = make_cycle('fn', base=unknown, divergent=essence(2))
    raw = record(settings, cycle, raw, expected=unknown)
    restored = reload(settings, raw, 'fn')
    assert (restored.base, restored.divergent) == (essence('x' * 1000), essence(2))


# The end.


@all_storages
def test_the_end_leaves_nothing(make):
    settings = make_settings(make)
    raw = make_raw(settings, essence(0))
    cycle = make_cycle('fn', divergent=essence(2), has_records=True)
    ended = close(settings, cycle, record(settings, cycle, raw), 'fn', 'other')
    assert without_marks(ended) == without_marks(raw)


@pytest.mark.parametrize('attempts', [0, 1])
def test_the_end_leaves_nothing_of_a_handler_that_was_killed_among_its_sub_handlers(attempts):
    settings = make_settings()
    parent, child = make_handler('fn'), make_handler('fn/sub')
    cycle = Cycle(reason=Reason.UPDATE, has_records=True)
    cycle = cycle.join([parent], recall=lambda _: None, now=make_moment(0))
    raw = make_raw(settings, old=essence(0))
    for _ in range(attempts):
        cycle = cycle.note('fn', RETRY, essence=essence(1), now=make_moment(1))
        raw = merge(raw, make_progress(
            cycle, body=Body(raw), settings=settings, expected=essence(1), contributed=()).patch)
        cycle = cycle.saved(cycle.states, now=2)
    cycle = cycle.join([child], recall=lambda _: None, now=make_moment(2), as_roots=False)
    cycle = cycle.attach('fn', ['fn/sub'])
    cycle = cycle.note('fn/sub', DONE, essence=essence(1), now=make_moment(3))
    raw = merge(raw, make_progress(
        cycle, body=Body(raw), settings=settings, expected=essence(1), contributed=()).patch)

    restored = restore([parent], body=Body(raw), settings=settings, now=make_moment(4))
    raw = merge(raw, make_closing(
        restored, ['fn'], body=Body(raw), settings=settings,
        conclusion=Conclusion(essence(0), None)))
    assert fetch_state(
        'fn/sub', body=Body(raw), settings=settings, now=make_moment(5)) is None


def test_the_end_of_what_was_never_recorded_changes_nothing():
    settings = make_settings()
    patch = make_closing(
        make_cycle('fn'), ['fn'], body=Body(make_raw(settings)), settings=settings,
        conclusion=Conclusion(essence(1), None))
    assert patch == {}


def test_the_end_removes_the_records_of_a_former_process_that_have_come_meanwhile():
    settings = make_settings()
    raw = record(settings, make_cycle('fn'), make_raw(settings))
    closed = merge(raw, make_closing(
        make_cycle('fn'), ['fn'], body=Body(raw), settings=settings,
        conclusion=Conclusion(essence(1), None)))
    assert closed == merge(make_raw(settings), {'metadata': {'annotations': {}}})


def test_what_diverges_is_recorded_also_by_cycles_that_never_were():
    settings = make_settings()
    raw = close(
        settings, make_cycle('fn'), make_raw(settings),
        conclusion=Conclusion(essence(1), essence(2)))
    raw = handle(settings, raw, essence(1))
    assert fetch_seen(Body(raw), settings=settings) == (None, essence(2))


def test_what_diverges_is_recorded_once():
    settings = make_settings()
    conclusion = Conclusion(essence(1), essence(2))
    raw = close(settings, make_cycle('fn'), make_raw(settings), conclusion=conclusion)
    patch = make_closing(
        make_cycle('fn'), [], body=Body(raw), settings=settings, conclusion=conclusion)
    assert patch == {}


@all_storages
def test_the_sub_handlers_of_finished_handlers_leave_no_records_either(make):
    settings = make_settings(make)
    cycle = Cycle(reason=Reason.CREATE)
    for id, subrefs in [('fn/a/b', ()), ('fn/a', ['fn/a/b']), ('fn', ['fn/a'])]:
        cycle = cycle.join([make_handler(id)], recall=lambda id: None, now=make_moment(0))
        outcome = Outcome(final=True, subrefs=subrefs)
        cycle = cycle.note(id, outcome, essence={}, now=make_moment(1))
    raw = record(settings, cycle, make_raw(settings))

    cycle = reload(settings, raw, 'fn')
    assert without_marks(close(settings, cycle, raw, 'fn')) == make_raw(settings)
    stranger = Cycle(reason=Reason.DELETE, has_records=True)
    assert without_marks(close(settings, stranger, raw, 'fn')) == make_raw(settings)


def test_the_sub_handlers_that_are_known_to_a_handler_but_not_to_its_record_leave_none():
    settings = make_settings()
    raw = record(settings, make_cycle('fn', outcome=RETRY), make_raw(settings))
    raw = record(settings, make_cycle('fn/a'), raw)
    cycle = make_cycle('fn', outcome=DONE._replace(subrefs=['fn/a']), has_records=True)
    assert without_marks(close(settings, cycle, raw, 'fn')) == make_raw(settings)


def test_handlers_that_are_their_own_sub_handlers_by_their_records_leave_none():
    settings = make_settings()
    cycle = make_cycle('fn', 'other', outcome=RETRY._replace(subrefs=['fn', 'other']))
    raw = record(settings, cycle, make_raw(settings))
    stranger = Cycle(reason=Reason.DELETE, has_records=True)
    assert without_marks(close(settings, stranger, raw, 'fn')) == make_raw(settings)


def test_what_was_not_touched_is_not_touched_at_the_end():
    class Storage(kopf.AnnotationsProgressStorage):
        def touch(self, *, body, patch, value):
            patch.metadata.annotations['touched'] = value

    patch = make_closing(
        make_cycle('fn', has_records=True), ['fn'], body=Body(make_raw(make_settings())),
        settings=make_settings(Storage))
    assert patch == {}


def test_storages_are_told_when_all_is_stored():
    class Storage(kopf.AnnotationsProgressStorage):
        flushed = 0

        def flush(self):
            self.flushed += 1

    settings = make_settings(Storage)
    storage = settings.persistence.progress_storage
    raw = record(settings, make_cycle('fn'), make_raw(settings))
    assert storage.flushed == 1
    close(settings, make_cycle('fn', has_records=True), raw)
    assert storage.flushed == 2


# The commit of the end.


@pytest.mark.parametrize('divergent', [None, essence(3)])
@pytest.mark.parametrize('base', [essence(1), essence(2)])
def test_a_commit_is_recognised_once_it_has_arrived(base, divergent):
    settings = make_settings()
    conclusion = Conclusion(base, divergent)
    raw = make_raw(settings, essence(0))
    assert not is_committed(conclusion, old=essence(0), body=Body(raw), settings=settings)
    raw = handle(settings, close(settings, make_cycle('fn'), raw, conclusion=conclusion), base)
    assert is_committed(conclusion, old=base, body=Body(raw), settings=settings)
    assert not is_committed(conclusion, old=None, body=Body(raw), settings=settings)
    other = Conclusion(base, essence(4) if divergent is None else None)
    assert not is_committed(other, old=base, body=Body(raw), settings=settings)


# Cycles with crashes at any moment.


PLANS = st.dictionaries(
    st.sampled_from(['fn', 'other', 'parent/child', 'long' * 20]),
    st.builds(lambda fails, succeeds: Plan(
        fails=fails, delay=10.0, succeeds=succeeds, result={'tried': fails}),
        st.integers(0, 3), st.booleans()), min_size=1)
STEPS = st.lists(st.sampled_from(['step', 'step', 'wait', 'save', 'crash']), max_size=40)


def make_life(make, plans):
    return Life(plans, spec={'size': 1}, storage=make())


def move(life, name):
    match name:
        case 'step' | 'crash':
            getattr(life, name)()
        case 'wait':
            life.seconds += 6
        case 'save' if life.cycle is not None:
            life.save()


@all_storages
@given(plans=PLANS, steps=STEPS)
def test_crashes_make_handlers_repeat_only_what_was_not_saved(make, plans, steps):
    life = make_life(make, plans)
    unsaved = []
    """The attempts that a crash would make be repeated."""
    for name in steps:
        saved, tried = dict(life.saved), len(life.attempts)
        move(life, name)
        for id, retry in life.attempts[tried:]:
            assert retry == saved.get(id, 0) + unsaved.count(id)
            unsaved.append(id)
        if name == 'crash' or life.saved != saved:
            unsaved.clear()
        if life.old is not None:
            return


@all_storages
@given(plans=PLANS, steps=STEPS)
def test_after_any_crashes_all_handlers_finish_as_if_there_were_none(make, plans, steps):
    life, peaceful = make_life(make, plans), make_life(make, plans)
    for name in steps:
        move(life, name)
    for each in [life, peaceful]:
        each.finish()
    assert {id: max(retry for other, retry in life.attempts if other == id) for id in plans} == {
        id: plan.fails for id, plan in plans.items()}
    assert without_marks(life.raw) == without_marks(peaceful.raw)


@all_storages
@given(plans=PLANS, steps=STEPS)
def test_after_any_crashes_nothing_is_left_but_the_results(make, plans, steps):
    life = make_life(make, plans)
    for name in steps:
        move(life, name)
    life.finish()
    results = {id: plan.result for id, plan in plans.items() if plan.succeeds}
    assert without_marks(life.raw) == without_empty({
        'metadata': {'name': 'name1', 'annotations': {
            'kopf.zalando.org/last-handled-configuration': '{"spec":{"size":1}}\n'}},
        'spec': {'size': 1}, 'status': results})


def without_marks(raw):
    """Without the mark of the own prefix, which stays, and without the emptied stanzas."""
    unmarking = {'metadata': {'annotations': {f'{PREFIX}/kopf-managed': None}}}
    return without_empty(merge(raw, unmarking))


def without_empty(value):
    if not isinstance(value, dict):
        return value
    cleaned = {key: without_empty(val) for key, val in value.items()}
    return {key: val for key, val in cleaned.items() if val != {}}
