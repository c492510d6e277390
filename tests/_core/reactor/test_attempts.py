"""
How often and when the handlers of changes are tried, and what they share with one another.
"""
import asyncio
import time

import pytest

import kopf
from tests._core.reactor.worlds import accompany, live, now, run_virtually


def test_arbitrary_errors_are_retried_for_ever_if_not_limited():
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def fn(retry, **_):
            calls.append((now(), retry))
            raise Exception("boo")

    live(declare, lasts=60 * 10 - 1, backoff=60)
    assert calls == [(60 * number, number) for number in range(10)]


@pytest.mark.parametrize('options, error, times', [
    ({'backoff': 3}, kopf.TemporaryError("boo"), [0, 60]),
    ({'backoff': 3}, kopf.TemporaryError("boo", delay=20), [0, 20, 40, 60]),
    ({'backoff': 30}, Exception("boo"), [0, 30, 60]),
    ({'timeout': 50}, kopf.TemporaryError("boo", delay=20), [0, 20, 40]),
    ({'retries': 2}, kopf.TemporaryError("boo", delay=20), [0, 20]),
], ids=['default-delay', 'delay', 'backoff', 'timeout', 'retries'])
def test_each_sort_of_errors_has_its_own_delay(options, error, times):
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry, **options)
        async def fn(**_):
            calls.append(now())
            raise error

    live(declare, lasts=79)
    assert calls == times


def test_descendants_of_errors_are_as_their_ancestors():
    calls = []

    class NotYetError(kopf.TemporaryError):
        pass

    class NeverError(kopf.PermanentError):
        pass

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def fn(**_):
            calls.append(now())
            raise NotYetError("not yet", delay=3) if len(calls) == 1 else NeverError("never")

    live(declare, lasts=20)
    assert calls == [0, 3]


def test_sync_handlers_are_not_interrupted_by_their_timeouts():
    def declare(registry):
        @kopf.on.create('kopfexamples', id='fn', timeout=0.001, registry=registry)
        def fn(**_):
            time.sleep(0.1)
            return 'result'

    assert live(declare).objects['obj']['status'] == {'fn': 'result'}


def test_the_time_of_a_handler_begins_with_its_own_first_attempt():
    calls, starts = [], []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def slow(started, **_):
            starts.append(started)
            await asyncio.sleep(10)

        @kopf.on.create('kopfexamples', timeout=5, registry=registry)
        async def limited(started, runtime, **_):
            starts.append(started)
            calls.append((now(), round(runtime.total_seconds(), 1)))
            raise kopf.TemporaryError("boo", delay=2)

    live(declare, lasts=30)
    assert calls == [(10, 0), (12, 2), (14, 4)]
    assert [round((start - starts[0]).total_seconds(), 1) for start in starts] == [0, 10, 10, 10]


def test_handlers_whose_filters_fail_are_tried_again_as_if_they_had_failed():
    calls = []

    def is_wanted(**_):
        calls.append(('filter', now()))
        if now() < 2:
            raise ValueError("not now")
        return True

    def declare(registry):
        @kopf.on.create('kopfexamples', when=is_wanted, backoff=3, registry=registry)
        async def fn(retry, **_):
            calls.append((retry, now()))

    live(declare)
    assert [call for call in calls if call[0] != 'filter'] == [(1, 3)]


def test_handlers_can_wait_for_the_results_of_others():
    calls = []

    def declare(registry):
        @kopf.on.create('kopfexamples', id='job', registry=registry)
        async def create_job(status, **_):
            calls.append((now(), 'job'))
            if 'volume' not in status:
                raise kopf.TemporaryError("not yet", delay=10)
            return f"with {status['volume']['name']}"

        @kopf.on.create('kopfexamples', id='volume', registry=registry)
        async def create_volume(**_):
            calls.append((now(), 'volume'))
            return {'name': 'pvc'}

    api = live(declare, lasts=15)
    assert calls == [(0, 'job'), (0, 'volume'), (10, 'job')]
    assert api.objects['obj']['status'] == {'volume': {'name': 'pvc'}, 'job': 'with pvc'}


def test_creation_and_resuming_with_one_field_are_one_occasion():
    calls = []

    def declare(registry):
        @kopf.on.resume('kopfexamples', field='spec.field', registry=registry)
        @kopf.on.create('kopfexamples', field='spec.field', registry=registry)
        async def fn(reason, **_):
            calls.append(str(reason))

    live(declare, spec={'field': 'value'})
    assert calls == ['create']


def test_waiting_for_sub_handlers_is_no_error_of_their_parent(caplog):
    caplog.set_level('INFO')

    def declare(registry):
        @kopf.on.create('kopfexamples', id='parent', registry=registry)
        async def parent(**_):
            @kopf.subhandler(id='child')
            async def child(retry, **_):
                if retry < 3:
                    raise kopf.TemporaryError("not yet", delay=1)

    live(declare)
    assert [text for text in caplog.messages if "'parent'" in text] == [
        "Handler 'parent' succeeded."]


def test_memos_are_copies_of_the_operators_one_from_when_the_objects_appeared():
    seen = []

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        @kopf.on.update('kopfexamples', registry=registry)
        async def fn(memo, **_):
            seen.append((memo.get('plain'), memo['shared']))

    async def run():
        api, operator = await accompany(declare)
        operator.memo.plain = 'old'
        operator.memo['shared'] = ['old']
        await asyncio.sleep(1)
        operator.memo.plain = 'new'
        operator.memo.shared.append('new')
        api.edit({'spec': {'size': 1}})
        await asyncio.sleep(1)
        await operator.stop()

    run_virtually(run())
    assert seen == [('old', ['old', 'new'])] * 2


@pytest.mark.parametrize('where', ['patch', 'result'])
@pytest.mark.parametrize('depth', [300, 900, 10_000])
def test_what_is_nested_too_deeply_fails_its_handler_only(where, depth):
    calls = []
    deep = {}
    for _ in range(depth):
        deep = {'k': deep}

    def declare(registry):
        @kopf.on.create('kopfexamples', registry=registry)
        async def bad(patch, **_):
            calls.append('bad')
            if where == 'result':
                return deep
            patch.status['deep'] = deep
            return None

        @kopf.on.create('kopfexamples', registry=registry)
        async def good(**_):
            calls.append('good')
            return 'ok'

    api = live(declare)
    assert calls == ['bad', 'good']
    status = api.objects['obj']['status']
    assert [val for key, val in status.items() if key.endswith('good')] == ['ok']
    assert len(status) == 1
