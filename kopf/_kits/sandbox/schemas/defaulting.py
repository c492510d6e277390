import copy
import operator
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
    With ``nulls``, such nulls stay where there is a type: the API does so with what is applied.
    Returns the object itself if it needs no change.
    """
    return _default_dict(schema, obj, nulls)


def _default(schema: nodes.Schema, value: Any, nulls: bool) -> Any:
    if isinstance(value, dict):
        return _default_dict(schema, value, nulls)
    items = schema.items
    if not isinstance(value, list) or items is None:
        return value
    made = [
        _default(items, item, nulls) if item is not None else
        None if items.nullable or items.default is nodes.NOTHING else copy.deepcopy(items.default)
        for item in value]
    return made if any(map(operator.is_not, made, value)) else value


def _default_dict(schema: nodes.Schema, value: dict[str, Any], nulls: bool) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if schema.with_defaults:
        changes = {key: _make(child, nulls) for key, child in schema.properties.items()
                   if key not in value and child.default is not nodes.NOTHING}
    for key, item in value.items():
        child = schema.of(key)
        if child is None:
            continue
        if item is None:
            is_typed = bool(child.type or child.int_or_string)
            if not child.nullable and not (nulls and is_typed and child.default is nodes.NOTHING):
                changes[key] = _make(child, nulls)
        elif isinstance(item, dict | list):
            filled = _default(child, item, nulls)
            if filled is not item:
                changes[key] = filled
    return nodes.changed(value, changes)


def _make(schema: nodes.Schema, nulls: bool) -> Any:
    """The default with all that is in it by default; `nodes.NOTHING` if there is none."""
    default = schema.default
    return default if default is nodes.NOTHING else _default(schema, copy.deepcopy(default), nulls)
