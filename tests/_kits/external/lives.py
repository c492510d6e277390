"""
Simulated lives of objects with things in an external system, in virtual time.

A seed decides on the system, on what people do, and on what fails: operators are killed at any call
and any write, calls are lost before or after their execution, or are executed late. In the end, and
at each call that creates, the promises are checked.
"""
import argparse
import asyncio
import collections
import json
import logging
import random
import sys
import time
import uuid
from unittest import mock

import kopf
from kopf._cogs.clients import errors
from kopf._core.intents import registries
from kopf._core.path import turns
from kopf._kits.external import driving, gates, machine, records
from kopf._kits.testing import virtual
from tests._core.reactor import worlds
from tests._kits.external import clouds

SYSTEMS = ('idempotent', 'findable', 'neither', 'eventual', 'limited')
LAG = 30.0
LATE = 20.0
"""How late (seconds) a call can be executed whose caller is dead."""

MAX_PASSES, MAX_TURNS = 3000, 30_000
"""
How many times externals are driven, and objects are processed, at most: more is a hot loop.
"""

CALM = 5.0
"""For how long (seconds) operators are not killed after a replacement: they remember the record."""

END = 4000.0
"""When all must be settled."""


def make_owner(uid, id):
    return uid if id == 'account' else f'{uid}/{id}'


def read_text(raw, id):
    return raw['metadata'].get('annotations', {}).get(records.make_name(id), '')


class Violation(AssertionError):
    """A promise is broken."""


class Cloud(clouds.Cloud):
    """A cloud that reports each call that it executes, and at which operators die."""

    def __init__(self, life, **options):
        super().__init__(**options)
        self.life = life

    async def _respond(self, verb, key, token, execute):
        operator = self.life.caller.get(asyncio.current_task())
        strike = self.life.strike(operator)
        if strike == 'before':
            await self.life.die(operator)
        if strike == 'late':
            asyncio.get_running_loop().call_later(
                self.rng.uniform(0, LATE), lambda: self.life.spawn(execute()))
            await self.life.die(operator)
        result = await super()._respond(verb, key, token, execute)
        if strike == 'after':
            await self.life.die(operator)
        return result

    def add(self, token, content):
        same = [thing for thing in self.living if thing.content['owner'] == content['owner']]
        if len(same) > self.life.replaces:
            self.life.doubles.append(f"{token} is created, and there are {same}")
        return super().add(token, content)


class Life:
    """One run, by its seed."""

    def __init__(self, seed, *, system=None, is_replaced=False, is_bereft=False, is_answered=False,
                 is_paired=False, is_filtered=False):
        self.rng = random.Random(seed)
        self.ids = ['account', 'database'] if is_paired else ['account']
        self.answering = random.Random(seed) if is_answered else None
        self.replacing = random.Random(seed) if is_replaced else None
        self.bereaving = random.Random(seed) if is_bereft else None
        self.filtering = random.Random(seed) if is_filtered else None
        self.system = system or SYSTEMS[seed % len(SYSTEMS)]
        self.replaces = self.rng.random() < 0.3
        self.is_sync = self.rng.random() < 0.1
        self.story = []
        self.caller = {}
        self.tasks = set()
        self.operators = []
        self.countdown = None
        self.fate = None
        self.passes = self.turns = 0
        self.starts = []
        """When the operators have begun, each with a whole limit."""
        self.most = 0
        self.received = {}
        """The tokens whose keys are known to an operator."""
        self.unheard = set()
        """
        The operators whose writes were lost, or that are killed: at an exit, a key can be in their
        logs only.
        """
        self.doubles = []
        self.seen = {}
        """The records that each operator has read last."""
        self.answered = collections.Counter()
        self.bereft = collections.Counter()

    def note(self, text):
        self.story.append(f"{asyncio.get_running_loop().time():9.2f}  {text}")

    def spawn(self, coro):
        task = asyncio.get_running_loop().create_task(coro)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # The strikes.

    def strike(self, operator):
        if self.countdown is None:
            return None
        self.countdown -= 1
        if self.countdown > 0:
            return None
        self.countdown = None
        return self.fate

    async def die(self, operator):
        self.note(f"*** {operator.name} is killed ({self.fate}) ***")
        self.unheard.add(operator)  # it can be exiting
        self.spawn(self.kill(operator))
        await asyncio.get_running_loop().create_future()

    async def kill(self, operator):
        if operator in self.operators:
            self.operators.remove(operator)
            self.forget(operator)
            crash = asyncio.create_task(operator.crash())
            while not crash.done():  # what has waited for a thread goes on until it writes
                await asyncio.sleep(0.1)
                for task in operator.queue._workers.values():
                    task.cancel()
            if not self.operators:
                await asyncio.sleep(self.rng.choice([0, 1, 30, 200]))
                if self.bereaving is not None and self.bereaving.random() < 0.5:
                    self.bereave(self.bereaving.choice(sorted(self.api.objects) or [None]))
                self.start()

    def find_operator(self):
        task = asyncio.current_task()
        return next((operator for operator in self.operators
                     if task in operator.queue._workers.values()), None)

    def forget(self, operator):
        for token in [token for token, other in self.received.items() if other is operator]:
            del self.received[token]

    # The operators.

    def start(self, *, behind=0):
        registry = registries.OperatorRegistry()
        self.declare(registry)
        operator = worlds.Operator(self.api, registry, subresource=True)
        operator.settings.reconciling.error_delay = 1
        operator.name = f'operator {self.rng.randrange(1000)}'
        self.note(f"{operator.name} starts")
        exchange = operator.client._exchange

        async def act(fn, path):
            is_write = 'fieldSelector' not in path
            strike = self.strike(operator) if is_write else None
            if strike in ('before', 'late'):
                await self.die(operator)
            try:
                result = await exchange(fn, path)
            except errors.APIConnectionError:
                self.unheard.add(operator)
                raise
            if strike == 'after':
                await self.die(operator)
            return result
        operator.client._exchange = act
        self.operators.append(operator)
        self.starts.append(asyncio.get_running_loop().time())
        self.most = max(self.most, len(self.operators))
        operator.start(behind=behind)
        return operator

    def declare(self, registry):
        before = []
        for id in self.ids:
            before = [self.declare_one(registry, id, before)]

    def declare_one(self, registry, id, before):
        cloud, life = self.cloud, self
        external = kopf.external(
            'kopfexamples', id=id, registry=registry, conditions=True, after=before,
            limit=self.limit, consistency=LAG if self.system == 'eventual' else 5.0,
            labels={'off': kopf.ABSENT} if self.filtering is not None else {},
            replace=self.replaces, immutable=['plan'] if self.replaces else [])

        def enter():
            life.caller[asyncio.current_task()] = life.find_operator()

        def desire(spec, uid, **_):
            return {'plan': spec['plan'], 'owner': make_owner(uid, id)}

        async def desire_async(**kwargs):
            return desire(**kwargs)

        external.desired(desire if self.is_sync else desire_async)

        @external.observe
        async def observe(key, **_):
            enter()
            return await cloud.get(key)

        @external.create(idempotent=cloud.is_idempotent)
        async def create(desired, token, **_):
            enter()
            key = await cloud.create(desired, token)
            life.received[token] = life.caller[asyncio.current_task()]
            return key

        @external.update
        async def update(key, desired, **_):
            enter()
            await cloud.update(key, desired)

        @external.delete
        async def delete(key, uid, meta, **_):
            enter()
            later = [make_owner(uid, other) for other in life.ids[life.ids.index(id) + 1:]]
            left = [thing for thing in cloud.living if thing.content['owner'] in later]
            if left and 'deletionTimestamp' in meta:
                life.doubles.append(f"{key} is deleted before {left}")
            await cloud.delete(key)

        if self.system in ('findable', 'eventual'):
            @external.find
            async def find(token, **_):
                enter()
                return await cloud.find(token)

        return external

    # The life.

    async def live(self):
        rng, self.main = self.rng, asyncio.current_task()
        self.api = worlds.Api()
        self.limit = gates.Rate(10) if self.system != 'limited' else gates.Rate(
            rng.choice([1, 2]), per=rng.choice([1.0, 5.0]), concurrency=rng.choice([None, 1]))
        self.cloud = Cloud(
            self, rng=rng, is_idempotent=self.system in ('idempotent', 'limited'),
            lag=LAG if self.system == 'eventual' else 0.0)
        names = ['a', 'b'][:rng.choice([1, 1, 2])]
        self.uids = {}
        for name in names:
            self.make(name)
        self.start()
        for _ in range(rng.randrange(2, 9)):
            await asyncio.sleep(rng.choice([0.0, 0.02, 0.05, 0.3, 2, 20, 100, 400]))
            self.disturb(rng.choice(names))
            if self.filtering is not None and self.filtering.random() < 0.5:
                self.filter(self.filtering.choice(names))
            if self.replacing is not None and self.replacing.random() < 0.5:
                await self.replace(self.replacing.choice(names))
            if self.answering is not None and self.answering.random() < 0.5:
                await asyncio.sleep(2 * LATE)  # people wait until calls that were lost cannot come
                self.answer(self.answering.choice(names))
        self.countdown = None
        self.cloud.faults.clear()
        self.api.faults.clear()
        self.cloud.is_down = False
        if self.filtering is not None:
            for name in names:
                if name in self.api.objects and self.filtering.random() < 0.7:
                    self.api.edit({'metadata': {'labels': {'off': None}}}, name)
        await asyncio.sleep(END)
        if self.answering is not None:
            for name in names:
                self.answer(name)
            await asyncio.sleep(END)
        self.check()
        for operator in self.operators:
            await operator.stop()
        for task in list(self.tasks):
            task.cancel()

    def make(self, name):
        self.api.create(name, spec={'plan': 'small'})
        for id in self.ids:
            self.uids[make_owner(self.api.objects[name]['metadata']['uid'], id)] = name
        self.note(f"{name} is made")

    def disturb(self, name):
        rng = self.rng
        what = rng.choice(['edit', 'drift', 'delete', 'make', 'kill', 'kill', 'kill', 'kill',
                           'fault', 'fault', 'api', 'api', 'api', 'down', 'vanish', 'pair', 'stop',
                           'pause'])
        self.note(f"{what} ({name})")
        living = sorted(self.cloud.living, key=lambda thing: thing.key)
        match what:
            case 'edit':
                self.api.edit({'spec': {'plan': rng.choice(['small', 'large'])}}, name)
            case 'drift' if living:
                self.cloud.edit(rng.choice(living).key, {'plan': 'drifted'})
            case 'vanish' if living:
                rng.choice(living).deleted = self.cloud.now
            case 'delete' if not self.bereft[name] or self.api.objects.get(
                    name, {}).get('metadata', {}).get('finalizers'):  # else, it would be forced
                self.api.delete(name)
            case 'make' if name not in self.api.objects:
                self.make(name)
            case 'kill':
                self.countdown = rng.randrange(1, 6)
                self.fate = rng.choice(['before', 'after', 'late'])
            case 'fault':
                self.cloud.faults.extend(rng.choices(
                    [None, 'before', 'after', 'refused', 'busy', 'broken', 'slow'],
                    k=rng.randrange(1, 8)))
            case 'api':
                self.api.faults.extend(rng.choices(
                    [None, 'before', 'after', 'late', 'conflict'], k=rng.randrange(1, 4)))
            case 'down':
                self.cloud.is_down = not self.cloud.is_down
            case 'pair' if len(self.operators) == 1:
                self.start()
            case 'stop' if self.operators:
                self.spawn(self.stop())
            case 'pause':
                paused = self.api.objects.get(name, {}).get('metadata', {}).get('annotations', {})
                self.api.edit({'metadata': {'annotations': {
                    'kopf.dev/paused': None if 'kopf.dev/paused' in paused else 'x'}}}, name)

    def filter(self, name):
        """Let the object match no external, or match again; or let others write all the time."""
        if name not in self.api.objects:
            return
        if self.filtering.random() < 0.3:
            self.spawn(self.bother(name))
            return
        labels = self.api.objects[name]['metadata'].get('labels') or {}
        self.note(f"{name} {'matches again' if 'off' in labels else 'matches no more'}")
        self.api.edit({'metadata': {'labels': {'off': None if 'off' in labels else 'x'}}}, name)

    async def bother(self, name):
        self.note(f"others write to {name} all the time")
        for number in range(100):
            if name in self.api.objects:
                self.api.edit({'metadata': {'labels': {'number': str(number)}}}, name)
            await asyncio.sleep(self.filtering.choice([0.01, 0.03, 0.1]))

    async def replace(self, name):
        """As ``kubectl replace`` with a manifest that knows nothing of operators."""
        await asyncio.sleep(CALM)  # for those who begin or exit
        raw = self.api.objects.get(name)
        if raw is None or 'deletionTimestamp' in raw['metadata'] or not self.operators:
            return  # a finalizer removed from a deleted object is a forced deletion
        if 'off' in raw['metadata'].get('labels', {}):
            return  # nobody restores the record of an object that does not match
        for id in self.ids:
            known = [self.seen.get((operator, raw['metadata']['uid'], id))
                     for operator in self.operators]
            if None in known or (len(known) > 1 and {*known} != {read_text(raw, id)}):
                return  # what was not read yet, cannot be remembered, but for one's own writes
        countdown, self.countdown = self.countdown, None
        faults, self.api.faults[:] = self.api.faults[:], []
        self.note(f"replace ({name})")
        self.api.edit({'metadata': {'annotations': None, 'finalizers': None}}, name)
        await asyncio.sleep(CALM)
        self.countdown = countdown
        self.api.faults[:] = faults

    def bereave(self, name):
        """As ``kubectl replace`` while no operator runs: the status tells of the record."""
        raw = self.api.objects.get(name)
        if raw is None or 'deletionTimestamp' in raw['metadata']:
            return
        for id in self.ids:
            record = records.read(raw, id) or records.Record()
            shown = raw.get('status', {}).get(id, {'phase': records.Phase.WANTED})
            if (shown['phase'], shown.get('key')) != (record.phase, record.key) or record.previous:
                return
        self.note(f"replace ({name}), unseen")
        self.bereft[name] += 1
        self.api.edit({'metadata': {'annotations': None, 'finalizers': None}}, name)

    def answer(self, name):
        """As ``kopf external adopt`` and ``kopf external retry`` after a look at the system."""
        raw = self.api.objects.get(name)
        for id in self.ids if raw is not None else ():
            record = records.read(raw, id)
            if record is None or record.phase is not records.Phase.UNKNOWN:
                continue
            keys = [thing.key for thing in self.cloud.living
                    if thing.content['owner'] == make_owner(raw['metadata']['uid'], id)
                    and thing.key not in record.previous]
            answer = {records.ADOPT: keys[0]} if keys else {records.RETRY: 'yes'}
            self.note(f"{name} is answered: {id}: {answer}")
            self.answered[name] += 1
            self.api.edit({'metadata': {'annotations': {
                records.make_name(id, key): value for key, value in answer.items()}}}, name)

    async def stop(self):
        operator = self.operators.pop()
        self.note(f"{operator.name} stops")
        await operator.stop()
        if operator in self.unheard:
            self.forget(operator)
        if not self.operators:
            self.start()

    # The promises.

    def check(self):
        if self.doubles:
            raise Violation(self.doubles[0])
        owners = collections.defaultdict(list)
        for thing in self.cloud.living:
            owners[thing.content['owner']].append(thing)
        for owner, things in owners.items():
            raw = self.api.objects.get(self.uids[owner])
            if raw is None or raw['metadata']['uid'] != owner.partition('/')[0]:
                raise Violation(f"{len(things)} things are left of an object that is gone")
        for name in self.api.objects:
            is_deleting = 'deletionTimestamp' in self.api.objects[name]['metadata']
            for id in self.ids[::-1 if is_deleting else 1]:
                if not self.check_one(name, id, owners):
                    break  # those after it wait for it
        for call in self.cloud.calls:
            count, per = self.limit.count, self.limit.per
            begun = [other for other in self.cloud.calls
                     if call.time <= other.time < call.time + per - 1e-6]
            fresh = [start for start in self.starts if call.time - per < start < call.time + per]
            if len(begun) > count * len(self.ids) * (self.most + len(fresh)):
                raise Violation(f"{len(begun)} calls in {per} seconds at {call.time}")

    def check_one(self, name, id, owners):
        """Check an external of an object, and tell whether it is settled."""
        raw = self.api.objects[name]
        meta = raw['metadata']
        things = owners[make_owner(meta['uid'], id)]
        annotations = meta.get('annotations', {})
        text = annotations.get(records.make_name(id))
        record = records.Record() if text is None else records.decode(text)
        if 'kopf.dev/paused' in annotations:
            return False
        if 'off' in (meta.get('labels') or {}) and 'deletionTimestamp' not in meta:
            if len(things) > 1 + len(record.previous):
                raise Violation(f"{len(things)} things for {name}, which matches no more")
            return False
        if text is None and 'deletionTimestamp' in meta and not things and len(self.ids) > 1:
            return True  # it is gone, or it never was; others are not gone yet
        if self.answered[name] and record.phase is records.Phase.UNKNOWN:
            raise Violation(f"the answer for {name} has changed nothing")
        if record.phase is records.Phase.UNKNOWN:
            if self.system != 'neither' and (not self.bereft[name] or record.token is not None):
                raise Violation("it has stopped, though the system can tell")
            if record.token in self.received:
                raise Violation("the key is lost")
            conditions = {each['type']: each for each in raw['status']['conditions']}
            if conditions['Synced']['reason'] != 'MayExist' or (
                    conditions['Stalled']['status'] != 'True'):
                raise Violation("it has stopped, and has not said so")
            if len(things) > 1 + len(record.previous):
                raise Violation(f"{len(things)} things for {name}, which has stopped")
            return False
        if 'deletionTimestamp' in meta:
            raise Violation(f"the deletion of {name} does not end: {record}")
        if record.phase is not records.Phase.KNOWN or record.previous:
            raise Violation(f"{name} is not settled: {record}")
        if [thing.key for thing in things] != [record.key]:
            raise Violation(f"{len(things)} things for {name}, and the key is {record.key}")
        if record.replaced >= machine.MAX_REPLACED and any(
                each['reason'] == 'Immutable' for each in raw['status']['conditions']):
            return False  # others have changed each new thing, and it says so
        if things[0].content['plan'] != raw['spec']['plan']:
            raise Violation(f"{name} is not as it should be")
        return True


def run(seed, **options):
    """Run a life; return it, with its violation."""
    life = Life(seed, **options)
    rng = random.Random(-seed - 1)
    state = random.getstate()
    random.seed(seed)
    go, start = driving.Journey.go, turns.Processor.start

    async def count(journey):
        life.passes += 1
        raw, id = journey.run.raw, journey.external.id
        life.seen[life.find_operator(), raw['metadata']['uid'], id] = read_text(raw, id)
        if life.passes == MAX_PASSES:
            life.main.cancel()
        return await go(journey)

    def turn(processor, item):
        life.turns += 1
        if life.turns == MAX_TURNS:
            life.main.cancel()
        return start(processor, item)

    try:
        with mock.patch.object(driving.Journey, 'go', count), mock.patch.object(
                turns.Processor, 'start', turn), mock.patch.object(
                uuid, 'uuid4', lambda: uuid.UUID(int=rng.getrandbits(128), version=4)):
            virtual.run(life.live())
        life.violation = None
    except Violation as e:
        life.violation = e
    except asyncio.CancelledError:
        life.violation = Violation("it is a hot loop")
    finally:
        random.setstate(state)
    return life


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument('--replace', action='store_true')
    parser.add_argument('--bereave', action='store_true')
    parser.add_argument('--answer', action='store_true')
    parser.add_argument('--pair', action='store_true')
    parser.add_argument('--filter', action='store_true')
    parser.add_argument('--verbose', action='store_true')
    args = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.CRITICAL,
                        format='           %(message)s')
    for name in ('asyncio', 'kopf._core.reactor'):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    began, failed = time.process_time(), 0
    for seed in range(args.seed, args.seed + args.seeds):
        life = run(seed, is_replaced=args.replace, is_bereft=args.bereave, is_answered=args.answer,
                   is_paired=args.pair, is_filtered=args.filter)
        if life.violation is not None:
            failed += 1
            print(f"{seed} ({life.system}): {life.violation}")
            if args.seeds == 1:
                print('\n'.join(life.story))
                print(*life.cloud.calls, sep='\n')
                print(json.dumps(life.api.objects, indent=1))
    print(f"{args.seeds} lives, {failed} violations, {time.process_time() - began:.1f} s of CPU")
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
