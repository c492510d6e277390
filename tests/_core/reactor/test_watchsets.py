"""
What a set of watches tells of them.
"""
import asyncio
import gc

import pytest

from kopf import testing
from kopf._cogs.structs.references import Resource
from kopf._core.reactor.watches.watchsets import WatchSet

THINGS = Resource('kopf.dev', 'v1', 'things', namespaced=True)
KEY = (THINGS, 'ns')


class Watch:
    """A watch that must hear something each second; and how often it has begun and ended."""

    def __init__(self, *, fails_after=None):
        self.pulses = []
        self.ended = 0
        self._fails_after = fails_after

    async def __call__(self, *, pulse):
        self.pulses.append(pulse)
        pulse.begin()
        pulse.expect(1)
        try:
            await asyncio.sleep(1000 if self._fails_after is None else self._fails_after)
            raise RuntimeError("no credentials")
        finally:
            self.ended += 1


@pytest.fixture()
def ends():
    return []


@pytest.fixture()
def watches(ends):
    return WatchSet(lambda: ends.append(1))


@testing.virtual_time
async def test_an_error_that_nobody_checks_is_not_reported_by_asyncio(caplog):
    watches = WatchSet(lambda: None)
    watches.start(KEY, Watch(fails_after=1), name='one')
    await asyncio.sleep(2)
    del watches
    gc.collect()
    assert not caplog.messages


@testing.virtual_time
async def test_stopped_watches_have_ended(watches):
    watch = Watch()
    watches.start(KEY, watch, name='one')
    await asyncio.sleep(1)
    await watches.stop([KEY, (THINGS, 'never started')])
    assert (KEY in watches, watch.ended) == (False, 1)


@testing.virtual_time
async def test_errors_of_watches_are_raised_once(watches, ends):
    watches.start(KEY, Watch(fails_after=1), name='one')
    await asyncio.sleep(2)
    assert ends == [1]
    with pytest.raises(RuntimeError, match="no credentials"):
        watches.check()
    watches.check()


@testing.virtual_time
async def test_dead_and_late_watches_are_told_of(watches):
    now = asyncio.get_running_loop().time

    def find_late(when):
        return [state[:2] for state in watches.list_states()
                if not state.is_running or state.pulse.is_late(when, slack=10)]

    watches.start(KEY, Watch(), name='late')
    watches.start((THINGS, None), Watch(fails_after=1), name='dead')
    await asyncio.sleep(2)
    assert find_late(now()) == [(THINGS, None)]
    assert find_late(now() + 10) == [KEY, (THINGS, None)]
    assert [state.is_running for state in watches.list_states()] == [True, False]
    assert watches.drop_dead() == [(THINGS, None)]
    assert (THINGS, None) not in watches
    await watches.stop_all()
    assert find_late(now() + 10) == []


@testing.virtual_time
async def test_a_watch_that_replaces_another_goes_on_with_its_pulse(watches):
    watch = Watch()
    for _ in range(2):
        watches.start(KEY, watch, name='one')
        await asyncio.sleep(1)
    assert watch.ended == 1
    assert watch.pulses[0] is watch.pulses[1]
    assert [state.pulse.begun for state in watches.list_states()] == [2]
    await watches.stop_all()


@testing.virtual_time
async def test_a_forgotten_watch_begins_with_another_pulse(watches):
    watch = Watch()
    for _ in range(2):
        watches.start(KEY, watch, name='one')
        await asyncio.sleep(1)
        await watches.stop_all()
        watches.forget([KEY])
    assert watch.pulses[0] is not watch.pulses[1]


@testing.virtual_time
async def test_the_restarts_of_stopped_and_forgotten_watches_count_on(watches):
    counts = []
    for key in [KEY, (THINGS, 'other')]:
        for _ in range(3):
            watches.start(key, Watch(), name='one')
            await asyncio.sleep(1)
            counts.append(watches.count_restarts()[THINGS])
    await watches.stop([KEY])
    counts.append(watches.count_restarts()[THINGS])
    watches.forget([KEY, (THINGS, 'never started')])
    counts.append(watches.count_restarts()[THINGS])
    watches.start(KEY, Watch(), name='one')
    await asyncio.sleep(1)
    counts.append(watches.count_restarts()[THINGS])
    assert counts == [0, 1, 2, 2, 3, 4, 4, 4, 4]
    await watches.stop_all()
