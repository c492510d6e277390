"""
The state in a file: all objects and the revision, from which the next run continues.

The first line describes the file; each following line is an object in JSON. A new file is written
beside the old one and then replaces it, so that the file is always complete.
"""
import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.storage import Change, Entry, Store

logger = logging.getLogger(__name__)

FORMAT = 'kopf-sandbox/1'
DELAY = 1.0  # seconds from a change to its being written, at most, if the disk keeps up


class StateError(Exception):
    """The file is no state, or a damaged one; it is left as it is."""


class Keeper:
    """Loads the state once, and saves it after changes, and at the end."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._changed = asyncio.Event()
        self._saved = -1

    def load(self) -> bool:
        """Fill the (empty) store; returns whether there was a file. Raises `StateError`."""
        if self._path.exists() and not self._path.is_file():  # e.g. /dev/null must not be replaced
            raise StateError(f"The state cannot be kept in {self._path}: it is no regular file.")
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise StateError(f"The state cannot be read from {self._path}: {e}") from e
        if not raw:
            return False
        lines = raw.split(b'\n')
        try:
            head = encoding.decode_own(lines[0])
            if head['format'] != FORMAT:
                raise ValueError(f"the format is {head['format']!r}, not {FORMAT!r}")
            entries = [_parse(line) for line in lines[1:] if line]
            if len(entries) != head['objects']:
                raise ValueError(f"{len(entries)} of {head['objects']} objects are there")
            self._store.restore(iter(entries), int(head['revision']))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise StateError(f"The state in {self._path} is damaged: {e}") from e
        self._saved = self._store.revision
        return True

    def hear(self, change: Change) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Never ends by itself; when it is cancelled, the last changes are still to be saved."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(DELAY)
            self._changed.clear()
            lines, revision = self._snapshot()
            try:
                await asyncio.to_thread(self._write, lines)
            except OSError as e:
                logger.error("The state of the sandbox cannot be saved: %s", e)
            else:
                self._saved = revision

    def save(self) -> None:
        """Save the state now, if anything has changed. Raises `OSError`."""
        if self._store.revision != self._saved:
            lines, revision = self._snapshot()
            self._write(lines)
            self._saved = revision

    def _snapshot(self) -> tuple[list[bytes], int]:
        entries = list(self._store.dump())
        head = {'format': FORMAT, 'revision': self._store.revision, 'objects': len(entries)}
        return [encoding.encode(head), *(
            b'%s%s}' % (_prefix(resource), entry.raw) for resource, entry in entries
        )], self._store.revision

    def _write(self, lines: list[bytes]) -> None:
        path = self._path.resolve()  # a link stays a link
        folder = path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with _temporary(folder, path.name) as (descriptor, name):
            with open(descriptor, 'wb') as file:
                for line in lines:
                    file.write(line + b'\n')
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        with contextlib.suppress(OSError):  # not everywhere can folders be synced
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _temporary(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """A new file that only this user can read; it is removed unless renamed."""
    descriptor, path = tempfile.mkstemp(prefix=f'.{name}.', dir=folder)
    try:
        yield descriptor, path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_secret(path: Path, text: str) -> None:
    """
    Write a file that only this user can read, in place of the one that is there, if there is any.

    Pipes and the like, e.g. ``/dev/stdout``, are not replaced.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding='utf-8')
        return
    with _temporary(path.parent, path.name) as (descriptor, name):
        with open(descriptor, 'w', encoding='utf-8') as file:
            file.write(text)
        os.replace(name, path)


def _prefix(resource: Resource) -> bytes:
    return b'{"resource":%s,"object":' % encoding.encode(list(resource))


def _parse(line: bytes) -> tuple[Resource, Entry]:
    found: Any = encoding.decode_own(line)
    group, plural = found['resource']
    obj = found['object']
    metadata = obj['metadata']
    prefix = _prefix((group, plural))
    raw = line[len(prefix):-1] if line.startswith(prefix) else encoding.encode(obj)
    key = (metadata.get('namespace', ''), metadata['name'])
    return (group, plural), Entry(
        key, metadata['uid'], int(metadata['resourceVersion']), raw,
        metadata.get('labels') or None)
