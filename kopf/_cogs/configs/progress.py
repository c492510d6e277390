"""
Storages of the progress of handlers between their attempts.

Each handler has its own record, so that several operators with different handlers can store their
records in the same place. The records are removed at the end of the handling cycle.
"""
import json
from collections.abc import Collection, Iterator
from typing import Any, TypedDict, cast

from kopf._cogs.configs import conventions
from kopf._cogs.structs import bodies, dicts, ids, nesting, patches


class ProgressRecord(TypedDict, total=False):
    """
    The progress of one handler: a dict.

    ``started``, ``stopped``, and ``delayed`` are times in ISO 8601, with a timezone: the start of
    the first attempt, the end of the last attempt, and the earliest time of the next attempt.
    ``purpose`` is the cause, ``retries`` the number of attempts, ``success`` and ``failure`` the
    outcome, ``message`` the latest error, and ``subrefs`` the ids of the sub-handlers. An absent
    key means the same as `None`.
    """
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
    The base class of storages of the progress of handlers.

    The methods are synchronous: they read from the object, and put changes into the patch. To store
    the progress elsewhere, e.g. in a database, inherit, and implement the methods. A storage is for
    ``settings.persistence.progress_storage``. See "Continue after restarts" in the documentation.
    """

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        """
        Get the record of one handler.

        :param key: the id of the handler.
        :param body: the object.
        :returns: the record, or `None` if there is none.
        """
        raise NotImplementedError

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        """
        Store the record of one handler.

        :param key: the id of the handler.
        :param record: the record.
        :param body: the object.
        :param patch: the patch to put the record into, if it is stored on the object.
        """
        raise NotImplementedError

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        """
        Remove the record of one handler, if there is any, also if it was only put into the patch.

        :param key: the id of the handler.
        :param body: the object.
        :param patch: the patch.
        """
        raise NotImplementedError

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        """
        Store a value that has no meaning for handlers, beside the records.

        :param body: the object.
        :param patch: the patch.
        :param value: the value; `None` removes it.
        """

    def touched(self, *, body: bodies.Body) -> str | None:
        """
        Get the value that `touch` has stored, if the storage supports that.

        :param body: the object.
        :returns: the value, or `None`.
        """
        return None

    def store_cycle(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        """
        Store the record of the handling cycle, beside those of the handlers.

        The record describes what the handlers have seen while others edited the object. If a
        storage does not keep it, handlers can miss an edit that was reverted during a restart.

        :param body: the object.
        :param patch: the patch.
        :param value: the record; `None` removes it.
        """

    def fetch_cycle(self, *, body: bodies.Body) -> str | None:
        """
        Get the record of the handling cycle.

        :param body: the object.
        :returns: the record, or `None` if there is none.
        """
        return None

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        """
        Remove all traces of this storage from an essence, so that Kopf ignores its own changes.

        :param essence: the essence.
        :returns: the essence without the traces.
        """
        return essence

    def flush(self) -> None:
        """
        Write what is still buffered. Kopf calls this method when all records of the moment are
        stored.
        """


CYCLE_KEY = 'handling-cycle'
"""The key of the record of the cycle, next to the records of the handlers."""


class AnnotationsProgressStorage(conventions.StorageKeyFormingConvention, ProgressStorage):
    """
    Store the progress in annotations of the object, as JSON: ``{prefix}/{id}``.

    :param prefix: the part of the annotations' names before the slash.
    :param verbose: whether to also store the keys that are not set.
    :param touch_key: the part of the name of the annotation for `touch` after the slash.
    :param v1: whether to also use the shortened names of very old versions, if they differ.
    :raises ValueError: if the prefix is empty.
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
        full_key, value = self._find(key, body=body)
        if value is None:
            return None
        try:
            return cast(ProgressRecord | None, nesting.parse(value))
        except ValueError as e:
            raise ValueError(
                f"The annotation {full_key} is not readable as a handler's progress ({e}); "
                f"remove it to start that handler anew.") from e

    def store(
            self,
            *,
            key: ids.HandlerId,
            record: ProgressRecord,
            body: bodies.Body,
            patch: patches.Patch,
    ) -> None:
        content = {key: val for key, val in record.items() if self.verbose or val is not None}
        self._put(key, json.dumps(content, separators=(',', ':')), body=body, patch=patch)

    def purge(self, *, key: ids.HandlerId, body: bodies.Body, patch: patches.Patch) -> None:
        self._put(key, None, body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        self._put(self.touch_key, value, body=body, patch=patch)

    def touched(self, *, body: bodies.Body) -> str | None:
        return self._find(self.touch_key, body=body)[1]

    def store_cycle(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        self._put(CYCLE_KEY, value, body=body, patch=patch)

    def fetch_cycle(self, *, body: bodies.Body) -> str | None:
        return self._find(CYCLE_KEY, body=body)[1]

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        for key in conventions.get_annotations(essence):
            if key.startswith(f'{self.prefix}/'):
                essence = dicts.without(essence, ('metadata', 'annotations', key))
        return essence


class StatusProgressStorage(ProgressStorage):
    """
    Store the progress in a field of the status of the object, or in another field, by the handlers'
    ids.

    :param name: the name that replaces ``{name}`` in the fields.
    :param field: the field of the records.
    :param touch_field: the field for `touch`.
    """

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
        """The field of the records, as a tuple of keys."""
        return self._field

    @field.setter
    def field(self, field: dicts.FieldSpec) -> None:
        self._field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))
        self._cycle_field = (*self._field, CYCLE_KEY)

    @property
    def touch_field(self) -> dicts.FieldPath:
        """The field for `touch`, as a tuple of keys."""
        return self._touch_field

    @touch_field.setter
    def touch_field(self, field: dicts.FieldSpec) -> None:
        self._touch_field = tuple(key.format(name=self._name) for key in dicts.parse_field(field))

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        record: ProgressRecord | None = _read(body, (*self._field, key))
        return record

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
        _write((*self.field, key), None, body=body, patch=patch)

    def touch(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        _write(self.touch_field, value, body=body, patch=patch)

    def touched(self, *, body: bodies.Body) -> str | None:
        value = _read(body, self._touch_field)
        return value if isinstance(value, str) else None

    def store_cycle(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        _write(self._cycle_field, value, body=body, patch=patch)

    def fetch_cycle(self, *, body: bodies.Body) -> str | None:
        value = _read(body, self._cycle_field)
        return value if isinstance(value, str) else None

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        for field in (self._field, self._touch_field):
            if field[0] in essence:
                essence = dicts.without(essence, field)
        return essence


class MultiProgressStorage(conventions.SeveralStorages[ProgressStorage], ProgressStorage):
    """
    Write the progress to several storages, and read it from the first storage that has it.

    Use it to change from one storage to another.

    :param storages: the storages, in the order of reading.
    """

    def fetch(self, *, key: ids.HandlerId, body: bodies.Body) -> ProgressRecord | None:
        return self._find_first(lambda storage: storage.fetch(key=key, body=body))

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
        return self._find_first(lambda storage: storage.touched(body=body))

    def store_cycle(self, *, body: bodies.Body, patch: patches.Patch, value: str | None) -> None:
        for storage in self.storages:
            storage.store_cycle(body=body, patch=patch, value=value)

    def fetch_cycle(self, *, body: bodies.Body) -> str | None:
        return self._find_first(lambda storage: storage.fetch_cycle(body=body))

    def clear(self, *, essence: bodies.BodyEssence) -> bodies.BodyEssence:
        for storage in self.storages:
            essence = storage.clear(essence=essence)
        return essence

    def flush(self) -> None:
        for storage in self.storages:
            storage.flush()


class _ReadOnlyStatusProgressStorage(StatusProgressStorage):
    """The records of old versions of Kopf: read and removed, but never written."""

    def _write_nothing(self, **_: Any) -> None:
        pass

    store = touch = store_cycle = _write_nothing


class SmartProgressStorage(MultiProgressStorage):
    """
    Store the progress in annotations; also read and clean the records in the status. This is the
    default.

    :param name: the name that replaces ``{name}`` in the fields of the status.
    :param field: the field of the records in the status.
    :param touch_key: the part of the name of the annotation for `touch` after the slash.
    :param touch_field: the field for `touch` in the status.
    :param prefix: the part of the annotations' names before the slash.
    :param v1: whether to also use the shortened names of very old versions, if they differ.
    :param verbose: whether to also store the keys that are not set.
    :raises ValueError: if the prefix is empty.
    """

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


def iter_annotating(storage: ProgressStorage) -> Iterator[AnnotationsProgressStorage]:
    """Iterate over the storages of a storage that write annotations."""
    match storage:
        case MultiProgressStorage():
            for item in storage.storages:
                yield from iter_annotating(item)
        case AnnotationsProgressStorage():
            yield storage


def _read(body: bodies.Body, path: dicts.FieldPath) -> Any:
    stanza = body.get(path[0])
    return None if stanza is None else dicts.resolve(stanza, path[1:], None)


def _write(
        path: dicts.FieldPath, value: str | None, *, body: bodies.Body, patch: patches.Patch,
) -> None:
    """Put the value of a field into the patch; None removes it."""
    if value is not None or dicts.resolve(body, path, None) is not None:
        dicts.ensure(patch, path, value)
    else:
        dicts.remove(patch, path)
