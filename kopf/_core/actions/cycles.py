"""
The handling cycle of an object: from the first handler that is due for a cause to the last one.

A cycle is a value. Each transition is a method that returns the next cycle; nothing is changed in
place. Outcomes stay in the cycle until a PATCH has carried them to the object, also when the API
server is unavailable: so, no finished handler is called again while the process lives. The records
on the object are made by `recording`.

**What handlers have seen.** Others can edit the object between two handlers of one cycle. So the
handlers of a cycle can have seen different states of it:

- the *base* is the state that the earliest finished handler saw, with the operator's own patches
  since then. It becomes the last-handled state when the cycle closes. What others have changed
  beyond the base is the diff of the next cycle, for all handlers;
- the *divergent* state is what some handlers know instead of the base. It matters only if
  the object returns to the base: the diff is empty then, but the cycle must call those handlers.
  A cycle that closes with a divergent state leaves it to the next cycle, also on the object.

The example: handlers ``one`` and ``two`` are for updates of ``spec.f``; 0 is last handled. ``two``
fails once, and is retried after a while.

=====================  =========  ==========  ============  =======================================
what happens           the spec   base        divergent     who is called (old → new); last-handled
=====================  =========  ==========  ============  =======================================
edit                   1          –           –             one (0 → 1), two (0 → 1, fails)
one has finished       1          1           –
another edit           2          1           –             two (0 → 2)
two has finished       2          1           2             the cycle closes; last-handled is 1
the next cycle begins  2          –           2             one (1 → 2), two (1 → 2); it is 2
… or a revert instead  1          –           2             one and two (2 → 1); it is 1
… after a restart      the same: the base and the divergent state are recorded on the object
revert, two waits      0          1           –             one and two (1 → 0); it is 0
revert, none finished  0          –           –             nobody; it is still 0
=====================  =========  ==========  ============  =======================================
"""
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kopf._cogs.aiokits import clocks
from kopf._cogs.structs import bodies, ids, patches
from kopf._core.actions import essences, progression
from kopf._core.intents import causes, handlers

CHANGES = frozenset({causes.Reason.CREATE, causes.Reason.UPDATE})
"""The reasons that are differences from the last-handled state."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one attempt of a handler changes in the object. Each attempt makes its own."""
    handler_id: ids.HandlerId
    patch: patches.Patch


class Conclusion(NamedTuple):
    """What a closing cycle leaves behind."""
    base: bodies.BodyEssence
    """The last-handled state when the cycle is closed."""
    divergent: bodies.BodyEssence | None
    resumes: bool = False
    """Whether the object is resumed with that: its resuming handlers are not called any more."""


class Cycle(NamedTuple):
    reason: causes.Reason
    states: progression.State = progression.State()
    """The progress of each handler, sub-handlers included. Never changed in place."""
    roots: frozenset[ids.HandlerId] = frozenset()
    """The top-level handlers that take part in the cycle."""
    unsaved: Mapping[ids.HandlerId, bodies.BodyEssence | None] = {}
    """
    The essence that each handler has seen last, until its latest outcome is on the object; None if
    the essence does not matter. Handlers without progress have finished in a former cycle: only the
    divergent state calls them again. Never changed in place.
    """
    contributions: tuple[Contribution, ...] = ()
    """The contributions that no PATCH has carried yet, in the order of the attempts."""
    oldest: float | None = None
    """The monotonic time of the oldest unsaved outcome."""
    has_records: bool = False
    """Whether the object can have records of the cycle."""
    base: bodies.BodyEssence | None = None
    """The base, as explained above; None until a handler has finished."""
    divergent: bodies.BodyEssence | None = None
    """The divergent state, as explained above. Without a base, it is of the previous cycle."""
    closing: Conclusion | None = None
    """
    What the closing PATCH writes. It is set from the sending until the confirmation, or until a
    handler is called again.
    """
    told: str | None = None
    """What was logged about the finished handlers, so that it is not repeated at each attempt."""

    @property
    def dirty(self) -> bool:
        """Whether any outcome or contribution is not written to the object yet."""
        return bool(self.unsaved or self.contributions)

    @property
    def is_complete(self) -> bool:
        """Whether all handlers of the cycle have finished; false if there are none."""
        return bool(self.roots) and all(
            id_ in self.states and self.states[id_].finished for id_ in self.roots)

    @property
    def results(self) -> list[patches.Patch]:
        """The results that no PATCH has carried yet, each as a patch of the status."""
        return [
            patches.Patch({'status': {item.handler_id: item.patch['status'][item.handler_id]}})
            for item in self.contributions if item.handler_id in (item.patch.get('status') or {})]

    # Transitions.

    def enter(self, reason: causes.Reason) -> 'Cycle':
        """
        Switch to another cause. No handler has finished for the new cause.

        What is not written yet is kept: e.g. the patch of an update handler, if the object is
        deleted before that patch is sent.
        """
        if self.reason == reason:
            return self
        divergent = self.divergent if self.base is None else None
        return self._replace(reason=reason, roots=frozenset(), base=None, divergent=divergent)

    def join(
            self,
            joining: Iterable[handlers.ChangingHandler],
            *,
            recall: Callable[[ids.HandlerId], progression.HandlerState | None],
            now: clocks.Moment,
            as_roots: bool = True,
    ) -> 'Cycle':
        """
        Add handlers to the cycle. Their progress is the known one, or the recorded one, or new.

        The progress for another cause (e.g. for the creation when the object is being deleted) is
        replaced with new progress. Only resuming handlers keep it: they take part in any cause.
        """
        reason, states = self.reason, self.states
        known = self.roots if as_roots else states
        joined: dict[ids.HandlerId, progression.HandlerState] = {}
        new: progression.HandlerState | None = None
        for handler in joining:
            state = states.get(handler.id)
            if state is not None and state.purpose == reason and handler.id in known:
                continue
            if state is None and self.has_records:
                state = recall(handler.id)
            if state is None or not (
                    state.purpose == reason or state.purpose is None or handler.initial):
                if new is None:  # the same for all handlers
                    new = progression.HandlerState.new(now=now, purpose=reason)
                state = new
            joined[handler.id] = state
        if not joined:
            return self
        roots = self.roots.union(joined) if as_roots else self.roots
        return self._replace(states=self._with(joined), roots=roots)

    def attach(self, parent_id: ids.HandlerId, children_ids: Iterable[ids.HandlerId]) -> 'Cycle':
        """
        Note the sub-handlers of a handler that still runs.

        Their progress can be recorded before the handler ends. Without their names in the record of
        the handler, it would be left on the object if the process were killed.
        """
        state = self.states[parent_id]
        subrefs = state.subrefs.union(children_ids)
        if subrefs == state.subrefs:
            return self
        return self._replace(states=self._with({parent_id: state._replace(subrefs=subrefs)}))

    def begin(self, handler_id: ids.HandlerId, *, now: clocks.Moment) -> 'Cycle':
        """Note that an attempt of a handler begins."""
        state = self.states[handler_id]
        begun = state.begun(now=now)
        return self if begun is state else self._replace(states=self._with({handler_id: begun}))

    @property
    def unwritten(self) -> Collection[ids.HandlerId]:
        """The handlers whose outcomes or contributions are not written to the object."""
        return sorted({*self.unsaved, *(item.handler_id for item in self.contributions)})

    def note(
            self,
            handler_id: ids.HandlerId,
            outcome: progression.Outcome,
            *,
            essence: bodies.BodyEssence,
            now: clocks.Moment,
    ) -> 'Cycle':
        """
        Note the outcome of an attempt. The handler saw the object with this essence.

        The patch of the handler is kept even if the attempt has failed.
        """
        patch = outcome.patch
        state = self.states[handler_id].after(outcome, now=now)
        base, divergent = self.base, self.divergent
        if state.finished and base is None:
            base, divergent = essence, None
        elif state.finished and base is not None and base != essence:
            divergent = essence if divergent is None else (
                essences.rebase(essence, divergent, base))
        if outcome.result is not None:
            status = None if patch is None else patch.get('status')
            patch = patches.Patch(patch)  # the author's dicts in it stay as they are
            if not status or not isinstance(status, Mapping):
                status = {}
            patch['status'] = {**status, handler_id: outcome.result}
        added = (Contribution(handler_id, patch),) if patch else ()
        return Cycle(  # faster than `_replace`; this is called for each attempt
            reason=self.reason,
            states=self._with({handler_id: state}),
            roots=self.roots,
            unsaved={**self.unsaved, handler_id: essence},
            contributions=(*self.contributions, *added),
            oldest=now.mono if self.oldest is None else self.oldest,
            has_records=self.has_records,
            base=base,
            divergent=divergent,
            closing=None,  # the cycle continues, so what its closing PATCH has written is outdated
        )

    def sent(
            self,
            members: Collection[Contribution],
            *,
            effect: patches.Patch | None = None,
            stored: bodies.BodyEssence | None = None,
    ) -> 'Cycle':
        """
        Remove contributions that a PATCH has carried: they must not be sent again.

        ``effect`` contains the changed fields, ``stored`` is the essence that the server has
        returned. The base gets the same changes, because the handlers made them: without that,
        the next diff would show the operator's own patches as changes by others.
        """
        base = self.base
        if base is not None and effect and stored is not None:
            base = essences.advance(base, [effect], stored)
        left = tuple(item for item in self.contributions if item not in members)
        return self._replace(contributions=left, base=base)

    def saved(
            self, carried: Mapping[ids.HandlerId, progression.HandlerState | None], *, now: float,
    ) -> 'Cycle':
        """Note that a PATCH has carried these states. States that are newer stay unsaved."""
        unsaved = {id_: seen for id_, seen in self.unsaved.items()
                   if self.states.get(id_) is not carried.get(id_)}
        is_dirty = bool(unsaved or self.contributions)
        return self._replace(unsaved=unsaved, oldest=now if is_dirty else None)

    def recorded(self) -> 'Cycle':
        """Note that the object can have records of the cycle: before the first PATCH is sent."""
        return self if self.has_records else self._replace(has_records=True)

    def refuse(self, contribution: Contribution, message: str) -> 'Cycle':
        """Drop a contribution that the API server refuses; its handler has failed permanently."""
        state = self.states[contribution.handler_id]
        failed = state._replace(
            success=False, failure=True, message=message, delayed=None,
            stopped=state.stopped or state.started)
        return self._replace(states=self._with({contribution.handler_id: failed}),
            unsaved={contribution.handler_id: None, **self.unsaved},
            contributions=tuple(item for item in self.contributions if item is not contribution),
        )

    def closing_with(self, conclusion: Conclusion | None) -> 'Cycle':
        """Note what the closing PATCH writes, in case the response is lost."""
        return self._replace(closing=conclusion)

    def forget_finished(self, *, now: clocks.Moment) -> 'Cycle':
        """
        Reset the finished handlers, so that they are called again.

        The caller does so when the states that they have seen are too large for a record. The
        progress of their sub-handlers is also reset, including the progress on the object.
        """
        finished = [id_ for id_, state in self.states.items() if state.finished]
        progress = dict.fromkeys((
            *finished, *(sub for id_ in finished for sub in sorted(self.states[id_].subrefs))))
        return self._replace(base=None, divergent=None).forget(progress, now=now)

    def forget(
            self, seen: Mapping[ids.HandlerId, bodies.BodyEssence | None], *, now: clocks.Moment,
    ) -> 'Cycle':
        """
        Reset these handlers and sub-handlers, and their parents that have finished.

        ``seen`` are the essences that the handlers have seen at last, by the handlers' ids. The
        other sub-handlers of a parent keep their progress: the parent calls only the reset ones.
        """
        parents = {id_ for id_, state in self.states.items()
                   if state.finished and not state.subrefs.isdisjoint(seen)}
        known = set(self.states).union(*(state.subrefs for state in self.states.values()))
        forgotten = parents.union(id_ for id_ in seen if id_ in known)
        new = progression.HandlerState.new(now=now, purpose=self.reason)
        return self._replace(
            states=self._with({
                id_: new._replace(subrefs=self.states[id_].subrefs) if id_ in self.states else new
                for id_ in forgotten}),
            unsaved={**self.unsaved, **{id_: seen.get(id_) for id_ in forgotten}})

    def regain(
            self,
            essence: bodies.BodyEssence,
            recall: Callable[[ids.HandlerId], progression.HandlerState | None],
    ) -> 'Cycle':
        """
        Take back the reset of handlers if the object has returned to the state that they have seen.

        Only those are taken back that have finished by the records on the object; a parent that was
        reset for its sub-handlers, together with them. If the reset handlers have seen different
        states, all of them stay reset: rather twice than not at all.
        """
        reset = {id_: seen for id_, seen in self.unsaved.items()
                 if (state := self.states.get(id_)) is not None
                 and not state.attempts and not state.finished}
        seen = [state for state in reset.values() if state is not None]
        if not seen or any(state != essence for state in seen):
            return self
        regained = {
            id_: state for id_ in reset if (state := recall(id_)) is not None and state.finished}
        unsaved = {id_: seen for id_, seen in self.unsaved.items() if id_ not in regained}
        return self._replace(states=self._with(regained), unsaved=unsaved)

    def _with(self, states: Mapping[ids.HandlerId, progression.HandlerState]) -> progression.State:
        result = progression.State(self.states)
        result.update(states)
        return result

    # Questions.

    def conclude(
            self,
            reason: causes.Reason,
            *,
            essence: bodies.BodyEssence,
            returned_from: bodies.BodyEssence | None = None,
    ) -> Conclusion:
        """Find what the cycle leaves when it closes for this reason in this state of the object."""
        base = returned_from if returned_from is not None else self.base
        base = base if base is not None else essence
        divergent = self.divergent if reason in CHANGES and self.base is not None else None
        if base != essence and not self.is_complete:
            # Some handlers have seen the base; for the others, the present state is the known one.
            divergent = essences.rebase(divergent if divergent is not None else base, essence, base)
        return Conclusion(base, divergent)

    def must_be_saved(self, *, now: float, delay: float, is_status_essential: bool) -> bool:
        """
        Whether a PATCH must precede the next handler.

        Either the oldest unsaved outcome is older than the delay (seconds), or a contribution
        changes more than the status, or the status if handlers are for it: then the next handler
        must see the state that the server returns.
        """
        if not self.dirty:
            return False
        if delay <= 0 or (self.oldest is not None and now - self.oldest >= delay):
            return True
        harmless = () if is_status_essential else ('status',)
        for item in self.contributions:
            if item.patch.fns or any(key not in harmless for key in item.patch):
                return True
        return False

    def find_return(
            self, reason: causes.Reason, *,
            old: bodies.BodyEssence | None, essence: bodies.BodyEssence,
    ) -> bodies.BodyEssence | None:
        """
        Find out whether the object has returned from a state that some handlers have seen.

        The result is the base whose diff shows the return to all handlers; None if the object has
        not returned.
        """
        if reason in (causes.Reason.NOOP, causes.Reason.RESUME):
            # The state that some handlers have seen, though it is not the last-handled state yet.
            horizon = self.base if self.base is not None else self.divergent
            if horizon is not None and self.divergent is not None:
                horizon = essences.rebase(horizon, self.divergent, essence)
            return horizon if horizon != essence else None
        if reason == causes.Reason.UPDATE and old is not None and (
                self.base is None and self.divergent is not None):
            base = essences.rebase(old, self.divergent, essence)
            return base if base != old else None
        return None
