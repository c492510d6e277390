import operator
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.schemas import nodes, paths
from kopf._kits.sandbox.schemas.decoding import decode_embedded
from kopf._kits.sandbox.schemas.depths import guarded

RESERVED = frozenset(['apiVersion', 'kind', 'metadata'])
"""What every resource has, also one embedded in another, whatever its schema says."""


@guarded
def prune(
        schema: nodes.Schema, obj: statuses.Obj, *, decoding: bool = False,
) -> tuple[statuses.Obj, list[str]]:
    """
    Drop the fields of a custom resource that its schema does not specify.

    Returns the object, itself if nothing is dropped, and the sorted paths of what is dropped.
    The metadata is not looked into, neither the object's nor those of embedded resources; with
    ``decoding``, the latter are decoded, which raises `Undecodable` for values of wrong types.
    """
    unknown: list[paths.Path] = []
    embedded: list[str] | None = [] if decoding else None
    result = _prune(schema, obj, None, unknown, embedded)
    return result, [*sorted(map(paths.render, unknown)), *(embedded or ())]


def _prune(
        schema: nodes.Schema | None, value: Any, path: paths.Path, unknown: list[paths.Path],
        embedded: list[str] | None,
) -> Any:
    if isinstance(value, list):
        items = schema.items if schema is not None else None
        if items is None and schema is not None and schema.preserving:
            return value
        pruned = [_prune(items, item, (path, index), unknown, embedded)
                  for index, item in enumerate(value)]
        return pruned if any(map(operator.is_not, pruned, value)) else value
    if not isinstance(value, dict):
        return value
    if schema is None:
        unknown.extend((path, key) for key in value)
        return {} if value else value
    is_resource = path is None or schema.embedded
    changes: dict[str, Any] = {}
    if schema.embedded and embedded is not None:
        changes = decode_embedded(value, path, embedded)
    for key, item in value.items():
        if is_resource and key in RESERVED:
            continue
        if key in schema.properties or schema.has_additional:
            if isinstance(item, dict | list):
                pruned = _prune(schema.of(key), item, (path, key), unknown, embedded)
                if pruned is not item:
                    changes[key] = pruned
        elif not schema.preserving:
            unknown.append((path, key))
            changes[key] = nodes.NOTHING
    return nodes.changed(value, changes)
