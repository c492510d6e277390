"""
Kubernetes objects: raw bodies from the API server, and their wrappers for handlers.

Raw bodies are plain dicts, as parsed from JSON. They are shared, not copied, so they must not be
changed. Wrappers are read-only views with attributes for well-known fields.
"""
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

from kopf._cogs.structs import dicts

Labels = Mapping[str, str]
Annotations = Mapping[str, str]

Version = int | str | None
"""A ``resourceVersion``, see `parse_version`."""

MODELS = ('kubernetes.client.models', 'kubernetes_asyncio.client.models')
"""The modules of the objects of the official clients. Kopf does not import them."""

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
    """An object as a dict, as the API server sends it."""
    apiVersion: str
    kind: str
    metadata: RawMeta
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class RawEvent(TypedDict, total=True):
    """An event of a watch. The ``type`` is `None` for the objects that are listed at first."""
    type: RawEventType
    object: RawBody


class MetaEssence(TypedDict, total=False):
    labels: Labels
    annotations: Annotations


class BodyEssence(TypedDict, total=False):
    """
    The essence of an object: the part that Kopf compares to detect changes. See
    `kopf.DiffBaseStorage`.
    """
    metadata: MetaEssence
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class Converter(Protocol):
    """
    Converts objects of one kind between its versions, as authors declare it. It is read only.
    """
    name: str
    """The name of the definition, e.g. ``databases.example.com``."""
    group: str

    @property
    def versions(self) -> Collection[str]:
        """The versions that can be converted."""

    def convert(self, obj: Mapping[str, Any], version: str) -> dict[str, Any]:
        """
        Convert an object to another version.

        :raises ValueError: if it cannot be converted; the message is for users of the API.
        """

    def complete(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Set the defaults of its version, as the API server does at the next write."""

    def convert_essence(
            self, old: BodyEssence, version: str, *, current: BodyEssence, to: str,
    ) -> BodyEssence:
        """
        Convert an essence of another version, for a comparison with the ``current`` one.

        What the other version cannot express counts as not changed.

        :raises ValueError: if it cannot be converted.
        """

    def find_fault(self) -> str | None:
        """Say why not all versions can be converted to all others; None if they can."""


class ObjectReference(TypedDict, total=False):
    """A reference to an object, as Kubernetes events contain it."""
    apiVersion: str
    kind: str
    namespace: str | None
    name: str
    uid: str


class OwnerReference(TypedDict, total=False):
    """A reference to an owner, as objects contain it in ``metadata.ownerReferences``."""
    controller: bool
    blockOwnerDeletion: bool
    apiVersion: str
    kind: str
    name: str
    uid: str


class Meta(dicts.MappingView):
    """
    The ``metadata`` of an object: a read-only mapping, with attributes for the well-known fields.

    If the object does not have a field, the attribute is `None`, or an empty mapping for labels and
    annotations.
    """
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        self._source, self._path = body, ('metadata',)  # quicker than the parent's

    @property
    def labels(self) -> Labels:
        """The labels: a read-only mapping of strings to strings."""
        return dicts.MappingView(self, ('labels',))

    @property
    def annotations(self) -> Annotations:
        """The annotations: a read-only mapping of strings to strings."""
        return dicts.MappingView(self, ('annotations',))

    @property
    def uid(self) -> str | None:
        """The unique identifier that the API server has given to the object."""
        return cast(str | None, self.get('uid'))

    @property
    def name(self) -> str | None:
        """The name of the object."""
        return cast(str | None, self.get('name'))

    @property
    def namespace(self) -> str | None:
        """The namespace of the object; `None` for cluster-scoped objects."""
        return cast(str | None, self.get('namespace'))

    @property
    def creation_timestamp(self) -> str | None:
        """When the object was created, as a string in ISO 8601."""
        return cast(str | None, self.get('creationTimestamp'))

    @property
    def deletion_timestamp(self) -> str | None:
        """
        When the deletion of the object was requested, as a string in ISO 8601; `None` if it was
        not.
        """
        return cast(str | None, self.get('deletionTimestamp'))


class Spec(dicts.MappingView):
    """The ``spec`` of an object: a read-only mapping, empty if the object has no spec."""
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        self._source, self._path = body, ('spec',)


class Status(dicts.MappingView):
    """The ``status`` of an object: a read-only mapping, empty if the object has no status."""
    __slots__ = ()

    def __init__(self, body: 'Body', /) -> None:
        self._source, self._path = body, ('status',)


class Body(Mapping[str, Any]):
    """
    An object as handlers get it: a read-only mapping, with attributes for the usual parts.

    Bodies are compared by their content, also with dicts. Daemons and timers get live bodies, which
    always show the newest known state of the object.
    """
    __slots__ = ('_raw',)

    def __init__(self, raw: RawBody | BodyEssence, /) -> None:
        self._raw: Mapping[str, Any] = raw

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __getitem__(self, key: str) -> Any:
        return self._raw[key]

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def get(self, key: str, default: Any = None) -> Any:
        """Get the value of a key, or the default if the object does not have the key."""
        return self._raw.get(key, default)

    def items(self) -> ItemsView[str, Any]:
        """Get the pairs of keys and values."""
        return self._raw.items()  # as the inherited method does, but several times faster

    @property
    def _fields(self) -> Mapping[str, Any]:
        """The fields, for views: without copies of what is not read."""
        return self._raw

    def __repr__(self) -> str:
        return repr(self._fields)

    if not TYPE_CHECKING:  # type checkers would accept assignments

        def __setitem__(self, key: str, value: Any) -> None:
            raise TypeError(
                f"'Body' object does not support item assignment. To change the object, use the "
                f"argument `patch`, for example: patch[{key!r}] = ...")

    def _replace_with(self, raw: RawBody) -> None:
        """Show another state of the same object, for live bodies."""
        self._raw = raw

    @property
    def metadata(self) -> Meta:
        """The ``metadata`` of the object."""
        return Meta(self)

    @property
    def meta(self) -> Meta:
        """The ``metadata`` of the object, under a shorter name."""
        return Meta(self)

    @property
    def spec(self) -> Spec:
        """The ``spec`` of the object."""
        return Spec(self)

    @property
    def status(self) -> Status:
        """The ``status`` of the object."""
        return Status(self)


class OwnBody(Body):
    """
    A body whose parts are copied when they are read, so that a handler can change them in place, as
    many do: nobody but the handlers of this body sees that.
    """
    __slots__ = ('_copies',)

    def __init__(self, raw: RawBody, /) -> None:
        super().__init__(raw)
        self._copies: dict[str, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        value = self._raw[key]
        return self._own(key) if type(value) is dict or type(value) is list else value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._raw else default

    def items(self) -> ItemsView[str, Any]:
        return ItemsView(self)

    @property
    def _fields(self) -> Mapping[str, Any]:
        copies = self._copies  # the event loop can replace a live body while threads read it
        return self._raw if copies is None else {**self._raw, **copies}

    def __reduce__(self) -> tuple[type[Body], tuple[dict[str, Any]]]:
        return Body, (dict(self),)  # for copies and pickles: live bodies are bound to the operator

    def _own(self, key: str) -> Any:
        copies = self._copies
        if copies is None:
            copies = self._copies = {}
        if key not in copies:
            copies[key] = dicts.copy(self._raw[key])
        return copies[key]

    def _replace_with(self, raw: RawBody) -> None:
        super()._replace_with(raw)
        self._copies = None


class LiveBody(OwnBody):
    """
    A body that always shows the newest known state of the object.

    The state is recalled at the first access, because many daemons and timers never read the body.
    """
    __slots__ = ('_newest', '_recall')

    def __init__(self, recall: Callable[[], RawBody | None], /) -> None:
        self._recall = recall
        self._newest: Mapping[str, Any] | None = None
        self._copies = None

    @property
    def _raw(self) -> Mapping[str, Any]:  # type: ignore[override]
        return self.load() if self._newest is None else self._newest

    def load(self) -> Mapping[str, Any]:
        """Recall the state, if it is not loaded yet: e.g. because nothing keeps it any longer."""
        if self._newest is None:
            self._newest = cast(Mapping[str, Any], self._recall() or {})
        return self._newest

    def _replace_with(self, raw: RawBody) -> None:
        self._newest = cast(Mapping[str, Any], raw)
        self._copies = None


def get_raw(obj: Any) -> Any:
    """
    Get the object of a body, without what handlers have changed in place; or what is no body, as it
    is. It must not be changed.
    """
    return obj._raw if isinstance(obj, Body) else obj


def get_copies(body: Body) -> Mapping[str, Any]:
    """Get the parts of an own body that its handlers have read, as they have left them."""
    return (isinstance(body, OwnBody) and body._copies) or {}


_IDENTITY = ('name', 'namespace', 'uid')
_TEXTS = (*_IDENTITY, 'resourceVersion', 'creationTimestamp', 'deletionTimestamp')
_MAPS = ('labels', 'annotations')
_STRINGS = frozenset({str})
_MAX_DIGITS = 100


def find_damage(value: object) -> str | None:
    """
    Say why a value cannot be processed as an object, by its metadata; None if it can.

    API servers check the metadata of the objects that they store. Extension API servers can be
    wrong, and one object must not stop the others. The rest of an object can be anything.
    """
    if not isinstance(value, dict):
        return "it is no JSON object"
    meta = value.get('metadata')
    if not isinstance(meta, dict):
        return "it has no metadata"
    if not meta.get('name'):
        return "it has no name"
    for key in _TEXTS:
        text = meta.get(key)
        if text is not None and not isinstance(text, str):
            return f"metadata.{key} is no string"
    for key in _MAPS:
        pairs = meta.get(key)
        if pairs is not None and not (
                isinstance(pairs, dict) and _STRINGS.issuperset(map(type, pairs.values()))):
            return f"metadata.{key} is no mapping of strings"
    finalizers = meta.get('finalizers')
    if finalizers is not None and not (
            isinstance(finalizers, list) and _STRINGS.issuperset(map(type, finalizers))):
        return "metadata.finalizers is no list of strings"
    owners = meta.get('ownerReferences')
    if owners is not None and not (
            isinstance(owners, list) and all(isinstance(val, dict) for val in owners)):
        return "metadata.ownerReferences is no list of references"
    return None


def identify(value: object) -> RawBody:
    """Make a body only of what identifies a damaged object; the name can be empty."""
    meta = value.get('metadata') if isinstance(value, dict) else None
    found = meta if isinstance(meta, dict) else {}
    identity = {key: found[key] for key in _IDENTITY if isinstance(found.get(key), str)}
    return cast(RawBody, {'metadata': {'name': '', **identity}})


def get_uid(raw: RawBody) -> str:
    """Get the uid of an object, or a substitute: objects of some API extensions have no uids."""
    meta = raw['metadata']
    return meta.get('uid') or f"{raw.get('kind')}/{meta.get('namespace')}/{meta['name']}"


def is_number(version: str) -> bool:
    """Whether a ``resourceVersion`` is a decimal integer, so that it can be compared."""
    return version.isdecimal() and len(version) <= _MAX_DIGITS


def parse_version(raw: RawBody) -> Version:
    """Get the ``resourceVersion``: as an integer if it is numeric, or else as a string or None."""
    version = raw['metadata'].get('resourceVersion')
    return int(version) if version is not None and is_number(version) else version


def is_newer(a: Version, b: Version) -> bool:
    """
    Whether version ``a`` is newer than version ``b`` of the same resource.

    Numbers are comparable since KEP-5504. If any of the versions is not a number, ``a`` counts as
    newer if the versions differ.
    """
    return a > b if isinstance(a, int) and isinstance(b, int) else a != b


def build_object_reference(body: Body) -> ObjectReference:
    """
    Make a reference to an object, as Kubernetes events contain it in ``involvedObject``.

    ::

        reference = kopf.build_object_reference(body)
        print(reference['kind'], reference['name'])

    See "Read logs and post events" in the documentation.

    :param body: the object.
    :returns: a dict with ``apiVersion``, ``kind``, ``name``, ``uid``, ``namespace``, as far as the
        object has them.
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
    """
    Make a reference to an object as an owner, for ``metadata.ownerReferences`` of owned resources.

    ::

        pod['metadata']['ownerReferences'] = [kopf.build_owner_reference(body)]

    See "Create owned resources" in the documentation.

    :param body: the owner.
    :param controller: the value of ``controller``; `None` omits it.
    :param block_owner_deletion: the value of ``blockOwnerDeletion``; `None` omits it.
    :returns: a dict with ``controller``, ``blockOwnerDeletion``, ``apiVersion``, ``kind``,
        ``name``, ``uid``, as far as they are known.
    """
    flags = {'controller': controller, 'blockOwnerDeletion': block_owner_deletion}
    ref = {key: val for key, val in flags.items() if val is not None}
    ref |= build_object_reference(body)  # type: ignore[arg-type]
    ref.pop('namespace', None)
    return cast(OwnerReference, ref)


def is_of_pykube(obj: object) -> bool:
    """Whether it is an object of pykube-ng, also of a class of the author's own."""
    return _is_of(obj, 'pykube')


def is_model(obj: object) -> bool:
    """Whether it is a model of ``kubernetes`` or ``kubernetes_asyncio``."""
    return _is_of(obj, *MODELS)


def _is_of(obj: object, *packages: str) -> bool:
    return any(
        cls.__module__ == package or cls.__module__.startswith(f'{package}.')
        for cls in type(obj).__mro__ for package in packages)
