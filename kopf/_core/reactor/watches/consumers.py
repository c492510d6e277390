"""
The consumer of the watches: it takes the objects, and says what must be watched for it now.
"""
import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from kopf._cogs.clients import watching
from kopf._cogs.structs import references
from kopf._core.intents import registries
from kopf._core.reactor.watches import listprogress
from kopf._core.reactor.watches.watchsets import Key


class Feed(watching.Sink, listprogress.Listed, Protocol):
    """What takes the objects of one resource in one namespace."""


class Informers(Protocol):
    """What takes the objects of all resources: see `intake.InformerFactory`."""

    def open(
            self, resource: references.Resource, namespace: references.Namespace,
            handlers: registries.ResourceHandlers, /,
    ) -> Feed: ...

    def close(
            self, resource: references.Resource, namespace: references.Namespace, /, *,
            deleted: bool,
    ) -> None: ...

    def forget_except(self, namespaces: Collection[references.Namespace], /) -> None: ...

    def seal(self) -> None: ...


class Consumer:
    """The consumer of the watches. By default, everything is watched all the time."""
    informers: Informers
    """What takes the objects of all watches."""

    groups: Collection[str] = ()
    """The API groups whose resources the consumer itself needs: these are also discovered."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        """Set when the orchestration must watch something else, or list something again."""

    async def settle(self) -> None:
        """Wait until the consumer knows what to watch at first."""

    async def adjust(
            self,
            resources: Collection[references.Resource],
            namespaces: Collection[references.Namespace],
    ) -> None:
        """Take note of the resources of the cluster, and of the served namespaces."""

    def select(
            self, namespaces: Sequence[references.Namespace],
    ) -> Sequence[references.Namespace] | None:
        """Select the namespaces that can be served now; None if the operator is paused."""
        return namespaces

    def take_relisting(self) -> Collection[Key]:
        """Say what to list again now. The same list is not requested twice."""
        return ()

    def is_idle(self, key: Key) -> bool:
        """Whether nobody here needs these objects now, so that they need not be watched."""
        return False
