import asyncio
import contextlib

import pytest

from kopf._cogs.aiokits import interrupts

pytestmark = pytest.mark.looptime


async def limit(coro, timeout=5):
    limited = interrupts.Limited(coro, timeout)
    return await limited, limited.expired()


async def test_results_in_time_are_not_affected():
    async def fn():
        await asyncio.sleep(1)
        return 123

    assert await limit(fn()) == (123, False)
    await asyncio.sleep(10)


async def test_errors_in_time_are_not_affected():
    async def fn():
        await asyncio.sleep(1)
        raise ValueError("boo")

    with pytest.raises(ValueError, match="boo"):
        await limit(fn())
    await asyncio.sleep(10)


async def test_the_timeout_is_raised_where_the_coroutine_waits(looptime):
    async def fn():
        try:
            await asyncio.sleep(100)
        except TimeoutError:
            return asyncio.current_task().cancelling()

    assert await limit(fn()) == (0, True)
    assert looptime == 5


async def test_without_care_the_timeout_gets_out():
    with pytest.raises(asyncio.TimeoutError):
        await limit(asyncio.sleep(100))
    assert asyncio.current_task().cancelling() == 0


async def test_the_coroutine_can_wait_while_it_cleans_up(looptime):
    async def fn():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert looptime == 8


async def test_a_coroutine_that_goes_on_is_not_interrupted_again(looptime):
    async def fn():
        with contextlib.suppress(TimeoutError):
            await asyncio.sleep(100)
        await asyncio.sleep(1000)
        return 123

    assert await limit(fn()) == (123, True)
    assert looptime == 1005


async def test_locks_are_left_in_order():
    lock = asyncio.Lock()
    async with lock:
        with pytest.raises(TimeoutError):
            await limit(lock.acquire())
    async with asyncio.timeout(1), lock:
        pass


async def test_queues_are_left_in_order():
    queue = asyncio.Queue()
    with pytest.raises(TimeoutError):
        await limit(queue.get())
    queue.put_nowait(123)
    async with asyncio.timeout(1):
        assert await queue.get() == 123


async def test_conditions_are_left_in_order():
    condition = asyncio.Condition()

    async def fn():
        async with condition:
            await condition.wait()

    with pytest.raises(TimeoutError):
        await limit(fn())
    async with asyncio.timeout(1), condition:
        condition.notify_all()


async def test_tasks_of_groups_end_when_the_group_is_interrupted(looptime):
    ended = []

    async def child():
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)

    async def fn():
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert looptime == 5
    assert len(ended) == 1


async def test_shielded_tasks_go_on():
    async def work():
        await asyncio.sleep(10)
        return 123

    task = asyncio.create_task(work())

    async def fn():
        await asyncio.shield(task)

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert await task == 123


async def test_awaited_tasks_are_cancelled():
    task = asyncio.create_task(asyncio.sleep(100))

    async def fn():
        await task

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert task.cancelled()


@pytest.mark.parametrize('inner', [asyncio.timeout, asyncio.wait_for], ids=lambda fn: fn.__name__)
async def test_shorter_limits_inside_are_independent(looptime, inner):
    async def fn():
        with pytest.raises(TimeoutError):
            if inner is asyncio.timeout:
                async with asyncio.timeout(3):
                    await asyncio.sleep(100)
            else:
                await asyncio.wait_for(asyncio.sleep(100), 3)
        assert looptime == 3
        await asyncio.sleep(100)

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert looptime == 5
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize('inner', [asyncio.timeout, asyncio.wait_for], ids=lambda fn: fn.__name__)
async def test_longer_limits_inside_are_independent(looptime, inner):
    async def fn():
        if inner is asyncio.timeout:
            async with asyncio.timeout(8):
                await asyncio.sleep(100)
        else:
            await asyncio.wait_for(asyncio.sleep(100), 8)

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert looptime == 5
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(10)


async def test_limits_at_the_same_moment_are_both_in_force(looptime):
    async def fn():
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(loop.time() + 5):
                await asyncio.sleep(100)
        await asyncio.sleep(100)

    with pytest.raises(TimeoutError):
        await limit(fn())
    assert looptime == 5
    assert asyncio.current_task().cancelling() == 0


async def test_limits_can_be_nested(looptime):
    with pytest.raises(TimeoutError):
        await limit(limit(asyncio.sleep(100), timeout=9))
    assert looptime == 5


async def wait_for_an_error(seen):
    try:
        await asyncio.sleep(100)
    except BaseException as e:
        seen.append(type(e))
        raise


async def test_cancellations_from_outside_remain_cancellations():
    seen = []
    task = asyncio.create_task(limit(wait_for_an_error(seen)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [asyncio.CancelledError]


async def test_cancellations_at_the_same_moment_win():
    seen = []
    task = asyncio.create_task(limit(wait_for_an_error(seen)))
    asyncio.get_running_loop().call_later(5, task.cancel)
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == [asyncio.CancelledError]


async def test_it_is_seen_where_the_coroutine_waits():
    async def fn():
        await asyncio.sleep(100)

    limited = interrupts.Limited(fn(), 5)
    assert limited.cr_await.cr_code is fn.__code__
    with pytest.raises(TimeoutError):
        await limited


async def test_what_is_never_awaited_can_be_closed():
    limited = interrupts.Limited(asyncio.sleep(1), 5)
    limited.close()
