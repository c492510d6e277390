"""
Claims: what a newer state of an object means for what is known of the object.

Whether this operator can go on from what it knows is asked at each look at an object, between its
handlers, before a write to a newer state, and after a pause. The answer is that of `judge`, by the
records and the essence; the inbox has dropped older versions before. All functions are pure: no
I/O, no clock.
"""
import enum
from collections.abc import Sequence
from typing import NamedTuple

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies
from kopf._core.actions import cycles, decisions, finalizers, recording
from kopf._core.intents import registries


class Verdict(enum.Enum):
    """What a newer state means. If several are true, the last of them counts."""

    SAME = enum.auto()
    """Nothing has changed that matters to the handlers: go on, on the newer state."""

    CHANGED = enum.auto()
    """The object is changed or deleted, or got or lost the finalizer: look at it, decide again."""

    OVERTAKEN = enum.auto()
    """Another operator has handled the object: write nothing, and go on from its records."""

    CLOSED = enum.auto()
    """The cycle is closed on the object: the response to the closing PATCH was lost."""


class Ledger(NamedTuple):
    """How the objects of one resource are read: their records, and their essence."""
    settings: configuration.OperatorSettings
    handlers: registries.ResourceHandlers

    def build_essence(self, raw: bodies.RawBody) -> bodies.BodyEssence:
        return decisions.build_essence(
            bodies.Body(raw), settings=self.settings, extra_fields=self.handlers.extra_fields)

    def read(self, raw: bodies.RawBody) -> object | None:
        """Read what operators have recorded of their handling; None if a record is damaged."""
        body = bodies.Body(raw)
        try:
            return self.settings.persistence.diffbase_storage.fetch(body=body), recording.fetch_all(
                [handler.id for handler in self.handlers.changing], body=body,
                settings=self.settings)
        except Exception:  # the storages can be those of the author
            return None


class Claim(NamedTuple):
    """What this operator knows of an object, and makes of the object."""
    known: bodies.RawBody | None
    """The state from which this operator goes on; None if no state is kept."""
    made: Sequence[bodies.RawBody] = ()
    """What those writes make of the object whose result is not known."""
    conclusion: cycles.Conclusion | None = None
    """What a closing PATCH leaves behind, if its result is not known."""
    view: decisions.View | None = None
    """What was seen of the known state; None if changes do not matter."""
    expected: bodies.BodyEssence | None = None
    """The essence after the own writes. By default, it is that of the view."""
    is_exclusive: bool = False
    """Whether nobody else can have handled the object since the known state."""


def judge(claim: Claim, newest: bodies.RawBody, *, ledger: Ledger) -> Verdict:
    """Judge a newer state, for what is claimed of the known one."""
    if claim.conclusion is not None and _is_closed(claim.conclusion, newest, ledger):
        return Verdict.CLOSED
    if not claim.is_exclusive and not _is_recorded(claim, newest, ledger):
        return Verdict.OVERTAKEN
    if claim.view is not None and _differs(claim, claim.view, newest, ledger):
        return Verdict.CHANGED
    return Verdict.SAME


def is_written(
        known: bodies.RawBody, written: bodies.RawBody, newest: bodies.RawBody, *, ledger: Ledger,
) -> bool:
    """Whether the newest records prove that a write to the known state was applied."""
    records = ledger.read(newest)
    return records is not None and records == ledger.read(written) != ledger.read(known)


def _is_closed(
        conclusion: cycles.Conclusion, newest: bodies.RawBody, ledger: Ledger,
) -> bool:
    body, settings = bodies.Body(newest), ledger.settings
    try:
        old = decisions.fetch_old(body, settings)
    except ValueError:
        return False
    return recording.is_committed(conclusion, old=old, body=body, settings=settings)


def _is_recorded(claim: Claim, newest: bodies.RawBody, ledger: Ledger) -> bool:
    """Whether the newest records are the known ones, or those of an own write."""
    if newest is claim.known:
        return True
    records = ledger.read(newest)
    return records is not None and any(
        records == ledger.read(state) for state in (claim.known, *claim.made) if state is not None)


def _differs(
        claim: Claim, view: decisions.View, newest: bodies.RawBody, ledger: Ledger,
) -> bool:
    expected = view.essence if claim.expected is None else claim.expected
    if newest is view.raw:
        return view.essence != expected
    return (
        finalizers.is_deleting(newest) != view.deleting
        or finalizers.is_present(newest, ledger.settings.persistence.finalizer) != view.blocked
        or ledger.build_essence(newest) != expected)


def is_changed(view: decisions.View, newest: decisions.View) -> bool:
    """Whether the handlers see anything else than before, also if this operator has changed it."""
    return (newest.essence, newest.deleting) != (view.essence, view.deleting)
