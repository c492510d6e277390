"""
Watches: changes as lines of JSON, from any kept revision on, for as long as somebody reads.

A line is encoded once for all watchers that want it in the same shape.
"""
import asyncio
import collections
import random
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Any

from kopf._cogs.aiokits import timeouts
from kopf._kits.sandbox import conversions, encoding, objects, reading, tables
from kopf._kits.sandbox.cluster import Cluster, stored_resource
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import APIError, Expired
from kopf._kits.sandbox.storage import Change, TooOld

BOOKMARK_PERIOD = 60.0
BOOKMARK_BEFORE_END = 2.0
BACKLOG = 20_000  # lines that a slow reader may be behind before it is cut off
_INITIAL_END = {'k8s.io/initial-events-end': 'true'}


class Watch:
    """
    One watch. `lines` yields the lines for the client, several lines at once if available. It
    ends after the timeout of the request, or after `end`.

    The constructor raises the errors of the API, so that they become the response. A later error
    is a line of the type ``ERROR``.
    """

    def __init__(self, cluster: Cluster, request: Request) -> None:
        reading.check_list_options(request)
        self._cluster = cluster
        self._request = request
        self.kind = request.kind
        self._selection = reading.selection_of(request)
        self._bookmarks = request.flag('allowWatchBookmarks')
        self._initial = request.flag('sendInitialEvents')
        if request.accepted.shape == 'Table':
            tables.Maker(request, cluster.clock())  # refuses wrong options
        self._headed = True
        self._shape: Hashable = (
            request.kind.api_version, request.accepted.shape, request.accepted.version)
        self._pending: collections.deque[Change] = collections.deque()
        self._woken = asyncio.Event()
        self._over = False
        self._error: APIError | None = None
        self._timeout = request.number('timeoutSeconds') or random.uniform(1800, 3600)
        self._since = request.revision() or None

    def _reach(self) -> int:
        """The latest revision that this watch can show now."""
        return self._request.known(self._cluster.store.revision)

    def end(self, error: APIError | None = None) -> None:
        """End the watch after the pending lines, with the error as the last line."""
        self._over = True
        self._error = self._error or error
        self._woken.set()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        unlisten = self._cluster.store.listen(stored_resource(self.kind), self._hear)
        if self._request.lag is not None:
            self._request.lag.wait(self._woken.set)
        try:
            for chunk in await conversions.run(self._cluster, self._beginning):
                yield chunk
            bookmark = self._next_bookmark(loop.time(), deadline)
            while True:
                chunk = await self._encode(self._take())
                if chunk:
                    yield chunk
                elif self._over or loop.time() >= deadline:
                    break
                elif loop.time() >= bookmark:
                    bookmark = self._next_bookmark(loop.time(), deadline)
                    yield self._bookmark()
                else:
                    await timeouts.wait(self._woken, min(bookmark, deadline) - loop.time())
                    self._woken.clear()
            if self._error:
                yield error_line(self._error)
        finally:
            unlisten()

    def _next_bookmark(self, now: float, deadline: float) -> float:
        """
        Find the time of the next bookmark: periodically, and shortly before the end.

        It is never if none are wanted, or if it is too late for another one.
        """
        last = deadline - BOOKMARK_BEFORE_END
        is_due = self._bookmarks and last > now
        return min(now + BOOKMARK_PERIOD, last) if is_due else float('inf')

    def _hear(self, change: Change) -> None:
        if self._over or (self._since is not None and change.revision <= self._since):
            return
        self._pending.append(change)
        if len(self._pending) > BACKLOG:
            self.end()
        self._woken.set()

    def _take(self) -> list[Change]:
        reach = self._reach()
        changes: list[Change] = []
        while self._pending and self._pending[0].revision <= reach:
            changes.append(self._pending.popleft())
        return changes

    async def _encode(self, changes: list[Change]) -> bytes:
        async def encode() -> bytes:
            objects.demand(self.kind, (change.new.raw for change in changes))
            return b''.join(filter(None, map(self._line, changes)))

        try:
            return await conversions.run(self._cluster, encode) if changes else b''
        except APIError as e:
            self.end(e)
            return b''

    async def _beginning(self) -> list[bytes]:
        """Lines for what was there before the watch began, in chunks."""
        store, resource = self._cluster.store, stored_resource(self.kind)
        if self._since is not None and not self._initial:
            try:
                self._pending.extend(store.since(resource, self._since))
            except TooOld:
                self.end(Expired(f"too old resource version: {self._since} ({store.compacted})"))
            return []
        if self._request.option('sendInitialEvents') and not self._initial:
            return []
        reach = self._reach()
        if self._since is not None and self._since > reach:
            self.end(reading.too_large(self._since, reach))
            return []
        is_behind = reach < store.revision
        entries = (store.select_at(reach, resource, self._request.namespace) if is_behind else
                   store.select(resource, self._request.namespace))
        found = [entry for entry in entries if self._selection.matches(entry)]
        objects.demand(self.kind, (entry.raw for entry in found))
        if is_behind:
            self._pending.extend(store.since(resource, reach))
        lines = [self._show('ADDED', entry.raw) for entry in found]
        if self._initial and self._bookmarks:
            lines.append(self._bookmark(initial=True))
        return [b''.join(lines[i:i + 500]) for i in range(0, len(lines), 500)]

    def _line(self, change: Change) -> bytes:
        """The line for a change as this watcher sees it; empty if it does not concern it."""
        type: str = change.type
        namespace = self._selection.namespace
        if namespace and change.new.key[0] != namespace:
            return b''
        if self._selection:
            before = change.old is not None and self._selection.matches(change.old)
            after = type != 'DELETED' and self._selection.matches(change.new)
            if not before and not after:
                return b''
            if not after and type != 'DELETED':
                return self._left(change)
            type = 'MODIFIED' if before and after else 'ADDED' if after else 'DELETED'
        if self._request.accepted.shape == 'Table':
            return self._show(type, change.new.raw)
        key = (self._shape, type)
        line = change.shown.get(key)
        if line is None:
            line = change.shown[key] = self._show(type, change.new.raw)
        return line

    def _left(self, change: Change) -> bytes:
        """The line for what is not selected any more: as it was when it still was."""
        assert change.old is not None
        obj = change.old.decode()
        obj['metadata']['resourceVersion'] = str(change.revision)
        stored = self._cluster.kind(change.resource)
        return self._show('DELETED', objects.encode_object(stored, obj))

    def _show(self, type: str, raw: bytes) -> bytes:
        shown = reading.shaped(
            self._cluster, self._request, objects.view(self.kind, raw), headed=self._headed)
        self._headed = False
        return b'{"type":"%s","object":%s}\n' % (type.encode(), shown)

    def _bookmark(self, *, initial: bool = False) -> bytes:
        metadata: dict[str, Any] = {'resourceVersion': str(self._reach())}
        if initial:
            metadata['annotations'] = _INITIAL_END
        if self._request.accepted.shape == 'Table':
            table = tables.Maker(self._request, self._cluster.clock())
            raw = encoding.encode(table.table([], metadata, headed=False))
        else:
            obj = {'kind': self.kind.kind, 'apiVersion': self.kind.api_version,
                   'metadata': metadata}
            raw = reading.shaped(self._cluster, self._request,
                                 encoding.encode(obj, sort_keys=self.kind.custom))
        return b'{"type":"BOOKMARK","object":%s}\n' % raw


def error_line(error: APIError) -> bytes:
    return b'{"type":"ERROR","object":%s}\n' % encoding.encode(error.status())


class Watches:
    """All watches that are open, so that they can be ended."""

    def __init__(self) -> None:
        self._open: dict[Watch, None] = {}

    def add(self, watch: Watch) -> None:
        self._open[watch] = None

    def forget(self, watch: Watch) -> None:
        del self._open[watch]

    def end(self, kinds: Callable[[Kind], bool] = lambda kind: True) -> None:
        for watch in list(self._open):
            if kinds(watch.kind):
                watch.end()
