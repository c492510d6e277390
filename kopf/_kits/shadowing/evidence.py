"""
Evidence: what of a change of an object was done by some of the field managers.

The API server notes for each field who has set it last. It does not note who has removed a field,
nor who has deleted the object: a removed field counts as removed by its manager.
"""
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.sandbox.applying.rebasing import ABSENT
from kopf._kits.sandbox.statuses import Obj

IsOwn = Callable[[str], bool]
"""Whether it is one of the field managers, by its name."""

Tree = Mapping[str, Any]

Parts = dict[str, tuple[str, Any]]
"""The parts of a value by their keys in trees, with the keys of maps."""


def is_managed(obj: Obj, is_own: IsOwn) -> bool:
    """Whether the managers have set anything of the object."""
    return any(True for _ in _iter_trees(obj, is_own))


def undo(old: Obj, new: Obj, is_own: IsOwn) -> Obj:
    """Make the new state as it would be if the managers had not changed anything of the old one."""
    trees: list[Tree | None] = []
    for obj in old, new:
        merged: dict[str, Any] = {}
        for tree in _iter_trees(obj, is_own):
            _merge(merged, tree)
        trees.append(merged or None)
    made: Obj = _undo(old, new, *trees)
    made['metadata'] = {**made['metadata'], 'managedFields': [
        entry for obj, is_kept in ((old, True), (new, False))
        for entry in obj['metadata'].get('managedFields') or ()
        if is_own(entry.get('manager', '')) == is_kept]}
    return made


def _iter_trees(obj: Obj, is_own: IsOwn) -> Iterator[Tree]:
    for entry in obj['metadata'].get('managedFields') or ():
        if is_own(entry.get('manager', '')):
            yield entry.get('fieldsV1') or {}


def _merge(tree: dict[str, Any], other: Tree) -> None:
    for key, inner in other.items():
        _merge(tree.setdefault(key, {}), inner)


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
