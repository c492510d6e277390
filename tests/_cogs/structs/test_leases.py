"""
Leases as they are seen and made.
"""
import datetime

import pytest

from kopf._cogs.structs import leases
from kopf._cogs.structs.leases import Sighting

NOW = datetime.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)


def make_lease(holder, *, renewed='2020-01-01T00:00:00.000000Z'):
    return {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'ns', 'name': 'lease', 'resourceVersion': '7',
                     'labels': {'by': 'others'}},
        'spec': {'holderIdentity': holder, 'leaseDurationSeconds': 15, 'renewTime': renewed,
                 'leaseTransitions': 3},
    }


@pytest.mark.parametrize(('newest', 'since'), [
    (make_lease('other'), 100),
    ({**make_lease('other'), 'metadata': {'labels': {}, 'resourceVersion': '8'}}, 100),
    (make_lease('other', renewed='2020-01-01T00:00:02.000000Z'), 110),
    (make_lease('other', renewed='1999-01-01T00:00:02.000000Z'), 110),
    (make_lease('another'), 110),
    (None, 110),
])
def test_only_changes_of_the_record_count_and_not_the_times_in_it(newest, since):
    seen = leases.see(Sighting(make_lease('other'), 100), newest, now=110)
    assert (seen.raw, seen.since) == (newest, since)


def test_lease_that_is_created_again_counts_since_then():
    gone = leases.see(Sighting(make_lease('other'), 100), None, now=110)
    assert leases.see(gone, make_lease('other'), now=112).since == 112


@pytest.mark.parametrize(('known', 'newest', 'since'), [
    (None, {}, 110), (Sighting(None, 100), {}, 110), (Sighting({}, 100), None, 110),
    (Sighting({}, 100), {}, 100),
])
def test_empty_lease_is_another_state_than_none(known, newest, since):
    assert leases.see(known, newest, now=110).since == since


def test_lease_is_valid_for_its_duration_since_it_was_seen():
    seen = Sighting(make_lease('other'), 100)
    assert (seen.holder, seen.until, seen.transitions) == ('other', 115, 3)
    assert seen.labels == {'by': 'others'}


@pytest.mark.parametrize('raw', [None, {}, {'spec': None}, {'metadata': {}, 'spec': {}}])
def test_what_is_absent_is_free(raw):
    seen = Sighting(raw, 100)
    assert (seen.holder, seen.until, seen.transitions, seen.labels) == ('', 100, 0, {})


def test_lease_is_made_with_what_others_have_set():
    made = leases.make(
        make_lease('other'), namespace='x', name='y', holder='me', duration=15, now=NOW,
        labels={'own': 'label'})
    assert made['metadata'] == {
        'namespace': 'ns', 'name': 'lease', 'resourceVersion': '7',
        'labels': {'by': 'others', 'own': 'label'}}
    assert made['spec'] == {
        'holderIdentity': 'me', 'leaseDurationSeconds': 15,
        'acquireTime': '2020-01-02T03:04:05.000678Z', 'renewTime': '2020-01-02T03:04:05.000678Z'}


def test_new_lease_has_its_names_only():
    made = leases.make(None, namespace='x', name='y', holder='me', duration=15, now=NOW)
    assert {key: made[key] for key in ['apiVersion', 'kind', 'metadata']} == {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'x', 'name': 'y'}}


def test_renewed_lease_keeps_the_time_of_its_acquisition():
    made = leases.make(None, namespace='x', name='y', holder='me', duration=15, now=NOW,
                       acquired='before', transitions=3)
    assert (made['spec']['acquireTime'], made['spec']['leaseTransitions']) == ('before', 3)
    assert made['spec']['renewTime'] == leases.format_time(NOW)


def test_new_lease_has_its_own_labels():
    made = leases.make(None, namespace='x', name='y', holder='me', duration=15, now=NOW,
                       labels={'own': 'label'})
    assert made['metadata'] == {'namespace': 'x', 'name': 'y', 'labels': {'own': 'label'}}


def test_leases_are_in_namespaces():
    url = leases.RESOURCE.get_url(namespace='ns', name='lease')
    assert url == '/apis/coordination.k8s.io/v1/namespaces/ns/leases/lease'


def test_times_are_in_microseconds():
    assert leases.format_time(NOW) == '2020-01-02T03:04:05.000678Z'
