"""
Objects as fields: what is owned as a whole, what by its parts, and which items are the same.

Objects of unknown fields are owned field by field, lists of unknown items as a whole.
"""
import json
from typing import Any

from kopf._kits.sandbox.applying import fieldsets
from kopf._kits.sandbox.schemas import definitions, nodes

RAW = 'io.k8s.apimachinery.pkg.runtime.RawExtension'
"""What can be anything, and is nobody's business inside."""


def is_atomic(schema: nodes.Schema | None) -> bool:
    """Whether objects are owned as a whole."""
    return schema is not None and (schema.atomic or schema.name == RAW)


def parts(schema: nodes.Schema | None, value: Any) -> dict[str, Any] | None:
    """
    The parts of a value that are owned apart: a map's by its keys, a list's by their elements.

    ``None`` if it is owned only as a whole: a scalar, an atomic map, an ordinary list.
    """
    if isinstance(value, dict):
        return None if is_atomic(schema) else value
    return elements(schema, value) if isinstance(value, list) else None


def part_of(schema: nodes.Schema | None, key: str, listed: bool) -> tuple[str, nodes.Schema | None]:
    """The element and the schema of one of the parts: of a list, or else of a map."""
    if listed:
        return key, schema.items if schema is not None else None
    return f'f:{key}', child_of(schema, key)[0]


def elements(schema: nodes.Schema | None, value: list[Any]) -> dict[str, Any] | None:
    """The items of a set or of a map-like list by their elements; ``None`` if it is neither."""
    if schema is None:
        return None
    keys = schema.map_keys
    kind = schema.list_type
    if not kind and 'merge' in schema.strategies:
        kind, keys = ('map', (schema.merge_key,)) if schema.merge_key else ('set', ())
    result = {}
    if kind == 'set':
        for item in value:
            result[f'v:{_compact(item)}'] = item
    elif kind == 'map':
        for item in value:
            found = _keys_of(item, keys, schema.items)
            if found is None:
                return None
            result[f'k:{_compact(found)}'] = item
    else:
        return None
    return result if len(result) == len(value) else None


def _keys_of(
        item: Any, keys: tuple[str, ...], schema: nodes.Schema | None,
) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        return None
    result = {}
    for key in keys:
        if key in item:
            result[key] = item[key]
        else:
            child = schema.properties.get(key) if schema is not None else None
            if child is not None and child.default is not nodes.NOTHING:
                result[key] = child.default
    return result or None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(',', ':'), sort_keys=True, ensure_ascii=False)


def fields_of(schema: nodes.Schema | None, value: dict[str, Any]) -> fieldsets.FieldSet:
    """The fields that an object configures, when it is applied."""
    result: fieldsets.FieldSet = {}
    for key, item in value.items():
        child, named = child_of(schema, key)
        inside = _fields_in(child, item)
        if item is None or item == {} or (inside is not None and not named):
            inside = {fieldsets.DOT: {}, **inside} if inside else {}
        if inside is not None:
            result[f'f:{key}'] = inside
    return result


def coarsen(schema: nodes.Schema | None, fields: fieldsets.FieldSet) -> fieldsets.FieldSet:
    """The same fields where former versions of the schema have had parts of what is atomic now."""
    result = {}
    for element, node in fields.items():
        if node:
            listed = not element.startswith('f:')
            child = part_of(schema, element if listed else element[2:], listed)[1]
            node = {} if is_atomic(child) else coarsen(child, node)
        result[element] = node
    return result


def _fields_in(schema: nodes.Schema | None, value: Any) -> fieldsets.FieldSet | None:
    """The fields in a value; ``{}`` if it is one itself, ``None`` if there are none."""
    found = parts(schema, value)
    if found is None:
        return {}
    if isinstance(value, dict):
        return fields_of(schema, value) or None
    result: fieldsets.FieldSet = {}
    for key, item in found.items():
        element, child = part_of(schema, key, True)
        inside = _fields_in(child, item)
        result[element] = {fieldsets.DOT: {}, **inside} if inside else {}
    return result or None


def child_of(schema: nodes.Schema | None, key: str) -> tuple[nodes.Schema | None, bool]:
    """The schema of what is under a key, and whether it is a named field, not an entry of a map."""
    if schema is None:
        return None, False
    found = schema.properties.get(key)
    if found is not None:
        return found, True
    if schema.embedded and key in ('apiVersion', 'kind', 'metadata'):
        return definitions.EMBEDDED.properties[key], True
    return schema.additional, False
