"""
Schemas: shapes as structural schemas of OpenAPI v3, minimal and always in the same order.
"""
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._cogs.helpers import yamltexts
from kopf._core.intents import handlers
from kopf._kits.sandbox.schemas import expressions, nodes, validating
from kopf._kits.typed import encoding, shapes, vocabulary
from kopf._kits.typed.shapes import Field, Kind, Shape
from kopf._kits.typed.vocabulary import CEL, DeclarationError

Schema = dict[str, Any]

LIMITS = frozenset({'maxItems', 'maxProperties'})

SMALL = 15
"""Up to which length strings in any number of items can be compared by a rule of the API."""

_TYPES = {
    Kind.BOOLEAN: 'boolean', Kind.INTEGER: 'integer', Kind.NUMBER: 'number', Kind.STRING: 'string',
    Kind.LIST: 'array', Kind.MAP: 'object', Kind.OBJECT: 'object', Kind.RECORD: 'object'}


def normalise(value: Any) -> Any:
    """Copy a JSON value, with the numbers as the API stores them: ``1.0`` is ``1``."""
    read = yamltexts.read_plain
    return json.loads(json.dumps(value), parse_float=read, parse_int=read)


def make(shape: Shape, path: str) -> Schema:
    """
    Make the schema of a value. The path is for messages.

    :raises DeclarationError: if a default is no value of its field.
    """
    keywords: Schema = {
        'description': shape.description,
        'nullable': shape.is_nullable,
        'format': shape.format,
        'x-kubernetes-preserve-unknown-fields': shape.kind in (Kind.ANY, Kind.OBJECT),
        'x-kubernetes-embedded-resource': shape.is_embedded,
        'x-kubernetes-map-type': 'atomic' if shape.is_atomic else None,
        'x-kubernetes-list-type': shape.list_type,
        'x-kubernetes-list-map-keys': [*shape.keys]}
    schema: Schema = {
        **shape.limits, **{key: value for key, value in keywords.items() if value}}
    match shape.kind:
        case Kind.ENUM:
            schema['type'] = 'string' if isinstance(shape.values[0], str) else 'integer'
            schema['enum'] = [*shape.values]
        case Kind.QUANTITY | Kind.INT_OR_STRING:
            schema['x-kubernetes-int-or-string'] = True
            if shape.kind is Kind.QUANTITY:
                schema['pattern'] = vocabulary.QUANTITY
        case kind if kind is not Kind.ANY:
            schema['type'] = _TYPES[kind]
    if shape.item is not None:
        if not schema.keys() & LIMITS and _is_costly(shape.item):
            raise DeclarationError(
                f"{path} can have any number of items with a kopf.Immutable value of any size: the "
                f"API refuses to compare them. Limit the items with Len, the value with MaxLen.")
        inner = make(shape.item, f'{path}[]')
        schema['items' if shape.kind is Kind.LIST else 'additionalProperties'] = inner
    if shape.kind is Kind.RECORD:
        _fill(schema, shape, path)
    rules = [*_iter_rules(shape)]
    if rules:
        schema['x-kubernetes-validations'] = rules
    return schema


def _fill(schema: Schema, shape: Shape, path: str) -> None:
    """Add the fields of a record."""
    properties = {}
    for field in sorted(shape.fields, key=lambda field: field.wire):
        place = f'{path}.{field.name}'
        properties[field.wire] = make(field.shape, place)
        if field.description:
            properties[field.wire]['description'] = field.description
        if field.default not in (None, handlers.ABSENT, shapes.MISSING):
            properties[field.wire]['default'] = _make_default(field, properties[field.wire], place)
    if properties:
        schema['properties'] = properties
    required = sorted(field.wire for field in shape.fields if not field.is_optional)
    if required:
        schema['required'] = required


def _make_default(field: Field, schema: Schema, path: str) -> Any:
    """Make the default of a field, without what the defaults of its own fields say."""
    try:
        value = encoding.encode(field.default, field.shape)
        is_same = field.factory is None or value == encoding.encode(field.factory(), field.shape)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, AttributeError) as e:
        raise DeclarationError(f"{path} has the default {field.default!r}, which is none of the "
                               f"API: {e}.") from e
    if not is_same:
        raise DeclarationError(
            f"{path} has another default each time, but the API has one for all objects. Write "
            f"'… | None = None', and make the value in a handler.")
    node = nodes.Schema(schema)
    node.with_rules = False  # not all functions of the API are known here
    for cause in validating.validate(node, value, at=(None, field.wire)):
        raise DeclarationError(f"{path} has the default {field.default!r}, which does not fit: "
                               f"{cause.message}")
    return _strip_defaults(value, field.shape)


def _strip_defaults(value: Any, shape: Shape) -> Any:
    if shape.kind is not Kind.RECORD or not isinstance(value, Mapping):
        return value
    return {
        key: _strip_defaults(value[key], field.shape)
        for field in shape.fields for key in [field.wire]
        if key in value and not (
            field.default not in (None, handlers.ABSENT, shapes.MISSING)
            and encoding.encode(field.default, field.shape) == value[key])}


def _iter_rules(shape: Shape) -> Iterator[Schema]:
    for rule in shape.rules:
        yield make_rule(rule)
    if shape.is_immutable:
        yield make_rule(CEL('self == oldSelf', "It cannot be changed."))
    for field in sorted(shape.fields, key=lambda field: field.wire):
        # Rules about changes are not evaluated if one of the values is absent. So, removing the
        # value and setting it again would go round them.
        if _has_removable(field):
            name = expressions.escape(field.wire)
            yield make_rule(CEL(
                f'!has(oldSelf.{name}) || has(self.{name})',
                f"{field.wire} cannot be removed, as it cannot be changed."))


def _has_removable(field: Field) -> bool:
    """Whether a field can be absent, and something that cannot be changed with it."""
    is_absent = field.is_optional and field.default in (None, handlers.ABSENT, shapes.MISSING)
    return is_absent and _is_fixed(field.shape)


def _is_fixed(shape: Shape) -> bool:
    """Whether the value cannot be changed, or another one in it."""
    return shape.is_immutable or any(_is_fixed(field.shape) for field in shape.fields)


def _is_costly(shape: Shape) -> bool:
    """Whether values that cannot be changed, and have any size, are in it."""
    return (shape.is_immutable and _is_endless(shape)) or any(map(_is_costly, shape.inner))


def _is_endless(shape: Shape) -> bool:
    """Whether the API estimates a comparison of two values as endless."""
    match shape.kind:
        case Kind.STRING:
            return shape.limits.get('maxLength', math.inf) > SMALL and (
                shape.format not in ('date', 'date-time', 'duration'))
        case Kind.LIST | Kind.MAP:
            return not shape.limits.keys() & LIMITS
    return shape.kind in (Kind.QUANTITY, Kind.INT_OR_STRING)


def make_rule(rule: CEL) -> Schema:
    """Make a rule of a schema."""
    made = {'rule': rule.rule, 'message': rule.message, 'fieldPath': rule.field}
    return {key: value for key, value in made.items() if value is not None}
