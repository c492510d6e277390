"""
Writing: the status of an object as a value of the author's class, in the patch of a handler.
"""
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.structs import dicts, patches
from kopf._core.engines.reconciling import conditions
from kopf._kits.typed import encoding
from kopf._kits.typed.shapes import Field, Kind, Shape


def equip(shape: Shape, patch: patches.Patch) -> patches.Patch:
    """Let the handler assign ``patch.status``: a value of this shape."""
    patch._assign_status = functools.partial(assign, shape, patch)
    return patch


def assign(shape: Shape, patch: patches.Patch, value: object) -> None:
    """
    Set all the fields of a value in the status, and remove those that are None.

    Other fields of the status stay as they are. So do other items of lists by keys, such as those
    of conditions.

    :raises TypeError: if the value is of another class.
    """
    is_mapping = shape.library == 'typeddict'
    if not isinstance(value, Mapping if is_mapping else shape.cls):
        raise TypeError(f"patch.status takes a value of {shape.cls.__name__}, not "
                        f"{type(value).__name__}. To set single fields: patch.status['field'] = …")
    encoded = encoding.encode(value, shape)
    original: Mapping[str, Any] = patch._original or {}
    patch.setdefault('status', {}).update(
        _make(shape, encoded, original.get('status'), patch, ('status',)))


def _make(
        shape: Shape, value: Any, known: Any, patch: patches.Patch, path: dicts.FieldPath,
) -> dict[str, Any]:
    """Make the merge patch of a record or a map, and note the lists by keys."""
    former = known if isinstance(known, Mapping) else {}
    made: dict[str, Any] = {}
    if shape.kind is Kind.MAP:
        made.update(dict.fromkeys(former.keys() - value.keys()))
    fields: Mapping[str, Shape | None] = {field.wire: field.shape for field in shape.fields} or (
        dict.fromkeys(value, shape.item))
    for wire, inner in fields.items():
        item = value.get(wire)
        if item is None or inner is None:
            made[wire] = item
        elif inner.list_type == 'map':
            patch.fns.append(functools.partial(_merge_list, (*path, wire), inner.keys, item))
        elif inner.kind in (Kind.RECORD, Kind.MAP):
            made[wire] = _make(inner, item, former.get(wire), patch, (*path, wire))
        else:
            made[wire] = _replace(item, former.get(wire))
    return made


def _replace(value: Any, known: Any) -> Any:
    """Make the merge patch of a value of any form: keys that it does not have, are removed."""
    if not (isinstance(value, Mapping) and isinstance(known, Mapping)):
        return value
    return {**dict.fromkeys(known.keys() - value.keys()),
            **{key: _replace(item, known.get(key)) for key, item in value.items()}}


def _merge_list(
        path: dicts.FieldPath, keys: Sequence[str], items: Sequence[dict[str, Any]], body: Any,
) -> None:
    """Replace the items with these keys in the list, and append the new ones."""
    if not items:
        return
    for key in path[:-1]:
        body = body.setdefault(key, {})
    for item in items:
        body[path[-1]] = conditions.put(body.get(path[-1]) or [], item, keys)


def find(fields: Sequence[Field]) -> Shape | None:
    """Find the shape of the status among the fields of a kind; None if it has no status."""
    return next((field.shape for field in fields
                 if field.wire == 'status' and field.shape.kind is Kind.RECORD), None)
