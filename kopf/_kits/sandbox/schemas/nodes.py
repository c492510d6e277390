"""
Schemas made ready for use: the keywords as attributes, the children as schemas again.
"""
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
    __slots__ = (
        '_resolve', 'additional', 'atomic', 'default', 'embedded', 'has_additional',
        'int_or_string', 'items', 'list_type', 'map_keys', 'merge_key', 'name', 'nullable',
        'preserving', 'properties', 'raw', 'required', 'strategies', 'type', 'validator',
        'with_defaults', 'with_rules',
    )
    properties: Mapping[str, 'Schema']
    items: 'Schema | None'
    additional: 'Schema | None'
    """Of values under arbitrary keys; with `has_additional` but not this, insides are pruned."""
    with_defaults: bool
    """Whether there are defaults in this node or anywhere below."""
    with_rules: bool
    """Whether there are rules in CEL in this node or anywhere below."""
    validator: Any
    """What `validating` compiles of the node, kept with it."""

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

    def __repr__(self) -> str:
        return f'<Schema {self.name or self.type or "any"}>'

    def __getattr__(self, name: str) -> Any:
        """Fill in what is not made yet: it is called only for slots with no values."""
        match name:
            case 'properties':
                value: Any = {
                    key: Schema(raw, self._resolve)
                    for key, raw in (self.raw.get('properties') or {}).items()
                }
            case 'items' | 'additional':
                raw = self.raw.get('items' if name == 'items' else 'additionalProperties')
                value = Schema(raw, self._resolve) if isinstance(raw, dict) else None
            case 'with_defaults':
                self.with_defaults = True  # for those who ask while it is being found out
                value = self.default is not NOTHING or any(
                    child.with_defaults for child in self._children())
            case 'with_rules':
                value = bool(self.raw.get('x-kubernetes-validations')) or any(
                    child.with_rules for child in self._children())
            case 'validator':
                value = None
            case _:
                raise AttributeError(name)
        setattr(self, name, value)
        return value

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
