"""
The operator: its parts, how they are connected, and in which order they are started and stopped.

The life of an operator begins with the startup handlers and ends with the cleanup handlers. When
any part ends or fails, the whole operator stops. A part is stopped before the parts that it needs:
e.g. the reconciliations before the poster of events, and the poster before the API client.
"""
import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits import clocks, flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.clients import api, vaults
from kopf._cogs.cluster import discovery
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import versions
from kopf._cogs.serving import endpoints
from kopf._cogs.structs import ids, memos, references
from kopf._core.actions import brakes, inflight, lifecycles, observers, reports
from kopf._core.engines import activities, indexing, posting
from kopf._core.engines.liveness import health
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import causes, registries
from kopf._core.path import saving, switches
from kopf._core.reactor import admitting, authentication, waiting
from kopf._core.reactor.roles import coordination, works
from kopf._core.reactor.watches import orchestration

if TYPE_CHECKING:
    from kopf._cogs.serving import pages
    from kopf._core.engines.liveness import answering

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
    """What an operator is for; `kopf.operator` describes it."""
    lifecycle: lifecycles.LifeCycleFn | None = None
    indexers: indexing.OperatorIndexers | None = None
    registry: registries.OperatorRegistry | None = None
    insights: discovery.Insights | None = None
    identity: str | None = None
    liveness_endpoint: str | None = None
    clusterwide: bool = False
    namespaces: Collection[references.NamespacePattern] = ()
    ready_flag: flags.Flag | None = None
    vault: vaults.Vault | None = None
    memo: object | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extension:
    """What is attached to an operator from outside: it observes and reads, but changes nothing."""
    observer: observers.Observer | None = None
    page: endpoints.Page | None = None
    """The page that shows the operator."""
    wrap_reviews: admitting.Wrapper | None = None
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    """The coroutine function that runs as long as the operator does."""


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
            extend: Callable[['Operator'], Iterable[Extension]] = lambda operator: (),
    ) -> None:
        """
        ``extend`` makes the extensions of this operator. It is called after the startup handlers,
        as they change the settings.
        """
        self._options = options
        self.settings = settings
        self.underway = underway
        self._registry = options.registry or registries.get_default_registry()
        self.clock = clocks.Clock()
        self.indices = (
            indexing.OperatorIndexers() if options.indexers is None else options.indexers)
        self.indices.ensure(self._registry._indexing)
        self._insights = options.insights or discovery.Insights()
        self._vault = options.vault or vaults.Vault()
        self.client = api.Client(credentials=self._vault, settings=settings)
        self._unfenced = self.client.unfenced()
        self._extend = extend
        self._extensions: Sequence[Extension] = ()
        self._is_started = False
        self.brakes = brakes.Brakes(settings.brakes, get_share=lambda: self.role.share)
        self._env = saving.Environment(
            client=self.client, settings=settings, clock=self.clock,
            memo=memos.Memo() if options.memo is None else options.memo,
            indices=self.indices, lifecycle=options.lifecycle, brakes=self.brakes)
        self._events = reports.EventQueue(settings)
        posting.event_queue_var.set(self._events)
        self._env.enter()
        inflight.calls_var.set(underway)
        self._poster: asyncio.Task[None] | None = None
        self._admission: admitting.Admission | None = None
        self.hub: Hub | None = None
        self.role = coordination.Coordination()
        """There are no works before the startup handlers have succeeded."""
        self.switch = switches.Switch(confirm=lambda: self.role.confirm())
        self.watches: orchestration.Orchestration | None = None
        self._monitor = health.Monitor(underway=underway, clock=self.clock)
        self._monitor.add_vault(self._vault)
        self._endpoint = None if options.liveness_endpoint is None else (
            endpoints.Endpoint.parse(options.liveness_endpoint))
        self._answerer: answering.Answerer | None = None
        self._server: pages.Server | None = None

    async def _attach(self) -> None:
        """Attach the extensions, and serve the health checks and the pages of the extensions."""
        self._extensions = list(self._extend(self))
        observing = [each.observer for each in self._extensions if each.observer is not None]
        if observing:
            self._env = dataclasses.replace(self._env, observer=observers.Notifier(observing))
        served = [each.page for each in self._extensions if each.page is not None]
        if self._endpoint is not None:
            from kopf._core.engines.liveness import answering  # only if it is used
            answerer = self._answerer = answering.Answerer(
                probe=self._probe, diagnose=self._monitor.diagnose, underway=self.underway)
            served.insert(0, endpoints.Page(
                'health checks', '--liveness', self._endpoint, answerer.respond, answerer.close))
        if served:
            from kopf._cogs.serving import pages  # only if it is used
            self._server = pages.Server(
                served, watch=None if self._answerer is None else self._answerer.watch)
            await self._server.start()

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
            with waiting.remind(self.underway, "starting"), aiotasks.revealing():
                await self._run_activity(causes.Activity.STARTUP)
            self._is_started = True
            self._registry.verify(finalizer=self.settings.persistence.finalizer)
            await self._attach()
            self._poster = asyncio.create_task(
                posting.poster(client=self._unfenced, queue=self._events),
                name="poster of events")
            self._monitor.add_task('posting', self._poster)
            await self._vault.obtain()
            admission = self._admission = admitting.Admission(
                env=self._env, registry=self._registry, insights=self._insights,
                find=lambda resource, uid: self.role.find(resource, uid),
                wrappers=[
                    each.wrap_reviews for each in self._extensions
                    if each.wrap_reviews is not None])
            admission.start()
            hub = self.hub = Hub(context=self._env, get_memo=self._env.get_memo)
            self.role = self._take_role(admission, hub)
            watches = self.watches = orchestration.Orchestration(
                client=self.client, registry=self._registry, consumer=self.role, hub=hub,
                namespaces=self._options.namespaces,
                clusterwide=self._options.clusterwide, insights=self._insights, logger=logger)
            self._monitor.add('watching', watches.diagnose)
            if self._options.ready_flag is not None:
                flags.raise_flag(self._options.ready_flag)
            await aiotasks.gather(
                self._vault.guard(), admission.serve(), self._monitor.run(), self.role.run(),
                watches.serve(), *(each.run() for each in self._extensions if each.run is not None))
        finally:
            self._monitor.dismiss()
            try:
                with waiting.remind(self.underway), aiotasks.preferring_errors():
                    await self._clean_up()
            finally:
                if self._server is not None:
                    await self._server.stop()
                self.settings.execution.release_threads()

    async def _clean_up(self) -> None:
        """
        Stop all parts by one deadline, even if the API server does not answer.

        By default, that is in 5 seconds: 2 for the handlers, 2 for writing, 1 for the last
        requests. The stages of stopping the daemons and the cleanup handlers have their own time
        limits, set by the operator's author. So, their duration is added to the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.queueing.exit_timeout + WRITING_TIME
        try:
            try:
                self.switch.stop(deadline)
                await self.role.stop(deadline)
            finally:
                deadline = max(deadline, loop.time()) + FAREWELL_TIME
                if self._admission is not None:
                    await self._admission.stop(deadline)
            begun = loop.time()
            try:
                await self._run_activity(causes.Activity.CLEANUP, retrying=self._is_started)
            except activities.ActivityError:
                if self._is_started:
                    raise  # otherwise, the reason is what has interrupted the startup
            finally:
                deadline += loop.time() - begun
        finally:
            is_released = not any(
                each.spawner.alive for each in [*self.role.works, *self.role.ending])
            if not is_released:
                logger.warning(
                    "Daemons go on in threads, which cannot be cancelled. Other operators do not "
                    "take over before the peering record or the Lease of this one expires.")
            try:
                await aiotasks.gather(
                    *([] if self._poster is None else [aiotasks.end(self._poster, deadline)]),
                    self.role.leave(deadline, is_released=is_released))
            finally:  # even if the shutdown is interrupted
                await self.client.close()

    def _take_role(self, admission: admitting.Admission, hub: Hub) -> coordination.Coordination:
        """Make the works that handle objects, and begin the coordination with other operators."""
        if self.settings.sharding.count is not None:
            from kopf._core.reactor.roles import sharding  # only if it is used
            return sharding.Sharding(
                env=self._env, vault=self._vault, hub=hub, indexers=self.indices,
                identity=self._options.identity, parts=[admission])
        whole = works.Works(
            self._env, switch=self.switch, hub=hub, indexers=self.indices,
            on_listed=hub.note_list)
        hub.rely_on(whole.informers.is_gone)
        self._env.applier.rely_on(whole.informers.recall)
        if self.settings.leadership.name is not None:
            from kopf._core.reactor.roles import leadership  # only if it is used
            return leadership.Leadership(
                client=self.client, vault=self._vault, identity=self._options.identity,
                works=whole, parts=[admission, *filter(None, [self._answerer])])
        from kopf._core.reactor.roles import peering  # only if it is used
        return peering.Peerings(
            client=self.client, clock=self.clock, identity=self._options.identity,
            works=whole, parts=[admission])

    async def _run_activity(
            self,
            activity: causes.Activity,
            registry: registries.OperatorRegistry | None = None,
            *,
            retrying: bool = True,
    ) -> Mapping[ids.HandlerId, Any]:
        return await activities.run_activity(
            registry=registry if registry is not None else self._registry,
            activity=activity, memo=self._env.memo, context=self._env, retrying=retrying)

    async def _probe(self) -> tuple[Mapping[Any, Any], Collection[str]]:
        try:
            results = await self._run_activity(causes.Activity.PROBE, retrying=False)
            return {**self.role.describe(), **results}, ()
        except activities.ActivityError as e:
            return {}, [id_ for id_, outcome in e.outcomes.items() if outcome.exception is not None]
