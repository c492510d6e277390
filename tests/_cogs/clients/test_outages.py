import asyncio

import pytest

from kopf._cogs.clients.outages import BURST, INTERVAL, Outage

pytestmark = pytest.mark.looptime


async def take_turns(outage, count, times):
    async def take():
        await outage.wait_turn()
        times.append(asyncio.get_running_loop().time())
    return [asyncio.create_task(take()) for _ in range(count)]


async def test_nobody_waits_while_there_is_no_outage(looptime):
    outage = Outage()
    for _ in range(BURST * 10):
        await outage.wait_turn()
    assert looptime == 0


async def test_few_tries_do_not_wait(looptime):
    outage = Outage()
    outage.begin()
    for _ in range(BURST):
        await outage.wait_turn()
    assert looptime == 0


async def test_many_tries_go_one_by_one(looptime):
    outage, times = Outage(), []
    outage.begin()
    tasks = await take_turns(outage, BURST + 100, times)
    await asyncio.gather(*tasks)
    rest = times[BURST - 1:]
    pauses = [after - before for before, after in zip(rest, rest[1:], strict=False)]
    assert all(INTERVAL * 0.99 <= pause <= INTERVAL * 1.31 for pause in pauses)
    assert len({round(pause, 3) for pause in pauses}) > 10


async def test_all_go_on_when_it_is_over(looptime):
    outage, times = Outage(), []
    outage.begin()
    tasks = await take_turns(outage, BURST + 100, times)
    await asyncio.sleep(3.5)
    outage.end()
    await asyncio.gather(*tasks)
    assert looptime == 3.5


async def test_those_who_left_do_not_take_the_turns_of_others(looptime):
    outage, times = Outage(), []
    outage.begin()
    first = await take_turns(outage, BURST + 50, times)
    await asyncio.sleep(0)
    for task in first:
        task.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    await asyncio.gather(*await take_turns(outage, 1, times))
    assert looptime <= INTERVAL * 1.31


async def test_after_a_quiet_time_there_can_be_several_tries_again(looptime):
    outage, times = Outage(), []
    outage.begin()
    await asyncio.gather(*await take_turns(outage, BURST, times))
    await asyncio.sleep(INTERVAL * BURST)
    await asyncio.gather(*await take_turns(outage, BURST, times))
    assert looptime == INTERVAL * BURST
