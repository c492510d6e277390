"""
Scales: the numbers of replicas of an object, as an object of its own; and what must not be there.
"""
from collections.abc import Iterator
from typing import Any

from kopf._kits.sandbox import encoding, wordings
from kopf._kits.sandbox.kinds import Kind, Scaling
from kopf._kits.sandbox.selecting import labels_text
from kopf._kits.sandbox.statuses import APIError, Cause, Obj, dig

SCALE = Kind(group='autoscaling', version='v1', plural='scales', kind='Scale', storage_version='v1')

WORKLOADS = Scaling('.spec.replicas', '.status.replicas', '')
"""Those of the built-in kinds that can be scaled."""

MAX_REPLICAS = 2**31 - 1


def scale_of(kind: Kind, obj: Obj) -> Obj:
    """The scale of an object. Raises an error if the object has none (yet)."""
    scaling = kind.scaling or WORKLOADS
    metadata = {key: obj['metadata'][key] for key in (
        'name', 'namespace', 'uid', 'resourceVersion', 'creationTimestamp')
        if key in obj['metadata']}
    replicas = dig(obj, scaling.spec_path[1:])
    if replicas is None:
        if kind.custom:
            path = encoding.encode(scaling.spec_path).decode()
            raise APIError(f"the spec replicas field {path} does not exist", reason='')
        replicas = 1
    if kind.custom:
        selector = dig(obj, scaling.selector_path[1:])
    else:
        selector = (obj.get('spec') or {}).get('selector')
        selector = labels_text(selector if kind.plural != 'replicationcontrollers' else
                               {'matchLabels': selector or {}})
    status: Obj = {'replicas': dig(obj, scaling.status_path[1:]) or 0}
    if selector:
        status['selector'] = selector
    return {
        'kind': SCALE.kind, 'apiVersion': SCALE.api_version, 'metadata': metadata,
        'spec': {'replicas': replicas} if replicas else {}, 'status': status,
    }


def validate(scaling: Scaling, obj: Obj) -> Iterator[Cause]:
    """What is wrong with the fields of a custom resource at the paths, where there are any."""
    for path in scaling.spec_path, scaling.status_path:
        replicas, problem = _find(obj, path, int, 'int64')
        if problem:
            yield wordings.invalid(path, 0, problem)
        elif replicas is None:
            continue
        elif replicas < 0:
            yield wordings.invalid(path, replicas, "should be a non-negative integer")
        elif replicas > MAX_REPLICAS:
            yield wordings.invalid(
                path, replicas, f"should be less than or equal to {MAX_REPLICAS}")
    if scaling.selector_path:
        _, problem = _find(obj, scaling.selector_path, str, 'string')
        if problem:
            yield wordings.invalid(scaling.selector_path, '', problem)


def _find(obj: Obj, path: str, type: type, name: str) -> tuple[Any, str]:
    """The value at the path, if any, and what is wrong with it or on the way to it."""
    value: Any = obj
    keys = path.split('.')[1:]
    for index, key in enumerate(keys, start=1):
        if value is None:
            return None, ''
        if not isinstance(value, dict):
            return None, _mistyped(keys[:index], value, 'map[string]interface{}')
        if key not in value:
            return None, ''
        value = value[key]
    if not isinstance(value, type) or isinstance(value, bool):
        return None, _mistyped(keys, value, name)
    return value, ''


def _mistyped(keys: list[str], value: Any, expected: str) -> str:
    return (f".{'.'.join(keys)} accessor error: {wordings.printed(value)} is of the type "
            f"{wordings.go_type(value)}, expected {expected}")
