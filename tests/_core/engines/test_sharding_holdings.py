"""
What a replica holds, by the clock.
"""
import pytest

from kopf._cogs.aiokits.tenures import Tenure
from kopf._core.engines.sharding.holdings import Grant, Holdings


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture()
def clock():
    return Clock()


@pytest.fixture()
def own(clock):
    own = Holdings(Tenure(clock))
    own.tenure.begin(110)
    return own


def test_grants_end_with_the_term_by_the_clock(own, clock):
    grant = Grant(3, 1)
    own.add(grant)
    assert own.covers(grant)
    assert own.grants == {3: grant}
    clock.now = 110
    assert not own.covers(grant)
    assert own.grants == {}


def test_grants_do_not_come_back_in_the_next_term(own, clock):
    grant = Grant(3, 1)
    own.add(grant)
    clock.now = 111
    own.tenure.begin(120)
    assert not own.covers(grant)


def test_shard_that_was_taken_again_is_another_grant(own):
    former, later = Grant(3, 1), Grant(3, 1)
    own.add(former)
    own.leave([3])
    own.remove([3])
    own.add(later)
    assert own.covers(later)
    assert not own.covers(former)
    assert own.leaving == frozenset()
