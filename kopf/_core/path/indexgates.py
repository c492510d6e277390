"""
The gate between indexing and all other handlers.

* At the start, no handlers are called until all objects of all indexed resources are in the
  indices. Otherwise, handlers would see half-filled indices.
* Later, no state of an object is handled until this state is in the indices. Exception: an object
  that changes faster than it is indexed, as it would never be handled.
* An indexed resource that appears later (e.g. by a new CRD) delays only its own objects.
* A resource that cannot be listed (e.g. it is forbidden) delays nothing.
"""
import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Iterable

from kopf._cogs.aiokits import tasks
from kopf._cogs.structs import bodies
from kopf._core.path import objects, switches

logger = logging.getLogger(__name__)

HOT_ROUNDS = 3
"""
After how many states in a row Kopf does not wait any more until the object is indexed. Each of them
has come while the previous one was being indexed.
"""

Index = Callable[[objects.Item, bodies.RawBody], Awaitable[float | None]]
"""
Calls the indexing handlers for a state of an object.

The result is the time of the event loop when to retry failed handlers, or None without retries.
"""


class Gate:
    """
    Runs the indexing, and holds back the objects until the indices are filled.

    A source (an informer) is *unlisted* until its first list is complete, and *unfilled* until all
    objects of that list are indexed.
    """

    def __init__(
            self,
            *,
            switch: switches.Switch,
            index: Index,
            discard: Callable[[objects.Item], None],
            release: Callable[[objects.Item, bool], None],
    ) -> None:
        """
        Make a closed gate.

        ``index`` calls the indexing handlers; ``discard`` removes an object from all indices.
        ``release`` puts a resting item into the work queue, with its urgency, when the gate opens
        for the item, or when its newest state has been indexed. It leaves other items as they are.
        """
        self._switch = switch
        self._index = index
        self._discard = discard
        self._release = release
        self._unfilled: dict[objects.Source, asyncio.Event] = {}
        """The unfilled sources; the events are set when these are filled."""
        self._unlisted: set[objects.Source] = set()
        self.is_sealed: bool = False
        """Whether all sources of the start have been announced."""
        self._is_open = False
        self._detained: list[tuple[objects.Item, bool]] = []
        self._fresh: dict[objects.Item, bodies.RawBody] = {}
        """The newest state of each object that is not in the indices yet."""
        self._indexing: dict[objects.Item, asyncio.Task[None]] = {}
        self._rounds: dict[objects.Item, int] = {}
        """How many states of each object that is being indexed were indexed before, in a row."""
        self._counts: collections.Counter[objects.Source] = collections.Counter()
        """How many objects of each source are being indexed now, except for the hot ones."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[objects.Item, asyncio.TimerHandle] = {}
        self._openers: list[Callable[[], None]] = []

    def call_when_open(self, fn: Callable[[], None]) -> None:
        """Call the function when the indices of the start are filled: maybe now."""
        if self._is_open:
            fn()
        else:
            self._openers.append(fn)

    def seal(self) -> None:
        """
        Note that all sources of the start have been announced by `close_for`.

        Before that, the gate must not open: the first source can be filled before the next is
        added.
        """
        self.is_sealed = True
        self._check()

    def reset(self, sources: Iterable[objects.Source]) -> None:
        """Close the gate until these sources are listed and indexed again: after a pause."""
        for source in sources:
            self.close_for(source)
        self._is_open = self._is_open and not self._unfilled

    def close_for(self, source: objects.Source) -> None:
        """Hold back the objects of this source until it is listed and indexed."""
        self._unfilled.setdefault(source, asyncio.Event())
        self._unlisted.add(source)

    def note_listed(self, source: objects.Source) -> None:
        """Note that the list of the source is complete."""
        self._unlisted.discard(source)
        self._check_filled(source)

    def open_for(self, source: objects.Source, error: Exception | None = None) -> None:
        """Stop waiting for the source: it is filled, or cannot be listed (``error``)."""
        if source in self._unfilled:
            if error is not None:
                logger.warning(f"The indices are incomplete: {source.resource} is not "
                               f"available: {error}")
            self._unfilled.pop(source).set()
            self._check()

    def drop(self, source: objects.Source) -> None:
        """Stop waiting for the source, which is served no more."""
        self._unlisted.discard(source)
        self.open_for(source)

    def count_left(self, source: objects.Source) -> int | None:
        """Count the objects of the source that are being indexed; None if it is not waited for."""
        return self._counts[source] if source in self._unfilled else None

    def _check_filled(self, source: objects.Source) -> None:
        if source not in self._unlisted and not self._counts[source]:
            self.open_for(source)

    def _check(self) -> None:
        self._is_open = self._is_open or (self.is_sealed and not self._unfilled)
        if self._is_open:
            detained, self._detained = self._detained, []
            for item, urgent in detained:
                if item.phase is objects.Phase.QUEUED:
                    item.enter(objects.Phase.RESTING)
                self._release(item, urgent)
            openers, self._openers = self._openers, []
            for fn in openers:
                fn()

    def detain(self, item: objects.Item, *, urgent: bool) -> bool:
        """Hold the item back if the gate is closed for it; return whether it is."""
        if not self.is_closed_for(item):
            return False
        self._detained.append((item, urgent))
        return True

    def is_closed_for(self, item: objects.Item) -> bool:
        """Whether the item has to wait until the indices are filled."""
        return not self._is_open or (bool(self._unfilled) and item.source in self._unfilled)

    def is_indexing(self, item: objects.Item) -> bool:
        """Whether the item is being indexed now, and its reconciliation must wait for that."""
        return self._rounds.get(item, HOT_ROUNDS) < HOT_ROUNDS

    async def wait_indexed(self, item: objects.Item) -> None:
        """Wait until the item is indexed, and its source is filled; or until it is gone."""
        while not item.gone:
            if self.is_indexing(item):
                await asyncio.wait([self._indexing[item]])
            elif item.source in self._unfilled:
                await self._unfilled[item.source].wait()
            else:
                return

    def index(self, item: objects.Item, raw: bodies.RawBody) -> None:
        """
        Index the state in the background, after the indexing of the previous state has ended.

        If several states come in the meantime, only the newest one is indexed.
        """
        self._fresh[item] = raw
        if item not in self._indexing and not self._switch.is_stopping:
            self._begin(item, 0)

    def _begin(self, item: objects.Item, rounds: int) -> None:
        self._rounds[item] = rounds
        if rounds < HOT_ROUNDS:
            self._counts[item.source] += 1
        task = self._indexing[item] = asyncio.get_running_loop().create_task(self._run(item))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, item: objects.Item) -> None:
        """Remove the object, which is gone, from the indices."""
        self._fresh.pop(item, None)
        self._discard(item)

    async def _run(self, item: objects.Item) -> None:
        due: float | None = None
        raw = self._fresh.pop(item, None)
        try:
            if raw is not None and not item.gone:
                due = await self._index(item, raw)
        finally:
            del self._indexing[item]
            rounds = self._rounds.pop(item)
            if rounds < HOT_ROUNDS:
                self._counts[item.source] -= 1
                if not self._counts[item.source]:
                    del self._counts[item.source]
        is_over = item.gone or self._switch.is_stopping  # at exit, nothing may follow
        if item in self._fresh and not is_over:
            self._begin(item, rounds + 1)
        else:
            self._cancel_retry(item)
            if not is_over and due is not None and raw is not None:
                self._retries[item] = asyncio.get_running_loop().call_at(
                    due, self._retry, item, raw)
        if not self.is_indexing(item):
            self._check_filled(item.source)
            if item.inbox.has_news or item.gone:
                self._release(item, item.source not in self._unlisted)

    def _retry(self, item: objects.Item, raw: bodies.RawBody) -> None:
        """Index the object again after a failure: its newest state that is available."""
        del self._retries[item]
        if not item.gone and item not in self._indexing:
            newest = item.inbox.newest
            self.index(item, newest if newest is not None else raw)

    def _cancel_retry(self, item: objects.Item) -> None:
        handle = self._retries.pop(item, None)
        if handle is not None:
            handle.cancel()

    async def stop(self) -> None:
        for item in list(self._retries):
            self._cancel_retry(item)
        await tasks.cancel(self._tasks)
