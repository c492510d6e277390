import asyncio
import threading

import pytest

from kopf._core.intents.stopping import DaemonStopped, DaemonStopper, DaemonStoppingReason


@pytest.fixture(params=[False, True], ids=['sync', 'async'])
def is_async(request):
    return request.param


async def test_flags_are_false_initially(is_async):
    waiter: DaemonStopped = DaemonStopper().make_waiter(is_async=is_async)
    assert not waiter and not waiter.is_set() and waiter.reason is None


async def test_flags_are_true_when_set(is_async):
    setter = DaemonStopper()
    waiter = setter.make_waiter(is_async=is_async)
    setter.set(DaemonStoppingReason.RESOURCE_DELETED)
    assert waiter and waiter.is_set()


async def test_reasons_are_added_up(is_async):
    setter = DaemonStopper()
    waiter = setter.make_waiter(is_async=is_async)
    setter.set(DaemonStoppingReason.RESOURCE_DELETED)
    setter.set(DaemonStoppingReason.DAEMON_CANCELLED)
    assert waiter.reason == (
        DaemonStoppingReason.RESOURCE_DELETED | DaemonStoppingReason.DAEMON_CANCELLED)


async def test_threads_wait_until_the_flag_is_set():
    setter = DaemonStopper()
    waiter = setter.make_waiter(is_async=False)
    results = []
    thread = threading.Thread(target=lambda: results.append(bool(waiter.wait())))
    thread.start()
    setter.set(DaemonStoppingReason.DONE)
    await asyncio.to_thread(thread.join)
    assert results == [True]


@pytest.mark.parametrize('name', ['sync_event', 'async_event'])
async def test_all_wait_for_the_same_event_whenever_they_begin_to_wait(name):
    setter = DaemonStopper()
    event = getattr(setter, name)
    assert not event.is_set()
    setter.set(DaemonStoppingReason.DONE)
    assert event.is_set()
    assert getattr(setter, name) is event


@pytest.mark.parametrize('name', ['sync_event', 'async_event'])
async def test_who_begins_to_wait_when_the_flag_is_set_does_not_wait(name):
    setter = DaemonStopper()
    setter.set(DaemonStoppingReason.DONE)
    assert getattr(setter, name).is_set()


def test_waiters_return_themselves():
    setter = DaemonStopper()
    setter.set(DaemonStoppingReason.DONE)
    waiter = setter.make_waiter(is_async=False)
    assert waiter.wait() is waiter


def test_threads_wait_no_longer_than_the_timeout():
    assert not DaemonStopper().make_waiter(is_async=False).wait(0.001)


async def test_coroutines_wait_until_the_flag_is_set():
    setter = DaemonStopper()
    waiter = setter.make_waiter(is_async=True)
    asyncio.get_running_loop().call_soon(setter.set, DaemonStoppingReason.DONE)
    assert await waiter.wait() is waiter


async def test_coroutines_wait_no_longer_than_the_timeout():
    assert not await DaemonStopper().make_waiter(is_async=True).wait(0.001)


async def test_all_waiters_are_woken():
    setter = DaemonStopper()
    tasks = [asyncio.create_task(setter.make_waiter(is_async=True).wait(10)) for _ in range(3)]
    await asyncio.sleep(0)
    setter.set(DaemonStoppingReason.DONE)
    assert all(await asyncio.gather(*tasks))


async def test_cancellation_is_not_swallowed():
    task = asyncio.create_task(DaemonStopper().make_waiter(is_async=True).wait(10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_flags_show_why_they_are_set(is_async):
    setter = DaemonStopper()
    setter.set(DaemonStoppingReason.DONE)
    assert 'DONE' in repr(setter.make_waiter(is_async=is_async))
