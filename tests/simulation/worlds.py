"""
The simulated world: an API server, operators, and others who edit objects, in one event loop.
"""
import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import datetime
import gc
import hashlib
import itertools
import logging
import math
import random
import threading
import traceback
import uuid
import warnings
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import kopf
from kopf._cogs.clients import api, errors, vaults
from kopf._cogs.structs import credentials
from kopf._core.actions import execution, invocation
from kopf._core.engines import indexing
from kopf._core.engines.daemons import companions
from kopf._core.intents import causes, handlererrors, stopping
from kopf._core.path import objects, queueing
from kopf._kits import running
from kopf._kits.sandbox import direct, encoding, statuses, webhookcalls
from kopf._kits.sandbox.faults import Fault, Faults
from kopf._kits.sandbox.lagging import Lag
from kopf._kits.sandbox.requests import Target
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import processes
from tests import seeded
from tests.simulation import elections, pauses, plans, specimens, threads
from tests.simulation.admissions import Admissions
from tests.simulation.guarantees import FINALIZER, Guarantees, Violation
from tests.simulation.specimens import Call

KIND, OTHERS = specimens.KIND, specimens.OTHERS
RESOURCE = ('kopf.dev', KIND)
CHILDREN = ('', 'configmaps')
CONFIGURATIONS = (webhookcalls.MUTATING, webhookcalls.VALIDATING)

SILENCE = 45.0
"""How long (seconds) nothing must happen, so that it is rest."""

EXPIRY = 90.0
"""The same for replicas: until the record of a killed one has expired."""

PATIENCE = 400.0
"""How long (seconds) it may take until there is rest."""

MAX_STORY = 4000
"""How many events there can be until there is rest, if the time does not pass."""

EXIT_LIMIT = 15.0
"""How long (seconds) the exit of an operator may take."""

WARM_UP = 2
"""After how many measurements nothing must grow any more."""

TOLERANCE = 5
"""How many more objects of a type there can be nevertheless; also in percent."""

EXPECTED = (
    errors.APIError, handlererrors.TemporaryError, handlererrors.PermanentError,
    specimens.Unexpected, asyncio.CancelledError)
"""The errors that may be in the log."""


@dataclasses.dataclass
class Report:
    """What has come out of a run."""
    plan: plans.Plan
    violation: Violation | None
    story: list[str]
    faults: collections.Counter[str]
    seconds: float
    """The virtual time at the end."""
    census: list[collections.Counter[str]]
    """How many tasks, timers, and objects of the framework there were, in each measurement."""
    calls: list[Call]
    """The calls of the handlers of changes."""

    @property
    def digest(self) -> str:
        return hashlib.sha256('\n'.join(self.story).encode()).hexdigest()[:16]


def run(plan: plans.Plan, *, verbose: bool = False) -> Report:
    """Run a plan in a loop of its own. With ``verbose``, the story has the whole log."""
    world = World(plan, verbose=verbose)

    def make_loop() -> threads.Loop:
        return threads.Loop(plan.seed)  # the order and latencies: see `World.live`

    with _seeded(plan.seed), _overhearing(world), _logging(world), warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)  # of abandoned daemons
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(world.live())
    return Report(
        plan, world.violation, world.story, world.faults, world.seconds, world.census,
        [call for calls in world.guarantees.calls.values() for call in calls])


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed)
    rng, known = random.Random(seed), uuid.uuid4
    uuid.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)
    # The order in sets of companions must not depend on their addresses.
    known_hash = companions.Companion.__hash__
    companions.Companion.__hash__ = lambda self: zlib.crc32(
        f'{self.companions.host.uid} {self.handler.id}'.encode())
    try:
        with mock.patch.object(stopping, 'threading', threads), mock.patch.object(
                companions.threads, 'ThreadPerCall', threads.make_unlimited), mock.patch.object(
                api.Client, 'congested', property(_is_congested)), mock.patch.object(
                api.Client, 'overloaded', property(
                    lambda client: seed % 3 == 0 and _is_congested(client))), mock.patch.object(
                queueing, 'LONG_QUEUE', seed % 4), mock.patch.object(
                queueing, 'PATIENT_MINIMUM', (seed + 1) % 2):  # there are only a few objects
            yield
    finally:
        companions.Companion.__hash__ = known_hash
        random.setstate(state)
        uuid.uuid4 = known


def _is_congested(client: api.Client) -> bool:
    """Whether the present process has no spare capacity, instead of the real measure."""
    process = processes.current.get()
    return isinstance(process, Life) and process.is_congested


@contextlib.contextmanager
def _overhearing(world: 'World') -> Iterator[None]:
    """
    Hear of the handlers that have failed without a call, because their time is over, and of the
    states that operators see.
    """
    known = execution.execute

    async def execute(handler: Any, cause: Any, **options: Any) -> Any:
        outcome = await known(handler, cause, **options)
        process = processes.current.get()
        if isinstance(outcome.exception, handlererrors.HandlerTimeoutError) and (
                isinstance(process, Life)):
            world.give_up(process, handler.id, cause)
        return outcome

    show = objects.Item.show

    def see(item: Any, raw: Any, packed: bytes | None = None) -> None:
        world.pauses.see(processes.current.get(), item.uid, raw, world._now)
        show(item, raw, packed)

    with mock.patch.object(execution, 'execute', execute), mock.patch.object(
            objects.Item, 'show', see):
        yield


@contextlib.contextmanager
def _logging(world: 'World') -> Iterator[None]:
    handler, root, own = _LogHandler(world), logging.getLogger(), logging.getLogger('kopf')
    levels = root.level, own.level
    known = root.handlers[:]
    own_level = logging.DEBUG if world.verbose else logging.INFO
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    own.setLevel(own_level)
    try:
        yield
    finally:
        root.handlers[:] = known
        root.setLevel(levels[0])
        own.setLevel(levels[1])


class _LogHandler(logging.Handler):

    def __init__(self, world: 'World') -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.log(record)


class Life(threads.Host):
    """One life of an operator: from its start until it is killed or stopped."""

    def __init__(self, world: 'World', who: int, number: int, loop: seeded.SeededLoop) -> None:
        super().__init__(f"operator {'ABC'[who]}{number}", loop)
        self.who = who
        self.killed = False
        self.gone_at = 0.0
        self.stopping = False
        self.writes_left: int | None = None
        """After how many writes it is killed, if it is."""
        self.down = 0.0
        """For how long (seconds) it is away after that."""
        self.is_indexed = True
        """Whether the indices are promised to be full: all lists worked at the start."""
        self.is_deposed = False
        """Whether it has lost its Lease, and does not lead again yet."""
        self.deposed_at = -math.inf
        """When it has lost its Lease at last."""
        self.left_work_at = math.inf
        """When it has said that there was no time to write everything before its exit."""
        self.lag: Lag | None = None
        """How far the API server is behind that serves its lists and watches."""
        self.has_caught_up = True
        """Whether it was served the newest states, before it was told to stop."""
        self.started = loop.time()
        self.stop_flag = asyncio.Event()
        self.indexers = indexing.OperatorIndexers()
        self.task: asyncio.Task[None] | None = None
        self._world = world

    @property
    def working(self) -> bool:
        return self.alive and not self.stopping

    @property
    def is_congested(self) -> bool:
        return self._world.is_congested(self.who)

    def start(self) -> None:
        context = contextvars.copy_context()
        context.run(processes.current.set, self)
        self.task = self.loop.create_task(self._run(), context=context)

    async def _run(self) -> None:
        world, plan = self._world, self._world.plan
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.execution.executor = threads.Pool(self, plan.threads)
        settings.execution.default_backoff = specimens.BACKOFF
        settings.persistence.flush_delay = plan.flush_delay
        if 'status records' in plan.features:
            settings.persistence.progress_storage = kopf.StatusProgressStorage()
        if 'status states' in plan.features:
            settings.persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
        settings.queueing.error_delays = (1, 2, 3)
        settings.networking.error_backoffs = (0.5, 1, 2)
        settings.reconciling.max_error_delay = 5
        if 'admission' in plan.features:
            settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=0)
            settings.admission.managed = specimens.MANAGED
        if world.is_electing:
            settings.leadership.name = elections.LEASE
        if plan.is_sharded:
            settings.sharding.count, settings.sharding.name = plan.shards, elections.LEASE
            if 'own uids' in plan.features:
                settings.sharding.by = 'own-uid'
            if 'hasty handover' in plan.features:
                settings.sharding.handover_timeout = 1
        registry = specimens.declare(world, self, plan.features, plan.seed)
        roots = await running.spawn_tasks(
            registry=registry, settings=settings, indexers=self.indexers,
            vault=vaults.Vault({'': world.credentials}), clusterwide=True,
            standalone=plan.replicas == 1 or world.has_leases,
            priority=None if world.has_leases else 10 - self.who, identity=self.name,
            stop_flag=self.stop_flag)
        await running.run_tasks(roots, ignored=_Others(self))

    def kill(self, *, lossy: bool = False) -> None:
        super().kill(lossy=lossy or self._is_isolated())

    def _is_isolated(self) -> bool:
        """Whether what cannot be sent now, must not come later, when another replica leads."""
        return self._world.has_leases and self.cut_until > self.loop.time()

    async def stop(self) -> None:
        """Stop as by a signal."""
        self.stopping = True
        self.stop_flag.set()
        assert self.task is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_LIMIT):
                await asyncio.wait([self.task])
                while self.threads:  # Python waits for them when it exits
                    await asyncio.sleep(0.1)
        if not self.alive:
            return
        if not self.task.done() or self.threads:
            raise Violation('clean shutdown', f"{self.name} has not left in {EXIT_LIMIT:g}s")
        if self._is_isolated():
            self.lose_sent()
        self.alive = False


class _Others(Collection[asyncio.Task[Any]]):
    """The tasks of the loop that do not belong to the process."""

    def __init__(self, process: Life) -> None:
        self._process = process

    def __contains__(self, task: object) -> bool:
        return not self._process.owns(task)

    def __iter__(self) -> Iterator[Any]:
        return iter(task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Gone(Fault):
    """Refuses all watches until the objects are listed again."""

    def hit(self, target: Target) -> bool:
        if target.verb == 'list' and self.is_about(dataclasses.replace(target, verb=self.verb)):
            self.count = self.hits
        return super().hit(target)


class _Faults(Faults):
    """The faults of a plan; a server that is behind can serve the lists and watches of a life."""

    def __init__(self, world: 'World') -> None:
        super().__init__()
        self._world = world

    def get_lag(self, target: Target) -> Lag | None:
        process = processes.peer.get()
        is_read = target.verb in ('list', 'watch')
        return process.lag if is_read and isinstance(process, Life) else None

    def hitting(self, target: Target, *actions: Any) -> list[Fault]:
        found = super().hitting(target, *actions)
        if any(fault.action == 'compact' for fault in found):
            self._world.catch_up()  # before the history is gone that it needs
        return found


class World:
    """Carries out a plan, notes the story, and lets the guarantees be checked."""

    def __init__(self, plan: plans.Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.verbose = verbose
        self.story: list[str] = []
        self.violation: Violation | None = None
        self.faults: collections.Counter[str] = collections.Counter()
        self.guarantees = Guarantees(plan)
        self.pauses = pauses.Pauses(self.guarantees)
        self.admissions = Admissions(plan.features)
        self.elections = elections.Elections()
        self.is_electing = 'election' in plan.features
        self.shards = elections.Shards(plan.shards) if plan.is_sharded else None
        self.has_leases = self.is_electing or plan.is_sharded
        self.guarantees.shards = self.shards
        self.guarantees.find_worker = self._find_worker
        self.seconds = 0.0
        self.census: list[collections.Counter[str]] = []
        self.lives: list[Life | None] = [None] * plan.replicas
        self._past: list[Life] = []
        self._numbers = [itertools.count(1) for _ in range(plan.replicas)]
        self._latest = 0.0
        self._due: list[asyncio.Task[None]] = []
        self._staleness: dict[int, tuple[int, float]] = {}
        """How many versions behind, and for how long, the next lives are served."""
        self._congested_until = [0.0] * plan.replicas
        self._origin = 0
        self._failed = asyncio.Event()
        self._uids: dict[str, str] = {}
        self._is_over = False
        self._loop: Any = None

    @property
    def _now(self) -> float:
        """The time of the loop, also for threads."""
        return float(self._loop.time())

    # Noting.

    def note(self, text: str, *, who: Any = None) -> None:
        actor = 'world' if who is None else who.name
        self.story.append(f"{self._now:9.3f}  {actor:12}  {text}")
        if len(self.story) == MAX_STORY:
            self.fail(Violation('rest', f"there is no end to it in {MAX_STORY} events"))

    def fail(self, violation: Violation) -> None:
        if self.violation is None and not self._is_over:
            self.violation = violation
            self.note(f"VIOLATION of {violation}")
            self._failed.set()

    def log(self, record: logging.LogRecord) -> None:
        process = processes.current.get()
        if self._is_over or process is None or not process.alive:
            return
        text = record.getMessage()
        if self.verbose or record.levelno >= logging.WARNING:
            self.note(f"{record.levelname}: {text}", who=process)
        if text.startswith("The indices are incomplete"):
            process.is_indexed = False
        if text.startswith(("Lost the Lease", "Lost all shards")):
            process.is_deposed = True
            process.deposed_at = process.loop.time()
            self.guarantees.depose(process)
        elif text.startswith("Lost "):
            process.deposed_at = process.loop.time()
            self.guarantees.depose(process)
        elif text.startswith(("Leading:", "Gained ")):
            process.is_deposed = False
        elif process.deposed_at > -math.inf and text.startswith("The patch of Timer") and (
                text.endswith("hold its Lease any more.")):
            # Its thread has begun or ended in a later term than the one in which it was called.
            self.guarantees.depose(process, record.k8s_ref['uid'])
        if text.startswith("What is done could not be written before the exit"):
            process.left_work_at = min(process.left_work_at, process.loop.time())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR and (
                not isinstance(error, EXPECTED)):
            where = ''.join(traceback.format_exception(error)[-3:])
            self.fail(Violation('no crashes', f"{text}\n{where}"))

    def handle_exception(self, loop: Any, context: dict[str, Any]) -> None:
        if not self._is_over:
            error = context.get('exception')
            where = ''.join(traceback.format_exception(error)[-3:]) if error else ''
            self.fail(Violation('no crashes', f"{context['message']}: {error!r}\n{where}"))

    def touch(self) -> None:
        self._latest = self._now

    # Called by the handlers.

    def begin(self, process: Life, id: str, kind: str, kwargs: dict[str, Any]) -> Call:
        now = self._now
        body, old = kwargs['body'], kwargs.get('old')
        call = Call(
            id=id, kind=kind, process=process, uid=body['metadata']['uid'],
            name=body['metadata']['name'], began=now, retry=kwargs.get('retry') or 0,
            reason=str(kwargs.get('reason') or kind),
            old=reduce(old) if isinstance(old, Mapping) else old, new=reduce(body),
            version=int(body['metadata']['resourceVersion']),
            started=self._find_start(kwargs), stopped=kwargs.get('stopped'))
        if process.alive and not self._is_over:
            if kind != 'timer':
                self.touch()
                self.note(f"{call} begins", who=process)
            if self.is_electing:
                self._check(lambda: self.elections.act(process.name, f"calls {call}"))
            if self.shards is not None:
                shards = self.shards
                self._check(lambda: shards.act(process.name, call.uid, f"calls {call}"))
            self._check(lambda: self.guarantees.begin(call, kwargs, now))
            self._check(lambda: self.pauses.begin(call, now))
            self._check_thread(id)
            if invocation.kwargs_var.get({}).get('body') is not body:
                self.fail(Violation('context', f"{call} begins without its context"))
        return call

    def end(self, call: Call, outcome: str, delay: float = 0.0) -> None:
        now = self._now
        if not call.process.alive or self._is_over:
            return
        call.ended, call.outcome, call.delay = now, outcome, delay
        if call.kind != 'timer':
            self.touch()
            if call.kind != 'event':
                self.note(f"{call}: {outcome}", who=call.process)
        self._check(lambda: self.guarantees.end(call, now))

    def _find_start(self, kwargs: dict[str, Any]) -> float:
        started: datetime.datetime | None = kwargs.get('started')
        return 0.0 if started is None else (started - processes.ORIGIN).total_seconds()

    def _check_thread(self, id: str) -> None:
        is_in_thread = isinstance(threading.current_thread(), threads.Thread)
        if is_in_thread != (f'sync {id}' in self.plan.features):
            self.fail(Violation('threads', f"{id} is called in {threading.current_thread()}"))

    def give_up(self, process: Life, id: str, cause: Any) -> None:
        """Note that a handler has failed, as its time is over."""
        if not process.alive or self._is_over:
            return
        if isinstance(cause, causes.SpawningCause):
            self.touch()
            self.note(f"{id} of {cause.body['metadata']['name']} is given up", who=process)
            self._check(lambda: self.guarantees.end_companion(
                process, cause.body['metadata']['uid'], id, self._now))
            return
        body, old = cause.body, cause.old
        call = Call(
            id=id, kind='change', process=process, uid=body['metadata']['uid'],
            name=body['metadata']['name'], began=self._now, retry=0, reason=str(cause.reason),
            old=reduce(old) if isinstance(old, Mapping) else old, new=reduce(body),
            version=int(body['metadata']['resourceVersion']), ended=self._now, outcome='failed')
        self.touch()
        self.note(f"{call} is given up", who=process)
        self._check(lambda: self.guarantees.give_up(call, body, self._now))

    def review(self, process: Life, id: str, n: int, *, is_dry: bool) -> None:
        if process.alive and not self._is_over:
            self._check_thread(id)
            self._check(lambda: self.admissions.review(n, is_dry=is_dry))

    def _check(self, check: Any) -> None:
        try:
            check()
        except Violation as e:
            self.fail(e)

    # Called by the API server.

    def hear(self, change: Any) -> None:
        if change.resource == elections.LEASES and self.shards is not None:
            self._share(change)
        elif change.resource == elections.LEASES and self.elections.hold(change.new.decode()):
            self.note(f"{self.elections.leader} leads")
            if self.plan.lag:  # its watches can be that far behind
                for life in self.lives:
                    if life is not None and life.name == self.elections.leader:
                        self.guarantees.take_over(life)
        if change.resource not in (RESOURCE, CHILDREN, *CONFIGURATIONS) or self._is_over:
            return
        now = asyncio.get_running_loop().time()
        writer = processes.peer.get()
        new, old = change.new.decode(), change.old.decode() if change.old else None
        self.touch()
        meta = new['metadata']
        if isinstance(writer, Life) and self.is_electing:
            self._check(lambda: self.elections.act(writer.name, f"writes {meta['name']}"))
        if isinstance(writer, Life) and self.shards is not None:
            shards, owners = self.shards, meta.get('ownerReferences')
            uid = owners[0]['uid'] if owners else meta['uid']
            self._check(lambda: shards.act(writer.name, uid, f"writes {meta['name']}"))
        if change.resource in CONFIGURATIONS:
            self.admissions.configure(change.resource, new, writer, now)
            self.note(f"{change.type} {change.resource[1]}: "
                      f"{len(new.get('webhooks') or ())}", who=writer)
            return
        if change.resource == CHILDREN:
            children = self.guarantees.children
            if change.type == 'DELETED':
                children.pop(meta['name'], None)
            else:
                children[meta['name']] = new
            self.note(f"{change.type} child {meta['name']}", who=writer)
            return
        self.note(f"{change.type} {meta['name']} ({meta['uid']}) v{meta['resourceVersion']} "
                  f"{_describe(old, new)}", who=writer)
        if isinstance(writer, Life) and writer.writes_left is not None:
            writer.writes_left -= 1
            if writer.writes_left == 0:
                asyncio.get_running_loop().call_soon(self._kill, writer)
        self._check(lambda: self.admissions.store(new))
        self._check(lambda: self.guarantees.commit(change.type, old, new, writer, now))
        if isinstance(writer, Life):
            self._check(lambda: self.pauses.write(old, new, now))

    def _share(self, change: Any) -> None:
        """Take a new state of a Lease, maybe of one of a shard."""
        assert self.shards is not None
        lease = change.new.decode()
        if change.type == 'DELETED':
            self.shards.forget(lease)
            return
        winner = self.shards.hold(lease, self._now)
        if winner is not None:
            self.touch()
            self.note(f"{winner} holds {lease['metadata']['name']}")
            for life in self.lives:
                if life is not None and life.name == winner and self.plan.lag:
                    self.guarantees.take_over(life)

    # The course of things.

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, seeded.SeededLoop)
        self._loop = loop
        loop.set_exception_handler(self.handle_exception)
        self.sandbox = sandbox = Sandbox()
        sandbox.faults = _Faults(self)
        async with sandbox:
            numbers = itertools.count(1)
            sandbox._cluster.new_uid = lambda: (
                f'{zlib.crc32(b"%d" % next(numbers)):08x}' if self.plan.is_sharded else
                f'u{next(numbers)}')
            await sandbox.load(_make_crd(KIND, 'KopfExample', separate=self.plan.separate))
            if self.plan.replicas > 1:
                await sandbox.load(*PEERING)
            if 'others' in self.plan.features:
                await sandbox.load(_make_crd(OTHERS, 'KopfOther', separate=False))
                for name in ('x', 'y'):
                    await sandbox.create({
                        'apiVersion': 'kopf.dev/v1', 'kind': 'KopfOther',
                        'metadata': {'name': name}})
                    self.guarantees.others.add(name)
            self._origin = sandbox._cluster.store.revision
            sandbox._cluster.store.listeners.append(self.hear)
            self.credentials = read_sandbox(sandbox)
            loop.disorder, loop.latency = self.plan.disorder, self.plan.latency
            if self.plan.lag:
                sandbox.faults.add(Fault(
                    action='slow', verb='watch', resource=f'{KIND}*', seconds=self.plan.lag,
                    chance=0.5, seed=self.plan.seed))
            main = loop.create_task(self._act())
            failed = loop.create_task(self._failed.wait())
            await asyncio.wait([main, failed], return_when=asyncio.FIRST_COMPLETED)
            self.seconds = loop.time()
            self._is_over = True
            for task in (main, failed, *self._due):
                task.cancel()
            results = await asyncio.gather(main, failed, *self._due, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result
            for fault in sandbox.faults:
                self.faults[fault.action] += fault.hits
            sandbox.faults.clear()
            loop.disorder, loop.latency = 0.0, (0.0, 0.0)
            for life in [*self.lives, *self._past]:
                if life is not None:
                    if life.alive:
                        life.kill()
                    await life.bury()
                    life.task = None

    async def _act(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            steps = list(self.plan.steps)
            while steps and steps[0].at < 0:
                await self._do(steps.pop(0))
            for who in range(self.plan.replicas):
                self._start(who)
            began = loop.time()
            for step in steps:
                await asyncio.sleep(max(0.0, began + step.at - loop.time()))
                await self._do(step)
            await self._heal()
            await self._rest()
            if self.plan.is_paused:
                self.pauses.check_rest(self._now)
                await self._unpause()
                await self._rest()
            if 'admission' in self.plan.features:
                await self._try_admission()
                await self._rest()
            self._check_rest()
            for who, life in enumerate(self.lives):
                if life is not None:
                    self.note("is told to stop", who=life)
                    await life.stop()
                    self._check_left(life)
            self._check_end()
        except Violation as e:
            self.fail(e)

    def _start(self, who: int) -> None:
        life = self.lives[who] = Life(
            self, who, next(self._numbers[who]), asyncio.get_running_loop())
        store, (versions, seconds) = (
            self.sandbox._cluster.store, self._staleness.pop(who, (0, 0.0)))
        revision = max(store.revision - versions, store.compacted, self._origin)
        if revision < store.revision:
            life.lag, life.has_caught_up = Lag(revision), False
            life.loop.call_later(seconds, self._catch_up, life)
        served = None if life.lag is None else [
            entry.decode() for entry in store.select_at(revision, RESOURCE)]
        self.guarantees.start(life, served)
        life.start()
        self.note("starts" if life.lag is None else f"starts, and is served v{revision}", who=life)
        assert life.task is not None
        life.task.add_done_callback(lambda task: self._ended(life, task))

    def is_congested(self, who: int) -> bool:
        return self._now < self._congested_until[who]

    def catch_up(self) -> None:
        """Let all be served the newest states."""
        for life in [*self.lives, *self._past]:
            if life is not None:
                self._catch_up(life)

    def _catch_up(self, life: Life) -> None:
        if life.lag is not None and not life.lag.is_over:
            if life.alive:
                self.note("is served the newest states", who=life)
            life.has_caught_up = life.working
            life.lag.end()

    def _ended(self, life: Life, task: asyncio.Task[None]) -> None:
        if life.stopping or self._is_over or not life.alive:
            return
        error = None if task.cancelled() else task.exception()
        self.fail(Violation('it survives', f"{life.name} has ended by itself: {error!r}"))

    async def _do(self, step: plans.Step) -> None:
        self.note(str(step))
        line = self.story[-1]
        try:
            await getattr(self, f'_do_{step.action}')(**step.args)
        except statuses.APIError as e:
            if self.story[-1] is line:
                self.story.pop()  # e.g. there is no such object
            else:
                self.note(f"{step.action} is refused: {e.code}")

    async def _ask(self, request: Any, *, n: int | None = None, changes: bool = True) -> None:
        """Wait for the outcome of a request, and check it; ``n`` is the number that it sets."""
        began = asyncio.get_running_loop().time()
        try:
            result = await request
        except statuses.APIError as e:
            refusal = e
            self._check(lambda: self.admissions.refuse(refusal, self.lives[0], began, n=n))
            raise
        if changes:
            self._check(lambda: self.admissions.accept(result, self.lives[0], began, n=n))

    async def _do_create(self, name: str, n: int, on: bool, k: int) -> None:
        await self._ask(self.sandbox.create({
            'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
            'metadata': {'name': name, 'labels': {'on': 'yes' if on else 'no'}},
            'spec': {'n': n, 'k': k}}), n=n)

    async def _do_edit(self, name: str, n: int, **spec: Any) -> None:
        await self._ask(self.sandbox.patch(KIND, name, {'spec': {'n': n, **spec}}), n=n)

    async def _do_dry(self, name: str, n: int) -> None:
        """Somebody looks at what a change would be."""
        self.admissions.try_out(n)
        request = self.sandbox._request('patch', self.sandbox._find(KIND), name, None)
        request.content_type, request.query = direct.PATCHES['merge'], {'dryRun': ['All']}
        request.body = encoding.encode({'spec': {'n': n}})
        await self._ask(self.sandbox._answer(request), n=n)

    async def _do_touch(self, name: str, n: int) -> None:
        await self.sandbox.patch(
            KIND, name, {'status': {'touched': n}},
            subresource='status' if self.plan.separate else '')

    async def _do_label(self, name: str, on: bool) -> None:
        await self._ask(self.sandbox.patch(
            KIND, name, {'metadata': {'labels': {'on': 'yes' if on else 'no'}}}))

    async def _do_pause(self, name: str, seconds: float | None, allows: bool) -> None:
        until = None if seconds is None else self._now + seconds
        await self._annotate(name, pauses.make_text(until=until, allows=allows))

    async def _do_unpause(self, name: str) -> None:
        await self._annotate(name, None)

    async def _annotate(self, name: str, text: str | None) -> None:
        await self._ask(self.sandbox.patch(
            KIND, name, {'metadata': {'annotations': {pauses.ANNOTATION: text}}}))

    async def _unpause(self) -> None:
        """End the pauses that do not end by themselves."""
        for raw in list(self.guarantees.objects.values()):
            if pauses.is_paused(raw, self._now):
                await self._do_unpause(raw['metadata']['name'])

    async def _do_delete(self, name: str, n: int) -> None:
        await self._ask(self.sandbox.delete(KIND, name), changes=False)

    async def _do_recreate(self, name: str, **fields: Any) -> None:
        with contextlib.suppress(statuses.APIError):
            await self._do_delete(name, 0)
        await self._do_create(name, **fields)

    async def _do_strip(self, name: str, n: int) -> None:
        """Somebody does not want to wait for the operator."""
        await self._change_finalizers(name, lambda known: [])
        await self._do_delete(name, n)
        with contextlib.suppress(statuses.APIError):
            await self._change_finalizers(name, lambda known: [])

    async def _do_hold(self, name: str, seconds: float) -> None:
        """Another operator holds the object by its own finalizer for a while."""
        await self._change_finalizers(name, lambda known: [*known, 'example.com/other'])

        async def release() -> None:
            await asyncio.sleep(seconds)
            while True:
                try:
                    await self._change_finalizers(
                        name, lambda known: [key for key in known if key != 'example.com/other'])
                    break
                except statuses.APIError as e:
                    if e.code == 404:
                        break
                await asyncio.sleep(1)

        self._due.append(asyncio.create_task(release()))

    async def _change_finalizers(self, name: str, change: Any) -> None:
        known = (await self.sandbox.get(KIND, name))['metadata'].get('finalizers') or []
        await self._ask(self.sandbox.patch(
            KIND, name, {'metadata': {'finalizers': change(known) or None}}))

    async def _do_meddle(self, name: str, n: int) -> None:
        """Somebody edits or deletes the owned resources."""
        if n % 2:
            await self.sandbox.delete('configmaps', f'{name}-0', 'default')
        else:
            await self.sandbox.patch('configmaps', f'{name}-0', {'data': {'k': 'x'}}, 'default')

    async def _do_unlease(self, shard: int) -> None:
        """Somebody deletes the Lease of a shard."""
        await self.sandbox.delete('leases', f'{elections.LEASE}-shard-{shard}', 'default')

    async def _do_fault(self, **args: Any) -> None:
        self.sandbox.faults.add(Fault(**args, seed=0))
        self._disturb_exits(self.lives)

    async def _do_gap(self) -> None:
        self.sandbox._watches.end()

    async def _do_blind(self, seconds: float) -> None:
        """No watch works for a while; then, the history is gone, and only a list helps."""
        fault = self.sandbox.faults.add(Fault(
            action='refuse', verb='watch', resource=f'{KIND}*', status=503))
        self.sandbox._watches.end()

        async def end() -> None:
            await asyncio.sleep(seconds)
            self.catch_up()
            self.sandbox._cluster.store.compact()
            self.sandbox.faults.remove(fault)

        self._due.append(asyncio.create_task(end()))

    async def _do_stale(self, who: int, versions: int, seconds: float) -> None:
        """The next start of the operator is served by an API server that is behind."""
        self._staleness[who] = versions, seconds

    async def _do_congest(self, who: int, seconds: float) -> None:
        """An operator has no spare capacity for a while."""
        self._congested_until[who] = self._now + seconds

    async def _do_kill(self, who: int, lossy: bool, down: float | None) -> None:
        life = self.lives[who]
        if life is None or not life.working:
            return
        life.killed = True
        life.kill(lossy=lossy)
        self._bring_back(life, down)

    async def _do_snipe(self, who: int, writes: int, down: float) -> None:
        """The operator is killed as soon as so many more of its writes are done."""
        life = self.lives[who]
        if life is not None and life.writes_left is None:
            life.writes_left, life.down = writes, down

    def _kill(self, life: Life) -> None:
        if life.working and not self._is_over:
            self.note("is killed after its write", who=life)
            life.killed = True
            life.kill()
            self._bring_back(life, life.down)

    async def _do_exhaust(self, who: int, count: int, seconds: float, down: float) -> None:
        """So many writes are refused, so that objects are throttled; then, the operator stops."""
        fault = self.sandbox.faults.add(Fault(
            action='refuse', verb='patch', resource=f'{KIND}*', status=500, count=count))
        self._disturb_exits(self.lives)

        async def stop() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plans.DURATION):
                    while fault.hits < count:
                        await asyncio.sleep(0.1)
                    await asyncio.sleep(seconds)
                    await self._do_stop(who, down)

        self._due.append(asyncio.create_task(stop()))

    async def _do_gone(self) -> None:
        """The history of the objects is gone: for HTTP, not by an event in the stream."""
        self.sandbox.faults.add(_Gone(
            action='refuse', status=410, verb='watch', resource=f'{KIND}*'))
        self.sandbox._watches.end()

    async def _do_flip(self, name: str, seconds: float) -> None:
        """The daemons and timers of an object are not needed for a while."""
        await self._do_label(name, on=False)

        async def restore() -> None:
            await asyncio.sleep(seconds)
            with contextlib.suppress(statuses.APIError):
                await self._do_label(name, on=True)

        self._due.append(asyncio.create_task(restore()))

    async def _do_measure(self, numbers: list[int]) -> None:
        """Let all be at rest with new objects, always in the same state; count what there is."""
        await self._heal()
        for name in plans.NAMES:
            with contextlib.suppress(statuses.APIError):
                await self._do_delete(name, 0)
        await self._rest()
        for name, number in zip(plans.NAMES, numbers, strict=True):
            await self._do_create(name, number, on=True, k=1)
        await self._rest()
        self._check_rest()
        self.guarantees.forget_gone()
        self._due = [task for task in self._due if not task.done()]
        self.story.clear()
        while self.guarantees.is_ticking:
            await asyncio.sleep(0.1)
        self.census.append(count_all(asyncio.get_running_loop()))
        check_flat(self.census)

    async def _do_stop(self, who: int, down: float) -> None:
        life = self.lives[who]
        if life is None or not life.working:
            return

        async def stop() -> None:
            try:
                await life.stop()
                self._check(lambda: self._check_left(life))
            except Violation as e:
                if not self._is_disturbed(life):
                    self.fail(e)
                life.killed = True
                life.kill()
            self._bring_back(life, down)

        if self._is_disturbed(life):
            life.killed = True  # what is done can be lost if the API cannot be reached
        life.stopping = True
        self._due.append(asyncio.create_task(stop()))

    def _disturb_exits(self, lives: Iterable[Life | None]) -> None:
        """Note that those who are leaving now can lose what is done."""
        for life in lives:
            if life is not None and life.stopping:
                life.killed = True

    def _is_disturbed(self, life: Life) -> bool:
        """Whether writes can fail now."""
        is_behind = life.lag is not None and not life.lag.is_over
        return is_behind or life.cut_until > 0 or self.admissions.can_refuse(life) or any(
            fault.verb != 'watch' and (fault.count is None or fault.hits < fault.count)
            for fault in self.sandbox.faults)

    def _bring_back(self, life: Life, down: float | None) -> None:
        """Note that it is gone, and start it again after so many seconds; for None, never."""
        self.note("is gone", who=life)
        life.gone_at = asyncio.get_running_loop().time()
        self._past.append(life)
        self.lives[life.who] = None

        async def start() -> None:
            if down is not None:
                await asyncio.sleep(down)
                self._start(life.who)

        self._due.append(asyncio.create_task(start()))

    async def _do_cut(self, who: int, seconds: float) -> None:
        life = self.lives[who]
        if life is not None and life.alive:
            self._disturb_exits([life])
            life.cut_until = asyncio.get_running_loop().time() + seconds

    async def _heal(self) -> None:
        """End all faults, and wait until the operators are back."""
        gone = [fault for fault in self.sandbox.faults if isinstance(fault, _Gone)]
        for fault in self.sandbox.faults:
            self.faults[fault.action] += fault.hits
        self.sandbox.faults.clear()
        self._staleness.clear()
        self._congested_until = [0.0] * self.plan.replicas
        self.catch_up()
        for fault in gone:  # only a list ends it
            self.sandbox.faults.add(fault)
        self.note("all faults have ended")
        while any(not task.done() for task in self._due):
            await asyncio.sleep(1)

    async def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        self.touch()
        deadline = loop.time() + PATIENCE
        silence = SILENCE if self.plan.replicas == 1 else EXPIRY
        while loop.time() < self._latest + silence:
            if loop.time() > deadline:
                raise Violation('rest', f"there is no end to it in {PATIENCE:g}s")
            await asyncio.sleep(self._latest + silence - loop.time() + 0.1)

    def _find_worker(self, uid: str) -> Life | None:
        """Find the process that has to work for an object."""
        holder = None if self.shards is None else self.shards.find_holder(uid)
        return next((life for life in self._find_working()
                     if self.shards is None or life.name == holder), None)

    def _find_working(self) -> list[Life]:
        lives = [life for life in self.lives if life is not None]
        if self.shards is not None:
            return lives
        if self.is_electing:
            return [life for life in lives if life.name == self.elections.leader]
        return lives[:1]

    def _check_rest(self) -> None:
        self.guarantees.check_rest(self._find_working(), {
            life: life.indexers.get('known', {}) for life in self.lives if life is not None})

    async def _try_admission(self) -> None:
        """Try whether the webhooks work, now that nothing disturbs them."""
        life, now = self.lives[0], asyncio.get_running_loop().time()
        if not self.admissions.is_served(life, now):
            raise Violation('webhooks work', "they are not all configured")
        for n in (1002, 1001):
            with contextlib.suppress(statuses.APIError):
                await self._do_create(f'n{n}', n, on=False, k=0)

    def _check_left(self, life: Life) -> None:
        if not life.killed:
            self.admissions.check_left(life)

    def _check_end(self) -> None:
        left = [call for calls in self.guarantees.running.values() for call in calls
                if not call.process.killed]
        if left:
            raise Violation('clean shutdown', f"{left[0]} has not ended")


def count_all(loop: Any) -> collections.Counter[str]:
    """Count the tasks and timers of the loop, and the objects of the framework by their types."""
    gc.collect()
    names = (f'{type(each).__module__}.{type(each).__qualname__}' for each in gc.get_objects())
    found = collections.Counter(
        name for name in names if name.startswith(('kopf._core.', 'kopf._cogs.')))
    found['tasks'] = len(asyncio.all_tasks(loop))
    found['timers'] = sum(1 for handle in loop._scheduled if not handle.cancelled())
    return found


def check_flat(census: list[collections.Counter[str]]) -> None:
    """Compare the latest numbers with those after the first hours, when all was used once."""
    if len(census) <= WARM_UP:
        return
    before, now = census[WARM_UP - 1], census[-1]
    for key, number in now.items():
        if number > before[key] + max(TOLERANCE, before[key] * TOLERANCE / 100):
            raise Violation('flat', f"there are {number} {key}, not {before[key]} any more")


def read_sandbox(sandbox: Sandbox) -> credentials.ConnectionInfo:
    return credentials.ConnectionInfo(server=sandbox.url, default_namespace='default')


def reduce(raw: Any) -> Any:
    """The essence of a body, or of an essence as handlers get it."""
    meta = raw.get('metadata') or {}
    return {'spec': dict(raw.get('spec') or {}), 'labels': dict(meta.get('labels') or {})}


def _describe(old: Any, new: Any) -> str:
    """What has changed, in short."""
    meta = new['metadata']
    parts = [f"n={new['spec'].get('n')}"]
    if 'own' in new['spec']:
        parts.append(f"own={new['spec']['own']}")
    if FINALIZER in (meta.get('finalizers') or ()):
        parts.append('finalizer')
    if meta.get('deletionTimestamp'):
        parts.append('deleting')
    parts += sorted(key.split('/')[1] for key in meta.get('annotations') or () if '/' in key)
    return ' '.join(parts)


def _make_crd(plural: str, kind: str, *, separate: bool) -> dict[str, Any]:
    return {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.kopf.dev'},
        'spec': {
            'group': 'kopf.dev', 'scope': 'Namespaced',
            'names': {'plural': plural, 'singular': kind.lower(), 'kind': kind},
            'versions': [{
                'name': 'v1', 'served': True, 'storage': True,
                'subresources': {'status': {}} if separate else {},
                'schema': {'openAPIV3Schema': {
                    'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
            }],
        },
    }


PEERING: list[Any] = [
    {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
        'metadata': {'name': 'clusterkopfpeerings.kopf.dev'},
        'spec': {
            'group': 'kopf.dev', 'scope': 'Cluster',
            'names': {'plural': 'clusterkopfpeerings', 'singular': 'clusterkopfpeering',
                      'kind': 'ClusterKopfPeering'},
            'versions': [{
                'name': 'v1', 'served': True, 'storage': True,
                'schema': {'openAPIV3Schema': {
                    'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
            }],
        },
    },
    {'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}},
]
