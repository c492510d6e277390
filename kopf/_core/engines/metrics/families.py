"""
Families: the metrics with their names and labels, as the library ``prometheus_client`` wants them.

The names, the labels, and the bounds of the first ones are those of controller-runtime.
"""
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client import core, registry

from kopf._core.engines.metrics import histograms, meters

ERROR_CODE = '<error>'
"""The code of requests that have failed by an error of the network, as in client-go."""

Labels = Sequence[str]


class OperatorCollector(registry.Collector):
    """The metrics of one operator at one moment, and those of the default registry."""

    def __init__(
            self,
            meter: meters.Meter,
            readings: Collection[meters.Reading],
            others: registry.Collector = core.REGISTRY,
    ) -> None:
        super().__init__()
        self._meter = meter
        self._readings = readings
        self._others = others

    def collect(self) -> Iterator[core.Metric]:
        yield from make_controllers(self._meter)
        yield from make_webhooks(self._meter.webhooks)
        yield make_counter(
            'rest_client_requests',
            "Requests to the API server by the HTTP status, the method, and the host",
            ['code', 'method', 'host'],
            {(ERROR_CODE if code is None else str(code), method, host): number
             for (code, method, host), number in self._meter.requests.copy().items()})
        yield from make_attempts(self._meter.attempts)
        yield make_histogram(
            'kopf_event_loop_lag_seconds',
            "How late the event loop calls a function that is scheduled once a second", [],
            {(): self._meter.lag})
        for reading in self._readings:
            make = make_counter if reading.is_counter else make_gauge
            yield make(reading.name, reading.text, reading.labels, reading.values)
        yield from self._others.collect()


def make_controllers(meter: meters.Meter) -> Iterator[core.Metric]:
    known = {name.lower(): each for name, each in meter.controllers.copy().items()}
    by_one = {(name,): each for name, each in known.items()}
    by_both = {(name, name): each for name, each in known.items()}
    own, both = ['controller'], ['name', 'controller']
    yield make_counter(
        'controller_runtime_reconcile', "Reconciliations of objects by their results",
        ['controller', 'result'],
        {(name, result): number for name, each in known.items()
         for result, number in each.results.items()})
    yield make_counter(
        'controller_runtime_reconcile_errors',
        "Reconciliations that ended with an error", own,
        {key: each.results['error'] for key, each in by_one.items()})
    yield make_counter(
        'controller_runtime_terminal_reconcile_errors',
        "Reconciliations in which a handler failed permanently", own,
        {key: each.terminal for key, each in by_one.items()})
    yield make_histogram(
        'controller_runtime_reconcile_time_seconds',
        "Durations of reconciliations in seconds", own,
        {key: each.seconds for key, each in by_one.items()})
    yield make_counter(
        'workqueue_adds', "How many times objects were queued", both,
        {key: each.adds for key, each in by_both.items()})
    yield make_histogram(
        'workqueue_queue_duration_seconds',
        "How long objects were queued, in seconds", both,
        {key: each.queued for key, each in by_both.items()})
    yield make_histogram(
        'workqueue_work_duration_seconds',
        "How long objects were processed, in seconds", both,
        {key: each.worked for key, each in by_both.items()})
    yield make_counter(
        'workqueue_retries', "How many times objects were queued again, or waited for it", both,
        {key: each.retries for key, each in by_both.items()})


def make_webhooks(webhooks: Mapping[str, meters.WebhookMeter]) -> Iterator[core.Metric]:
    known = {(f'/{name}',): each for name, each in dict(webhooks).items()}
    if not known:
        return
    yield make_counter(
        'controller_runtime_webhook_requests',
        "Admission reviews by the HTTP status", ['webhook', 'code'],
        {(*name, code): number for name, each in known.items()
         for code, number in each.codes.copy().items()})
    yield make_histogram(
        'controller_runtime_webhook_latency_seconds',
        "Durations of admission reviews in seconds", ['webhook'],
        {name: each.seconds for name, each in known.items()})
    yield make_gauge(
        'controller_runtime_webhook_requests_in_flight',
        "Admission reviews under way", ['webhook'],
        {name: each.in_flight for name, each in known.items()})


def make_attempts(
        attempts: Mapping[tuple[str, str], meters.AttemptMeter],
) -> Iterator[core.Metric]:
    labels = ['handler', 'kind', 'outcome']
    known: dict[tuple[str, ...], histograms.Histogram] = {
        (*key, outcome): histogram for key, each in dict(attempts).items()
        for outcome, histogram in each.copy().items()}
    yield make_counter(
        'kopf_handler', "Calls of handlers by their outcomes", labels,
        {key: histogram.count for key, histogram in known.items()})
    yield make_histogram(
        'kopf_handler_seconds', "Durations of the calls of handlers in seconds", labels, known)


def make_counter(
        name: str, text: str, labels: Labels, values: Mapping[tuple[str, ...], float],
) -> core.Metric:
    """The library appends ``_total`` to the name."""
    return _fill(core.CounterMetricFamily(name, text, labels=labels), values)


def make_gauge(
        name: str, text: str, labels: Labels, values: Mapping[tuple[str, ...], float],
) -> core.Metric:
    return _fill(core.GaugeMetricFamily(name, text, labels=labels), values)


def _fill(
        family: core.CounterMetricFamily | core.GaugeMetricFamily,
        values: Mapping[tuple[str, ...], float],
) -> core.Metric:
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def make_histogram(
        name: str, text: str, labels: Labels,
        values: Mapping[tuple[str, ...], histograms.Histogram],
) -> core.Metric:
    family = core.HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in values.items():
        family.add_metric(key, list(_make_buckets(histogram.accumulate())), histogram.sum)
    return family


def _make_buckets(buckets: Iterable[tuple[float, int]]) -> Iterator[tuple[str, float]]:
    for bound, number in buckets:
        yield '+Inf' if bound == float('inf') else repr(bound), number
