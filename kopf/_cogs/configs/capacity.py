"""
How much fits on an object: Kubernetes limits its annotations, and etcd the whole object.

The limit of annotations is for all of them together, also for those of others, e.g. of kubectl.
"""
import json
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.structs import dicts

MAX_ANNOTATIONS = 256 * 1024
"""The most bytes that the names and values of all annotations of an object can have."""

MAX_OBJECT = 1_500_000
"""How many bytes of JSON an object can have. The limit of etcd, 1.5 MiB, is slightly higher."""


def count_annotations(annotations: Mapping[str, Any], *, without: Collection[str] = ()) -> int:
    """Count the bytes of these annotations; those which are None are removed ones."""
    return sum(
        count(key) + count(value) for key, value in annotations.items()
        if value is not None and key not in without)


def count_object(
        body: Mapping[str, Any], patch: Mapping[str, Any], *, without: dicts.FieldPath,
) -> int:
    """Count the bytes of JSON of the object and of a patch, without one field."""
    value = dicts.resolve(body, without, '')
    return _count_json(dict(body)) - _count_json(value) + _count_json(dict(patch))


def count(text: object) -> int:
    """Count the bytes of a text."""
    text = str(text)
    return len(text) if text.isascii() else len(text.encode(errors='surrogatepass'))


def _count_json(value: object) -> int:
    return count(json.dumps(value, ensure_ascii=False, separators=(',', ':'), default=dict))
