"""
Twins: each object as production makes it, and as the new version does.

What others do is done to both. What production writes is kept apart: the new version does not see
it until both are compared. If they differ for a whole window, and for the next one, then this is
told, and the new version gets the state of production.
"""
import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kopf._cogs.configs import configuration, conventions
from kopf._core.actions import finalizers
from kopf._core.engines.reconciling import generating, hub
from kopf._kits.external import records
from kopf._kits.planning import comparing, plans
from kopf._kits.sandbox import objects, overlays, schemas
from kopf._kits.sandbox.cluster import NAMESPACES, Cluster, stored_resource
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.statuses import NotFound, Obj
from kopf._kits.sandbox.storage import Change, Entry, Item, Key
from kopf._kits.sandbox.upstreams import UNOWNED
from kopf._kits.shadowing import evidence, verdicts
from kopf._kits.testing import snapshots

WHOLE = verdicts.WHOLE

WINDOWS = 2
"""After how many windows a difference is told; after the first of them, writes are late."""

PLACEHOLDERS = generating.SHOWN, generating.SHOWN_DATA
"""What the new version makes instead of generated values."""

NOTES = f'{records.PREFIX}/', str(configuration.PausingSettings.annotation)
"""The beginnings of the annotations that are always those of production."""

SLACK = 1.0
"""How much later (seconds) than others some watches can be."""


@dataclasses.dataclass(eq=False, slots=True)
class Twin:
    """An object that production or the new version has touched."""
    real: Entry | None
    """As it is upstream; None if it does not exist there (any more)."""
    first: Entry | None = None
    """As production has created it, until the new version also creates it."""
    last: Entry | None = None
    """As it was upstream when it was deleted there."""
    is_deleted: bool = False
    """Whether production seems to have deleted it."""
    writers: dict[str, None] = dataclasses.field(default_factory=dict)
    """The handlers of the new version that have written to it."""
    since: dict[tuple[comparing.Path, str], float] = dataclasses.field(default_factory=dict)
    """Since when fields differ; the key also has the note of the finding."""
    told: dict[comparing.Path, verdicts.Finding] = dataclasses.field(default_factory=dict)
    uids: set[str] = dataclasses.field(default_factory=set)
    """The uids whose names are known because of it: those of either side."""


class Twins(overlays.Overlay):
    """Follows the upstream as an overlay does, but keeps apart what production writes."""

    def __init__(
            self, cluster: Cluster, *, window: float, managers: Collection[str],
            is_handled: Callable[[Kind], bool], find_finalizer: Callable[[], str | None],
            find_writers: Callable[[], Collection[str]],
            tell: Callable[[verdicts.Difference], None],
            review: Callable[[Kind, Obj | None, Obj | None], None],
    ) -> None:
        """
        ``window`` is in seconds. ``managers`` are the field managers of production; those that
        write the annotations and finalizers of Kopf to handled objects are added.
        ``find_finalizer`` returns that of the new version.
        """
        super().__init__(cluster)
        self.managers = set(managers)
        self._window = window
        self._is_handled = is_handled
        self._find_finalizer = find_finalizer
        self._find_writers = find_writers
        self._tell = tell
        self._review = review
        self._twins: dict[Item, Twin] = {}
        self._names: dict[str, str] = {}
        self._listed: set[tuple[Resource, str]] = set()
        self._cycles: dict[Item, tuple[float, float]] = {}
        """When the latest change of a handled object began, and when production has handled it."""

    # What the new version does.

    def hear(self, change: Change) -> None:
        item = change.resource, change.new.key
        if self.is_speaking:
            return
        self._bases.setdefault(item, change.old)
        if change.type == 'DELETED':
            self._deleted.add(change.new.uid)
        if _is_apart(change.resource):
            return
        twin = self._twins.setdefault(item, Twin(change.old))
        twin.writers |= dict.fromkeys(self._find_writers())
        if change.type == 'ADDED':
            self._name(item, change.new)
            if twin.first is not None:  # after all others have heard of the creation
                asyncio.get_running_loop().call_soon(self._catch_up, item, twin)
        self._look(item, is_ours=True)
        asyncio.get_running_loop().call_soon(self._share_values, item)

    # What the upstream tells.

    def replace(self, kind: Kind, namespace: str, entries: Iterable[Entry]) -> None:
        super().replace(kind, namespace, entries)
        self._listed.add((stored_resource(kind), namespace))

    def accept(self, kind: Kind, new: Entry) -> None:
        resource = stored_resource(kind)
        item, obj = (resource, new.key), new.decode()
        if self._is_handled(kind):
            self._find_managers(obj)
        twin, old = self._twins.get(item), self._get_real(item)
        is_news = not self._listed.isdisjoint([(resource, ''), (resource, new.key[0])])
        if _is_apart(resource) or (twin is None and not is_news):  # it was there before
            super().accept(kind, new)
            return
        if old is not None and old.uid != new.uid:
            self._forget(item)  # it was created again
            twin = old = None
        if old is None:
            is_own = self._is_child(obj)
            if twin is not None and (twin.last is not None or not is_own):
                if is_own and self._is_of_new_owner(item, twin, new):
                    self._bases.pop(item, None)
                    self._twins[item] = Twin(None, writers=twin.writers, uids=twin.uids)
                else:
                    self._forget(item)  # what has happened to the former one is not known
            if is_own:
                twin = self._twins.setdefault(item, Twin(None))
                twin.real = twin.first = new
                self._kinds[resource] = kind
                self._name(item, new)
                self._share_values(item)
                self._look(item)
            else:
                super().accept(kind, new)
                self._note_cycle(item, None, obj)
                self._review(kind, None, obj)
            return
        before = old.decode()
        theirs = self._undo(kind, before, obj)
        if self._is_child(before) and 'deletionTimestamp' not in before['metadata']:
            for field in ('deletionTimestamp', 'deletionGracePeriodSeconds'):
                theirs['metadata'].pop(field, None)
        is_theirs = overlays.reduce(theirs) != overlays.reduce(before)
        if overlays.reduce(theirs) == overlays.reduce(obj) and twin is None:
            super().accept(kind, new)
        else:
            twin = twin or self._touch(item, old)
            twin.real = new
            if 'deletionTimestamp' in obj['metadata'] and (
                    'deletionTimestamp' not in before['metadata']):
                self._note_deletion(item, twin, new)
            if is_theirs:
                self._follow(item, old, overlays.make_entry(kind, theirs))
            self._share_notes(item, obj)
            self._share_values(item)
            self._look(item)
        self._note_cycle(item, None if is_theirs else before, obj)
        if is_theirs:
            self._review(kind, before, obj)

    def lose(self, resource: Resource, key: Key) -> None:
        item = resource, key
        twin, old = self._twins.get(item), self._get_real(item)
        if _is_apart(resource):
            super().lose(resource, key)
            return
        if old is None:
            return  # it is only here
        obj = old.decode()
        holders = obj['metadata'].get('finalizers') or ()
        is_ended = 'deletionTimestamp' in obj['metadata'] and any(map(self._is_of_kopf, holders))
        twin = twin or self._touch(item, old)
        twin.real, twin.last = None, old
        if 'deletionTimestamp' not in obj['metadata']:
            self._note_deletion(item, twin, old)
        self._cycles.pop(item, None)
        if not is_ended and not self._is_child(obj):
            if (local := self._store.get(*item)) is not None:
                self._end(item, old, local)
            self._review(self._kinds[resource], obj, None)
        self._look(item)
        for other, each in list(self._twins.items()):
            if each.last is not None and other != item:
                self._look(other)  # its owner can be this one

    def reread(self, resource: Resource) -> None:
        super().reread(resource)
        for item, twin in self._twins.items():
            if item[0] == resource:
                twin.real, twin.first, twin.last = (
                    entry and self._cluster.reread(entry)
                    for entry in (twin.real, twin.first, twin.last))

    def _touch(self, item: Item, entry: Entry) -> Twin:
        """Keep both sides of an object apart from now on; until now, both are like this."""
        self._bases.setdefault(item, entry)
        self._twins[item] = Twin(entry)
        return self._twins[item]

    def _undo(self, kind: Kind, old: Obj, new: Obj) -> Obj:
        """Make the new state without what production has done."""
        made = evidence.undo(schemas.typed_schema_of(kind), old, new, self._is_own)
        made['metadata'].pop('generation', None)  # it also counts what production has done
        return made

    def _follow(self, item: Item, before: Entry, after: Entry) -> None:
        """Let both the base and the local object follow what others have changed."""
        kind, local, base = self._kinds[item[0]], self._store.get(*item), self._bases.get(item)
        if base is not None:
            with contextlib.suppress(NotFound, objects.Pending):
                self._bases[item] = overlays.make_entry(kind, overlays.rebase(kind, *(
                    self._cluster.load(kind, each) for each in (before, after, base))))
        if local is not None:
            self._rebase(item, before, after, local)

    def _share_notes(self, item: Item, real: Obj) -> None:
        """
        Take over what production knows of external systems, which only production changes; and that
        ``kopf pause`` has paused the object, which writes as the operator does.
        """
        local = self._store.get(*item)
        if local is None:
            return
        obj, theirs = local.decode(), _get_notes(real)
        ours = _get_notes(obj)
        if theirs != ours:
            metadata = obj['metadata']
            metadata['annotations'] = {
                name: value for name, value in metadata.get('annotations', {}).items()
                if name not in ours} | theirs
            metadata['finalizers'] = [
                name for name in metadata.get('finalizers', ()) if name != hub.EXTERNAL_FINALIZER
            ] + [hub.EXTERNAL_FINALIZER] * finalizers.is_present(real, hub.EXTERNAL_FINALIZER)
            self._put(item[0], obj)

    def _share_values(self, item: Item) -> None:
        """Take over the values that production has generated; here, none are made."""
        twin, local = self._twins.get(item), self._store.get(*item)
        if twin is None or twin.real is None or local is None or not any(
                value.encode() in local.raw for value in PLACEHOLDERS):
            return
        ours = local.decode()
        made = _fill(ours, twin.real.decode())
        if made != ours:
            self._put(item[0], made)
            self._look(item)

    def _catch_up(self, item: Item, twin: Twin) -> None:
        """Do to the new object what others have done to its counterpart before."""
        if twin.real is not None and twin.first is not None and self._twins.get(item) is twin:
            kind = self._kinds[item[0]]
            made = self._undo(kind, twin.first.decode(), twin.real.decode())
            self._follow(item, twin.first, overlays.make_entry(kind, made))
            twin.first = None
            self._look(item)

    # Comparing.

    def _look(self, item: Item, *, is_ours: bool = False) -> None:
        """Note since when which fields differ, and look again when a finding is due."""
        twin, now = self._twins[item], self._now()
        found = self._compare(item)
        if WHOLE in found and twin.last is not None and twin.real is None and (
                not self._has_owners(item, twin)):
            self._forget(item)  # the garbage collector has deleted it
            return
        sides = twin.real, self._store.get(*item)
        late, marks = {}, {(path, finding.note): path for path, finding in found.items()}
        for path, note in [mark for mark in twin.since if mark not in marks]:
            seconds = now - twin.since.pop((path, note))
            if seconds > self._window and is_ours and path not in twin.told and (
                    path not in found and not _is_doubtful(twin, path, note)) and (
                    None not in sides or path in (WHOLE, verdicts.DELETION)):
                late[path] = verdicts.Finding('later', note=(
                    f"{comparing.join(path) or 'all of it'} after {seconds:.0f} seconds"))
        self._report(item, late)
        if sides == (None, None):
            self._forget(item)
        elif not found:
            self._bases[item] = twin.real
        fresh = [mark for mark in marks if mark not in twin.since]
        twin.since.update(dict.fromkeys(fresh, now))
        if fresh:
            asyncio.get_running_loop().call_later(WINDOWS * self._window, self._judge, item, twin)

    def _judge(self, item: Item, twin: Twin, patience: float = WINDOWS) -> None:
        """Tell what differs for so many windows."""
        if self._twins.get(item) is not twin:
            return
        found, until = self._compare(item), self._now() - patience * self._window
        due = {path: finding for path, finding in found.items()
               if twin.since.get((path, finding.note), until + 1) <= until + 0.001}
        if not due or self._match(item, twin, found):
            return
        if self._is_in_scope(item, twin) and self._has_owners(item, twin):
            self._report(item, {
                path: finding for path, finding in due.items()
                if path not in twin.told and not _is_doubtful(twin, path, finding.note)})
        is_news = any(twin.told.get(path) != finding for path, finding in due.items())
        twin.told |= due
        if is_news and all(path in twin.told for path in found):
            self._align(item, twin)

    def conclude(self) -> int:
        """
        Tell what differs for a window at least, and is not told yet. Return how many objects have
        begun to differ later than that, and are not told.
        """
        young, late = 0, self._now() - self._window
        for item, twin in list(self._twins.items()):
            self._judge(item, twin, patience=1)
            young += self._twins.get(item) is twin and any(
                path not in twin.told and twin.since.get((path, finding.note), late) > late
                for path, finding in self._compare(item).items())
        return young

    def _compare(self, item: Item) -> verdicts.Findings:
        twin, local = self._twins[item], self._store.get(*item)
        try:
            kind = self._find_kind(item[0])
            base, real, ours = (None if entry is None else self._cluster.load(kind, entry)
                                for entry in (self._bases.get(item), twin.real, local))
        except (NotFound, objects.Pending):
            return {}
        return verdicts.compare(kind, base, real, ours, self._names)

    def _report(self, item: Item, found: verdicts.Findings) -> None:
        if found and item[0] not in self.unfollowed:
            kind = self._find_kind(item[0])
            for difference in verdicts.describe(
                    kind, plans.locate(kind, *item[1]), found, self._twins[item].writers):
                self._tell(difference)

    def _align(self, item: Item, twin: Twin) -> None:
        """Let the new version go on with the state of production."""
        self._bases[item] = twin.real
        local = self._store.get(*item)
        twin.since.clear()
        if twin.real is not None:
            obj = twin.real.decode()
            if local is not None:
                obj['metadata']['uid'] = local.uid
            self._put(item[0], obj)
        elif local is not None:
            self._remove(item)

    def _match(self, item: Item, twin: Twin, found: verdicts.Findings) -> bool:
        """Find the counterpart of an object with a generated name, and compare them no more."""
        entry = twin.real or self._store.get(*item)
        prefix = None if entry is None or WHOLE not in found or self._bases.get(item) else (
            entry.decode()['metadata'].get('generateName'))
        for other, each in list(self._twins.items()) if prefix else ():
            if other == item or other[0] != item[0] or self._bases.get(other) is not None:
                continue
            pair = [twin.real or each.real, self._store.get(*item) or self._store.get(*other)]
            if (twin.real is None) == (each.real is None) or None in pair:
                continue
            kind = self._find_kind(item[0])
            real, ours = (self._cluster.load(kind, each) for each in pair if each is not None)
            if prefix == real['metadata'].get('generateName') == (
                    ours['metadata'].get('generateName')) and (
                    not verdicts.compare(kind, None, real, ours, self._names)):
                for known in (twin, each):
                    known.told[WHOLE] = found[WHOLE]
                    known.since.clear()
                return True
        return False

    # Whose it is.

    def _is_own(self, manager: str) -> bool:
        return manager.partition('/')[0] in self.managers or manager in self.managers

    def _find_managers(self, obj: Obj) -> None:
        prefixes = conventions.StorageKeyMarkingConvention.detect_prefixes(
            obj['metadata'].get('annotations') or {})
        for entry in obj['metadata'].get('managedFields') or ():
            tree = (entry.get('fieldsV1') or {}).get('f:metadata') or {}
            if entry.get('manager', '').startswith('kubectl'):
                continue  # people pause, rotate, adopt by it, and restore backups
            if any(conventions.is_own_annotation(key[2:], prefixes)
                   and not key.endswith((records.ADOPT, records.RETRY))  # these are of people
                   for key in tree.get('f:annotations') or ()) or (
                    any(map(self._is_of_kopf, tree.get('f:finalizers') or ()))):
                self.managers.add(entry.get('manager', ''))

    def _is_of_kopf(self, finalizer: str) -> bool:
        return conventions.DEFAULT_PREFIX in finalizer or finalizer == self._find_finalizer()

    def _is_child(self, obj: Obj) -> bool:
        """Whether production decides on the existence of the object, and not its users."""
        metadata = obj['metadata']
        annotations = metadata.get('annotations') or {}
        is_handled = any(map(self._is_of_kopf, metadata.get('finalizers') or ())) or (
            len(conventions.get_foreign_annotations(annotations)) < len(annotations))
        return evidence.is_managed(obj, self._is_own) and (
            'ownerReferences' in metadata or not is_handled)

    def _iter_owners(
            self, item: Item, entry: Entry,
    ) -> Iterator[tuple[Item, str]]:
        for owner in entry.decode()['metadata'].get('ownerReferences') or ():
            kind = self._cluster.kinds.named(owner['apiVersion'], owner['kind'])
            if kind is not None:
                namespace = item[1][0] if kind.namespaced else ''
                yield (stored_resource(kind), (namespace, owner['name'])), owner['uid']

    def _has_owners(self, item: Item, twin: Twin) -> bool:
        """Whether any owner of the object, on either side, is there or here; or it has none."""
        entries = twin.real or twin.last, self._store.get(*item)
        owners = [owner for entry in entries if entry is not None
                  for owner in self._iter_owners(item, entry)]
        return not owners or any(
            entry is not None and entry.uid == uid for owner, uid in owners
            for entry in (self._get_real(owner), self._store.get(*owner)))

    def _is_of_new_owner(self, item: Item, twin: Twin, new: Entry) -> bool:
        """Whether both sides have made the object again, for an owner that it did not have."""
        then, ours, theirs = (
            {uid for _, uid in self._iter_owners(item, entry)} if entry is not None else set()
            for entry in (twin.last, self._store.get(*item), new))
        return bool(ours & theirs) and not then & theirs

    def _note_cycle(self, item: Item, before: Obj | None, obj: Obj) -> None:
        """Note that others have changed an object, or that production has (if it was before)."""
        if self._is_handled(self._find_kind(item[0])):
            opened, closed = self._cycles.get(item, (float('-inf'), float('-inf')))
            if before is None:
                self._cycles[item] = self._now(), float('inf')
            elif closed == float('inf') and _get_handled(before) != _get_handled(obj):
                self._cycles[item] = opened, self._now()

    def _note_deletion(self, item: Item, twin: Twin, entry: Entry) -> None:
        """
        Find out, as far as possible, whether production has deleted an object.

        Nothing tells it. But production deletes when it handles a change: of an owner, or else of
        any object in the namespace.
        """
        now = self._now()

        def find() -> None:  # the owner comes by another watch, and can be a bit later
            namespace = self._get_real((NAMESPACES, ('', item[1][0])))
            if item[1][0] and (
                    namespace is None or 'deletionTimestamp' in namespace.decode()['metadata']):
                return
            owners = list(self._iter_owners(item, entry))
            alive = [owner for owner, uid in owners
                     if (real := self._get_real(owner)) is not None and real.uid == uid]
            twin.is_deleted = any(
                opened - SLACK <= now <= min(closed, opened + self._window) + SLACK
                for other, (opened, closed) in self._cycles.items()
                if (other in alive if owners else other[1][0] == item[1][0]))

        if self._is_child(entry.decode()):
            asyncio.get_running_loop().call_later(SLACK, find)
        else:
            twin.is_deleted = True  # by others, so that only the release is of production

    def _is_in_scope(
            self, item: Item, twin: Twin, seen: Collection[Item] = (),
    ) -> bool:
        """Whether the object is of this operator: it can be of another one with Kopf."""
        if twin.writers or self._is_handled(self._find_kind(item[0])):
            return True
        entry = twin.real or twin.last
        return entry is not None and any(
            self._is_handled(self._find_kind(owner[0])) or (
                (other := self._twins.get(owner)) is not None and owner not in seen
                and self._is_in_scope(owner, other, {*seen, item}))  # owners can form a circle
            for owner, _ in self._iter_owners(item, entry))

    # The rest.

    def _get_real(self, item: Item) -> Entry | None:
        twin = self._twins.get(item)
        return self._store.get(*item) if twin is None else twin.real

    def _forget(self, item: Item) -> None:
        """Forget the object, and remove it here if it is left."""
        twin = self._twins.pop(item, None)
        for uid in () if twin is None else twin.uids:
            self._names.pop(uid, None)
        self._bases.pop(item, None)
        if self._store.get(*item) is not None:
            self._remove(item)

    def _name(self, item: Item, entry: Entry) -> None:
        """Remember what the uid of a new object stands for: it has another one on either side."""
        self._twins[item].uids.add(entry.uid)
        self._names[entry.uid] = f"(uid of {plans.locate(self._find_kind(item[0]), *item[1])})"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_apart(resource: Resource) -> bool:
    """Whether the objects of the resource are not a result of the operator's work."""
    return resource in UNOWNED or resource[1] in snapshots.IGNORED_RESOURCES


def _get_notes(obj: Obj) -> dict[str, str]:
    return {name: value for name, value in conventions.get_annotations(obj).items()
            if name.startswith(NOTES)}


def _fill(ours: Any, theirs: Any) -> Any:
    """Replace what is shown instead of generated values with their values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {key: _fill(value, theirs.get(key, value)) for key, value in ours.items()}
    return theirs if ours in PLACEHOLDERS else ours


def _is_doubtful(twin: Twin, path: comparing.Path, note: str) -> bool:
    """Whether it is a deletion that can be of others."""
    return not twin.is_deleted and (
        path == verdicts.DELETION or note == verdicts.NOTES['missing', True])


def _get_handled(obj: Obj) -> Collection[str]:
    annotations = obj['metadata'].get('annotations') or {}
    return {value for key, value in annotations.items()
            if key.endswith('/last-handled-configuration')}
