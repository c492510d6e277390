import copy
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.schemas.depths import guarded


@guarded
def default(schema: nodes.Schema, obj: statuses.Obj, *, nulls: bool = False) -> statuses.Obj:
    """
    Fill in the defaults of a custom resource, and drop its nulls that may be none.

    A null counts as absent where the schema does not allow it: the default replaces it; with no
    default, it is dropped from objects (in lists it stays, for the validation to refuse).
    With ``nulls``, such nulls stay everywhere: the API does so with what is applied.
    Returns the object itself if nothing was to be changed.
    """
    return _default_dict(schema, obj, nulls)


def _default(schema: nodes.Schema, value: Any, nulls: bool) -> Any:
    if isinstance(value, dict):
        return _default_dict(schema, value, nulls)
    if isinstance(value, list) and schema.items is not None:
        return _default_list(schema.items, value, nulls)
    return value


def _default_dict(schema: nodes.Schema, value: dict[str, Any], nulls: bool) -> dict[str, Any]:
    changed = None
    properties = schema.properties
    if schema.with_defaults:
        for key, child in properties.items():
            if key not in value and child.default is not nodes.NOTHING:
                if changed is None:
                    changed = value.copy()
                changed[key] = _default(child, copy.deepcopy(child.default), nulls)
    for key, item in value.items():
        found = properties.get(key)
        if found is None:
            found = schema.additional
            if found is None:
                continue
        if item is None:
            if found.nullable or (nulls and found.default is nodes.NOTHING):
                continue
            if changed is None:
                changed = value.copy()
            if found.default is nodes.NOTHING:
                del changed[key]
            else:
                changed[key] = _default(found, copy.deepcopy(found.default), nulls)
        elif isinstance(item, dict | list):
            filled = _default(found, item, nulls)
            if filled is not item:
                if changed is None:
                    changed = value.copy()
                changed[key] = filled
    return value if changed is None else changed


def _default_list(items: nodes.Schema, value: list[Any], nulls: bool) -> list[Any]:
    changed = None
    for index, item in enumerate(value):
        if item is None:
            if items.nullable or items.default is nodes.NOTHING:
                continue
            filled = copy.deepcopy(items.default)
        else:
            filled = _default(items, item, nulls)
        if filled is not item:
            if changed is None:
                changed = value.copy()
            changed[index] = filled
    return value if changed is None else changed
