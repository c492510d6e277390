"""Identifiers that are used in all layers."""
from typing import NewType

HandlerId = NewType('HandlerId', str)
"""
The id of a handler, e.g. ``create_fn``, ``update_fn/spec.size``; ``parent/child`` in sub-handlers.
"""
