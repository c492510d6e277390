import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import APIError
from kopf._kits.testing import specs

FIELDS = {
    'flag': {'type': 'boolean'},
    'number': {'type': 'integer'},
    'positive': {'type': 'integer', 'minimum': 0, 'exclusiveMinimum': True, 'maximum': 3},
    'negative': {'type': 'integer', 'maximum': -1000},
    'even': {'type': 'integer', 'multipleOf': 2, 'minimum': 1, 'maximum': 5},
    'ratio': {'type': 'number', 'minimum': 0, 'maximum': 1, 'exclusiveMaximum': True},
    'text': {'type': 'string', 'minLength': 2, 'maxLength': 3},
    'color': {'type': 'string', 'enum': ['red', 'blue']},
    'label': {'type': 'string', 'pattern': '^[a-z]+(-[0-9]+)?$', 'maxLength': 10},
    'title': {'type': 'string', 'pattern': '^[A-Z][a-z]* [a-z ]+$'},
    'umlaut': {'type': 'string', 'pattern': '^[äöü]+\\t?$'},
    'when': {'type': 'string', 'format': 'date-time'},
    'day': {'type': 'string', 'format': 'date'},
    'data': {'type': 'string', 'format': 'byte'},
    'long': {'type': 'string', 'format': 'duration'},
    'address': {'type': 'string', 'format': 'ipv4'},
    'address6': {'type': 'string', 'format': 'ipv6'},
    'id': {'type': 'string', 'format': 'uuid'},
    'maybe': {'type': 'string', 'nullable': True},
    'port': {'x-kubernetes-int-or-string': True},
    'names': {
        'type': 'array', 'items': {'type': 'string'}, 'minItems': 1, 'maxItems': 2,
        'x-kubernetes-list-type': 'set'},
    'ports': {
        'type': 'array', 'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': ['name'],
        'items': {
            'type': 'object', 'required': ['name'],
            'properties': {'name': {'type': 'string'}, 'port': {'type': 'integer'}}}},
    'labels': {
        'type': 'object', 'additionalProperties': {'type': 'string'}, 'minProperties': 1,
        'maxProperties': 2},
    'nested': {'type': 'object', 'properties': {'more': {'type': 'boolean'}}},
}
SCHEMA = {'type': 'object', 'required': ['text', 'number'], 'properties': FIELDS}
MANY = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck))


def make_definition(spec, **schema):
    return {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
        'metadata': {'name': 'things.example.com'},
        'spec': {
            'group': 'example.com', 'scope': 'Namespaced',
            'names': {'kind': 'Thing', 'plural': 'things', 'singular': 'thing'},
            'versions': [
                {'name': 'v1', 'served': True, 'storage': False, 'schema': {
                    'openAPIV3Schema': {'type': 'object'}}},
                {'name': 'v2', 'served': True, 'storage': True, 'schema': {
                    'openAPIV3Schema': {'type': 'object', 'properties': {'spec': spec}}}}]},
    }


def test_all_that_is_made_is_accepted_by_the_api():
    made = []

    # What is made also depends on the modules that other tests have imported; and each field must
    # be in some of it.
    @settings(MANY, max_examples=400)
    @given(specs.make_strategy(SCHEMA))
    def collect(spec):
        made.append(spec)

    async def check():
        async with Sandbox() as sandbox:
            await sandbox.load(make_definition(SCHEMA))
            for number, spec in enumerate(made):
                try:
                    await sandbox.create({
                        'apiVersion': 'example.com/v2', 'kind': 'Thing', 'spec': spec,
                        'metadata': {'name': f'thing-{number}', 'namespace': 'default'}})
                except APIError as e:
                    raise AssertionError(f"{spec}: {e}") from e

    collect()
    asyncio.run(check())
    assert {name for spec in made for name in spec} == set(FIELDS)


@pytest.mark.parametrize('name', FIELDS)
def test_values_differ(name):
    found = []

    @MANY
    @given(specs.make_strategy(FIELDS[name]))
    def collect(value):
        found.append(str(value))

    collect()
    assert len(set(found)) > 1


def test_the_schema_is_that_of_the_stored_version():
    assert specs.find_schema(make_definition(SCHEMA)) == SCHEMA


@pytest.mark.parametrize('schema', [
    {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}, {'type': 'object'}])
def test_a_schema_that_allows_everything_is_of_no_use(schema):
    with pytest.raises(ValueError, match=r"specs=\[\.\.\.\]"):
        specs.find_schema(make_definition(schema))


def test_values_of_any_fields_are_made():
    schema = {'type': 'object', 'additionalProperties': {'type': 'integer'}}
    assert isinstance(specs.make_strategy(schema), st.SearchStrategy)
    assert specs.find_schema(make_definition(schema)) == schema
