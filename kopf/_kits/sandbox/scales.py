"""
What the scale of a custom resource is read from, and what must not be there.
"""
from collections.abc import Iterator
from typing import Any

from kopf._kits.sandbox import wordings
from kopf._kits.sandbox.kinds import Scaling
from kopf._kits.sandbox.statuses import Cause, Obj

MAX_REPLICAS = 2**31 - 1


def validate(scaling: Scaling, obj: Obj) -> Iterator[Cause]:
    """What is wrong with the fields at the paths, where there are any."""
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
