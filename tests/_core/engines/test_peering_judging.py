import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits.clocks import Moment
from kopf._core.engines.peering.judging import (
    Sighting,
    find_dead,
    get_yielding_end,
    judge,
    observe,
)
from kopf._core.engines.peering.records import Peer

WALL = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def at(mono):
    """A moment by our own clock; both clocks begin together."""
    return Moment(mono, WALL + datetime.timedelta(seconds=mono))


def make(identity='peer', *, at=0.0, lifetime=10, priority=0, skew=0.0):
    """A peer with a sign of life at a moment, by a clock that goes wrong by so many seconds."""
    lastseen = WALL + datetime.timedelta(seconds=at + skew)
    return Peer(identity=identity, priority=priority, lifetime=lifetime, lastseen=lastseen)


def see(*peers, now=0.0, roster=None, live=False):
    return observe(roster or {}, {peer.identity: peer for peer in peers}, now=at(now), live=live)


def ask(roster, now, *, priority=0):
    return judge(roster, priority=priority, now=now)


def find(roster, seen):
    return find_dead(roster, seen=seen)


def test_nobody_else_means_work():
    verdict = ask(see(), 0)
    assert not verdict.paused
    assert verdict.until is None


def test_higher_priority_means_waiting_for_it():
    verdict = ask(see(make(priority=1)), 0)
    assert verdict.paused
    assert [peer.identity for peer in verdict.masters] == ['peer']
    assert not verdict.rivals


def test_same_priority_means_conflict():
    verdict = ask(see(make(priority=0)), 0)
    assert verdict.paused
    assert [peer.identity for peer in verdict.rivals] == ['peer']
    assert not verdict.masters


def test_lower_priority_means_work():
    assert not ask(see(make(priority=-1)), 0).paused


def test_huge_priorities_are_compared_exactly():
    huge = 10 ** 15
    assert ask(see(make(priority=huge + 1)), 0, priority=huge).masters
    assert not ask(see(make(priority=huge)), 0, priority=huge + 1).paused


def test_waiting_ends_when_the_first_of_the_peers_would_die():
    roster = see(make('a', priority=1, lifetime=20), make('b', priority=0, lifetime=10))
    assert ask(roster, 0).until == 10
    assert ask(roster, 10).until == 20
    assert not ask(roster, 20).paused


def test_waiting_does_not_end_when_a_peer_of_a_lower_priority_would_die():
    roster = see(make('a', priority=1, lifetime=20), make('b', priority=-1, lifetime=10))
    assert ask(roster, 0).until == 20


def test_record_that_was_there_before_counts_by_its_own_time():
    roster = see(make(at=-7, priority=1), now=0)
    assert ask(roster, 2.9).paused
    assert not ask(roster, 3).paused


def test_record_without_time_counts_since_it_is_seen():
    roster = see(Peer(identity='peer', priority=1, lifetime=10), now=5)
    assert ask(roster, 14.9).paused
    assert not ask(roster, 15).paused


def test_record_that_comes_in_front_of_our_eyes_counts_since_then():
    roster = see(make(at=5, skew=-3600, priority=1), now=5, live=True)
    assert ask(roster, 14.9).paused
    assert not ask(roster, 15).paused


def test_record_that_has_changed_from_one_list_to_another_counts_since_then():
    roster = see(make(skew=-3600, priority=1), now=0)
    roster = see(make(at=5, skew=-3600, priority=1), now=5, roster=roster)
    assert ask(roster, 14.9).paused
    assert not ask(roster, 15).paused


@given(skew=st.floats(-1e6, 1e6), steps=st.lists(st.floats(0.1, 9.9), min_size=1, max_size=20))
def test_peer_with_a_wrong_clock_is_alive_while_its_record_changes_in_time(skew, steps):
    now = 0.0
    roster = see(make(at=now, skew=skew, priority=1), now=now, live=True)
    for step in steps:
        assert ask(roster, now + step).paused
        now += step
        roster = see(make(at=now, skew=skew, priority=1), now=now, roster=roster, live=True)
        assert ask(roster, now).paused
    assert not ask(roster, now + 10).paused


@given(skew=st.floats(-1e6, 1e6), lifetime=st.floats(0, 1000), live=st.booleans())
def test_peer_that_is_silent_never_counts_for_longer_than_its_lifetime(skew, lifetime, live):
    roster = see(make(skew=skew, lifetime=lifetime, priority=1), live=live)
    assert not ask(roster, lifetime).paused


@given(skew=st.floats(-1e6, 1e6), step=st.floats(0.1, 9.9))
def test_record_is_not_removed_while_it_could_be_of_one_with_a_wrong_clock(skew, step):
    roster = see(make(skew=skew))
    assert not find(roster, step)
    roster = see(make(at=step, skew=skew), now=step, roster=roster)
    assert not find(roster, 10)
    assert find(roster, 10 + step) == ['peer']


def test_seeing_the_same_again_is_no_sign_of_life():
    roster = see(make(priority=1), now=0)
    assert see(make(priority=1), now=9, roster=roster, live=True) == roster


def test_record_that_is_gone_is_forgotten():
    assert see(now=1, roster=see(make(priority=1))) == {}


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=6))
def test_of_those_who_see_each_other_exactly_the_highest_one_works_if_it_is_alone(priorities):
    peers = [make(f'p{i}', priority=priority) for i, priority in enumerate(priorities)]
    working = [
        own.priority for own in peers
        if not ask(see(*(peer for peer in peers if peer is not own)), 1, priority=own.priority,
                   ).paused]
    highest = max(priorities)
    assert working == ([highest] if priorities.count(highest) == 1 else [])


def weaker(paused, *, identity='peer', priority=-1, until=200.0):
    peer = Peer(identity=identity, priority=priority, lifetime=100, paused=paused)
    return {identity: Sighting(peer, since=50.0, until=until)}


@pytest.mark.parametrize(('roster', 'now', 'expected'), [
    ({}, 100, None),
    # Peers of lower priorities are waited for while they live and handle, and not for ever.
    (weaker(False), 100, 160),
    (weaker(False), 159.9, 160),
    (weaker(False), 160, None),
    (weaker(False, until=110), 100, 110),
    (weaker(False, until=110), 110, None),
    (weaker(True), 100, None),
    # Those that never tell it are waited for a moment.
    (weaker(None), 100, 103),
    (weaker(None), 103, None),
    (weaker(None, until=101), 100, 101),
    # The last one ends the waiting.
    (weaker(None) | weaker(False, identity='other'), 100, 160),
    (weaker(None, until=101) | weaker(None, identity='other'), 100, 103),
    (weaker(None, until=101) | weaker(None, identity='other'), 102, 103),
    # Nobody else is waited for.
    (weaker(False, priority=0), 100, None),
    (weaker(False, priority=1), 100, None),
])
def test_peers_of_lower_priorities_are_waited_for_until_they_pause(roster, now, expected):
    end = get_yielding_end(roster, priority=0, since=100.0, patience=60.0, now=now)
    assert end == expected
