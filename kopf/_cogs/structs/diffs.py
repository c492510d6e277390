"""
Differences between two states of an object or of its field.

``None`` is the absence of a value, as Kubernetes has it: a field that changes from absent to None
or back is not changed. Dicts are compared deeply; everything else, lists too, is one value.
The order is stable: what is added, then removed, then changed, each in the order of the keys.
"""
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from kopf._cogs.structs import dicts


class DiffOperation(enum.StrEnum):
    """What happened to a field."""
    ADD = 'add'
    CHANGE = 'change'
    REMOVE = 'remove'


class DiffItem(NamedTuple):
    """A change of one field: the path is relative to what is compared; empty for it as a whole."""
    operation: DiffOperation
    field: dicts.FieldPath
    old: Any
    new: Any

    @property
    def op(self) -> DiffOperation:
        return self.operation

    def __repr__(self) -> str:
        return repr((self.operation.value, *self[1:]))


class Diff(Sequence[DiffItem]):
    """A sequence of changes: immutable, equal to the tuples and lists of the same items."""
    __slots__ = ('_items',)

    def __init__(self, items: Iterable[DiffItem], /) -> None:
        self._items = tuple(items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[DiffItem]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> DiffItem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[DiffItem]: ...

    def __getitem__(self, index: int | slice) -> DiffItem | Sequence[DiffItem]:
        return self._items[index]

    def __hash__(self) -> int:
        return hash(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Diff):
            return self._items == other._items
        if isinstance(other, (tuple, list)):
            return self._items == tuple(other)
        return NotImplemented


EMPTY = Diff(())


def diff(a: Any, b: Any) -> Diff:
    """Compare the old state (a) to the new one (b)."""
    return EMPTY if a == b else Diff(_iterate(a, b, ()))


def _iterate(a: Any, b: Any, path: dicts.FieldPath) -> Iterator[DiffItem]:
    if a == b:
        return
    if a is None:
        yield DiffItem(DiffOperation.ADD, path, None, b)
    elif b is None:
        yield DiffItem(DiffOperation.REMOVE, path, a, None)
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in b:
            if a.get(key) is None:
                yield from _iterate(None, b[key], (*path, key))
        for key in a:
            if b.get(key) is None:
                yield from _iterate(a[key], None, (*path, key))
        for key in a:
            if a[key] is not None and b.get(key) is not None:
                yield from _iterate(a[key], b[key], (*path, key))
    else:
        yield DiffItem(DiffOperation.CHANGE, path, a, b)


def reduce(d: Diff, path: dicts.FieldPath) -> Diff:
    """
    Narrow a diff to one field; the paths become relative to that field.

    A change above the field (e.g. of the whole spec) becomes what it means for the field.
    """
    if not path or not d:
        return d
    return Diff(_reduce(d, path))


def _reduce(d: Diff, path: dicts.FieldPath) -> Iterator[DiffItem]:
    for op, field, old, new in d:
        if field[:len(path)] == path:
            yield DiffItem(op, field[len(path):], old, new)
        elif field == path[:len(field)]:
            below = path[len(field):]
            yield from _iterate(
                dicts.resolve(old, below, None), dicts.resolve(new, below, None), ())
