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
    parts = ownership.parts(schema, value)
    if parts is None:
        return value
    is_listed = isinstance(value, list)
    result = {}
    for key, item in parts.items():
        element, child = ownership.part_of(schema, key, is_listed)
        fields, keepers = last.get(element), kept.get(element)
        is_named = not is_listed and ownership.child_of(schema, key)[1]
        was_owned = fields is not None and (is_named or fieldsets.is_member(fields))
        is_kept = keepers is not None and (is_named or fieldsets.is_member(keepers))
        if is_kept or not was_owned:
            result[key] = remove(child, item, fields, keepers or {}) if fields else item
    if value and not result:
        return None
    return list(result.values()) if is_listed else result
