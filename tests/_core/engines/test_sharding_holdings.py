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
    own.tenure.renew(110, anew=True)
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
    own.tenure.renew(120, anew=True)
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


def test_a_replica_has_settled_when_it_is_told_so(own):
    assert not own.is_settled
    own.settle()
    assert own.is_settled


def test_shards_are_held_and_left_and_removed_one_by_one(own):
    grants = {shard: Grant(shard, 1) for shard in range(3)}
    for grant in grants.values():
        own.add(grant)
    assert own.grants == grants
    own.leave([0])
    own.leave([1])
    assert (own.leaving, own.grants) == ({0, 1}, grants)
    own.remove([1])
    assert (own.leaving, own.grants) == ({0}, {0: grants[0], 2: grants[2]})


def test_nothing_is_held_nor_left_after_clearing(own):
    grant = Grant(3, 1)
    own.add(grant)
    own.leave([3])
    own.clear()
    assert (own.grants, own.leaving) == ({}, frozenset())
    assert not own.covers(grant)
