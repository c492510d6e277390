"""
Differences between two states of an object or of its field.

None means that a value is absent, as null in Kubernetes: if an absent field becomes None, or the
other way round, nothing has changed. Dicts are compared recursively; everything else, also a list,
is compared as one value. The order of a diff is stable: added, removed, changed fields, in the
order of the keys.
"""
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from kopf._cogs.structs import dicts


class DiffOperation(enum.StrEnum):
    """How a field has changed: added (it was absent or null), changed, or removed."""
    ADD = 'add'
    CHANGE = 'change'
    REMOVE = 'remove'

    def __repr__(self) -> str:
        return repr(self.value)


class DiffItem(NamedTuple):
    """
    A change of one field: a tuple of the operation, the field, the old value, and the new value.

    The field is a tuple of keys, relative to the compared values. It is empty if the values have
    changed as a whole. The values of absent fields are `None`.
    """
    operation: DiffOperation
    field: dicts.FieldPath
    old: Any
    new: Any

    @property
    def op(self) -> DiffOperation:
        """The same as ``operation``."""
        return self.operation

    def __repr__(self) -> str:
        return repr((str(self.operation), *self[1:]))  # also of a plain string


class Diff(Sequence[DiffItem]):
    """
    The difference between two states: an immutable sequence of `kopf.DiffItem`.

    Dicts are compared key by key; everything else, also a list, is compared as one value. A diff
    equals a tuple or a list of the same items.
    """
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
    """Compare the old state ``a`` to the new state ``b``."""
    return EMPTY if a == b else Diff(_iterate(a, b, ()))


def _iterate(a: Any, b: Any, path: dicts.FieldPath) -> Iterator[DiffItem]:
    """Iterate over the changes of two values that differ."""
    if a is None:
        yield DiffItem(DiffOperation.ADD, path, None, b)
    elif b is None:
        yield DiffItem(DiffOperation.REMOVE, path, a, None)
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        for key, new in b.items():
            if new is not None and a.get(key) is None:
                yield DiffItem(DiffOperation.ADD, (*path, key), None, new)
        for key, old in a.items():
            if old is not None and b.get(key) is None:
                yield DiffItem(DiffOperation.REMOVE, (*path, key), old, None)
        for key, old in a.items():
            new = b.get(key)
            if old is not None and new is not None and old != new:
                yield from _iterate(old, new, (*path, key))
    else:
        yield DiffItem(DiffOperation.CHANGE, path, a, b)


def reduce(d: Diff, path: dicts.FieldPath) -> Diff:
    """
    Reduce a diff to one field. The paths become relative to that field.

    A change of a parent (e.g. of the whole spec) is converted to the change of the field.
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
            yield from diff(dicts.resolve(old, below, None), dicts.resolve(new, below, None))
