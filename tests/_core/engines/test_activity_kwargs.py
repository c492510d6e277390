"""
What the handlers of the operator's own life get, and what they can change by it.
"""
import datetime

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._core.actions.execution import Context
from kopf._core.engines.activities import run_activity
from kopf._core.intents.causes import Activity

DECORATORS = {
    Activity.STARTUP: kopf.on.startup,
    Activity.CLEANUP: kopf.on.cleanup,
    Activity.AUTHENTICATION: kopf.on.login,
    Activity.PROBE: kopf.on.probe,
}


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def settings():
    return kopf.OperatorSettings()


@pytest.fixture()
def memo():
    return kopf.Memo()


@pytest.fixture()
def run(registry, settings, memo):
    async def run(activity):
        await run_activity(
            registry=registry, activity=activity, memo=memo, context=Context(
                settings=settings, clock=Clock(), indices={'index': {'key': 'value'}}))
    return run


@pytest.mark.parametrize('activity', DECORATORS)
@pytest.mark.parametrize('is_async', [False, True])
async def test_the_kwargs_are_complete(registry, settings, memo, run, activity, is_async):
    seen = {}

    def sync_fn(**kwargs):
        seen.update(kwargs)

    async def async_fn(**kwargs):
        seen.update(kwargs)

    DECORATORS[activity](param='any', registry=registry)(async_fn if is_async else sync_fn)
    await run(activity)
    assert set(seen) == {
        'activity', 'settings', 'memo', 'logger', 'param', 'retry', 'started', 'runtime', 'index'}
    assert seen['activity'] == activity
    assert seen['settings'] is settings
    assert seen['memo'] is memo
    assert seen['param'] == 'any'
    assert seen['retry'] == 0
    assert seen['index'] == {'key': 'value'}
    assert isinstance(seen['started'], datetime.datetime)
    assert isinstance(seen['runtime'], datetime.timedelta)


async def test_settings_and_the_memo_can_be_changed_for_all_that_follows(
        registry, settings, memo, run):
    @kopf.on.startup(registry=registry)
    async def configure(settings, memo, **_):
        settings.posting.enabled = False
        memo.queue = []

    await run(Activity.STARTUP)
    assert settings.posting.enabled is False
    assert memo == {'queue': []}
