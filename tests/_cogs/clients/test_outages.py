import asyncio

import pytest

from kopf._cogs.clients.outages import BURST, INTERVAL, Outages, _get_kind

PATH = '/apis/g.test/v1/namespaces/ns/things/name'

pytestmark = pytest.mark.looptime


async def take_turns(outages, count, times):
    async def take():
        await outages.wait(PATH)
        times.append(asyncio.get_running_loop().time())
    return [asyncio.create_task(take()) for _ in range(count)]


async def test_nobody_waits_while_there_is_no_outage(looptime):
    outages = Outages()
    for _ in range(BURST * 10):
        await outages.wait(PATH)
    assert looptime == 0


async def test_few_tries_do_not_wait(looptime):
    outages = Outages()
    outages.begin(PATH)
    for _ in range(BURST):
        await outages.wait(PATH)
    assert looptime == 0


async def test_many_tries_go_one_by_one(looptime):
    outages, times = Outages(), []
    outages.begin(PATH)
    tasks = await take_turns(outages, BURST + 100, times)
    await asyncio.gather(*tasks)
    rest = times[BURST - 1:]
    pauses = [after - before for before, after in zip(rest, rest[1:], strict=False)]
    assert all(INTERVAL * 0.99 <= pause <= INTERVAL * 1.31 for pause in pauses)
    assert len({round(pause, 3) for pause in pauses}) > 10


async def test_all_go_on_when_it_is_over(looptime):
    outages, times = Outages(), []
    outages.begin(PATH)
    tasks = await take_turns(outages, BURST + 100, times)
    await asyncio.sleep(3.5)
    outages.end(PATH)
    await asyncio.gather(*tasks)
    assert looptime == 3.5


async def test_those_who_left_do_not_take_the_turns_of_others(looptime):
    outages, times = Outages(), []
    outages.begin(PATH)
    first = await take_turns(outages, BURST + 50, times)
    await asyncio.sleep(0)
    for task in first:
        task.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    await asyncio.gather(*await take_turns(outages, 1, times))
    assert looptime <= INTERVAL * 1.31


async def test_after_a_quiet_time_there_can_be_several_tries_again(looptime):
    outages, times = Outages(), []
    outages.begin(PATH)
    await asyncio.gather(*await take_turns(outages, BURST, times))
    await asyncio.sleep(INTERVAL * BURST)
    await asyncio.gather(*await take_turns(outages, BURST, times))
    assert looptime == INTERVAL * BURST


async def test_other_kinds_do_not_wait(looptime):
    outages, times = Outages(), []
    outages.begin(PATH)
    tasks = await take_turns(outages, BURST + 100, times)
    await asyncio.sleep(0)
    await outages.wait('/apis/g.test/v1/namespaces/ns/others/name')
    assert looptime == 0
    outages.end_all()
    await asyncio.gather(*tasks)
    assert not outages


@pytest.mark.looptime(False)
@pytest.mark.parametrize('path, kind', [
    ('/apis/g.test/v1/namespaces/ns/things/name/status', '/apis/g.test/v1/things'),
    ('/apis/g.test/v1/namespaces/ns/things?limit=1', '/apis/g.test/v1/things'),
    ('/apis/g.test/v1/things/name', '/apis/g.test/v1/things'),
    ('/apis/g.test/v1/things', '/apis/g.test/v1/things'),
    ('/api/v1/namespaces/ns/pods/name', '/api/v1/pods'),
    ('/api/v1/namespaces/ns', '/api/v1/namespaces'),
    ('/api/v1/namespaces', '/api/v1/namespaces'),
    ('/version', ''),
])
def test_kinds_are_known_by_paths(path, kind):
    assert _get_kind(path) == kind
