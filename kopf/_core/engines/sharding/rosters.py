"""
Rosters: who is there and who holds what, as read from the Leases. All times are arguments.

The *scheme* is how the objects are divided into shards. Replicas with different schemes must not
work at once, e.g. while the number of shards changes by a rolling update. One more Lease has the
scheme in force.
"""
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.structs import leases

LABEL = 'kopf.dev/sharding'
"""The label of all Leases of a sharded operator, with its name."""

ROLE = 'kopf.dev/sharding-role'
"""The label that tells what a Lease is for: a member, a shard, or the scheme."""

SCHEME = 'kopf.dev/sharding-scheme'
"""The label with the scheme of a member, or of a shard when it got its holder."""

SHARD = 'kopf.dev/shard'
"""The label with the number of a shard."""


@dataclasses.dataclass(frozen=True)
class Group:
    """What the replicas of a sharded operator have in common, and who this one is."""
    name: str
    namespace: str
    count: int
    by: str
    """What the shards are by: ``uid``, ``own-uid``, ``namespace``, or ``custom``."""
    me: str
    """The unique id of this member."""
    duration: int
    """For how long (seconds) a membership is valid without a renewal."""
    deadline: float
    """For how long (seconds) a member works without a renewal."""

    @property
    def scheme(self) -> str:
        return f'{self.count}-{self.by}'

    def name_member(self, member: str) -> str:
        """Make the name of the Lease of a member, whose id can have any characters."""
        return f'{self.name}-{_digest(member)}'

    def name_shard(self, shard: int) -> str:
        return f'{self.name}-shard-{shard}'

    @functools.cached_property
    def shards(self) -> tuple[str, ...]:
        """The names of the Leases of all shards."""
        return tuple(map(self.name_shard, range(self.count)))


@functools.cache
def _digest(member: str) -> str:
    return hashlib.sha256(member.encode(errors='surrogatepass')).hexdigest()[:16]


Roster = Mapping[str, leases.Sighting]
"""The Leases by their names; also missing ones, if their absence matters."""


@dataclasses.dataclass(frozen=True)
class View:
    """What the Leases say at some moment."""
    members: tuple[str, ...]
    """The ids of the members of this scheme that count as alive, in order; this one included."""
    holders: tuple[str, ...]
    """The holders of the shards; empty for those that are free."""
    is_doubtful: bool
    """Whether any member is late, so that it can soon count as dead."""
    others: tuple[str, ...]
    """The members of other schemes that count as alive."""
    leftovers: tuple[str, ...]
    """The names of Leases that nobody needs any more."""


def see(known: Roster, listed: Iterable[Mapping[str, Any]], *, group: Group, now: float) -> Roster:
    """
    Take a new list of the Leases. Only changes of their records count.

    ``now`` is when the list has arrived.
    """
    seen: dict[str, leases.Sighting] = {}
    for raw in listed:
        name = raw['metadata']['name']
        seen[name] = leases.see(known.get(name), raw, now=now)
    needed = _find_holders(seen, group).union(name for name in group.shards if name in known)
    for name in needed - seen.keys():
        former = known.get(name)
        seen[name] = (former if former is not None and former.raw is None
                      else leases.Sighting(None, now))
    return seen


def _find_holders(seen: Roster, group: Group) -> set[str]:
    """Find the names of the memberships of all holders of shards."""
    return {group.name_member(item.holder) for item in seen.values()
            if item.labels.get(ROLE) == 'shard' and item.holder}


def assess(seen: Roster, *, group: Group, now: float) -> View:
    """
    Find out who is alive and who holds what.

    ``now`` is when the last list was requested: the list shows what was there then or later.
    """
    members, others = [group.me], list[str]()
    leftovers: list[str] = []
    is_doubtful = False
    for name, item in seen.items():
        if item.labels.get(ROLE) != 'member' or item.holder == group.me:
            continue
        if item.holder and now < item.since + group.duration:
            (members if item.labels.get(SCHEME) == group.scheme else others).append(item.holder)
            is_doubtful = is_doubtful or now > item.since + group.deadline
        else:
            leftovers.append(name)
    holders = tuple(_find_holder(seen, name, group=group, now=now) for name in group.shards)
    needed = _find_holders(seen, group)
    known = frozenset(group.shards)
    beyond = [name for name, item in seen.items() if item.labels.get(ROLE) == 'shard'
              and name not in known] if not others else []
    return View(
        members=tuple(sorted(members)), holders=holders, is_doubtful=is_doubtful,
        others=tuple(sorted(others)),
        leftovers=(*(name for name in leftovers if name not in needed), *beyond))


def _find_holder(seen: Roster, name: str, *, group: Group, now: float) -> str:
    item = seen.get(name)
    if item is None:
        return ''
    if item.raw is None:  # somebody has deleted the Lease; its holder notices that in time
        return '?' if now < item.since + group.duration else ''
    if item.holder in ('', group.me):
        return item.holder
    member = seen.get(group.name_member(item.holder))
    if member is None or (member.raw is not None and not member.holder):
        return ''  # the member has left
    return item.holder if now < member.since + group.duration else ''


def is_scheme_settled(seen: Roster, *, group: Group, view: View, now: float) -> bool:
    """
    Whether work can begin by this scheme: it is in force, and nobody can work by a former one.

    When a duration has passed since a change of the scheme, all members have noticed the change.
    If other living members hold shards, they have waited for that already.
    """
    item = seen.get(group.name)
    if item is None or item.holder != group.scheme:
        return False
    return not item.spec.get('leaseTransitions') or now >= item.since + group.duration or any(
        holder in view.members and holder != group.me for holder in view.holders)


def is_foreign(item: leases.Sighting, *, group: Group, now: float) -> bool:
    """
    Whether somebody holds a Lease with a name of this sharding for another purpose, such as for the
    leader election of replicas that are still running.
    """
    is_own = item.labels.get(LABEL) == group.name and (
        item.labels.get(ROLE) != 'scheme' or item.labels.get(SCHEME) == item.holder)
    return not is_own and item.holder not in ('', group.me) and (
        now < max(item.until, item.since + group.duration))


def make(
        raw: Mapping[str, Any] | None, name: str, holder: str, *,
        role: str, shard: int | None = None, group: Group, now: clocks.Moment,
) -> Mapping[str, Any]:
    """
    Make a Lease with a new record: of a ``member``, a ``shard``, or the ``scheme``.

    The holder in the Lease of a member is the member itself, or nobody if it leaves; the holder in
    the Lease of the scheme is the name of the scheme. ``raw`` is the Lease as it is now.
    """
    known, is_member = leases.Sighting(raw, now.mono), role == 'member'
    extra = {} if shard is None else {SHARD: str(shard)}
    return leases.make(
        raw, namespace=group.namespace, name=name, holder=holder,
        duration=group.duration if holder else 1, now=now.wall,
        acquired=known.spec.get('acquireTime') if is_member else None,
        transitions=None if is_member else (
            known.transitions + (raw is not None and bool(holder))),
        labels={LABEL: group.name, ROLE: role, SCHEME: group.scheme, **extra})
