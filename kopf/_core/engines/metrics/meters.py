"""
Meters: they count what happens in an operator. They are called often, so they do as little as
possible; the names of the metrics are in `families`.
"""
import asyncio
import collections
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
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


class Since(NamedTuple):
    """Since when something goes on with an object: a time of the event loop."""
    resource: references.Resource
    time: float


class ControllerMeter:
    """What happens to the objects of one kind."""
    __slots__ = (
        '_failures', 'adds', 'queued', 'results', 'retries', 'seconds', 'terminal', 'worked')

    def __init__(self, failures: 'Failures') -> None:
        self._failures = failures
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
            self,
            sequel: observers.Sequel | None, error: BaseException | None, seconds: float,
    ) -> None:
        """Count a reconciliation by its result. One that is interrupted by the exit has none."""
        self.seconds.observe(seconds)
        is_terminal = self._failures.take() if self._failures.are_there else None
        if sequel is observers.Sequel.REST and is_terminal is None:  # nearly always
            self.results['success'] += 1
            return
        if sequel is None and not isinstance(error, Exception):
            return
        if isinstance(error, errors.NotLeadingError):
            result = 'requeue'
        elif sequel is None or is_terminal is not None:
            result = 'error'
        else:
            result = SEQUELS[sequel]
        self.results[result] += 1
        if is_terminal:
            self.terminal += 1
        if result != 'success' and sequel is not observers.Sequel.REST:
            self.retries += 1


class AttemptMeter(dict[str, histograms.Histogram]):
    """The durations of the attempts of one handler, by their outcomes."""

    def __init__(self, failures: 'Failures') -> None:
        super().__init__()
        self._failures = failures
        for outcome in OUTCOMES:
            self[outcome]

    def __missing__(self, outcome: str) -> histograms.Histogram:
        self[outcome] = histograms.Histogram(histograms.HANDLER_BOUNDS)
        return self[outcome]

    def end(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        self[observers.name_outcome(outcome)].observe(seconds)

    def end_in_reconciliation(
            self, outcome: progression.Outcome | None, error: BaseException | None, seconds: float,
    ) -> None:
        if outcome is not None and outcome.exception is None:
            self['success'].observe(seconds)
            return
        self[observers.name_outcome(outcome)].observe(seconds)
        if outcome is not None and not outcome.waiting and (
                outcome.final
                or not isinstance(outcome.exception, handlererrors.TemporaryError)):
            self._failures.note(is_terminal=outcome.final)


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
        self._failures = Failures()
        self.controllers = _Made(lambda: ControllerMeter(self._failures))
        """By the kinds, as they are spelled: `get_controller` is too slow for each event."""
        self.webhooks = _Made(WebhookMeter)
        self.waiting: dict[Hashable, Since] = {}
        """Since when the objects are queued."""
        self.working: dict[Hashable, Since] = {}
        """Since when the objects are processed."""
        self.attempts: dict[tuple[str, str], AttemptMeter] = {}
        """By the handlers' ids and the kinds in lower case; the latter are empty for activities."""
        self.requests = collections.Counter[tuple[int | None, str, str]]()
        """By the status (None for errors of the network), the method, and the host."""
        self.lag = histograms.Histogram(histograms.LAG_BOUNDS)
        self._by_handlers: dict[tuple[handlers.Handler, str | None], observers.Ended[Any]] = {}
        self._roots: set[str] = set()

    def expect(
            self, resource: references.Resource, declared: Iterable[handlers.Handler],
    ) -> None:
        """Begin with zeros for a resource and its handlers: rates need a value to begin with."""
        self.controllers[resource.kind or resource.plural]
        for handler in declared:
            self._get_attempts(handler.id, get_controller(resource))

    def count_request(self, status: int | None, method: str, host: str) -> None:
        self.requests[status, method, host] += 1

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
        meter = self._get_attempts(label, '' if resource is None else get_controller(resource))
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

    def _get_attempts(self, id: str, kind: str) -> AttemptMeter:
        known = self.attempts.get((id, kind))
        if known is None:
            known = self.attempts[id, kind] = AttemptMeter(self._failures)
        return known

    def passage(
            self, resource: references.Resource, key: Hashable, passage: observers.Passage,
    ) -> None:
        now = asyncio.get_running_loop().time()
        controller = self.controllers[resource.kind or resource.plural]
        match passage:
            case observers.Passage.QUEUED if key not in self.waiting:
                self.waiting[key] = Since(resource, now)
                controller.add()
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

    write = observers.Observer.write  # not notified: the requests are counted instead

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
