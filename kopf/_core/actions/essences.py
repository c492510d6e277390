"""
Calculations with essences: for the handlers of an object that others edit at the same time.

All functions are pure. An essence is the part of an object whose changes count, as built by the
diff-base storage. A patch is a merge patch (RFC 7396).
"""
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kopf._cogs.structs import bodies, dicts, patches

OWN_PREFIX = 'kopf.dev/'
"""The prefix of the labels and annotations by which Kopf knows owned resources."""


def strip(essence: bodies.BodyEssence, annotation: str | None = None) -> bodies.BodyEssence:
    """
    Leave out the labels and annotations that Kopf sets on owned resources, and this ``annotation``.

    They depend on the parent and on how Kopf writes the manifest, not on what the object is. An
    essence that was stored by a former version can have them.

    >>> strip({'metadata': {'labels': {'kopf.dev/owner': 'uid'}}, 'spec': {'a': 1}})
    {'spec': {'a': 1}}
    """
    meta: Any = essence.get('metadata')
    if not meta:
        return essence
    for stanza in ('labels', 'annotations'):
        for key in meta.get(stanza) or ():
            if key.startswith(OWN_PREFIX) or key == annotation:
                essence = dicts.without(essence, ('metadata', stanza, key))
    return essence


def advance(
        essence: bodies.BodyEssence,
        contributed: Iterable[patches.Patch],
        stored: bodies.BodyEssence,
) -> bodies.BodyEssence:
    """
    Update the fields that the operator's own patches have set, with the values that are stored.

    The fields that others have changed stay as they were, because the handlers must still see these
    changes. In the example, ``a`` is patched by the operator, and ``b`` is changed by others.

    >>> advance({'spec': {'a': 1, 'b': 1}}, [{'spec': {'a': 2}}], {'spec': {'a': 2, 'b': 5}})
    {'spec': {'a': 2, 'b': 1}}
    """
    result = cast(dict[str, Any], essence)
    newer = cast(dict[str, Any], stored)
    for patch in contributed:
        result = _take_over(result, patch, newer)
    return cast(bodies.BodyEssence, _reorder(result, newer))


def rebase(
        base: bodies.BodyEssence, divergent: bodies.BodyEssence, current: bodies.BodyEssence,
) -> bodies.BodyEssence:
    """
    Replace those fields of the base to which the object has returned from the divergent state.

    Some handlers have seen the divergent state instead of the base. If a field returns from the
    divergent value to the base value, the diff from the base is empty, but for these handlers the
    return is a change. The diff from the result shows this change. In the example, ``a`` has
    returned from 5 to 0, so the result has 5; ``b`` has changed, so the result has the base value.

    >>> rebase({'a': 0, 'b': 0}, {'a': 5, 'b': 0}, {'a': 0, 'b': 7})
    {'a': 5, 'b': 0}
    """
    return cast(bodies.BodyEssence, _rebase(
        cast(dict[str, Any], base), cast(dict[str, Any], divergent),
        cast(dict[str, Any], current)))


def _rebase(
        base: Mapping[str, Any], divergent: Mapping[str, Any], current: Mapping[str, Any],
) -> dict[str, Any]:
    result = dict(base)
    for key in {**current, **divergent}:
        states = [source.get(key) for source in (base, divergent, current)]
        if states[1] == states[2]:
            continue
        if all(state is None or isinstance(state, Mapping) for state in states):
            value: Any = _rebase(*(state or {} for state in states))
            if not value and (states[0] if states[1] else states[1]) is None:
                value = None  # an absent field, not an empty one
        else:
            value = states[1] if states[0] == states[2] else states[0]
        if value is not None:
            result[key] = value
        else:
            result.pop(key, None)
    return result


def _take_over(
        source: Mapping[str, Any], patch: Mapping[str, Any], newer: Mapping[str, Any],
) -> dict[str, Any]:
    """
    Copy the source with those fields of the newer state that the merge patch sets or removes.

    An empty dict in the patch changes no dict that is there. An emptied parent is removed, unless
    it is also an empty dict in the newer state.
    """
    result = dict(source)
    for key, value in patch.items():
        old, new = source.get(key), newer.get(key)
        if isinstance(value, dict) and value:
            result[key] = _take_over(_get_fields(old), value, _get_fields(new))
            if not result[key] and new != {}:
                del result[key]
        elif value == {} and isinstance(old, Mapping):
            continue
        elif key in newer:
            result[key] = newer[key]
        else:
            result.pop(key, None)
    return result


def _get_fields(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _reorder(source: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the keys as in the other mapping, so that it is stored as the server would return it."""
    keys = [*(key for key in like if key in source), *(key for key in source if key not in like)]
    return {
        key: _reorder(source[key], like[key])
        if isinstance(source[key], Mapping) and isinstance(like.get(key), Mapping) else source[key]
        for key in keys}
