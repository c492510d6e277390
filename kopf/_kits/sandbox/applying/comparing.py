import functools
from typing import Any

from kopf._kits.sandbox.applying import fieldsets, ownership
from kopf._kits.sandbox.schemas import nodes

STRIPPED = frozenset([
    'name', 'namespace', 'creationTimestamp', 'selfLink', 'uid', 'clusterName', 'generation',
    'managedFields', 'resourceVersion',
])
"""Metadata that nobody owns; neither the type of the object."""


def compare(
        old: dict[str, Any], new: dict[str, Any], schema: nodes.Schema,
) -> tuple[fieldsets.FieldSet, fieldsets.FieldSet]:
    """What fields a new object has got or changed, and lost, compared to the old one."""
    changed: fieldsets.FieldSet = {}
    removed: fieldsets.FieldSet = {}
    _compare_parts(schema, stripped(old), stripped(new), changed, removed)
    return changed, removed


def _compare_parts(
        schema: nodes.Schema | None, old: dict[str, Any], new: dict[str, Any],
        changed: fieldsets.FieldSet, removed: fieldsets.FieldSet, *, listed: bool = False,
) -> None:
    for key, item in new.items():
        if key not in old:
            if item is None and not listed and schema is not None and schema.name:
                continue  # as good as nothing in built-in kinds
            element, child = ownership.part_of(schema, key, listed)
            changed[element] = _everything(child, item)
            continue
        before = old[key]
        if before is not item and not _same(before, item):
            element, child = ownership.part_of(schema, key, listed)
            _compare(element, child, before, item, changed, removed)
    for key, item in old.items():
        if key not in new:
            element, child = ownership.part_of(schema, key, listed)
            removed[element] = _everything(child, item)


def _compare(
        element: str, schema: nodes.Schema | None, old: Any, new: Any,
        changed: fieldsets.FieldSet, removed: fieldsets.FieldSet,
) -> None:
    """Compare two values that differ."""
    if old is None and isinstance(new, dict | list):
        old = type(new)()  # a null is an empty anything
    elif new is None and isinstance(old, dict | list):
        new = type(old)()
    if type(old) is not type(new):
        changed[element] = _everything(schema, new)
        gone = _everything(schema, old)
        gone.pop(fieldsets.DOT, None)
        if gone:
            removed[element] = gone
        return
    old_parts, new_parts = ownership.parts(schema, old), ownership.parts(schema, new)
    if old_parts is None or new_parts is None:
        changed[element] = {}
        return
    changed_inside: fieldsets.FieldSet = {}
    removed_inside: fieldsets.FieldSet = {}
    _compare_parts(schema, old_parts, new_parts, changed_inside, removed_inside,
                   listed=isinstance(new, list))
    if changed_inside:
        changed[element] = changed_inside
    if removed_inside:
        removed[element] = removed_inside


def stripped(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without what nobody owns."""
    metadata = obj.get('metadata') or {}
    result = {key: value for key, value in obj.items() if key not in ('apiVersion', 'kind')}
    result['metadata'] = {key: value for key, value in metadata.items() if key not in STRIPPED}
    return result


@functools.cache
def blank(schema: nodes.Schema) -> dict[str, Any]:
    """
    What there is before an object of a built-in kind is created: its structures, all empty.

    Nobody owns them, unlike those of custom resources, of which there is nothing at first.
    """
    result: dict[str, Any] = {}
    if schema.name:
        for key, child in schema.properties.items():
            if child.default == {} and child.type == 'object':
                result[key] = blank(child)
            elif child.default is not nodes.NOTHING and not child.default:
                result[key] = child.default
            elif key in schema.required or child.name.endswith('Time'):
                result[key] = None
    return result


def _everything(schema: nodes.Schema | None, value: Any) -> fieldsets.FieldSet:
    """A value with all that is in it, as it is owned by whoever has brought it."""
    parts = ownership.parts(schema, value)
    if not parts:
        return {}
    result: fieldsets.FieldSet = {fieldsets.DOT: {}}
    for key, item in parts.items():
        element, child = ownership.part_of(schema, key, isinstance(value, list))
        result[element] = _everything(child, item)
    return result


def _same(one: Any, two: Any) -> bool:
    return bool(one == two) and isinstance(one, bool) is isinstance(two, bool)
