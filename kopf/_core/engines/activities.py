"""
Activities: what happens to the operator itself: its startup, cleanup, authentication, probing.

The handlers of an activity run one after another, with retries, until all have finished.
"""
import asyncio
import datetime
import logging
from collections.abc import Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import ids
from kopf._core.actions import execution, invocation, lifecycles, progression
from kopf._core.intents import causes, handlers, registries


class ActivityError(Exception):
    """Some of the handlers of an activity have failed for good."""

    def __init__(self, message: str, outcomes: Mapping[ids.HandlerId, progression.Outcome]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


async def run_activity(
        *,
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        activity: causes.Activity,
        clock: clocks.Clock,
        memo: Any,
        indices: Mapping[str, Any],
        lifecycle: lifecycles.LifeCycleFn = lifecycles.all_at_once,
) -> Mapping[ids.HandlerId, Any]:
    """
    Run all handlers of an activity, and return their results by ids.

    :raises ActivityError: when all have finished, and some of them have failed.
    """
    logger = logging.getLogger(f'kopf.activities.{activity.value}')
    cause = causes.ActivityCause(
        logger=logger, memo=memo, indices=indices, activity=activity, settings=settings)
    left = list(registry.get_activity_handlers(activity))
    states = progression.State({
        handler.id: progression.HandlerState.new(now=clock.now()) for handler in left})
    outcomes: dict[ids.HandlerId, progression.Outcome] = {}
    while left:
        now = clock.now().mono
        due = [handler for handler in left if states[handler.id].due <= now]
        if not due:
            await asyncio.sleep(min(states[handler.id].due for handler in left) - now)
            continue
        chosen: Any = lifecycle(due, **{**cause.kwargs, 'state': states})
        for handler in chosen:
            outcome = await _attempt(handler, cause, states[handler.id], clock)
            states[handler.id] = states[handler.id].after(outcome, now=clock.now())
            outcomes[handler.id] = outcome
        left = [handler for handler in left if not states[handler.id].finished]
    failures = {id_: outcome for id_, outcome in outcomes.items() if outcome.exception is not None}
    if failures:
        reasons = '; '.join(f"{id_}: {outcome.message}" for id_, outcome in failures.items())
        raise ActivityError(f"The {activity.value} has failed: {reasons}", outcomes)
    return {id_: outcome.result for id_, outcome in outcomes.items() if outcome.result is not None}


async def _attempt(
        handler: handlers.ActivityHandler,
        cause: causes.ActivityCause,
        state: progression.HandlerState,
        clock: clocks.Clock,
) -> progression.Outcome:
    kwargs = {
        **cause.kwargs, 'param': handler.param, 'retry': state.retries, 'started': state.started,
        'runtime': datetime.timedelta(seconds=state.age(clock.mono())), **cause.indices}
    return await execution.attempt(
        handler,
        call=lambda: invocation.invoke(
            handler, kwargs, cause.settings.execution.executor),
        state=state,
        settings=cause.settings,
        clock=clock,
        logger=cause.logger,
        title='Activity',
        any_result=True,
    )
