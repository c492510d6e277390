"""
Meters: they count what happens in an operator. They are called often, so they do as little as
possible; the names of the metrics are in `families`.
"""
import asyncio
import collections
import contextvars
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies, references, reviews
from kopf._core.actions import observers, progression
from kopf._core.engines.metrics import histograms
from kopf._core.intents import causes, handlererrors, handlers

V = TypeVar('V')

RESULTS = ('success', 'error', 'requeue', 'requeue_after')
"""The results of reconciliations: those of controller-runtime."""

OUTCOMES = ('success', 'retry', 'failure')
"""The usual outcomes of attempts. There are also "waiting" (for sub-handlers) and "cancelled"."""

SEQUELS: Mapping[observers.Sequel, str] = {
    observers.Sequel.REST: 'success',
    observers.Sequel.LATER: 'requeue_after',
    observers.Sequel.AGAIN: 'requeue',
}

OTHER_WEBHOOK = ''
"""The label of requests to unknown webhooks: the clients choose their names."""


def get_controller(resource: references.Resource) -> str:
    """Get the name of the controller: the kind in lower case, as in controller-runtime."""
    return (resource.kind or resource.plural).lower()


class Reading(NamedTuple):
    """What is not counted, but read when somebody asks for the metrics."""
    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    is_counter: bool = False


class ControllerMeter:
    """What happens to the objects of one kind."""
    __slots__ = ('adds', 'queued', 'results', 'retries', 'seconds', 'terminal', 'worked')

    def __init__(self) -> None:
        self.results = dict.fromkeys(RESULTS, 0)
        self.terminal = 0
        """How many reconciliations have failed for good."""
        self.retries = 0
        self.seconds = histograms.Histogram(histograms.RECONCILE_BOUNDS)
        self.adds = 0
        self.queued = histograms.Histogram(histograms.QUEUE_BOUNDS)
        self.worked = histograms.Histogram(histograms.QUEUE_BOUNDS)

    def add(self) -> None:
        """Count an object that is queued."""
        self.adds += 1

    def end(
            self, current: '_Reconciliation',
            sequel: observers.Sequel | None, error: BaseException | None, seconds: float,
    ) -> None:
        """Count a reconciliation by its result. One that is interrupted by the exit has none."""
        self.seconds.observe(seconds)
        if sequel is None and not isinstance(error, Exception):
            return
        if isinstance(error, errors.NotLeadingError):
            result = 'requeue'
        elif sequel is None or current.has_failed:
            result = 'error'
        else:
            result = SEQUELS[sequel]
        self.results[result] += 1
        self.terminal += current.is_terminal
        self.retries += result != 'success' and sequel is not observers.Sequel.REST


class AttemptMeter(dict[str, histograms.Histogram]):
    """The durations of the attempts of one handler, by their outcomes."""

    def __init__(self) -> None:
        super().__init__()
        for outcome in OUTCOMES:
            self[outcome]

    def __missing__(self, outcome: str) -> histograms.Histogram:
        self[outcome] = histograms.Histogram(histograms.HANDLER_BOUNDS)
        return self[outcome]

    def end(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        self[judge(outcome)].observe(seconds)

    def end_in_reconciliation(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        self[judge(outcome)].observe(seconds)
        failed = None if outcome is None else outcome.exception
        if outcome is None or failed is None or outcome.waiting:
            return
        current = _current_var.get()
        if current is not None and outcome.final:
            current.fail(is_final=True)
        elif current is not None and not isinstance(failed, handlererrors.TemporaryError):
            current.fail(is_final=False)


def judge(outcome: progression.Outcome | None) -> str:
    """Get the label of an outcome."""
    if outcome is None:
        return 'cancelled'
    if outcome.exception is None:
        return 'success'
    return 'failure' if outcome.final else 'waiting' if outcome.waiting else 'retry'


class WebhookMeter:
    """The requests to one webhook."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = 0
        self.codes = {'200': 0, '500': 0}
        self.seconds = histograms.Histogram(histograms.QUEUE_BOUNDS)

    def begin(self) -> None:
        self.in_flight += 1

    def end(self, code: str, seconds: float) -> None:
        self.in_flight -= 1
        self.codes[code] = self.codes.get(code, 0) + 1
        self.seconds.observe(seconds)


class _Reconciliation:
    """A reconciliation under way. Its handlers run in its context."""
    __slots__ = ('has_failed', 'is_terminal')

    def __init__(self) -> None:
        self.has_failed = self.is_terminal = False

    def fail(self, *, is_final: bool) -> None:
        """
        Note that a handler has failed. `kopf.TemporaryError` is no failure, but a request to call
        the handler again.
        """
        self.has_failed = True
        self.is_terminal = self.is_terminal or is_final


_current_var: contextvars.ContextVar[_Reconciliation | None] = contextvars.ContextVar(
    '_current_var', default=None)

_root_var: contextvars.ContextVar[str] = contextvars.ContextVar('_root_var', default='')
"""The id of the current handler, for its sub-handlers."""


class _Made(dict[str, V]):
    """A dict that makes missing values; unlike a defaultdict, it is typed by its factory only."""

    def __init__(self, make: Callable[[], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> V:
        self[key] = self._make()
        return self[key]


class Meter(observers.Observer):
    """All meters of an operator. All are used in its event loop, and read in any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.controllers = _Made(ControllerMeter)
        """By the kinds, as they are spelled: `get_controller` is too slow for each event."""
        self.webhooks = _Made(WebhookMeter)
        self.attempts: dict[tuple[str, str], AttemptMeter] = {}
        """By the handlers' ids and the kinds in lower case; the latter are empty for activities."""
        self.requests = collections.Counter[tuple[int | None, str, str]]()
        """By the status (None for errors of the network), the method, and the host."""
        self.lag = histograms.Histogram(histograms.LAG_BOUNDS)
        self._by_handlers: dict[tuple[handlers.Handler, str | None], observers.Ended[Any]] = {}

    def expect(
            self, resource: references.Resource, declared: Iterable[handlers.Handler],
    ) -> None:
        """Begin with zeros for a resource and its handlers: rates need a value to begin with."""
        self.find(resource)
        for handler in declared:
            self._get_attempts(handler.id, get_controller(resource))

    def find(self, resource: references.Resource) -> ControllerMeter:
        return self.controllers[resource.kind or resource.plural]

    def count_request(self, status: int | None, method: str, host: str) -> None:
        self.requests[status, method, host] += 1

    # What observers are notified of.

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> observers.Ended[progression.Outcome]:
        resource: references.Resource | None = getattr(cause, 'resource', None)
        kind = None if resource is None else resource.kind
        is_sub = isinstance(handler, handlers.ResourceHandler) and handler.selector is None
        if isinstance(handler, handlers.ChangingHandler) and not is_sub:
            _root_var.set(handler.id)
        found = self._by_handlers.get((handler, kind))
        if found is None:
            label = f'{_root_var.get()}/*' if is_sub else handler.id
            meter = self._get_attempts(label, '' if resource is None else get_controller(resource))
            is_part = isinstance(handler, (handlers.ChangingHandler, handlers.ReconcilingHandler))
            found = meter.end_in_reconciliation if is_part else meter.end
            if not is_sub:  # sub-handlers are made for each call
                self._by_handlers[handler, kind] = found
        return found

    def _get_attempts(self, id: str, kind: str) -> AttemptMeter:
        return self.attempts.setdefault((id, kind), AttemptMeter())

    def reconciliation(
            self, resource: references.Resource, identity: observers.Identity,
    ) -> observers.Ended[observers.Sequel]:
        current = _Reconciliation()
        _current_var.set(current)
        return functools.partial(self.find(resource).end, current)

    def write(
            self, resource: references.Resource, identity: observers.Identity, *,
            content_type: str, subresource: str | None,
    ) -> observers.Ended[bodies.RawBody]:
        return _ignore  # the requests are counted by the API client

    # Webhooks.

    def observe_reviews(
            self,
            fn: reviews.WebhookFn,
            *,
            known: Mapping[str, str],
            get_code: Callable[[Exception], str],
    ) -> reviews.WebhookFn:
        """
        Wrap the function that answers admission reviews. ``known`` are the labels of the webhooks
        by the ends of their URLs; ``get_code`` returns the HTTP status of an error.
        """
        for label in known.values():
            self.webhooks[label]

        async def review(
                request: reviews.Request,
                *,
                webhook: str | None = None,
                headers: Mapping[str, str] | None = None,
                sslpeer: Mapping[str, Any] | None = None,
        ) -> reviews.Response:
            meter = self.webhooks[known.get((webhook or '').strip('/'), OTHER_WEBHOOK)]
            loop = asyncio.get_running_loop()
            began, code = loop.time(), '500'
            meter.begin()
            try:
                response = await fn(request, webhook=webhook, headers=headers, sslpeer=sslpeer)
                code = '200'
                return response
            except Exception as e:
                code = get_code(e)
                raise
            finally:
                meter.end(code, loop.time() - began)

        return review


def _ignore(result: object, error: BaseException | None, seconds: float) -> None:
    pass
