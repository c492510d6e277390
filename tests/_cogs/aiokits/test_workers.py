import asyncio
import collections

import pytest

from kopf._cogs.aiokits.workers import Workers

pytestmark = pytest.mark.looptime


@pytest.fixture()
def source():
    return collections.deque()


@pytest.fixture()
def make(source):
    def make(process, *, limit=2, idle_timeout=1.0):
        return Workers(
            process, source=lambda: source.popleft() if source else None,
            limit=limit, idle_timeout=idle_timeout)
    return make


def put(workers, source, *items):
    for item in items:
        source.append(item)
        workers.notify()


async def test_no_tasks_are_there_without_items(make):
    workers = make(asyncio.sleep)
    assert len(workers) == 0
    await workers.close(0)


async def test_items_are_processed_in_order(make, source):
    done = []

    async def process(item):
        done.append(item)

    workers = make(process)
    put(workers, source, *range(10))
    await workers.close(1)
    assert done == list(range(10))


async def test_not_more_are_processed_at_once_than_the_limit(make, source):
    current, highest = 0, 0

    async def process(_):
        nonlocal current, highest
        current += 1
        highest = max(highest, current)
        await asyncio.sleep(1)
        current -= 1

    workers = make(process, limit=3)
    put(workers, source, *range(10))
    await workers.close(100)
    assert highest == 3


async def test_idle_workers_end_after_the_timeout(make, source, looptime):
    workers = make(asyncio.sleep, idle_timeout=5)
    put(workers, source, 1)
    await asyncio.sleep(5.9)
    assert len(workers) == 1
    await asyncio.sleep(0.2)
    assert len(workers) == 0
    await workers.close(0)


async def test_idle_workers_are_used_again(make, source):
    tasks = set()

    async def process(_):
        tasks.add(asyncio.current_task())

    workers = make(process, idle_timeout=5)
    put(workers, source, 1)
    await asyncio.sleep(1)
    put(workers, source, 2)
    await asyncio.sleep(1)
    assert not source
    assert len(tasks) == 1
    await workers.close(0)


async def test_errors_do_not_stop_the_work(make, source):
    done, errors = [], []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context['exception']))

    async def process(item):
        if item == 1:
            raise ValueError("boo!")
        done.append(item)

    workers = make(process, limit=1)
    put(workers, source, 1, 2)
    await workers.close(1)
    assert done == [2]
    assert [str(e) for e in errors] == ["boo!"]


async def test_closing_works_off_what_is_left(make, source, looptime):
    workers = make(asyncio.sleep, limit=1)
    put(workers, source, 1, 2, 3)
    await workers.close(100)
    assert not source
    assert len(workers) == 0
    assert looptime == 6


async def test_closing_is_limited_in_time(make, source, looptime):
    workers = make(asyncio.sleep)
    put(workers, source, 100)
    await workers.close(5)
    assert looptime == 5
    assert len(workers) == 0


async def test_closing_does_not_wait_for_idle_workers(make, source, looptime):
    workers = make(asyncio.sleep, idle_timeout=100)
    put(workers, source, 1)
    await asyncio.sleep(2)
    await workers.close(100)
    assert looptime == 2


async def test_notifications_come_from_threads(make, source):
    done = asyncio.Event()

    async def process(_):
        done.set()

    workers = make(process)
    source.append(1)
    await asyncio.to_thread(workers.notify_threadsafe)
    await done.wait()
    await workers.close(0)


async def test_notifications_after_the_end_of_the_loop_are_ignored(make):
    async def main():
        return make(asyncio.sleep)

    workers = await asyncio.to_thread(asyncio.run, main())
    workers.notify_threadsafe()
