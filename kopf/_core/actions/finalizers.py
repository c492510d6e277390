"""
Finalizers: they hold an object that is being deleted until its operator has finished.

All functions are pure. Whether a finalizer is needed, is decided by `decisions`.
"""
from collections.abc import Mapping, Sequence
from typing import Any, cast

from kopf._cogs.structs import bodies, dicts


def is_deleting(raw: Mapping[str, Any]) -> bool:
    """Whether the object is marked for deletion: it is gone when it has no finalizers."""
    return raw['metadata'].get('deletionTimestamp') is not None


def is_present(raw: Mapping[str, Any], finalizer: str | None) -> bool:
    """Whether the object has this finalizer."""
    return finalizer in (raw['metadata'].get('finalizers') or ())


def switch(raw: bodies.RawBody, finalizer: str | None, *, is_added: bool) -> bodies.RawBody:
    """Add the finalizer to the object as the last one, or remove it."""
    finalizers = [key for key in raw['metadata'].get('finalizers') or () if key != finalizer]
    if is_added and finalizer is not None:
        finalizers.append(finalizer)
    meta: dict[str, Any] = {**raw['metadata'], 'finalizers': finalizers}
    if not finalizers:
        del meta['finalizers']
    return cast(bodies.RawBody, {**raw, 'metadata': meta})


def guard(raw: bodies.RawBody, patch: Mapping[str, Any]) -> Sequence[dicts.FieldPath] | None:
    """
    Find the fields that must not change before the finalizer is added, together with a patch.

    These are the finalizers, and the annotations of the patch. If the patch is not for annotations
    only, the result is None: then, nothing must change.
    """
    meta = patch.get('metadata', {})
    if patch.keys() - {'metadata'} or meta.keys() - {'annotations'}:
        return None
    guards = [('metadata', 'uid'), ('metadata', 'finalizers')]
    if 'annotations' in meta and not raw['metadata'].get('annotations'):
        return [*guards, ('metadata', 'annotations')]
    return [*guards, *(('metadata', 'annotations', key) for key in meta.get('annotations', {}))]
