"""
Deciding: tables for what can be listed, properties for what cannot, and whole lives of an object.
"""
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge
from kopf._core.actions import decisions, finalizers
from kopf._core.actions.cycles import CHANGES, Conclusion, Contribution, Cycle
from kopf._core.actions.decisions import (
    AddFinalizer,
    Call,
    Close,
    Hold,
    Nothing,
    Pause,
    Protect,
    Release,
    RemoveFinalizer,
    Save,
    Situation,
    Sleep,
    View,
    Yield,
    decide,
)
from kopf._core.actions.feedbackloops import Slowdown
from kopf._core.actions.progression import HandlerState, Outcome, State, find_due
from kopf._core.intents import pauses
from kopf._core.intents.causes import Reason
from kopf._core.intents.filters import Selection
from tests._core.actions.lives import (
    DELETED,
    FINALIZER,
    HANDLED,
    Life,
    Plan,
    make_handler,
    make_moment,
)

NOW = make_moment(60)
DONE = Outcome(final=True)
FAILED = Outcome(final=True, exception=Exception())
RETURNED = "the object has returned from a state that some handlers have seen"


def essence(f, g=0):
    return {'spec': {'f': f, 'g': g}}


def make_view(new, old=None, *, deleting=False, has_finalizer=False, is_outdated=False):
    raw = {'metadata': {}, **new}
    raw = finalizers.switch(raw, FINALIZER, is_added=True) if has_finalizer else raw
    raw = merge(raw, DELETED) if deleting else raw
    return View(
        raw=raw, body=Body(raw), essence=new, old=old, deleting=deleting,
        has_finalizer=has_finalizer, is_outdated=is_outdated)


def make_state(progress, purpose=Reason.CREATE):
    new = HandlerState.new(now=make_moment(0), purpose=purpose)
    match progress:
        case 'new':
            return new
        case 'due':
            return new.after(Outcome(final=False, delay=50), now=make_moment(1))
        case 'waiting':
            return new.after(Outcome(final=False, delay=70), now=make_moment(1))
        case 'succeeded':
            return new.after(DONE, now=make_moment(1))
        case 'failed':
            return new.after(FAILED, now=make_moment(1))


def make_situation(
        *handlers, view=None, reason=Reason.CREATE, cycle=None, needed=False, in_scope=True,
        recorded=None, **options,
):
    return Situation(
        view=view or make_view(essence(0)), reason=reason, cycle=cycle,
        selection=Selection(handlers=handlers, in_scope=in_scope, needs_finalizer=needed),
        recall=(recorded or {}).get, now=NOW, **options)


def make_cycle(reason=Reason.CREATE, *, dirty=False, progress=None, **fields):
    """A cycle of which the handlers have come so far."""
    progress = {id: make_state(value, reason) for id, value in (progress or {}).items()}
    return Cycle(
        reason=reason, states=State(progress), roots=frozenset(progress),
        unsaved=dict.fromkeys(progress) if dirty else {},
        oldest=NOW.mono if dirty else None, **fields)


# The finalizer: is it present × is the object being deleted × is it needed × the handlers.


TABLE = {
    # present, deleting, needed: new, due, waiting, finished, none, out of scope
    (False, False, False): (Call, Call, Sleep, Close, Close, Nothing),
    (False, False, True): (AddFinalizer,) * 6,
    (True, False, False): (RemoveFinalizer,) * 6,
    (True, False, True): (Call, Call, Sleep, Close, Close, Nothing),
    (False, True, False): (Call, Call, Sleep, Nothing, Nothing, Nothing),
    (False, True, True): (Nothing,) * 6,
    (True, True, False): (Call, Call, Sleep, Release, Release, Release),
    (True, True, True): (Call, Call, Sleep, Release, Release, Release),
}
COLUMNS = ('new', 'due', 'waiting', 'succeeded', 'none', 'out of scope')
ROWS = [(*key, column, expected) for key, steps in TABLE.items()
        for column, expected in zip(COLUMNS, steps, strict=True)]


@pytest.mark.parametrize(('present', 'deleting', 'needed', 'progress', 'expected'), ROWS)
def test_steps_by_the_finalizer(present, deleting, needed, progress, expected):
    reason = Reason.DELETE if deleting else Reason.CREATE
    is_any = progress not in ('none', 'out of scope')
    situation = make_situation(
        *([make_handler('fn', reason)] if is_any else ()),
        view=make_view(essence(0), deleting=deleting, has_finalizer=present),
        reason=reason, needed=needed, in_scope=progress != 'out of scope',
        cycle=make_cycle(reason, progress={'fn': progress}) if is_any else None)
    assert type(decide(situation).step) is expected


def test_the_table_is_exhaustive():
    assert set(TABLE) == set(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize(('present', 'deleting', 'progress', 'expected'), [
    # A daemon needs the finalizer, but nothing is released before it has ended.
    (False, False, 'new', AddFinalizer),
    (True, False, 'new', Call),
    (False, True, 'new', Nothing),
    (True, True, 'new', Call),
    (True, True, 'succeeded', Nothing),
])
def test_steps_for_accompanied_objects(present, deleting, progress, expected):
    reason = Reason.DELETE if deleting else Reason.CREATE
    situation = make_situation(
        make_handler('fn', reason),
        view=make_view(essence(0), deleting=deleting, has_finalizer=present), reason=reason,
        cycle=make_cycle(reason, progress={'fn': progress}), accompanied=True)
    assert type(decide(situation).step) is expected


def test_an_unhandled_object_that_concerns_nobody_now_is_handled_with_the_finalizer():
    view = make_view(essence(5), essence(0))
    step, cycle = decide(make_situation(view=view, reason=Reason.UPDATE, needed=True))
    assert step == AddFinalizer(decisions.ADDING, essence(5))
    assert cycle is None
    view = make_view(essence(5), essence(0), has_finalizer=True)
    step, cycle = decide(make_situation(view=view, reason=Reason.UPDATE))
    assert step == RemoveFinalizer(decisions.REMOVING, essence(5))
    assert cycle is None


@pytest.mark.parametrize('changes', [
    {'cycle': make_cycle()},
    {'reason': Reason.RESUME},
    {'reason': Reason.NOOP},
    {'in_scope': False},
    {'handler': make_handler('fn')},
])
@pytest.mark.parametrize('has_finalizer', [False, True])
def test_otherwise_the_finalizer_goes_alone(changes, has_finalizer):
    options = {'view': make_view(essence(5), essence(0), has_finalizer=has_finalizer),
               'needed': not has_finalizer, 'reason': Reason.UPDATE, **changes}
    handler = options.pop('handler', None)
    step, cycle = decide(make_situation(*([handler] if handler else ()), **options))
    assert type(step) is (RemoveFinalizer if has_finalizer else AddFinalizer)
    assert step.handled is None
    assert cycle is options.get('cycle')


# The other steps, one by one.


def test_objects_that_concern_nobody_any_more_are_left_when_all_is_saved():
    cycle = make_cycle(progress={'fn': 'due'}, dirty=True)
    decision = decide(make_situation(cycle=cycle, in_scope=False))
    assert decision == (Save("no handler is concerned any more"), cycle)
    clean = cycle._replace(unsaved={})
    decision = decide(make_situation(cycle=clean, in_scope=False))
    assert decision == (Nothing("no handler is concerned"), None)
    decision = decide(make_situation(in_scope=False))
    assert decision == (Nothing("no handler is concerned"), None)


def test_objects_that_go_without_us_are_let_go_which_is_told():
    view = make_view(essence(0), deleting=True)
    decision = decide(make_situation(view=view, reason=Reason.DELETE, cycle=make_cycle()))
    assert decision == (Nothing(decisions.FREED, told=True), None)


@pytest.mark.parametrize('reason', [Reason.NOOP, Reason.RESUME])
def test_where_nothing_has_changed_nothing_is_to_be_done_which_is_told(reason):
    view = make_view(essence(0), essence(0))
    decision = decide(make_situation(view=view, reason=reason))
    assert decision == (Nothing(decisions.UNCHANGED, told=True), None)


@pytest.mark.parametrize('reason', [Reason.NOOP, Reason.RESUME])
def test_a_cycle_ends_where_nothing_has_changed_any_more(reason):
    cycle = make_cycle(Reason.UPDATE, progress={'fn': 'waiting'})
    view = make_view(essence(0), essence(0))
    step, kept = decide(make_situation(view=view, reason=reason, cycle=cycle))
    assert step == Close(
        decisions.UNCHANGED, Reason.NOOP, Conclusion(essence(0), None), told=True)
    assert kept is cycle


def test_resuming_goes_on_where_there_are_handlers_for_it():
    view = make_view(essence(0), essence(0))
    handler = make_handler('fn', None, initial=True)
    step, cycle = decide(make_situation(handler, view=view, reason=Reason.RESUME))
    assert step == Call("these handlers are due", [handler])
    assert cycle.reason == Reason.RESUME
    assert cycle.roots == {'fn'}


def test_a_return_to_the_handled_state_closes_the_cycle_before_anybody_is_called():
    cycle = make_cycle(
        Reason.UPDATE, progress={'one': 'succeeded', 'two': 'due'}, base=essence(1))
    step, kept = decide(make_situation(
        view=make_view(essence(0), essence(0)), reason=Reason.NOOP, cycle=cycle))
    assert step == Close(RETURNED, Reason.NOOP, Conclusion(essence(1), essence(0)))
    assert kept is cycle


def test_a_return_of_some_fields_closes_the_cycle_too():
    cycle = Cycle(reason=Reason.UPDATE, divergent=essence(5))
    step, _ = decide(make_situation(
        make_handler('fn'), view=make_view(essence(0, 7), essence(0)), reason=Reason.UPDATE,
        cycle=cycle))
    assert step == Close(RETURNED, Reason.NOOP, Conclusion(essence(5), essence(0, 7)))


def test_deleted_objects_do_not_return():
    cycle = Cycle(reason=Reason.UPDATE, divergent=essence(5))
    view = make_view(essence(0), essence(0), deleting=True, has_finalizer=True)
    handler = make_handler('fn', Reason.DELETE)
    step, _ = decide(make_situation(handler, view=view, reason=Reason.DELETE, cycle=cycle))
    assert step == Call("these handlers are due", [handler])


@pytest.mark.parametrize(('options', 'step'), [
    ({'flush_delay': 0}, Save("what is done has to be on the object before the next handler")),
    ({'is_interrupted': True}, Save(decisions.INTERRUPTED)),
    ({'is_chosen_done': True}, Save("the handlers that the lifecycle has chosen are done")),
])
def test_what_is_done_is_saved_before_the_next_handler_if(options, step):
    handlers = [make_handler('one', Reason.CREATE), make_handler('two', Reason.CREATE)]
    cycle = make_cycle(progress={'one': 'succeeded', 'two': 'due'}, dirty=True)
    assert decide(make_situation(*handlers, cycle=cycle)).step == Call(
        "these handlers are due", [handlers[1]])
    assert decide(make_situation(*handlers, cycle=cycle, **options)).step == step


@pytest.mark.parametrize(('options', 'expected'), [
    ({'flush_delay': 0}, Call),
    ({'is_interrupted': True}, Yield),
    ({'is_chosen_done': True}, Call),
])
def test_where_all_is_saved(options, expected):
    cycle = make_cycle(progress={'one': 'succeeded', 'two': 'due'})
    handlers = [make_handler('one', Reason.CREATE), make_handler('two', Reason.CREATE)]
    step = decide(make_situation(*handlers, cycle=cycle, **options)).step
    assert type(step) is expected
    if 'is_interrupted' in options:
        assert step.because == decisions.INTERRUPTED


@pytest.mark.parametrize('is_status_essential', [False, True])
def test_changes_of_the_status_are_saved_before_those_who_handle_the_status(is_status_essential):
    cycle = make_cycle(
        progress={'one': 'succeeded', 'two': 'due'}, dirty=True,
        contributions=(Contribution('one', Patch({'status': {'a': 1}})),))
    step = decide(make_situation(
        make_handler('two', Reason.CREATE), cycle=cycle,
        is_status_essential=is_status_essential)).step
    assert type(step) is (Save if is_status_essential else Call)


@pytest.mark.parametrize('is_interrupted', [False, True])
def test_the_handlers_that_wait_are_waited_for_when_all_is_saved(is_interrupted):
    handlers = [make_handler('one', Reason.CREATE), make_handler('two', Reason.CREATE)]
    cycle = make_cycle(progress={'one': 'succeeded', 'two': 'waiting'}, dirty=True)
    situation = make_situation(*handlers, cycle=cycle, is_interrupted=is_interrupted)
    assert decide(situation).step == Save("the handlers have to wait")
    situation = situation._replace(cycle=cycle._replace(unsaved={}))
    assert decide(situation).step == Sleep(
        "the handlers have to wait", make_moment(71).mono)


def test_only_the_handlers_that_are_due_are_called():
    handlers = [make_handler(id, Reason.CREATE) for id in ('one', 'two', 'three', 'four')]
    cycle = make_cycle(progress={
        'one': 'failed', 'two': 'waiting', 'three': 'due', 'four': 'new'})
    step = decide(make_situation(*handlers, cycle=cycle)).step
    assert step == Call("these handlers are due", handlers[2:])


def test_the_progress_that_is_recorded_counts():
    recorded = {'one': make_state('succeeded'), 'two': make_state('due')}
    handlers = [make_handler(id, Reason.CREATE) for id in recorded]
    cycle = Cycle(reason=Reason.CREATE, has_records=True)
    step, cycle = decide(make_situation(*handlers, cycle=cycle, recorded=recorded))
    assert step.due == [handlers[1]]
    assert cycle.states == recorded


def test_the_object_is_handled_when_all_have_finished():
    handlers = [make_handler('one', Reason.CREATE), make_handler('two', Reason.CREATE)]
    cycle = make_cycle(progress={'one': 'succeeded', 'two': 'failed'}, base=essence(1), dirty=True)
    step = decide(make_situation(
        *handlers, cycle=cycle, is_interrupted=True)).step
    assert step == Close(
        "all handlers have finished", Reason.CREATE, Conclusion(essence(1), None), told=False)


def test_a_pause_concerns_daemons_without_a_finalizer():
    pause = pauses.Pause('x', until=make_moment(90).wall)
    step, _ = decide(make_situation(
        in_scope=False, accompanied=True, can_have_finalizer=False, pause=pause))
    assert isinstance(step, Pause)
    assert step.until == make_moment(90).mono


@pytest.mark.parametrize(('has_finalizer', 'options', 'because'), [
    (True, {'accompanied': True}, decisions.HELD),
    (True, {'must_keep': True}, decisions.HELD),
    (False, {}, decisions.DELETED_BUT_HELD),
])
def test_a_handled_deletion_is_saved_if_the_object_stays_for_now(has_finalizer, options, because):
    cycle = make_cycle(Reason.DELETE, progress={'fn': 'succeeded'}, dirty=True)
    situation = make_situation(
        make_handler('fn', Reason.DELETE), reason=Reason.DELETE, cycle=cycle,
        view=make_view(essence(0), deleting=True, has_finalizer=has_finalizer), **options)
    assert decide(situation).step == Save(because)
    clean = cycle._replace(unsaved={})
    assert decide(situation._replace(cycle=clean)) == (Nothing(because, told=False), clean)


def test_a_handled_deletion_releases_the_object():
    cycle = make_cycle(Reason.DELETE, progress={'fn': 'succeeded'}, dirty=True)
    step = decide(make_situation(
        make_handler('fn', Reason.DELETE), reason=Reason.DELETE, cycle=cycle,
        view=make_view(essence(0), deleting=True, has_finalizer=True))).step
    assert step == Release(decisions.RELEASING)


def test_the_progress_of_another_cause_does_not_finish_this_one():
    cycle = make_cycle(Reason.CREATE, progress={'fn': 'succeeded'}, base=essence(0), dirty=True)
    handler = make_handler('fn', Reason.DELETE)
    step, cycle = decide(make_situation(
        handler, reason=Reason.DELETE, cycle=cycle,
        view=make_view(essence(0), deleting=True, has_finalizer=True)))
    assert step == Call("these handlers are due", [handler])
    assert (cycle.reason, cycle.base) == (Reason.DELETE, None)


# What a state means.


def make_raw(spec, *, old=None, **meta):
    raw = {'metadata': meta, 'spec': spec}
    if old is not None:
        patch = Patch()
        kopf.AnnotationsDiffBaseStorage().store(
            body=Body(raw), patch=patch, essence={'spec': old})
        raw = merge(raw, patch)
    return raw


def look(raw, extra_fields=()):
    return decisions.look(raw, settings=kopf.OperatorSettings(), extra_fields=extra_fields)


def test_a_view_is_of_the_essence_and_of_the_last_handled_one():
    raw = make_raw({'f': 1}, old={'f': 0}, labels={'a': 'b'})
    view = look({**raw, 'status': {'x': 1, 'y': 2}}, extra_fields=[('status', 'x')])
    assert view.raw == view.body == {**raw, 'status': {'x': 1, 'y': 2}}
    assert view.essence == {
        'metadata': {'labels': {'a': 'b'}}, 'spec': {'f': 1}, 'status': {'x': 1}}
    assert view.old == {'spec': {'f': 0}}
    assert (view.deleting, view.has_finalizer) == (False, False)


def test_traces_of_the_progress_are_no_essence_neither_now_nor_before():
    settings = kopf.OperatorSettings()
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix='my-op')
    raw = make_raw({'f': 1}, annotations={'my-op/fn': '{}', 'x': 'y'})
    patch = Patch()
    settings.persistence.diffbase_storage.store(body=Body(raw), patch=patch, essence={
        'metadata': {'annotations': {'my-op/fn': '{}'}}, 'spec': {'f': 0}})
    view = decisions.look(merge(raw, patch), settings=settings, extra_fields=())
    assert view.essence == {'metadata': {'annotations': {'x': 'y'}}, 'spec': {'f': 1}}
    assert view.old == {'spec': {'f': 0}}


def test_a_storage_that_has_nothing_to_clear_may_return_nothing():
    class Storage(kopf.AnnotationsProgressStorage):
        def clear(self, **_):
            pass

    settings = kopf.OperatorSettings()
    settings.persistence.progress_storage = Storage()
    view = decisions.look(make_raw({'f': 1}, old={'f': 0}), settings=settings, extra_fields=())
    assert (view.essence, view.old) == ({'spec': {'f': 1}}, {'spec': {'f': 0}})


def test_marks_of_owned_resources_are_no_essence_neither_now_nor_in_states_of_former_versions():
    marks = {'labels': {'kopf.dev/owner': 'uid'}, 'annotations': {'kopf.dev/applied': 'new'}}
    raw, patch = make_raw({'f': 1}, **marks), Patch()
    kopf.AnnotationsDiffBaseStorage().store(body=Body(raw), patch=patch, essence={
        'metadata': {**marks, 'annotations': {'kopf.dev/applied': 'old'}}, 'spec': {'f': 1}})
    view = look(merge(raw, patch))
    assert view.essence == view.old == {'spec': {'f': 1}}


def test_unreadable_last_handled_states_are_errors():
    with pytest.raises(ValueError, match='last-handled state'):
        look(make_raw({}, annotations={HANDLED: 'not json'}))


@pytest.mark.parametrize(('meta', 'deleting', 'has_finalizer'), [
    ({'deletionTimestamp': '2020-01-01T00:00:00Z'}, True, False),
    ({'deletionTimestamp': None, 'finalizers': None}, False, False),
    ({'finalizers': ['other', FINALIZER]}, False, True),
    ({'finalizers': ['other']}, False, False),
])
def test_deletions_and_finalizers_are_seen(meta, deleting, has_finalizer):
    view = look(make_raw({}, **meta))
    assert (view.deleting, view.has_finalizer) == (deleting, has_finalizer)


@pytest.mark.parametrize(('old', 'new', 'deleting', 'initial', 'expected'), [
    (None, 0, True, False, Reason.DELETE),
    (0, 1, True, True, Reason.DELETE),
    (None, 0, False, False, Reason.CREATE),
    (None, 0, False, True, Reason.CREATE),
    (0, 1, False, False, Reason.UPDATE),
    (0, 1, False, True, Reason.UPDATE),
    (0, 0, False, False, Reason.NOOP),
    (0, 0, False, True, Reason.RESUME),
])
def test_causes(old, new, deleting, initial, expected):
    view = make_view(essence(new), None if old is None else essence(old), deleting=deleting)
    reason, diff = decisions.detect(view, initial=initial)
    assert reason == expected
    if old is None:
        assert diff == (('add', (), None, essence(new)),)
    else:
        assert diff == ((('change', ('spec', 'f'), old, new),) if old != new else ())


# Properties of all situations that can be.


IDS = ['one', 'two', 'three']
ESSENCES = st.builds(essence, st.integers(0, 2), st.integers(0, 1))
PROGRESS = st.sampled_from(['new', 'due', 'waiting', 'succeeded', 'failed'])
STEPS = {
    AddFinalizer, RemoveFinalizer, Call, Save, Sleep, Close, Release, Yield, Nothing, Pause}
PAUSES = st.sampled_from([
    pauses.Pause('Maintenance'), pauses.Pause('Maintenance', until=make_moment(90).wall)])


@st.composite
def cycles(draw):
    reason = draw(st.sampled_from([
        Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME, Reason.NOOP]))
    states = draw(st.dictionaries(st.sampled_from(IDS), st.builds(
        make_state, PROGRESS, st.sampled_from([None, reason, Reason.CREATE, Reason.RESUME]))))
    subsets = st.sets(st.sampled_from(sorted(states))) if states else st.just(set())
    contributions = tuple(
        Contribution(id, draw(st.sampled_from([
            Patch({'spec': {'f': 1}}), Patch({'status': {id: 1}}), Patch(fns=[print])])))
        for id in draw(subsets))
    unsaved = dict.fromkeys(draw(subsets))
    is_any_finished = any(state.finished for state in states.values())
    return Cycle(
        reason=reason, states=State(states), roots=frozenset(draw(subsets)), unsaved=unsaved,
        contributions=contributions, has_records=draw(st.booleans()),
        oldest=NOW.mono - draw(st.floats(0, 3)) if unsaved or contributions else None,
        base=draw(st.none() | ESSENCES) if is_any_finished and reason in CHANGES else None,
        divergent=draw(st.none() | ESSENCES))


def test_a_state_of_another_version_is_stored_anew_once_without_handlers():
    view = make_view(essence(1), essence(1), is_outdated=True)
    assert type(decide(make_situation(view=view, reason=Reason.NOOP)).step) is Nothing
    situation = make_situation(view=view, reason=Reason.RESUME)
    step, cycle = decide(situation)
    assert (type(step), step.because, step.conclusion.base) == (
        Close, decisions.OUTDATED, essence(1))
    assert decide(situation._replace(cycle=cycle)) == (step, cycle)


@st.composite
def situations(draw):
    view = make_view(
        draw(ESSENCES), draw(st.none() | ESSENCES), deleting=draw(st.booleans()),
        has_finalizer=draw(st.booleans()), is_outdated=draw(st.booleans()))
    reason, _ = decisions.detect(view, initial=draw(st.booleans()))
    chosen = [] if reason == Reason.NOOP else draw(st.lists(st.sampled_from(IDS), unique=True))
    handlers = [make_handler(id, None, initial=draw(st.booleans())) for id in chosen]
    in_scope = bool(handlers) or draw(st.booleans())
    return make_situation(
        *handlers, view=view, reason=reason, in_scope=in_scope,
        needed=in_scope and draw(st.booleans()), cycle=draw(st.none() | cycles()),
        recorded=draw(st.dictionaries(st.sampled_from(IDS), st.builds(
            make_state, PROGRESS, st.sampled_from([None, *Reason])))),
        accompanied=draw(st.booleans()),
        is_interrupted=draw(st.booleans()),
        is_chosen_done=draw(st.booleans()), is_status_essential=draw(st.booleans()),
        flush_delay=draw(st.sampled_from([0, 1.0])), pause=draw(st.none() | PAUSES))


many = settings(max_examples=4 * settings.default.max_examples)


@many
@given(situation=situations())
def test_every_situation_has_one_of_the_steps_with_its_reason(situation):
    step, _ = decide(situation)
    assert type(step) in STEPS
    assert step.because


@many
@given(situation=situations())
def test_deciding_twice_is_deciding_once(situation):
    decision = decide(situation)
    again = decide(situation._replace(cycle=decision.cycle))
    assert again.step == decision.step


@many
@given(situation=situations())
def test_deciding_loses_nothing_that_is_not_saved(situation):
    before, (step, after) = situation.cycle, decide(situation)
    if before is None or not before.dirty:
        assert after is None or not after.dirty
    elif not (isinstance(step, Nothing) and step.because == decisions.FREED):
        assert after.contributions == before.contributions
        assert after.unsaved == before.unsaved


@many
@given(situation=situations())
def test_handlers_that_have_finished_are_not_called(situation):
    step, cycle = decide(situation)
    if isinstance(step, Call):
        assert step.due
        assert set(step.due) <= set(situation.selection.handlers)
        assert find_due(step.due, cycle.states, now=NOW.mono) == (list(step.due), 0)
        for handler in step.due:
            for states in [situation.cycle.states] if situation.cycle is not None else []:
                state = states.get(handler.id)
                assert state is None or not state.finished or state.purpose not in (
                    None, situation.reason)


@many
@given(situation=situations())
def test_the_finalizer_of_a_living_object_is_switched_exactly_if_that_is_needed(situation):
    step, _ = decide(situation)
    view = situation.view
    is_needed = situation.accompanied or situation.selection.needs_finalizer
    is_missing = is_needed and not view.has_finalizer and not view.deleting
    is_paused = situation.pause is not None and (
        situation.cycle is not None or situation.selection.in_scope)
    is_superfluous = view.has_finalizer and not is_needed and not view.deleting and not is_paused
    if (is_missing or is_superfluous) and situation.cycle is not None and situation.cycle.dirty:
        assert isinstance(step, Save)  # the switch can be followed by other work
        return
    assert isinstance(step, AddFinalizer) is is_missing
    assert isinstance(step, RemoveFinalizer) is is_superfluous


@many
@given(situation=situations())
def test_handlers_that_need_the_finalizer_are_not_called_without_it(situation):
    step, _ = decide(situation)
    if isinstance(step, (Call, Sleep)):
        is_needed = situation.accompanied or situation.selection.needs_finalizer
        assert situation.view.has_finalizer or not is_needed
    if isinstance(step, Call):
        assert not situation.is_interrupted


@many
@given(situation=situations())
def test_only_handled_deletions_release_the_object(situation):
    step, cycle = decide(situation)
    is_handled = situation.view.deleting and all(
        cycle.states[handler.id].finished for handler in situation.selection.handlers
    ) if isinstance(step, Release) else False
    assert isinstance(step, Release) is is_handled
    if is_handled:
        assert situation.view.has_finalizer
        assert not situation.accompanied


@many
@given(situation=situations())
def test_a_cycle_closes_when_all_have_finished_or_nothing_has_changed(situation):
    step, cycle = decide(situation)
    if isinstance(step, Close):
        assert not situation.view.deleting
        assert step.reason in (situation.reason, Reason.NOOP)
        if step.reason != Reason.NOOP:
            assert all(cycle.states[handler.id].finished
                       for handler in situation.selection.handlers)
        elif situation.selection.handlers:  # then they are called for it in the next cycle
            assert step.conclusion.base != situation.view.essence


@many
@given(situation=situations())
def test_only_what_is_not_saved_yet_is_saved(situation):
    step, cycle = decide(situation)
    if isinstance(step, Save):
        assert cycle.dirty
    if isinstance(step, (Sleep, Yield, Nothing)):
        assert cycle is None or not cycle.dirty


@many
@given(situation=situations(), pause=PAUSES)
def test_nobody_is_called_in_a_pause_and_nothing_is_lost(situation, pause):
    step, cycle = decide(situation._replace(pause=pause))
    assert not isinstance(step, (Call, Sleep, Close, Release, Yield))
    if isinstance(step, Pause):
        assert cycle is situation.cycle
        assert step.until == (None if pause.until is None else make_moment(90).mono)


def test_what_can_be_closed_already_is_closed_in_spite_of_a_pause():
    conclusion = Conclusion(essence(1), None)
    cycle = Cycle(
        Reason.UPDATE, State({'one': make_state('succeeded', Reason.UPDATE)}), frozenset({'one'}),
        unsaved={'one': essence(1)}, closing=conclusion)
    situation = make_situation(
        make_handler('one', None), view=make_view(essence(2), essence(0)), reason=Reason.UPDATE,
        cycle=cycle, pause=pauses.Pause('Maintenance'))
    step, _ = decide(situation)
    assert (type(step), step.conclusion) == (Close, conclusion)


@pytest.mark.parametrize(('options', 'state', 'step'), [
    ({}, {}, Pause),
    ({}, {'deleting': True}, Pause),
    ({}, {'has_finalizer': True}, Pause),  # the finalizer stays
    ({'needed': True}, {}, AddFinalizer),
    ({'needed': True}, {'has_finalizer': True}, Pause),
    ({'needed': True}, {'deleting': True}, Pause),
    ({'accompanied': True, 'in_scope': False}, {}, AddFinalizer),
    ({'accompanied': True, 'in_scope': False}, {'has_finalizer': True}, Pause),
    ({'in_scope': False}, {}, Nothing),
    ({'in_scope': False}, {'has_finalizer': True}, RemoveFinalizer),
    ({'in_scope': False}, {'deleting': True}, Nothing),
    ({'in_scope': False}, {'has_finalizer': True, 'deleting': True}, Pause),
])
def test_steps_in_a_pause(options, state, step):
    view = make_view(essence(1), essence(0), **state)
    situation = make_situation(view=view, reason=decisions.detect(view, initial=False)[0],
                               pause=pauses.Pause('Maintenance'), **options)
    assert type(decide(situation).step) is step


@pytest.mark.parametrize(('cycle', 'step'), [
    (None, Hold),
    (make_cycle(Reason.UPDATE, progress={'one': 'due'}), Hold),
    (make_cycle(Reason.UPDATE, progress={'one': 'due'}, dirty=True), Save),
])
def test_no_handler_is_called_for_an_object_that_is_none_of_its_class(cycle, step):
    situation = make_situation(
        make_handler('one', None), view=make_view(essence(1), essence(0)), reason=Reason.UPDATE,
        cycle=cycle, misfit="spec.f is no text")
    found = decide(situation)
    assert (type(found.step), found.cycle) == (step, cycle)
    assert "spec.f is no text" in found.step.because


@pytest.mark.parametrize(('slowed', 'until', 'options', 'step'), [
    (1, 70, {}, Sleep),
    (1, 60, {}, Call),  # it is over
    (2, 70, {}, Call),  # others have changed the object
    (1, 70, {'reason': Reason.RESUME}, Call),
    (1, 70, {'cycle': make_cycle(Reason.UPDATE, progress={'one': 'due'})}, Call),
])
def test_only_updates_by_the_own_patches_are_slowed_down(slowed, until, options, step):
    found = decide(make_situation(make_handler('one', None), **{
        'view': make_view(essence(1), essence(0)), 'reason': Reason.UPDATE,
        'slowdown': Slowdown(essence(slowed), 10, 0, make_moment(until).mono), **options}))
    assert type(found.step) is step
    assert step is not Sleep or found == (
        Sleep(decisions.SLOWED, make_moment(70).mono), None)


PROTECTING = make_handler('protected', Reason.DELETE, protects="It waits.")


@many
@given(situation=situations())
def test_a_protected_object_is_not_released_and_nothing_is_lost(situation):
    view = situation.view._replace(deleting=True, has_finalizer=True)
    selection = situation.selection._replace(
        handlers=[*situation.selection.handlers, PROTECTING], needs_finalizer=True)
    step, cycle = decide(situation._replace(view=view, selection=selection, pause=None))
    is_dirty = cycle is not None and cycle.dirty
    assert isinstance(step, (Save, Close) if is_dirty else Protect)
    assert cycle is situation.cycle
    assert isinstance(step, Close) == (is_dirty and cycle.closing is not None)


@many
@given(situation=situations())
def test_nobody_sleeps_who_is_due(situation):
    step, cycle = decide(situation)
    if isinstance(step, Sleep):
        assert step.until > NOW.mono
        assert not find_due(situation.selection.handlers, cycle.states, now=NOW.mono)[0]


# Whole lives.


@st.composite
def plans(draw, patches=({}, {'own': 1})):
    fields = draw(st.lists(st.sampled_from([None, 'a', 'b']), min_size=1, max_size=4))
    return {f'h{index}': Plan(
        field=field, fails=draw(st.integers(0, 3)), delay=draw(st.sampled_from([0.0, 3.0, 10.0])),
        patch=draw(st.sampled_from(patches)), deletes=draw(st.booleans()),
        succeeds=draw(st.booleans())) for index, field in enumerate(fields)}


SPECS = st.fixed_dictionaries({'a': st.integers(0, 2), 'b': st.integers(0, 2)})
FLUSH_DELAYS = st.sampled_from([0, 1.0])
EDITS = st.tuples(st.sampled_from(['edit', 'late']), st.sampled_from('ab'), st.integers(0, 2))
MOVES = st.lists(EDITS | st.sampled_from(['step', 'settle', 'wait', 'restart']), max_size=25)


def move(life, moves):
    for each in moves:
        match each:
            case 'edit', key, value:
                life.edit(**{key: value})
            case 'late', key, value:
                life.step(**{key: value})
            case 'wait':
                life.seconds += 3
            case name:
                getattr(life, name)()


@many
@given(plans=plans(patches=[{}]), old=st.none() | SPECS, spec=SPECS, flush_delay=FLUSH_DELAYS)
def test_undisturbed_handlers_finish_once(plans, old, spec, flush_delay):
    life = Life(plans, spec=spec, old=old, flush_delay=flush_delay)
    life.finish()
    called = [id for id, _, _ in life.done]
    assert len(called) == len(set(called))
    for id, plan in plans.items():
        is_concerned = old is None or (
            old[plan.field] != spec[plan.field] if plan.field else old != spec)
        assert [called for called, _ in life.attempts].count(id) == (
            plan.fails + 1 if is_concerned else 0)
    assert life.old == life.raw['spec'] or not called


@many
@given(plans=plans(), spec=SPECS, moves=MOVES)
def test_deleted_objects_are_released_when_their_handlers_have_finished(plans, spec, moves):
    life = Life(plans, spec=spec)
    move(life, moves)
    is_blocked = finalizers.is_present(life.raw, FINALIZER)
    life.delete()
    del life.done[:]
    life.finish()
    assert life.gone
    if is_blocked:
        assert sorted(id for id, _, _ in life.done) == [
            id for id, plan in plans.items() if plan.deletes]


@many
@given(plans=plans(), old=st.none() | SPECS, spec=SPECS, flush_delay=FLUSH_DELAYS, moves=MOVES)
@example(
    plans={'one': Plan(field='a'), 'two': Plan(field='b'), 'three': Plan(fails=3)},
    old={'a': 0, 'b': 0}, spec={'a': 1, 'b': 0}, flush_delay=1.0,
    moves=['settle', ('edit', 'b', 1), 'settle', ('edit', 'a', 0), ('edit', 'b', 0)])
def test_whatever_others_do_every_handler_has_seen_the_state_that_lasts(
        plans, old, spec, flush_delay, moves,
):
    life = Life(plans, spec=spec, old=old, flush_delay=flush_delay)
    move(life, moves)
    life.finish()
    final = life.raw['spec']
    assert life.old == final
    assert set(life.raw['metadata'].get('annotations', {})) == {HANDLED}
    for id, plan in plans.items():
        seen = [new for called, _, new in life.done if called == id]
        if plan.field is not None:
            assert (seen[-1] if seen else old[plan.field]) == final[plan.field]
        else:
            last = seen[-1] if seen else old
            assert {'own': 1, **last} == {'own': 1, **final}


@many
@given(plans=plans(), old=st.none() | SPECS, spec=SPECS, flush_delay=FLUSH_DELAYS,
       steps=st.integers(0, 10), between=st.integers(0, 2), edits=SPECS)
def test_the_order_of_edits_of_different_fields_does_not_matter(
        plans, old, spec, flush_delay, steps, between, edits,
):
    outcomes = []
    for order in ['ab', 'ba']:
        life = Life(plans, spec=spec, old=old, flush_delay=flush_delay)
        for _ in range(steps):
            life.step()
        for key in order:
            life.edit(**{key: edits[key]})
        life.finish()
        outcomes.append((life.old, life.done))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == life.raw['spec']
