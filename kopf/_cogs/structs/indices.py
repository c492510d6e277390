"""
Interfaces of in-memory indices, as handlers see them.

Indices are read-only for handlers: only indexing functions change them.
"""
import abc
from collections.abc import Collection, Mapping
from typing import TypeVar

_K = TypeVar('_K')
_V = TypeVar('_V', covariant=True)


class Store(Collection[_V], abc.ABC):
    """
    All the values under one key of an index, of all the objects that yielded that key.

    The order is arbitrary. Equal values of different objects are all there.
    """
    __slots__ = ()


class Index(Mapping[_K, Store[_V]], abc.ABC):
    """Keys and values as indexed by one indexing function; named after the function's id."""
    __slots__ = ()
