"""
Indexing: in-memory overviews of objects, kept up to date by the authors' indexing functions.

Writing happens in the event loop only. Readers, in threads too, get immutable collections; whatever
an object has under its keys is replaced at once, so that it never looks absent in between.
"""
import datetime
import threading
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, indices, patches, references
from kopf._core.actions import execution, invocation, loggers, progression
from kopf._core.intents import causes, errors, filters, handlers

Uid = str

PRECISION = 0.001
"""How much earlier than planned is early enough, in seconds: timers are not more precise."""


class OperatorStore(indices.Store[Any]):
    """The values under a key as they were when the collection was taken from the index."""
    __slots__ = ('_values',)

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __repr__(self) -> str:
        return repr(list(self._values))


class OperatorIndex(indices.Index[Any, Any]):
    """
    An index, and the framework's ways to change it.

    A change of an object costs as much as it has keys. The collection under a key is made when it
    is read for the first time after a change.
    """
    __slots__ = ('_keys', '_lock', '_snapshots', '_stores')

    def __init__(self) -> None:
        self._stores: dict[Any, dict[Uid, Any]] = {}
        self._snapshots: dict[Any, OperatorStore] = {}
        self._keys: dict[Uid, Collection[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._stores)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(tuple(self._stores))

    def __contains__(self, key: object) -> bool:
        return key in self._stores

    def __getitem__(self, key: Any) -> OperatorStore:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            with self._lock:
                return self._take(key)
        return snapshot

    def __repr__(self) -> str:
        return repr(self._take_all())

    def items(self) -> ItemsView[Any, OperatorStore]:
        return self._take_all().items()

    def values(self) -> ValuesView[OperatorStore]:
        return self._take_all().values()

    def _take(self, key: Any) -> OperatorStore:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            snapshot = self._snapshots[key] = OperatorStore(self._stores[key].values())
        return snapshot

    def _take_all(self) -> dict[Any, OperatorStore]:
        with self._lock:
            return {key: self._take(key) for key in self._stores}

    def replace(self, uid: Uid, values: Mapping[Any, Any]) -> None:
        """Let the object have these values under these keys, and nothing under any other ones."""
        with self._lock:
            for key in self._keys.get(uid, ()):
                if key not in values:
                    self._remove(uid, key)
            for key, value in values.items():
                self._stores.setdefault(key, {})[uid] = value
                self._snapshots.pop(key, None)
            if values:
                self._keys[uid] = tuple(values)
            else:
                self._keys.pop(uid, None)

    def discard(self, uid: Uid) -> None:
        """Remove the object, if it is there."""
        if uid in self._keys:
            self.replace(uid, {})

    def _remove(self, uid: Uid, key: Any) -> None:
        self._snapshots.pop(key, None)
        store = self._stores[key]
        del store[uid]
        if not store:
            del self._stores[key]


class OperatorIndexers(dict[str, OperatorIndex]):
    """
    All the indices of an operator by their names; and the objects which are excluded from them.

    For handlers, it is a mapping of read-only indices.
    """

    def __init__(self) -> None:
        super().__init__()
        self._failures: dict[tuple[Uid, handlers.IndexingHandler], progression.HandlerState] = {}

    def ensure(self, declared: Iterable[handlers.IndexingHandler]) -> None:
        """Make the indices that are not there yet: they exist before any object is indexed."""
        for handler in declared:
            self.setdefault(handler.id, OperatorIndex())

    def discard(self, uid: Uid, declared: Iterable[handlers.IndexingHandler]) -> None:
        """The object is gone."""
        for handler in declared:
            self[handler.id].discard(uid)
            self._failures.pop((uid, handler), None)

    async def index(
            self,
            declared: Iterable[handlers.IndexingHandler],
            *,
            uid: Uid,
            resource: references.Resource,
            raw: bodies.RawBody,
            memo: Any,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
    ) -> float | None:
        """
        Index a state of an object in all of its indices.

        Returns the monotonic time when to try again, if any of the functions wants that.
        """
        body = bodies.Body(raw)
        cause = causes.IndexingCause(
            logger=loggers.LocalObjectLogger(body=body, settings=settings), memo=memo,
            indices=self, resource=resource, body=body, patch=patches.Patch(body=body))
        due: list[float] = []
        for handler in declared:
            try:
                is_matching = handler.unfiltered or filters.matches(handler, cause)
            except filters.FilterError as e:
                execution.fail(handler, e.error, cause.logger, title='Indexer')
                is_matching = False
            if is_matching:
                state = await self._index(handler, cause, uid, settings, clock)
                if state is not None and not state.finished:
                    due.append(state.due)
            else:
                self.discard(uid, [handler])
        return min(due, default=None)

    async def _index(
            self,
            handler: handlers.IndexingHandler,
            cause: causes.IndexingCause,
            uid: Uid,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
    ) -> progression.HandlerState | None:
        """Call the function unless the object is excluded; return its failure, if there is one."""
        key = uid, handler
        state = self._failures.get(key)
        now = clock.now()
        if state is None:
            state = progression.HandlerState.new(now=now)
        elif state.finished or state.due > now.mono + PRECISION:
            return state
        kwargs = {
            **cause.kwargs, 'param': handler.param, 'retry': state.retries,
            'started': state.started,
            'runtime': datetime.timedelta(seconds=state.age(now.mono)), **self}
        outcome = await execution.attempt(
            handler,
            call=lambda: invocation.invoke(handler, kwargs, settings.execution.executor),
            state=state,
            settings=settings,
            clock=clock,
            logger=cause.logger,
            default_errors=errors.ErrorsMode.IGNORED,
            title='Indexer',
            any_result=True,
        )
        if outcome.exception is not None:
            self[handler.id].discard(uid)
            self._failures[key] = state.after(outcome, now=clock.now())
            return self._failures[key]
        self._failures.pop(key, None)
        if outcome.result is not None:
            self[handler.id].replace(uid, _get_values(outcome.result))
        return None


def _get_values(result: object) -> Mapping[Any, Any]:
    """Only true dicts have keys; anything else goes without a key, as it is."""
    return result if type(result) is dict else {None: result}
