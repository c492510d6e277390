"""
Reconciliation of owned resources, side by side with the same operator on controller-runtime.

Each parent has a config map, a deployment, and a service. The operators work one after another on
one API server, alternately. It is one command, ``python -m benchmarks.reconciling``; see
``--help``. It needs Go, with access to a proxy of modules, and a cluster without other operators.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import statistics
import sys
from collections.abc import Mapping

from benchmarks import audits, subjects
from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import Driver, Object, flood
from benchmarks.processes import Process
from tests.e2e.kubes import CONFIGMAPS, CRDS, Kind, Kube, KubeError

WEBSITES = Kind('benchmarks.kopf.dev', 'v1', 'websites', 'Website')
DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')
SERVICES = Kind('', 'v1', 'services', 'Service')
AGENTS = {'this': 'kopf', 'go': 'go-reconcile'}
"""The beginnings of the ``User-Agent`` headers."""

WARM_UP = 30
TIMEOUT = 900
SETTLING = 30
"""How long (seconds) the operators have to give memory back after they have come to rest."""

DEFINITION: Object = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': f'{WEBSITES.plural}.{WEBSITES.group}'},
    'spec': {
        'scope': 'Namespaced', 'group': WEBSITES.group,
        'names': {'kind': WEBSITES.kind, 'plural': WEBSITES.plural},
        'versions': [{
            'name': WEBSITES.version, 'served': True, 'storage': True,
            'subresources': {'status': {}},
            'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
        }],
    },
}

Figures = dict[str, float]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.reconciling', description=__doc__)
    parser.add_argument('--parents', type=int, default=300, help="how many objects are measured")
    parser.add_argument('--rounds', type=int, default=3, help="of which the medians are taken")
    parser.add_argument('--rest', type=float, default=60, help="how long (seconds) is at rest")
    parser.add_argument('--memory', type=int, default=0, metavar='PARENTS',
                        help="also measure the memory with so many objects, in one round")
    parser.add_argument('--subjects', default='go,this', help="some of these")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    audits.add_argument(parser)
    parser.add_argument('--python', metavar='PATH', help="an interpreter with Kopf in it")
    return parser.parse_args()


def prepare(names: list[str], *, python: str | None) -> dict[str, list[str]]:
    """Build the operators outside of the project; returns their commands."""
    commands = {}
    for name in names:
        if name == 'go':
            commands[name] = [str(subjects.build('go', 'reconcile'))]
        else:
            pythons = {name: python} if python else {}
            subject, = subjects.prepare([name], pythons=pythons)
            commands[name] = subject.get_command('reconcile')
    return commands


class Bench:
    """A namespace of a cluster in which one operator is measured. A context manager of its own."""

    def __init__(
            self, kube: Kube, kubeconfig: str, command: list[str], audit: audits.AuditLog,
    ) -> None:
        self.kube = kube
        self.command = command
        self.audit = audit
        self.websites = Driver(kube, WEBSITES)
        self.pages = Driver(kube, CONFIGMAPS)
        self._env = {'KUBECONFIG': kubeconfig}

    async def __aenter__(self) -> 'Bench':
        await self.clear()
        await self.websites.__aenter__()
        await self.pages.__aenter__()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.pages.__aexit__(*args)
        await self.websites.__aexit__(*args)
        await self.clear()

    def start(self) -> Process:
        return Process(self.command, env=self._env)

    async def clear(self) -> None:
        """Delete all parents and all that they own, and wait until these are gone."""
        for kind in WEBSITES, DEPLOYMENTS, CONFIGMAPS, SERVICES:
            while not await self.delete_all(kind):
                await asyncio.sleep(0.2)

    async def delete_all(self, kind: Kind) -> bool:
        """Delete all objects of the kind; return whether they are gone."""
        params = {'labelSelector': 'component!=apiserver'}  # the API server's own remains
        path = kind.get_path(namespace='default')
        items = (await self.kube.request('GET', path, params={**params, 'limit': '500'}))['items']
        try:
            await self.kube.request('DELETE', path, params=params)
        except KubeError as e:
            if e.status not in (405, 504):  # 504: there are too many for one request
                raise
            if e.status == 405:  # services of the oldest Kubernetes
                await flood(functools.partial(self._delete, kind, item) for item in items)
        return not items

    async def _delete(self, kind: Kind, item: Object) -> None:
        with contextlib.suppress(KubeError):  # the garbage collector can be faster
            await self.kube.delete(kind, item['metadata']['name'], namespace='default')

    async def create(self, names: list[str], **fields: object) -> None:
        spec = {'text': 'Hello, world!', 'replicas': 1, **fields}
        await flood(functools.partial(self.websites.create, name, spec) for name in names)
        await self.websites.wait_for(names, is_ready, timeout=TIMEOUT)

    async def drift(self, names: list[str]) -> None:
        """Delete one owned resource of each, and wait until they are back."""
        before = {name: self.pages.objects[name]['metadata']['uid'] for name in names}
        await flood(functools.partial(
            self.kube.delete, CONFIGMAPS, name, namespace='default') for name in names)
        await self.pages.wait_for(names, functools.partial(is_another, before), timeout=TIMEOUT)


def is_ready(obj: Object | None) -> bool:
    return obj is not None and obj.get('status', {}).get('ready') is True


def is_another(before: Mapping[str, str], obj: Object | None) -> bool:
    return obj is not None and obj['metadata']['uid'] != before[obj['metadata']['name']]


async def measure(bench: Bench, *, parents: int, rest: float) -> Figures:
    """Measure one operator: creation, drift, rest, and a restart."""
    figures: Figures = {}
    names = [f'site{i}' for i in range(parents)]
    warm = [f'warm{i}' for i in range(WARM_UP)]

    with bench.start() as process:
        await bench.create(warm)
        await process.wait_quiet(1)
        idle = await process.measure_idle(3)
        for phase, action in ('creation', bench.create), ('drift', bench.drift):
            cpu = process.get_cpu()
            bench.audit.take()
            loop = asyncio.get_running_loop()
            started = loop.time()
            await action(names)
            took = loop.time() - started
            await process.wait_quiet(1)
            spent = process.get_cpu() - cpu - idle * (loop.time() - started)
            figures[f'{phase}: CPU per parent, ms'] = spent / parents * 1000
            for key, count in count_requests(bench.audit).items():
                figures[f'{phase}: {key} per parent'] = count / parents
            figures[f'{phase}: time, s'] = took
        figures['memory after it, MB'] = process.get_memory()
        figures['rest: CPU, % of a processor'] = await process.measure_idle(rest) * 100
        for key, count in count_requests(bench.audit).items():
            figures[f'rest: {key}'] = count

    with bench.start() as process:
        await asyncio.sleep(3)
        await process.wait_quiet(2)
        figures['restart: CPU, s'] = process.get_cpu()
        for key, count in count_requests(bench.audit).items():
            figures[f'restart: {key}'] = count
        figures['restart: memory, MB'] = process.get_memory()
    return figures


def count_requests(audit: audits.AuditLog) -> dict[str, int]:
    """Count the requests of the operator since the last time: also of its watches."""
    requests = audit.take()
    writes = sum(request.is_write for request in requests)
    return {'writes': writes, 'reads': len(requests) - writes}


async def measure_memory(bench: Bench, *, parents: int) -> Figures:
    """Measure one operator with many objects: as it creates them, and after a restart."""
    figures: Figures = {}
    with bench.start() as process:
        await bench.create([f'site{i}' for i in range(parents)])
        await process.wait_quiet(2)
        await asyncio.sleep(SETTLING)
        figures[f'{parents} parents: memory after creation, MB'] = process.get_memory()
        figures[f'{parents} parents: its peak, MB'] = process.get_peak_memory()
    with bench.start() as process:
        await asyncio.sleep(5)
        await process.wait_quiet(2)
        figures[f'{parents} parents: CPU of a restart, s'] = process.get_cpu()
        await asyncio.sleep(SETTLING)
        figures[f'{parents} parents: memory after a restart, MB'] = process.get_memory()
        figures[f'{parents} parents: peak of a restart, MB'] = process.get_peak_memory()
    return figures


def show(results: Mapping[str, list[Figures]]) -> str:
    """Make a table in Markdown: the medians of the rounds, and the ratios to Go."""
    names = list(results)
    metrics = list(dict.fromkeys(
        metric for rounds in results.values() for figures in rounds for metric in figures))
    lines = [['', *names, 'this / go'], ['---'] * (len(names) + 2)]
    for metric in metrics:
        medians = {
            name: statistics.median(figures[metric] for figures in rounds if metric in figures)
            for name, rounds in results.items()}
        ratio = medians['this'] / medians['go'] if medians.get('go') and 'this' in medians else None
        cells = [f'{medians[name]:.3g}' for name in names]
        lines.append([metric, *cells, '' if ratio is None else f'{ratio:.2f}×'])
    return '\n'.join(f"| {' | '.join(line)} |" for line in lines)


async def define(kube: Kube) -> None:
    """Create the custom resource definition, unless it is there."""
    try:
        await kube.request('POST', CRDS, body=DEFINITION)
    except KubeError as e:
        if e.status != 409:
            raise
    await kube.wait_served(WEBSITES)


async def run(args: argparse.Namespace, kubeconfig: str) -> dict[str, list[Figures]]:
    commands = prepare(args.subjects.split(','), python=args.python)
    results: dict[str, list[Figures]] = {name: [] for name in commands}
    async with Kube(kubeconfig) as kube:
        await define(kube)
        for number in range(args.rounds + bool(args.memory)):
            for name, command in commands.items():
                with audits.AuditLog(audits.find(args, kubeconfig), AGENTS[name]) as audit:
                    async with Bench(kube, kubeconfig, command, audit) as bench:
                        if number < args.rounds:
                            figures = await measure(bench, parents=args.parents, rest=args.rest)
                        else:
                            figures = await measure_memory(bench, parents=args.memory)
                results[name].append(figures)
                shown = ', '.join(f'{key} {value:.3g}' for key, value in figures.items())
                load = os.getloadavg()[0]
                print(f'{name}: {shown} (load {load:.1f})', file=sys.stderr)
    return results


def main() -> None:
    args = parse_args()
    audits.request()
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        print(show(asyncio.run(run(args, kubeconfig))))


if __name__ == '__main__':
    main()
