"""
The metrics of an operator: what the meters have counted, and what is read when somebody asks.
"""
import asyncio
import collections
import gc
import itertools
from collections.abc import Iterator
from typing import Any

from kopf._cogs.aiokits import threads
from kopf._cogs.configs import configuration
from kopf._cogs.serving import exchanges
from kopf._cogs.structs import reviews
from kopf._core.engines.admission import questions, webhooks
from kopf._core.engines.daemons import daemons
from kopf._core.intents import handlers
from kopf._kits.observing import inspection

try:
    from prometheus_client import core, exposition, registry
except ModuleNotFoundError as e:
    if e.name != 'prometheus_client':
        raise
    raise configuration.SettingsError(
        "Metrics need the library prometheus_client. Install it: pip install prometheus_client; or "
        "omit --metrics (settings.metrics.endpoint).") from None

from kopf._kits.observing import meters, series

if gc.get_freeze_count():
    gc.freeze()  # as `kopf run` does with all that it has loaded: full collections block

PATIENCE = 2.0
"""
How long (seconds) to wait for the operator's event loop. If it is blocked for longer, what was read
before is shown again, together with the present counters.
"""

KIND = ('kind',)

OTHER_WEBHOOK = '/'
"""The label of requests to unknown webhooks: the clients choose their names."""


class Measures(registry.Collector):
    """The metrics of one operator. Make it in the operator's event loop."""

    def __init__(self, inspector: inspection.Inspector) -> None:
        super().__init__()
        self._inspector = inspector
        self._loop = asyncio.get_running_loop()
        self.meter = meters.Meter()
        self._shared = inspection.share(self._read, name="reading of the metrics")
        self._latest: list[core.Metric] = []
        self._threads = threads.ThreadPerCall('kopf-metrics')
        self._encoding: asyncio.Future[bytes] | None = None

    def observe_reviews(
            self, fn: reviews.WebhookFn, directory: webhooks.Directory,
    ) -> reviews.WebhookFn:
        """Wrap the function that answers admission reviews."""
        codes = self.meter.count(
            'controller_runtime_webhook_requests', "Admission reviews by the HTTP status",
            ('webhook', 'code'))
        durations = self.meter.measure(
            'controller_runtime_webhook_latency_seconds',
            "Durations of admission reviews in seconds", ('webhook',), meters.QUEUE_BOUNDS)
        under_way = self.meter.show(series.Metric(
            series.make_gauge, series.Count, 'controller_runtime_webhook_requests_in_flight',
            "Admission reviews under way", ('webhook',)))

        def expect(label: str) -> None:
            durations[label,], under_way[label,], codes[label, '200'], codes[label, '500']

        known = {
            name: f'/{webhook.path}' for webhook in directory.webhooks
            for name in (webhook.path, webhook.slug)}
        for label in known.values():
            expect(label)

        async def review(
                request: reviews.Request, *, webhook: str | None = None, **kwargs: Any,
        ) -> reviews.Response:
            label = known.get((webhook or '').strip('/'), OTHER_WEBHOOK)
            expect(label)
            under_way[label,].add()
            began, code = self._loop.time(), '500'
            try:
                response = await fn(request, webhook=webhook, **kwargs)
                code = '200'
                return response
            except questions.ReviewError as e:
                code = str(e.status)
                raise
            finally:
                under_way[label,].add(-1)
                codes[label, code].add()
                durations[label,].observe(self._loop.time() - began)

        return review

    async def respond(self, request: exchanges.Request) -> exchanges.Response:
        """Make the page. It is called in another thread and event loop than the operator's."""
        reading = asyncio.run_coroutine_threadsafe(self._shared.get(), self._loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(reading), PATIENCE)
        except TimeoutError:
            pass
        try:
            encode, content_type = exposition.choose_encoder(request.get_header('Accept'))
        except (TypeError, ValueError):  # a version is malformed
            encode, content_type = exposition.choose_encoder('')
        # Collectors of the author can be slow. In another thread, they hold up no other page. There
        # is one such thread at a time, even if clients leave. It is a daemon thread, as that of the
        # server is, so that it does not hold up the exit either.
        while self._encoding is not None and not self._encoding.done():
            await asyncio.wait([self._encoding])
        self._encoding = asyncio.get_running_loop().run_in_executor(self._threads, encode, self)
        return exchanges.Response(200, await asyncio.shield(self._encoding), content_type)

    async def close(self) -> None:
        """End what is under way for the page, when it is not served any more."""
        await self._shared.close()

    def collect(self) -> Iterator[core.Metric]:
        """Get the metrics of the operator, and those of the default registry."""
        return itertools.chain(self.meter.collect(), self._latest, core.REGISTRY.collect())

    async def _read(self) -> None:
        """Read the present state of the operator."""
        inspector, now = self._inspector, self._loop.time()
        settings = inspector.operator.settings
        for informer in inspector.informers:
            served = informer.handlers
            self.meter.expect(informer.resource, itertools.chain(
                served.indexing, served.watching, served.spawning, served.changing,
                served.reconciling))
        kinds = sorted({
            meters.get_controller(informer.resource) for informer in inspector.informers})
        self._latest = [
            *_read_queue(self.meter, kinds, settings.queueing.worker_limit, now),
            *await _read_objects(inspector, kinds),
            *_read_companions(inspector),
            *_read_indices(inspector),
            *_read_watches(inspector, now),
            *_read_leadership(inspector),
            *_read_brakes(inspector),
            *_read_shadow(inspector),
            *_read_externals(inspector),
        ]


def _read_queue(
        meter: meters.Meter, kinds: list[str], limit: int | None, now: float,
) -> Iterator[core.Metric]:
    active = collections.Counter[series.Labels]({(kind,): 0 for kind in kinds})
    depth = collections.Counter[series.Labels]({(kind, kind): 0 for kind in kinds})
    for since in meter.waiting.values():
        kind = meters.get_controller(since.resource)
        depth[kind, kind] += 1
    total: dict[series.Labels, float] = {(kind, kind): 0.0 for kind in kinds}
    longest = dict(total)
    for since in meter.working.values():
        kind, age = meters.get_controller(since.resource), now - since.time
        active[kind,] += 1
        total[kind, kind] = total.get((kind, kind), 0.0) + age
        longest[kind, kind] = max(longest.get((kind, kind), 0.0), age)
    yield series.make_gauge(
        'controller_runtime_active_workers', "Objects that are processed now", meters.OWN, active)
    yield series.make_gauge(
        'controller_runtime_max_concurrent_reconciles',
        "How many objects are processed at once at most", meters.OWN,
        {(kind,): float('inf') if limit is None else limit for kind in kinds})
    yield series.make_gauge('workqueue_depth', "Objects that are queued now", meters.BOTH, depth)
    yield series.make_gauge(
        'workqueue_unfinished_work_seconds',
        "For how long the objects under way are being processed, in seconds: their sum",
        meters.BOTH, total)
    yield series.make_gauge(
        'workqueue_longest_running_processor_seconds',
        "For how long the objects under way are being processed, in seconds: the longest",
        meters.BOTH, longest)


async def _read_objects(inspector: inspection.Inspector, kinds: list[str]) -> list[core.Metric]:
    known = collections.Counter[series.Labels]({(kind,): 0 for kind in kinds})
    for informer in inspector.informers:
        known[meters.get_controller(informer.resource),] += len(informer)
    cycles = collections.Counter[series.Labels]({(kind,): 0 for kind in kinds})
    waiting = collections.Counter[series.Labels]({
        (kind, reason): 0 for kind in kinds for reason in inspection.REASONS})
    async for item in inspector.tour():
        kind, reason = meters.get_controller(item.resource), inspection.find_reason(item)
        cycles[kind,] += item.cycle is not None
        if reason is not None:
            waiting[kind, reason] += 1
    return [
        series.make_gauge('kopf_objects', "Number of known objects", KIND, known),
        series.make_gauge(
            'kopf_cycles_open', "Number of objects with an open handling cycle", KIND, cycles),
        series.make_gauge(
            'kopf_objects_waiting', "Number of objects that are processed again at some time",
            ('kind', 'reason'), waiting),
    ]


def _read_companions(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    running = collections.Counter[series.Labels]()
    timers = collections.Counter[series.Labels]()
    for informer in inspector.informers:
        for handler in informer.handlers.spawning:
            is_daemon = isinstance(handler, handlers.DaemonHandler)
            key = handler.id, meters.get_controller(informer.resource)
            (running if is_daemon else timers)[key] += 0
    for companion in inspector.companions:
        key = companion.handler.id, meters.get_controller(companion.companions.resource)
        (running if isinstance(companion, daemons.Daemon) else timers)[key] += 1
    labels = ('handler', 'kind')
    yield series.make_gauge('kopf_daemons', "Number of daemons of objects", labels, running)
    yield series.make_gauge('kopf_timers', "Number of timers of objects", labels, timers)


def _read_indices(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    yield series.make_gauge(
        'kopf_index_keys', "Number of keys in an index", ('index',),
        {(id,): len(index) for id, index in inspector.operator.indices.items()})
    yield series.make_gauge(
        'kopf_index_objects', "Number of objects in an index", ('index',),
        {(id,): index.objects for id, index in inspector.operator.indices.items()})


def _read_watches(inspector: inspection.Inspector, now: float) -> Iterator[core.Metric]:
    running = collections.Counter[series.Labels]()
    restarts = collections.Counter[series.Labels]()
    ages: dict[series.Labels, float] = {}
    for watch in inspector.list_watches():
        key = (meters.get_controller(watch.resource),)
        running[key] += watch.is_running
        restarts[key] += 0
        if watch.pulse.quiet_since is not None:
            ages[key] = max(ages.get(key, 0.0), now - watch.pulse.quiet_since)
    watches = inspector.operator.watches
    for resource, number in () if watches is None else watches.count_restarts().items():
        restarts[meters.get_controller(resource),] += number
    yield series.make_gauge('kopf_watches', "Number of running watches", KIND, running)
    yield series.make_counter(
        'kopf_watch_restarts', "Total number of times that watches were connected again", KIND,
        restarts)
    yield series.make_gauge(
        'kopf_watch_last_event_age_seconds',
        "For how long nothing has come by a watch: neither an event nor a bookmark; the longest of "
        "the kind", KIND, ages)


def _read_leadership(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    role, name = inspector.describe_leadership(), inspector.operator.settings.leadership.name
    if role is not None and name is not None:
        yield series.make_gauge(
            'leader_election_master_status',
            "Whether this replica holds the Lease of this name: 1 for the leader, 0 for a standby",
            ('name',), {(name,): float(role == 'leader')})


def _read_brakes(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    excesses = collections.Counter[series.Labels]()
    for (risk, resource), number in inspector.operator.brakes.excesses.items():
        excesses[risk.name.lower(), meters.get_controller(resource)] += number
    yield series.make_counter(
        'kopf_brakes_exceeded',
        "How often an operator wanted more than a budget of settings.brakes allows",
        ('risk', 'kind'), excesses)


def _read_shadow(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    if inspector.shadow is not None:
        yield series.make_counter(
            'kopf_shadow_differences',
            "Number of differences between the operator and the one in production",
            ('category', 'kind'),
            dict(list(inspector.shadow.counts.items())))


def _read_externals(inspector: inspection.Inspector) -> Iterator[core.Metric]:
    hub, labels = inspector.operator.hub, ('external',)
    states = () if hub is None else [driver.describe() for driver in hub.drivers]
    for name, text, make in (
            ('drifts', "How often things in external systems were not as they should be",
             series.make_counter),
            ('breaks', "How often external systems have become unavailable", series.make_counter),
            ('unavailable', "Whether an external system is considered unavailable",
             series.make_gauge),
            ('waiting', "Number of objects that wait for a call to an external system",
             series.make_gauge)):
        if states:
            yield make(f'kopf_external_{name}', text, labels, {
                (state.name,): getattr(state, name) for state in states})
