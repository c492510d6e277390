"""
Attribution: which handler is behind a request, and which handlers have failed.

Requests are served in other tasks than they are sent in. So, the handler is found in the context
(`contextvars`) in which the request was written: there, the handler runs, or Kopf writes what the
handlers have left.
"""
import contextvars
import dataclasses
from collections.abc import Collection

from kopf._cogs.structs import bodies, references
from kopf._core.actions import observers, progression
from kopf._core.intents import causes, handlers


@dataclasses.dataclass(eq=False)
class Work:
    """What is done for one object: its handlers that have been called."""
    place: str
    done: dict[str, None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Failure:
    """The error with which the latest attempt of a handler has ended for an object."""
    handler: str
    place: str
    message: str


work_var: contextvars.ContextVar[Work | None] = contextvars.ContextVar('work_var', default=None)
handler_var: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    'handler_var', default=None)
"""The handler that is running in this context."""


def find_handlers(context: contextvars.Context) -> Collection[str]:
    """Name the handlers that are behind what is written in this context; none if it is Kopf."""
    running, work = context.get(handler_var), context.get(work_var)
    return [running] if running is not None else [] if work is None else list(work.done)


class Attribution(observers.Observer):
    """Notes in the contexts which handlers run, and for which objects."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, Failure] = {}
        """By the names of the handlers and the objects."""
        self.delay = 0.0
        """The longest delay (seconds) until a handler is called again."""

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> observers.Ended[progression.Outcome]:
        place = ''
        if isinstance(cause, causes.ResourceCause):
            place = describe(cause.resource, cause.body)
        name = f"{handler.id} for {place}" if place else str(handler.id)
        work = work_var.get()
        if work is None or work.place != place or isinstance(handler, handlers.SpawningHandler):
            work = Work(place)
            work_var.set(work)
        parent = handler_var.get()
        handler_var.set(name)

        def end(
                outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
        ) -> None:
            handler_var.set(parent)
            work.done[name] = None
            self.failures.pop(name, None)
            if outcome is None:
                return
            self.delay = max(self.delay, outcome.delay or 0.0)
            if outcome.exception is not None and not outcome.waiting:
                self.failures[name] = Failure(
                    str(handler.id), place, outcome.message or repr(outcome.exception))
        return end

    passage = observers.Observer.passage  # not notified
    write = observers.Observer.write  # not notified

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody,
    ) -> observers.Ended[observers.Sequel]:
        work_var.set(Work(describe(resource, raw)))
        return lambda *_: None


def describe(resource: references.Resource, raw: bodies.RawBody | bodies.Body) -> str:
    """Name an object: ``kopfexamples default/example``."""
    metadata = raw['metadata']
    return f"{resource.plural} {'/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))}"
