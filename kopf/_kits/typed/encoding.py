"""
Encoding: values of an author's classes as the API has them, in the names of the API.
"""
import base64
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from kopf._core.intents import handlers
from kopf._kits.typed import shapes
from kopf._kits.typed.shapes import Kind, Shape
from kopf._kits.typed.vocabulary import Quantity


def encode(value: Any, shape: Shape) -> Any:
    """
    Encode a value of this shape. Absent fields are left out, also those that are None.

    :raises TypeError: if it is no value of this shape.
    """
    if value is None:
        return None
    match shape.kind:
        case Kind.RECORD:
            return _encode_record(value, shape)
        case Kind.LIST:
            assert shape.item is not None
            items = [encode(item, shape.item) for item in value]
            return sorted(items, key=repr) if isinstance(value, (set, frozenset)) else items
        case Kind.MAP:
            assert shape.item is not None
            return {str(key): encode(item, shape.item) for key, item in value.items()}
        case Kind.ENUM:
            return value.value if isinstance(value, enum.Enum) else value
        case Kind.STRING if shape.cls is not str:
            return _encode_text(value)
        case Kind.QUANTITY:
            return value.raw if isinstance(value, Quantity) else value
    return value


def _encode_record(value: Any, shape: Shape) -> dict[str, Any]:
    is_mapping = isinstance(value, Mapping)
    if not is_mapping and not isinstance(value, shape.cls):
        raise TypeError(f"{value!r} is no {shape.cls.__name__}")
    encoded = {}
    for field in shape.fields:
        inner = value.get(field.name, handlers.ABSENT) if is_mapping else getattr(value, field.name)
        if inner is handlers.ABSENT or shapes.is_unset(inner) or (
                inner is None and not field.shape.is_nullable):
            continue
        encoded[field.wire] = encode(inner, field.shape)
    return encoded


def _encode_text(value: Any) -> str:
    match value:
        case bytes():
            return base64.b64encode(value).decode('ascii')
        case datetime.datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return moment.astimezone(datetime.UTC).isoformat().replace('+00:00', 'Z')
        case datetime.date():
            return value.isoformat()
    return str(value)
