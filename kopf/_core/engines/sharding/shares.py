"""
Shares: who should hold how many shards, and which shards to take and to release for that.

All members decide by the same rules about almost the same Leases, so their decisions fit together:
the deficits are filled from the free shards in a fixed order, so that members do not compete for
the same ones. If they do compete, one of the writes succeeds, and the other members look again.
"""
import dataclasses
from collections.abc import Collection, Mapping

from kopf._core.engines.sharding import rosters

MAX_LIST_SHARE = 0.8
"""The longest pause between two lists, as a part of the time from the deadline to the duration."""

CROWD = 10
"""With more members, each lists less often, so that together they make no more requests."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do next."""
    acquire: tuple[int, ...] = ()
    """The shards to take, by a write."""
    release: tuple[int, ...] = ()
    """The shards to give away, when the work for their objects has ended."""
    disown: tuple[int, ...] = ()
    """The shards that are not held any more, but have this holder in their Leases."""


def share(counts: Mapping[str, int], total: int) -> Mapping[str, int]:
    """
    Calculate how many shards each member should hold, by how many it holds.

    That is the same number for all of them, or one more for those that hold the most now.
    """
    least, more = divmod(total, len(counts))
    ranked = sorted(counts, key=lambda member: (-counts[member], member))
    return {member: least + (rank < more) for rank, member in enumerate(ranked)}


def decide(
        view: rosters.View,
        *,
        me: str,
        held: Collection[int],
        leaving: Collection[int],
        busy: Collection[int] = (),
        is_settling: bool = False,
) -> Plan:
    """
    Decide which shards to take and to release.

    ``held`` are the shards that this member may work on; ``leaving`` are those of them that it has
    begun to release; ``busy`` are those where work is under way, which are released last. With
    ``is_settling``, other members are just about to come.

    Nothing is released while any member is late. If that member is dead, its shards become free,
    and the other members would have to give away again what they get now.
    """
    counts = dict.fromkeys(view.members, 0)
    for holder in view.holders:
        if holder in counts:
            counts[holder] += 1
    quotas = share(counts, len(view.holders))
    own = [shard for shard, holder in enumerate(view.holders) if holder == me]
    surplus = max(0, len(own) - quotas[me])
    stale = [shard for shard in own if shard not in held]
    disown = stale[:surplus]
    release: list[int] = []
    left = surplus - len(disown) - sum(shard in leaving for shard in own)
    if left > 0 and not view.is_doubtful:
        idle_first = sorted(
            (shard for shard in own if shard in held and shard not in leaving),
            key=lambda shard: (shard in busy, -shard))
        release = idle_first[:left]
    free = [shard for shard, holder in enumerate(view.holders) if not holder]
    taken: list[int] = []
    if not (is_settling and len(free) == len(view.holders)):
        deficits = {member: max(0, quotas[member] - counts[member]) for member in view.members}
        begin = sum(deficit for member, deficit in deficits.items() if member < me)
        taken = free[begin:begin + deficits[me]]
    return Plan(
        acquire=(*stale[len(disown):], *taken), release=tuple(release), disown=tuple(disown))


def get_pause(members: int, *, period: float, deadline: float, duration: float) -> float:
    """
    Calculate the pause (seconds) between two lists of the Leases.

    It is the period; but with many members, it is longer, so that all of them together list about
    as often as `CROWD` members. It must be short enough to notice members that are late.
    """
    return max(period, min(period * members / CROWD, (duration - deadline) * MAX_LIST_SHARE))
