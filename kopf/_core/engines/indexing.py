"""
Indexing: mappings in memory, made of the objects by the indexing handlers.

The indices are changed only in the event loop. They can be read in any thread: readers get
immutable collections. When an object changes, its old value is replaced by the new one in one step,
so that no reader ever sees the index without that object.
"""
import threading
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

from kopf._cogs.structs import bodies, indices, patches, references
from kopf._core.actions import execution, loggers, progression
from kopf._core.intents import causes, handlers

Uid = str

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
    An index. Handlers can only read it; Kopf changes it with `replace` and `discard`.

    The time to change an object is linear in the number of its keys, however many objects there
    are. So, the immutable collection of a key is not made at each change of the key, but only when
    somebody reads the key.
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

    def __reduce__(self) -> tuple[type['OperatorIndex'], tuple[()], tuple[None, dict[str, Any]]]:
        with self._lock:  # locks cannot be copied or pickled
            stores = {key: dict(values) for key, values in self._stores.items()}
            return OperatorIndex, (), (None, {'_stores': stores, '_keys': dict(self._keys)})

    def items(self) -> ItemsView[Any, OperatorStore]:
        return self._take_all().items()

    def values(self) -> ValuesView[OperatorStore]:
        return self._take_all().values()

    @property
    def objects(self) -> int:
        """How many objects have values in the index."""
        return len(self._keys)

    def _take(self, key: Any) -> OperatorStore:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            snapshot = self._snapshots[key] = OperatorStore(self._stores[key].values())
        return snapshot

    def _take_all(self) -> dict[Any, OperatorStore]:
        with self._lock:
            return {key: self._take(key) for key in self._stores}

    def replace(self, uid: Uid, values: Mapping[Any, Any]) -> None:
        """Set the values of the object by keys, and remove the object from all other keys."""
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
        """Remove the object from all keys, if it is there."""
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
    All indices of an operator, by the ids of the indexing handlers.

    It also keeps the failures of the indexing handlers: an object is not indexed by a handler that
    has failed permanently for that object, or whose retry is not due yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._failures: dict[tuple[Uid, handlers.IndexingHandler], progression.HandlerState] = {}

    @property
    def indices(self) -> Mapping[str, OperatorIndex]:
        """The indices, for applications that hand over their indexers to the operator."""
        return self

    def ensure(self, declared: Iterable[handlers.IndexingHandler]) -> None:
        """Add empty indices for the handlers, so that they exist before any object is indexed."""
        for handler in declared:
            self.setdefault(handler.id, OperatorIndex())

    def discard(self, uid: Uid, declared: Iterable[handlers.IndexingHandler]) -> None:
        """Forget the object, which is gone: its values and its failures."""
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
            context: execution.Context,
            is_gone: Callable[[], bool],
    ) -> float | None:
        """
        Call the indexing handlers for a state of an object, and update the indices.

        If ``is_gone`` after a call, nothing more is changed: the object is discarded already, and
        maybe indexed elsewhere, under the same uid.

        Returns the monotonic time of the earliest retry, or None if there are no retries.
        """
        body = bodies.Body(raw)
        cause = causes.IndexingCause(
            logger=loggers.LocalObjectLogger(body=body, settings=context.settings), memo=memo,
            indices=self, resource=resource, body=bodies.OwnBody(raw),
            patch=patches.Patch(body=body))
        due: list[float] = []
        called: set[object] = set()
        present: set[str] = set()
        declared = tuple(declared)
        for handler in declared:
            key = uid, handler
            if not execution.is_matching(handler, cause, context=context):
                self._failures.pop(key, None)
                continue
            if handler.key in called:
                continue
            called.add(handler.key)
            now = context.clock.now()
            state = self._failures.get(key) or progression.HandlerState.new(now=now)
            if state.is_due(now.mono):
                outcome = await execution.execute(handler, cause, context=context, state=state)
                if is_gone():
                    return None
                state = state.after(outcome, now=context.clock.now())
                if state.success:
                    self._failures.pop(key, None)
                    present.add(handler.id)
                    result = outcome.result  # also of a subclass of dict, it is one value
                    if result is not None:
                        self[handler.id].replace(
                            uid, result if type(result) is dict else {None: result})
                else:
                    self._failures[key] = state
            if not state.finished:
                due.append(state.due)
        for handler in declared:
            if handler.id not in present:
                self[handler.id].discard(uid)
        return min(due, default=None)
