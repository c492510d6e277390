"""
The progress of handlers: what is remembered of each between their attempts, and where.

A record is of one handler; records are independent of each other, so that several operators
with different handlers can keep theirs in the same place. They live as long as the handling cycle.
"""
import json
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, TypedDict, cast

from kopf._cogs.configs import conventions
from kopf._cogs.structs import bodies, dicts, ids, patches


class ProgressRecord(TypedDict, total=True):
    """The progress of one handler. Times are in ISO 8601, with a timezone."""
    started: str | None
    stopped: str | None
    delayed: str | None
    purpose: str | None
    retries: int | None
    success: bool | None
    failure: bool | None
    message: str | None
    subrefs: Collection[ids.HandlerId] | None


class ProgressStorage(conventions.StorageStanzaCleaner):
    """
    The interface of all storages of the handlers' progress.

    Storages do no requests: they read from the body, and write to the patch. For other places,
    such as databases, inherit and implement the methods; `flush` is called after each pass.
    """

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        """The record of one handler, or None if there is none."""
        raise NotImplementedError

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        """Put the record of one handler to the patch (or elsewhere)."""
        raise NotImplementedError

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        """Remove the record of one handler, if there is any, also if it was only just stored."""
        raise NotImplementedError

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        """Put a value that means nothing to handlers next to the records, or remove it (None)."""

    def touched(self, *, body: bodies.Body) -> str | None:
        """Read the value that was put by `touch`, if the storage keeps it at all."""
        return None

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        """Remove all traces of this storage from the essence."""
        return essence

    def flush(self) -> None:
        """Called when all records of the moment are stored."""


class AnnotationsProgressStorage(
        conventions.StorageKeyFormingConvention,
        conventions.StorageKeyMarkingConvention,
        ProgressStorage,
):
    """
    Keep the records in annotations, as JSON: ``{prefix}/{id}``.

    The verbose records also have the fields which are not set.
    """

    def __init__(
            self,
            *,
            prefix: str = conventions.DEFAULT_PREFIX,
            verbose: bool = False,
            touch_key: str = 'touch-dummy',
            v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1)
        self.verbose = verbose
        self.touch_key = touch_key

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        annotations = _get_annotations(body)
        if not annotations:
            return None
        for full_key in self.make_keys(key, body=body):
            if full_key in annotations:
                return _decode(annotations[full_key], full_key)
        return None

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        content = {key: val for key, val in record.items() if self.verbose or val is not None}
        self._write(key, json.dumps(content, separators=(',', ':')), body=body, patch=patch)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        annotations = _get_annotations(body)
        for full_key in self.make_keys(key, body=body):
            if full_key in annotations:
                patch.metadata.annotations[full_key] = None
            else:
                dicts.remove(patch, ('metadata', 'annotations', full_key))

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        if value is None:
            self.purge(key=ids.HandlerId(self.touch_key), body=body, patch=patch)
        else:
            self._write(self.touch_key, value, body=body, patch=patch)

    def touched(self, *, body: bodies.Body) -> str | None:
        annotations = _get_annotations(body)
        keys = self.make_keys(self.touch_key, body=body) if annotations else ()
        return next((annotations[key] for key in keys if key in annotations), None)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        essence = super().clear(essence=essence)
        annotations = _get_annotations(essence)
        if not annotations:
            return essence
        own = {key for key in annotations if key.startswith(f'{self.prefix}/')}
        if own:
            foreign = {key: val for key, val in annotations.items() if key not in own}
            meta = {**essence['metadata'], 'annotations': foreign}
            essence = cast(bodies.BodyEssence, {**essence, 'metadata': meta})
            self.remove_empty_stanzas(essence)
        return essence

    def _write(self, key: str, value: str, *, body: bodies.Body, patch: patches.Patch) -> None:
        annotations = patch.metadata.annotations
        for full_key in self.make_keys(key, body=body):
            annotations[full_key] = value
            marker = self.mark_key(full_key, body=body)
            if marker:
                annotations[marker] = 'yes'


class StatusProgressStorage(ProgressStorage):
    """Keep the records in a field of the status (or of any other stanza) by the handlers' ids."""

    def __init__(
            self,
            *,
            name: str = 'kopf',
            field: dicts.FieldSpec = 'status.{name}.progress',
            touch_field: dicts.FieldSpec = 'status.{name}.dummy',
    ) -> None:
        super().__init__()
        self._name = name
        self.field = field
        self.touch_field = touch_field

    @property
    def field(self) -> dicts.FieldPath:
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))

    @property
    def touch_field(self) -> dicts.FieldPath:
        return self._touch_field

    @touch_field.setter
    def touch_field(self, field: dicts.FieldSpec) -> None:
        self._touch_field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        record = dicts.resolve(body, (*self.field, key), None)
        return cast(ProgressRecord | None, record)

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        dicts.ensure(patch, (*self.field, key), dict(record))

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        _purge_field((*self.field, key), body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        if value is None:
            _purge_field(self.touch_field, body=body, patch=patch)
        else:
            dicts.ensure(patch, self.touch_field, value)

    def touched(self, *, body: bodies.Body) -> str | None:
        value = dicts.resolve(body, self.touch_field, None)
        return value if isinstance(value, str) else None

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        essence = super().clear(essence=essence)
        if self.field[0] not in essence and self.touch_field[0] not in essence:
            return essence
        cleared: Mapping[str, Any] = essence
        for field in (self.field, self.touch_field):
            cleared = _without(cleared, field)
        return cast(bodies.BodyEssence, cleared)


class MultiProgressStorage(ProgressStorage):
    """Write to several storages, read from the first one that knows: for transitions."""

    def __init__(self, storages: Collection[ProgressStorage]) -> None:
        super().__init__()
        self.storages = storages

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        for storage in self.storages:
            record = storage.fetch(key=key, body=body)
            if record is not None:
                return record
        return None

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        for storage in self.storages:
            storage.store(key=key, record=record, body=body, patch=patch)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        for storage in self.storages:
            storage.purge(key=key, body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        for storage in self.storages:
            storage.touch(body=body, patch=patch, value=value)

    def touched(self, *, body: bodies.Body) -> str | None:
        values = (storage.touched(body=body) for storage in self.storages)
        return next((value for value in values if value is not None), None)

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        for storage in self.storages:
            essence = storage.clear(essence=essence)
        return essence

    def flush(self) -> None:
        for storage in self.storages:
            storage.flush()


class _ReadOnlyStatusProgressStorage(StatusProgressStorage):
    """The place of long-gone versions: still read and cleaned, never written."""

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        pass

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        pass


class SmartProgressStorage(MultiProgressStorage):
    """The default: annotations; the records in the status are read & cleaned, but not written."""

    def __init__(
            self,
            *,
            name: str = 'kopf',
            field: dicts.FieldSpec = 'status.{name}.progress',
            touch_key: str = 'touch-dummy',
            touch_field: dicts.FieldSpec = 'status.{name}.dummy',
            prefix: str = conventions.DEFAULT_PREFIX,
            v1: bool = True,
            verbose: bool = False,
    ) -> None:
        super().__init__([
            AnnotationsProgressStorage(
                prefix=prefix, verbose=verbose, touch_key=touch_key, v1=v1),
            _ReadOnlyStatusProgressStorage(name=name, field=field, touch_field=touch_field),
        ])


def _get_annotations(body: Mapping[str, Any]) -> Mapping[str, str]:
    return (body.get('metadata') or {}).get('annotations') or {}


def _decode(value: str, key: str) -> ProgressRecord | None:
    try:
        record = json.loads(value)
    except ValueError as e:
        raise ValueError(
            f"The annotation {key} is not readable as a handler's progress ({e}); "
            f"remove it to start that handler anew.") from e
    return cast(ProgressRecord | None, record)


def _purge_field(
        path: dicts.FieldPath, *, body: bodies.Body, patch: MutableMapping[str, Any],
) -> None:
    if dicts.resolve(body, path, None) is not None:
        dicts.ensure(patch, path, None)
    else:
        dicts.remove(patch, path)


def _without(source: Mapping[str, Any], path: dicts.FieldPath) -> Mapping[str, Any]:
    """A copy without the field, and without its parents which are empty; the same if none are."""
    key, below = path[0], path[1:]
    child = source.get(key)
    if key not in source or (below and not isinstance(child, Mapping)):
        return source
    remaining = _without(child, below) if below and isinstance(child, Mapping) else {}
    if remaining and remaining is child:
        return source
    others = {name: val for name, val in source.items() if name != key or remaining}
    return {**others, key: remaining} if remaining else others
