"""
Whole lives of objects, with edits at bad moments, failures, lost replies, stops and crashes.
"""
import asyncio
import dataclasses
import itertools
import json
import logging

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

import kopf
from kopf._core.intents.registries import OperatorRegistry
from tests._core.reactor.worlds import (
    Api,
    Operator,
    accompany,
    count_per_object,
    now,
    run_virtually,
)

HANDLED = 'kopf.zalando.org/last-handled-configuration'
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


class Journal:
    """What the handlers were called for; and that never two of them at once."""

    def __init__(self):
        self.calls = []
        self.done = []
        self.busy = 0

    def declare(
            self, registry, decorator, id, *, fails=0, lasts=0.0, patch=None, has_result=True,
            **options,
    ):
        async def fn(spec, retry, reason, patch: kopf.Patch, new, **_):
            assert not self.busy
            self.busy += 1
            try:
                self.calls.append((id, str(reason), spec.get('f')))
                if lasts:
                    await asyncio.sleep(lasts)
                if retry < fails:
                    raise kopf.TemporaryError("not yet", delay=2)
                if patch_ is not None:
                    patch.spec.update(patch_)
                self.done.append((id, str(reason), spec.get('f')))
                return len(self.done) if has_result else None
            finally:
                self.busy -= 1
        patch_ = patch
        decorator('kopfexamples', id=id, registry=registry, **options)(fn)


def is_settled(raw):
    """Whether all of the object is handled, and there is no trace of the handling."""
    annotations = raw['metadata'].get('annotations', {})
    essence = {'spec': raw['spec']}
    return set(annotations) == {HANDLED} and json.loads(annotations[HANDLED]) == essence


async def handle(registry, *moves, api=None, **options):
    """Run an operator over an object; the moves are (time, function of the API)."""
    api = api or Api()
    if not api.objects:
        api.create(spec={'f': 0})
    operator = Operator(api, registry, **options)
    operator.start()
    now = 0.0
    for when, move in moves:
        await asyncio.sleep(max(0.0, when - now))
        now = max(now, when)
        move(api)
    await operator.rest()
    await operator.stop()
    return api


def edit(value):
    return lambda api: api.edit({'spec': {'f': value}})


@pytest.fixture()
def registry():
    return OperatorRegistry()


@pytest.fixture()
def journal():
    return Journal()


def test_five_quick_handlers_cost_one_patch(registry, journal):
    for index in range(5):
        journal.declare(registry, kopf.on.create, f'c{index}')
    api = run_virtually(handle(registry))
    assert len(journal.calls) == 5
    assert len(api.requests) == 1
    assert api.objects['obj']['status'] == {f'c{index}': index + 1 for index in range(5)}
    assert is_settled({**api.objects['obj']})


def test_an_object_at_rest_is_a_handful_of_objects_for_the_garbage_collector(registry, journal):
    journal.declare(registry, kopf.on.create, 'one')

    counts = run_virtually(count_per_object(registry))
    found = {cls.__name__: count for cls, count in counts.items()
             if str(cls.__module__).startswith('kopf.')}
    assert found == {'Item': 1, 'Inbox': 1, 'Memo': 1}


def test_a_patch_per_handler_when_nothing_may_be_lost(registry, journal):
    for index in range(3):
        journal.declare(registry, kopf.on.create, f'c{index}')
    api = run_virtually(handle(registry, flush_delay=0))
    assert len(api.requests) == 3
    assert is_settled(api.objects['obj'])


def test_the_status_goes_first_where_it_is_separate(registry, journal):
    journal.declare(registry, kopf.on.create, 'c')
    api = run_virtually(handle(registry, subresource=True))
    assert [path.split('?')[0].rsplit('/', 1)[1] for path in api.requests] == ['status', 'obj']
    assert api.objects['obj']['status'] == {'c': 1}


def test_what_is_done_is_written_while_a_slow_handler_runs(registry, journal):
    journal.declare(registry, kopf.on.create, 'quick')
    journal.declare(registry, kopf.on.create, 'slow', lasts=10)

    async def scenario():
        api = Api()
        api.create(spec={'f': 0})
        operator = Operator(api, registry)
        operator.start()
        await asyncio.sleep(2)
        annotations = api.objects['obj']['metadata']['annotations']
        assert json.loads(annotations['kopf.zalando.org/quick'])['success']
        assert not json.loads(annotations['kopf.zalando.org/slow'])['success']
        assert api.objects['obj']['status'] == {'quick': 1}
        await operator.rest()
        await operator.stop()
        return api

    api = run_virtually(scenario())
    assert is_settled(api.objects['obj'])
    assert len(api.requests) == 2
    assert journal.calls == [('quick', 'create', 0), ('slow', 'create', 0)]


def test_an_edit_between_two_handlers_is_seen_by_both(registry, journal):
    for decorator in [kopf.on.create, kopf.on.update]:
        journal.declare(registry, decorator, 'one')
        journal.declare(registry, decorator, 'two', fails=1)
    api = run_virtually(handle(registry, (1, edit(5))))
    assert journal.done == [
        ('one', 'create', 0), ('two', 'create', 5), ('one', 'update', 5), ('two', 'update', 5)]
    assert is_settled(api.objects['obj'])


def test_a_reverted_edit_is_seen_by_those_who_have_seen_the_edit(registry, journal):
    journal.declare(registry, kopf.on.update, 'one')
    journal.declare(registry, kopf.on.update, 'two', fails=1)
    api = run_virtually(handle(registry, (1, edit(5)), (2, edit(0))))
    assert journal.done == [('one', 'update', 5), ('one', 'update', 0), ('two', 'update', 0)]
    assert is_settled(api.objects['obj'])


def test_a_reverted_edit_that_nobody_has_handled_is_forgotten(registry, journal):
    journal.declare(registry, kopf.on.update, 'one', fails=100)
    api = run_virtually(handle(registry, (1, edit(5)), (2, edit(0))))
    assert journal.done == []
    assert is_settled(api.objects['obj'])


def test_a_lone_creation_handler_that_changes_the_spec_triggers_an_update(registry, journal):
    journal.declare(registry, kopf.on.create, 'c', patch={'f': 7})
    journal.declare(registry, kopf.on.update, 'u')
    api = run_virtually(handle(registry))
    assert journal.done == [('c', 'create', 0), ('u', 'update', 7)]
    assert is_settled(api.objects['obj'])


def test_the_next_handler_sees_what_the_previous_one_has_patched(registry, journal):
    journal.declare(registry, kopf.on.create, 'one', patch={'f': 7})
    journal.declare(registry, kopf.on.create, 'two')
    journal.declare(registry, kopf.on.update, 'u')
    run_virtually(handle(registry))
    assert journal.done == [('one', 'create', 0), ('two', 'create', 7)]


def test_the_old_state_is_remembered_until_all_update_handlers_have_finished(registry):
    remembered = []

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def fn(annotations, retry, spec, **_):
        old = json.loads(annotations.get(HANDLED, 'null'))
        remembered.append((spec['f'], old and old['spec']['f']))
        if not retry:
            raise kopf.TemporaryError("not yet", delay=2)

    api = run_virtually(handle(registry, (5, edit(1))))
    assert remembered == [(0, None), (0, None), (1, 0), (1, 0)]
    assert is_settled(api.objects['obj'])


def test_a_deletion_in_the_middle_ends_the_creation(registry, journal):
    journal.declare(registry, kopf.on.create, 'one', lasts=5)
    journal.declare(registry, kopf.on.create, 'two')
    journal.declare(registry, kopf.on.delete, 'd')
    api = run_virtually(handle(registry, (1, lambda api: api.delete())))
    assert journal.done == [('one', 'create', 0), ('d', 'delete', 0)]
    assert not api.objects


def test_a_namesake_gets_nothing_of_its_predecessor(registry, journal):
    journal.declare(registry, kopf.on.create, 'c', lasts=5)

    def replace(api):
        api.delete()
        api.create(spec={'f': 100})

    api = run_virtually(handle(registry, (1, replace)))
    assert journal.done == [('c', 'create', 0), ('c', 'create', 100)]
    assert api.objects['obj']['status'] == {'c': 2}
    assert is_settled(api.objects['obj'])


def test_lost_replies_and_outages_repeat_no_handler(registry, journal):
    journal.declare(registry, kopf.on.create, 'one')
    journal.declare(registry, kopf.on.create, 'two', fails=1)
    api = Api()
    api.faults = ['after', 'before', 'before', 'after', None, 'before']
    run_virtually(handle(registry, api=api))
    assert journal.done == [('one', 'create', 0), ('two', 'create', 0)]
    assert is_settled(api.objects['obj'])


@pytest.mark.parametrize('faults', [
    ['absent'], ['absent', None, 'absent'], ['absent', 'absent'], [None, 'absent']])
@pytest.mark.parametrize('subresource', [False, True])
def test_objects_are_handled_even_if_the_api_denies_for_a_moment_that_they_are_there(
        registry, journal, faults, subresource):
    journal.declare(registry, kopf.on.create, 'c', patch={'f': 7})
    journal.declare(registry, kopf.on.update, 'u', fails=1)
    api = Api()
    api.faults = faults
    run_virtually(handle(registry, api=api, subresource=subresource))
    assert journal.done == [('c', 'create', 0), ('u', 'update', 7)]
    assert api.objects['obj']['status'] == {'c': 1, 'u': 2}
    assert is_settled(api.objects['obj'])


@pytest.mark.parametrize('faults', [['absent'], ['absent', 'absent']])
@pytest.mark.parametrize('patch', [None, {'f': 7}])
def test_objects_are_let_go_even_if_the_api_denies_for_a_moment_that_they_are_there(
        registry, journal, faults, patch):
    journal.declare(registry, kopf.on.delete, 'd', patch=patch)
    api = Api()

    def delete(api):
        api.faults = faults
        api.delete()

    run_virtually(handle(registry, (1, delete), api=api))
    assert journal.done == [('d', 'delete', 0)]
    assert not api.objects


@pytest.mark.parametrize('faults', [['absent'], ['absent', 'absent']])
def test_finalizers_are_added_even_if_the_api_denies_for_a_moment_that_the_object_is_there(
        registry, journal, faults):
    journal.declare(registry, kopf.on.delete, 'd')
    api = Api()
    api.faults = faults
    run_virtually(handle(registry, api=api))
    assert api.objects['obj']['metadata']['finalizers'] == [FINALIZER]


@pytest.mark.parametrize('fault', ['conflict', 'stale'])
def test_conflicts_on_finalizers_are_tried_again_and_are_no_errors(
        registry, journal, caplog, fault):
    """The API server says that the object has changed, but does not show the newer state yet."""
    caplog.set_level(logging.DEBUG)
    journal.declare(registry, kopf.on.delete, 'd', has_result=False)

    def delete(api):
        api.faults = [fault]
        api.delete()

    api = Api()
    api.faults = [fault]
    run_virtually(handle(registry, (10, delete), api=api))
    assert journal.done == [('d', 'delete', 0)]
    assert not api.objects
    assert len([text for text in caplog.messages if text.startswith("A conflict; ")]) == 2
    assert not [text for text in caplog.messages if "Throttling" in text]


def test_a_list_that_is_older_than_the_known_state_is_not_taken_after_a_conflict(
        registry, journal):
    """Otherwise, the object would be handled again, as it was never handled in that state."""
    journal.declare(registry, kopf.on.create, 'c')
    kopf.on.delete('kopfexamples', labels={'on': 'yes'}, registry=registry)(lambda **_: None)

    def label(api):
        api.faults = ['stale', 'older']
        api.edit({'metadata': {'labels': {'on': 'yes'}}})

    api = Api()
    run_virtually(handle(registry, (10, label), api=api))
    assert journal.done == [('c', 'create', 0)]
    assert api.objects['obj']['metadata']['finalizers'] == [FINALIZER]
    assert not api.faults


@pytest.mark.parametrize('seen', ['older', None])
def test_conflicts_are_not_tried_again_at_once_if_the_api_shows_no_newer_state(
        registry, journal, seen):
    journal.declare(registry, kopf.on.create, 'c')
    counts = []

    def recover(api):
        counts.append(len(api.requests))
        api.faults = []

    api = Api()
    api.faults = ['conflict', seen] * 1000
    run_virtually(handle(registry, (10, recover), api=api, subresource=True))
    assert counts == [10]  # 5 attempts and lists: after 0, 1, 2, 4, 7 seconds
    assert journal.done == [('c', 'create', 0)]
    assert api.objects['obj']['status'] == {'c': 1}


@pytest.mark.parametrize('number, told', [(10, 0), (11, 1)])
def test_only_so_many_conflicts_in_a_row_are_usual(registry, journal, caplog, number, told):
    caplog.set_level(logging.DEBUG)
    journal.declare(registry, kopf.on.delete, 'd')
    api = Api()
    api.faults = ['conflict', None] * number  # each one is followed by a list
    run_virtually(handle(registry, (1000, lambda api: None), api=api))
    assert api.objects['obj']['metadata']['finalizers'] == [FINALIZER]
    assert len([text for text in caplog.messages if "due to an unexpected error" in text]) == told
    assert len([text for text in caplog.messages if "Throttling is over" in text]) == told


def test_an_object_that_is_gone_costs_one_more_request(registry, journal, caplog):
    journal.declare(registry, kopf.on.create, 'c', lasts=5)
    api = run_virtually(handle(registry, (1, lambda api: api.delete()), watch_delay=10))
    assert journal.done == [('c', 'create', 0)]
    assert len(api.requests) == 2
    assert not [record for record in caplog.records if record.levelname == 'ERROR']


def test_no_handlers_are_called_for_an_object_that_is_gone_by_a_response(registry, journal):
    """The watch is late; until it shows the deletion, something else wakes up the object."""
    journal.declare(registry, kopf.on.create, 'c', lasts=2)
    kopf.on.event('kopfexamples', registry=registry)(lambda **_: None)  # so that the state is kept

    async def main():
        api = Api()
        api.create(spec={'f': 0})
        operator = Operator(api, registry, watch_delay=10)
        operator.start()
        await asyncio.sleep(1)
        api.delete()
        await asyncio.sleep(4)
        [item] = operator.informer
        item.wake_up()
        await asyncio.sleep(4)
        assert journal.done == [('c', 'create', 0)]
        await operator.rest()
        assert not [*operator.informer]
        await operator.stop()

    run_virtually(main())


def test_deletion_costs_two_patches_from_creation_to_gone(registry, journal):
    journal.declare(registry, kopf.on.delete, 'd', has_result=False)
    api = run_virtually(handle(registry, (1, lambda api: api.delete())))
    assert journal.done == [('d', 'delete', 0)]
    assert len(api.requests) == 2
    assert not api.objects


@pytest.mark.parametrize('options', [{'patch': {'f': 7}, 'has_result': False}, {'patch': {'f': 7}}])
def test_what_deletion_handlers_patch_is_stored_before_the_object_goes(registry, journal, options):
    journal.declare(registry, kopf.on.delete, 'd', **options)
    api = run_virtually(handle(registry, (1, lambda api: api.delete())))
    type, last = api.history[-1]
    assert type == 'DELETED'
    assert last['spec']['f'] == 7
    assert last.get('status') == ({'d': 1} if options.get('has_result', True) else None)
    assert len(api.requests) == 3


def test_a_finalizer_without_a_reason_is_removed(registry, journal):
    journal.declare(registry, kopf.on.create, 'c')
    api = Api()
    api.create(spec={'f': 0}, metadata={'finalizers': [FINALIZER]})
    run_virtually(handle(registry, api=api))
    assert 'finalizers' not in api.objects['obj']['metadata']


def test_a_deleted_object_is_released_even_if_nobody_is_concerned(registry, journal):
    journal.declare(registry, kopf.on.create, 'c', labels={'some': 'label'})
    api = Api()
    api.create(spec={'f': 0}, metadata={
        'finalizers': [FINALIZER], 'deletionTimestamp': '2020-01-01T00:00:00Z'})
    run_virtually(handle(registry, api=api))
    assert not api.objects


def test_optional_deletion_handlers_run_once_without_our_finalizer(registry, journal):
    journal.declare(registry, kopf.on.delete, 'd', optional=True)
    api = Api()
    api.create(spec={'f': 0}, metadata={
        'finalizers': ['other/one'], 'deletionTimestamp': '2020-01-01T00:00:00Z'})
    run_virtually(handle(
        registry, (1, lambda api: api.edit({'metadata': {'labels': {'a': 'b'}}})), api=api))
    assert journal.done == [('d', 'delete', 0)]
    run_virtually(handle(registry, api=api))
    assert journal.done == [('d', 'delete', 0)]


def test_resuming_is_once_per_operator_and_mixed_into_the_other_causes(registry, journal):
    journal.declare(registry, kopf.on.resume, 'r')
    journal.declare(registry, kopf.on.create, 'c')
    journal.declare(registry, kopf.on.update, 'u')
    api = run_virtually(handle(registry, (1, edit(1))))
    assert journal.done == [('r', 'create', 0), ('c', 'create', 0), ('u', 'update', 1)]
    journal.done.clear()
    run_virtually(handle(registry, (1, edit(2)), api=api))
    assert journal.done == [('r', 'resume', 1), ('u', 'update', 2)]


def test_an_edit_while_down_after_a_partly_handled_one_is_seen_by_all(registry, journal):
    for decorator in [kopf.on.create, kopf.on.update]:
        journal.declare(registry, decorator, 'one')
        journal.declare(registry, decorator, 'two', fails=1)

    async def scenario():
        api = Api()
        api.create(spec={'f': 0})
        operator = Operator(api, registry)
        operator.start()
        await asyncio.sleep(1)
        await operator.stop()
        api.edit({'spec': {'f': 5}})
        return await handle(registry, api=api)

    api = run_virtually(scenario())
    assert journal.done == [
        ('one', 'create', 0), ('two', 'create', 5), ('one', 'update', 5), ('two', 'update', 5)]
    assert is_settled(api.objects['obj'])


def test_edits_while_the_operator_is_down_are_one_change(registry, journal):
    seen = []
    journal.declare(registry, kopf.on.create, 'created')

    @kopf.on.update('kopfexamples', registry=registry)
    async def fn(diff, **_):
        seen.append(diff)

    async def scenario():
        api = Api()
        api.create(spec={'f': 0, 'g': 0})
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()
        for value in (1, 2, 0):
            api.edit({'spec': {'f': value, 'g': value + 5}})
        return await handle(registry, api=api)

    api = run_virtually(scenario())
    assert seen == [(('change', ('spec', 'g'), 0, 5),)]
    assert is_settled(api.objects['obj'])


def test_the_states_of_handled_objects_are_not_kept_in_memory(registry, journal):
    journal.declare(registry, kopf.on.create, 'created')
    journal.declare(registry, kopf.on.update, 'updated')

    async def scenario():
        api = Api()
        api.create(spec={'f': 0})
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        api.edit({'spec': {'f': 1}})
        await asyncio.sleep(1)
        await operator.rest()
        item, = operator.informer
        await operator.stop()
        return item

    item = run_virtually(scenario())
    assert journal.done == [('created', 'create', 0), ('updated', 'update', 1)]
    assert (item.recall(), item.inbox.pending, item.cycle) == (None, None, None)


def test_objects_have_no_memos_until_a_handler_is_called(registry, journal):
    journal.declare(registry, kopf.on.update, 'updated')

    async def scenario():
        api = Api()
        api.create(spec={'f': 0})
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        item, = operator.informer
        memos = [item.memo]
        api.edit({'spec': {'f': 1}})
        await asyncio.sleep(1)
        await operator.rest()
        memos.append(item.memo)
        await operator.stop()
        return memos

    assert run_virtually(scenario()) == [None, {}]
    assert journal.done == [('updated', 'update', 1)]


@pytest.mark.parametrize('subresource', [False, True])
def test_results_and_patches_of_event_handlers_are_one_patch_and_none_where_nothing_changes(
        registry, subresource):
    calls = []

    @kopf.on.event('kopfexamples', id='returning', registry=registry)
    async def returning(spec, **_):
        calls.append(spec['f'])
        return {'f': spec['f']}

    @kopf.on.event('kopfexamples', id='patching', registry=registry)
    async def patching(spec, patch, **_):
        patch.status['patched'] = spec['f']

    @kopf.on.event('kopfexamples', id='silent', registry=registry)
    async def silent(**_):
        pass

    @kopf.on.event('kopfexamples', id='failing', registry=registry)
    async def failing(**_):
        raise Exception("boo")

    touch = (2, lambda api: api.edit({'metadata': {'labels': {'a': 'b'}}}))
    api = run_virtually(handle(registry, (1, edit(5)), touch, subresource=subresource))
    assert api.objects['obj']['status'] == {'returning': {'f': 5}, 'patched': 5}
    assert calls == [0, 0, 5, 5, 5]  # each edit, and the own patches after the first and second one
    assert len(api.requests) == 2


def test_results_of_event_handlers_are_compared_with_the_newest_state(registry):
    @kopf.on.event('kopfexamples', id='seen', registry=registry)
    async def fn(spec, **_):
        return spec['f']

    async def scenario():
        api = Api()
        api.create(spec={'f': 0}, status={'seen': 0})
        operator = Operator(api, registry, watch_delay=0.5, watch_step=1)
        operator.start()
        await asyncio.sleep(1)
        for value in (1, 0):
            api.edit({'spec': {'f': value}})
        await operator.rest()
        await operator.stop()
        return [raw['status']['seen'] for _, raw in api.history]

    assert run_virtually(scenario()) == [0, 0, 0, 1, 0]


def test_results_of_event_handlers_for_deleted_objects_go_nowhere(registry):
    @kopf.on.event('kopfexamples', registry=registry)
    async def fn(type, **_):
        return type

    api = run_virtually(handle(registry, (1, lambda api: api.delete())))
    assert not api.requests


def get_superseded(caplog):
    return [record.message for record in caplog.records if 'superseded' in record.message]


def test_a_creation_that_is_overtaken_by_a_deletion_is_told_of(registry, journal, caplog):
    caplog.set_level('INFO')
    journal.declare(registry, kopf.on.create, 'done')
    journal.declare(registry, kopf.on.create, 'failing', fails=100)
    journal.declare(registry, kopf.on.delete, 'd', fails=1)
    run_virtually(handle(registry, (1, edit(5)), (3, lambda api: api.delete())))
    assert get_superseded(caplog) == [
        "Creation is superseded by deletion: 1 succeeded; 0 failed; 1 left to the moment."]


def test_resuming_and_updating_that_are_overtaken_are_told_of(registry, journal, caplog):
    caplog.set_level('INFO')
    journal.declare(registry, kopf.on.create, 'c')
    run_virtually(handle(registry, api=(api := Api())))
    journal.declare(registry, kopf.on.resume, 'r', fails=100)
    journal.declare(registry, kopf.on.update, 'failing', fails=100)
    journal.declare(registry, kopf.on.update, 'done')
    journal.declare(registry, kopf.on.delete, 'd', fails=1)
    run_virtually(handle(registry, (1, edit(5)), (4, lambda api: api.delete()), api=api))
    assert get_superseded(caplog) == [
        "Resuming is superseded by updating: 0 succeeded; 0 failed; 1 left to the moment.",
        "Updating is superseded by deletion: 1 succeeded; 0 failed; 2 left to the moment."]


def test_causes_that_are_not_overtaken_are_not_told_of(registry, journal, caplog):
    caplog.set_level('INFO')
    for decorator in [kopf.on.create, kopf.on.update, kopf.on.delete]:
        journal.declare(registry, decorator, 'one')
        journal.declare(registry, decorator, 'two', fails=1)
    run_virtually(handle(registry, (5, edit(5)), (10, lambda api: api.delete())))
    assert get_superseded(caplog) == []


times = st.floats(0, 12).map(lambda value: round(value, 3))
moves = st.one_of(
    st.tuples(times, st.just('edit'), st.integers(0, 3)),
    st.tuples(times, st.just('status'), st.integers(0, 3)),
    st.tuples(times, st.just('stop'), st.just(0)),
    st.tuples(times, st.just('crash'), st.just(0)),
)
designs = st.lists(st.tuples(
    st.integers(0, 2), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([None, {'own': 1}])),
    min_size=1, max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=st.lists(moves, max_size=8).map(sorted),
    design=designs,
    faults=st.lists(
        st.sampled_from([None, None, None, 'before', 'after', 'absent']), max_size=12),
    delay=st.sampled_from([0.001, 0.005, 0.5]),
    flush_delay=st.sampled_from([0, 1.0]),
    subresource=st.booleans(),
)
@example(  # one has seen more than the others, and then it is reverted
    plan=[(5.791, 'edit', 1), (8.107, 'edit', 0)], design=[(2, 0.5, None), (2, 0.0, None)],
    faults=[None, 'after', None, None, None, 'before'], delay=0.001, flush_delay=0,
    subresource=False)
@example(  # one has seen more than those before and after it
    plan=[(0.0, 'edit', 1), (1.0, 'edit', 0)],
    design=[(0, 0.0, None), (0, 0.0, None), (1, 0.0, None)],
    faults=[], delay=0.001, flush_delay=0, subresource=False)
@example(  # the answer to the last write of a cycle is lost, and the state is reverted meanwhile
    plan=[(0.0, 'edit', 2), (0.0, 'stop', 0), (4.795, 'edit', 0)],
    design=[(0, 0.0, None), (0, 0.0, None), (2, 0.0, None)],
    faults=[None] * 9 + ['after'], delay=0.001, flush_delay=0, subresource=True)
@example(  # it stops while it backs off with something that is not written
    plan=[(1.345, 'edit', 3), (2.19, 'edit', 0), (2.489, 'stop', 0)], design=[(0, 0.0, None)],
    faults=['after', 'after', None, None, 'after'], delay=0.001, flush_delay=0, subresource=True)
def test_whatever_happens_every_handler_sees_the_state_that_lasts(
        plan, design, faults, delay, flush_delay, subresource):
    registry, journal = OperatorRegistry(), Journal()
    for index, (fails, lasts, patch) in enumerate(design):
        for decorator in [kopf.on.create, kopf.on.update]:
            journal.declare(
                registry, decorator, f'h{index}', fails=fails, lasts=lasts, patch=patch)

    async def scenario():
        api = Api()
        api.faults = faults
        api.create(spec={'f': 0})
        options = {
            'flush_delay': flush_delay, 'subresource': subresource, 'watch_delay': delay}
        operator = Operator(api, registry, **options)
        operator.start()
        now, crashes, edits, lost = 0.0, 0, 0, set()
        for when, move, value in plan:
            await asyncio.sleep(when - now)
            now = when
            match move:
                case 'edit':
                    edits += 1
                    api.edit({'spec': {'f': value}})
                case 'status':
                    api.edit({'status': {'other': value}})
                case 'stop' | 'crash':
                    crashes += 1
                    if move == 'crash':
                        lost |= operator.get_unwritten()
                    await (operator.stop() if move == 'stop' else operator.crash())
                    journal.busy = 0
                    operator = Operator(api, registry, **options)
                    operator.start()
        await operator.rest()
        await operator.stop()
        return api, crashes, edits, lost

    api, crashes, edits, lost = run_virtually(scenario())
    raw = api.objects['obj']
    assert is_settled(raw)
    for index in range(len(design)):
        last = [value for id, _, value in journal.done if id == f'h{index}'][-1]
        if f'h{index}' not in lost:  # otherwise, nothing says what it saw before it was reverted
            assert last == raw['spec']['f']
        if not crashes:
            own = sum(1 for _, _, patch in design if patch)
            calls = [value for id, _, value in journal.done if id == f'h{index}']
            assert len(calls) <= 1 + edits + own


@given(delay=st.floats(0.1, 5.0), started=st.floats(0.0, 5.0))
@example(delay=1.0, started=5.0)
def test_a_parent_is_called_as_often_as_its_subhandler_is_tried(delay, started):
    calls = []
    registry = OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    async def parent(**_):
        calls.append('parent')
        assert len(calls) < 100
        await kopf.execute(fns={'child': child})

    async def child(retry, **_):
        calls.append('child')
        if retry < 5:
            raise kopf.TemporaryError("not yet", delay=delay)

    async def live():
        await asyncio.sleep(started)
        await handle(registry)

    run_virtually(live())
    assert calls == ['parent', 'child'] * 6


def test_an_object_that_changes_during_each_write_pauses_for_the_batch_window():
    times = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def fn(**_):
            times.append(now())

    async def run():
        api, operator = await accompany(declare)
        operator.settings.queueing._batch_window = 2
        for number in range(2500):
            await asyncio.sleep(0.004)
            api.edit({'spec': {'number': number}})
        await operator.stop()

    run_virtually(run())
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(pauses[:2]) < 0.2  # a conflict with the first PATCH takes two more requests
    assert min(pauses[2:]) > 1.9


def test_an_object_is_indexed_then_shown_then_accompanied_then_handled():
    order = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def create(**_):
            await asyncio.sleep(1)  # the daemon runs in a task of its own
            order.append('handled')

        @kopf.daemon('kopfexamples', registry=registry)
        async def daemon(**_):
            order.append('accompanied')

        @kopf.on.event('kopfexamples', registry=registry)
        async def event(**_):
            order.append('shown')

        @kopf.index('kopfexamples', registry=registry)
        async def index(**_):
            order.append('indexed')

    async def run():
        _, operator = await accompany(declare)
        await operator.rest()
        await operator.stop()

    run_virtually(run())
    assert list(dict.fromkeys(order)) == ['indexed', 'shown', 'accompanied', 'handled']


@pytest.mark.parametrize('decorator', [kopf.on.event, kopf.reconcile])
@pytest.mark.parametrize('delay', [0, 0.5])
def test_an_object_that_always_changes_while_it_is_handled_is_shown_to_all_handlers(
        decorator, delay):
    seen = []

    def declare(registry):
        @kopf.index('kopfexamples', registry=registry)
        async def index(**_):
            await asyncio.sleep(delay)  # often, it is under way

        @kopf.on.update('kopfexamples', field='spec', registry=registry)
        async def update(**_):
            await asyncio.sleep(2)

        @decorator('kopfexamples', registry=registry)
        async def show(spec, **_):
            seen.append((now(), spec.get('number', 0)))

    async def run():
        api, operator = await accompany(declare)
        for number in range(100):
            await asyncio.sleep(1)
            api.edit({'spec': {'number': number}})
            if number > 10:
                when, last = seen[-1]
                assert now() - when <= 5
                assert number - last <= 5
        await operator.stop()

    run_virtually(run())


@dataclasses.dataclass
class Called:
    """A handler whose instances are not hashable, as those of other dataclasses."""
    calls: list
    name: str

    def __call__(self, **_):
        self.calls.append(self.name)


def test_objects_that_are_not_hashable_can_be_handlers(registry):
    calls = []
    both = Called(calls, 'both')
    kopf.on.event('kopfexamples', id='event', registry=registry)(Called(calls, 'event'))
    kopf.on.resume('kopfexamples', id='both', registry=registry)(both)
    kopf.on.create('kopfexamples', id='both', registry=registry)(both)
    kopf.on.create('kopfexamples', id='equal', registry=registry)(Called(calls, 'both'))
    run_virtually(handle(registry))
    assert calls[:3] == ['event', 'both', 'both']
    assert calls.count('both') == 2
