import asyncio
import logging
import threading

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._core.actions.execution import Context
from kopf._core.engines.activities import ActivityError, run_activity
from kopf._core.intents.causes import Activity

pytestmark = pytest.mark.looptime

ACTIVITIES = [
    (kopf.on.startup, Activity.STARTUP), (kopf.on.cleanup, Activity.CLEANUP),
    (kopf.on.login, Activity.AUTHENTICATION), (kopf.on.probe, Activity.PROBE),
]


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def run(registry):
    async def run(activity=Activity.STARTUP, indices={}, **kwargs):
        return await run_activity(
            registry=registry, activity=activity, memo=kopf.Memo(), context=Context(
                settings=kopf.OperatorSettings(), clock=Clock(), indices=indices), **kwargs)
    return run


async def test_nothing_is_done_without_handlers(run):
    assert await run() == {}


async def test_results_are_returned_whatever_they_are(run, registry):
    value = object()
    kopf.on.startup(id='one', registry=registry)(lambda **_: value)
    kopf.on.startup(id='two', registry=registry)(lambda **_: None)
    assert await run() == {'one': value}


async def test_handlers_run_one_after_another_as_declared(run, registry):
    seen = []
    for name in 'xyz':
        @kopf.on.startup(id=name, param=name, registry=registry)
        async def fn(param, **_):
            seen.append(f'{param} begins')
            await asyncio.sleep(1)
            seen.append(f'{param} ends')
    await run()
    assert seen == [f'{name} {what}' for name in 'xyz' for what in ('begins', 'ends')]


async def test_async_handlers_run_in_the_loop_of_the_operator_and_sync_ones_in_threads(
        run, registry):
    seen = {}

    @kopf.on.startup(registry=registry)
    async def async_fn(**_):
        seen['loop'] = asyncio.get_running_loop()
        seen['async'] = threading.current_thread()

    @kopf.on.startup(registry=registry)
    def sync_fn(**_):
        seen['sync'] = threading.current_thread()

    await run()
    assert seen['loop'] is asyncio.get_running_loop()
    assert seen['async'] is threading.current_thread()
    assert seen['sync'] is not threading.current_thread()


async def test_handlers_are_retried_for_ever_if_not_limited(run, registry, looptime):
    tries = []

    @kopf.on.startup(registry=registry, backoff=3600)
    async def fn(retry, runtime, **_):
        tries.append((retry, runtime.total_seconds()))
        if retry < 100:
            raise Exception("not yet")

    await run()
    assert tries == [(i, pytest.approx(i * 3600)) for i in range(101)]


async def test_temporary_errors_have_their_delays(run, registry, looptime):
    @kopf.on.startup(registry=registry)
    async def fn(retry, **_):
        if retry < 2:
            raise kopf.TemporaryError("not yet", delay=5)

    await run()
    assert looptime == 10


@pytest.mark.parametrize(('error', 'options', 'duration'), [
    (kopf.PermanentError("boo"), {}, 0),
    (Exception("boo"), {'errors': kopf.ErrorsMode.PERMANENT}, 0),
    (Exception("boo"), {'retries': 3, 'backoff': 10}, 20),
    (Exception("boo"), {'timeout': 15, 'backoff': 10}, 20),
])
async def test_failures_for_good_fail_the_activity_when_the_others_are_done(
        run, registry, looptime, error, options, duration):
    seen = []

    @kopf.on.startup(id='fn', registry=registry, **options)
    async def fn(**_):
        raise error

    @kopf.on.startup(id='another_fn', registry=registry)
    async def another_fn(**_):
        seen.append('called')

    with pytest.raises(ActivityError, match="startup has failed: fn: ") as info:
        await run()
    assert looptime == duration
    assert seen == ['called']
    assert set(info.value.outcomes) == {'fn', 'another_fn'}
    assert info.value.__cause__ is info.value.outcomes['fn'].exception


async def test_errors_can_be_ignored(run, registry):
    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.IGNORED)
    async def fn(**_):
        raise Exception("boo")

    assert await run() == {}


@pytest.mark.parametrize(('decorator', 'activity'), ACTIVITIES)
async def test_activities_get_the_indices(run, registry, decorator, activity):
    seen = []

    @decorator(registry=registry)
    async def fn(idx, **_):
        seen.append(idx)

    await run(activity, indices={'idx': {'key': ['value']}})
    assert seen == [{'key': ['value']}]


@pytest.mark.parametrize(('decorator', 'activity'), ACTIVITIES)
async def test_loggers_are_named_by_their_activities(run, registry, decorator, activity, caplog):
    caplog.set_level(logging.INFO)

    @decorator(registry=registry)
    async def fn(logger, **_):
        logger.info("hello")

    await run(activity)
    record, = [record for record in caplog.records if record.message == 'hello']
    assert record.name == f'kopf.activities.{activity.value}'
