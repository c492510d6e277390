"""
The machine: the next step for a thing in an external system. It is pure: no I/O, and no clock.

The machine is asked again after each step, with what the step has brought. It never asks for a call
that creates unless the record of this very call is on the object, and it never asks for a second
one unless it is certain that the first one has created nothing, or that the system recognises it.
"""
import dataclasses
import datetime
import enum
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kopf._cogs.structs import dicts, diffs
from kopf._kits.external.records import Key, Phase, Record


class Unseen(enum.Enum):
    """The only value of `UNSEEN`."""
    UNSEEN = enum.auto()


UNSEEN = Unseen.UNSEEN
"""It was not looked at in this run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Abilities:
    """What the author's functions and the system can do, and what is wanted of them."""
    finds: bool = False
    is_idempotent: bool = False
    """Whether a second call that creates with the same token returns the first thing."""
    updates: bool = True
    orphans: bool = False
    """Whether the thing is left when the object is deleted."""
    corrects: bool = True
    """Whether what others have changed in the system is changed back."""
    replaces: bool = False
    immutable: Collection[dicts.FieldPath] = ()
    consistency: float = 30.0
    """How long (seconds) the system can deny what it has just done."""
    timeout: float = 60.0
    """How long (seconds) a call can take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """All that a step depends on."""
    record: Record
    can: Abilities
    now: datetime.datetime
    token: str
    """A new token, in case that one is needed."""
    desired: Any = None
    digest: str | None = None
    """The digest of the desired state."""
    is_deleting: bool = False
    is_paused: bool = False
    waits_for: str | None = None
    """What has to be there, or to be gone, before this thing is created, or deleted."""
    adopt: Key | None = None
    """The key that somebody has given by an annotation."""
    is_retry: bool = False
    """Whether somebody says that there is nothing."""

    # What this process knows, and the next one does not.
    is_armed: bool = False
    """Whether this process has announced the call of the record, and has not made it yet."""
    is_refused: bool = False
    """Whether this call was made, or not even that, and has certainly created nothing."""
    ended: datetime.datetime | None = None
    """When this call has ended without a known result."""
    found: Key | Unseen | None = UNSEEN
    observed: Any = UNSEEN
    is_due: bool = True
    """Whether it may be observed now."""
    is_erased: bool = False
    """Whether the call to delete the first of the keys was made in this run."""
    updated: str | None = None
    """The digest of what it was updated to, as long as the system can deny that."""


class Write(NamedTuple):
    """Store the record, before anything else is done."""
    record: Record
    because: str


class Call(NamedTuple):
    """Call a function of the author: find, create, observe, update, delete."""
    verb: str
    key: Key | None = None
    diff: diffs.Diff = diffs.EMPTY


class Release(NamedTuple):
    """Forget the record: nothing is left, or nothing has to be done about it."""


class Rest(NamedTuple):
    """Do nothing until something changes, or until this time."""
    report: 'Report'
    until: datetime.datetime | None = None


class Report(NamedTuple):
    """What people see in the condition."""
    is_synced: bool | None
    reason: str
    message: str = ''


Step = Write | Call | Release | Rest

SYNCED = Report(True, 'Synced')
PAUSED = Report(None, 'Paused')
UNOBSERVED = Report(None, 'NotObserved', "It is observed later.")
SETTLING = Report(None, 'Settling', "The system can still deny what was done.")
MISSING = Report(False, 'Missing', "The system does not have it any more.")
REMAINS = Report(False, 'Deleting', "The system still has it.")
MAY_EXIST = 'MayExist'


def step(s: Situation) -> Step:
    """Decide the next step."""
    record = s.record
    if s.is_paused:
        if record.phase is Phase.KNOWN and s.observed is UNSEEN and s.is_due:
            return Call('observe', record.key)
        return Rest(PAUSED)
    if s.is_deleting and (s.can.orphans or (record.phase is Phase.WANTED and not record.keys)):
        return Release()
    match record.phase:
        case Phase.WANTED if s.is_deleting:
            return Write(dataclasses.replace(record, phase=Phase.DELETING), "it is to be deleted")
        case Phase.WANTED:
            return _want(s)
        case Phase.CREATING:
            return _resolve(s)
        case Phase.UNKNOWN:
            return _ask(s)
        case Phase.KNOWN if s.is_deleting:
            if s.waits_for is not None:
                return Rest(Report(False, 'Waiting', s.waits_for))
            return Write(dataclasses.replace(record, phase=Phase.DELETING), "it is to be deleted")
        case Phase.KNOWN if record.previous:
            return _erase(s, record.previous[0])
        case Phase.KNOWN:
            return _keep(s)
        case Phase.DELETING:
            return _erase(s, record.keys[0]) if record.keys else Release()


def _want(s: Situation) -> Step:
    if s.adopt is not None and s.adopt != s.record.adopted:
        return _adopt(s, s.adopt)
    if s.waits_for is not None:
        return Rest(Report(False, 'Waiting', s.waits_for))
    return _announce(s)


def _announce(s: Situation) -> Step:
    """Store that the thing is going to be created: nothing but this allows to do so."""
    record = s.record
    return Write(dataclasses.replace(
        record, phase=Phase.CREATING, token=record.token or s.token, attempt=record.attempt + 1,
        since=s.now), "it is going to be created")


def _adopt(s: Situation, key: Key) -> Step:
    return Write(dataclasses.replace(
        s.record, phase=Phase.KNOWN, key=key, adopted=key, since=s.now, synced=None),
        "somebody has named it")


def _resolve(s: Situation) -> Step:
    """Find out what came of the call that the record announces."""
    record, can = s.record, s.can
    if s.is_armed and not s.is_deleting:
        return Call('create')
    if s.is_refused or (s.is_armed and not can.is_idempotent):
        return Write(dataclasses.replace(record, phase=Phase.WANTED), "nothing was created")
    if can.is_idempotent:  # another process can have repeated it; in a deletion, to get the key
        return Call('create')
    if not can.finds:
        return Write(dataclasses.replace(record, phase=Phase.UNKNOWN), "nobody can tell")
    if s.found is UNSEEN:
        return Call('find')
    if s.found is not None:
        return Write(know(record, s.found, s.now), "it is found")
    last = s.ended or (record.since or s.now) + datetime.timedelta(seconds=can.timeout)
    quiet = last + datetime.timedelta(seconds=can.consistency)
    if s.now < quiet:
        return Rest(Report(None, 'Searching', "It is not found, but it could still appear."), quiet)
    if s.is_deleting:
        return Write(dataclasses.replace(record, phase=Phase.WANTED), "it was never created")
    return _announce(s)


def know(record: Record, key: Key, now: datetime.datetime, digest: str | None = None) -> Record:
    """Make the record of a thing whose key has become known."""
    return dataclasses.replace(record, phase=Phase.KNOWN, key=key, since=now, synced=digest)


def _ask(s: Situation) -> Step:
    """Wait for people: only they can tell whether there is anything."""
    if s.adopt is not None and s.adopt != s.record.adopted:
        return _adopt(s, s.adopt)
    if s.is_retry:
        return Write(dataclasses.replace(s.record, phase=Phase.WANTED), "somebody says so")
    return Rest(Report(None, MAY_EXIST, f"It may exist, by the token {s.record.token}."))


def _erase(s: Situation, key: Key) -> Step:
    """Delete a thing until the system says that it is gone."""
    record = s.record
    if not s.is_erased:
        return Call('delete', key)
    if s.observed is UNSEEN:
        return Call('observe', key)
    if s.observed is not None:
        return Rest(REMAINS)
    known = _get_reliable_time(s)
    if s.now < known:
        return Rest(SETTLING, known)
    left = record.drop(key)
    return Release() if s.is_deleting and not left.keys else Write(left, f"{key} is gone")


def _get_reliable_time(s: Situation) -> datetime.datetime:
    """Get the time from which the system knows what it has created."""
    since = s.record.since
    return s.now if since is None else since + datetime.timedelta(seconds=s.can.consistency)


def _keep(s: Situation) -> Step:
    """Keep a thing as it should be."""
    record, can = s.record, s.can
    if s.observed is UNSEEN:
        return Call('observe', record.key) if s.is_due else Rest(
            UNOBSERVED if record.synced != s.digest else SYNCED)
    if s.observed is None:
        known = _get_reliable_time(s)
        if s.now < known:
            return Rest(SETTLING, known)
        if not can.corrects:
            return Rest(MISSING)
        return Write(Record(adopted=record.adopted), "it is gone, though it is wanted")
    found = compare(s.observed, s.desired)
    if not found or s.updated == s.digest:
        if record.synced != s.digest:
            return Write(dataclasses.replace(record, synced=s.digest), "it is as it should be")
        return Rest(SYNCED if not found else SETTLING)
    names = ', '.join('.'.join(map(str, item.field)) or 'all' for item in found)
    if any(item.field[:len(path)] == path[:len(item.field)]
           for item in found for path in can.immutable):
        if can.replaces and record.key is not None and (
                can.corrects or record.synced != s.digest):
            return Write(
                Record(previous=(*record.previous, record.key), adopted=record.adopted,
                       since=record.since),
                f"it is to be replaced, as {names} cannot be changed")
        return Rest(Report(False, 'Immutable', f"This cannot be changed: {names}."))
    if not can.updates or not (can.corrects or record.synced != s.digest):
        return Rest(Report(False, 'Drifted', f"This differs: {names}."))
    return Call('update', record.key, found)


def compare(observed: Any, desired: Any) -> diffs.Diff:
    """Compare what there is to what should be, as far as the latter says anything."""
    return diffs.diff(_restrict(observed, desired), desired)


def _restrict(observed: Any, desired: Any) -> Any:
    if isinstance(observed, Mapping) and isinstance(desired, Mapping):
        return {key: _restrict(observed.get(key), val) for key, val in desired.items()}
    return observed
