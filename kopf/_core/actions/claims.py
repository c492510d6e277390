"""
Claims: what a newer state of an object means for what is known of the object.

Can this operator continue from what it knows? Kopf asks this at each look at an object, between its
handlers, before a write to a newer state, and after a pause. `Ledger.judge` answers, by the records
and the essence. The inbox has dropped older versions before. All functions are pure: no I/O, no
clock.
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
            bodies.Body(raw), settings=self.settings, extra_fields=self.handlers.extra_fields,
            converter=self.handlers.converter)

    def read(self, raw: bodies.RawBody) -> object | None:
        """Read what operators have recorded of their handling; None if a record is damaged."""
        body = bodies.Body(raw)
        try:
            return self.settings.persistence.diffbase_storage.fetch(body=body), recording.fetch_all(
                [handler.id for handler in self.handlers.changing], body=body,
                settings=self.settings)
        except Exception:  # the storages can be those of the author
            return None

    def is_written(
            self, known: bodies.RawBody, written: bodies.RawBody, newest: bodies.RawBody,
    ) -> bool:
        """Whether the newest records prove that a write to the known state was applied."""
        records = self.read(newest)
        return records is not None and records == self.read(written) != self.read(known)

    def is_closed(self, newest: bodies.RawBody, conclusion: cycles.Conclusion) -> bool:
        """Whether the PATCH that closes a cycle with this conclusion was applied."""
        body = bodies.Body(newest)
        try:
            old, _ = decisions.fetch_old(body, self.settings)
        except ValueError:
            return False
        return recording.is_committed(conclusion, old=old, body=body, settings=self.settings)

    def judge(
            self,
            newest: bodies.RawBody,
            *,
            known: bodies.RawBody | None,
            made: Sequence[bodies.RawBody] = (),
            conclusion: cycles.Conclusion | None = None,
            view: decisions.View | None = None,
            expected: bodies.BodyEssence | None = None,
            is_exclusive: bool = False,
    ) -> Verdict:
        """
        Say what a newer state means for what this operator knows of the object, and has written.

        ``known`` is the state from which this operator continues; None if no state is kept.
        ``made`` are the states that writes with unknown results make of the object;
        ``conclusion`` is what a closing PATCH with an unknown result leaves behind. ``view`` is
        what was seen of the known state; None if changes do not matter. ``expected`` is the essence
        after the own writes; by default, that of the view. ``is_exclusive`` is whether nobody else
        can have handled the object since the known state.
        """
        if conclusion is not None and self.is_closed(newest, conclusion):
            return Verdict.CLOSED
        if not is_exclusive and newest is not known:
            records = self.read(newest)
            if records is None or all(
                    records != self.read(state) for state in (known, *made) if state is not None):
                return Verdict.OVERTAKEN
        if view is None:
            return Verdict.SAME
        is_changed = (
            view.has_finalizer != finalizers.is_present(newest, self.settings.persistence.finalizer)
            or finalizers.is_deleting(newest) != view.deleting
            or (view.essence if newest is view.raw else self.build_essence(newest)) != (
                view.essence if expected is None else expected))
        return Verdict.CHANGED if is_changed else Verdict.SAME


def is_changed(view: decisions.View, newest: decisions.View) -> bool:
    """Whether the handlers see another state than before, even if this operator has changed it."""
    return (newest.essence, newest.deleting) != (view.essence, view.deleting)
