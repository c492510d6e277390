"""Runs of operators in simulated processes, which can be killed at any moment."""
import asyncio

import pytest

from kopf._kits.testing import runs

SLOW = '''
import asyncio

@kopf.on.{activity}()
async def wait(**_):
    await asyncio.sleep(10)
'''


async def scenario(client):
    pass


@pytest.fixture()
def make(crd, script):
    """Make a setup for an operator with an activity that takes 10 seconds."""
    def fn(activity):
        return runs.Setup(
            [script(SLOW.format(activity=activity))], {}, load=[crd], ignore=(), rest=1, limit=100,
            real_limit=60)
    return fn


def test_a_start_fails_if_the_operator_is_killed_meanwhile(make):
    class Run(runs.Run):
        async def open(self):
            asyncio.get_running_loop().call_later(1, self.kill)
            with pytest.raises(runs.KilledError):
                await self.start()
            await self.start()

    run = Run(make('startup'))
    run.play(scenario)
    assert run.problems == []


def test_a_stop_fails_if_the_operator_is_killed_meanwhile(make):
    class Run(runs.Run):
        async def close(self):
            asyncio.get_running_loop().call_later(1, self.kill)
            with pytest.raises(runs.KilledError):
                await self.stop()

    run = Run(make('cleanup'))
    run.play(scenario)
    assert run.problems == []
