"""
The machine: the next step for a thing in an external system. It is pure: no I/O, and no clock.

The machine is asked again after each step, with what the step has brought. It never asks for a call
that creates unless the record of this very call is on the object, and it never asks for a second
one unless it is certain that the first one has created nothing, or that the system recognises it.
"""
import dataclasses
import datetime
import enum
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kopf._cogs.structs import dicts, diffs
from kopf._core.engines.reconciling import desired as forms
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
    """A new token, in case one is needed."""
    desired: Any = None
    digest: str | None = None
    """The digest of the desired state."""
    is_deleting: bool = False
    is_paused: bool = False
    waits_for: str | None = None
    """What must exist before this thing is created, or must be gone before it is deleted."""
    adopt: Key | None = None
    """The key that somebody has given by an annotation."""
    is_taken: bool = False
    """Whether another object has the thing with this key."""
    is_retry: bool = False
    """Whether somebody says that there is nothing."""

    # What this process knows, and the next one does not.
    is_lost: bool = False
    """Whether the record or the finalizer was on the object, and is not any more."""
    is_armed: bool = False
    """Whether this process has announced the call of the record, and has not made it yet."""
    is_refused: bool = False
    """Whether this call was made, or not even that, and has certainly created nothing."""
    ended: datetime.datetime | None = None
    """When this call has ended without a known result."""
    found: Key | Unseen | None = UNSEEN
    is_searched: bool = False
    """Whether it was not found a moment ago."""
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
    """Forget the record: nothing is left, or nobody must do anything about what is left."""


class Rest(NamedTuple):
    """
    Do nothing until something changes, or until some time. The condition ``Synced`` says why.
    """
    is_synced: bool | None
    reason: str
    message: str = ''
    until: datetime.datetime | None = None


Step = Write | Call | Release | Rest

SYNCED = Rest(True, 'Synced')
PAUSED = Rest(None, 'Paused')
UNOBSERVED = Rest(None, 'NotObserved', "It is observed later.")
SETTLING = Rest(None, 'Settling', "The system can still deny what was done.")
MISSING = Rest(False, 'Missing', "The system does not have it any more, and it is created again "
               "when what is desired changes.")
REMAINS = Rest(False, 'Deleting', "The system still has it.")
MAX_REPLACED = 2
"""
How many things are replaced in a row that were never as they should be: others can have changed one
of them meanwhile, but hardly each.
"""

TAKEN_PAUSE = datetime.timedelta(minutes=1)
"""The pause before it is tried again to adopt what another object has."""

MAY_EXIST = 'MayExist'
WAITING = 'Waiting'


def step(s: Situation) -> Step:
    """Decide the next step."""
    record, phase = s.record, s.record.phase
    if s.is_paused:
        if phase is Phase.KNOWN and s.observed is UNSEEN and s.is_due:
            return Call('observe', record.key)
        return PAUSED
    if s.is_lost and not s.is_deleting:
        return Write(record, "somebody has removed it")
    if s.is_deleting and (s.can.orphans or (phase is Phase.WANTED and not record.keys)):
        return Release()
    waiting = None if s.waits_for is None else Rest(False, WAITING, s.waits_for)
    is_named = s.adopt is not None and s.adopt != record.adopted
    match phase:
        case Phase.CREATING:
            return _resolve(s)
        case Phase.DELETING:
            return _erase(s)
        case Phase.WANTED | Phase.KNOWN if s.is_deleting:
            return waiting or Write(
                dataclasses.replace(record, phase=Phase.DELETING), "it is to be deleted")
        case Phase.KNOWN if is_named and s.adopt == str(record.key):  # it is of no later thing
            return Write(dataclasses.replace(record, adopted=s.adopt), "somebody has confirmed it")
        case Phase.KNOWN:
            return _erase(s) if record.previous else _keep(s)
        case _ if s.adopt is not None and is_named and s.is_taken:
            return Rest(False, 'Taken', f"Another object has {s.adopt}: it is not adopted.",
                        s.now + TAKEN_PAUSE)
        case _ if s.adopt is not None and is_named:
            return Write(dataclasses.replace(
                know(record, s.adopt, s.now), adopted=s.adopt, replaced=0,
                previous=tuple(key for key in record.previous if str(key) != s.adopt),
            ), "somebody has named it")
        case Phase.WANTED:
            return waiting or _announce(s)
        case Phase.UNKNOWN if s.is_retry:
            return Write(
                dataclasses.replace(record, phase=Phase.WANTED, key=None), "somebody says so")
        case Phase.UNKNOWN if record.is_hearsay and s.observed is UNSEEN and s.is_due:
            return Call('observe', record.key)  # it can have been asked in vain before
        case Phase.UNKNOWN if record.is_hearsay and s.observed not in (UNSEEN, None):
            return Write(dataclasses.replace(record, phase=Phase.KNOWN), "it is there now")
        case Phase.UNKNOWN:
            return Rest(None, MAY_EXIST, f"It {record.doubt}.")


def _announce(s: Situation) -> Step:
    """Store that the thing is going to be created: nothing but this allows to do so."""
    record = s.record
    return Write(dataclasses.replace(
        record, phase=Phase.CREATING, token=record.token or s.token, attempt=record.attempt + 1,
        since=s.now), "it is going to be created")


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
    last = s.ended or (record.since or s.now) + datetime.timedelta(seconds=can.timeout)
    quiet = last + datetime.timedelta(seconds=can.consistency)
    if s.found is UNSEEN and (s.now >= quiet or not s.is_searched):
        return Call('find')
    if s.found is not UNSEEN and s.found is not None:
        return Write(know(record, s.found, s.now), "it is found")
    if s.now < quiet:
        return Rest(None, 'Searching', "It is not found, but it could still appear.", quiet)
    if s.is_deleting:
        return Write(dataclasses.replace(record, phase=Phase.WANTED), "it was never created")
    return _announce(s)


def know(record: Record, key: Key, now: datetime.datetime, digest: str | None = None) -> Record:
    """Make the record of a thing whose key has become known."""
    return dataclasses.replace(record, phase=Phase.KNOWN, key=key, since=now, synced=digest)


def _erase(s: Situation) -> Step:
    """Delete a thing until the system says that it is gone."""
    record, key = s.record, s.record.subject
    if key is None:  # an object can be restored with the record of its deletion
        return Release() if s.is_deleting else Write(
            Record(adopted=record.adopted), "nothing is left of what was deleted")
    is_hearsay = key == record.adopted and record.synced is None
    if not s.is_erased and (not is_hearsay or s.observed not in (UNSEEN, None)):
        return Call('delete', key)
    if s.observed is UNSEEN:
        return Call('observe', key)
    if s.observed is not None:
        return REMAINS
    left = record.drop(key)
    return _settle(s) or (
        Release() if s.is_deleting and not left.keys else Write(left, f"{key} is gone"))


def _settle(s: Situation) -> Rest | None:
    """Wait as long as the system can deny what it has created."""
    since = s.record.since
    known = s.now if since is None else since + datetime.timedelta(seconds=s.can.consistency)
    return SETTLING._replace(until=known) if s.now < known else None


def _keep(s: Situation) -> Step:
    """Keep a thing as it should be."""
    record, can = s.record, s.can
    is_new = record.synced != s.digest  # it has not got yet what is desired
    if s.observed is UNSEEN:
        return Call('observe', record.key) if s.is_due else UNOBSERVED if is_new else SYNCED
    if s.observed is None:
        return _settle(s) or _miss(s)
    found = compare(s.observed, s.desired)
    if not found or s.updated == s.digest:
        if is_new or (not found and record.replaced):
            return Write(dataclasses.replace(
                record, synced=s.digest, replaced=record.replaced if found else 0,
            ), "it is as it should be")
        return SETTLING if found else SYNCED
    names = name_fields(found)
    if any(item.field[:len(path)] == path[:len(item.field)]
           for item in found for path in can.immutable):
        if record.replaced >= MAX_REPLACED and not is_new:  # the next one would also differ
            return Rest(False, 'Immutable', f"This still differs after {MAX_REPLACED} replacements:"
                        f" {names}. Either create does not set it, or desired and observe return "
                        f"it in different forms.")
        if can.replaces and (can.corrects or is_new):
            return Write(
                Record(previous=record.keys, adopted=record.adopted, since=record.since,
                       replaced=1 if is_new else record.replaced + 1),
                f"it is to be replaced, as {names} cannot be changed")
        return Rest(False, 'Immutable', f"This cannot be changed: {names}.")
    if not can.updates or not (can.corrects or is_new):
        return Rest(False, 'Drifted', f"This differs: {names}.")
    return Call('update', record.key, found)


def _miss(s: Situation) -> Step:
    """Create another thing instead of one that is gone, unless people can be wrong about it."""
    record = s.record
    if record.is_hearsay:  # e.g. the key was misspelt
        return Write(
            dataclasses.replace(record, phase=Phase.UNKNOWN), "what was adopted is not there")
    if s.can.corrects or record.synced != s.digest:  # or the object was changed
        return Write(Record(adopted=record.adopted), "it is gone, though it is wanted")
    return MISSING


def name_fields(found: diffs.Diff) -> str:
    return ', '.join('.'.join(map(str, item.field)) for item in found)


def compare(observed: Any, desired: Any) -> diffs.Diff:
    """Compare the observed state with the desired one, only in the fields that the latter has."""
    return diffs.diff(restrict(observed, desired), desired)


def restrict(observed: Any, desired: Any) -> Any:
    """Take only the fields that are desired, in the form of what is desired."""
    if isinstance(observed, Mapping) and isinstance(desired, Mapping):
        return {key: restrict(observed.get(key), val) for key, val in desired.items()}
    if observed is None:
        return desired if _is_absent(desired) else None
    if isinstance(observed, str | int | float):
        return observed
    try:
        return json.loads(encode(observed))
    except (TypeError, ValueError, RecursionError):
        return observed


def _is_absent(desired: Any) -> bool:
    """Whether nothing is desired but that fields are absent."""
    return desired is None or (
        isinstance(desired, Mapping) and bool(desired) and all(map(_is_absent, desired.values())))


encode = json.JSONEncoder(sort_keys=True, allow_nan=False, default=forms.to_json).encode
"""Encode what is desired. Tuples, times, and models of clients have the forms that JSON has."""
