"""
Validation of custom resources by their schemas, with the API's messages.

Schemas are compiled to functions, each for one node, when they are first used.
"""
from collections.abc import Iterator
from typing import Any

from kopf._kits.sandbox import metadata, naming, statuses, wordings
from kopf._kits.sandbox.schemas import combining, expressions, nodes, paths, scalars, values
from kopf._kits.sandbox.schemas.depths import guarded
from kopf._kits.sandbox.schemas.findings import Check, Findings
from kopf._kits.sandbox.schemas.values import INT64


@guarded
def validate(
        schema: nodes.Schema, obj: Any, old: Any = nodes.NOTHING, at: paths.Path = None,
) -> list[statuses.Cause]:
    """
    What is wrong with the (pruned and defaulted) object; an empty list if nothing is.

    With the old object given, values that have not changed are not looked at: an object that
    was valid once can be updated in its other fields. Neither are duplicates in lists refused
    if there were some already.
    """
    findings = Findings()
    _check_of(schema)(obj, at, old, findings)
    if old is not nodes.NOTHING and any(map(_is_duplicate, findings.by_rules)):
        before = Findings()
        _check_of(schema)(old, at, nodes.NOTHING, before)
        if any(map(_is_duplicate, before.by_rules)):
            findings.by_rules = [cause for cause in findings.by_rules if not _is_duplicate(cause)]
    found = findings.by_schema + findings.by_rules
    if schema.with_rules:
        if any(cause.type in expressions.BLOCKING for cause in found):
            found.append(wordings.invalid('<nil>', None, expressions.UNCHECKED))
        else:
            found.extend(expressions.check_rules(schema, obj, old, at))
    return found


@guarded
def find_mistyped(schema: nodes.Schema, obj: Any, old: Any) -> list[str]:
    """Find the fields that differ from the old ones and have other types than the schema says."""
    findings = Findings()
    _check_of(schema)(obj, None, old, findings)
    return [cause.field for cause in findings.by_schema if cause.type == 'FieldValueTypeInvalid']


def _is_duplicate(cause: statuses.Cause) -> bool:
    return cause.type == 'FieldValueDuplicate'


def _check_of(schema: nodes.Schema) -> Check:
    if schema.validator is None:
        schema.validator = _compile(schema)
    check: Check = schema.validator
    return check


def _compile(schema: nodes.Schema) -> Check:
    expected = 'integer,string' if schema.int_or_string and not schema.type else schema.type
    allowed = frozenset(expected.split(',')) if expected else frozenset()
    nullable = schema.nullable
    others = tuple(combining.combine(schema, _check_of))
    for_dicts = _make_for_dicts(schema)
    for_lists = _make_for_lists(schema)
    for_strings = tuple(values.make_for_strings(schema))
    for_numbers = tuple(values.make_for_numbers(schema))
    enumerated = schema.raw.get('enum')
    format = values.format_of(schema)
    quick = frozenset(cls for name in allowed if not format for cls in scalars.TYPES.get(name, ()))

    def check(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
        if old is not nodes.NOTHING and old == value and type(old) is type(value):
            return
        if value is None:
            if allowed and not nullable:
                findings.add_mistyped(path, expected, 'null')
            if enumerated is not None:
                values.check_enumerated(value, path, enumerated, findings)
            return
        kind = type(value)
        if allowed and (kind not in quick or (kind is int and not -INT64 <= value < INT64)):
            values.check_type(value, path, expected, allowed, format, findings)
        for other in others:
            other(value, path, old, findings)
        if kind is dict:
            for_dicts(value, path, old, findings)
        elif kind is list:
            for_lists(value, path, old, findings)
        elif kind is str:
            for other in for_strings:
                other(value, path, old, findings)
        elif kind is not bool:
            for other in for_numbers:
                other(value, path, old, findings)
        if enumerated is not None:
            values.check_enumerated(value, path, enumerated, findings)

    return check


def _make_for_dicts(schema: nodes.Schema) -> Check:
    least, most = schema.raw.get('minProperties'), schema.raw.get('maxProperties')
    properties, additional = schema.properties, schema.additional
    checks = {key: _check_of(child) for key, child in properties.items()}
    check_additional = None if additional is None else _check_of(additional)
    required = schema.required
    embedded = schema.embedded

    def check(value: dict[str, Any], path: paths.Path, old: Any, findings: Findings) -> None:
        if embedded:
            findings.by_rules.extend(_check_embedded(value, path))
        if least is not None and len(value) < least:
            findings.add_invalid(path, len(value), f"have at least {least} properties")
        if most is not None and len(value) > most:
            findings.by_schema.append(wordings.too_many(paths.render(path), len(value), most))
        known = old if type(old) is dict else _NO_OLD
        for key, item in value.items():
            child = checks.get(key, check_additional)
            if child is not None:
                child(item, (path, key), known.get(key, nodes.NOTHING), findings)
        for key in required:
            if key not in value:
                findings.by_schema.append(wordings.required(paths.render((path, key))))

    return check


_NO_OLD: dict[str, Any] = {}


def _check_embedded(value: dict[str, Any], path: paths.Path) -> Iterator[statuses.Cause]:
    for key in ('apiVersion', 'kind'):
        field = paths.render((path, key))
        if value.get(key) == '':
            yield wordings.invalid(field, '', "must not be empty")
        elif not value.get(key):
            yield wordings.required(field)
    for why in naming.check_kind(value.get('kind') or 'any'):
        yield wordings.invalid(paths.render((path, 'kind')), value['kind'], why)
    version = value.get('apiVersion') or ''
    if version.count('/') > 1:
        yield wordings.invalid(paths.render((path, 'apiVersion')), version,
                               f"unexpected GroupVersion string: {version}")
    field = paths.render((path, 'metadata'))
    yield from metadata.validate_embedded(value.get('metadata') or {}, field)


def _make_for_lists(schema: nodes.Schema) -> Check:
    least, most = schema.raw.get('minItems'), schema.raw.get('maxItems')
    check_item = None if schema.items is None else _check_of(schema.items)
    keys = schema.map_keys
    is_set = schema.list_type == 'set'
    is_map = schema.list_type == 'map'

    def check(value: list[Any], path: paths.Path, old: Any, findings: Findings) -> None:
        if check_item is not None:
            for index, (item, known) in enumerate(expressions.find_former(schema, value, old)):
                check_item(item, (path, index), known, findings)
        if least is not None and len(value) < least:
            findings.add_invalid(path, len(value), f"have at least {least} items")
        if most is not None and len(value) > most:
            findings.by_schema.append(wordings.too_many(paths.render(path), len(value), most))
        if is_set or is_map:
            findings.by_rules.extend(_check_duplicates(value, path, keys if is_map else None))

    return check


def _check_duplicates(
        value: list[Any], path: paths.Path, keys: tuple[str, ...] | None,
) -> Iterator[statuses.Cause]:
    seen: set[str] = set()
    for index, item in enumerate(value):
        if keys is not None and item is None:
            continue
        if keys is not None and not isinstance(item, dict):
            field = paths.render((path, index))
            yield wordings.invalid(field, item, "must be an object for an array of list-type map")
            return
        shown = item if keys is None else {key: item[key] for key in keys if key in item}
        shown = wordings.arranged(shown)
        identity = wordings.shown(shown)
        if identity in seen:
            yield wordings.duplicate(paths.render((path, index)), shown)
        seen.add(identity)


