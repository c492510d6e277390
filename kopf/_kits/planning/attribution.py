"""
Attribution: which handler is behind a request, and which handlers have failed.

Requests are served in other tasks than they are sent in. So, the handler is found in the context
(`contextvars`) in which the request was written: there, the handler runs, or Kopf writes what the
handlers have left.
"""
import asyncio
import contextlib
import contextvars
import dataclasses
import math
import re
from collections.abc import Sequence

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, ids, references
from kopf._core.actions import observers, progression, recording
from kopf._core.intents import causes, handlers, pauses, typedargs
from kopf._kits.sandbox.statuses import qualified

FRESH = (handlers.SpawningHandler, handlers.ReconcilingHandler)
"""The handlers whose writes follow at once, so that no earlier handlers are behind them."""


VARYING = re.compile(r'0x[0-9a-f]+|[0-9a-f]+(?:-[0-9a-f]+){4}|\d')
"""What differs in the messages of the same error: addresses in memory, uids, times, sizes."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """The error with which the last attempt of a handler has ended for an object."""
    handler: str
    place: str
    """The object: ``kopfexamples.kopf.dev default/example``."""
    message: str

    @property
    def gist(self) -> str:
        """The message without the name of the object, and without what differs by itself."""
        name = self.place.rpartition(' ')[2].rpartition('/')[2]
        return VARYING.sub('', re.sub(rf'\b{re.escape(name)}\b', '', self.message))


work_var: contextvars.ContextVar[dict[str, None] | None] = contextvars.ContextVar(
    'work_var', default=None)
"""The handlers that have been called for the object that is handled in this context."""

handler_var: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    'handler_var', default=None)
"""The handler that runs in this context."""


def find_handlers(context: contextvars.Context) -> Sequence[str]:
    """Name the handlers that are behind what is done in this context; none if it is Kopf itself."""
    running, called = context.get(handler_var), context.get(work_var)
    return [running] if running is not None else list(called or ())


class Attribution(observers.Observer):
    """
    Notes in the contexts which handlers run, and for which objects. The ``horizon`` is the time of
    the loop at which the operator ends.
    """

    def __init__(self, horizon: float = math.inf) -> None:
        super().__init__()
        self._horizon = horizon
        self.failures: dict[str, Failure] = {}
        """By the handlers with their objects."""
        self.due = 0.0
        """Until when (the time of the loop) there are retries, ends of pauses, stages."""
        self.running: dict[str, float] = {}
        """When the handlers, with their objects, began that have not ended; daemons excepted."""
        self.settings: configuration.OperatorSettings | None = None
        """How the objects say what is due later. Without them, nobody asks."""
        self.ids: Sequence[ids.HandlerId] = ()
        """The handlers whose progress is recorded on the objects."""
        self.paused: dict[str, None] = {}
        """The objects that are paused."""

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> observers.Ended[progression.Outcome]:
        place = ''
        if isinstance(cause, causes.ResourceCause):
            place = describe(cause.resource, cause.body)
        name = f"{handler.id} for {place}" if place else str(handler.id)
        known = work_var.get()
        called: dict[str, None] = {} if known is None or isinstance(handler, FRESH) else known
        work_var.set(called)
        parent = handler_var.get()
        handler_var.set(name)
        if not isinstance(handler, handlers.DaemonHandler):
            self.running[name] = asyncio.get_running_loop().time()

        def end(
                outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
        ) -> None:
            handler_var.set(parent)
            self.running.pop(name, None)
            called[name] = None
            self.failures.pop(name, None)
            if outcome is None:
                return
            if not outcome.final:
                now = asyncio.get_running_loop().time()
                self.due = max(self.due, now + (outcome.delay or 0.0))
            if outcome.exception is not None and (
                    not outcome.waiting or isinstance(outcome.exception, typedargs.MisfitError)):
                self.failures[name] = Failure(
                    str(handler.id), place, outcome.message or repr(outcome.exception))

        return end

    def omission(
            self, handler: handlers.ResourceHandler, resource: references.Resource,
            body: bodies.Body, reason: str,
    ) -> None:
        place = describe(resource, body)
        self.failures[f"{handler.id} for {place}"] = Failure(str(handler.id), place, reason)

    passage = observers.Observer.passage  # not notified
    write = observers.Observer.write  # not notified

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody,
    ) -> observers.Ended[observers.Sequel]:
        work_var.set({})
        if self.settings is not None:
            now = clocks.Clock().now()
            self._note_delays(raw, self.settings, now)
            self._note_pause(describe(resource, raw), raw, self.settings, now)
        return lambda *_: None

    def _note_delays(
            self, raw: bodies.RawBody, settings: configuration.OperatorSettings,
            now: clocks.Moment,
    ) -> None:
        """Wait for the retries that were scheduled before the plan."""
        for handler_id in self.ids:
            with contextlib.suppress(ValueError):  # Kopf complains of it, and handles nothing
                state = recording.fetch_state(
                    handler_id, body=bodies.Body(raw), settings=settings, now=now)
                if state is not None and not state.finished and state.due > now.mono:
                    self.due = max(self.due, state.due)

    def _note_pause(
            self, place: str, raw: bodies.RawBody, settings: configuration.OperatorSettings,
            now: clocks.Moment,
    ) -> None:
        pause = pauses.find(raw, settings.pausing.annotation)
        if pause is None or pause.is_over(now.wall):
            self.paused.pop(place, None)
        else:
            self.paused[place] = None
            if pause.until is not None:
                end = now.at(pause.until)
                self.due = max(self.due, end if end < self._horizon else 0.0)


def describe(resource: references.Resource, raw: bodies.RawBody | bodies.Body) -> str:
    """Name an object: ``kopfexamples.kopf.dev default/example``."""
    metadata = raw['metadata']
    name = '/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))
    return f"{qualified(resource.group, resource.plural)} {name}"
