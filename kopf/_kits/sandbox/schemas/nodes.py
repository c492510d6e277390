"""
Schemas made ready for use: the keywords as attributes, the children as schemas again.
"""
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Raw = Mapping[str, Any]
Resolver = Callable[[str], Raw]

NOTHING: Any = object()
"""No default, or no value, which is not the same as ``None``."""


class Schema:
    """
    One node of a schema. Children are made when first asked for, so recursive definitions do.

    ``name`` is the definition's for nodes of built-in kinds, as in OpenAPI; empty for others.
    """
    def __init__(self, raw: Raw, resolve: Resolver | None = None) -> None:
        self._resolve = resolve
        self.name: str = raw.get('$ref', '')
        if self.name and resolve is not None:
            raw = {**resolve(self.name), **raw}
        self.raw = raw
        self.type: str = raw.get('type', '')
        self.default: Any = raw.get('default', NOTHING)
        self.nullable: bool = raw.get('nullable', False)
        self.required: tuple[str, ...] = tuple(raw.get('required') or ())
        self.preserving: bool = raw.get('x-kubernetes-preserve-unknown-fields') or False
        self.embedded: bool = raw.get('x-kubernetes-embedded-resource', False)
        self.int_or_string: bool = (
            raw.get('x-kubernetes-int-or-string', False) or raw.get('format') == 'int-or-string')
        self.list_type: str = raw.get('x-kubernetes-list-type', '')
        self.map_keys: tuple[str, ...] = tuple(raw.get('x-kubernetes-list-map-keys') or ())
        self.atomic: bool = raw.get('x-kubernetes-map-type') == 'atomic'
        self.merge_key: str = raw.get('x-kubernetes-patch-merge-key', '')
        self.strategies: tuple[str, ...] = tuple(
            raw.get('x-kubernetes-patch-strategy', '').split(','))
        self.has_additional: bool = raw.get('additionalProperties') not in (None, False)
        self.validator: Any = None
        """What `validating` compiles of the node, kept with it."""

    def __repr__(self) -> str:
        return f'<Schema {self.name or self.type or "any"}>'

    @functools.cached_property
    def properties(self) -> Mapping[str, 'Schema']:
        properties = self.raw.get('properties') or {}
        return {key: Schema(raw, self._resolve) for key, raw in properties.items()}

    @functools.cached_property
    def items(self) -> 'Schema | None':
        return self._child('items')

    @functools.cached_property
    def additional(self) -> 'Schema | None':
        """Of values under any keys; with `has_additional` but not this, insides are pruned."""
        return self._child('additionalProperties')

    @functools.cached_property
    def with_defaults(self) -> bool:
        """Whether there are defaults in this node or anywhere below."""
        return self.default is not NOTHING or any(child.with_defaults for child in self._children())

    @functools.cached_property
    def with_rules(self) -> bool:
        """Whether there are rules in CEL in this node or anywhere below."""
        return bool(self.raw.get('x-kubernetes-validations')) or any(
            child.with_rules for child in self._children())

    def _child(self, key: str) -> 'Schema | None':
        raw = self.raw.get(key)
        return Schema(raw, self._resolve) if isinstance(raw, dict) else None

    def _children(self) -> Iterator['Schema']:
        yield from (child for child in (self.items, self.additional) if child is not None)
        yield from self.properties.values()

    def of(self, key: str) -> 'Schema | None':
        """The schema of the value under a key of an object, if there is any."""
        found = self.properties.get(key)
        return found if found is not None else self.additional


def changed(value: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The dict with changes, itself if there are none; what is changed to `NOTHING` is dropped."""
    if not changes:
        return value
    return {key: item for key, item in {**value, **changes}.items() if item is not NOTHING}
