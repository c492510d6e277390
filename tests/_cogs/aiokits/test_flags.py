import asyncio
import concurrent.futures
import threading

import pytest

from kopf._cogs.aiokits import flags


@pytest.fixture(params=['asyncio.Event', 'asyncio.Future', 'threading.Event', 'concurrent.Future'])
async def flag(request):
    return {
        'asyncio.Event': asyncio.Event,
        'asyncio.Future': asyncio.get_running_loop().create_future,
        'threading.Event': threading.Event,
        'concurrent.Future': concurrent.futures.Future,
    }[request.param]()


async def test_all_kinds_of_flags_are_waited_for(flag):
    task = asyncio.create_task(flags.wait_flag(flag))
    await asyncio.sleep(0.01)
    assert not task.done()
    flags.raise_flag(flag)
    async with asyncio.timeout(5):
        await task


async def test_all_kinds_of_flags_can_be_raised_before(flag):
    flags.raise_flag(flag)
    async with asyncio.timeout(5):
        await flags.wait_flag(flag)


async def test_waiting_can_be_given_up_and_begun_again(flag):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await flags.wait_flag(flag)
    flags.raise_flag(flag)
    async with asyncio.timeout(5):
        await flags.wait_flag(flag)
