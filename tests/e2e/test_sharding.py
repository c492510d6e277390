"""
Replicas that share the objects by shards, through rounds of what happens to processes and networks,
while objects are changed all the time: who handles and who writes what is recorded and counted.

``$KOPF_SHARDING_ROUNDS`` is how many rounds there are, ``$KOPF_SHARDING_SHARDS`` how many shards,
and ``$KOPF_SHARDING_OBJECTS`` how many objects. The counts are printed at the end: ``pytest -s``.
"""
import asyncio
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import time
import urllib.parse
import uuid

import aiohttp
import pytest

from kopf._core.engines.sharding import hashing
from tests.e2e.clusters import run_cluster
from tests.e2e.kubes import CONFIGMAPS, NAMESPACES, Kind, Kube
from tests.e2e.ports import find_free_ports
from tests.e2e.replicas import (
    DURATION,
    LEASES,
    PERIOD,
    SETTINGS,
    Replicas,
    is_lease,
    is_write,
    read_audit,
)
from tests.e2e.rounds import CallLog, Load, find_repeats

ROUNDS = int(os.environ.get('KOPF_SHARDING_ROUNDS', '6'))
SHARDS = int(os.environ.get('KOPF_SHARDING_SHARDS', '6'))
OBJECTS = int(os.environ.get('KOPF_SHARDING_OBJECTS', '60'))

FAULTS = ['add', 'exit', 'kill', 'partition', 'half-open', 'freeze']

LIMIT = 60.0
"""How long (seconds) it can take until all shards are held again, on a busy machine."""

TEXT = '''
import asyncio, json, os, time
WHO = os.environ['POD_ID']
JOURNAL = open(os.environ['JOURNAL'], 'a', buffering=1)

def note(what, name, n):
    JOURNAL.write(json.dumps([time.time(), WHO, what, name, n]) + chr(10))

@kopf.on.startup()
def configure(settings, **_):
    settings.networking.request_timeout = 5
    settings.networking.error_backoffs = [0.5, 0.5, 1]
    settings.sharding.name = os.environ['SHARDING']
    settings.sharding.by = os.environ.get('BY', 'uid')
    settings.sharding.handover_timeout = float(os.environ.get('HANDOVER', '10'))

@kopf.on.create(*KIND)
@kopf.on.update(*KIND, id='create')
async def handle(name, spec, **_):
    note('begin', name, spec['n'])
    what = 'break'
    try:
        await asyncio.sleep(float(os.environ.get('PACE', '0.05')))
        what = 'end'
    finally:
        note(what, name, spec['n'])
''' + SETTINGS


def find_overlaps(calls, frozen):
    """
    Find calls for one object by two replicas at once.

    The calls of processes that are suspended or dead end when they are; ``frozen`` is when.
    """
    found, by_name = [], collections.defaultdict(list)
    for call in calls:
        stops = [when for when in frozen.get(call.who, ()) if when >= call.begin]
        ends = [when for when in (call.end, *stops[:1]) if when is not None]
        by_name[call.name].append((call.begin, min(ends, default=call.begin), call))
    for items in by_name.values():
        items.sort(key=lambda item: item[:2])
        for (_, end, one), (begin, _, other) in itertools.pairwise(items):
            if one.who != other.who and begin < end:
                found.append((one, other))
    return found


class ShardedLoad(Load):
    """Changes the objects, one after another, all the time."""

    def __init__(self, kube, kind):
        super().__init__(kube, kind)
        self.uids = {}

    async def create(self, number):
        limit = asyncio.Semaphore(8)

        async def create(name, text):
            async with limit:
                obj = await self._kube.create(self._kind, name, spec={'n': 0, 'text': text})
                self.newest[name] = 0
                self.uids[name] = obj['metadata']['uid']

        # Every second object is so large that the others parse only its metadata.
        await asyncio.gather(*[create(f'obj{i}', 'x' * 4000 * (i % 2)) for i in range(number)])

    def choose(self, n):
        return random.choice(list(self.newest))


class ShardedReplicas(Replicas):
    """The replicas of a sharded operator; what they do is recorded by their proxies."""

    def __init__(self, kube, operator, cluster, kind, folder, *, shards):
        super().__init__(operator, cluster, kind, folder, f's{uuid.uuid4().hex[:8]}')
        self.journal = CallLog(folder / 'journal')
        self.shards = shards
        self.option = f'--shards={shards}'
        self.frozen = collections.defaultdict(list)
        """When the processes were killed or suspended, by their names."""
        self._kube = kube
        self.env = {'JOURNAL': str(folder / 'journal'), 'SHARDING': self.lease}

    def begin(self, who, text='', *, env=None):
        return self.start(who, text, base=TEXT, env={**self.env, **(env or {})})

    async def list_leases(self, role):
        found = await self._kube.list_objects(LEASES)
        return [obj for obj in found if obj['metadata'].get('labels', {}).get(
            'kopf.dev/sharding') == self.lease and (
                obj['metadata']['labels']['kopf.dev/sharding-role'] == role)]

    async def count_shares(self):
        """Count the shards by their holders."""
        holders = [obj['spec'].get('holderIdentity') for obj in await self.list_leases('shard')]
        return collections.Counter(holder.split('/')[0] for holder in holders if holder)

    async def wait_fair(self, *names):
        """Wait until exactly these replicas hold all shards in fair shares; return how long."""
        begun = time.monotonic()
        while True:
            shares = await self.count_shares()
            if set(shares) == set(names) and sum(shares.values()) == self.shards and (
                    max(shares.values()) - min(shares.values()) <= 1):
                return time.monotonic() - begun
            assert time.monotonic() < begun + LIMIT, shares
            await asyncio.sleep(0.1)

    def find_shard_intruders(self, uids):
        """Find the writes by replicas that did not hold the shard of the object at that time."""
        requests = sorted(
            ((request.time, who, request) for who, proxy in self.proxies.items()
             for request in list(proxy.requests)), key=lambda item: item[:2])
        holders, intruders = {}, []
        for when, who, request in requests:
            if is_lease(request):
                if request.method in ('POST', 'PUT') and request.status in (200, 201):
                    lease = json.loads(request.body)
                    shard = lease['metadata']['labels'].get('kopf.dev/shard')
                    if shard is not None:
                        holders[int(shard)] = lease['spec']['holderIdentity'].split('/')[0]
            elif is_write(request) and not request.faulty:
                name = next(part for part in request.path.split('/') if part in uids)
                shard = hashing.find_shard_of_uid(uids[name], self.shards)
                if holders.get(shard) != who:
                    intruders.append((when, who, request.path, shard, holders.get(shard)))
        return intruders

    async def delete_leases(self):
        for role in ('member', 'shard', 'scheme'):
            for obj in await self.list_leases(role):
                await self._kube.delete(LEASES, obj['metadata']['name'])


@contextlib.asynccontextmanager
async def share(kube, operator, cluster, kind, folder, *, shards):
    with ShardedReplicas(kube, operator, cluster, kind, folder, shards=shards) as replicas:
        yield replicas
    await replicas.delete_leases()


@pytest.fixture()
async def replicas(kube, operator, cluster, kind, tmp_path):
    async with share(kube, operator, cluster, kind, tmp_path, shards=SHARDS) as replicas:
        yield replicas


async def pass_round(replicas, fault, names):
    """Let it happen to one replica, and wait for fair shares; return how long these took."""
    who = random.choice(names)
    op, proxy = replicas.operators[who], replicas.proxies[who]
    others = [name for name in names if name != who]
    match fault:
        case 'add':
            replicas.begin('new')
            took = await replicas.wait_fair(*names, 'new')
            replicas.operators['new'].send(signal.SIGTERM)
            assert await replicas.operators['new'].wait() == 0
        case 'exit':
            op.send(signal.SIGTERM)
            took = await replicas.wait_fair(*others)
            assert await op.wait() == 0
            replicas.begin(who)
        case 'kill':
            op.kill()
            replicas.frozen[who].append(time.time())
            took = await replicas.wait_fair(*others)
            replicas.begin(who)
        case 'freeze':
            op.send(signal.SIGSTOP)
            replicas.frozen[who].append(time.time())
            took = await replicas.wait_fair(*others)
            await asyncio.sleep(random.uniform(0, 2))
            op.send(signal.SIGCONT)
        case _:
            outage = proxy.refuse() if fault == 'partition' else proxy.hang(times=None)
            proxy.cut_streams() if fault == 'partition' else proxy.stall_streams()
            took = await replicas.wait_fair(*others)
            await asyncio.sleep(random.uniform(0, 2))
            outage.end()
    await replicas.wait_fair(*names)
    return took


@pytest.mark.timeout(180 + 60 * ROUNDS + OBJECTS // 20)
async def test_objects_are_shared_and_each_change_is_handled_by_one_at_a_time(
        kube, kind, replicas):
    random.seed(int(os.environ.get('KOPF_SHARDING_SEED', '0')))
    names, load = ['a', 'b', 'c'], ShardedLoad(kube, kind)
    for who in names:
        replicas.begin(who)
    took = await replicas.wait_fair(*names)
    print(f"start: fair shares of {SHARDS} shards after {took:.1f} s")
    begun = time.monotonic()
    await load.create(OBJECTS)
    assert not await replicas.journal.find_lost(load.newest, timeout=60 + OBJECTS / 20)
    print(f"{OBJECTS} objects are created and handled in {time.monotonic() - begun:.1f} s")
    handled = collections.Counter(call.who for call in replicas.journal.read())
    print(f"by {dict(handled)}")
    async with load.running():
        for fault in (FAULTS * ROUNDS)[:ROUNDS]:
            took = await pass_round(replicas, fault, names)
            print(f"{fault}: all shards are held by the others after {took:.1f} s")
    lost = await replicas.journal.find_lost(load.newest, timeout=40)
    calls = replicas.journal.read()
    overlaps = find_overlaps(calls, replicas.frozen)
    intruders = replicas.find_shard_intruders(load.uids)
    print(f"{len(calls)} calls; {len(find_repeats(calls))} repeats; {len(lost)} states lost; "
          f"{len(overlaps)} overlaps; {len(intruders)} writes without the shard")
    assert overlaps == []
    assert intruders == []
    assert not lost


@pytest.fixture()
async def namespaces(kube, replicas):
    names = [f'{replicas.lease}-{i}' for i in range(2 * SHARDS)]
    for name in names:
        await kube.create(NAMESPACES, name)
    yield names
    for name in names:
        await kube.delete(NAMESPACES, name)


async def test_only_the_namespaces_of_the_held_shards_are_watched(
        kube, kind, replicas, namespaces):
    async def find_holders():
        """Find the holders of the namespaces."""
        holders = {
            int(obj['metadata']['labels']['kopf.dev/shard']): obj['spec']['holderIdentity']
            for obj in await replicas.list_leases('shard')}
        return {name: holders[hashing.find_shard_of_key(name, SHARDS)].split('/')[0]
                for name in namespaces}

    async def find_lost(n):
        return await replicas.journal.find_lost(
            {f'obj-{name}': n for name in namespaces}, timeout=LIMIT)

    replicas.scope = ('--namespace', f'{replicas.lease}-*')
    env = {'BY': 'namespace'}
    replicas.begin('a', env=env)
    await replicas.wait_fair('a')
    for name in namespaces:
        await kube.create(kind, f'obj-{name}', namespace=name, spec={'n': 0})
    assert not await find_lost(0)
    replicas.begin('b', env=env)
    await replicas.wait_fair('a', 'b')
    for name in namespaces:
        await kube.patch(kind, f'obj-{name}', {'spec': {'n': 1}}, namespace=name)
    assert not await find_lost(1)
    holders = await find_holders()
    watched = {request.path.split('/namespaces/')[1].split('/')[0]
               for request in replicas.proxies['b'].requests
               if request.is_watch and f'/{kind.plural}' in request.path}
    assert watched == {name for name, who in holders.items() if who == 'b'}
    replicas.operators['a'].send(signal.SIGTERM)
    for name in namespaces:
        await kube.patch(kind, f'obj-{name}', {'spec': {'n': 2}}, namespace=name)
    assert not await find_lost(2)
    calls = replicas.journal.read()
    assert {call.name.removeprefix('obj-'): call.who for call in calls if call.n == 1} == holders
    assert find_overlaps(calls, replicas.frozen) == []
    assert find_repeats(calls) == []


async def test_leader_election_at_the_same_time_is_refused_in_one_line(replicas):
    op = replicas.start('a', '', '--leader-elect=lease', base=TEXT, env=replicas.env)
    assert await op.wait() == 1
    assert op.lines[-1].startswith("Error: Sharding and leader election exclude each other")


async def test_health_checks_tell_the_number_of_shards(replicas):
    port = find_free_ports(1)
    url = f'http://127.0.0.1:{port}/healthz'
    op = replicas.start('a', '', f'--liveness={url}', base=TEXT, env=replicas.env)
    await op.wait_for('Gained the shards')  # the Leases show it earlier
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        assert (await response.json())['shards'] == f'{SHARDS} of {SHARDS}'


async def test_sharded_indices_have_the_objects_of_the_held_shards(kube, kind, replicas):
    text = '''
@kopf.index(*KIND, id='everybody')
@kopf.index(*KIND, id='own', sharded=True)
def get_name(name, **_):
    return name

@kopf.on.probe(id='names')
def list_names(everybody, own, **_):
    return {'everybody': sorted(everybody.get(None, ())), 'own': sorted(own.get(None, ()))}
'''
    ports = {'a': find_free_ports(1), 'b': find_free_ports(1)}
    for who, port in ports.items():
        replicas.start(who, text, f'--liveness=http://127.0.0.1:{port}/healthz', base=TEXT,
                       env=replicas.env)
    await replicas.wait_fair(*ports)
    names = sorted(f'obj{i}' for i in range(20))
    for name in names:
        await kube.create(kind, name, spec={'n': 0})

    async def wait_indexed(*whom):
        """
        Wait until each object is in one of the sharded indices, and all are in the others.

        What the health checks say can be some seconds old. So, the objects of a replica that is
        indexing them could still be in the index of the other one.
        """
        deadline = time.monotonic() + LIMIT
        async with aiohttp.ClientSession() as session:
            while True:
                found = []
                for who in whom:
                    async with session.get(f'http://127.0.0.1:{ports[who]}/healthz') as response:
                        found.append((await response.json())['names'])
                if sorted(name for each in found for name in each['own']) == names and (
                        all(each['own'] and each['everybody'] == names for each in found)):
                    return
                assert time.monotonic() < deadline, found
                await asyncio.sleep(0.5)

    await wait_indexed('a', 'b')
    replicas.operators['a'].send(signal.SIGTERM)
    await replicas.wait_fair('b')
    await wait_indexed('b')
    replicas.start('a', text, f'--liveness=http://127.0.0.1:{ports["a"]}/healthz', base=TEXT,
                   env=replicas.env)
    await replicas.wait_fair('a', 'b')
    await wait_indexed('a', 'b')


async def start_reconcilers(kube, kind, replicas, text, **spec):
    """Start two replicas that reconcile, and create objects; return the names of these."""
    base = TEXT.split('@kopf.on.create')[0] + SETTINGS
    for who in 'ab':
        replicas.start(who, text, base=base, env=replicas.env)
    await replicas.wait_fair('a', 'b')
    names = [f'obj{i}' for i in range(20)]
    for name in names:
        await kube.create(kind, name, spec={'n': 0, **spec})
    return names


async def test_changes_of_used_objects_reach_their_users_by_sharded_indices(kube, kind, replicas):
    text = '''
@kopf.index(*KIND, sharded=True)
def users(name, namespace, spec, **_):
    return {(namespace, spec['uses']): name}

@kopf.reconcile(*KIND, watches={('v1', 'configmaps'): users})
def reconcile(name, spec, **_):
    note('begin', name, spec['n'])
    note('end', name, spec['n'])
'''
    used = f'used-{uuid.uuid4().hex[:8]}'
    names = await start_reconcilers(kube, kind, replicas, text, uses=used)
    assert not await replicas.journal.find_lost(dict.fromkeys(names, 0), timeout=LIMIT)
    before = collections.Counter(call.name for call in replicas.journal.read())
    await kube.create(CONFIGMAPS, used, data={'x': '1'})
    deadline = time.monotonic() + LIMIT
    while (after := collections.Counter(call.name for call in replicas.journal.read())) and (
            not all(after[name] > before[name] for name in names)):
        assert time.monotonic() < deadline, (before, after)
        await asyncio.sleep(0.5)
    assert {call.who for call in replicas.journal.read()} == {'a', 'b'}


async def test_owned_resources_are_made_by_the_holders_of_their_parents(kube, kind, replicas):
    text = '''
@kopf.reconcile(*KIND, owns=[('v1', 'configmaps')])
def reconcile(name, spec, **_):
    note('begin', name, spec['n'])
    note('end', name, spec['n'])
    return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
             'data': {'n': str(spec['n'])}}]
'''
    names = await start_reconcilers(kube, kind, replicas, text)
    for name in names:
        await kube.wait_for(CONFIGMAPS, name, lambda obj: obj['data'])
    assert {call.who for call in replicas.journal.read()} == {'a', 'b'}
    replicas.operators['a'].send(signal.SIGTERM)
    await replicas.wait_fair('b')
    await kube.delete(CONFIGMAPS, names[0])
    for name in names:
        await kube.patch(kind, name, {'spec': {'n': 1}})
    for name in names:
        await kube.wait_for(CONFIGMAPS, name, lambda obj: obj['data']['n'] == '1')
    assert not find_overlaps(replicas.journal.read(), {})


async def test_replica_that_exits_during_a_handover_does_not_wait_for_it(kube, kind, replicas):
    a = replicas.begin('a', env={'PACE': '100', 'HANDOVER': '100'})
    await replicas.wait_fair('a')
    for i in range(20):
        await kube.create(kind, f'obj{i}', spec={'n': 0})
    await asyncio.sleep(1)
    b = replicas.begin('b')
    await a.wait_for('Releasing the shards')
    begun = time.monotonic()
    a.send(signal.SIGTERM)
    assert await a.wait() == 0
    assert time.monotonic() - begun < 30  # not the time of the handover, nor of the handlers
    await b.wait_for("Gained the shards")
    assert not await replicas.journal.find_lost({f'obj{i}': 0 for i in range(20)}, timeout=30)
    assert not find_overlaps(replicas.journal.read(), {})


async def test_shards_are_left_to_expire_if_the_thread_of_a_daemon_goes_on(kube, kind, replicas):
    a = replicas.begin('a', text='''
@kopf.daemon(*KIND)
def accompany(**_):
    print('DAEMON')
    time.sleep(15)  # it does not look whether to stop
    print('ENDED')
''')
    await replicas.wait_fair('a')
    await kube.create(kind, 'obj', spec={'n': 0})
    await a.wait_for('DAEMON')
    a.send(signal.SIGTERM)
    await a.wait_for('Daemons go on in threads')
    left = time.monotonic()
    replicas.begin('b')
    await replicas.wait_fair('b')
    assert time.monotonic() - left > DURATION - PERIOD - 1
    assert await a.wait() == 0
    assert a.find('ENDED')


LOWER_HALF = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"


@pytest.fixture(scope='module')
def selecting_cluster(cluster, tmp_path_factory):
    """
    An API server that selects shards: the given one; or one of the same version, started with the
    feature gate, if that version has it.
    """
    async def probe():
        async with Kube(cluster) as kube:
            found = await kube.request(
                'GET', NAMESPACES.get_path(), params={'shardSelector': LOWER_HALF})
            return 'shardInfo' in found['metadata'], await kube.request('GET', '/version')

    is_selecting, version = asyncio.run(probe())
    if is_selecting:
        yield cluster
    elif int(version['minor']) < 36:
        pytest.skip(f"Shards are selected by Kubernetes 1.36 and newer: not {version}")
    else:
        with run_cluster(
                tmp_path_factory.mktemp('cluster'), AUDIT='1', NO_KCM='1', KUBE='1.36.3',
                APISERVER_FLAGS='--feature-gates=ShardedListAndWatch=true') as kubeconfig:
            yield kubeconfig


@pytest.fixture()
async def selected_replicas(selecting_cluster, operator, tmp_path):
    """Replicas whose objects are selected by the API server; with a client, and their kind."""
    kind = Kind.make_unique()
    async with Kube(selecting_cluster) as kube:
        await kube.create_kind(kind)
        async with share(
                kube, operator, selecting_cluster, kind, tmp_path, shards=SHARDS) as replicas:
            replicas.env['BY'] = 'own-uid'
            yield replicas, kube, kind
        await kube.delete_kind(kind)


def find_selectors(replicas, kind, cluster):
    """
    Find the selectors of all lists and watches of each replica, by the audit log if any.

    Single objects are listed by their names: e.g. after a conflict.
    """
    found = collections.defaultdict(list)
    audit = pathlib.Path(cluster).with_name('audit.log')
    if not audit.exists():
        for who, proxy in replicas.proxies.items():
            for request in list(proxy.requests):
                if request.method == 'GET' and kind.plural in request.path and (
                        'fieldSelector' not in request.query):
                    found[who].append(request.query.get('shardSelector'))
        return found
    for entry in read_audit(audit, replicas.lease):
        url = urllib.parse.urlsplit(entry['requestURI'])
        who, of, name = entry.get('userAgent', '').partition('-of-')
        if of and name == replicas.lease and kind.plural in url.path and (
                entry['verb'] in ('list', 'watch') and entry['stage'] == 'ResponseComplete'):
            query = dict(urllib.parse.parse_qsl(url.query))
            if 'fieldSelector' not in query:
                found[who].append(query.get('shardSelector'))
    return found


async def test_api_server_selects_the_objects_of_the_held_shards(
        selected_replicas, selecting_cluster):
    replicas, kube, kind = selected_replicas
    load = ShardedLoad(kube, kind)
    replicas.begin('a')
    await replicas.wait_fair('a')
    await load.create(OBJECTS)
    async with load.running():
        replicas.begin('b')
        await replicas.wait_fair('a', 'b')
        replicas.begin('c')
        await replicas.wait_fair('a', 'b', 'c')
        replicas.operators['a'].send(signal.SIGTERM)
        await replicas.wait_fair('b', 'c')
        assert await replicas.operators['a'].wait() == 0
    assert not await replicas.journal.find_lost(load.newest, timeout=LIMIT)
    calls = replicas.journal.read()
    assert {call.who for call in calls} == {'a', 'b', 'c'}
    assert find_repeats(calls) == []
    assert find_overlaps(calls, {}) == []
    assert replicas.find_shard_intruders(load.uids) == []
    for op in replicas.operators.values():
        op.stop()
    # If a foreign object had come, all objects would have been listed again, without a selector.
    selectors = find_selectors(replicas, kind, selecting_cluster)
    assert len(set(selectors['b'])) > 1
    assert all(selectors['b'])
    assert all(selectors['c'])
