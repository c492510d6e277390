import datetime
import getpass
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.references import Resource
from kopf._core.engines.peering.records import Peer, is_peering, make_identity, parse_peers

TIME = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def test_record_has_the_fields_of_the_release():
    peer = Peer(identity='me', priority=7, lifetime=60, lastseen=TIME)
    assert peer.as_record() == {
        'priority': 7, 'lifetime': 60, 'lastseen': '2020-01-02T03:04:05.000000+00:00'}


def test_message_is_there_only_if_given():
    assert Peer(identity='me', message='why').as_record()['message'] == 'why'


def test_peer_is_shown_with_all_that_matters():
    peer = Peer(identity='me', priority=7, lifetime=60, lastseen=TIME, message='why')
    assert repr(peer) == ("<Peer me: priority=7, lifetime=60, "
                          "lastseen='2020-01-02T03:04:05+00:00', message='why'>")


times = st.datetimes(timezones=st.just(datetime.UTC))


@given(st.builds(
    Peer, identity=st.just('me'), priority=st.integers(), lifetime=st.integers(0, 10 ** 9),
    lastseen=times | st.none(), message=st.text() | st.none()))
def test_record_is_parsed_back(peer):
    assert parse_peers({'me': peer.as_record()}) == {'me': peer}


@pytest.mark.parametrize('record', [
    None, 'text', 123, [], {}, {'progress': {}}, {'priority': 'high'}, {'lastseen': 'yesterday'},
    {'lastseen': 123}, {'priority': 1, 'lifetime': 'long'}, {'priority': None},
])
def test_senseless_records_are_left_alone(record):
    assert parse_peers({'other': record}) == {}


@pytest.mark.parametrize('status', [None, 'text', [], 1])
def test_senseless_status_has_no_peers(status):
    assert parse_peers(status) == {}


def test_record_can_lack_everything_but_its_priority():
    assert parse_peers({'x': {'priority': 9}}) == {
        'x': Peer(identity='x', priority=9, lifetime=60)}


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda nested: st.lists(nested) | st.dictionaries(
        st.sampled_from(['priority', 'lifetime', 'lastseen', 'message']), nested)))
def test_no_record_is_an_error(record):
    parse_peers({'x': record})


def test_time_without_zone_is_utc():
    peers = parse_peers({'x': {'lastseen': '2020-01-02T03:04:05'}})
    assert peers['x'].lastseen == TIME


def test_identity_is_the_user_and_host_and_time_and_something_random(monkeypatch):
    monkeypatch.delenv('POD_ID', raising=False)
    assert re.fullmatch(r'[^@/]+@[^@/]+/\d{14}/[a-z0-9]{3}', make_identity())


def test_identity_of_a_pod_is_what_it_is_told(monkeypatch):
    monkeypatch.setenv('POD_ID', 'pod-x')
    assert make_identity() == 'pod-x'


def test_identity_of_people_is_the_user_and_host(monkeypatch):
    monkeypatch.setenv('POD_ID', 'pod-x')
    assert make_identity(unique=False).startswith(f'{getpass.getuser()}@')


@pytest.mark.parametrize('group', ['kopf.dev', 'kopf.zalando.org', 'zalando.org'])
def test_peerings_are_of_the_current_group_and_the_former_ones(group):
    wide = Resource(group, 'v1', 'clusterkopfpeerings', namespaced=False)
    narrow = Resource(group, 'v1', 'kopfpeerings', namespaced=True)
    assert is_peering(wide, clusterwide=True)
    assert not is_peering(wide, clusterwide=False)
    assert is_peering(narrow, clusterwide=False)
    assert not is_peering(narrow, clusterwide=True)


def test_cluster_scoped_kind_of_very_old_versions_is_not_used():
    old = Resource('zalando.org', 'v1', 'kopfpeerings', namespaced=False)
    assert not is_peering(old, clusterwide=True)
    assert not is_peering(old, clusterwide=False)
