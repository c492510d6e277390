import asyncio
import concurrent.futures
import threading

import pytest

import kopf
from kopf._core.actions import inflight, invocation


@pytest.fixture()
def known():
    known = inflight.Calls()
    token = inflight.calls_var.set(known)
    yield known
    inflight.calls_var.reset(token)


@pytest.fixture()
def executor():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture()
def gate():
    """Where synchronous functions wait."""
    gate = threading.Event()
    yield gate
    gate.set()


def declare(fn, **options):
    registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=registry, **options)(fn)
    handler, = registry._activities._handlers
    return handler


async def until(predicate):
    async with asyncio.timeout(5):
        while not predicate():
            await asyncio.sleep(0.01)


def get_only(known):
    call, = known
    return call


async def test_sync_functions_are_known_with_their_places_while_they_run(known, executor, gate):
    handler = declare(lambda **_: gate.wait(), id='fn')
    task = asyncio.create_task(invocation.invoke(
        handler, {'name': 'obj', 'namespace': 'ns'}, executor))
    await until(lambda: known and get_only(known).began is not None)
    text = get_only(known).describe(get_only(known).began + 12)
    assert text.startswith(f"'fn' for ns/obj (12 s, at {__file__}:")
    assert text.endswith("wait())")
    gate.set()
    await task
    assert not known


async def test_async_functions_are_known_with_their_places_while_they_run(known, executor):
    async def wait_inside():
        await asyncio.sleep(60)

    async def fn(**_):
        await wait_inside()

    task = asyncio.create_task(invocation.invoke(declare(fn, id='fn'), {'name': 'obj'}, executor))
    await until(lambda: known)
    await asyncio.sleep(0)
    text = get_only(known).describe(get_only(known).began + 1)
    assert text.startswith(f"'fn' for obj (1 s, at {__file__}:")
    assert text.endswith("wait_inside())")
    task.cancel()
    await asyncio.wait([task])
    assert not known


async def test_failed_functions_are_known_no_longer(known, executor):
    handler = declare(lambda **_: 1 / 0, id='fn')
    with pytest.raises(ZeroDivisionError):
        await invocation.invoke(handler, {}, executor)
    assert not known


async def test_functions_that_wait_for_a_thread_are_known_as_such(known, executor, gate):
    handler = declare(lambda **_: gate.wait(), id='fn')
    tasks = [asyncio.create_task(invocation.invoke(handler, {}, executor)) for _ in range(2)]
    await until(lambda: len(known) == 2 and next(iter(known)).began is not None)
    assert list(known)[1].describe(list(known)[1].requested + 3) == (
        "'fn' (waits for a thread 3 s)")
    gate.set()
    await asyncio.gather(*tasks)


async def test_functions_are_stuck_if_others_wait_for_their_threads_for_too_long(
        known, executor, gate):
    handler = declare(lambda **_: gate.wait(), id='fn')
    first = asyncio.create_task(invocation.invoke(handler, {}, executor))
    await until(lambda: known and get_only(known).began is not None)
    now = asyncio.get_running_loop().time()
    assert not known.find_stuck(now + 100, 10)  # nobody waits

    second = asyncio.create_task(invocation.invoke(handler, {}, executor))
    await until(lambda: len(known) == 2)
    assert not known.find_stuck(now, 10)
    assert known.find_stuck(now + 11, 10) == [next(iter(known))]
    gate.set()
    await asyncio.gather(first, second)
    assert not known.find_stuck(now + 100, 10)


async def test_functions_are_not_stuck_if_others_have_come_by_meanwhile(known, gate):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        handler = declare(lambda **_: gate.wait(), id='fn')
        tasks = [asyncio.create_task(invocation.invoke(handler, {}, executor)) for _ in range(3)]
        await until(lambda: sum(call.began is not None for call in known) == 2)
        slow, quick, waiting = known
        slow.began -= 100
        waiting.requested -= 100
        assert not known.find_stuck(quick.began + 9, 10)
        assert known.find_stuck(quick.began + 11, 10)
        gate.set()
        await asyncio.gather(*tasks)


async def test_not_too_many_are_named(known, gate):
    with concurrent.futures.ThreadPoolExecutor(20) as executor:
        handler = declare(lambda **_: gate.wait(), id='fn')
        tasks = [asyncio.create_task(invocation.invoke(handler, {}, executor)) for _ in range(8)]
        await until(lambda: sum(call.began is not None for call in known) == 8)
        text = inflight.describe(known, asyncio.get_running_loop().time())
        assert text.count("'fn'") == inflight.MAX_NAMED
        assert text.endswith("; and 3 more")
        gate.set()
        await asyncio.gather(*tasks)
