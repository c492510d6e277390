"""
Candidates for one Lease in virtual time: with partitions, stopped processes, and lost responses.
"""
import asyncio
import contextlib
import copy
import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopf import testing
from kopf._cogs.aiokits.tenures import Tenure
from kopf._cogs.clients import errors, leasing
from kopf._cogs.configs.configuration import LeadershipSettings
from kopf._core.engines import leadership
from tests._core.reactor.worlds import check_always, run_virtually

DURATION, DEADLINE, PERIOD = 15, 10, 2
LATENCY = 0.01
LONGEST_PAUSE = PERIOD * (1 + leadership.JITTER)


def make_lease(holder, *, duration=DURATION):
    return {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'ns', 'name': 'lease', 'labels': {'by': 'others'}},
        'spec': {'holderIdentity': holder, 'leaseDurationSeconds': duration,
                 'acquireTime': '2000-01-01T00:00:00.000000Z',
                 'renewTime': '2000-01-01T00:00:00.000000Z', 'leaseTransitions': 3},
    }


def now():
    return asyncio.get_running_loop().time()


class Api:
    """One Lease, or none."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.holders = []
        """Who has held the Lease, since when."""
        self.watches = []

    def request(self, method, body):
        if method == 'GET':
            if self.lease is None:
                raise errors.APINotFoundError("not found", status=404)
            return copy.deepcopy(self.lease)
        if method == 'POST' and self.lease is not None:
            raise errors.APIConflictError("it exists", status=409)
        if method == 'PUT' and self.lease is None:
            raise errors.APINotFoundError("not found", status=404)
        if method == 'PUT' and body['metadata']['resourceVersion'] != str(self.version):
            raise errors.APIConflictError("it has changed", status=409)
        self.put(body)
        return copy.deepcopy(self.lease)

    def put(self, body):
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease['metadata']['resourceVersion'] = str(self.version)
        for watch in self.watches:
            watch.put_nowait(('MODIFIED', copy.deepcopy(self.lease)))
        holder = body['spec']['holderIdentity']
        if not self.holders or self.holders[-1][1] != holder:
            self.holders.append((now(), holder))


class Replica:
    """A candidate, and its connection to the API; the process can be stopped."""

    def __init__(self, api, name):
        self.api = api
        self.name = name
        self.cut = self.hanging = self.deaf = self.forbidden = False
        self.blind = self.mute = False
        self.requests = []
        self.changes = []
        self.ahead = 0.0
        self.tenure = Tenure(now)
        self._running = asyncio.Event()
        self._running.set()
        self.candidacy = leadership.Candidacy(
            self, identity=name, namespace='ns', name='lease',
            settings=LeadershipSettings(
                lease_duration=DURATION, renew_deadline=DEADLINE, retry_period=PERIOD),
            tenure=self.tenure,
            on_change=lambda: self.changes.append((round(now(), 1), self.tenure.term)))
        self.task = None

    def start(self):
        self.task = asyncio.get_running_loop().create_task(self.candidacy.run())
        return self

    async def kill(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled() or self.task.result() is None

    async def stop(self):
        await self.kill()
        await self.candidacy.release()

    def suspend(self):
        self._running.clear()

    def go_on(self):
        self._running.set()

    async def request(self, method, path, *, body=None, timeout, retry):
        assert not retry
        self.requests.append((now(), method))
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(method, body)
        except TimeoutError:
            raise errors.APIConnectionError("timed out") from None

    async def _exchange(self, method, body):
        await self._running.wait()
        await asyncio.sleep(LATENCY)
        if self.hanging:
            await asyncio.Event().wait()
        if self.cut:
            raise errors.APIConnectionError("cut off")
        if self.forbidden:
            raise errors.APIForbiddenError(
                'leases.coordination.k8s.io "lease" is forbidden: User "me" cannot get', status=403)
        result = self.api.request(method, None if body is None else json.loads(body))
        if self.deaf:
            raise errors.APIConnectionError("the response is lost")
        await asyncio.sleep(LATENCY)
        await self._running.wait()
        return result

    @contextlib.asynccontextmanager
    async def stream(self, path, *, params):
        assert params == {'watch': 'true', 'fieldSelector': 'metadata.name=lease'}
        await asyncio.sleep(LATENCY)
        if self.blind:
            raise errors.APIForbiddenError("leases cannot be watched", status=403)
        if self.cut:
            raise errors.APIConnectionError("cut off")
        watch = asyncio.Queue()
        if self.api.lease is not None:
            watch.put_nowait(('ADDED', copy.deepcopy(self.api.lease)))
        self.api.watches.append(watch)
        try:
            yield Stream(self, watch)
        finally:
            self.api.watches.remove(watch)

    async def is_reached(self):
        await self._running.wait()
        await asyncio.sleep(LATENCY)
        return not self.cut and not self.hanging and not self.mute

    @property
    def leads(self):
        return self.tenure.term is not None


class Stream:
    """A watch. What is sent while the replica is cut off never comes."""

    def __init__(self, replica, watch):
        self._replica = replica
        self._watch = watch

    async def readany(self):
        while True:
            type_, raw = await self._watch.get()
            if await self._replica.is_reached():
                return json.dumps({'type': type_, 'object': raw}).encode() + b'\n'


@testing.virtual_time
async def test_first_one_creates_the_lease_and_leads():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    assert a.leads
    spec = api.lease.pop('spec')
    when = spec.pop('acquireTime')
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z', when)
    assert spec == {
        'holderIdentity': 'a', 'leaseDurationSeconds': DURATION, 'renewTime': when,
        'leaseTransitions': 0}
    assert api.lease == {
        'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
        'metadata': {'namespace': 'ns', 'name': 'lease', 'resourceVersion': '1'}}
    await a.kill()


@pytest.mark.parametrize(('holder', 'duration', 'end'), [
    ('other', 15, 15), ('other', 30, 30), ('other', None, 0), ('', 1, 0), (None, 15, 0)])
@testing.virtual_time
async def test_lease_is_taken_as_soon_as_it_is_free(holder, duration, end):
    api = Api()
    api.put(make_lease(holder, duration=duration))
    a = Replica(api, 'a').start()
    await asyncio.sleep(end)
    assert not a.leads
    await asyncio.sleep(0.2)
    assert a.leads
    spec = api.lease['spec']
    assert spec == {
        'holderIdentity': 'a', 'leaseDurationSeconds': DURATION, 'leaseTransitions': 4,
        'acquireTime': spec['renewTime'], 'renewTime': spec['renewTime']}
    assert spec['acquireTime'] > '2000-01-01T00:00:00.000000Z'
    assert api.lease['metadata']['labels'] == {'by': 'others'}
    await a.kill()


@pytest.mark.parametrize('is_known', [True, False])
@testing.virtual_time
async def test_renewal_keeps_the_time_of_the_acquisition_and_the_transitions(is_known):
    api = Api()
    lease = make_lease('a')
    acquired = lease['spec']['acquireTime'] if is_known else lease['spec'].pop('acquireTime')
    api.put(lease)
    a = Replica(api, 'a').start()
    await asyncio.sleep(PERIOD / 2)
    spec = api.lease['spec']
    assert spec['leaseTransitions'] == 3
    assert spec['renewTime'] > acquired
    assert spec['acquireTime'] == (acquired if is_known else spec['renewTime'])
    assert api.lease['metadata']['labels'] == {'by': 'others'}
    await a.kill()


@pytest.mark.parametrize(('outage', 'method'), [(5, 'PUT'), (12, 'PUT'), (20, 'GET')])
@testing.virtual_time
async def test_lease_is_renewed_without_reading_unless_it_has_expired(outage, method, monkeypatch):
    monkeypatch.setattr(leadership.random, 'random', lambda: 0.0)  # so that 12 s are in time
    a = Replica(Api(), 'a').start()
    await asyncio.sleep(1)
    a.cut = True
    await asyncio.sleep(outage)
    a.cut = False
    count = len(a.requests)
    await asyncio.sleep(2 * LONGEST_PAUSE)
    assert a.leads
    assert a.requests[count][1] == method
    await a.kill()


@testing.virtual_time
async def test_leader_renews_in_each_period_by_one_request():
    a = Replica(Api(), 'a').start()
    await asyncio.sleep(100)
    assert a.changes == [(0.0, 1)]
    assert {method for _, method in a.requests[2:]} == {'PUT'}
    assert 45 < len(a.requests) < 55
    await a.kill()


@testing.virtual_time
async def test_slow_requests_are_no_reason_to_lose_the_lease(monkeypatch):
    monkeypatch.setattr(f'{__name__}.LATENCY', 0.49 * DEADLINE * leasing.PATIENCE)
    a = Replica(Api(), 'a').start()
    await asyncio.sleep(1000)
    assert [term for _, term in a.changes] == [1]
    await a.kill()


@testing.virtual_time
async def test_second_one_waits_and_only_reads():
    api = Api()
    a, b = Replica(api, 'a').start(), Replica(api, 'b')
    await asyncio.sleep(1)
    b.start()
    await asyncio.sleep(100)
    assert a.leads
    assert not b.leads
    assert {method for _, method in b.requests} == {'GET'}
    pauses = [after[0] - before[0] for before, after in zip(b.requests, b.requests[1:])]
    assert all(PERIOD <= pause <= LONGEST_PAUSE + 3 * LATENCY for pause in pauses)
    await a.kill()
    await b.kill()


@pytest.mark.parametrize(('share', 'pause'), [(0, 2), (0.5, 3.2), (1, 4.4)])
@pytest.mark.parametrize('is_cut', [True, False])
@testing.virtual_time
async def test_pauses_of_standbys_vary(share, pause, is_cut, monkeypatch):
    monkeypatch.setattr(random, 'random', lambda: share)
    api = Api()
    api.put(make_lease('other', duration=1000))
    a = Replica(api, 'a')
    a.cut = is_cut
    a.start()
    await asyncio.sleep(20)
    pauses = [after[0] - before[0] for before, after in itertools.pairwise(a.requests)]
    assert pauses == [pytest.approx(pause, abs=3 * LATENCY)] * len(pauses)
    await a.kill()


@testing.virtual_time
async def test_released_lease_is_taken_over_at_once():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    for seconds in (1, 3.3, 5.7, 8.1):
        await asyncio.sleep(seconds)
        await a.stop()
        await asyncio.sleep(10 * LATENCY)
        assert b.leads
        a, b = b, Replica(api, 'a' if b.name == 'b' else 'b').start()
    await a.kill()
    await b.kill()


@pytest.mark.parametrize('harm', ['blind', 'mute'])
@testing.virtual_time
async def test_released_lease_is_taken_over_in_the_next_attempt_if_it_cannot_be_watched(harm):
    random.seed(0)  # the pauses are random: the next attempt could come at once
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b')
    setattr(b, harm, True)
    b.start()
    await asyncio.sleep(4.5)
    await a.stop()
    released = now()
    while not b.leads:
        await asyncio.sleep(0.01)
    assert 0.1 < now() - released < LONGEST_PAUSE + 5 * LATENCY
    await b.kill()


@testing.virtual_time
async def test_killed_one_is_succeeded_when_its_lease_has_not_changed_for_its_duration():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    await asyncio.sleep(20)
    await a.kill()
    killed = now()
    while not b.leads:
        await asyncio.sleep(0.1)
    assert DURATION - PERIOD - 1 < now() - killed < DURATION + LONGEST_PAUSE + 1
    assert api.lease['spec']['leaseTransitions'] == 1
    await b.kill()


@testing.virtual_time
async def test_released_lease_is_taken_within_a_pause():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    await asyncio.sleep(20)
    await a.stop()
    stopped = now()
    spec = api.lease['spec']
    assert spec == {
        'holderIdentity': '', 'leaseDurationSeconds': 1, 'leaseTransitions': 0,
        'acquireTime': spec['renewTime'], 'renewTime': spec['renewTime']}
    while not b.leads:
        await asyncio.sleep(0.1)
    assert now() - stopped < LONGEST_PAUSE + 1
    await b.kill()


@testing.virtual_time
async def test_lease_of_another_is_not_released_by_a_standby():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    await asyncio.sleep(5)
    await b.stop()
    assert api.lease['spec']['holderIdentity'] == 'a'
    await a.kill()


@testing.virtual_time
async def test_release_succeeds_also_after_an_interrupted_renewal():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    a.deaf = True
    await asyncio.sleep(PERIOD)  # a renewal is in the Lease, but its response is lost
    a.deaf = False
    await a.stop()
    assert api.lease['spec']['holderIdentity'] == ''


@testing.virtual_time
async def test_who_is_cut_off_stops_at_the_deadline_before_the_next_one_begins():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    await asyncio.sleep(20)
    a.cut = True
    cut = now()
    while a.leads:
        assert not b.leads
        await asyncio.sleep(0.1)
    assert DEADLINE - PERIOD - 1 < now() - cut <= DEADLINE + 0.2
    while not b.leads:
        await asyncio.sleep(0.1)
    assert now() - cut > DURATION - PERIOD - 1
    a.cut = False
    await asyncio.sleep(20)
    assert b.leads
    assert not a.leads
    await a.kill()
    await b.kill()


@testing.virtual_time
async def test_hanging_requests_do_not_delay_the_end():
    a = Replica(Api(), 'a').start()
    await asyncio.sleep(20)
    a.hanging = True
    hung = now()
    while a.leads:
        await asyncio.sleep(0.1)
    assert now() - hung <= DEADLINE + 0.2
    await asyncio.sleep(0.5)
    assert a.changes[-1][1] is None
    await a.kill()


@testing.virtual_time
async def test_short_outage_costs_nothing():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(20)
    a.cut = True
    await asyncio.sleep(DEADLINE - 2 * PERIOD - 1)
    a.cut = False
    await asyncio.sleep(20)
    assert a.changes == [(0.0, 1)]
    await a.kill()


@testing.virtual_time
async def test_lost_responses_do_not_prolong_the_term_but_it_goes_on():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(20)
    a.deaf = True
    await asyncio.sleep(DEADLINE + 1)
    assert not a.leads
    a.deaf = False
    await asyncio.sleep(LONGEST_PAUSE + 1)
    assert a.tenure.term == 2
    assert api.lease['spec']['leaseTransitions'] == 0
    await a.kill()


@testing.virtual_time
async def test_process_that_was_stopped_does_not_lead_when_it_goes_on():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(1)
    b = Replica(api, 'b').start()
    await asyncio.sleep(20)
    a.suspend()
    await asyncio.sleep(30)
    assert b.leads
    assert not a.leads
    a.go_on()
    await asyncio.sleep(30)
    assert b.leads
    assert not a.leads
    assert [holder for _, holder in api.holders] == ['a', 'b']
    await a.kill()
    await b.kill()


@testing.virtual_time
async def test_leader_whose_lease_is_taken_by_force_stops_at_once():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(20)
    api.put({**api.lease, 'spec': {**api.lease['spec'], 'holderIdentity': 'human'}})
    await asyncio.sleep(PERIOD + 0.1)
    assert not a.leads
    await asyncio.sleep(DURATION + LONGEST_PAUSE)
    assert a.tenure.term == 2
    await a.kill()


@pytest.mark.parametrize('is_deleted', [True, False])
def test_lease_that_is_deleted_or_emptied_is_taken_again_in_a_new_term(is_deleted):
    async def run():
        api = Api()
        a = Replica(api, 'a').start()
        await asyncio.sleep(20)
        if is_deleted:
            api.lease = None
        else:
            api.put({**api.lease, 'spec': {**api.lease['spec'], 'holderIdentity': ''}})
        await asyncio.sleep(PERIOD + 0.1)
        assert a.tenure.term == 2
        assert [term for _, term in a.changes] == [1, 2]
        await asyncio.sleep(50)
        assert a.tenure.term == 2
        await a.kill()

    run_virtually(run())


@testing.virtual_time
async def test_restart_under_the_same_name_goes_on_at_once():
    api = Api()
    a = Replica(api, 'a').start()
    await asyncio.sleep(20)
    await a.kill()
    again = Replica(api, 'a').start()
    await asyncio.sleep(0.1)
    assert again.leads
    assert api.lease['spec']['leaseTransitions'] == 0
    await again.kill()


def test_failures_are_told_once_and_again_if_they_change(caplog):
    async def run():
        a = Replica(Api(), 'a')
        a.cut = True
        a.start()
        await asyncio.sleep(30)
        a.cut, a.forbidden = False, True
        await asyncio.sleep(30)
        a.forbidden = False
        await asyncio.sleep(30)
        await a.kill()

    run_virtually(run())
    lines = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert len(lines) == 2
    assert 'Could not acquire the Lease ns/lease' in lines[0]
    assert 'resources: [leases], verbs: [get, watch, create, update]' in lines[1]


EVENTS = st.lists(st.tuples(
    st.sampled_from('abc'),
    st.sampled_from(['cut', 'hanging', 'deaf', 'suspend', 'go on', 'mend', 'restart', 'stop']),
    st.sampled_from([0.005, 0.5, 3.0, 7.0, 16.0, 30.0]),
), max_size=25)


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_two_never_lead_at_once_and_in_the_end_one_does(events):
    async def run():
        api = Api()
        replicas = {name: Replica(api, name).start() for name in 'abc'}
        everyone = [*replicas.values()]

        def check():
            assert len([replica for replica in everyone if replica.leads]) <= 1

        checking = asyncio.get_running_loop().create_task(check_always(check))
        for name, what, pause in events:
            replica = replicas[name]
            match what:
                case 'suspend':
                    replica.suspend()
                case 'go on':
                    replica.go_on()
                case 'mend':
                    replica.cut = replica.hanging = replica.deaf = False
                case 'restart' | 'stop':
                    await (replica.kill() if what == 'restart' else replica.stop())
                    replicas[name] = Replica(api, name + str(len(everyone))).start()
                    everyone.append(replicas[name])
                case _:
                    setattr(replica, what, True)
            await asyncio.sleep(pause)
        for replica in replicas.values():
            replica.go_on()
            replica.cut = replica.hanging = replica.deaf = False
        await asyncio.sleep(2 * DURATION + 2 * LONGEST_PAUSE)
        assert len([replica for replica in replicas.values() if replica.leads]) == 1
        assert not checking.done()
        checking.cancel()
        await asyncio.wait([checking])
        for replica in replicas.values():
            await replica.kill()

    run_virtually(run())
