"""
Schemas of objects: what the API understands, prunes, defaults, and refuses by them.

Built-in kinds (and the metadata of all kinds) are decoded into types (`decode`); custom resources
are pruned, defaulted, and validated, in this order, by the schemas of their CRDs. Everything is
pure: what comes in is never changed; what comes out can share with it.
"""
from kopf._kits.sandbox.schemas.decoding import Undecodable, decode, decode_metadata
from kopf._kits.sandbox.schemas.defaulting import default
from kopf._kits.sandbox.schemas.definitions import define, schema_of, typed_schema_of
from kopf._kits.sandbox.schemas.depths import verify_depth
from kopf._kits.sandbox.schemas.nodes import Schema
from kopf._kits.sandbox.schemas.pruning import prune
from kopf._kits.sandbox.schemas.validating import find_mistyped, validate

__all__ = [
    'Schema', 'Undecodable', 'decode', 'decode_metadata', 'default', 'define', 'find_mistyped',
    'prune', 'schema_of', 'typed_schema_of', 'validate', 'verify_depth',
]
