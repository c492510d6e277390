import itertools
import logging

import pytest

import kopf
from kopf._cogs.clients import errors
from kopf._core.actions.application import MAX_CONFLICTS
from kopf._core.actions.throttlers import Throttler

logger = logging.getLogger('throttled')


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


def test_a_few_conflicts_in_a_row_are_no_errors(caplog):
    caplog.set_level(logging.DEBUG)
    throttler = Throttler()
    for _ in range(MAX_CONFLICTS):
        throttler.tell(errors.APIConflictError("changed", status=409), 2, logger)
        assert not throttler.is_told
    throttler.tell(errors.APIConflictError("changed", status=409), 2, logger)
    assert throttler.is_told
    assert caplog.messages == [
        *["A conflict; trying again in 2 seconds on the newest state: changed"] * MAX_CONFLICTS,
        "Throttling for 2 seconds due to an unexpected error: APIConflictError('changed', "
        "status=409)"]
    assert not [record for record in caplog.records if record.exc_info]


def test_other_errors_are_told_at_once(caplog):
    throttler = Throttler()
    throttler.tell(ValueError("wrong"), 2, logger)
    assert throttler.is_told
    assert caplog.messages == [
        "Throttling for 2 seconds due to an unexpected error: ValueError('wrong')"]
    assert caplog.records[0].exc_info


def test_missing_rights_are_told_with_what_to_do(caplog):
    error = errors.APIForbiddenError('pods is forbidden: User "x" cannot patch', status=403)
    Throttler().tell(error, 2, logger)
    assert caplog.messages == [
        f"Throttling for 2 seconds due to an unexpected error: {error!r}. "
        f"Print the roles that the operator needs: kopf rbac"]
    assert not caplog.records[0].exc_info
