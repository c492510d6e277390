"""
Random schemas with objects that fit them, and random changes of these schemas.
"""
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests._kits.typed.pairs import ANYTHING, KEEPING

WORDS = ['a', 'b', 'abc', '10.0.0.1', '::1']
NUMBERS = [0, 1, 2, 3, 4, 6, 12]


def make_pair(rng: random.Random) -> tuple[Any, Any, list[Any]]:
    """Make two schemas of ``spec``, and values that fit the first one, or nearly."""
    old = _make_object(rng, depth=3)
    new = copy.deepcopy(old)
    for _ in range(rng.randint(1, 4)):
        node = rng.choice([*_iter_nodes(new)])
        change = rng.choice(CHANGES)
        change(rng, node)
    return old, new, [make_value(rng, old) for _ in range(6)]


def make_schema(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[..., Any]] = [_make_string, _make_string, _make_integer, _make_other]
    if depth > 0:
        kinds += [_make_object, _make_object, _make_list, _make_map]
    schema = rng.choice(kinds)(rng, depth=depth - 1)
    if rng.random() < 0.1:
        schema['nullable'] = True
    if rng.random() < 0.1:
        _add_rule(rng, schema)
    return schema


def make_value(rng: random.Random, schema: Any) -> Any:
    """Make a value that fits the schema most of the time, and is at its bounds often."""
    if schema.get('nullable') and rng.random() < 0.4:
        return None
    if 'enum' in schema:
        return rng.choice(schema['enum'])
    match schema.get('type'):
        case 'string':
            return rng.choice(WORDS)
        case 'integer' | 'number':
            bounds = [schema[key] for key in ('minimum', 'maximum') if key in schema]
            return rng.choice([*bounds, *NUMBERS])
        case 'boolean':
            return rng.random() < 0.5
        case 'array':
            return [make_value(rng, schema['items']) for _ in range(rng.randint(0, 3))]
        case 'object':
            return _make_fields(rng, schema)
    return rng.choice([1, 'a'] if 'x-kubernetes-int-or-string' in schema else [1, 'a', {'a': 1}])


def _make_fields(rng: random.Random, schema: Any) -> Any:
    fields = {key: make_value(rng, sub) for key, sub in schema.get('properties', {}).items()
              if key in schema.get('required', ()) or rng.random() < 0.7}
    for key in sorted({*'xyz'} - {*schema.get('properties', {})}):
        if rng.random() < 0.5 and 'additionalProperties' in schema:
            fields[key] = make_value(rng, schema['additionalProperties'])
        elif rng.random() < 0.5 and schema.get('x-kubernetes-preserve-unknown-fields'):
            fields[key] = make_value(rng, ANYTHING)
    return fields


def _make_string(rng: random.Random, depth: int) -> Any:
    return {'type': 'string', **rng.choice([
        {}, {}, {'enum': ['a', 'b']}, {'minLength': 1}, {'maxLength': 3}, {'pattern': '^[a-c]+$'},
        {'format': 'ipv4'}, {'default': 'a'}])}


def _make_integer(rng: random.Random, depth: int) -> Any:
    return {'type': 'integer', **rng.choice([
        {}, {'minimum': 1}, {'maximum': 6}, {'multipleOf': 2}, {'enum': [1, 2, 3]}, {'default': 2},
        {'minimum': 1, 'exclusiveMinimum': True}])}


def _make_other(rng: random.Random, depth: int) -> Any:
    return copy.deepcopy(rng.choice([
        {'type': 'boolean'}, {'type': 'number'}, {'x-kubernetes-int-or-string': True}, ANYTHING,
        KEEPING]))


def _make_object(rng: random.Random, depth: int) -> Any:
    names = rng.sample('abcdxyz', rng.randint(1, 3))
    schema = {'type': 'object', 'properties': {
        name: make_schema(rng, depth) for name in names}}
    required = [name for name in names if rng.random() < 0.3]
    if required:
        schema['required'] = required
    if rng.random() < 0.2:
        schema['x-kubernetes-preserve-unknown-fields'] = True
    return schema


def _make_list(rng: random.Random, depth: int) -> Any:
    schema = {'type': 'array', 'items': make_schema(rng, depth), **rng.choice([
        {}, {'minItems': 1}, {'maxItems': 2}])}
    _set_list_type(rng, schema)
    return schema


def _make_map(rng: random.Random, depth: int) -> Any:
    return {'type': 'object', 'additionalProperties': make_schema(rng, depth), **rng.choice([
        {}, {'minProperties': 1}, {'maxProperties': 1}])}


def _iter_nodes(schema: Any) -> Iterator[Any]:
    yield schema
    for sub in [*schema.get('properties', {}).values(), schema.get('items'),
                schema.get('additionalProperties')]:
        if sub is not None:
            yield from _iter_nodes(sub)


def _replace(rng: random.Random, node: Any) -> None:
    for name, sub in node.get('properties', {}).items():
        node['properties'][name] = rng.choice([make_schema(rng, depth=1), sub])


def _add(rng: random.Random, node: Any) -> None:
    if 'properties' in node:
        node['properties'].setdefault(rng.choice('abcdxyz'), make_schema(rng, depth=1))


def _remove(rng: random.Random, node: Any) -> None:
    if node.get('properties'):
        name = rng.choice([*node['properties']])
        del node['properties'][name]
        node['required'] = [each for each in node.get('required', ()) if each != name]


def _require(rng: random.Random, node: Any) -> None:
    if node.get('properties'):
        node['required'] = rng.sample([*node['properties']], 1)


def _limit(rng: random.Random, node: Any) -> None:
    number, more = rng.choice(NUMBERS), rng.choice([True, False])
    node.update(rng.choice({
        'string': [{'minLength': number}, {'maxLength': number}, {'pattern': '^[b-d]+$'},
                   {'format': rng.choice(['ipv4', 'ipv6'])}, {'enum': rng.sample(WORDS, 3)}],
        'integer': [{'minimum': number, 'exclusiveMinimum': more},
                    {'maximum': number, 'exclusiveMaximum': more}, {'multipleOf': number or 1},
                    {'enum': rng.sample(NUMBERS, 3)}, {'not': {'enum': [number]}}],
        'number': [{'minimum': number}],
        'array': [{'minItems': number}, {'maxItems': number}],
        'object': [{'minProperties': number}] if 'properties' not in node else [{}],
    }.get(node.get('type', ''), [{}])))


def _forget(rng: random.Random, node: Any) -> None:
    for key in rng.sample(sorted(node), min(2, len(node))):
        if key not in ('type', 'items', 'properties', 'additionalProperties') and (
                'type' in node):
            del node[key]


def _make_nullable(rng: random.Random, node: Any) -> None:
    node['nullable'] = not node.get('nullable')


def _close(rng: random.Random, node: Any) -> None:
    if node.get('type') == 'object':
        node.pop('x-kubernetes-preserve-unknown-fields', None)
        if rng.random() < 0.3:
            node.pop('additionalProperties', None)
        elif rng.random() < 0.3:
            node['x-kubernetes-preserve-unknown-fields'] = True


def _turn(rng: random.Random, node: Any) -> None:
    """Make fields of a map, or a map of fields."""
    if 'additionalProperties' in node:
        node['properties'] = {'x': node.pop('additionalProperties')}
    elif node.get('properties') and rng.random() < 0.5:
        node['additionalProperties'] = rng.choice([*node.pop('properties').values()])
        node.pop('required', None)


def _set_list_type(rng: random.Random, node: Any) -> None:
    if node.get('type') == 'array':
        items = node['items']
        node.pop('x-kubernetes-list-map-keys', None)
        node['x-kubernetes-list-type'] = 'atomic'
        if items.get('type') in ('string', 'integer'):
            node['x-kubernetes-list-type'] = rng.choice(['set', 'atomic'])
        elif items.get('required') and rng.random() < 0.7:
            node['x-kubernetes-list-type'] = 'map'
            node['x-kubernetes-list-map-keys'] = [rng.choice(items['required'])]


def _add_rule(rng: random.Random, node: Any) -> None:
    number = rng.choice(NUMBERS)
    texts = {
        'integer': [f'self != {number}', f'self < {number}', f'self > {number} || self == oldSelf'],
        'string': ["self != 'a'", 'self == oldSelf'],
        'array': [f'self.size() != {number}'],
        'object': [f"has(self.{key})" for key in node.get('properties', {}) if len(key) == 1],
    }.get(node.get('type', ''))
    if texts:
        node['x-kubernetes-validations'] = [{'rule': rng.choice(texts)}]


CHANGES = [_replace, _add, _remove, _require, _limit, _limit, _limit, _forget, _make_nullable,
           _close, _turn, _set_list_type, _add_rule]
