"""
Going over from client-side to server-side apply with kubectl: what it has last applied by itself
is in an annotation, and counts as applied. Both ways can be used in turns then.
"""
import json
from typing import Any

from kopf._kits.sandbox import encoding, statuses
from kopf._kits.sandbox.applying import comparing, fieldsets, ownership
from kopf._kits.sandbox.schemas import nodes

ANNOTATION = 'kubectl.kubernetes.io/last-applied-configuration'
KUBECTL = 'kubectl'
MAX_SIZE = 256 * 1024


def fields_of(live: statuses.Obj | None, schema: nodes.Schema) -> fieldsets.FieldSet:
    """Fields that are as they were last applied: nobody else is asked before they are changed."""
    try:
        last = json.loads(_annotations(live)[ANNOTATION])
    except (KeyError, ValueError, RecursionError):
        return fieldsets.EMPTY
    if live is None or not isinstance(last, dict) \
            or last.get('apiVersion') != live.get('apiVersion') \
            or not isinstance(last.get('metadata'), dict):
        return fieldsets.EMPTY
    fields = ownership.fields_of(schema, last)
    for other in comparing.compare(last, live, schema):
        fields = fieldsets.subtract(fields, other)
    return fields


def updated(obj: statuses.Obj, applied: statuses.Obj) -> statuses.Obj:
    """The object with what is applied in its annotation, if it has had one."""
    annotations = _annotations(obj)
    if ANNOTATION not in annotations:
        return obj
    annotations = {**annotations, ANNOTATION: _encode(applied)}
    size = sum(len(key.encode()) + len(str(value).encode('utf-8', 'replace'))
               for key, value in annotations.items())
    if size > MAX_SIZE:
        del annotations[ANNOTATION]
    return {**obj, 'metadata': {**obj['metadata'], 'annotations': annotations}}


def _encode(applied: statuses.Obj) -> str:
    metadata = dict(applied.get('metadata') or {})
    if isinstance(annotations := metadata.get('annotations'), dict):
        metadata['annotations'] = statuses.omit(annotations, ANNOTATION)
    return encoding.encode_sorted({**applied, 'metadata': metadata}).decode() + '\n'


def _annotations(obj: statuses.Obj | None) -> dict[str, Any]:
    found = ((obj or {}).get('metadata') or {}).get('annotations')
    return found if isinstance(found, dict) else {}
