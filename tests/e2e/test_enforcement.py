"""
Whether the API server ignores of a schema exactly what is listed for its version.
"""
import pytest

from kopf._kits.typed.enforcement import FORMATS, find_unenforced
from tests._kits.typed.pairs import (
    INTEGER,
    KEEPING,
    STRING,
    define,
    holding,
    listing,
    mapping,
    rules,
)
from tests.e2e.kubes import CRDS, KubeError

NUMBER = {'type': 'number'}

LIMITS = [
    (STRING, 1), (INTEGER, 'a'), (INTEGER, 1.5), ({'type': 'boolean'}, 1), (holding(), []),
    (listing(STRING), {}), (listing(STRING), [1]), (mapping(STRING), {'a': 1}),
    ({'x-kubernetes-int-or-string': True}, True),
    ({**STRING, 'enum': ['a']}, 'b'), ({**INTEGER, 'enum': [1]}, 2),
    ({**INTEGER, 'minimum': 1}, 0), ({**INTEGER, 'minimum': 1, 'exclusiveMinimum': True}, 1),
    ({**INTEGER, 'maximum': 1}, 2), ({**INTEGER, 'maximum': 1, 'exclusiveMaximum': True}, 1),
    ({**INTEGER, 'multipleOf': 2}, 3),
    ({**STRING, 'minLength': 2}, 'a'), ({**STRING, 'maxLength': 2}, 'abc'),
    ({**STRING, 'pattern': '^a$'}, 'b'),
    (listing(STRING, minItems=1), []), (listing(STRING, maxItems=1), ['a', 'b']),
    (listing(STRING, **{'x-kubernetes-list-type': 'set'}), ['a', 'a']),
    (listing(holding(['a'], a=STRING), **{
        'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['a']}),
     [{'a': 'b'}, {'a': 'b'}]),
    (mapping(STRING, minProperties=1), {}), (mapping(STRING, maxProperties=1), {'a': '', 'b': ''}),
    (holding(['a'], a=STRING), {}),
    ({**INTEGER, 'not': {'enum': [1]}}, 1), ({**INTEGER, 'allOf': [{'minimum': 2}]}, 1),
    ({**INTEGER, 'anyOf': [{'minimum': 2}]}, 1), ({**INTEGER, 'oneOf': [{'minimum': 2}]}, 1),
    ({**KEEPING, 'x-kubernetes-embedded-resource': True}, {'a': 1}),
    ({**INTEGER, **rules('self > 1')}, 1),
    *(({**STRING, 'format': format}, '~ a !') for format in FORMATS['string']
      if format != 'password'),  # which allows anything
    ({**INTEGER, 'format': 'int32'}, 2 ** 31), ({**INTEGER, 'format': 'int64'}, 2 ** 63),
    ({**NUMBER, 'format': 'float'}, 1e39),
    *(({**STRING, 'format': format}, '~ a !') for format in ('quantity', 'ip', 'int-or-string')),
]
"""Schemas, and values that they forbid."""


async def check(judge, minor, schema, value):
    await judge.set_schema(holding(x=schema))
    listed = find_unenforced(define(holding(x=schema)), minor)
    try:
        await judge.create('some', dry=True, spec={'x': value})
    except KubeError as e:
        assert e.status == 422, e
        assert not listed, (schema, str(e))
    else:
        assert listed, schema


async def test_the_api_accepts_what_a_schema_forbids_if_and_only_if_it_is_listed(judge, minor):
    for schema, value in LIMITS:
        await check(judge, minor, schema, value)


async def test_the_api_ignores_rules_for_new_objects_if_and_only_if_it_is_listed(
        judge, minor, is_sandbox):
    if is_sandbox:
        pytest.skip("The sandbox does not know optionalOldSelf.")
    schema = {**INTEGER, **rules('self > 1 || oldSelf.hasValue()', optionalOldSelf=True)}
    await check(judge, minor, schema, 1)


async def test_the_api_selects_by_fields_unless_it_is_listed(kube, make_kind, minor):
    kind = await make_kind()
    path = f'{CRDS}/{kind.plural}.{kind.group}'
    definition = await kube.request('GET', path)
    definition['spec']['versions'][0].update(
        schema={'openAPIV3Schema': holding(spec=holding(x=STRING))},
        selectableFields=[{'jsonPath': '.spec.x'}])
    listed = find_unenforced(definition, minor)
    stored = await kube.set_spec(path, definition['spec'], dry=True)
    assert bool(listed) == ('selectableFields' not in stored['spec']['versions'][0])
