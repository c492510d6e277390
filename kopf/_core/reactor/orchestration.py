"""
Orchestration: who watches what.

For each resource that has handlers, and each namespace that is served, there is exactly one
watching task, which feeds the lines; cluster-scoped resources are watched once. When a kind or
a namespace goes away, so does its task, and then its lines are dropped.
"""
import asyncio
import dataclasses
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Protocol

from kopf._cogs.aiokits import pulses, tasks
from kopf._cogs.clients import api, watching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.intents import registries
from kopf._core.reactor import health, observation, peerings

WATCHING_SLACK = 30.0
"""
How long (seconds) a watch can be late until the operator is not healthy. It is late if nothing has
come of it for ``settings.watching.inactivity_timeout``, or if a list takes longer than
``settings.networking.request_timeout``, and it has not reconnected. An API that cannot be reached
makes no watch late: it goes on trying.
"""

MAX_NAMED = 5
"""How many of the late watches are named at most."""

Key = tuple[references.Resource, references.Namespace]
_Served = tuple[registries.ResourceHandlers, frozenset[tuple[object, ...]]]


class Sink(watching.Sink, Protocol):
    """Where the objects of one resource go."""

    @property
    def reached(self) -> str | None:
        """The newest version of the objects that have come so far, if it is known."""


class Lines(Protocol):
    """Where the objects of all resources go."""

    def sink(
            self,
            resource: references.Resource,
            namespace: references.Namespace,
            handlers: registries.ResourceHandlers,
    ) -> Sink:
        """
        A sink for one resource in one namespace; possibly not the first one for it.

        It can come again with other details of the resource (e.g. its subresources), or with other
        handlers. The sinks given before are of no use then, and a new list begins.
        """

    def drop(self, resource: references.Resource, namespace: references.Namespace) -> None:
        """The resource or the namespace is not served any more, its sinks are of no use."""

    def known(self) -> None:
        """All the sinks for what is in the cluster at first are given out."""


async def serve(
        *,
        client: api.Client,
        settings: configuration.OperatorSettings,
        registry: registries.OperatorRegistry,
        lines: Lines,
        namespaces: Collection[references.NamespacePattern],
        clusterwide: bool,
        logger: logging.Logger,
        insights: observation.Insights | None = None,
        monitor: health.Monitor | None = None,
        peers: peerings.Peerings | None = None,
) -> None:
    """
    Watch all that the handlers of the registry are for, as long as it is in the cluster; for ever.

    While the operator is frozen by its peers, nothing is watched but the peering itself. No task is
    left behind when it is cancelled or fails. It fails only when logging in does.
    """
    insights = observation.Insights() if insights is None else insights
    ensemble = Ensemble(
        client=client, settings=settings, registry=registry, lines=lines, logger=logger)
    woken = ensemble.woken
    insights.subscribe(woken)
    if monitor is not None:
        monitor.add('watching', ensemble.diagnose)
    groups = get_groups(registry)
    if peers is not None:
        peers.subscribe(woken)
        groups = None if groups is None else {*groups, *peers.groups}
    try:
        ensemble.start(observation.observe_resources(
            client=client, settings=settings, groups=groups,
            insights=insights, logger=logger))
        ensemble.start(observation.observe_namespaces(
            client=client, settings=settings, clusterwide=clusterwide, patterns=namespaces,
            insights=insights, logger=logger))
        while True:
            woken.clear()
            ensemble.check()
            if insights.resources is not None and insights.namespaces is not None:
                resources, known = insights.resources, insights.namespaces
                served = await _meet(peers, resources, known)
                if served is None:
                    await ensemble.pause()
                else:
                    await ensemble.adjust(resources, served)
                    if served == known:
                        lines.known()
            await woken.wait()
    finally:
        insights.unsubscribe(woken)
        await ensemble.close()


async def _meet(
        peers: peerings.Peerings | None,
        resources: Collection[references.Resource],
        namespaces: frozenset[references.Namespace],
) -> frozenset[references.Namespace] | None:
    """Those of the namespaces that can be served now; None if nothing can."""
    if peers is None:
        return namespaces
    peers.check()
    await peers.adjust(resources, namespaces)
    if peers.frozen:
        return None
    peers.resume()
    return frozenset(filter(peers.is_settled, namespaces))


def get_groups(registry: registries.OperatorRegistry) -> Collection[str] | None:
    """The API groups that the handlers can be for; None if it can be any group."""
    groups = {selector.group for selector in registry.get_selectors()}
    return None if None in groups else {group for group in groups if group is not None}


class Ensemble:
    """The tasks that watch, and those that observe. `woken` is set when any of them ends."""

    def __init__(
            self,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            registry: registries.OperatorRegistry,
            lines: Lines,
            logger: logging.Logger,
    ) -> None:
        super().__init__()
        self.woken = asyncio.Event()
        self._client = client
        self._settings = settings
        self._registry = registry
        self._lines = lines
        self._logger = logger
        self._observers: list[asyncio.Task[None]] = []
        self._watchers: dict[Key, asyncio.Task[None]] = {}
        self._pulses: dict[Key, pulses.Pulse] = {}
        self._sinks: dict[Key, Sink] = {}
        self._served: dict[Key, _Served] = {}
        self._blamed: set[references.Selector | references.Resource] = set()

    def start(self, coro: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coro)
        task.add_done_callback(lambda _: self.woken.set())
        self._observers.append(task)

    def check(self) -> None:
        """Raise the error of any task that has failed."""
        for task in [*self._observers, *self._watchers.values()]:
            if task.done() and not task.cancelled():
                task.result()

    def diagnose(self, now: float) -> str | None:
        """What does not watch though it should, if anything."""
        if any(task.cancelled() for task in self._observers):
            return "the resources or the namespaces of the cluster are not observed."
        dead = [
            f"{resource} {'cluster-wide' if namespace is None else f'in {namespace!r}'}"
            for (resource, namespace), task in self._watchers.items()
            if task.done() or self._pulses[resource, namespace].is_late(now, slack=WATCHING_SLACK)]
        return f"no progress: {', '.join(dead[:MAX_NAMED])}." if dead else None

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """Have exactly those tasks that are needed for these resources and namespaces."""
        bound = {
            resource: handlers for resource, handlers in self._bind(resources).items()
            if handlers.are_watched
        }
        needed = {
            (resource, namespace): (handlers, observation.describe([resource]))
            for resource, handlers in bound.items()
            for namespace in (namespaces if resource.namespaced else (None,))
        }
        for key in [key for key, task in self._watchers.items() if task.done()]:
            self._logger.warning(f"Somebody has stopped watching of {key[0]}; starting it again.")
            del self._watchers[key]
        gone = self._served.keys() - needed.keys()
        outdated = {key for key, served in self._served.items() if served != needed.get(key)}
        await tasks.cancel([
            self._watchers.pop(key) for key in outdated if key in self._watchers])
        for key in outdated:
            del self._sinks[key]
        for key in gone:
            self._lines.drop(*key)
        self._served = needed
        for key, (handlers, _) in needed.items():
            if key not in self._sinks:
                self._sinks[key] = self._lines.sink(*key, handlers)
            if key not in self._watchers:
                self._watch(key)

    async def pause(self) -> None:
        """Watch nothing until it is adjusted the next time; then, it begins with lists."""
        watchers, self._watchers = self._watchers, {}
        await tasks.cancel(list(watchers.values()))

    def _watch(self, key: Key) -> None:
        resource, namespace = key
        sink = self._sinks[key]
        pulse = self._pulses[key] = pulses.Pulse()
        task = asyncio.create_task(watching.watch(
            self._client, settings=self._settings, resource=resource, namespace=namespace,
            sink=sink, reached=sink.reached, pulse=pulse),
            name=f"watching of {resource}")
        task.add_done_callback(lambda _: self.woken.set())
        self._watchers[key] = task

    def _bind(
            self,
            resources: Collection[references.Resource],
    ) -> Mapping[references.Resource, registries.ResourceHandlers]:
        """Bind the handlers; and say what cannot be served, each thing once."""
        binding = registries.resolve(self._registry, resources)
        news = dataclasses.replace(
            binding,
            unresolved=[item for item in binding.unresolved if item not in self._blamed],
            ambiguous={
                key: val for key, val in binding.ambiguous.items() if key not in self._blamed},
            failing={key: val for key, val in binding.failing.items() if key not in self._blamed},
            unwatchable=[item for item in binding.unwatchable if item not in self._blamed],
            unpatchable=[item for item in binding.unpatchable if item not in self._blamed],
        )
        self._blamed.update(
            news.unresolved, news.ambiguous, news.failing, news.unwatchable, news.unpatchable)
        for complaint in news.complaints():
            self._logger.warning(complaint)
        return binding.handlers

    async def close(self) -> None:
        """End all the tasks."""
        await tasks.cancel([*self._observers, *self._watchers.values()])
