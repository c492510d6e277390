"""
Scales: the numbers of replicas of an object, as an object of its own.
"""
from typing import Any

from kopf._kits.sandbox import encoding, tables
from kopf._kits.sandbox.kinds import Kind, Scaling
from kopf._kits.sandbox.selecting import labels_text
from kopf._kits.sandbox.statuses import APIError, Obj

SCALE = Kind(group='autoscaling', version='v1', plural='scales', kind='Scale', storage_version='v1')

WORKLOADS = Scaling('.spec.replicas', '.status.replicas', '')
"""Those of the built-in kinds that can be scaled."""


def scale_of(kind: Kind, obj: Obj) -> Obj:
    """The scale of an object. Raises an error if the object has none (yet)."""
    scaling = kind.scaling or WORKLOADS
    metadata = {key: obj['metadata'][key] for key in (
        'name', 'namespace', 'uid', 'resourceVersion', 'creationTimestamp')
        if key in obj['metadata']}
    replicas = _found(obj, scaling.spec_path)
    if replicas is None:
        if kind.custom:
            path = encoding.encode(scaling.spec_path).decode()
            raise APIError(f"the spec replicas field {path} does not exist", reason='')
        replicas = 1
    if kind.custom:
        selector = _found(obj, scaling.selector_path) if scaling.selector_path else ''
    else:
        selector = (obj.get('spec') or {}).get('selector')
        selector = labels_text(selector if kind.plural != 'replicationcontrollers' else
                               {'matchLabels': selector or {}})
    status: Obj = {'replicas': _found(obj, scaling.status_path) or 0}
    if selector:
        status['selector'] = selector
    return {
        'kind': SCALE.kind, 'apiVersion': SCALE.api_version, 'metadata': metadata,
        'spec': {'replicas': replicas} if replicas else {}, 'status': status,
    }


def _found(obj: Obj, path: str) -> Any:
    return next(iter(tables.follow(obj, tables.parse_path(path))), None)
