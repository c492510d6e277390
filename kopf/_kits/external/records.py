"""
The record of an external on its object: what is known, and what could have happened. It is pure.

It is on the object before it matters: a token before the first call that creates with this token,
and a key before anything is done with the key.
"""
import dataclasses
import datetime
import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kopf._cogs.configs import conventions
from kopf._cogs.structs import dicts
from kopf._core.actions import finalizers

PREFIX = 'external.kopf.dev'
"""The prefix of the annotations. It is marked as Kopf's, so no handler of changes sees them."""

Key = str | int | float
"""What identifies a thing in its system."""


class Phase(enum.StrEnum):
    """How far a thing is."""

    WANTED = 'wanted'
    """It does not exist, and no call to create it is under way."""

    CREATING = 'creating'
    """A call to create it can be under way, or was; its result is not known here."""

    UNKNOWN = 'unknown'
    """It may exist. Nobody can tell but people."""

    KNOWN = 'known'
    """It exists, as far as is known, and this is its key."""

    DELETING = 'deleting'
    """It can be deleted already."""


TEXTS = {
    Phase.WANTED: "it is not created yet",
    Phase.CREATING: "a call to create it was announced with the token {record.token}, attempt "
                    "{record.attempt}, and its result is not known",
    Phase.UNKNOWN: "it {record.doubt}: look, and use `kopf external adopt` or `kopf external "
                   "retry`",
    Phase.KNOWN: "it exists by the key {record.key}",
    Phase.DELETING: "it is being deleted: {keys}",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What is stored of a thing."""
    phase: Phase = Phase.WANTED
    token: str | None = None
    """What the calls that create this thing have in common; another thing has another token."""
    key: Key | None = None
    attempt: int = 0
    """How many calls that create it were announced."""
    by: str | None = None
    """Which process has announced the last one."""
    since: datetime.datetime | None = None
    """When the last such call was announced, or when the key became known."""
    previous: tuple[Key, ...] = ()
    """The things that this one replaces, and that the operator still has to delete."""
    adopted: Key | None = None
    """The key of the annotation that was followed, so that it is not followed twice."""
    synced: str | None = None
    """The digest of the desired state that the thing has got."""
    replaced: int = 0
    """How many things were replaced in a row for what is desired, and were never like that."""
    of: str | None = None
    """The name of the object, with its namespace: a copy of the object has another thing."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """All things that are known to exist."""
        return self.previous if self.key is None else (*self.previous, self.key)

    @property
    def subject(self) -> Key | None:
        """The thing that is looked at first: the older ones are deleted before."""
        return self.previous[0] if self.previous else self.key

    @property
    def is_hearsay(self) -> bool:
        """Whether only people have said that there is the thing with this key."""
        return not self.previous and self.synced is None and (
            self.key is not None and self.key == self.adopted)

    @property
    def doubt(self) -> str:
        """What makes people be asked, in the phase `UNKNOWN`."""
        if self.token is not None:
            return f"may exist by the token {self.token}"
        if self.adopted is not None:
            return f"was adopted by the key {self.adopted}, which the system does not have"
        place = "" if self.key is None else f" by the key {self.key}"
        return f"may exist{place}, and its record was removed while no operator ran"

    def drop(self, key: Key) -> 'Record':
        """Forget a thing that is gone."""
        return dataclasses.replace(
            self, previous=tuple(other for other in self.previous if other != key),
            key=None if self.key == key else self.key)

    def describe(self) -> str:
        """Describe in words what is known."""
        text = TEXTS[self.phase].format(record=self, keys=', '.join(map(str, self.keys)) or 'done')
        if self.previous and self.phase is not Phase.DELETING:
            text += f"; to be deleted: {', '.join(map(str, self.previous))}"
        return text

    def encode(self) -> str:
        fields = {
            field.name: value for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name == 'phase'}
        return json.dumps(fields, separators=(',', ':'), default=lambda time: time.isoformat(
            timespec='milliseconds'))


_TYPES: Mapping[str, Any] = {
    'phase': str, 'attempt': int, 'replaced': int, 'since': str, 'previous': list,
    **dict.fromkeys(('key', 'adopted'), Key | None),
    **dict.fromkeys(('token', 'by', 'synced', 'of'), str | None)}
"""The types of the encoded fields: people can edit them."""


def decode(text: str) -> Record:
    """:raises ValueError: if the record is not readable."""
    try:
        fields: dict[str, Any] = json.loads(text)
        if not all(isinstance(value, _TYPES[name]) for name, value in fields.items()):
            raise TypeError
        fields['phase'] = Phase(fields['phase'])
        fields['previous'] = tuple(fields.get('previous', ()))
        if 'since' in fields:
            since = datetime.datetime.fromisoformat(fields['since'])
            fields['since'] = since.astimezone(datetime.UTC)
        return Record(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ValueError(f"The record of an external system is not readable: {text!r}") from e


def read(raw: Mapping[str, Any], id: str) -> Record | None:
    """
    Read the record of an external on an object; None if there is none of this object.

    A copy of an object has all annotations of the other one: what that one was told to adopt does
    not count for the copy.

    :raises ValueError: if the record is not readable.
    """
    text = conventions.get_annotations(raw).get(make_name(id))
    record = None if text is None else decode(text)
    if record is None or record.of in (None, name_object(raw)):
        return record
    return None if record.adopted is None else Record(adopted=record.adopted)


def recover(raw: Mapping[str, Any], id: str) -> Record | None:
    """Conclude from the status that there was a record, which nobody remembers; None if not."""
    shown = dicts.resolve(raw, ('status', id), None)
    if (make_name(id) in conventions.get_annotations(raw) or finalizers.is_deleting(raw)
            or not isinstance(shown, Mapping)
            or shown.get('phase') not in (
                Phase.CREATING, Phase.UNKNOWN, Phase.KNOWN, Phase.DELETING)):
        return None
    key = shown.get('key')
    return Record(phase=Phase.UNKNOWN, key=key if isinstance(key, Key) else None)


def name_object(raw: Mapping[str, Any]) -> str:
    """Name an object within its kind."""
    metadata = raw['metadata']
    return '/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))


def find_contradiction(
        raw: Mapping[str, Any], id: str, key: str | None, *, is_new: bool = False,
) -> str | None:
    """
    Say why people cannot be right that a thing has this key, or (for None) that a call has created
    nothing; None if they can. Unless the external ``is_new``, its id must be one of the records, if
    there are any.
    """
    try:
        record = read(raw, id)
    except ValueError as e:
        return str(e)
    if key is not None and not key.strip():
        return "The key is empty"
    known = ', '.join(sorted(name.removeprefix(make_name('')) for name in list_names(raw)))
    if record is None and (key is None or (known and not is_new)):
        hint = "" if key is None else ". For an external that is not declared yet, add --new"
        return f"There is no record of {id!r}" + (f", but of: {known}{hint}" if known else "")
    if record is not None and record.phase is not Phase.UNKNOWN and (
            key is None or (record.key is not None and str(record.key) != key)):
        return f"This cannot be, as {record.describe()}"
    return None


def list_names(raw: Mapping[str, Any]) -> set[str]:
    """List the names of the annotations with records on an object."""
    return {name for name in conventions.get_annotations(raw) if name != MARK
            and name.startswith(f'{PREFIX}/') and '.' not in name.removeprefix(f'{PREFIX}/')}


def list_strange(raw: Mapping[str, Any], ids: Iterable[str]) -> list[str]:
    """List the names of the annotations with records of others than these externals."""
    return sorted(list_names(raw).difference(map(make_name, ids)))


def make_name(id: str, suffix: str = '') -> str:
    """Make the name of an annotation: of the record, or, with a suffix, of what people ask for."""
    return f'{PREFIX}/{id}{suffix}'


ADOPT = '.adopt'
RETRY = '.retry'
MARK = make_name('kopf-managed')
