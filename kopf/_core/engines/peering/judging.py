"""
Judging: which peers are alive, and what follows for this operator. All times are arguments.

The clocks of machines differ, so the timestamps of other peers cannot be trusted. (client-go elects
leaders in the same way.) A peer is alive for its lifetime since its record was seen to change, by
the monotonic clock of this operator. The exception is a record that was there before this operator:
only its timestamp says when it has changed. A timestamp in the future counts as the present time.
"""
import dataclasses
from collections.abc import Collection, Mapping

from kopf._cogs.aiokits import clocks
from kopf._core.engines.peering.records import Peer


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A record as this operator has seen it. The times are monotonic, in seconds."""
    peer: Peer
    since: float
    """When the record was first seen with this content."""
    until: float
    """Until when the peer counts as alive, unless its record changes."""


GRACE = 3.0
"""
How long (seconds) to wait for a peer of a lower priority to write ``paused`` into its record.

Earlier versions of Kopf never write it. Others write it when they have seen the record of this
operator, which takes some requests: on a slow cluster, seconds.
"""

Roster = Mapping[str, Sighting]
"""The records of all other operators, also the expired ones, by the identities of the peers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the peers mean for this operator as of now."""
    masters: Collection[Peer] = ()
    """The living peers with a higher priority."""
    rivals: Collection[Peer] = ()
    """The living peers with the same priority."""
    until: float | None = None
    """
    The monotonic time when the first of these peers expires, so that the verdict can change.
    """
    @property
    def paused(self) -> bool:
        return bool(self.masters or self.rivals)


def observe(roster: Roster, peers: Mapping[str, Peer], *, now: clocks.Moment, live: bool) -> Roster:
    """
    Make the roster after seeing these records.

    ``live`` is whether every change would have been seen when it happened: the records come from an
    uninterrupted watch, not from a list. Then, a record that is new in the roster has just been
    written.
    """
    return {
        identity: known if known is not None and known.peer == peer else Sighting(
            peer, now.mono, _get_end(peer, now=now, is_news=live or known is not None))
        for identity, peer in peers.items()
        for known in [roster.get(identity)]
    }


def _get_end(peer: Peer, *, now: clocks.Moment, is_news: bool) -> float:
    if is_news or peer.lastseen is None:
        return now.mono + peer.lifetime
    return min(now.mono, now.at(peer.lastseen)) + peer.lifetime


def judge(roster: Roster, *, priority: int, now: float) -> Verdict:
    """Decide whether the operator has to pause, because of which peers, and until when at most."""
    strong = [
        sighting for sighting in roster.values()
        if sighting.until > now and sighting.peer.priority >= priority]
    return Verdict(
        masters=[item.peer for item in strong if item.peer.priority > priority],
        rivals=[item.peer for item in strong if item.peer.priority == priority],
        until=min((sighting.until for sighting in strong), default=None),
    )


def find_dead(roster: Roster, *, seen: float) -> Collection[str]:
    """
    Find the expired records, which can be removed from the peering object.

    ``seen`` is the monotonic time of the last renewal: then, the roster was surely up to date. A
    record has expired only if this operator has not seen it changing for its lifetime: the clock of
    its peer can be wrong. An operator that was disconnected for so long has seen nothing, so it
    removes nothing.
    """
    return [
        key for key, sighting in roster.items()
        if seen >= max(sighting.until, sighting.since + sighting.peer.lifetime)]


def get_yielding_end(
        roster: Roster, *, priority: int, since: float, patience: float, now: float,
) -> float | None:
    """
    Find until when to wait for the peers of lower priorities to finish; None if they have.

    Otherwise, their last handlers would run at the same time as those of this operator. The waiting
    begins at the time ``since``, and lasts for ``patience`` seconds at most: handlers of the others
    that take longer must not block this operator.
    """
    ends = [
        min(sighting.until, since + (GRACE if sighting.peer.paused is None else patience))
        for sighting in roster.values()
        if sighting.peer.priority < priority and not sighting.peer.paused]
    return max((end for end in ends if end > now), default=None)
