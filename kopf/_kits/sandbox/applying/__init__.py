"""
Ownership of fields: server-side apply, and the bookkeeping for all other writes.

The manager that has set a field owns the field. An update takes over the ownership. An apply of
a field of another manager is a conflict, unless it is forced. If a manager no longer applies
a field, the field is removed, unless other managers also own it. All functions are pure: the given
objects are not changed.
"""
import functools
from collections.abc import Iterable
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.applying import (
    comparing,
    fieldsets,
    lastapplied,
    managers,
    merging,
    ownership,
    typechecks,
)
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.schemas.depths import guarded

__all__ = ['apply', 'track_update']

BEFORE_APPLY = 'before-first-apply'


@guarded
def track_update(
        old: statuses.Obj | None,
        new: statuses.Obj,
        *,
        manager: str,
        schema: nodes.Schema,
        api_version: str,
        time: str,
        subresource: str = '',
) -> list[dict[str, Any]]:
    """
    The ``managedFields`` of an object after it is created (``old`` is none) or updated.

    The schema is the typed one: with the metadata's types (`schemas.typed_schema_of`).
    A new object must be completed, but must not have assigned values yet: no manager owns what
    the API server assigns. The manager that has changed a field becomes its only owner.

    Managers that the client sends with the new object are believed, except on subresources;
    if it sends none or nonsense, the old ones stay; if it sends one empty entry, all are
    forgotten, and nobody is tracked until the next apply.
    """
    own = managers.Manager(manager, 'Update', subresource, api_version)
    found = _decode(old, new, subresource)
    _coarsen(found, schema)
    if old is not None and not found:
        return []
    before = old if old is not None else comparing.blank(schema)
    changed, removed = comparing.compare(before, new, schema)
    owned = found.fields.get(own, fieldsets.EMPTY)
    if changed:
        found.release(fieldsets.unite(changed, removed))
        rest = fieldsets.subtract(owned, removed)
        found.own(own, fieldsets.unite(rest, changed), api_version)
        found.times[own] = time
        found.cap()
    else:
        found.release(removed)
    return found.encode()


def _decode(old: statuses.Obj | None, new: statuses.Obj, subresource: str) -> managers.Managers:
    entries = new.get('metadata', {}).get('managedFields')
    known = (old or {}).get('metadata', {}).get('managedFields') or ()
    if entries != known and not subresource:
        if managers.is_reset(entries):
            return managers.Managers()
        try:
            found = managers.Managers(entries or ())
        except fieldsets.Malformed:
            found = managers.Managers()
        if found:
            return found
    return managers.Managers(known, trusted=True)


def _coarsen(found: managers.Managers, schema: nodes.Schema) -> None:
    for manager, fields in found.fields.items():
        found.fields[manager] = ownership.coarsen(schema, fields)


@guarded
def apply(
        live: statuses.Obj | None,
        applied: statuses.Obj,
        *,
        manager: str,
        force: bool = False,
        schema: nodes.Schema,
        api_version: str,
        time: str,
        subresource: str = '',
        without: Iterable[str] = (),
) -> statuses.Obj:
    """
    What the live object (or none) becomes when a configuration is applied to it.

    The schema is the typed one. ``without`` are top-level fields that cannot be written here,
    as the status of what has it as a subresource: they stay as they are, and get no owners.
    The result has its ``managedFields``; emptied containers are ``None`` in it, as in the API.
    For kubectl, what it has last applied by itself (see `lastapplied`) counts as its own.

    Raises `statuses.Conflict` with causes if others own what would be changed (unless forced),
    `statuses.BadRequest` or an error with code 500 for a configuration that is none.
    """
    if 'managedFields' in (applied.get('metadata') or {}):
        raise statuses.BadRequest("metadata.managedFields must be nil")
    typechecks.verify(schema, applied, api_version)
    whole = applied
    applied = statuses.omit(whole, *without)

    own = managers.Manager(manager, 'Apply', subresource)
    entries = (live or {}).get('metadata', {}).get('managedFields') or ()
    found = managers.Managers(entries, trusted=True)
    _coarsen(found, schema)
    if live is not None and not found:
        everything, _ = comparing.compare(comparing.blank(schema), live, schema)
        unknown = managers.Manager(BEFORE_APPLY, 'Update', '', api_version)
        if everything:
            found.own(unknown, everything, api_version)
            found.times[unknown] = time

    last = found.fields.get(own, fieldsets.EMPTY)
    found.own(own, ownership.fields_of(schema, applied), api_version)
    merged = merging.merge(schema, live or {}, applied)
    if last:
        kept = functools.reduce(fieldsets.unite, found.fields.values())
        merged = merging.remove(schema, merged, last, kept) or {}
    configured = comparing.stripped(applied)
    if not configured['metadata']:
        del configured['metadata']
    found.own(own, ownership.fields_of(schema, configured), api_version)

    changed, removed = comparing.compare(live or {}, merged, schema)
    conflicts = {
        other: common for other, fields in found.others(own)
        if (common := fieldsets.intersect(fields, changed))
    }
    if conflicts and not force:
        own_by_annotation = lastapplied.fields_of(live, schema) \
            if manager == lastapplied.KUBECTL else fieldsets.EMPTY
        refused = {
            other: rest for other, common in conflicts.items()
            if (rest := fieldsets.subtract(common, own_by_annotation))
        }
        if refused:
            raise _conflict(refused)
    for common in conflicts.values():
        found.release(common, besides=own)
    found.release(removed, besides=own)
    if not found.fields[own]:
        del found.fields[own]
    if changed or removed:
        found.times[own] = time
    metadata = statuses.omit(merged.get('metadata') or {}, 'managedFields')
    if entries := found.encode():
        metadata['managedFields'] = entries
    result = {**merged, 'metadata': metadata}
    return lastapplied.updated(result, whole) if manager == lastapplied.KUBECTL else result


def _conflict(conflicts: dict[managers.Manager, fieldsets.FieldSet]) -> statuses.Conflict:
    told = sorted((manager.shown, list(fieldsets.iterate(fields)))
                  for manager, fields in conflicts.items())
    causes = [statuses.Cause('FieldManagerConflict', field, f"conflict with {shown}")
              for shown, fields in told for field in fields]
    if len(causes) == 1:
        (shown, [field]), = told
        text = f"conflict: conflict with {shown}: {field}"
    else:
        text = "conflicts: " + '\n'.join(
            f"conflicts with {shown}:\n" + '\n'.join(f"- {field}" for field in fields)
            for shown, fields in told)
    return statuses.Conflict.of_managers(f"Apply failed with {len(causes)} {text}", causes)
