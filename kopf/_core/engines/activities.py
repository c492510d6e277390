"""
Activities: handlers of the operator itself, for its startup, cleanup, authentication, and probing.

The handlers of an activity are called one after another, with retries, until all have finished.
"""
import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import ids
from kopf._core.actions import execution, progression
from kopf._core.intents import causes, registries


class ActivityError(Exception):
    """
    Some handlers of an activity have failed permanently. ``outcomes`` are those of all handlers.
    """

    def __init__(self, message: str, outcomes: Mapping[ids.HandlerId, progression.Outcome]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


async def run_activity(
        *,
        registry: registries.OperatorRegistry,
        activity: causes.Activity,
        memo: Any,
        context: execution.Context,
        retrying: bool = True,
) -> Mapping[ids.HandlerId, Any]:
    """
    Run all handlers of an activity, and return their results by handler ids, except for None.

    Unless ``retrying``, each handler has one attempt only, whatever its options are.

    :raises ActivityError: after all handlers have finished, if any of them has failed permanently.
    """
    cause = causes.ActivityCause(
        logger=logging.getLogger(f'kopf.activities.{activity.value}'), memo=memo,
        indices=context.indices, activity=activity, settings=context.settings)
    clock = context.clock
    declared = [
        handler if retrying else dataclasses.replace(handler, retries=1)
        for handler in registry.get_activity_handlers(activity)]
    states = progression.State({
        handler.id: progression.HandlerState.new(now=clock.now()) for handler in declared})
    outcomes: dict[ids.HandlerId, progression.Outcome] = {}
    while True:
        due, wait = progression.find_due(declared, states, now=clock.mono())
        if wait is None:
            break
        if wait > 0:
            await asyncio.sleep(wait)
        for handler in due:
            outcome = outcomes[handler.id] = await execution.execute(
                handler, cause, context=context, state=states[handler.id])
            states[handler.id] = states[handler.id].after(outcome, now=clock.now())
    failures = {id_: outcome for id_, outcome in outcomes.items() if outcome.exception is not None}
    if failures:
        reasons = '; '.join(f"{id_}: {outcome.message}" for id_, outcome in failures.items())
        first = next(iter(failures.values())).exception
        raise ActivityError(f"The {activity.value} has failed: {reasons}", outcomes) from first
    return {id_: outcome.result for id_, outcome in outcomes.items() if outcome.result is not None}
