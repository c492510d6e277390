"""Identifiers that travel through all the layers."""
from typing import NewType

HandlerId = NewType('HandlerId', str)
"""A handler's id: unique for one function & field; ``parent/child`` for sub-handlers."""
