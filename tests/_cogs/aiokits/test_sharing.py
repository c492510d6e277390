import asyncio

import pytest

from kopf._cogs.aiokits.sharing import Shared


class Slow:
    """Something that lasts, and is good for 5 seconds after that."""

    def __init__(self):
        self.runs = 0
        self.error = None
        self.shared = Shared(self.run, name="slow")

    async def run(self):
        self.runs += 1
        result = self.runs
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        return result, 5


@pytest.fixture()
async def slow():
    return Slow()


@pytest.mark.looptime
async def test_simultaneous_callers_share_one_run(slow):
    assert await asyncio.gather(*[slow.shared.get() for _ in range(10)]) == [1] * 10


@pytest.mark.looptime
async def test_results_are_used_again_for_their_time(slow):
    assert await slow.shared.get() == 1
    await asyncio.sleep(4.9)
    assert await slow.shared.get() == 1
    await asyncio.sleep(0.2)
    assert await slow.shared.get() == 2


@pytest.mark.looptime
async def test_forgotten_results_are_not_used_again(slow):
    assert await slow.shared.get() == 1
    slow.shared.forget()
    assert await slow.shared.get() == 2


@pytest.mark.looptime
async def test_a_cancelled_caller_does_not_cancel_the_run_of_the_others(slow):
    first, second = [asyncio.create_task(slow.shared.get()) for _ in range(2)]
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == 1
    assert first.cancelled()


@pytest.mark.looptime
async def test_errors_are_for_all_callers_of_the_run_and_for_no_later_ones(slow):
    slow.error = ValueError("boo!")
    found = await asyncio.gather(*[slow.shared.get() for _ in range(2)], return_exceptions=True)
    assert found == [slow.error] * 2
    slow.error = None
    assert await slow.shared.get() == 2


@pytest.mark.looptime
async def test_nothing_runs_after_the_closing(slow):
    caller = asyncio.create_task(slow.shared.get())
    await asyncio.sleep(0.5)
    await slow.shared.close()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
