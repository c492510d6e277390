"""
What the API does by itself with the kinds that are built in: defaults, what it refuses, and the
kinds that are views of the same objects; and with all kinds: changes on creation and update.

Most of it is data (``data/defaults.json``, ``data/traits.json``, and the enums of the schemas); the
rest is here, and only for what operators touch. No controllers: nothing happens to objects later.
"""
from kopf._kits.sandbox.builtins.changing import prepare_creation, prepare_update
from kopf._kits.sandbox.builtins.checking import validate
from kopf._kits.sandbox.builtins.completing import complete
from kopf._kits.sandbox.builtins.converting import convert
from kopf._kits.sandbox.builtins.immutables import validate_update

__all__ = [
    'complete', 'convert', 'prepare_creation', 'prepare_update', 'validate', 'validate_update',
]
