"""
Storages of the last-handled state of objects.

Kopf detects changes as the difference between the last-handled state and the current state.
"""
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kopf._cogs.configs import capacity, compaction, conventions
from kopf._cogs.structs import bodies, dicts, nesting, patches

_SYSTEM_FIELDS = frozenset({'apiVersion', 'kind', 'metadata', 'status'})
_FILTERED = frozenset({'labels', 'annotations'})
_VOLATILE = frozenset({'resourceVersion', 'managedFields', 'generation'})  # changed by own writes

RESERVE = 32 * 1024
"""How many bytes of the annotations the last-handled state leaves to the progress of handlers."""

LARGE = 64 * 1024
"""From which length of the last-handled state the size of the whole object matters."""


class DiffBaseStorage(conventions.StorageKeyMarkingConvention, conventions.StorageStanzaCleaner):
    """
    The base class of storages of the last-handled state of objects.

    That is the essence of an object when its latest handling cycle ended.

    The essence is the object without its status and the system's own metadata. To store the essence
    elsewhere than on the object, inherit, and implement `fetch` and `store`. A storage is for
    ``settings.persistence.diffbase_storage``. See "Continue after restarts" in the documentation.

    :param ignored_fields: the fields that do not belong to the essence for this operator: changes
        of these fields are not handled. Default: none.
    """

    def __init__(self, ignored_fields: Iterable[dicts.FieldSpec] | None = None) -> None:
        super().__init__()
        self.ignored_fields: tuple[dicts.FieldPath, ...] = tuple(
            dicts.parse_field(field) for field in ignored_fields or ())

    def build(
            self,
            *,
            body: bodies.Body,
            extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        """
        Reduce an object to its essence: a new dict, which shares its values with the object.

        :param body: the object.
        :param extra_fields: the fields that handlers name explicitly. They belong to the essence
            even if they are a part of the status or of the system's metadata. Default: none.
        :returns: the essence.
        """
        essence: dict[str, Any] = {
            key: val for key, val in body.items() if key not in _SYSTEM_FIELDS}
        meta = body.get('metadata') or {}
        labels, annotations = meta.get('labels'), meta.get('annotations')
        stanzas: dict[str, Any] = {}
        if labels:
            stanzas['labels'] = labels
        if annotations:
            foreign = conventions.get_foreign_annotations(annotations)
            foreign.pop(conventions.KUBECTL_KEY, None)
            if foreign:
                stanzas['annotations'] = foreign
        if stanzas:
            essence['metadata'] = stanzas

        for field in extra_fields or ():
            path = dicts.parse_field(field)
            if path == ('metadata',):
                _put(essence, path, {
                    key: val for key, val in meta.items()
                    if key not in _VOLATILE and key not in _FILTERED} | stanzas)
            elif path[:1] == ('metadata',) and path[1:2] and path[1] in _FILTERED | _VOLATILE:
                continue
            elif path and path[0] in _SYSTEM_FIELDS:
                value = dicts.resolve(body, path, None)
                if value is not None:
                    _put(essence, path, value)
        for path in self.ignored_fields:
            essence = dicts.without(essence, path)
        essence = self._leave_out_own(essence, body)
        if 'status' in essence and not essence['status']:
            del essence['status']
        return cast(bodies.BodyEssence, essence)

    def _leave_out_own(self, essence: dict[str, Any], body: bodies.Body) -> dict[str, Any]:
        """Leave out what this storage has stored, if it would be in the essence otherwise."""
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        """
        Get the last-handled essence.

        :param body: the object.
        :returns: the essence, or `None` if the object was never handled.
        """
        raise NotImplementedError

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        """
        Store the essence as the last-handled essence.

        :param body: the object.
        :param patch: the patch to put the essence into, if it is stored on the object.
        :param essence: the essence.
        """
        raise NotImplementedError

    def _is_reduced(self, source: Mapping[str, Any]) -> bool:
        """Whether the object has a last-handled state of which some values are digests."""
        return False


def decode_essence(encoded: str) -> bodies.BodyEssence | None:
    """
    Parse a stored essence.

    :raises ValueError: if it is not a JSON object, e.g. after somebody has edited the annotation.
    """
    try:
        essence = compaction.unpack(nesting.parse(encoded))
        if essence is not None and not isinstance(essence, dict):
            raise ValueError("it is no object")
        return None if essence is None else _leave_out_marks(essence)
    except (AttributeError, TypeError, ValueError) as e:
        raise ValueError(
            f"The last-handled state of the object is not readable ({e}). "  # it can be secret
            f"Restore it, or remove it to handle the object as a new one.") from e


def _leave_out_marks(essence: dict[str, Any]) -> bodies.BodyEssence:
    """Leave out the marks of operators: Kopf 1.45 stores its own one, here it is no change."""
    annotations = conventions.get_annotations(essence)
    foreign = annotations and conventions.get_foreign_annotations(annotations)
    if len(foreign) < len(annotations):
        essence['metadata']['annotations'] = foreign
        conventions.StorageStanzaCleaner.remove_empty_stanzas(cast(bodies.BodyEssence, essence))
    return cast(bodies.BodyEssence, essence)


def _encode(
        essence: bodies.BodyEssence,
        room: int,
        *,
        body: bodies.Body,
        patch: patches.Patch,
        field: dicts.FieldPath,
) -> str:
    """Encode an essence for a field of the object, in so many bytes if possible."""
    plain = compaction.encode(essence)
    if len(plain) > LARGE:
        room = min(room, capacity.MAX_OBJECT - capacity.count_object(body, patch, without=field))
    return compaction.pack(essence, plain, room)


def _put(essence: dict[str, Any], path: dicts.FieldPath, value: Any) -> None:
    """Set a nested field. Its parents are copied: they can be shared with the body."""
    for key in path[:-1]:
        child = essence.get(key)
        essence[key] = essence = dict(child) if isinstance(child, Mapping) else {}
    essence[path[-1]] = value


def _intersect(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the keys that both mappings have."""
    return {
        key: _intersect(val, b[key]) if isinstance(val, Mapping) and isinstance(b[key], Mapping)
        else val
        for key, val in a.items() if key in b
    }


class AnnotationsDiffBaseStorage(conventions.StorageKeyFormingConvention, DiffBaseStorage):
    """
    Store the last-handled state in an annotation of the object. This is the default.

    :param prefix: the part of the annotation's name before the slash.
    :param key: the part of the annotation's name after the slash.
    :param ignored_fields: the fields that do not belong to the essence. Default: none.
    :param v1: whether to also use the shortened names of very old versions, if they differ.
    :raises ValueError: if the prefix is empty.
    """

    def __init__(
            self,
            *,
            prefix: str = conventions.DEFAULT_PREFIX,
            key: str = 'last-handled-configuration',
            ignored_fields: Iterable[dicts.FieldSpec] | None = None,
            v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1, ignored_fields=ignored_fields)
        self.key = key

    def _leave_out_own(self, essence: dict[str, Any], body: bodies.Body) -> dict[str, Any]:
        if 'annotations' in essence.get('metadata', ()):
            for key in self.make_keys(self.key, body=body):
                essence = dicts.without(essence, ('metadata', 'annotations', key))
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        _, encoded = self._find(self.key, body=body)
        return None if encoded is None else decode_essence(encoded)

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        keys = self.make_keys(self.key, body=body)
        after = {**conventions.get_annotations(body), **conventions.get_annotations(patch)}
        taken = capacity.count_annotations(after, without=keys)
        names = sum(capacity.count(key) + len('\n') for key in keys)
        room = (capacity.MAX_ANNOTATIONS - RESERVE - taken - names) // len(keys)
        field = ('metadata', 'annotations', next(iter(keys)))
        encoded = _encode(essence, room, body=body, patch=patch, field=field)
        encoded += '\n'  # readable with jsonpath and the like
        self._put(self.key, encoded, body=body, patch=patch)

    def _is_reduced(self, source: Mapping[str, Any]) -> bool:
        _, encoded = self._find(self.key, body=cast(bodies.Body, source))
        return compaction.is_reduced(encoded)


class StatusDiffBaseStorage(DiffBaseStorage):
    """
    Store the last-handled state in a field of the status of the object, or in another field.

    :param name: the name that replaces ``{name}`` in the field.
    :param field: the field.
    :param ignored_fields: the fields that do not belong to the essence. Default: none.
    """

    def __init__(
            self,
            *,
            name: str = 'kopf',
            field: dicts.FieldSpec = 'status.{name}.last-handled-configuration',
            ignored_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> None:
        super().__init__(ignored_fields=ignored_fields)
        self._name = name
        self.field = field

    @property
    def field(self) -> dicts.FieldPath:
        """The field of the last-handled state, as a tuple of keys."""
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))

    def _leave_out_own(self, essence: dict[str, Any], body: bodies.Body) -> dict[str, Any]:
        return dicts.without(essence, self.field)

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        encoded = dicts.resolve(body, self.field, None)
        return None if encoded is None else decode_essence(encoded)

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        dicts.ensure(patch, self.field, _encode(
            essence, capacity.MAX_OBJECT, body=body, patch=patch, field=self.field))

    def _is_reduced(self, source: Mapping[str, Any]) -> bool:
        return compaction.is_reduced(dicts.resolve(source, self.field, None))


class MultiDiffBaseStorage(conventions.SeveralStorages[DiffBaseStorage], DiffBaseStorage):
    """
    Write the last-handled state to several storages, and read it from the first storage that has
    it.

    Use it to change from one storage to another.

    :param storages: the storages, in the order of reading.
    """

    def build(
            self,
            *,
            body: bodies.Body,
            extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        extra_fields = tuple(extra_fields or ())
        essence = cast(dict[str, Any], super().build(body=body, extra_fields=extra_fields))
        for storage in self.storages:
            # Each storage removes its own fields from the essence.
            essence = _intersect(
                essence, cast(dict[str, Any], storage.build(body=body, extra_fields=extra_fields)))
        result = cast(bodies.BodyEssence, essence)
        self.remove_empty_stanzas(result)
        return result

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        return self._find_first(lambda storage: storage.fetch(body=body))

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        for storage in self.storages:
            storage.store(body=body, patch=patch, essence=essence)

    def _is_reduced(self, source: Mapping[str, Any]) -> bool:
        return any(storage._is_reduced(source) for storage in self.storages)
