import asyncio
import concurrent.futures
import threading

import pytest

import kopf
from kopf._cogs.aiokits import clocks, pulses
from kopf._cogs.clients import vaults
from kopf._cogs.structs import credentials
from kopf._core.actions import inflight, invocation
from kopf._core.engines.liveness import health


@pytest.fixture()
def known():
    known = inflight.Calls()
    token = inflight.calls_var.set(known)
    yield known
    inflight.calls_var.reset(token)


@pytest.fixture()
def monitor(known):
    return health.Monitor(underway=known, clock=clocks.Clock())


@pytest.mark.looptime
async def test_pulses_are_late_after_their_time_and_the_slack():
    pulse = pulses.Pulse()
    assert not pulse.is_late(1000)
    pulse.expect(10)
    assert not pulse.is_late(10)
    assert pulse.is_late(10.1)
    assert not pulse.is_late(10.1, slack=5)
    pulse.expect(None)
    assert not pulse.is_late(1000)


@pytest.mark.looptime
async def test_an_operator_is_well_if_nobody_complains(monitor):
    monitor.add('this', lambda now: None)
    assert monitor.diagnose() == {}


@pytest.mark.looptime
async def test_complaints_are_told_by_aspects(monitor):
    monitor.add('this', lambda now: f"since {now:.0f}")
    monitor.add('that', lambda now: None)
    await asyncio.sleep(5)
    assert monitor.diagnose() == {'this': "since 5"}


@pytest.mark.looptime
async def test_waiting_for_credentials_is_well_for_some_time_only(monitor):
    over = asyncio.Event()

    async def login():
        await over.wait()
        return {'': credentials.ConnectionInfo(server='http://localhost')}

    vault = vaults.Vault(login=login)
    monitor.add_vault(vault)
    assert monitor.diagnose() == {}
    waiting = asyncio.create_task(vault.obtain())
    await asyncio.sleep(health.LOGIN_TIMEOUT - 1)
    assert monitor.diagnose() == {}
    await asyncio.sleep(1)
    assert monitor.diagnose() == {'login': "no credentials for 90 s; see the log."}
    over.set()
    await waiting
    assert monitor.diagnose() == {}


@pytest.mark.looptime
async def test_tasks_of_the_operator_have_to_run(monitor):
    task = asyncio.create_task(asyncio.sleep(10))
    monitor.add_task('posting', task)
    assert monitor.diagnose() == {}
    await task
    assert monitor.diagnose() == {'posting': "it has ended."}


@pytest.mark.looptime
async def test_nothing_is_expected_of_an_operator_that_exits(monitor):
    monitor.add('this', lambda now: "wrong")
    monitor.dismiss()
    assert monitor.diagnose() == {}


async def test_threads_that_are_never_given_back_are_told_of(monitor, known, monkeypatch, caplog):
    monkeypatch.setattr(health, 'FULL_TIMEOUT', 0.1)
    monkeypatch.setattr(health, 'FULL_WARNING', 0.05)
    monkeypatch.setattr(health, 'INTERVAL', 0.1)
    gate = threading.Event()
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry, id='fn')
    def fn(**_):
        gate.wait(10)

    handler, = registry._activities._handlers
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        watching = asyncio.create_task(monitor.run())
        tasks = [
            asyncio.create_task(invocation.invoke(handler, {'name': 'obj'}, executor))
            for _ in range(2)]
        await asyncio.sleep(0.5)
        problems = monitor.diagnose()
        gate.set()
        await asyncio.gather(*tasks)
        watching.cancel()
        await asyncio.wait([watching])
    assert problems.keys() == {'threads'}
    assert problems['threads'].startswith("all are busy: 'fn' for obj (")
    assert monitor.diagnose() == {}
    message, = caplog.messages
    assert "all threads have been busy" in message
    assert "'fn' for obj" in message
    assert "settings.execution.max_workers" in message
