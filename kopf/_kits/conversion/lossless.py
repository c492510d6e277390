"""
Lossless round trips: what a version cannot express is kept beside the object, leaf by leaf.

A leaf is a value that the way there and back does not return. It is restored later only if its
place is as that way has left it, so a value that was changed meanwhile is never overwritten. Items
of lists are found by their keys; lists without keys are leaves as a whole. An absent value is the
same as the default of its field, which API servers set at the next write.
"""
import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._kits.sandbox import schemas
from kopf._kits.sandbox.schemas import nodes

_ABSENT: Any = object()


class Leaf(NamedTuple):
    """A place, the value to restore there, and what is expected there before."""
    path: tuple[Any, ...]
    """Keys of mappings; and for the items of lists, mappings with the keys that identify them."""
    value: Any
    """The value; absent if there should be none."""
    left: str | None
    """A digest of the value that was left there; None if there was none."""


def find(original: Any, returned: Any, schema: nodes.Schema | None) -> list[Leaf]:
    """Find what differs in an object after the way there and back, as few leaves as possible."""
    leaves = [*_compare(original, returned, schema, ())]
    restored = restore(returned, leaves)
    if _complete(restored, schema) != _complete(original, schema):  # e.g. in the order of items
        leaves = [*_compare(original, returned, None, ())]
    return leaves


def _complete(value: Any, schema: nodes.Schema | None) -> Any:
    if schema is None:
        return value
    if value is _ABSENT or (value is None and not schema.nullable):
        value = _ABSENT if schema.default is nodes.NOTHING else schema.default
    return schemas.default(schema, value) if isinstance(value, dict) else value


def _compare(
        original: Any, returned: Any, schema: nodes.Schema | None, path: tuple[Any, ...],
) -> Iterator[Leaf]:
    if _complete(original, schema) == _complete(returned, schema):
        return
    if isinstance(original, Mapping) and isinstance(returned, Mapping):
        for key in {**original, **returned}:
            one, two = original.get(key, _ABSENT), returned.get(key, _ABSENT)
            if one is _ABSENT or two is _ABSENT or one != two:
                child = None if schema is None else (
                    schema.properties.get(key) or schema.additional)
                yield from _compare(one, two, child, (*path, key))
        return
    before, after = _identify(original, schema), _identify(returned, schema)
    if before is None or after is None:
        yield Leaf(path, original, None if returned is _ABSENT else _digest(returned))
        return
    for text in {**before, **after}:
        one, two = before.get(text, _ABSENT), after.get(text, _ABSENT)
        if one is _ABSENT or two is _ABSENT or one != two:
            assert schema is not None
            yield from _compare(one, two, schema.items, (*path, json.loads(text)))


def _identify(value: Any, schema: nodes.Schema | None) -> dict[str, Any] | None:
    """Get the items of a list by their keys; None if it is none of such items."""
    if schema is None or not schema.map_keys or not isinstance(value, list):
        return None
    found: dict[str, Any] = {}
    for item in value:
        if not isinstance(item, Mapping) or any(key not in item for key in schema.map_keys):
            return None
        found[_encode({key: item[key] for key in schema.map_keys})] = item
    return found if len(found) == len(value) else None


def restore(obj: Any, leaves: Sequence[Leaf]) -> Any:
    """Restore the leaves whose places are as they were left; the object is not changed itself."""
    obj = copy.deepcopy(obj)
    lists = _Lists()
    for leaf in leaves:
        *parents, last = leaf.path
        fields, name = lists.find(functools.reduce(lists.get, parents, obj), last)
        found = fields.get(name, _ABSENT)
        if fields is _NOWHERE or (None if found is _ABSENT else _digest(found)) != leaf.left:
            continue
        if leaf.value is _ABSENT:
            fields.pop(name, None)
        else:
            fields[name] = leaf.value
    lists.write()
    return obj


_NOWHERE: dict[str, Any] = {}


class _Lists:
    """
    The items of lists by the fields that identify them: anybody can write a leaf for each item.

    A list has one set of such fields, as in its schema. With others, nothing is found.
    """

    def __init__(self) -> None:
        self._lists: dict[int, tuple[list[Any], set[str], dict[str, Any]]] = {}

    def get(self, parent: Any, key: Any) -> Any:
        fields, name = self.find(parent, key)
        return fields.get(name, _ABSENT)

    def find(self, parent: Any, key: Any) -> tuple[dict[str, Any], str]:
        """Find what to get a field of a mapping from, or an item of a list, and its name there."""
        match parent, key:
            case dict(), str():
                return parent, key
            case list(), dict():
                if id(parent) not in self._lists:
                    items = {_encode({name: item.get(name) for name in key}): item
                             for item in parent if isinstance(item, dict)}
                    names = {*key} if len(items) == len(parent) else set()
                    self._lists[id(parent)] = parent, names, items
                _, names, items = self._lists[id(parent)]
                if names == {*key}:
                    return items, _encode(key)
        return _NOWHERE, ''

    def write(self) -> None:
        """Write the items back to the lists."""
        for parent, names, items in self._lists.values():
            if names:
                parent[:] = items.values()


def dump(leaves: Sequence[Leaf]) -> str:
    """Encode the leaves for an annotation."""
    return _encode([
        {'path': leaf.path, **({} if leaf.value is _ABSENT else {'value': leaf.value}),
         **({} if leaf.left is None else {'left': leaf.left})}
        for leaf in leaves])


def load(text: str) -> list[Leaf]:
    """
    Decode the leaves of an annotation.

    :raises ValueError: if it is damaged.
    """
    try:
        found = json.loads(text, parse_int=_parse_int)
        _encode(found)
        leaves = [Leaf(tuple(each['path']), each.get('value', _ABSENT), each.get('left'))
                  for each in found]
        if any(not leaf.path or not all(isinstance(key, str | dict) for key in leaf.path)
               for leaf in leaves):
            raise ValueError("a path is none")
        paths = sorted([_encode(key) for key in leaf.path] for leaf in leaves)
        if any(inner[:len(outer)] == outer for outer, inner in itertools.pairwise(paths)):
            raise ValueError("a path is within another one")
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ValueError(f"it is not readable: {e}") from e
    return leaves


def _parse_int(digits: str) -> float:
    return int(digits) if len(digits) < 20 else float(digits)  # as API servers do


def _digest(value: Any) -> str:
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:16]


def _encode(value: Any) -> str:
    return json.dumps(value, separators=(',', ':'), sort_keys=True, allow_nan=False)
