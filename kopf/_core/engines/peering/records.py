"""
Records: what operators write about themselves into the status of a peering object.

The status is a mapping of identities to records. The format is that of earlier versions of Kopf:
operators of different versions can share a peering. A record has these fields:

* ``priority``: a number; the highest one works.
* ``lifetime``: for how long (seconds) the record is valid after ``lastseen``.
* ``lastseen``: the time of the last renewal, in ISO 8601.
* ``message``: a text for people; only in the records of ``kopf freeze``.
* ``paused``: only in the records of paused operators: true if everything that was under way has
  ended, else false. Earlier versions neither write nor read this field.
"""
import dataclasses
import datetime
import getpass
import math
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

MAX_LIFETIME = 100 * 365 * 24 * 60 * 60
"""
Longer lifetimes (seconds) are cut to this one, so that they do not overflow when calculated with.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Peer:
    """A record: what an operator says about itself."""
    identity: str
    priority: int = 0
    lifetime: float = DEFAULT_LIFETIME
    """For how long (seconds) the operator counts as alive after each renewal."""
    lastseen: datetime.datetime | None = None
    """The time of the last renewal by the clock of the operator."""
    message: str | None = None
    """Why the others have to pause, for people."""
    paused: bool | None = None
    """
    None if the operator is not paused; false if it is paused but some handlers are under way; true
    if it is paused and nothing is under way.
    """

    def __repr__(self) -> str:
        lastseen = None if self.lastseen is None else self.lastseen.isoformat()
        message = '' if self.message is None else f', message={self.message!r}'
        return (f'<Peer {self.identity}: priority={self.priority}, lifetime={self.lifetime}, '
                f'lastseen={lastseen!r}{message}>')

    def as_record(self) -> dict[str, Any]:
        lastseen = self.lastseen
        record = {
            'priority': self.priority, 'lifetime': self.lifetime,
            'lastseen': None if lastseen is None else lastseen.isoformat(timespec='microseconds'),
            'message': self.message, 'paused': self.paused}
        return {field: value for field, value in record.items() if value is not None}


def parse_peers(status: Any) -> dict[str, Peer]:
    """Parse the records of a peering object by identities. What is no proper record is ignored."""
    if not isinstance(status, Mapping):
        return {}
    parsed = {identity: _parse(identity, record) for identity, record in status.items()}
    return {identity: peer for identity, peer in parsed.items() if peer is not None}


def _parse(identity: str, record: Any) -> Peer | None:
    if not isinstance(record, Mapping) or not record.keys() & {'priority', 'lastseen'}:
        return None
    import iso8601  # only if there are peers
    try:
        lastseen = record.get('lastseen')
        lastseen = None if lastseen is None else iso8601.parse_date(lastseen)
        message = record.get('message')
        paused = record.get('paused')
        return Peer(
            identity=identity,
            priority=int(record.get('priority', 0)),
            lifetime=_parse_lifetime(record.get('lifetime', DEFAULT_LIFETIME)),
            lastseen=lastseen,
            message=None if message is None else str(message),
            paused=paused if isinstance(paused, bool) else None,
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_lifetime(value: Any) -> float:
    seconds: float = value if isinstance(value, int) else float(value)
    if isinstance(seconds, float) and math.isnan(seconds):
        raise ValueError("It is not a number.")
    return max(0, min(seconds, MAX_LIFETIME))


def make_identity(*, unique: bool = True) -> str:
    """
    Make the name of an operator in a peering.

    A unique identity is ``$POD_ID`` if it is set, else made of the user, the host, the time, and
    random letters. Otherwise, the identity is made of the user and the host alone: ``kopf resume``
    must use the same one as ``kopf freeze`` before.
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
    """
    Whether this is a resource of peering objects, for cluster-wide or for namespaced operators.
    """
    plural = 'clusterkopfpeerings' if clusterwide else 'kopfpeerings'
    return (resource.group in GROUPS and resource.plural == plural
            and resource.namespaced is not clusterwide and resource.preferred)
