"""
Objects merged with what is applied to them, and freed of what is not applied any more.
"""
from typing import Any

from kopf._kits.sandbox.applying import fieldsets, ownership
from kopf._kits.sandbox.schemas import nodes


def merge(schema: nodes.Schema | None, live: Any, applied: Any) -> Any:
    """
    The live value with what is applied put over it: the parts that are owned apart are merged.

    Items that both have go in the order in which they are applied; others keep their places.
    A null is an empty anything: it adds nothing to what is owned by its parts.
    """
    if applied is None and ownership.parts(schema, live) is not None:
        return live
    if isinstance(live, dict) and isinstance(applied, dict):
        if ownership.parts(schema, applied) is None:
            return applied
        result = dict(live)
        for key, item in applied.items():
            child, _ = ownership.child_of(schema, key)
            result[key] = merge(child, live[key], item) if key in live else item
        return result
    if isinstance(live, list) and isinstance(applied, list) and schema is not None:
        theirs, ours = ownership.elements(schema, live), ownership.elements(schema, applied)
        if theirs is not None and ours is not None:
            return _merge_items(schema.items, theirs, ours)
    return applied


def _merge_items(
        schema: nodes.Schema | None, live: dict[str, Any], applied: dict[str, Any],
) -> list[Any]:
    result = []
    left, right = list(live), list(applied)
    shared = [element for element in right if element in live]
    i = j = 0
    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right):
            if left[i] == right[j]:
                result.append(merge(schema, live[left[i]], applied[right[j]]))
                i, j, shared = i + 1, j + 1, shared[1:]
                continue
            if left[i] in applied and shared and shared[0] != left[i]:
                i += 1  # its place is where it is applied
                continue
        if i < len(left) and left[i] not in applied:
            result.append(live[left[i]])
            i += 1
        elif j < len(right):
            element = right[j]
            known = element in live
            result.append(
                merge(schema, live[element], applied[element]) if known else applied[element])
            j += 1
            if shared and shared[0] == element:
                shared = shared[1:]
        else:
            i += 1
    return result


def remove(
        schema: nodes.Schema | None, value: Any, last: fieldsets.FieldSet,
        kept: fieldsets.FieldSet,
) -> Any:
    """
    The value without those fields of the last time that nobody keeps.

    What gets empty by that becomes ``None``, as it does in the API.
    """
    if isinstance(value, dict):
        result = dict(value)
        for element, fields in last.items():
            key = element.removeprefix('f:')
            if key not in value or not element.startswith('f:'):
                continue
            child, named = ownership.child_of(schema, key)
            keepers = kept.get(element)
            was_owned = named or fieldsets.is_member(fields)
            if was_owned and (keepers is None or not (named or fieldsets.is_member(keepers))):
                del result[key]
            elif fields:
                result[key] = remove(child, value[key], fields, keepers or {})
        return result if result or not value else None
    if isinstance(value, list) and schema is not None:
        items = ownership.elements(schema, value)
        if items is None:
            return value
        rest = []
        for element, item in items.items():
            known = last.get(element)
            keepers = kept.get(element)
            if known is None:
                rest.append(item)
            elif keepers is not None and fieldsets.is_member(keepers):
                rest.append(remove(schema.items, item, known, keepers) if known else item)
            elif not fieldsets.is_member(known):
                rest.append(remove(schema.items, item, known, keepers or {}))
        return rest if rest or not value else None
    return value
