"""
How much an operator asks of the API server: at the start, at rest, and while it does not work.

A proxy counts the requests, the connections, and the bytes of an operator with one create handler,
in HTTP/1.1. The release, this Kopf, and the same operator in Go run one after another. Then, the
responses are delayed, as over a network: how long it takes until created objects are handled, and
how long another start takes. It is one command, ``python -m benchmarks.traffic``; see ``--help``.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks import endurance, faulting, subjects
from benchmarks.drivers import Driver, flood, is_handled, make_spec
from benchmarks.processes import Process
from benchmarks.subjects import Subject
from tests.e2e.kubes import Kind, Kube

SILENCE = 3.0
"""For how long (seconds) nothing must be sent, so that the operator counts as started."""

POLLING = 0.02
"""How often (seconds) it is checked whether anything was sent."""

PATIENCE = 120.0
"""How long (seconds) an operator can take until it works again after an outage."""

SIZE = 2000
"""The size of an object, in bytes."""

CREATED = 100
"""How many objects are created for each latency."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.traffic', description=__doc__)
    parser.add_argument('--api', default='sandbox', metavar='sandbox|KUBECONFIG',
                        help="the API server; a sandbox is started for the run")
    parser.add_argument('--subjects', default='release,this,go', help="some of release, this, go")
    parser.add_argument('--python', action='append', default=[], metavar='SUBJECT=PATH',
                        help="an interpreter to use for a subject, instead of making one")
    parser.add_argument('--objects', type=int, default=1000, help="how many there are, handled")
    parser.add_argument('--rest', type=float, default=600, help="how long (seconds) it rests")
    parser.add_argument('--outage', type=float, default=60, help="how long (seconds) outages last")
    parser.add_argument('--latencies', default='5,50', help="by how many ms responses are delayed")
    return parser.parse_args()


@dataclasses.dataclass
class Row:
    step: str
    subject: str
    traffic: faulting.Traffic
    seconds: float

    def __str__(self) -> str:
        each = self.traffic
        return (f"| {self.step} | {self.subject} | {self.seconds:.1f} | {each.requests} "
                f"| {each.connections} | {each.sent / 1024:.1f} | {each.received / 1024:.1f} |")


HEADER = """\
| | | seconds | requests | connections | sent, KB | received, KB |
| --- | --- | --- | --- | --- | --- | --- |"""


class Observation:
    """One subject, its proxy, and what was counted."""

    def __init__(self, subject: Subject, proxy: faulting.Proxy) -> None:
        self.rows: list[Row] = []
        self._subject = subject
        self._proxy = proxy
        self._silence = 0.0

    @contextlib.contextmanager
    def counting(self, step: str) -> Iterator[None]:
        """Count what is exchanged during the block."""
        self._proxy.traffic = faulting.Traffic()
        self._silence = 0.0
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began - self._silence
        traffic = dataclasses.replace(self._proxy.traffic)  # what comes later is not of this step
        self.rows.append(Row(step, self._subject.name, traffic, seconds))
        print(self.rows[-1], file=sys.stderr, flush=True)

    async def wait_silence(self) -> None:
        """Wait until nothing is exchanged any more; this silence does not count as time."""
        before, last = dataclasses.replace(self._proxy.traffic), time.monotonic()
        while not before.requests or time.monotonic() - last < SILENCE:
            await asyncio.sleep(POLLING)
            if before != self._proxy.traffic:
                before, last = dataclasses.replace(self._proxy.traffic), time.monotonic()
        self._silence += time.monotonic() - last


async def observe(
        subject: Subject, kube: Kube, kubeconfig: str, folder: pathlib.Path,
        args: argparse.Namespace,
) -> list[Row]:
    kind = Kind.make_unique()
    await kube.create_kind(kind)
    async with Driver(kube, kind) as driver, faulting.Proxy(kubeconfig, secure=True) as proxy:
        await flood(functools.partial(
            driver.create, f'object{i}', make_spec(SIZE), handled=True)
            for i in range(args.objects))
        proxy.write_kubeconfig(folder / 'proxy')
        observation = Observation(subject, proxy)
        latencies = [float(each) for each in args.latencies.split(',')]
        start = functools.partial(Process, subject.get_command('create'), env={
            'KUBECONFIG': str(folder / 'proxy'), 'BENCH_GROUP': kind.group,
            'BENCH_PLURAL': kind.plural, 'BENCH_KIND': kind.kind, 'BENCH_STATUS': 'no'})
        with start() as process:
            with observation.counting('start'):
                await observation.wait_silence()
            with observation.counting('at rest'):
                await asyncio.sleep(args.rest)
            process.finish()
        for step, outage in ('HTTP 503', proxy.refusing(503)), ('no connections', proxy.down()):
            with start() as process:
                await observation.wait_silence()
                with observation.counting(f'an outage: {step}'), outage:
                    proxy.cut()
                    await asyncio.sleep(args.outage)
                if process.has_ended:  # as the release does after many responses with HTTP 503
                    print(f"{subject.name} has exited", file=sys.stderr)
                    continue
                with observation.counting(f'after {step}, until a new object is handled'):
                    name = step.lower().replace(' ', '-')
                    await driver.create(name, make_spec(SIZE))
                    await driver.wait_for([name], is_handled, timeout=PATIENCE)
                process.finish()
        with start() as process:
            await observation.wait_silence()
            for latency in latencies:
                names = [f'new{latency:g}-{i}' for i in range(CREATED)]
                step = f'{CREATED} creations, {latency:g} ms'
                with observation.counting(step), proxy.delaying(latency / 1000):
                    await flood(functools.partial(driver.create, name, make_spec(SIZE))
                                for name in names)
                    await driver.wait_for(names, is_handled)
            process.finish()
        for latency in latencies:
            with proxy.delaying(latency / 1000), start() as process:
                with observation.counting(f'start, {latency:g} ms'):
                    await observation.wait_silence()
                process.finish()
    await kube.clear_kind(kind)
    await kube.delete_kind(kind)
    return observation.rows


async def run(args: argparse.Namespace, folder: pathlib.Path) -> list[Row]:
    pythons = dict(item.split('=', 1) for item in args.python)
    chosen = subjects.prepare(args.subjects.split(','), pythons=pythons)
    rows = []
    async with endurance.ensure_api(args.api, folder) as kubeconfig, Kube(kubeconfig) as kube:
        for subject in chosen:
            rows += await observe(subject, kube, kubeconfig, folder, args)
    steps = list(dict.fromkeys(row.step for row in rows))
    return sorted(rows, key=lambda row: steps.index(row.step))


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix='kopf-traffic-') as name:
        rows = asyncio.run(run(args, pathlib.Path(name)))
    print(HEADER)
    print('\n'.join(map(str, rows)))


if __name__ == '__main__':
    main()
