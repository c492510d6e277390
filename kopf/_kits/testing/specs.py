"""
Strategies of hypothesis for the specs of a custom resource, by its schema.

They make small values: few items, short texts, numbers near zero. Rules that are not about single
values (CEL, ``oneOf``, ``not``, and so on) are left to the API server, which refuses what breaks
them. The module is imported only when it is used, as it needs hypothesis.
"""
import base64
import datetime
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import errors
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Schema = Mapping[str, Any]

ALPHABET = 'abcxyz0189-'
MAX_TEXT = 8
MAX_ITEMS = 3
NUMBERS = (-5, 100)
"""The range of numbers without limits in the schema."""

FORMATS: Mapping[str, SearchStrategy[str]] = {
    'date-time': st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2040, 1, 1)).map(
        '{:%Y-%m-%dT%H:%M:%SZ}'.format),
    'date': st.dates(datetime.date(2000, 1, 1), datetime.date(2040, 1, 1)).map(str),
    'byte': st.binary(min_size=1, max_size=MAX_TEXT).map(
        lambda data: base64.b64encode(data).decode()),
    'duration': st.integers(0, 1000).map('{}s'.format),
    'ipv4': st.ip_addresses(v=4).map(str),
    'ipv6': st.ip_addresses(v=6).map(str),
    'uuid': st.uuids().map(str),
}
"""The texts of the formats that not all texts have."""


def find_schema(definition: Mapping[str, Any]) -> Schema:
    """
    Find the schema of the spec in a CustomResourceDefinition, in the version that is stored.

    :raises ValueError: if the schema says nothing about the fields of the spec.
    """
    version = next(item for item in definition['spec']['versions'] if item['storage'])
    schema = version.get('schema', {}).get('openAPIV3Schema', {})
    spec: Schema = schema.get('properties', {}).get('spec', {})
    if not spec.get('properties') and not isinstance(spec.get('additionalProperties'), Mapping):
        raise ValueError(
            f"The schema of {definition['metadata']['name']} says nothing about the fields of the "
            f"spec. List some specs: specs=[...].")
    return spec


def make_strategy(schema: Schema) -> SearchStrategy[Any]:
    """Make a strategy for the values of a schema."""
    if 'enum' in schema:
        return st.sampled_from(schema['enum'])
    strategy = _make_typed(schema)
    return st.none() | strategy if schema.get('nullable') else strategy


def _make_typed(schema: Schema) -> SearchStrategy[Any]:
    if schema.get('x-kubernetes-int-or-string'):
        return _make_numbers(schema, is_integer=True) | _make_texts(schema)
    match schema.get('type'):
        case 'boolean':
            return st.booleans()
        case 'integer':
            return _make_numbers(schema, is_integer=True)
        case 'number':
            return _make_numbers(schema, is_integer=False)
        case 'string':
            return _make_texts(schema)
        case 'array':
            return _make_lists(schema)
    return _make_objects(schema)


def _make_numbers(schema: Schema, *, is_integer: bool) -> SearchStrategy[Any]:
    lowest, highest = NUMBERS
    step = schema.get('multipleOf', 1 if is_integer else None)
    low = schema.get('minimum', min(lowest, schema.get('maximum', lowest) + lowest))
    high = schema.get('maximum', max(highest, low + highest))
    if not step:
        return st.floats(
            low, high, exclude_min=bool(schema.get('exclusiveMinimum')),
            exclude_max=bool(schema.get('exclusiveMaximum')), width=32)
    first, last = -(-low // step), high // step
    first += bool(schema.get('exclusiveMinimum')) and first * step == low
    last -= bool(schema.get('exclusiveMaximum')) and last * step == high
    return st.integers(int(first), int(last)).map(lambda number: number * step)


def _make_texts(schema: Schema) -> SearchStrategy[str]:
    shortest = schema.get('minLength', 0)
    longest = schema.get('maxLength', shortest + MAX_TEXT)
    if 'pattern' in schema:
        return _make_matching(schema['pattern']).filter(
            lambda text: shortest <= len(text) <= longest and not text.endswith('\n'))  # for `$`
    if schema.get('format') in FORMATS:
        return FORMATS[schema['format']]
    return st.text(ALPHABET, min_size=shortest, max_size=min(longest, shortest + MAX_TEXT))


def _make_matching(pattern: str) -> SearchStrategy[str]:
    """Make readable texts that match, or any texts if the pattern has other characters."""
    strategy = st.from_regex(
        pattern, alphabet=st.characters(codec='ascii', categories=['L', 'N', 'P', 'S', 'Zs']))
    try:
        strategy.validate()
    except errors.InvalidArgument:
        return st.from_regex(pattern)
    return strategy


def _make_lists(schema: Schema) -> SearchStrategy[list[Any]]:
    fewest = schema.get('minItems', 0)
    most = min(schema.get('maxItems', fewest + MAX_ITEMS), fewest + MAX_ITEMS)
    keys = schema.get('x-kubernetes-list-map-keys')
    is_unique = schema.get('uniqueItems') or schema.get('x-kubernetes-list-type') in ('set', 'map')

    def identify(item: Any) -> str:
        return json.dumps([item.get(key) for key in keys] if keys else item, sort_keys=True)

    return st.lists(
        make_strategy(schema.get('items', {})), min_size=fewest, max_size=most,
        unique_by=identify if is_unique else None)


def _make_objects(schema: Schema) -> SearchStrategy[dict[str, Any]]:
    fields = {
        name: make_strategy(field) for name, field in schema.get('properties', {}).items()
        if not field.get('x-kubernetes-embedded-resource')}
    required = {name: fields.pop(name) for name in schema.get('required', ()) if name in fields}
    rest = schema.get('additionalProperties')
    known = st.fixed_dictionaries(required, optional=fields)
    fewest, most = schema.get('minProperties', 0), schema.get('maxProperties', float('inf'))
    if isinstance(rest, Mapping):
        keys = st.text(ALPHABET[:6], min_size=1, max_size=MAX_TEXT)
        others = st.dictionaries(
            keys, make_strategy(rest), min_size=fewest, max_size=min(most, fewest + MAX_ITEMS))
        known = st.builds(lambda first, second: {**second, **first}, known, others)
    return known.filter(lambda found: fewest <= len(found) <= most)
