import datetime
import fractions
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits.clocks import PRECISION, Moment
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions.progression import (
    MAX_DELAY,
    MIN_PAUSE,
    HandlerState,
    Outcome,
    State,
    count,
    find_due,
    space,
)
from kopf._core.intents.causes import Reason
from kopf._core.intents.handlers import Handler

START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
BOOT = 1234.5
"""The monotonic time at the start."""


def make_moment(seconds):
    return Moment(BOOT + seconds, START + datetime.timedelta(seconds=seconds))


DELAYS = st.none() | st.integers(0, 10_000) | st.floats(0, 100)
IDS = st.sampled_from(['fn', 'parent/child', 'parent/child/grandchild', '<lambda>'])
ERRORS = st.builds(Exception)
SUCCESSES = st.builds(
    lambda result, message, delay: Outcome(
        final=True, result=result, message=message, delay=delay),
    st.none() | st.integers(), st.none() | st.text(), DELAYS)
FAILURES = st.builds(
    lambda e, message, delay: Outcome(final=True, exception=e, message=message, delay=delay),
    ERRORS, st.text(), DELAYS)
RETRIES = st.builds(
    lambda e, message, delay, ids: Outcome(
        final=False, exception=e, message=message, delay=delay, subrefs=ids),
    ERRORS, st.text(), DELAYS, st.lists(IDS))
WAITS = st.builds(
    lambda delay, ids: Outcome(final=False, delay=delay, waiting=True, subrefs=ids),
    DELAYS, st.lists(IDS))
UNFINISHED = st.builds(HandlerState.new, now=st.builds(make_moment, st.integers(0, 1000)),
                       purpose=st.none() | st.sampled_from(Reason))
NOWS = st.builds(make_moment, st.integers(1000, 2000) | st.floats(1000, 2000))


@given(state=UNFINISHED, outcomes=st.lists(RETRIES | WAITS), last=SUCCESSES | FAILURES | RETRIES,
       now=NOWS, later=NOWS)
def test_states_survive_being_stored_as_records(state, outcomes, last, now, later):
    for outcome in [*outcomes, last]:
        state = state.after(outcome, now=now)
    record = json.loads(json.dumps(state.as_record()))
    restored = HandlerState.from_record(record, now=later)
    assert restored.as_record() == state.as_record()
    assert restored.finished == state.finished
    assert restored.due == pytest.approx(state.due, abs=0.001)
    assert restored.began == pytest.approx(state.began, abs=0.001)


NEW = {
    'started': '2020-01-01T00:00:00+00:00', 'stopped': None, 'delayed': None, 'purpose': 'update',
    'retries': 0, 'success': False, 'failure': False, 'message': None, 'subrefs': None}


@pytest.mark.parametrize(('outcome', 'expected'), [
    (None, {}),
    (Outcome(final=True), {
        'retries': 1, 'success': True, 'stopped': '2020-01-01T00:00:05+00:00'}),
    (Outcome(final=True, exception=Exception(), message="No."), {
        'retries': 1, 'failure': True, 'message': "No.", 'stopped': '2020-01-01T00:00:05+00:00'}),
    (Outcome(final=False, delay=10, message="Not yet.", subrefs=['fn/b', 'fn/a']), {
        'retries': 1, 'delayed': '2020-01-01T00:00:15+00:00', 'message': "Not yet.",
        'subrefs': ['fn/a', 'fn/b']}),
])
def test_records_are_as_other_versions_write_and_read_them(outcome, expected):
    state = HandlerState.new(now=make_moment(0), purpose=Reason.UPDATE)
    state = state if outcome is None else state.after(outcome, now=make_moment(5))
    assert state.as_record() == {**NEW, **expected}
    restored = HandlerState.from_record({**NEW, **expected}, now=make_moment(9))
    waits = int(bool(state.subrefs))  # the calls for sub-handlers are not counted in records
    assert restored == state._replace(retries=state.attempts + waits, waits=waits)


def test_an_empty_purpose_in_a_record_is_none():
    assert HandlerState.from_record({'purpose': ''}, now=make_moment(0)).purpose is None


@given(state=UNFINISHED, now=NOWS)
def test_the_records_without_what_is_not_set_are_the_same(state, now):
    record = {key: val for key, val in state.as_record().items() if val is not None}
    assert HandlerState.from_record(record, now=now).as_record() == state.as_record()


@given(now=NOWS)
def test_nothing_is_known_of_empty_records_but_that_they_are_of_now(now):
    assert HandlerState.from_record({}, now=now) == HandlerState.new(now=now)


@pytest.mark.parametrize('record', [
    [], 'text', 1,
    {'started': 'not a time'}, {'started': 123}, {'delayed': 'not a time'}, {'stopped': [1]},
    {'retries': 'many'}, {'retries': [1]}, {'subrefs': 1},
])
def test_unreadable_records_are_errors_that_show_them(record):
    with pytest.raises(ValueError, match='is not readable'):
        HandlerState.from_record(record, now=make_moment(0))


@pytest.mark.parametrize('started', [
    '2020-01-01T00:00:00+00:00', '2020-01-01T00:00:00Z', '2020-01-01T00:00:00',
    '2020-01-01T01:00:00+01:00', '2020-01-01T00:00:00.000000'])
def test_times_of_all_versions_are_read_as_those_of_utc_if_not_told(started):
    state = HandlerState.from_record({'started': started}, now=make_moment(100))
    assert state.started == START
    assert state.began == BOOT


@pytest.mark.parametrize(('outcome', 'expected'), [
    (Outcome(final=False), True),
    (Outcome(final=False, delay=0), True),
    (Outcome(final=False, delay=0.019), True),
    (Outcome(final=False, delay=0.02), False),
    (Outcome(final=False, delay=10), False),
    (Outcome(final=False, waiting=True), False),
    (Outcome(final=True), False),
])
def test_handlers_are_called_again_at_once_if_they_neither_finish_nor_wait(outcome, expected):
    assert outcome.is_immediate is expected


@given(state=UNFINISHED, outcome=SUCCESSES | FAILURES | RETRIES, now=NOWS)
def test_each_attempt_is_counted(state, outcome, now):
    assert state.after(outcome, now=now).retries == state.retries + 1


@given(state=UNFINISHED, outcome=WAITS, now=NOWS)
def test_waiting_for_others_is_no_attempt(state, outcome, now):
    after = state.after(outcome, now=now)
    assert after.attempts == state.attempts
    assert after.retries == state.retries + bool(outcome.subrefs)  # the calls for sub-handlers
    assert not after.finished
    restored = HandlerState.from_record(after.as_record(), now=now)
    assert restored.attempts == after.attempts
    assert bool(restored.retries) is bool(after.retries)


@given(state=UNFINISHED, outcome=SUCCESSES, now=NOWS)
def test_succeeded_handlers_have_finished_without_a_word(state, outcome, now):
    after = state.after(outcome, now=now)
    assert (after.finished, after.success, after.failure) == (True, True, False)
    assert (after.stopped, after.delayed, after.message) == (now.wall, None, None)


@given(state=UNFINISHED, outcome=FAILURES, now=NOWS)
def test_failed_handlers_have_finished_with_the_reason_of_that(state, outcome, now):
    after = state.after(outcome, now=now)
    assert (after.finished, after.success, after.failure) == (True, False, True)
    assert (after.stopped, after.delayed, after.message) == (now.wall, None, outcome.message)


@given(state=UNFINISHED, outcome=RETRIES | WAITS, now=NOWS)
def test_handlers_to_be_tried_again_are_due_after_the_delay(state, outcome, now):
    after = state.after(outcome, now=now)
    assert (after.finished, after.stopped, after.message) == (False, None, outcome.message)
    if outcome.delay is None:
        assert (after.delayed, after.due) == (None, float('-inf'))
    else:
        assert after.delayed == now.wall + datetime.timedelta(seconds=outcome.delay)
        assert after.due == now.mono + outcome.delay


@given(state=UNFINISHED, outcomes=st.lists(RETRIES | WAITS), now=NOWS)
def test_the_beginning_the_purpose_and_the_sub_handlers_are_kept(state, outcomes, now):
    after = state
    for outcome in outcomes:
        after = after.after(outcome, now=now)
    assert (after.started, after.began, after.purpose) == (
        state.started, state.began, state.purpose)
    assert after.subrefs == {id for outcome in outcomes for id in outcome.subrefs}


@given(state=UNFINISHED, seconds=st.floats(-5000, 5000))
def test_the_age_is_since_the_beginning_and_never_negative(state, seconds):
    assert state.age(state.began + seconds) == pytest.approx(max(0, seconds), abs=0.001)


def test_a_jump_of_the_wall_clock_after_the_restart_moves_no_deadline():
    state = HandlerState.new(now=make_moment(0)).after(
        Outcome(final=False, delay=100), now=make_moment(10))
    restored = HandlerState.from_record(state.as_record(), now=make_moment(50))
    jumped = Moment(BOOT + 60, START + datetime.timedelta(days=1))
    after = restored.after(Outcome(final=False, waiting=True, delay=5), now=jumped)
    assert restored.due == BOOT + 110
    assert after.due == BOOT + 65
    assert after.age(jumped.mono) == 60


def test_handlers_not_known_yet_are_those_not_yet_tried():
    state = HandlerState.new(now=make_moment(0)).after(Outcome(final=False), now=make_moment(0))
    states = State({'known': state})
    assert states.retries_of('known') == 1
    assert states.retries_of('unknown') == 0


def test_only_the_known_ones_of_the_named_handlers_are_counted():
    new = HandlerState.new(now=make_moment(0))
    states = State({
        'succeeded': new.after(Outcome(final=True), now=make_moment(1)),
        'failed': new.after(Outcome(final=True, exception=Exception()), now=make_moment(1)),
        'unfinished': new,
        'unnamed': new.after(Outcome(final=True), now=make_moment(1)),
    })
    assert count(states, ['succeeded', 'failed', 'unfinished', 'unknown']) == (1, 1)


@pytest.mark.parametrize('delay', [float('inf'), 1e300, 10 ** 400, fractions.Fraction(10 ** 20)])
def test_handlers_can_be_tried_again_in_an_eternity(delay):
    state = HandlerState.new(now=make_moment(0)).after(
        Outcome(final=False, delay=delay), now=make_moment(10))
    assert state.due == BOOT + 10 + MAX_DELAY
    restored = HandlerState.from_record(state.as_record(), now=make_moment(20))
    assert restored.due == state.due


@pytest.mark.parametrize('delay', [float('-inf'), -1e300, -1, float('nan')])
def test_handlers_are_due_at_once_if_their_delay_is_over_before(delay):
    state = HandlerState.new(now=make_moment(0)).after(
        Outcome(final=False, delay=delay), now=make_moment(10))
    assert state.due == BOOT + 10


def make_waiting(delay, *, at=0):
    return HandlerState.new(now=make_moment(at)).after(
        Outcome(final=False, delay=delay), now=make_moment(at))


FINISHED = HandlerState.new(now=make_moment(0)).after(Outcome(final=True), now=make_moment(0))
FAILED = FINISHED._replace(success=False, failure=True)


def find_due_of(states, now):
    """Find which of these states are due, by their numbers, and how long to wait."""
    numbered = [Handler(id=HandlerId(str(number)), fn=lambda **_: None)
                for number, _ in enumerate(states)]
    known = State({handler.id: state for handler, state in zip(numbered, states, strict=True)})
    due, wait = find_due(numbered, known, now=now)
    return [int(handler.id) for handler in due], wait


@pytest.mark.parametrize(('states', 'seconds', 'expected'), [
    ([], 0, None),
    ([FINISHED, FAILED], 0, None),
    ([FINISHED, HandlerState.new(now=make_moment(0))], 0, 0),
    ([make_waiting(30), make_waiting(10), FINISHED, make_waiting(20)], 4, 6),
    ([make_waiting(30), make_waiting(10)], 10, 0),
    ([make_waiting(30), make_waiting(10)], 15, 0),
    ([make_waiting(10)], 10 - 0.0005, 0),
    ([make_waiting(10)], 10 - 0.5, 0.5),
])
def test_the_first_unfinished_handler_that_is_due_is_waited_for(states, seconds, expected):
    _, wait = find_due_of(states, BOOT + seconds)
    assert wait == expected


@pytest.mark.parametrize(('state', 'seconds', 'expected'), [
    (HandlerState.new(now=make_moment(0)), 0, True),
    (make_waiting(10), 5, False),
    (make_waiting(10), 10 - 0.002, False),
    (make_waiting(10), 10 - 0.0005, True),
    (make_waiting(10), 10, True),
    (FINISHED, 10, False),
    (FAILED, 10, False),
])
def test_handlers_are_due_when_their_delay_is_over_but_for_a_millisecond(
        state, seconds, expected,
):
    due, _ = find_due_of([state], BOOT + seconds)
    assert bool(due) is expected


def test_the_time_of_a_handler_runs_from_its_first_attempt():
    state = HandlerState.new(now=make_moment(0)).begun(now=make_moment(5))
    assert (state.began, state.started) == (make_moment(5).mono, make_moment(5).wall)
    retried = state.after(Outcome(final=False, delay=1), now=make_moment(6))
    assert retried.begun(now=make_moment(7)) is retried


@pytest.mark.parametrize(('due', 'expected'), [
    (BOOT - 1, BOOT + MIN_PAUSE),
    (float('-inf'), BOOT + MIN_PAUSE),
    (BOOT + 1, BOOT + 1),
])
def test_a_handler_is_not_called_again_at_once(due, expected):
    assert space(due, invoked=BOOT) == expected


def test_a_millisecond_before_is_in_time():
    state = make_waiting(10)._replace(due=PRECISION)
    assert find_due_of([state], 0.0) == ([0], 0)


@given(states=st.lists(st.builds(make_waiting, DELAYS) | st.just(FINISHED)),
       seconds=st.floats(0, 200))
def test_someone_is_due_exactly_if_there_is_nothing_to_wait_for(states, seconds):
    due, wait = find_due_of(states, BOOT + seconds)
    assert bool(due) is (wait == 0)
    assert due == [
        number for number, state in enumerate(states)
        if not state.finished and state.due <= BOOT + seconds + PRECISION]
    assert (wait is None) is all(state.finished for state in states)
