"""
Children: the objects that reconcilers have made, as the operator knows them.

The operator watches only the objects with the labels of its reconcilers. It keeps of each child
what is needed to recognise changes by others, and, packed, what handlers can read.
"""
import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from kopf._cogs.clients import watching
from kopf._cogs.structs import bodies, offspring, references
from kopf._core.engines.reconciling import desired

META = frozenset({
    'name', 'namespace', 'uid', 'resourceVersion', 'generation', 'creationTimestamp',
    'deletionTimestamp', 'labels', 'annotations'})
"""What is kept of the metadata of a child."""


class Child:
    """One child. The state is replaced as a whole by newer ones; the object is for one uid."""
    __slots__ = (
        '_fields', '_packed', '_settled', '_stamp', 'digest', 'is_deleting', 'is_owned',
        'is_pruned', 'key', 'label', 'resource', 'uid', 'version')

    def __init__(
            self, resource: references.Resource, key: desired.Key, raw: bodies.RawBody,
            *, manager: str | None,
    ) -> None:
        """``manager`` is the field manager that has applied the child, if it is known."""
        meta: Any = raw['metadata']
        self.resource: references.Resource = resource
        self.key: desired.Key = key
        self.uid: str = meta['uid']
        self.version: bodies.Version = bodies.parse_version(raw)
        self.digest: str | None = (meta.get('annotations') or {}).get(desired.DIGEST_ANNOTATION)
        self.label: str | None = (meta.get('labels') or {}).get(desired.HANDLER_LABEL)
        self.is_deleting: bool = 'deletionTimestamp' in meta
        self.is_pruned: bool = False
        """Whether the operator itself has deleted the child, so that its end is no news."""
        owner = (meta.get('labels') or {}).get(desired.OWNER_LABEL)
        self.is_owned: bool = any(
            ref.get('uid') == owner for ref in meta.get('ownerReferences') or ())
        fields = _find_fields(meta.get('managedFields') or (), manager)
        self._fields: bytes | None = _pack(fields)  # null if the manager has no fields at all
        self._stamp: int = hash(self._fields)
        """What the manager owns of the child, as a hash: others change it by their edits."""
        self._settled: tuple[str | None, int] | None = None
        kept: dict[str, Any] = {
            key: val for key, val in raw.items() if key in ('apiVersion', 'kind', 'status')}
        kept['metadata'] = {key: val for key, val in meta.items() if key in META}
        kept.update({
            key: desired.restrict(fields[f'f:{key}'], val) for key, val in raw.items()
            if fields is not None and key not in kept and f'f:{key}' in fields})
        self._packed = _pack(kept)

    @property
    def is_applied(self) -> bool:
        """Whether the handler of the label has applied it; false e.g. for copies by users."""
        return self._stamp != _NOTHING

    def settle(self) -> None:
        """Note that this is the response of the API server to the applied manifest."""
        self._settled, self._fields = (self.digest, self._stamp), None

    def follow(self, older: 'Child') -> None:
        """Take over from an older state of the same object what is known of the manifest."""
        self._settled, self.is_pruned = older._settled, older.is_pruned
        self.is_deleting = self.is_deleting or older.is_deleting
        if self._settled == (self.digest, self._stamp):
            self._fields = None

    def note_deletion(self, *, is_pruned: bool) -> None:
        """Note that the operator has deleted the child, which the watch will show later."""
        self.is_deleting, self.is_pruned = True, is_pruned

    def expect_return(self) -> None:
        """Note that the child is wanted again: when it is gone, that is news."""
        self.is_pruned = False

    def forget_version(self) -> None:
        """Take the next state as newer, whatever its version."""
        self.version = None

    def find_unrecorded(self, manifest: Mapping[str, Any]) -> Collection[desired.Path]:
        """
        Find the fields of which the API server has recorded nothing, though they were applied.

        The child must be the response to this manifest, and not settled yet.
        """
        return () if self._fields is None else frozenset(desired.find_unrecorded(
            json.loads(self._fields), _get_content(manifest)))

    def is_as(
            self, wanted: desired.Desired, *, unrecorded: Collection[desired.Path] = (),
    ) -> bool:
        """Whether nobody has changed the child since this manifest was applied."""
        if self.digest != wanted.digest:
            return False
        if self._settled != (self.digest, self._stamp):
            if self._settled is not None or self._fields is None or not desired.owns(
                    json.loads(self._fields), _get_content(wanted.manifest),
                    unrecorded=unrecorded):
                return False
            self.settle()
        return True

    @property
    def body(self) -> bodies.Body:
        """What is kept of the object."""
        return bodies.Body(json.loads(self._packed))


def _pack(value: object) -> bytes:
    return json.dumps(value, separators=(',', ':')).encode()


_NOTHING = hash(_pack(None))
"""The stamp of children of which their manager has no fields."""


def _get_content(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Get the part of a manifest whose fields have managers."""
    content = {key: val for key, val in manifest.items() if key not in ('apiVersion', 'kind')}
    content['metadata'] = {
        key: val for key, val in manifest['metadata'].items() if key not in ('name', 'namespace')}
    return content


def _find_fields(entries: Collection[Mapping[str, Any]], manager: str | None) -> Any:
    for entry in entries:
        if entry.get('manager') == manager and entry.get('operation') == 'Apply' and (
                not entry.get('subresource')):
            return entry.get('fieldsV1') or None
    return None


OnChange = Callable[[str], None]
"""Called with the uid of a parent when any of its children has changed."""

OnUnavailable = Callable[[references.Resource, Exception], None]
"""Called with a kind of children and an error when the children cannot be listed for now."""


class ChildStore:
    """All children of all parents of an operator."""

    def __init__(
            self,
            *,
            on_change: OnChange = lambda uid: None,
            on_listed: Callable[[], None] = lambda: None,
            on_unavailable: OnUnavailable = lambda resource, error: None,
    ) -> None:
        """``on_listed`` is called when all children of some kind in some namespace are known."""
        super().__init__()
        self.on_change: OnChange = on_change
        self.on_listed: Callable[[], None] = on_listed
        self.on_unavailable: OnUnavailable = on_unavailable
        self._by_owner: dict[str, dict[desired.Key, Child]] = {}
        self._owners: dict[desired.Key, str] = {}
        """Whose each child is, as its label says: two parents can want the same object."""
        self._held: dict[tuple[str, desired.Key], list[Callable[[], object]]] = {}
        """The news of the children that are being written."""
        self._unrecorded: dict[tuple[str, str], Collection[desired.Path]] = {}
        """The fields that the API server does not record, by the groups and kinds."""
        self._managers: dict[str, str] = {}
        """The field managers by the values of the label of children."""
        self._shelves: dict[tuple[references.Resource, references.Namespace], Shelf] = {}

    def register(self, manager: str) -> str:
        """Note a field manager; return the value of the label of its children."""
        label = desired.make_digest(manager)
        self._managers[label] = manager
        return label

    def open(self, resource: references.Resource, namespace: references.Namespace) -> 'Shelf':
        """
        Get the sink for a watch of the children of one kind in one namespace.

        The watch begins with a list. Until the list is complete, no handlers are called for which
        the children matter: after a pause, other operators can have changed them.
        """
        shelf = self._shelves.get((resource, namespace))
        if shelf is None:
            shelf = self._shelves[resource, namespace] = Shelf(self, resource)
        shelf.reopen()
        return shelf

    def close(self, resource: references.Resource, namespace: references.Namespace) -> None:
        """Forget the children of one kind in one namespace."""
        self._shelves.pop((resource, namespace)).clear()

    def is_ready(self, resource: references.Resource, namespace: str | None) -> bool:
        """Whether those children of the kind are known that a parent in the namespace can have."""
        shelves = {where: shelf for (served, where), shelf in self._shelves.items()
                   if served == resource}
        own = [shelf for where, shelf in shelves.items() if where in (None, namespace)]
        needed = own or list(shelves.values())
        return bool(needed) and all(shelf.is_listed for shelf in needed)

    def is_listed(self, resource: references.Resource, namespace: str | None) -> bool:
        """
        Whether all children of the kind in the namespace are known.

        With None, it is about all namespaces that the operator serves.
        """
        shelves = [shelf for (served, where), shelf in self._shelves.items()
                   if served == resource and (namespace is None or where in (None, namespace))]
        return bool(shelves) and all(shelf.is_listed for shelf in shelves)

    @contextlib.contextmanager
    def writing(self, owner: str, key: desired.Key) -> Iterator[None]:
        """
        Hold the news of a child back while it is written: the watch can be ahead of the response.

        What is no echo of the write is news after it.
        """
        self._held[owner, key] = []
        try:
            yield
        finally:
            for act in self._held.pop((owner, key)):
                act()

    def of(self, uid: str) -> Mapping[desired.Key, Child]:
        """Get the children of a parent. The result changes with the children: do not keep it."""
        return self._by_owner.get(uid) or {}

    def find_owner(self, key: desired.Key) -> str | None:
        """Find whose child the object is, by the uid of the parent; None if it is no child."""
        return self._owners.get(key)

    def get_unrecorded(self, key: desired.Key) -> Collection[desired.Path]:
        """Get the fields of children of this kind that the API server is known not to record."""
        return self._unrecorded.get((key.group, key.kind), ())

    def accept(
            self,
            resource: references.Resource,
            raw: bodies.RawBody,
            *,
            repeated: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Take the response to an applied manifest: it can be ahead of the watch.

        ``repeated`` is the manifest if it was applied before, and then seemed to have lost fields.
        What the API server does not record is learned from it, for all children of the kind.
        """
        child = self._make(resource, raw)
        if repeated is not None and (found := child.find_unrecorded(repeated)):
            known_fields = self.get_unrecorded(child.key)
            self._unrecorded[child.key.group, child.key.kind] = {*known_fields, *found}
        child.settle()
        owner = _get_label(raw, desired.OWNER_LABEL)
        if not self._move(owner, child.key, child.uid, child.version):
            self.on_change(owner)  # the child was taken away since then
            return
        known = self.of(owner).get(child.key)
        if known is None or known.uid != child.uid or not bodies.is_newer(
                known.version, child.version):
            self._by_owner.setdefault(owner, {})[child.key] = child
        for (served, where), shelf in self._shelves.items():
            if served == resource and where in (None, child.key.namespace):
                shelf.note(owner, child)

    def see(self, resource: references.Resource, raw: bodies.RawBody) -> None:
        """Take a state from the watch, unless a newer one is known."""
        owner, key = _get_label(raw, desired.OWNER_LABEL), _get_key(raw)
        if (held := self._held.get((owner, key))) is not None:
            held.append(lambda: self._see(owner, key, resource, raw))
        else:
            self._see(owner, key, resource, raw)

    def _see(
            self, owner: str, key: desired.Key, resource: references.Resource, raw: bodies.RawBody,
    ) -> None:
        if not self._move(owner, key, raw['metadata']['uid'], bodies.parse_version(raw)):
            return
        known = self.of(owner).get(key)
        if known is not None and known.uid != raw['metadata']['uid']:
            known = None
        if known is not None and not bodies.is_newer(bodies.parse_version(raw), known.version):
            return  # mostly echoes of own writes: nothing is made of them
        child = self._make(resource, raw)
        if known is not None:
            child.follow(known)
        self._by_owner.setdefault(owner, {})[key] = child
        self.on_change(owner)

    def _move(
            self, owner: str, key: desired.Key, uid: str, version: bodies.Version,
    ) -> bool:
        """Take the child from its former owner; return whether this state is not outdated."""
        former = self._owners.get(key, owner)
        if former != owner:
            known = self._by_owner[former][key]
            if known.uid == uid and bodies.is_newer(known.version, version):
                return False
            self._remove(former, key, known.uid)
        self._owners[key] = owner
        return True

    def remove(self, owner: str, key: desired.Key, uid: str) -> None:
        """Forget a child that is gone, if it is still this one."""
        if (held := self._held.get((owner, key))) is not None:
            held.append(lambda: self._remove(owner, key, uid))
        else:
            self._remove(owner, key, uid)

    def _remove(self, owner: str, key: desired.Key, uid: str) -> None:
        children = self._by_owner.get(owner)
        known = children.get(key) if children is not None else None
        if children is not None and known is not None and known.uid == uid:
            del children[key]
            del self._owners[key]
            if not children:
                del self._by_owner[owner]
            if not known.is_pruned:
                self.on_change(owner)

    def _make(self, resource: references.Resource, raw: bodies.RawBody) -> Child:
        manager = self._managers.get(_get_label(raw, desired.HANDLER_LABEL))
        return Child(resource, _get_key(raw), raw, manager=manager)


def _get_key(raw: bodies.RawBody) -> desired.Key:
    meta = raw['metadata']
    group = raw['apiVersion'].rpartition('/')[0]
    return desired.Key(group, raw['kind'], meta.get('namespace'), meta['name'])


def _get_label(raw: bodies.RawBody, name: str) -> str:
    return (raw['metadata'].get('labels') or {}).get(name) or ''


class Shelf(watching.Sink):
    """The children of one kind in one namespace, as one watch shows them."""

    def __init__(self, store: ChildStore, resource: references.Resource) -> None:
        super().__init__()
        self.is_listed: bool = False
        self._store = store
        self._resource = resource
        self._known: dict[str, tuple[str, desired.Key]] = {}
        """The owners and the keys of the children by their uids."""
        self._seen: set[str] = set()

    def reopen(self) -> None:
        """Wait for the next list: nothing was watched for a while."""
        self.is_listed = False

    def note(self, owner: str, child: Child) -> None:
        """Note a child by the response to a write: the next list has it, or it is gone."""
        self._known[child.uid] = (owner, child.key)
        self._seen.add(child.uid)

    def begin(self, *, restored: bool) -> None:
        self._seen.clear()
        if restored:  # from a backup: older states are the present ones
            for owner, key in self._known.values():
                if (child := self._store.of(owner).get(key)) is not None:
                    child.forget_version()

    def listed(self, body: bodies.RawBody) -> None:
        self._take(_complete(body, self._resource))

    def end(self) -> None:
        for uid in self._known.keys() - self._seen:
            self._store.remove(*self._known.pop(uid), uid)
        self._seen.clear()
        if not self.is_listed:
            self.is_listed = True
            self._store.on_listed()

    def unavailable(self, error: Exception) -> None:
        if not self.is_listed:
            self._store.on_unavailable(self._resource, error)

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        if type != 'DELETED':
            self._take(body)
            return
        uid = body['metadata']['uid']
        if uid not in self._known:
            self._take(body)
        self._store.remove(*self._known.pop(uid), uid)
        self._seen.discard(uid)

    def clear(self) -> None:
        for uid, (owner, key) in self._known.items():
            self._store.remove(owner, key, uid)
        self._known.clear()

    def _take(self, body: bodies.RawBody) -> None:
        self._store.see(self._resource, body)
        uid = body['metadata']['uid']
        place = (_get_label(body, desired.OWNER_LABEL), _get_key(body))
        former = self._known.get(uid, place)
        if former != place:  # somebody has changed the label
            self._store.remove(*former, uid)
        self._seen.add(uid)
        self._known[uid] = place


def _complete(body: bodies.RawBody, resource: references.Resource) -> bodies.RawBody:
    """Add what the items of lists lack."""
    if 'kind' in body and 'apiVersion' in body:
        return body
    completed: Any = {'apiVersion': resource.api_version, 'kind': resource.kind, **body}
    result: bodies.RawBody = completed
    return result


class OperatorChildren(offspring.Children):
    """The children of one parent, as they are in the store whenever a handler reads them."""
    __slots__ = ('_store', '_uid')

    def __init__(self, store: ChildStore, uid: str) -> None:
        super().__init__()
        self._store = store
        self._uid = uid

    def __iter__(self) -> Iterator[bodies.Body]:
        for child in list(self._store.of(self._uid).values()):
            yield child.body

    def __len__(self) -> int:
        return len(self._store.of(self._uid))

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> bodies.Body | None:
        for key, child in list(self._store.of(self._uid).items()):  # handlers can run in threads
            if key.name == name and namespace in (None, key.namespace) and (
                    references.Selector(kind).check(child.resource)):
                return child.body
        return None
