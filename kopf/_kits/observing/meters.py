"""
Meters: they count what happens in an operator. They are called often, so they do as little as
possible.

The names, the labels, and the bounds of the first metrics are those of controller-runtime.
"""
import asyncio
import functools
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client import core

from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies, references
from kopf._core.actions import observers, progression
from kopf._core.intents import causes, handlererrors, handlers
from kopf._kits.observing import outcomenames, series

V = TypeVar('V')

QUEUE_BOUNDS = tuple(float(f'1e{exponent}') for exponent in range(-8, 4))
"""The bounds (seconds) of the work queue and of webhooks, as in controller-runtime."""

RECONCILE_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0)
"""The bounds (seconds) of reconciliations, as in controller-runtime."""

HANDLER_BOUNDS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""The bounds (seconds) of handlers: of quick ones, and of those that run for hours."""

LAG_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds (seconds) of delays of the event loop."""

LAG_INTERVAL = 1.0
"""How often (seconds) the delay of the event loop is measured."""

OWN = ('controller',)
BOTH = ('name', 'controller')
ATTEMPT = ('handler', 'kind', 'outcome')

ERROR_CODE = '<error>'
"""The code of requests that have failed by an error of the network, as in client-go."""

RESULTS = ('success', 'error', 'requeue', 'requeue_after')
"""The results of reconciliations: those of controller-runtime."""

OUTCOMES = ('success', 'retry', 'failure')
"""The usual outcomes of attempts. There are also "waiting" (for sub-handlers) and "cancelled"."""

SEQUELS: Mapping[observers.Sequel, str] = {
    observers.Sequel.REST: 'success',
    observers.Sequel.LATER: 'requeue_after',
    observers.Sequel.AGAIN: 'requeue',
}


def get_controller(resource: references.Resource) -> str:
    """Get the name of the controller: the kind in lower case, as in controller-runtime."""
    return (resource.kind or resource.plural).lower()


class Since(NamedTuple):
    """Since when something goes on with an object: a time of the event loop."""
    resource: references.Resource
    time: float


class ControllerMeter:
    """What happens to the objects of one kind."""
    __slots__ = (
        '_failures', 'adds', 'errors', 'queued', 'results', 'retries', 'seconds', 'terminal',
        'worked')

    def __init__(self, meter: 'Meter', name: str) -> None:
        self._failures = meter.failures
        self.results = {result: meter.results[name, result] for result in RESULTS}
        self.errors = meter.errors[name,]
        self.terminal = meter.terminal[name,]
        self.seconds = meter.seconds[name,]
        self.adds = meter.adds[name, name]
        self.queued = meter.queued[name, name]
        self.worked = meter.worked[name, name]
        self.retries = meter.retries[name, name]

    def end(
            self,
            sequel: observers.Sequel | None, error: BaseException | None, seconds: float,
    ) -> None:
        """Count a reconciliation by its result. One that is interrupted by the exit has none."""
        self.seconds.observe(seconds)
        is_terminal = self._failures.take() if self._failures.are_there else None
        if sequel is observers.Sequel.REST and is_terminal is None:  # nearly always
            self.results['success'].add()
            return
        if sequel is None and not isinstance(error, Exception):
            return
        if isinstance(error, errors.NotLeadingError):
            result = 'requeue'
        elif sequel is None or is_terminal is not None:
            result = 'error'
            self.errors.add()
        else:
            result = SEQUELS[sequel]
        self.results[result].add()
        if is_terminal:
            self.terminal.add()
        if result != 'success' and sequel is not observers.Sequel.REST:
            self.retries.add()


class Failures(weakref.WeakKeyDictionary['asyncio.Task[Any]', bool]):
    """
    The reconciliations under way of which any handler has failed, by their tasks: whether it has
    failed permanently. `kopf.TemporaryError` is no failure, but a request to call the handler
    again.

    Handlers run in the tasks of the reconciliations. So, those without failures cost nothing.
    """
    are_there = False
    """Whether there are any. The length is too slow to look at it after each reconciliation."""

    def note(self, *, is_terminal: bool) -> None:
        self.are_there = True
        task = asyncio.current_task()
        if task is not None:
            self[task] = is_terminal or self.get(task, False)

    def take(self) -> bool | None:
        """Whether any handler of this reconciliation has failed permanently; None if none has."""
        task = asyncio.current_task()
        found = None if task is None else self.pop(task, None)
        self.are_there = len(self) > 0
        return found


class AttemptMeter(series.Made[str, series.Histogram]):
    """The durations of the attempts of one handler, by their outcomes."""

    def __init__(self, meter: 'Meter', key: tuple[str, str]) -> None:
        super().__init__(lambda outcome: meter.attempts[*key, outcome])
        self._failures = meter.failures
        for outcome in OUTCOMES:
            self[outcome]

    def end(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        self[outcomenames.name_outcome(outcome)].observe(seconds)

    def end_in_reconciliation(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        self.end(outcome, error, seconds)
        if outcome is not None and outcome.exception is not None and not outcome.waiting and (
                outcome.final
                or not isinstance(outcome.exception, handlererrors.TemporaryError)):
            self._failures.note(is_terminal=outcome.final)


class Meter(observers.Observer):
    """All meters of an operator. All are used in its event loop, and read in any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._metrics: list[series.Metric[Any]] = []
        self.results = self.count(
            'controller_runtime_reconcile', "Reconciliations of objects by their results",
            ('controller', 'result'))
        self.errors = self.count(
            'controller_runtime_reconcile_errors', "Reconciliations that ended with an error", OWN)
        self.terminal = self.count(
            'controller_runtime_terminal_reconcile_errors',
            "Reconciliations in which a handler failed permanently", OWN)
        self.seconds = self.measure(
            'controller_runtime_reconcile_time_seconds',
            "Durations of reconciliations in seconds", OWN, RECONCILE_BOUNDS)
        self.adds = self.count('workqueue_adds', "How many times objects were queued", BOTH)
        self.queued = self.measure(
            'workqueue_queue_duration_seconds',
            "How long objects were queued, in seconds", BOTH, QUEUE_BOUNDS)
        self.worked = self.measure(
            'workqueue_work_duration_seconds',
            "How long objects were processed, in seconds", BOTH, QUEUE_BOUNDS)
        self.retries = self.count(
            'workqueue_retries', "How many times objects were queued again, or waited for it", BOTH)
        self.requests = self.count(
            'rest_client_requests',
            "Requests to the API server by the HTTP status, the method, and the host",
            ('code', 'method', 'host'))
        self.attempts = self.measure(
            'kopf_handler_seconds', "Durations of the calls of handlers in seconds", ATTEMPT,
            HANDLER_BOUNDS)
        self.lag = self.measure(
            'kopf_event_loop_lag_seconds',
            "How late the event loop calls a function that is scheduled once a second", (),
            LAG_BOUNDS)[()]
        self.controllers = series.Made[str, ControllerMeter](
            lambda kind: ControllerMeter(self, kind.lower()))
        """By the kinds, as they are spelled: `get_controller` is too slow for each event."""
        self.waiting: dict[Hashable, Since] = {}
        """Since when the objects are queued."""
        self.working: dict[Hashable, Since] = {}
        """Since when the objects are processed."""
        self.failures = Failures()
        self._handlers = series.Made[tuple[str, str], AttemptMeter](
            lambda key: AttemptMeter(self, key))
        """By the handlers' ids and the kinds in lower case; the latter are empty for activities."""
        self._by_handlers: dict[tuple[handlers.Handler, str | None], observers.Ended[Any]] = {}
        self._roots: set[str] = set()

    def show(self, metric: series.Metric[V]) -> series.Metric[V]:
        """Also show this metric, from now on."""
        self._metrics.append(metric)
        return metric

    def count(self, name: str, text: str, labels: series.Labels) -> series.Metric[series.Count]:
        """Add a counter."""
        return self.show(series.Metric(series.make_counter, series.Count, name, text, labels))

    def measure(
            self, name: str, text: str, labels: series.Labels, bounds: Sequence[float],
    ) -> series.Metric[series.Histogram]:
        """Add a histogram."""
        make = functools.partial(series.Histogram, bounds)
        return self.show(series.Metric(series.make_histogram, make, name, text, labels))

    def collect(self) -> Iterator[core.Metric]:
        """Export all metrics as they are now."""
        for metric in self._metrics:
            yield metric.export()
        yield series.make_counter(
            'kopf_handler', "Calls of handlers by their outcomes", ATTEMPT,
            {key: each.count for key, each in self.attempts.copy().items()})

    def expect(self, resource: references.Resource, declared: Iterable[handlers.Handler]) -> None:
        """Begin with zeros for a resource and its handlers: rates need a value to begin with."""
        self.controllers[resource.kind or resource.plural]
        for handler in declared:
            self._handlers[handler.id, get_controller(resource)]

    async def run(self) -> None:
        """Measure how late this task is woken up, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            self.lag.observe(max(0.0, loop.time() - due))

    def count_request(self, status: int | None, method: str, host: str) -> None:
        """Count a request to the API server; the status is None for errors of the network."""
        self.requests[ERROR_CODE if status is None else str(status), method, host].add()

    # What observers are notified of.

    def attempt(
            self, handler: handlers.Handler, cause: causes.Cause,
    ) -> observers.Ended[progression.Outcome]:
        resource: references.Resource | None = getattr(cause, 'resource', None)
        kind = None if resource is None else resource.kind
        return self._by_handlers.get((handler, kind)) or self._find(handler, kind, resource)

    def _find(
            self,
            handler: handlers.Handler,
            kind: str | None,
            resource: references.Resource | None,
    ) -> observers.Ended[progression.Outcome]:
        is_sub = isinstance(handler, handlers.ResourceHandler) and handler.selector is None
        is_changing = isinstance(handler, handlers.ChangingHandler)
        label = self._find_root(handler) + '/*' if is_sub else handler.id
        meter = self._handlers[label, '' if resource is None else get_controller(resource)]
        is_part = is_changing or isinstance(handler, handlers.ReconcilingHandler)
        found = meter.end_in_reconciliation if is_part else meter.end
        if not is_sub:  # sub-handlers are made for each call
            self._by_handlers[handler, kind] = found
        if is_changing and not is_sub:
            self._roots.add(handler.id)
        return found

    def _find_root(self, handler: handlers.Handler) -> str:
        """Find the handler in which the sub-handler is declared, maybe via other sub-handlers."""
        return max(
            (id for id in self._roots if handler.id.startswith(f'{id}/')), key=len, default='')

    def passage(
            self, resource: references.Resource, key: Hashable, passage: observers.Passage,
    ) -> None:
        now = asyncio.get_running_loop().time()
        controller = self.controllers[resource.kind or resource.plural]
        match passage:
            case observers.Passage.QUEUED if key not in self.waiting:
                self.waiting[key] = Since(resource, now)
                controller.adds.add()
            case observers.Passage.DROPPED:
                self.waiting.pop(key, None)
            case observers.Passage.STARTED:
                queued = self.waiting.pop(key, None)
                controller.queued.observe(0.0 if queued is None else now - queued.time)
                self.working[key] = Since(resource, now)
            case observers.Passage.ENDED if began := self.working.pop(key, None):
                controller.worked.observe(now - began.time)

    def reconciliation(
            self, resource: references.Resource, raw: bodies.RawBody,
    ) -> observers.Ended[observers.Sequel]:
        return self.controllers[resource.kind or resource.plural].end

    omission = observers.Observer.omission  # not notified: it is no attempt
    write = observers.Observer.write  # not notified: the requests are counted instead
