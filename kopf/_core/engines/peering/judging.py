"""
Judging: who of the peers is alive, and what it means for this operator. All times are handed in.

The clocks of the machines are not the same. So, a peer is alive for its lifetime since its record
was seen to change, by the own monotonic clock. Only where the record was there before, the peer's
own time counts, for there is nothing else to go by; but never for longer than its lifetime.
"""
import dataclasses
from collections.abc import Collection, Mapping

from kopf._cogs.aiokits import clocks
from kopf._core.engines.peering.records import Peer


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A record as it was seen; the times are monotonic, in seconds."""
    peer: Peer
    since: float
    """When the record was seen like this for the first time."""
    until: float
    """Until when the peer counts as alive unless the record changes."""


GRACE = 1.0
"""How long (seconds) a peer has to say that it yields; earlier versions do not say it."""

Roster = Mapping[str, Sighting]
"""All records by identities."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the peers mean for an operator as of now."""
    masters: Collection[Peer] = ()
    """Those alive with a higher priority."""
    rivals: Collection[Peer] = ()
    """Those alive with the same priority."""
    until: float | None = None
    """When it is to be judged anew if nothing changes before: any of the former would die."""
    dead: Collection[str] = ()
    """Whose records are of no use to anyone."""

    @property
    def frozen(self) -> bool:
        return bool(self.masters or self.rivals)


def observe(
        roster: Roster, peers: Mapping[str, Peer], *, now: clocks.Moment, live: bool,
) -> Roster:
    """
    The roster after seeing these records.

    The sight is live if every change since the previous one would have been seen as it happened.
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


def judge(roster: Roster, *, identity: str, priority: int, now: float) -> Verdict:
    """
    Whether the operator has to wait, for whom, and until when at most.

    A record is dead only if it has not changed for its lifetime in front of our eyes: the peer's
    clock can be wrong.
    """
    others = [sighting for key, sighting in roster.items() if key != identity]
    strong = [
        sighting for sighting in others
        if sighting.until > now and sighting.peer.priority >= priority]
    return Verdict(
        masters=[item.peer for item in strong if item.peer.priority > priority],
        rivals=[item.peer for item in strong if item.peer.priority == priority],
        until=min((sighting.until for sighting in strong), default=None),
        dead=[
            sighting.peer.identity for sighting in others
            if now >= max(sighting.until, sighting.since + sighting.peer.lifetime)],
    )


def get_yielding_end(
        roster: Roster, *, identity: str, priority: int, since: float, patience: float, now: float,
) -> float | None:
    """
    Until when to wait for those with lower priorities to finish what they do; None if they have.

    Their handlers that are under way could be called here, too. They are waited for since that
    time, with that patience (seconds): what takes longer, nobody should wait for.
    """
    ends = [
        min(sighting.until, since + (GRACE if sighting.peer.paused is None else patience))
        for key, sighting in roster.items()
        if key != identity and sighting.peer.priority < priority and not sighting.peer.paused]
    return max((end for end in ends if end > now), default=None)
