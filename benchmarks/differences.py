"""
Differences in behaviour between this Kopf and the release on PyPI: random operators, random edits.

Each seed is an operator of some handlers with filters, errors, patches, and sub-handlers, and a
list of operations of users: creations, edits, deletions, restarts of the operator. The operator
runs in both versions at once, each with a kind of its own. After each operation, the calls of the
handlers, the log, and the objects are compared: with the last-handled states and the finalizers.

What is known to differ, and so on the page about the migration, is left out. What depends on which
of several concurrent handlers is faster can differ by chance: repeat a seed before you believe it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import difflib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Literal

from benchmarks import subjects
from tests.e2e.kubes import Kind, Kube, KubeError

OPERATOR = subjects.OPERATORS / 'different.py'
QUIET = 1.3
"""After how many seconds without any call or change an operation is over."""
PATIENCE = 25.0
STARTING = 60.0
TIMES = re.compile(r'\d{4}-\d\d-\d\dT[\d:.+Z]+')
RETRY = re.compile(r' \(will try again in [\d.]+ seconds?\)')
"""What only this Kopf says of a retry."""

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What a user does. The patch is a merge patch, or the object to be created."""
    verb: Literal['create', 'patch', 'delete', 'restart', 'patch while down']
    name: str = ''
    patch: Object | None = None


def make_operations(seed: int) -> list[Operation]:
    """Make operations for two objects, which are gone in the end."""
    rng = random.Random(f'operations {seed}')
    operations: list[Operation] = []
    alive: set[str] = set()

    def create(name: str) -> None:
        spec = {key: value for key, value in {
            'x': rng.choice([1, 2, 'a']), 'y': rng.choice([1, 2]), 'd': {'k': rng.choice([1, 2])},
            'li': [1, 2]}.items() if rng.random() < .7}
        meta = {stanza: {f'{prefix}{i}': rng.choice('ab') for i in range(2) if rng.random() < .6}
                for stanza, prefix in (('labels', 'l'), ('annotations', 'n'))}
        operations.append(Operation('create', name, {'metadata': meta, 'spec': spec}))
        alive.add(name)

    create('a')
    create('b')
    for _ in range(rng.randint(5, 9)):
        name = rng.choice('ab')
        if name not in alive:
            create(name)
            continue
        match rng.choices(range(6), [45, 15, 10, 7, 13, 10])[0]:
            case 0:
                field = rng.choice(['x', 'y', 'd', 'li'])
                values: list[Any] = [1, 2, 'a', None, {'k': 1}, [1, {'q': 2}]]
                if field == 'd':
                    values = [None, {'k': rng.choice([1, 2, 'a', None])}, {'j': 1}]
                verb: Any = rng.choices(['patch', 'patch while down'], [9, 1])[0]
                operations.append(Operation(verb, name, {'spec': {field: rng.choice(values)}}))
            case 1:
                labels = {rng.choice(['l0', 'l1']): rng.choice(['a', 'b', None])}
                operations.append(Operation('patch', name, {'metadata': {'labels': labels}}))
            case 2:
                notes = {rng.choice(['n0', 'n1']): rng.choice(['a', 'b', None])}
                operations.append(Operation('patch', name, {'metadata': {'annotations': notes}}))
            case 3:
                operations.append(Operation('patch', name, {'status': {'s': rng.choice([1, 'a'])}}))
            case 4:
                operations.append(Operation('restart'))
            case 5:
                operations.append(Operation('delete', name))
                alive.discard(name)
    return operations + [Operation('delete', name) for name in sorted(alive)]


def has_status(seed: int) -> bool:
    """Whether the status of the objects is a subresource."""
    return seed % 2 == 1


class Side:
    """The operator of a seed in one of the versions, with its objects."""

    def __init__(
            self, subject: subjects.Subject, kube: Kube, kinds: tuple[Kind, Kind], seed: int, *,
            kubeconfig: str, folder: pathlib.Path,
    ) -> None:
        self.kube = kube
        self.kind, self._ready = kinds
        self._has_status = has_status(seed)
        self._calls, self._log = folder / f'{subject.name}.calls', folder / f'{subject.name}.log'
        for path in (self._calls, self._log):
            path.touch()
        self._folder = folder
        self._seen = {self._calls: 0, self._log: 0}
        self._command = [
            subject.program, '-m', 'kopf', 'run', '--standalone', '--namespace=default',
            '--log-format=plain', str(OPERATOR)]
        self._env = {
            **os.environ, 'BENCH_SEED': str(seed), 'BENCH_GROUP': self.kind.group,
            'BENCH_PLURAL': self.kind.plural, 'BENCH_READY': self._ready.plural,
            'BENCH_CALLS': str(self._calls), 'KUBECONFIG': kubeconfig, 'PYTHONUNBUFFERED': '1'}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the operator, and wait until it sees objects."""
        with self._log.open('ab') as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=self._folder, env=self._env, stdout=log, stderr=log)
        deadline = time.monotonic() + STARTING
        while True:
            name = f'r{time.time_ns()}'
            await self.kube.create(self._ready, name, spec={})
            await asyncio.sleep(0.4)
            if name in self._calls.read_text():
                break
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The operator does not start:\n{self._log.read_text()[-3000:]}")
        await asyncio.sleep(QUIET)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), PATIENCE)
            finally:
                if self._process.returncode is None:
                    self._process.kill()

    async def do(self, operation: Operation) -> None:
        if operation.verb in ('restart', 'patch while down'):
            await self.stop()
        with contextlib.suppress(KubeError):  # the object can be gone in the meantime
            match operation:
                case Operation('create', name, dict(obj)):
                    await self.kube.create(
                        self.kind, name, spec=obj['spec'], **obj['metadata'])
                case Operation('delete', name):
                    await self.kube.delete(self.kind, name)
                case Operation('patch' | 'patch while down', name, dict(patch)):
                    is_of_status = self._has_status and 'status' in patch
                    await self.kube.patch(
                        self.kind, name, patch, subresource='status' if is_of_status else None)
        if operation.verb in ('restart', 'patch while down'):
            await self.start()

    async def look(self) -> object:
        """Look for what changes as long as something is going on."""
        return self._calls.stat().st_size, [
            obj['metadata']['resourceVersion'] for obj in await self.kube.list_objects(self.kind)]

    async def read(self) -> dict[str, list[str]]:
        """Read what is new since the last time, and how the objects are, as sorted lines."""
        calls = [json.loads(line) for line in self._read(self._calls) if 'ready' not in line]
        log = {line for line in self._read(self._log)
               if line.startswith('[') and '/r1' not in line and 'inconsistencies' not in line}
        objects = {obj['metadata']['name']: reduce(obj)
                   for obj in await self.kube.list_objects(self.kind)}
        return {
            'calls': sorted(tidy_calls(calls)),
            'log': sorted(RETRY.sub('', line) for line in log),
            'objects': json.dumps(objects, indent=1, sort_keys=True).splitlines()}

    def list_handlers(self) -> list[str]:
        lines = self._log.read_text().splitlines()
        return list(dict.fromkeys(line for line in lines if line.startswith('@kopf')))

    def _read(self, path: pathlib.Path) -> list[str]:
        text = path.read_text()
        new, self._seen[path] = text[self._seen[path]:], len(text)
        return new.splitlines()


def tidy_calls(calls: list[Object]) -> Iterator[str]:
    """Leave out what differs on purpose: how often own writes are seen, parents are called."""
    parents = {call['id'].partition('/')[0] for call in calls if '/' in call['id']}
    seen: set[str] = set()
    for call in calls:
        is_repeated = 'type' in call or call['id'] in parents
        if call['id'] in parents:
            call['retry'] = 0
        text = json.dumps(call, sort_keys=True)
        if not (is_repeated and text in seen):
            yield text
        seen.add(text)


def reduce(obj: Object) -> Object:
    """Reduce an object to what operators and users write, without times."""
    meta = obj['metadata']
    reduced = {
        **{key: meta.get(key) for key in ('labels', 'annotations', 'finalizers')},
        'spec': obj.get('spec'), 'status': obj.get('status') or None}
    reduced['annotations'] = {
        key: TIMES.sub('', value).strip() for key, value in (reduced['annotations'] or {}).items()
        if not key.endswith('/kopf-managed')}  # with any progress, of which there is less here
    status = obj.get('status') or {}
    if status.get('kopf') == {'progress': {}}:  # what a storage of the release leaves behind
        reduced['status'] = {key: val for key, val in status.items() if key != 'kopf'} or None
    return reduced


async def compare(
        seed: int, kube: Kube, sides: list[subjects.Subject], *, kubeconfig: str,
) -> list[str]:
    """Run the operator of the seed in both versions, and describe the differences."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix='kopf-differences-'))
    kinds = [Kind.make_unique() for _ in sides]
    probes = [dataclasses.replace(Kind.make_unique(), group=kind.group) for kind in kinds]
    report: list[str] = []
    try:
        for kind in (*kinds, *probes):
            await kube.create_kind(kind, status=has_status(seed))
        pair = [Side(subject, kube, own, seed, kubeconfig=kubeconfig, folder=folder)
                for subject, own in zip(sides, zip(kinds, probes, strict=True), strict=True)]
        try:
            await asyncio.gather(*(side.start() for side in pair))
            for operation in make_operations(seed):
                await asyncio.gather(*(side.do(operation) for side in pair))
                await wait_quiet(pair)
                old, new = await asyncio.gather(*(side.read() for side in pair))
                for what in old:
                    lines = difflib.unified_diff(old[what], new[what], n=2, lineterm='')
                    found = list(lines)[3:]
                    if found:
                        report += [] if report else pair[0].list_handlers()
                        report += [f"After {operation}, the {what}:", *found]
        finally:
            await asyncio.gather(*(side.stop() for side in pair))
    finally:
        await asyncio.gather(*(kube.delete_kind(kind) for kind in (*kinds, *probes)))
        shutil.rmtree(folder)
    return report


async def wait_quiet(pair: list[Side]) -> None:
    started = since = time.monotonic()
    last: object = None
    while (now := time.monotonic()) < min(since + QUIET, started + PATIENCE):
        state = [await side.look() for side in pair]
        if state != last:
            last, since = state, now
        await asyncio.sleep(0.2)


async def run(args: argparse.Namespace) -> int:
    sides = subjects.prepare(['release', 'this'], pythons={})
    differing = 0
    limit = asyncio.Semaphore(args.pairs)
    async with Kube(args.kubeconfig) as kube:

        async def check(seed: int) -> None:
            nonlocal differing
            async with limit:
                report = await compare(seed, kube, sides, kubeconfig=args.kubeconfig)
            print(f"Seed {seed}: {len(report)} lines differ.", *report, sep='\n', flush=True)
            differing += bool(report)

        async with asyncio.TaskGroup() as group:
            for seed in range(args.first, args.first + args.seeds):
                group.create_task(check(seed))
    print(f"{differing} of {args.seeds} seeds differ.")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.differences', description=__doc__)
    parser.add_argument('--first', type=int, default=0, metavar='SEED')
    parser.add_argument('--seeds', type=int, default=20, help="how many")
    parser.add_argument('--pairs', type=int, default=2, help="how many at once")
    parser.add_argument('--kubeconfig', default=os.environ.get('KOPF_E2E_KUBECONFIG'))
    args = parser.parse_args()
    raise SystemExit(min(asyncio.run(run(args)), 1))


if __name__ == '__main__':
    main()
