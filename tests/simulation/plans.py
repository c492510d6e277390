"""
Plans: what happens to the objects, to the operator, and to the network, and when; made of a seed.
"""
import dataclasses
import itertools
import json
import random
from typing import Any

NAMES = ('a', 'b', 'c')
FEATURES = (
    'event', 'main', 'patching', 'field', 'parent', 'deletion', 'resuming', 'daemon', 'timer',
    'index', 'children')
"""The handlers that an operator can have. In some plans, it also has the index ``others``."""

SYNC = {
    'main': ['main'], 'patching': ['patching'], 'parent': ['parent', 'parent/one', 'parent/two'],
    'event': ['event'], 'field': ['field/spec.f'], 'deletion': ['deletion'],
    'resuming': ['resuming'], 'daemon': ['daemon'], 'timer': ['timer'], 'index': ['known'],
    'others': ['others'], 'children': ['children']}
"""The ids of the handlers that can be sync ones, by their features."""

LIMITED = {
    'main': 'main', 'patching': 'patching', 'field/spec.f': 'field', 'parent/one': 'parent',
    'parent/two': 'parent', 'deletion': 'deletion', 'resuming': 'resuming'}
"""The ids of the handlers that can have limits, and their features."""

MIXES = {
    'status records': '', 'status states': '', 'idle timer': 'timer', 'lone timer': 'timer',
    'sharp timer': 'timer', 'delayed timer': 'timer', 'delayed daemon': 'daemon',
    'nested': 'parent', 'patching event': 'event', 'filtered main': 'main'}
"""The options of handlers that only mixed plans have, and the features that they need."""

SHARDINGS = ('own uids', 'sharded index', 'hasty handover')
"""The options of sharded operators: how objects are divided, indexed, and handed over."""

THREADS = 0.3
"""In how many of the plans some handlers are sync ones."""

LIMITS, ASYNC_LIMITS = 0.5, 0.2
"""
In how many of the plans some handlers of changes have limits of attempts and time: sync handlers,
if there are any, and async ones.
"""

FAILURES = 0.3
"""In how many of the plans daemons and timers fail; most of these have limits, too."""

CONTENTION = 0.1
"""In how many of the plans others put their finalizers on objects that are just created."""

CONGESTION = 0.2
"""In how many of the plans the operators have no spare capacity at times."""

STALENESS = 0.1
"""In how many of the plans an API server is behind after some restarts, unless in all of them."""

ADMISSION = 0.12
"""How many of the plans without replicas have admission handlers, too."""

SYNC_ADMISSION = 0.5
"""In how many of the plans with admission handlers some of these are sync ones."""

ELECTION = 0.4
"""How many of the plans with replicas have a Lease instead of a peering."""

DIRECTED, DIRECTED_PEERS = 0.25, 0.45
"""How many of the plans have steps for what rarely happens by chance; of those with replicas."""

TROUBLES = ('fault', 'cut', 'blind', 'exhaust', 'gone', 'stale')
"""The steps after which requests can fail, or be late."""

DURATION = 60.0
"""How long (seconds) the steps of a plan take at most; then, all faults end."""

RETURNING = range(4)
"""The numbers that several edits set, so that an object can return to a former state."""

HOUR = 3600.0
BUSY = 3000.0
"""For how long (seconds) there are changes and faults in each hour of a night, by default."""


@dataclasses.dataclass(frozen=True)
class Step:
    at: float
    """The time, in seconds since the start of the operator."""
    action: str
    args: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.action} {json.dumps(self.args)}" if self.args else self.action


@dataclasses.dataclass(frozen=True)
class Plan:
    seed: int
    features: frozenset[str]
    """The handlers that the operator has."""
    separate: bool
    """Whether the status is a subresource."""
    flush_delay: float
    disorder: float
    latency: tuple[float, float]
    lag: float
    """How much later (seconds) some of the events come by the watch."""
    replicas: int
    steps: tuple[Step, ...]
    threads: int = 1
    """How many sync handlers run at a time, in each process."""
    is_stale: bool = False
    """Whether the API server is behind after some restarts of the operator."""
    is_paused: bool = False
    """Whether users pause objects."""
    is_mixed: bool = False
    """Whether the operator has options that are rarely used together."""
    is_sharded: bool = False
    """Whether the replicas share the objects by shards."""
    shards: int = 0
    """How many shards there are, if any."""

    @property
    def is_calm(self) -> bool:
        """Whether no request fails or is late. Webhooks fail when their server has changed."""
        return 'admission' not in self.features and not any(
            step.action in TROUBLES for step in self.steps)

    def keep(self, numbers: Any) -> 'Plan':
        """The same with these steps only, by their numbers."""
        return dataclasses.replace(
            self, steps=tuple(self.steps[i] for i in sorted(numbers)))


def make(
        seed: int, *, is_stale: bool = False, is_paused: bool = False, is_mixed: bool = False,
        is_sharded: bool = False,
) -> Plan:
    rng = random.Random(seed)
    features = frozenset(name for name in FEATURES if rng.random() < 0.6) or frozenset({'main'})
    replicas = 2 if rng.random() < 0.15 else 1
    count = rng.choice((4, 8, 15, 25))
    times: list[float] = []
    while len(times) < count:
        times.append(_make_time(rng, times))
    times.sort()
    numbers = iter(range(100, 1000))
    steps = [Step(rng.choice((-1.0, 0.1)), 'create', _make_object(rng, 'a', next(numbers)))]
    is_calm = rng.random() < 0.3
    steps += [_make_step(rng, at, next(numbers), replicas, is_calm=is_calm) for at in times]
    aim = random.Random(f'directed {seed}')
    if aim.random() < (DIRECTED if replicas == 1 else DIRECTED_PEERS):
        features |= {'others'}
        steps = _direct(aim, steps, replicas)
    plan = Plan(
        seed=seed,
        features=features,
        separate=rng.random() < 0.5,
        flush_delay=rng.choice((0.0, 1.0, 1.0)),
        disorder=rng.choice((0.0, 0.2, 0.8)),
        latency=rng.choice(((0.0, 0.0), (0.0, 0.01), (0.0, 0.1), (0.02, 0.6))),
        lag=rng.choice((0.0, 0.0, 0.1, 0.7, 3.0)),
        replicas=replicas,
        steps=_sort(steps),
    )
    ballot = random.Random(f'election {seed}')
    if replicas > 1 and ballot.random() < ELECTION:
        plan = _elect(ballot, plan)
    entry = random.Random(f'admission {seed}')
    if replicas == 1 and entry.random() < ADMISSION:
        plan = _admit(entry, plan)
    spool = random.Random(f'threads {seed}')
    if spool.random() < THREADS:
        plan = _thread(spool, plan)
    bounds = random.Random(f'limits {seed}')
    if bounds.random() < LIMITS:
        plan = _limit(bounds, plan, is_sync=True)
    haste = random.Random(f'hasty async handlers {seed}')
    if haste.random() < ASYNC_LIMITS:
        plan = _limit(haste, plan, is_sync=False)
    flaws = random.Random(f'failing companions {seed}')
    if flaws.random() < FAILURES:
        plan = _weaken(flaws, plan)
    gate = random.Random(f'sync admission {seed}')
    if 'admission' in plan.features and gate.random() < SYNC_ADMISSION:
        plan = _admit_in_threads(gate, plan)
    claims = random.Random(f'rivals {seed}')
    if claims.random() < CONTENTION:
        plan = _contend(claims, plan)
    load = random.Random(f'connections {seed}')
    if load.random() < CONGESTION:
        plan = _congest(load, plan)
    past = random.Random(f'stale {seed}')
    is_chosen = past.random() < STALENESS
    plan = _age(past, plan) if is_stale or is_chosen else plan
    plan = _mix(random.Random(f'mixes {seed}'), plan) if is_mixed else plan
    plan = _shard(random.Random(f'shards {seed}'), plan) if is_sharded else plan
    return _pause(random.Random(f'pauses {seed}'), plan) if is_paused else plan


def _sort(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.at))


def make_night(seed: int, hours: int, *, busy: float = BUSY) -> Plan:
    """
    Make a plan of many hours: steady changes and faults, and a measurement in each hour.

    ``busy`` is for how long (seconds) in each hour something happens; then, it is calm.
    """
    rng = random.Random(f'night {seed}')
    numbers = itertools.count(100)
    steps: list[Step] = []
    for hour in range(hours):
        at = hour * HOUR
        while at < hour * HOUR + busy:
            step = _make_step(rng, round(at, 3), next(numbers), 1, is_calm=False)
            if step.action not in ('kill', 'stop'):  # what leaks must not go with the process
                steps.append(step)
            at += rng.uniform(5, 55)
        steps.append(Step(at, 'measure', {'numbers': [next(numbers) for _ in NAMES]}))
    features = frozenset({*FEATURES, 'others'})
    return Plan(
        seed=seed, features=features | _choose_sync(rng, features), separate=rng.random() < 0.5,
        flush_delay=1.0, disorder=0.2, latency=(0.0, 0.01), lag=0.0, replicas=1,
        steps=tuple(steps), threads=3)


def make_partition(seed: int) -> Plan:
    """
    Make a plan of two peers: the one with the higher priority is cut off until the other works.

    Objects change all the time, mostly when the network has recovered.
    """
    rng = random.Random(f'partition {seed}')
    numbers = itertools.count(100)
    at, seconds = round(rng.uniform(2, 20), 3), round(rng.uniform(65, 130), 3)
    steps = [Step(-1.0, 'create', {'name': name, 'n': next(numbers), 'on': False, 'k': 0})
             for name in NAMES]
    steps.append(Step(at, 'cut', {'who': 0, 'seconds': seconds}))
    for count, begin, end in (
            (5, 0.0, at), (10, at, at + seconds - 5), (25, at + seconds - 5, at + seconds + 15)):
        steps += [Step(round(rng.uniform(begin, end), 3), 'edit', {
            'name': rng.choice(NAMES), 'n': next(numbers)}) for _ in range(count)]
    return Plan(
        seed=seed,
        features=frozenset(rng.choice((('main',), ('main', 'parent', 'patching', 'field')))),
        separate=rng.random() < 0.5, flush_delay=rng.choice((0.0, 1.0)),
        disorder=rng.choice((0.0, 0.2, 0.8)),
        latency=rng.choice(((0.0, 0.01), (0.0, 0.1), (0.02, 0.6))),
        lag=rng.choice((0.0, 0.1, 0.7)), replicas=2, steps=_sort(steps))


def _make_time(rng: random.Random, others: list[float]) -> float:
    """Mostly soon after the start or close to others: that is where the races are."""
    if others and rng.random() < 0.4:
        return round(rng.choice(others) + rng.choice((0.0, 0.01, 0.1, 1.0)) * rng.random(), 3)
    return round(rng.choice((rng.uniform(0, 3), rng.uniform(0, 15), rng.uniform(0, DURATION))), 3)


def _make_object(rng: random.Random, name: str, n: int) -> dict[str, Any]:
    return {'name': name, 'n': n, 'on': rng.random() < 0.5, 'k': rng.randrange(3)}


def _make_step(
        rng: random.Random, at: float, n: int, replicas: int, *, is_calm: bool) -> Step:
    """A step; in calm plans, the API works as it should."""
    name = rng.choice(NAMES[:2] if rng.random() < 0.8 else NAMES)
    who = rng.randrange(replicas)
    choices = {
        'create': 20, 'edit': 30, 'touch': 6, 'label': 10, 'delete': 16, 'recreate': 10, 'hold': 5,
        'strip': 4, 'fault': 30, 'kill': 12, 'stop': 10, 'cut': 5, 'gap': 4, 'blind': 9,
        'meddle': 4,
    }
    if is_calm:
        choices = {key: value for key, value in choices.items() if key not in TROUBLES}
    action = rng.choices(list(choices), list(choices.values()))[0]
    args: dict[str, Any]
    match action:
        case 'create' | 'recreate':
            args = _make_object(rng, name, n)
        case 'edit':
            args = {'name': name, 'n': n}
            if rng.random() < 0.3:
                args['f'] = rng.randrange(3)
            if rng.random() < 0.3:
                args['k'] = rng.randrange(3)
        case 'touch' | 'delete' | 'meddle' | 'strip':
            args = {'name': name, 'n': n}
        case 'label':
            args = {'name': name, 'on': rng.random() < 0.5}
        case 'hold':
            args = {'name': name, 'seconds': rng.choice((1, 10))}
        case 'fault':
            args = _make_fault(rng)
        case 'kill':
            args = {'who': who, 'lossy': rng.random() < 0.3, 'down': rng.choice((0.1, 1, 10))}
        case 'stop':
            args = {'who': who, 'down': rng.choice((0, 1, 10))}
        case 'blind':
            args = {'seconds': rng.choice((0.5, 3, 10))}
        case 'cut':
            args = {'who': who, 'seconds': rng.choice((0.5, 3, 20))}
        case _:
            args = {}
    return Step(at, action, args)


def _direct(rng: random.Random, steps: list[Step], replicas: int) -> list[Step]:
    """Add steps for what rarely happens by chance."""
    if replicas > 1 and rng.random() < 0.7:  # the operator A comes and goes; the API works
        steps = [step for step in steps if step.action not in TROUBLES]
        for n in range(3):
            at, down = _make_time(rng, [step.at for step in steps]), rng.choice((1, 3, 10))
            late = round(at + down - rng.random(), 3)  # the work of B is under way then
            steps.append(Step(at, 'stop', {'who': 0, 'down': down}))
            steps.append(Step(late, 'edit', {'name': rng.choice(NAMES[:2]), 'n': n}))
        if rng.random() < 0.5:  # B goes on with its work after the record of A has expired
            late = round(at + down + rng.uniform(0.1, 3), 3)
            steps.append(Step(late, 'kill', {'who': 0, 'lossy': False, 'down': None}))
        return steps
    for _ in range(rng.choice((1, 2, 3))):
        at = _make_time(rng, [step.at for step in steps])
        who, name, down = rng.randrange(replicas), rng.choice(NAMES[:2]), rng.choice((0.1, 1, 10))
        match rng.choice(('flip', 'flip', 'snipe', 'snipe', 'exhaust', 'gone')):
            case 'flip':
                at = round(rng.uniform(0, DURATION), 3)
                step = Step(at, 'flip', {'name': name, 'seconds': rng.choice((0.5, 5, 15))})
                if rng.random() < 0.5:  # the object returns to its state while nobody works
                    late = round(at + rng.uniform(0.5, 5), 3)
                    args = {'who': who, 'lossy': False, 'down': 10}
                    steps.append(Step(late, 'kill', args))
            case 'snipe':
                step = Step(at, 'snipe', {
                    'who': who, 'writes': rng.choice((1, 2, 3, 5)), 'down': down})
            case 'exhaust':
                step = Step(at, 'exhaust', {
                    'who': who, 'count': rng.choice((4, 8)), 'seconds': rng.choice((0.2, 0.9)),
                    'down': down})
            case _:
                step = Step(at, 'gone')
        steps.append(step)
    return steps


def _elect(rng: random.Random, plan: Plan) -> Plan:
    """Let a Lease decide who works; often, its holder is cut off until another one has taken it."""
    steps, numbers = list(plan.steps), iter(range(2000, 3000))
    if rng.random() < 0.6:
        at, seconds = round(rng.uniform(3, 40), 3), rng.choice((8, 14, 25))
        steps.append(Step(at, 'cut', {'who': 0, 'seconds': seconds}))
        for _ in range(rng.choice((1, 3))):
            late = round(at + rng.uniform(-1, seconds + 2), 3)
            steps.append(Step(late, 'edit', {'name': rng.choice(NAMES[:2]), 'n': next(numbers)}))
    return dataclasses.replace(
        plan, features=plan.features | {'election'}, steps=_sort(steps))


def _admit(rng: random.Random, plan: Plan) -> Plan:
    """Add admission handlers, dry runs, and changes while the operator is away or comes back."""
    options = [name for name in ('persistent', 'ignoring') if rng.random() < 0.4]
    steps, numbers = list(plan.steps), iter(range(2000, 3000))
    for _ in range(rng.choice((0, 1, 3))):
        at = _make_time(rng, [step.at for step in steps])
        steps.append(Step(at, 'dry', {'name': rng.choice(NAMES[:2]), 'n': next(numbers)}))
    for _ in range(rng.choice((1, 2))):
        at, down = round(rng.uniform(1, DURATION), 3), rng.choice((0.1, 1, 10))
        steps.append(rng.choice((
            Step(at, 'kill', {'who': 0, 'lossy': False, 'down': down}),
            Step(at, 'stop', {'who': 0, 'down': down}))))
        for _ in range(rng.choice((1, 2, 4))):
            late = round(at + rng.uniform(0, down + 1), 3)
            name, n = rng.choice(NAMES[:2]), next(numbers)
            steps.append(rng.choice((
                Step(late, 'edit', {'name': name, 'n': n}),
                Step(late, 'create', _make_object(rng, name, n)),
                Step(late, 'delete', {'name': name, 'n': n}))))
    if rng.random() < 0.5:  # at the next time when the webhooks are configured
        steps.append(Step(at, 'fault', {
            'action': rng.choice(('refuse', 'lose')), 'verb': rng.choice(('patch', '*')),
            'resource': '*webhookconfigurations', 'count': rng.choice((1, 2)), 'skip': 0,
            'status': rng.choice((403, 503))}))
    return dataclasses.replace(
        plan, features=plan.features | {'admission', *options}, steps=_sort(steps),
        # With each write, there are some more trips: the exit must have the time for them.
        latency=min(plan.latency, (0.0, 0.1)))


def _thread(rng: random.Random, plan: Plan) -> Plan:
    """Let some of the handlers be sync ones; often, the operator stops while they run or wait."""
    chosen = _choose_sync(rng, plan.features)
    steps, numbers = list(plan.steps), iter(range(3000, 4000))
    stops = rng.choice((0, 1, 3))
    for _ in range(stops):
        at, who = _make_time(rng, [step.at for step in steps]), rng.randrange(plan.replicas)
        for name in NAMES:
            steps.append(Step(at, 'create', _make_object(rng, name, next(numbers))))
            steps.append(Step(at, 'edit', {'name': name, 'n': next(numbers)}))
        late = round(at + rng.uniform(0, 3), 3)
        steps.append(Step(late, 'stop', {'who': who, 'down': rng.choice((0.1, 1))}))
    if 'sync daemon' in chosen:
        for name in NAMES:  # the daemon has to stop soon after its beginning
            at = round(rng.uniform(DURATION / 2, DURATION), 3)
            steps.append(Step(at, 'create', _make_object(rng, name, next(numbers))))
            steps.append(Step(at, 'label', {'name': name, 'on': True}))
            late = round(at + rng.uniform(0, 2), 3)
            steps.append(Step(late, 'label', {'name': name, 'on': False}))
    return dataclasses.replace(
        plan, features=plan.features | chosen, threads=1 if stops else rng.choice((1, 3, 10)),
        steps=_sort(steps))


def _limit(rng: random.Random, plan: Plan, *, is_sync: bool) -> Plan:
    """Let some of the handlers of changes have a timeout, and a number of attempts."""
    chosen = {f'limited {id}' for id, feature in LIMITED.items() if feature in plan.features and (
        (f'sync {id}' in plan.features) is is_sync) and rng.random() < 0.6}
    return dataclasses.replace(plan, features=plan.features | chosen)


def _weaken(rng: random.Random, plan: Plan) -> Plan:
    """Let daemons and timers fail, or end; let them have a timeout, and a number of attempts."""
    chosen = {f'{flaw} {id}' for id in ('daemon', 'timer') if id in plan.features
              for flaw in ('failing', 'limited') if rng.random() < 0.7}
    return dataclasses.replace(plan, features=plan.features | chosen)


def _admit_in_threads(rng: random.Random, plan: Plan) -> Plan:
    """Let some of the admission handlers be sync ones; they share the threads with the others."""
    chosen = rng.choice((['mutating'], ['validating'], ['mutating', 'validating']))
    return dataclasses.replace(
        plan, features=plan.features | {f'sync {id}' for id in chosen},
        threads=plan.threads if any(key.startswith('sync ') for key in plan.features) else (
            rng.choice((1, 3, 10))))


def _contend(rng: random.Random, plan: Plan) -> Plan:
    """Let others put their finalizers on new objects, while the operator adds its own."""
    holds = [Step(round(max(0.0, step.at) + rng.uniform(0, 0.5), 3), 'hold',
                  {'name': step.args['name'], 'seconds': rng.choice((1, 10))})
             for step in plan.steps if step.action in ('create', 'recreate')]
    return dataclasses.replace(plan, steps=_sort([*plan.steps, *holds]))


def _congest(rng: random.Random, plan: Plan) -> Plan:
    """Let objects wait for spare capacity: at the starts of operators, and later; some change."""
    steps, numbers = list(plan.steps), iter(range(5000, 6000))
    starts = [(0.0, who) for who in range(plan.replicas)] + [
        (step.at, step.args['who']) for step in plan.steps
        if step.action in ('kill', 'stop') and rng.random() < 0.5]
    others = [(round(rng.uniform(0, DURATION), 3), rng.randrange(plan.replicas))
              for _ in range(rng.choice((0, 1, 3)))]
    for at, who in starts + others:
        seconds = rng.choice((0.5, 3, 10))
        steps.append(Step(at, 'congest', {'who': who, 'seconds': seconds}))
        for _ in range(rng.choice((0, 1, 3))):
            late = round(at + rng.uniform(0, seconds), 3)
            steps.append(Step(late, 'edit', {'name': rng.choice(NAMES[:2]), 'n': next(numbers)}))
    return dataclasses.replace(plan, steps=_sort(steps))


def _age(rng: random.Random, plan: Plan) -> Plan:
    """
    Let the operator be served older states after some of its restarts.

    Around these restarts, the objects change, so that the older states are not the newest ones.
    """
    steps, numbers = list(plan.steps), iter(range(4000, 5000))
    steps += [_make_stale(rng, step.at, step.args['who']) for step in plan.steps
              if step.action in ('kill', 'snipe', 'stop', 'exhaust') and rng.random() < 0.5]
    for _ in range(rng.choice((1, 2, 3))):
        at, who = round(rng.uniform(2, DURATION), 3), rng.randrange(plan.replicas)
        down, name = rng.choice((0.1, 1, 5)), rng.choice(NAMES[:2])
        for _ in range(rng.choice((1, 2, 4))):
            early, n = round(at + rng.choice((-5, -2, -0.5, down)) * rng.random(), 3), next(numbers)
            steps.append(_make_change(rng, early, name, n, on=0.5, making='recreate'))
        steps.append(_make_stale(rng, at, who))
        steps.append(rng.choice((
            Step(at, 'kill', {'who': who, 'lossy': False, 'down': down}),
            Step(at, 'stop', {'who': who, 'down': down}),
            Step(at, 'snipe', {'who': who, 'writes': rng.choice((1, 2, 3)), 'down': down}))))
    return dataclasses.replace(plan, steps=_sort(steps), is_stale=True)


def _pause(rng: random.Random, plan: Plan) -> Plan:
    """
    Let users pause objects, some until a time, and change them meanwhile.

    Some of the pauses come while handlers run, some while the operator is away. Some are ended, and
    some last until all other steps are done.
    """
    steps, numbers = list(plan.steps), iter(range(6000, 7000))
    for _ in range(rng.choice((1, 2, 3, 5))):
        at, name = _make_time(rng, [step.at for step in steps]), rng.choice(NAMES[:2])
        seconds, lasts = rng.choice((None, None, 0.5, 3, 10, 30)), rng.choice((0.1, 1, 5, 20))
        if rng.random() < 0.4:  # nobody has handled it before
            steps.append(Step(at, 'recreate', {
                **_make_object(rng, name, next(numbers)), 'on': True}))
        steps.append(Step(at, 'pause', {
            'name': name, 'seconds': seconds, 'allows': rng.random() < 0.3}))
        if rng.random() < 0.5:
            steps.append(Step(round(at + lasts * rng.random(), 3), 'unpause', {'name': name}))
        for _ in range(rng.choice((0, 1, 2, 4))):
            late, n = round(at + lasts * rng.uniform(-0.2, 1), 3), next(numbers)
            steps.append(_make_change(rng, late, name, n))
        if rng.random() < 0.3:
            who, down = rng.randrange(plan.replicas), rng.choice((0.1, 1, 10))
            late = round(at + lasts * rng.uniform(-0.2, 1), 3)
            steps.append(rng.choice((
                Step(late, 'kill', {'who': who, 'lossy': rng.random() < 0.3, 'down': down}),
                Step(late, 'stop', {'who': who, 'down': down}))))
    if rng.random() < 0.7:  # one lasts, with daemons and timers before
        at, name = round(rng.uniform(DURATION / 2, DURATION), 3), rng.choice(NAMES[:2])
        steps += [
            Step(at - 15, 'create', _make_object(rng, name, next(numbers))),
            Step(at - 15, 'label', {'name': name, 'on': True}),
            Step(at, 'pause', {'name': name, 'seconds': rng.choice((None, 30)), 'allows': False}),
            Step(at + 5, 'edit', {'name': name, 'n': next(numbers), 'k': rng.randrange(3)})]
    return dataclasses.replace(plan, steps=_sort(steps), is_paused=True)


def _mix(rng: random.Random, plan: Plan) -> Plan:
    """Let handlers have other options, and let the records be in the status."""
    chosen = {name for name in MIXES if rng.random() < 0.5}
    if 'status records' in chosen and plan.separate:  # else, two requests close a cycle
        chosen.add('status states')
    needed = {MIXES[name] for name in chosen} - {''}
    return dataclasses.replace(plan, features=plan.features | chosen | needed, is_mixed=True)


def _shard(rng: random.Random, plan: Plan) -> Plan:
    """
    Let several replicas share the objects by shards, which move as replicas come, go, or are cut.

    The objects change around these times. Sometimes, users delete the Lease of a shard.
    """
    replicas, numbers = rng.choice((2, 2, 3)), iter(range(7000, 8000))
    steps = [dataclasses.replace(step, args={**step.args, 'who': rng.randrange(replicas)})
             if 'who' in step.args else step for step in plan.steps if step.action != 'dry']
    steps += [Step(-1.0, 'create', _make_object(rng, name, next(numbers))) for name in NAMES[1:]]
    for _ in range(rng.choice((1, 2, 3, 5))):
        at, who = round(rng.uniform(2, DURATION), 3), rng.randrange(replicas)
        down = rng.choice((0.1, 1, 5, 20))
        steps.append(rng.choice((
            Step(at, 'stop', {'who': who, 'down': down}),
            Step(at, 'stop', {'who': who, 'down': down}),
            Step(at, 'kill', {'who': who, 'lossy': rng.random() < 0.3, 'down': down}),
            Step(at, 'cut', {'who': who, 'seconds': rng.choice((5, 14, 25))}),
            Step(at, 'unlease', {'shard': rng.randrange(8)}))))
        for _ in range(rng.choice((1, 2, 4, 8))):
            late = round(max(0.0, at + rng.uniform(-2, down + 6)), 3)
            name, n = rng.choice(NAMES), next(numbers)
            steps.append(_make_change(rng, late, name, n))
    absent = {'election', 'admission', 'persistent', 'ignoring', 'sync mutating', 'sync validating'}
    chosen = {name for name in SHARDINGS if rng.random() < 0.5}
    return dataclasses.replace(
        plan, features=plan.features - absent | chosen | {'main'}, replicas=replicas,
        shards=rng.choice((1, 3, 4, 8)), is_sharded=True, steps=_sort(steps))


def _make_change(
        rng: random.Random, at: float, name: str, n: int, *, on: float = 0.7,
        making: str = 'create') -> Step:
    """A change of an object by its users; ``on`` is how often a change of the label sets it."""
    return rng.choice((
        Step(at, 'edit', {'name': name, 'n': n, 'k': rng.randrange(3)}),
        Step(at, 'edit', {'name': name, 'n': rng.choice(RETURNING)}),
        Step(at, 'label', {'name': name, 'on': rng.random() < on}),
        Step(at, 'delete', {'name': name, 'n': n}),
        Step(at, making, _make_object(rng, name, n))))


def _make_stale(rng: random.Random, at: float, who: int) -> Step:
    return Step(at, 'stale', {
        'who': who, 'versions': rng.choice((1, 2, 3, 5, 8, 13)),
        'seconds': rng.choice((0.5, 3, 10))})


def _choose_sync(rng: random.Random, features: frozenset[str]) -> set[str]:
    ids = [id for feature in SYNC if feature in features for id in SYNC[feature]]
    return {f'sync {id}' for id in ids if rng.random() < 0.6}


def _make_fault(rng: random.Random) -> dict[str, Any]:
    action = rng.choice((
        'refuse', 'refuse', 'delay', 'drop', 'lose', 'lose', 'cut', 'slow', 'expire', 'compact'))
    verb = rng.choice(('patch', 'patch', 'watch', 'watch', 'list', '*'))
    args: dict[str, Any] = {
        'action': action, 'verb': verb, 'count': rng.choice((1, 1, 2, 5)),
        'skip': rng.choice((0, 0, 1, 3))}
    if rng.random() < 0.8:
        args['resource'] = 'kopfexamples*'
    if action == 'refuse':
        args['status'] = rng.choice((404, 409, 429, 500, 503, 504))
    if action in ('delay', 'slow'):
        args['seconds'] = rng.choice((0.2, 2.0, 8.0))
    return args
