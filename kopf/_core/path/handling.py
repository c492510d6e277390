"""
Handling of the changes of one object: from a new state until nothing remains to do for now.

Look, decide, act, and repeat: `decisions.decide` selects the next step, and this module carries out
the step. The handling ends when the object is at rest, when its handlers have to wait, when its
daemons have to stop first, or when the operator stops. No tasks of the handling remain after its
end. Outcomes that are not written stay in the cycle.
"""
import asyncio
import collections
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kopf._cogs.aiokits import wakeups
from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies, dicts, diffs, ids, patches
from kopf._core.actions import (
    application,
    brakes,
    claims,
    cycles,
    decisions,
    essences,
    execution,
    feedbackloops,
    lifecycles,
    progression,
    recording,
    subhandling,
)
from kopf._core.intents import causes, filters, handlererrors, handlers, pauses
from kopf._core.path import objects, saving, switches

FORBIDDEN_PAUSE = 600.0
"""After how long (seconds) to retry if the operator may not remove the finalizer in a deletion."""

CHANGED_IN_PLACE: Sequence[dicts.FieldPath] = [
    ('spec',), ('status',), ('metadata', 'labels'), ('metadata', 'annotations')]
"""The fields of which handlers use to change their copies, and to expect that this is written."""


class Handling:
    """
    The handling of the changes of one object.

    Guarantees: a handler that needs the finalizer is called only when the object has the finalizer.
    A handler sees the newest known state, with the results and status patches of the handlers
    before it. Between two handlers, it checks for changes by others, for a pause, and for an exit.

    Assumption: the changes of an object are handled only once at a time.
    """

    def __init__(
            self,
            env: saving.Environment,
            item: objects.Item,
            raw: bodies.RawBody,
            logger: Any,
            *,
            switch: switches.Switch,
            alarms: wakeups.Wakeups,
            accompany: Callable[[objects.Item, bodies.RawBody], bool],
    ) -> None:
        """
        Prepare the handling of the state ``raw``.

        ``accompany`` starts and stops the daemons and timers for a state, and returns whether there
        are any.
        """
        self.env = env
        self.item = item
        self.logger = logger
        self.handlers = item.handlers
        self.saver = saving.Saver(item, raw, env=env, logger=logger, switch=switch)
        self._accompany = accompany
        self._switch = switch
        self._alarms = alarms
        self._known: bodies.RawBody | None = None
        """The state that was looked at, or a newer one with the same essence."""
        self._prepared: decisions.Step | None = None
        self._announced: causes.Reason | None = None
        self._braked_until: float | None = None
        """When to try again to remove the finalizer, if the brakes have refused that."""
        self._has_warned = False
        """Whether the log says already that handlers have changed the object in memory only."""

    async def run(self) -> None:
        """
        Reconcile the given state until the object rests, or until others have changed it.

        A state that others have changed is left in the inbox. A second call of `run` looks at the
        state again: time has passed meanwhile, and daemons can have ended.
        """
        item = self.item
        newest: bodies.RawBody | None = self.saver.raw
        try:
            if self._prepared is None:
                self.look(self.saver.raw)
            while newest is not None:
                if newest is not self._known and self._look_again(newest):
                    item.inbox.put(newest)
                    return
                newest = await self._proceed()
                if item.gone or self.is_stopped or item.inbox.has_pending:
                    return
        finally:
            self.saver.disarm()

    def _look_again(self, raw: bodies.RawBody) -> bool:
        """Look at a newer state; return whether the object has changed, by others or by patches."""
        former = self.view
        self.look(raw)
        return claims.is_changed(former, self.view)

    def prepare(self) -> decisions.Step:
        """
        Look at the given state, and decide the next step. `run` begins with this step.

        :raises ValueError: if the object has unreadable records of the framework.
        """
        self.look(self.saver.raw)
        self._prepared = self.decide()
        return self._prepared

    def discard(self) -> None:
        """
        Drop the result of `prepare`, as a newer state is reconciled instead.

        Otherwise, the cycle would continue from the records of the older state, as if they were
        those of the newer one. Assumes that the object had no cycle before `prepare`.
        """
        if self._prepared is not None:
            self._prepared = None
            self.item.proceed(None)

    # Looking.

    def look(self, raw: bodies.RawBody) -> None:
        """
        Take this state as the newest one; find its cause, its cycle, and its handlers.

        :raises ValueError: if the object has unreadable records of the framework.
        """
        env, item = self.env, self.item
        match self.saver.judge(raw, self._known):
            case claims.Verdict.CLOSED:
                self._end()
            case claims.Verdict.OVERTAKEN:
                item.proceed(self.saver.begin_anew(item.get_cycle(), raw))
        item.inbox.keep(raw)
        item.inbox.forget_reminder()
        self._known = raw
        self._now = env.clock.now()
        self.saver.go_on_from(raw)
        self._accompanied = self._accompany(item, raw)
        self.view = decisions.look(
            raw, settings=env.settings, extra_fields=self.handlers.extra_fields,
            converter=self.handlers.converter)
        cycle = item.cycle
        if cycle is None:
            cycle = recording.restore(
                self.handlers.changing, body=self.view.body, settings=env.settings,
                now=self._now, initial=item.initial)
            if cycle is not None and self.view.is_outdated:
                cycle = cycle._replace(base=None, divergent=None)  # of another version
        else:
            cycle = cycle.regain(self.view.essence, self._recall)
        slowdown = item.slowdown
        if cycle is None and slowdown is not None and slowdown.essence != self.view.essence:
            item.slow_down(None)  # others have changed the object
        item.proceed(cycle)
        self.reason, self._diff = decisions.detect(self.view, initial=item.initial)
        self._chosen: list[handlers.ChangingHandler] = []
        """The handlers that the lifecycle has chosen, but that are not called yet."""
        self._is_chosen_done = False
        self._cause: causes.ChangingCause | None = None
        self._selection = filters.select(self.handlers.changing, self._get_cause())
        if self._selection.in_scope or (self.view.deleting and self.view.has_finalizer):
            item.notice()

    def give_way(self, overtaken: application.OvertakenError) -> None:
        """Continue from the state that another operator has left: it must not be overwritten."""
        item, newest = self.item, overtaken.newest
        if self.is_stopped and self.saver.judge(newest) is claims.Verdict.CLOSED:
            self._end()
            self.saver.take(newest)  # the list after a pause can be older than this state
        else:
            self.saver.give_way(overtaken)
        if self._switch.is_stopping:
            item.inbox.keep(newest)
        elif self.is_stopped:
            item.proceed(None)
        else:
            item.inbox.put(newest)

    def _end(self) -> None:
        """End the cycle: the object shows that its closing PATCH was applied."""
        conclusion = self.item.get_cycle().closing
        self.item.proceed(None)
        if conclusion is not None and conclusion.resumes:
            self.item.resume()

    def _absorb(self) -> None:
        """Continue from a newer state if its essence is the same."""
        pending = self.item.inbox.pending
        if pending is not None and self._judge(pending) is claims.Verdict.SAME:
            self._known = pending
            self.saver.go_on_from(pending)
            self.item.inbox.absorb()
            self._accompanied = self._accompany(self.item, pending)
            self._cause = None

    def _get_cause(self) -> causes.ChangingCause:
        """Make the cause of the next handlers, which see the results that are not written yet."""
        if self._cause is None:
            item = self.item
            shown: Any = self.saver.raw
            for contribution in item.cycle.contributions if item.cycle is not None else ():
                if 'status' in contribution.patch:
                    shown = patches.merge(shown, {'status': contribution.patch['status']})
            self._cause = causes.ChangingCause(
                logger=self.logger,
                get_memo=functools.partial(self.env.get_memo, item),
                indices=self.env.indices,
                resource=item.resource,
                body=bodies.OwnBody(shown),
                patch=patches.Patch(),
                reason=self.reason,
                initial=item.initial,
                diff=self._diff,
                old=self.view.old,
                new=self.view.essence,
            )
        return self._cause

    @property
    def is_stopped(self) -> bool:
        """Whether the operator exits, or was paused since the start: no handler may be called."""
        return not self._switch.admits(since=self.saver.pauses)

    @property
    def _is_interrupted(self) -> bool:
        pending = self.item.inbox.pending
        return self.is_stopped or (
            pending is not None and pending is not self._known
            and self._judge(pending) is not claims.Verdict.SAME)

    def _has_moved(self) -> bool:
        """Whether the response to a write shows that others have changed or handled the object."""
        raw = self.saver.raw
        return self.saver.is_overtaken or (
            raw is not self._known
            and self._judge(raw, self.saver.expected) is not claims.Verdict.SAME)

    def _find_pause(self) -> pauses.Pause | None:
        pending = self.item.inbox.pending
        return self.env.find_pause(self.saver.raw if pending is None else pending)

    def _judge(
            self, raw: bodies.RawBody, expected: bodies.BodyEssence | None = None,
    ) -> claims.Verdict:
        """Judge a state that is newer than the one that was looked at."""
        return self.saver.judge(raw, self._known, view=self.view, expected=expected)

    # Deciding.

    def decide(self) -> decisions.Step:
        """Decide the next step, and update the cycle."""
        env, item = self.env, self.item
        former, pause = item.cycle, self._find_pause()
        step, cycle = decisions.decide(decisions.Situation(
            view=self.view,
            reason=self.reason,
            selection=self._selection,
            cycle=former,
            recall=self._recall,
            now=self._now,
            accompanied=self._accompanied,
            can_have_finalizer=env.settings.persistence.finalizer is not None,
            must_keep=self.handlers.is_kept_elsewhere or (
                self._braked_until is not None and not self.view.deleting),
            is_interrupted=self._is_interrupted,
            is_chosen_done=self._is_chosen_done,
            is_status_essential=self.handlers.is_status_essential,
            slowdown=item.slowdown,
            flush_delay=env.settings.persistence.flush_delay,
            misfit=self._find_misfit(),
            pause=pause,
        ))
        if former is not None and cycle is not None and former.reason != cycle.reason:
            self._tell_superseded(former, cycle.reason)
        selected = self._selection.handlers
        if former is None and cycle is not None and len(cycle.roots) < len(selected):
            self._warn_of_namesakes(selected, 'handlers', "@kopf.on.update(..., id='another')")
        item.proceed(cycle)
        if pause is None and self._braked_until is None and not isinstance(
                step, decisions.Hold | decisions.RemoveFinalizer):
            item.go_on(self.logger)  # the brakes can hold a removal, again and again
        return step

    def _find_misfit(self) -> str | None:
        return execution.find_misfit(self._selection.handlers, self._get_cause)

    def _recall(self, handler_id: ids.HandlerId) -> progression.HandlerState | None:
        return recording.fetch_state(
            handler_id, body=self.view.body, settings=self.env.settings, now=self._now)

    # Acting.

    async def _proceed(self) -> bodies.RawBody | None:
        """Carry out steps until the state changes; return the new state, or None at rest."""
        while not self.item.gone:
            self._switch.confirm()
            step, self._prepared = self._prepared, None
            if step is None or self._is_interrupted:
                step = self.decide()
            match step:
                case decisions.Call():
                    await self._call(step.due)
                    if self.saver.raw is not self._known:
                        self.look(self.saver.raw)
                case decisions.Save():
                    if step.because == decisions.DELETED_BUT_HELD:
                        self._tell_processed()
                    return await self.saver.save()
                case decisions.AddFinalizer():
                    return await self._switch_finalizer(step)
                case decisions.Close():
                    return await self._close(step)
                case decisions.RemoveFinalizer() | decisions.Release():
                    return await self._free(step)
                case decisions.Sleep():
                    delay = max(0.0, step.until - self.env.clock.mono())
                    self.logger.debug(f"Sleeping for {delay:.3f} seconds for the delayed handlers.")
                    self.item.inbox.keep(self.saver.raw)
                    if not self._switch.is_stopping:
                        self._alarms.sleep(self.item, step.until)
                    return None
                case decisions.Yield():
                    return None
                case decisions.Protect() if self.item.held != step:
                    newest = await self.saver.report_protection(step.because)
                    self.rest(step)
                    return newest
                case decisions.Nothing():
                    self.rest(step)
                    return None
        return None

    def rest(self, step: decisions.Nothing) -> None:
        """Leave the object: this state needs nothing, or nothing can be done for it."""
        if self.reason == causes.Reason.RESUME and not isinstance(step, decisions.Hold):
            self.item.resume()
        if self.item.cycle is None:
            self.item.slow_down(None)
            self.item.drop()
        else:
            self.item.inbox.keep(self.saver.raw)
        until = self._braked_until
        if isinstance(step, decisions.Hold):
            until = step.until if until is None else until
            self.item.hold(step, self.logger)
            for handler, e in execution.find_misfits(self._selection.handlers, self._get_cause):
                self.env.observer.omission(
                    handler, self.item.resource, self.view.body, execution.describe_misfit(e))
        if until is not None and not self._switch.is_stopping:
            self.item.inbox.keep(self.saver.raw)
            self._alarms.sleep(self.item, until)
        if step.told:
            self.logger.debug(step.because)
            self.logger.debug("Handling cycle is finished, waiting for new changes.")

    async def _free(
            self, step: decisions.RemoveFinalizer | decisions.Release,
    ) -> bodies.RawBody | None:
        """
        Remove the finalizer, if the operator may do that.

        Operators whose handlers write nothing need no such right. But the objects can have the
        finalizer of former handlers, or of another operator.
        """
        served, resource = self.handlers, self.item.resource
        writes = served.changing or served.spawning or served.reconciling
        if writes or self.view.deleting or resource not in self.env.locked:
            try:
                return await (self._release(step) if isinstance(step, decisions.Release) else
                              self._switch_finalizer(step))
            except errors.APIForbiddenError as e:
                if writes:
                    raise
                if resource not in self.env.locked:
                    self.env.locked.add(resource)
                    self.logger.warning(
                        f"The finalizer {self.env.settings.persistence.finalizer!r} stays on this "
                        f"object, and on other {resource}: no handler needs it, but this operator "
                        f"may not remove it. Nothing more is said about that. {e}")
        self.rest(decisions.Nothing("the operator may not remove the finalizer"))
        if self.view.deleting and not self._switch.is_stopping:
            self.item.inbox.keep(self.saver.raw)
            self._alarms.sleep(self.item, self.env.clock.mono() + FORBIDDEN_PAUSE)
        return None

    async def _switch_finalizer(self, step: decisions.SwitchFinalizer) -> bodies.RawBody | None:
        item = self.item
        is_edited = not item.initial and any(
            field and field[0] not in ('metadata', 'status') for _, field, _, _ in self._diff)
        if isinstance(step, decisions.RemoveFinalizer) and not is_edited:
            now = self.env.clock.now()
            problem = self.env.brakes.take(
                brakes.Risk.RELEASE, item.resource, bodies.get_uid(self.saver.raw),
                total=len(item.source), parent=self.saver.raw, owner=item.resource, now=now,
                logger=self.logger)
            if problem is not None:
                item.hold(decisions.Hold(problem), self.logger)
                self._braked_until = now.mono + brakes.PERIOD
                return self.saver.raw
        self.logger.debug(step.because)
        patch = patches.Patch()
        if step.handled is not None:
            self._announce()
            self.saver.store_handled(step.handled, self.view.body, patch)
        return await self.saver.switch_finalizer(
            patch, is_added=isinstance(step, decisions.AddFinalizer))

    async def _close(self, step: decisions.Close) -> bodies.RawBody | None:
        """Close the cycle: store the last-handled state, and remove the progress."""
        item, view, settings = self.item, self.view, self.env.settings
        cycle, conclusion = item.get_cycle(), step.conclusion
        build_essence = self.saver.ledger.build_essence
        divergent = conclusion.divergent
        is_too_large = recording.is_too_large(conclusion, body=view.body)
        if is_too_large and step.reason == causes.Reason.NOOP:
            self.logger.warning(
                "The object is too large to remember that only some of its handlers have seen "
                "the state from which it has returned now: if the operator restarts, and that "
                "state comes again, the other handlers do not see it.")
            conclusion = conclusion._replace(divergent=None)
        elif is_too_large:
            self.logger.warning(
                "The object is too large to remember which of its states were seen by which "
                "handlers, while it was changed by others: all of them are called again.")
            item.proceed(cycle.forget_finished(now=self.env.clock.now()))
            return self.saver.raw
        if step.told:
            self.logger.debug(step.because)
        if step.reason in causes.TITLES:
            self._tell_processed()
            if not cycle.roots:
                self._announce()
        results = cycle.results if self.handlers.is_status_essential else []
        if results:  # handlers of the status must not see the results of handlers as changes
            merged: Any = self.saver.raw
            for result in results:
                merged = patches.merge(merged, result)
            conclusion = conclusion._replace(
                base=essences.advance(conclusion.base, results, build_essence(merged)))
        conclusion = conclusion._replace(
            resumes=step.reason in causes.HANDLED_REASONS or self._is_resumed(cycle))
        old = None if view.is_outdated else view.old
        is_there = recording.is_committed(conclusion, old=old, body=view.body, settings=settings)
        item.proceed(item.get_cycle().closing_with(None if is_there else conclusion))
        handler_ids = [handler.id for handler in self.handlers.changing]
        known = item.inbox.pending or self.saver.raw
        newest = await self.saver.close(handler_ids, conclusion=conclusion, old=old)
        if results and newest is not None:
            stored = essences.advance(conclusion.base, results, build_essence(newest))
            if stored != conclusion.base:  # e.g. the server has pruned unknown fields
                conclusion = conclusion._replace(base=stored)
                item.proceed(self.item.get_cycle().closing_with(conclusion))
                newest = await self.saver.close([], conclusion=conclusion, old=None)
        if newest is None:
            # The cycle stays until the watch shows the deletion. If it shows older states before
            # that, no handlers are called again.
            return None
        item.proceed(None if divergent is None else cycles.Cycle(
            reason=causes.Reason.UPDATE, has_records=True, divergent=divergent))
        if conclusion.resumes:
            item.resume()
        if divergent is not None or (
                self._judge(newest, conclusion.base) is not claims.Verdict.SAME):
            self._slow_down(cycle.contributions, conclusion.base, known, newest)
            return newest
        item.slow_down(None)
        item.drop()
        self.logger.debug("Handling cycle is finished, waiting for new changes.")
        # A pause is no change, but there can be companions that it stops, or that go on after it.
        return newest if any(map(self.env.find_pause, (self.view.raw, newest))) else None

    def _slow_down(
            self, contributions: Sequence[cycles.Contribution],
            base: bodies.BodyEssence, known: bodies.RawBody, newest: bodies.RawBody,
    ) -> None:
        """
        Slow down the next cycle if only the last patches of this one have caused it.

        What changes in the PATCH itself, from the known to the newest state, was probably made by
        an admission webhook. A change by others at that time ends the slowdown as soon as it is
        followed by another one.
        """
        essence = self.saver.ledger.build_essence(newest)
        fields = feedbackloops.find_own(diffs.diff(base, essence), [
            *(item.patch for item in contributions),
            patches.Patch(application.get_effect(known, newest))])
        slowdown = feedbackloops.slow_down(
            self.item.slowdown, essence, now=self.env.clock.mono()) if fields else None
        self.item.slow_down(slowdown)
        if slowdown is not None and slowdown.is_new:
            names = ', '.join(sorted({repr(item.handler_id) for item in contributions if any(
                feedbackloops.makes(item.patch, field) for field in fields)}))
            what = ', '.join('.'.join(field) for field in fields)
            self.logger.warning(
                f"{slowdown.cycles} times in a row, the handlers were called only because "
                f"{names or 'an admission webhook'} had changed {what}. From now on, such calls "
                f"are delayed by up to {feedbackloops.MAX_DELAY:g} seconds. Change the object only "
                f"if it is not as it should be, or let the handlers select other fields by field=.")

    def _warn_of_changes(self, cause: causes.ChangingCause, patch: patches.Patch | None) -> None:
        """Warn once of what a handler has changed in place, but does not write with its patch."""
        raw, copies = bodies.get_raw(cause.body), bodies.get_copies(cause.body)
        if not copies or self._has_warned or (patch and patch.fns):
            return
        changes = [
            (*path, *change.field) for path in CHANGED_IN_PLACE if path[0] in copies
            for change in diffs.diff(*(dicts.resolve(part, path, None) for part in (raw, copies)))]
        written = patches.merge(raw, patch or {}) if changes else raw
        names = ['.'.join(path) for path in changes if dicts.resolve(
            written, path, None) != dicts.resolve(copies, path, None)]
        if names:
            self._has_warned = True
            self.logger.warning(
                f"The handlers have changed {', '.join(names)} in memory only: this is not "
                f"written. To change the object, use the argument `patch`.")

    def _is_resumed(self, cycle: cycles.Cycle) -> bool:
        """Whether all resuming handlers have finished, though the closing reason has none."""
        resuming = [handler for handler in self._selection.handlers if handler.initial]
        if not resuming:
            return self.reason == causes.Reason.RESUME
        return all(handler.id in cycle.states and cycle.states[handler.id].finished
                   for handler in resuming)

    async def _release(self, step: decisions.Release) -> bodies.RawBody | None:
        """Remove the finalizer: all deletion handlers have finished."""
        self._tell_processed()
        self.logger.debug(step.because)
        newest, is_released = await self.saver.release(
            [handler.id for handler in self.handlers.changing])
        if is_released:
            self.item.proceed(None)
        return None if is_released else newest

    def _announce(self) -> None:
        if self._announced == self.reason or self.reason not in causes.TITLES:
            return
        self._announced = self.reason
        if self.logger.isEnabledFor(logging.DEBUG):
            from kopf._cogs.structs import concealing  # only for this level
            title = causes.TITLES[self.reason]
            body = concealing.conceal(self.view.body, self.item.resource)
            self.logger.debug(f"{title} is in progress: {body!r}")
            if self._diff and self.reason == causes.Reason.UPDATE:
                diff = concealing.conceal(self._diff, self.item.resource)
                self.logger.debug(f"{title} diff: {diff!r}")

    def _tell_processed(self) -> None:
        """Log that the handlers have finished; not again if that could not be written."""
        cycle = self.item.get_cycle()
        done, failed = progression.count(cycle.states, cycle.roots)
        told = f"{causes.TITLES[self.reason]} is processed: {done} succeeded; {failed} failed."
        if cycle.roots and cycle.told != told:
            self.item.proceed(cycle._replace(told=told))
            self.logger.info(told)

    def _tell_superseded(self, cycle: cycles.Cycle, reason: causes.Reason) -> None:
        if cycle.roots and cycle.reason in causes.TITLES and reason in causes.TITLES:
            done, failed = progression.count(cycle.states, cycle.roots)
            self.logger.info(
                f"{causes.TITLES[cycle.reason]} is superseded by {causes.TITLES[reason].lower()}: "
                f"{done} succeeded; {failed} failed; "
                f"{len(cycle.roots) - done - failed} left to the moment.")

    # Calling handlers.

    async def _call(self, due: Sequence[handlers.ChangingHandler]) -> None:
        """Call the next of the handlers that the lifecycle has chosen; if none are left, choose."""
        self._absorb()
        if self._find_misfit() is not None:  # others have changed the status: decide again
            return
        self._announce()
        lifecycle = self.env.lifecycle or lifecycles.get_default_lifecycle()
        chosen = [handler for handler in self._chosen if handler in due] or self._choose(
            lifecycle, due)
        handler, *self._chosen = chosen
        if self.item.initial and self.item.get_cycle().states[handler.id].is_new:
            self._warn_of_unknown(handler)
        await self._execute(handler)
        self._is_chosen_done = not self._chosen and lifecycle is not lifecycles.asap

    def _warn_of_unknown(self, handler: handlers.ChangingHandler) -> None:
        """Warn if a handler could be called again because it was renamed since the restart."""
        unknown = recording.find_unknown(
            self.handlers.changing, purpose=self.reason, body=self.view.body,
            settings=self.env.settings)
        if unknown:
            self.logger.warning(
                f"{handler!r} is called, though the object has the progress of handlers that are "
                f"not there: {', '.join(unknown)}. If the handler was renamed, it can have done "
                f"this before. To rename a function, keep the old name as the id: id='...'.")

    def _choose(
            self, lifecycle: lifecycles.LifeCycleFn, due: Sequence[handlers.ChangingHandler],
            cause: causes.Cause | None = None,
    ) -> Sequence[handlers.ChangingHandler]:
        state = self.item.get_cycle().states
        if lifecycle is lifecycles.asap:
            return lifecycles.asap(due, state=state)  # type: ignore[return-value]
        kwargs = (cause if cause is not None else self._get_cause()).kwargs
        chosen: Any = lifecycle(due, **{**kwargs, 'state': state})
        if not chosen:
            raise RuntimeError(f"The lifecycle has chosen none of the due handlers: {due}.")
        return list(chosen)

    async def _execute(
            self,
            handler: handlers.ChangingHandler,
            cause: causes.ChangingCause | None = None,
            *,
            field: dicts.FieldPath | None = None,
    ) -> None:
        """Make an attempt, and note the outcome. ``field`` is the field of the parent handler."""
        cause = cause if cause is not None else self._get_cause().narrow(field)
        family = subhandling.Family(handler, functools.partial(
            self._execute_children, handler.id, field=handler.field or field))
        before = self.saver.raw
        self.saver.arm()
        now = self.env.clock.now()
        cycle = self.item.get_cycle().begin(handler.id, now=now)
        self.item.proceed(cycle)
        self.item.enter(objects.Phase.CALLING)
        try:
            outcome = await execution.execute(
                handler, cause, context=self.env, state=cycle.states[handler.id], family=family,
                filter_error=self._selection.failing.get(handler))
        finally:
            self.item.enter(objects.Phase.WORKING)
        try:
            self.env.client.verify_term()  # what a thread has done in a former term is not recorded
        except errors.NotLeadingError:
            with contextlib.suppress(Exception):  # the same, or the write was refused for that
                await self.saver.settle()
            raise
        self._warn_of_changes(cause, outcome.patch)
        self._now = self.env.clock.now()
        self.item.proceed(self.item.get_cycle().note(
            handler.id, outcome, essence=self.view.essence, now=self._now))
        if outcome.is_immediate:
            until = progression.space(self._now.mono, invoked=now.mono)
            await asyncio.sleep(until - self._now.mono)
            self._now = self.env.clock.now()
        if self.saver.is_busy:
            await self.saver.settle()
        if self.saver.raw is not before:
            self._now = self.env.clock.now()
            self._cause = None
        elif outcome.patch or outcome.result is not None or bodies.get_copies(cause.body):
            self._cause = None  # the next handler does not see what this one has changed in place

    async def _execute_children(
            self,
            parent_id: ids.HandlerId,
            children: list[handlers.ChangingHandler],
            lifecycle: lifecycles.LifeCycleFn | None,
            cause: causes.Cause | None,
            *,
            field: dicts.FieldPath | None,
    ) -> None:
        """Execute the due sub-handlers one after another, and retry the parent for the others."""
        env = self.env
        own = cause if isinstance(cause, causes.ChangingCause) else None
        selection = filters.select(
            children, own if own is not None else self._get_cause().narrow(field))
        for error in selection.failing.values():
            raise error
        self._warn_of_namesakes(selection.handlers, 'sub-handlers', "@kopf.subhandler(id=item)")
        self.item.proceed(self.item.get_cycle().join(
            selection.handlers, recall=self._recall, now=env.clock.now(), as_roots=False,
        ).attach(parent_id, [child.id for child in children]))
        lifecycle = lifecycle or env.lifecycle or lifecycles.get_default_lifecycle()
        with self._between_calls():
            while True:
                due, wait = progression.find_due(
                    selection.handlers, self.item.get_cycle().states, now=env.clock.mono())
                if wait is None:
                    return
                if wait > 0:
                    raise handlererrors.HandlerChildrenRetry(delay=wait)
                self._check_interrupted()
                for handler in self._choose(lifecycle, due, own):
                    self._check_interrupted()
                    with _retrying_outside():
                        await self._execute(handler, own, field=field)
                    if self.item.get_cycle().must_be_saved(
                            now=env.clock.mono(), delay=env.settings.persistence.flush_delay,
                            is_status_essential=self.handlers.is_status_essential):
                        await self._save_in_between()
                if lifecycle is not lifecycles.asap:
                    await self._save_in_between()

    def _warn_of_namesakes(
            self, candidates: Iterable[handlers.ChangingHandler], what: str, example: str,
    ) -> None:
        """
        Warn once in a cycle if several handlers have one id, e.g. sub-handlers that a loop makes:
        Kopf calls only the first one.
        """
        states = {} if self.item.cycle is None else self.item.cycle.states
        counts = collections.Counter(handler.id for handler in candidates)
        for id_, count in counts.items():
            if count > 1 and id_ not in states:
                self.logger.warning(
                    f"{count} {what} have the id {id_!r}, so only the first one is called. "
                    f"Give each an id of its own, for example: {example}")

    @contextlib.contextmanager
    def _between_calls(self) -> Iterator[None]:
        """Do what must not be interrupted, though the parent handler is being called."""
        self.item.enter(objects.Phase.WORKING)
        try:
            yield
        finally:
            self.item.enter(objects.Phase.CALLING)

    def _check_interrupted(self) -> None:
        """Stop before the next sub-handler if the object has changed, or the operator stops."""
        self._switch.confirm()
        if self.item.gone or self._is_interrupted or self._has_moved() or self._find_pause():
            raise handlererrors.HandlerChildrenRetry(delay=None)
        self._absorb()

    async def _save_in_between(self) -> None:
        """Write between two sub-handlers; the next ones see the state that the server returns."""
        has_moved = self._has_moved()  # nested sub-handlers can have met that: they have saved
        with _retrying_outside():
            newest = await self.saver.save()
        if has_moved or newest is None or (
                self._judge(newest, self.saver.expected) is not claims.Verdict.SAME):
            raise handlererrors.HandlerChildrenRetry(delay=None)
        self.view = decisions.look(
            newest, settings=self.env.settings, extra_fields=self.handlers.extra_fields,
            converter=self.handlers.converter)
        self._diff = diffs.diff(self.view.old, self.view.essence)
        self._cause = None


@contextlib.contextmanager
def _retrying_outside() -> Iterator[None]:
    """
    Stop the parent handler, without an error, if a write fails between its sub-handlers.

    An error of the write is not one of the parent handler: it is tried again outside of it.
    """
    try:
        yield
    except (errors.APIError, application.PatchError, application.OvertakenError):
        raise handlererrors.HandlerChildrenRetry(delay=None) from None
