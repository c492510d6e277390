"""
What is seen of operators from the outside: the calls of their handlers, and what they have written.
"""

import asyncio
import collections
import json
import time
from collections.abc import Callable
from typing import Any, Self

from tests.e2e.kubes import Kind, Kube, Object

LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
PREFIX = 'kopf.zalando.org/'


class Journal(list[Any]):
    """
    Whatever the handlers write down, in order; they can do it from any thread: ``journal.append``.
    """

    async def wait(self, *entries: Any, timeout: float = 30) -> None:
        """Wait until all these entries are there, as many times as given."""
        def has_all() -> bool:
            left = list(self)
            for entry in entries:
                if entry not in left:
                    return False
                left.remove(entry)
            return True

        await self.wait_until(has_all, timeout=timeout)

    async def wait_length(self, length: int, *, timeout: float = 30) -> None:
        """Wait until there are so many entries."""
        await self.wait_until(lambda: len(self) >= length, timeout=timeout)

    async def wait_until(self, predicate: Callable[[], Any], *, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"The journal has not become as expected: {list(self)!r}")
            await asyncio.sleep(0.01)

    def count(self) -> dict[Any, int]:  # type: ignore[override]
        """How many times each of the entries is there."""
        return dict(collections.Counter(self))


def get_essence(obj: Object) -> Object:
    """What of the object is essential by default, as the operator has to remember it."""
    ignored = ('apiVersion', 'kind', 'metadata', 'status')
    essence = {key: val for key, val in obj.items() if key not in ignored}
    labels = obj['metadata'].get('labels')
    annotations = {
        key: val for key, val in obj['metadata'].get('annotations', {}).items()
        if not key.startswith(PREFIX)}
    metadata = {'labels': labels, 'annotations': annotations}
    metadata = {key: val for key, val in metadata.items() if val}
    return {**essence, 'metadata': metadata} if metadata else essence


def get_last_handled(obj: Object) -> Object:
    """The last-handled state; None if there is none."""
    encoded = obj['metadata'].get('annotations', {}).get(LAST_HANDLED)
    return None if encoded is None else json.loads(encoded)


def get_progress(obj: Object) -> dict[str, Any]:
    """The progress in the annotations: the records by the ids of handlers."""
    return {
        key.removeprefix(PREFIX): json.loads(val)
        for key, val in obj['metadata'].get('annotations', {}).items()
        if key.startswith(PREFIX) and key != LAST_HANDLED and val.startswith('{"started"')}


def is_handled(obj: Object) -> bool:
    """Whether the object's current state is remembered as the handled one, and nothing else is."""
    own = {key for key in obj['metadata'].get('annotations', {}) if key.startswith(PREFIX)}
    return own == {LAST_HANDLED} and get_last_handled(obj) == get_essence(obj)


async def wait_handled(
        kube: Kube,
        kind: Kind,
        name: str,
        *,
        namespace: str = 'default',
        timeout: float = 30,
) -> Object:
    """Wait until the object is handled completely."""
    return await kube.wait_for(kind, name, is_handled, namespace=namespace, timeout=timeout)


async def wait_settled(
        kube: Kube,
        kind: Kind,
        name: str,
        *,
        namespace: str = 'default',
        quiet: float = 1.0,
        timeout: float = 30,
) -> Object:
    """Wait until the object has not changed for the time (in seconds)."""
    deadline = time.monotonic() + timeout
    obj = await kube.get(kind, name, namespace=namespace)
    since = time.monotonic()
    while time.monotonic() - since < quiet:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{kind.plural}/{name} does not come to rest: {obj}")
        await asyncio.sleep(0.05)
        newest = await kube.get(kind, name, namespace=namespace)
        if newest['metadata']['resourceVersion'] != obj['metadata']['resourceVersion']:
            obj, since = newest, time.monotonic()
    return obj


class Watching:
    """
    Watch a kind as any client would, from now on: ``async with Watching(kube, kind) as watching``.
    """

    def __init__(self, kube: Kube, kind: Kind) -> None:
        self._kube = kube
        self._kind = kind
        self._events: list[Object] = []

    async def __aenter__(self) -> Self:
        path = self._kind.get_path()
        listed = await self._kube.request('GET', path, params={'limit': '1'})
        params = {'watch': 'true', 'resourceVersion': listed['metadata']['resourceVersion']}
        self._task = asyncio.create_task(self._watch(path, params))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def get_states(self, name: str) -> list[Object]:
        """All states of an object since then, each of which but the first one was a write."""
        return [obj for obj in self._events if obj['metadata']['name'] == name]

    async def wait_state(self, obj: Object) -> None:
        """Wait until the watch has come to this state of the object."""
        version = obj['metadata']['resourceVersion']
        while version not in [obj['metadata']['resourceVersion'] for obj in self._events]:
            await asyncio.sleep(0.01)

    async def _watch(self, path: str, params: dict[str, str]) -> None:
        async with self._kube.stream(path, params) as response:
            async for line in response.content:
                self._events.append(json.loads(line)['object'])
