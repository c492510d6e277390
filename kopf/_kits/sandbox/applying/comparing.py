import functools
from typing import Any

from kopf._kits.sandbox.applying import fieldsets, ownership
from kopf._kits.sandbox.schemas import nodes

STRIPPED = frozenset([
    'name', 'namespace', 'creationTimestamp', 'selfLink', 'uid', 'clusterName', 'generation',
    'managedFields', 'resourceVersion',
])
"""Metadata that nobody owns; neither the type of the object."""


class Comparison:
    """What fields a new object has got, changed, and lost, compared to the old one."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any], schema: nodes.Schema) -> None:
        self.added: fieldsets.FieldSet = {}
        self.modified: fieldsets.FieldSet = {}
        self.removed: fieldsets.FieldSet = {}
        self._compare_dicts(
            schema, stripped(old), stripped(new), self.added, self.modified, self.removed)

    @property
    def changed(self) -> fieldsets.FieldSet:
        return fieldsets.unite(self.added, self.modified)

    def _compare_dicts(
            self, schema: nodes.Schema | None, old: dict[str, Any], new: dict[str, Any],
            added: fieldsets.FieldSet, modified: fieldsets.FieldSet, removed: fieldsets.FieldSet,
    ) -> None:
        for key, item in new.items():
            if key not in old:
                if item is None and schema is not None and schema.name:
                    continue  # as good as nothing in built-in kinds
                child, _ = ownership.child_of(schema, key)
                added[f'f:{key}'] = _everything(child, item)
                continue
            before = old[key]
            if before is not item and not _same(before, item):
                child, _ = ownership.child_of(schema, key)
                self._compare(f'f:{key}', child, before, item, added, modified, removed)
        for key, item in old.items():
            if key not in new:
                child, _ = ownership.child_of(schema, key)
                removed[f'f:{key}'] = _everything(child, item)

    def _compare(
            self, element: str, schema: nodes.Schema | None, old: Any, new: Any,
            added: fieldsets.FieldSet, modified: fieldsets.FieldSet, removed: fieldsets.FieldSet,
    ) -> None:
        """Compare two values that differ."""
        if old is None and isinstance(new, dict | list):
            old = type(new)()  # a null is an empty anything
        elif new is None and isinstance(old, dict | list):
            new = type(old)()
        inside: tuple[fieldsets.FieldSet, fieldsets.FieldSet, fieldsets.FieldSet] = {}, {}, {}
        if isinstance(old, dict) and isinstance(new, dict) and not ownership.is_atomic(schema, new):
            self._compare_dicts(schema, old, new, *inside)
        elif isinstance(old, list) and isinstance(new, list):
            old_items, new_items = ownership.elements(schema, old), ownership.elements(schema, new)
            if old_items is None or new_items is None or schema is None:
                modified[element] = {}
                return
            self._compare_items(schema.items, old_items, new_items, *inside)
        else:
            modified[element] = _everything(schema, new)
            gone = _everything(schema, old)
            gone.pop(fieldsets.DOT, None)
            if gone:
                removed[element] = gone
            return
        for whole, part in zip((added, modified, removed), inside, strict=True):
            if part:
                whole[element] = part

    def _compare_items(
            self, schema: nodes.Schema | None, old: dict[str, Any], new: dict[str, Any],
            added: fieldsets.FieldSet, modified: fieldsets.FieldSet, removed: fieldsets.FieldSet,
    ) -> None:
        for element, item in new.items():
            if element not in old:
                added[element] = _everything(schema, item)
            elif not _same(old[element], item):
                self._compare(element, schema, old[element], item, added, modified, removed)
        for element, item in old.items():
            if element not in new:
                removed[element] = _everything(schema, item)


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
    if isinstance(value, dict):
        if not value or ownership.is_atomic(schema, value):
            return {}
        result: fieldsets.FieldSet = {fieldsets.DOT: {}}
        for key, item in value.items():
            child, _ = ownership.child_of(schema, key)
            result[f'f:{key}'] = _everything(child, item)
        return result
    if isinstance(value, list) and value:
        items = ownership.elements(schema, value)
        if items is not None and schema is not None:
            return {fieldsets.DOT: {}, **{
                element: _everything(schema.items, item) for element, item in items.items()}}
    return {}


def _same(one: Any, two: Any) -> bool:
    return bool(one == two) and isinstance(one, bool) is isinstance(two, bool)
