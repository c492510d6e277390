"""
Lives of a generated value: operators are killed at their writes, and people edit everything.

Each life has two operators that know nothing of each other. A seed decides what happens. With
``KOPF_LIVES=1000``, there are so many lives; with ``KOPF_LIVES=1000:2000``, other ones.

The value is replaced only if somebody has asked for that: an operator never writes another value
where one is stored.
"""
import asyncio
import base64
import os
import random
from unittest import mock

import pytest

import kopf
from kopf import testing
from kopf._cogs.clients import applying, listing
from kopf._core.engines.reconciling import generating
from kopf._kits.sandbox import faults
from kopf._kits.testing import processes, runs
from tests import seeded
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'

FIRST, _, LAST = os.environ.get('KOPF_LIVES', '0:20').rpartition(':')
SEEDS = range(int(FIRST or 0), int(LAST))
CHUNK = 10

MAX_LIVES = 200
"""In how many lives a planted fault must be found."""

STEPS = 12
"""How many times somebody does something in a life."""

ROTATE = 'kopf.dev/rotate'


def declare(make):
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.posting.enabled = False
        settings.networking.error_backoffs = [1, 2]

    @kopf.reconcile('kopfexamples', owns=['secrets'], id='fn', registry=registry)
    async def fn(spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'},
               'stringData': {'word': kopf.generated(make)},
               'data': {'n': encode(str(spec['n']))}}

    return registry


def encode(text):
    return base64.b64encode(text.encode()).decode()


def get_word(obj):
    return None if obj is None else (obj.get('data') or {}).get('word')


def is_rotating(obj):
    return (obj['metadata'].get('annotations') or {}).get(ROTATE) == 'now'


class Life(runs.Run):
    """A life of one object and its secret, until all is at rest."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.made = []
        self.is_wiped = False
        self.is_quiet = False
        self.has_lagged = False
        super().__init__(runs.Setup(
            sources=(), options={'registry': self.make_registry()}, load=[CRD], ignore=(), rest=60,
            limit=20_000, real_limit=60))

    def make_registry(self):
        return declare(self.make)

    def make(self):
        self.made.append(encode(f'word-{len(self.made) + 1}'))
        return f'word-{len(self.made)}'

    def play(self, scenario):
        with mock.patch.object(processes, 'ProcessLoop', seeded.SeededLoop):
            super().play(scenario)

    # What happens.

    async def open(self):
        self.loop.random.seed(self.random.random())
        self.loop.disorder = self.random.choice([0, 0.5])
        self.loop.latency = self.random.choice([(0, 0), (0, 0.1), (0, 5)])
        for name in 'ab':
            await self.start(name)

    async def start(self, name='', **options):
        process = processes.Process(name, self.loop)
        operator = self.make_operator(**self.setup.options, **options)
        self._replicas.append(runs.Replica(process, operator))
        starting = process.run(lambda: self.loop.create_task(operator.start()))
        while process.alive and not starting.done():  # it can be killed meanwhile
            await asyncio.sleep(0.1)
        if process.alive:
            starting.result()

    async def live(self, client):
        await client.create('kopfexamples', 'parent', spec={'n': 0})
        for number in range(STEPS):
            await self.sleep()
            act = self.random.choice(self.ACTIONS)
            self.note(act.__name__)
            try:
                await act(self, client, number)
            except testing.APIError as e:
                assert e.status in (404, 409)
        self.is_quiet = True
        if self._lag is not None:
            self._lag.end()
        if self.has_lagged:  # what was decided by older lists stays so until the next change
            await self.respecify(client, STEPS)

    async def sleep(self):
        await asyncio.sleep(self.random.choice([0, 0.01, 0.1, 1, 10, 100]) * self.random.random())

    async def edit(self, client, _):
        field, key = self.random.choice([
            ('labels', 'kopf.dev/owner'), ('labels', 'kopf.dev/reconciler'), ('labels', 'other'),
            ('annotations', 'kopf.dev/applied'), ('annotations', ROTATE)])
        value = self.random.choice([None, 'edited'])
        value = None if key == ROTATE else value
        await client.patch('secrets', 'child', {'metadata': {field: {key: value}}})

    async def strip(self, client, _):
        fields = self.random.sample(['labels', 'annotations', 'ownerReferences'], 2)
        await client.patch('secrets', 'child', {'metadata': dict.fromkeys(fields)})

    async def wipe(self, client, _):
        self.is_wiped = True
        await client.patch('secrets', 'child', {'metadata': {'managedFields': [{}]}})

    async def write(self, client, number):
        word = self.random.choice([None, encode(f'mine-{number}')])
        await client.patch('secrets', 'child', {'data': {'word': word}})

    async def rotate(self, client, _):
        await client.patch('secrets', 'child', {'metadata': {'annotations': {ROTATE: 'now'}}})

    async def delete(self, client, _):
        await client.delete('secrets', 'child')

    async def respecify(self, client, number):
        await client.patch('kopfexamples', 'parent', {'spec': {'n': number + 1}})

    async def stop_one(self, client, _):
        if self._replicas:
            replica = self._replicas[0]
            stopping = replica.stop()
            while replica.process.alive and not stopping.done():
                await asyncio.sleep(0.1)
            if replica.process.alive:
                self._replicas.remove(replica)
                self._past.append(replica.process)
                self.revive(replica.process.name)

    async def kill_one(self, client, _):
        if self._replicas:
            self.kill_process(self.random.choice(self._replicas).process)

    async def break_watches(self, client, _):
        self.sandbox.forget_history()

    async def lag_behind(self, client, _):
        self.has_lagged = True
        if self._lag is None:
            self.lag(self.sandbox.cluster.store.revision)
        else:
            self._lag.end()
            self._lag = None

    ACTIONS = [edit, edit, edit, strip, wipe, write, rotate, delete, respecify, respecify, stop_one,
               kill_one, break_watches, lag_behind]

    def kill_process(self, process):
        for number, replica in enumerate(self._replicas):
            if replica.process is process:
                self._replicas.insert(0, self._replicas.pop(number))
                self.note("is killed", process)
                self.kill()
                self.revive(process.name)

    def revive(self, name):
        async def start():
            await asyncio.sleep(self.random.uniform(0, 20))
            await self.start(name)
        self.change(start())

    def hit(self, *hits):
        if self.is_quiet or self.random.random() < 0.6:
            return None
        process = processes.peer.get()
        match self.random.choice(hits):
            case 'kill':
                self.kill_process(process)
                return faults.Fault(action='drop' if 'refuse' in hits else 'lose')
            case 'refuse':
                return faults.Fault(action='refuse', status=self.random.choice([409, 429, 500]))
            case 'lose':
                return faults.Fault(action='lose')
        return None

    def hit_request(self, number):
        return self.hit('kill', 'refuse')

    def hit_response(self, number):
        return self.hit('kill', 'lose')

    # What must hold.

    def hear(self, change):
        super().hear(change)
        if change.resource != ('', 'secrets') or change.type == 'DELETED':
            return
        old = None if change.old is None else change.old.decode()
        new = change.new.decode()
        before, after = get_word(old), get_word(new)
        if processes.peer.get() is None:
            return
        self.note(f"{before} -> {after}", processes.peer.get())
        if after is None and (old is None or before is not None):
            self.problems.append("It is written without a word.")
        elif before != after:
            rotates = old is not None and is_rotating(old)
            if before is not None and not rotates:
                self.problems.append(f"{before} is overwritten by {after}.")
            if before is not None and is_rotating(new):
                self.problems.append("It is rotated, but the request stays.")
            if after not in self.made:
                self.problems.append(f"Nobody has made {after}.")

    def conclude(self):
        super().conclude()
        secrets = [obj for plural, obj in self.sandbox.dump() if plural == 'secrets']
        [parent] = [obj for plural, obj in self.sandbox.dump() if plural == 'kopfexamples']
        if self.is_wiped:  # then, it can be anybody's
            return
        if len(secrets) != 1:
            self.problems.append("There is no secret.")
            return
        [secret] = secrets
        managers = [entry['manager'] for entry in secret['metadata']['managedFields']]
        labels = secret['metadata'].get('labels') or {}
        if (secret['data']['n'] != encode(str(parent['spec']['n'])) or is_rotating(secret)
                or get_word(secret) is None or 'kopf.dev/creation' in managers
                or labels.get('kopf.dev/owner') != parent['metadata']['uid']):
            self.problems.append(f"The secret is not as it should be: {secret}")


each_chunk = pytest.mark.parametrize(
    'seeds', [SEEDS[i:i + CHUNK] for i in range(0, len(SEEDS), CHUNK)],
    ids=lambda seeds: f'{seeds[0]}-{seeds[-1]}')


def live(seed, cls=Life):
    life = cls(seed)
    life.play(life.live)
    return life


def verify(seeds, cls=Life):
    for seed in seeds:
        life = live(seed, cls)
        assert not life.problems, '\n'.join([f"In the life {seed}:", *life.problems, *life.story])


@each_chunk
def test_a_stored_value_is_never_replaced(seeds):
    verify(seeds)


# Planted faults.

def apply_any_version(monkeypatch):
    apply = applying.apply

    async def apply_plainly(client, *, manifest, **options):
        manifest['metadata'].pop('resourceVersion', None)
        return await apply(client, manifest=manifest, **options)

    monkeypatch.setattr(applying, 'apply', apply_plainly)


def create_by_apply(monkeypatch):
    monkeypatch.setattr(generating, 'create', lambda client, **options: applying.apply(
        client, manager=generating.CREATOR, force=True, **options))


def look_only_at_labelled_objects(monkeypatch):
    select = listing.select_only
    monkeypatch.setattr(listing, 'select_only', lambda settings, labels='', **options: select(
        settings, labels or 'kopf.dev/owner', **options))


def claim_nothing(monkeypatch):
    async def claim(client, *, raw, **_):
        return raw
    monkeypatch.setattr(generating, 'claim', claim)


def make_it_each_time(monkeypatch):
    fill = generating._fill
    monkeypatch.setattr(generating, '_fill', lambda manifest, fields, live, **options: fill(
        manifest, fields, None, **options))


def create_without_it(monkeypatch):
    create = generating.create

    async def create_partly(client, *, manifest, **options):
        data = {key: val for key, val in manifest['data'].items() if key != 'word'}
        return await create(client, manifest={**manifest, 'data': data}, **options)

    monkeypatch.setattr(generating, 'create', create_partly)


def keep_the_request(monkeypatch):
    monkeypatch.setattr(generating, 'NO', 'now')


def ignore_the_request(monkeypatch):
    monkeypatch.setattr(generating, 'is_rotating', lambda raw: False)


@pytest.mark.parametrize(('plant', 'first'), [  # the lives before that do not find it
    (apply_any_version, 2), (create_by_apply, 2), (look_only_at_labelled_objects, 14),
    (claim_nothing, 2), (make_it_each_time, 0), (create_without_it, 0), (keep_the_request, 12),
    (ignore_the_request, 12)])
def test_a_planted_fault_is_found(monkeypatch, plant, first):
    plant(monkeypatch)
    assert any(live(seed).problems for seed in range(first, MAX_LIVES))
