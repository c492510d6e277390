"""
Pairs of definitions, what is incompatible between them, and an object that shows it.

The same pairs are judged by `compare`, and by the API itself: see
``tests/e2e/test_compatibility.py``.
"""
import copy
import dataclasses
from typing import Any

ROOT = 'things.example.com/v1'
X = f'{ROOT}.spec.x'

STRING = {'type': 'string'}
INTEGER = {'type': 'integer'}
ANYTHING = {'x-kubernetes-preserve-unknown-fields': True}
KEEPING = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}


def define(schema: Any = KEEPING, *, version: Any = None, **spec: Any) -> Any:
    """Make a definition: ``schema`` is that of ``spec``; the rest changes the version, and all."""
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': 'things.example.com'},
        'spec': {
            'group': 'example.com', 'scope': 'Namespaced',
            'names': {'plural': 'things', 'kind': 'Thing'},
            'versions': [{
                'name': 'v1', 'served': True, 'storage': True,
                'schema': {'openAPIV3Schema': {
                    'type': 'object', 'properties': {'spec': copy.deepcopy(schema)}}},
                **(version or {}),
            }],
            **spec,
        },
    }


def holding(required: Any = (), **properties: Any) -> Any:
    """Make the schema of an object with these fields."""
    needs = {'required': [*required]} if required else {}
    return {'type': 'object', 'properties': properties, **needs}


def listing(items: Any, **more: Any) -> Any:
    return {'type': 'array', 'items': items, **more}


def mapping(values: Any, **more: Any) -> Any:
    return {'type': 'object', 'additionalProperties': values, **more}


def rules(*texts: str, **more: Any) -> Any:
    return {'x-kubernetes-validations': [{'rule': text, **more} for text in texts]}


@dataclasses.dataclass
class Pair:
    """
    Two schemas of ``spec``; a ``spec`` for the old one; which rules find something, and where.

    The API harms the object if, and only if, an error is expected, and it is not ``harmless``.
    """

    name: str
    old: Any
    new: Any
    spec: Any
    expected: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    harmless: bool = False
    """Whether only clients are concerned, which have to change."""
    is_new: bool = False
    """Whether Kubernetes 1.20 knows nothing of it."""

    def __str__(self) -> str:
        return self.name


def on_x(name: str, old: Any, new: Any, value: Any, *expected: str, **options: Any) -> Pair:
    """Make a pair of schemas for ``spec.x``. The path in it can follow the rule: RULE@[*].a"""
    places = [(rule, X + more) for rule, _, more in (each.partition('@') for each in expected)]
    return Pair(name, holding(x=old), holding(x=new), {'x': value}, places, **options)


PAIRS = [
    # Fields
    Pair('a field is removed', holding(x=STRING, y=STRING), holding(y=STRING),
         {'x': 'a', 'y': 'b'}, [('field-removed', X)]),
    Pair('a field is removed, and all are kept', holding(x=STRING),
         {**KEEPING, 'properties': {'y': STRING}}, {'x': 'a'}),
    Pair('a field is new', holding(y=STRING), holding(y=STRING, x=STRING), {'y': 'a'}),
    on_x('a field becomes a value of a map', holding(a=STRING), mapping(STRING), {'a': 'b'}),
    on_x('a field becomes another value of a map', holding(a=STRING), mapping(INTEGER), {'a': 'b'},
         'type-changed@.a'),
    on_x('the values of a map become a field', mapping(STRING), holding(a=STRING),
         {'a': 'b', 'c': 'd'}, 'field-removed@[*]'),
    on_x('the values of a map become a field of another type', mapping(STRING), holding(a=INTEGER),
         {'a': 'b'}, 'field-removed@[*]', 'type-changed@.a'),
    on_x('the values of a map change', mapping(STRING), mapping(INTEGER), {'a': 'b'},
         'type-changed@[*]'),
    on_x('any values of a map become strings', mapping(True), mapping(STRING), {'a': 1},
         'type-changed@[*]'),
    on_x('unknown fields are removed', KEEPING, holding(a=ANYTHING), {'a': 1, 'b': 2},
         'unknown-fields-removed'),
    on_x('unknown fields become values of a map', KEEPING, mapping(STRING), {'a': 1},
         'type-changed@[*]'),
    on_x('an unknown field gets a type', KEEPING, {**KEEPING, 'properties': {'a': STRING}},
         {'a': 1}, 'type-changed@.a'),
    on_x('a field of items is removed', listing(holding(a=STRING, b=STRING)),
         listing(holding(a=STRING)), [{'a': 'c', 'b': 'd'}], 'field-removed@[*].b'),
    Pair('a field with a name that is no word', holding(**{'a/b': STRING}), holding(),
         {'a/b': 'c'}, [('field-removed', f"{ROOT}.spec['a/b']")]),

    # Types
    on_x('a type changes', STRING, INTEGER, 'a', 'type-changed'),
    on_x('a type widens', INTEGER, {'x-kubernetes-int-or-string': True}, 1, 'type-changed',
         harmless=True),
    on_x('a type is new', ANYTHING, {'x-kubernetes-int-or-string': True}, {'a': 1},
         'type-changed'),
    on_x('a type narrows', {'x-kubernetes-int-or-string': True}, INTEGER, 'a', 'type-changed'),
    on_x('a format is new', STRING, {**STRING, 'format': 'ipv4'}, 'a', 'format-changed'),
    on_x('a format changes', {**STRING, 'format': 'ipv6'}, {**STRING, 'format': 'ipv4'}, '::1',
         'format-changed'),
    on_x('a format is gone', {**STRING, 'format': 'ipv6'}, STRING, '::1', 'format-changed',
         harmless=True),

    # Required fields
    Pair('a field becomes required', holding(x=STRING), holding(['x'], x=STRING), {},
         [('required-added', X)]),
    Pair('a new field is required', holding(y=STRING), holding(['x'], x=STRING, y=STRING),
         {'y': 'a'}, [('required-added', X)]),
    Pair('a required field of a new parent', holding(), holding(x=holding(['a'], a=STRING)), {}),
    Pair('a required field with a default', holding(x={**STRING, 'default': 'a'}),
         holding(['x'], x={**STRING, 'default': 'a'}), {}),
    Pair('a required field loses its default', holding(['x'], x={**STRING, 'default': 'a'}),
         holding(['x'], x=STRING), {}, [('default-changed', X), ('required-added', X)]),
    Pair('a field becomes optional', holding(['x'], x=STRING), holding(x=STRING), {'x': 'a'}),

    # Values
    on_x('an enum is new', STRING, {**STRING, 'enum': ['a', 'b']}, 'c', 'enum-narrowed'),
    on_x('an enum narrows', {**STRING, 'enum': ['a', 'b']}, {**STRING, 'enum': ['a']}, 'b',
         'enum-narrowed'),
    on_x('an enum widens', {**STRING, 'enum': ['a']}, {**STRING, 'enum': ['b', 'a']}, 'a',
         'enum-widened'),
    on_x('an enum is gone', {**STRING, 'enum': ['a']}, STRING, 'a'),
    on_x('a minimum is new', INTEGER, {**INTEGER, 'minimum': 1}, 0, 'bounds-tightened'),
    on_x('a minimum rises', {**INTEGER, 'minimum': 1}, {**INTEGER, 'minimum': 2}, 1,
         'bounds-tightened'),
    on_x('a minimum becomes exclusive', {**INTEGER, 'minimum': 1},
         {**INTEGER, 'minimum': 1, 'exclusiveMinimum': True}, 1, 'bounds-tightened'),
    on_x('an exclusive minimum is none without a minimum', INTEGER,
         {**INTEGER, 'exclusiveMinimum': True}, 0),
    on_x('a minimum falls', {**INTEGER, 'minimum': 2},
         {**INTEGER, 'minimum': 1, 'exclusiveMinimum': True}, 2),
    on_x('a maximum falls', {**INTEGER, 'maximum': 2}, {**INTEGER, 'maximum': 1}, 2,
         'bounds-tightened'),
    on_x('a maximum becomes exclusive', {**INTEGER, 'maximum': 1},
         {**INTEGER, 'maximum': 1, 'exclusiveMaximum': True}, 1, 'bounds-tightened'),
    on_x('a maximum rises', {**INTEGER, 'maximum': 2},
         {**INTEGER, 'maximum': 3, 'exclusiveMaximum': True}, 2),
    on_x('a length is new', STRING, {**STRING, 'minLength': 2}, 'a', 'bounds-tightened'),
    on_x('a length of nothing is new', STRING, {**STRING, 'minLength': 0}, 'a'),
    on_x('a length falls', {**STRING, 'maxLength': 3}, {**STRING, 'maxLength': 2}, 'abc',
         'bounds-tightened'),
    on_x('more items are needed', listing(STRING), listing(STRING, minItems=1), [],
         'bounds-tightened'),
    on_x('less items are allowed', listing(STRING), listing(STRING, maxItems=1), ['a', 'b'],
         'bounds-tightened'),
    on_x('more properties are needed', mapping(STRING), mapping(STRING, minProperties=1), {},
         'bounds-tightened'),
    on_x('less properties are allowed', mapping(STRING), mapping(STRING, maxProperties=1),
         {'a': 'b', 'c': 'd'}, 'bounds-tightened'),
    on_x('multiples are new', INTEGER, {**INTEGER, 'multipleOf': 2}, 1, 'bounds-tightened'),
    on_x('multiples are rarer', {**INTEGER, 'multipleOf': 2}, {**INTEGER, 'multipleOf': 3}, 2,
         'bounds-tightened'),
    on_x('multiples are denser', {**INTEGER, 'multipleOf': 4}, {**INTEGER, 'multipleOf': 2}, 4),
    on_x('a pattern is new', STRING, {**STRING, 'pattern': '^a$'}, 'b', 'pattern-changed'),
    on_x('a pattern changes', {**STRING, 'pattern': '^b$'}, {**STRING, 'pattern': '^a$'}, 'b',
         'pattern-changed'),
    on_x('a pattern is gone', {**STRING, 'pattern': '^b$'}, STRING, 'b'),
    on_x('null is not allowed any more', {**STRING, 'nullable': True}, STRING, None,
         'nullable-removed'),
    on_x('null is allowed', STRING, {**STRING, 'nullable': True}, 'a'),
    on_x('a combination is new', INTEGER, {**INTEGER, 'not': {'enum': [1]}}, 1,
         'combination-changed'),
    on_x('a combination changes', {**INTEGER, 'oneOf': [{'enum': [1]}, {'enum': [2]}]},
         {**INTEGER, 'oneOf': [{'enum': [1]}, {'enum': [3]}]}, 2, 'combination-changed'),
    on_x('a combination is gone', {**INTEGER, 'allOf': [{'minimum': 1}]}, INTEGER, 1),
    on_x('a combination of two types is new', {'x-kubernetes-int-or-string': True},
         {'x-kubernetes-int-or-string': True, 'anyOf': [{'enum': [1]}, {'enum': [2]}]}, 'a',
         'combination-changed'),
    on_x('a combination says what is known', {'x-kubernetes-int-or-string': True},
         {'x-kubernetes-int-or-string': True, 'anyOf': [INTEGER, STRING]}, 'a'),
    on_x('a default is new', STRING, {**STRING, 'default': 'a'}, 'b', 'default-changed'),
    on_x('a default changes', {**STRING, 'default': 'a'}, {**STRING, 'default': 'b'}, 'a',
         'default-changed'),
    on_x('a default is gone', {**STRING, 'default': 'a'}, STRING, 'a', 'default-changed'),
    on_x('a description changes', {**STRING, 'description': 'a'}, {**STRING, 'title': 'b'}, 'a'),

    # Rules
    on_x('a rule is new', INTEGER, {**INTEGER, **rules('self < 5')}, 7, 'rule-added', is_new=True),
    on_x('a rule changes', {**INTEGER, **rules('self < 9')}, {**INTEGER, **rules('self < 5')}, 7,
         'rule-added', is_new=True),
    on_x('a rule about changes is new', INTEGER, {**INTEGER, **rules('self >= oldSelf')}, 7,
         'rule-added', harmless=True, is_new=True),
    on_x('a rule gets a message', {**INTEGER, **rules('self < 5')},
         {**INTEGER, **rules('self < 5', message='too many')}, 3, is_new=True),
    on_x('a rule is gone', {**INTEGER, **rules('self < 5')}, INTEGER, 3, is_new=True),

    # Structure
    on_x('a list becomes a set', listing(STRING),
         listing(STRING, **{'x-kubernetes-list-type': 'set'}), ['a', 'a'], 'list-type-changed'),
    on_x('a list is declared as what it is', listing(STRING),
         listing(STRING, **{'x-kubernetes-list-type': 'atomic'}), ['a', 'a']),
    on_x('a list gets other keys',
         listing(holding(['a', 'b'], a=STRING, b=STRING), **{
             'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['a', 'b']}),
         listing(holding(['a', 'b'], a=STRING, b=STRING), **{
             'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['a']}),
         [{'a': 'c', 'b': 'd'}, {'a': 'c', 'b': 'e'}], 'list-type-changed'),
    on_x('a map becomes atomic', mapping(STRING),
         mapping(STRING, **{'x-kubernetes-map-type': 'atomic'}), {'a': 'b'}, 'map-type-changed',
         harmless=True),
    on_x('an object becomes an embedded one', KEEPING,
         {**KEEPING, 'x-kubernetes-embedded-resource': True}, {'a': 'b'}, 'embedding-changed',
         'type-changed@.apiVersion', 'type-changed@.kind', 'type-changed@.metadata'),
    on_x('an object is embedded no more',
         {**holding(a=STRING), 'x-kubernetes-embedded-resource': True}, holding(a=STRING),
         {'apiVersion': 'v1', 'kind': 'A', 'a': 'b'}, 'embedding-changed',
         'field-removed@.apiVersion', 'field-removed@.kind', 'field-removed@.metadata'),
]
