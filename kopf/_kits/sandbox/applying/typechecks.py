"""
Configurations that are applied must fit their schemas in full: nothing in them is dropped.
"""
import json
from collections.abc import Iterator
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.applying import fieldsets, ownership
from kopf._kits.sandbox.schemas import nodes, paths
from kopf._kits.sandbox.wordings import go_type, printed


def verify(schema: nodes.Schema, applied: statuses.Obj, api_version: str) -> None:
    """
    Raises an error of code 500 if the configuration has unknown fields, values of wrong types,
    or items that cannot be distinguished.
    """
    problems = list(_check(schema, applied, None))
    if problems:
        meta = applied.get('metadata') or {}
        place = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        version = api_version if '/' in api_version else f'/{api_version}'
        text = problems[0] if len(problems) == 1 else '\n  '.join(["errors:", *problems])
        raise statuses.APIError(
            f"failed to create typed patch object ({place}; {version}, "
            f"Kind={applied.get('kind', '')}): {text}", code=500, reason='')


def _check(schema: nodes.Schema | None, value: Any, path: paths.Path) -> Iterator[str]:
    if schema is None or value is None or schema.name == ownership.RAW:
        return
    where = f'.{paths.render(path)}'
    if schema.type == 'object' or (isinstance(value, dict) and schema.properties):
        if not isinstance(value, dict):
            yield f"{where}: expected map, got &{{{printed(value)}}}"
            return
        for key in value:
            child, _ = ownership.child_of(schema, key)
            if child is not None:
                yield from _check(child, value[key], (path, key))
            elif not schema.preserving and not schema.has_additional:
                yield f".{paths.render((path, key))}: field not declared in schema"
    elif schema.type == 'array':
        if not isinstance(value, list):
            yield f"{where}: expected list, got &{{{printed(value)}}}"
            return
        yield from _check_items(schema, value, where)
        for index, item in enumerate(value):
            yield from _check(schema.items, item, (path, index))
    elif not schema.int_or_string and not schema.name:
        yield from _check_scalar(schema, value, where)


def _check_scalar(schema: nodes.Schema, value: Any, where: str) -> Iterator[str]:
    is_bool = isinstance(value, bool)
    match schema.type:
        case 'integer' | 'number' if is_bool or not isinstance(value, int | float):
            yield f"{where}: expected numeric (int or float), got {go_type(value)}"
        case 'boolean' if not is_bool:
            yield f"{where}: expected boolean, got &{{{printed(value)}}}"
        case 'string' if schema.raw.get('format') in (None, '', 'byte'):
            if not isinstance(value, str):
                yield (f"{where}: expected string, got "
                       f"&value.valueUnstructured{{Value:{printed(value)}}}")
        case 'string' if isinstance(value, dict | list):  # others are left to the validation
            yield f"{where}: expected any scalar, got &{{{printed(value)}}}"


def _check_items(schema: nodes.Schema, value: list[Any], where: str) -> Iterator[str]:
    if ownership.elements(schema, value) is not None or not schema.list_type.startswith(
            ('set', 'map')):
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        found = ownership.elements(schema, [item])
        if found is None:
            keys = ', '.join(map(json.dumps, schema.map_keys))
            yield (f"{where}: element {index}: associative list with keys has an element that "
                   f"omits all key fields [{keys}] (and doesn't have default values for any key "
                   "fields)")
            continue
        (element,) = found
        if element in seen:
            path = next(fieldsets.iterate({element: {}}))
            yield f"{where}: duplicate entries for key {path}"
        seen.add(element)
