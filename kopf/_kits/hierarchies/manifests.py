"""
Manifests: a common interface to the objects of different libraries.

The libraries are not imported here: the creator of such an object has imported them already.
"""
import importlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from kopf._cogs.structs import bodies, dicts


def flatten(objs: Any) -> 'Iterator[Manifest]':
    """
    Iterate over all objects in nested iterables. None is skipped.

    :raises TypeError: if anything is neither an object nor an iterable.
    """
    if objs is None:
        return
    if isinstance(objs, Manifest):
        yield objs
        return
    if isinstance(objs, MutableMapping):
        yield Manifest(objs)
    elif bodies.is_of_pykube(objs):
        yield Manifest(objs.obj)
    elif bodies.is_model(objs):
        yield ModelManifest(objs)
    elif isinstance(objs, Iterable) and not isinstance(objs, (str, bytes, Mapping)):
        for obj in objs:
            yield from flatten(obj)
    else:
        raise TypeError(
            f"Neither an object that can be changed, nor an iterable of objects: {type(objs)}.")


class Manifest:
    """An object or a template of an object, with metadata: a dict with the keys of the API."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def read(self, key: str) -> Any:
        """Read a value of the metadata; None if there is none."""
        return _get(_get(self._obj, 'metadata'), key)

    def write(self, key: str, value: Any) -> None:
        """Set a value of the metadata."""
        metadata = self._obj.get('metadata')
        if metadata is None:
            metadata = self._obj['metadata'] = {}
        metadata[key] = value

    def remove(self, key: str) -> None:
        """Remove a value of the metadata, if there is one."""
        (self._obj.get('metadata') or {}).pop(key, None)

    def read_owners(self) -> list[tuple[str | None, Any]]:
        """Read the owner references: pairs of the owner's uid and the reference itself."""
        return [(_get(ref, 'uid'), ref) for ref in self.read('ownerReferences') or ()]

    def write_owners(self, owners: Iterable[Any], *new: Mapping[str, Any]) -> None:
        """Set the owner references: the kept ones unchanged, and the new ones from dicts."""
        self.write('ownerReferences', [*owners, *map(self._make_owner, new)])

    def find(self, path: dicts.FieldPath) -> 'Iterator[Manifest]':
        """Find the nested manifest, or all manifests of a list; none if the field is absent."""
        return flatten(dicts.resolve(self._obj, path, None))

    def _make_owner(self, ref: Mapping[str, Any]) -> Any:
        return dict(ref)


class ModelManifest(Manifest):
    """A model of a client library, with attributes in snake case. Its fields can be dicts."""

    def write(self, key: str, value: Any) -> None:
        if self._obj.metadata is None:
            self._obj.metadata = self._get_model('V1ObjectMeta')()
        metadata = self._obj.metadata
        if isinstance(metadata, MutableMapping):
            metadata[key] = value
        else:
            setattr(metadata, _get_attribute(metadata, key), value)

    def remove(self, key: str) -> None:
        self.write(key, None)

    def find(self, path: dicts.FieldPath) -> Iterator[Manifest]:
        obj = self._obj
        for key in path:
            obj = _get(obj, key)
        return flatten(obj)

    def _make_owner(self, ref: Mapping[str, Any]) -> Any:
        model = self._get_model('V1OwnerReference')
        return model(**{_get_attribute(model, key): val for key, val in ref.items()})

    def _get_model(self, name: str) -> Any:
        package = type(self._obj).__module__.partition('.models')[0]
        return getattr(importlib.import_module(f'{package}.models'), name)


def _get(obj: Any, key: str) -> Any:
    """Get a field of a model or of a dict; None if absent."""
    if isinstance(obj, Mapping):
        return obj.get(key)
    return getattr(obj, _get_attribute(obj, key), None)


def _get_attribute(model: Any, key: str) -> str:
    """Find the attribute of a model for a field of the API."""
    names: Mapping[str, str] = getattr(model, 'attribute_map', {})
    return next((attribute for attribute, field in names.items() if field == key), key)
