"""
Kubernetes objects: raw as the API sends them, and wrapped for handlers.

The raw bodies are plain dicts parsed from JSON; they are shared, not copied, and must not be
changed. The wrappers are cheap views with attributes for the well-known fields.
"""
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypedDict, cast

from kopf._cogs.structs import dicts

Labels = Mapping[str, str]
Annotations = Mapping[str, str]

Version = int | str | None
"""A ``resourceVersion``, see `parse_version`."""

RawEventType = Literal[None, 'ADDED', 'MODIFIED', 'DELETED', 'BOOKMARK']


class RawMeta(TypedDict, total=False):
    uid: str
    name: str
    namespace: str
    labels: Labels
    annotations: Annotations
    finalizers: list[str]
    resourceVersion: str
    deletionTimestamp: str
    creationTimestamp: str
    generation: int


class RawBody(TypedDict, total=False):
    """An object as it is known to the API."""
    apiVersion: str
    kind: str
    metadata: RawMeta
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class RawEvent(TypedDict, total=True):
    """An event of a watch-stream; its type is None for the objects listed initially."""
    type: RawEventType
    object: RawBody


class MetaEssence(TypedDict, total=False):
    labels: Labels
    annotations: Annotations


class BodyEssence(TypedDict, total=False):
    """What matters for detecting changes: see `kopf.DiffBaseStorage`."""
    metadata: MetaEssence
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class ObjectReference(TypedDict, total=False):
    apiVersion: str
    kind: str
    namespace: str | None
    name: str
    uid: str


class OwnerReference(TypedDict, total=False):
    controller: bool
    blockOwnerDeletion: bool
    apiVersion: str
    kind: str
    name: str
    uid: str


class Meta(dicts.MappingView):
    """``metadata`` of an object. What the object does not have is None, or empty if plural."""
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        super().__init__(body, ('metadata',))

    @property
    def labels(self) -> Labels:
        return dicts.MappingView(self, ('labels',))

    @property
    def annotations(self) -> Annotations:
        return dicts.MappingView(self, ('annotations',))

    @property
    def uid(self) -> str | None:
        return cast(str | None, self.get('uid'))

    @property
    def name(self) -> str | None:
        return cast(str | None, self.get('name'))

    @property
    def namespace(self) -> str | None:
        return cast(str | None, self.get('namespace'))

    @property
    def creation_timestamp(self) -> str | None:
        return cast(str | None, self.get('creationTimestamp'))

    @property
    def deletion_timestamp(self) -> str | None:
        return cast(str | None, self.get('deletionTimestamp'))


class Spec(dicts.MappingView):
    """``spec`` of an object; empty if it has none."""
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        super().__init__(body, ('spec',))


class Status(dicts.MappingView):
    """``status`` of an object; empty if it has none."""
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        super().__init__(body, ('status',))


class Body(Mapping[str, Any]):
    """
    An object as handlers see it: a read-only mapping with attributes for the usual stanzas.

    Bodies compare by content, also to dicts. Daemons get live ones, which always show
    the newest known state of the object.
    """
    __slots__ = ('_raw',)

    def __init__(self, raw: RawBody | BodyEssence, /) -> None:
        self._raw = cast(Mapping[str, Any], raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __getitem__(self, key: str) -> Any:
        return self._raw[key]

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def get(self, key: str, default: Any = None) -> Any:
        return self._raw.get(key, default)

    def __repr__(self) -> str:
        return repr(self._raw)

    def _replace_with(self, raw: RawBody) -> None:
        """Show another state of the same object (for the live bodies)."""
        self._raw = raw

    @property
    def metadata(self) -> Meta:
        return Meta(self)

    @property
    def meta(self) -> Meta:
        return Meta(self)

    @property
    def spec(self) -> Spec:
        return Spec(self)

    @property
    def status(self) -> Status:
        return Status(self)


class LiveBody(Body):
    """
    A body that always shows the newest state, and which looks for it when it is read first.

    Daemons and timers have such bodies; many of them never read theirs.
    """
    __slots__ = ('_newest', '_recall')

    def __init__(self, recall: Callable[[], RawBody | None], /) -> None:
        self._recall = recall
        self._newest: Mapping[str, Any] | None = None

    @property
    def _raw(self) -> Mapping[str, Any]:  # type: ignore[override]
        if self._newest is None:
            self._newest = cast(Mapping[str, Any], self._recall() or {})
        return self._newest

    def _replace_with(self, raw: RawBody) -> None:
        self._newest = cast(Mapping[str, Any], raw)


def parse_version(raw: RawBody) -> Version:
    """The ``resourceVersion``: as a number, if it is one."""
    version = raw['metadata'].get('resourceVersion')
    return int(version) if version is not None and version.isdecimal() else version


def is_newer(a: Version, b: Version) -> bool:
    """
    Whether the one version is newer than the other one of the same resource.

    If any of them is no number, all that differs is newer (KEP-5504 makes numbers comparable).
    """
    return a > b if isinstance(a, int) and isinstance(b, int) else a != b


def build_object_reference(body: Body) -> ObjectReference:
    """
    Make a reference to the object, as Kubernetes events have it in ``involvedObject``.

    Only what the object has is there: cluster-scoped ones have no namespace, and so on.
    """
    meta = body.get('metadata') or {}
    ref = {
        'apiVersion': body.get('apiVersion'),
        'kind': body.get('kind'),
        'name': meta.get('name'),
        'uid': meta.get('uid'),
        'namespace': meta.get('namespace'),
    }
    return cast(ObjectReference, {key: val for key, val in ref.items() if val})


def build_owner_reference(
        body: Body,
        *,
        controller: bool | None = True,
        block_owner_deletion: bool | None = True,
) -> OwnerReference:
    """Make a reference to the object as an owner, for ``metadata.ownerReferences`` of others."""
    meta = body.get('metadata') or {}
    ref = {
        'controller': controller,
        'blockOwnerDeletion': block_owner_deletion,
        'apiVersion': body.get('apiVersion'),
        'kind': body.get('kind'),
        'name': meta.get('name'),
        'uid': meta.get('uid'),
    }
    return cast(OwnerReference, {key: val for key, val in ref.items() if val not in (None, '')})
