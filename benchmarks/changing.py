"""
A steady rate of changes, by a process of its own: ``python -m benchmarks.changing ORDER``.

The order is a file with the kubeconfig, the kind, how many objects there are, and how many changes
there are per second. SIGTERM ends it. Then, it writes the last state of each object into the file
of the order.
"""

import asyncio
import collections
import dataclasses
import json
import pathlib
import random
import signal
import sys
import time
from typing import Any

from benchmarks.drivers import make_spec
from tests.e2e.kubes import Kind, Kube, KubeError

CONCURRENCY = 50
"""How many requests there are at a time; if the API server is slower, the rate is lower."""

RECREATED = 0.005
"""How many of the changes are deletions and new creations."""

PAGED = 0.05
"""How many of the changes are for the owned resources, too."""

CHANGED = ('n', 'pages', 'at')
"""The fields that are changed."""


@dataclasses.dataclass(frozen=True)
class Order:
    kubeconfig: str
    group: str
    plural: str
    kind: str
    objects: int
    rate: float
    result: str
    size: int = 0
    """How many bytes an object has beyond what is changed."""

    def get_kind(self) -> Kind:
        return Kind(self.group, 'v1', self.plural, self.kind)


class Changer:

    def __init__(self, kube: Kube, order: Order) -> None:
        self._kube = kube
        self._kind = order.get_kind()
        self._rate = order.rate
        fields = make_spec(order.size) if order.size else {}
        # The names are of this run only: owned resources of a former one can still be there.
        self._specs: dict[str, dict[str, Any]] = {
            f'{order.plural}-{i}': {**fields, 'n': 0, 'pages': i % 2, 'at': 0.0}
            for i in range(order.objects)}
        self._free = collections.deque(self._specs)
        self._freed = asyncio.Event()
        self._room = asyncio.Semaphore(CONCURRENCY)
        self._tasks: set[asyncio.Task[None]] = set()
        self.changes = 0

    async def run(self, stopped: asyncio.Event) -> None:
        """Make the objects and change them until it is stopped."""
        async with asyncio.TaskGroup() as group:
            for name in self._specs:
                await self._room.acquire()
                task = group.create_task(self._create(name))
                task.add_done_callback(lambda _: self._room.release())
        begun = time.monotonic()
        while not stopped.is_set():
            await asyncio.sleep(max(0.0, begun + self.changes / self._rate - time.monotonic()))
            await self._room.acquire()
            while not self._free:
                self._freed.clear()
                await self._freed.wait()
            name = self._free.popleft()
            self.changes += 1
            task = asyncio.create_task(self._change(name))
            self._tasks.add(task)
            task.add_done_callback(self._end)
        await asyncio.gather(*self._tasks)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        task.result()

    async def _create(self, name: str) -> None:
        self._specs[name]['at'] = time.time()
        await self._kube.create(self._kind, name, spec=self._specs[name])

    async def _change(self, name: str) -> None:
        spec = self._specs[name]
        spec['n'] += 1
        is_recreated = random.random() < RECREATED
        if random.random() < PAGED:
            spec['pages'] = (spec['pages'] + 1) % 3
        try:
            if not is_recreated:
                spec['at'] = time.time()
                await self._kube.patch(
                    self._kind, name, {'spec': {key: spec[key] for key in CHANGED}})
        finally:
            self._room.release()
        if is_recreated:
            await self._recreate(name)
        self._free.append(name)
        self._freed.set()

    async def _recreate(self, name: str) -> None:
        """Delete the object, wait for the operator to release it, and create a namesake."""
        await self._kube.delete(self._kind, name)
        while True:
            try:
                await self._kube.get(self._kind, name)
            except KubeError as e:
                if e.status != 404:
                    raise
                break
            await asyncio.sleep(0.5)
        await self._create(name)

    def get_result(self) -> dict[str, object]:
        return {'changes': self.changes, 'specs': self._specs}


async def run(order: Order) -> dict[str, object]:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Kube(order.kubeconfig) as kube:
        changer = Changer(kube, order)
        await changer.run(stopped)
    return changer.get_result()


def main() -> None:
    order = Order(**json.loads(pathlib.Path(sys.argv[1]).read_text(encoding='utf-8')))
    result = asyncio.run(run(order))
    pathlib.Path(order.result).write_text(json.dumps(result), encoding='utf-8')


if __name__ == '__main__':
    main()
