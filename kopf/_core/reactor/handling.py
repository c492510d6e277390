"""
Turns of handling: from one state of an object, through its handlers, to the next state.

A turn ends when the handlers are done or have to wait, when something else has happened to
the object, or when the own changes have to be seen as the server has stored them.
"""
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs, memos, patches
from kopf._core.actions import cycles, decisions, execution, invocation, lifecycles, progression
from kopf._core.intents import causes, errors, filters, handlers, registries
from kopf._core.reactor import lines, saving, subhandling

PRECISION = 0.001
"""How much earlier than planned is early enough, in seconds: timers are not more precise."""


@dataclasses.dataclass(kw_only=True)
class Environment:
    """What all the objects of an operator have in common."""
    client: api.Client
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    memo: Any
    indices: Mapping[str, Any]
    lifecycle: lifecycles.LifeCycleFn | None = None


class Turn:
    """
    One look at one state of one object, and everything that follows of it.

    Nothing is left running when it ends. What is done but not written stays in the line's cycle.
    """

    def __init__(
            self, env: Environment, line: lines.Line, raw: bodies.RawBody, logger: Any,
            *, accompanied: bool = False,
    ) -> None:
        super().__init__()
        self.env = env
        self.line = line
        self.logger = logger
        self.handlers = line.stream.handlers
        self._pauses = line.stream.lines.pauses
        self.accompanied = accompanied
        """Whether daemons & timers keep the object from being deleted."""
        self.view = decisions.look(
            raw, settings=env.settings, extra_fields=self.handlers.extra_fields)
        self.shown = raw
        """The state as handlers see it: with the results of the previous ones laid over."""
        self.saver = saving.Saver(line, raw, client=env.client, settings=env.settings,
                                  clock=env.clock, logger=logger)
        self._failing: dict[handlers.ChangingHandler, Exception] = {}
        self._cause: causes.ChangingCause | None = None
        self._reason = causes.Reason.NOOP
        self._diff = diffs.EMPTY
        self._announced = False

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

    def _get_cause(self) -> causes.ChangingCause:
        if self._cause is None:
            line = self.line
            self._cause = causes.ChangingCause(
                logger=self.logger,
                memo=get_memo(self.env, line),
                indices=self.env.indices,
                resource=line.stream.resource,
                body=bodies.Body(self.shown),
                patch=patches.Patch(),
                reason=self._reason,
                initial=line.initial,
                diff=self._diff,
                old=self.view.old,
                new=self.view.essence,
            )
        return self._cause

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

    def _load(self, selected: Sequence[handlers.ChangingHandler]) -> None:
        assert self.line.cycle is not None
        now = self.env.clock.now()
        for handler in selected:
            self.line.cycle.load(
                handler.id, body=self.view.body, settings=self.env.settings, now=now,
                any_purpose=bool(handler.initial))

    def _is_last(self, selected: Sequence[handlers.ChangingHandler]) -> bool:
        assert self.line.cycle is not None
        return all(self.line.cycle.states[handler.id].finished for handler in selected)

    def _choose(
            self, lifecycle: lifecycles.LifeCycleFn, due: Sequence[handlers.ChangingHandler],
            cause: causes.Cause | None = None,
    ) -> Sequence[handlers.ChangingHandler]:
        assert self.line.cycle is not None
        if lifecycle is lifecycles.asap:
            return lifecycles.asap(due, state=self.line.cycle.states)  # type: ignore[return-value]
        kwargs = (cause if cause is not None else self._get_cause()).kwargs
        chosen: Any = lifecycle(due, **{**kwargs, 'state': self.line.cycle.states})
        if not chosen:
            raise RuntimeError(f"The lifecycle has chosen none of the due handlers: {due}.")
        return list(chosen)

    @property
    def is_stopped(self) -> bool:
        """Whether the operator exits, or was frozen meanwhile: nothing more is to be done."""
        return self.line.stream.lines.stopping or self.line.stream.lines.pauses != self._pauses

    def _is_interrupted(self) -> bool:
        """Between handlers: whether there is something that makes the cause be detected anew."""
        line = self.line
        line.stream.lines.check_paused()
        if line.gone or self.is_stopped or self.saver.overtaken:
            return True
        pending = line.pending
        if pending is None:
            return False
        essence = self._build_essence(pending)
        if essence != self.view.essence or decisions.is_deleting(pending) != self.view.deleting:
            return True
        self.saver.raw = pending
        line.pending = None
        self._refresh()
        return False

    def _refresh(self) -> None:
        """Show the newest state to the next handlers, with what is not written yet."""
        assert self.line.cycle is not None
        self.shown = self.saver.raw
        for contribution in self.line.cycle.contributions:
            if 'status' in contribution.patch:
                status = {'status': contribution.patch['status']}
                self.shown = patches.merge(self.shown, status)  # type: ignore[assignment]
        self._cause = None

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
        cycle.closing = (essence, ahead) if essence != view.old or ahead is not None else None
        newest = await self.saver.close(
            [handler.id for handler in self.handlers.changing],
            essence=None if essence == view.old else essence, ahead=ahead)
        if results and newest is not None:
            stored = cycles.advance(essence, results, self._build_essence(newest))
            if stored != essence:  # pruned by the server
                essence = stored
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

    def _is_changed(self, raw: bodies.RawBody, essence: bodies.BodyEssence) -> bool:
        """Whether someone else, or the server, has changed more than we did."""
        if raw is self.view.raw:
            return essence != self.view.essence
        return decisions.is_deleting(raw) != self.view.deleting or (
            essence != self._build_essence(raw))

    def _build_essence(self, raw: Any) -> bodies.BodyEssence:
        return decisions.build_essence(
            bodies.Body(raw), settings=self.env.settings, extra_fields=self.handlers.extra_fields)

    def _is_status_essential(self) -> bool:
        return any(path[:1] == ('status',) for path in self.handlers.extra_fields)

    async def _execute(
            self, handler: handlers.ChangingHandler, cause: causes.ChangingCause | None = None,
    ) -> None:
        """Make an attempt, and remember what came of it."""
        cycle = self.line.cycle
        assert cycle is not None
        cause = cause if cause is not None else self._get_cause()
        state = cycle.states[handler.id]
        patch = patches.Patch(body=cause.body)
        family = subhandling.Family(handler, self._execute_family)
        kwargs = self._get_kwargs(handler, cause, state, patch)

        self.saver.arm()
        outer, self.line.interruptible = self.line.interruptible, True
        try:
            outcome = await execution.attempt(
                handler,
                call=lambda: self._call(handler, family, kwargs),
                state=state,
                settings=self.env.settings,
                clock=self.env.clock,
                logger=self.logger,
            )
        finally:
            self.line.interruptible = outer
            self.saver.disarm()
        if patch:
            try:
                execution.encode(patch)
            except (TypeError, ValueError, RecursionError) as e:
                reason = ValueError(f"its patch is not JSON: {e}")
                outcome = execution.fail(handler, reason, self.logger)
                patch = patches.Patch()
        if family.members:
            outcome = outcome._replace(subrefs=family.members)
        cycle.note(handler.id, outcome, patch, essence=self.view.essence, now=self.env.clock.now())
        await self.saver.settle()
        if patch or outcome.result is not None or self.saver.moved:
            self._refresh()

    def _get_kwargs(
            self,
            handler: handlers.ChangingHandler,
            cause: causes.ChangingCause,
            state: progression.HandlerState,
            patch: patches.Patch,
    ) -> dict[str, Any]:
        kwargs = dict(cause.kwargs)
        kwargs['patch'] = patch
        kwargs['param'] = handler.param
        kwargs['retry'] = state.retries
        kwargs['started'] = state.started
        kwargs['runtime'] = datetime.timedelta(seconds=state.age(self.env.clock.mono()))
        if handler.field:
            kwargs['old'] = dicts.resolve(cause.old, handler.field, None)
            kwargs['new'] = dicts.resolve(cause.new, handler.field, None)
            kwargs['diff'] = diffs.reduce(cause.diff, handler.field)
        kwargs.update(cause.indices)
        return kwargs

    async def _call(
            self, handler: handlers.ChangingHandler, family: subhandling.Family,
            kwargs: Mapping[str, Any],
    ) -> Any:
        if handler in self._failing:
            raise self._failing[handler]
        executor = self.env.settings.execution.executor
        token = registries.parent_var.set(family)
        try:
            result = await invocation.invoke(handler, kwargs, executor)
            if family.declared and not family.executed:
                await family.execute(family.declared)
            return result
        finally:
            registries.parent_var.reset(token)

    async def _execute_family(
            self,
            children: list[handlers.ChangingHandler],
            lifecycle: lifecycles.LifeCycleFn | None,
            cause: causes.Cause | None,
    ) -> None:
        """Execute the sub-handlers which are due, one after another; the rest is for later."""
        cycle = self.line.cycle
        assert cycle is not None
        own = cause if isinstance(cause, causes.ChangingCause) else None
        survey = filters.survey(children, own if own is not None else self._get_cause())
        if survey.errors:
            raise survey.errors[0].error
        self._load(survey.matching)
        lifecycle = lifecycle or self.env.lifecycle or lifecycles.get_default_lifecycle()
        while True:
            now = self.env.clock.mono() + PRECISION
            unfinished = [h for h in survey.matching if not cycle.states[h.id].finished]
            if not unfinished:
                return
            due = [h for h in unfinished if cycle.states[h.id].due <= now]
            if not due:
                delay = min(cycle.states[h.id].due for h in unfinished) - self.env.clock.mono()
                raise errors.HandlerChildrenRetry(delay=delay)
            if self._is_interrupted():
                raise errors.HandlerChildrenRetry(delay=None)
            for handler in self._choose(lifecycle, due, own):
                if self._is_interrupted():
                    raise errors.HandlerChildrenRetry(delay=None)
                await self._execute(handler, own)
                if self.saver.is_urgent(self.handlers.extra_fields):
                    await self._save_in_between()
            if lifecycle is not lifecycles.asap:
                await self._save_in_between()

    async def _save_in_between(self) -> None:
        """Write while the parent is not finished; its next sub-handlers see what the server has."""
        self.line.interruptible = False
        newest = await self.saver.save()
        self.line.interruptible = True
        if newest is None:
            raise errors.HandlerChildrenRetry(delay=None)
        self.view = decisions.look(newest, settings=self.env.settings,
                                   extra_fields=self.handlers.extra_fields)
        self._diff = diffs.diff(self.view.old, self.view.essence)
        self._refresh()

    def _announce(self) -> None:
        if not self._announced and self._reason in causes.TITLES:
            self._announced = True
            if self.logger.isEnabledFor(10):
                title = causes.TITLES[self._reason]
                self.logger.debug(f"{title} is in progress: {self.view.body!r}")
                if self._diff and self._reason == causes.Reason.UPDATE:
                    self.logger.debug(f"{title} diff: {self._diff!r}")

    def _log(self, message: str) -> None:
        self.logger.debug(message)


def get_memo(env: Environment, line: lines.Line) -> Any:
    """The object's own memo: made of the operator's when it is asked for first."""
    if line.memo is None:
        line.memo = memos.make_own(env.memo)
    return line.memo


