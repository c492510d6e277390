"""
Kinds side by side with what controller-gen v0.16 makes of the same types and markers of Go.

The schemas are equal but for what is documented: Go has sized integers, and ``anyOf`` is redundant.
"""
import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal

import annotated_types as at
import pytest
import yaml

import kopf
from kopf._kits.typed import kinds


def make(**fields):
    """Make a spec: each value is an annotation, or an annotation with a default."""
    return dataclasses.make_dataclass('Spec', [
        (name, *(value if isinstance(value, tuple) else (value,)))
        for name, value in fields.items()], kw_only=True)


class Policy(enum.StrEnum):
    ALLOW = 'Allow'
    FORBID = 'Forbid'


Port = make(name=str, port=Annotated[int, at.Interval(ge=1, le=65535)])

KINDS = {
    'scalars': (make(a=str, b=int, c=bool), """
        properties:
          a: {type: string}
          b: {format: int64, type: integer}
          c: {type: boolean}
        required: [a, b, c]
        type: object
    """),
    'optional': (make(a=(str | None, None), b=(int, 3)), """
        properties:
          a: {type: string}
          b: {default: 3, format: int32, type: integer}
        type: object
    """),
    'limits': (make(
        a=Annotated[int, at.Interval(ge=1, le=9)], b=Annotated[str, at.Len(1, 63)],
        c=Annotated[str, kopf.Pattern('^[a-z]+$')], d=Annotated[int, at.Gt(0)],
        e=Annotated[int, at.MultipleOf(5)]), """
        properties:
          a: {format: int64, maximum: 9, minimum: 1, type: integer}
          b: {maxLength: 63, minLength: 1, type: string}
          c: {pattern: '^[a-z]+$', type: string}
          d: {exclusiveMinimum: true, format: int64, minimum: 0, type: integer}
          e: {format: int64, multipleOf: 5, type: integer}
        required: [a, b, c, d, e]
        type: object
    """),
    'enums': (make(a=Policy, b=(Literal['x', 'y'], 'x')), """
        properties:
          a: {enum: [Allow, Forbid], type: string}
          b: {default: x, enum: [x, y], type: string}
        required: [a]
        type: object
    """),
    'lists': (make(
        a=list[str], b=Annotated[list[str], kopf.ListSet],
        c=Annotated[list[Port], kopf.ListMap('name'), at.MaxLen(16)]), """
        properties:
          a: {items: {type: string}, type: array}
          b: {items: {type: string}, type: array, x-kubernetes-list-type: set}
          c:
            items:
              properties:
                name: {type: string}
                port: {format: int32, maximum: 65535, minimum: 1, type: integer}
              required: [name, port]
              type: object
            maxItems: 16
            type: array
            x-kubernetes-list-map-keys: [name]
            x-kubernetes-list-type: map
        required: [a, b, c]
        type: object
    """),
    'maps': (make(a=dict[str, str], b=dict[str, kopf.Quantity]), """
        properties:
          a: {additionalProperties: {type: string}, type: object}
          b:
            additionalProperties:
              anyOf: [{type: integer}, {type: string}]
              pattern: QUANTITY
              x-kubernetes-int-or-string: true
            type: object
        required: [a, b]
        type: object
    """),
    'numbers': (make(a=kopf.IntOrString, b=kopf.Quantity), """
        properties:
          a:
            anyOf: [{type: integer}, {type: string}]
            x-kubernetes-int-or-string: true
          b:
            anyOf: [{type: integer}, {type: string}]
            pattern: QUANTITY
            x-kubernetes-int-or-string: true
        required: [a, b]
        type: object
    """),
    'unknown': (make(a=dict[str, Any], b=kopf.Embedded), """
        properties:
          a: {type: object, x-kubernetes-preserve-unknown-fields: true}
          b:
            type: object
            x-kubernetes-embedded-resource: true
            x-kubernetes-preserve-unknown-fields: true
        required: [a, b]
        type: object
    """),
    'times': (make(a=datetime.datetime, b=kopf.Nullable[str]), """
        properties:
          a: {format: date-time, type: string}
          b: {nullable: true, type: string}
        required: [a, b]
        type: object
    """),
    'rules': (make(a=Annotated[str, kopf.CEL('self != "x"', "not x")]), """
        properties:
          a:
            type: string
            x-kubernetes-validations: [{message: not x, rule: self != "x"}]
        required: [a]
        type: object
    """),
}

QUANTITY = (r'^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?'
            r'(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$')


def reduce(schema):
    """Leave out what Go needs, and the API does not."""
    if isinstance(schema, list):
        return [reduce(item) for item in schema]
    if not isinstance(schema, dict):
        return QUANTITY if schema == 'QUANTITY' else schema
    return {key: reduce(value) for key, value in schema.items()
            if key != 'anyOf' and (key, value) not in [('format', 'int32'), ('format', 'int64')]}


@pytest.mark.parametrize('name', KINDS)
def test_a_schema_is_that_of_controller_gen(name):
    spec, expected = KINDS[name]
    cls = type('Thing', (), {'__annotations__': {'spec': spec}})
    [definition] = kinds.define([kopf.crd('example.com', 'v1', plural='things')(cls)])
    [version] = definition['spec']['versions']
    schema = version['schema']['openAPIV3Schema']
    assert schema['required'] == ['spec']
    assert schema['properties']['spec'] == reduce(yaml.safe_load(expected))
