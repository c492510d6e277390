"""
What a plan of many objects costs: the time, the memory, and the requests to the cluster.

An operator gives each object a ConfigMap. Then, it is planned what its next version would do, which
changes each of them. It is one command, ``python -m benchmarks.plans``; see ``--help``. Without
``--kubeconfig``, a cluster is started for the run.
"""

import argparse
import asyncio
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks import subjects
from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import flood
from benchmarks.processes import Process
from tests.e2e.kubes import CONFIGMAPS, Kind, Kube

PATIENCE = 3600.0
"""How long (seconds) anything can take."""

OPERATOR = str(subjects.OPERATORS / 'plans.py')

CHANGES = 2
"""The exit code of ``kopf plan`` when something would change."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.plans', description=__doc__)
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    parser.add_argument('--objects', type=int, default=5_000, help="how many objects there are")
    return parser.parse_args()


class Bench:
    """One run, for one kind of objects."""

    def __init__(self, kube: Kube, kubeconfig: str, kind: Kind, objects: int) -> None:
        self._kube = kube
        self._kind = kind
        self._objects = objects
        self._env = {
            'KUBECONFIG': kubeconfig, 'BENCH_GROUP': kind.group, 'BENCH_PLURAL': kind.plural}

    async def list_versions(self, kind: Kind) -> dict[str, str]:
        """The versions of all objects of the kind that this run has made, by their names."""
        return {obj['metadata']['name']: obj['metadata']['resourceVersion']
                for obj in await self._kube.list_objects(kind, namespace='default')
                if obj['metadata']['name'].startswith('object')}

    async def fill(self) -> None:
        """Create the objects; the present version of the operator gives each its ConfigMap."""
        with Process(
                [sys.executable, '-m', 'kopf', 'run', '--standalone', '--all-namespaces', OPERATOR],
                env={**self._env, 'BENCH_RELEASE': '1'}) as process:
            await flood(
                functools.partial(self._kube.create, self._kind, f'object{i}', spec={'size': i})
                for i in range(self._objects))
            await process.wait_quiet(5.0, timeout=PATIENCE)
        found = len(await self.list_versions(CONFIGMAPS))
        if found != self._objects:
            raise RuntimeError(f"There are {found} ConfigMaps of {self._objects} objects.")

    def plan(self) -> tuple[float, float, Any]:
        """Plan the next version: how long it took (seconds), its peak memory (MB), and the plan."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, '-m', 'kopf', 'plan', OPERATOR, '-A', '-o', 'json'],
            env={**os.environ, **self._env, 'BENCH_RELEASE': '2'}, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as file:
            text = file.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != CHANGES:
            raise RuntimeError(f"The plan has ended with the exit code {process.returncode}.")
        return time.monotonic() - began, usage.ru_maxrss / 1024, json.loads(text)

    async def run(self) -> dict[str, str]:
        await self.fill()
        before = [await self.list_versions(kind) for kind in (self._kind, CONFIGMAPS)]
        seconds, peak, plan = await asyncio.to_thread(self.plan)
        after = [await self.list_versions(kind) for kind in (self._kind, CONFIGMAPS)]
        actions = [(item['action'], item['place']['resource']) for item in plan['items']]
        return {
            "objects, each with a ConfigMap": f'{self._objects:,}',
            "time": f'{seconds:.0f} s',
            "peak memory": f'{peak:.0f} MB',
            "ConfigMaps that would change": f'{actions.count(("change", "configmaps")):,}',
            "anything else": str(len(plan['items']) - actions.count(("change", "configmaps"))),
            "requests to the cluster": ', '.join(
                f'{count} {verb}' for verb, count in sorted(plan['upstream'].items())),
            "objects that were written meanwhile": str(sum(
                len(dict(old.items() ^ new.items()))
                for old, new in zip(before, after, strict=True))),
        }


async def run(args: argparse.Namespace, kubeconfig: str) -> dict[str, str]:
    kind = Kind.make_unique()
    async with Kube(kubeconfig) as kube:
        await kube.create_kind(kind)
        return await Bench(kube, kubeconfig, kind, args.objects).run()


def main() -> None:
    args = parse_args()
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        rows = asyncio.run(run(args, kubeconfig))
    print('\n'.join(f'| {title} | {text} |' for title, text in rows.items()))


if __name__ == '__main__':
    main()
