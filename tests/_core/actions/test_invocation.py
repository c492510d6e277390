import asyncio
import concurrent.futures
import contextvars
import functools
import threading

import pytest

import kopf
from kopf._core.actions.invocation import invoke


@pytest.fixture()
def executor():
    with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix='of-the-test') as executor:
        yield executor


def declare(fn):
    registry = kopf.OperatorRegistry()
    kopf.on.startup(id='fn', registry=registry)(fn)
    handler, = registry._activities
    return handler


async def test_async_functions_run_in_the_loop(executor):
    async def fn(**kwargs):
        return threading.current_thread(), asyncio.get_running_loop(), kwargs

    assert await invoke(declare(fn), {'a': 1}, executor) == (
        threading.current_thread(), asyncio.get_running_loop(), {'a': 1})


async def test_sync_functions_run_in_threads_of_the_executor(executor):
    def fn(**kwargs):
        return threading.current_thread().name, kwargs

    name, kwargs = await invoke(declare(fn), {'a': 1}, executor)
    assert name.startswith('of-the-test') and kwargs == {'a': 1}


async def test_partials_are_sync_or_async_as_what_they_are_made_of(executor):
    async def async_fn(x, **_):
        return x, threading.current_thread() is threading.main_thread()

    def sync_fn(x, **_):
        return x, threading.current_thread() is threading.main_thread()

    assert await invoke(declare(functools.partial(async_fn, x=1)), {}, executor) == (1, True)
    assert await invoke(declare(functools.partial(sync_fn, x=1)), {}, executor) == (1, False)


async def test_coroutines_returned_by_sync_functions_are_awaited(executor):
    async def async_fn(**_):
        return threading.current_thread()

    assert await invoke(
        declare(lambda **_: async_fn()), {}, executor) is threading.current_thread()


async def test_no_more_sync_functions_run_at_once_than_there_are_workers(executor):
    running, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(2)

    def fn(**_):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(10)  # two at once, always
        with lock:
            running -= 1

    await asyncio.gather(*(invoke(declare(fn), {}, executor) for _ in range(6)))
    assert most == 2


async def test_what_has_started_in_an_executor_ends_in_it():
    settings = kopf.OperatorSettings()
    go_on = threading.Event()
    names = []

    def fn(**_):
        names.append(threading.current_thread().name)
        go_on.wait(10)
        names.append(threading.current_thread().name)

    with concurrent.futures.ThreadPoolExecutor(1, 'first') as first, \
            concurrent.futures.ThreadPoolExecutor(1, 'second') as second:
        settings.execution.executor = first
        one = asyncio.create_task(invoke(declare(fn), {}, settings.execution.executor))
        while not names:
            await asyncio.sleep(0.001)
        settings.execution.executor = second
        go_on.set()
        await one
        await invoke(declare(fn), {}, settings.execution.executor)
    assert [name.partition('_')[0] for name in names] == ['first', 'first', 'second', 'second']


async def test_context_variables_of_the_caller_are_seen_in_threads(executor):
    var = contextvars.ContextVar('var')
    var.set(123)
    assert await invoke(declare(lambda **_: var.get()), {}, executor) == 123


async def test_a_cancelled_thread_is_waited_for_and_its_result_is_kept(executor):
    started, go_on = threading.Event(), threading.Event()

    def fn(**_):
        started.set()
        go_on.wait(10)
        return 'done'

    task = asyncio.create_task(invoke(declare(fn), {}, executor))
    while not started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    assert await task == 'done'


async def test_stopping_an_iteration_by_mistake_is_an_error(executor):
    def fn(**_):
        next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await invoke(declare(fn), {}, executor)
