"""
What the options of daemons and timers mean: one rule each, in virtual time.
"""
import asyncio
import functools
import logging
import threading

import pytest

import kopf
from kopf import testing
from tests._core.reactor.worlds import accompany, live, now, run_virtually
from tests.crds import make_crd

SORTS = pytest.mark.parametrize('decorate', [kopf.daemon, kopf.timer])


def edit(api):
    api.edit({'spec': {'size': now()}})


@SORTS
def test_async_functions_run_in_the_event_loop_and_sync_ones_in_threads(decorate):
    threads = {}

    def declare(registry):
        @decorate('kopfexamples', id='async', registry=registry)
        @kopf.on.create('kopfexamples', id='async-created', registry=registry)
        async def async_fn(reason=None, **_):
            threads['async', reason] = threading.current_thread()

        @decorate('kopfexamples', id='sync', registry=registry)
        @kopf.on.create('kopfexamples', id='sync-created', registry=registry)
        def sync_fn(reason=None, **_):
            threads['sync', reason] = threading.current_thread()

    async def run():
        _, operator = await accompany(declare)
        while len(threads) < 4:
            await asyncio.sleep(1)
        await operator.stop()

    run_virtually(run())
    assert {key for key, thread in threads.items() if thread is threading.main_thread()} == {
        ('async', None), ('async', 'create')}


@SORTS
@pytest.mark.parametrize('name, labels, annotations, expected', [
    ('some-obj', {'l': 'v'}, {'a': 'v'}, True),
    ('other-obj', {'l': 'v'}, {'a': 'v'}, False),
    ('some-obj', {'l': 'w'}, {'a': 'v'}, False),
    ('some-obj', {'l': 'v'}, {}, False),
])
def test_only_objects_that_match_all_filters_have_them(
        decorate, name, labels, annotations, expected):
    names = []

    def declare(registry):
        @decorate('kopfexamples', labels={'l': 'v'}, annotations={'a': 'v'},
                  when=lambda name, **_: 'some' in name, registry=registry)
        async def fn(name, **_):
            names.append(name)

    live(declare, (0, lambda api: api.create(
        name, metadata={'labels': labels, 'annotations': annotations})))
    assert names == ([name] if expected else [])


def test_daemons_and_timers_go_on_while_the_field_has_its_value():
    moves = []

    def declare(registry):
        @kopf.daemon('kopfexamples', field='spec.mode', value='on', registry=registry)
        async def daemon(stopped, **_):
            moves.append((now(), 'begins'))
            await stopped.wait()
            moves.append((now(), 'ends'))

        @kopf.timer('kopfexamples', interval=4, field='spec.mode', value='on', registry=registry)
        async def timer(**_):
            moves.append((now(), 'ticks'))

    live(declare, *(
        (10 * number, lambda api, value=value: api.edit({'spec': {'mode': value}}))
        for number, value in enumerate(['on', 'off', 'on', None], 1)), lasts=50)
    assert sorted(moves) == sorted(
        move for start in (10, 30) for move in [
            (start, 'begins'), (start, 'ticks'), (start + 4, 'ticks'), (start + 8, 'ticks'),
            (start + 10, 'ends')])


def test_filters_are_asked_again_only_when_the_object_changes():
    moves, wanted = [], [True]

    def declare(registry):
        @kopf.daemon('kopfexamples', when=lambda **_: wanted[0], registry=registry)
        async def fn(stopped, **_):
            moves.append((now(), 'begins'))
            await stopped.wait()
            moves.append((now(), 'ends'))

    async def run():
        api, operator = await accompany(declare)
        for number in range(2):
            await asyncio.sleep(10)
            wanted[0] = not wanted[0]
            await asyncio.sleep(100)
            api.edit({'spec': {'size': number}})
        await asyncio.sleep(10)
        await operator.stop()

    run_virtually(run())
    assert moves == [(0, 'begins'), (110, 'ends'), (220, 'begins'), (230, 'ends')]


@pytest.mark.parametrize('delay, times', [(10, [0, 20, 40]), (None, [0, 10, 20, 30, 40])])
def test_daemons_begin_again_after_temporary_errors(delay, times):
    calls = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(**_):
            calls.append(now())
            await asyncio.sleep(10)
            raise kopf.TemporaryError("once more", delay=delay)

    live(declare, lasts=45)
    assert calls == times


ENDS = {
    'by-itself': ({}, None, 1),
    'permanent-error': ({}, kopf.PermanentError, 1),
    'any-error-is-permanent': ({'errors': kopf.ErrorsMode.PERMANENT}, Exception, 1),
    'any-error-is-ignored': ({'errors': kopf.ErrorsMode.IGNORED}, Exception, 1),
    'retries': ({'retries': 3, 'backoff': 1}, Exception, 3),
    'timeout': ({'timeout': 5, 'backoff': 2}, Exception, 3),
}


@pytest.mark.parametrize('options, error, count', ENDS.values(), ids=ENDS)
def test_daemons_that_have_ended_are_not_started_again(options, error, count):
    calls = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry, **options)
        async def fn(retry, **_):
            calls.append(retry)
            if error is not None:
                raise error("boo")

    live(declare, *((20 * size, edit) for size in range(1, 4)), lasts=80)
    assert calls == [*range(count)]


def test_errors_of_all_sorts_can_follow_one_another():
    calls = []

    def declare(registry):
        @kopf.daemon('kopfexamples', errors=kopf.ErrorsMode.TEMPORARY, backoff=5, retries=10,
                     registry=registry)
        def fn(retry, runtime, **_):
            calls.append((retry, round(runtime.total_seconds())))
            if retry < 3:
                raise kopf.TemporaryError("not yet", delay=1)
            if retry < 5:
                raise OSError("not there")
            raise kopf.PermanentError("never")

    async def run():
        _, operator = await accompany(declare)
        while len(calls) < 6:
            await asyncio.sleep(10)
        await asyncio.sleep(100)
        await operator.stop()

    run_virtually(run())
    assert [retry for retry, _ in calls] == [0, 1, 2, 3, 4, 5]


def test_all_schedules_of_a_timer_can_be_combined():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', initial_delay=6, interval=1, idle=60, registry=registry)
        async def fn(**_):
            times.append(now())

    live(declare, (62.5, edit), lasts=125)
    assert times == [60, 61, 62, 122.5, 123.5, 124.5]


def test_the_initial_delay_is_for_the_first_time_only():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', initial_delay=60, interval=10, idle=5, registry=registry)
        async def fn(**_):
            times.append(now())

    live(declare, (75, edit), lasts=95)
    assert times == [60, 70, 80, 90]


def test_a_further_attempt_of_an_idle_timer_waits_after_a_change():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', idle=5, backoff=2, interval=100, registry=registry)
        async def fn(retry, **_):
            times.append(now())
            if not retry:
                raise Exception("boo")

    live(declare, (6, edit), lasts=30)
    assert times == [5, 11]


FAILURES = {
    'arbitrary': ({'backoff': 5}, Exception, [0, 5, 15, 25]),
    'temporary': ({'backoff': 5}, functools.partial(kopf.TemporaryError, delay=2), [0, 2, 12, 22]),
    'ignored': ({'errors': kopf.ErrorsMode.IGNORED}, Exception, [0, 10, 20]),
    'permanent': ({}, kopf.PermanentError, [0]),
}


@pytest.mark.parametrize('options, error, times', FAILURES.values(), ids=FAILURES)
def test_errors_overrule_the_interval_of_a_timer(options, error, times):
    calls = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=10, registry=registry, **options)
        async def fn(**_):
            calls.append(now())
            if len(calls) == 1:
                raise error("boo")

    live(declare, lasts=29)
    assert calls == times


def test_the_timeout_is_for_all_tries_of_one_tick():
    calls = []

    def declare(registry):
        @kopf.timer('kopfexamples', interval=10, backoff=5, timeout=12, registry=registry)
        async def fn(retry, **_):
            calls.append((now(), retry))
            if len(calls) != 3:
                raise Exception("boo")

    live(declare, lasts=100)
    assert calls == [(0, 0), (5, 1), (10, 2), (20, 0), (25, 1), (30, 2)]


def test_timers_and_handlers_run_side_by_side():
    moves = []

    def declare(registry):
        for id in ('timer1', 'timer2'):
            @kopf.timer('kopfexamples', id=id, interval=1000, registry=registry)
            async def timer(**_):
                moves.append('in')
                await asyncio.sleep(5)
                moves.append('out')

        @kopf.on.create('kopfexamples', registry=registry)
        async def created(**_):
            moves.append('in')
            await asyncio.sleep(5)
            moves.append('out')

    live(declare, lasts=10)
    assert moves == ['in'] * 3 + ['out'] * 3


def test_results_put_to_the_object_are_changes_that_an_idle_timer_waits_after():
    times = []

    def declare(registry):
        @kopf.timer('kopfexamples', idle=10, interval=1, registry=registry)
        async def fn(**_):
            times.append(now())
            return len(times)

    live(declare, lasts=35)
    assert times == pytest.approx([10, 20, 30], abs=0.3)


@pytest.mark.parametrize('own, default', [(10, 60), (None, 10)])
def test_daemons_without_limits_hold_the_deletion_and_are_mentioned_from_time_to_time(
        caplog, own, default):
    caplog.set_level(logging.DEBUG)

    def declare(registry):
        @kopf.daemon('kopfexamples', id='fn', cancellation_polling=own, registry=registry)
        async def fn(stopped, **_):
            await stopped.wait()
            await asyncio.sleep(95)

    async def run():
        api, operator = await accompany(declare)
        operator.settings.background.cancellation_polling = default
        await asyncio.sleep(1)
        api.delete()
        await asyncio.sleep(94)
        assert api.objects
        await asyncio.sleep(2)
        assert not api.objects
        await operator.stop()

    run_virtually(run())
    assert [record.levelname for record in caplog.records
            if "Daemon 'fn' is still exiting" in record.message] == ['DEBUG'] + ['WARNING'] * 9


def test_a_daemon_can_look_at_its_object_for_the_first_time_when_it_is_gone():
    seen = []

    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry)
        async def fn(stopped, body, spec, **_):
            await stopped.wait()
            await asyncio.sleep(1)
            seen.append((body['metadata']['name'], dict(spec)))

    def remove(api):  # others have removed the finalizer
        api.edit({'metadata': {'finalizers': None, 'deletionTimestamp': '2020-01-01T00:00:00Z'}})

    live(declare, (5, remove), spec={'size': 1}, lasts=20)
    assert seen == [('obj', {'size': 1})]


@pytest.mark.parametrize('options, duration', [
    ({}, 5),
    ({'cancellation_backoff': 1000}, 5),
    ({'cancellation_timeout': 20}, 0),
    ({'cancellation_backoff': 8, 'cancellation_timeout': 20}, 8),
])
def test_at_exit_daemons_are_cancelled_by_their_stages_or_after_a_while(options, duration):
    def declare(registry):
        @kopf.daemon('kopfexamples', registry=registry, **options)
        async def fn(**_):
            await asyncio.sleep(1_000_000)

    async def run():
        _, operator = await accompany(declare)
        await asyncio.sleep(1)
        start = asyncio.get_running_loop().time()
        await operator.stop()
        return asyncio.get_running_loop().time() - start

    assert run_virtually(run()) == pytest.approx(duration, abs=0.1)


@pytest.mark.parametrize('option, value, turns, seconds, cancelled', [
    ('instant_exit_timeout', 5, 0, 4, False),
    ('instant_exit_timeout', 5, 0, 6, True),
    ('instant_exit_zero_time_cycles', 20, 15, 0, False),
    ('instant_exit_zero_time_cycles', 10, 15, 0, True),
    ('instant_exit_zero_time_cycles', None, 5, 0, True),
])
def test_daemons_that_end_at_once_are_not_cancelled(option, value, turns, seconds, cancelled):
    ends = []

    def declare(registry):
        @kopf.daemon('kopfexamples', cancellation_timeout=20, registry=registry)
        async def fn(stopped, **_):
            try:
                await stopped.wait()
                for _ in range(turns):
                    await asyncio.sleep(0)
                if seconds:
                    await asyncio.sleep(seconds)
                ends.append('by itself')
            except asyncio.CancelledError:
                ends.append('cancelled')

    async def run():
        api, operator = await accompany(declare)
        setattr(operator.settings.background, option, value)
        await asyncio.sleep(1)
        api.delete()
        await asyncio.sleep(20)
        await operator.stop()

    run_virtually(run())
    assert ends == ['cancelled' if cancelled else 'by itself']


OBJECT_KWARGS = {
    'memo', 'logger', 'param', 'retry', 'started', 'runtime', 'resource', 'body', 'spec', 'meta',
    'status', 'uid', 'name', 'namespace', 'labels', 'annotations', 'patch', 'names',
}


@pytest.mark.parametrize('is_async', [False, True])
def test_the_kwargs_are_complete(is_async):
    seen = {}

    def declare(registry):
        for id, decorate in {'daemon': kopf.daemon, 'timer': kopf.timer}.items():
            def sync_fn(id=id, **kwargs):
                seen[id] = kwargs

            async def async_fn(id=id, **kwargs):
                seen[id] = kwargs

            decorate('kopfexamples', id=id, param=id, registry=registry)(
                async_fn if is_async else sync_fn)

        @kopf.index('kopfexamples', id='names', param='index', registry=registry)
        async def names(name, **kwargs):
            seen['index'] = {'name': name, **kwargs}
            return name

    async def run():
        _, operator = await accompany(declare, spec={'field': 'value'})
        while len(seen) < 3:
            await asyncio.sleep(1)
        await operator.stop()

    run_virtually(run())
    assert {id: set(kwargs) for id, kwargs in seen.items()} == {
        'daemon': OBJECT_KWARGS | {'stopped'}, 'timer': OBJECT_KWARGS | {'stopped'},
        'index': OBJECT_KWARGS}
    for id, kwargs in seen.items():
        assert kwargs['param'] == id
        assert kwargs['retry'] == 0
        assert kwargs['name'] == 'obj'
        assert isinstance(kwargs['memo'], kopf.Memo)
        assert kwargs['spec'] == {'field': 'value'}


@SORTS
def test_conflicts_in_a_row_are_no_errors_but_many_times_more_are(decorate, caplog):
    counts = {}

    for rounds in (10, 11):
        def declare(registry):
            @decorate('kopfexamples', initial_delay=5, registry=registry)
            async def fn(patch, **_):
                patch.status['done'] = True

        def obstruct(api, rounds=rounds):
            api.faults = ['conflict', None] * rounds

        caplog.clear()
        api = live(declare, (1, obstruct), lasts=10_000)
        assert api.objects['obj']['status'] == {'done': True}
        counts[rounds] = len([r for r in caplog.records if r.levelno >= logging.WARNING])
    assert counts == {10: 0, 11: 1}


@testing.virtual_time
async def test_in_another_version_of_the_kind_daemons_wait_for_the_end_of_the_former(registry):
    running, most = [], []

    @kopf.daemon('things.example.com', registry=registry)
    async def daemon_fn(resource, stopped, **_):
        running.append(resource.version)
        most.append([*running])
        await stopped.wait()
        await asyncio.sleep(20)
        running.remove(resource.version)

    definition = make_crd('Thing', 'things')
    [version] = definition['spec']['versions']
    versions = [version, {**version, 'name': 'v2', 'storage': False}]
    async with testing.open_api('sandbox') as api:
        await api.client.create(definition)
        async with api.operator(registry=registry):
            await api.client.create('things', 'thing')
            await testing.wait_for(lambda: running == ['v1'])
            await api.client.patch(
                'customresourcedefinitions', 'things.example.com', {'spec': {'versions': versions}})
            await testing.wait_for(lambda: running == ['v2'], timeout=60)
            await api.client.delete('things', 'thing')
    assert most == [['v1'], ['v2']]


@testing.virtual_time
async def test_without_a_finalizer_they_run_and_stop_when_their_object_is_gone(registry):
    ticks, ends = [], []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.persistence.finalizer = None

    @kopf.timer('things', interval=1, registry=registry)
    async def timer_fn(**_):
        ticks.append(now())

    @kopf.daemon('things', registry=registry)
    async def daemon_fn(stopped, **_):
        await stopped.wait()
        ends.append(stopped.reason)

    async with testing.open_api('sandbox') as api:
        await api.client.create(make_crd('Thing', 'things'))
        async with api.operator(registry=registry):
            await api.client.create('things', 'thing')
            await asyncio.sleep(5)
            obj = await api.client.get('things', 'thing')
            assert 'finalizers' not in obj['metadata']
            await api.client.delete('things', 'thing')
            await asyncio.sleep(5)
    assert 4 <= len(ticks) <= 6
    assert len(ends) == 1 and kopf.DaemonStoppingReason.RESOURCE_DELETED in ends[0]


@testing.virtual_time
async def test_objects_are_not_gone_when_another_version_is_served_instead():
    registry, ends = kopf.OperatorRegistry(), []

    @kopf.daemon('things', registry=registry)
    async def daemon_fn(stopped, resource, **_):
        await stopped.wait()
        ends.append((resource.version, stopped.reason))

    crd = make_crd('Thing', 'things')
    version, = crd['spec']['versions']
    async with testing.open_api('sandbox') as api:
        await api.client.create(crd)
        async with api.operator(registry=registry):
            await api.client.create('things', 'thing')
            await asyncio.sleep(5)
            await api.client.patch(crd, {'spec': {'versions': [
                {**version, 'served': False, 'storage': False}, {**version, 'name': 'v2'}]}})
            await asyncio.sleep(60)
    assert [version for version, _ in ends] == ['v1', 'v2']
    assert all(kopf.DaemonStoppingReason.RESOURCE_DELETED not in reason for _, reason in ends)
