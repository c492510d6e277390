"""
Managers of fields: the entries of ``managedFields``, and what they own.
"""
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopf._kits.sandbox.applying import fieldsets

MAX_UPDATERS = 10
ANCIENT = 'ancient-changes'


@dataclass(frozen=True, slots=True)
class Manager:
    """Who owns fields. Appliers are the same in all versions: theirs is the last one used."""
    name: str
    operation: str = 'Update'
    subresource: str = ''
    api_version: str = ''

    @property
    def shown(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f'{text} using {self.api_version}' if self.operation == 'Update' else text


class Managers:
    """
    The managers of one object, decoded from its metadata, to be encoded into it again.

    Those that were encoded here before are ``trusted`` to be well-formed.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]] = (), *, trusted: bool = False) -> None:
        self.fields: dict[Manager, fieldsets.FieldSet] = {}
        self.times: dict[Manager, str] = {}
        self._versions: dict[Manager, str] = {}
        for entry in entries:
            self._decode(entry, trusted)

    def _decode(self, entry: Mapping[str, Any], trusted: bool) -> None:
        """Raises `fieldsets.Malformed`."""
        operation = entry.get('operation')
        if operation not in ('Apply', 'Update') or entry.get('fieldsType') != 'FieldsV1':
            raise fieldsets.Malformed
        version = entry.get('apiVersion') or ''
        manager = Manager(
            entry.get('manager') or '', operation, entry.get('subresource') or '',
            version if operation == 'Update' else '')
        fields = entry.get('fieldsV1') or {}
        self.own(manager, fields if trusted else fieldsets.parse(fields), version)
        if entry.get('time'):
            self.times[manager] = entry['time']

    def __bool__(self) -> bool:
        return bool(self.fields)

    def others(self, manager: Manager | None) -> Iterator[tuple[Manager, fieldsets.FieldSet]]:
        return ((other, fields) for other, fields in self.fields.items() if other != manager)

    def own(self, manager: Manager, fields: fieldsets.FieldSet, version: str) -> None:
        self.fields[manager] = fields
        self._versions[manager] = version

    def release(self, fields: fieldsets.FieldSet, besides: Manager | None = None) -> None:
        """Take fields from everybody; those who own nothing any more are forgotten."""
        if not fields:
            return
        for manager, owned in list(self.others(besides)):
            rest = fieldsets.subtract(owned, fields)
            if rest:
                self.fields[manager] = rest
            else:
                del self.fields[manager]

    def cap(self) -> None:
        """Too many updaters: the oldest ones become one."""
        updaters = [manager for manager in self.fields if manager.operation == 'Update']
        if len(updaters) <= MAX_UPDATERS:
            return
        updaters.sort(key=lambda manager: _order(self.encode_one(manager)))
        for oldest in updaters[:len(updaters) - MAX_UPDATERS + 1]:
            version, time = oldest.api_version, self.times.pop(oldest, '')
            bucket = Manager(ANCIENT, 'Update', '', version)
            known = self.fields.get(bucket, fieldsets.EMPTY)
            self.own(bucket, fieldsets.unite(known, self.fields[oldest]), version)
            if oldest != bucket:
                del self.fields[oldest]
            self.times[bucket] = max(time, self.times.get(bucket, ''))

    def encode(self) -> list[dict[str, Any]]:
        entries = [self.encode_one(manager) for manager in self.fields]
        return entries if len(entries) < 2 else sorted(entries, key=_order)

    def encode_one(self, manager: Manager) -> dict[str, Any]:
        entry: dict[str, Any] = {
            'manager': manager.name,
            'operation': manager.operation,
            'apiVersion': self._versions[manager],
        }
        if manager in self.times:
            entry['time'] = self.times[manager]
        entry['fieldsType'] = 'FieldsV1'
        entry['fieldsV1'] = fieldsets.arrange(self.fields[manager])
        if manager.subresource:
            entry['subresource'] = manager.subresource
        return entry


def _order(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (entry['operation'], entry.get('time', '')[:19], entry['manager'],
            entry['apiVersion'], entry.get('subresource', ''))


def is_reset(entries: Any) -> bool:
    """Whether a client asks to forget all managers: by a list of one empty entry."""
    return isinstance(entries, list) and len(entries) == 1 and not any(
        value for value in (entries[0] or {}).values())
