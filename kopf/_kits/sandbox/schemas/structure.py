"""
Whether a CRD's schema is one that the API can use: structural, and with nothing forbidden.
"""
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas import expressions, formats, nodes, patterns, pruning, validating

TYPES = ("array", "boolean", "integer", "number", "object", "string")
UNSUPPORTED = ('$ref', 'additionalItems', 'definitions', 'dependencies', 'id', 'patternProperties')
COMBINATIONS = ('allOf', 'anyOf', 'oneOf')
FORBIDDEN_IN_COMBINATIONS = {
    'additionalProperties': 'undefined', 'default': 'undefined', 'description': 'empty',
    'nullable': 'false', 'title': 'empty', 'type': 'empty',
    'x-kubernetes-embedded-resource': 'false', 'x-kubernetes-int-or-string': 'false',
    'x-kubernetes-list-map-keys': 'empty', 'x-kubernetes-list-type': 'undefined',
    'x-kubernetes-map-type': 'undefined', 'x-kubernetes-preserve-unknown-fields': 'false',
}
"""Keywords that are not for schemas in combinations, and what they must be there."""

Raw = Mapping[str, Any]
Causes = Iterator[statuses.Cause]


def validate_structure(raw: Raw, field: str) -> list[statuses.Cause]:
    """What is wrong with a schema of a version; ``field`` is where it is in the CRD."""
    found = [*_check_root(raw, field), *_check(raw, field, 'root')]
    return found or list(_check_defaults(raw, field, root=True))


def find_unrecognized_formats(raw: Raw) -> Iterator[str]:
    """The formats that the API does not know, and warns of; they are not checked in objects."""
    format = raw.get('format')
    if format and format not in formats.FORMATS and format not in formats.NUMERIC:
        yield format
    for sub, _, _ in _children(raw, ''):
        yield from find_unrecognized_formats(sub)


def _check_root(raw: Raw, field: str) -> Causes:
    if raw.get('$schema'):
        yield wordings.invalid(field, '', "OpenAPIV3Schema 'schema' is not supported")
    if raw.get('nullable'):
        yield wordings.forbidden(f'{field}.nullable', "nullable cannot be true at the root")
    if raw.get('type') not in (None, '', 'object'):
        yield wordings.invalid(f'{field}.type', raw['type'], "must be object at the root")
    if raw.get('additionalProperties') not in (None, False):
        yield wordings.forbidden(f'{field}.additionalProperties', "must not be used at the root")
    properties = raw.get('properties') or {}
    for key, expected in (('apiVersion', 'string'), ('kind', 'string'), ('metadata', 'object')):
        actual = (properties.get(key) or {}).get('type', expected)
        if actual != expected:
            yield wordings.invalid(f'{field}.properties[{key}].type', actual, f"must be {expected}")
    meta = properties.get('metadata') or {}
    if set(meta) - {'type', 'properties', 'description', 'default', 'required'} or (
            set(meta.get('properties') or {}) - {'name', 'generateName'}):
        yield wordings.forbidden(
            f'{field}.properties[metadata]',
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified")
    for place, sub in (('', meta), *(
            (f'.properties[{key}]', sub or {})
            for key, sub in (meta.get('properties') or {}).items())):
        if 'default' in sub:
            yield wordings.forbidden(f'{field}.properties[metadata]{place}.default',
                                   "must not be set in top-level metadata")


def _check(raw: Raw, field: str, role: str) -> Causes:
    """The rules of one node and all below. Its role: root, object field, array item, map value."""
    for key in UNSUPPORTED:
        if raw.get(key):
            yield wordings.forbidden(f'{field}.{key}', f"{key} is not supported")
    if raw.get('uniqueItems'):
        yield wordings.forbidden(
            f'{field}.uniqueItems', "uniqueItems cannot be set to true since the runtime "
                                    "complexity becomes quadratic")
    if raw.get('pattern'):
        yield from _check_pattern(raw['pattern'], f'{field}.pattern')
    yield from _check_type(raw, field, role)
    yield from _check_extensions(raw, field)
    yield from _check_list(raw, field)
    for index, rule in enumerate(raw.get('x-kubernetes-validations') or ()):
        yield from expressions.check_syntax(rule, f'{field}.x-kubernetes-validations[{index}]')
    for key in COMBINATIONS:
        for index, sub in enumerate(raw.get(key) or ()):
            known = _is_int_or_string(raw)
            yield from _check_combined(sub, f'{field}.{key}[{index}]', known)
    if raw.get('not'):
        yield from _check_combined(raw['not'], f'{field}.not', False)
    for sub, place, role in _children(raw, field):
        yield from _check(sub, place, role)


def _children(raw: Raw, field: str) -> Iterator[tuple[Raw, str, str]]:
    """The schemas in a schema, their places, and their roles."""
    for key, sub in (raw.get('properties') or {}).items():
        yield sub or {}, f'{field}.properties[{key}]', 'object fields'
    for key, role in (('items', 'array items'), ('additionalProperties', 'object fields')):
        if isinstance(raw.get(key), dict):
            yield raw[key], f'{field}.{key}', role


def _check_pattern(pattern: str, field: str) -> Causes:
    try:
        patterns.compile(pattern)
    except patterns.UnknownPattern as e:
        if r'\p' not in pattern and r'\P' not in pattern:
            yield wordings.invalid(field, pattern, "must be a valid regular expression, but "
                                                   f"isn't: error parsing regexp: {e}")


def _is_int_or_string(raw: Raw) -> bool:
    return bool(raw.get('x-kubernetes-int-or-string'))


def _check_type(raw: Raw, field: str, role: str) -> Causes:
    type_ = raw.get('type') or ''
    free = _is_int_or_string(raw) or raw.get('x-kubernetes-preserve-unknown-fields')
    if type_ and type_ not in TYPES:
        yield wordings.unsupported(f'{field}.type', type_, TYPES)
    elif not type_ and not free and not raw.get('$ref'):
        where = "at the root" if role == 'root' else f"for specified {role}"
        yield wordings.required(f'{field}.type', f"must not be empty {where}")
    if type_ == 'array' and raw.get('items') is None:
        yield wordings.required(f'{field}.items', "must be specified")
    if isinstance(raw.get('items'), list):
        yield wordings.forbidden(f'{field}.items', "items must be a schema object and not an array")
    if raw.get('properties') and isinstance(raw.get('additionalProperties'), dict):
        yield wordings.forbidden(f'{field}.additionalProperties',
                               "additionalProperties and properties are mutual exclusive")


def _check_extensions(raw: Raw, field: str) -> Causes:
    preserving = raw.get('x-kubernetes-preserve-unknown-fields')
    key = f'{field}.x-kubernetes-preserve-unknown-fields'
    if preserving is False:
        yield wordings.invalid(key, False, "must be true or undefined")
    if preserving and _is_int_or_string(raw):
        yield wordings.invalid(key, True, "must be false if x-kubernetes-int-or-string is true")
    if raw.get('x-kubernetes-embedded-resource'):
        if not raw.get('properties') and not preserving:
            yield wordings.required(
                f'{field}.properties', "must not be empty if x-kubernetes-embedded-resource is "
                                       "true without x-kubernetes-preserve-unknown-fields")
        yield from _demand('object', raw, field, "if x-kubernetes-embedded-resource is true")
    map_type = raw.get('x-kubernetes-map-type')
    if map_type is not None:
        yield from _demand('object', raw, field, "if x-kubernetes-map-type is specified")
        if map_type not in ("atomic", "granular"):
            yield wordings.unsupported(
                f'{field}.x-kubernetes-map-type', map_type, ("atomic", "granular"))


def _demand(type: str, raw: Raw, field: str, when: str) -> Causes:
    if raw.get('type') != type:
        yield wordings.invalid(f'{field}.type', raw.get('type') or '', f"must be {type} {when}")


def _check_list(raw: Raw, field: str) -> Causes:
    list_type, keys = raw.get('x-kubernetes-list-type'), raw.get('x-kubernetes-list-map-keys')
    if list_type is None:
        if keys:
            yield wordings.required(f'{field}.x-kubernetes-list-type',
                                  "must be map if x-kubernetes-list-map-keys is non-empty")
        return
    yield from _demand('array', raw, field, "if x-kubernetes-list-type is specified")
    if list_type not in ("atomic", "set", "map"):
        yield wordings.unsupported(
            f'{field}.x-kubernetes-list-type', list_type, ("atomic", "set", "map"))
    items = raw.get('items')
    items = items if isinstance(items, dict) else {}
    if list_type == 'set':
        yield from _check_set_items(items, f'{field}.items')
    if list_type == 'map':
        yield from _check_map_items(items, keys or [], field)


def _check_set_items(items: Raw, field: str) -> Causes:
    if items.get('nullable'):
        yield wordings.forbidden(f'{field}.nullable',
                               "cannot be nullable when x-kubernetes-list-type is set")
    for type, key, atomic in (('array', 'x-kubernetes-list-type', (None, 'atomic')),
                              ('object', 'x-kubernetes-map-type', ('atomic',))):
        if items.get('type') == type and items.get(key) not in atomic:
            yield wordings.invalid(
                f'{field}.{key}', items.get(key),
                "must be atomic as item of a list with x-kubernetes-list-type=set")


def _check_map_items(items: Raw, keys: list[str], field: str) -> Causes:
    if not keys:
        yield wordings.required(f'{field}.x-kubernetes-list-map-keys',
                              "must not be empty if x-kubernetes-list-type is map")
    if items.get('type') != 'object':
        yield from _demand('object', items, f'{field}.items',
                           "if parent array's x-kubernetes-list-type is map")
        return
    properties = items.get('properties') or {}
    if len(set(keys)) < len(keys):
        yield wordings.invalid(
            f'{field}.x-kubernetes-list-map-keys', keys, "must not contain duplicate entries")
    if set(keys) - set(properties):
        yield wordings.invalid(f'{field}.x-kubernetes-list-map-keys', keys,
                             "entries must all be names of item properties")
    for key in dict.fromkeys(keys):
        found = properties.get(key)
        place = f'{field}.items.properties[{key}]'
        if found and found.get('type') in ('array', 'object'):
            yield wordings.invalid(
                f'{place}.type', found['type'],
                "must be a scalar type if parent array's x-kubernetes-list-type is map")
        if found is not None and key not in (items.get('required') or ()) and (
                'default' not in found):
            yield wordings.required(
                f'{place}.default', "this property is in x-kubernetes-list-map-keys, so it must "
                                    "have a default or be a required property")


def _check_combined(raw: Raw, field: str, types_known: bool) -> Causes:
    """Schemas of combinations may restrict values, but not tell what there is."""
    for key, state in FORBIDDEN_IN_COMBINATIONS.items():
        if raw.get(key) is not None and raw.get(key) is not False and not (
                key == 'type' and types_known):
            yield wordings.forbidden(f'{field}.{key}', f"must be {state} to be structural")
    if raw.get('properties') and isinstance(raw.get('additionalProperties'), dict):
        yield wordings.forbidden(f'{field}.additionalProperties',
                               "additionalProperties and properties are mutual exclusive")
    for key, sub in (raw.get('properties') or {}).items():
        yield from _check_combined(sub or {}, f'{field}.properties[{key}]', False)
    if isinstance(raw.get('items'), dict):
        yield from _check_combined(raw['items'], f'{field}.items', False)
    for key in COMBINATIONS:
        for index, sub in enumerate(raw.get(key) or ()):
            yield from _check_combined(sub, f'{field}.{key}[{index}]', types_known)


def _check_defaults(raw: Raw, field: str, *, root: bool = False) -> Causes:
    """Defaults must be valid, and have nothing that would be pruned."""
    default = raw.get('default')
    if default is not None:
        schema = nodes.Schema(raw)
        wrapped = nodes.Schema({'type': 'object', 'properties': {'x': raw}})
        pruned, unknown = pruning.prune(wrapped, {'x': default})
        if unknown:
            yield wordings.invalid(f'{field}.default', default, "must not have unknown fields")
        else:
            for cause in validating.validate(schema, pruned['x']):
                place = f'{field}.default'
                yield statuses.Cause(
                    cause.type, f'{place}.{cause.field}' if cause.field else place, cause.message)
            if root:
                for key in ('apiVersion', 'kind'):
                    if key not in default:
                        yield wordings.required(f'{field}.default.{key}')
    for sub, place, _ in _children(raw, field):
        yield from _check_defaults(sub, place)
