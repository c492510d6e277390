"""
Random lives of objects with daemons, timers, and indices, against a plain model of what is to be.
"""
import asyncio
import collections
import contextlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kopf
from kopf._core.engines.daemons import companions
from kopf._core.intents.stopping import DaemonStoppingReason
from tests._core.reactor.worlds import (
    Api,
    Operator,
    accompany,
    check_always,
    count_per_object,
    run_virtually,
    succeed,
)

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
NAMES = ['a', 'b']

ACTIONS = st.one_of(
    st.tuples(st.just('create'), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just('match'), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just('resize'), st.sampled_from(NAMES), st.integers(1, 3)),
    st.tuples(st.just('delete'), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just('wait'), st.none(), st.sampled_from([0.001, 0.01, 0.02, 0.3, 1.5, 4])),
    st.tuples(st.just('gap'), st.none(), st.none()),
    st.tuples(st.just('look'), st.none(), st.none()),
    st.tuples(st.just('restart'), st.none(), st.none()),
    st.tuples(st.just('crash'), st.none(), st.none()),
)


class Life:
    """The objects, the operators, and what the handlers have seen of it all."""

    def __init__(self):
        self.api = Api()
        self.running = collections.Counter()
        self.ticks = collections.Counter()
        self.shorts = collections.Counter()
        self.process = 0
        self.registry = kopf.OperatorRegistry()
        self.is_looking = True
        on = {'labels': {'on': 'yes'}, 'registry': self.registry}

        @kopf.daemon('kopfexamples', **on)
        async def patient(uid, stopped, **_):
            self.running[uid, self.process, 'patient'] += 1
            try:
                await stopped.wait()
            finally:
                self.running[uid, self.process, 'patient'] -= 1

        @kopf.daemon('kopfexamples', cancellation_timeout=1, **on)
        async def stubborn(uid, **_):
            self.running[uid, self.process, 'stubborn'] += 1
            try:
                await asyncio.sleep(1_000_000)
            finally:
                self.running[uid, self.process, 'stubborn'] -= 1

        @kopf.daemon('kopfexamples', **on)
        async def short(uid, **_):
            self.shorts[uid, self.process] += 1

        @kopf.daemon('kopfexamples', retries=2, backoff=0.5, **on)
        async def failing(uid, retry, **_):
            self.shorts[uid, self.process, retry] += 1
            raise Exception("no way")

        @kopf.timer('kopfexamples', interval=1, **on)
        async def tick(uid, **_):
            self.ticks[uid] += 1

        @kopf.on.delete('kopfexamples', **on)
        @kopf.on.update('kopfexamples', **on)
        async def handle(**_):
            await asyncio.sleep(0.4)

        @kopf.index('kopfexamples', id='by_size', **on)
        async def by_size(name, spec, **_):
            return {spec.get('size'): name}

        self.start()

    def start(self):
        self.process += 1
        self.operator = Operator(self.api, self.registry)
        self.operator.start()
        self.is_looking = True

    async def act(self, action, name, value):
        match action:
            case 'create' if name not in self.api.objects:
                labels = {'on': 'yes'} if value else {}
                self.api.create(name, metadata={'labels': labels}, spec={'size': 0})
            case 'match':
                self.api.edit({'metadata': {'labels': {'on': 'yes' if value else None}}}, name)
            case 'resize':
                self.api.edit({'spec': {'size': value}}, name)
            case 'delete':
                self.api.delete(name)
            case 'wait':
                await asyncio.sleep(value)
            case 'gap' if self.is_looking:
                await self.operator.lose_sight()
                self.is_looking = False
            case 'look' if not self.is_looking:
                self.operator.start()
                self.is_looking = True
            case 'restart':
                await self.operator.stop()
                self.start()
            case 'crash':
                await self.operator.crash()
                self.start()

    async def end(self):
        if not self.is_looking:
            self.operator.start()
        await asyncio.sleep(10)
        return {
            raw['metadata']['uid'] for raw in self.api.objects.values()
            if raw['metadata'].get('labels', {}).get('on') == 'yes'
            and 'deletionTimestamp' not in raw['metadata']}

    @property
    def index(self):
        index = self.operator.indexers['by_size']
        return {key: sorted(values) for key, values in index.items()}


@given(actions=st.lists(ACTIONS, max_size=20))
@settings(max_examples=150, deadline=None)
def test_in_the_end_those_who_match_are_accompanied_by_one_of_each_and_no_others_are(actions):
    async def live():
        life = Life()
        for action in actions:
            await life.act(*action)
        matching = await life.end()
        ticks = collections.Counter(life.ticks)
        await asyncio.sleep(10)
        assert +life.running == collections.Counter({
            (uid, life.process, name): 1 for uid in matching for name in ['patient', 'stubborn']})
        assert {uid: life.ticks[uid] - ticks[uid] for uid in life.ticks} == {
            uid: 10 if uid in matching else 0 for uid in life.ticks}
        assert life.ticks.keys() >= matching
        assert set(life.shorts.values()) <= {1}
        assert {uid for uid, process, *_ in life.shorts if process == life.process} >= matching
        assert {raw['metadata']['uid'] for raw in life.api.objects.values()
                if FINALIZER in raw['metadata'].get('finalizers', [])} == matching
        assert life.index == get_index(life.api, matching)
        await life.operator.stop()
        assert not +life.running
        assert not life.operator.spawner.alive and not life.operator.spawner.tasks
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(live())


def get_index(api, uids):
    index = collections.defaultdict(list)
    for name, raw in api.objects.items():
        if raw['metadata']['uid'] in uids:
            index[raw['spec']['size']].append(name)
    return {key: sorted(names) for key, names in index.items()}


@given(actions=st.lists(ACTIONS.filter(lambda item: item[0] in (
    'create', 'resize', 'wait', 'gap', 'look')), max_size=20))
@settings(max_examples=100, deadline=None)
def test_an_indexed_object_is_in_the_index_once_at_any_moment_until_it_goes(actions):
    async def live():
        life = Life()
        seen = set()

        def spy():
            names = [name for names in life.index.values() for name in names]
            assert len(names) == len(set(names))
            assert seen <= set(names)
            seen.update(names)

        spying = asyncio.get_running_loop().create_task(check_always(spy))
        for action in actions:
            await life.act(*action)
        await life.end()
        assert not spying.done(), spying.result()
        spying.cancel()
        await life.operator.stop()

    run_virtually(live())


@pytest.mark.parametrize('sharp, starts', [(False, [0, 1.25, 2.5]), (True, [0, 1, 2])])
def test_intervals_are_from_end_to_start_or_if_sharp_from_start_to_start(sharp, starts):
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=1, sharp=sharp, registry=registry)
        async def tick(**_):
            times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.25)

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(2.9)
        await operator.stop()

    run_virtually(live())
    assert [time - times[0] for time in times] == pytest.approx(starts, abs=0.01)


@pytest.mark.parametrize('sharp', [False, True])
def test_timers_without_a_pause_leave_time_for_others(sharp):
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=0, sharp=sharp, registry=registry)
        async def tick(**_):
            times.append(asyncio.get_running_loop().time())

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(1)
        await operator.stop()

    run_virtually(live())
    assert 45 <= len(times) <= 51


def test_sharp_timers_leave_out_what_they_have_missed():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=1, sharp=True, registry=registry)
        async def tick(**_):
            times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(2.5)

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(8)
        await operator.stop()

    run_virtually(live())
    assert [time - times[0] for time in times] == pytest.approx([0, 3, 6], abs=0.01)


def test_retries_of_timers_go_by_the_backoff_and_the_counter_starts_anew_after_a_success():
    calls = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=10, backoff=5, registry=registry)
        async def tick(retry, **_):
            calls.append((round(asyncio.get_running_loop().time()), retry))
            if retry < 3:
                raise Exception("not yet")

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(28)
        await operator.stop()

    run_virtually(live())
    assert calls == [(0, 0), (5, 1), (10, 2), (15, 3), (25, 0)]


@pytest.mark.parametrize('options', [
    {'retries': 2, 'backoff': 1}, {'errors': kopf.ErrorsMode.PERMANENT}])
def test_timers_that_have_failed_for_good_are_not_called_again(options):
    calls = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=1, registry=registry, **options)
        async def tick(retry, **_):
            calls.append(retry)
            raise Exception("no way")

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(live())
    assert calls == [*range(options.get('retries', 1))]


def test_idle_timers_wait_until_the_object_is_quiet_and_once_more_after_each_change():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', idle=10, registry=registry)
        async def tick(**_):
            times.append(round(asyncio.get_running_loop().time()))

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(6)
        api.edit({'spec': {'size': 1}})
        await asyncio.sleep(94)
        api.edit({'spec': {'size': 2}})
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(live())
    assert times == [16, 110]


def test_idle_timers_with_an_interval_go_on_until_the_object_changes():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', idle=10, interval=3, registry=registry)
        async def tick(**_):
            times.append(round(asyncio.get_running_loop().time()))

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(18)
        api.edit({'spec': {'size': 1}})
        await asyncio.sleep(14)
        await operator.stop()

    run_virtually(live())
    assert times == [10, 13, 16, 28, 31]


@pytest.mark.parametrize('delay', [5, lambda spec, **_: spec['delay']])
@pytest.mark.parametrize('decorate', [kopf.timer, kopf.daemon])
def test_the_first_invocation_can_be_postponed(decorate, delay):
    times = []

    def declare(registry):
        @decorate('kopfexamples', initial_delay=delay, registry=registry)
        async def fn(**_):
            times.append(round(asyncio.get_running_loop().time()))

    async def live():
        _, operator = await accompany(declare, spec={'delay': 5})
        await asyncio.sleep(9)
        await operator.stop()

    run_virtually(live())
    assert times == [5]


def test_timers_never_overlap_with_themselves():
    moves = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=0.1, sharp=True, registry=registry)
        async def tick(**_):
            moves.append('in')
            await asyncio.sleep(1)
            moves.append('out')

    async def live():
        api, operator = await accompany(declare)
        for size in range(10):
            await asyncio.sleep(0.3)
            api.edit({'spec': {'size': size}})
        await operator.stop()

    run_virtually(live())
    assert moves == ['in', 'out'] * (len(moves) // 2) and len(moves) >= 6


def test_results_and_patches_are_put_to_the_object():
    def declare(registry):
        @kopf.timer('kopfexamples', id='tick', interval=10, registry=registry)
        async def tick(patch, **_):
            patch.spec['field'] = 'value'
            return {'ticked': True}

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        await operator.stop()
        return api.objects['obj']

    obj = run_virtually(live())
    assert obj['spec'] == {'field': 'value'}
    assert obj['status'] == {'tick': {'ticked': True}}


def test_patches_of_daemons_are_put_to_the_object_while_they_run():
    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(patch, stopped, **_):
            patch.status['phase'] = 'one'
            await asyncio.sleep(5)
            patch.status['phase'] = 'two'
            await stopped.wait()

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(3)
        assert api.objects['obj']['status'] == {'phase': 'one'}
        await asyncio.sleep(5)
        assert api.objects['obj']['status'] == {'phase': 'two'}
        await operator.stop()

    run_virtually(live())


def test_patches_survive_an_outage():
    def declare(registry):
        @kopf.daemon('kopfexamples', id='fn', registry=registry)
        async def fn(**_):
            return 'done'

    async def live():
        api, operator = await accompany(declare)
        api.faults[:] = [None, *['before'] * 3]
        await asyncio.sleep(100)
        await operator.stop()
        return api.objects['obj']

    assert run_virtually(live())['status'] == {'fn': 'done'}


@pytest.mark.parametrize('decorate', [kopf.timer, kopf.daemon])
def test_patches_are_put_to_the_object_even_if_the_api_denies_for_a_moment_that_it_is_there(
        decorate):
    def declare(registry):
        @decorate('kopfexamples', id='fn', registry=registry)
        async def fn(**_):
            return 'done'

    async def live():
        api, operator = await accompany(declare)
        api.faults[:] = [None, 'absent', None, 'absent', 'absent']
        await asyncio.sleep(100)
        await operator.stop()
        return api.objects['obj']

    assert run_virtually(live())['status'] == {'fn': 'done'}


def test_bodies_are_live():
    seen = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(spec, body, labels, stopped, **_):
            while not stopped:
                seen.append((spec.get('size'), body.spec.get('size'), labels.get('l')))
                await stopped.wait(1)

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(0.5)
        api.edit({'spec': {'size': 1}, 'metadata': {'labels': {'l': 'x'}}})
        await asyncio.sleep(1)
        await operator.stop()

    run_virtually(live())
    assert seen == [(None, None, None), (1, 1, 'x')]


DELETED = DaemonStoppingReason.RESOURCE_DELETED
SIGNALLED = DELETED | DaemonStoppingReason.DAEMON_SIGNALLED
CANCELLED = DELETED | DaemonStoppingReason.DAEMON_CANCELLED


@pytest.mark.parametrize('options, duration, reason', [
    ({}, 30, DELETED),
    ({'cancellation_backoff': 5}, 30, SIGNALLED),
    ({'cancellation_timeout': 7}, 0, CANCELLED),
    ({'cancellation_backoff': 5, 'cancellation_timeout': 7}, 5, SIGNALLED | CANCELLED),
])
def test_deletions_wait_for_daemons_by_their_stages(options, duration, reason):
    reasons = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry, **options)
        async def fn(stopped, **_):
            try:
                await stopped.wait()
                await asyncio.sleep(30)
            finally:
                reasons.append(stopped.reason)

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        api.delete()
        start = asyncio.get_running_loop().time()
        while api.objects:
            await asyncio.sleep(0.1)
        took = asyncio.get_running_loop().time() - start
        await operator.stop()
        return took

    assert run_virtually(live()) == pytest.approx(duration, abs=0.3)
    assert reasons == [reason]


@pytest.mark.parametrize('options', [
    {}, {'cancellation_backoff': 5}, {'cancellation_timeout': 7},
    {'cancellation_backoff': 5, 'cancellation_timeout': 7},
])
@pytest.mark.parametrize('event, reason', [
    (lambda api, operator: api.delete(), DaemonStoppingReason.RESOURCE_DELETED),
    (lambda api, operator: api.edit({'metadata': {'labels': {'on': None}}}),
     DaemonStoppingReason.FILTERS_MISMATCH),
    (lambda api, operator: operator.spawner.pause(), DaemonStoppingReason.OPERATOR_PAUSING),
    (lambda api, operator: None, DaemonStoppingReason.OPERATOR_EXITING),
], ids=['deletion', 'mismatch', 'pause', 'exit'])
def test_what_has_happened_is_the_only_reason_at_first(options, event, reason):
    reasons = []

    def declare(registry):
        @kopf.daemon('kopfexamples', labels={'on': 'yes'}, registry=registry, **options)
        async def fn(stopped, **_):
            await stopped.wait()
            reasons.append(stopped.reason)

    async def live():
        api, operator = await accompany(declare, metadata={'labels': {'on': 'yes'}})
        await asyncio.sleep(1)
        event(api, operator)
        await asyncio.sleep(1)
        await operator.stop()

    run_virtually(live())
    assert reasons == [reason]


def test_daemons_that_ignore_everything_are_left_alone_after_their_timeout():
    def declare(registry):
        @kopf.daemon(
            'kopfexamples', cancellation_backoff=1, cancellation_timeout=2, registry=registry)
        async def fn(stopped, **_):
            while True:
                try:
                    await asyncio.sleep(50)
                    return
                except asyncio.CancelledError:
                    pass

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        with pytest.warns(ResourceWarning, match="did not exit in time"):
            api.delete()
            await asyncio.sleep(2.9)
            assert api.objects
            await asyncio.sleep(0.5)
            assert not api.objects
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(live())


def test_nothing_of_a_daemon_is_written_any_more_when_it_is_left_alone(caplog):
    def declare(registry):
        @kopf.daemon(
            'kopfexamples', labels={'on': 'yes'}, cancellation_timeout=2, registry=registry)
        async def fn(patch, **_):
            patch.status['early'] = True
            for number in range(20):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
                if number > 10:
                    patch.status['late'] = number
            return 'late, too'

        @kopf.timer('kopfexamples', interval=100, registry=registry)
        async def keep_the_object_known(**_):
            pass

    async def live():
        api, operator = await accompany(declare, metadata={'labels': {'on': 'yes'}})
        await asyncio.sleep(2)
        with pytest.warns(ResourceWarning, match="did not exit in time"):
            api.edit({'metadata': {'labels': {'on': None}}})
            await asyncio.sleep(100)
        await operator.stop()
        return api.objects['obj']

    assert run_virtually(live())['status'] == {'early': True}
    assert sum("is lost: the handler did not exit in time" in line for line in caplog.messages) == 1


def test_writing_for_a_daemon_is_given_up_when_it_is_left_alone(caplog):
    def declare(registry):
        @kopf.daemon(
            'kopfexamples', labels={'on': 'yes'}, cancellation_timeout=2, registry=registry)
        def fn(**_):
            return 'done'

    async def live():
        api, operator = await accompany(declare, metadata={'labels': {'on': 'yes'}})
        operator.settings.queueing.error_delays = [delay]
        await asyncio.sleep(0.015)  # the finalizer is there
        operator.client.cut, api.faults[:] = not delay, ['before'] * 9
        await asyncio.sleep(2)
        with pytest.warns(ResourceWarning, match="did not exit in time"):
            api.edit({'metadata': {'labels': {'on': None}}})
            await asyncio.sleep(4)
        operator.client.cut, api.faults[:] = False, []
        await asyncio.sleep(100)
        await operator.stop()
        return api.objects['obj']

    for delay in (0, 10):  # while a request is under way, and between two
        caplog.clear()
        assert 'status' not in run_virtually(live())
        assert sum("is lost: the handler did not exit" in line for line in caplog.messages) == 1


def test_a_pause_does_not_wait_for_daemons_that_are_left_alone():
    def declare(registry):
        @kopf.daemon('kopfexamples', cancellation_timeout=2, registry=registry)
        async def fn(**_):
            while True:
                try:
                    await asyncio.sleep(50)
                    return
                except asyncio.CancelledError:
                    pass

    async def live():
        loop = asyncio.get_running_loop()
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        with pytest.warns(ResourceWarning, match="did not exit in time"):
            await operator.freeze()
        assert loop.time() == pytest.approx(3, abs=0.1)
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(live())


def test_daemons_that_were_being_stopped_when_they_became_due_again_start_when_they_have_ended():
    calls = []

    def declare(registry):
        @kopf.daemon('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def fn(stopped, **_):
            calls.append(round(asyncio.get_running_loop().time()))
            await stopped.wait()
            await asyncio.sleep(10)

    async def live():
        api, operator = await accompany(declare, metadata={'labels': {'on': 'yes'}})
        await asyncio.sleep(1)
        api.edit({'metadata': {'labels': {'on': None}}})
        await asyncio.sleep(1)
        api.edit({'metadata': {'labels': {'on': 'yes'}}})
        await asyncio.sleep(30)
        await operator.stop()

    run_virtually(live())
    assert calls == [0, 11]


def test_at_exit_daemons_without_limits_are_cancelled_after_a_while():
    ends = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(stopped, **_):
            try:
                await asyncio.sleep(1_000)
            finally:
                ends.append(stopped.reason)

    async def live():
        _, operator = await accompany(declare)
        await asyncio.sleep(1)
        start = asyncio.get_running_loop().time()
        await operator.stop()
        return asyncio.get_running_loop().time() - start

    assert run_virtually(live()) == pytest.approx(5, abs=0.1)
    assert ends == [
        DaemonStoppingReason.OPERATOR_EXITING | DaemonStoppingReason.DAEMON_CANCELLED]


@pytest.mark.parametrize('sharded', [False, True])
def test_handlers_see_all_the_objects_in_the_indices_even_if_indexing_takes_long(sharded):
    seen = []

    def declare(registry):
        @kopf.index('kopfexamples', id='names', sharded=sharded, registry=registry)
        async def names(name, **_):
            await asyncio.sleep(10 if name == 'obj' else 1)
            return name

        @kopf.on.event('kopfexamples', registry=registry)
        async def fn(name, names, **_):
            seen.append((name, sorted(names[None])))

    async def live():
        api, operator = await accompany(declare)
        await operator.stop()
        api.create('other')
        await succeed(api, declare, lasts=20)

    run_virtually(live())
    assert sorted(seen) == [('obj', ['obj', 'other']), ('other', ['obj', 'other'])]


def test_objects_that_change_faster_than_they_are_indexed_do_not_starve():
    calls = []

    def declare(registry):
        @kopf.index('kopfexamples', id='names', registry=registry)
        async def names(name, **_):
            await asyncio.sleep(2 if name == 'obj' else 0)
            return name

        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def fn(name, names, **_):
            calls.append((name, sorted(names[None])))

    async def live():
        registry = kopf.OperatorRegistry()
        declare(registry)
        api = Api()
        api.create()
        api.create('other')
        operator = Operator(api, registry)
        operator.start()
        for number in range(30):
            await asyncio.sleep(1)
            api.edit({'spec': {'number': number}})
        names = {name for name, _ in calls}
        called = len(calls)
        await asyncio.sleep(5)
        assert len(calls) > called
        calls.clear()
        api.edit({'spec': {'number': -1}})
        await asyncio.sleep(1)
        assert not calls
        await asyncio.sleep(5)
        await operator.stop()
        return names

    assert run_virtually(live()) == {'obj', 'other'}
    assert calls == [('obj', ['obj', 'other'])]


@pytest.mark.parametrize('error, options, times', [
    (Exception("boo"), {'errors': kopf.ErrorsMode.TEMPORARY, 'backoff': 5, 'retries': 3},
     [(0, 0), (5, 1), (10, 2)]),
    (kopf.TemporaryError("boo", delay=7), {'retries': 2}, [(0, 0), (7, 1)]),
    (kopf.PermanentError("boo"), {}, [(0, 0)]),
    (Exception("boo"), {'errors': kopf.ErrorsMode.PERMANENT}, [(0, 0)]),
])
def test_objects_are_excluded_from_indices_when_indexing_fails(error, options, times):
    calls = []

    def declare(registry):
        @kopf.index('kopfexamples', id='names', registry=registry, **options)
        async def names(name, spec, retry, **_):
            if not spec.get('bad'):
                return name
            calls.append((round(asyncio.get_running_loop().time()) - 1, retry))
            raise error

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        assert dict(operator.indexers['names'])
        api.edit({'spec': {'bad': True}})
        await asyncio.sleep(1)
        assert not dict(operator.indexers['names'])
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(live())
    assert calls == times


@pytest.mark.parametrize('spoil', [None, Exception("boo")])
def test_values_stay_in_indices_when_there_is_no_result_or_the_error_is_ignored(spoil):
    def declare(registry):
        @kopf.index('kopfexamples', id='names', registry=registry)
        async def names(name, spec, retry, **_):
            if spec.get('bad') and spoil is not None:
                raise spoil
            return name if not spec.get('bad') else None

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        api.edit({'spec': {'bad': True}})
        await asyncio.sleep(1)
        assert list(operator.indexers['names'][None]) == ['obj']
        await operator.stop()

    run_virtually(live())


@pytest.mark.parametrize('daemon, handler', [(0, 0), (1, 5), (5, 1), (3, 3)])
def test_objects_are_let_go_when_both_the_daemons_and_the_handlers_have_finished(daemon, handler):
    ends = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(stopped, **_):
            await stopped.wait()
            await asyncio.sleep(daemon)
            ends.append('daemon')

        @kopf.on.delete('kopfexamples', registry=registry)
        async def deleted(**_):
            await asyncio.sleep(handler)
            ends.append('handler')

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(1)
        api.delete()
        await asyncio.sleep(max(daemon, handler) + 0.5)
        assert not api.objects
        await operator.stop()

    run_virtually(live())
    assert sorted(ends) == ['daemon', 'handler']


@pytest.mark.parametrize('patched', [True, False])
def test_finalizers_are_removed_if_daemons_end_while_handlers_of_the_same_change_run(patched):
    calls = []

    def declare(registry):
        @kopf.daemon('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def fn(patch, stopped, **_):
            await stopped.wait()
            await asyncio.sleep(1)
            if patched:
                patch.status['phase'] = 'ended'

        @kopf.on.update('kopfexamples', registry=registry)
        async def first(**_):
            await asyncio.sleep(3)
            calls.append('first')

        @kopf.on.update('kopfexamples', registry=registry)
        async def second(**_):
            calls.append('second')

    async def live():
        api, operator = await accompany(declare)
        api.edit({'metadata': {'labels': {'on': 'yes'}}})
        await asyncio.sleep(10)
        assert api.objects['obj']['metadata']['finalizers'] == [FINALIZER]
        calls.clear()
        api.edit({'metadata': {'labels': {'on': 'no'}}})
        await asyncio.sleep(10)
        await operator.stop()
        return api.objects['obj']

    obj = run_virtually(live())
    assert calls == ['first', 'second']
    assert 'finalizers' not in obj['metadata']


def test_finalizers_are_removed_if_daemons_end_while_reconcilers_run():
    """The same state is reconciled again then, in the same pass: an event has come meanwhile."""
    def declare(registry):
        @kopf.daemon('kopfexamples', labels={'on': 'yes'}, registry=registry)
        async def fn(stopped, **_):
            await stopped.wait()
            await asyncio.sleep(1)

        @kopf.on.update('kopfexamples', registry=registry)
        async def update(**_):
            pass

        @kopf.index('kopfexamples', registry=registry)
        async def index(**_):
            pass

        @kopf.reconcile('kopfexamples', registry=registry)
        async def slow(**_):
            await asyncio.sleep(3)

        @kopf.on.event('kopfexamples', registry=registry)
        async def event(**_):
            pass

    async def live():
        api, operator = await accompany(declare)
        operator.watch_delay = 0.5  # the responses to writes come before their echoes
        api.edit({'metadata': {'labels': {'on': 'yes'}}})
        await asyncio.sleep(20)
        assert api.objects['obj']['metadata']['finalizers'] == [FINALIZER]
        api.edit({'metadata': {'labels': {'on': 'no'}}})
        await asyncio.sleep(20)
        await operator.stop()
        return api.objects['obj']

    assert 'finalizers' not in run_virtually(live())['metadata']


def test_newer_patches_of_a_daemon_are_not_overtaken_by_older_ones():
    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(patch, stopped, **_):
            patch.status['phase'] = 'one'
            await asyncio.sleep(2.5)
            patch.status['phase'] = 'two'
            await stopped.wait()

    async def live():
        api, operator = await accompany(declare)
        await asyncio.sleep(0.5)
        api.faults[:] = ['before']  # the older one waits for another try meanwhile
        operator.settings.queueing.error_delays = [3]
        await asyncio.sleep(20)
        await operator.stop()
        return api.objects['obj'], [raw.get('status') for _, raw in api.history]

    obj, history = run_virtually(live())
    assert obj['status'] == {'phase': 'two'}
    assert history.count({'phase': 'two'}) == 1


def test_failed_indexing_is_tried_again_once_however_often_the_object_changes():
    calls = []

    def declare(registry):
        @kopf.index('kopfexamples', id='names', registry=registry)
        async def names(retry, **_):
            calls.append((round(asyncio.get_running_loop().time()), retry))
            raise kopf.TemporaryError("not yet", delay=10)

    async def live():
        api, operator = await accompany(declare)
        for size in range(8):
            await asyncio.sleep(1)
            api.edit({'spec': {'size': size}})
        await asyncio.sleep(0.5)
        timers = [handle for handle in asyncio.get_running_loop()._scheduled
                  if not handle._cancelled and handle._callback.__name__ == '_retry']
        await asyncio.sleep(23)
        await operator.stop()
        return len(timers)

    assert run_virtually(live()) == 1
    assert calls == [(0, 0), (10, 1), (20, 2), (30, 3)]


def test_an_object_with_a_timer_is_a_handful_of_objects_for_the_garbage_collector():
    # A full collection looks at all of them at once: that is the longest stall of the event loop.
    registry = kopf.OperatorRegistry()

    @kopf.timer('kopfexamples', interval=1000, registry=registry)
    async def tick(**_):
        pass

    counts = run_virtually(count_per_object(registry))
    assert sum(count for cls, count in counts.items() if not issubclass(cls, list | dict)) < 7.5


def test_the_state_of_an_object_is_kept_as_bytes_while_only_its_timer_looks_at_it():
    async def check():
        registry = kopf.OperatorRegistry()

        @kopf.timer('kopfexamples', interval=7, registry=registry)
        async def tick(**_):
            pass

        api = Api()
        api.create('early')
        operator = Operator(api, registry)
        operator.start()
        await asyncio.sleep(1)
        api.create('late')
        api.edit({'spec': {'size': 1}}, 'late')
        await asyncio.sleep(30)
        kept = [type(item.inbox._kept) for item in operator.informer]
        await operator.stop()
        return kept

    assert run_virtually(check()) == [bytes, bytes]


class Running:
    """A companion that counts how often it is asked for its limit."""
    looks = 0

    def __init__(self, is_limited):
        self.is_limited = is_limited

    @property
    def has_limit(self):
        Running.looks += 1
        return self.is_limited

    def limit_writing(self, until):
        pass

    def stop(self, reason):
        pass


async def test_waiting_for_many_companions_looks_at_each_a_few_times_only():
    context = SimpleNamespace(settings=kopf.OperatorSettings(), clock=None)
    spawner = companions.Spawner(client=None, context=context, get_memo=None)
    limited, *others = [Running(is_limited=index == 0) for index in range(1000)]
    spawner.alive.update([limited, *others])
    stopping = asyncio.create_task(spawner.stop(
        DaemonStoppingReason.OPERATOR_EXITING, asyncio.get_running_loop().time() + 60))
    for companion in [*others, limited]:
        await asyncio.sleep(0)
        spawner.alive.discard(companion)
        spawner.note_ending()
    await stopping
    assert Running.looks < 5000
