"""
The operator: its parts, how they are connected, and in which order they are started and stopped.

The life of an operator begins with the startup handlers and ends with the cleanup handlers. When
any part ends or fails, the whole operator stops. A part is stopped before the parts that it needs:
e.g. the reconciliations before the poster of events, and the poster before the API client.
"""
import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits import clocks, flags, wakeups
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import ids, references
from kopf._core.actions import calls, lifecycles, observers, reports
from kopf._core.engines import activities, indexing, posting
from kopf._core.engines.liveness import answering, checks, endpoints, health
from kopf._core.engines.reconciling import applications
from kopf._core.intents import causes, registries, stopping
from kopf._core.path import intake, objects, queueing, saving, switches, turns
from kopf._core.reactor import admitting, authentication, orchestration, shutdown
from kopf._core.reactor.roles import peering
from kopf._core.reactor.watches import discovery

if TYPE_CHECKING:
    from kopf._core.reactor.roles import leadership, sharding
    from kopf._core.reactor.views import debug, inspection, metrics

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


class Operator:
    """
    One operator with all its parts.

    Make the instance in the context (`contextvars`) in which `run` is called: the constructor sets
    context variables, which must not leak into the caller's context.
    """

    def __init__(
            self,
            *,
            underway: calls.Calls,
            endpoint: endpoints.Endpoint | None,
            lifecycle: lifecycles.LifeCycleFn | None,
            indexers: indexing.OperatorIndexers | None,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
            insights: discovery.Insights | None,
            vault: vaults.Vault | None,
            memo: Any,
            identity: str | None,
            observer: observers.Observer | None = None,
    ) -> None:
        super().__init__()
        self._underway = underway
        self._registry = registry
        self._settings = settings
        self._clock = clocks.Clock()
        self._indices = indexers if indexers is not None else indexing.OperatorIndexers()
        self._indices.ensure(registry._indexing)
        self._insights = insights if insights is not None else discovery.Insights()
        self._vault = vault if vault is not None else vaults.Vault()
        self._client = api.Client(credentials=self._vault, settings=settings)
        self._unlimited = self._client.without_limits()
        self._lifecycle = lifecycle
        self._memo = memo
        self._observers = [] if observer is None else [observer]
        self._identity = identity
        self._events = reports.EventQueue(settings)
        posting.event_queue_var.set(self._events)
        applications.Applier(self._client).enter()
        calls.calls_var.set(underway)
        self._poster: asyncio.Task[None] | None = None

        self._leadership: leadership.Leadership | None = None
        self._sharding: sharding.Sharding | None = None
        self._measures: metrics.Measures | None = None
        self._debugger: debug.Debugger | None = None
        self._monitor = health.Monitor(underway=underway, clock=self._clock)
        self._monitor.add_vault(self._vault)
        self._checks = checks.Checks(
            endpoint, monitor=self._monitor, probe=self._probe, clock=self._clock)
        self._assemble()

    def _assemble(self) -> None:
        """
        Make the parts that handle objects, and connect them.

        The startup handlers decide whether the parts are observed. If they are, other parts are
        made instead of the present ones, which have not begun anything yet.
        """
        settings, measures = self._settings, self._measures
        told = list(self._observers)
        if measures is not None:
            told.append(measures.meter)
        env = self._env = saving.Environment(
            client=self._client, settings=settings, clock=self._clock, memo=self._memo,
            indices=self._indices, lifecycle=self._lifecycle,
            observer=observers.Telling(told))
        switch = switches.Switch(confirm=lambda: self._confirm())
        alarms = wakeups.Wakeups()
        processor = turns.Processor(
            env, switch=switch, alarms=alarms, indexers=self._indices)
        self._spawner = processor.spawner
        self._hub = processor.hub
        self._queue = queueing.WorkQueue(
            settings=settings, switch=switch, alarms=alarms, processor=processor,
            observer=env.observer)
        self._informers = intake.InformerFactory(
            self._queue, reconsider=processor.reconsider, on_listed=self._hub.note_list)
        self._hub.rely_on(self._informers.is_gone)
        self._admission = admitting.Admission(
            env=env, registry=self._registry, insights=self._insights, find=self._find,
            measure=None if measures is None else measures.observe_reviews)
        self._peers = peering.Peerings(
            client=self._client, settings=settings, clock=self._clock, identity=self._identity,
            pausables=[self._informers, self._spawner, self._admission])
        self._confirm = self._peers.confirm

    def _look_inside(self) -> 'inspection.Inspector | None':
        """
        Trace the operator, and serve its metrics and its state, if so set; return who looks there.
        """
        settings, inspector = self._settings, None
        if settings.tracing.enabled:
            from kopf._core.engines import tracing  # only if it is used
            tracing.follow(self._client)
            self._observers.append(tracing.Tracer())
        if settings.metrics.endpoint is not None:
            from kopf._core.reactor.views import metrics  # only if it is used
            self._measures = metrics.Measures(settings)
            self._measures.follow(self._client)
            self._checks.add(
                endpoints.Endpoint.parse(settings.metrics.endpoint, default_path='/metrics'),
                self._measures.respond, title="metrics", option='--metrics')
        if settings.tracing.enabled or settings.metrics.endpoint is not None:
            self._assemble()
        if settings.metrics.endpoint is not None or settings.debugging.endpoint is not None:
            from kopf._core.reactor.views import inspection  # only if it is used
            whole = inspection.OnlyWorks(self._queue, self._informers, self._spawner)
            inspector = inspection.Inspector(
                list_works=lambda: (
                    [whole] if self._sharding is None else self._sharding.division.works.values()),
                switch=self._queue.switch,
                indices=self._indices, underway=self._underway,
                describe_leadership=lambda: (
                    None if self._leadership is None else self._leadership.describe()))
        if self._measures is not None and inspector is not None:
            self._measures.inspect(inspector)
        if settings.debugging.endpoint is not None and inspector is not None:
            from kopf._core.reactor.views import debug  # only if it is used
            self._debugger = debug.Debugger(inspector, settings=settings, clock=self._clock)
            self._checks.add(
                endpoints.Endpoint.parse(settings.debugging.endpoint, default_path='/debug'),
                self._debugger.respond,
                title="insides of the operator", option='--debug-endpoint')
        return inspector

    async def run(
            self,
            *,
            clusterwide: bool,
            namespaces: Collection[references.NamespacePattern],
            ready_flag: flags.Flag | None,
    ) -> None:
        """
        Run until cancelled, or until any part fails.

        :raises Exception: the error of the part that has failed.
        """
        logger.debug(f"Starting Kopf {versions.version}.")
        authentication.prepare(self._vault, registry=self._registry, run=self._log_in)
        try:
            with shutdown.remind(self._underway, "starting"):
                await self._run_activity(causes.Activity.STARTUP)
            self._registry.verify()
            inspector = self._look_inside()
            await self._checks.start()
            self._poster = asyncio.create_task(
                posting.poster(client=self._unlimited, settings=self._settings, queue=self._events),
                name="poster of events")
            self._monitor.add_task('posting', self._poster)
            await self._vault.obtain()
            self._admission.start(self._client)
            if self._settings.leadership.name is not None:
                self._stand_for_election()
            if ready_flag is not None:
                flags.raise_flag(ready_flag)
            if self._settings.sharding.count is not None:
                self._share()
            leadership, sharding, measures = self._leadership, self._sharding, self._measures
            await aiotasks.gather(
                self._vault.guard(), self._admission.serve(), self._monitor.run(),
                self._settle(orchestration.serve(
                    client=self._client, settings=self._settings, registry=self._registry,
                    informers=self._informers if sharding is None else sharding.division,
                    relisting=None if sharding is None else sharding.division,
                    namespaces=namespaces, clusterwide=clusterwide,
                    insights=self._insights, logger=logger,
                    peers=self._peers if leadership is None and sharding is None else None,
                    monitor=self._monitor, hub=self._hub,
                    introduce=None if inspector is None else (
                        lambda tasks: inspector.follow_watches(tasks.list_states)))),
                *([] if measures is None else [measures.run()]),
                *([] if leadership is None else [leadership.run()]),
                *([] if sharding is None else [sharding.run()]))
        finally:
            self._monitor.dismiss()
            try:
                with shutdown.remind(self._underway):
                    await self._clean_up()
            finally:
                await self._checks.stop()
                for page in (self._measures, self._debugger):
                    if page is not None:
                        await page.close()
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
                await aiotasks.gather(
                    *([] if self._sharding is None else [
                        self._sharding.stop(self._settings.queueing.exit_timeout)]),
                    self._informers.stop(deadline),
                    self._spawner.stop(stopping.DaemonStoppingReason.OPERATOR_EXITING, deadline))
            finally:
                deadline = max(deadline, loop.time()) + FAREWELL_TIME
                await self._admission.stop(deadline)
            begun = loop.time()
            try:
                await self._run_activity(causes.Activity.CLEANUP)
            finally:
                deadline += loop.time() - begun
        finally:
            leadership, sharding = self._leadership, self._sharding
            is_released = not self._is_left_behind()
            if not is_released:
                logger.warning(
                    "Daemons go on in threads, which cannot be cancelled. Other operators do not "
                    "take over before the peering record or the Lease of this one expires.")
            await aiotasks.gather(
                self._stop_posting(deadline), self._peers.leave(deadline, is_released=is_released),
                *([] if leadership is None else [
                    leadership.leave(deadline, is_released=is_released)]),
                *([] if sharding is None else [
                    sharding.leave(deadline, is_released=is_released)]))
            await self._client.close()

    def _is_left_behind(self) -> bool:
        """Whether any daemons run that neither have stopped in time nor are abandoned."""
        spawners = [self._spawner] if self._sharding is None else self._sharding.spawners
        return any(spawner.alive for spawner in spawners)

    def _stand_for_election(self) -> None:
        """Begin as a standby; the Lease decides who leads."""
        from kopf._core.reactor.roles import leadership  # only if it is used
        leader = self._leadership = leadership.Leadership(
            client=self._client, vault=self._vault, settings=self._settings,
            identity=self._identity,
            parts=[self._informers, self._spawner, self._admission, self._checks])
        self._confirm = leader.confirm

    def _share(self) -> None:
        """Begin with no shards; the Leases decide which ones this operator holds."""
        from kopf._core.reactor.roles import sharding  # only if it is used
        self._sharding = sharding.Sharding(
            env=self._env, vault=self._vault, hub=self._hub, indexers=self._indices,
            identity=self._identity, parts=[self._admission])

    def _find(self, resource: references.Resource, uid: str) -> objects.Item | None:
        """Find the item of an object; None if the object is not known, or not handled here."""
        informers = self._informers if self._sharding is None else self._sharding.division
        return informers.find(resource, uid)

    async def _settle(self, serving: Coroutine[None, None, None]) -> None:
        """Begin to watch when the first shards are known."""
        try:
            if self._sharding is not None:
                await self._sharding.settled.wait()
        except asyncio.CancelledError:
            serving.close()
            raise
        await serving

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

    async def _probe(self) -> answering.Results:
        try:
            results = await self._run_activity(causes.Activity.PROBE)
            if self._sharding is not None:
                return {'shards': self._sharding.describe(), **results}
            return results if self._leadership is None else {
                'leadership': self._leadership.describe(), **results}
        except activities.ActivityError as e:
            raise answering.ProbeError([
                id_ for id_, outcome in e.outcomes.items() if outcome.exception is not None
            ]) from e

    async def _log_in(
            self, registry: registries.OperatorRegistry,
    ) -> Mapping[ids.HandlerId, Any]:
        return await self._run_activity(causes.Activity.AUTHENTICATION, registry)
