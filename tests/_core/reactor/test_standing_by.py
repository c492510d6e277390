"""
Standbys, which watch all the time, take over, and lose the leadership; in a small world in virtual
time.
"""
import asyncio
import collections
import gc

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


def make_standby(api, registry):
    operator = Operator(api, registry)
    operator.stand_by()
    operator.start()
    return operator


@testing.virtual_time
async def test_standby_handles_nothing_until_it_takes_over(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.resume('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    api = Api()
    api.create('before')
    operator = make_standby(api, registry)
    await asyncio.sleep(1)
    api.create('meanwhile')
    await asyncio.sleep(100)
    assert calls == []
    assert api.requests == []
    operator.take_over()
    await operator.rest()
    assert set(calls) == {'before', 'meanwhile'}
    await operator.stop()


@testing.virtual_time
async def test_states_that_are_kept_by_a_standby_get_packed(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(spec, **_):
        calls.append(spec['n'])

    api = Api()
    api.create(spec={'n': 0})
    operator = make_standby(api, registry)
    for n in range(1, 4):
        await asyncio.sleep(1)
        api.edit({'spec': {'n': n}})
    await asyncio.sleep(20)
    item, = operator.informer
    assert item.inbox.pending is None
    assert item.inbox.is_packed
    operator.take_over()
    await operator.rest()
    assert calls == [3]
    await operator.stop()


@testing.virtual_time
async def test_object_that_is_gone_is_forgotten_by_a_standby(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def handle(type, name, **_):
        calls.append((type, name))

    api = Api()
    operator = make_standby(api, registry)
    for name in ['old', 'new']:
        api.create('obj', metadata={'labels': {'is': name}})
        await asyncio.sleep(1)
        if name == 'old':
            api.delete('obj')
    await asyncio.sleep(1)
    assert len(list(operator.informer)) == 1
    operator.take_over()
    await operator.rest()
    assert calls == [(None, 'obj')]
    await operator.stop()


@testing.virtual_time
async def test_the_end_is_left_to_the_next_leader_if_a_write_hangs_meanwhile(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def see(type, **_):
        calls.append(type)

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(patch, **_):
        patch.status['seen'] = True

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    while not calls:
        await asyncio.sleep(0.001)
    api.latency = 50
    await asyncio.sleep(1)
    api.delete()
    await asyncio.sleep(1)
    operator.stand_by()
    await asyncio.sleep(100)
    assert calls == ['ADDED']
    assert not operator.queue.size
    await operator.stop()


@testing.virtual_time
async def test_event_handlers_are_shown_the_newest_state_once(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def handle(type, spec, **_):
        calls.append((type, spec['n']))

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create(spec={'n': 0})
    await asyncio.sleep(1)
    operator.stand_by()
    for n in range(1, 4):
        api.edit({'spec': {'n': n}})
        await asyncio.sleep(1)
    operator.take_over()
    await asyncio.sleep(1)
    operator.stand_by()
    operator.take_over()
    await asyncio.sleep(1)
    assert calls == [('ADDED', 0), ('MODIFIED', 3)]
    await operator.stop()


@testing.virtual_time
async def test_event_handlers_are_shown_what_has_come_before_a_loss_and_then_the_newest_state(
        registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    async def show(spec, meta, **_):
        calls.append((int(meta['resourceVersion']), spec['n']))

    @kopf.on.create('kopfexamples', registry=registry)
    async def quick(**_):
        pass

    @kopf.on.create('kopfexamples', registry=registry)
    async def slow(**_):
        await asyncio.sleep(30)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create(spec={'n': 0})
    await asyncio.sleep(5)  # the echo of the progress waits for the end of the handler
    operator.stand_by()
    await asyncio.sleep(1)
    api.edit({'spec': {'n': 1}})
    await asyncio.sleep(1)
    operator.take_over()
    await asyncio.sleep(1)
    assert [n for _, n in calls] == [0, 0, 1]
    assert calls == sorted(set(calls))
    operator.stand_by()
    await operator.stop()


@testing.virtual_time
async def test_resume_handlers_are_called_at_the_first_takeover_only(registry, calls):
    @kopf.on.resume('kopfexamples', registry=registry)
    async def resume(name, **_):
        calls.append(name)

    @kopf.on.create('kopfexamples', registry=registry)
    def create(**_):
        pass

    api = Api()
    a = Operator(api, registry)
    a.start()
    b = make_standby(api, registry)
    api.create('x')
    await a.rest()
    await asyncio.sleep(1)
    a.stand_by()
    b.take_over()
    await b.rest()
    assert calls == ['x']
    b.stand_by()
    a.take_over()
    await a.rest()
    a.stand_by()
    b.take_over()
    await b.rest()
    await asyncio.sleep(1)
    assert calls == ['x']
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_async_handlers_are_interrupted_at_a_loss_and_called_again(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def create(retry, **_):
        calls.append(('begin', retry))
        await asyncio.sleep(10)
        calls.append('end')

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(5)
    operator.stand_by()
    await operator.queue.rest()
    assert calls == [('begin', 0)]
    requests = len(api.requests)
    await asyncio.sleep(100)
    assert len(api.requests) == requests
    operator.take_over()
    await operator.rest()
    assert calls == [('begin', 0), ('begin', 0), 'end']
    await operator.stop()


@testing.virtual_time
async def test_what_was_not_written_is_not_done_again_if_nobody_else_has_led(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(**_):
        calls.append('first')

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(**_):
        calls.append('second')
        await asyncio.sleep(0.5)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(0.3)
    operator.stand_by()
    await asyncio.sleep(50)
    operator.take_over()
    await operator.rest()
    assert calls == ['first', 'second', 'second']
    await operator.stop()


@pytest.mark.parametrize('is_outdated', [False, True])
def test_cycles_go_on_from_what_is_on_the_object(registry, calls, is_outdated):
    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(spec, retry, **_):
        calls.append((spec['n'], retry))
        if retry < 3:
            raise kopf.TemporaryError("not yet", delay=10)

    async def run():
        api = Api()
        a = Operator(api, registry)
        a.start()
        b = make_standby(api, registry)
        api.create(spec={'n': 0})
        await asyncio.sleep(15)
        a.stand_by()
        b.take_over()
        await asyncio.sleep(10 if not is_outdated else 100)
        if is_outdated:
            api.edit({'spec': {'n': 1}})
            await asyncio.sleep(15)
        b.stand_by()
        a.take_over()
        await a.rest()
        expected = [(0, 0), (0, 1), (0, 2), (0, 3)]
        repeated = [(1, 0), (1, 1), (1, 2), (1, 3)]
        assert calls == ([*expected, *repeated] if is_outdated else expected)
        await a.stop()
        await b.stop()

    run_virtually(run())


@testing.virtual_time
async def test_daemons_stop_and_start_again_and_timers_wait(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, **_):
        calls.append('started')
        await stopped.wait()
        calls.append(bool(stopped.reason & DaemonStoppingReason.OPERATOR_PAUSING))

    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append('tick')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(5)
    operator.stand_by()
    await asyncio.sleep(100)
    assert sorted(map(str, calls)) == ['True', 'started', 'tick']
    operator.take_over()
    await asyncio.sleep(1)
    assert sorted(map(str, calls)) == ['True', 'started', 'started', 'tick', 'tick']
    await operator.stop()


@testing.virtual_time
async def test_timers_are_interrupted_and_called_again(registry, calls):
    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append('begin')
        await asyncio.sleep(10)
        calls.append('end')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(5)
    operator.stand_by()
    await asyncio.sleep(100)
    assert calls == ['begin']
    operator.take_over()
    await asyncio.sleep(5)
    assert calls == ['begin', 'begin']
    await asyncio.sleep(15)
    assert calls == ['begin', 'begin', 'end', 'begin']
    await operator.stop()


@testing.virtual_time
@pytest.mark.parametrize('iterations', range(10))
async def test_timers_are_called_however_soon_they_are_interrupted(registry, calls, iterations):
    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append('tick')

    api = Api()
    api.latency = 0
    api.create()
    operator = Operator(api, registry)
    operator.start()
    while not operator.informer:
        await asyncio.sleep(0.001)
    for _ in range(iterations):
        await asyncio.sleep(0)
    operator.stand_by()
    await asyncio.sleep(100)
    calls.clear()
    operator.take_over()
    await asyncio.sleep(10)
    assert calls
    await operator.stop()


@testing.virtual_time
@pytest.mark.parametrize('error, timeout, expected', [
    (None, 50, [(0, 0), (0, 100), (0, 107)]),
    (kopf.TemporaryError("later", delay=200), 300, [(0, 0), (1, 200), (0, 207)]),
    (kopf.PermanentError("never"), 300, [(0, 0)]),
])
async def test_an_attempt_of_a_timer_counts_though_its_patch_is_cut_off(
        registry, calls, error, timeout, expected):
    @kopf.timer('kopfexamples', interval=7, timeout=timeout, registry=registry)
    async def tick(retry, patch, **_):
        calls.append((retry, round(asyncio.get_running_loop().time() - begin)))
        if len(calls) == 1:
            patch.status['seen'] = True
            if error is not None:
                raise error

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(0.001)
    begin = asyncio.get_running_loop().time()
    while not calls:
        await asyncio.sleep(0.001)
    api.latency = 1000
    await asyncio.sleep(1)
    operator.stand_by()
    api.latency = 0
    await asyncio.sleep(99)
    operator.take_over()
    await asyncio.sleep(110)
    assert calls[:3] == expected
    await operator.stop()


@testing.virtual_time
async def test_nothing_is_called_if_the_loss_is_known_only_by_the_clock(registry, calls):
    @kopf.timer('kopfexamples', interval=7, registry=registry)
    async def tick(**_):
        calls.append('tick')

    @kopf.on.update('kopfexamples', registry=registry)
    async def update(**_):
        calls.append('update')

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(5)
    assert calls == ['tick']
    operator.switch.confirm = lambda: operator.switch.is_paused or operator.stand_by()
    api.edit({'spec': {'n': 1}})
    await asyncio.sleep(100)
    assert calls == ['tick']
    await operator.stop()


@testing.virtual_time
async def test_patches_of_daemons_are_lost_with_the_lease_and_not_written_later(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, patch, **_):
        await stopped.wait()
        patch.status['by'] = 'daemon'

    api = Api()
    api.create()
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(5)
    operator.stand_by()
    await asyncio.sleep(100)
    operator.take_over()
    await asyncio.sleep(100)
    assert 'by' not in api.objects['obj'].get('status', {})
    operator.client.leads = False
    await operator.stop()


class Relapse:
    """Lets the operator lose and get the leadership again, from inside of a thread."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.operator = None

    async def _happen(self):
        self.operator.stand_by()
        self.operator.take_over()

    def __call__(self):
        asyncio.run_coroutine_threadsafe(self._happen(), self.loop).result()


@testing.virtual_time
async def test_what_a_thread_of_a_former_term_has_done_is_not_written(registry, calls):
    relapse = Relapse()

    @kopf.on.create('kopfexamples', registry=registry)
    def create(patch, **_):
        calls.append('create')
        patch.status['by'] = len(calls)
        if len(calls) == 1:
            relapse()

    api = Api()
    relapse.operator = operator = Operator(api, registry)
    operator.start()
    api.create()
    await operator.rest()
    assert calls == ['create', 'create']
    assert [raw['status']['by'] for _, raw in api.history if 'status' in raw] == [2]
    await operator.stop()


@testing.virtual_time
async def test_what_a_daemon_of_a_former_term_wants_while_it_runs_is_not_written(registry, calls):
    @kopf.daemon('kopfexamples', initial_delay=10, registry=registry)
    async def daemon(patch, **_):
        calls.append('daemon')
        if len(calls) == 1:
            operator.stand_by()
            operator.take_over()
        patch.status['by'] = len(calls)
        await asyncio.sleep(5)

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    await asyncio.sleep(100)
    assert calls == ['daemon', 'daemon']
    assert {raw['status']['by'] for _, raw in api.history if 'status' in raw} == {2}
    await operator.stop()


@testing.virtual_time
async def test_what_threads_of_event_handlers_and_of_timers_want_in_a_later_term_is_not_written(
        registry, calls):
    relapse = Relapse()

    @kopf.on.event('kopfexamples', registry=registry)
    def show(patch, spec, **_):
        patch.status['event'] = len(calls)
        if 'event' not in calls:
            calls.append('event')
            relapse()

    @kopf.timer('kopfexamples', interval=60, initial_delay=10, registry=registry)
    def tick(patch, **_):
        patch.status['timer'] = len(calls)
        if 'timer' not in calls:
            calls.append('timer')
            relapse()

    api = Api()
    relapse.operator = operator = Operator(api, registry)
    operator.start()
    api.create(spec={})
    await asyncio.sleep(200)
    status = [raw['status'] for _, raw in api.history if 'status' in raw]
    assert all(item.get('event') != 0 and item.get('timer') != 1 for item in status)
    assert status[-1] == {'event': 2, 'timer': 2}
    await operator.stop()


@testing.virtual_time
async def test_a_write_that_was_sent_while_a_handler_ran_ends_before_the_object_is_left(
        registry, calls, caplog):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(**_):
        calls.append('first')

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(**_):
        calls.append('second')
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

    api = Api()
    operator = Operator(api, registry)
    operator.start()
    api.create()
    while 'second' not in calls:
        await asyncio.sleep(0.001)
    api.latency, api.faults = 20, [None, 'before']
    await asyncio.sleep(10)
    operator.stand_by()
    await asyncio.sleep(1)
    assert operator.queue.size
    await asyncio.sleep(100)
    assert not operator.queue.size
    await operator.stop()
    gc.collect()
    assert 'never retrieved' not in caplog.text


@testing.virtual_time
async def test_indices_are_kept_up_to_date_by_a_standby(registry, calls):
    @kopf.index('kopfexamples', id='by_size', registry=registry)
    async def by_size(name, spec, **_):
        return {spec['size']: name}

    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(name, by_size, **_):
        calls.append(sorted(by_size.get(2, [])))

    api = Api()
    for name in 'abc':
        api.create(name, spec={'size': 1})
    a = Operator(api, registry)
    a.start()
    b = make_standby(api, registry)
    await a.rest()
    await asyncio.sleep(1)
    a.stand_by()
    for name in 'abc':
        api.edit({'spec': {'size': 2}}, name)
    await asyncio.sleep(1)
    b.take_over()
    await b.rest()
    assert calls == [['a', 'b', 'c']] * 3
    await a.stop()
    await b.stop()


ACTIONS = st.lists(st.one_of(
    st.tuples(st.just('edit'), st.sampled_from('ab')),
    st.tuples(st.just('exit'), st.none()),
    st.tuples(st.just('lose'), st.none()),
    st.tuples(st.just('wait'), st.sampled_from([0.001, 0.02, 0.3, 2, 8])),
), max_size=25)


@given(ACTIONS)
@settings(max_examples=80, deadline=None)
def test_every_state_that_lasts_is_handled_and_none_twice_unless_the_lease_was_lost(actions):
    async def live():
        api, done = Api(), collections.Counter()
        leader, standby = Operator(api, make_counting_registry(done)), None
        leader.start()
        standby = make_standby(api, make_counting_registry(done))
        n = 0
        newest = {'a': 0, 'b': 0}
        for name in newest:
            api.create(name, spec={'n': 0})
        for what, value in actions:
            match what:
                case 'edit':
                    n += 1
                    newest[value] = n
                    api.edit({'spec': {'n': n}}, value)
                case 'wait':
                    await asyncio.sleep(value)
                case 'exit':
                    await leader.stop()
                    leader, standby = standby, make_standby(api, make_counting_registry(done))
                    await asyncio.sleep(0.3)
                    leader.take_over()
                case 'lose':
                    leader.stand_by()
                    leader, standby = standby, leader
                    await asyncio.sleep(0.3)
                    leader.take_over()
        await leader.rest(limit=100)
        assert_handled(newest, done)
        if ('lose', None) not in actions:
            assert set(done.values()) == {1}
        await leader.stop()
        await standby.stop()

    run_virtually(live())
