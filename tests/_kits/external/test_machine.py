"""
The machine: what it never does, in whichever situation.
"""
import datetime

from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.external.machine import (
    UNSEEN,
    Abilities,
    Call,
    Release,
    Rest,
    Situation,
    Write,
    compare,
    step,
)
from kopf._kits.external.records import Phase, Record, decode

NOW = datetime.datetime(2026, 11, 26, tzinfo=datetime.UTC)
TIMES = st.integers(-200, 0).map(lambda seconds: NOW + datetime.timedelta(seconds=seconds))
KEYS = st.sampled_from(['k1', 'k2', 3])
STATES = st.none() | st.dictionaries(st.sampled_from('ab'), st.integers(0, 1))

RECORDS = st.builds(
    Record, phase=st.sampled_from(Phase), token=st.none() | st.just('t'), key=st.none() | KEYS,
    attempt=st.integers(0, 3), by=st.none() | st.just('x'), since=st.none() | TIMES,
    previous=st.lists(st.sampled_from(['p1', 'p2']), unique=True, max_size=2).map(tuple),
    adopted=st.none() | KEYS, synced=st.sampled_from([None, 'd1', 'd2']),
    replaced=st.integers(0, 3),
).filter(lambda record: (
    (record.key is not None) == (record.phase in (Phase.KNOWN, Phase.DELETING))
    or (record.phase is Phase.DELETING and record.previous))
         and (record.token is not None or record.phase is not Phase.CREATING))

SITUATIONS = st.builds(
    Situation, record=RECORDS, now=st.just(NOW), token=st.just('new'), desired=STATES,
    can=st.builds(
        Abilities, finds=st.booleans(), is_idempotent=st.booleans(), updates=st.booleans(),
        orphans=st.booleans(), corrects=st.booleans(), replaces=st.booleans(),
        immutable=st.sampled_from([(), (('a',),)])),
    digest=st.sampled_from(['d1', 'd2']), is_deleting=st.booleans(), is_paused=st.booleans(),
    waits_for=st.sampled_from([None, 'other']), adopt=st.none() | KEYS, is_retry=st.booleans(),
    is_lost=st.booleans(), is_armed=st.booleans(), is_refused=st.booleans(),
    ended=st.none() | TIMES,
    found=st.just(UNSEEN) | st.none() | KEYS, observed=st.just(UNSEEN) | STATES,
    is_due=st.booleans(), is_erased=st.booleans(), updated=st.sampled_from([None, 'd1', 'd2']))


@given(SITUATIONS)
def test_it_creates_only_what_is_announced_and_not_called_yet_or_what_is_recognised(s):
    found = step(s)
    if isinstance(found, Call) and found.verb == 'create':
        assert s.record.phase is Phase.CREATING and s.record.token is not None
        assert s.can.is_idempotent or (s.is_armed and not s.is_deleting)


@given(SITUATIONS)
def test_a_second_call_is_announced_only_if_the_first_one_has_created_nothing(s):
    found = step(s)
    if isinstance(found, Write) and found.record.phase is Phase.CREATING:
        assert not s.is_deleting
        assert found.record.attempt == s.record.attempt + 1
        assert found.record.token == (s.record.token or 'new')
        if s.record.phase is not Phase.WANTED:
            assert s.can.finds and s.found is None
            last = s.ended or s.record.since + datetime.timedelta(seconds=s.can.timeout)
            assert (s.now - last).total_seconds() >= s.can.consistency


@given(SITUATIONS)
def test_a_key_is_forgotten_only_if_the_system_has_none_such_for_certain(s):
    found, known = step(s), set(s.record.keys)
    left = known
    if isinstance(found, Write):
        left = set(found.record.keys)
    elif isinstance(found, Release):
        left = set()
    for key in known - left:
        assert (s.can.orphans and s.is_deleting) or (
            s.observed is None and key == s.record.subject)


@given(SITUATIONS)
def test_an_object_is_released_only_if_nothing_can_be_left(s):
    if isinstance(step(s), Release):
        assert s.is_deleting or s.record.phase is Phase.DELETING
        assert s.can.orphans or s.record.phase not in (Phase.CREATING, Phase.UNKNOWN, Phase.KNOWN)


@given(SITUATIONS)
def test_nothing_is_changed_while_the_object_is_paused(s):
    if s.is_paused:
        found = step(s)
        assert isinstance(found, Rest) or (isinstance(found, Call) and found.verb == 'observe')


@given(SITUATIONS)
def test_where_nobody_can_tell_it_stops(s):
    if s.record.phase is Phase.CREATING and not (
            s.can.finds or s.can.is_idempotent or s.is_armed or s.is_refused or s.is_paused
            or (s.is_deleting and s.can.orphans)):
        assert step(s).record.phase is Phase.UNKNOWN


@given(RECORDS)
def test_records_are_read_as_they_were_written(record):
    assert decode(record.encode()) == record


def test_only_desired_fields_are_compared():
    assert not compare({'id': 'x', 'plan': 'small'}, {'plan': 'small'})
    assert compare({'plan': 'small', 'old': 1}, {'plan': 'small', 'old': None}) == (
        ('remove', ('old',), 1, None),)
    assert compare({'a': {'b': 1, 'c': 2}}, {'a': {'b': 2}}) == (('change', ('a', 'b'), 1, 2),)


def test_a_replaced_thing_is_still_settling_if_it_is_new():
    record = Record(phase=Phase.KNOWN, key='k1', since=NOW)
    found = step(Situation(
        record=record, can=Abilities(replaces=True, immutable=[('a',)]), now=NOW, token='new',
        desired={'a': 1}, observed={'a': 2}, digest='d1'))
    assert found.record == Record(previous=('k1',), since=NOW, replaced=1)


def test_the_end_of_a_deletion_is_trusted_if_nothing_tells_that_the_thing_is_new():
    record = Record(phase=Phase.DELETING, previous=('k1',))
    assert step(Situation(
        record=record, can=Abilities(), now=NOW, token='new', is_deleting=True, is_erased=True,
        observed=None)) == Release()


def test_in_a_deletion_an_announced_call_is_made_if_another_process_can_have_made_it_already():
    record = Record(phase=Phase.CREATING, token='t', attempt=1, since=NOW)
    for is_idempotent, expected in (True, Call('create')), (
            False, Write(Record(token='t', attempt=1, since=NOW), "nothing was created")):
        assert step(Situation(
            record=record, can=Abilities(is_idempotent=is_idempotent), now=NOW, token='new',
            is_deleting=True, is_armed=True)) == expected


def test_what_only_people_have_named_is_deleted_only_if_the_system_has_it():
    record = Record(phase=Phase.DELETING, key='k1', adopted='k1')
    for observed, expected in (
            (UNSEEN, Call('observe', 'k1')), ({}, Call('delete', 'k1')), (None, Release())):
        assert step(Situation(
            record=record, can=Abilities(), now=NOW, token='new', is_deleting=True,
            observed=observed)) == expected


def test_a_thing_that_is_replaced_is_not_the_new_one_that_may_exist():
    record = Record(phase=Phase.UNKNOWN, token='t', previous=('k1',), adopted='k1', replaced=1)
    for observed in UNSEEN, {'a': 2}:
        found = step(Situation(
            record=record, can=Abilities(), now=NOW, token='new', desired={'a': 1},
            observed=observed, digest='d1'))
        assert isinstance(found, Rest) and found.reason == 'MayExist'
