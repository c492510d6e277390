"""
Sets of fields, in the form that they have in ``managedFields``.

A set is a dict of its elements: ``f:name`` of a field, ``k:{"key":"value"}`` of an item of a list
by its keys, ``v:"value"`` of an item of a set by its value. What is under an element are the fields
in it. An element is itself a member of the set if there is nothing under it, or a ``.`` among it.
"""
import json
from collections.abc import Iterator, Mapping
from typing import Any

FieldSet = dict[str, Any]
"""Not to be changed once it is made: sets share their parts."""

DOT = '.'
EMPTY: FieldSet = {}


def is_member(node: Mapping[str, Any]) -> bool:
    return not node or DOT in node


def unite(one: FieldSet, two: FieldSet) -> FieldSet:
    if not one or one is two:
        return two
    if not two:
        return one
    result = dict(one)
    for key, node in two.items():
        known = result.get(key)
        if known is None:
            result[key] = node
        elif key != DOT and known != node:
            members = is_member(known) or is_member(node)
            united = {**unite(known, node)}
            if members and united:
                united[DOT] = {}
            result[key] = united
    return result


def subtract(one: FieldSet, two: FieldSet) -> FieldSet:
    """The members of one set that are not members of the other."""
    if not one or not two:
        return one
    result: FieldSet = {}
    for key, node in one.items():
        other = two.get(key)
        if other is None or key == DOT:
            result[key] = node
            continue
        rest = subtract(_insides(node), _insides(other))
        if is_member(node) and not is_member(other):
            result[key] = {DOT: {}, **rest} if rest else {}
        elif rest:
            result[key] = rest
    return result


def intersect(one: FieldSet, two: FieldSet) -> FieldSet:
    """The members of both sets."""
    result: FieldSet = {}
    for key, node in one.items():
        other = two.get(key)
        if other is None or key == DOT:
            continue
        common = intersect(_insides(node), _insides(other))
        if is_member(node) and is_member(other):
            result[key] = {DOT: {}, **common} if common else {}
        elif common:
            result[key] = common
    return result


def _insides(node: FieldSet) -> FieldSet:
    return {key: value for key, value in node.items() if key != DOT} if DOT in node else node


def iterate(fields: FieldSet, prefix: str = '') -> Iterator[str]:
    """The members as paths that messages tell: ``.spec.list[key="value"].field``."""
    for key in sorted(fields):
        if key == DOT:
            continue
        path = prefix + _shown(key)
        if is_member(fields[key]):
            yield path
        yield from iterate(fields[key], path)


def _shown(element: str) -> str:
    kind, _, rest = element.partition(':')
    if kind == 'f':
        return f'.{rest}'
    if kind == 'k':
        keys = json.loads(rest)
        return f"[{','.join(f'{key}={json.dumps(keys[key])}' for key in sorted(keys))}]"
    return f'[={rest}]' if kind == 'v' else f'[{rest}]'


def arrange(fields: FieldSet) -> FieldSet:
    """The set with its elements sorted, as they are stored."""
    if not fields:
        return fields
    keys = sorted(fields)
    if keys[-1].startswith('v:'):
        keys.sort(key=_order)
    return {key: arrange(fields[key]) if fields[key] else fields[key] for key in keys}


def _order(element: str) -> tuple[str, float, str]:
    if element.startswith('v:'):
        value = json.loads(element[2:])
        if isinstance(value, int | float):
            return 'v', value, ''
    return element, 0, ''


class Malformed(ValueError):
    """These are no fields of anything."""


def parse(raw: Any) -> FieldSet:
    """Verify fields that come from a client. Raises `Malformed`."""
    if not isinstance(raw, dict):
        raise Malformed
    for key, node in raw.items():
        kind, colon, rest = key.partition(':')
        if key != DOT and (not colon or kind not in ('f', 'k', 'v', 'i')):
            raise Malformed
        if kind in ('k', 'v'):
            try:
                value = json.loads(rest)
            except ValueError:
                raise Malformed from None
            if kind == 'k' and not isinstance(value, dict):
                raise Malformed
        parse(node)
    return raw
