"""
Operators that are frozen and go on, in a small world in virtual time.
"""
import asyncio
import collections
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kopf
from kopf import testing
from kopf._core.intents.stopping import DaemonStoppingReason
from tests._core.reactor.worlds import (
    Api,
    Operator,
    assert_handled,
    make_counting_registry,
    run_virtually,
)


@testing.virtual_time
async def test_nothing_is_handled_while_frozen(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    await operator.freeze()
    requests = len(api.requests)
    api.create()
    await asyncio.sleep(100)
    assert calls == []
    assert len(api.requests) == requests
    operator.thaw()
    await operator.rest()
    assert calls.count('obj') >= 2  # both handlers
    await operator.stop()


@pytest.mark.parametrize('end', ['freeze', 'late', 'exit'])
@testing.virtual_time
async def test_no_further_reconcilers_are_called_when_the_operator_has_to_end(registry, calls, end):
    @kopf.reconcile('kopfexamples', registry=registry)
    async def first(**_):
        calls.append('first')
        await asyncio.sleep(2)
        if end == 'late':  # the process was suspended, and the timer for that is not called yet
            operator.switch.confirm = operator.informers.pause

    @kopf.reconcile('kopfexamples', registry=registry)
    async def second(**_):
        calls.append('second')

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(1)
    if end == 'freeze':
        await operator.freeze()
    elif end == 'exit':
        await operator.stop()
    await asyncio.sleep(100)
    assert calls == ['first']
    if end == 'freeze':
        operator.thaw()
        await operator.rest()
        assert calls == ['first', 'first', 'second']
    if end != 'exit':
        await operator.stop()


@testing.virtual_time
async def test_freeze_ends_the_pass_between_two_handlers(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(**_):
        calls.append('first')
        await asyncio.sleep(10)

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(**_):
        calls.append('second')

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(5)
    await operator.freeze()
    assert calls == ['first']
    assert '"success":true' in str(api.objects['obj']['metadata']['annotations'])
    await asyncio.sleep(100)
    assert calls == ['first']
    operator.thaw()
    await operator.rest()
    assert calls == ['first', 'second']
    await operator.stop()


@testing.virtual_time
async def test_delayed_handlers_wait_until_the_end_of_the_freeze(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(retry, **_):
        calls.append(retry)
        if not retry:
            raise kopf.TemporaryError("not yet", delay=5)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(1)
    await operator.freeze()
    await asyncio.sleep(100)
    assert calls == [0]
    operator.thaw()
    await operator.rest()
    assert calls == [0, 1]
    await operator.stop()


@testing.virtual_time
async def test_what_another_operator_has_finished_meanwhile_is_not_repeated(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(**_):
        calls.append('first')
        await asyncio.sleep(1)

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(retry, **_):
        calls.append(f'second {retry}')
        if not retry:
            raise kopf.TemporaryError("not yet", delay=5)

    api = Api()
    a, b = Operator(api, registry), Operator(api, registry)
    a.start()
    api.create()
    await asyncio.sleep(2)
    await a.freeze()
    b.start()
    await b.rest()
    await b.freeze()
    a.thaw()
    await a.rest()
    await asyncio.sleep(100)
    assert calls == ['first', 'second 0', 'second 1']
    await a.stop()
    await b.stop()


def handle_slowly(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry, id='handle')
    async def handle(spec, **_):
        calls.append(spec['n'])
        await asyncio.sleep(10 if len(calls) == 1 else 1)


def get_handled(api):
    annotations = api.objects['obj']['metadata'].get('annotations', {})
    return json.loads(annotations['kopf.zalando.org/last-handled-configuration'])['spec']['n']


@testing.virtual_time
async def test_who_is_late_does_not_overwrite_what_the_next_one_has_written(registry, calls):
    handle_slowly(registry, calls)
    api = Api()
    a, b = Operator(api, registry), Operator(api, registry)
    a.start()
    api.create(spec={'n': 1})
    await asyncio.sleep(1)
    freezing = asyncio.create_task(a.freeze())  # while the handler of 10 seconds runs
    b.start()
    await b.rest()
    api.edit({'spec': {'n': 2}})
    await b.rest()
    assert get_handled(api) == 2
    await freezing
    assert get_handled(api) == 2
    await b.stop()
    a.thaw()
    await a.rest()
    assert calls == [1, 1, 2]
    await a.stop()


@testing.virtual_time
async def test_writes_that_are_retried_over_a_partition_are_not_late(registry, calls):
    handle_slowly(registry, calls)
    api = Api()
    a, b = Operator(api, registry), Operator(api, registry)
    a.start()
    api.create(spec={'n': 1})
    await asyncio.sleep(5)
    a.client.cut = True
    await asyncio.sleep(7)  # the handler has ended, the PATCH is tried again and again
    freezing = asyncio.create_task(a.freeze())
    b.start()
    await b.rest()
    api.edit({'spec': {'n': 2}})
    await b.rest()
    assert get_handled(api) == 2
    a.client.cut = False
    await freezing
    assert get_handled(api) == 2
    await b.stop()
    a.thaw()
    await a.rest()
    assert calls == [1, 1, 2]
    await a.stop()


@pytest.mark.parametrize('cut', [False, True])
def test_who_is_late_writes_nevertheless_if_nobody_has_taken_over(registry, calls, cut):
    async def play():
        handle_slowly(registry, calls)
        api = Api()
        operator = Operator(api, registry)
        operator.start()
        api.create(spec={'n': 1})
        await asyncio.sleep(5)
        operator.client.cut = cut
        await asyncio.sleep(1 if not cut else 7)
        freezing = asyncio.create_task(operator.freeze())
        api.edit({'metadata': {'labels': {'by': 'user'}}})
        await asyncio.sleep(3)
        operator.client.cut = False
        await freezing
        assert get_handled(api) == 1
        assert api.objects['obj']['metadata']['labels'] == {'by': 'user'}
        await operator.stop()

    run_virtually(play())
    assert calls == [1]


@testing.virtual_time
async def test_resume_handlers_are_not_repeated_but_those_left_are_called(registry, calls):
    @kopf.on.resume('kopfexamples', registry=registry)
    async def resume(name, **_):
        calls.append(name)
        await asyncio.sleep(1)

    api = Api()
    api.create('done')
    operator = Operator(api, registry)
    operator.start()
    await operator.rest()
    await operator.freeze()
    operator.thaw()
    await operator.rest()
    assert calls == ['done']
    await operator.stop()


@testing.virtual_time
async def test_those_who_were_there_before_are_resumed_also_if_frozen_while_listing(
        registry, calls):
    @kopf.on.resume('kopfexamples', registry=registry)
    async def resume(name, **_):
        calls.append(name)

    api = Api()
    api.create('a')
    api.create('b')
    operator = Operator(api, registry)
    operator.informer.list_started(restored=False)
    operator.informer.listed(api.objects['a'])
    await operator.freeze()
    operator.thaw()
    await operator.rest()
    assert sorted(calls) == ['a', 'b']
    await operator.stop()


@testing.virtual_time
async def test_unchanged_objects_are_not_shown_again(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def handle(name, type, **_):
        calls.append((name, type))

    api = Api()
    api.create('same')
    api.create('gone')
    api.create('changed')
    operator = Operator(api, registry)
    operator.start()
    await operator.rest()
    await operator.freeze()
    calls.clear()
    api.delete('gone')
    api.edit({'spec': {'x': 1}}, 'changed')
    operator.thaw()
    await operator.rest()
    await asyncio.sleep(1)
    assert sorted(calls) == [('changed', 'MODIFIED'), ('gone', 'DELETED')]
    await operator.stop()


@testing.virtual_time
async def test_daemons_are_stopped_and_start_again(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, **_):
        calls.append('started')
        await stopped.wait()
        calls.append(bool(stopped.reason & DaemonStoppingReason.OPERATOR_PAUSING))

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(10)
    await operator.freeze()
    await asyncio.sleep(100)
    assert calls == ['started', True]
    operator.thaw()
    await asyncio.sleep(1)
    assert calls == ['started', True, 'started']
    await operator.stop()


@testing.virtual_time
async def test_daemons_that_are_done_stay_done(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(**_):
        calls.append('done')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(10)
    await operator.freeze()
    operator.thaw()
    await asyncio.sleep(10)
    assert calls == ['done']
    await operator.stop()


@testing.virtual_time
async def test_daemon_that_takes_long_to_stop_starts_again_when_it_has(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, **_):
        calls.append('started')
        await stopped.wait()
        await asyncio.sleep(10)
        calls.append('stopped')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(10)
    freezing = asyncio.create_task(operator.freeze())
    await asyncio.sleep(1)
    freezing.cancel()
    operator.thaw()
    await asyncio.sleep(100)
    assert calls == ['started', 'stopped', 'started']
    await operator.stop()


@testing.virtual_time
async def test_timers_wait_and_go_on(registry, calls):
    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append(asyncio.get_running_loop().time())

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(10)
    assert len(calls) == 2
    await operator.freeze()
    await asyncio.sleep(100)
    assert len(calls) == 2
    operator.thaw()
    await asyncio.sleep(8)
    assert len(calls) == 4
    assert 109.9 < calls[2] < 110.5
    await operator.stop()


@testing.virtual_time
async def test_timers_of_what_is_gone_meanwhile_do_not_tick(registry, calls):
    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append('tick')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(1)
    await operator.freeze()
    calls.clear()
    api.edit({'metadata': {'finalizers': []}})
    api.delete()
    await asyncio.sleep(100)
    operator.thaw()
    await asyncio.sleep(100)
    assert calls == []
    await operator.stop()


@testing.virtual_time
async def test_indices_are_complete_before_anything_is_handled_again(registry, calls):
    @kopf.index('kopfexamples', id='by_size', registry=registry)
    async def by_size(name, spec, **_):
        return {spec['size']: name}

    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(name, by_size, **_):
        calls.append(sorted(by_size.get(2, [])))

    api = Api()
    for name in 'abc':
        api.create(name, spec={'size': 1})
    operator = Operator(api, registry)
    operator.start()
    await operator.rest()
    await operator.freeze()
    for name in 'abc':
        api.edit({'spec': {'size': 2}}, name)
    operator.thaw()
    await operator.rest()
    assert calls == [['a', 'b', 'c']] * 3
    await operator.stop()


ACTIONS = st.lists(st.one_of(
    st.tuples(st.just('edit'), st.sampled_from('ab')),
    st.tuples(st.just('hand over'), st.none()),
    st.tuples(st.just('wait'), st.sampled_from([0.001, 0.02, 0.3, 2, 8])),
), max_size=25)


@given(ACTIONS)
@settings(max_examples=80, deadline=None)
def test_operators_that_take_turns_handle_every_state_that_lasts_and_none_twice(actions):
    async def live():
        api, done = Api(), collections.Counter()
        operators = [Operator(api, make_counting_registry(done)) for _ in range(2)]
        await operators[1].freeze()
        operators[0].start()
        active, n = 0, 0
        newest = {'a': 0, 'b': 0}
        for name in newest:
            api.create(name, spec={'n': 0})
        for what, value in actions:
            if what == 'edit':
                n += 1
                newest[value] = n
                api.edit({'spec': {'n': n}}, value)
            elif what == 'wait':
                await asyncio.sleep(value)
            else:
                await operators[active].freeze()
                active = 1 - active
                operators[active].thaw()
        await operators[active].rest(limit=100)
        assert_handled(newest, done)
        assert set(done.values()) == {1}  # each change, by what it was and what it is
        await operators[active].stop()

    run_virtually(live())


@pytest.mark.parametrize('annotation', ['kopf.zalando.org/last-handled-configuration',
                                        'kopf.zalando.org/handle'])
@pytest.mark.parametrize('value', ['{bad', '[' * 100_000, '[1]', '{"a":' * 900 + '1' + '}' * 900])
def test_annotations_damaged_during_the_freeze_are_errors_of_their_object(
        registry, calls, caplog, annotation, value):
    @kopf.on.create('kopfexamples', registry=registry, id='handle')
    async def handle(name, retry, **_):
        calls.append((name, retry))
        if not retry:
            raise kopf.TemporaryError("not yet", delay=5)

    async def run():
        api = Api()
        operator = Operator(api, registry)
        operator.start()
        api.create('bad')
        api.create('good')
        await asyncio.sleep(1)
        await operator.freeze()
        api.edit({'metadata': {'annotations': {annotation: value}}}, 'bad')
        operator.thaw()
        await asyncio.sleep(100)
        assert calls == [('bad', 0), ('good', 0), ('good', 1)]
        assert "Throttling for" in caplog.text
        api.edit({'metadata': {'annotations': {annotation: None}}}, 'bad')
        await operator.rest()
        assert calls[3][0] == 'bad'
        await operator.stop()

    run_virtually(run())


@testing.virtual_time
async def test_objects_too_deep_to_be_listed_are_not_gone(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def watch(type, spec, **_):
        calls.append((type, spec['field']))

    api = Api()
    api.create(spec={'field': 1})
    operator = Operator(api, registry)
    operator.start()
    await operator.rest()
    skimmed = {**api.objects['obj'], 'spec': None}
    operator.informer.skipped('MODIFIED', skimmed)
    operator.informer.list_started(restored=False)
    operator.informer.skipped(None, skimmed)
    operator.informer.list_ended()
    await asyncio.sleep(1)
    assert calls == [(None, 1)]
    operator.informer.skipped('DELETED', skimmed)
    await asyncio.sleep(1)
    assert calls == [(None, 1), ('DELETED', 1)]


@testing.virtual_time
async def test_write_that_outlasts_the_freeze_is_followed_by_the_newest_state(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(spec, **_):
        calls.append(spec['n'])

    api = Api()
    api.latency = 5
    operator = Operator(api, registry)
    operator.start()
    api.create(spec={'n': 1})
    await asyncio.sleep(1)
    operator.informers.pause()
    await operator.lose_sight()
    api.edit({'spec': {'n': 2}})
    operator.thaw()
    await operator.rest()
    assert calls == [1, 2]
    await operator.stop()


@testing.virtual_time
async def test_a_list_that_is_older_than_the_own_write_before_it_hides_no_attempts(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(retry, **_):
        calls.append(retry)
        await asyncio.sleep(1)
        if retry == 0:
            raise kopf.TemporaryError("not yet", delay=5)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(0.5)
    await operator.freeze()
    operator.informers.resume()
    operator.spawner.resume()
    operator.start(behind=1)
    await operator.rest()
    assert calls == [0, 1]
    await operator.stop()


@testing.virtual_time
async def test_nothing_is_handled_after_an_event_handler_during_which_the_operator_was_frozen(
        registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def show(**_):
        calls.append('shown')
        await asyncio.sleep(10)

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        calls.append('created')

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(5)
    await operator.freeze()
    requests = len(api.requests)
    await asyncio.sleep(100)
    assert calls == ['shown']
    assert len(api.requests) == requests
    operator.thaw()
    await operator.rest()
    assert calls.count('created') == 1
    await operator.stop()
