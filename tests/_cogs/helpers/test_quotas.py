from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.helpers.quotas import Quotas


def test_a_burst_is_given_at_once_and_then_nothing():
    quotas = Quotas(burst=3, period=10)
    assert [quotas.take('x', 0) for _ in range(5)] == [0, 0, 0, None, None]


def test_one_more_is_given_after_every_period():
    quotas = Quotas(burst=1, period=10)
    assert [quotas.take('x', now) for now in [0, 9, 10, 19, 20]] == [0, None, 1, None, 1]


def test_what_was_refused_is_counted_and_told_once():
    quotas = Quotas(burst=1, period=10)
    assert [quotas.take('x', now) for now in [0, 1, 2, 3, 10, 20]] == [0, None, None, None, 3, 0]


def test_keys_do_not_affect_each_other():
    quotas = Quotas(burst=1, period=10)
    assert quotas.take('x', 0) == 0
    assert quotas.take('y', 0) == 0
    assert quotas.take('x', 0) is None


def test_quotas_are_not_saved_beyond_the_burst():
    quotas = Quotas(burst=2, period=10)
    quotas.take('x', 0)
    assert [quotas.take('x', 1000) for _ in range(3)] == [0, 0, None]


def test_keys_not_used_for_the_longest_time_are_forgotten():
    quotas = Quotas(burst=1, period=10, capacity=2)
    quotas.take('x', 0)
    quotas.take('y', 0)
    assert quotas.take('x', 0) is None
    quotas.take('z', 0)
    assert quotas.take('y', 0) == 0


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=200))
def test_never_more_is_given_than_the_burst_and_the_periods_passed(pauses):
    quotas = Quotas(burst=5, period=10)
    now, given_ = 0.0, 0
    for pause in pauses:
        now += pause
        given_ += quotas.take('x', now) is not None
    assert given_ <= 5 + now / 10 + 1e-6
