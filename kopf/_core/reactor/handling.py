"""
Turns of handling: from one state of an object, through its handlers, to the next state.

A turn ends when the handlers are done or have to wait, when something else has happened to
the object, or when the own changes have to be seen as the server has stored them.
"""
from collections.abc import Sequence
from typing import Any

from kopf._cogs.structs import bodies, patches
from kopf._core.actions import cycles, decisions, lifecycles, progression
from kopf._core.intents import causes, filters, handlers
from kopf._core.reactor import executing
from kopf._core.reactor.turns import PRECISION


class HandlingTurn(executing.ExecutingTurn):
    """
    A turn with everything that follows of the state: the finalizer, the handlers, the cycle's end.

    Nothing is left running when it ends. What is done but not written stays in the line's cycle.
    """

    async def run(self) -> bodies.RawBody | None:
        """Handle the state; return the next one to look at, or None if there is nothing more."""
        line, view = self.line, self.view
        if line.cycle is not None and line.cycle.is_closed(
                old=view.old, body=view.body, settings=self.env.settings):
            line.cycle = None
        if line.cycle is None:
            line.cycle = self._restore_cycle()
        self._reason, self._diff = decisions.detect(view, initial=line.initial)

        survey = filters.survey(self.handlers.changing, self._get_cause())
        in_scope = [*survey.scoped, *(error.handler for error in survey.errors)]
        is_needed = self.accompanied or any(
            getattr(h, 'requires_finalizer', None) for h in in_scope)
        selected = self._get_selected(survey)

        if self._reason == causes.Reason.FREE and not is_needed:
            # Optional handlers need no finalizer, but they can be called while the object exists.
            self._reason = causes.Reason.DELETE
            self._cause = None
            survey = filters.survey(self.handlers.changing, self._get_cause())
            selected = self._get_selected(survey)
            if not selected:
                self._reason = causes.Reason.FREE

        if self._reason == causes.Reason.FREE:
            self._log("Deletion, but we are done with it, and we do not care.")
            self._log("Handling cycle is finished, waiting for new changes.")
            line.cycle = None
            return None
        if not view.deleting and is_needed != view.blocked:
            return await self._switch_finalizer(is_needed, last=not selected and bool(in_scope))
        if not in_scope and not (view.deleting and view.blocked):
            return await self._let_go()

        line.noticed = True
        seen = line.cycle.horizon if line.cycle is not None else None
        if self._reason in (causes.Reason.NOOP, causes.Reason.RESUME) and (
                seen is not None and seen != view.essence):
            self._reason = causes.Reason.NOOP
            return await self._close()  # the edit is reverted after some have handled it
        cycle = line.cycle
        if self._reason == causes.Reason.UPDATE and view.old is not None and (
                cycle is not None and cycle.seen is None and cycle.ahead is not None):
            old = cycles.uncover(view.old, cycle.ahead, returned_to=view.essence)
            if old != view.old:
                cycle.ahead = old
                self._reason = causes.Reason.NOOP
                return await self._close()  # the same, but other fields are changed, too
        if self._reason == causes.Reason.RESUME and not selected:
            line.initial = False
            self._reason = causes.Reason.NOOP
        if self._reason == causes.Reason.NOOP:
            self._log("Something has changed, but we are not interested "
                      "(the essence is the same).")
            return await self._close()
        return await self._handle(selected)

    def _restore_cycle(self) -> cycles.Cycle | None:
        """Find what a previous process has left on the object in the middle of handling."""
        settings, body = self.env.settings, self.view.body
        cycle: cycles.Cycle | None = None
        for handler in self.handlers.changing:
            record = settings.persistence.progress_storage.fetch(key=handler.id, body=body)
            if record:
                state = progression.HandlerState.from_record(record, now=self.env.clock.now())
                if cycle is None:
                    cycle = cycles.Cycle(
                        causes.Reason(state.purpose or causes.Reason.NOOP), stored=True)
                cycle.states[handler.id] = state
                cycle.roots.add(handler.id)
        if cycle is None and settings.persistence.progress_storage.touched(body=body) is not None:
            cycle = cycles.Cycle(causes.Reason.NOOP, stored=True)
        if cycle is not None and any(state.finished for state in cycle.states.values()):
            cycle.seen, cycle.diverged, *_ = *cycles.load_views(body, settings), None, None
        elif cycle is not None:
            cycle.ahead, *_ = *cycles.load_views(body, settings), None
        return cycle

    def _get_selected(self, survey: filters.Survey) -> list[handlers.ChangingHandler]:
        """The handlers of the cause, those too whose filters fail: that is their failure."""
        cause = self._get_cause()
        self._failing = {}
        for error in survey.errors:
            handler = error.handler
            if isinstance(handler, handlers.ChangingHandler) and filters.concerns(handler, cause):
                self._failing[handler] = error.error
        return [*survey.matching, *self._failing]

    async def _switch_finalizer(self, is_needed: bool, *, last: bool) -> bodies.RawBody | None:
        raw, finalizer = self.view.raw, self.env.settings.persistence.finalizer
        if is_needed:
            self._log("Adding the finalizer, thus preventing the actual deletion.")
            wanted = decisions.with_finalizer(raw, finalizer)
        else:
            self._log("Removing the finalizer, as there are no handlers requiring it.")
            wanted = decisions.without_finalizer(raw, finalizer)
        if last and self._reason in (causes.Reason.CREATE, causes.Reason.UPDATE) and (
                self.line.cycle is None):
            self._announce()
            patch = patches.Patch()
            self.env.settings.persistence.diffbase_storage.store(
                body=self.view.body, patch=patch, essence=self.view.essence)
            return await self.saver.exchange(wanted, patch)
        return await self.saver.exchange(wanted, {})

    async def _let_go(self) -> bodies.RawBody | None:
        """No handler is concerned; only what was already done has to be kept."""
        if self.line.cycle is not None and self.line.cycle.dirty:
            await self.saver.save()
        self.line.cycle = None
        return None

    async def _handle(self, selected: Sequence[handlers.ChangingHandler]) -> bodies.RawBody | None:
        cycle = self.line.cycle
        if cycle is None:
            cycle = self.line.cycle = cycles.Cycle(self._reason)
        elif cycle.reason != self._reason:
            cycle.restart(self._reason)
        self._load(selected)
        cycle.roots.update(handler.id for handler in selected)

        lifecycle = self.env.lifecycle or lifecycles.get_default_lifecycle()
        while True:
            now = self.env.clock.mono() + PRECISION
            unfinished = [h for h in selected if not cycle.states[h.id].finished]
            if not unfinished:
                return await self._close()
            due = [h for h in unfinished if cycle.states[h.id].due <= now]
            if not due:
                return await self._pause(min(cycle.states[h.id].due for h in unfinished))
            if self._is_interrupted():
                return await self._leave()
            self._announce()
            chosen = self._choose(lifecycle, due)
            for handler in chosen:
                if handler is not chosen[0] and self._is_interrupted():
                    return await self._leave()
                await self._execute(handler)
                if not self._is_last(selected) and (
                        self.saver.moved or self.saver.is_urgent(self.handlers.extra_fields)):
                    return await self._leave()
            if lifecycle is not lifecycles.asap and not self._is_last(selected):
                return await self._leave()

    def _is_last(self, selected: Sequence[handlers.ChangingHandler]) -> bool:
        assert self.line.cycle is not None
        return all(self.line.cycle.states[handler.id].finished for handler in selected)

    async def _leave(self) -> bodies.RawBody | None:
        """End the turn in the middle: write what is done, go on from what it is then."""
        self.saver.disarm()
        newest = self.saver.raw
        if not self.line.gone and self.line.cycle is not None and self.line.cycle.dirty:
            saved = await self.saver.save()
            if saved is None:
                return None
            newest = saved
        return None if self.line.gone or self.is_stopped else newest

    async def _pause(self, until: float) -> bodies.RawBody | None:
        """All handlers that are left wait for their time; so does the object."""
        assert self.line.cycle is not None
        newest: bodies.RawBody | None = self.saver.raw
        if self.line.cycle.dirty:
            newest = await self.saver.save()
            if newest is None:
                return None
        assert newest is not None
        if self._is_changed(newest, self.view.essence):
            return newest
        delay = max(0.0, until - self.env.clock.mono())
        self._log(f"Sleeping for {delay:.3f} seconds for the delayed handlers.")
        self.line.keep(newest)
        self.line.wait_until(until)
        return None

    async def _close(self) -> bodies.RawBody | None:
        """All handlers have finished: the state is handled, its progress is not needed any more."""
        line, view = self.line, self.view
        if self._reason == causes.Reason.DELETE and self.accompanied:
            await self._wait_for_companions()
            return None
        cycle = line.cycle if line.cycle is not None else cycles.Cycle(self._reason)
        if self._reason in causes.TITLES and cycle.roots and line.cycle is not None:
            done, failed = progression.count(cycle.states, cycle.roots)
            self.logger.info(f"{causes.TITLES[self._reason]} is processed: "
                             f"{done} succeeded; {failed} failed.")
        if self._reason == causes.Reason.DELETE:
            return await self._release()

        if not cycle.roots:
            self._announce()
        essence = cycle.seen if self._reason != causes.Reason.NOOP else cycle.horizon
        essence = essence if essence is not None else view.essence
        is_change = self._reason in (causes.Reason.CREATE, causes.Reason.UPDATE)
        ahead = cycle.diverged if is_change else None
        if essence != view.essence and not cycle.is_complete:
            # Some have seen the one state, and some still know only the other one.
            ahead = cycles.uncover(
                ahead if ahead is not None else essence, view.essence, returned_to=essence)
        results = cycle.unsent_results() if self._is_status_essential() else []
        if results:  # these are no changes to those who handle the status
            merged: Any = self.saver.raw
            for result in results:
                merged = patches.merge(merged, result)
            essence = cycles.advance(essence, results, self._build_essence(merged))
        line.cycle = cycle
        cycle.begin_closing(
            essence, ahead, old=view.old, body=view.body, settings=self.env.settings)
        newest = await self.saver.close(
            [handler.id for handler in self.handlers.changing],
            essence=None if essence == view.old else essence, ahead=ahead)
        if results and newest is not None:
            stored = cycles.advance(essence, results, self._build_essence(newest))
            if stored != essence:  # pruned by the server
                essence = stored
                cycle.closing = essence, ahead
                newest = await self.saver.close([], essence=essence, ahead=ahead)
        line.cycle = None if ahead is None else cycles.Cycle(
            causes.Reason.UPDATE, stored=True, ahead=ahead)
        if self._reason in causes.HANDLED_REASONS:
            line.initial = False
        if newest is None:
            return None
        if ahead is not None or self._is_changed(newest, essence):
            return newest
        line.drop()
        self._log("Handling cycle is finished, waiting for new changes.")
        return None

    async def _wait_for_companions(self) -> None:
        """The daemons are told to stop; the object is looked at again when they have."""
        if self.line.cycle is not None and self.line.cycle.dirty:
            await self.saver.save()

    async def _release(self) -> bodies.RawBody | None:
        """The deletion is handled: let the object go."""
        cycle = self.line.cycle
        assert cycle is not None
        if not self.view.blocked:
            if cycle.dirty:
                await self.saver.save()  # the records stay, for there will be no other sign of it
            return None
        self._log("Removing the finalizer, thus allowing the actual deletion.")
        newest, released = await self.saver.release(
            [handler.id for handler in self.handlers.changing])
        if released:
            self.line.cycle = None
        return newest if newest is not None and not released else None

    def _is_status_essential(self) -> bool:
        return any(path[:1] == ('status',) for path in self.handlers.extra_fields)
