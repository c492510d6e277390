import asyncio

import pytest

from kopf._cogs.aiokits import tasks


async def test_results_are_in_the_order_of_the_coroutines():
    async def work(delay):
        await asyncio.sleep(delay)
        return delay

    assert await tasks.gather(work(0.002), work(0.001)) == [0.002, 0.001]


async def test_others_are_stopped_when_one_fails():
    stopped = []

    async def fail():
        raise ValueError("boo")

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            stopped.append(True)

    with pytest.raises(ValueError, match="boo"):
        await tasks.gather(work(), fail())
    assert stopped == [True]


@pytest.mark.parametrize('count', [0, 1, 2, 5])
async def test_it_is_done_for_all_items_but_for_a_few_at_once(count):
    done, active, peaks = [], 0, []

    async def work(item):
        nonlocal active
        active += 1
        peaks.append(active)
        await asyncio.sleep(0.001)
        active -= 1
        done.append(item)

    await tasks.for_each(work, range(count), limit=2)
    assert done == list(range(count)) and max(peaks, default=0) == min(count, 2)
