import datetime
import getpass
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits.clocks import Moment
from kopf._cogs.structs.references import Resource
from kopf._core.engines.peering import judging
from kopf._core.engines.peering.records import (
    MAX_LIFETIME,
    Peer,
    is_peering,
    make_identity,
    parse_peers,
)

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


@pytest.mark.parametrize('lifetime, expected', [
    (10 ** 400, MAX_LIFETIME), ('1e400', MAX_LIFETIME), (float('inf'), MAX_LIFETIME),
    (1e308, MAX_LIFETIME), (-1, 0), (-10 ** 400, 0), ('-inf', 0), ('7.5', 7.5), (True, 1), (0, 0),
], ids=lambda value: str(value)[:8])
def test_strange_lifetimes_are_within_bounds(lifetime, expected):
    assert parse_peers({'x': {'priority': 1, 'lifetime': lifetime}})['x'].lifetime == expected


@pytest.mark.parametrize('lifetime', [float('nan'), 'nan', '1' * 5000 + 'x', [], {}, None])
def test_lifetimes_that_are_no_numbers_make_no_sense(lifetime):
    assert parse_peers({'x': {'priority': 1, 'lifetime': lifetime}}) == {}


@pytest.mark.parametrize('lastseen', [
    '2020-01-02T03:04:05Z', '2020-01-02 03:04:05+00', '20200102T030405Z',
    '2020-01-02T05:04:05.000000000+0200', '2020-01-02T03:04:05,0',
])
def test_times_can_be_in_any_notation_of_the_standard(lastseen):
    assert parse_peers({'x': {'lastseen': lastseen}})['x'].lastseen == TIME


strange = st.sampled_from([
    10 ** 400, -10 ** 400, 1e308, '1e400', '-1e400', 'nan', '0001-01-01T00:00:00+14:00',
    '9999-12-31T23:59:59-14:00', '9' * 5000]) | st.text() | st.integers() | st.floats()


@given(st.dictionaries(st.sampled_from('abc'), st.dictionaries(
    st.sampled_from(['priority', 'lifetime', 'lastseen', 'message', 'paused']), strange)),
    st.booleans())
def test_no_records_are_errors_when_they_are_judged(status, live):
    now = Moment(1000.0, TIME)
    roster = judging.observe({}, parse_peers(status), now=now, live=live)
    verdict = judging.judge(roster, priority=0, now=now.mono)
    assert verdict.until is None or math.isfinite(verdict.until)
    end = judging.get_yielding_end(
        roster, priority=0, since=now.mono, patience=60, now=now.mono)
    assert end is None or math.isfinite(end)
    assert repr(verdict)
