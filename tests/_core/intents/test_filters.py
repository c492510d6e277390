import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.intents import filters
from kopf._core.intents.causes import ChangingCause, Reason, WatchingCause
from kopf._core.intents.filters import FilterError, concerns, is_in_scope, matches
from kopf._core.intents.handlers import ABSENT, PRESENT, ChangingHandler, WatchingHandler

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples')
COMMON = {'logger': logging.getLogger(), 'memo': None, 'indices': {}, 'resource': RESOURCE}
HANDLED = [Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME]


def fn(**_):
    pass


def fail(*_, **__):
    raise ZeroDivisionError("boo")


def make_handler(cls=ChangingHandler, **kwargs):
    return cls(**{'id': 'fn', 'fn': fn, **kwargs})


def make_event(body):
    return WatchingCause(
        **COMMON, patch=Patch(), body=Body(body), type='ADDED',
        event={'type': 'ADDED', 'object': body})


def make_change(old=None, new=None, reason=Reason.UPDATE, *, initial=False, meta=None):
    body = {'metadata': meta or {}, **(new or {})}
    return ChangingCause(
        **COMMON, patch=Patch(), body=Body(body), reason=reason, initial=initial,
        diff=diff(old, new), old=old, new=new)


def make_field_change(old, new, reason=Reason.UPDATE, **kwargs):
    def state(value):
        return {'spec': {} if value is None else {'field': value}}
    return make_change(state(old), state(new), reason, **kwargs)


FIELD = ('spec', 'field')


def select(candidates, cause):
    return list(filters.select(candidates, cause).handlers)


@pytest.mark.parametrize('reason', list(Reason))
@pytest.mark.parametrize('declared', HANDLED)
def test_handlers_are_for_their_reason(declared, reason):
    assert concerns(make_handler(reason=declared), make_change(reason=reason)) == (
        declared == reason)


@pytest.mark.parametrize('reason, deleted, expected', [
    (Reason.CREATE, None, True),
    (Reason.UPDATE, None, True),
    (Reason.RESUME, None, True),
    (Reason.DELETE, None, False),
    (Reason.DELETE, True, True),
])
def test_resume_handlers_are_mixed_into_other_reasons(reason, deleted, expected):
    handler = make_handler(initial=True, deleted=deleted)
    assert concerns(handler, make_change(reason=reason, initial=True)) == expected


@pytest.mark.parametrize('reason', HANDLED)
def test_resume_handlers_are_not_for_what_is_resumed_already(reason):
    handler = make_handler(initial=True, deleted=True)
    assert not concerns(handler, make_change(reason=reason, initial=False))


@pytest.mark.parametrize('reason, expected', [
    (Reason.CREATE, True), (Reason.UPDATE, True), (Reason.RESUME, False), (Reason.DELETE, False),
    (Reason.NOOP, False)])
def test_field_handlers_are_for_creations_and_updates(reason, expected):
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert concerns(handler, make_change(reason=reason)) == expected


@pytest.mark.parametrize('reason', HANDLED)
def test_sub_handlers_are_for_whatever_their_parent_is(reason):
    assert concerns(make_handler(), make_change(reason=reason))


def test_filters_of_other_reasons_are_not_called():
    handler = make_handler(reason=Reason.DELETE, when=fail)
    assert not matches(handler, make_change(reason=Reason.UPDATE))


def test_reasons_matter_only_for_handlers_of_changes_and_for_changes():
    assert matches(make_handler(WatchingHandler), make_change())
    assert matches(make_handler(reason=Reason.UPDATE), make_event({}))


def test_fields_are_compared_only_for_handlers_of_changes_and_for_changes():
    unchanged = make_field_change('x', 'x')
    assert matches(make_handler(WatchingHandler, field=FIELD, value='x'), unchanged)
    handler = make_handler(field=FIELD, value='x', field_needs_change=True)
    assert matches(handler, make_event({'spec': {'field': 'x'}}))


@pytest.mark.parametrize('stanza', ['labels', 'annotations'])
@pytest.mark.parametrize('criterion, values, expected', [
    ('value', {'key': 'value'}, True),
    ('value', {'key': 'other'}, False),
    ('value', {}, False),
    ('value', None, False),
    ('', {'key': ''}, True),
    (PRESENT, {'key': 'value'}, True),
    (PRESENT, {'key': ''}, True),
    (PRESENT, {'other': 'value'}, False),
    (PRESENT, None, False),
    (ABSENT, {'key': 'value'}, False),
    (ABSENT, {'key': ''}, False),
    (ABSENT, {'other': 'value'}, True),
    (ABSENT, None, True),
    (lambda value, **_: value == 'value', {'key': 'value'}, True),
    (lambda value, **_: value == 'value', {'key': 'other'}, False),
    (lambda value, **_: value is None, {}, True),
    (lambda value, **_: value is None, {'key': ''}, False),
])
def test_metadata_filters(stanza, criterion, values, expected):
    handler = make_handler(WatchingHandler, **{stanza: {'key': criterion}})
    assert matches(handler, make_event({'metadata': {stanza: values}})) == expected


@pytest.mark.parametrize('body', [{}, {'metadata': None}])
def test_objects_without_metadata_have_no_labels(body):
    assert matches(make_handler(WatchingHandler, labels={'a': ABSENT}), make_event(body))
    assert not matches(make_handler(WatchingHandler, labels={'a': PRESENT}), make_event(body))


@pytest.mark.parametrize('values, expected', [
    ({'a': '1', 'b': '2'}, True), ({'a': '1'}, False), ({'b': '2'}, False)])
def test_all_criteria_have_to_be_met(values, expected):
    handler = make_handler(WatchingHandler, labels={'a': '1'}, annotations={'b': '2'})
    cause = make_event({'metadata': {'labels': values, 'annotations': values}})
    assert matches(handler, cause) == expected


@pytest.mark.parametrize('stanza', ['labels', 'annotations'])
@pytest.mark.parametrize('values, expected', [
    ({'a': '1', 'b': '2'}, True), ({'a': '1'}, False), ({'b': '2'}, False), ({}, False)])
def test_all_criteria_of_one_stanza_have_to_be_met(stanza, values, expected):
    handler = make_handler(WatchingHandler, **{stanza: {'a': '1', 'b': '2'}})
    assert matches(handler, make_event({'metadata': {stanza: values}})) == expected


@pytest.mark.parametrize('criterion, value, expected', [
    (None, 'x', True),
    (None, '', True),
    (None, 0, True),
    (None, None, False),
    ('x', 'x', True),
    ('x', 'y', False),
    ('x', None, False),
    (PRESENT, 'x', True),
    (PRESENT, None, False),
    (ABSENT, 'x', False),
    (ABSENT, None, True),
    (lambda value, **_: value == 'x', 'x', True),
    (lambda value, **_: value is None, None, True),
    (lambda value, **_: value == 'x', 'y', False),
])
@pytest.mark.parametrize('body', [
    lambda value: {'spec': {'field': value}},
    lambda value: {'spec': {'field': value}} if value is not None else {},
])
def test_field_filters_check_the_current_state(criterion, value, expected, body):
    handler = make_handler(WatchingHandler, field=FIELD, value=criterion)
    assert matches(handler, make_event(body(value))) == expected


@pytest.mark.parametrize('reason', [Reason.CREATE, Reason.DELETE])
@pytest.mark.parametrize('old, new, expected', [
    ('x', 'x', True), ('y', 'x', True), (None, 'x', True), ('x', 'y', False), ('x', None, False)])
def test_handlers_of_no_updates_check_only_the_new_state(reason, old, new, expected):
    handler = make_handler(reason=reason, field=FIELD, value='x')
    assert matches(handler, make_field_change(old, new, reason)) == expected


@pytest.mark.parametrize('handler', [
    {'reason': Reason.UPDATE, 'field_needs_change': True},
    {'field_needs_change': True},
], ids=['on.update', 'on.field'])
@pytest.mark.parametrize('kwargs, old, new, expected', [
    ({}, 'x', 'y', True),
    ({}, None, 'y', True),
    ({}, 'x', None, True),
    ({}, 'x', 'x', False),
    ({}, None, None, False),
    ({'value': 'x'}, 'x', 'y', True),
    ({'value': 'x'}, 'y', 'x', True),
    ({'value': 'x'}, None, 'x', True),
    ({'value': 'x'}, 'x', None, True),
    ({'value': 'x'}, 'x', 'x', False),
    ({'value': 'x'}, 'y', 'z', False),
    ({'value': ABSENT}, None, 'y', True),
    ({'value': ABSENT}, 'y', None, True),
    ({'value': ABSENT}, 'x', 'y', False),
    ({'value': PRESENT}, 'x', None, True),
    ({'old': 'x'}, 'x', 'y', True),
    ({'old': 'x'}, 'x', None, True),
    ({'old': 'x'}, 'y', 'x', False),
    ({'new': 'x'}, 'y', 'x', True),
    ({'new': 'x'}, None, 'x', True),
    ({'new': 'x'}, 'x', 'y', False),
    ({'new': 'x'}, 'x', 'x', False),
    ({'old': 'x', 'new': 'y'}, 'x', 'y', True),
    ({'old': 'x', 'new': 'y'}, 'x', 'z', False),
    ({'old': 'x', 'new': 'y'}, 'z', 'y', False),
    ({'old': ABSENT, 'new': PRESENT}, None, 'x', True),
    ({'old': ABSENT, 'new': PRESENT}, 'x', 'y', False),
    ({'old': PRESENT, 'new': ABSENT}, 'x', None, True),
    ({'old': PRESENT, 'new': ABSENT}, None, 'x', False),
    ({'old': lambda value, **_: value is None}, None, 'x', True),
    ({'old': lambda value, **_: value is None}, 'x', 'y', False),
])
def test_handlers_of_updates_check_the_change(handler, kwargs, old, new, expected):
    assert matches(
        make_handler(field=FIELD, **handler, **kwargs), make_field_change(old, new)) == expected


def test_field_handlers_see_the_creation_as_a_change():
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert matches(handler, make_change(None, {'spec': {'field': 'x'}}, Reason.CREATE))


def test_field_handlers_ignore_the_creation_without_the_field():
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert not matches(handler, make_change(None, {'spec': {}}, Reason.CREATE))


def test_field_handlers_ignore_the_resuming_without_changes():
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert not matches(handler, make_field_change('x', 'x', Reason.RESUME, initial=True))


@pytest.mark.parametrize('kwargs, expected', [
    ({'new': 'x'}, True), ({'old': 'x'}, True), ({'old': 'x', 'new': 'x'}, True),
    ({'new': 'y'}, False), ({'old': 'y'}, False), ({'old': 'x', 'new': 'y'}, False),
])
def test_sub_handlers_of_other_handlers_than_those_of_changes_check_the_states_alone(
        kwargs, expected,
):
    cause = make_field_change('x', 'x', Reason.RESUME, initial=True)
    assert matches(make_handler(field=FIELD, **kwargs), cause) == expected


@pytest.mark.parametrize('new, expected', [
    ({'spec': {'field': 'y'}}, True), ({'spec': {'field': 'x'}}, False), ({'spec': {}}, True),
    (None, True),
])
def test_changes_are_those_of_the_essence_if_it_is_known(new, expected):
    cause = dataclasses.replace(make_field_change('x', 'y'), new=new)
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert matches(handler, cause) == expected
    handler = make_handler(field=FIELD, field_needs_change=True, new='y')
    assert matches(handler, cause) == (new is None or new == {'spec': {'field': 'y'}})


def test_nulls_are_not_changes():
    old, new = {'spec': {'field': {'a': 1, 'b': None}}}, {'spec': {'field': {'a': 1}}}
    handler = make_handler(field=FIELD, field_needs_change=True)
    assert not matches(handler, make_change(old, new))


@pytest.mark.parametrize('result, expected', [(True, True), (1, True), (False, False), ('', False)])
def test_whole_body_callbacks(result, expected):
    assert matches(make_handler(when=lambda **_: result), make_change()) == expected


def test_whole_body_callbacks_are_called_only_if_the_field_matches():
    cause = make_field_change('x', 'y', Reason.CREATE)
    assert not matches(make_handler(field=FIELD, value='z', when=fail), cause)


def test_without_a_field_any_update_is_a_change():
    handler = make_handler(reason=Reason.UPDATE, field_needs_change=True, when=lambda **_: True)
    assert matches(handler, make_change({'spec': {}}, {'spec': {}}))


def test_whole_body_callbacks_get_the_kwargs_of_handlers():
    calls = []
    cause = make_change({'spec': {'field': 1}}, {'spec': {'field': 2}})
    matches(make_handler(when=lambda **kwargs: calls.append(kwargs)), cause)
    assert calls == [cause.kwargs]


def test_value_callbacks_get_the_kwargs_of_handlers():
    calls = []
    cause = make_change(meta={'labels': {'a': 'b'}})
    matches(make_handler(labels={'a': lambda *args, **kws: calls.append((args, kws))}), cause)
    assert calls == [(('b',), cause.kwargs)]


FAILING = pytest.mark.parametrize('kwargs', [
    {'when': fail},
    {'labels': {'a': fail}},
    {'annotations': {'a': fail}},
    {'field': FIELD, 'value': fail},
    {'field': FIELD, 'old': fail, 'field_needs_change': True},
])


@FAILING
def test_failing_callbacks_are_errors_of_their_handlers(kwargs):
    handler = make_handler(**kwargs)
    with pytest.raises(FilterError) as info:
        matches(handler, make_field_change('x', 'y'))
    assert info.value.handler is handler
    assert isinstance(info.value.error, ZeroDivisionError)
    assert info.value.__cause__ is info.value.error


@FAILING
def test_objects_are_in_scope_if_callbacks_fail(kwargs):
    assert is_in_scope(make_handler(**kwargs), make_field_change('x', 'y'))


@pytest.mark.parametrize('reason', HANDLED)
def test_objects_are_in_the_scope_of_unfiltered_handlers(reason):
    assert is_in_scope(make_handler(reason=reason), make_change(reason=Reason.NOOP))


@pytest.mark.parametrize('kwargs', [
    {'labels': {'a': 'b'}}, {'annotations': {'a': 'b'}}, {'when': lambda **_: False}])
def test_objects_are_out_of_scope_if_their_metadata_mismatch(kwargs):
    handler = make_handler(field=FIELD, field_needs_change=True, **kwargs)
    assert not is_in_scope(handler, make_field_change('x', 'y'))


@pytest.mark.parametrize('kwargs, old, new, expected', [
    # Dummy handlers: of a field that is not there, for any reason.
    ({'field_needs_change': True}, None, None, True),
    ({'field_needs_change': True, 'reason': Reason.UPDATE}, None, None, False),
    ({'field_needs_change': True, 'reason': Reason.UPDATE}, 'x', 'x', True),
    ({'field_needs_change': True, 'reason': Reason.UPDATE}, 'x', None, True),
    # The values are in either of the states.
    ({'field_needs_change': True, 'value': 'x'}, 'x', 'x', True),
    ({'field_needs_change': True, 'value': 'x'}, 'x', 'y', True),
    ({'field_needs_change': True, 'value': 'x'}, 'y', 'x', True),
    ({'field_needs_change': True, 'value': 'x'}, 'y', 'y', False),
    ({'field_needs_change': True, 'value': PRESENT}, None, None, False),
    ({'field_needs_change': True, 'value': ABSENT}, None, None, True),
    ({'reason': Reason.CREATE}, None, None, False),
    ({'reason': Reason.CREATE}, 'x', None, True),
    ({'reason': Reason.CREATE}, None, 'x', True),
    ({'reason': Reason.DELETE, 'value': 'x'}, 'x', 'y', True),
    ({'reason': Reason.DELETE, 'value': 'x'}, 'y', 'y', False),
    # The values before and after the change do not matter, but the presence.
    ({'field_needs_change': True, 'new': 'x'}, None, None, False),
    ({'field_needs_change': True, 'new': 'x'}, 'y', 'y', True),
    ({'field_needs_change': True, 'old': 'x'}, 'x', 'x', True),
    ({'field_needs_change': True, 'old': 'x'}, 'y', 'y', True),
    ({'field_needs_change': True, 'old': ABSENT, 'new': PRESENT}, None, None, False),
    ({'field_needs_change': True, 'old': PRESENT, 'new': ABSENT}, None, None, False),
    # The finalizer is for a deletion in the newest state.
    ({'requires_finalizer': True, 'value': 'x'}, 'x', 'y', False),
    ({'requires_finalizer': True, 'value': 'x'}, 'y', 'x', True),
    ({'requires_finalizer': True, 'value': ABSENT}, None, 'x', False),
    ({'value': ABSENT}, None, 'x', True),
])
def test_objects_are_in_scope_by_their_fields(kwargs, old, new, expected):
    cause = make_field_change(old, new, Reason.NOOP)
    assert is_in_scope(make_handler(field=FIELD, **kwargs), cause) == expected


def test_handlers_are_selected_in_the_order_of_declaration():
    handlers = [make_handler(id=id, reason=Reason.UPDATE) for id in 'cab']
    assert select(handlers, make_change()) == handlers


def test_handlers_of_one_function_and_id_are_selected_once():
    handlers = [make_handler(reason=Reason.UPDATE, param=param) for param in (1, 2)]
    assert select(handlers, make_change()) == handlers[:1]


def test_mismatching_duplicates_do_not_hide_matching_ones():
    handlers = [make_handler(when=lambda **_: False), make_handler()]
    assert select(handlers, make_change()) == handlers[1:]


def test_one_function_with_different_ids_is_selected_for_each():
    handlers = [make_handler(id='fn'), make_handler(id='fn/spec.field')]
    assert select(handlers, make_change()) == handlers


def test_different_functions_with_one_id_are_all_selected():
    handlers = [make_handler(fn=fn), make_handler(fn=fail)]
    assert select(handlers, make_change()) == handlers


def test_selections_tell_the_scope_apart_from_the_handlers_to_be_called():
    created = make_handler(id='created', reason=Reason.CREATE)
    updated = make_handler(id='updated', reason=Reason.UPDATE)
    result = filters.select([created, updated], make_change(reason=Reason.UPDATE))
    assert list(result.handlers) == [updated]
    assert filters.select([created], make_change(reason=Reason.UPDATE)).in_scope


def test_failing_filters_do_not_affect_other_handlers():
    failing, working = make_handler(id='failing', when=fail), make_handler(id='working')
    result = filters.select([failing, working], make_change())
    assert list(result.handlers) == [working, failing]
    assert list(result.failing) == [failing]


@pytest.mark.parametrize('required', [True, None])
def test_objects_are_in_the_scope_of_handlers_whose_filters_fail(required):
    result = filters.select(
        [make_handler(when=fail, requires_finalizer=required)], make_change())
    assert (result.in_scope, result.needs_finalizer) == (True, bool(required))


def test_selections_call_every_callback_once():
    calls = []

    def when(**_):
        calls.append('when')
        return True

    select([make_handler(when=when)], make_change())
    assert calls == ['when']


def make_spied(calls, result, **kwargs):
    """A handler with a filter that is noted when it is called."""
    def when(**_):
        calls.append(kwargs['id'])
        return result
    return make_handler(when=when, **kwargs)


def test_callbacks_of_other_reasons_are_not_called_in_selections():
    calls = []
    handlers = [
        make_spied(calls, True, id=reason.value, reason=reason, initial=reason == Reason.RESUME)
        for reason in HANDLED]
    handlers += [make_spied(calls, True, id='field', field=FIELD, field_needs_change=True)]
    for reason, names in [
            (Reason.CREATE, ['create', 'field']), (Reason.UPDATE, ['update', 'field']),
            (Reason.DELETE, ['delete'])]:
        calls.clear()
        select(handlers, make_change({'x': 1}, {'x': 2}, reason=reason))
        assert calls == names


def test_callbacks_of_other_reasons_are_called_as_far_as_the_finalizer_depends_on_them():
    calls = []
    handlers = [
        make_spied(calls, False, id='not', reason=Reason.DELETE, requires_finalizer=True),
        make_spied(calls, True, id='optional', reason=Reason.DELETE),
        make_spied(calls, True, id='needed', reason=Reason.DELETE, requires_finalizer=True),
        make_spied(calls, True, id='more', reason=Reason.DELETE, requires_finalizer=True),
    ]
    result = filters.select([*handlers, make_handler(reason=Reason.CREATE)], make_change())
    assert result.needs_finalizer
    assert calls == ['not', 'needed']


@pytest.mark.parametrize('required', [(True, None), (None, True)])
def test_one_of_the_matching_handlers_is_enough_to_need_the_finalizer(required):
    handlers = [
        make_handler(id=str(number), reason=Reason.DELETE, requires_finalizer=is_required)
        for number, is_required in enumerate(required)]
    assert filters.select(handlers, make_change(reason=Reason.DELETE)).needs_finalizer


@pytest.mark.parametrize('result', [True, False])
def test_callbacks_of_other_reasons_are_called_if_nothing_else_tells_the_scope(result):
    calls = []
    handlers = [
        make_spied(calls, False, id='create', reason=Reason.CREATE),
        make_spied(calls, result, id='update', reason=Reason.UPDATE),
    ]
    assert filters.select(handlers, make_change(reason=Reason.CREATE)).in_scope == result
    assert calls == ['create', 'update']


def test_failing_callbacks_of_other_reasons_are_no_failures():
    failing = make_handler(when=fail, reason=Reason.DELETE, requires_finalizer=True)
    result = filters.select([failing], make_change())
    assert not result.failing
    assert result.in_scope and result.needs_finalizer


UPDATES = [
    {}, {'new': 'x'}, {'old': ABSENT, 'new': PRESENT}, {'labels': {'a': ABSENT}},
    {'when': lambda **_: True}]


@pytest.mark.parametrize('kwargs', [*UPDATES, {'when': fail}])
def test_additions_of_fields_are_updates_if_nothing_is_for_creation(kwargs):
    updated = make_handler(
        reason=Reason.UPDATE, field=FIELD, field_needs_change=True, **kwargs)
    resumed = make_handler(id='resumed', initial=True, labels={'a': 'b'})
    result = filters.select([resumed, updated], make_field_change(None, None, Reason.CREATE))
    assert result.in_scope and not result.handlers


@pytest.mark.parametrize('kwargs', UPDATES)
def test_additions_of_fields_are_creations_for_the_handlers_of_these(kwargs):
    updated = make_handler(
        reason=Reason.UPDATE, field=FIELD, field_needs_change=True, **kwargs)
    created = make_handler(id='created', reason=Reason.CREATE, labels={'a': 'b'})
    cause = make_field_change(None, None, Reason.CREATE)
    assert not filters.select([created, updated], cause).in_scope


@pytest.mark.parametrize('kwargs', [
    {'when': lambda **_: False}, {'labels': {'a': 'b'}}, {'value': PRESENT}, {'value': 'x'}])
def test_no_additions_are_awaited_by_handlers_that_do_not_match(kwargs):
    updated = make_handler(
        reason=Reason.UPDATE, field=FIELD, field_needs_change=True, **kwargs)
    cause = make_field_change(None, None, Reason.CREATE)
    assert not filters.select([updated], cause).in_scope


values = st.sampled_from([None, 'x', 'y', ''])
criteria = st.sampled_from(['x', 'y', '', PRESENT, ABSENT, lambda value, **_: value in ('x', None)])


def meets(value, criterion):
    if criterion is PRESENT:
        return value is not None
    if criterion is ABSENT:
        return value is None
    return criterion(value) if callable(criterion) else value == criterion


handlers = st.builds(
    make_handler,
    reason=st.none() | st.sampled_from(HANDLED),
    initial=st.none() | st.just(True),
    deleted=st.none() | st.just(True),
    requires_finalizer=st.none() | st.just(True),
    field=st.none() | st.just(FIELD),
    field_needs_change=st.none() | st.just(True),
    labels=st.none() | st.dictionaries(st.just('a'), criteria),
    value=st.none() | criteria,
)
causes = st.builds(
    make_field_change,
    old=values, new=values, reason=st.sampled_from(HANDLED), initial=st.booleans(),
    meta=st.fixed_dictionaries({'labels': st.dictionaries(st.just('a'), st.sampled_from('xy'))}),
)


@given(handler=handlers, cause=causes)
def test_matching_is_as_in_a_plain_model(handler, cause):
    old, new = cause.old['spec'].get('field'), cause.new['spec'].get('field')
    labels = cause.body['metadata']['labels']

    def is_for_reason():
        if handler.reason is not None:
            return handler.reason == cause.reason
        if handler.initial:
            return cause.initial and (handler.deleted or cause.reason != Reason.DELETE)
        return not handler.field_needs_change or cause.reason in (Reason.CREATE, Reason.UPDATE)

    def is_in_metadata():
        return all(meets(labels.get(key), value) for key, value in (handler.labels or {}).items())

    def is_in_field():
        if handler.field is None:
            return True
        criterion = PRESENT if handler.value is None else handler.value
        if handler.field_needs_change:
            return old != new and (meets(old, criterion) or meets(new, criterion))
        return meets(new, criterion)

    assert matches(handler, cause) == bool(is_for_reason() and is_in_metadata() and is_in_field())


@given(handler=handlers, cause=causes)
def test_what_matches_is_in_scope(handler, cause):
    assert not matches(handler, cause) or is_in_scope(handler, cause)


def awaits_addition(handler, cause):
    labels = cause.body['metadata']['labels']
    return handler.reason == Reason.UPDATE and handler.field and handler.value is None and (
        cause.old['spec'].get('field') is None and cause.new['spec'].get('field') is None) and (
        all(meets(labels.get(key), value) for key, value in (handler.labels or {}).items()))


@given(candidates=st.lists(handlers, max_size=4), cause=causes)
def test_selections_agree_with_single_checks(candidates, cause):
    result = filters.select(candidates, cause)
    assert list(result.handlers) == filters.deduplicate([
        handler for handler in candidates if matches(handler, cause)])
    scoped = [handler for handler in candidates if is_in_scope(handler, cause)]
    is_awaited = cause.reason == Reason.CREATE and not any(
        handler.reason == Reason.CREATE for handler in candidates) and any(
        awaits_addition(handler, cause) for handler in candidates)
    assert result.in_scope == (bool(scoped) or is_awaited)
    assert result.needs_finalizer == any(handler.requires_finalizer for handler in scoped)


@pytest.mark.parametrize('kwargs', [{}, {'initial': True}, {'cls': WatchingHandler}])
def test_deduplication_keeps_the_first(kwargs):
    handlers = [make_handler(**kwargs), make_handler(id='other'), make_handler(**kwargs)]
    assert filters.deduplicate(handlers) == handlers[:2]


def test_deduplication_prefers_the_handlers_of_changes_to_those_of_resuming():
    resuming, updating = make_handler(initial=True), make_handler(reason=Reason.UPDATE)
    assert filters.deduplicate([resuming, updating]) == [updating]
