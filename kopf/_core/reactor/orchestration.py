"""
Orchestration: starts and stops the watches as resources and namespaces come and go.

There is exactly one watching task for each resource with handlers in each served namespace; for
cluster-scoped resources and in cluster-wide operators, there is one task per resource. The task
feeds the informer of the resource in the namespace. When a resource or a namespace goes away, its
task is cancelled, and its informer forgets the objects.
"""
import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import NamedTuple

from kopf._cogs.aiokits import pulses, tasks
from kopf._cogs.clients import api, watching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.engines.liveness import health
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import registries
from kopf._core.reactor import shutdown
from kopf._core.reactor.roles import coordination
from kopf._core.reactor.roles.coordination import Key
from kopf._core.reactor.watches import discovery, listings, owned

WATCHING_SLACK = 30.0
"""
How long (seconds) a watch can be late before the operator is reported as unhealthy.

A watch is late if it has neither progressed nor reconnected in time: if nothing has come for
``settings.watching.inactivity_timeout``, or if a request for a list takes longer than
``settings.networking.request_timeout``. While the API server cannot be reached, no watch is late:
the operator is not to blame, and a restart of its pod would not help.
"""

class _Served(NamedTuple):
    """
    What a watching task serves.

    It is compared instead of the resource itself: resources are equal if their names are equal.
    """
    handlers: registries.ResourceHandlers
    details: tuple[object, ...]
    """
    All attributes of the resource except for its verbs.

    When a CRD is being deleted, its resource has fewer verbs, but the watch must go on: a new one
    would begin with a list, and the CRD can be gone before that.
    """

    @classmethod
    def make(
            cls, handlers: registries.ResourceHandlers, resource: references.Resource,
    ) -> '_Served':
        return cls(handlers, dataclasses.astuple(dataclasses.replace(resource, verbs=frozenset())))


async def serve(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        registry: registries.OperatorRegistry,
        role: coordination.Coordination,
        namespaces: Collection[references.NamespacePattern],
        clusterwide: bool,
        logger: logging.Logger,
        insights: discovery.Insights | None = None,
        monitor: health.Monitor | None = None,
        hub: Hub | None = None,
        introduce: 'Callable[[WatchTasks], None] | None' = None,
) -> None:
    """
    Watch all resources that have handlers in the registry, until cancelled.

    ``introduce`` is called with the tasks before any is started, to look at them later.

    While the operator is paused by its peers, only the peering objects, the CRDs, and the
    namespaces are watched. When this function is cancelled or fails, it leaves no tasks behind.

    :raises LoginError: if no credentials are left and the re-authentication has failed.
    """
    await role.settle()
    insights = discovery.Insights() if insights is None else insights
    watch_tasks = WatchTasks(
        client=client, settings=settings, registry=registry, informers=role.informers,
        logger=logger, owned=None if hub is None else owned.OwnedWatches(hub, client=client))
    if introduce is not None:
        introduce(watch_tasks)
    woken = watch_tasks.woken
    insights.subscribe(woken)
    if monitor is not None:
        monitor.add('watching', watch_tasks.diagnose)
    groups = get_groups(registry)
    groups = None if groups is None else {*groups, *role.groups}
    role.subscribe(woken)
    try:
        watch_tasks.start(discovery.observe_resources(
            client=client, settings=settings, groups=groups,
            insights=insights, logger=logger))
        watch_tasks.start(discovery.observe_namespaces(
            client=client, settings=settings, clusterwide=clusterwide, patterns=namespaces,
            insights=insights, logger=logger))
        seen = 0
        while True:
            woken.clear()
            watch_tasks.check()
            if insights.resources is not None and insights.namespaces is not None:
                if seen != insights.changes:
                    seen = insights.changes
                    # In the same order in each run: so, the watches and their logs are easier to
                    # compare.
                    resources = sorted(insights.resources, key=repr)
                    known = sorted(insights.namespaces, key=lambda name: name or '')
                    await role.adjust(resources, known)
                served = role.select(known)
                if served is None:
                    await watch_tasks.pause()
                else:
                    await watch_tasks.drop(role.take_relisting())
                    await watch_tasks.adjust(
                        resources, served, deleted=insights.deleted, failing=insights.failing,
                        is_idle=role.is_idle)
                    # Others than the served ones are there, too, if their peers are not known yet.
                    role.informers.forget_except(insights.namespaces)
                    watch_tasks.announce(served)
                    if served == known:
                        role.informers.seal()
            await woken.wait()
    finally:
        insights.unsubscribe(woken)
        await watch_tasks.close()


def get_groups(registry: registries.OperatorRegistry) -> Collection[str] | None:
    """The API groups in the selectors of the handlers; None if some handler is for any group."""
    groups = {selector.group for selector in registry.get_selectors()}
    return None if None in groups else {group for group in groups if group is not None}


class WatchTasks:
    """
    The watching tasks of the resources, and the observing tasks of the cluster.

    `woken` is set when any of the tasks ends.
    """

    def __init__(
            self,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            registry: registries.OperatorRegistry,
            informers: coordination.Informers,
            logger: logging.Logger,
            owned: owned.OwnedWatches | None = None,
    ) -> None:
        super().__init__()
        self._owned = owned
        self.woken = asyncio.Event()
        self._client = client
        self._settings = settings
        self._registry = registry
        self._informers = informers
        self._logger = logger
        self._observers: list[asyncio.Task[None]] = []
        self._watchers: dict[Key, asyncio.Task[None]] = {}
        self._ended: list[asyncio.Task[None]] = []
        """The observing and watching tasks that have ended since the last `check`."""
        self._pulses: dict[Key, pulses.Pulse] = {}
        self._sinks: dict[Key, coordination.Feed] = {}
        self._served: dict[Key, _Served] = {}
        self._reported: set[references.Selector | references.Resource] = set()
        self._listings = listings.Listings(logger)
        self._is_announced = False

    def start(self, coro: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coro)
        task.add_done_callback(self._note_end)
        self._observers.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._ended.append(task)
        self.woken.set()

    def check(self) -> None:
        """Raise the error of a failed task, if there is any."""
        while self._ended:
            task = self._ended.pop()
            if not task.cancelled():
                task.result()
        if self._owned is not None:
            self._owned.check()

    def diagnose(self, now: float) -> str | None:
        """
        Describe what is not watched though it should be, for the health checks; None if all is.
        """
        if any(task.cancelled() for task in self._observers):
            return "the resources or the namespaces of the cluster are not observed."
        late = [
            key for key, task in self._watchers.items()
            if task.done() or self._pulses[key].is_late(now, slack=WATCHING_SLACK)]
        if self._owned is not None:
            late += self._owned.find_late(now, slack=WATCHING_SLACK)
        dead = [
            f"{resource} {'cluster-wide' if namespace is None else f'in {namespace!r}'}"
            for resource, namespace in late]
        return f"no progress: {', '.join(dead[:discovery.MAX_NAMED])}." if dead else None

    def list_states(self) -> list[owned.WatchState]:
        """List all watches of objects, as they are now."""
        return [
            *(owned.WatchState(*key, self._pulses[key], not task.done())
              for key, task in self._watchers.items()),
            *([] if self._owned is None else self._owned.list_states())]

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
            *,
            deleted: Collection[references.Resource] = (),
            failing: Collection[str] = (),
            is_idle: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        """
        Start and stop tasks, so that exactly these resources and namespaces are watched, except for
        the idle ones.

        All objects of ``deleted`` resources are gone, even if no watch has shown that. The
        ``failing`` groups can have more resources.
        """
        binding = self._bind(resources)
        bound = {
            resource: handlers for resource, handlers in binding.handlers.items()
            if handlers.are_watched
        }
        if self._owned is not None:
            await tasks.cancel(
                self._owned.adjust(
                    binding.owned, binding.watched, namespaces, self.woken.set,
                    uncertain=registries.find_uncertain(binding, failing)))
        needed = {
            (resource, namespace): _Served.make(handlers, resource)
            for resource, handlers in bound.items()
            for namespace in (namespaces if resource.namespaced else (None,))
        }
        for key in [key for key, task in self._watchers.items() if task.done()]:
            self._logger.warning(f"Somebody has stopped watching of {key[0]}; starting it again.")
            del self._watchers[key]
        gone = [key for key in self._served if key not in needed]
        outdated = dict.fromkeys(
            key for key, served in self._served.items() if served != needed.get(key))
        idle = {key for key in needed if is_idle(key)}
        for key in (*outdated, *idle):
            self._listings.forget(key)
        await tasks.cancel([
            self._watchers.pop(key) for key in [*self._watchers]
            if key in outdated or key in idle])
        for key in outdated:
            del self._sinks[key]
            self._pulses.pop(key, None)
        for key in gone:
            self._informers.close(*key, deleted=key[0] in deleted)
        self._served = needed
        for key, served in needed.items():
            if key not in self._sinks:
                self._sinks[key] = self._informers.open(*key, served.handlers)
            if key not in self._watchers and key not in idle:
                self._watch(key)

    def announce(self, namespaces: Collection[references.Namespace]) -> None:
        """Say once what is watched, as soon as anything is."""
        if self._is_announced or not self._served:
            return
        self._is_announced = True
        resources = discovery.enumerate_names({str(resource) for resource, _ in self._served})
        where = "all namespaces" if None in namespaces else (
            discovery.enumerate_names(map(str, namespaces)))
        number = len({
            handler for served in self._served.values()
            for name in ('indexing', 'watching', 'spawning', 'changing', 'reconciling')
            for handler in getattr(served.handlers, name)})
        hint = " Ctrl+C stops." if shutdown.owns_process_var.get() and sys.stderr.isatty() else ""
        self._logger.info(f"Watching {resources} in {where}, {number} "
                          f"handler{'' if number == 1 else 's'}.{hint}")

    async def drop(self, keys: Collection[Key]) -> None:
        """Stop these watches; `adjust` begins them anew, with lists."""
        await tasks.cancel([self._watchers.pop(key) for key in keys if key in self._watchers])

    async def pause(self) -> None:
        """Stop watching until `adjust` is called; the new watches begin with lists then."""
        watchers, self._watchers = self._watchers, {}
        for key in watchers:
            self._listings.forget(key)
        owned = () if self._owned is None else self._owned.release()
        await tasks.cancel([*watchers.values(), *owned])

    def _watch(self, key: Key) -> None:
        resource, namespace = key
        sink = self._sinks[key]
        pulse = self._pulses.setdefault(key, pulses.Pulse())
        pulse.expect(None)
        self._listings.observe(key, str(resource), sink)
        task = asyncio.create_task(watching.watch(
            self._client, settings=self._settings, resource=resource, namespace=namespace,
            sink=sink, reached=sink.reached, pulse=pulse),
            name=f"watching of {resource}")
        task.add_done_callback(self._note_end)
        self._watchers[key] = task

    def _bind(
            self,
            resources: Collection[references.Resource],
    ) -> registries.Binding:
        """Find the handlers of each resource; log what cannot be served, each problem once."""
        binding = registries.resolve(self._registry, resources)
        news = dataclasses.replace(
            binding,
            unresolved=[item for item in binding.unresolved if item not in self._reported],
            ambiguous={
                key: val for key, val in binding.ambiguous.items() if key not in self._reported},
            failing={key: val for key, val in binding.failing.items() if key not in self._reported},
            unwatchable=[item for item in binding.unwatchable if item not in self._reported],
            unpatchable=[item for item in binding.unpatchable if item not in self._reported],
        )
        self._reported.update(
            news.unresolved, news.ambiguous, news.failing, news.unwatchable, news.unpatchable)
        for complaint in news.complaints():
            self._logger.warning(complaint)
        return binding

    async def close(self) -> None:
        """Cancel all tasks, and wait until they end."""
        self._listings.close()
        owned = () if self._owned is None else self._owned.release()
        await tasks.cancel([*self._observers, *self._watchers.values(), *owned])
