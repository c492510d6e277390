"""
What follows from a Lease: tables, without any clock.
"""
import datetime

import pytest

from kopf._cogs.aiokits.clocks import Moment
from kopf._cogs.structs.leases import Sighting
from kopf._core.engines.leadership import electing
from kopf._core.engines.leadership.electing import Read, Wait, Write

WALL = datetime.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
ME = electing.Candidate(identity='me', namespace='ns', name='lease', duration=15)


def make_lease(holder, *, duration=15, transitions=3, renewed='2020-01-01T00:00:00.000000Z'):
    return {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'ns', 'name': 'lease', 'resourceVersion': '7',
                     'labels': {'by': 'others'}},
        'spec': {'holderIdentity': holder, 'leaseDurationSeconds': duration,
                 'acquireTime': '2020-01-01T00:00:00.000000Z', 'renewTime': renewed,
                 'leaseTransitions': transitions},
    }


def decide(seen, *, now, is_fresh):
    return electing.decide(seen, candidate=ME, now=Moment(now, WALL), is_fresh=is_fresh)


@pytest.mark.parametrize(('seen', 'now', 'is_fresh', 'expected'), [
    # Nothing is known yet.
    (None, 100, False, Read),
    (None, 100, True, Read),
    # There is no Lease.
    (Sighting(None, 100), 100, False, Read),
    (Sighting(None, 100), 100, True, Write),
    # Another replica leads, until its Lease has not changed for its duration.
    (Sighting(make_lease('other'), 100), 100, True, Wait),
    (Sighting(make_lease('other'), 100), 114.9, True, Wait),
    (Sighting(make_lease('other'), 100), 115, True, Write),
    (Sighting(make_lease('other'), 100), 115, False, Read),
    (Sighting(make_lease('other', duration=30), 100), 115, True, Wait),
    (Sighting(make_lease('other', duration=None), 100), 100, True, Write),
    # The Lease is released.
    (Sighting(make_lease('', duration=1), 100), 100, True, Write),
    (Sighting(make_lease(None), 100), 100, True, Write),
    (Sighting(make_lease('', duration=1), 100), 100, False, Read),
    # This replica leads, and renews the Lease without reading it; if it is late, it reads.
    (Sighting(make_lease('me'), 100), 100, False, Write),
    (Sighting(make_lease('me'), 100), 114.9, False, Write),
    (Sighting(make_lease('me'), 100), 115, False, Read),
    (Sighting(make_lease('me'), 100), 115, True, Write),
])
def test_steps(seen, now, is_fresh, expected):
    assert type(decide(seen, now=now, is_fresh=is_fresh)) is expected


def test_new_lease_is_of_this_replica_and_has_had_no_transitions():
    step = decide(Sighting(None, 100), now=100, is_fresh=True)
    assert step.body == {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'ns', 'name': 'lease'},
        'spec': {'holderIdentity': 'me', 'leaseDurationSeconds': 15,
                 'acquireTime': '2020-01-02T03:04:05.000678Z',
                 'renewTime': '2020-01-02T03:04:05.000678Z', 'leaseTransitions': 0},
    }


@pytest.mark.parametrize('holder', ['other', ''])
def test_takeover_is_one_more_transition(holder):
    step = decide(Sighting(make_lease(holder), 100), now=115, is_fresh=True)
    assert step.body['spec'] == {
        'holderIdentity': 'me', 'leaseDurationSeconds': 15,
        'acquireTime': '2020-01-02T03:04:05.000678Z',
        'renewTime': '2020-01-02T03:04:05.000678Z', 'leaseTransitions': 4}


def test_renewal_keeps_the_time_of_the_acquisition_and_the_transitions():
    step = decide(Sighting(make_lease('me'), 100), now=102, is_fresh=False)
    assert step.body['spec'] == {
        'holderIdentity': 'me', 'leaseDurationSeconds': 15,
        'acquireTime': '2020-01-01T00:00:00.000000Z',
        'renewTime': '2020-01-02T03:04:05.000678Z', 'leaseTransitions': 3}


def test_renewal_tells_a_time_of_the_acquisition_even_if_others_have_removed_it():
    lease = make_lease('me')
    del lease['spec']['acquireTime']
    step = decide(Sighting(lease, 100), now=102, is_fresh=False)
    assert step.body['spec']['acquireTime'] == '2020-01-02T03:04:05.000678Z'


def test_all_writes_are_guarded_by_the_version_and_keep_what_others_have_set():
    for holder in ['me', 'other', '']:
        step = decide(Sighting(make_lease(holder), 100), now=115, is_fresh=True)
        assert step.body['metadata'] == {
            'namespace': 'ns', 'name': 'lease', 'resourceVersion': '7', 'labels': {'by': 'others'}}


def test_release_leaves_no_holder_and_the_shortest_duration():
    step = electing.release(
        Sighting(make_lease('me'), 100), candidate=ME, now=Moment(102, WALL))
    assert step.body['metadata']['resourceVersion'] == '7'
    assert step.body['spec'] == {
        'holderIdentity': '', 'leaseDurationSeconds': 1,
        'acquireTime': '2020-01-02T03:04:05.000678Z',
        'renewTime': '2020-01-02T03:04:05.000678Z', 'leaseTransitions': 3}


def test_lease_of_others_is_not_released():
    assert electing.release(
        Sighting(make_lease('other'), 100), candidate=ME, now=Moment(102, WALL)) is None


@pytest.mark.parametrize(('share', 'pause'), [(0, 2), (0.5, 3.2), (1, 4.4)])
def test_pauses_of_standbys_vary(share, pause):
    step = Wait('other', 200)
    assert electing.get_pause(step, period=2, now=100, share=share) == pytest.approx(pause)
    assert electing.get_pause(None, period=2, now=100, share=share) == pytest.approx(pause)


def test_expired_lease_is_taken_without_a_further_pause():
    assert electing.get_pause(Wait('other', 101), period=2, now=100, share=1) == 1
    assert electing.get_pause(
        Wait('other', 99), period=2, now=100, share=1) == electing.MIN_PAUSE


