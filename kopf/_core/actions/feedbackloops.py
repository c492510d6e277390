"""
Feedback loops: handlers that change their own object are called for this change, endlessly.

Kopf slows them down. All functions are pure: the time is an argument (monotonic, in seconds).
"""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, dicts, diffs, patches

FREE_CYCLES = 10
"""How many handling cycles in a row can be caused by the handlers' own patches without a delay."""

MAX_DELAY = 60.0
"""The longest delay (seconds) of the next cycle. The first delay is 1; each next one doubles."""

QUIET = 120.0
"""If the next cycle ends later than this (seconds) after the last one, the count begins again."""


class Slowdown(NamedTuple):
    """The handling cycles in a row that were caused only by the handlers' own patches."""
    essence: bodies.BodyEssence
    """The essence after the last of these cycles. Any other essence is a change by others."""
    cycles: int
    last: float
    until: float
    """When the next cycle can begin."""

    @property
    def is_new(self) -> bool:
        """Whether the cycles are slowed down from now on."""
        return self.cycles == FREE_CYCLES


def slow_down(known: Slowdown | None, essence: bodies.BodyEssence, *, now: float) -> Slowdown:
    """Note that a cycle has ended with a change that its own handlers have made."""
    count = 1 if known is None or now - known.last > QUIET else known.cycles + 1
    delay = 0.0 if count < FREE_CYCLES else min(MAX_DELAY, 2.0 ** min(count - FREE_CYCLES, 10))
    return Slowdown(essence, count, now, now + delay)


class Feedback(NamedTuple):
    """The state that event handlers have made of their object."""
    version: bodies.Version
    patches: int
    """How many such states in a row were made only because of the one before."""

    @property
    def is_new(self) -> bool:
        """Whether this state is the first one that proves a feedback loop."""
        return self.patches == FREE_CYCLES


def follow(known: Feedback | None, seen: bodies.RawBody, made: bodies.RawBody) -> Feedback:
    """Note that event handlers which have seen a state have made another one of it."""
    count = 1 if known is None or known.version != bodies.parse_version(seen) else known.patches + 1
    return Feedback(bodies.parse_version(made), count)


def find_own(changes: diffs.Diff, applied: Sequence[patches.Patch]) -> list[dicts.FieldPath]:
    """Find the changed fields if all changes are made by these patches; otherwise, nothing."""
    if all(any(makes(patch, item.field) for patch in applied) for item in changes):
        return [item.field for item in changes]
    return []


def makes(patch: patches.Patch, field: dicts.FieldPath) -> bool:
    """Whether a change of the field can be made by the patch."""
    if patch.fns:  # such patches are applied only if the object is not changed by others
        return True
    value: Any = patch
    for key in field:
        if not isinstance(value, Mapping):
            return True
        if key not in value:
            return False
        value = value[key]
    return True
