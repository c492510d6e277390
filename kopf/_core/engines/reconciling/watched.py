"""
Watched objects: not owned, but used by the objects that are reconciled, e.g. secrets.

When such an object changes, the reconcilers are called for its users. The author's function or
index says which objects these are.
"""
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kopf._cogs.clients import screening, watching
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


class Watched(watching.Sink):
    """
    The objects of one kind in one namespace that a handler watches, as one watch shows them.

    A function of the author names the users of an object; these names are kept. If an index of the
    author names the users instead, the names of all watched objects are kept, and the index is read
    when one of them changes. A user that is not indexed yet is reconciled after its indexing
    anyway, and sees the change then.
    """

    def __init__(
            self,
            handler: handlers.ReconcilingHandler,
            resource: references.Resource,
            trigger: Trigger,
            users: Callable[..., Any] | Mapping[Any, Iterable[Any]],
    ) -> None:
        self._handler = handler
        self._resource = resource
        self._trigger = trigger
        self._users = users
        self._known: dict[str, tuple[bodies.Version, Collection[Name]]] = {}
        """The versions of the watched objects, and the kept names, by the uids."""
        self._unseen: set[str] = set()
        """The objects that were known when the list began, and that it has not shown yet."""
        self._is_complaining = False

    def list_started(self, *, restored: bool) -> None:
        self._unseen = {*self._known}

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        uid = bodies.get_uid(body)
        self._unseen.discard(uid)
        known = self._known.get(uid)
        if known is None or known[0] != bodies.parse_version(body):
            self._take(body)

    def list_ended(self) -> None:
        for uid in self._unseen:
            self._forget(uid)

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        if type == 'DELETED':
            self._forget(bodies.get_uid(body))
        else:
            self._take(body)

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        self._unseen.discard(bodies.get_uid(body))

    def _take(self, raw: bodies.RawBody) -> None:
        uid, names = bodies.get_uid(raw), self._note(raw)
        former = self._known.pop(uid, (None, ()))[1]
        if names:
            self._known[uid] = (bodies.parse_version(raw), names)
        self._notify([*former, *names])

    def _forget(self, uid: str) -> None:
        self._notify(self._known.pop(uid, (None, ()))[1])

    def _note(self, raw: bodies.RawBody) -> Collection[Name]:
        """Find the names to keep until the object changes; none if it has no users."""
        if isinstance(self._users, Mapping):
            return [(raw['metadata'].get('namespace'), raw['metadata']['name'])]
        body = bodies.Body(raw)
        meta = body.metadata
        try:
            found = self._users(
                body=body, spec=body.spec, status=body.status, meta=meta, name=meta.name,
                namespace=meta.namespace, uid=meta.uid, labels=meta.labels,
                annotations=meta.annotations, resource=self._resource, param=self._handler.param,
                logger=logger)
            return list(_iterate_names(found, meta.namespace))
        except Exception as e:
            self._complain(
                e, f"the function for the watched {self._resource} has failed for {meta.name!r}")
            return ()

    def _notify(self, names: Iterable[Name]) -> None:
        """Reconcile the users of the object: those before its change, and those after it."""
        found = dict.fromkeys(names)
        if isinstance(self._users, Mapping):
            found = dict.fromkeys(
                user for name in found for user in self._look_up(self._users, *name))
        for user in found:
            self._trigger(self._handler, user)

    def _look_up(
            self, index: Mapping[Any, Iterable[Any]], namespace: str | None, name: str,
    ) -> Iterable[Name]:
        for key in ((namespace, name), name):
            for value in index.get(key, ()):
                try:
                    yield from _iterate_names(value, namespace)
                except Exception as e:
                    self._complain(e, f"the index has no names under the key {key!r}")

    def _complain(self, e: Exception, about: str) -> None:
        """Log an error of the author's code, the first one with the details."""
        logger.error(f"{self._handler!r}: {about}: {e!r}", exc_info=not self._is_complaining)
        self._is_complaining = True


def _iterate_names(found: Any, namespace: str | None) -> Iterable[Name]:
    if found is None:
        return
    for item in [found] if isinstance(found, str) else found:
        if isinstance(item, str):
            yield namespace, item
        else:
            where, name = item
            yield where, name
