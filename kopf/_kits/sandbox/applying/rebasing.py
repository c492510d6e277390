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
    values = [value for value in (base, new, local) if value is not ABSENT]
    is_listed = isinstance(local if local is not ABSENT else new, list)
    is_structure = schema is not None and bool(schema.properties)
    if len({type(value) for value in values}) > 1 or (
            is_structure and (local is ABSENT or new is ABSENT)):
        return local
    parts = [
        {} if value is ABSENT else ownership.parts(schema, value) for value in (base, new, local)]
    if None in parts:
        return local
    result = {}
    for key in _arrange(*parts):
        _, child = ownership.part_of(schema, key, is_listed)
        item = rebase(child, *(part.get(key, ABSENT) for part in parts if part is not None))
        if item is not ABSENT:
            result[key] = item
    if not result and (new is ABSENT or local is ABSENT):
        return ABSENT
    return list(result.values()) if is_listed else result


def _arrange(
        base: dict[str, Any] | None, new: dict[str, Any] | None, local: dict[str, Any] | None,
) -> list[str]:
    """The keys of both in the new order, unless the local one was changed."""
    assert base is not None and new is not None and local is not None
    is_moved = [key for key in local if key in base] != [key for key in base if key in local]
    return list(dict.fromkeys(itertools.chain(*((local, new) if is_moved else (new, local)))))
