"""
The operator: its parts, how they are connected, and in which order they are started and stopped.

The life of an operator begins with the startup handlers and ends with the cleanup handlers. When
any part ends or fails, the whole operator stops. A part is stopped before the parts that it needs:
e.g. the reconciliations before the poster of events, and the poster before the API client.
"""
import asyncio
import contextlib
import dataclasses
import functools
import logging
import warnings
from collections.abc import Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits import clocks, flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import ids, memos, references
from kopf._core.actions import inflight, lifecycles, observers, reports
from kopf._core.engines import activities, indexing, posting
from kopf._core.engines.liveness import endpoints, health
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import causes, registries
from kopf._core.path import handling, saving, switches
from kopf._core.reactor import admitting, authentication, shutdown
from kopf._core.reactor.roles import coordination, works
from kopf._core.reactor.watches import discovery, orchestration

if TYPE_CHECKING:
    from kopf._core.engines.liveness import answering
    from kopf._core.reactor.views import metrics

logger = logging.getLogger('kopf._core.reactor.running')

WRITING_TIME = 2.0
"""
How long (seconds) the progress and results can be written at exit.

This time comes after the time of the handlers, ``settings.queueing.exit_timeout``.
"""

FAREWELL_TIME = 1.0
"""
How long (seconds) the last requests can take at exit.

They remove the webhook configurations and the peering records, and post the remaining events.
"""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Options:
    """The parameters of `kopf.operator`, which describes them."""
    lifecycle: lifecycles.LifeCycleFn | None = None
    indexers: indexing.OperatorIndexers | None = None
    registry: registries.OperatorRegistry | None = None
    settings: configuration.OperatorSettings | None = None
    memories: Any | None = None
    insights: discovery.Insights | None = None
    identity: str | None = None
    standalone: bool | None = None
    priority: int | None = None
    peering_name: str | None = None
    liveness_endpoint: str | None = None
    metrics_endpoint: str | None = None
    clusterwide: bool = False
    namespaces: Collection[references.NamespacePattern] = ()
    namespace: references.NamespacePattern | None = None
    stop_flag: flags.Flag | None = None
    ready_flag: flags.Flag | None = None
    vault: vaults.Vault | None = None
    memo: object | None = None
    _command: Coroutine[None, None, None] | None = None
    _observer: observers.Observer | None = None

    def __post_init__(self) -> None:
        if self.namespace is not None:
            warnings.warn("namespace= is deprecated; use namespaces=[...].", DeprecationWarning,
                          stacklevel=4)
            self.namespaces = [*self.namespaces, self.namespace]
        if self.clusterwide and self.namespaces:
            raise TypeError("An operator is either cluster-wide, or for namespaces; not both.")
        if not self.clusterwide and not self.namespaces:
            warnings.warn(
                "Neither namespaces= nor clusterwide=True: the operator is cluster-wide; in the "
                "future, one of these will be required.", FutureWarning, stacklevel=4)
            self.clusterwide = True


class Operator:
    """
    One operator with all its parts.

    Make the instance in the context (`contextvars`) in which `run` is called: the constructor sets
    context variables, which must not leak into the caller's context.
    """

    def __init__(
            self,
            options: Options,
            *,
            settings: configuration.OperatorSettings,
            underway: inflight.Calls,
            observer: observers.Observer | None = None,
    ) -> None:
        super().__init__()
        self._options = options
        self._settings = settings
        self._underway = underway
        self._registry = options.registry or registries.get_default_registry()
        self._clock = clocks.Clock()
        self._indices = (
            indexing.OperatorIndexers() if options.indexers is None else options.indexers)
        self._indices.ensure(self._registry._indexing)
        self._insights = options.insights or discovery.Insights()
        self._vault = options.vault or vaults.Vault()
        self._client = api.Client(credentials=self._vault, settings=settings)
        self._unlimited = self._client.without_limits()
        self._observers = [] if observer is None else [observer]
        self._env = saving.Environment(
            client=self._client, settings=settings, clock=self._clock,
            memo=memos.Memo() if options.memo is None else options.memo,
            indices=self._indices, lifecycle=options.lifecycle,
            observer=observers.Telling(self._observers))
        self._events = reports.EventQueue(settings)
        posting.event_queue_var.set(self._events)
        self._env.enter()
        inflight.calls_var.set(underway)
        self._poster: asyncio.Task[None] | None = None
        self._admission: admitting.Admission | None = None
        self._role = coordination.Coordination()
        """There are no works before the startup handlers have succeeded."""
        self._switch = switches.Switch(confirm=lambda: self._role.confirm())
        self._watches: orchestration.Orchestration | None = None
        self._measures: metrics.Measures | None = None
        self._monitor = health.Monitor(underway=underway, clock=self._clock)
        self._monitor.add_vault(self._vault)
        self._endpoint = None if options.liveness_endpoint is None else (
            endpoints.Endpoint.parse(options.liveness_endpoint))
        self._answerer: answering.Answerer | None = None
        self._serving = contextlib.AsyncExitStack()

    async def _look_inside(self) -> None:
        """Trace the operator, and serve its health, its metrics, and its state, if so set."""
        settings = self._settings
        pages: list[endpoints.Page] = []
        if self._endpoint is not None:
            from kopf._core.engines.liveness import answering  # only if it is used
            self._answerer = answering.Answerer(
                probe=self._probe, diagnose=self._monitor.diagnose)
            pages.append(endpoints.Page(
                'health checks', '--liveness', self._endpoint, self._answerer.respond))
            self._serving.push_async_callback(self._answerer.close)
        if settings.tracing.enabled:
            from kopf._core.engines import tracing  # only if it is used
            tracing.follow(self._client)
            self._observers.append(tracing.Tracer())
        if settings.metrics.endpoint is not None or settings.debugging.endpoint is not None:
            from kopf._core.reactor.views import inspection  # only if it is used
            inspector = inspection.Inspector(
                get_role=lambda: self._role, switch=self._switch,
                indices=self._indices, underway=self._underway,
                list_watches=lambda: () if self._watches is None else self._watches.list_states())
            if settings.metrics.endpoint is not None:
                from kopf._core.reactor.views import metrics  # only if it is used
                self._measures = metrics.Measures(inspector, settings)
                self._measures.follow(self._client)
                self._observers.append(self._measures.meter)
                pages.append(endpoints.Page(
                    'metrics', '--metrics',
                    endpoints.Endpoint.parse(settings.metrics.endpoint, default_path='/metrics'),
                    self._measures.respond))
                self._serving.push_async_callback(self._measures.close)
            if settings.debugging.endpoint is not None:
                from kopf._core.reactor.views import debug  # only if it is used
                debugger = debug.Debugger(inspector, settings=settings, clock=self._clock)
                pages.append(endpoints.Page(
                    'insides of the operator', '--debug-endpoint',
                    endpoints.Endpoint.parse(settings.debugging.endpoint, default_path='/debug'),
                    debugger.respond))
                self._serving.push_async_callback(debugger.close)
        if self._observers:
            self._env = dataclasses.replace(
                self._env, observer=observers.Telling(self._observers))
        if pages:
            from kopf._core.engines.liveness import healthserver  # only if it is used
            server = healthserver.Server(
                pages, watch=None if self._answerer is None else self._answerer.watch)
            self._serving.push_async_callback(server.stop)
            await server.start()

    async def run(self) -> None:
        """
        Run until cancelled, or until any part fails.

        :raises Exception: the error of the part that has failed.
        """
        logger.debug(f"Starting Kopf {versions.version}.")
        authentication.prepare(
            self._vault, registry=self._registry,
            run=functools.partial(self._run_activity, causes.Activity.AUTHENTICATION))
        try:
            with shutdown.remind(self._underway, "starting"):
                await self._run_activity(causes.Activity.STARTUP)
            self._registry.verify()
            await self._look_inside()
            self._poster = asyncio.create_task(
                posting.poster(client=self._unlimited, settings=self._settings, queue=self._events),
                name="poster of events")
            self._monitor.add_task('posting', self._poster)
            await self._vault.obtain()
            admission = self._admission = admitting.Admission(
                env=self._env, registry=self._registry, insights=self._insights,
                find=lambda resource, uid: self._role.find(resource, uid),
                measure=None if self._measures is None else self._measures.observe_reviews)
            admission.start()
            hub = Hub(
                context=self._env, get_memo=functools.partial(handling.get_memo, self._env))
            self._role = self._take_role(admission, hub)
            watches = self._watches = orchestration.Orchestration(
                client=self._client, settings=self._settings, registry=self._registry,
                consumer=self._role, hub=hub, namespaces=self._options.namespaces,
                clusterwide=self._options.clusterwide, insights=self._insights, logger=logger)
            self._monitor.add('watching', watches.diagnose)
            if self._options.ready_flag is not None:
                flags.raise_flag(self._options.ready_flag)
            await aiotasks.gather(
                self._vault.guard(), admission.serve(), self._monitor.run(), self._role.run(),
                watches.serve(), *([] if self._measures is None else [self._measures.meter.run()]))
        finally:
            self._monitor.dismiss()
            try:
                with shutdown.remind(self._underway):
                    await self._clean_up()
            finally:
                await self._serving.aclose()
                self._settings.execution.release_threads()

    async def _clean_up(self) -> None:
        """
        Stop all parts by one deadline, even if the API server does not answer.

        By default, that is in 5 seconds: 2 for the handlers, 2 for writing, 1 for the last
        requests. The stages of stopping the daemons and the cleanup handlers have their own time
        limits, set by the operator's author. So, their duration is added to the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.queueing.exit_timeout + WRITING_TIME
        try:
            try:
                self._switch.stop(deadline)
                await self._role.stop(deadline)
            finally:
                deadline = max(deadline, loop.time()) + FAREWELL_TIME
                if self._admission is not None:
                    await self._admission.stop(deadline)
            begun = loop.time()
            try:
                await self._run_activity(causes.Activity.CLEANUP)
            finally:
                deadline += loop.time() - begun
        finally:
            is_released = not any(
                each.spawner.alive for each in [*self._role.works, *self._role.ending])
            if not is_released:
                logger.warning(
                    "Daemons go on in threads, which cannot be cancelled. Other operators do not "
                    "take over before the peering record or the Lease of this one expires.")
            try:
                await aiotasks.gather(
                    self._stop_posting(deadline),
                    self._role.leave(deadline, is_released=is_released))
            finally:  # also if the shutdown is interrupted
                await self._client.close()

    def _take_role(
            self, admission: admitting.Admission, hub: Hub,
    ) -> coordination.Coordination:
        """Make what handles objects, and begin to coordinate that with other operators."""
        if self._settings.sharding.count is not None:
            from kopf._core.reactor.roles import sharding  # only if it is used
            return sharding.Sharding(
                env=self._env, vault=self._vault, hub=hub, indexers=self._indices,
                identity=self._options.identity, parts=[admission])
        whole = works.Works(
            self._env, switch=self._switch, hub=hub, indexers=self._indices,
            on_listed=hub.note_list)
        hub.rely_on(whole.informers.is_gone)
        if self._settings.leadership.name is not None:
            from kopf._core.reactor.roles import leadership  # only if it is used
            told = [] if self._answerer is None else [self._answerer]
            return leadership.Leadership(
                client=self._client, vault=self._vault, settings=self._settings,
                identity=self._options.identity, works=whole, parts=[admission, *told])
        from kopf._core.reactor.roles import peering  # only if it is used
        return peering.Peerings(
            client=self._client, settings=self._settings, clock=self._clock,
            identity=self._options.identity, works=whole, parts=[admission])

    async def _stop_posting(self, deadline: float) -> None:
        if self._poster is not None:
            self._poster.cancel()
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait([self._poster], timeout=max(0.0, left))
            await aiotasks.cancel([self._poster])

    async def _run_activity(
            self,
            activity: causes.Activity,
            registry: registries.OperatorRegistry | None = None,
    ) -> Mapping[ids.HandlerId, Any]:
        return await activities.run_activity(
            registry=registry if registry is not None else self._registry,
            activity=activity, memo=self._env.memo, context=self._env)

    async def _probe(self) -> tuple[Mapping[Any, Any], Collection[str]]:
        try:
            results = await self._run_activity(causes.Activity.PROBE)
            return {**self._role.describe(), **results}, ()
        except activities.ActivityError as e:
            return {}, [
                id_ for id_, outcome in e.outcomes.items() if outcome.exception is not None]
