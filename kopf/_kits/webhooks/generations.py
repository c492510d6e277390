"""
Generations: the certificates that the replicas of an operator share in a Secret, and what is next.

A generation is a self-signed certificate with its key, and is its own authority. The Secret has the
generation that is served (``tls.crt``, ``tls.key``); the next one, when it is announced
(``next.crt``, ``next.key``); and the certificate of the old one, until nobody serves it any more
(``old.crt``). API servers must trust all of them. Each replica reports in an annotation which one
it serves. Nothing else needs to be known to go on after a restart.

A Secret of the type ``kubernetes.io/tls`` is kept by others, e.g. by cert-manager. It is only read.

Everything in this module is a pure function of its arguments.
"""
import base64
import dataclasses
import datetime
import enum
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kopf._kits.webhooks import certificates

FOREIGN_TYPE = 'kubernetes.io/tls'

PREFIX = 'webhooks.kopf.dev/replica-'
"""The beginning of the names of the annotations with the reports."""

LAST_PART = 10
"""When only this part (a tenth) of the life is left, all replicas do what the writer has not."""

MAX_JITTER = 20
"""The renewal is earlier by up to this part (a twentieth) of the life, differently per Secret."""


FIRST = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
LAST = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)
"""Times to calculate with where there are none, or none that make sense."""


class Do(enum.Enum):
    """The kinds of steps."""
    CREATE = "put the first generation into the Secret"
    LOAD = "serve what the Secret has"
    REPORT = "report what is served"
    ANNOUNCE = "add the next generation"
    SWITCH = "make the next generation the served one"
    RETIRE = "remove the old generation"
    WAIT = "do nothing until the time, or until something changes"


@dataclasses.dataclass(frozen=True)
class Step:
    """What to do now."""
    do: Do
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Times:
    """The durations of a rotation."""
    life: datetime.timedelta = datetime.timedelta(days=90)
    """How long a certificate is valid. It is renewed at two thirds of this time."""
    settling: datetime.timedelta = datetime.timedelta(minutes=1)
    """How long API servers can take to trust what is written in the webhook configurations."""
    report: datetime.timedelta = datetime.timedelta(hours=1)
    """How often replicas report, and the configurations are written again."""
    silence: datetime.timedelta = datetime.timedelta(hours=3)
    """After which time a report counts no more. The clocks of replicas can be an hour apart."""


@dataclasses.dataclass(frozen=True, repr=False)
class Generation:
    """A certificate, and its key if it is known. For those of others, the times are not read."""
    certificate: bytes
    key: bytes
    names: frozenset[str] = frozenset()
    until: datetime.datetime = LAST

    @property
    def id(self) -> str:
        return hashlib.sha256(self.certificate).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Report:
    """Which generation a replica serves, and when it has said so by its own clock."""
    serves: str
    at: datetime.datetime


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Store:
    """The content of the Secret. What is absent or damaged is None."""
    uid: str
    version: str
    is_foreign: bool = False
    authority: bytes | None = None
    """The certificate that signs the served one, if others keep the Secret."""
    current: Generation | None = None
    next: Generation | None = None
    old: Generation | None = None
    reports: Mapping[str, Report] = dataclasses.field(default_factory=dict)

    @property
    def authorities(self) -> list[bytes]:
        """The certificates that API servers must trust, in a stable order."""
        if self.is_foreign:
            return [] if self.authority is None else [self.authority]
        known = (self.current, self.next, self.old)
        return sorted({each.certificate for each in known if each is not None})


@dataclasses.dataclass(kw_only=True)
class Replica:
    """What a replica knows of itself."""
    id: str
    names: frozenset[str]
    """The names and addresses by which API servers reach it."""
    address: frozenset[str] = frozenset()
    """The one of them in the webhook configurations; empty if no certificate can have it."""
    serves: str | None = None
    """The id of the generation that it serves; None before the first one."""
    serves_since: datetime.datetime | None = None
    is_writer: bool = False
    placed: bytes = b''
    """What it has written as the authorities into all configurations, as far as it has."""
    placed_at: datetime.datetime | None = None
    changed_at: datetime.datetime | None = None
    """When it has seen that others have changed the served certificate."""
    is_guest: bool = False
    """Whether others keep the Secret, as far as it has seen last."""


def is_late(store: Store, *, now: datetime.datetime, times: Times) -> bool:
    """Whether so little time is left that all replicas must care for the rotation."""
    return any(each.until - now < times.life / LAST_PART
               for each in (store.current, store.old) if each is not None)


def get_renewal(store: Store, current: Generation, *, times: Times) -> datetime.datetime:
    """Get when replicas renew the certificate: at two thirds of its life, or some days before."""
    share = int(hashlib.sha256(store.uid.encode()).hexdigest()[:8], 16) / 2 ** 32
    return current.until - times.life / 3 - times.life / MAX_JITTER * share


def decide(store: Store | None, me: Replica, *, now: datetime.datetime, times: Times) -> Step:
    """
    Decide what this replica does next, by the content of the Secret (None if it is absent).

    Steps that write to the Secret presume that it has not changed since.
    """
    if store is None:
        return Step(Do.WAIT if me.is_guest else Do.CREATE)  # others issue it again
    current = store.current
    if store.is_foreign:
        if current is None or me.serves == current.id:
            return Step(Do.WAIT)
        ready = None if me.changed_at is None else me.changed_at + times.settling
        return Step(Do.WAIT, ready) if me.serves and ready and now < ready else Step(Do.LOAD)
    if current is None:
        return Step(Do.CREATE)
    if me.serves != current.id:
        return Step(Do.LOAD)
    mine = store.reports.get(me.id)
    if mine is None or mine.serves != me.serves or abs(now - mine.at) >= times.report:
        return Step(Do.REPORT)
    again = mine.at + times.report
    if not me.is_writer and not is_late(store, now=now, times=times):
        return Step(Do.WAIT, min(again, current.until - times.life / LAST_PART))
    if store.next is not None and now < store.next.until:
        ready = _get_readiness(store.next, me, times)
        if ready is not None and not me.address <= current.names:
            return Step(Do.SWITCH)  # until then, the API servers refuse the served certificate
        if now >= min(ready or current.until, current.until):
            return Step(Do.SWITCH)
        return Step(Do.WAIT, min(again, ready or current.until))
    if store.old is not None and now < current.until:
        ready = _get_retirement(store, store.old, current, me, now, times)
        return Step(Do.RETIRE) if now >= ready else Step(Do.WAIT, min(again, ready))
    renewal = get_renewal(store, current, times=times)
    if now >= renewal or not me.names <= current.names:
        return Step(Do.ANNOUNCE)
    return Step(Do.WAIT, min(again, renewal))


def _get_readiness(generation: Generation, me: Replica, times: Times) -> datetime.datetime | None:
    """Get when all API servers trust the generation; None if that is not known."""
    if me.placed_at is None or generation.certificate.strip() not in me.placed:
        return None
    return me.placed_at + times.settling


def _get_retirement(
        store: Store, old: Generation, current: Generation, me: Replica, now: datetime.datetime,
        times: Times,
) -> datetime.datetime:
    """
    Get when the old generation can be retired, as far as that is known now.

    The settling time is for replicas that have just started with the old one.
    """
    if _get_readiness(current, me, times) is None:
        return LAST
    ends = [report.at + times.silence
            for report in store.reports.values() if report.serves != current.id]
    return min(old.until, max([(me.serves_since or now) + times.settling, *ends]))


def parse(raw: Mapping[str, Any], *, now: datetime.datetime) -> Store:
    """
    Parse the Secret. What is damaged counts as absent, and what is not valid yet, as expired.

    :raises MissingLibraryError: if the library ``cryptography`` is not installed.
    """
    metadata = raw['metadata']
    data: dict[str, bytes] = {}
    for key, value in (raw.get('data') or {}).items():
        try:
            data[key] = base64.b64decode(value, validate=True)
        except (TypeError, ValueError):
            pass
    uid, version = metadata.get('uid') or '', metadata.get('resourceVersion') or ''
    if raw.get('type') == FOREIGN_TYPE:
        certificate, key = data.get('tls.crt'), data.get('tls.key')
        return Store(
            uid=uid, version=version, is_foreign=True, authority=data.get('ca.crt') or None,
            current=Generation(certificate, key) if certificate and key else None)
    reports: dict[str, Report] = {}
    for key, text in (metadata.get('annotations') or {}).items():
        if key.startswith(PREFIX):
            try:
                value = json.loads(text)
                at = datetime.datetime.fromisoformat(value['at']).astimezone(datetime.UTC)
                report = Report(str(value['serves']), min(at, LAST))
            except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
                report = Report('', FIRST)
            reports[key.removeprefix(PREFIX)] = report
    return Store(
        uid=uid, version=version, reports=reports,
        current=_parse_generation(data, 'tls', now), next=_parse_generation(data, 'next', now),
        old=_parse_generation(data, 'old', now, has_key=False))


def _parse_generation(
        data: Mapping[str, bytes], name: str, now: datetime.datetime, *, has_key: bool = True,
) -> Generation | None:
    pem, key = data.get(f'{name}.crt'), data.get(f'{name}.key', b'')
    if not pem or not (key or not has_key):
        return None
    try:
        names, since, until = certificates.read(pem, key if has_key else None)
    except ValueError:
        return None
    return Generation(pem, key, names, until if since <= now else min(until, now))


def make_data(do: Do, store: Store | None, fresh: Generation | None) -> Mapping[str, str | None]:
    """
    Make the changed ``data`` of the Secret for a step that writes to it.

    ``fresh`` is the generation to create or to announce; the other steps need none.
    """
    match do, store, fresh:
        case Do.CREATE, _, Generation():
            return {'tls.crt': _encode(fresh.certificate), 'tls.key': _encode(fresh.key)}
        case Do.ANNOUNCE, _, Generation():
            return {'next.crt': _encode(fresh.certificate), 'next.key': _encode(fresh.key)}
        case Do.SWITCH, Store(current=Generation() as current, next=Generation() as next), _:
            return {
                'old.crt': _encode(current.certificate),
                'tls.crt': _encode(next.certificate), 'tls.key': _encode(next.key),
                'next.crt': None, 'next.key': None}
        case _:
            return {'old.crt': None}


def make_report(
        store: Store, me: Replica, title: str, *, now: datetime.datetime, times: Times,
) -> Mapping[str, str | None]:
    """Make the changed annotations for a report. The title is for people. Old reports go."""
    report = {'serves': me.serves, 'at': now.isoformat(timespec='seconds'), 'replica': title}
    gone = [id_ for id_, each in store.reports.items() if now - each.at >= times.silence]
    return {**{f'{PREFIX}{id_}': None for id_ in gone}, f'{PREFIX}{me.id}': json.dumps(report)}


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
