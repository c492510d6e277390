"""
Evidence: what of a change of an object was done by some of the field managers.

The API server notes for each field who has set it last. It does not note who has removed a field,
nor who has deleted the object: a removed field counts as removed by its manager.
"""
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox.applying import fieldsets
from kopf._kits.sandbox.applying.fieldsets import FieldSet
from kopf._kits.sandbox.applying.rebasing import ABSENT
from kopf._kits.sandbox.statuses import Obj

IsOwn = Callable[[str], bool]
"""Whether it is one of the field managers, by its name."""

Tree = Mapping[str, Any]

Parts = dict[str, tuple[str, Any]]
"""The parts of a value by their keys in trees, with the keys of maps."""


def is_managed(obj: Obj, is_own: IsOwn) -> bool:
    """Whether the managers have set anything of the object."""
    return any(is_own(entry.get('manager', '')) for entry in _get_entries(obj))


def undo(old: Obj, new: Obj, is_own: IsOwn) -> Obj:
    """Make the new state as it would be if the managers had not changed anything of the old one."""
    before, after = (_find_fields(obj, is_own) for obj in (old, new))
    made: Obj = _undo(old, new, before or None, after or None)
    entries = [] if not before else _find_left(old, new, before, after, is_own)
    entries += (
        entry for entry in _get_entries(new) if not is_own(entry.get('manager', '')))
    made['metadata'] = {**made['metadata'], 'managedFields': entries}
    return made


def _find_left(
        old: Obj, new: Obj, before: FieldSet, after: FieldSet, is_own: IsOwn,
) -> list[Tree]:
    """Find what the managers own, except for the fields that others have taken from them."""
    known, others = (_find_fields(obj, lambda name: not is_own(name)) for obj in (old, new))
    taken = fieldsets.subtract(
        fieldsets.intersect(before, others), fieldsets.unite(after, known))
    return [
        {**entry, 'fieldsV1': left} for entry in _get_entries(old)
        if is_own(entry.get('manager', ''))
        and (left := fieldsets.subtract(entry.get('fieldsV1') or {}, taken))]


def _find_fields(obj: Obj, is_of: IsOwn) -> FieldSet:
    trees = (entry.get('fieldsV1') or {} for entry in _get_entries(obj)
             if is_of(entry.get('manager', '')))
    return functools.reduce(fieldsets.unite, trees, fieldsets.EMPTY)


def _get_entries(obj: Obj) -> Sequence[Tree]:
    return obj['metadata'].get('managedFields') or ()


def _undo(old: Any, new: Any, before: Tree | None, after: Tree | None) -> Any:
    """``before`` and ``after`` are what the managers own of the value; None if nothing."""
    if old == new or (before is None and after is None):
        return new
    values = [value for value in (old, new) if value is not ABSENT]
    if before or after:  # they own parts of it
        parts: list[Parts | None] = [None]
        if all(isinstance(value, Mapping) for value in values):
            parts = [{f'f:{key}': (key, item) for key, item in value.items()} for value in values]
        elif all(isinstance(value, list) for value in values):
            parts = [_find_items(value, {**(before or {}), **(after or {})}) for value in values]
        olds, news = ({} if value is ABSENT else part for value, part in (
            (old, parts[0]), (new, parts[-1])))
        if olds is not None and news is not None:
            made = [(name, item) for key, (name, _) in {**olds, **news}.items() if (
                item := _undo(
                    olds.get(key, (name, ABSENT))[1], news.get(key, (name, ABSENT))[1],
                    (before or {}).get(key), (after or {}).get(key))) is not ABSENT]
            if not made and ABSENT in (old, new):
                return ABSENT
            return dict(made) if isinstance(values[0], Mapping) else [item for _, item in made]
    return old if (after if new is not ABSENT else before) is not None else new


def _find_items(items: list[Any], tree: Tree) -> Parts | None:
    """Find the items of a list by their keys in the tree; None if they have no keys there."""
    found = {}
    shapes = [tuple(json.loads(key[2:])) for key in tree if key.startswith('k:')]
    if not shapes and not any(key.startswith('v:') for key in tree):
        return None
    for item in items:
        if isinstance(item, Mapping):
            shape = max((shape for shape in shapes if all(name in item for name in shape)),
                        key=len, default=())
            name = 'k:' + _dump({part: item[part] for part in shape})
        else:
            name = 'v:' + _dump(item)
        found[name] = name, item
    return found if len(found) == len(items) else None


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(',', ':'), ensure_ascii=False)
