"""
What the replicas decide about their certificates: step by step, and together with all that happens.
"""
import base64
import dataclasses
import datetime
import functools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopf._kits.webhooks import certificates
from kopf._kits.webhooks.generations import (
    LAST,
    PREFIX,
    Do,
    Generation,
    Replica,
    Report,
    Step,
    Store,
    Times,
    decide,
    get_renewal,
    is_late,
    make_data,
    make_report,
    parse,
)

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
HOUR, MINUTE, DAY = (datetime.timedelta(**{unit: 1}) for unit in ('hours', 'minutes', 'days'))
TIMES = Times()
NAMES = frozenset({'x.ns.svc'})


def make(name, *, left=80 * DAY):
    return Generation(name.encode(), b'key', NAMES, NOW + left)


A, B = make('A', left=20 * DAY), make('B', left=90 * DAY)
FRESH = make('A')


def store(current=FRESH, *, reports=None, me='me', **kwargs):
    if reports is None:
        reports = {me: Report(current.id, NOW)} if current is not None else {}
    return Store(uid='uid', version='1', current=current, reports=reports, **kwargs)


def replica(serves=FRESH, *, placed=(), ago=HOUR, **kwargs):
    return Replica(
        id='me', names=NAMES, serves=None if serves is None else serves.id,
        serves_since=NOW - ago, placed=b'\n'.join(each.certificate for each in placed),
        placed_at=NOW - ago if placed else None, **kwargs)


writer = functools.partial(replica, is_writer=True)
ROTATED = {'me': Report(B.id, NOW)}
LATE, LATER = make('A', left=8 * DAY), make('B', left=9 * DAY + HOUR)
GONE = make('A', left=-HOUR)


@pytest.mark.parametrize('seen, me, do', [
    # The beginning.
    (None, replica(None), Do.CREATE),
    (None, replica(), Do.CREATE),
    (store(None), replica(None), Do.CREATE),
    (store(), replica(None), Do.LOAD),
    (store(), replica(B), Do.LOAD),
    (store(reports={}), replica(), Do.REPORT),
    (store(reports={'me': Report(B.id, NOW)}), replica(), Do.REPORT),
    (store(reports={'me': Report(FRESH.id, NOW - HOUR)}), replica(), Do.REPORT),
    (store(reports={'me': Report(FRESH.id, NOW + 2 * HOUR)}), replica(), Do.REPORT),
    (store(), writer(), Do.WAIT),
    # The announcement, by the writer only until it is late.
    (store(A), writer(A), Do.ANNOUNCE),
    (store(A), replica(A), Do.WAIT),
    (store(LATE), replica(LATE), Do.ANNOUNCE),
    (store(), dataclasses.replace(writer(), names=frozenset({'other'})), Do.ANNOUNCE),
    (store(A, next=GONE), writer(A), Do.ANNOUNCE),
    # The switch, when everything is in place and settled.
    (store(A, next=B), writer(A), Do.WAIT),
    (store(A, next=B), writer(A, placed=[A]), Do.WAIT),
    (store(A, next=B), writer(A, placed=[A, B], ago=MINUTE / 2), Do.WAIT),
    (store(A, next=B), writer(A, placed=[A, B]), Do.SWITCH),
    (store(A, next=B), replica(A, placed=[A, B]), Do.WAIT),
    (store(LATE, next=B), replica(LATE, placed=[LATE, B]), Do.SWITCH),
    # The switch at once, if the served certificate is of no use at the address.
    (store(A, next=B), writer(A, placed=[A, B], ago=MINUTE / 2, address={'new'}), Do.SWITCH),
    (store(A, next=B), writer(A, placed=[A], ago=MINUTE / 2, address={'new'}), Do.WAIT),
    (store(A, next=B), writer(A, placed=[A, B], ago=MINUTE / 2, address=NAMES), Do.WAIT),
    # The end, when all live replicas have reported.
    (store(B, old=A, reports=ROTATED), writer(B), Do.WAIT),
    (store(B, old=A, reports=ROTATED), writer(B, placed=[A, B]), Do.RETIRE),
    (store(B, old=A, reports=ROTATED), writer(B, placed=[A, B], ago=MINUTE / 2), Do.WAIT),
    (store(B, old=A, reports=ROTATED), replica(B, placed=[A, B]), Do.WAIT),
    (store(B, old=A, reports={**ROTATED, 'x': Report(B.id, NOW)}),
     writer(B, placed=[A, B]), Do.RETIRE),
    (store(B, old=A, reports={**ROTATED, 'x': Report(A.id, NOW - HOUR)}),
     writer(B, placed=[A, B]), Do.WAIT),
    (store(B, old=A, reports={**ROTATED, 'x': Report(A.id, NOW - 3 * HOUR)}),
     writer(B, placed=[A, B]), Do.RETIRE),
    (store(B, old=GONE, reports={**ROTATED, 'x': Report(GONE.id, NOW)}),
     writer(B, placed=[B]), Do.RETIRE),
    # All have expired: at once, by anybody.
    (store(GONE), replica(GONE), Do.ANNOUNCE),
    (store(GONE, next=B), replica(GONE), Do.SWITCH),
    (store(GONE, next=B, old=GONE), replica(GONE), Do.SWITCH),
    (store(GONE, old=GONE), replica(GONE), Do.ANNOUNCE),
    (store(B, old=GONE, reports=ROTATED), replica(B), Do.WAIT),
    (store(B, old=GONE, reports=ROTATED), replica(B, placed=[B]), Do.RETIRE),
])
def test_there_is_one_next_step(seen, me, do):
    assert decide(seen, me, now=NOW, times=TIMES).do is do


@pytest.mark.parametrize('seen, me, until', [
    (store(), writer(), NOW + HOUR),
    (store(A), replica(A), NOW + HOUR),
    (store(A, next=B), writer(A, placed=[A, B], ago=MINUTE / 2), NOW + MINUTE / 2),
    (store(B, old=A, reports={**ROTATED, 'x': Report(A.id, NOW - 2.5 * HOUR)}),
     writer(B, placed=[A, B]), NOW + HOUR / 2),
    (store(make('A', left=9 * DAY + MINUTE)), replica(make('A')), NOW + MINUTE),
])
def test_waiting_ends_when_something_is_due(seen, me, until):
    assert decide(seen, me, now=NOW, times=TIMES) == Step(Do.WAIT, until)


def test_renewals_are_at_two_thirds_and_differ_between_secrets():
    ends = {get_renewal(Store(uid=str(n), version=''), B, times=TIMES) for n in range(100)}
    assert len(ends) == 100
    assert NOW + 55 * DAY <= min(ends) < max(ends) <= NOW + 60 * DAY


FOREIGN = Generation(b'certificate', b'key')


@pytest.mark.parametrize('current, me, step', [
    (None, replica(None), Step(Do.WAIT)),
    (FOREIGN, replica(None), Step(Do.LOAD)),
    (FOREIGN, writer(FOREIGN), Step(Do.WAIT)),
    (FOREIGN, writer(A, changed_at=NOW), Step(Do.WAIT, NOW + MINUTE)),
    (FOREIGN, replica(A, changed_at=NOW - MINUTE), Step(Do.LOAD)),
])
def test_secrets_of_others_are_only_read_and_their_changes_settle_first(current, me, step):
    assert decide(store(current, is_foreign=True), me, now=NOW, times=TIMES) == step


def test_a_deleted_secret_of_others_is_made_by_them():
    assert decide(None, replica(is_guest=True), now=NOW, times=TIMES) == Step(Do.WAIT)
    assert decide(None, replica(), now=NOW, times=TIMES) == Step(Do.CREATE)


@functools.cache
def build(life=90 * DAY, now=NOW, n=0):
    return Generation(*certificates.build_certificate(NAMES, validity=life, now=now))


def encode(value):
    return base64.b64encode(value).decode()


def make_raw(annotations=None, type='Opaque', **data):
    return {'metadata': {'uid': 'u', 'resourceVersion': '1', 'annotations': annotations},
            'type': type, 'data': data}


def test_what_is_written_is_what_is_parsed():
    raw = make_raw()
    found = parse(raw, now=NOW)
    for do, n in [(Do.CREATE, 1), (Do.ANNOUNCE, 2), (Do.SWITCH, None), (Do.RETIRE, None)]:
        data = make_data(do, found, None if n is None else build(n=n))
        raw['data'] = {key: value for key, value in {**raw['data'], **data}.items() if value}
        found = parse(raw, now=NOW)
        shown = [each and each.certificate for each in (found.current, found.next, found.old)]
        one, two = build(n=1).certificate, build(n=2).certificate
        assert shown == {
            Do.CREATE: [one, None, None], Do.ANNOUNCE: [one, two, None],
            Do.SWITCH: [two, None, one], Do.RETIRE: [two, None, None]}[do]
        assert found.authorities == sorted(filter(None, shown))
    assert found.current.names == NAMES
    assert found.current.until == NOW + 90 * DAY
    assert found.current.key == build(n=2).key


def test_reports_are_parsed_and_old_ones_are_removed():
    me = replica(B)
    seen = store(B, reports={'old': Report('x', NOW - 3 * HOUR), 'new': Report('y', NOW)})
    written = make_report(seen, me, "title", now=NOW, times=TIMES)
    assert written[f'{PREFIX}old'] is None and f'{PREFIX}new' not in written
    assert parse(make_raw({f'{PREFIX}me': written[f'{PREFIX}me']}), now=NOW).reports == {
        'me': Report(B.id, NOW)}


@pytest.mark.parametrize('raw', [
    make_raw(**{'tls.crt': encode(build().certificate)}),
    make_raw(**{'tls.crt': encode(build().certificate), 'tls.key': encode(b'garbage')}),
    make_raw(**{'tls.crt': encode(build().certificate), 'tls.key': encode(build(n=1).key)}),
    make_raw(**{'tls.crt': encode(b'garbage'), 'tls.key': encode(build().key)}),
    make_raw(**{'tls.crt': 'not base64!', 'tls.key': encode(build().key)}),
    {**make_raw(), 'data': None},
])
def test_what_is_damaged_is_made_anew(raw):
    assert decide(parse(raw, now=NOW), replica(None), now=NOW, times=TIMES) == Step(Do.CREATE)


@pytest.mark.parametrize('text', [
    '', '{', '[]', '{}', '{"serves": "x"}', '{"serves": "x", "at": "z"}', '{"at": 1, "serves": 2}',
    '{"serves": "x", "at": "9999-12-31T23:59:59+00:00"}', '[' * 100_000,
    '{"serves": "x", "at": "0001-01-01T00:00:00+14:00"}'])
def test_damaged_reports_do_no_harm(text):
    found = dataclasses.replace(
        store(B, old=A), reports={
            **parse(make_raw({f'{PREFIX}x': text}), now=NOW).reports, **ROTATED})
    decide(found, writer(B, placed=[A, B]), now=NOW, times=TIMES)
    make_report(found, writer(B), "", now=NOW, times=TIMES)


def test_keys_are_in_no_representation():
    secret = parse(make_raw(**{
        'tls.crt': encode(build().certificate), 'tls.key': encode(build().key)}), now=NOW)
    assert 'PRIVATE' not in f'{secret!r} {secret.current!r} {secret}'


# All together: replicas whose clocks are up to an hour apart, that see the Secret a moment later,
# are killed and replaced, and take turns as the writer.

QUICK = Times(life=6 * DAY)
LAG = 5.0
"""How late (seconds) replicas see the Secret, and how long their writes take, at most."""
CACHING = 20.0
"""How late (seconds) the API server notices a change of the configurations, at most."""


PARSED = {}


def parse_once(raw):
    """Parse each state once, as that takes most of the time. All certificates are valid already."""
    if id(raw) not in PARSED:
        PARSED[id(raw)] = raw, parse(raw, now=LAST)
    return PARSED[id(raw)][1]


class Node:
    def __init__(self, id_, skew, now):
        self.me = Replica(id=id_, names=NAMES)
        self.skew = skew
        self.view = None
        self.due = now
        self.refreshed = now
        self.written = now


class Cluster:
    def __init__(self, seed):
        PARSED.clear()
        self.random = random.Random(seed)
        self.now = NOW
        self.raw = None
        self.version = 0
        self.nodes = {}
        self.events = []
        self.noticed = NOW
        self.trusted = None
        """What the API server trusts, as it has noticed."""
        self.steps = []
        for _ in range(3):
            self.add()
        self.elect()

    def after(self, most):
        return self.now + datetime.timedelta(seconds=self.random.uniform(0, most))

    def add(self):
        node = Node(f'n{self.random.getrandbits(60)}', (self.random.random() - 0.5) * HOUR,
                    self.now)
        node.view = self.raw
        self.nodes[node.me.id] = node

    def elect(self):
        """Elect another writer, or sometimes none, or two at once."""
        chosen = self.random.sample([*self.nodes], k=self.random.choice([0, 1, 1, 1, 2]))
        for id_, node in self.nodes.items():
            node.me = dataclasses.replace(
                node.me, is_writer=id_ in chosen, placed=b'', placed_at=None)
            node.due = self.now

    def kill(self):
        del self.nodes[self.random.choice([*self.nodes])]
        self.events.append((self.after(2 * 3600), self.add))

    def write(self, raw):
        self.version += 1
        self.raw = {**raw, 'metadata': {**raw['metadata'], 'resourceVersion': str(self.version)}}
        for node in self.nodes.values():
            self.events.append((self.after(LAG), functools.partial(self.show, node, self.raw)))

    def show(self, node, raw):
        if node.view is None or int(raw['metadata']['resourceVersion']) > int(
                node.view['metadata']['resourceVersion']):
            node.view, node.due = raw, self.now

    def place(self, node, bundle):
        if node.me.id in self.nodes and (node.me.is_writer or self.is_late(node)):
            if node.me.placed != bundle:
                node.me = dataclasses.replace(
                    node.me, placed=bundle, placed_at=self.now + node.skew)
            node.due = self.now
            self.noticed = max(self.noticed, self.after(CACHING))
            self.events.append((self.noticed, functools.partial(self.trust, bundle)))

    def is_late(self, node):
        return is_late(parse_once(node.view), now=self.now + node.skew, times=QUICK)

    def trust(self, bundle):
        self.trusted = bundle

    def act(self, node):
        local = self.now + node.skew
        seen = None if node.view is None else parse_once(node.view)
        step = decide(seen, node.me, now=local, times=QUICK)
        self.steps.append(step.do)
        node.due = self.now + HOUR
        if step.do is Do.WAIT and step.until is not None:
            node.due = max(step.until - node.skew, self.now + datetime.timedelta(seconds=0.1))
        elif step.do is Do.LOAD:
            node.me = dataclasses.replace(node.me, serves=seen.current.id, serves_since=local)
            node.due = self.now
        elif step.do is Do.REPORT:
            self.patch(node, annotations=make_report(seen, node.me, "", now=local, times=QUICK))
        elif step.do is not Do.WAIT and (
                self.raw is None if seen is None
                else seen.version == self.raw['metadata']['resourceVersion']):
            fresh = Generation(*certificates.build_certificate(
                NAMES, validity=QUICK.life, now=local)) if step.do in (
                    Do.CREATE, Do.ANNOUNCE) else None
            self.patch(node, data=make_data(step.do, seen, fresh))
        if seen is not None and node.me.serves is not None and (
                node.me.is_writer or self.is_late(node)):
            bundle = b''.join(seen.authorities)
            pause = QUICK.settling / 2 if len(seen.authorities) > 1 else HOUR
            if bundle != node.me.placed or self.now - node.refreshed >= pause:
                node.refreshed = self.now
                node.due = min(node.due, self.now + pause)
                node.written = max(node.written, self.after(LAG))
                self.events.append((node.written, functools.partial(self.place, node, bundle)))

    def patch(self, node, *, annotations=(), data=()):
        old = self.raw or {'metadata': {'uid': 'u'}}
        self.write({'type': 'Opaque', 'data': merge(old.get('data'), data), 'metadata': {
            'uid': 'u', 'annotations': merge(old['metadata'].get('annotations'), annotations)}})
        self.show(node, self.raw)  # the response

    def check(self):
        if self.trusted is None or self.raw is None:
            return
        raw = parse_once(self.raw)
        known = {each.id: each for each in (raw.current, raw.next, raw.old) if each is not None}
        for node in self.nodes.values():
            if node.me.serves is not None:
                assert node.me.serves in known, self.now
                assert known[node.me.serves].certificate in self.trusted, self.now
                assert known[node.me.serves].until > self.now

    def run(self, duration):
        end = self.now + duration
        while self.now < end:
            self.events.sort(key=lambda item: item[0])
            node = min(self.nodes.values(), key=lambda node: node.due)
            if self.events and self.events[0][0] <= node.due:
                self.now, event = self.events.pop(0)
                event()
            else:
                self.now = max(self.now, node.due)
                self.act(node)
            self.check()


def merge(old, new):
    return {key: value for key, value in {**(old or {}), **dict(new)}.items() if value is not None}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2 ** 32))
def test_what_is_served_is_trusted_whatever_happens_to_the_replicas(seed):
    cluster = Cluster(seed)
    for _ in range(12):
        cluster.run(datetime.timedelta(hours=cluster.random.uniform(1, 24)))
        if len(cluster.nodes) > 2:
            cluster.random.choice([cluster.kill, cluster.elect, lambda: None])()
            cluster.run(datetime.timedelta(minutes=cluster.random.choice([0.1, 0.5, 1, 2])))
        cluster.elect()
    assert cluster.now < NOW + 15 * DAY
    assert {*cluster.steps} <= {*Do}


def test_rotations_end():
    cluster = Cluster(0)
    cluster.elect = lambda: None
    first = next(iter(cluster.nodes.values()))
    for node in cluster.nodes.values():
        node.me = dataclasses.replace(node.me, is_writer=node is first)
    cluster.run(13 * DAY)
    counts = [cluster.steps.count(do) for do in (Do.ANNOUNCE, Do.SWITCH, Do.RETIRE)]
    assert counts == [3, 3, 3]
    assert json.dumps(cluster.raw).count('.crt') == 1
