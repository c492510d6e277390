import itertools

import pytest

import kopf
from kopf._core.actions.throttlers import Throttler


def take(delays, count=5):
    throttler = Throttler()
    return [throttler.next_delay(delays) for _ in range(count)]


@pytest.mark.parametrize(('delays', 'taken'), [
    ([10, 20, 30], [10, 20, 30, 30, 30]),
    ((10,), [10, 10, 10, 10, 10]),
    (7, [7, 7, 7, 7, 7]),
    (1.5, [1.5, 1.5, 1.5, 1.5, 1.5]),
    ([], [None, None, None, None, None]),
    ((), [None, None, None, None, None]),
    (range(3), [0, 1, 2, 2, 2]),
    (itertools.count(), [0, 1, 2, 3, 4]),
])
def test_delays_are_taken_in_order_and_the_last_one_repeats(delays, taken):
    assert take(delays) == taken


def test_nothing_but_iteration_is_required_and_every_series_begins_anew():
    class Delays:
        def __iter__(self):
            yield from [1, 2]

    delays = Delays()
    assert take(delays, 3) == [1, 2, 2]
    assert take(delays, 3) == [1, 2, 2]


def test_delays_are_fibonacci_numbers_from_a_second_to_ten_minutes_by_default():
    delays = list(kopf.OperatorSettings().queueing.error_delays)
    assert (delays[0], delays[-1]) == (1, 610)
    assert all(a + b == c for a, b, c in zip(delays, delays[1:], delays[2:], strict=False))


@pytest.mark.parametrize(('conflicts', 'tolerated'), [
    (0, [False, False, False]),
    (1, [True, False, False]),
    (2, [True, True, False]),
])
def test_so_many_conflicts_are_tolerated_and_no_more(conflicts, tolerated):
    throttler = Throttler()
    assert [throttler.tolerate(conflicts) for _ in range(3)] == tolerated


def test_a_throttled_object_is_told_of_when_that_is_noted():
    throttler = Throttler()
    assert not throttler.is_told
    throttler.note_telling()
    assert throttler.is_told
