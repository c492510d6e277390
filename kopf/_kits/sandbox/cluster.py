"""
The cluster behind the API: what is stored and served, and what time it is there.
"""
import contextlib
import dataclasses
import datetime
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._kits.sandbox import encoding, objects, schemas
from kopf._kits.sandbox.kinds import Kind, Kinds, Resource, builtin_kinds
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import APIError, NotFound, Obj
from kopf._kits.sandbox.storage import Entry, Key, Store

NAMESPACES: Resource = ('', 'namespaces')
CRDS: Resource = ('apiextensions.k8s.io', 'customresourcedefinitions')

#: Resources that are one and the same in the store.
ALIASES: Mapping[Resource, Resource] = {('events.k8s.io', 'events'): ('', 'events')}


class Origin:
    """
    Where objects come from that no request has created: from nowhere, or from another cluster.
    """

    @property
    def is_speaking(self) -> bool:
        """Whether the present change of the store is of the origin, and not of a request."""
        return False

    async def prepare(self, request: Request) -> None:
        """
        Wait until all objects are stored that the request can concern.

        :raises APIError: if they are not available.
        """

    async def fetch(self, *resources: Resource) -> None:
        """The same for all objects of these resources."""

    def get(self, resource: Resource, key: Key) -> Obj | None:
        """Get the object as the origin has it; None if it has none."""
        return None

    def can_have(self, dependent: Entry, resource: Resource, owner: Resource, uid: str) -> bool:
        """Whether an owner that is not stored can exist nevertheless, or does not count."""
        return False

    def reread(self, resource: Resource) -> None:
        """Read the known objects of the origin again, by their new definition."""

    def miss(self, group: str, version: str, plural: str) -> None:
        """Note a request for a resource that is not served."""

    def needs(self, group: str, plural: str) -> bool:
        """Whether somebody can miss versions of a resource that are not served."""
        return True


class Cluster:
    """The state that all modules of the sandbox share."""

    def __init__(self, *, history: int = 10_000) -> None:
        self.store: Store = Store(history=history)
        self.kinds: Kinds = Kinds(builtin_kinds())
        self.origin: Origin = Origin()
        self.converters: dict[Resource, Callable[[Obj, str], Obj]] = {}
        """What converts objects to a version, instead of the webhooks of their definitions."""
        self.refusal_listeners: list[Callable[[Request, APIError], None]] = []
        """What hears of the requests that are refused."""

    def clock(self) -> datetime.datetime:
        """The time, of the running event loop if it has one of its own."""
        return clocks.Clock().now().wall

    def now(self) -> str:
        """The time as objects have it, in whole seconds: ``2020-12-31T23:59:59Z``."""
        return self.clock().strftime('%Y-%m-%dT%H:%M:%SZ')

    def new_uid(self) -> str:
        return str(uuid.uuid4())

    def kind(self, resource: Resource) -> Kind:
        """The version that the resource is stored in. Raises `NotFound` if there is none."""
        kinds = self.kinds.of_resource(*resource)
        if not kinds:
            raise NotFound
        return next((kind for kind in kinds if kind.version == kind.storage_version), kinds[0])

    def get(self, kind: Kind, key: Key) -> Entry:
        """The stored object. Raises `NotFound`."""
        entry = self.store.get(stored_resource(kind), key)
        if entry is None:
            raise NotFound(kind.group, kind.plural, key[1])
        return entry

    def put(self, kind: Kind, obj: Obj) -> Obj:
        """
        Store an object that is checked and complete, in the storage version; return it as it is
        read then.
        """
        stored, shown = self.stored_kind(kind), obj
        if stored is not kind:
            obj = objects.converted(stored, obj)
            shown = objects.converted(kind, obj)
        entry = self.store.put(
            stored_resource(kind), key_of(obj), obj, lambda o: objects.encode_object(stored, o))
        shown['metadata']['resourceVersion'] = str(entry.revision)
        return shown

    def remove(self, kind: Kind, key: Key, last: Obj | None = None) -> Entry:
        stored = self.stored_kind(kind)
        if last is not None and stored is not kind:
            last = objects.converted(stored, last)
        return self.store.remove(
            stored_resource(kind), key, lambda o: objects.encode_object(stored, o), last)

    def is_current(self, kind: Kind, entry: Entry) -> bool:
        """Whether the object is stored in what is the storage version now."""
        return entry.raw.startswith(self.stored_kind(kind).prefix)

    def stored_kind(self, kind: Kind) -> Kind:
        """The version in which objects of the kind are stored."""
        resource = stored_resource(kind)
        is_stored = resource == kind.resource and kind.storage_version == kind.version
        return kind if is_stored else self.kind(resource)

    def load(self, kind: Kind, entry: Entry) -> Obj:
        """A copy of a stored object, in this version."""
        obj = entry.decode()
        if entry.raw.startswith(kind.prefix):
            return obj
        return objects.converted(kind, obj)

    def redefine(self, resource: Resource) -> None:
        """Let the objects of a custom resource be read by its new definition."""
        self.store.reread(resource, self.reread)
        self.origin.reread(resource)

    def reread(self, entry: Entry) -> Entry:
        """
        A stored object as its version is defined now: without unknown fields, with defaults.

        It is the "defaulting" and the "field pruning" of custom resources in Kubernetes.
        """
        raw = entry.stored or entry.raw
        obj = encoding.decode_own(raw)
        kind = self.kinds.named(obj['apiVersion'], obj['kind'])
        if kind is not None:
            with contextlib.suppress(schemas.Undecodable, APIError):  # as it is, then
                known, _ = objects.conform(kind, obj)
                if entry.revision:  # else, it is not in the store, but only upstream
                    known['metadata']['resourceVersion'] = str(entry.revision)
                made = objects.encode_object(kind, schemas.default(schemas.schema_of(kind), known))
                return dataclasses.replace(entry, raw=made, stored=None if made == raw else raw)
        return entry

    def is_served(self, crd: Obj) -> bool:
        """Whether there can be objects of what it defines."""
        return bool(self.kinds.of_resource(crd['spec']['group'], crd['spec']['names']['plural']))

    def namespace(self, name: str) -> Obj | None:
        entry = self.store.get(NAMESPACES, ('', name))
        return None if entry is None else entry.decode()


def stored_resource(kind: Kind) -> Resource:
    return ALIASES.get(kind.resource, kind.resource)


def key_of(obj: Mapping[str, Any]) -> Key:
    metadata = obj['metadata']
    return metadata.get('namespace', ''), metadata['name']
