"""
Whether a definition of a kind can follow another one, with clients and objects as they are.
"""
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.typed import schemas
from kopf._kits.typed.findings import Definition, Finding, Schema, add_key, find

ANYTHING: Schema = {'x-kubernetes-preserve-unknown-fields': True}
INT_OR_STRING = [{'type': 'integer'}, {'type': 'string'}]
"""The combination that belongs to ``x-kubernetes-int-or-string``, and changes nothing."""
IMPLIED: Mapping[str, Schema] = {
    'apiVersion': {'type': 'string'},
    'kind': {'type': 'string'},
    'metadata': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True, 'properties': {
        'name': {'type': 'string'}, 'generateName': {'type': 'string'}}},
}
"""The fields that each object has, whether or not its schema mentions them."""

BOUNDS = {
    'minimum': -math.inf, 'minLength': 0, 'minItems': 0, 'minProperties': 0,
    **dict.fromkeys(('maximum', 'maxLength', 'maxItems', 'maxProperties'), math.inf)}
"""The keywords of bounds, with the values that change nothing."""

UNKNOWN_REMOVED = "Fields that the schema does not mention were kept, and are removed now."


def compare(old: Definition, new: Definition, *, ratcheting: bool = False) -> list[Finding]:
    """
    Find what of a definition is incompatible with an older one of the same name.

    An error is a change after which the API server can refuse an unchanged object, or removes
    fields from it, or after which clients must change. Schemas are compared if both definitions
    serve or store the version.

    With ``ratcheting``, as in Kubernetes 1.30 and newer, the API server accepts values that have
    become invalid, as long as they do not change (KEP-4008). It makes new rules in CEL to warnings;
    all else stays an error, since new objects can be refused that were accepted before.
    """
    name, was, now = new['metadata']['name'], old['spec'], new['spec']
    versions = {version['name']: version for version in now['versions']}
    stored = {*(old.get('status', {}).get('storedVersions') or ())}
    found = [*_compare_specs(name, was, now)]
    for version in was['versions']:
        path, after = f'{name}/{version["name"]}', versions.get(version['name'])
        stored |= {version['name']} if version['storage'] else set()
        if version['served'] and not (after and after['served']):
            found.append(find('version-gone', path, "The version was served, and is not any more."))
        if version['storage'] and after and not after['storage']:
            found.append(find('storage-version-changed', path,
                              "Objects are stored in another version now. Migrate those of this."))
        if after and _is_used(version) and _is_used(after):
            found += _compare_versions(path, version, after)
            found += compare_schemas(path, get_root(version), get_root(after))
    found += [find('stored-version-removed', f'{name}/{version}',
                   "There can be objects in this version. Keep it until they are migrated.")
              for version in stored - versions.keys()]
    return sorted(
        dataclasses.replace(each, level='warning') if ratcheting and each.rule == 'rule-added'
        else each for each in found)


def _is_used(version: Mapping[str, Any]) -> bool:
    return bool(version['served'] or version['storage'])


def get_root(version: Mapping[str, Any]) -> Schema:
    """Get the schema of the whole object: it is as that of an embedded one, also if not said."""
    return {**version['schema']['openAPIV3Schema'], 'x-kubernetes-embedded-resource': True}


def _compare_specs(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    before, after = old['names'], new['names']
    yield from _find_change('scope-changed', path, "The scope", old['scope'], new['scope'])
    yield from _find_change('kind-changed', path, "The kind", before['kind'], after['kind'])
    lists = [names.get('listKind') or f"{names['kind']}List" for names in (before, after)]
    yield from _find_change('kind-changed', path, "The kind of lists", *lists)
    if get_strategy(old) == 'Webhook' != get_strategy(new) and len(new['versions']) > 1:
        yield find('conversion-removed', path, "No webhook converts the versions any more.")
    if old.get('preserveUnknownFields') and not new.get('preserveUnknownFields'):
        yield find('unknown-fields-removed', path, UNKNOWN_REMOVED)


def _find_change(rule: str, path: str, what: str, was: Any, now: Any) -> Iterator[Finding]:
    if was != now:
        yield find(rule, path, f"{what} was {was}, and is {now}.")


def get_strategy(spec: Mapping[str, Any]) -> str:
    """Get the strategy by which objects are converted between versions."""
    return str((spec.get('conversion') or {}).get('strategy', 'None'))


def _compare_versions(
        path: str, old: Mapping[str, Any], new: Mapping[str, Any],
) -> Iterator[Finding]:
    was, now = old.get('subresources') or {}, new.get('subresources') or {}
    for name in sorted(was.keys() - now.keys()):
        yield find('subresource-removed', path, f"The subresource {name!r} is gone.")
    if 'status' in now and 'status' not in was:
        yield find('status-subresource-added', path,
                   "Clients that write the status with the rest of the object are ignored now.")
    if 'scale' in was and 'scale' in now:
        for key in sorted({**was['scale'], **now['scale']}):
            yield from _find_change('scale-changed', path, f"The {key} of the subresource 'scale'",
                                    was['scale'].get(key), now['scale'].get(key))
    selectable = {field['jsonPath'] for field in new.get('selectableFields') or ()}
    for field in old.get('selectableFields') or ():
        if field['jsonPath'] not in selectable:
            yield find('selectable-field-removed', f'{path}{field["jsonPath"]}',
                       "Objects could be selected by this field, and cannot any more.")


def compare_schemas(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    """Compare the schemas of the same value: the values themselves, and what is in them."""
    yield from _find_change('type-changed', path, "The type", _get_type(old), _get_type(new))
    if _get_type(old) == _get_type(new):
        yield from _compare_values(path, old, new)
        yield from _compare_bounds(path, old, new)
        yield from _compare_rules(path, old, new)
        yield from _compare_structure(path, old, new)
        yield from _compare_fields(path, old, new)
        if 'items' in old and 'items' in new:
            yield from compare_schemas(f'{path}[*]', old['items'], new['items'])


def _get_type(schema: Schema) -> str:
    if schema.get('x-kubernetes-int-or-string'):
        return 'integer or string'
    return schema.get('type') or 'anything'


def _compare_values(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    for rule, key in (('format-changed', 'format'), ('default-changed', 'default')):
        yield from _find_change(rule, path, f"The {key}", _show(old, key), _show(new, key))
    if new.get('enum'):
        was, now = ({_encode(value) for value in schema.get('enum') or ()} for schema in (old, new))
        if not was:
            yield find('enum-narrowed', path,
                       f"Any value was allowed, and only {', '.join(sorted(now))} is now.")
        elif was - now:
            yield find('enum-narrowed', path,
                       f"{', '.join(sorted(was - now))} was allowed, and is not any more.")
        if was and now - was:
            yield find('enum-widened', path, f"{', '.join(sorted(now - was))} is new.")
    if old.get('nullable') and not new.get('nullable'):
        yield find('nullable-removed', path, "null was allowed, and is not any more.")
    for key in ('pattern', 'allOf', 'anyOf', 'oneOf', 'not'):
        if new.get(key) and new[key] != INT_OR_STRING:
            rule = 'pattern-changed' if key == 'pattern' else 'combination-changed'
            yield from _find_change(rule, path, key, _show(old, key), _show(new, key))


def _show(schema: Schema, key: str) -> str:
    return _encode(schema[key]) if key in schema else "none"


def _encode(value: Any) -> str:
    return json.dumps(schemas.normalise(value), sort_keys=True)


def _compare_bounds(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    tightened = [key for key in BOUNDS if _get_bound(new, key) > _get_bound(old, key)]
    if 'multipleOf' in new and old.get('multipleOf', math.nan) % new['multipleOf'] != 0:
        tightened.append('multipleOf')
    for key in tightened:
        yield find('bounds-tightened', path,
                   f"{key} was {_show_bound(old, key)}, and is {_show_bound(new, key)}.")


def _get_bound(schema: Schema, key: str) -> tuple[float, bool]:
    """Get a bound, so that stricter ones are greater. Upper bounds have a negative sign."""
    sign = 1 if key.startswith('min') else -1
    return sign * schema.get(key, BOUNDS[key]), _is_exclusive(schema, key)


def _show_bound(schema: Schema, key: str) -> str:
    return f"{_show(schema, key)}{' (exclusive)' if _is_exclusive(schema, key) else ''}"


def _is_exclusive(schema: Schema, key: str) -> bool:
    return key in schema and bool(schema.get(f'exclusive{key.capitalize()}'))


def _compare_rules(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    known, rules = ({(rule['rule'], rule.get('optionalOldSelf', False)): None
                     for rule in schema.get('x-kubernetes-validations') or ()}
                    for schema in (old, new))
    for text, is_for_new in rules.keys() - known.keys():
        is_for_changes = re.search(r'\boldSelf\b', text) and not is_for_new
        yield find('rule-added', path, f"The rule is new: {text}",
                   level='warning' if is_for_changes else None)


def _compare_structure(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    yield from _find_change(
        'list-type-changed', path, "The list", _describe_list(old), _describe_list(new))
    key = 'x-kubernetes-map-type'
    yield from _find_change('map-type-changed', path, "The map", *(
        schema.get(key, 'granular') for schema in (old, new)))
    key = 'x-kubernetes-embedded-resource'
    yield from _find_change('embedding-changed', path, key, *(
        bool(schema.get(key)) for schema in (old, new)))


def _describe_list(schema: Schema) -> str:
    keys = schema.get('x-kubernetes-list-map-keys') or ()
    by = f" by {', '.join(sorted(keys))}" if keys else ''
    return f"{schema.get('x-kubernetes-list-type', 'atomic')}{by}"


def _compare_fields(path: str, old: Schema, new: Schema) -> Iterator[Finding]:
    """
    Compare the fields of objects, and the values of maps.

    Of the values without a schema, the API keeps any (``x-kubernetes-preserve-unknown-fields``), or
    none.
    """
    olds, news = _get_properties(old), _get_properties(new)
    old_rest, new_rest = _get_rest(old), _get_rest(new)
    for key in sorted(_get_required(new) - _get_required(old)):
        yield find('required-added', add_key(path, key),
                   "The field was optional, and is required now.")
    for key in {**olds, **news}:
        before, after = olds.get(key, old_rest), news.get(key, new_rest)
        place = add_key(path, key)
        if after is None:
            yield find('field-removed', place, "The field is gone.")
        elif before is not None and after is not ANYTHING:
            yield from compare_schemas(place, before, after)
    if old_rest is ANYTHING and new_rest is None:
        yield find('unknown-fields-removed', path, UNKNOWN_REMOVED)
    elif old_rest is not None and new_rest is None:
        yield find('field-removed', f'{path}[*]', "The values of the map are gone.")
    elif old_rest is not None and new_rest is not None and new_rest is not ANYTHING:
        yield from compare_schemas(f'{path}[*]', old_rest, new_rest)


def _get_properties(schema: Schema) -> Mapping[str, Schema]:
    declared: Mapping[str, Schema] = schema.get('properties') or {}
    if not schema.get('x-kubernetes-embedded-resource'):
        return declared
    meta: Any = IMPLIED['metadata']
    fields = {**meta['properties'], **(declared.get('metadata', {}).get('properties') or {})}
    return {**IMPLIED, **declared, 'metadata': {
        **declared.get('metadata', {}), **meta, 'properties': fields}}


def _get_rest(schema: Schema) -> Schema | None:
    """Get the schema of the fields that are not declared, if they are kept at all."""
    if schema.get('additionalProperties'):
        rest: Any = schema['additionalProperties']
        return ANYTHING if rest is True else rest
    return ANYTHING if schema.get('x-kubernetes-preserve-unknown-fields') else None


def _get_required(schema: Schema) -> set[str]:
    """Get the fields that must be given; the API itself fills in those with defaults."""
    properties = _get_properties(schema)
    return {key for key in schema.get('required') or () if 'default' not in properties.get(key, {})}
