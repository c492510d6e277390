"""
The store: objects as JSON, one counter of revisions, and the latest changes for watches.

An object is kept as the bytes of its JSON. To change an object, the caller decodes a copy. So,
stored objects cannot be altered by accident, and lists and watches need no encoding. All operations
are synchronous, so several operations without an await between them are atomic.
"""
import bisect
import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.statuses import APIError, Obj

#: Namespace (empty if there is none) and name; also the order of lists.
Key = tuple[str, str]

Item = tuple[Resource, Key]
"""What identifies an object."""


#: How much JSON an object may be, in bytes: as much as the database of a cluster takes.
MAX_SIZE = 1536 * 1024


@dataclass(slots=True, eq=False)
class Entry:
    """A state of an object: immutable, shared by all readers."""
    key: Key
    uid: str
    revision: int
    raw: bytes
    labels: dict[str, str] | None
    stored: bytes | None = None
    """What was written, if it is read as something else since then (see `Store.reread`)."""

    def decode(self) -> Obj:
        """Decode a copy of the object, which the caller can change."""
        return encoding.decode_own(self.raw)


@dataclass(slots=True, eq=False)
class Change:
    """One change: ``old`` and ``new`` as in the store (a deletion's ``new`` is the last state)."""
    type: Literal['ADDED', 'MODIFIED', 'DELETED']
    resource: Resource
    revision: int
    new: Entry
    old: Entry | None
    #: What watchers have made of it, by their ways of showing it: encoded once for all of them.
    shown: dict[Any, bytes] = field(default_factory=dict)


Listener = Callable[[Change], None]


class TooOld(Exception):
    """The revision is not kept any more."""


@dataclass(slots=True, eq=False)
class _Table:
    entries: dict[Key, Entry] = field(default_factory=dict)
    #: All keys, in order.
    keys: list[Key] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)


class Store:
    """
    All objects of the sandbox. ``history`` is how many of the latest changes are kept; a watch
    or a page from before them raises `TooOld`.
    """

    def __init__(self, *, history: int = 10_000) -> None:
        self._tables: collections.defaultdict[Resource, _Table] = collections.defaultdict(_Table)
        self._changes: collections.deque[Change] = collections.deque()
        self._history = history
        #: The latest revision given; the next one is higher.
        self.revision: int = 1
        #: Nothing from before this revision can be watched.
        self.compacted: int = 0
        #: Those who hear of all changes, of all resources, at once and in order.
        self.listeners: list[Listener] = []

    # Reading.

    def get(self, resource: Resource, key: Key) -> Entry | None:
        return self._tables[resource].entries.get(key)

    def select(self, resource: Resource, namespace: str = '', after: Key | None = None) \
            -> Iterator[Entry]:
        """Objects in the order of lists, of one namespace or of all, those after a key."""
        table = self._tables[resource]
        start = 0 if after is None else bisect.bisect_right(table.keys, after)
        if namespace:
            start = max(start, bisect.bisect_left(table.keys, (namespace, '')))
        for key in itertools.islice(table.keys, start, None):
            if namespace and key[0] != namespace:
                break
            yield table.entries[key]

    def select_at(
            self, revision: int, resource: Resource, namespace: str = '', after: Key | None = None,
    ) -> Iterator[Entry]:
        """The same as it was at a revision. Raises `TooOld` if that is not known any more."""
        undone = self.since(resource, revision)
        entries = dict(self._tables[resource].entries)
        for change in reversed(undone):
            if change.old is None:
                del entries[change.new.key]
            else:
                entries[change.new.key] = change.old
        for key in sorted(entries):
            if (not namespace or key[0] == namespace) and (after is None or key > after):
                yield entries[key]

    def count(self, resource: Resource) -> int:
        return len(self._tables[resource].entries)

    def resources(self) -> list[Resource]:
        return [resource for resource, table in self._tables.items() if table.entries]

    def since(self, resource: Resource, revision: int) -> Sequence[Change]:
        """Changes after a revision, oldest first. Raises `TooOld` if some are not kept."""
        if revision < self.compacted:
            raise TooOld
        found: list[Change] = []
        for change in reversed(self._changes):
            if change.revision <= revision:
                break
            if change.resource == resource:
                found.append(change)
        found.reverse()
        return found

    def listen(self, resource: Resource, listener: Listener) -> Callable[[], None]:
        """Call a function for every change of a resource. The result is a function to stop that."""
        listeners = self._tables[resource].listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    # Writing.

    def put(
            self, resource: Resource, key: Key, obj: Obj, encode: Callable[[Obj], bytes],
            stored: bytes | None = None,
    ) -> Entry:
        """
        Store an object as it is, but for its ``resourceVersion``, which is set in it. ``stored`` is
        what was written, if it is read as something else.

        Raises `APIError` if it is too large.
        """
        table = self._tables[resource]
        old = table.entries.get(key)
        metadata = obj['metadata']
        metadata['resourceVersion'] = str(self.revision + 1)
        raw = encode(obj)
        if len(raw) > MAX_SIZE:
            raise APIError("etcdserver: request is too large", reason='')
        self.revision += 1
        new = Entry(
            key, metadata['uid'], self.revision, raw, metadata.get('labels') or None, stored)
        table.entries[key] = new
        if old is None:
            bisect.insort(table.keys, key)
        self._record(table, Change(
            'ADDED' if old is None else 'MODIFIED', resource, self.revision, new, old))
        return new

    def remove(self, resource: Resource, key: Key, encode: Callable[[Obj], bytes],
               last: Obj | None = None) -> Entry:
        """
        Take an object out; what watchers see of it (and is returned) has the new revision.
        ``last`` is its last state, where that differs from the stored one.
        """
        table = self._tables[resource]
        old = table.entries.pop(key)
        del table.keys[bisect.bisect_left(table.keys, key)]
        self.revision += 1
        obj = old.decode() if last is None else last
        obj['metadata']['resourceVersion'] = str(self.revision)
        new = Entry(key, old.uid, self.revision, encode(obj), old.labels)
        self._record(table, Change('DELETED', resource, self.revision, new, old))
        return new

    def reread(self, resource: Resource, read: Callable[[Entry], Entry]) -> None:
        """Let the objects be read in another way. That is no change: there is no new revision."""
        entries = self._tables[resource].entries
        for key, entry in entries.items():
            entries[key] = read(entry)

    def compact(self) -> None:
        """Forget all changes made so far: older watches and pages end with ``410 Gone``."""
        self._changes.clear()
        self.compacted = self.revision

    def _record(self, table: _Table, change: Change) -> None:
        changes = self._changes
        changes.append(change)
        if len(changes) > self._history:
            self.compacted = changes.popleft().revision
        for listener in (*table.listeners, *self.listeners):
            listener(change)

    # Surviving.

    def dump(self) -> Iterator[tuple[Resource, Entry]]:
        for resource, table in list(self._tables.items()):
            for key in table.keys:
                yield resource, table.entries[key]

    def restore(self, entries: Iterator[tuple[Resource, Entry]], revision: int) -> None:
        """Fill an empty store; what was before it cannot be watched."""
        for resource, entry in entries:
            self._tables[resource].entries[entry.key] = entry
        for table in self._tables.values():
            table.keys = sorted(table.entries)
        self.revision = self.compacted = revision
