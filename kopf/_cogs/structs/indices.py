"""
The interfaces of in-memory indices in handlers. Handlers can only read indices.
"""
import abc
from collections.abc import Collection, Mapping
from typing import TypeVar

_K = TypeVar('_K')
_V = TypeVar('_V', covariant=True)


class Store(Collection[_V], abc.ABC):
    """
    The values of all objects under one key of an index: a read-only collection.

    The order is arbitrary. If several objects have equal values, all these values are there.
    """
    __slots__ = ()


class Index(Mapping[_K, Store[_V]], abc.ABC):
    """
    An index: a read-only mapping of keys to `kopf.Store` of values.

    Handlers get the index of each function with `kopf.index` as a keyword argument named by the id
    of the function. See "Index objects in memory" in the documentation.
    """
    __slots__ = ()
