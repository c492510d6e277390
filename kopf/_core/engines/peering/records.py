"""
Records: what operators write about themselves into the status of a peering object.

The status is a mapping of identities to records; the fields are those of earlier versions, which
meet in the same objects: ``priority``, ``lifetime`` (seconds), ``lastseen`` (ISO 8601). A record of
``kopf freeze`` can have a ``message`` for people. That of a frozen operator has ``paused``: whether
all that was under way has ended; earlier versions neither write nor mind it.
"""
import dataclasses
import datetime
import getpass
import os
import random
import string
from collections.abc import Mapping
from typing import Any

from kopf._cogs.helpers import hostnames
from kopf._cogs.structs import references

GROUPS = ('kopf.dev', 'kopf.zalando.org', 'zalando.org')
"""The API groups of peering objects: the current one, and the former ones."""

DEFAULT_LIFETIME = 60


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Peer:
    """An operator as its record tells of it."""
    identity: str
    priority: int = 0
    lifetime: float = DEFAULT_LIFETIME
    """For how long (seconds) it is alive after a sign of life."""
    lastseen: datetime.datetime | None = None
    """The last sign of life by its own clock."""
    message: str | None = None
    """Why the others have to wait, for people."""
    paused: bool | None = None
    """False if it is frozen, and finishes what is under way; true if it does nothing any more."""

    def __repr__(self) -> str:
        lastseen = None if self.lastseen is None else self.lastseen.isoformat()
        message = '' if self.message is None else f', message={self.message!r}'
        return (f'<Peer {self.identity}: priority={self.priority}, lifetime={self.lifetime}, '
                f'lastseen={lastseen!r}{message}>')

    def as_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {'priority': self.priority, 'lifetime': self.lifetime}
        if self.lastseen is not None:
            record['lastseen'] = self.lastseen.isoformat(timespec='microseconds')
        if self.message is not None:
            record['message'] = self.message
        if self.paused is not None:
            record['paused'] = self.paused
        return record


def parse_peers(status: Any) -> Mapping[str, Peer]:
    """Those whose records make sense. Everything else in the status is left alone."""
    if not isinstance(status, Mapping):
        return {}
    parsed = {identity: _parse(identity, record) for identity, record in status.items()}
    return {identity: peer for identity, peer in parsed.items() if peer is not None}


def _parse(identity: str, record: Any) -> Peer | None:
    if not isinstance(record, Mapping) or not record.keys() & {'priority', 'lastseen'}:
        return None
    try:
        lastseen = record.get('lastseen')
        lastseen = None if lastseen is None else datetime.datetime.fromisoformat(lastseen)
        if lastseen is not None and lastseen.tzinfo is None:
            lastseen = lastseen.replace(tzinfo=datetime.UTC)
        lifetime = record.get('lifetime', DEFAULT_LIFETIME)
        message = record.get('message')
        paused = record.get('paused')
        return Peer(
            identity=identity,
            priority=int(record.get('priority', 0)),
            lifetime=lifetime if isinstance(lifetime, int) else float(lifetime),
            lastseen=lastseen,
            message=None if message is None else str(message),
            paused=paused if isinstance(paused, bool) else None,
        )
    except (TypeError, ValueError, OverflowError):
        return None


def make_identity(*, unique: bool = True) -> str:
    """
    How an operator is called: in a pod by ``$POD_ID`` if it is set, else by the user and the host.

    Unless it is unique, it is the same for all operators of the user on the host.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # e.g. in containers
        user = str(os.getuid()) if hasattr(os, 'getuid') else 'kopf'
    name = f'{user}@{hostnames.get_descriptive_hostname()}'
    if not unique:
        return name
    if os.environ.get('POD_ID'):
        return os.environ['POD_ID']
    now = datetime.datetime.now(datetime.UTC)
    suffix = ''.join(random.choices(string.ascii_lowercase + string.digits, k=3))
    return f'{name}/{now:%Y%m%d%H%M%S}/{suffix}'


def is_peering(resource: references.Resource, *, clusterwide: bool) -> bool:
    """Whether these are the objects in which such operators meet."""
    plural = 'clusterkopfpeerings' if clusterwide else 'kopfpeerings'
    return (resource.group in GROUPS and resource.plural == plural
            and resource.namespaced is not clusterwide and resource.preferred)
