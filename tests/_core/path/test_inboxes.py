"""
Inboxes: tables for the versions that are taken, a property for any order of what comes, and single
cases for the rest.
"""
import collections
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.path import inboxes
from kopf._core.path.inboxes import Inbox


def make(version, **fields):
    return {'metadata': {} if version is None else {'resourceVersion': str(version)}, **fields}


def offer(inbox, version, *, now=0.0):
    return inbox.offer(make(version), now=now)


def accept(inbox, version, *, patience=10.0):
    return inbox.accept(make(version), patience=patience)


@pytest.fixture()
def inbox():
    return Inbox()


def test_an_inbox_is_empty_at_first(inbox):
    assert not inbox.has_news
    assert not inbox.has_events
    assert not inbox.is_keeping
    assert not inbox.is_due
    assert not inbox.is_expecting
    assert not inbox.is_ever_shown
    assert not inbox.is_newest_shown
    assert inbox.is_packed
    assert (inbox.version, inbox.pending, inbox.newest) == (None, None, None)
    assert (inbox.peek(), inbox.take(), inbox.take_event(), inbox.recall()) == (None,) * 4


# Which states are taken from the watch.


@pytest.mark.parametrize(('known', 'version', 'expected'), [
    (9, 10, True), (10, 10, False), (10, 9, False),
    ('b', 'a', True), ('a', 'b', True), ('a', 'a', False),
    (9, 'a', True), ('a', 9, True), (None, 9, True), (9, None, True), (None, None, True),
])
def test_a_state_is_taken_if_it_can_be_newer_than_the_known_one(inbox, known, version, expected):
    assert offer(inbox, known)
    inbox.take()
    assert offer(inbox, version) is expected
    assert inbox.pending == (make(version) if expected else None)
    assert inbox.has_news is expected
    assert inbox.version == (version if expected else known)


def test_a_newer_state_replaces_the_one_that_is_not_taken(inbox):
    offer(inbox, 1)
    offer(inbox, 2)
    assert inbox.peek() == inbox.newest == make(2)
    assert inbox.take() == make(2)
    assert inbox.take() is None
    assert not inbox.has_news


def test_after_the_versions_are_forgotten_any_state_is_new(inbox):
    offer(inbox, 5)
    inbox.record('ADDED', inbox.pending)
    inbox.take()
    inbox.forget_versions()
    assert inbox.version is None
    assert not inbox.is_ever_shown
    assert offer(inbox, 3)


def test_after_the_versions_are_forgotten_no_echo_is_expected(inbox):
    offer(inbox, 'a')
    accept(inbox, 'b')
    inbox.forget_versions()
    assert not inbox.is_expecting


# Which responses to own writes are the newest state.


@pytest.mark.parametrize(('known', 'version', 'expected'), [
    (9, 10, True), (10, 10, True), (10, 9, False), (None, 9, True), ('a', 'b', True),
    ('a', 'a', True), (9, 'a', True), ('a', 9, True), (None, 'a', True),
])
def test_a_response_counts_if_no_newer_state_is_known(inbox, known, version, expected):
    if known is not None:
        offer(inbox, known)
        inbox.take()
    assert accept(inbox, version) is expected
    assert inbox.version == (version if expected else known)
    assert inbox.pending is None


@pytest.mark.parametrize(('pending', 'version', 'expected'), [
    (9, 10, True), (10, 10, True), (10, 9, False), ('a', 'b', False), ('b', 'b', True),
])
def test_a_response_replaces_the_pending_state_unless_that_is_newer(
        inbox, pending, version, expected,
):
    offer(inbox, pending)
    assert accept(inbox, version) is expected
    assert inbox.pending == (None if expected else make(pending))


def test_a_pending_state_that_is_newer_than_the_response_stays_whatever_the_known_version(inbox):
    inbox.put(make(7))
    assert not accept(inbox, 5)
    assert inbox.pending == make(7)


@pytest.mark.parametrize(('known', 'version', 'expected'), [
    ('a', 'b', True), (9, 'b', True), ('a', 9, True), (None, 'b', True),
    ('a', 'a', False), (9, 10, False), (None, 9, False),
])
def test_an_echo_is_expected_if_versions_are_not_comparable(inbox, known, version, expected):
    if known is not None:
        offer(inbox, known)
    accept(inbox, version, patience=10.0)
    assert inbox.is_expecting is expected
    assert inbox.get_patience(3.0) == (10.0 if expected else None)


@pytest.mark.parametrize(('waiting', 'version', 'expected'), [
    (None, 2, 2), (1, 2, 2), (2, 2, 2), (3, 2, 3), ('a', 2, 'a')])
def test_a_state_to_begin_with_replaces_no_newer_one(inbox, waiting, version, expected):
    if waiting is not None:
        inbox.offer(make(waiting), now=0)
    inbox.put(make(version))
    assert inbox.take() == make(expected)



def test_the_echo_of_an_own_write_is_no_news_and_ends_the_waiting(inbox):
    offer(inbox, 'a')
    inbox.take()
    accept(inbox, 'b')
    assert not offer(inbox, 'b')
    assert not inbox.is_expecting
    assert inbox.get_patience(3.0) is None
    assert not inbox.has_news
    assert offer(inbox, 'c')


def test_states_before_the_echo_are_older_than_it(inbox):
    offer(inbox, 'a')
    inbox.take()
    accept(inbox, 'c')
    assert offer(inbox, 'b')
    assert inbox.version == 'c'
    assert not offer(inbox, 'c')
    assert inbox.pending is None


@pytest.mark.parametrize(('now', 'expected'), [(9.9, 'c'), (10.0, 'b'), (10.1, 'b')])
def test_an_echo_that_does_not_come_is_expected_no_longer_than_the_patience(
        inbox, now, expected,
):
    offer(inbox, 'a')
    accept(inbox, 'c', patience=10.0)
    assert inbox.get_patience(now) == (10.0 if now < 10 else None)
    assert offer(inbox, 'b', now=now)
    assert inbox.version == expected
    assert inbox.is_expecting is (now < 10)


# What is kept.


def test_a_kept_state_is_recalled_packed_or_not(inbox):
    inbox.keep(make(1, spec={'f': [1, None]}))
    assert inbox.is_keeping
    assert not inbox.is_packed
    assert not inbox.has_news
    for _ in range(2):
        inbox.pack()
        assert inbox.is_packed
        assert inbox.recall() == inbox.peek() == inbox.newest == make(1, spec={'f': [1, None]})
    inbox.drop()
    assert not inbox.is_keeping
    assert inbox.is_packed
    assert inbox.recall() is None


def test_a_state_that_was_packed_by_others_is_kept_so(inbox):
    inbox.keep(make(1), b'{"type":"ADDED","object":{"metadata":{}}}')
    assert inbox.is_packed
    assert inbox.recall() == {'metadata': {}}


@pytest.mark.parametrize('packed', [None, b'{"type": "ADDED", "object": {"metadata": {"v": 1}}}'])
def test_a_pending_state_is_given_packed_or_not(inbox, packed):
    inbox.put({'metadata': {'v': 1}})
    inbox.keep(inbox.pending)
    inbox.pack_pending(packed)
    assert isinstance(inbox._pending, bytes) and inbox._kept is inbox._pending
    assert inbox.has_news and inbox.has_pending
    inbox.pack_pending(packed)
    assert inbox.peek() == {'metadata': {'v': 1}}
    assert inbox.take() == {'metadata': {'v': 1}}
    assert not inbox.has_news and not inbox.has_pending
    inbox.pack_pending(packed)
    assert inbox.take() is None


def test_a_pending_state_that_a_raw_event_has_is_not_packed(inbox):
    offer(inbox, 1)
    inbox.record('ADDED', inbox.pending)
    inbox.pack_pending()
    assert not isinstance(inbox._pending, bytes)


def test_packing_takes_no_spaces(inbox):
    inbox.keep(make(1))
    inbox.pack()
    assert inbox._kept == b'{"object":{"metadata":{"resourceVersion":"1"}}}'


def test_a_reminder_gives_the_kept_state_once(inbox):
    inbox.keep(make(1))
    inbox.remind()
    assert inbox.has_news
    assert inbox.take() == make(1)
    assert not inbox.has_news
    assert inbox.take() is None


def test_a_reminder_is_over_when_a_newer_state_is_taken(inbox):
    inbox.keep(make(1))
    inbox.remind()
    offer(inbox, 2)
    assert inbox.peek() == make(2)
    assert inbox.take() == make(2)
    assert not inbox.is_due


def test_a_reminder_is_over_when_a_reconciliation_begins(inbox):
    inbox.remind()
    inbox.forget_reminder()
    assert not inbox.has_news


def test_a_reminder_stays_when_a_state_is_absorbed(inbox):
    offer(inbox, 1)
    inbox.remind()
    inbox.absorb()
    assert (inbox.pending, inbox.is_due) == (None, True)


def keep(inbox, version):
    offer(inbox, version)
    inbox.keep(inbox.take())
    inbox.remind()


def test_what_was_peeked_at_is_not_unpacked_again(inbox):
    keep(inbox, 1)
    inbox.pack()
    peeked = inbox.peek()
    assert inbox.take(peeked) is peeked


def test_the_kept_state_is_given_even_if_an_older_one_was_peeked_at(inbox):
    keep(inbox, 1)
    peeked = inbox.peek()
    keep(inbox, 2)
    assert inbox.take(peeked) == make(2)


def test_the_kept_state_is_given_if_no_version_tells_what_was_peeked_at(inbox):
    keep(inbox, None)
    peeked = inbox.peek()
    inbox.keep(make(None, spec={}))
    assert inbox.take(peeked) == make(None, spec={})


def test_what_was_peeked_at_is_not_given_if_it_was_dropped_meanwhile(inbox):
    keep(inbox, 1)
    peeked = inbox.peek()
    inbox.drop()
    assert inbox.take(peeked) is None


def test_what_was_peeked_at_is_not_given_instead_of_a_newer_one(inbox):
    offer(inbox, 1)
    peeked = inbox.peek()
    offer(inbox, 2)
    assert inbox.take(peeked) == make(2)


def test_without_a_reminder_nothing_is_given_again(inbox):
    offer(inbox, 1)
    inbox.keep(inbox.take())
    assert inbox.take(make(1)) is None


@pytest.mark.parametrize('packed', [None, b'{"object":{"metadata":{"resourceVersion":"1"}}}'])
def test_a_deferred_state_is_given_later(inbox, packed):
    offer(inbox, 1)
    inbox.defer(packed)
    assert inbox.pending is None
    assert inbox.is_packed is (packed is not None)
    assert inbox.has_news
    assert inbox.take() == make(1)


def test_deferring_keeps_what_is_kept_if_nothing_is_pending(inbox):
    inbox.keep(make(1))
    inbox.defer(b'unused')
    assert inbox.is_due
    assert inbox.recall() == make(1)


# Raw events.


def test_raw_events_are_given_in_their_order(inbox):
    for version, type in [(1, 'ADDED'), (2, 'MODIFIED'), (3, 'DELETED')]:
        assert inbox.record(type, make(version))
    assert inbox.has_events
    assert inbox.has_news
    assert inbox.peek() == make(1)
    events = [inbox.take_event() for _ in range(3)]
    assert events == [
        {'type': 'ADDED', 'object': make(1)}, {'type': 'MODIFIED', 'object': make(2)},
        {'type': 'DELETED', 'object': make(3)}]
    assert not inbox.has_events
    assert inbox.take_event() is None


def test_an_empty_queue_of_raw_events_takes_no_memory(inbox):
    inbox.record('ADDED', make(1))
    assert inbox.take_event()
    assert not any(isinstance(part, collections.deque) for part in gc.get_referents(inbox))


def test_a_pending_state_is_looked_at_before_the_raw_events(inbox):
    inbox.record('ADDED', make(1))
    offer(inbox, 2)
    assert inbox.peek() == make(2)


def test_of_too_many_raw_events_the_newest_replaces_the_one_before(inbox, monkeypatch):
    monkeypatch.setattr(inboxes, 'MAX_EVENTS', 2)
    assert [inbox.record('ADDED', make(version)) for version in (1, 2, 3)] == [True, True, False]
    assert [inbox.take_event()['object'] for _ in range(2)] == [make(1), make(3)]


@pytest.mark.parametrize(('shown', 'version', 'expected'), [
    (9, 10, True), (10, 10, False), (10, 9, False), ('a', 'b', True), ('a', 'a', False),
    (9, None, True),
])
def test_states_are_unseen_if_they_can_be_newer_than_the_last_raw_event(
        inbox, shown, version, expected,
):
    assert inbox.is_unseen(make(version))
    inbox.record('ADDED', make(shown))
    assert inbox.is_ever_shown
    assert inbox.is_unseen(make(version)) is expected


def test_the_newest_state_is_shown_with_its_raw_event(inbox):
    offer(inbox, 1)
    assert not inbox.is_newest_shown
    inbox.record('ADDED', inbox.pending)
    assert inbox.is_newest_shown
    accept(inbox, 2)
    assert not inbox.is_newest_shown
    assert inbox.is_ever_shown


def test_a_state_before_the_echo_is_not_shown_as_the_newest(inbox):
    offer(inbox, 'a')
    inbox.take()
    accept(inbox, 'c')
    offer(inbox, 'b')
    inbox.record('MODIFIED', inbox.pending)
    assert not inbox.is_newest_shown
    assert not inbox.is_unseen(make('b'))


def test_the_newest_state_is_kept_with_its_raw_event(inbox):
    offer(inbox, 2)
    inbox.record('ADDED', inbox.pending, b'{"object":{"metadata":{}}}')
    assert inbox.recall() == {'metadata': {}}
    inbox.take()
    inbox.drop()
    inbox.record('MODIFIED', make(2))  # as an own write: not pending, but the newest
    assert inbox.recall() == make(2)


def test_a_pending_state_is_kept_with_its_raw_event_before_the_echo_too(inbox):
    offer(inbox, 'a')
    inbox.take()
    accept(inbox, 'c')
    offer(inbox, 'b')
    inbox.record('MODIFIED', inbox.pending)
    assert inbox.recall() == make('b')


def test_older_and_deleted_states_are_not_kept_with_their_raw_events(inbox):
    offer(inbox, 2)
    inbox.record('MODIFIED', make(1))
    inbox.record('DELETED', inbox.pending)
    assert not inbox.is_keeping


# While nobody watches, and at the end.


def test_what_was_not_processed_before_a_gap_is_forgotten_and_looked_at_again(inbox):
    offer(inbox, 1)
    inbox.record('ADDED', inbox.pending)
    inbox.distrust(is_at_work=False)
    assert (inbox.pending, inbox.take_event()) == (None, None)
    assert not inbox.is_ever_shown
    assert inbox.is_due


def test_what_was_shown_before_a_gap_is_not_shown_again(inbox):
    offer(inbox, 1)
    inbox.record('ADDED', inbox.take())
    inbox.take_event()
    inbox.distrust(is_at_work=False)
    assert inbox.is_ever_shown
    assert not inbox.has_news


def test_no_echo_is_expected_after_a_gap(inbox):
    offer(inbox, 'a')
    accept(inbox, 'b')
    inbox.distrust(is_at_work=False)
    assert not inbox.is_expecting


def test_an_object_at_work_during_a_gap_is_looked_at_again(inbox):
    inbox.distrust(is_at_work=True)
    assert inbox.is_due


def test_a_reminder_stays_over_a_gap(inbox):
    inbox.remind()
    inbox.distrust(is_at_work=False)
    assert inbox.is_due


@pytest.mark.parametrize(('reported', 'pending', 'kept', 'expected'), [
    (3, 2, 1, 3), (None, 2, 1, 2), (None, None, 1, 1), (None, None, None, None),
])
def test_the_last_state_is_the_newest_that_is_known(inbox, reported, pending, kept, expected):
    if kept is not None:
        inbox.keep(make(kept))
    if pending is not None:
        inbox.put(make(pending))
    last = inbox.note_deletion(None if reported is None else make(reported))
    assert last == inbox.pending == (None if expected is None else make(expected))
    assert not inbox.is_keeping


def test_nothing_is_left_in_a_cleared_inbox(inbox):
    offer(inbox, 1)
    inbox.record('ADDED', inbox.pending)
    inbox.remind()
    inbox.clear()
    assert not inbox.has_news
    assert not inbox.is_keeping


# Any order of what comes.


VERSIONS = st.integers(0, 5)
COMING = st.lists(st.tuples(st.sampled_from(['watch', 'response', 'taken']), VERSIONS))


@given(coming=COMING)
def test_states_are_taken_once_and_never_after_newer_ones(coming):
    inbox = Inbox()
    known = -1
    taken = []
    for source, version in coming:
        if source == 'watch':
            assert offer(inbox, version) is (version > known)
        elif source == 'response':
            assert accept(inbox, version) is (version >= known)
        elif (raw := inbox.take()) is not None:
            taken.append(int(raw['metadata']['resourceVersion']))
        known = known if source == 'taken' else max(known, version)
    assert taken == sorted(set(taken))
    assert inbox.version == (None if known < 0 else known)
