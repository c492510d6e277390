"""
Executing of handlers within a turn: one attempt of one handler, with its sub-handlers.

What came of it is noted in the cycle of the line. Nothing is raised for the author's errors.
"""
import datetime
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import dicts, diffs, patches
from kopf._core.actions import decisions, execution, invocation, lifecycles, progression
from kopf._core.intents import causes, errors, filters, handlers, registries
from kopf._core.reactor import subhandling, turns
from kopf._core.reactor.turns import PRECISION


class ExecutingTurn(turns.Turn):
    """A turn in which handlers are called."""

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
                raise errors.HandlerChildrenRetry(delay=delay)  # the parent is due when they are
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
