"""
The throughput of an operator by the number of its processes, which share the objects by shards.

The objects are there before the operator, and it needs some CPU time for each of them. The time
counts from the first call of the handler to the last one. It is one command,
``python -m benchmarks.shards``; see ``--help``. The API server needs CPU time, too: on a small
machine, that limits the throughput.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator

from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import flood
from tests.e2e.kubes import Kind, Kube

LEASES = Kind('coordination.k8s.io', 'v1', 'leases', 'Lease')
NAME = 'benchmark'

HANDLERS = '''
import os, time
import kopf

JOURNAL = open(os.environ['BENCH_JOURNAL'], 'a', buffering=1)

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.leadership.namespace = 'default'
    settings.sharding.name = 'benchmark'

@kopf.on.create({kind})
async def create(**_):
    JOURNAL.write(f'{{time.time()}} {{os.getpid()}}\\n')
    until = time.thread_time() + {work}
    while time.thread_time() < until:
        pass
    return 'done'
'''


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.shards', description=__doc__)
    parser.add_argument('--objects', type=int, default=3000, help="how many there are")
    parser.add_argument('--work', type=float, default=5, help="CPU time of the handler, in ms")
    parser.add_argument('--processes', default='1,2,4', help="how many processes, by turns")
    parser.add_argument('--shards', type=int, default=32, help="how many shards there are")
    parser.add_argument('--rounds', type=int, default=1, help="of which the medians are taken")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    return parser.parse_args()


@contextlib.asynccontextmanager
async def prepare(kube: Kube, number: int) -> AsyncIterator[Kind]:
    """Make a kind with so many objects."""
    kind = Kind.make_unique()
    await kube.create_kind(kind)
    try:
        await flood([
            functools.partial(kube.create, kind, f'obj{i}', spec={}) for i in range(number)])
        yield kind
    finally:
        await kube.delete_kind(kind)


async def measure(kube: Kube, args: argparse.Namespace, kubeconfig: str, processes: int) -> float:
    """Let the operator handle all objects; return how many it handles in a second."""
    async with prepare(kube, args.objects) as kind:
        with tempfile.TemporaryDirectory() as folder:
            path, journal = pathlib.Path(folder), pathlib.Path(folder) / 'journal'
            selector = ', '.join(map(repr, kind.selector))
            (path / 'handlers.py').write_text(
                HANDLERS.format(kind=selector, work=args.work / 1000), encoding='utf-8')
            journal.touch()
            operator = await asyncio.create_subprocess_exec(
                sys.executable, '-m', 'kopf', 'run', '--namespace=default', '--quiet',
                f'--processes={processes}', f'--shards={args.shards}', str(path / 'handlers.py'),
                env={**os.environ, 'KUBECONFIG': kubeconfig, 'BENCH_JOURNAL': str(journal)})
            try:
                while len(lines := journal.read_text(encoding='utf-8').splitlines()) < args.objects:
                    if operator.returncode is not None:
                        raise RuntimeError("The operator has ended unexpectedly.")
                    await asyncio.sleep(0.5)
            finally:
                if operator.returncode is None:
                    operator.send_signal(signal.SIGTERM)
                    await operator.wait()
    times = [float(line.split()[0]) for line in lines]
    return len(times) / (max(times) - min(times))


async def clear(kube: Kube) -> None:
    """Delete the Leases of the sharding."""
    for lease in await kube.list_objects(LEASES, selector=f'kopf.dev/sharding={NAME}'):
        await kube.delete(LEASES, lease['metadata']['name'])


async def run(args: argparse.Namespace, kubeconfig: str) -> None:
    numbers = [int(number) for number in args.processes.split(',')]
    rates: dict[int, list[float]] = {}
    async with Kube(kubeconfig) as kube:
        for _ in range(args.rounds):
            for number in numbers:
                begun = time.monotonic()
                rates.setdefault(number, []).append(await measure(kube, args, kubeconfig, number))
                await clear(kube)
                print(f"{number} processes: {rates[number][-1]:.0f} objects/s "
                      f"(in {time.monotonic() - begun:.0f} s)", file=sys.stderr)
    base = statistics.median(rates[numbers[0]])
    print("| processes | objects/s | ratio |\n| --- | --- | --- |")
    for number, found in rates.items():
        rate = statistics.median(found)
        print(f"| {number} | {rate:.0f} | {rate / base:.2f} |")


def main() -> None:
    args = parse_args()
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        asyncio.run(run(args, kubeconfig))


if __name__ == '__main__':
    main()
