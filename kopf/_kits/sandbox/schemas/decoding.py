"""
Objects of built-in kinds, and all metadata, as the API decodes them into its own types.
"""
from typing import Any

from kopf._kits.sandbox import wordings
from kopf._kits.sandbox.schemas import definitions, nodes, paths, scalars
from kopf._kits.sandbox.schemas.depths import guarded
from kopf._kits.sandbox.schemas.scalars import Field
from kopf._kits.sandbox.schemas.scalars import Undecodable as Undecodable

PROPS = 'io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps'
UNIONS = frozenset([f'{PROPS}OrArray', f'{PROPS}OrBool', f'{PROPS}OrStringArray'])
"""Schemas, or something else in their places: lists, booleans."""


@guarded
def decode(schema: nodes.Schema, obj: Any, at: paths.Path = None) -> tuple[Any, list[str]]:
    """
    The object without its unknown fields, nulls, and values as empty as those not given.

    Returns it, itself if it needs no change, and the paths of the unknown fields, sorted.
    Raises `Undecodable` for a value of a wrong type.
    """
    decoder = _Decoder()
    result = decoder.decode(schema, obj, at, None)
    return result, sorted(map(paths.render, decoder.unknown))


def decode_metadata(meta: Any, within: paths.Path = None) -> tuple[Any, list[str]]:
    """
    The same for the metadata of a custom resource: ``None`` is empty metadata.

    ``within`` is the place of an embedded resource, for the paths of unknown fields.
    """
    if meta is not None and not isinstance(meta, dict):
        raise Undecodable(wordings.not_decoded(meta, "value of type v1.ObjectMeta"))
    return decode(definitions.define(definitions.OBJECT_META), meta or {}, (within, 'metadata'))


def decode_embedded(
        value: dict[str, Any], path: paths.Path, unknown: list[str],
) -> dict[str, Any]:
    """
    Decode the type and the metadata of a resource that is embedded in a custom resource.

    Returns the members that change, and adds the paths of unknown fields of the metadata.
    Raises `Undecodable` for a value of a wrong type.
    """
    for key in ('apiVersion', 'kind'):
        if key in value and not isinstance(value[key], str):
            problem = wordings.invalid(
                paths.render((path, key)), wordings.arranged(value[key]), "must be a string")
            raise Undecodable(str(problem))
    if 'metadata' not in value:
        return {}
    try:
        meta, fields = decode_metadata(value['metadata'], path)
    except Undecodable as e:
        field = paths.render((path, 'metadata'))
        problem = wordings.invalid(field, wordings.arranged(value['metadata']), str(e))
        raise Undecodable(str(problem)) from None
    unknown += fields
    return {} if meta is value['metadata'] else {'metadata': meta}


class _Decoder:
    """
    One decoding. Besides the path in the object, it keeps the struct and the field that errors
    tell: a field's path has no indices and no keys of maps.
    """

    def __init__(self) -> None:
        self.unknown: list[paths.Path] = []

    def decode(
            self, schema: nodes.Schema, value: Any, path: paths.Path, field: Field | None,
    ) -> Any:
        special = scalars.SPECIAL.get(schema.name)
        if special is not None:
            return special(schema, value, field)
        if schema.name in UNIONS:
            if not isinstance(value, dict):
                return value
            schema = definitions.define(PROPS)
        if not schema.type:
            return value
        if schema.type == 'object':
            if not isinstance(value, dict):
                raise scalars.mismatch(schema, value, field)
            if schema.has_additional and schema.additional is not None:
                return self._decode_members(schema.additional, value, path, field)
            if not schema.properties:
                return value
            return self._decode_struct(schema, value, path, field)
        if schema.type == 'array':
            if not isinstance(value, list) or schema.items is None:
                raise scalars.mismatch(schema, value, field)
            return self._decode_members(schema.items, value, path, field)
        scalars.check(schema, value, field)
        return value

    def _decode_struct(
            self, schema: nodes.Schema, value: dict[str, Any], path: paths.Path,
            field: Field | None,
    ) -> dict[str, Any]:
        struct = schema.name.rpartition('.')[2]
        changes: dict[str, Any] = {}
        for key, item in value.items():
            child = schema.properties.get(key)
            if child is None:
                self.unknown.append((path, key))
                decoded = None
            elif item is None:
                decoded = None
            else:
                names = (*field.names, key) if field else (key,)
                decoded = self.decode(child, item, (path, key), Field(struct, names))
                if scalars.is_omitted(child, decoded, key in schema.required, key):
                    decoded = None
            if decoded is not item or item is None:
                changes[key] = nodes.NOTHING if decoded is None else decoded
        return nodes.changed(value, changes)

    def _decode_members(
            self, schema: nodes.Schema, value: Any, path: paths.Path, field: Field | None,
    ) -> Any:
        """A map or a list, of values of one schema."""
        changed = None
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            decoded = scalars.zero(schema) if item is None else self.decode(
                schema, item, (path, key), field)
            if decoded is not item:
                if changed is None:
                    changed = value.copy()
                changed[key] = decoded
        return value if changed is None else changed
