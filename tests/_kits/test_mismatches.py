import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.intents import filters
from kopf._core.intents.causes import Reason
from kopf._core.intents.handlers import ABSENT, PRESENT, ChangingHandler, WatchingHandler
from kopf._kits import mismatches
from tests._core.intents.test_filters import (
    FIELD,
    HANDLED,
    fail,
    make_change,
    make_event,
    make_field_change,
    make_handler,
)


def is_long(value, **_):
    return value is not None and len(value) > 3


def never(**_):
    return False


def fail_for_y(value, **_):
    return fail() if value == 'y' else False


@pytest.mark.parametrize(('options', 'cause', 'expected'), [
    ({'reason': Reason.UPDATE}, make_change(reason=Reason.CREATE),
     "it is for updates, but this is a creation"),
    ({'reason': Reason.CREATE}, make_change(reason=Reason.NOOP),
     "it is for creations, but nothing has changed (the status does not count)"),
    ({'reason': Reason.DELETE}, make_change(reason=Reason.UPDATE),
     "it is for deletions, but this is an update"),
    ({'field': FIELD, 'field_needs_change': True}, make_change(reason=Reason.DELETE),
     "it is for changes, but this is a deletion"),
    ({'initial': True}, make_change(reason=Reason.CREATE),
     "it is for resuming: for objects that exist when the operator starts"),
    ({'initial': True}, make_change(reason=Reason.DELETE, initial=True),
     "it is not for objects that are being deleted, as deleted=True is not set"),
    ({'labels': {'a': 'x'}}, make_change(meta={'labels': {'a': 'y'}}),
     "the label 'a' is 'y', but must be 'x'"),
    ({'labels': {'a': 'x'}}, make_change(), "the label 'a' is absent, but must be 'x'"),
    ({'labels': {'a': PRESENT}}, make_change(), "the label 'a' is absent"),
    ({'annotations': {'a': ABSENT}}, make_change(meta={'annotations': {'a': 'y'}}),
     "the annotation 'a' is 'y', but must be absent"),
    ({'annotations': {'a': is_long}}, make_change(meta={'annotations': {'a': 'y'}}),
     "the annotation 'a' is 'y', for which is_long returns false"),
    ({'annotations': {'a': fail}}, make_change(meta={'annotations': {'a': 'y'}}),
     "its filter fails: ZeroDivisionError('boo')"),
    ({'field': FIELD}, make_field_change('x', None), "the field spec.field is absent"),
    ({'field': FIELD, 'value': 'x'}, make_field_change('x', 'y'),
     "the field spec.field is 'y', but must be 'x'"),
    ({'field': FIELD, 'field_needs_change': True}, make_field_change('x', 'x'),
     "the field spec.field has not changed: 'x'"),
    ({'field': FIELD, 'old': 'y'}, make_field_change('x', 'y'),
     "the field spec.field (before) is 'x', but must be 'y'"),
    ({'field': FIELD, 'new': 'x'}, make_field_change('x', 'y'),
     "the field spec.field (now) is 'y', but must be 'x'"),
    ({'field': FIELD, 'new': 'y', 'field_needs_change': True}, make_field_change('x', 'x'),
     "the field spec.field has not changed: 'x'"),
    ({'field': FIELD, 'old': fail_for_y}, make_field_change('x', 'y'),
     "the field spec.field (before) is 'x', for which fail_for_y returns false"),
    ({'field': FIELD, 'value': fail_for_y}, make_field_change('y', 'x'),
     "its filter fails: ZeroDivisionError('boo')"),
    ({'field': FIELD, 'value': 'x', 'when': never}, make_field_change('x', 'y'),
     "the field spec.field is 'y', but must be 'x'"),
    ({'field': FIELD, 'value': 'x', 'when': fail}, make_field_change('x', 'y'),
     "its filter fails: ZeroDivisionError('boo')"),
    ({'field': FIELD, 'value': 'x', 'when': fail}, make_field_change('z', 'y'),
     "the field spec.field is 'y', but must be 'x'"),
    ({'when': never}, make_change(), "when=never returns false"),
    ({'when': fail}, make_change(), "its filter fails: ZeroDivisionError('boo')"),
    ({}, make_change(), None),
    ({'labels': {'a': 'y'}, 'field': FIELD, 'when': lambda **_: True},
     make_field_change('x', 'y', meta={'labels': {'a': 'y'}}), None),
])
def test_mismatches_are_explained(options, cause, expected):
    assert mismatches.find(make_handler(ChangingHandler, **options), cause) == expected


@pytest.mark.parametrize(('options', 'body', 'expected'), [
    ({'field': ('spec', 'x')}, {'spec': {}}, "the field spec.x is absent"),
    ({'field': ('spec', 'x'), 'value': 1}, {'spec': {'x': 2}},
     "the field spec.x is 2, but must be 1"),
    ({'field': ('spec', 'x'), 'value': 'y' * 200}, {'spec': {'x': 'z' * 200}},
     f"the field spec.x is '{'z' * 79}…, but must be '{'y' * 79}…"),
    ({'field': ('spec', 'x')}, {'spec': {'x': 0}}, None),
])
def test_mismatches_of_states_are_explained(options, body, expected):
    handler = make_handler(WatchingHandler, **options)
    assert mismatches.find(handler, make_event(body)) == expected


values = st.sampled_from([None, 'x', 'y', ''])
callbacks = st.sampled_from([fail, lambda value, **_: value in ('x', None)])
criteria = st.sampled_from(['x', 'y', '', PRESENT, ABSENT]) | callbacks
handlers = st.builds(
    make_handler,
    reason=st.none() | st.sampled_from(HANDLED),
    initial=st.none() | st.just(True),
    deleted=st.none() | st.just(True),
    field=st.none() | st.just(FIELD),
    field_needs_change=st.none() | st.just(True),
    labels=st.none() | st.dictionaries(st.just('a'), criteria),
    annotations=st.none() | st.dictionaries(st.just('a'), criteria),
    value=st.none() | criteria,
    old=st.none() | criteria,
    new=st.none() | criteria,
    when=st.none() | st.sampled_from([fail, never, lambda **_: True]),
)
metadata = st.fixed_dictionaries({}, optional={
    key: st.dictionaries(st.just('a'), st.sampled_from('xy')) for key in ('labels', 'annotations')})
changes = st.builds(
    make_field_change, old=values, new=values, reason=st.sampled_from([*HANDLED, Reason.NOOP]),
    initial=st.booleans(), meta=metadata)


def matches(handler, cause):
    try:
        return filters.matches(handler, cause)
    except filters.FilterError:
        return False


@given(handler=handlers, cause=changes)
def test_there_is_a_mismatch_if_and_only_if_the_filters_do_not_match(handler, cause):
    assert (mismatches.find(handler, cause) is None) == matches(handler, cause)


events = st.builds(
    lambda meta, value: make_event(
        {'metadata': meta, 'spec': {} if value is None else {'field': value}}), metadata, values)


@given(handler=st.builds(
    make_handler, st.just(WatchingHandler), field=st.none() | st.just(FIELD),
    labels=st.none() | st.dictionaries(st.just('a'), criteria), value=st.none() | criteria,
    when=st.none() | st.sampled_from([fail, never, lambda **_: True]),
), cause=events)
def test_mismatches_of_states_are_those_of_the_filters(handler, cause):
    assert (mismatches.find(handler, cause) is None) == matches(handler, cause)
