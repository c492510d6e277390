"""
Children: the objects that reconcilers have made, as the operator knows them.

The operator watches only the objects with the labels of its reconcilers. It keeps of each child
what is needed to recognise changes by others, and, packed, what handlers can read.
"""
import collections
import contextlib
import functools
import json
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from kopf._cogs.clients import errors, screening, watching
from kopf._cogs.structs import bodies, managedfields, offspring, references
from kopf._core.engines.reconciling import desired, generating

WINDOW_BITS = 12
"""How much of the first child of its kind is used to compress the others: 4096 bytes."""

MEMORY_LEVEL = 4
"""How much memory zlib takes to compress a child. To clear more of it takes more time."""

MAX_SHARED = 4096
"""Up to which size (bytes) the owned fields of children are shared."""

META = frozenset({
    'name', 'namespace', 'uid', 'resourceVersion', 'generation', 'creationTimestamp',
    'deletionTimestamp', 'labels', 'annotations'})
"""What is kept of the metadata of a child."""

_encode = json.JSONEncoder(separators=(',', ':')).encode


class Shape:
    """
    What the children of one kind and one handler share. They are alike, so only the differences of
    each child from the first one are stored.
    """
    __slots__ = ('_sample', 'has_status', 'manager', 'resource', 'unrecorded')

    def __init__(
            self, resource: references.Resource, manager: str | None,
            unrecorded: set[managedfields.Path],
    ) -> None:
        """
        ``manager`` is the field manager of the handler, if it is known by the label of children.
        ``unrecorded`` are the fields that the API server does not record, as far as it is known.
        """
        self.resource = resource
        self.manager = manager
        self.unrecorded = unrecorded
        self.has_status: bool = False
        """Whether any child has had a status."""
        self._sample: bytes | None = None

    def pack(self, value: Mapping[str, Any]) -> bytes:
        self.has_status |= 'status' in value
        text = _dump(value)
        if self._sample is None:
            self._sample = text[:1 << WINDOW_BITS]
        compressor = zlib.compressobj(
            1, zlib.DEFLATED, -WINDOW_BITS, MEMORY_LEVEL, zdict=self._sample)
        return compressor.compress(text) + compressor.flush()

    def unpack(self, packed: bytes) -> Any:
        decompressor = zlib.decompressobj(-WINDOW_BITS, zdict=self._sample or b'')
        return json.loads(decompressor.decompress(packed).decode())


class Child:
    """One child. The state is replaced as a whole by newer ones; the object is for one uid."""
    __slots__ = (
        '_digest', '_fields', '_packed', '_settled', '_state', 'is_applied', 'is_deleting',
        'is_labelled', 'is_marked', 'is_owned', 'is_pruned', 'is_rotating', 'key', 'owner', 'shape',
        'uid', 'version')

    def __init__(self, shape: Shape, raw: bodies.RawBody, owner: str | None = None) -> None:
        """
        ``owner`` is the uid of the parent. By default, it is found in the object. The label counts
        if there is also an owner reference to this uid, or if the field manager has set the label;
        otherwise, it is the controller in the owner references. It is empty if nothing proves whose
        child the object is.

        Equal strings are shared, as there can be many children.
        """
        meta: Any = raw['metadata']
        refs = meta.get('ownerReferences') or ()
        fields = managedfields.find_applied(raw, shape.manager)
        label = _get_label(raw, desired.OWNER_LABEL)
        is_marked = bool(label) and managedfields.owns(
            fields, {'metadata': {'labels': {desired.OWNER_LABEL: ''}}})
        if owner is None:
            owner = label if is_marked or any(ref.get('uid') == label for ref in refs) else next(
                (ref.get('uid') or '' for ref in refs if ref.get('controller')), '')
        self.shape: Shape = shape
        self.key: desired.Key = make_key(shape.resource, raw)
        self.uid: str = bodies.get_uid(raw)
        self.owner: str = sys.intern(owner)
        self.version: bodies.Version = bodies.parse_version(raw)
        self.is_deleting: bool = 'deletionTimestamp' in meta
        self.is_pruned: bool = False
        """Whether the operator itself has deleted the child, so that its end is no news."""
        self.is_rotating: bool = generating.is_rotating(raw)
        """Whether somebody has asked for new values of the generated fields."""
        self.is_owned: bool = any(ref.get('uid') == owner for ref in refs)
        digest = (meta.get('annotations') or {}).get(desired.DIGEST_ANNOTATION)
        self._digest: int = hash(digest)
        self.is_applied: bool = fields is not None
        """Whether the handler of the label has applied it; false e.g. for copies by users."""
        self.is_marked: bool = is_marked and label == owner
        """Whether the handler itself has set the label with the uid of the parent."""
        self.is_labelled: bool = label == owner and _get_label(
            raw, desired.HANDLER_LABEL) == desired.make_label(shape.manager or '')
        """Whether the labels name the parent and the handler of the child."""
        self._fields: bytes | None = _share(_dump(fields).replace(*_hide(owner)))
        """What the manager owns of the child; null if it has no fields at all."""
        self._state: int = hash((digest, self._fields))
        """The hash of the applied manifest and of the owned fields: edits of others change it."""
        self._settled: int | None = None
        """The hash after the manifest was applied."""
        kept: dict[str, Any] = {
            key: val for key, val in raw.items() if key in ('apiVersion', 'kind', 'status')}
        kept['metadata'] = {key: val for key, val in meta.items() if key in META}
        kept.update({
            key: val if fields is None else managedfields.restrict(fields[f'f:{key}'], val)
            for key, val in raw.items()
            if key not in kept and (fields is None or f'f:{key}' in fields)})
        self._packed: bytes = shape.pack(kept)

    @property
    def resource(self) -> references.Resource:
        return self.shape.resource

    def is_of(self, namespace: str | None) -> bool:
        """
        Whether the child belongs to its parent, which is in this namespace.

        Labels alone prove nothing: everybody can set them on objects of their own. Owner references
        prove nothing in other namespaces, where Kubernetes does not accept them.
        """
        return self.is_marked or (self.is_owned and namespace in (None, self.key.namespace))

    def has_news(self, raw: bodies.RawBody, known: 'Child | None') -> bool:
        """Whether others have changed the status since the known state, if there is one."""
        if known is None or known.uid != self.uid:  # it was created now, with a default status
            meta: Any = raw['metadata']
            return 'status' in raw and any(
                entry.get('subresource') for entry in meta.get('managedFields', ()))
        return (self.shape.has_status or known.shape.has_status) and bool(
            raw.get('status') != known.body.get('status'))

    def settle(self) -> None:
        """Note that this is the response of the API server to the applied manifest."""
        self._settled, self._fields = self._state, None

    def follow(self, older: 'Child') -> None:
        """Take over what an older state of the same object knows of the manifest."""
        self._settled, self.is_pruned = older._settled, older.is_pruned
        self.is_deleting = self.is_deleting or older.is_deleting
        if self._settled == self._state:
            self._fields = None

    def note_deletion(self, *, is_pruned: bool) -> None:
        """Note that the operator has deleted the child, before the watch shows that."""
        self.is_deleting, self.is_pruned = True, is_pruned

    def expect_return(self) -> None:
        """Note that the child is wanted again: when it is gone, that is news."""
        self.is_pruned = False

    def forget_version(self) -> None:
        """Take the next state as newer, whatever its version."""
        self.version = None

    def learn(self, manifest: Mapping[str, Any]) -> None:
        """
        Learn which of the applied fields the API server does not record.

        The child must be the response to this manifest, and not settled yet.
        """
        if self._fields is not None:
            self.shape.unrecorded.update(managedfields.find_unrecorded(
                self._get_fields(self._fields), _get_content(manifest)))

    def is_as(self, wanted: desired.Desired) -> bool:
        """Whether nobody has changed the child since this manifest was applied."""
        if self._digest != hash(wanted.digest) or (self.is_rotating and wanted.generated):
            return False
        if self._settled != self._state:
            if self._settled is not None or self._fields is None or not managedfields.owns(
                    self._get_fields(self._fields), _get_content(wanted.manifest),
                    unrecorded=self.shape.unrecorded):
                return False
            self.settle()
        return True

    def _get_fields(self, hidden: bytes) -> Any:
        owner, placeholder = _hide(self.owner)
        return json.loads(hidden.replace(placeholder, owner).decode())

    @property
    def body(self) -> bodies.Body:
        """What is kept of the object."""
        return bodies.Body(self.shape.unpack(self._packed))


Strays = Mapping[desired.Key, Child]
"""The children of one parent that the watch does not show: others have changed their labels."""


def _dump(value: object) -> bytes:
    return _encode(value).encode()


def _hide(owner: str) -> tuple[bytes, bytes]:
    """
    Make the arguments to replace the uid of the owner with a placeholder.

    Without it, the owned fields of many children are the same.
    """
    return (owner or '\x7f').encode(), b'\x00'


def _share(value: bytes) -> bytes:
    """Get an equal value, which other children share."""
    return _remember(value) if len(value) <= MAX_SHARED else value


_remember = functools.lru_cache(maxsize=100)(bytes)


def _get_content(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Get the part of a manifest whose fields have managers."""
    content = {key: val for key, val in manifest.items() if key not in ('apiVersion', 'kind')}
    content['metadata'] = {
        key: val for key, val in manifest['metadata'].items() if key not in ('name', 'namespace')}
    return content


OnChange = Callable[[str], None]
"""Called with the uid of a parent when any of its children has changed."""

OnForbidden = Callable[[references.Resource, references.Namespace, Exception], None]
"""Called once, with an error, if the children of a kind must not be listed in a namespace."""


class ChildStore:
    """All children of all parents of an operator."""

    def __init__(
            self,
            *,
            on_change: OnChange = lambda uid: None,
            on_listed: Callable[[], None] = lambda: None,
            on_forbidden: OnForbidden = lambda resource, namespace, error: None,
    ) -> None:
        """
        ``on_listed`` is called when all children of some kind in some namespace are known, or when
        they must not be listed.
        """
        self.on_change: OnChange = on_change
        self.on_listed: Callable[[], None] = on_listed
        self.on_forbidden: OnForbidden = on_forbidden
        self._by_owner: dict[str, dict[desired.Key, Child]] = {}
        self._known: dict[tuple[str, str, str | None], dict[desired.Key, Child]] = {}
        """The same children by their groups, kinds, and namespaces."""
        self._held: dict[desired.Key, list[Callable[[], object]]] = {}
        """The news of the children that are being written."""
        self._unrecorded = collections.defaultdict[
            tuple[str, str | None], set[managedfields.Path]](set)
        """The fields that the API server does not record, by the groups and kinds."""
        self._managers: dict[str, str] = {}
        """The field managers by the values of the label of children."""
        self._shapes: dict[tuple[references.Resource, str], Shape] = {}
        self._informers: dict[references.Resource, dict[references.Namespace, ChildWatch]] = {}

    def register(self, manager: str) -> str:
        """Note a field manager; return the value of the label of its children."""
        label = desired.make_label(manager)
        self._managers[label] = manager
        return label

    def open(self, resource: references.Resource, namespace: references.Namespace) -> 'ChildWatch':
        """
        Get the sink for a watch of the children of one kind in one namespace.

        The watch begins with a list. Until the list is complete, handlers that own the kind are not
        called: after a pause, other operators can have changed the children.
        """
        informers = self._informers.setdefault(resource, {})
        informer = informers.setdefault(namespace, ChildWatch(self, resource, namespace))
        informer.reopen()
        return informer

    def close(self, resource: references.Resource, namespace: references.Namespace) -> None:
        """Forget the children of one kind in one namespace."""
        _drop(self._informers, resource, namespace)
        for child in self.find_all(resource, namespace):
            self.remove(child.key, child.uid)

    def is_ready(self, resource: references.Resource, namespace: str | None) -> bool:
        """
        Whether all children of the kind that a parent in this namespace can have are known.

        A cluster-scoped parent has none in those namespaces where they must not be listed.
        """
        needed = self._select(resource, namespace) or self._select(resource, None)
        return any(informer.is_listed for informer in needed) and all(
            informer.is_listed or informer.is_forbidden for informer in needed)

    def find_forbidden(self, resource: references.Resource) -> Collection[references.Namespace]:
        """Find the namespaces in which the children of the kind must not be listed."""
        return [namespace for namespace, informer in self._informers.get(resource, {}).items()
                if informer.is_forbidden]

    def is_listed(self, resource: references.Resource, namespace: str | None) -> bool:
        """
        Whether all children of the kind in the namespace are known.

        With None, it is about all namespaces that the operator serves.
        """
        needed = self._select(resource, namespace)
        return bool(needed) and all(informer.is_listed for informer in needed)

    def _select(self, resource: references.Resource, namespace: str | None) -> list['ChildWatch']:
        """Select the informers with children in the namespace: its own one, and that of all."""
        informers = self._informers.get(resource, {})
        names = informers if namespace is None else (None, references.NamespaceName(namespace))
        return [informers[name] for name in names if name in informers]

    @contextlib.contextmanager
    def writing(self, key: desired.Key) -> Iterator[None]:
        """
        Hold back the news of a child while it is written: the watch can be ahead of the response.

        After the write, only states that are no echoes of it are news. Two handlers can write the
        same child at once, if they are for several versions of a resource, or for two parents.
        """
        self._held.setdefault(key, [])
        try:
            yield
        finally:
            for act in self._held.pop(key, ()):
                act()

    def _do(self, key: desired.Key, act: Callable[[], object]) -> None:
        """Take news of a child; if the child is being written, take them after the write."""
        if (held := self._held.get(key)) is not None:
            held.append(act)
        else:
            act()

    def of(self, uid: str) -> Mapping[desired.Key, Child]:
        """Get the children of a parent. The result changes with the children: do not keep it."""
        return self._by_owner.get(uid) or {}

    def find(self, key: desired.Key) -> Child | None:
        """Find the child of any parent."""
        return self._known.get(key[:3], {}).get(key)

    def find_owner(self, key: desired.Key) -> str | None:
        """Find whose child the object is, by the uid of the parent; None if it is no child."""
        child = self.find(key)
        return None if child is None else child.owner or None

    def find_all(
            self, resource: references.Resource, namespace: references.Namespace,
    ) -> Collection[Child]:
        """Find the children of all parents, of one kind in one namespace or in all of them."""
        kind = resource.group, resource.kind or ''
        places = [(*kind, namespace)] if namespace is not None else [
            place for place in self._known if place[:2] == kind]
        return [child for place in places for child in self._known.get(place, {}).values()
                if child.resource == resource]

    def count(self, resource: references.Resource) -> int:
        """Count the children of all parents, of one kind."""
        kind = resource.group, resource.kind or ''
        return sum(len(found) for place, found in self._known.items() if place[:2] == kind)

    def find_namespaced(self, selector: references.Selector) -> references.Resource | None:
        """Find a namespaced kind of children by the selector."""
        return next((
            resource for resource in (*self._informers, *(known for known, _ in list(self._shapes)))
            if resource.namespaced and selector.check(resource)), None)

    def accept(
            self, resource: references.Resource, raw: bodies.RawBody,
            wanted: desired.Desired | None = None,
    ) -> None:
        """
        Take the response to an applied manifest: it can be ahead of the watch.

        If the same manifest was applied before, the child seemed to lack applied fields. So the
        response shows which fields the API server does not record, for all children of the kind. A
        status that the watch has not shown is news: the watch does not show it again, as its
        further states are not newer. So is a request for new values: adopted children keep theirs.
        """
        child = self.make(resource, raw)
        known = self.find(child.key)
        if wanted is not None and known is not None and known._digest == child._digest:
            child.learn(wanted.manifest)
        child.settle()
        if known is None or known.uid != child.uid or not bodies.is_newer(
                known.version, child.version):
            self._put(child)
            if child.has_news(raw, known) or (
                    child.is_rotating and wanted is not None and wanted.generated):
                self.on_change(child.owner)
        elif known.owner != child.owner:
            self.on_change(child.owner)  # the child was taken away since then

    def see(self, resource: references.Resource, raw: bodies.RawBody) -> None:
        """Take a state from the watch, unless a newer one is known."""
        key = make_key(resource, raw)
        self._do(key, lambda: self._see(resource, key, raw))

    def _see(self, resource: references.Resource, key: desired.Key, raw: bodies.RawBody) -> None:
        known = self.find(key)
        if known is not None and known.uid != bodies.get_uid(raw):
            known = None
        if known is not None and not bodies.is_newer(bodies.parse_version(raw), known.version):
            return  # mostly echoes of own writes: nothing is made of them
        child = self.make(resource, raw)
        if known is not None and known.owner == child.owner:
            child.follow(known)
        self._put(child)
        self.on_change(child.owner)

    def _put(self, child: Child) -> None:
        """Add or replace a child, also one of another parent: two can want the same object."""
        known = self.find(child.key)
        if known is not None and known.owner != child.owner:
            self._remove(known)
        self._by_owner.setdefault(child.owner, {})[child.key] = child
        self._known.setdefault(child.key[:3], {})[child.key] = child

    def remove(self, key: desired.Key, uid: str) -> None:
        """Forget a child that is gone, if it is still this one."""
        self._do(key, lambda: self._remove_if(key, uid))

    def _remove_if(self, key: desired.Key, uid: str) -> None:
        child = self.find(key)
        if child is not None and child.uid == uid:
            self._remove(child)

    def _remove(self, child: Child) -> None:
        _drop(self._by_owner, child.owner, child.key)
        _drop(self._known, child.key[:3], child.key)
        if not child.is_pruned:
            self.on_change(child.owner)

    def make(
            self, resource: references.Resource, raw: bodies.RawBody, owner: str | None = None,
    ) -> Child:
        """Make a child of an object. Without ``owner``, the parent is found in it: see `Child`."""
        label = self._find_label(raw)
        shape = self._shapes.get((resource, label))
        if shape is None:
            unrecorded = self._unrecorded[resource.group, resource.kind]
            shape = Shape(resource, self._managers.get(label), unrecorded)
            if shape.manager is not None:
                self._shapes[resource, label] = shape
        return Child(shape, raw, owner)

    def _find_label(self, raw: bodies.RawBody) -> str:
        """Find the label of the handler that has applied the child, even if others changed it."""
        label = _get_label(raw, desired.HANDLER_LABEL)
        for known, manager in ((label, self._managers.get(label)), *self._managers.items()):
            if managedfields.find_applied(raw, manager) is not None:
                return known
        return label


def _drop(index: dict[Any, dict[Any, Any]], name: object, key: object) -> None:
    """Remove an item of a dict of dicts, which are never empty."""
    del index[name][key]
    if not index[name]:
        del index[name]


def make_key(resource: references.Resource, raw: bodies.RawBody) -> desired.Key:
    namespace = raw['metadata'].get('namespace')
    return desired.Key(
        resource.group, resource.kind or '',
        None if namespace is None else sys.intern(namespace), raw['metadata']['name'])


def _get_label(raw: bodies.RawBody, name: str) -> str:
    return (raw['metadata'].get('labels') or {}).get(name) or ''


class ChildWatch(watching.Sink):
    """The children of one kind in one namespace, as one watch shows them."""

    def __init__(
            self,
            store: ChildStore,
            resource: references.Resource,
            namespace: references.Namespace,
    ) -> None:
        self.is_listed: bool = False
        self.is_forbidden: bool = False
        """Whether the operator must not list the children, and has no list since `reopen`."""
        self._store = store
        self._resource = resource
        self._namespace = namespace
        self._is_told = False
        """Whether `OnForbidden` was called."""
        self._unseen: dict[str, Child] = {}
        """The children that were known when the list began, and that it has not shown yet."""

    def reopen(self) -> None:
        """Wait for the next list: nothing was watched for a while."""
        self.is_listed = self.is_forbidden = False

    def list_started(self, *, restored: bool) -> None:
        known = self._store.find_all(self._resource, self._namespace)
        self._unseen = {child.uid: child for child in known}
        if restored:  # from a backup: older states are the present ones
            for child in known:
                child.forget_version()

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        self._unseen.pop(bodies.get_uid(body), None)
        self._store.see(self._resource, _complete(body, self._resource))

    def list_ended(self) -> None:
        for child in self._unseen.values():
            if self._store.find(child.key) is child:  # it was not written since then
                self._store.remove(child.key, child.uid)
        self._unseen = {}
        if not self.is_listed:
            self.is_listed, self.is_forbidden = True, False
            self._store.on_listed()

    def unavailable(self, error: Exception) -> None:
        if self.is_listed or not isinstance(error, errors.APIForbiddenError):
            return
        if not self._is_told:
            self._is_told = True
            self._store.on_forbidden(self._resource, self._namespace, error)
        if not self.is_forbidden:
            self.is_forbidden = True
            self._store.on_listed()

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        if type == 'DELETED':
            self._store.remove(make_key(self._resource, body), bodies.get_uid(body))
        else:
            self._store.see(self._resource, body)


def _complete(body: bodies.RawBody, resource: references.Resource) -> bodies.RawBody:
    """Add what the items of lists lack."""
    if 'kind' in body and 'apiVersion' in body:
        return body
    return cast(bodies.RawBody, {'apiVersion': resource.api_version, 'kind': resource.kind, **body})


class OperatorChildren(offspring.Children):
    """The children of one parent, as they are in the store when a handler reads them."""
    __slots__ = ('_namespace', '_store', '_strays', '_uid')

    def __init__(
            self,
            store: ChildStore,
            uid: str,
            namespace: str | None,
            strays: Strays = MappingProxyType({}),
    ) -> None:
        """``uid`` and ``namespace`` are those of the parent."""
        super().__init__()
        self._strays = strays
        self._store = store
        self._uid = uid
        self._namespace = namespace

    def _recognise(self, resource: references.Resource, raw: bodies.RawBody) -> Child | None:
        """
        Make a child of an object that the watch does not show, if it is one of this parent.

        Others can have changed its labels. The object belongs to this parent if an owner reference
        says so, or if a handler has applied the object, and nothing names another owner.
        """
        raw = _complete(raw, resource)
        child = self._store.make(resource, raw)
        if not child.owner and child.is_applied:
            return self._store.make(resource, raw, self._uid)
        return child if child.owner == self._uid and child.is_of(self._namespace) else None

    def _list(self) -> list[Child]:
        """Copy the list of the children in one step, as handlers can run in threads."""
        known = [child for child in list(self._store.of(self._uid).values())
                 if child.is_of(self._namespace)]
        return [*known, *self._strays.values()]

    def __iter__(self) -> Iterator[bodies.Body]:
        for child in self._list():
            yield child.body

    def __len__(self) -> int:
        return len(self._list())

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> bodies.Body | None:
        selector = _make_selector(kind)
        if namespace is None and self._namespace is None and (
                resource := self._store.find_namespaced(selector)) is not None:
            raise ValueError(
                f"The object has no namespace, so children.get() needs the namespace of {resource} "
                f"{name!r}. Pass it as namespace=.")
        where = (namespace,) if namespace is not None else (None, self._namespace)
        for child in self._list():
            if child.key.name == name and child.key.namespace in where and (
                    selector.check(child.resource)):
                return child.body
        return None


_make_selector = functools.lru_cache(maxsize=1000)(references.Selector)
