"""
Endurance: an operator of everything in use, an hour of steady changes, and a fault each minute.

The faults: broken connections, HTTP 429 and 500, latency; after a third of the time, the operator
is stopped by SIGTERM, and after two thirds, it is killed. It is one command,
``python -m benchmarks.endurance``; see ``--help``. It exits with an error if anything is lost. The
curves must be flat: their slopes are printed.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator

import aiohttp

from benchmarks import changing, faulting, sampling, subjects
from benchmarks.drivers import is_handled
from tests.e2e.kubes import CONFIGMAPS, Kind, Kube
from tests.e2e.ports import find_free_ports

PERIOD = 5.0
"""How often (seconds) the operator is looked at."""

FAULT_PERIOD = 60.0
FAULT_LENGTH = 5.0
RECOVERY = 15.0
"""How long (seconds) after a fault the reactions can still be late: by the backoff of requests."""

PATIENCE = 180.0
"""How long (seconds) the operator has to handle what is left at the end."""

LATENCY = 0.3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.endurance', description=__doc__)
    parser.add_argument('--api', default='sandbox', metavar='sandbox|KUBECONFIG',
                        help="the API server; a sandbox is started for the run")
    parser.add_argument('--minutes', type=float, default=60, help="how long it takes")
    parser.add_argument('--rate', type=float, default=500, help="changes per second")
    parser.add_argument('--objects', type=int, default=1000, help="how many objects there are")
    parser.add_argument('--json', type=pathlib.Path, help="where to write all samples")
    parser.add_argument('--html', type=pathlib.Path,
                        help="where to write a page with the curves; it needs matplotlib")
    parser.add_argument('--svg', type=pathlib.Path,
                        help="where to write the curves as one picture; it needs matplotlib")
    return parser.parse_args()


@contextlib.asynccontextmanager
async def ensure_api(api: str, folder: pathlib.Path) -> AsyncIterator[str]:
    """Give the kubeconfig of the API server; start a sandbox if there is none."""
    if api != 'sandbox':
        yield api
        return
    path = folder / 'sandbox'
    process = await asyncio.create_subprocess_exec(
        sys.executable, '-m', 'kopf', 'sandbox', '--quiet', '--tls', '--kubeconfig-out', str(path))
    try:
        while not path.exists():
            if process.returncode is not None:
                raise RuntimeError("The sandbox has not started.")
            await asyncio.sleep(0.1)
        yield str(path)
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


class Run:
    """One run: the operator and who changes its objects, the faults, and the samples."""

    def __init__(
            self, args: argparse.Namespace, kube: Kube, kubeconfig: str, folder: pathlib.Path,
            kind: Kind, proxy: faulting.Proxy,
    ) -> None:
        self.samples: list[sampling.Sample] = []
        self.problems: list[str] = []
        self.changes = 0
        self.reactions = 0
        self.faults: list[tuple[float, str]] = []
        """The faults, and when (seconds) they began."""
        self._args = args
        self._kube = kube
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._kind = kind
        self._proxy = proxy
        self._journal = sampling.Journal(folder / 'journal')
        self._log = (folder / 'log').open('ab')
        self._operator: asyncio.subprocess.Process | None = None
        self._lives = 0
        self._started = 0.0
        self._began = 0.0
        self._metrics = ''
        self._session: aiohttp.ClientSession | None = None

    async def go(self) -> None:
        self._proxy.write_kubeconfig(self._folder / 'proxy')
        changer, result = await self._start_changer()
        try:
            async with aiohttp.ClientSession() as self._session:
                await self._start()
                self._began = time.monotonic()
                sampler = asyncio.create_task(self._sample())
                await self._make_faults()
                changer.terminate()
                if await changer.wait():
                    raise RuntimeError("The process that makes the changes has failed.")
                expected = json.loads(result.read_text(encoding='utf-8'))
                self.changes = expected['changes']
                await self._verify(expected['specs'])
                sampler.cancel()
                await asyncio.gather(sampler, return_exceptions=True)
        finally:
            if changer.returncode is None:
                changer.kill()
            if self._operator is not None:
                await stop(self._operator)
            self._journal.close()
            self._log.close()

    async def _start_changer(self) -> tuple[asyncio.subprocess.Process, pathlib.Path]:
        order, result = self._folder / 'order', self._folder / 'result'
        order.write_text(json.dumps(dataclasses.asdict(changing.Order(
            kubeconfig=self._kubeconfig, group=self._kind.group, plural=self._kind.plural,
            kind=self._kind.kind, objects=self._args.objects, rate=self._args.rate,
            result=str(result)))), encoding='utf-8')
        return await asyncio.create_subprocess_exec(
            sys.executable, '-m', 'benchmarks.changing', str(order)), result

    async def _start(self) -> None:
        """Start the operator, for the first time or again."""
        address = f'http://127.0.0.1:{find_free_ports(1)}/metrics'
        self._operator = await asyncio.create_subprocess_exec(
            sys.executable, '-m', 'kopf', 'run', '--standalone', '--all-namespaces', '--quiet',
            f'--metrics={address}', str(subjects.OPERATORS / 'endurance.py'),
            env={**os.environ, 'KUBECONFIG': str(self._folder / 'proxy'),
                 'BENCH_GROUP': self._kind.group, 'BENCH_PLURAL': self._kind.plural,
                 'BENCH_JOURNAL': str(self._folder / 'journal')},
            stdout=self._log, stderr=self._log)
        self._metrics = address
        self._lives += 1
        self._started = time.monotonic()

    async def _restart(self, sig: signal.Signals) -> None:
        operator = self._operator
        assert operator is not None
        operator.send_signal(sig)
        await operator.wait()
        await self._start()

    # The faults.

    async def _make_faults(self) -> None:
        """Make a fault each minute until the time is over."""
        duration = self._args.minutes * 60
        restarts = collections.deque([
            (duration / 3, signal.SIGTERM), (duration * 2 / 3, signal.SIGKILL)])
        kinds = itertools.cycle(('cut', '429', 'latency', '500'))
        number = 0
        while (now := time.monotonic() - self._began) < duration:
            number += 1
            await asyncio.sleep(max(0.0, min(number * FAULT_PERIOD, duration) - now))
            now = time.monotonic() - self._began
            if duration - now < RECOVERY:
                continue
            if restarts and now >= restarts[0][0] - FAULT_PERIOD / 2:
                _, sig = restarts.popleft()
                self._note(sig.name)
                await self._restart(sig)
            else:
                await self._make_fault(next(kinds))

    async def _make_fault(self, kind: str) -> None:
        self._note(kind)
        match kind:
            case 'cut':
                self._proxy.cut()
            case 'latency':
                with self._proxy.delaying(LATENCY):
                    await asyncio.sleep(FAULT_LENGTH)
            case _:
                with self._proxy.refusing(int(kind)):
                    await asyncio.sleep(FAULT_LENGTH)

    def _note(self, kind: str) -> None:
        at = time.monotonic() - self._began
        self.faults.append((at, kind))
        print(f"{at:6.0f} s: {kind}", file=sys.stderr, flush=True)

    # The samples.

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            operator, life = self._operator, self._lives
            assert operator is not None
            try:
                figures = sampling.look(operator.pid)
                metrics = await self._fetch_metrics()
            except (OSError, aiohttp.ClientError, KeyError, TimeoutError):
                continue  # it is being restarted
            if life != self._lives:
                continue
            reactions = self._journal.read()
            self.reactions += len(reactions)
            at = time.monotonic() - self._began
            self.samples.append(sampling.Sample(
                at=at, life=life, age=time.monotonic() - self._started,
                is_calm=not any(
                    begun <= at <= begun + FAULT_LENGTH + RECOVERY for begun, _ in self.faults),
                memory=figures['memory'], blocks=metrics['endurance_blocks'] / 1000,
                threads=int(figures['threads']),
                descriptors=int(figures['descriptors']),
                tasks=metrics['endurance_tasks'], scheduled=metrics['endurance_scheduled'],
                reactions=len(reactions), p50=sampling.get_quantile(reactions, 0.5),
                p99=sampling.get_quantile(reactions, 0.99)))

    async def _fetch_metrics(self) -> dict[str, float]:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=PERIOD)
        async with self._session.get(self._metrics, timeout=timeout) as response:
            return sampling.parse_metrics(await response.text())

    # The end.

    async def _verify(self, specs: dict[str, dict[str, float]]) -> None:
        """Wait until all is handled, and compare what there is with what there must be."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.problems = await self._find_problems(specs)
            if not self.problems or time.monotonic() > deadline:
                return
            await asyncio.sleep(2)

    async def _find_problems(self, specs: dict[str, dict[str, float]]) -> list[str]:
        problems = []
        objects = {item['metadata']['name']: item
                   for item in await self._kube.list_objects(self._kind)}
        if objects.keys() != specs.keys():
            problems.append(f"there are {len(objects)} objects instead of {len(specs)}")
        unhandled = [name for name, item in objects.items() if not is_handled(item)]
        if unhandled:
            problems.append(f"{len(unhandled)} objects are not handled, e.g. {unhandled[0]}")
        self.reactions += len(self._journal.read())
        for kind, what in ('C', 'the change handler'), ('E', 'the event handler'):
            seen = self._journal.latest[kind]
            lost = [name for name, spec in specs.items() if seen.get(name) != spec['n']]
            if lost:
                problems.append(f"{what} has not seen the last change of {len(lost)} objects, "
                                f"e.g. {lost[0]}")
        owned = {item['metadata']['name'] for item in await self._kube.list_objects(CONFIGMAPS)
                 if any(reference['kind'] == self._kind.kind
                        for reference in item['metadata'].get('ownerReferences', ()))}
        wanted = {f'{name}-{i}' for name, spec in specs.items() for i in range(int(spec['pages']))}
        if owned != wanted:
            problems.append(f"{len(owned ^ wanted)} owned resources are missing or left")
        metrics = await self._fetch_metrics()
        for name, handler in ('kopf_daemons', 'accompany'), ('kopf_timers', 'tick'):
            if metrics.get(f'{name} {handler}') != len(specs):
                problems.append(f"{name}: {metrics.get(f'{name} {handler}')}, not {len(specs)}")
        log = (self._folder / 'log').read_text(errors='replace')
        alarms = [line for line in log.splitlines() if 'settings.brakes' in line]
        if alarms:
            problems.append(f"{len(alarms)} false alarms of the brakes, e.g. {alarms[0]}")
        return problems


def make_table(run: Run) -> str:
    lines = ["| | mean | slope per hour | first | last |", "| --- | --- | --- | --- | --- |"]
    for title, field in sampling.SAMPLED.items():
        values = [value for sample in run.samples if sample.is_calm
                  and (value := getattr(sample, field)) is not None]
        slope = sampling.fit(run.samples, field)
        if slope is not None:
            lines.append(
                f"| {title} | {slope.mean:.1f} | {slope.per_hour:+.2f} ({slope.relative:+.1%}) "
                f"| {values[0]:.1f} | {values[-1]:.1f} |")
    return '\n'.join(lines)


async def run(args: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory(prefix='kopf-endurance-') as name:
        folder = pathlib.Path(name)
        async with ensure_api(args.api, folder) as kubeconfig, Kube(kubeconfig) as kube:
            kind = Kind.make_unique()
            await kube.create_kind(kind)
            try:
                async with faulting.Proxy(kubeconfig) as proxy:
                    result = Run(args, kube, kubeconfig, folder, kind, proxy)
                    try:
                        await result.go()
                    except Exception:
                        print((folder / 'log').read_text(errors='replace')[-5000:], file=sys.stderr)
                        raise
            finally:
                await kube.delete_kind(kind)
    return result


def main() -> None:
    args = parse_args()
    result = asyncio.run(run(args))
    print(make_table(result))
    minutes = max(sample.at for sample in result.samples) / 60
    print(f"\n{result.changes} changes in {minutes:.1f} minutes, {result.reactions} reactions, "
          f"{len(result.faults)} faults; {len(result.problems) or 'no'} problems.")
    if args.html or args.svg:
        from benchmarks import charts  # its library is not needed otherwise
        if args.html:
            args.html.write_text(charts.make_curves_page(result.samples, result.faults))
        if args.svg:
            args.svg.write_text(charts.draw_curves(result.samples, result.faults))
    if args.json:
        args.json.write_text(json.dumps({
            'samples': [dataclasses.asdict(sample) for sample in result.samples],
            'faults': result.faults}, indent=1))
    if result.problems:
        sys.exit('\n'.join(result.problems))


if __name__ == '__main__':
    main()
