"""
What `kopf.reconcile` promises, at scale: nothing is written at rest, and everything is restored.

Each parent has a config map, a deployment, and a service. It is one command,
``python -m benchmarks.scale``; see ``--help``. It exits with an error if a promise is not kept. The
requests are those in the audit log of the API server.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from benchmarks import audits, reconciling
from benchmarks.__main__ import ensure_cluster
from benchmarks.drivers import Object, flood
from benchmarks.processes import Process
from benchmarks.reconciling import AGENTS, DEPLOYMENTS, SERVICES, WEBSITES
from kopf._cogs.structs import managedfields
from tests.e2e.kubes import CONFIGMAPS, Kind, Kube

OWNED = (CONFIGMAPS, DEPLOYMENTS, SERVICES)
EDITS: dict[Kind, Object] = {
    CONFIGMAPS: {'data': {'index.html': 'Foreign'}},
    DEPLOYMENTS: {'spec': {'replicas': 7}},
    SERVICES: {'spec': {'selector': {'website': 'foreign'}}},
}
LABEL = 'kopf.dev/owner'
MANAGER = 'kopf/website'
CHANGES = 3
"""How many times each spec is changed forth and back."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.scale', description=__doc__)
    parser.add_argument('--parents', type=int, default=1000, help="how many there are")
    parser.add_argument('--rest', type=float, default=120, help="how long (seconds) is at rest")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    audits.add_argument(parser)
    parser.add_argument('--python', metavar='PATH', help="an interpreter with Kopf in it")
    return parser.parse_args()


class Proof:
    """The steps, and what they have shown."""

    def __init__(self, bench: reconciling.Bench, audit: audits.AuditLog, *, parents: int) -> None:
        self.rows: list[list[str]] = [['step', 'time, s', 'writes', 'reads', 'CPU, s', 'MB']]
        self.problems: list[str] = []
        self._bench = bench
        self._audit = audit
        self._names = [f'site{i}' for i in range(parents)]
        self._suffix = '-a'

    async def run(self, *, rest: float) -> None:
        with self._bench.start() as process:
            async with self._noting('creation', process):
                await self._bench.create(self._names, suffix=self._suffix)
            await self._verify('creation')
            async with self._noting(f'{rest:g} s at rest', process, writes=0):
                await asyncio.sleep(rest)
            async with self._noting('changes forth and back', process):
                await self._change_back_and_forth()
            await self._verify('changes forth and back')
        with self._bench.start() as process:
            async with self._noting('restart', process, began=process.started, writes=0):
                await asyncio.sleep(3)
            async with self._noting(f'{rest:g} s at rest after it', process, writes=0):
                await asyncio.sleep(rest)
        for harm, act in ('deleted', self._delete_owned), ('edited', self._edit_owned):
            await self._measure_limit(harm, act)
            await act()
            step = f'start after all were {harm}'
            with self._bench.start() as process:
                async with self._noting(step, process, began=process.started):
                    await asyncio.sleep(3)
                await self._verify(step)

    @contextlib.asynccontextmanager
    async def _noting(
            self,
            step: str,
            process: Process,
            *,
            began: float | None = None,
            writes: int | None = None,
    ) -> AsyncIterator[None]:
        """
        Note what the operator does in a step until it rests. The time is that of the last write.

        ``writes`` is how many there must be.
        """
        self._audit.take()
        cpu = process.get_cpu() if began is None else 0
        began = time.time() if began is None else began
        yield
        await process.wait_quiet(2)
        requests = self._audit.take()
        made = [request for request in requests if request.is_write]
        if writes is not None and len(made) != writes:
            self.problems.append(f"{step}: {len(made)} writes instead of {writes}")
        last = max((request.ended for request in made), default=began)
        self._note(
            step, f'{last - began:.1f}', _count(made),
            _count([request for request in requests if not request.is_write]),
            f'{process.get_cpu() - cpu:.2f}', f'{process.get_memory():.0f}')

    def _note(self, *cells: str) -> None:
        self.rows.append(list(cells))
        print('; '.join(cells), file=sys.stderr)

    async def _change_back_and_forth(self) -> None:
        """Let the specs want one page or the other, while the operator works; end with another."""
        async def change(name: str) -> None:
            for suffix in ['-b', '-a'] * CHANGES:
                await self._bench.websites.change(name, {'spec': {'suffix': suffix}})

        await flood(functools.partial(change, name) for name in self._names)
        self._suffix = '-c'
        await flood(functools.partial(
            self._bench.websites.change, name, {'spec': {'suffix': '-c', 'text': 'Last'}},
        ) for name in self._names)

    async def _list_owned(self, kind: Kind) -> list[Object]:
        result = await self._bench.kube.request(
            'GET', kind.get_path(namespace='default'), params={'labelSelector': LABEL})
        items: list[Object] = result['items']
        return items

    async def _verify(self, step: str) -> None:
        """Compare what there is with what the specs say."""
        websites = {item['metadata']['name']: item['spec'] for item in (
            await self._bench.kube.request('GET', WEBSITES.get_path()))['items']}
        expected: dict[Kind, dict[str, object]] = {
            CONFIGMAPS: {f'{name}{self._suffix}': {'index.html': websites[name]['text']}
                         for name in self._names},
            DEPLOYMENTS: dict.fromkeys(self._names, 1),
            SERVICES: {name: {'website': name} for name in self._names},
        }
        for kind, states in expected.items():
            found = {item['metadata']['name']: _get_state(item)
                     for item in await self._list_owned(kind)}
            wrong = [name for name in states.keys() | found if found.get(name) != states.get(name)]
            if wrong:
                self.problems.append(
                    f"{step}: {len(wrong)} {kind.plural} are wrong, e.g. {wrong[0]}")

    async def _delete_owned(self) -> None:
        for kind in OWNED:
            while not await self._bench.delete_all(kind):
                await asyncio.sleep(0.2)

    async def _edit_owned(self) -> None:
        for kind, patch in EDITS.items():
            names = [item['metadata']['name'] for item in await self._list_owned(kind)]
            await flood(functools.partial(self._bench.kube.patch, kind, name, patch)
                        for name in names)

    async def _measure_limit(self, harm: str, act: Callable[[], Awaitable[None]]) -> None:
        """Restore all owned resources by a client that does nothing else, and knows them."""
        requests = []
        for kind in OWNED:
            for item in await self._list_owned(kind):
                metadata = item['metadata']
                path = kind.get_path(metadata['name'], metadata['namespace'])
                applied = next(entry['fieldsV1'] for entry in metadata['managedFields']
                               if entry['manager'] == MANAGER)
                text = json.dumps(managedfields.restrict(applied, item) | {
                    'apiVersion': kind.api_version, 'kind': kind.kind})
                requests.append((f'{path}?fieldManager={MANAGER}&force=true', text))
        await act()
        began = time.time()
        await flood((functools.partial(
            self._bench.kube.send, 'PATCH', path, text, content_type='application/apply-patch+yaml')
            for path, text in requests), concurrency=16)
        took = time.time() - began
        self._note(f'a bare client after all were {harm}', f'{took:.1f}',
                   f'{len(requests)} patch', '', '', '')


def _get_state(item: Object) -> object:
    """Get what the edits change."""
    match item:
        case {'data': data}:
            return data
        case {'spec': {'replicas': replicas}}:
            return replicas
    return item['spec']['selector']


def _count(requests: Collection[audits.Request]) -> str:
    """Count the requests by their verbs; those that have failed, also by their statuses."""
    counts = collections.Counter(
        request.verb if request.status < 400 else f'{request.verb} ({request.status})'
        for request in requests)
    return ', '.join(f'{count} {verb}' for verb, count in counts.most_common()) or '0'


async def run(args: argparse.Namespace, kubeconfig: str) -> Proof:
    command, = reconciling.prepare(['this'], python=args.python).values()
    async with Kube(kubeconfig) as kube:
        await reconciling.define(kube)
        with audits.AuditLog(audits.find(args, kubeconfig), AGENTS['this']) as audit:
            async with reconciling.Bench(kube, kubeconfig, command, audit) as bench:
                proof = Proof(bench, audit, parents=args.parents)
                await proof.run(rest=args.rest)
    return proof


def main() -> None:
    args = parse_args()
    audits.request()
    with ensure_cluster(args.kubeconfig) as kubeconfig:
        proof = asyncio.run(run(args, kubeconfig))
    header, *rows = proof.rows
    for row in [header, ['---'] * len(header), *rows]:
        print(f"| {' | '.join(row)} |")
    if proof.problems:
        sys.exit('\n'.join(proof.problems))


if __name__ == '__main__':
    main()
