"""
Electing: what to do with a Lease next. All times are arguments.

``tools/leaderelection`` of client-go does the same: `decide` is its ``tryAcquireOrRenew``.

All writes are guarded by the resource version: of several replicas that decide the same at the same
time, one succeeds.
"""
import dataclasses
from collections.abc import Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.structs import leases

JITTER = 1.2
"""By which part the pauses between the attempts to acquire the Lease are longer, at most."""

MIN_PAUSE = 0.05
"""The shortest pause (seconds) between two attempts."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A replica that wants to lead."""
    identity: str
    """The unique name of the replica."""
    namespace: str
    name: str
    """The name of the Lease."""
    duration: int
    """The duration of the Lease, in seconds."""


@dataclasses.dataclass(frozen=True)
class Read:
    """Read the Lease, and decide again."""


@dataclasses.dataclass(frozen=True)
class Write:
    """Create the Lease, or replace it if it has not changed. If it succeeds, this replica leads."""
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Wait:
    """Do nothing: another replica leads, at least until that monotonic time."""
    holder: str
    until: float


Step = Read | Write | Wait


def decide(
        seen: leases.Sighting | None, *, candidate: Candidate, now: clocks.Moment, is_fresh: bool,
) -> Step:
    """
    Decide the next step of an attempt to acquire or to renew the Lease.

    ``seen`` is None if the Lease was never seen. ``is_fresh`` is whether it was read in this
    attempt. A leader in time renews without reading: usually, nobody else has changed the Lease.
    """
    is_own = seen is not None and seen.holder == candidate.identity
    is_valid = seen is not None and now.mono < seen.until
    if seen is None or not (is_fresh or (is_own and is_valid)):
        return Read()
    if seen.holder and is_valid and not is_own:
        return Wait(seen.holder, seen.until)
    return Write(_make(
        seen, candidate, now,
        transitions=seen.transitions + (not is_own and seen.raw is not None),
        acquired=seen.spec.get('acquireTime') if is_own else None))


def release(seen: leases.Sighting, *, candidate: Candidate, now: clocks.Moment) -> Write | None:
    """
    Decide how to give the Lease away, so that another replica can take it at once.

    The result is None if another replica has it.
    """
    if seen.holder != candidate.identity:
        return None
    freed = dataclasses.replace(candidate, identity='', duration=1)
    return Write(_make(seen, freed, now, transitions=seen.transitions))


def get_pause(step: Step | None, *, period: float, now: float, share: float) -> float:
    """
    Calculate the pause (seconds) of a standby after an attempt.

    The pauses vary, so that the replicas are not in step: ``share`` is a random number from 0 to 1.
    But when the Lease of another replica expires, it is taken over without a further pause.
    """
    pause = period * (1 + JITTER * share)
    return max(MIN_PAUSE, min(pause, step.until - now)) if isinstance(step, Wait) else pause


def _make(
        seen: leases.Sighting, candidate: Candidate, now: clocks.Moment, *,
        transitions: int, acquired: str | None = None,
) -> Mapping[str, Any]:
    return leases.make(
        seen.raw, namespace=candidate.namespace, name=candidate.name, holder=candidate.identity,
        duration=candidate.duration, now=now.wall, transitions=transitions, acquired=acquired)
