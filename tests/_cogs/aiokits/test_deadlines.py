import asyncio

import pytest

from kopf._cogs.aiokits.deadlines import Deadlines

pytestmark = pytest.mark.looptime


@pytest.fixture()
async def deadlines():
    deadlines = Deadlines()
    yield deadlines
    deadlines.close()


async def test_a_block_within_its_limit_is_not_disturbed(deadlines, looptime):
    with deadlines.limit(10):
        await asyncio.sleep(9)
    assert looptime == 9


async def test_a_block_over_its_limit_raises_at_the_deadline(deadlines, looptime):
    with pytest.raises(TimeoutError):
        with deadlines.limit(10):
            await asyncio.sleep(11)
    assert looptime == 10


async def test_no_limit_lasts_for_ever(deadlines, looptime):
    with deadlines.limit(None):
        await asyncio.sleep(1000)
    assert looptime == 1000


async def test_each_block_has_its_own_limit(deadlines, looptime):
    ended = {}

    async def work(name, limit):
        try:
            with deadlines.limit(limit):
                await asyncio.sleep(100)
        except TimeoutError:
            ended[name] = int(looptime)

    await asyncio.gather(work('long', 30), work('short', 10), work('middle', 20))
    assert ended == {'short': 10, 'middle': 20, 'long': 30}


async def test_outer_limits_go_through_the_inner_ones(deadlines, looptime):
    with pytest.raises(TimeoutError):
        with deadlines.limit(10):
            with deadlines.limit(20):
                await asyncio.sleep(100)
    assert looptime == 10


async def test_a_cancellation_from_outside_is_not_taken_for_a_timeout(deadlines):
    async def work():
        with deadlines.limit(10):
            await asyncio.sleep(100)

    task = asyncio.create_task(work())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_timer_serves_all(deadlines):
    for _ in range(100):
        with deadlines.limit(10):
            await asyncio.sleep(0)
    timers = [handle for handle in asyncio.get_running_loop()._scheduled
              if not handle.cancelled() and 'Alarm' in repr(handle)]
    assert len(timers) == 1
