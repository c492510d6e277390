"""
Watched objects: not owned, but used by the objects that are reconciled, e.g. secrets.

When such an object changes, the reconcilers are called for those that use it: the author's function
says which these are.
"""
import inspect
import logging
from collections.abc import Callable, Collection, Iterable
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


def needs_content(fn: Callable[..., Any]) -> bool:
    """Whether the function takes more of an object than its metadata, by its arguments."""
    return bool(CONTENT & inspect.signature(fn).parameters.keys())


class Watched(watching.Sink):
    """The objects of one kind in one namespace that a handler watches, as one watch shows them."""

    def __init__(
            self,
            handler: handlers.ReconcilingHandler,
            fn: Callable[..., Any],
            resource: references.Resource,
            trigger: Trigger,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._fn = fn
        self._resource = resource
        self._trigger = trigger
        self._users: dict[str, tuple[bodies.Version, Collection[Name]]] = {}
        """The versions of the used objects and who uses them, by the uids. Others are not kept."""
        self._seen: set[str] = set()
        self._is_complaining = False

    def begin(self, *, restored: bool) -> None:
        self._seen.clear()

    def listed(self, body: bodies.RawBody) -> None:
        uid = _get_uid(body)
        self._seen.add(uid)
        known = self._users.get(uid)
        if known is None or known[0] != bodies.parse_version(body):
            self._take(body)

    def end(self) -> None:
        for uid in self._users.keys() - self._seen:
            self._forget(uid)
        self._seen.clear()

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        if type == 'DELETED':
            self._forget(_get_uid(body))
        else:
            self._take(body)

    def skipped(
            self, type: Literal['ADDED', 'MODIFIED', 'DELETED'] | None, body: bodies.RawBody,
    ) -> None:
        self._seen.add(_get_uid(body))

    def _take(self, raw: bodies.RawBody) -> None:
        uid, users = _get_uid(raw), self._find_users(raw)
        former = self._users.pop(uid, (None, ()))[1]
        if users:
            self._users[uid] = (bodies.parse_version(raw), users)
        for name in dict.fromkeys([*former, *users]):
            self._trigger(self._handler, name)

    def _forget(self, uid: str) -> None:
        for name in self._users.pop(uid, (None, ()))[1]:
            self._trigger(self._handler, name)

    def _find_users(self, raw: bodies.RawBody) -> Collection[Name]:
        """Ask the author's function; its errors are logged, the first one with the details."""
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
            logger.error(
                f"{self._handler!r}: the function for the watched {self._resource} has failed for "
                f"{meta.name!r}: {e!r}", exc_info=not self._is_complaining)
            self._is_complaining = True
            return ()


def _get_uid(body: bodies.RawBody) -> str:
    return body['metadata']['uid']


def _iterate_names(found: Any, namespace: str | None) -> Iterable[Name]:
    if found is None:
        return
    for item in [found] if isinstance(found, str) else found:
        if isinstance(item, str):
            yield namespace, item
        else:
            where, name = item
            yield where, name
