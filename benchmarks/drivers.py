"""
What makes the operators work: objects are created, changed, and deleted, and observed
independently.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

import aiohttp

from tests.e2e.kubes import Kind, Kube

Object = dict[str, Any]

HANDLED = 'kopf.zalando.org/last-handled-configuration'


class Driver:
    """
    A client for the objects of one kind, which also sees all of their changes. A context manager.
    """

    def __init__(self, kube: Kube, kind: Kind) -> None:
        self.kube = kube
        self.kind = kind
        self.objects: dict[str, Object] = {}
        self.patches = 0
        """How many times it has patched; to be subtracted from what the API has counted."""
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def count_patches(self) -> int:
        """How many times the objects were patched by others, according to the API itself."""
        text = await self.kube.request_text('/metrics')
        group = re.escape(self.kind.group)
        pattern = rf'^apiserver_request_total{{.*group="{group}".*verb="PATCH".*}} (\S+)$'
        counts = re.findall(pattern, text, re.MULTILINE)
        return int(sum(map(float, counts))) - self.patches

    async def create(self, name: str, spec: Object, *, handled: bool = False) -> None:
        annotations = {HANDLED: make_handled(spec)} if handled else None
        await self.kube.create(self.kind, name, spec=spec, annotations=annotations)

    async def change(self, name: str, patch: Object) -> None:
        self.patches += 1
        await self.kube.patch(self.kind, name, patch)

    async def wait_for(
            self,
            names: Iterable[str],
            predicate: Callable[[Object | None], bool],
            *,
            timeout: float = 60,
    ) -> None:
        """
        Wait until all the objects are seen as the predicate wants them; None if they are gone.
        """
        missing = set(names)
        deadline = time.monotonic() + timeout
        while True:
            if self._watching is not None and self._watching.done():
                self._watching.result()  # it has failed
            missing = {name for name in missing if not predicate(self.objects.get(name))}
            if not missing:
                return
            if time.monotonic() > deadline:
                example = next(iter(missing))
                obj = self.objects.get(example)
                raise TimeoutError(f"{len(missing)} objects are not as expected, e.g.: {obj}")
            await asyncio.sleep(0.02)

    async def _watch(self) -> None:
        while True:  # the API ends watches when it likes, e.g. soon after the kind is created
            with contextlib.suppress(aiohttp.ClientError):
                await self._watch_once()

    async def _watch_once(self) -> None:
        listing = await self.kube.request('GET', self.kind.get_path())
        self.objects = {obj['metadata']['name']: obj for obj in listing['items']}
        version = listing['metadata']['resourceVersion']
        params = {'watch': 'true', 'resourceVersion': version}
        async with self.kube.stream(self.kind.get_path(), params) as response:
            rest = b''
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b'\n')
                for line in lines:
                    self._see(json.loads(line))

    def _see(self, event: Any) -> None:
        obj = event['object']
        if event['type'] == 'DELETED':
            self.objects.pop(obj['metadata']['name'], None)
        elif event['type'] in ('ADDED', 'MODIFIED'):
            self.objects[obj['metadata']['name']] = obj


def make_handled(spec: Object) -> str:
    return json.dumps({'spec': spec}, separators=(',', ':')) + '\n'


def is_handled(obj: Object | None) -> bool:
    """Was the newest state of the spec handled?"""
    if obj is None:
        return False
    handled = obj['metadata'].get('annotations', {}).get(HANDLED)
    return handled is not None and json.loads(handled).get('spec') == obj['spec']


def is_finalized(obj: Object | None) -> bool:
    return obj is not None and bool(obj['metadata'].get('finalizers'))


def is_gone(obj: Object | None) -> bool:
    return obj is None


def make_spec(size: int) -> Object:
    """Make a spec, so that the object with its managed fields is about so many bytes."""
    count = max(1, (size - 600) // 90)
    fields = {f'field{i:04d}': f'value number {i:08d} of many' for i in range(count)}
    return {'counter': 0, **fields}


async def flood(
        actions: Iterable[Callable[[], Awaitable[object]]],
        *,
        concurrency: int = 8,
) -> None:
    """Do it all as fast as possible, so many at a time."""
    iterator = iter(actions)

    async def work() -> None:
        for action in iterator:
            await action()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


async def pace(
        actions: Iterable[Callable[[], Awaitable[object]]],
        *,
        interval: float,
) -> None:
    """Do it one after another, each not earlier than so many seconds after the one before."""
    for action in actions:
        pause = asyncio.create_task(asyncio.sleep(interval))
        await action()
        await pause


