"""
Members of one peering object in virtual time: with clocks that go wrong, crashes and partitions.
"""
import asyncio
import contextlib
import copy
import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopf import testing
from kopf._cogs.aiokits.clocks import Clock, Moment
from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs import patches
from kopf._cogs.structs.references import Resource
from kopf._core.engines.peering import judging
from kopf._core.engines.peering.memberships import PAUSED, Membership, Standing
from tests._core.reactor.worlds import run_virtually

RESOURCE = Resource('kopf.dev', 'v1', 'clusterkopfpeerings', namespaced=False)
LIFETIME = 10
LATENCY = 0.01
WALL = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Api:
    """One peering object, and those who watch it."""

    def __init__(self):
        self.version = 1
        self.is_deleted = False
        self.status = {}
        self.writes = []
        self.watchers = set()

    @property
    def raw_version(self):
        return str(self.version)

    @property
    def raw(self):
        return {'metadata': {'name': 'default', 'resourceVersion': self.raw_version},
                'status': copy.deepcopy(self.status)}

    def patch(self, changes):
        self.writes.append((now(), changes))
        self.status = patches.merge({'status': self.status}, {'status': changes})['status']
        self.version += 1
        for member in self.watchers:
            asyncio.get_running_loop().call_later(LATENCY, member.show, self.raw)


class SkewedClock(Clock):
    def __init__(self, skew):
        super().__init__()
        self.skew = skew

    def now(self):
        return Moment(now(), WALL + datetime.timedelta(seconds=now() + self.skew))


class Member:
    """An operator, and its connection to the API."""

    def __init__(self, api, name, priority, *, skew=0.0, lifetime=LIFETIME):
        self.stalls = 0
        self.api = api
        self.cut = False
        self.busy = False
        self.denied = self.unlisted = self.forbidden = False
        self.denials = self.refusals = 0
        self.garbage = None
        self.standings = []
        self.settings = OperatorSettings()
        self.settings.peering.priority = priority
        self.settings.peering.lifetime = lifetime
        self.membership = Membership(
            client=self, clock=SkewedClock(skew), resource=RESOURCE,
            namespace=None, identity=name, on_change=self.note, is_idle=lambda: not self.busy,
            on_stall=self.stall)
        self.membership.see(api.raw, live=False)
        api.watchers.add(self)

    @property
    def standing(self):
        return self.membership.standing

    def reset_writes(self):
        """All writes are cut off anyway."""

    def stall(self):
        self.stalls += 1

    def note(self):
        self.standings.append((now(), self.standing))

    def show(self, raw):
        if not self.cut and self in self.api.watchers:
            self.membership.see(raw, live=True)

    async def request(self, method, path, *, timeout, body=None, **_):
        await asyncio.sleep(LATENCY)
        if self.cut:
            await asyncio.sleep(timeout)
            raise errors.APIConnectionError("no way", status=0)
        if self.forbidden:
            self.refusals += 1
            raise errors.APIForbiddenError("no rights", status=403)
        if (method == 'PATCH' and self.denied) or (method == 'GET' and self.unlisted):
            self.denials += 1
            raise errors.APINotFoundError("not found", status=404)
        if method == 'GET':
            return self.garbage or json.dumps({
                'metadata': {'resourceVersion': self.api.raw_version},
                'items': [] if self.api.is_deleted else [self.api.raw]}).encode()
        payload = json.loads(body)
        version = payload.get('metadata', {}).get('resourceVersion', self.api.raw_version)
        if version != self.api.raw_version:
            raise errors.APIConflictError("another version", status=409)
        self.api.patch(payload['status'])
        raw = self.api.raw
        await asyncio.sleep(LATENCY)
        return raw

    def mend(self):
        self.cut = False
        self.membership.see(self.api.raw, live=False)

    async def deny(self, count, *, unlisted=False):
        """Deny that the object is there, until so many requests were refused for that."""
        self.denials, self.denied, self.unlisted = 0, True, unlisted
        async with asyncio.timeout(2 * LIFETIME):
            while self.denials < count:
                await asyncio.sleep(LATENCY)
        await asyncio.sleep(10 * LATENCY)
        self.denied = self.unlisted = False

    async def crash(self):
        self.api.watchers.discard(self)
        self.membership._leaving.set()
        self.membership._waking.cancel()
        self.membership._task.cancel()
        await asyncio.wait([self.membership._task])
        self.membership.standing = Standing.ABSENT

    async def leave(self):
        self.api.watchers.discard(self)
        await self.membership.leave(now() + 5)
        self.membership.standing = Standing.ABSENT


def now():
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def meet(*members):
    try:
        yield
    finally:
        for member in members:
            if member in member.api.watchers:
                await member.crash()


@testing.virtual_time
async def test_alone_it_is_active_as_soon_as_it_has_written_its_record():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        assert me.standing is Standing.UNKNOWN
        await asyncio.sleep(0.1)
        assert me.standing is Standing.ACTIVE
        assert api.status['me']['priority'] == 0


@testing.virtual_time
async def test_record_is_renewed_long_before_it_expires_and_not_too_often():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1000)
    times = [time for time, _ in api.writes]
    pauses = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert 0.35 * LIFETIME < min(pauses) < max(pauses) < 0.65 * LIFETIME
    assert max(pauses) - min(pauses) > 0.05 * LIFETIME  # they are spread


@testing.virtual_time
async def test_lower_one_yields_before_the_higher_one_begins():
    api = Api()
    low = Member(api, 'low', 1)
    await asyncio.sleep(1)
    high = Member(api, 'high', 2)
    async with meet(low, high):
        await asyncio.sleep(1)
        assert low.standing is Standing.YIELDING
        assert high.standing is Standing.ACTIVE
        assert low.standings[-1][0] < high.standings[-1][0] < 1.1


@testing.virtual_time
async def test_higher_one_waits_until_the_lower_one_has_finished():
    api = Api()
    low = Member(api, 'low', 1)
    low.busy = True
    await asyncio.sleep(1)
    high = Member(api, 'high', 2)
    async with meet(low, high):
        await asyncio.sleep(5)
        assert high.standing is Standing.UNKNOWN
        low.busy = False
        low.membership.judge()
        await asyncio.sleep(0.1)
        assert high.standing is Standing.ACTIVE


@testing.virtual_time
async def test_lower_one_that_never_finishes_is_not_waited_for_longer_than_the_lifetime():
    api = Api()
    low = Member(api, 'low', 1)
    low.busy = True
    await asyncio.sleep(1)
    high = Member(api, 'high', 2)
    async with meet(low, high):
        await asyncio.sleep(LIFETIME + 0.1)
        assert high.standing is Standing.ACTIVE


@testing.virtual_time
async def test_lower_one_that_says_nothing_is_not_waited_for_long():
    api = Api()
    api.patch({'old': {'priority': -1, 'lifetime': 60, 'lastseen': WALL.isoformat()}})
    high = Member(api, 'high', 0)
    async with meet(high):
        await asyncio.sleep(judging.GRACE - 0.1)
        assert high.standing is not Standing.ACTIVE
        await asyncio.sleep(0.2)
        assert high.standing is Standing.ACTIVE


@testing.virtual_time
async def test_marks_are_gone_from_the_record_of_the_active_one():
    api = Api()
    low = Member(api, 'low', 1)
    high = Member(api, 'high', 2)
    async with meet(low, high):
        await asyncio.sleep(1)
        assert api.status['low']['paused'] is True
        await high.leave()
        await asyncio.sleep(1)
        assert low.standing is Standing.ACTIVE
        assert api.status['low'].keys() == {'priority', 'lifetime', 'lastseen'}
        assert api.status.keys() == {'low'}


@testing.virtual_time
async def test_it_resumes_exactly_when_the_lifetime_of_the_higher_one_is_over():
    api = Api()
    high, low = Member(api, 'high', 2), Member(api, 'low', 1)
    async with meet(low, high):
        await asyncio.sleep(25)
        await high.crash()
        last = max(time for time, changes in api.writes if 'high' in changes)
        await asyncio.sleep(LIFETIME + 0.1)  # its last record can be still on its way to the other
        time, standing = low.standings[-1]
        assert standing is Standing.ACTIVE
        assert LIFETIME <= time - last < LIFETIME + 0.1


@testing.virtual_time
async def test_cut_off_it_freezes_before_others_can_take_over():
    api = Api()
    high, low = Member(api, 'high', 2), Member(api, 'low', 1)
    async with meet(low, high):
        await asyncio.sleep(25)
        high.cut = True
        await asyncio.sleep(LIFETIME + 1)
        assert high.standing is Standing.LOST
        assert low.standing is Standing.ACTIVE
        assert high.standings[-1][0] < low.standings[-1][0]


@testing.virtual_time
async def test_reached_again_it_goes_on_when_the_others_have_yielded():
    api = Api()
    high, low = Member(api, 'high', 2), Member(api, 'low', 1)
    async with meet(low, high):
        high.cut = True
        await asyncio.sleep(100)
        high.mend()
        await asyncio.sleep(10)
        assert high.standing is Standing.ACTIVE
        assert low.standing is Standing.YIELDING
        assert low.standings[-1][0] < high.standings[-1][0]


@testing.virtual_time
async def test_reached_again_it_removes_nobody_and_waits_for_the_handlers_of_the_others():
    api = Api()
    high, low = Member(api, 'high', 2), Member(api, 'low', 1)
    async with meet(low, high):
        await asyncio.sleep(2)
        high.cut = True
        await asyncio.sleep(100)
        low.busy = True
        high.cut = False  # its own record goes out before it has seen anything of the others
        await asyncio.sleep(LIFETIME * 0.8)
        assert low.standing is Standing.YIELDING
        assert high.standing is Standing.LOST
        assert all('low' not in write or write['low'] for _, write in api.writes)
        low.busy = False
        low.membership.judge()
        await asyncio.sleep(0.1)
        assert high.standing is Standing.ACTIVE


@testing.virtual_time
async def test_equal_ones_freeze_both_until_one_of_them_leaves():
    api = Api()
    a, b = Member(api, 'a', 1), Member(api, 'b', 1)
    async with meet(a, b):
        await asyncio.sleep(30)
        assert a.standing is b.standing is Standing.CLASHING
        await b.leave()
        await asyncio.sleep(0.1)
        assert a.standing is Standing.ACTIVE


@testing.virtual_time
async def test_records_that_are_renewed_at_the_last_moment_are_not_removed():
    api = Api()
    late = {'priority': 1, 'lifetime': 5}
    api.patch({'late': {**late, 'lastseen': '2000-01-01T00:00:00+00:00'}})
    me = Member(api, 'me', 0)
    send, removals = me.request, []

    async def request(*args, body, **options):
        if 'late' in json.loads(body)['status']:
            removals.append(body)
            api.patch({'late': {**late, 'lastseen': '2020-01-01T00:00:10+00:00'}})
        return await send(*args, body=body, **options)

    me.request = request
    async with meet(me):
        async with asyncio.timeout(3 * LIFETIME):
            while not removals:
                await asyncio.sleep(LATENCY)
        await asyncio.sleep(1)
        assert 'late' in api.status
        assert me.standing is Standing.YIELDING


@testing.virtual_time
async def test_dead_records_are_removed():
    api = Api()
    api.patch({'old': {'priority': -1, 'lifetime': 5, 'lastseen': '2000-01-01T00:00:00+00:00'}})
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(4.9)
        assert 'old' in api.status  # its clock can be wrong
        await asyncio.sleep(2 * LIFETIME)
        assert 'old' not in api.status


@testing.virtual_time
async def test_own_record_is_never_a_reason_and_never_dead():
    api = Api()
    api.patch({'me': {'priority': 100, 'lifetime': 1}})  # of an earlier run
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1000)
        assert [standing for _, standing in me.standings] == [Standing.ACTIVE]
        assert all(changes['me'] is not None for _, changes in api.writes)


@testing.virtual_time
async def test_foreign_contents_are_left_alone():
    api = Api()
    api.patch({'kopf': {'progress': {}}, 'text': 'x'})
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1000)
        assert api.status['kopf'] == {'progress': {}}
        assert api.status['text'] == 'x'


@testing.virtual_time
async def test_own_record_is_restored_when_somebody_removes_it():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(2)
        api.patch({'me': None})
        await asyncio.sleep(1.1)
        assert 'me' in api.status
        assert me.standing is Standing.ACTIVE


@testing.virtual_time
async def test_own_record_is_not_fought_for_too_often():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(2)
        before = len(api.writes)
        for _ in range(100):
            api.patch({'me': None})
            await asyncio.sleep(0.1)
        assert len(api.writes) - before - 100 <= 11


@testing.virtual_time
async def test_in_an_outage_it_tries_about_once_a_second_at_most():
    api = Api()
    me = Member(api, 'me', 0)
    attempts = []
    request = me.request

    async def counted(*args, **kwargs):
        attempts.append(now())
        return await request(*args, **kwargs)

    me.request = counted
    async with meet(me):
        await asyncio.sleep(100)
        me.cut = True
        attempts.clear()
        await asyncio.sleep(100)
        assert 20 < len(attempts) < 100


@testing.virtual_time
async def test_watch_that_shows_nothing_is_noticed():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(100)
        assert me.stalls == 0
        me.show = lambda raw: None
        await asyncio.sleep(2 * LIFETIME)
        assert me.stalls > 0


@testing.virtual_time
async def test_deleted_object_is_no_reason_to_freeze_by_itself():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1)
        me.membership.miss()
        assert me.standing is Standing.ABSENT
        me.membership.see(api.raw, live=True)
        assert me.standing is Standing.ABSENT
        await asyncio.sleep(1)
        assert me.standing is Standing.ACTIVE


@testing.virtual_time
async def test_denied_object_that_is_there_is_no_reason_to_resume():
    api = Api()
    low, high = Member(api, 'low', 0), Member(api, 'high', 1)
    async with meet(low, high):
        await asyncio.sleep(1)
        for unlisted in (False, True):
            await low.deny(2, unlisted=unlisted)
            assert low.standing is Standing.YIELDING
            await asyncio.sleep(LIFETIME)
            assert low.standing is Standing.YIELDING
    assert not [standing for _, standing in low.standings if standing not in PAUSED]


@pytest.mark.parametrize('garbage', [b'null', b'[]', b'{}', b'{"items": null}', b'<html>'])
@testing.virtual_time
async def test_a_list_that_is_no_list_says_nothing_about_a_denied_object(garbage):
    api = Api()
    low, high = Member(api, 'low', 0), Member(api, 'high', 1)
    low.garbage = garbage
    async with meet(low, high):
        await asyncio.sleep(1)
        await low.deny(2)
        await asyncio.sleep(LIFETIME)
        assert low.standing is Standing.YIELDING


@testing.virtual_time
async def test_denied_object_is_renewed_again_as_soon_as_it_is_not_denied():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1)
        await me.deny(2)
        await asyncio.sleep(LIFETIME)
        assert me.standing is Standing.ACTIVE
        assert [standing for _, standing in me.standings] == [Standing.ACTIVE]


@testing.virtual_time
async def test_deleted_object_is_noticed_by_the_renewal_too():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1)
        me.denied = api.is_deleted = True
        await asyncio.sleep(LIFETIME)
        assert me.standing is Standing.ABSENT


@testing.virtual_time
async def test_rights_that_are_missing_for_a_moment_are_no_reason_to_resume():
    api = Api()
    low, high = Member(api, 'low', 0), Member(api, 'high', 1)
    async with meet(low, high):
        await asyncio.sleep(1)
        for member in (low, high):
            member.forbidden = True
            async with asyncio.timeout(LIFETIME):
                while not member.refusals:
                    await asyncio.sleep(LATENCY)
            member.forbidden = False
            await asyncio.sleep(LIFETIME)
        assert [standing for _, standing in low.standings] == [Standing.YIELDING]
        assert [standing for _, standing in high.standings] == [Standing.ACTIVE]


@testing.virtual_time
async def test_without_rights_it_pauses_as_long_as_it_sees_others():
    api = Api()
    low, high = Member(api, 'low', 0), Member(api, 'high', 1)
    async with meet(low, high):
        await asyncio.sleep(1)
        low.forbidden = True
        await asyncio.sleep(5 * LIFETIME)
        assert low.standing in PAUSED
        await high.leave()
        await asyncio.sleep(LIFETIME)
        assert low.standing is Standing.ABSENT


@testing.virtual_time
async def test_without_rights_it_is_alone_when_its_record_has_expired():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        await asyncio.sleep(1)
        me.forbidden = True
        await asyncio.sleep(2 * LIFETIME)
        assert [standing for _, standing in me.standings] == [
            Standing.ACTIVE, Standing.LOST, Standing.ABSENT]


@testing.virtual_time
async def test_without_rights_from_the_beginning_it_is_alone_at_once():
    api = Api()
    me = Member(api, 'me', 0)
    async with meet(me):
        me.forbidden = True
        await asyncio.sleep(1)
        assert me.standing is Standing.ABSENT


EVENTS = st.lists(st.tuples(
    st.sampled_from(['crash', 'leave', 'start', 'wait']), st.integers(0, 3),
    st.floats(0.1, 2 * LIFETIME)), max_size=12)
SKEWS = st.lists(st.floats(-0.19 * LIFETIME, 0.19 * LIFETIME), min_size=4, max_size=4)


@given(events=EVENTS, skews=SKEWS)
@settings(max_examples=25, deadline=None)
def test_with_wrong_clocks_and_crashes_never_two_are_active_and_in_the_end_the_highest_is(
        events, skews):
    async def live():
        api = Api()
        members = {i: Member(api, f'm{i}', i, skew=skews[i]) for i in range(4)}
        async with contextlib.AsyncExitStack() as stack:
            count = 4
            for i in range(4):
                stack.push_async_callback(lambda i=i: stop(i))

            async def stop(i):
                if i in members:
                    await members.pop(i).crash()

            for what, i, pause in [*events, ('wait', 0, 3 * LIFETIME)]:
                if what == 'start' and i not in members:
                    count += 1
                    members[i] = Member(api, f'm{i}-{count}', i, skew=skews[i])
                elif what in ('crash', 'leave') and i in members:
                    await getattr(members.pop(i), what)()
                until = now() + pause
                while now() < until:
                    active = [key for key, item in members.items()
                              if item.standing not in PAUSED and (
                                  item.standing is not Standing.UNKNOWN)]
                    assert len(active) <= 1
                    await asyncio.sleep(0.005 if now() < until - pause + 0.3 else 0.25)
            if members:
                assert active == [max(members)]

    run_virtually(live())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(0.1, 3 * LIFETIME)),
                max_size=10), SKEWS)
@settings(max_examples=20, deadline=None)
def test_with_partitions_two_are_active_for_no_longer_than_a_lifetime(cuts, skews):

    async def live():
        api = Api()
        members = [Member(api, f'm{i}', i, skew=skews[i]) for i in range(3)]
        since = None
        async with meet(*members):
            for i, cut, pause in [*cuts, (0, False, 0), (1, False, 0), (2, False, 3 * LIFETIME)]:
                if cut:
                    members[i].cut = True
                elif members[i].cut:
                    members[i].mend()
                until = now() + pause
                while now() < until:
                    active = [item for item in members if item.standing is Standing.ACTIVE]
                    since = None if len(active) <= 1 else now() if since is None else since
                    assert since is None or now() - since < LIFETIME
                    await asyncio.sleep(0.1)
            assert active == [members[2]]

    run_virtually(live())
