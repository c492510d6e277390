"""
Decisions: what a state of an object means, and what to do next.

All functions are pure: no I/O, no clock, no logging. They do not call the callbacks of the author:
the handling of changes calls the filters before a decision, and the lifecycle after a decision.

**Guarantees** of `decide`. It is total: no situation makes it raise. It is idempotent: deciding
again with the cycle that `decide` has returned gives the same step. It is monotone: it never calls
a handler that has finished in the cycle.
"""
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import compaction, configuration
from kopf._cogs.structs import bodies, dicts, diffs, ids
from kopf._core.actions import cycles, essences, feedbackloops, finalizers, progression, versions
from kopf._core.intents import causes, filters, handlers, pauses


class View(NamedTuple):
    """A state of an object, reduced to what change detection needs."""
    raw: bodies.RawBody
    body: bodies.Body
    essence: bodies.BodyEssence
    old: bodies.BodyEssence | None
    """The last-handled essence; None if the object was never handled."""
    deleting: bool
    has_finalizer: bool
    """Whether the finalizer of this operator is on the object."""
    is_outdated: bool = False
    """Whether the last-handled essence is stored in another version of the kind."""


def look(
        raw: bodies.RawBody,
        *,
        settings: configuration.OperatorSettings,
        extra_fields: Iterable[dicts.FieldPath],
        converter: bodies.Converter | None = None,
) -> View:
    """
    Reduce an object to what change detection needs.

    :raises ValueError: if the object has a last-handled state that is not readable.
    """
    body = bodies.Body(raw)
    essence = build_essence(body, settings=settings, extra_fields=extra_fields, converter=converter)
    old, is_outdated = fetch_old(body, settings, current=essence, converter=converter)
    return View(
        raw=raw,
        body=body,
        essence=essence,
        old=old,
        deleting=finalizers.is_deleting(raw),
        has_finalizer=finalizers.is_present(raw, settings.persistence.finalizer),
        is_outdated=is_outdated,
    )


def fetch_old(
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        *,
        current: bodies.BodyEssence | None = None,
        converter: bodies.Converter | None = None,
) -> tuple[bodies.BodyEssence | None, bool]:
    """
    Read the last-handled state (None if the object was never handled), and whether it is stored in
    another version of the kind.

    It is converted to the version of the object if there is a converter. If only digests of some
    values are stored, the values that have not changed since are taken from the ``current``
    essence.

    :raises ValueError: if it is not readable.
    """
    old = settings.persistence.diffbase_storage.fetch(body=body)
    if isinstance(old, compaction.Reduced):
        old = cast(bodies.BodyEssence, compaction.complete(old, current))
    if old is None:
        return None, False
    return versions.update(_strip(old, settings), body=body, current=current, converter=converter)


def build_essence(
        body: bodies.Body,
        *,
        settings: configuration.OperatorSettings,
        extra_fields: Iterable[dicts.FieldPath],
        converter: bodies.Converter | None = None,
) -> bodies.BodyEssence:
    """
    Reduce an object to what is compared.

    After a conversion to another version, an object has none of the defaults of that version, but
    the next write adds them, even one of the operator. So they count as set already.
    """
    if converter is not None:
        body = bodies.Body(cast(bodies.RawBody, converter.complete(body._raw)))
    diffbase = settings.persistence.diffbase_storage
    return _strip(diffbase.build(body=body, extra_fields=extra_fields), settings)


def _strip(
        essence: bodies.BodyEssence, settings: configuration.OperatorSettings,
) -> bodies.BodyEssence:
    """Remove the records of the framework. Some storages of authors have nothing to remove."""
    cleared = settings.persistence.progress_storage.clear(essence=essence)
    return essences.strip(essence if cleared is None else cleared, settings.pausing.annotation)


def detect(view: View, *, initial: bool) -> tuple[causes.Reason, diffs.Diff]:
    """
    Find the cause of handling, and the changes since the last-handled state.

    ``initial`` is true for the objects that existed before the operator and are not resumed yet.
    """
    diff = diffs.diff(view.old, view.essence)
    if view.deleting:
        return causes.Reason.DELETE, diff
    if view.old is None:
        return causes.Reason.CREATE, diff
    if diff:
        return causes.Reason.UPDATE, diff
    return (causes.Reason.RESUME if initial else causes.Reason.NOOP), diff


class Situation(NamedTuple):
    """Everything that a decision depends on."""
    view: View
    reason: causes.Reason
    selection: filters.Selection
    cycle: cycles.Cycle | None
    """The current cycle; None if no cycle has begun in this process or on the object."""
    recall: Callable[[ids.HandlerId], progression.HandlerState | None]
    """Reads the progress of a handler from the object."""
    now: clocks.Moment
    accompanied: bool = False
    """Whether daemons or timers of the object run, or should run."""
    can_have_finalizer: bool = True
    """Whether there is a finalizer for them: with none set, nothing waits for them."""
    must_keep: bool = False
    """
    Whether the finalizer stays, though nothing needs it: for the brakes, or for the handlers of
    another version of the resource.
    """
    is_interrupted: bool = False
    """Whether no handler can be called: others have changed the object, or the operator stops."""
    is_chosen_done: bool = False
    """
    Whether all handlers that the lifecycle has chosen were called.

    Their outcomes are written then, before the lifecycle chooses again.
    """
    is_status_essential: bool = False
    """Whether some handlers handle changes of the status."""
    slowdown: feedbackloops.Slowdown | None = None
    """What slows down the cycles that the handlers cause by their own patches."""
    flush_delay: float = 1.0
    """How long (seconds) the outcome of a handler can wait for the PATCH that carries it."""
    misfit: str | None = None
    """Why the object does not fit the types of the selected handlers; None if it does."""
    pause: pauses.Pause | None = None
    """What pauses the handlers of the object in this state, if anything does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What to do next, and why."""
    because: str


@dataclasses.dataclass(frozen=True, slots=True)
class SwitchFinalizer(Step):
    """If ``handled`` is set, also store it as the last-handled state."""
    handled: bodies.BodyEssence | None


class AddFinalizer(SwitchFinalizer):
    """Add the finalizer."""


class RemoveFinalizer(SwitchFinalizer):
    """Remove the finalizer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Step):
    """Call one or several of the due handlers, as the lifecycle chooses."""
    due: Sequence[handlers.ChangingHandler]


class Save(Step):
    """Write the outcomes and patches to the object, and look at the state in the response."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sleep(Step):
    """Wait until this monotonic time, or until the object changes."""
    until: float


@dataclasses.dataclass(frozen=True, slots=True)
class Close(Step):
    """End the cycle: store its last-handled state, and remove the progress of its handlers."""
    reason: causes.Reason
    conclusion: cycles.Conclusion
    told: bool = False
    """Whether the reason is worth a line in the log."""


class Release(Step):
    """Remove the finalizer and all records of the operator, so that the object can disappear."""


class Yield(Step):
    """Look at the object again, because others have changed it; or end, if the operator stops."""


@dataclasses.dataclass(frozen=True, slots=True)
class Nothing(Step):
    """Do nothing until the object changes, or until one of its daemons has ended."""
    told: bool = False
    """Whether the reason is worth a line in the log."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hold(Nothing):
    """
    Do nothing until the object changes, or until this monotonic time; try again then, or after a
    restart.

    Nothing is stored of it, so that a later version of the operator can handle the object.
    """
    until: float | None = None


class Pause(Hold):
    """Do nothing, as somebody has paused the object."""


class Protect(Hold):
    """Let the deletion wait, as the object is protected, and say so in its status."""


class Decision(NamedTuple):
    step: Step
    cycle: cycles.Cycle | None
    """The cycle after this decision; None if there is no cycle to keep."""


ADDING = "Adding the finalizer, thus preventing the actual deletion."
REMOVING = "Removing the finalizer, as there are no handlers requiring it."
RELEASING = "Removing the finalizer, thus allowing the actual deletion."
FREED = "Deletion, but we are done with it, and we do not care."
HELD = "daemons, timers, or handlers of another version still need the finalizer"
DELETED_BUT_HELD = "the records stay, for nothing else says that the deletion is handled"
INTERRUPTED = "the object was changed by others, or the operator is exiting or paused"
SLOWED = "the handlers change the object again and again"
OUTDATED = "The last-handled state is stored in another version of the kind, so it is stored anew."
UNCHANGED = "Something has changed, but we are not interested (the essence is the same)."


def decide(situation: Situation) -> Decision:
    """Decide the next step for the object: exactly one, with its reason in words."""
    view, cycle, selection = situation.view, situation.cycle, situation.selection
    reason = situation.reason
    is_needed = selection.needs_finalizer or (
        situation.accompanied and situation.can_have_finalizer)
    is_concerned = cycle is not None or situation.accompanied or is_needed or (
        selection.in_scope or (view.deleting and view.has_finalizer))
    if situation.pause is not None and is_concerned:
        return Decision(_pause(situation, situation.pause, is_needed=is_needed), cycle)
    if view.deleting and view.has_finalizer:
        for handler in selection.handlers:
            if handler.protects is not None:
                return Decision(_settle(cycle) or Protect(handler.protects), cycle)
    if view.deleting:
        if not view.has_finalizer and (is_needed or not selection.handlers):
            return Decision(Nothing(FREED, told=True), None)
    elif is_needed != view.has_finalizer and not (view.has_finalizer and situation.must_keep):
        if cycle is not None and cycle.dirty:
            return Decision(Save("what is done has to be on the object first"), cycle)
        # If no handler is due, one PATCH writes both the finalizer and the last-handled state.
        is_handled = not selection.handlers and selection.in_scope and (
            reason in cycles.CHANGES and cycle is None)
        handled = view.essence if is_handled else None
        if is_needed:
            return Decision(AddFinalizer(ADDING, handled), cycle)
        return Decision(RemoveFinalizer(REMOVING, handled), cycle)
    elif not selection.in_scope:
        if cycle is not None and cycle.dirty:
            return Decision(Save("no handler is concerned any more"), cycle)
        return Decision(Nothing("no handler is concerned"), None)
    elif cycle is not None:
        base = cycle.find_return(reason, old=view.old, essence=view.essence)
        if base is not None:
            conclusion = cycle.conclude(
                causes.Reason.NOOP, essence=view.essence, returned_from=base)
            return Decision(Close(
                "the object has returned from a state that some handlers have seen",
                causes.Reason.NOOP, conclusion), cycle)
    if reason == causes.Reason.NOOP or (reason == causes.Reason.RESUME and not selection.handlers):
        # Once for each object: operators that watch different versions must not take turns.
        is_outdated = view.is_outdated and reason == causes.Reason.RESUME
        if cycle is None and not is_outdated:
            return Decision(Nothing(UNCHANGED, told=True), None)
        cycle = cycles.Cycle(causes.Reason.NOOP) if cycle is None else cycle
        conclusion = cycle.conclude(causes.Reason.NOOP, essence=view.essence)
        because = OUTDATED if is_outdated else UNCHANGED
        return Decision(Close(because, causes.Reason.NOOP, conclusion, told=True), cycle)
    if situation.misfit is not None:
        if cycle is not None and cycle.dirty:
            return Decision(Save(situation.misfit), cycle)
        return Decision(Hold(f"{situation.misfit}. They are called when it does."), cycle)
    if cycle is None and reason == causes.Reason.UPDATE and situation.slowdown is not None and (
            situation.slowdown.until > situation.now.mono + clocks.PRECISION
            and situation.slowdown.essence == view.essence):
        return Decision(Sleep(SLOWED, situation.slowdown.until), None)
    cycle = cycles.Cycle(reason) if cycle is None else cycle.enter(reason)
    cycle = cycle.join(selection.handlers, recall=situation.recall, now=situation.now)
    return Decision(_proceed(situation, cycle), cycle)


def _pause(situation: Situation, pause: pauses.Pause, *, is_needed: bool) -> Step:
    """Decide for an object that is paused: a deletion has to wait for the end of the pause."""
    if (step := _settle(situation.cycle)) is not None:
        return step
    view = situation.view
    if is_needed and not view.has_finalizer and not view.deleting:
        return AddFinalizer(ADDING, None)
    until = None if pause.until is None else situation.now.at(pause.until)
    return Pause(pause.describe(), until=until)


def _settle(cycle: cycles.Cycle | None) -> Step | None:
    """Write what is done before the object has to wait for people; None if all is written."""
    if cycle is None or not cycle.dirty:
        return None
    if cycle.closing is None:
        return Save("what is done has to be on the object before it waits")
    # The object can be closed already: records would be taken for those of the next cycle.
    return Close("the object has to wait while the cycle is closed", cycle.reason, cycle.closing)


def _proceed(situation: Situation, cycle: cycles.Cycle) -> Step:
    """Decide within a cycle that has begun."""
    now = situation.now.mono
    due, wait = progression.find_due(situation.selection.handlers, cycle.states, now=now)
    if wait is None:
        return _end(situation, cycle)
    if cycle.must_be_saved(
            now=now, delay=situation.flush_delay,
            is_status_essential=situation.is_status_essential):
        return Save("what is done has to be on the object before the next handler")
    if wait > 0:
        if cycle.dirty:
            return Save("the handlers have to wait")
        return Sleep("the handlers have to wait", now + wait)
    if situation.is_interrupted:
        return Save(INTERRUPTED) if cycle.dirty else Yield(INTERRUPTED)
    if situation.is_chosen_done and cycle.dirty:
        return Save("the handlers that the lifecycle has chosen are done")
    return Call("these handlers are due", due)


def _end(situation: Situation, cycle: cycles.Cycle) -> Step:
    """Decide when all handlers have finished."""
    if situation.reason != causes.Reason.DELETE:
        return Close(
            "all handlers have finished", situation.reason,
            cycle.conclude(situation.reason, essence=situation.view.essence))
    if situation.view.has_finalizer and not (situation.accompanied or situation.must_keep):
        return Release(RELEASING)
    because = HELD if situation.view.has_finalizer else DELETED_BUT_HELD
    return Save(because) if cycle.dirty else Nothing(because)
