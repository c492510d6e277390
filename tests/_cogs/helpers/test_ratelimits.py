import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.helpers.ratelimits import KeyedBuckets, TokenBucket


def test_a_burst_is_given_at_once_and_then_nothing():
    buckets = KeyedBuckets(burst=3, period=10)
    assert [buckets.take('x', 0) for _ in range(5)] == [0, 0, 0, None, None]


def test_one_more_is_given_after_every_period():
    buckets = KeyedBuckets(burst=1, period=10)
    assert [buckets.take('x', now) for now in [0, 9, 10, 19, 20]] == [0, None, 1, None, 1]


def test_what_was_refused_is_counted_and_told_once():
    buckets = KeyedBuckets(burst=1, period=10)
    assert [buckets.take('x', now) for now in [0, 1, 2, 3, 10, 20]] == [0, None, None, None, 3, 0]


def test_keys_do_not_affect_each_other():
    buckets = KeyedBuckets(burst=1, period=10)
    assert buckets.take('x', 0) == 0
    assert buckets.take('y', 0) == 0
    assert buckets.take('x', 0) is None


def test_tokens_are_not_saved_beyond_the_burst():
    buckets = KeyedBuckets(burst=2, period=10)
    buckets.take('x', 0)
    assert [buckets.take('x', 1000) for _ in range(3)] == [0, 0, None]


def test_keys_not_used_for_the_longest_time_are_forgotten():
    buckets = KeyedBuckets(burst=1, period=10, capacity=2)
    buckets.take('x', 0)
    buckets.take('y', 0)
    assert buckets.take('x', 0) is None
    buckets.take('z', 0)
    assert buckets.take('y', 0) == 0


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=200))
def test_never_more_is_given_than_the_burst_and_the_periods_passed(pauses):
    buckets = KeyedBuckets(burst=5, period=10)
    now, given_ = 0.0, 0
    for pause in pauses:
        now += pause
        given_ += buckets.take('x', now) is not None
    assert given_ <= 5 + now / 10 + 1e-6


@given(pauses=st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_a_bucket_has_something_when_it_says_it_will(pauses):
    bucket, now = TokenBucket(burst=2, period=3, now=0), 0
    for pause in pauses:
        now += pause
        while bucket.take(now):
            assert bucket.refused == 0
        wait = bucket.get_wait(now)
        assert 0 < wait <= 3
        if wait > 1e-6:  # shorter ones are what the rounding leaves
            assert not bucket.take(now + wait * 0.9)
        now += wait
        assert bucket.get_wait(now) == pytest.approx(0, abs=1e-6)


def test_an_emptied_bucket_has_the_next_one_after_a_whole_period():
    bucket = TokenBucket(burst=2, period=3, now=0)
    bucket.empty(10)
    assert bucket.get_wait(10) == 3
    assert not bucket.take(12.9)
    assert bucket.take(13)
