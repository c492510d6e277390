"""
The watches of reconcilers: of the children that they have made, found by their labels; and of the
objects that they use without owning them.
"""
import functools
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from kopf._cogs.clients import api, listing, watching
from kopf._cogs.structs import references
from kopf._core.engines.reconciling import desired, watched
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import handlers, registries
from kopf._core.reactor.watches import watchsets

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """What one watch is for: the children of a kind, or the objects that one handler watches."""
    resource: references.Resource
    namespace: references.Namespace
    labels: str = ''
    """The label selector; empty if all objects are watched."""
    handler: handlers.ReconcilingHandler | None = None
    """The handler that watches the objects; None for children."""
    mapper: handlers.Mapper | None = None


class OwnedWatches:
    """
    The watches of the reconcilers: for each kind in each served namespace.

    Of the owned kinds, only objects with the label of one of the handlers are watched.
    """

    def __init__(self, hub: Hub, *, client: api.Client, on_end: Callable[[], None]) -> None:
        self.watches = watchsets.WatchSet[Key](on_end)
        self._hub = hub
        self._client = client
        self._keys: Collection[Key] = ()
        self._watched: dict[Key, watched.Watched] = {}

    async def adjust(
            self,
            owned: registries.Owned,
            used: registries.Watched,
            namespaces: Collection[references.Namespace],
            *,
            uncertain: Collection[handlers.ReconcilingHandler] = (),
    ) -> None:
        """
        Start and stop watches, so that exactly these resources are watched.

        The ``uncertain`` handlers can own more resources.
        """
        self._hub.bind({
            handler: {(resource.group, resource.kind or ''): resource for resource in resources}
            for handler, resources in owned.items()}, uncertain=uncertain)
        needed = self._select(owned, used, namespaces)
        outdated = [key for key in self._keys if key not in needed]
        for key in outdated:
            if self._watched.pop(key, None) is None:
                self._hub.store.close(key.resource, key.namespace)
        self._keys = needed
        await self.watches.stop(outdated)
        self.watches.forget(outdated)
        self.watches.drop_dead()
        for key in needed:
            if key not in self.watches:
                self._start(key)

    def _select(
            self,
            owned: registries.Owned,
            used: registries.Watched,
            namespaces: Collection[references.Namespace],
    ) -> Collection[Key]:
        """Find what the reconcilers need to watch."""
        labels: dict[references.Resource, set[str]] = {}
        for handler, resources in owned.items():
            label = self._hub.store.register(self._hub.get_manager(handler))
            for resource in resources:
                labels.setdefault(resource, set()).add(label)
        keys = [
            Key(resource, None, f'{desired.HANDLER_LABEL} in ({",".join(sorted(values))})')
            for resource, values in labels.items()]
        keys.extend(
            Key(resource, None, handler=handler, mapper=mapper)
            for handler, items in used.items() for resource, mapper in items)
        return dict.fromkeys(
            key._replace(namespace=namespace) for key in keys
            for namespace in (namespaces if key.resource.namespaced else (None,)))

    def _start(self, key: Key) -> None:
        sink: watching.Sink
        if key.handler is None or key.mapper is None:
            sink = self._hub.store.open(key.resource, key.namespace)
        elif key in self._watched:
            sink = self._watched[key]
        else:
            users = key.mapper if callable(key.mapper) else self._hub.context.indices[key.mapper]
            sink = self._watched[key] = watched.Watched(
                key.handler, key.resource, self._hub.trigger, users)
        self.watches.start(key, functools.partial(
            watching.watch, self._client,
            settings=listing.select_only(self._client.settings, key.labels),
            resource=key.resource, namespace=key.namespace, sink=sink, logger=logger,
            metadata_only=key.mapper is not None and not watched.needs_content(key.mapper)),
            name=f"watching of {key.resource} for reconcilers")
