"""
Runs of externals: the reconcilers call a driver instead of a function, and this is what it can do.

A driver calls the author's functions, one attempt each, and can have something written to the
object between two of them: so, what matters is on the object before the next function is called.
"""
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, patches
from kopf._core.actions import application, execution, finalizers, progression
from kopf._core.engines.reconciling import hub
from kopf._core.intents import causes, handlers


class Result(NamedTuple):
    """What came of a run."""
    due: float | None = None
    """When to run again though nothing has changed (monotonic time); None for never."""
    outcome: progression.Outcome | None = None
    """The outcome of the attempt that has failed; None if none has."""
    is_settled: bool = True
    """Whether all is done, so that earlier failures do not count any more."""


class Run:
    """One run for one object: what it reads, and how it acts."""

    def __init__(
            self, *,
            handler: handlers.ExternalHandler,
            raw: bodies.RawBody,
            target: application.Target,
            cause: causes.ReconcilingCause,
            context: execution.Context,
            state: progression.HandlerState,
            accept: Callable[[bodies.RawBody, bodies.RawBody, bodies.RawBody, bool], None],
            limits: hub.Limits,
    ) -> None:
        self.handler = handler
        self.raw: bodies.RawBody | None = raw
        """The newest known state; None if the object is gone."""
        self.target = target
        self.cause = cause
        self.context = context
        self.state = state
        self.problems: list[str] = []
        """Why the object is not as it should be."""
        self.limits = limits
        self._accept = accept

    async def call(self, handler: handlers.CallHandler, **extras: Any) -> progression.Outcome:
        """
        Make an attempt of a function of the author.

        :raises errors.NotLeadingError: if another operator works with the object.
        """
        self.target.client.verify_term()
        state = self.state._replace(began=self.context.clock.mono())  # each call has its own time
        return await execution.execute(
            handler, self.cause, context=self.context, state=state, extras=extras)

    async def write(
            self, annotations: Mapping[str, str | None], *, finalizer: str, is_held: bool,
    ) -> bool:
        """
        Write annotations, and add or remove the finalizer; false if others were faster.

        Nothing is written over any other values of the annotations than those that were read.

        :raises errors.APIError: if it is not known whether it is written.
        """
        raw: Any = self.raw
        if raw is None:
            return False
        wanted: Any = raw if finalizers.is_present(raw, finalizer) is is_held else (
            finalizers.switch(raw, finalizer, is_added=is_held))
        merged = patches.merge(raw['metadata'].get('annotations') or {}, annotations)
        wanted = {**wanted, 'metadata': {**wanted['metadata'], 'annotations': merged}}
        newest, is_written = await application.exchange(
            self.target, raw, patches.make_json_patch(raw, wanted),
            guards=finalizers.guard(raw, {'metadata': {'annotations': annotations}}) or (
                application.VERSION))
        if newest is not None:
            self._accept(raw, newest, wanted, is_written)
            self.cause = dataclasses.replace(self.cause, body=bodies.Body(newest))
        is_gone = newest is not None and finalizers.is_deleting(newest) and (
            not newest['metadata'].get('finalizers'))
        self.raw = None if is_gone else newest
        return is_written and newest is not None
