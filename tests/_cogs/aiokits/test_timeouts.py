import asyncio

import pytest

from kopf._cogs.aiokits import timeouts

pytestmark = pytest.mark.looptime

MAKERS = [
    timeouts.timeout,
    lambda delay: timeouts.timeout_at(
        None if delay is None else asyncio.get_running_loop().time() + delay),
]


@pytest.fixture(params=MAKERS, ids=['timeout', 'timeout_at'])
def limit(request):
    return request.param


async def run_cancelled(coro):
    """Run it in a task that was cancelled before and goes on."""
    async def go_on():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return await coro

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    task.cancel()
    return await task


async def test_a_block_within_its_limit_is_not_disturbed(limit, looptime):
    async with limit(10) as timeout:
        await asyncio.sleep(9)
    assert (looptime, timeout.expired()) == (9, False)


async def test_a_block_over_its_limit_raises_at_the_deadline(limit, looptime):
    with pytest.raises(TimeoutError):
        async with limit(10) as timeout:
            await asyncio.sleep(11)
    assert (looptime, timeout.expired()) == (10, True)


async def test_no_limit_lasts_for_ever(limit, looptime):
    async with limit(None):
        await asyncio.sleep(1000)
    assert looptime == 1000


async def test_a_limit_can_be_moved(limit, looptime):
    with pytest.raises(TimeoutError):
        async with limit(None) as timeout:
            timeout.reschedule(5)
            await asyncio.sleep(11)
    assert looptime == 5


async def test_a_task_that_was_cancelled_before_sees_the_timeout(limit, looptime):
    async def work():
        with pytest.raises(TimeoutError):
            async with limit(10):
                await asyncio.sleep(11)
        return 'done'

    assert await run_cancelled(work()) == 'done'
    assert looptime == 10


async def test_a_cancellation_in_the_block_is_no_timeout(limit, looptime):
    async def work():
        async with limit(10):
            await asyncio.sleep(11)

    task = asyncio.create_task(work())
    await asyncio.sleep(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert looptime == 5


async def test_a_cancellation_at_the_moment_of_the_timeout_is_not_lost(limit):
    async def work():
        async with limit(10):
            await asyncio.sleep(11)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_event_is_waited_for_until_it_is_set_or_the_time_is_over(looptime):
    event = asyncio.Event()
    await timeouts.wait(event, 5)
    assert looptime == 5
    asyncio.get_running_loop().call_at(7, event.set)
    await timeouts.wait(event, None)
    assert looptime == 7
    await timeouts.wait(event, 5)
    assert looptime == 7
