import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits import wakeups
from tests._core.reactor.worlds import run_virtually


class Sleeper:
    def __init__(self, name, log):
        self.due = None
        self.name = name
        self.log = log

    def wake_up(self):
        self.log.append((self.name, asyncio.get_running_loop().time()))


@pytest.fixture()
async def heap(looptime):
    heap = wakeups.Wakeups()
    yield heap
    heap.close()


@pytest.mark.looptime
async def test_all_are_woken_up_at_their_times_in_their_order(heap):
    log = []
    for name in (3, 1, 2):
        heap.sleep(Sleeper(name, log), name)
    await asyncio.sleep(10)
    assert log == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.looptime
async def test_another_time_replaces_the_one_before(heap):
    log = []
    sleeper = Sleeper('a', log)
    for time in (3, 1, 5, 2):
        heap.sleep(sleeper, time)
    await asyncio.sleep(10)
    assert log == [('a', 2)]


@pytest.mark.looptime
async def test_those_who_are_cancelled_are_not_woken_up(heap):
    log = []
    sleeper = Sleeper('a', log)
    heap.sleep(sleeper, 1)
    heap.cancel(sleeper)
    await asyncio.sleep(10)
    assert log == []


@pytest.mark.looptime
async def test_after_an_error_of_one_the_others_are_woken_up(heap):
    errors, log = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    broken = Sleeper('broken', log)
    broken.wake_up = lambda: 1 / 0
    heap.sleep(broken, 1)
    heap.sleep(Sleeper('a', log), 1)
    heap.sleep(Sleeper('b', log), 2)
    await asyncio.sleep(10)
    assert [name for name, _ in log] == ['a', 'b']
    assert len(errors) == 1


@pytest.mark.looptime
async def test_others_have_their_turns_while_thousands_are_woken_up(heap):
    log = []
    for name in range(3 * wakeups.WAKEUPS_PER_ITERATION):
        heap.sleep(Sleeper(name, log), 1)
    await asyncio.sleep(1)
    turns = []
    while len(log) < 3 * wakeups.WAKEUPS_PER_ITERATION:
        turns.append(len(log))
        await asyncio.sleep(0)
    assert max(b - a for a, b in zip(turns, turns[1:])) <= wakeups.WAKEUPS_PER_ITERATION


@pytest.mark.looptime
async def test_of_those_who_are_cancelled_nothing_is_left_for_long(heap):
    class Long(Sleeper):
        pass

    for _ in range(10_000):
        sleeper = Long('a', [])
        heap.sleep(sleeper, 1_000_000)
        heap.cancel(sleeper)
    del sleeper
    gc.collect()
    assert sum(isinstance(item, Long) for item in gc.get_objects()) <= wakeups.MIN_STALE + 1


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9)), max_size=30))
def test_whatever_was_before_the_last_word_counts(actions):
    async def check():
        log, heap = [], wakeups.Wakeups()
        sleepers = [Sleeper(name, log) for name in range(4)]
        start = asyncio.get_running_loop().time()
        expected = {}
        for name, delay in actions:
            if delay is None:
                heap.cancel(sleepers[name])
                expected.pop(name, None)
            else:
                heap.sleep(sleepers[name], start + delay)
                expected[name] = start + delay
        await asyncio.sleep(20)
        heap.close()
        assert dict(log) == expected
        assert len(log) == len(expected)

    run_virtually(check())
