"""
What is done and measured: one function for each kind of work, and the rows of the table made of
them.

Each function runs one subject once on a kind of its own, and returns figures by their names. Costs
of processors are those of the whole process between two moments, without what it takes when idle.
"""

import asyncio
import dataclasses
import functools
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks import admission, subjects
from benchmarks.drivers import (
    Driver,
    flood,
    is_finalized,
    is_gone,
    is_handled,
    make_spec,
    pace,
)
from benchmarks.processes import Process
from benchmarks.subjects import OPERATORS, Subject
from tests.e2e.kubes import Kind, Kube

Figures = dict[str, float]

CPU = 'CPU, ms'
PATCHES = 'PATCHes'
REACTION = 'reaction p50, ms'
SLOW_REACTION = 'reaction p99, ms'
RATE = 'objects per second'
STARTUP = 'start-up, s'
MEMORY = 'memory, MB'

CLIENTS = 16
"""How many clients create objects at once."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of everything there is."""

    objects: int = 400
    warmup: int = 40
    reactions: int = 150
    events: int = 3000
    resumed: int = 4000
    imports: int = 10
    settle: float = 1.0
    rest: float = 6.0


QUICK = Scale(
    objects=60, warmup=10, reactions=30, events=200, resumed=200, imports=2, settle=0.3, rest=0.5)


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where a subject is measured."""

    subject: Subject
    kube: Kube
    kubeconfig: str
    scale: Scale

    def start(self, operator: str, kind: Kind, **env: str) -> Process:
        return Process(self.subject.get_command(operator), env={
            'KUBECONFIG': self.kubeconfig,
            'BENCH_GROUP': kind.group,
            'BENCH_PLURAL': kind.plural,
            'BENCH_KIND': kind.kind,
            'BENCH_BARE': 'patch',
            **env,
        })

    async def warm_up(self, driver: Driver, process: Process) -> float:
        """Have some objects handled, come to rest, and measure how much it takes then."""
        names = [f'warm{i}' for i in range(self.scale.warmup)]
        await flood(functools.partial(driver.create, name, {'counter': 0}) for name in names)
        await driver.wait_for(names, is_handled)
        await process.wait_quiet(self.scale.settle / 2)
        return await process.measure_idle(self.scale.settle)


@dataclasses.dataclass
class Meter:
    """Counts the costs from its creation on."""

    process: Process
    driver: Driver
    idle: float
    cpu: float = 0
    patches: int = 0
    time: float = 0

    @classmethod
    async def make(cls, process: Process, driver: Driver, idle: float) -> 'Meter':
        patches = await driver.count_patches()
        return cls(process, driver, idle, process.get_cpu(), patches, time.monotonic())

    async def read(self, count: int) -> Figures:
        cpu = self.process.get_cpu() - self.cpu - self.idle * (time.monotonic() - self.time)
        patches = await self.driver.count_patches() - self.patches
        return {CPU: cpu / count * 1000, PATCHES: patches / count}


async def measure_creation(
        bench: Bench,
        *,
        operator: str,
        size: int = 1000,
        status: bool = False,
        loggers: bool = False,
) -> Figures:
    """Objects are created: many at once for the costs, then one after another for the reaction."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind, status=status)
    spec = make_spec(size)
    env = {'BENCH_STATUS': 'yes' if status else 'no', 'BENCH_LOGGERS': 'yes' if loggers else 'no'}
    async with Driver(bench.kube, kind) as driver:
        with bench.start(operator, kind, **env) as process:
            idle = await bench.warm_up(driver, process)

            meter = await Meter.make(process, driver, idle)
            names = [f'object{i}' for i in range(bench.scale.objects)]
            started = time.monotonic()
            await flood(
                (functools.partial(driver.create, name, spec) for name in names),
                concurrency=CLIENTS)
            await driver.wait_for(names, is_handled)
            rate = len(names) / (time.monotonic() - started)
            await process.wait_quiet(bench.scale.settle)
            figures = await meter.read(len(names))

            created: dict[str, float] = {}

            async def create(name: str) -> None:
                created[name] = time.time()
                await driver.create(name, spec)

            names = [f'paced{i}' for i in range(bench.scale.reactions)]
            await pace((functools.partial(create, name) for name in names), interval=0.03)
            await driver.wait_for(names, is_handled)
            calls = process.finish()['calls']
    reactions = [(calls[name] - created[name]) * 1000 for name in names]
    return {
        **figures, RATE: rate, REACTION: statistics.median(reactions),
        SLOW_REACTION: statistics.quantiles(reactions, n=100)[-1]}


async def measure_updates(bench: Bench) -> Figures:
    """Objects that were handled before are changed, each once."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    async with Driver(bench.kube, kind) as driver:
        with bench.start('update', kind) as process:
            names = [f'object{i}' for i in range(bench.scale.objects)]
            await flood(functools.partial(driver.create, name, make_spec(1000)) for name in names)
            idle = await bench.warm_up(driver, process)
            await driver.wait_for(names, is_handled)

            meter = await Meter.make(process, driver, idle)
            patch = {'spec': {'counter': 1}}
            await flood(functools.partial(driver.change, name, patch) for name in names)
            await driver.wait_for(
                names, lambda obj: obj is not None and is_handled(obj) and obj['spec']['counter'])
            await process.wait_quiet(bench.scale.settle)
            figures = await meter.read(len(names))
            process.finish()
    return figures


async def measure_deletion(bench: Bench) -> Figures:
    """Objects are created, and deleted as soon as they are all held by finalizers."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    async with Driver(bench.kube, kind) as driver:
        with bench.start('delete', kind) as process:
            figures: Figures = {}
            for prefix, count in [('warm', bench.scale.warmup), ('object', bench.scale.objects)]:
                names = [f'{prefix}{i}' for i in range(count)]
                await process.wait_quiet(bench.scale.settle, timeout=10)
                idle = await process.measure_idle(bench.scale.settle)
                meter = await Meter.make(process, driver, idle)
                spec = make_spec(1000)
                await flood(functools.partial(driver.create, name, spec) for name in names)
                await driver.wait_for(names, is_finalized)
                await flood(functools.partial(bench.kube.delete, kind, name) for name in names)
                await driver.wait_for(names, is_gone)
                await process.wait_quiet(bench.scale.settle)
                figures = await meter.read(len(names))
            process.finish()
    return figures


async def measure_events(bench: Bench) -> Figures:
    """A hundred objects are changed again and again, and nothing is to be done about it."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    async with Driver(bench.kube, kind) as driver:
        with bench.start('event', kind, BENCH_BARE='see') as process:
            names = [f'object{i}' for i in range(100)]
            await flood(functools.partial(driver.create, name, make_spec(1000)) for name in names)
            await process.wait_quiet(1.0)
            idle = await process.measure_idle(bench.scale.settle)

            meter = await Meter.make(process, driver, idle)
            await flood(
                functools.partial(driver.change, names[i % 100], {'spec': {'counter': i}})
                for i in range(bench.scale.events))
            await process.wait_quiet(bench.scale.settle)
            figures = await meter.read(bench.scale.events)
            seen = process.finish()['count']
    return {CPU: figures[CPU], 'seen': (seen - len(names)) / bench.scale.events}


async def measure_resuming(bench: Bench, *, kinds: dict[int, Kind]) -> Figures:
    """
    The operator starts where there are many objects already handled; nothing is to be written.
    """
    count = bench.scale.resumed
    base = 0.0
    figures: Figures = {}
    for objects in (0, count):
        if objects not in kinds:
            kind = kinds[objects] = Kind.make_unique()
            await bench.kube.create_kind(kind)
            async with Driver(bench.kube, kind) as driver:
                spec = make_spec(1000)
                await flood(
                    (functools.partial(driver.create, f'object{i}', spec, handled=True)
                     for i in range(objects)), concurrency=16)
        kind = kinds[objects]
        async with Driver(bench.kube, kind) as driver:
            patches = await driver.count_patches()
            with bench.start('resume', kind) as process:
                await process.wait_quiet(2 * bench.scale.settle)
                cpu = process.get_cpu()
                await process.wait_quiet(bench.scale.rest)
                memory = process.get_memory()
                calls = process.finish()
                if objects == 0:
                    base = cpu
                else:
                    if not bench.subject.is_bare and len(calls['calls']) != objects:
                        raise RuntimeError(f"Only {len(calls['calls'])} objects were resumed.")
                    figures = {
                        CPU: (cpu - base) / objects * 1000,
                        PATCHES: (await driver.count_patches() - patches) / objects,
                        STARTUP: max(calls['calls'].values(), default=process.started)
                        - process.started,
                        MEMORY: memory,
                    }
    return {key: val for key, val in figures.items() if val or key == PATCHES}


async def measure_small(bench: Bench) -> Figures:
    """A small operator starts where there is one object already handled."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    async with Driver(bench.kube, kind) as driver:
        await driver.create('object', make_spec(1000), handled=True)
        with bench.start('resume', kind) as process:
            await process.wait_calls(1)
            await process.wait_quiet(bench.scale.settle)
            cpu, memory = process.get_cpu(), process.get_memory()
            calls = process.finish()['calls']
    startup = calls['object'] - process.started
    return {STARTUP: startup, 'CPU of the start, s': cpu, MEMORY: memory}


async def measure_ticks(bench: Bench, *, count: int, seconds: float = 10) -> Figures:
    """Each object has a timer of a second."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    async with Driver(bench.kube, kind) as driver:
        spec = make_spec(1000)
        await flood(
            (functools.partial(driver.create, f'object{i}', spec) for i in range(count)),
            concurrency=16)
        with bench.start('timer', kind) as process:
            await process.wait_calls(count)
            await asyncio.sleep(8)
            before, cpu, started = await process.count_calls(), process.get_cpu(), time.monotonic()
            await asyncio.sleep(seconds)
            passed = time.monotonic() - started
            cpu, ticks = process.get_cpu() - cpu, await process.count_calls() - before
            memory = process.get_memory()
            process.finish()
    return {CPU: cpu / ticks * 1000, 'ticks per second': ticks / passed, MEMORY: memory}


async def measure_companions(bench: Bench, *, operator: str, count: int) -> Figures:
    """The operator starts where there are many objects, and does something for each."""
    kind = Kind.make_unique()
    await bench.kube.create_kind(kind)
    calls = 1 if operator == 'index' else count
    async with Driver(bench.kube, kind) as driver:
        spec = make_spec(1000)
        await flood(
            (functools.partial(driver.create, f'object{i}', spec) for i in range(count)),
            concurrency=16)
        with bench.start(operator, kind) as process:
            await process.wait_calls(calls)
            await process.wait_quiet(2 * bench.scale.settle)
            cpu = process.get_cpu()
            await process.wait_quiet(bench.scale.rest)
            memory = process.get_memory()
            seen = process.finish()['calls']
            startup = max(seen.values()) - process.started
    return {CPU: cpu / count * 1000, STARTUP: startup, MEMORY: memory}


async def measure_import(bench: Bench) -> Figures:
    """Only the import: of the framework, or of what the bare client needs."""
    module = 'aiohttp' if bench.subject.is_bare else 'kopf'
    code = (
        f'import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t); '
        'print([line.split()[1] for line in open("/proc/self/status") if "VmRSS" in line][0])')
    times, sizes = [], []
    for _ in range(bench.scale.imports):
        process = await asyncio.create_subprocess_exec(
            bench.subject.program, '-c', code, cwd=OPERATORS, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        seconds, size = output.decode().split()
        times.append(float(seconds))
        sizes.append(int(size) / 1024)
    return {'time, s': statistics.median(times), MEMORY: statistics.median(sizes)}


KOPFS = frozenset({'release', 'this', 'uvloop'}).union(subjects.INTERPRETERS)
PYTHONS = KOPFS | {'bare'}
FRAMEWORKS = KOPFS.union(subjects.PEERS)
ALL = FRAMEWORKS | {'bare'}
OBSERVED = ALL | {'metered', 'traced'}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: what is done, and by whom it can be."""

    title: str
    measure: Callable[[Bench], Awaitable[Figures]]
    subjects: frozenset[str] = ALL
    quick: bool = False
    patches: float | None = None
    """How many patches per object this Kopf needs at most, if that is to be held."""


def make_rows() -> dict[str, Row]:
    resumed: dict[int, Any] = {}
    creation = functools.partial
    return {
        'create': Row(
            "one create handler with a result",
            creation(measure_creation, operator='create'), OBSERVED, quick=True, patches=1),
        'create-20k': Row(
            "… of objects of 20 KB",
            creation(measure_creation, operator='create', size=20_000)),
        'create-200k': Row(
            "… of objects of 200 KB",
            creation(measure_creation, operator='create', size=200_000)),
        'create-status': Row(
            "… with a status subresource",
            creation(measure_creation, operator='create', status=True)),
        'create-sync': Row(
            "… by a synchronous handler",
            creation(measure_creation, operator='create_sync'), subjects=KOPFS),
        'create-logs': Row(
            "… with the log posted as events",
            creation(measure_creation, operator='create', loggers=True), subjects=KOPFS),
        'five': Row(
            "five create handlers",
            creation(measure_creation, operator='create_five'), subjects=FRAMEWORKS, quick=True,
            patches=1),
        'update': Row("one update handler", measure_updates, quick=True, patches=1),
        'delete': Row(
            "one delete handler, from creation to gone", measure_deletion, subjects=FRAMEWORKS,
            quick=True, patches=2),
        'event': Row("one raw event to one event handler", measure_events, quick=True),
        'resume': Row(
            "a start with 4,000 handled objects", creation(measure_resuming, kinds=resumed),
            quick=True, patches=0),
        'small': Row(
            "a small operator, from its start to the first call", measure_small,
            subjects=FRAMEWORKS),
        'ticks': Row(
            "a tick of a timer, 400 timers of a second",
            creation(measure_ticks, count=400), subjects=FRAMEWORKS),
        'ticks-4000': Row(
            "… 4,000 timers of a second",
            creation(measure_ticks, count=4000), subjects=FRAMEWORKS),
        'daemons': Row(
            "1,000 sleeping daemons, from the start",
            creation(measure_companions, operator='daemon', count=1000), subjects=KOPFS),
        'index': Row(
            "an index of 2,000 objects, from the start",
            creation(measure_companions, operator='index', count=2000), subjects=KOPFS),
        'index-10000': Row(  # the release's time grows with the square, to over ten minutes
            "… of 10,000 objects",
            creation(measure_companions, operator='index', count=10_000),
            subjects=frozenset({'this'})),
        'admission': Row(
            "a creation through a mutating and a validating webhook",
            admission.measure_admission, subjects=KOPFS),
        'import': Row("import", measure_import, subjects=PYTHONS, quick=True),
    }
