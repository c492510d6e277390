"""
Evidence: what of a change of an object was done by some of the field managers.

The API server notes for each field who has set it last. It does not note who has removed a field,
nor who has deleted the object: a removed field counts as removed by its manager.
"""
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox.applying import fieldsets, ownership
from kopf._kits.sandbox.applying.fieldsets import FieldSet
from kopf._kits.sandbox.applying.rebasing import ABSENT, find_parts
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.statuses import Obj

IsOwn = Callable[[str], bool]
"""Whether it is one of the field managers, by its name."""

Tree = Mapping[str, Any]


def is_managed(obj: Obj, is_own: IsOwn) -> bool:
    """Whether the managers have set anything of the object."""
    return any(is_own(entry.get('manager', '')) for entry in _get_entries(obj))


def undo(schema: nodes.Schema | None, old: Obj, new: Obj, is_own: IsOwn) -> Obj:
    """Make the new state as it would be if the managers had not changed anything of the old one."""
    before, after = (_find_fields(obj, is_own) for obj in (old, new))
    made: Obj = _undo(schema, old, new, before or None, after or None)
    entries = [] if not before else _find_left(old, new, before, after, is_own)
    entries += (entry for entry in _get_entries(new) if not is_own(entry.get('manager', '')))
    return {**made, 'metadata': {**made['metadata'], 'managedFields': entries}}


def _find_left(old: Obj, new: Obj, before: FieldSet, after: FieldSet, is_own: IsOwn) -> list[Tree]:
    """Find what the managers own, except for the fields that others have taken from them."""
    known, others = (_find_fields(obj, lambda name: not is_own(name)) for obj in (old, new))
    taken = fieldsets.subtract(fieldsets.intersect(before, others), fieldsets.unite(after, known))
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


def _undo(
        schema: nodes.Schema | None, old: Any, new: Any, before: Tree | None, after: Tree | None,
) -> Any:
    """``before`` and ``after`` are what the managers own of the value; None if nothing."""
    if old == new or (before is None and after is None):
        return new
    parts = find_parts(schema, old, new)
    if parts is None:
        return old if (after if new is not ABSENT else before) is not None else new
    is_listed = isinstance(old if old is not ABSENT else new, list)
    made = {}
    for key in {**parts[0], **parts[1]}:
        element, child = ownership.part_of(schema, key, is_listed)
        states = [part.get(key, ABSENT) for part in parts]
        trees = [None if tree is None else tree.get(element) for tree in (before, after)]
        decisive = trees[states[1] is not ABSENT]
        is_own = decisive is not None and (not decisive or '.' in decisive)
        if is_listed and ABSENT in states and (is_own or states[1] is ABSENT):
            item = states[0] if is_own else states[1]  # as a whole: its defaults are nobody's
        else:
            item = _undo(child, *states, *trees)
        if item is not ABSENT:
            made[key] = item
    if not made and old and ABSENT in (old, new):
        return ABSENT
    return list(made.values()) if is_listed else made
