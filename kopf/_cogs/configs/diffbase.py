"""
The last-handled state of the objects: what is remembered, and where.

It is the base of all change detection: the diffs are from the last-handled to the current state.
"""
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from kopf._cogs.configs import conventions
from kopf._cogs.structs import bodies, dicts, patches

_SYSTEM_FIELDS = frozenset({'apiVersion', 'kind', 'metadata', 'status'})
_FILTERED = frozenset({'labels', 'annotations'})
_VOLATILE = frozenset({'resourceVersion', 'managedFields', 'generation'})  # by own writes too

encode_essence = json.JSONEncoder(separators=(',', ':')).encode
"""The one form of JSON in which the essences are stored."""


class DiffBaseStorage(conventions.StorageKeyMarkingConvention, conventions.StorageStanzaCleaner):
    """
    Remember the last-handled state of an object, reduced to its essence.

    The essence is what people declare: all of the object but its system metadata and status.
    To keep it elsewhere than on the object, inherit and implement `fetch` and `store`.

    ``ignored_fields`` are those which are not essential for this operator.
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
        Reduce the object to its essence: a new dict, with the values shared, not copied.

        Extra fields are those which handlers name explicitly: they are essential even if
        the stanza where they are, such as the status, generally is not.
        """
        essence: dict[str, Any] = {
            key: val for key, val in body.items() if key not in _SYSTEM_FIELDS}
        meta = body.get('metadata') or {}
        labels, annotations = meta.get('labels'), meta.get('annotations')
        stanzas: dict[str, Any] = {}
        if labels:
            stanzas['labels'] = labels
        if annotations:
            prefixes = self.detect_prefixes(annotations)
            foreign = {
                key: val for key, val in annotations.items()
                if not conventions.is_own_annotation(key, prefixes)
            }
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
            _cut(essence, path)
        if 'status' in essence and not essence['status']:
            del essence['status']
        return cast(bodies.BodyEssence, essence)

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        """The last-handled essence, or None if the object was never handled."""
        raise NotImplementedError

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        """Put the essence to the patch (or elsewhere) as the last-handled one."""
        raise NotImplementedError


def decode_essence(encoded: str) -> bodies.BodyEssence | None:
    """
    Parse what was stored.

    :raises ValueError: when that is no JSON, e.g. after it was edited by hand.
    """
    try:
        return cast(bodies.BodyEssence | None, json.loads(encoded))
    except (TypeError, ValueError) as e:
        raise ValueError(
            f"The last-handled state of the object is not readable ({e}); it starts with "
            f"{encoded!r:.50}. Restore it, or remove it to handle the object as a new one.") from e


def _put(essence: dict[str, Any], path: dicts.FieldPath, value: Any) -> None:
    """Set a nested field; the parents, which can be shared with the body, are not changed."""
    for key in path[:-1]:
        child = essence.get(key)
        essence[key] = essence = dict(child) if isinstance(child, Mapping) else {}
    essence[path[-1]] = value


def _cut(essence: dict[str, Any], path: dicts.FieldPath) -> None:
    """Remove a nested field & the parents which it leaves empty; shared parents are not changed."""
    if len(path) == 1:
        essence.pop(path[0], None)
    elif path and isinstance(child := essence.get(path[0]), Mapping):
        child = dict(child)
        _cut(child, path[1:])
        essence[path[0]] = child
        if not child:
            del essence[path[0]]


def _intersect(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """What both have, by the keys."""
    return {
        key: _intersect(val, b[key]) if isinstance(val, Mapping) and isinstance(b[key], Mapping)
        else val
        for key, val in a.items() if key in b
    }


class AnnotationsDiffBaseStorage(conventions.StorageKeyFormingConvention, DiffBaseStorage):
    """Remember the last-handled state in an annotation."""

    def __init__(
            self,
            *,
            prefix: str = conventions.DEFAULT_PREFIX,
            key: str = 'last-handled-configuration',
            ignored_fields: Iterable[dicts.FieldSpec] | None = None,
            v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1)
        self.key = key
        self.ignored_fields: tuple[dicts.FieldPath, ...] = tuple(
            dicts.parse_field(field) for field in ignored_fields or ())

    def build(
            self,
            *,
            body: bodies.Body,
            extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        essence = super().build(body=body, extra_fields=extra_fields)
        if 'annotations' in essence.get('metadata', ()):
            self.remove_annotations(essence, self.make_keys(self.key, body=body))
            self.remove_empty_stanzas(essence)
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        annotations = (body.get('metadata') or {}).get('annotations') or {}
        for key in self.make_keys(self.key, body=body):
            if key in annotations:
                return decode_essence(annotations[key])
        return None

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        encoded = encode_essence(essence) + '\n'  # readable with jsonpath and the like
        annotations = patch.metadata.annotations
        for key in self.make_keys(self.key, body=body):
            annotations[key] = encoded
            marker = self.mark_key(key, body=body)
            if marker:
                annotations[marker] = 'yes'


class StatusDiffBaseStorage(DiffBaseStorage):
    """Remember the last-handled state in a field of the status (or any other stanza)."""

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
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))

    def build(
            self,
            *,
            body: bodies.Body,
            extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        essence = super().build(body=body, extra_fields=extra_fields)
        _cut(cast(dict[str, Any], essence), self.field)
        return essence

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        encoded = dicts.resolve(body, self.field, None)
        return None if encoded is None else decode_essence(encoded)

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        dicts.ensure(patch, self.field, encode_essence(essence))


class MultiDiffBaseStorage(DiffBaseStorage):
    """Write to several storages, read from the first one that knows: for transitions."""

    def __init__(self, storages: Collection[DiffBaseStorage]) -> None:
        super().__init__()
        self.storages = storages

    def build(
            self,
            *,
            body: bodies.Body,
            extra_fields: Iterable[dicts.FieldSpec] | None = None,
    ) -> bodies.BodyEssence:
        extra_fields = tuple(extra_fields or ())
        essence = cast(dict[str, Any], super().build(body=body, extra_fields=extra_fields))
        for storage in self.storages:
            # Each storage takes away its own traces.
            essence = _intersect(
                essence, cast(dict[str, Any], storage.build(body=body, extra_fields=extra_fields)))
        result = cast(bodies.BodyEssence, essence)
        self.remove_empty_stanzas(result)
        return result

    def fetch(self, *, body: bodies.Body) -> bodies.BodyEssence | None:
        for storage in self.storages:
            essence = storage.fetch(body=body)
            if essence is not None:
                return essence
        return None

    def store(
            self, *, body: bodies.Body, patch: patches.Patch, essence: bodies.BodyEssence,
    ) -> None:
        for storage in self.storages:
            storage.store(body=body, patch=patch, essence=essence)
