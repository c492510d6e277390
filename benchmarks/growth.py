"""
How the costs of one process grow with the objects, the kinds, the namespaces, and the changes.

First, the operator starts where many objects are handled already: how long that takes, how much
memory each object takes, and how much CPU time at rest. Then, objects change at steady rates: how
long it takes until the handlers are called, and for how long the event loop stalls. It is one
command, ``python -m benchmarks.growth``; see ``--help``.
"""

import argparse
import asyncio
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any, Self

from benchmarks import changing, endurance, subjects
from benchmarks.drivers import HANDLED, flood, make_handled, make_spec
from benchmarks.processes import Process
from benchmarks.sampling import get_quantile
from tests.e2e.kubes import NAMESPACES, Kind, Kube

SIZE = 2000
"""The size of an object, in bytes."""

Figures = dict[str, float]

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
HANDLERS = ('changes', 'timers', 'index', 'daemons')
FINALIZED = ('timers', 'daemons')
"""The handlers for which objects have the finalizer."""

RATE = 'handled per second'

REST = 10.0
"""For how long (seconds) the operator is observed at rest."""

PATIENCE = 600.0
"""How long (seconds) the operator can take for all objects."""

WARM_UP = 30.0
"""
How long (seconds) objects are changed before the figures count. Before, all of them are created at
once, and the operator and the API server can be behind for a while.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """Which objects there are, and which handlers they have."""
    handlers: str
    objects: int
    kinds: int = 1
    namespaces: int = 1

    def __str__(self) -> str:
        parts = [f'{self.objects:,} objects', self.handlers]
        if self.kinds > 1:
            parts.append(f'{self.kinds} kinds')
        if self.namespaces > 1:
            parts.append(f'{self.namespaces} namespaces')
        return ', '.join(parts)


def parse_args() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(',') if each]

    parser = argparse.ArgumentParser(prog='python -m benchmarks.growth', description=__doc__)
    parser.add_argument('--api', default='sandbox', metavar='sandbox|KUBECONFIG',
                        help="the API server; a sandbox is started for the run")
    parser.add_argument('--objects', type=numbers, default=[1000, 10_000, 50_000],
                        help="how many objects there are, by turns")
    parser.add_argument('--kinds', type=numbers, default=[10, 100],
                        help="of how many kinds are 1,000 objects, by turns")
    parser.add_argument('--namespaces', type=numbers, default=[50],
                        help="in how many namespaces are 1,000 objects, by turns")
    parser.add_argument('--handlers', default=','.join(HANDLERS),
                        help=f"some of {', '.join(HANDLERS)}")
    parser.add_argument('--daemons', type=int, default=2000, help="how many there are at most")
    parser.add_argument('--rates', type=numbers, default=[100, 300, 500],
                        help="how many changes per second there are, by turns")
    parser.add_argument('--changed', type=int, default=10_000,
                        help="how many objects there are then")
    parser.add_argument('--seconds', type=float, default=30, help="how long each rate lasts")
    parser.add_argument('--json', type=pathlib.Path, help="where to write all the figures")
    parser.add_argument('--svg', type=pathlib.Path,
                        help="where to write the curves of the starts; it needs matplotlib")
    return parser.parse_args()


def make_cases(args: argparse.Namespace) -> list[Case]:
    cases = [Case(handlers, min(objects, args.daemons if handlers == 'daemons' else objects))
             for handlers in args.handlers.split(',') for objects in [0, *args.objects]]
    cases += [Case('changes', 1000, kinds=kinds) for kinds in args.kinds]
    cases += [Case('changes', 1000, namespaces=count) for count in args.namespaces]
    return list(dict.fromkeys(cases))


class World:
    """The objects of one case, in an API server."""

    def __init__(self, kube: Kube, kubeconfig: str, case: Case) -> None:
        group = Kind.make_unique().group
        self.kinds = [
            dataclasses.replace(Kind.make_unique(), group=group) for _ in range(case.kinds)]
        self._prefix = group.partition('.')[0]
        self._namespaces = ['default'] if case.namespaces == 1 else [
            f'{self._prefix}-{i}' for i in range(case.namespaces)]
        self._places = [(kind, name) for kind in self.kinds for name in self._namespaces]
        self._kube = kube
        self._kubeconfig = kubeconfig
        self._case = case

    async def __aenter__(self) -> Self:
        for kind in self.kinds:
            await self._kube.create_kind(kind)
        for name in self._namespaces:
            if name != 'default':
                await self._kube.create(NAMESPACES, name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for kind in self.kinds:
            await self._kube.clear_kind(kind)
            await self._kube.delete_kind(kind)
        for name in self._namespaces:
            if name != 'default':
                await self._kube.delete(NAMESPACES, name)

    async def fill(self) -> int:
        """
        Create the objects of the case, which are handled, and one in each place that is not.

        Return how many these are. Their names are the last ones of a list.
        """
        spec = make_spec(SIZE)
        annotations = {HANDLED: make_handled(spec)}
        finalizers = [FINALIZER] if self._case.handlers in FINALIZED else None
        await flood((
            functools.partial(
                self._kube.create, kind, f'object{number}', namespace=namespace, spec=spec,
                annotations=annotations, finalizers=finalizers)
            for number, (kind, namespace) in zip(
                range(self._case.objects), itertools.cycle(self._places), strict=False)),
            concurrency=16)
        await flood(
            functools.partial(self._kube.create, kind, 'unhandled', namespace=namespace, spec=spec)
            for kind, namespace in self._places)
        return len(self._places)

    def start(self, handlers: str, journal: pathlib.Path) -> Process:
        scope = [f'--namespace={name}' for name in self._namespaces]
        return Process(
            [sys.executable, '-m', 'kopf', 'run', '--standalone', '--quiet',
             *(scope if len(scope) > 1 else ['--all-namespaces']),
             str(subjects.OPERATORS / 'growth.py')],
            env={'KUBECONFIG': self._kubeconfig, 'BENCH_GROUP': self.kinds[0].group,
                 'BENCH_PLURAL': self.kinds[0].plural, 'BENCH_HANDLERS': handlers,
                 'BENCH_PLURALS': ','.join(kind.plural for kind in self.kinds),
                 'BENCH_JOURNAL': str(journal)})


async def measure_start(world: World, case: Case, journal: pathlib.Path) -> Figures:
    """Start the operator where all objects but some are handled; the last call ends the start."""
    count = await world.fill()
    with world.start(case.handlers, journal) as process:
        await process.wait_calls(count, timeout=PATIENCE)
        await process.wait_quiet(2.0, timeout=PATIENCE)
        cpu, peak = process.get_cpu(), process.get_peak_memory()
        idle = await process.measure_idle(REST)
        memory = process.get_memory()
        calls = process.finish()['calls']
    return {'start, s': max(calls.values()) - process.started, 'CPU of the start, s': cpu,
            'memory, MB': memory, 'peak, MB': peak, 'CPU at rest, %': idle * 100}


async def measure_changes(
        world: World, kubeconfig: str, folder: pathlib.Path, *, objects: int, rate: float,
        seconds: float,
) -> Figures:
    """Change objects at a steady rate, and see how long it takes until the handler is called."""
    journal, order, result = folder / 'journal', folder / 'order', folder / 'result'
    kind = world.kinds[0]
    order.write_text(json.dumps(dataclasses.asdict(changing.Order(
        kubeconfig=kubeconfig, group=kind.group, plural=kind.plural, kind=kind.kind,
        objects=objects, rate=rate, result=str(result), size=SIZE))), encoding='utf-8')
    with world.start('churn', journal) as process:
        changer = await asyncio.create_subprocess_exec(
            sys.executable, '-m', 'benchmarks.changing', str(order))
        try:
            await _wait_lines(journal, objects)
            await asyncio.sleep(WARM_UP)
            with journal.open(encoding='utf-8') as file:
                file.seek(0, os.SEEK_END)
                cpu, began = process.get_cpu(), time.monotonic()
                await asyncio.sleep(seconds)
                cpu, took = process.get_cpu() - cpu, time.monotonic() - began
                lines = [line.split() for line in file.read().splitlines()]
        finally:
            changer.terminate()
            await changer.wait()
        memory = process.get_memory()
        process.finish()
    reactions = sorted(float(line[1]) * 1000 for line in lines if line[0] == 'C')
    stalls = [float(line[1]) * 1000 for line in lines if line[0] == 'S']
    return {
        RATE: len(reactions) / took,
        'reaction p50, ms': get_quantile(reactions, 0.5) or 0.0,
        'reaction p99, ms': get_quantile(reactions, 0.99) or 0.0,
        'longest stall, ms': max(stalls, default=0.0),
        'CPU, %': cpu / took * 100, 'memory, MB': memory}


async def _wait_lines(journal: pathlib.Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while _count_lines(journal) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Less than {count} objects are handled in {PATIENCE:g} s.")
        await asyncio.sleep(1)


def _count_lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding='utf-8').splitlines()) if path.exists() else 0


async def run(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Figures]:
    results: dict[str, Figures] = {}

    def note(title: str, figures: Figures) -> None:
        results[title] = figures
        shown = ', '.join(f'{name} {value:.3g}' for name, value in figures.items())
        print(f'{title}: {shown}', file=sys.stderr, flush=True)

    async with endurance.ensure_api(args.api, folder) as kubeconfig, Kube(kubeconfig) as kube:
        empty: dict[str, float] = {}
        for case in make_cases(args):
            async with World(kube, kubeconfig, case) as world:
                figures = await measure_start(world, case, folder / 'journal')
            if case.objects:
                gain = figures['memory, MB'] - empty[case.handlers]
                figures['memory per object, KB'] = gain * 1024 / case.objects
            else:
                empty[case.handlers] = figures['memory, MB']
            note(str(case), figures)
        for rate in args.rates:
            case = Case('churn', args.changed)
            async with World(kube, kubeconfig, case) as world:
                (folder / 'journal').unlink(missing_ok=True)
                note(f'{case}, {rate} changes per second', await measure_changes(
                    world, kubeconfig, folder, objects=args.changed, rate=rate,
                    seconds=args.seconds))
    return results


def make_table(results: dict[str, Figures]) -> str:
    """Make a table for the starts, and a table for the changes."""
    lines: list[str] = []
    for is_churn in (False, True):
        chosen = {title: each for title, each in results.items() if (RATE in each) == is_churn}
        header = list(dict.fromkeys(name for figures in chosen.values() for name in figures))
        lines += [f"| | {' | '.join(header)} |", '| --- ' * (len(header) + 1) + '|']
        for title, figures in chosen.items():
            cells = (f'{figures[name]:.3g}' if name in figures else '' for name in header)
            lines.append(f"| {title} | {' | '.join(cells)} |")
        lines.append('')
    return '\n'.join(lines[:-1])


def get_series(args: argparse.Namespace, results: dict[str, Figures]) -> dict[str, Any]:
    """Get the figures by the numbers of objects, for each kind of handlers."""
    series: dict[str, list[tuple[int, Figures]]] = {}
    for case in make_cases(args):
        if case.kinds == case.namespaces == 1:
            series.setdefault(case.handlers, []).append((case.objects, results[str(case)]))
    return series


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix='kopf-growth-') as name:
        results = asyncio.run(run(args, pathlib.Path(name)))
    print(make_table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.svg:
        from benchmarks import charts  # its library is not needed otherwise
        args.svg.write_text(charts.draw_growth(get_series(args, results)))


if __name__ == '__main__':
    main()
