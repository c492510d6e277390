"""
Overlays: what requests have changed here, over the objects of another cluster, the upstream.

The store has the objects as clients see them. Of each object that a request has changed, created,
or deleted, the overlay keeps the *base*: the object as it is upstream. All other objects are the
same as upstream, and need nothing here.
"""
import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kopf._kits.sandbox import objects, schemas
from kopf._kits.sandbox.applying import rebasing
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES, Cluster, key_of, stored_resource
from kopf._kits.sandbox.deleting import CRD_CLEANUP, RELEASED, is_released
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.statuses import APIError, NotFound, Obj, omit, qualified
from kopf._kits.sandbox.storage import Change, Entry, Item, Key

logger = logging.getLogger(__name__)

MANAGERS = nodes.Schema({
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': ['manager', 'operation', 'subresource', 'apiVersion'],
    'items': {'properties': {'fieldsV1': {}}}})
"""The schema by which managed fields are merged; in that of the API, they are one value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """
    An object that differs from the upstream, by its kind, and its key: the namespace and the name.

    ``base`` is the object as it is upstream, or `None` if it was created here; ``local`` is the
    object as it is here, or `None` if it was deleted here.
    """
    kind: Kind
    key: Key
    base: Obj | None
    local: Obj | None


class Overlay:
    """Follows the upstream by `replace`, `accept`, `lose`; and what requests do, by `hear`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self.is_speaking = False
        """Whether the present change of the store is of the upstream."""
        self.unfollowed: set[Resource] = set()
        """The resources whose changes do not come any more, as all logins have failed."""
        self._bases: dict[Item, Entry | None] = {}
        """What requests have touched, as it is upstream; None if it does not exist there."""
        self._deleted: set[str] = set()
        """The uids of what requests have deleted."""
        self._kinds: dict[Resource, Kind] = {}
        """The kinds with the versions in which objects come from upstream."""

    def hear(self, change: Change) -> None:
        """Note a change of the store by a request."""
        if self.is_speaking:
            return
        item = change.resource, change.new.key
        base = self._bases.setdefault(item, change.old)
        if change.type != 'DELETED':
            return
        self._deleted.add(change.new.uid)
        if base is None:
            del self._bases[item]
        elif base.uid not in self._deleted:  # it has the name of what was deleted
            del self._bases[item]
            asyncio.get_running_loop().call_soon(  # after all others have heard of the deletion
                self.accept, self._kinds[change.resource], base)

    # What the upstream tells.

    def replace(self, kind: Kind, namespace: str, entries: Iterable[Entry]) -> None:
        """Take all objects of a kind, in the namespace or (if it is empty) in the cluster."""
        resource = stored_resource(kind)
        present = set()
        for entry in entries:
            self.accept(kind, entry)
            present.add(entry.key)
        keys = [entry.key for entry in self._store.select(resource, namespace)]
        keys += [key for other, key in self._bases if other == resource]
        for key in keys:
            if key not in present and (not namespace or key[0] == namespace):
                self.lose(resource, key)

    def accept(self, kind: Kind, new: Entry) -> None:
        """Take an object that is created or changed, or that exists."""
        resource = stored_resource(kind)
        self._kinds[resource] = kind
        if self._is_redefined(resource):
            new = self._cluster.reread(new)
        item = resource, new.key
        base, local = self._bases.get(item), self._store.get(*item)
        known = local if item not in self._bases else base
        if known is not None and known.uid != new.uid:
            self.lose(*item)  # it was created again
            local = self._store.get(*item)
        if base is not None and base.uid == new.uid:
            self._bases[item] = new
            if local is not None and local.uid == new.uid:
                self._rebase(item, base, new, local)
        elif item in self._bases:
            logger.warning(f"The upstream has created {kind.plural} {_join(new.key)}, which exists "
                           f"here: what is here stays.")
            self._bases[item] = new
        elif local is None and self._is_lost(*item):
            self._bases[item] = new
            self._deleted.add(new.uid)
        elif local is None or _strip(local.decode()) != _strip(new.decode()):
            self._put(resource, new.decode(), new.stored)

    def lose(self, resource: Resource, key: Key) -> None:
        """Take note that an object does not exist upstream."""
        item = resource, key
        local = self._store.get(*item)
        base = self._bases.get(item, local)
        if local is None:
            self._bases.pop(item, None)
        elif base is None or base.uid != local.uid or self._end(item, base, local):
            self._bases[item] = None
        else:
            self._bases.pop(item, None)

    def _end(self, item: Item, base: Entry, local: Entry) -> bool:
        """Delete the object as upstream; return whether it stays, as requests hold it here."""
        obj, theirs = local.decode(), base.decode()['metadata'].get('finalizers') or ()
        own = [name for name in obj['metadata'].get('finalizers') or () if name not in theirs]
        if own:
            obj['metadata']['finalizers'] = own
            obj['metadata'].setdefault('deletionTimestamp', self._cluster.now())
            self._put(item[0], obj)
        else:
            self._remove(item)
        return bool(own)

    def _rebase(self, item: Item, before: Entry, after: Entry, local: Entry) -> None:
        """Do to the local object what was done upstream."""
        try:
            kind = self._cluster.kind(item[0])
            old, new, ours = (self._cluster.load(kind, each) for each in (before, after, local))
        except (NotFound, objects.Pending):
            return  # if a webhook converts it here, nothing of it can be merged
        made = rebase(kind, old, new, ours)
        if after is self._bases.get(item) and reduce(made) == reduce(new):
            del self._bases[item]
            self._put(item[0], after.decode(), after.stored)
        elif is_released(kind, made):
            self._deleted.add(local.uid)
            self._remove(item)
        elif made != ours:
            self._put(item[0], made)

    def reread(self, resource: Resource) -> None:
        """Let the objects of the upstream be read by their definition here."""
        for item, base in self._bases.items():
            if item[0] == resource and base is not None:
                self._bases[item] = self._cluster.reread(base)

    def _is_redefined(self, resource: Resource) -> bool:
        return (CRDS, ('', qualified(*resource))) in self._bases

    def _is_lost(self, resource: Resource, key: Key) -> bool:
        """Whether the definition or the namespace was deleted here that the object depends on."""
        needed = (CRDS, ('', qualified(*resource))), (NAMESPACES, ('', key[0]))
        return any(
            (base := self._bases.get(item)) is not None and base.uid in self._deleted
            and self._store.get(*item) is None for item in needed)

    def _find_kind(self, resource: Resource, obj: Obj | None = None) -> Kind:
        """The kind with the version of the object, or else with that of the upstream."""
        named = None if obj is None else (self._cluster.kinds.named(obj['apiVersion'], obj['kind']))
        return named or self._kinds.get(resource) or self._cluster.kind(resource)

    def _put(self, resource: Resource, obj: Obj, stored: bytes | None = None) -> None:
        """Store an object in its version, as if it had been stored long ago."""
        kind, key = self._find_kind(resource, obj), key_of(obj)
        with self._speak():
            try:
                self._store.put(
                    resource, key, obj, lambda made: objects.encode_object(kind, made), stored)
            except APIError as e:
                logger.warning(f"{kind.kind} {_join(key)} of the upstream cannot be stored here: "
                               f"{e}")

    def _remove(self, item: Item) -> None:
        with self._speak():
            self._store.remove(*item, lambda obj: objects.encode_object(
                self._find_kind(item[0], obj), obj))

    @contextlib.contextmanager
    def _speak(self) -> Iterator[None]:
        was_speaking, self.is_speaking = self.is_speaking, True
        try:
            yield
        finally:
            self.is_speaking = was_speaking

    # What others ask.

    def get(self, resource: Resource, key: Key) -> Obj | None:
        """Get the object as it is upstream; None if it does not exist there, as far as is known."""
        item = resource, key
        entry = self._bases[item] if item in self._bases else self._store.get(*item)
        return None if entry is None else entry.decode()

    def is_waiting_for(self, resource: Resource, dependent: Entry, uid: str) -> bool:
        """
        Whether the deletion of a dependent, whose owner is absent, is left to the upstream.

        The upstream has deleted the owner, or is about to tell of it.
        """
        item = resource, dependent.key
        return uid not in self._deleted and (
            item not in self._bases or self._bases[item] is not None)

    def find_differences(self) -> list[Difference]:
        """Find all objects that differ, in the order of their resources and keys."""
        found = []
        for (resource, key), base in sorted(self._bases.items(), key=lambda item: item[0]):
            entry = self._store.get(resource, key)
            theirs = None if base is None else base.decode()
            ours = None if entry is None else entry.decode()
            if theirs is not None and (
                    _is_ending(theirs) if ours is None else reduce(theirs) == reduce(ours)):
                continue
            found.append(Difference(self._find_kind(resource), key, theirs, ours))
        return found


def make_entry(kind: Kind, obj: Obj) -> Entry:
    """Encode an object of the upstream; it has no revision here yet."""
    metadata = obj['metadata']
    return Entry(key_of(obj), metadata['uid'], 0, objects.encode_object(kind, obj),
                 metadata.get('labels') or None)


def rebase(kind: Kind, base: Obj, new: Obj, local: Obj) -> Obj:
    """What the local object becomes when its base becomes new; all are of this kind."""
    states = base, new, local
    made: Obj = rebasing.rebase(schemas.typed_schema_of(kind), *map(reduce, states))
    metadata = made['metadata']
    managers = rebasing.rebase(MANAGERS, *(
        state['metadata'].get('managedFields', rebasing.ABSENT) for state in states))
    if managers is not rebasing.ABSENT:
        metadata['managedFields'] = managers
    theirs, ours = (state['metadata'].get('generation', 0) for state in (new, local))
    if theirs or ours:
        is_changed = any(made.get(key) != local.get(key) for key in {**made, **local}
                         if key not in ('metadata', 'status'))
        metadata['generation'] = max(theirs, ours + is_changed)
    metadata['resourceVersion'] = local['metadata']['resourceVersion']
    return made


def _strip(obj: Obj, *fields: str) -> Obj:
    """The object without its version, which is another one here, and without these fields."""
    return {**obj, 'metadata': omit(obj['metadata'], 'resourceVersion', *fields)}


def reduce(obj: Obj) -> Obj:
    return _strip(obj, 'managedFields', 'generation')


def _is_ending(obj: Obj) -> bool:
    """Whether the object is being deleted, and only Kubernetes has to do anything for that."""
    return 'deletionTimestamp' in obj['metadata'] and (
        {*RELEASED, CRD_CLEANUP}.issuperset(obj['metadata'].get('finalizers') or ()))


def _join(key: Key) -> str:
    return '/'.join(filter(None, key))
