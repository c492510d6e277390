"""
Runs of externals: for these, the reconcilers call a driver instead of a function.

A run is what the driver gets for one object. With it, the driver calls the author's functions, one
attempt each, and can write to the object between two of them: so, what matters is on the object
before the next function is called.
"""
import contextvars
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, diffs
from kopf._core.actions import application, execution, finalizers, observers, progression
from kopf._core.engines.reconciling import hub
from kopf._core.intents import causes, handlererrors, handlers

Exchange = Callable[..., Awaitable[tuple[bodies.RawBody | None, bool]]]
"""Writes annotations and a finalizer; returns the newest state, and whether they are written."""


class Withheld(NamedTuple):
    """A call that would change an external system, and that is not made in a preview."""
    handler: handlers.ExternalHandler
    cause: causes.ReconcilingCause
    verb: str
    key: Any
    """The thing that it would change; None for a new thing."""
    diff: diffs.Diff
    """What would be set or updated."""


withholding_var: contextvars.ContextVar[Callable[[Withheld], None] | None] = contextvars.ContextVar(
    'withholding_var', default=None)
"""In a preview: the function that notes the calls that are not made."""


class Result(NamedTuple):
    """The result of a run."""
    due: float = progression.NEVER
    """When to run again though nothing has changed (monotonic time)."""
    outcome: progression.Outcome | None = None
    """The outcome of the attempt that has failed; None if none has."""
    is_settled: bool = True
    """Whether everything is done, so that earlier failures do not count any more."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Run:
    """One run for one object: what it reads, and how it acts."""
    handler: handlers.ExternalHandler
    raw: bodies.RawBody | None
    """The newest known state; None if the object is gone."""
    target: application.Target
    cause: causes.ReconcilingCause
    context: execution.Context
    state: progression.HandlerState
    exchange: Exchange
    limits: hub.Limits
    is_edited: bool
    """Whether the object was edited since its handlers succeeded: then, changes are wanted."""
    siblings: Collection[handlers.ExternalDeclaration]
    """The declarations of all externals that this operator has for objects of this resource."""
    verdicts: dict[str, Any]
    """What the externals of the object have reported, for their common condition."""
    problems: list[str] = dataclasses.field(default_factory=list)
    """Why the object is not as it should be."""
    is_told: bool = False
    """Whether the conditions say already all that is known."""

    async def call(
            self, handler: handlers.CallHandler, find_mistake: Callable[[Any], str | None],
            **extras: Any,
    ) -> progression.Outcome:
        """
        Make an attempt of a function of the author. It fails if there is a mistake in the result.

        :raises errors.NotLeadingError: if another operator works with the object.
        """
        self.target.client.verify_term()
        state = self.state._replace(began=self.context.clock.mono())  # each call has its own time

        async def attempt() -> progression.Outcome:
            outcome = await execution.attempt(
                handler, self.cause, context=self.context, state=state, extras=extras)
            text = None if outcome.exception else find_mistake(outcome.result)
            return outcome if text is None else progression.Outcome(
                final=False, exception=handlererrors.TemporaryError(text), message=text)

        return await self.context.observer.follow(
            observers.Observer.attempt, attempt(), handler, self.cause)

    async def write(self, annotations: Mapping[str, str | None], *, is_held: bool) -> bool:
        """
        Write annotations, and add or remove the finalizer; return false if others were faster.

        It writes only if the annotations still have the values that were read.

        :raises errors.APIError: if it is not known whether it is written.
        """
        raw: Any = self.raw  # nothing is written for an object that is gone
        is_held = is_held and (  # none can be added in a deletion
            not finalizers.is_deleting(raw)
            or finalizers.is_present(raw, hub.EXTERNAL_FINALIZER))
        newest, is_written = await self.exchange(
            raw, self.target, hub.EXTERNAL_FINALIZER, annotations, is_added=is_held)
        if newest is not None:
            self.cause = dataclasses.replace(self.cause, body=bodies.Body(newest))
        is_gone = newest is not None and finalizers.is_deleting(newest) and (
            not newest['metadata'].get('finalizers'))
        self.raw = None if is_gone else newest
        return is_written and newest is not None
