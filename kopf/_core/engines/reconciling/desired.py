"""
Desired children: what a handler has returned, named, labelled, and owned. All functions are pure.

The labels say whose child an object is: only objects with these labels are ever deleted. An
annotation has the digest of the applied manifest. So, an operator that has just started knows
whether a child is what its handler wants, without writing and without records of its own.
"""
import collections
import dataclasses
import datetime
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, references
from kopf._core.engines.reconciling import generating

OWNER_LABEL = 'kopf.dev/owner'
"""The label of children with the uid of their parent."""

HANDLER_LABEL = 'kopf.dev/reconciler'
"""The label of children with the digest of the field manager of their handler."""

DIGEST_ANNOTATION = 'kopf.dev/applied'
"""The annotation of children with the digest of the manifest that was applied."""

SYSTEM_FIELDS = frozenset({
    'uid', 'resourceVersion', 'generation', 'managedFields', 'selfLink', 'creationTimestamp',
    'deletionTimestamp', 'deletionGracePeriodSeconds'})
"""The metadata that only the API server sets. Manifests that were read from it have these."""

MAX_MANAGER = 128
"""The maximum length of the name of a field manager in Kubernetes."""

MAX_SHOWN = 20
"""How many problems an error names."""


class ManifestError(Exception):
    """A manifest that no child can be made of."""


class ChildrenError(Exception):
    """Some children are not as the handler wants them: their manifests or writes have failed."""

    def __init__(self, problems: Collection[str]) -> None:
        texts, left = sorted(problems), len(problems) - MAX_SHOWN  # thousands can be refused
        super().__init__('; '.join(texts[:MAX_SHOWN]) + (f"; and {left} more" if left > 0 else ""))


class Key(NamedTuple):
    """Which object a child is, of all children of its parent."""
    group: str
    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        where = self.name if self.namespace is None else f'{self.namespace}/{self.name}'
        return f'{self.kind} {where}'


class Desired(NamedTuple):
    """A child as it should be."""
    key: Key
    resource: references.Resource
    """The resource, in the version of the manifest."""
    watched: references.Resource
    """The resource, in the version that is watched."""
    manifest: Mapping[str, Any]
    digest: str
    is_owned: bool
    """
    Whether the child has an owner reference to its parent, so that Kubernetes deletes the child
    with the parent. That is not possible over namespaces.
    """
    generated: generating.Fields = MappingProxyType({})
    """The fields whose values are made when they are absent; the manifest has placeholders."""


Kinds = Mapping[tuple[str, str], references.Resource]
"""The resources of which the handler can have children, by their groups and kinds."""

Find = Callable[[tuple[str, str]], references.Resource | None]
"""Finds these resources."""


def get_manager(operator: str, handler_id: str) -> str:
    """Make the name of the field manager of a handler. Too long names end with their digest."""
    manager = f'{operator}/{handler_id}'
    if len(manager) <= MAX_MANAGER and manager.isprintable():
        return manager
    text = ''.join(char if char.isprintable() else '_' for char in manager)
    return f'{text[:MAX_MANAGER - 17]}-{make_digest(manager)}'


def make_digest(value: object) -> str:
    """Make a short digest of a value of JSON, the same after a restart."""
    return hashlib.sha256(_encode_sorted(value).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=1000)
def make_label(manager: str) -> str:
    """Make the value of the label of the children that were applied by this field manager."""
    return make_digest(manager)


def flatten(result: object) -> Iterator[object]:
    """Iterate over the manifests in nested iterables. None is skipped."""
    if result is None:
        return
    if isinstance(result, Mapping) or not isinstance(result, Iterable) or isinstance(
            result, (str, bytes)) or _is_model(result):
        yield result
        return
    for item in result:
        yield from flatten(item)


def prepare(
        result: object,
        *,
        parent: bodies.Body,
        find: Find,
        manager: str,
) -> tuple[dict[Key, Desired], list[Exception]]:
    """
    Make the desired children of what the handler of a parent has returned.

    Returns the children, and an error for each manifest that no child can be made of.
    """
    found: dict[Key, Desired] = {}
    errors: list[Exception] = []
    numbers = collections.Counter[tuple[str, ...]]()
    for item in flatten(result):
        try:
            desired = _prepare(item, parent, find, manager, numbers)
            if desired.key in found:
                raise ManifestError(f"{desired.key} is returned twice. Give each its own name.")
        except (ManifestError, generating.GenerationError) as e:
            errors.append(e)
        else:
            found[desired.key] = desired
    return found, errors


def _prepare(
        item: object, parent: bodies.Body, find: Find, manager: str,
        numbers: collections.Counter[tuple[str, ...]],
) -> Desired:
    """
    Make a desired child of a manifest.

    ``numbers`` counts the names that were generated: each name depends only on the number of
    manifests before it that are of the same kind, namespace, and prefix.
    """
    meta, uid = parent.metadata, str(parent.metadata.uid)
    manifest, generated = read(item)
    api_version, kind = manifest.get('apiVersion'), manifest.get('kind')
    if not isinstance(api_version, str) or not isinstance(kind, str):
        shown = {  # the rest can be secret
            key: value if key in ('apiVersion', 'kind', 'metadata') else '…'
            for key, value in manifest.items()}
        raise ManifestError(f"A manifest needs apiVersion and kind: {str(shown)[:100]}")
    group, _, version = api_version.rpartition('/')
    found = find((group, kind))
    if found is None:
        raise ManifestError(
            f"{kind} of {api_version} is not among the owned kinds in the cluster. Add the "
            f"resource to owns=, or create its custom resource definition.")
    metadata = manifest.setdefault('metadata', {})
    _verify_metadata(kind, metadata)
    for field in SYSTEM_FIELDS:
        metadata.pop(field, None)
    if 'status' in found.subresources:
        manifest.pop('status', None)
    namespace = None
    if found.namespaced:
        namespace = metadata.get('namespace') or meta.namespace
        if not namespace:
            raise ManifestError(f"{kind} needs a namespace, as its parent has none.")
        metadata['namespace'] = namespace
    else:
        metadata.pop('namespace', None)
    prefix = metadata.pop('generateName', None)
    if not metadata.get('name') and prefix:
        place = (group, kind, namespace or '', prefix)
        unique = [uid, manager, *place, numbers[place]]
        numbers[place] += 1
        metadata['name'] = f'{prefix}{make_digest(unique)[:8]}'
    elif not metadata.get('name'):
        metadata['name'] = meta.name
    key = Key(group, kind, namespace, metadata['name'])
    if key[1:] == (parent.get('kind'), meta.namespace, meta.name) and group == (
            parent['apiVersion'].rpartition('/')[0]):
        raise ManifestError(f"{key} is the parent itself. Give the owned resource another name.")
    is_owned = meta.namespace in (None, namespace)
    metadata['labels'] = {
        **meta.labels, **(metadata.get('labels') or {}),
        OWNER_LABEL: uid, HANDLER_LABEL: make_label(manager)}
    if is_owned:
        others = [ref for ref in metadata.get('ownerReferences') or () if ref.get('uid') != uid]
        metadata['ownerReferences'] = [*others, bodies.build_owner_reference(parent)]
    digest = make_digest(manifest)
    metadata['annotations'] = {**(metadata.get('annotations') or {}), DIGEST_ANNOTATION: digest}
    sent = found if version == found.version else dataclasses.replace(found, version=version)
    return Desired(key, sent, found, manifest, digest, is_owned, generated)


def read(item: object) -> tuple[dict[str, Any], generating.Fields]:
    """
    Convert a mapping, an object of pykube, or a model of a client to plain JSON.

    Return it with its generated fields, which have placeholders.
    """
    found: list[generating.Generated] = []

    def convert(value: Any) -> Any:
        if isinstance(value, generating.Generated):
            found.append(value)
            return generating.mark(len(found) - 1)
        return to_json(value)

    if not isinstance(item, Mapping):
        item = getattr(item, 'obj', item)
    if not isinstance(item, Mapping) and not _is_model(item):
        raise ManifestError(f"Neither a manifest nor an iterable of manifests: {item!r}"[:200])
    try:
        encoder = json.JSONEncoder(allow_nan=False, default=convert)
        copy: dict[str, Any] = json.loads(encoder.encode(item))
    except (TypeError, ValueError, RecursionError) as e:
        raise ManifestError(f"A manifest is not JSON: {e}") from e
    return copy, generating.collect(copy, found) if found else {}


def _verify_metadata(kind: str, metadata: object) -> None:
    """Check the types of what Kopf itself uses; the API server checks the rest."""
    if not isinstance(metadata, dict):
        raise ManifestError(f"The metadata of {kind} must be a mapping.")
    for field in ('name', 'generateName', 'namespace'):
        if (value := metadata.get(field)) is not None and not (
                isinstance(value, str) and value.isprintable() and value not in ('.', '..')):
            raise ManifestError(f"The {field} of {kind} must be a name, not {value!r}.")
    for field in ('labels', 'annotations'):
        if (value := metadata.get(field)) is not None and not isinstance(value, dict):
            raise ManifestError(f"The {field} of {kind} must be a mapping, not {value!r}.")
    owners = metadata.get('ownerReferences')
    if owners is not None and (not isinstance(owners, list) or not all(
            isinstance(ref, dict) for ref in owners)):
        raise ManifestError(
            f"The ownerReferences of {kind} must be a list of mappings, not {owners!r}.")


def _is_model(value: object) -> bool:
    """Whether the value is a model of one of the official client libraries."""
    return hasattr(value, 'attribute_map') and hasattr(value, 'openapi_types')


def to_json(value: Any) -> Any:
    """Convert what JSON does not have; its parts are converted by further calls."""
    if _is_model(value):
        fields = {key: getattr(value, attr) for attr, key in value.attribute_map.items()}
        return {key: val for key, val in fields.items() if val is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    raise TypeError(f"{type(value).__name__} is not for JSON.")


_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(',', ':'), allow_nan=False).encode
