import copy
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.aiokits.clocks import Moment
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge
from kopf._core.actions.cycles import Cycle, advance, leaves, load_views
from kopf._core.actions.progression import Outcome
from kopf._core.intents.causes import Reason

START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
PREFIX = 'op.example.com'

STORAGES = {
    'smart': lambda: kopf.SmartProgressStorage(),
    'annotations': lambda: kopf.AnnotationsProgressStorage(prefix=PREFIX),
    'status': lambda: kopf.StatusProgressStorage(),
    'multi': lambda: kopf.MultiProgressStorage([
        kopf.AnnotationsProgressStorage(prefix=PREFIX), kopf.StatusProgressStorage(name='op')]),
}

SCALARS = st.booleans() | st.integers(0, 3) | st.text(max_size=2)
KEYS = st.sampled_from(['a', 'b', 'c'])
SPECS = st.dictionaries(KEYS, st.recursive(
    SCALARS, lambda values: st.dictionaries(KEYS, values, max_size=3), max_leaves=5), max_size=3)
CHANGES = st.dictionaries(KEYS, st.recursive(
    st.none() | SCALARS, lambda values: st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5), max_size=3)
NAMES = st.dictionaries(KEYS, st.text(max_size=2))
RAWS = st.fixed_dictionaries(
    {'metadata': st.fixed_dictionaries({}, optional={'labels': NAMES, 'annotations': NAMES})},
    optional={'spec': SPECS, 'status': SPECS, 'data': SPECS})
PATCHES = st.fixed_dictionaries({}, optional={
    'spec': CHANGES, 'status': CHANGES, 'data': st.none() | CHANGES,
    'metadata': st.fixed_dictionaries({}, optional={
        'labels': st.dictionaries(KEYS, st.none() | st.text(max_size=2)),
        'annotations': st.dictionaries(
            st.sampled_from(['a', 'b', 'kopf.zalando.org/x']), st.none() | st.text(max_size=2)),
    })})

storages = pytest.mark.parametrize('make', STORAGES.values(), ids=STORAGES)


def make_moment(seconds):
    return Moment(100.0 + seconds, START + datetime.timedelta(seconds=seconds))


def get_essence(raw):
    return kopf.AnnotationsDiffBaseStorage().build(body=Body(raw))


def make_settings(make):
    settings = kopf.OperatorSettings()
    settings.persistence.progress_storage = make()
    return settings


# What handlers saw, with the own changes since then.


@given(raw=RAWS, changes=st.lists(PATCHES, max_size=3))
def test_what_was_seen_with_own_changes_is_the_new_state_if_nobody_else_has_changed_it(
        raw, changes,
):
    newer = raw
    for patch in changes:
        newer = merge(newer, patch)
    assert advance(get_essence(raw), changes, get_essence(newer)) == get_essence(newer)


@given(raw=RAWS, own=CHANGES, foreign=CHANGES)
def test_what_was_seen_is_without_the_changes_of_others_beside_the_own_ones(raw, own, foreign):
    own = {'spec': {f'own-{key}': val for key, val in own.items()}}
    foreign = {'spec': {f'foreign-{key}': val for key, val in foreign.items()}}
    before = merge(raw, {'spec': {'own-a': {'a': 1}, 'foreign-b': {'c': 1}}})
    after = merge(merge(before, foreign), own)
    advanced = advance(get_essence(before), [own], get_essence(after))
    assert advanced == get_essence(merge(before, own))


@given(raw=RAWS, own=PATCHES, stored=PATCHES)
def test_own_changes_are_seen_as_the_server_has_stored_them(raw, own, stored):
    stored = {'spec': {'a': stored.get('spec')}}
    own = {'spec': {'a': 'something'}}
    after = merge(raw, stored)
    advanced = advance(get_essence(raw), [own], get_essence(after))
    assert advanced.get('spec', {}).get('a') == after.get('spec', {}).get('a')


@given(raw=RAWS, changes=st.lists(PATCHES, max_size=3))
def test_what_was_seen_is_stored_in_the_order_of_the_server(raw, changes):
    newer = raw
    for patch in changes:
        newer = merge(newer, patch)
    newer = sort(newer)
    advanced = advance(get_essence(raw), changes, get_essence(newer))
    assert repr(advanced) == repr(get_essence(newer))


@given(raw=RAWS, patch=PATCHES)
def test_nothing_is_changed_in_place(raw, patch):
    seen, newer = get_essence(raw), get_essence(merge(raw, patch))
    before = copy.deepcopy((seen, newer, patch))
    advance(seen, [patch], newer)
    assert (seen, newer, patch) == before


@pytest.mark.parametrize(('patch', 'fields'), [
    ({}, []),
    ({'a': 1}, [('a',)]),
    ({'a': None}, [('a',)]),
    ({'a': {}}, [('a',)]),
    ({'a': {'b': 1, 'c': {'d': None}}, 'e': [{'f': 1}]}, [('a', 'b'), ('a', 'c', 'd'), ('e',)]),
])
def test_patches_touch_the_fields_that_they_set_or_remove(patch, fields):
    assert list(leaves(patch)) == fields


# What is noted of attempts.


@pytest.fixture()
def cycle():
    cycle = Cycle(Reason.CREATE)
    for id in ('fn', 'other'):
        cycle.load(id, body=Body({}), settings=kopf.OperatorSettings(), now=make_moment(0))
    return cycle


def test_nothing_is_to_be_written_at_first(cycle):
    assert not cycle.dirty
    assert cycle.oldest is None


def test_an_outcome_is_to_be_written_since_it_is_there(cycle):
    cycle.note('fn', Outcome(final=True), Patch(), essence={}, now=make_moment(1))
    cycle.note('other', Outcome(final=True), Patch(), essence={}, now=make_moment(2))
    assert cycle.dirty
    assert cycle.unsaved == {'fn', 'other'}
    assert cycle.oldest == make_moment(1).mono


def test_results_are_contributed_to_the_status_by_the_ids_of_their_handlers(cycle):
    patch = Patch({'status': {'phase': 'x'}})
    cycle.note('fn', Outcome(final=True, result={'a': 1}), patch, essence={}, now=make_moment(1))
    [contribution] = cycle.contributions
    assert contribution.patch == {'status': {'phase': 'x', 'fn': {'a': 1}}}
    assert cycle.unsent_results() == [{'status': {'fn': {'a': 1}}}]


def test_patches_of_failed_attempts_count_too(cycle):
    outcome = Outcome(final=False, exception=Exception())
    cycle.note('fn', outcome, Patch({'spec': {'a': 1}}), essence={}, now=make_moment(1))
    [contribution] = cycle.contributions
    assert contribution.patch == {'spec': {'a': 1}}
    assert cycle.unsent_results() == []


def test_the_earliest_finished_handler_tells_what_was_seen(cycle):
    unfinished = Outcome(final=False, exception=Exception())
    cycle.note('fn', unfinished, Patch(), essence={'spec': 1}, now=make_moment(1))
    assert cycle.seen is None
    cycle.note('other', Outcome(final=True), Patch(), essence={'spec': 2}, now=make_moment(2))
    cycle.note('fn', Outcome(final=True), Patch(), essence={'spec': 3}, now=make_moment(3))
    assert cycle.seen == {'spec': 2}


def test_a_refused_patch_makes_its_handler_failed(cycle):
    cycle.note('fn', Outcome(final=True), Patch(), essence={}, now=make_moment(1))
    cycle.unsaved.clear()
    cycle.refuse('fn', "No way.")
    state = cycle.states['fn']
    assert (state.success, state.failure, state.message) == (False, True, "No way.")
    assert state.stopped is not None
    assert cycle.unsaved == {'fn'}


def test_records_for_other_purposes_do_not_count():
    settings = kopf.OperatorSettings()
    raw = save(settings, Cycle(Reason.CREATE), {'metadata': {}}, attempted=['fn'])
    cycle = Cycle(Reason.DELETE, stored=True)
    state = cycle.load('fn', body=Body(raw), settings=settings, now=make_moment(1))
    assert (state.purpose, state.retries, state.finished) == ('delete', 0, False)


def test_records_for_other_purposes_count_where_any_do():
    settings = kopf.OperatorSettings()
    raw = save(settings, Cycle(Reason.CREATE), {'metadata': {}}, attempted=['fn'])
    cycle = Cycle(Reason.UPDATE, stored=True)
    state = cycle.load(
        'fn', body=Body(raw), settings=settings, now=make_moment(1), any_purpose=True)
    assert (state.purpose, state.retries, state.finished) == ('create', 1, True)


@storages
def test_the_sub_handlers_of_finished_handlers_leave_no_records_either(make):
    settings = make_settings(make)
    cycle = Cycle(Reason.CREATE)
    for id, subrefs in [('fn/a/b', ()), ('fn/a', ['fn/a/b']), ('fn', ['fn/a'])]:
        cycle.load(id, body=Body({}), settings=settings, now=make_moment(0))
        outcome = Outcome(final=True, subrefs=subrefs)
        cycle.note(id, outcome, Patch(), essence={}, now=make_moment(1))
    raw = merge({}, cycle.progress_patch(
        body=Body({}), settings=settings, expected={}, contributed=()))

    cycle = Cycle(Reason.CREATE, stored=True)
    cycle.load('fn', body=Body(raw), settings=settings, now=make_moment(2))
    raw = merge(raw, cycle.closing_patch(['fn'], body=Body(raw), settings=settings))
    assert not any(
        settings.persistence.progress_storage.fetch(key=id, body=Body(raw))
        for id in ('fn', 'fn/a', 'fn/a/b'))


@storages
@given(essence=RAWS.map(get_essence))
def test_what_was_seen_survives_restarts(make, essence):
    settings = make_settings(make)
    cycle = Cycle(Reason.CREATE)
    raw = save(settings, cycle, {'metadata': {}}, attempted=['fn'], essence=essence)
    assert load_views(Body(raw), settings) == [essence]


def test_values_of_other_versions_in_the_place_of_what_was_seen_are_ignored():
    settings = kopf.OperatorSettings()
    patch = Patch()
    settings.persistence.progress_storage.touch(
        body=Body({}), patch=patch, value='2020-01-01T00:00:00')
    assert load_views(Body(patch), settings) == []


def save(settings, cycle, raw, *, attempted, essence=None):
    """Make successful attempts of the handlers, and write it down."""
    for id in attempted:
        cycle.load(id, body=Body(raw), settings=settings, now=make_moment(0))
        cycle.note(
            id, Outcome(final=True), Patch(), essence=essence or {}, now=make_moment(1))
    return merge(raw, cycle.progress_patch(
        body=Body(raw), settings=settings, expected=essence or {}, contributed=()))


def sort(value):
    return {key: sort(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


# Cycles with crashes at any moment.


class World:
    """
    An object, and a process that handles it in the simplest possible way: handlers one by one.

    Everything in `cycle` is lost in a crash, `raw` is not. The rest is what the test knows.
    """

    def __init__(self, make, plans):
        self.settings = make_settings(make)
        self.plans = plans
        """How many attempts of each handler fail, and how it ends."""
        self.raw = {'metadata': {'name': 'name1', 'annotations': {'a': 'b'}}, 'spec': {'size': 1}}
        self.cycle = None
        self.seconds = 0.0
        self.attempts = []
        """All attempts, as the handlers saw them."""
        self.saved = dict.fromkeys(plans, 0)
        """How many attempts of each handler were written down."""
        self.closed = False
        self.restart()

    @property
    def now(self):
        return make_moment(self.seconds)

    def restart(self):
        """Forget everything that is not on the object."""
        body = Body(self.raw)
        storage = self.settings.persistence.progress_storage
        stored = any(storage.fetch(key=id, body=body) for id in self.plans)
        self.cycle = Cycle(Reason.CREATE, stored=stored)
        for id in self.plans:
            self.cycle.load(id, body=body, settings=self.settings, now=self.now)

    def attempt(self):
        """Try the handler that is due, if there is one."""
        states = self.cycle.states
        due = [id for id in self.plans
               if not states[id].finished and states[id].due <= self.now.mono]
        if due and not self.closed:
            id = min(due, key=states.retries_of)
            self.attempts.append((id, states[id].retries))
            failures, is_successful = self.plans[id]
            outcome = (
                Outcome(final=False, delay=10, exception=Exception(), message="not yet")
                if states[id].retries < failures else
                Outcome(final=True, result={'tried': failures}) if is_successful else
                Outcome(final=True, exception=Exception(), message="no way"))
            self.cycle.note(
                id, outcome, Patch(), essence=get_essence(self.raw), now=self.now)

    def wait(self):
        self.seconds += 6

    def save(self):
        """Write down what is done, and close the cycle if that is all."""
        if self.closed:
            return
        if all(state.finished for state in self.cycle.states.values()):
            own = self.cycle.closing_patch(
                self.plans, body=Body(self.raw), settings=self.settings)
            self.closed = True
        else:
            own = self.cycle.progress_patch(
                body=Body(self.raw), settings=self.settings, expected=get_essence(self.raw),
                contributed=[item.patch for item in self.cycle.contributions])
        for contribution in self.cycle.contributions:
            self.raw = merge(self.raw, contribution.patch)
        self.raw = merge(self.raw, own)
        self.cycle.contributions.clear()
        self.cycle.unsaved.clear()
        self.saved = {id: state.retries for id, state in self.cycle.states.items()}

    def crash(self):
        if not self.closed:
            self.restart()

    def finish(self):
        for _ in range(100):
            self.attempt()
            self.wait()
            self.save()


PLANS = st.dictionaries(
    st.sampled_from(['fn', 'other', 'parent/child', 'long' * 20]),
    st.tuples(st.integers(0, 3), st.booleans()), min_size=1)
STEPS = st.lists(st.sampled_from(['attempt', 'attempt', 'wait', 'save', 'crash']), max_size=40)


@storages
@given(plans=PLANS, steps=STEPS)
def test_crashes_make_handlers_repeat_only_what_was_not_saved(make, plans, steps):
    world = World(make, plans)
    expected = []
    for step in steps:
        before, tried = dict(world.saved), len(world.attempts)
        getattr(world, step)()
        for id, retry in world.attempts[tried:]:
            assert retry >= before[id]
            unsaved = [known for known, retry in expected if known == id and retry >= before[id]]
            assert retry == before[id] + len(unsaved)
            expected.append((id, retry))
        if step == 'crash':
            expected = [(id, retry) for id, retry in expected if retry < world.saved[id]]


@storages
@given(plans=PLANS, steps=STEPS)
def test_after_any_crashes_all_handlers_finish_as_if_there_were_none(make, plans, steps):
    world, peaceful = World(make, plans), World(make, plans)
    for step in steps:
        getattr(world, step)()
    world.finish()
    peaceful.finish()
    assert world.closed
    assert world.saved == peaceful.saved == {id: n + 1 for id, (n, _) in plans.items()}
    assert without_marks(world.raw) == without_marks(peaceful.raw)


@storages
@given(plans=PLANS, steps=STEPS)
def test_after_any_crashes_nothing_is_left_but_the_results(make, plans, steps):
    world = World(make, plans)
    for step in steps:
        getattr(world, step)()
    world.finish()
    results = {id: {'tried': n} for id, (n, is_successful) in plans.items() if is_successful}
    assert without_marks(world.raw) == without_empty({
        'metadata': {'name': 'name1', 'annotations': {'a': 'b'}}, 'spec': {'size': 1},
        'status': results})


def without_marks(raw):
    """Without the mark of the own prefix, which stays, and without the emptied stanzas."""
    unmarking = {'metadata': {'annotations': {f'{PREFIX}/kopf-managed': None}}}
    return without_empty(merge(raw, unmarking))


def without_empty(value):
    if not isinstance(value, dict):
        return value
    cleaned = {key: without_empty(val) for key, val in value.items()}
    return {key: val for key, val in cleaned.items() if val != {}}


@pytest.mark.parametrize('ahead', [None, {'spec': {'f': 3}}])
@pytest.mark.parametrize('new', [{'spec': {'f': 1}}, {'spec': {'f': 2}}])
def test_a_commit_is_recognised_once_it_has_arrived_unless_it_was_there_before(new, ahead):
    settings = kopf.OperatorSettings()
    old, cycle = {'spec': {'f': 1}}, Cycle(Reason.UPDATE)
    before = Body({'metadata': {}})
    cycle.begin_closing(new, ahead, old=old, body=before, settings=settings)
    assert not cycle.is_closed(old=old, body=before, settings=settings)

    patch = cycle.closing_patch([], body=before, settings=settings, ahead=ahead)
    after = Body(merge({'metadata': {}}, patch))
    is_change = new != old or ahead is not None
    assert cycle.is_closed(old=new, body=after, settings=settings) is is_change
    again = Cycle(Reason.UPDATE)
    again.begin_closing(new, ahead, old=new, body=after, settings=settings)
    assert not again.is_closed(old=new, body=after, settings=settings)
