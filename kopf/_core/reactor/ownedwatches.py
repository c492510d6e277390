"""
The watches of owned resources: of the children that reconcilers have made, found by their labels.
"""
import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping

from kopf._cogs.clients import api, watching
from kopf._cogs.structs import references
from kopf._core.engines.reconciling import desired, reconcilers
from kopf._core.intents import handlers

logger = logging.getLogger(__name__)

Key = tuple[references.Resource, references.Namespace]


class OwnedWatches:
    """
    One watching task for each owned kind in each served namespace.

    Only objects with the label of one of the handlers are watched, not all objects of the kind.
    """

    def __init__(self, hub: reconcilers.Hub, *, client: api.Client) -> None:
        super().__init__()
        self._hub = hub
        self._client = client
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._selectors: dict[Key, str] = {}

    def adjust(
            self,
            owned: Mapping[handlers.ReconcilingHandler, Collection[references.Resource]],
            namespaces: Collection[references.Namespace],
            on_end: Callable[[], None],
    ) -> Collection[asyncio.Task[None]]:
        """
        Start watches, so that the owned resources are watched; return those that are not needed.

        The caller cancels the returned tasks. ``on_end`` is called when any task ends.
        """
        self._hub.bind({
            handler: {(resource.group, resource.kind or ''): resource for resource in resources}
            for handler, resources in owned.items()})
        labels: dict[references.Resource, set[str]] = {}
        for handler, resources in owned.items():
            label = self._hub.store.register(self._hub.get_manager(handler))
            for resource in resources:
                labels.setdefault(resource, set()).add(label)
        needed = {
            (resource, namespace): f'{desired.HANDLER_LABEL} in ({",".join(sorted(values))})'
            for resource, values in labels.items()
            for namespace in (namespaces if resource.namespaced else (None,))}
        gone = []
        outdated = [key for key, old in self._selectors.items() if needed.get(key) != old]
        for key in outdated:
            self._hub.store.close(*key)
            del self._selectors[key]
            if key in self._tasks:
                gone.append(self._tasks.pop(key))
        for key, selector in needed.items():
            if key not in self._tasks or self._tasks[key].done():
                self._selectors[key] = selector
                self._tasks[key] = self._start(key, selector, on_end)
        return gone

    def _start(
            self, key: Key, selector: str, on_end: Callable[[], None],
    ) -> asyncio.Task[None]:
        resource, namespace = key
        selectors = references.SelectorMapping[str]()
        selectors[references.EVERYTHING] = selector
        settings = self._client.settings
        settings = dataclasses.replace(settings, watching=dataclasses.replace(
            settings.watching, label_selectors=selectors,
            field_selectors=references.SelectorMapping(),
            shard_selectors=references.SelectorMapping()))
        task = asyncio.get_running_loop().create_task(
            watching.watch(
                self._client, settings=settings, resource=resource, namespace=namespace,
                sink=self._hub.store.open(resource, namespace), logger=logger),
            name=f"watching of owned {resource}")
        task.add_done_callback(lambda _: on_end())
        return task

    def check(self) -> None:
        """Raise the error of a failed task, if there is any."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def release(self) -> Collection[asyncio.Task[None]]:
        """Hand over all watches to be cancelled, e.g. for a pause. The children stay known."""
        running, self._tasks = self._tasks, {}
        return running.values()
