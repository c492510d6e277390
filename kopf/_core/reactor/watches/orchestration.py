"""
Orchestration: starts and stops the watches as resources and namespaces come and go.

There is exactly one watching task for each resource with handlers in each served namespace; for
cluster-scoped resources and in cluster-wide operators, there is one task per resource. The task
feeds the informer of the resource in the namespace. When a resource or a namespace goes away, its
task is cancelled, and its informer forgets the objects.
"""
import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors, watching
from kopf._cogs.cluster import discovery
from kopf._cogs.structs import bodies, references
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import registries
from kopf._core.reactor import waiting
from kopf._core.reactor.watches import consumers, listprogress, owned, watchsets
from kopf._core.reactor.watches.watchsets import Key

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


def get_groups(registry: registries.OperatorRegistry) -> Collection[str] | None:
    """The API groups in the selectors of the handlers; None if some handler is for any group."""
    groups = {selector.group for selector in registry.get_selectors()}
    return None if None in groups else {group for group in groups if group is not None}


class Orchestration:
    """
    The watches of all resources, and of the resources and the namespaces of the cluster.
    """

    def __init__(
            self,
            *,
            client: api.Client,
            registry: registries.OperatorRegistry,
            consumer: consumers.Consumer,
            hub: Hub,
            namespaces: Collection[references.NamespacePattern],
            clusterwide: bool,
            insights: discovery.Insights,
            logger: logging.Logger,
    ) -> None:
        self._client = client
        self._settings = client.settings
        self._registry = registry
        self._consumer = consumer
        self._patterns = namespaces
        self._clusterwide = clusterwide
        self._insights = insights
        self._logger = logger
        self._woken = consumer.woken
        """Also set when any task has ended."""
        self._observers: list[asyncio.Task[None]] = []
        self._watches = watchsets.WatchSet[Key](self._woken.set)
        self._owned = owned.OwnedWatches(hub, client=client, on_end=self._woken.set)
        self._sets: Sequence[watchsets.WatchSet[Any]] = [self._watches, self._owned.watches]
        self._served: dict[Key, tuple[_Served, consumers.Feed]] = {}
        """What is served now, and what takes the objects."""
        self._binding: registries.Binding | None = None
        self._progress = listprogress.ListProgress(logger)
        self._is_announced = False
        self._converting = collections.defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._converted: set[str] = set()
        """The definitions whose objects the API server converts."""

    async def serve(self) -> None:
        """
        Watch all resources that have handlers in the registry, until cancelled.

        While the operator is paused by its peers, only the peering objects, the CRDs, and the
        namespaces are watched. When this method is cancelled or fails, it leaves no tasks behind.

        :raises LoginError: if no credentials are left and the re-authentication has failed.
        """
        await self._consumer.settle()
        insights, consumer = self._insights, self._consumer
        insights.subscribe(self._woken)
        groups = get_groups(self._registry)
        try:
            self._observe(discovery.observe_resources(
                client=self._client, settings=self._settings, insights=insights,
                groups=None if groups is None else {*groups, *consumer.groups},
                logger=self._logger))
            self._observe(discovery.observe_namespaces(
                client=self._client, settings=self._settings, insights=insights,
                clusterwide=self._clusterwide, patterns=self._patterns, logger=self._logger))
            seen = 0
            while True:
                self._woken.clear()
                self.check()
                if insights.resources is not None and insights.namespaces is not None:
                    if seen != insights.changes:
                        seen = insights.changes
                        # In the same order in each run: so, the watches and their logs are easier
                        # to compare.
                        resources = sorted(insights.resources, key=repr)
                        known = sorted(insights.namespaces, key=lambda name: name or '')
                        await consumer.adjust(resources, known)
                    served = consumer.select(known)
                    if served is None:
                        await self._pause()
                    else:
                        await self.adjust(resources, served)
                        # More namespaces than the served ones exist if some peers are not known.
                        consumer.informers.forget_except(insights.namespaces)
                        self._announce(served)
                        if served == known:
                            consumer.informers.seal()
                await self._woken.wait()
        finally:
            insights.unsubscribe(self._woken)
            await self.close()

    def _observe(self, coro: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coro)
        task.add_done_callback(self._watches.note_end)
        self._observers.append(task)

    def check(self) -> None:
        """Raise the error of a failed task, if there is any."""
        for each in self._sets:
            each.check()

    def diagnose(self, now: float) -> str | None:
        """
        Describe for the health checks what should be watched, but is not; None if all is watched.
        """
        if any(task.cancelled() for task in self._observers):
            return "the resources or the namespaces of the cluster are not observed."
        dead = [
            f"{item.resource} "
            f"{'cluster-wide' if item.namespace is None else f'in {item.namespace!r}'}"
            for item in self.list_states()
            if not item.is_running or item.pulse.is_late(now, slack=WATCHING_SLACK)]
        return f"no progress: {', '.join(dead[:discovery.MAX_NAMED])}." if dead else None

    def list_states(self) -> Collection[watchsets.WatchState]:
        """List all watches of objects, as they are now."""
        return [state for each in self._sets for state in each.list_states()]

    def count_restarts(self) -> collections.Counter[references.Resource]:
        """Count how many times the watches of objects were connected again, by resources."""
        return sum((each.count_restarts() for each in self._sets), collections.Counter())

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """
        Start and stop tasks, so that exactly these resources and namespaces are watched, except for
        the idle ones.

        All objects of deleted resources are gone, even if no watch has shown that. The groups whose
        discovery has failed can have more resources.
        """
        binding = self._bind(resources)
        bound = {
            resource: handlers for resource, handlers in binding.handlers.items()
            if handlers.are_watched
        }
        await self._watches.stop(self._consumer.take_relisting())
        await self._owned.adjust(
            binding.owned, binding.watched, namespaces,
            uncertain=registries.find_uncertain(binding, self._insights.failing))
        needed = {
            (resource, namespace): _Served.make(handlers, resource)
            for resource, handlers in bound.items()
            for namespace in (namespaces if resource.namespaced else (None,))
        }
        for resource, _ in self._watches.drop_dead():
            self._logger.warning(f"Somebody has stopped watching of {resource}; starting it again.")
        outdated = dict.fromkeys(
            key for key, (served, _) in self._served.items() if served != needed.get(key))
        idle = {key for key in needed if self._consumer.is_idle(key)}
        for key in (*outdated, *idle):
            self._progress.forget(key)
        await self._watches.stop([*outdated, *idle])
        for key in outdated:
            del self._served[key]
            if key not in needed:
                self._watches.forget([key])
                self._consumer.informers.close(*key, deleted=key[0] in self._insights.deleted)
        for key, served in needed.items():
            if key not in self._served:
                self._served[key] = (served, self._consumer.informers.open(*key, served.handlers))
            if key not in self._watches and key not in idle:
                self._watch(key)

    def _announce(self, namespaces: Collection[references.Namespace]) -> None:
        """Say once what is watched, as soon as anything is."""
        if self._is_announced or not self._served:
            return
        self._is_announced = True
        resources = discovery.enumerate_names({str(resource) for resource, _ in self._served})
        where = "all namespaces" if None in namespaces else (
            discovery.enumerate_names(map(str, namespaces)))
        number = len({
            handler for served, _ in self._served.values()
            for name in ('indexing', 'watching', 'spawning', 'changing', 'reconciling')
            for handler in getattr(served.handlers, name)})
        hint = " Ctrl+C stops." if waiting.owns_process_var.get() and sys.stderr.isatty() else ""
        self._logger.info(f"Watching {resources} in {where}, {number} "
                          f"handler{'' if number == 1 else 's'}.{hint}")
        declared = {
            (each.declared.group, each.declared.plural): each.declared
            for each in self._registry.iter_resource_handlers() if each.declared is not None}
        if declared:
            self._observe(self._compare(declared.values()))

    async def _compare(self, declared: Iterable[references.Declaration]) -> None:
        """Say which kinds are defined in another way in the cluster, as far as it can be seen."""
        # Nothing depends on it, so whatever the API answers must not stop the operator.
        with contextlib.suppress(errors.APIError, LookupError, TypeError, ValueError):
            for each in declared:
                if (difference := await each.compare(self._client)) is not None:
                    self._logger.warning(difference)

    async def _pause(self) -> None:
        """Stop watching until `adjust` is called; the new watches begin with lists then."""
        for key in self._served:
            self._progress.forget(key)
        await asyncio.gather(*(each.stop_all() for each in self._sets))

    def _watch(self, key: Key) -> None:
        resource, namespace = key
        served, sink = self._served[key]
        self._progress.observe(key, str(resource), sink)
        watch: watchsets.Watch = functools.partial(
            watching.watch, self._client, settings=self._settings, resource=resource,
            namespace=namespace, sink=sink)
        converter = served.handlers.converter
        if converter is not None:
            watch = functools.partial(self._watch_converted, converter, watch)
        self._watches.start(key, watch, name=f"watching of {resource}")

    async def _watch_converted(
            self, converter: bodies.Converter, watch: watchsets.Watch, **kwargs: Any,
    ) -> None:
        from kopf._core.reactor.watches import conversions  # only if it is used
        async with self._converting[converter.name]:  # one namespace asks for all of them
            if converter.name not in self._converted:
                await conversions.wait(
                    converter, self._client, settings=self._settings, logger=self._logger)
                self._converted.add(converter.name)
        try:
            await watch(**kwargs)
        finally:
            self._converted.discard(converter.name)  # the definition can be created again

    def _bind(self, resources: Collection[references.Resource]) -> registries.Binding:
        """Find the handlers of each resource; log what cannot be served, each problem once."""
        binding = registries.resolve(self._registry, resources)
        for complaint in binding.complaints(self._binding):
            self._logger.warning(complaint)
        self._binding = binding
        return binding

    async def close(self) -> None:
        """Cancel all tasks, and wait until they end."""
        self._progress.close()
        await asyncio.gather(
            tasks.cancel(self._observers), *(each.stop_all() for each in self._sets))
