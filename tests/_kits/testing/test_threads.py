"""
Threads of handlers in virtual time.
"""
import asyncio
import concurrent.futures
import contextlib
import threading
import time

import pytest

import kopf
from kopf import testing
from kopf._core.intents.stopping import DaemonStopper, DaemonStoppingReason
from kopf.testing import virtual_time

SOON = 600
"""How many real seconds are much less than the virtual ones, on a busy machine, too."""


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def operate(registry, crd):
    """Run an operator with one object for the block."""
    @contextlib.asynccontextmanager
    async def operate(*faults, **options):
        async with testing.open_api('sandbox') as api:
            await api.client.load(crd)
            for fault in faults:
                api.sandbox.faults.add(fault)
            async with api.operator(registry=registry, **options) as operator:
                await api.client.create('kopfexamples', 'obj')
                await operator.wait_log("is invoked")
                yield operator, api
    return operate


@pytest.fixture()
def blocker():
    """What a thread waits for that nobody in virtual time knows."""
    released = threading.Event()
    yield released
    released.set()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let working daemons hold the time also on a machine that stalls for a second."""
    monkeypatch.setattr('kopf._kits.testing.virtual.PATIENCE', 60.0)


@pytest.fixture()
def impatient(patient, monkeypatch):
    monkeypatch.setattr('kopf._kits.testing.virtual.PATIENCE', 0.1)


def now():
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize('on', [
    kopf.daemon, lambda *args, **kwargs: kopf.timer(*args, **kwargs, interval=86400)])
@virtual_time
async def test_threads_wait_for_their_flags_in_virtual_time(registry, operate, on):
    calls = []
    loop = asyncio.get_running_loop()

    @on('kopfexamples', registry=registry)
    def fn(stopped, **_):
        while not stopped.wait(600):
            calls.append(loop.time())
        calls.append(stopped.reason)

    async with operate():
        await asyncio.sleep(3100)
        assert [call - calls[0] for call in calls] == [0, 600, 1200, 1800, 2400]
        calls.clear()
    assert calls == [DaemonStoppingReason.OPERATOR_EXITING]


@pytest.mark.parametrize('timeout', [None, 0, -1, 0.001, 20, 90, 1e9])
@virtual_time
async def test_threads_see_at_once_that_they_have_to_stop(registry, operate, timeout):
    seen = []
    loop = asyncio.get_running_loop()

    @kopf.daemon('kopfexamples', registry=registry)
    def fn(stopped, **_):
        began = loop.time()
        seen.append((stopped.wait(timeout) is stopped, bool(stopped), loop.time() - began))
        stopped.wait()
        seen.append((stopped.wait(timeout) is stopped, bool(stopped), loop.time() - began))

    async with operate() as (_, api):
        await asyncio.sleep(60)
        await api.client.delete('kopfexamples', 'obj')
        await api.client.wait_gone('kopfexamples', 'obj', timeout=5)
    is_long = timeout is None or timeout > 60
    assert seen == [
        (True, is_long, pytest.approx(60 if is_long else max(timeout, 0), abs=1)),
        (True, True, pytest.approx(60, abs=1))]


@virtual_time
async def test_a_stopped_daemon_has_its_time_to_leave(registry, operate):
    reasons = []

    @kopf.daemon('kopfexamples', registry=registry, cancellation_timeout=30)
    def fn(stopped, **_):
        stopped.wait()
        time.sleep(0.1)
        reasons.append(stopped.reason)

    async with operate() as (_, api):
        await api.client.delete('kopfexamples', 'obj')
        await api.client.wait_gone('kopfexamples', 'obj', timeout=60)
    reason, = reasons
    assert not reason & DaemonStoppingReason.DAEMON_ABANDONED


@virtual_time
async def test_no_time_passes_while_a_daemon_works(registry, operate):
    durations = []
    loop = asyncio.get_running_loop()

    @kopf.daemon('kopfexamples', registry=registry)
    def fn(stopped, **_):
        for _ in range(5):
            began = loop.time()
            time.sleep(0.05)
            durations.append(loop.time() - began)
            stopped.wait(600)

    async with operate():
        await asyncio.sleep(3600)
    assert len(durations) == 5
    assert max(durations) < 60


@virtual_time
async def test_the_time_passes_if_a_daemon_blocks_its_thread(
        registry, operate, blocker, impatient):
    ended = []

    @kopf.daemon('kopfexamples', registry=registry, cancellation_timeout=0.1)
    def fn(**_):
        blocker.wait()
        ended.append(True)

    started = time.monotonic()
    async with operate() as (operator, api):
        await asyncio.sleep(SOON)
        await api.client.delete('kopfexamples', 'obj')
        with pytest.warns(ResourceWarning, match="did not exit in time"):
            await api.client.wait_gone('kopfexamples', 'obj')
        await asyncio.sleep(SOON)  # it is given up
        assert "Leaving it orphaned" in operator.text
        assert time.monotonic() - started < SOON
        assert not ended
        blocker.set()


@pytest.mark.parametrize('timeout', [None, 0.1])
@virtual_time
async def test_an_operator_waits_in_real_time_for_threads_that_do_not_end(
        registry, operate, blocker, impatient, timeout):
    @kopf.daemon('kopfexamples', registry=registry, cancellation_timeout=timeout)
    def fn(**_):
        blocker.wait()

    async with operate() as (operator, api):
        if timeout is not None:
            await api.client.delete('kopfexamples', 'obj')
            with pytest.warns(ResourceWarning, match="did not exit in time"):
                await api.client.wait_gone('kopfexamples', 'obj')
        before = now()
        timer = threading.Timer(0.3, blocker.set)
        timer.start()
        await operator.stop()
        timer.join()
        assert now() - before < SOON


@virtual_time
async def test_daemons_that_never_end_are_named(
        registry, operate, blocker, impatient, monkeypatch):
    monkeypatch.setattr('kopf._kits.testing.virtual.VirtualLoop.farewell', 0.1)
    monkeypatch.setattr('kopf._core.reactor.operating.WRITING_TIME', 0.1)

    @kopf.daemon('kopfexamples', registry=registry, id='stuck')
    def fn(**_):
        blocker.wait()

    settings = kopf.OperatorSettings()
    settings.queueing.exit_timeout = 0.1
    with pytest.raises(RuntimeError, match=r"has not stopped: .*'stuck' for default/obj"):
        async with operate(settings=settings):
            await asyncio.sleep(0.1)


@virtual_time
async def test_other_threads_wait_for_the_flag_of_a_daemon_too(registry, operate, impatient):
    calls = []
    loop = asyncio.get_running_loop()

    def work(stopped):
        began = loop.time()
        stopped.wait(60)
        calls.append(loop.time() - began)

    @kopf.daemon('kopfexamples', registry=registry)
    def fn(stopped, **_):
        worker = threading.Thread(target=work, args=[stopped])
        worker.start()
        worker.join()

    async with operate():
        while not calls:  # it holds nothing when it goes on, so any time can pass until then
            await asyncio.sleep(1)
    assert calls[0] >= 60


@virtual_time
async def test_conditions_are_checked_while_threads_work(registry, operate, blocker):
    @kopf.on.create('kopfexamples', registry=registry)
    def fn(logger, **_):
        logger.info("It begins.")
        blocker.wait(30)  # longer than conditions are waited for

    async with operate() as (operator, _):
        await operator.wait_log("It begins")
        blocker.set()
        await operator.wait_log("succeeded")


@virtual_time
async def test_threads_of_any_executor_take_no_time(registry, operate):
    done = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.execution.executor = executor

    @kopf.on.create('kopfexamples', registry=registry)
    def fn(**_):
        time.sleep(0.1)
        done.append(True)

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        async with operate():
            await asyncio.sleep(SOON)
            assert done


@virtual_time
async def test_the_time_passes_if_there_is_no_thread_for_a_daemon(registry, operate, impatient):
    @kopf.daemon('kopfexamples', registry=registry)
    def fn(stopped, **_):
        stopped.wait()

    settings = kopf.OperatorSettings()
    with concurrent.futures.ThreadPoolExecutor(1) as settings.execution.executor:
        async with operate(settings=settings) as (operator, api):
            await api.client.create('kopfexamples', 'other')
            await operator.wait_log("is invoked", count=2)
            started = time.monotonic()
            await asyncio.sleep(SOON)
            assert time.monotonic() - started < SOON


@virtual_time
async def test_threads_wait_for_requests_in_virtual_time(registry, operate):
    outcomes = []

    @kopf.on.create('kopfexamples', registry=registry)
    def fn(name, namespace, **_):
        manifest = {'apiVersion': 'v1', 'kind': 'ConfigMap',
                    'metadata': {'name': name, 'namespace': namespace}}
        for timeout in (SOON, 3 * SOON, None):
            try:
                outcomes.append(kopf.apply(manifest).result(timeout)['metadata']['name'])
            except TimeoutError as e:
                outcomes.append(type(e))

    settings = kopf.OperatorSettings()
    settings.networking.request_timeout = None
    started = time.monotonic()
    slow = testing.Fault(
        action='delay', verb='patch', resource='configmaps', seconds=2 * SOON)
    async with operate(slow, settings=settings) as (operator, _):
        await operator.wait_log("succeeded", timeout=10 * SOON)
        assert 5 * SOON <= now() < 5.1 * SOON
    assert outcomes == [TimeoutError, 'obj', 'obj']
    assert time.monotonic() - started < SOON


def test_the_time_of_a_flag_is_real_after_the_end_of_the_loop():
    seen = []
    setter = DaemonStopper()

    async def begin():
        waiter = setter.make_waiter(is_async=False)
        waiting = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work():
            loop.call_soon_threadsafe(waiting.set)
            seen.append(bool(waiter.wait(0.1)))
            seen.append(bool(waiter.wait(0.1)))
            seen.append(bool(waiter.wait()))

        worker = threading.Thread(target=work)
        worker.start()
        await waiting.wait()
        return worker

    worker = testing.virtual_time(begin)()
    while len(seen) < 2:
        time.sleep(0.01)
    assert seen == [False, False]
    setter.set(DaemonStoppingReason.OPERATOR_EXITING)
    worker.join()
    assert seen == [False, False, True]


@virtual_time
async def test_flags_that_are_set_before_they_are_seen():
    setter = DaemonStopper()
    setter.set(DaemonStoppingReason.OPERATOR_EXITING)
    waiter = setter.make_waiter(is_async=False)
    assert await asyncio.to_thread(waiter.wait)
    assert now() == 0


@virtual_time
async def test_without_threads_flags_are_waited_for_as_in_real_time():
    waiter = DaemonStopper().make_waiter(is_async=False)
    assert not waiter.wait(0.01)
    assert now() == 0
