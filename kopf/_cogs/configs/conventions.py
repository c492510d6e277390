"""
The names of annotations that Kopf keeps on objects, and how Kopf recognises them.

Never change these names: every version of Kopf must make the same annotations of the same handler
ids. Otherwise, it would not find the progress on the existing objects.
"""
import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar, cast

from kopf._cogs.structs import bodies, dicts, patches

StorageT = TypeVar('StorageT')
ValueT = TypeVar('ValueT')

MANAGED_KEY = 'kopf-managed'
DEFAULT_PREFIX = 'kopf.zalando.org'
_MARK = f'/{MANAGED_KEY}'
_DEFAULT_PREFIXES = frozenset({DEFAULT_PREFIX})
KUBECTL_KEY = 'kubectl.kubernetes.io/last-applied-configuration'

MAX_NAME_LENGTH = 63
"""The limit of Kubernetes for the names of annotations, without the prefix before the slash."""

_VALID_NAME = re.compile(r'[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?')


class StorageKeyMarkingConvention:
    """
    Marks the annotation prefixes of Kopf-based operators on objects.

    Other Kopf-based operators ignore the annotations with these prefixes, when they look for
    changes. Otherwise, operators would react to each other's progress endlessly. The default prefix
    is known to all operators, and is not marked.
    """

    @staticmethod
    def detect_prefixes(annotations: Mapping[str, str]) -> Collection[str]:
        marked = [key for key in annotations if key.endswith(_MARK)]
        return {DEFAULT_PREFIX, *(key.removesuffix(_MARK) for key in marked)} if marked else (
            _DEFAULT_PREFIXES)

    def mark_key(self, key: str, *, body: bodies.Body) -> str | None:
        """
        Get the annotation that marks the prefix of the key; None if the object has it already.
        """
        prefix, slash, _ = key.rpartition('/')
        marker = f'{prefix}/{MANAGED_KEY}'
        is_marked = marker in get_annotations(body)
        return marker if slash and prefix != DEFAULT_PREFIX and not is_marked else None


class StorageKeyFormingConvention(StorageKeyMarkingConvention):
    """
    Converts handler ids to the names of annotations; reads and writes these annotations.

    Characters that Kubernetes does not allow are replaced. Long names are cut, and get a hash.
    There are two versions of keys:

    * v2: 63 characters after the prefix, which is the limit of Kubernetes.
    * v1: 63 characters including the prefix, as in very old versions of Kopf. Unless disabled by
      the argument ``v1``, these keys are also used if they differ.

    A v1 key is skipped if the prefix is so long that no valid name is left: nobody could have used
    it.
    """

    def __init__(self, *, prefix: str, v1: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not prefix:
            raise ValueError("Annotations need a prefix, e.g. 'my-operator.example.com'.")
        self.prefix = prefix
        self.v1 = v1
        self._keys: dict[str, list[str]] = {}

    def make_keys(self, key: str, *, body: bodies.Body | None = None) -> Collection[str]:
        """Get all annotations for a handler id, of the newest convention first."""
        if body is not None and body.get('kind') == 'ReplicaSet' and _is_of_deployment(body):
            key = f'{key}-ofDRS'
        keys = self._keys.get(key)
        if keys is None:
            v2 = self.make_v2_key(key)
            v1 = [self.make_v1_key(key)] if self.v1 else []
            v1 = [name for name in v1 if _VALID_NAME.fullmatch(name.rpartition('/')[2])]
            keys = self._keys[key] = list(dict.fromkeys([v2, *v1]))
        return keys

    def make_v1_key(self, key: str, max_length: int = MAX_NAME_LENGTH) -> str:
        max_length -= len(self.prefix) + 1
        return self._make_key(key, max_length, hashed=self.make_safe_key(key))

    def make_v2_key(self, key: str, max_length: int = MAX_NAME_LENGTH) -> str:
        return self._make_key(key, max_length, hashed=key)

    def _make_key(self, key: str, max_length: int, *, hashed: str) -> str:
        safe_key = self.make_safe_key(key)
        if len(safe_key) <= max_length and _VALID_NAME.fullmatch(safe_key):
            return f'{self.prefix}/{safe_key}'
        suffix = self.make_suffix(hashed)
        if not _VALID_NAME.fullmatch(safe_key):
            safe_key = re.sub(r'[^A-Za-z0-9_.-]', '_', safe_key)
            safe_key = safe_key if re.match(r'[A-Za-z0-9]', safe_key) else f'x{safe_key}'
            suffix = suffix if suffix[-1].isalnum() else f'{suffix}x'
        return f'{self.prefix}/{safe_key[:max(0, max_length - len(suffix))]}{suffix}'

    @staticmethod
    def make_safe_key(key: str) -> str:
        return re.sub(r'[<>]', '_', key.replace('/', '.'))

    def make_suffix(self, key: str) -> str:
        digest = hashlib.blake2b(key.encode('utf-8'), digest_size=4).digest()
        return '-' + base64.b64encode(digest, altchars=b'-.').decode('ascii').rstrip('=')

    def _find(self, key: str, *, body: bodies.Body) -> tuple[str, str | None]:
        """Find the annotation for a handler id, and its value; None if there is none."""
        annotations = get_annotations(body)
        for full_key in self.make_keys(key, body=body) if annotations else ():
            if full_key in annotations:
                return full_key, annotations[full_key]
        return '', None

    def _put(self, key: str, value: str | None, *, body: bodies.Body, patch: patches.Patch) -> None:
        """Put the annotations for a handler id into the patch, marked; None removes them."""
        for full_key in self.make_keys(key, body=body):
            path = ('metadata', 'annotations', full_key)
            if value is None and full_key not in get_annotations(body):
                dicts.remove(patch, path)
                continue
            dicts.ensure(patch, path, value)
            if value is not None and (marker := self.mark_key(full_key, body=body)):
                dicts.ensure(patch, ('metadata', 'annotations', marker), 'yes')


class SeveralStorages(Generic[StorageT]):
    """Several storages that work as one."""

    def __init__(self, storages: Collection[StorageT]) -> None:
        super().__init__()
        self.storages = storages

    def _find_first(self, read: Callable[[StorageT], ValueT | None]) -> ValueT | None:
        """Read something from the first storage that has it."""
        for storage in self.storages:
            if (value := read(storage)) is not None:
                return value
        return None


class StorageStanzaCleaner:
    """Removes Kopf's annotations from an essence, and the parts that are empty after that."""

    @staticmethod
    def remove_annotations(essence: bodies.BodyEssence, keys_to_remove: Collection[str]) -> None:
        """Remove the annotations, in place."""
        annotations = cast(
            MutableMapping[str, str], essence.get('metadata', {}).get('annotations', {}))
        for key in keys_to_remove:
            annotations.pop(key, None)

    @staticmethod
    def remove_empty_stanzas(essence: bodies.BodyEssence) -> None:
        """Remove the labels, annotations, metadata, and status if they are empty, in place."""
        meta = cast(MutableMapping[str, Any], essence.get('metadata', {}))
        for key in ('annotations', 'labels'):
            if key in meta and not meta[key]:
                del meta[key]
        if 'metadata' in essence and not essence['metadata']:
            del essence['metadata']
        if 'status' in essence and not essence['status']:
            del essence['status']


def get_annotations(body: Mapping[str, Any]) -> Mapping[str, str]:
    return (body.get('metadata') or {}).get('annotations') or {}


def is_own_annotation(key: str, prefixes: Iterable[str]) -> bool:
    prefix, slash, _ = key.partition('/')
    return bool(slash) and prefix in prefixes


def get_foreign_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Get the annotations that no Kopf-based operator has written for itself."""
    prefixes = StorageKeyMarkingConvention.detect_prefixes(annotations)
    return {key: val for key, val in annotations.items() if not is_own_annotation(key, prefixes)}


def _is_of_deployment(body: bodies.Body) -> bool:
    """
    Whether the ReplicaSet is one of a Deployment.

    Deployments copy their annotations to their ReplicaSets. So, the keys of ReplicaSets must
    differ: otherwise, the copied progress would be taken for the ReplicaSet's own progress.
    """
    owners = dicts.resolve(body, ('metadata', 'ownerReferences'), None) or []
    return any(owner.get('kind') == 'Deployment' for owner in owners)
