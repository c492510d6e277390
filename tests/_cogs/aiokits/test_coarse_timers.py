"""
Timers in event loops with a coarse clock: those of uvloop have the resolution of a millisecond.

There, `call_at` returns a handle without a time if the time rounds to now, and `when` is rounded.
"""
import asyncio

import pytest

from kopf._cogs.aiokits import deadlines, wakeups


class CoarseLoop(asyncio.SelectorEventLoop):

    def time(self):
        return round(super().time(), 3)

    def call_at(self, when, callback, *args, context=None):
        delay = round(when - self.time(), 3)
        if delay <= 0:
            return self.call_soon(callback, *args, context=context)
        return super().call_at(self.time() + delay, callback, *args, context=context)


def make_uvloop():
    return pytest.importorskip('uvloop').new_event_loop()


@pytest.fixture(params=[asyncio.SelectorEventLoop, CoarseLoop, make_uvloop])
def run(request):
    errors = []
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        yield runner.run
    assert not errors


DELAYS = [-1, 0, 0.0004, 0.0006, 0.0014, 0.0123456]


@pytest.mark.parametrize('delay', DELAYS)
def test_sleepers_are_woken_up_again_and_again(run, delay):
    class Sleeper:
        due = None
        woken = 0

        def wake_up(self):
            self.woken += 1

    async def main():
        sleepers, heap = [Sleeper() for _ in range(3)], wakeups.Wakeups()
        for rounds in range(1, 4):
            for number, sleeper in enumerate(sleepers):
                heap.sleep(sleeper, asyncio.get_running_loop().time() + delay + number / 3000)
            async with asyncio.timeout(30):
                while any(sleeper.woken < rounds for sleeper in sleepers):
                    await asyncio.sleep(0.001)
        assert {sleeper.woken for sleeper in sleepers} == {3}
        heap.close()

    run(main())


@pytest.mark.parametrize('delay', DELAYS)
def test_limits_are_observed_again_and_again(run, delay):
    async def main():
        limits = deadlines.Deadlines()
        for _ in range(3):
            with limits.limit(60), pytest.raises(TimeoutError), limits.limit(delay):
                await asyncio.sleep(30)
        limits.close()

    run(main())
