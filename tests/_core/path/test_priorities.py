"""
Which of the waiting objects is next: the decision, and the order of those that wait.
"""
import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.path.priorities import MAX_OVERTAKEN, Capacity, PriorityQueue, Rank, pick


@dataclasses.dataclass(frozen=True)
class Waiting:
    name: str | int
    is_patient: bool
    is_deferrable: bool


def make(name, *, is_patient=False, is_deferrable=True):
    return Waiting(name, is_patient, is_deferrable)


def fill(queue, *names, urgent=True, **kwargs):
    for name in names:
        queue.put(make(name, **kwargs), urgent=urgent)


def drain(queue, capacity=Capacity.SPARE):
    return [picked[0].name for picked in iter(lambda: queue.pick(capacity), None)]


@pytest.mark.parametrize('waiting, overtaken, expected', [
    # with no capacity, in a congestion, and with spare capacity
    ('', 0, [None, None, None]),
    ('L', 0, [Rank.LIVE] * 3),
    ('LDPB', 0, [Rank.LIVE] * 3),
    ('LDPB', MAX_OVERTAKEN - 1, [Rank.LIVE] * 3),
    ('LDPB', MAX_OVERTAKEN, [Rank.PATIENT] * 3),
    ('LDB', MAX_OVERTAKEN, [Rank.BACKLOG] * 3),
    ('LD', MAX_OVERTAKEN, [Rank.LIVE] * 3),
    ('DPB', MAX_OVERTAKEN, [None, Rank.DEFERRED, Rank.DEFERRED]),
    ('D', 0, [None, Rank.DEFERRED, Rank.DEFERRED]),
    ('PB', MAX_OVERTAKEN, [None, None, Rank.PATIENT]),
    ('B', MAX_OVERTAKEN, [None, None, Rank.BACKLOG]),
])
def test_the_next_rank(waiting, overtaken, expected):
    lines = [[rank] * (rank.name[0] in waiting) for rank in Rank]
    assert [pick(lines, capacity, overtaken=overtaken) for capacity in Capacity] == expected


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.integers(0, 2 * MAX_OVERTAKEN))
def test_what_can_start_in_an_overload_can_start_with_more_capacity(waiting, overtaken):
    picked = [pick([[1] * is_any for is_any in waiting], capacity, overtaken=overtaken)
              for capacity in Capacity]
    for less, more in itertools.pairwise(picked):
        assert less in (None, more)
    assert (picked[Capacity.SPARE] is None) == (not any(waiting))
    assert all(rank is None or waiting[rank] for rank in picked)


def test_objects_of_a_rank_are_in_order_and_ranks_are_too():
    overloaded = []
    queue = PriorityQueue(is_overloaded=lambda: bool(overloaded))
    assert not queue
    fill(queue, 'b1', 'b2', urgent=False)
    assert queue
    fill(queue, 'p', is_patient=True)
    overloaded.append(True)
    fill(queue, 'd1')
    fill(queue, 'l', is_deferrable=False)
    overloaded.clear()
    fill(queue, 'd2')  # it has come after what waits for the end of the overload
    assert drain(queue) == ['l', 'd1', 'd2', 'p', 'b1', 'b2']
    assert not queue


def test_objects_that_wait_for_capacity_do_not_starve():
    queue = PriorityQueue()
    fill(queue, *range(2 * MAX_OVERTAKEN + 1))
    fill(queue, 'b1', 'b2', 'b3', urgent=False)
    order = drain(queue, Capacity.NONE)
    assert order == [*range(MAX_OVERTAKEN), 'b1', *range(MAX_OVERTAKEN, 2 * MAX_OVERTAKEN), 'b2',
                     2 * MAX_OVERTAKEN]
    assert drain(queue) == ['b3']


def test_the_count_of_live_changes_goes_on_over_deferred_ones():
    overloaded = []
    queue = PriorityQueue(is_overloaded=lambda: bool(overloaded))
    fill(queue, *range(MAX_OVERTAKEN - 1))
    overloaded.append(True)
    fill(queue, 'd')
    overloaded.clear()
    assert len(drain(queue, Capacity.SOME)) == MAX_OVERTAKEN
    fill(queue, 'b', urgent=False)
    fill(queue, 'l1', 'l2')
    assert drain(queue) == ['l1', 'b', 'l2']


def test_a_change_takes_an_object_out_of_the_backlog():
    overloaded = []
    queue = PriorityQueue(is_overloaded=lambda: bool(overloaded))
    item, other = make('x'), make('y')
    assert queue.put(other, urgent=False) == 1
    assert queue.put(item, urgent=False) == 2
    assert queue.promote(item)
    assert not queue.promote(item)
    assert queue.pick(Capacity.NONE) == (item, Rank.LIVE)
    assert queue.pick(Capacity.NONE) is None
    overloaded.append(True)
    assert queue.promote(other)
    assert queue.pick(Capacity.SOME) == (other, Rank.DEFERRED)


def test_the_cleared_objects_are_in_the_order_of_their_start():
    queue = PriorityQueue()
    fill(queue, 'b', urgent=False)
    fill(queue, 'l1', 'l2')
    assert [item.name for item in queue.clear()] == ['l1', 'l2', 'b']
    assert not queue
