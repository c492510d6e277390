"""
The judge of newer states, on states that are made by known edits: what is true of them is known.
"""
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch, merge
from kopf._core.actions import decisions
from kopf._core.actions.claims import Ledger, Verdict, is_changed
from kopf._core.actions.cycles import Conclusion
from kopf._core.intents.registries import ResourceHandlers
from tests._core.actions.lives import DELETED, FINALIZER, HANDLED, make_handler

SETTINGS = kopf.OperatorSettings()
LEDGER = Ledger(SETTINGS, ResourceHandlers(changing=(make_handler('a'), make_handler('b'))))
BASE = {'spec': {'f': 1}}
"""What the cycle that is to be closed has handled."""


def store(raw, essence):
    patch = Patch()
    SETTINGS.persistence.diffbase_storage.store(body=Body(raw), patch=patch, essence=essence)
    return merge(raw, patch)


def record(raw, id, **fields):
    patch = Patch()
    SETTINGS.persistence.progress_storage.store(
        key=id, record={'success': True, **fields}, body=Body(raw), patch=patch)
    return merge(raw, patch)


def annotate(raw, key, value):
    return merge(raw, {'metadata': {'annotations': {key: value}}})


KNOWN = merge(store(
    {'metadata': {'name': 'x', 'finalizers': [FINALIZER], 'resourceVersion': '1'}},
    {'spec': {'f': 0}}), {'spec': {'f': 1, 'g': 1}})
HANDLINGS = {
    'begun': lambda raw: record(raw, 'a'),
    'begun below': lambda raw: record(record(raw, 'a', subrefs=['a/x']), 'a/x'),
    'continued': lambda raw: record(raw, 'b', retries=3),
    'closed': lambda raw: store(raw, BASE),
    'damaged': lambda raw: annotate(raw, HANDLED, '{'),
}
"""What only operators do."""
CHANGES = {
    'spec': lambda raw: merge(raw, {'spec': {'f': 2}}),
    'label': lambda raw: merge(raw, {'metadata': {'labels': {'x': 'y'}}}),
    'annotation': lambda raw: annotate(raw, 'x', 'y'),
    'deletion': lambda raw: merge(raw, DELETED),
    'finalizer': lambda raw: merge(raw, {'metadata': {'finalizers': ['of.others']}}),
}
"""What matters to the handlers."""
TRIFLES = {
    'status': lambda raw: merge(raw, {'status': {'x': 1}}),
    'finalizer of others': lambda raw: merge(
        raw, {'metadata': {'finalizers': [FINALIZER, 'of.others']}}),
    'managed fields': lambda raw: merge(raw, {'metadata': {'managedFields': [{}]}}),
    'another handler': lambda raw: record(raw, 'unknown'),
}
"""What matters to nobody."""


def edit(raw, names):
    for name in names:
        raw = {**HANDLINGS, **CHANGES, **TRIFLES}[name](raw)
    return merge(raw, {'metadata': {'resourceVersion': '2'}})


def look(raw):
    return decisions.look(raw, settings=SETTINGS, extra_fields=())


def subsets(names):
    return st.sets(st.sampled_from(sorted(names))).map(sorted)


@settings(max_examples=500)
@given(
    changes=subsets(CHANGES), trifles=subsets(TRIFLES),
    handlings=subsets(HANDLINGS), made=st.sampled_from(['none', 'same', 'other']),
    is_viewed=st.booleans(), is_closing=st.booleans(), is_exclusive=st.booleans())
def test_verdicts_are_true(
        changes, trifles, handlings, made, is_viewed, is_closing, is_exclusive):
    if 'finalizer' in changes:
        trifles = [name for name in trifles if name != 'finalizer of others']
    own = {'none': [], 'same': [edit(KNOWN, handlings)], 'other': [edit(KNOWN, ['continued'])]}
    is_damaged = 'damaged' in handlings
    is_own = made == 'same' or (made == 'other' and handlings == ['continued'])
    if is_closing and 'closed' in handlings and not is_damaged:
        expected = Verdict.CLOSED
    elif not is_exclusive and handlings and (is_damaged or not is_own):
        expected = Verdict.OVERTAKEN
    elif is_viewed and changes:
        expected = Verdict.CHANGED
    else:
        expected = Verdict.SAME
    newest = edit(KNOWN, [*trifles, *changes, *sorted(handlings)])
    assert LEDGER.judge(
        newest, known=KNOWN, made=own[made],
        conclusion=Conclusion(BASE, None) if is_closing else None,
        view=look(KNOWN) if is_viewed else None, is_exclusive=is_exclusive) is expected


@pytest.mark.parametrize('name, verdict', [
    *((name, Verdict.CHANGED) for name in CHANGES), *((name, Verdict.SAME) for name in TRIFLES)])
def test_each_change_alone_has_a_verdict(name, verdict):
    assert LEDGER.judge(edit(KNOWN, [name]), known=KNOWN, view=look(KNOWN)) is verdict


@given(trifles=subsets(TRIFLES), handlings=subsets(HANDLINGS))
def test_without_a_known_state_others_can_have_handled_the_object(trifles, handlings):
    newest = edit(KNOWN, [*trifles, *handlings])
    assert LEDGER.judge(newest, known=None) is Verdict.OVERTAKEN
    assert LEDGER.judge(newest, known=None, is_exclusive=True) is Verdict.SAME


def test_sub_handlers_have_records_too():
    known = record(KNOWN, 'a', subrefs=['a/x'])
    newest = record(known, 'a/x')
    assert LEDGER.judge(newest, known=known) is Verdict.OVERTAKEN
    assert LEDGER.judge(newest, known=known, made=[newest]) is Verdict.SAME


def test_a_state_is_not_overtaken_by_itself_though_its_records_are_damaged():
    raw = edit(KNOWN, ['damaged'])
    assert LEDGER.judge(raw, known=raw) is Verdict.SAME
    assert LEDGER.judge(json.loads(json.dumps(raw)), known=raw) is Verdict.OVERTAKEN


@pytest.mark.parametrize(('changes', 'verdict'), [
    (['spec'], Verdict.SAME), ([], Verdict.CHANGED), (['spec', 'label'], Verdict.CHANGED)])
def test_own_changes_are_expected(changes, verdict):
    expected = LEDGER.build_essence(edit(KNOWN, ['spec']))
    assert LEDGER.judge(
        edit(KNOWN, changes), known=KNOWN, view=look(KNOWN), expected=expected,
        is_exclusive=True) is verdict


@pytest.mark.parametrize('expected', [None, BASE])
def test_the_viewed_state_itself_can_differ_only_from_what_is_expected(expected):
    assert LEDGER.judge(
        KNOWN, known=KNOWN, view=look(KNOWN), expected=expected, is_exclusive=True) is (
        Verdict.SAME if expected is None else Verdict.CHANGED)


def test_a_cycle_is_not_closed_by_another_conclusion():
    assert LEDGER.judge(
        edit(KNOWN, ['closed']), known=KNOWN, is_exclusive=True,
        conclusion=Conclusion(BASE, {'spec': {'f': 4}})) is Verdict.SAME


@pytest.mark.parametrize(('edits', 'expected'), [
    (['spec'], True), (['deletion'], True), (['finalizer'], False), (['status', 'begun'], False)])
def test_handlers_see_a_change_of_the_essence_or_a_deletion(edits, expected):
    assert is_changed(look(KNOWN), look(edit(KNOWN, edits))) is expected


@pytest.mark.parametrize(('written', 'newest', 'expected'), [
    (['begun'], ['begun'], True), (['begun'], ['begun', 'spec'], True), (['begun'], [], False),
    (['begun'], ['continued'], False), (['spec'], ['spec'], False),
    (['damaged'], ['damaged'], False)])
def test_new_records_prove_that_a_write_was_applied(written, newest, expected):
    assert LEDGER.is_written(
        KNOWN, edit(KNOWN, written), edit(KNOWN, newest)) is expected


def test_fields_that_handlers_have_selected_matter_though_they_are_of_the_status():
    ledger = Ledger(SETTINGS, ResourceHandlers(extra_fields=(('status', 'x'),)))
    view = decisions.look(KNOWN, settings=SETTINGS, extra_fields=ledger.handlers.extra_fields)
    newest = edit(KNOWN, ['status'])
    assert ledger.judge(newest, known=KNOWN, view=view) is Verdict.CHANGED
