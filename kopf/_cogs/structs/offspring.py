"""
The interface of owned resources in handlers. Handlers can only read them.
"""
import abc
from collections.abc import Iterator

from kopf._cogs.structs import bodies


class Children(abc.ABC):
    """
    The owned resources of the object, as the handler of `kopf.reconcile` gets them: read-only.

    They are as the last call of the handler has left them, or newer. Each has the fields that were
    applied, the status, and the essential metadata.
    """
    __slots__ = ()

    @abc.abstractmethod
    def __iter__(self) -> Iterator[bodies.Body]: ...

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def get(self, kind: str, name: str, *, namespace: str | None = None) -> bodies.Body | None:
        """
        Find a child.

        :param kind: the resource: its kind, plural, singular, or a short name; also with the group,
            e.g. ``deployments.apps``.
        :param name: the name of the child.
        :param namespace: the namespace of the child. Default: the namespace of the object. If the
            object is cluster-scoped, there is no default for children in namespaces.
        :returns: what is known of the child, or None if there is no such child.
        :raises ValueError: if the namespace is needed.
        """
