"""
What the conventions of Kubernetes advise against in a definition.
"""
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.typed.compatibility import compare_schemas, get_root, get_strategy
from kopf._kits.typed.findings import (
    Definition,
    Finding,
    Schema,
    add_key,
    find,
    iter_children,
    iter_schemas,
)


def lint(definition: Definition) -> list[Finding]:
    """Find what the conventions advise against. Nothing of it is refused by the API."""
    name, spec = definition['metadata']['name'], definition['spec']
    found: list[Finding] = []
    for version in spec['versions']:
        path, root = f'{name}/{version["name"]}', version['schema']['openAPIV3Schema']
        found += _lint_status(path, version, root)
        found += _lint_bounds(path, root)
        found += [finding for place, schema in iter_schemas(path, root)
                  for finding in _lint_schema(place, schema, is_root=place == path)]
    if get_strategy(spec) == 'None':
        served = [version for version in spec['versions'] if version['served']]
        for one, other in itertools.permutations(served, 2):
            found += _lint_difference(name, one, other)
    return sorted(found)


def _lint_difference(
        name: str, one: Mapping[str, Any], other: Mapping[str, Any],
) -> Iterator[Finding]:
    """Find the fields of a version that do not fit into another version."""
    for each in compare_schemas(f'{name}/{one["name"]}', get_root(one), get_root(other)):
        if each.level == 'error':
            yield find('versions-differ', each.path,
                       f"In {other['name']}, objects of {one['name']} differ. {each.text} "
                       f"Convert the versions by a webhook.")


def _lint_status(path: str, version: Mapping[str, Any], root: Schema) -> Iterator[Finding]:
    status = (root.get('properties') or {}).get('status')
    if status is None:
        return
    if 'status' not in (version.get('subresources') or {}):
        yield find('status-without-subresource', f'{path}.status',
                   "The status is no subresource. Add `subresources: {status: {}}`.")
    fields = status.get('properties') or {}
    if 'phase' in fields:
        yield find('phase-field', f'{path}.status.phase', "Use conditions instead of a phase.")
    conditions = fields.get('conditions')
    if conditions and conditions.get('x-kubernetes-list-map-keys') != ['type']:
        yield find('conditions-not-by-type', f'{path}.status.conditions',
                   "The conditions are not a list by type. Use kopf.Conditions.")


def _lint_schema(path: str, schema: Schema, *, is_root: bool) -> Iterator[Finding]:
    type_ = schema.get('type')
    if type_ == 'boolean':
        yield find('boolean-field', path, "The field is a boolean. Consider an enum.")
    if type_ == 'number':
        yield find('float-field', path,
                   "The field is a floating-point number. Use an integer or kopf.Quantity.")
    if type_ == 'array' and 'x-kubernetes-list-type' not in schema:
        yield find('list-without-type', path,
                   "The list has no type. Say atomic, set, or map, with the keys of a map.")
    for key, sub in (schema.get('properties') or {}).items():
        place = add_key(path, key)
        if not re.fullmatch(r'[a-z][A-Za-z0-9]*', key):
            yield find('name-not-camel-case', place, f"The name {key!r} is not in camelCase.")
        if not sub.get('description') and not (is_root and key in (
                'apiVersion', 'kind', 'metadata')):
            yield find('description-missing', place, "The field has no description.")


def _lint_bounds(
        path: str, schema: Schema, rules: str = '', is_visited: bool = False,
) -> Iterator[Finding]:
    """
    Find values of any size that a rule is for, names, or visits, or that contain what it is for.

    ``rules`` are those for what contains this schema.
    """
    key = re.escape(path.rpartition('.')[2])
    is_concerned = is_visited or re.search(rf'\b{key}\b', rules) or any(
        'x-kubernetes-validations' in each for _, each in iter_schemas(path, schema))
    if is_concerned and (bound := _get_missing_bound(schema)):
        yield find('rule-without-bounds', path,
                   f"A rule in CEL depends on the value, which can be of any size. Set {bound}.")
    rules += ' '.join(rule['rule'] for rule in schema.get('x-kubernetes-validations') or ())
    is_visited = bool(is_concerned and re.search(r'\.(all|exists|exists_one|filter|map)\(', rules))
    for place, sub in iter_children(path, schema):
        yield from _lint_bounds(place, sub, rules, is_visited and place.endswith('[*]'))


def _get_missing_bound(schema: Schema) -> str | None:
    match schema:
        case {'type': 'array'} if 'maxItems' not in schema:
            return 'maxItems'
        case {'additionalProperties': _} if 'maxProperties' not in schema:
            return 'maxProperties'
        case {'type': 'string'} if not schema.keys() & {'maxLength', 'enum', 'format'}:
            return 'maxLength'
    return None
