"""
Watched objects: not owned, but used by the objects that are reconciled, e.g. secrets.

When such an object changes, the reconcilers are called for those that use it: the author's function
or index says which these are.
"""
import abc
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from kopf._cogs.clients import watching
from kopf._cogs.structs import bodies, references
from kopf._core.intents import handlers

logger = logging.getLogger(__name__)

Name = tuple[str | None, str]
"""The namespace and the name of an object."""

CONTENT = frozenset({'body', 'spec', 'status'})
"""The arguments of functions that need more than the metadata of an object."""

Trigger = Callable[[handlers.ReconcilingHandler, Name], None]
"""Lets the reconciling handler be called for the object of this name, if it is known."""


def needs_content(mapper: handlers.Mapper) -> bool:
    """Whether the function takes more of an object than its metadata, by its arguments."""
    return not isinstance(mapper, str) and bool(
        CONTENT & inspect.signature(mapper).parameters.keys())


class Watched(watching.Sink, abc.ABC):
    """The objects of one kind in one namespace that a handler watches, as one watch shows them."""

    def __init__(
            self,
            handler: handlers.ReconcilingHandler,
            resource: references.Resource,
            trigger: Trigger,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._resource = resource
        self._trigger = trigger
        self._known: dict[str, tuple[bodies.Version, Collection[Name]]] = {}
        """The versions of the watched objects, and what `_note` has made of them, by the uids."""
        self._seen: set[str] = set()
        self._is_complaining = False

    @abc.abstractmethod
    def _note(self, raw: bodies.RawBody) -> Collection[Name]:
        """Make what is to be kept of the object until it changes; nothing if it does not matter."""

    @abc.abstractmethod
    def _find_users(self, names: Iterable[Name]) -> Iterable[Name]:
        """Find who uses the object, by what was kept of it: before its change and after that."""

    def begin(self, *, restored: bool) -> None:
        self._seen.clear()

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        uid = bodies.get_uid(body)
        self._seen.add(uid)
        known = self._known.get(uid)
        if known is None or known[0] != bodies.parse_version(body):
            self._take(body)

    def end(self) -> None:
        for uid in self._known.keys() - self._seen:
            self._forget(uid)
        self._seen.clear()

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        if type == 'DELETED':
            self._forget(bodies.get_uid(body))
        else:
            self._take(body)

    def skipped(
            self, type: Literal['ADDED', 'MODIFIED', 'DELETED'] | None, body: bodies.RawBody,
    ) -> None:
        self._seen.add(bodies.get_uid(body))

    def _take(self, raw: bodies.RawBody) -> None:
        uid, names = bodies.get_uid(raw), self._note(raw)
        former = self._known.pop(uid, (None, ()))[1]
        if names:
            self._known[uid] = (bodies.parse_version(raw), names)
        self._notify([*former, *names])

    def _forget(self, uid: str) -> None:
        self._notify(self._known.pop(uid, (None, ()))[1])

    def _notify(self, names: Iterable[Name]) -> None:
        for name in dict.fromkeys(self._find_users(dict.fromkeys(names))):
            self._trigger(self._handler, name)

    def _complain(self, e: Exception, about: str) -> None:
        """Log an error of the author's code, the first one with the details."""
        logger.error(f"{self._handler!r}: {about}: {e!r}", exc_info=not self._is_complaining)
        self._is_complaining = True


class WatchedByFunction(Watched):
    """The author's function names the users of an object. The names are kept."""

    def __init__(
            self,
            handler: handlers.ReconcilingHandler,
            resource: references.Resource,
            trigger: Trigger,
            fn: Callable[..., Any],
    ) -> None:
        super().__init__(handler, resource, trigger)
        self._fn = fn

    def _note(self, raw: bodies.RawBody) -> Collection[Name]:
        body = bodies.Body(raw)
        meta = body.metadata
        try:
            found = self._fn(
                body=body, spec=body.spec, status=body.status, meta=meta, name=meta.name,
                namespace=meta.namespace, uid=meta.uid, labels=meta.labels,
                annotations=meta.annotations, resource=self._resource, param=self._handler.param,
                logger=logger)
            return list(_iterate_names(found, meta.namespace))
        except Exception as e:
            self._complain(
                e, f"the function for the watched {self._resource} has failed for {meta.name!r}")
            return ()

    def _find_users(self, names: Iterable[Name]) -> Iterable[Name]:
        return names


class WatchedByIndex(Watched):
    """
    The author's index of the users says who uses an object. The names of all objects are kept.

    The index is read when an object changes. An object that is not indexed yet is reconciled after
    its indexing anyway, and sees the change then.
    """

    def __init__(
            self,
            handler: handlers.ReconcilingHandler,
            resource: references.Resource,
            trigger: Trigger,
            index: Mapping[Any, Iterable[Any]],
    ) -> None:
        super().__init__(handler, resource, trigger)
        self._index = index

    def _note(self, raw: bodies.RawBody) -> Collection[Name]:
        return [(raw['metadata'].get('namespace'), raw['metadata']['name'])]

    def _find_users(self, names: Iterable[Name]) -> Iterable[Name]:
        users: list[Name] = []
        for namespace, name in names:
            for key in ((namespace, name), name):
                for value in self._index.get(key, ()):
                    try:
                        users.extend(_iterate_names(value, namespace))
                    except Exception as e:
                        self._complain(e, f"the index has no names under the key {key!r}")
        return users


def _iterate_names(found: Any, namespace: str | None) -> Iterable[Name]:
    if found is None:
        return
    for item in [found] if isinstance(found, str) else found:
        if isinstance(item, str):
            yield namespace, item
        else:
            where, name = item
            yield where, name
