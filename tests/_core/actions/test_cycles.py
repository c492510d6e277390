import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.patches import Patch
from kopf._core.actions.cycles import Conclusion, Cycle
from kopf._core.actions.decisions import Call, Close, Nothing, Save, Sleep
from kopf._core.actions.progression import HandlerState, Outcome, State
from kopf._core.intents.causes import Reason
from tests._core.actions.lives import Life, Plan, make_handler, make_moment

DONE = Outcome(final=True)
FAILED = Outcome(final=True, exception=Exception(), message="No.")
RETRY = Outcome(final=False, delay=10, exception=Exception(), message="Not yet.")


def essence(f, **others):
    return {'spec': {'f': f, **others}}


def recall_nothing(handler_id):
    return None


def make_cycle(*handler_ids, reason=Reason.UPDATE, **fields):
    cycle = Cycle(reason=reason, **fields)
    return cycle.join(
        [make_handler(id) for id in handler_ids], recall=recall_nothing, now=make_moment(0))


def note(cycle, handler_id, outcome=DONE, *, at=1, sees=None, patch=None):
    return cycle.note(
        handler_id, outcome._replace(patch=Patch(patch or {})), essence=sees or essence(1),
        now=make_moment(at))


@pytest.fixture()
def cycle():
    return make_cycle('fn', 'other')


# The worked table of the module's docstring, row by row.


def make_life():
    return Life({'one': Plan(), 'two': Plan(fails=1)}, spec={'f': 1}, old={'f': 0})


@pytest.fixture()
def life():
    return make_life()


def step(life, *steps):
    """Go these steps; returns the handlers called meanwhile, and the state afterwards."""
    del life.calls[:]
    for expected in steps:
        assert isinstance(life.step(), expected)
    return life.calls, life.base, life.divergent, life.old


ZERO, ONE, TWO = {'f': 0}, {'f': 1}, {'f': 2}


def test_row_edit_and_one_has_finished(life):
    assert step(life, Call) == ([('one', ZERO, ONE)], ONE, None, ZERO)
    assert step(life, Call, Save, Sleep) == ([('two', ZERO, ONE)], ONE, None, ZERO)


def edit_again(life):
    step(life, Call, Call, Save, Sleep)
    life.edit(f=2)
    life.seconds += 10


def test_row_another_edit(life):
    edit_again(life)
    assert step(life, Call) == ([('two', ZERO, TWO)], ONE, TWO, ZERO)


def close_once(life):
    edit_again(life)
    assert step(life, Call, Close) == ([('two', ZERO, TWO)], None, TWO, ONE)


def test_row_two_has_finished_and_the_next_cycle_begins(life):
    close_once(life)
    assert step(life, Call) == ([('one', ONE, TWO)], TWO, None, ONE)
    assert step(life, Call, Save, Sleep) == ([('two', ONE, TWO)], TWO, None, ONE)
    life.seconds += 10
    assert step(life, Call, Close, Nothing) == ([('two', ONE, TWO)], None, None, TWO)


def test_row_or_a_revert_instead(life):
    close_once(life)
    life.edit(f=1)
    assert step(life, Close) == ([], None, ONE, TWO)
    life.finish()
    assert life.done == [('one', ZERO, ONE), ('two', ZERO, TWO), ('one', TWO, ONE),
                         ('two', TWO, ONE)]
    assert life.old == ONE


@pytest.mark.parametrize('row', [edit_again, close_once])
@pytest.mark.parametrize('finally_', [1, 2])
def test_row_after_a_restart(life, row, finally_):
    undisturbed = make_life()
    for each in [undisturbed, life]:
        row(each)
        if each is life:
            each.restart()
        each.edit(f=finally_)
        each.finish()
    assert (life.done, life.old) == (undisturbed.done, undisturbed.old)
    assert life.old == {'f': finally_}
    assert [new for id, _, new in life.done if id == 'one'][-1] == {'f': finally_}
    assert [new for id, _, new in life.done if id == 'two'][-1] == {'f': finally_}


def test_row_revert_while_two_waits(life):
    step(life, Call, Call, Save, Sleep)
    life.edit(f=0)
    assert step(life, Close) == ([], None, ZERO, ONE)
    life.finish()
    assert life.calls == [('one', ONE, ZERO), ('two', ONE, ZERO), ('two', ONE, ZERO)]
    assert life.old == ZERO


def test_row_revert_while_none_has_finished():
    life = Life({'one': Plan(fails=1), 'two': Plan(fails=1)}, spec={'f': 1}, old={'f': 0})
    step(life, Call, Call, Save, Sleep)
    life.edit(f=0)
    assert step(life, Close, Nothing) == ([], None, None, ZERO)


# What others than those of the table have seen.


def test_a_field_that_only_the_last_one_has_seen_is_seen_to_return():
    life = Life(
        {'a': Plan(field='a'), 'b': Plan(field='b'), 'any': Plan(fails=3)},
        spec={'a': 1, 'b': 0}, old={'a': 0, 'b': 0})
    life.settle()
    life.edit(b=5)
    life.settle()
    assert life.done == [('a', 0, 1), ('b', 0, 5)]
    life.edit(a=0, b=0)
    life.finish()
    assert life.done[2:] == [
        ('a', 1, 0), ('b', 5, 0), ('any', {'a': 1, 'b': 5}, {'a': 0, 'b': 0})]
    assert life.old == {'a': 0, 'b': 0}


# What is noted of attempts.


def test_nothing_is_to_be_written_at_first(cycle):
    assert not cycle.dirty
    assert cycle.oldest is None
    assert not cycle.is_complete
    assert cycle.results == []
    assert (cycle.base, cycle.divergent) == (None, None)


def test_an_outcome_is_to_be_written_since_it_is_there(cycle):
    cycle = note(cycle, 'fn', at=1)
    cycle = note(cycle, 'other', at=2)
    assert cycle.dirty
    assert cycle.unsaved.keys() == {'fn', 'other'}
    assert cycle.oldest == make_moment(1).mono


def test_the_progress_goes_on_by_outcomes(cycle):
    cycle = note(cycle, 'fn', RETRY, at=1)
    assert cycle.states['fn'].retries == 1
    assert cycle.states['fn'].due == make_moment(11).mono
    cycle = note(cycle, 'fn', at=11)
    assert cycle.states['fn'].retries == 2
    assert cycle.states['fn'].success
    assert cycle.states['other'].retries == 0


def test_results_are_contributed_to_the_status_by_the_ids_of_their_handlers(cycle):
    patch = {'status': {'phase': 'x'}}
    cycle = note(cycle, 'fn', Outcome(final=True, result={'a': 1}), patch=patch)
    [contribution] = cycle.contributions
    assert contribution.handler_id == 'fn'
    assert contribution.patch == {'status': {'phase': 'x', 'fn': {'a': 1}}}
    assert cycle.results == [{'status': {'fn': {'a': 1}}}]


@pytest.mark.parametrize('result', [0, '', False, {}])
def test_empty_results_are_results_too(cycle, result):
    cycle = note(cycle, 'fn', Outcome(final=True, result=result))
    assert cycle.results == [{'status': {'fn': result}}]


def test_results_are_contributed_without_any_patch_too(cycle):
    cycle = cycle.note(
        'fn', Outcome(final=True, result=1), essence=essence(1), now=make_moment(1))
    assert cycle.results == [{'status': {'fn': 1}}]


def test_handlers_without_results_and_patches_contribute_nothing(cycle):
    cycle = note(cycle, 'fn')
    assert cycle.contributions == ()


def test_patches_of_failed_attempts_count_too(cycle):
    cycle = note(cycle, 'fn', RETRY, patch={'spec': {'a': 1}})
    [contribution] = cycle.contributions
    assert contribution.patch == {'spec': {'a': 1}}
    assert cycle.results == []


def test_functions_of_patches_are_contributed_also_with_a_result(cycle):
    patch = Patch(fns=[lambda body: None])
    outcome = Outcome(final=True, result=1, patch=patch)
    cycle = cycle.note('fn', outcome, essence={}, now=make_moment(1))
    [contribution] = cycle.contributions
    assert contribution.patch.fns == patch.fns
    assert contribution.patch == {'status': {'fn': 1}}


def test_contributions_are_in_the_order_in_which_they_were_made(cycle):
    cycle = note(cycle, 'other', RETRY, patch={'spec': {'a': 1}})
    cycle = note(cycle, 'fn', patch={'spec': {'a': 2}})
    cycle = note(cycle, 'other', patch={'spec': {'a': 3}})
    assert [item.patch['spec']['a'] for item in cycle.contributions] == [1, 2, 3]
    assert [item.handler_id for item in cycle.contributions] == ['other', 'fn', 'other']


# What handlers have seen.


def test_the_earliest_finished_handler_tells_the_base(cycle):
    cycle = note(cycle, 'fn', RETRY, sees=essence(1))
    assert (cycle.base, cycle.divergent) == (None, None)
    cycle = note(cycle, 'other', sees=essence(2))
    assert (cycle.base, cycle.divergent) == (essence(2), None)


def test_those_that_have_not_finished_have_seen_nothing(cycle):
    cycle = note(cycle, 'other', sees=essence(2))
    cycle = note(cycle, 'fn', RETRY, sees=essence(3))
    assert (cycle.base, cycle.divergent) == (essence(2), None)


@pytest.mark.parametrize('outcome', [DONE, FAILED])
def test_the_later_ones_that_have_seen_something_else_diverge(cycle, outcome):
    cycle = note(cycle, 'other', sees=essence(2))
    cycle = note(cycle, 'fn', outcome, sees=essence(3))
    assert (cycle.base, cycle.divergent) == (essence(2), essence(3))


def test_the_later_ones_that_have_seen_the_same_do_not_diverge(cycle):
    cycle = note(cycle, 'other', sees=essence(2))
    cycle = note(cycle, 'fn', sees=essence(2))
    assert (cycle.base, cycle.divergent) == (essence(2), None)


def test_what_diverged_in_the_previous_cycle_is_over_when_one_finishes():
    cycle = make_cycle('fn', divergent=essence(5))
    assert note(cycle, 'fn', RETRY).divergent == essence(5)
    cycle = note(cycle, 'fn', sees=essence(2))
    assert (cycle.base, cycle.divergent) == (essence(2), None)


def test_several_divergent_states_are_one_in_which_no_field_is_as_in_the_base():
    cycle = make_cycle('a', 'b', 'c')
    cycle = note(cycle, 'a', sees=essence(0, g=0))
    cycle = note(cycle, 'b', sees=essence(0, g=5))
    cycle = note(cycle, 'c', sees=essence(7, g=0))
    assert cycle.base == essence(0, g=0)
    assert cycle.divergent == essence(7, g=5)


# Writing.


def test_what_was_sent_is_not_sent_again(cycle):
    cycle = note(cycle, 'fn', patch={'spec': {'a': 1}})
    cycle = note(cycle, 'other', patch={'spec': {'a': 1}})
    first, second = cycle.contributions
    assert cycle.sent([first]).contributions == (second,)
    assert cycle.sent([first, second]).contributions == ()
    assert cycle.sent([]).contributions == (first, second)
    assert cycle.sent([first]).unsaved.keys() == {'fn', 'other'}


def test_handlers_are_unwritten_if_their_outcomes_or_contributions_are(cycle):
    assert cycle.unwritten == []
    cycle = note(note(cycle, 'other', patch={'spec': {'a': 1}}), 'fn', patch={'spec': {'b': 1}})
    assert cycle.unwritten == ['fn', 'other']
    assert cycle.sent(cycle.contributions).unwritten == ['fn', 'other']
    saved = cycle.saved(dict(cycle.states), now=50.0)
    assert saved.unwritten == ['fn', 'other']
    assert saved.sent(saved.contributions[:1]).unwritten == ['fn']


def test_the_base_goes_along_with_the_own_changes_only(cycle):
    cycle = note(cycle, 'fn', sees=essence(1, g=1), patch={'spec': {'f': 2}})
    cycle = cycle.sent(
        cycle.contributions, effect=Patch({'spec': {'f': 2}}), stored=essence(2, g=5))
    assert cycle.base == essence(2, g=1)


def test_without_an_answer_or_an_effect_the_base_stays(cycle):
    cycle = note(cycle, 'fn', sees=essence(1), patch={'spec': {'f': 2}})
    effect = Patch({'spec': {'f': 2}})
    assert cycle.sent(cycle.contributions, effect=effect, stored=None).base == essence(1)
    assert cycle.sent(cycle.contributions, effect=None, stored=essence(2)).base == essence(1)
    assert cycle.sent(cycle.contributions, effect=Patch(), stored=essence(2)).base == essence(1)


def test_there_is_still_no_base_after_writing_what_unfinished_ones_have_changed(cycle):
    cycle = note(cycle, 'fn', RETRY, patch={'spec': {'f': 2}})
    effect = Patch({'spec': {'f': 2}})
    assert cycle.sent(cycle.contributions, effect=effect, stored=essence(2)).base is None


def test_what_was_saved_is_clean(cycle):
    cycle = note(cycle, 'fn')
    saved = cycle.saved(dict(cycle.states), now=50.0)
    assert not saved.dirty
    assert (saved.unsaved, saved.oldest) == ({}, None)


def test_what_has_become_newer_while_it_was_being_saved_is_not_saved(cycle):
    cycle = note(note(cycle, 'fn', RETRY), 'other')
    carried = dict(cycle.states)
    saved = note(cycle, 'fn', at=11).saved(carried, now=50.0)
    assert saved.unsaved.keys() == {'fn'}
    assert saved.oldest == 50.0
    assert note(saved, 'fn', at=60).oldest == 50.0


def test_what_was_not_carried_is_not_saved(cycle):
    cycle = note(note(cycle, 'fn'), 'other')
    assert cycle.saved({'fn': cycle.states['fn']}, now=50.0).unsaved.keys() == {'other'}


def test_what_is_still_to_be_sent_is_as_old_as_the_latest_writing(cycle):
    cycle = note(cycle, 'fn', patch={'spec': {'a': 1}})
    saved = cycle.saved(dict(cycle.states), now=50.0)
    assert saved.dirty
    assert (saved.unsaved, saved.oldest) == ({}, 50.0)


def test_a_recorded_cycle_stays_recorded(cycle):
    assert not cycle.has_records
    recorded = cycle.recorded()
    assert recorded.has_records
    assert recorded.recorded() is recorded


def test_the_committed_conclusion_is_remembered_until_there_is_another_or_a_handler_is_called(
        cycle):
    conclusion = Conclusion(essence(1), None)
    assert cycle.closing is None
    assert cycle.closing_with(conclusion).closing is conclusion
    assert cycle.closing_with(conclusion).closing_with(None).closing is None
    assert note(cycle.closing_with(conclusion), 'fn').closing is None


def test_what_a_handler_has_seen_at_last_is_known_until_its_outcome_is_written(cycle):
    cycle = note(note(cycle, 'fn', RETRY, sees=essence(1)), 'fn', sees=essence(2))
    cycle = note(cycle, 'other', RETRY, sees=essence(3))
    saved = cycle.saved({'fn': cycle.states['fn']}, now=50.0)
    assert cycle.unsaved == {'fn': essence(2), 'other': essence(3)}
    assert saved.unsaved == {'other': essence(3)}


def test_what_a_reset_handler_has_seen_is_still_known(cycle):
    cycle = cycle.forget({'fn': essence(1)}, now=make_moment(7))
    assert cycle.unsaved == {'fn': essence(1)}
    assert cycle.forget({'other': None}, now=make_moment(7)).unsaved == {
        'fn': essence(1), 'other': None}


def test_a_refused_patch_makes_its_handler_failed(cycle):
    cycle = note(cycle, 'fn', patch={'spec': {'a': 1}})
    cycle = note(cycle, 'other', patch={'spec': {'b': 1}})
    first, second = cycle.contributions
    cycle = cycle.saved(dict(cycle.states), now=50.0).refuse(first, "No way.")
    state = cycle.states['fn']
    assert (state.success, state.failure, state.message) == (False, True, "No way.")
    assert state.stopped == make_moment(1).wall
    assert cycle.unsaved.keys() == {'fn'}
    assert cycle.contributions == (second,)
    assert cycle.states['other'].success


def test_a_refused_patch_makes_its_unfinished_handler_failed_for_good(cycle):
    cycle = note(cycle, 'fn', RETRY, patch={'spec': {'a': 1}})
    cycle = cycle.refuse(cycle.contributions[0], "No way.")
    state = cycle.states['fn']
    assert (state.finished, state.failure, state.delayed) == (True, True, None)
    assert state.stopped == state.started


# Who takes part.


def test_those_who_join_are_not_tried_yet():
    cycle = make_cycle('fn', reason=Reason.CREATE)
    assert cycle.states == {'fn': HandlerState.new(now=make_moment(0), purpose=Reason.CREATE)}
    assert cycle.roots == {'fn'}
    assert not cycle.dirty


def join(cycle, *handlers, records=None, at=5, **options):
    recall = (records or {}).get
    return cycle.join(handlers, recall=recall, now=make_moment(at), **options)


def test_the_time_of_a_handler_in_a_cycle_runs_from_its_first_attempt(cycle):
    begun = cycle.begin('fn', now=make_moment(9))
    assert begun.states['fn'].began == make_moment(9).mono
    assert begun.states['other'] is cycle.states['other']
    assert begun.begin('fn', now=make_moment(9)) is begun


def test_those_who_have_joined_go_on(cycle):
    cycle = note(cycle, 'fn', RETRY)
    assert join(cycle, make_handler('fn')) is cycle
    joined = join(cycle, make_handler('fn'), make_handler('new'))
    assert joined.states['fn'] is cycle.states['fn']
    assert joined.states['new'].started == make_moment(5).wall
    assert joined.roots == {'fn', 'other', 'new'}


def test_sub_handlers_are_no_roots(cycle):
    cycle = join(cycle, make_handler('fn/sub'), as_roots=False)
    assert cycle.roots == {'fn', 'other'}
    assert 'fn/sub' in cycle.states
    assert join(cycle, make_handler('fn/sub'), as_roots=False) is cycle


def test_the_sub_handlers_of_a_running_handler_are_known(cycle):
    attached = cycle.attach('fn', ['fn/a']).attach('fn', ['fn/b'])
    assert attached.states['fn'].subrefs == {'fn/a', 'fn/b'}
    assert attached.attach('fn', ['fn/a']) is attached
    assert not attached.dirty


def test_the_known_ones_can_become_roots():
    cycle = join(Cycle(reason=Reason.UPDATE), make_handler('fn'), as_roots=False)
    state = cycle.states['fn']
    cycle = join(cycle, make_handler('fn'))
    assert cycle.roots == {'fn'}
    assert cycle.states['fn'] is state


def make_state(purpose):
    return HandlerState.new(now=make_moment(0), purpose=purpose).after(DONE, now=make_moment(1))


@pytest.mark.parametrize('purpose', [Reason.UPDATE, None])
def test_records_of_a_stored_cycle_count(purpose):
    state = make_state(purpose)
    handler = make_handler('fn')
    stored = Cycle(reason=Reason.UPDATE, has_records=True)
    assert join(stored, handler, records={'fn': state}).states['fn'] is state
    unstored = Cycle(reason=Reason.UPDATE)
    assert not join(unstored, handler, records={'fn': state}).states['fn'].finished


def test_what_is_known_is_newer_than_the_records(cycle):
    cycle = note(cycle.recorded(), 'fn', RETRY)
    joined = join(cycle, make_handler('fn'), records={'fn': make_state(Reason.UPDATE)})
    assert joined.states['fn'] is cycle.states['fn']


def test_what_is_known_is_newer_than_the_records_for_another_cause_too():
    resuming = make_handler('fn', reason=None, initial=True)
    cycle = join(Cycle(reason=Reason.RESUME, has_records=True), resuming)
    cycle = note(cycle, 'fn', RETRY).enter(Reason.UPDATE)
    joined = join(cycle, resuming, records={'fn': make_state(Reason.RESUME)})
    assert joined.states['fn'] is cycle.states['fn']


def test_the_progress_for_other_purposes_does_not_count():
    stored = Cycle(reason=Reason.DELETE, has_records=True)
    known = stored._replace(states=State({'fn': make_state(Reason.CREATE)}))
    for cycle, records in [(stored, {'fn': make_state(Reason.CREATE)}), (known, {})]:
        for as_roots in [True, False]:
            joined = join(cycle, make_handler('fn'), records=records, as_roots=as_roots)
            state = joined.states['fn']
            assert (state.purpose, state.retries, state.finished) == ('delete', 0, False)


def test_the_progress_of_resuming_handlers_counts_for_any_purpose():
    stored = Cycle(reason=Reason.UPDATE, has_records=True)
    handler = make_handler('fn', reason=None, initial=True)
    state = join(stored, handler, records={'fn': make_state(Reason.RESUME)}).states['fn']
    assert (state.purpose, state.retries, state.finished) == ('resume', 1, True)


def test_a_cycle_is_complete_when_all_its_roots_have_finished(cycle):
    cycle = join(cycle, make_handler('fn/sub'), as_roots=False)
    cycle = note(cycle, 'fn')
    assert not cycle.is_complete
    assert note(cycle, 'other', FAILED).is_complete
    assert not note(cycle, 'other', RETRY).is_complete


def test_roots_that_nothing_is_known_of_have_not_finished():
    assert not Cycle(reason=Reason.UPDATE, roots=frozenset({'fn'})).is_complete


# Other causes.


def test_for_the_same_cause_it_goes_on_as_it_is(cycle):
    assert cycle.enter(Reason.UPDATE) is cycle


def test_for_another_cause_nobody_has_finished_but_nothing_is_lost(cycle):
    cycle = note(cycle, 'fn', patch={'spec': {'a': 1}}, sees=essence(1))
    cycle = note(cycle, 'other', sees=essence(2)).recorded()
    entered = cycle.enter(Reason.DELETE)
    assert entered.reason == Reason.DELETE
    assert (entered.roots, entered.base, entered.divergent) == (frozenset(), None, None)
    assert entered.contributions == cycle.contributions
    assert entered.unsaved == {'fn': essence(1), 'other': essence(2)}
    assert entered.oldest == cycle.oldest
    assert entered.states == cycle.states
    assert entered.has_records


def test_for_another_cause_what_the_previous_cycle_has_left_is_kept():
    cycle = Cycle(reason=Reason.UPDATE, divergent=essence(2))
    assert cycle.enter(Reason.RESUME).divergent == essence(2)


def test_forgotten_handlers_are_called_again_and_their_records_overwritten(cycle):
    cycle = note(note(cycle.recorded(), 'fn', RETRY, patch={'spec': {'a': 1}}), 'other')
    cycle = cycle._replace(divergent=essence(2))
    forgotten = cycle.saved(dict(cycle.states), now=50.0).forget_finished(now=make_moment(7))
    assert (forgotten.base, forgotten.divergent) == (None, None)
    assert forgotten.states['fn'] is cycle.states['fn']
    assert forgotten.states['other'] == HandlerState.new(
        now=make_moment(7), purpose=Reason.UPDATE)
    assert forgotten.unsaved == {'other': None}
    assert forgotten.contributions == cycle.contributions
    assert forgotten.roots == cycle.roots
    assert not forgotten.is_complete


def test_a_forgotten_sub_handler_is_called_again_by_its_parent_without_the_other_ones(cycle):
    cycle = note(cycle.recorded(), 'fn', DONE._replace(subrefs=['fn/a', 'fn/b']))
    forgotten = cycle.forget({'fn/a': essence(1)}, now=make_moment(7))
    assert not forgotten.states['fn'].finished
    assert not forgotten.states['fn/a'].finished
    assert 'fn/b' not in forgotten.states  # it is recalled from its record
    assert forgotten.states['fn'].subrefs == {'fn/a', 'fn/b'}  # the records go when it closes


def test_unfinished_parents_and_other_handlers_keep_their_progress(cycle):
    cycle = note(note(cycle.recorded(), 'fn', RETRY._replace(subrefs=['fn/a'])), 'other')
    forgotten = cycle.forget({'fn/a': essence(1)}, now=make_moment(7))
    assert forgotten.states['fn'] is cycle.states['fn']
    assert forgotten.states['other'] is cycle.states['other']
    assert not forgotten.states['fn/a'].finished


def test_forgotten_handlers_are_not_recalled_from_their_records(cycle):
    cycle = note(cycle.recorded(), 'other').forget_finished(now=make_moment(7))
    joined = join(cycle, make_handler('other'), records={'other': make_state(Reason.UPDATE)})
    assert not joined.states['other'].finished


def test_sub_handlers_of_forgotten_handlers_are_forgotten_as_well(cycle):
    cycle = note(cycle.recorded(), 'fn', DONE._replace(subrefs=['fn/a', 'fn/b']))
    forgotten = cycle.forget_finished(now=make_moment(7))
    for handler_id in ('fn', 'fn/a', 'fn/b'):
        assert not forgotten.states[handler_id].finished
        assert handler_id in forgotten.unsaved


def remember(handler_ids):
    done = make_state(Reason.UPDATE)
    return lambda handler_id: done if handler_id in handler_ids else None


def test_a_reset_is_taken_back_in_the_seen_state_if_the_end_is_recorded(cycle):
    cycle = cycle.recorded().forget({'fn': essence(1), 'other': essence(1)}, now=make_moment(7))
    regained = cycle.regain(essence(1), remember({'fn'}))
    assert regained.states['fn'].finished
    assert not regained.states['other'].finished  # nothing tells that it has finished
    assert regained.unsaved == {'other': essence(1)}


@pytest.mark.parametrize('seen', [{'fn': essence(1)}, {'fn': None}, {
    'fn': essence(2), 'other': essence(1)}])
def test_a_reset_stays_in_other_states_than_the_seen_one(cycle, seen):
    cycle = cycle.recorded().forget(seen, now=make_moment(7))
    assert cycle.regain(essence(2), remember({'fn', 'other'})) is cycle


def test_a_reset_stays_if_the_handler_was_called_meanwhile(cycle):
    cycle = cycle.recorded().forget({'fn': essence(1)}, now=make_moment(7))
    cycle = note(cycle, 'fn', RETRY, sees=essence(1))
    assert cycle.regain(essence(1), remember({'fn'})) is cycle


def test_a_reset_stays_if_the_record_is_of_an_unfinished_handler(cycle):
    cycle = cycle.recorded().forget({'fn': essence(1)}, now=make_moment(7))
    unfinished = make_state(Reason.UPDATE)._replace(success=False)
    assert not cycle.regain(essence(1), lambda _: unfinished).states['fn'].success
    assert cycle.regain(essence(1), lambda _: unfinished).unsaved == {'fn': essence(1)}


def test_a_reset_of_a_parent_is_taken_back_with_that_of_its_sub_handler(cycle):
    cycle = note(cycle.recorded(), 'fn', DONE._replace(subrefs=['fn/a', 'fn/b']))
    cycle = cycle.saved(dict(cycle.states), now=50.0)
    cycle = cycle.forget({'fn/a': essence(1)}, now=make_moment(7))
    regained = cycle.regain(essence(1), remember({'fn', 'fn/a', 'fn/b'}))
    assert regained.states['fn'].finished
    assert regained.states['fn/a'].finished
    assert not regained.unsaved


# Before the next handler.


def is_to_be_saved(cycle, now=1.0, delay=10.0, is_status_essential=False):
    return cycle.must_be_saved(
        now=make_moment(now).mono, delay=delay, is_status_essential=is_status_essential)


def test_where_nothing_is_done_nothing_has_to_be_saved(cycle):
    assert not is_to_be_saved(cycle, delay=0)


@pytest.mark.parametrize(('now', 'delay', 'expected'), [
    (1, 0, True), (1, 0.5, False), (1.4, 0.5, False), (1.5, 0.5, True), (2, 0.5, True),
])
def test_outcomes_wait_only_for_the_delay(cycle, now, delay, expected):
    assert is_to_be_saved(note(cycle, 'fn', at=1), now=now, delay=delay) is expected


def test_outcomes_of_unknown_age_wait_unless_nothing_may(cycle):
    cycle = note(cycle, 'fn')._replace(oldest=None)
    assert not is_to_be_saved(cycle)
    assert is_to_be_saved(cycle, delay=0)


@pytest.mark.parametrize(('patch', 'is_status_essential', 'expected'), [
    (Patch({'status': {'a': 1}}), False, False),
    (Patch({'status': {'a': 1}}), True, True),
    (Patch({'spec': {'a': 1}}), False, True),
    (Patch({'status': {'a': 1}, 'metadata': {'labels': {'a': 'b'}}}), False, True),
    (Patch(fns=[lambda body: None]), False, True),
])
def test_the_next_handler_sees_the_changes_of_what_matters(
        cycle, patch, is_status_essential, expected,
):
    cycle = cycle.note('fn', DONE._replace(patch=patch), essence={}, now=make_moment(1))
    assert is_to_be_saved(cycle, is_status_essential=is_status_essential) is expected


def test_any_of_the_contributions_can_matter(cycle):
    cycle = note(cycle, 'fn', patch={'spec': {'a': 1}})
    cycle = note(cycle, 'other', patch={'status': {'a': 1}})
    assert is_to_be_saved(cycle)


# The end.


def test_the_state_without_any_base_is_handled(cycle):
    assert cycle.conclude(Reason.UPDATE, essence=essence(3)) == Conclusion(
        essence(3), None, resumes=False)


@pytest.mark.parametrize('reason', [Reason.CREATE, Reason.UPDATE])
def test_a_complete_cycle_leaves_its_base_and_what_diverges(cycle, reason):
    cycle = cycle._replace(reason=reason)
    cycle = note(note(cycle, 'fn', sees=essence(1)), 'other', sees=essence(2))
    assert cycle.conclude(reason, essence=essence(2)) == Conclusion(essence(1), essence(2))


@pytest.mark.parametrize('reason', [Reason.RESUME, Reason.NOOP])
def test_causes_that_are_no_changes_leave_nothing_that_diverges(cycle, reason):
    cycle = note(note(cycle, 'fn', sees=essence(1)), 'other', sees=essence(2))
    assert cycle.conclude(reason, essence=essence(2)) == Conclusion(essence(1), None)


def test_what_the_previous_cycle_has_left_ends_with_this_one(cycle):
    cycle = cycle._replace(divergent=essence(5))
    assert cycle.conclude(Reason.UPDATE, essence=essence(3)) == Conclusion(essence(3), None)


def test_those_who_wait_know_only_the_state_that_it_has_returned_to(cycle):
    cycle = note(cycle, 'fn', sees=essence(1))
    assert cycle.conclude(Reason.NOOP, essence=essence(0), returned_from=essence(1)) == Conclusion(
        essence(1), essence(0))


def test_those_who_wait_matter_only_if_the_base_is_another_state(cycle):
    cycle = note(cycle, 'fn', sees=essence(1))
    assert cycle.conclude(Reason.UPDATE, essence=essence(1)) == Conclusion(essence(1), None)


def test_those_who_wait_and_those_who_have_seen_more_diverge_together(cycle):
    cycle = join(cycle, make_handler('third'))
    cycle = note(note(cycle, 'fn', sees=essence(0, g=0)), 'other', sees=essence(0, g=5))
    assert cycle.conclude(Reason.UPDATE, essence=essence(7, g=0)) == Conclusion(
        essence(0, g=0), essence(7, g=5))


# The return to a state that is handled.


def find_return(cycle, reason, *, old, now):
    return cycle.find_return(reason, old=old, essence=now)


@pytest.mark.parametrize('reason', [Reason.NOOP, Reason.RESUME])
def test_a_handled_object_has_returned_if_others_have_seen_another_state(cycle, reason):
    zero, one, two = essence(0), essence(1), essence(2)
    assert find_return(cycle, reason, old=zero, now=zero) is None
    for seen in [{'base': one}, {'divergent': one}]:
        cycle = Cycle(reason=Reason.UPDATE, **seen)
        assert find_return(cycle, reason, old=zero, now=zero) == one
        assert find_return(cycle, reason, old=one, now=one) is None
    cycle = Cycle(reason=Reason.UPDATE, base=one, divergent=two)
    assert find_return(cycle, reason, old=zero, now=zero) == one


def test_a_return_is_from_the_divergent_fields_where_the_base_shows_none():
    cycle = Cycle(reason=Reason.UPDATE, base=essence(1, g=0), divergent=essence(1, g=5))
    zero = essence(0, g=0)
    assert find_return(cycle, Reason.NOOP, old=zero, now=zero) == essence(1, g=5)


def test_a_return_of_some_fields_is_found_before_anyone_has_finished():
    cycle = Cycle(reason=Reason.UPDATE, divergent=essence(5, g=0))
    old, now = essence(0, g=0), essence(0, g=7)
    assert find_return(cycle, Reason.UPDATE, old=old, now=now) == essence(5, g=0)
    assert find_return(cycle, Reason.UPDATE, old=old, now=essence(5, g=7)) is None
    assert find_return(cycle, Reason.CREATE, old=None, now=now) is None
    assert find_return(cycle, Reason.UPDATE, old=None, now=now) is None
    assert find_return(cycle, Reason.DELETE, old=old, now=now) is None
    based = cycle._replace(base=essence(0, g=1))
    assert find_return(based, Reason.UPDATE, old=old, now=now) is None
    nothing = Cycle(reason=Reason.UPDATE)
    assert find_return(nothing, Reason.UPDATE, old=old, now=now) is None


# A cycle is a value.


SPECS = st.integers(0, 3).map(essence)
PATCHES = st.sampled_from([None, {'spec': {'f': 1}}, {'status': {'a': 1}}])
IDS = st.sampled_from(['fn', 'other', 'fn/sub'])
RESULTS = st.sampled_from([DONE, FAILED, RETRY, Outcome(final=True, result={'a': 1})])
NOTES = st.tuples(IDS, RESULTS, SPECS, PATCHES)


@given(notes=st.lists(NOTES, max_size=6), essences=st.tuples(SPECS, SPECS, SPECS))
def test_no_transition_changes_the_cycle_in_place(notes, essences):
    one, two, three = essences
    cycle = make_cycle('fn', 'other', 'fn/sub')
    for id, outcome, sees, patch in notes:
        cycle = note(cycle, id, outcome, sees=sees, patch=patch)
    before = snapshot(cycle)
    note(cycle, 'fn', DONE, sees=one, patch={'status': {'x': 1}})
    cycle.enter(Reason.DELETE)
    join(cycle, make_handler('fn'), make_handler('new'), records={'new': make_state(None)})
    cycle.sent(cycle.contributions, effect=Patch({'spec': {'f': 3}}), stored=two)
    cycle.saved(dict(cycle.states), now=50.0)
    cycle.recorded()
    for contribution in cycle.contributions:
        cycle.refuse(contribution, "No.")
    conclusion = cycle.conclude(Reason.UPDATE, essence=one, returned_from=three)
    cycle.closing_with(conclusion)
    cycle.forget_finished(now=make_moment(9))
    find_return(cycle, Reason.NOOP, old=one, now=one)
    assert snapshot(cycle) == before


def snapshot(cycle):
    return copy.deepcopy({
        name: value for name, value in cycle._asdict().items() if name != 'contributions'
    }), [(item.handler_id, copy.deepcopy(item.patch)) for item in cycle.contributions]


def test_what_handlers_put_to_their_patches_is_not_changed_by_their_results(cycle):
    patch = Patch({'status': {'a': 1}})
    outcome = Outcome(final=True, result=2, patch=patch)
    cycle.note('fn', outcome, essence={}, now=make_moment(1))
    assert patch == {'status': {'a': 1}}


@pytest.mark.parametrize('status', [None, 'text'])
def test_results_replace_a_status_that_is_no_stanza(cycle, status):
    cycle = note(cycle, 'fn', Outcome(final=True, result=2), patch={'status': status})
    assert cycle.contributions[0].patch == {'status': {'fn': 2}}
