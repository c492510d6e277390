"""
Managed fields in writes: each change updates which manager has set which fields.
"""
from typing import Any

from kopf._kits.sandbox import applying, schemas
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import Obj, omit


def track(request: Request, old: Obj | None, new: Obj, now: str) -> None:
    """Attribute the changes to the request's manager, in the new object's metadata."""
    kind = request.kind
    apart = kind.has_status and request.subresource != 'status'  # what is not written is not owned
    entries = applying.track_update(
        omit(old, 'status') if apart and old else old, omit(new, 'status') if apart else new,
        manager=request.manager, schema=schemas.typed_schema_of(kind),
        api_version=kind.api_version, time=now, subresource=request.subresource)
    if entries:
        new['metadata']['managedFields'] = entries
    else:
        new['metadata'].pop('managedFields', None)


def apply(request: Request, old: Obj | None, applied: Obj, now: str) -> Obj:
    """The object that the configuration makes of the old one (or none), with its managers."""
    kind = request.kind
    without: set[str] = set()
    if request.subresource == 'status':
        without = {*applied, *(old or ())} - {'apiVersion', 'kind', 'metadata', 'status'}
    elif kind.has_status:
        without = {'status'}
    return applying.apply(
        old, applied, manager=request.manager, force=request.flag('force'),
        schema=schemas.typed_schema_of(kind), api_version=kind.api_version, time=now,
        subresource=request.subresource, without=without)


def keep_times(new: Obj, old: Obj) -> None:
    """Where nothing but times of managed fields has changed, nothing has."""
    fields, known = new['metadata'].get('managedFields'), old['metadata'].get('managedFields')
    if fields != known and _timeless(fields) == _timeless(known):
        rest = {**new, 'metadata': {**new['metadata'], 'managedFields': known}}
        if rest == old:
            new['metadata']['managedFields'] = known


def _timeless(entries: Any) -> list[Any]:
    return [omit(entry, 'time') for entry in entries or ()]
