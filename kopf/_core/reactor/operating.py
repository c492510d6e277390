"""
Operating: the parts of one operator, how they are put together, and their life.

It begins with the startup handlers, and ends with the cleanup handlers. Whatever ends any of its
parts, ends the operator: the others are stopped in the order in which they need each other.
"""
import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks, flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import api, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.structs import ids, references
from kopf._core.actions import calls, lifecycles, reports
from kopf._core.engines import activities, indexing, posting
from kopf._core.engines.probing import endpoints
from kopf._core.intents import causes, registries, stopping
from kopf._core.reactor import (
    admitting,
    authentication,
    health,
    leaving,
    liveness,
    observation,
    orchestration,
    peerings,
    processing,
    queueing,
    turns,
)

logger = logging.getLogger('kopf._core.reactor.running')


class Operator:
    """The parts of one operator. It is made in the context in which it runs."""

    def __init__(
            self,
            *,
            known: calls.Calls,
            endpoint: endpoints.Endpoint | None,
            lifecycle: lifecycles.LifeCycleFn | None,
            indexers: indexing.OperatorIndexers | None,
            registry: registries.OperatorRegistry,
            settings: configuration.OperatorSettings,
            insights: observation.Insights | None,
            vault: vaults.Vault | None,
            memo: Any,
            identity: str | None,
    ) -> None:
        super().__init__()
        self._known = known
        self._registry = registry
        self._settings = settings
        self._memo = memo
        self._clock = clocks.Clock()
        self._indices = indexers if indexers is not None else indexing.OperatorIndexers()
        self._indices.ensure(registry._indexing)
        self._insights = insights if insights is not None else observation.Insights()
        self._vault = vault if vault is not None else vaults.Vault()
        self._client = api.Client(credentials=self._vault, settings=settings)
        self._events = reports.EventQueue(settings)
        posting.event_queue_var.set(self._events)
        calls.calls_var.set(known)
        self._poster: asyncio.Task[None] | None = None

        env = turns.Environment(
            client=self._client, settings=settings, clock=self._clock, memo=memo,
            indices=self._indices, lifecycle=lifecycle)
        processor = processing.Processor(env, self._indices)
        self._spawner = processor.spawner
        self._lines = queueing.Lines(
            settings=settings, process=processor.process, settle=processor.settle,
            is_congested=processor.is_congested, index=processor.index, discard=processor.discard,
            reconsider=processor.reconsider, confirm=lambda: self._peers.confirm())
        self._peers = peerings.Peerings(
            client=self._client, settings=settings, clock=self._clock, identity=identity,
            pausables=[self._lines, self._spawner])
        self._admission = admitting.Admission(
            env=env, registry=registry, insights=self._insights, lines=self._lines)
        self._monitor = health.Monitor(known=known, clock=self._clock)
        self._monitor.add_vault(self._vault)
        self._probes = liveness.Liveness(
            endpoint, monitor=self._monitor, run_activity=self._run_activity, clock=self._clock)

    async def run(
            self,
            *,
            clusterwide: bool,
            namespaces: Collection[references.NamespacePattern],
            ready_flag: flags.Flag | None,
    ) -> None:
        """Live until it is cancelled, or until any part fails; the error is raised then."""
        logger.debug(f"Starting Kopf {versions.version}.")
        authentication.prepare(self._vault, registry=self._registry, run=self._log_in)
        try:
            await self._run_activity(causes.Activity.STARTUP)
            await self._probes.start()
            self._poster = asyncio.create_task(
                posting.poster(client=self._client, settings=self._settings, queue=self._events),
                name="poster of events")
            self._monitor.add_task('posting', self._poster)
            await self._vault.obtain()
            self._admission.start(self._client)
            if ready_flag is not None:
                flags.raise_flag(ready_flag)
            await aiotasks.gather(
                self._vault.guard(), self._admission.serve(), self._monitor.run(),
                orchestration.serve(
                    client=self._client, settings=self._settings, registry=self._registry,
                    lines=self._lines, namespaces=namespaces, clusterwide=clusterwide,
                    insights=self._insights, peers=self._peers, logger=logger,
                    monitor=self._monitor))
        finally:
            self._monitor.dismiss()
            try:
                with leaving.remind(self._known):
                    await self._clean_up()
            finally:
                await self._probes.stop()
                self._settings.execution.release_threads()

    async def _clean_up(self) -> None:
        try:
            try:
                await aiotasks.gather(
                    self._lines.stop(),
                    self._spawner.stop(stopping.DaemonStoppingReason.OPERATOR_EXITING))
            finally:
                await self._admission.stop()
            await self._run_activity(causes.Activity.CLEANUP)
        finally:
            if self._poster is not None:
                await aiotasks.cancel([self._poster])
            await self._peers.leave()
            await self._client.close()

    async def _run_activity(
            self,
            activity: causes.Activity,
            registry: registries.OperatorRegistry | None = None,
    ) -> Mapping[ids.HandlerId, Any]:
        return await activities.run_activity(
            registry=registry if registry is not None else self._registry,
            settings=self._settings, activity=activity, clock=self._clock, memo=self._memo,
            indices=self._indices)

    async def _log_in(
            self, registry: registries.OperatorRegistry,
    ) -> Mapping[ids.HandlerId, Any]:
        return await self._run_activity(causes.Activity.AUTHENTICATION, registry)
