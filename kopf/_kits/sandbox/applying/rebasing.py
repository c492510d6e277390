"""
Three-way merges: what was changed of a state is put on a newer one.
"""
import itertools
from typing import Any

from kopf._kits.sandbox.applying import ownership
from kopf._kits.sandbox.schemas import nodes

ABSENT: Any = object()
"""No value, which is not the same as the value of ``None``."""


def rebase(schema: nodes.Schema | None, base: Any, new: Any, local: Any) -> Any:
    """
    Put on the ``new`` value what the ``local`` one has changed of their common ``base``.

    What is changed on both sides is as it is locally. Maps are merged by their keys, and lists by
    their items if the schema tells which items are the same. A structure that one side has removed,
    and the other one has changed, is as it is locally: a part of it would be of no use.
    """
    if local == base:
        return new
    if new in (base, local):
        return local
    is_listed = isinstance(local if local is not ABSENT else new, list)
    is_structure = schema is not None and bool(schema.properties)
    parts = find_parts(schema, base, new, local)
    if parts is None or (is_structure and (local is ABSENT or new is ABSENT)):
        return local
    result = {}
    for key in _arrange(*parts):
        _, child = ownership.part_of(schema, key, is_listed)
        item = rebase(child, *(part.get(key, ABSENT) for part in parts))
        if item is not ABSENT:
            result[key] = item
    if not result and (new is ABSENT or local is ABSENT):
        return ABSENT
    return list(result.values()) if is_listed else result


def find_parts(schema: nodes.Schema | None, *values: Any) -> list[dict[str, Any]] | None:
    """Find the parts of some values of the same type; None if they have no parts in common."""
    if len({type(value) for value in values if value is not ABSENT}) > 1:
        return None
    found = [{} if value is ABSENT else ownership.parts(schema, value) for value in values]
    return None if None in found else [parts for parts in found if parts is not None]


def _arrange(base: dict[str, Any], new: dict[str, Any], local: dict[str, Any]) -> list[str]:
    """The keys of both in the new order, unless the local one was changed."""
    is_moved = [key for key in local if key in base] != [key for key in base if key in local]
    return list(dict.fromkeys(itertools.chain(*((local, new) if is_moved else (new, local)))))
