import asyncio

import pytest

from kopf._cogs.cluster import tracking
from kopf._cogs.structs.references import Resource

pytestmark = pytest.mark.looptime

THINGS = Resource('g.test', 'v1', 'things')


def make(name, version='1'):
    return {'metadata': {'name': name, 'resourceVersion': version}}


@pytest.fixture()
def tracker():
    return tracking.Tracker()


def fill(tracker, *bodies):
    tracker.list_started(restored=False)
    for body in bodies:
        tracker.listed(body)
    tracker.list_ended()


async def is_calm(tracker, timeout=1000):
    try:
        async with asyncio.timeout(timeout):
            groups = await tracker.take()
            raise AssertionError(groups)
    except TimeoutError:
        return True


async def test_nothing_is_in_doubt_at_first(tracker):
    assert not tracker.filled.is_set()
    fill(tracker, make('things.g.test'))
    assert tracker.filled.is_set()
    assert await is_calm(tracker)


@pytest.mark.parametrize('type', ['ADDED', 'MODIFIED', 'DELETED'])
async def test_changed_groups_are_in_doubt_soon(tracker, type):
    fill(tracker)
    tracker.changed(type, make('things.g.test'), b"")
    start = asyncio.get_running_loop().time()
    assert await tracker.take() == {'g.test'}
    assert asyncio.get_running_loop().time() - start == pytest.approx(0.1)


async def test_changes_of_several_groups_are_taken_together(tracker):
    tracker.changed('ADDED', make('a.g.test'), b"")
    tracker.changed('ADDED', make('b.g.test'), b"")
    tracker.changed('ADDED', make('c.h.test'), b"")
    assert await tracker.take() == {'g.test', 'h.test'}


async def test_endless_changes_do_not_put_it_off(tracker):
    async def change():
        while True:
            tracker.changed('MODIFIED', make('a.g.test'), b"")
            await asyncio.sleep(0.01)
    changing = asyncio.create_task(change())
    start = asyncio.get_running_loop().time()
    await tracker.take()
    assert asyncio.get_running_loop().time() - start <= 0.2
    changing.cancel()


async def test_groups_of_no_interest_are_never_in_doubt():
    tracker = tracking.Tracker(groups={'h.test'})
    tracker.changed('ADDED', make('a.g.test'), b"")
    tracker.changed('ADDED', make('a.h.test'), b"")
    assert await tracker.take() == {'h.test'}


async def measure(tracker, unsettled, count):
    times, last = [], asyncio.get_running_loop().time()
    for _ in range(count):
        groups = await tracker.take()
        now = asyncio.get_running_loop().time()
        times.append(now - last)
        last = now
        tracker.proceed(groups, unsettled=unsettled)
    return times


async def test_settled_groups_are_asked_about_a_few_times(tracker):
    tracker.doubt({'g.test'})
    assert await measure(tracker, set(), 4) == pytest.approx([0.1, 0.4, 1.5, 8])
    assert await is_calm(tracker)


async def test_unsettled_groups_are_asked_about_for_ever(tracker):
    tracker.doubt({'g.test'})
    times = await measure(tracker, {'g.test'}, 10)
    assert times == pytest.approx([0.1, 0.4, 1.5, 8, 16, 32, 64, 120, 120, 120])


async def test_doubts_while_asking_begin_anew(tracker):
    tracker.doubt({'g.test'})
    groups = await tracker.take()
    tracker.doubt({'g.test'})
    tracker.proceed(groups, unsettled=set())
    assert await measure(tracker, set(), 4) == pytest.approx([0.1, 0.4, 1.5, 8])


async def test_new_lists_doubt_only_what_has_changed(tracker):
    fill(tracker, make('a.same.test'), make('a.changed.test'), make('a.gone.test'))
    fill(tracker, make('a.same.test'), make('a.changed.test', '2'), make('a.new.test'))
    assert await tracker.take() == {'changed.test', 'gone.test', 'new.test'}


async def test_lists_that_are_broken_off_change_nothing(tracker):
    fill(tracker, make('a.g.test'))
    tracker.list_started(restored=False)
    fill(tracker, make('a.g.test'))
    assert await is_calm(tracker)


async def test_crds_without_their_resources_are_unsettled(tracker):
    fill(tracker, make('things.g.test'), make('others.g.test'))
    assert tracker.find_unsettled([THINGS]) == {'g.test'}
    assert tracker.find_unsettled([THINGS, Resource('g.test', 'v1', 'others')]) == set()


async def test_resources_whose_crds_are_gone_are_unsettled(tracker):
    fill(tracker, make('things.g.test'))
    tracker.changed('DELETED', make('things.g.test'), b"")
    assert tracker.find_unsettled([THINGS]) == {'g.test'}
    assert tracker.find_unsettled([]) == set()


async def test_resources_that_never_had_crds_are_settled(tracker):
    fill(tracker)
    assert tracker.find_unsettled([Resource('apps', 'v1', 'deployments')]) == set()


async def test_crds_that_are_back_are_not_gone(tracker):
    fill(tracker, make('things.g.test'))
    tracker.changed('DELETED', make('things.g.test'), b"")
    tracker.changed('ADDED', make('things.g.test', '2'), b"")
    assert tracker.find_unsettled([THINGS]) == set()


async def test_comparing_doubts_what_is_unsettled(tracker):
    fill(tracker, make('things.g.test'), make('others.h.test'))
    tracker.doubt(tracker.find_unsettled([THINGS]))
    assert await tracker.take() == {'h.test'}
