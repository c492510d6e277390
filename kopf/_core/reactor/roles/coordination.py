"""
Coordination: which operator handles which objects, if several of them could.

An operator has *works*: all that handles objects. There is one for all objects; or one for each
shard, as long as the shard is held.
"""
import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import watching
from kopf._cogs.structs import references
from kopf._core.intents import registries, stopping
from kopf._core.path import objects
from kopf._core.reactor.roles.works import Works
from kopf._core.reactor.watches import listings
from kopf._core.reactor.watches.watchsets import Key


class Feed(watching.Sink, listings.Listed, Protocol):
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


class Standby(Protocol):
    """A part of the operator that must do nothing while the operator stands by, or is paused."""

    def stand_by(self) -> None: ...

    def take_over(self) -> None: ...


class Coordination:
    """
    The coordination of an operator with others.

    By default, there are no others: the operator handles all objects all the time.
    """
    informers: Informers
    """What takes the objects of all watches."""

    groups: Collection[str] = ()
    """The API groups whose resources have to be discovered for the coordination itself."""

    def __init__(self, *works: Works) -> None:
        super().__init__()
        self.woken = asyncio.Event()
        """Set whenever something else is to be watched, or to be listed anew."""
        self._works = works
        if works:
            self.informers = works[0].informers

    @property
    def works(self) -> Collection[Works]:
        """What handles the objects."""
        return self._works

    @property
    def ending(self) -> Collection[Works]:
        """The works that end, as others take their objects over."""
        return ()

    def find(self, resource: references.Resource, uid: str) -> objects.Item | None:
        """Find the item of an object; None if the object is not known, or not handled here."""
        found = (each.informers.find(resource, uid) for each in self.works)
        return next((item for item in found if item is not None), None)

    def confirm(self) -> None:
        """Stop handling at once if that is overdue by the clock, though it is not noted yet."""

    def describe(self) -> Mapping[str, str]:
        """Describe the role of the operator, for the health checks."""
        return {}

    async def run(self) -> None:
        """
        Do what is agreed with the others, until cancelled.

        :raises Exception: if that is impossible from now on.
        """

    # Called by the orchestration.

    async def settle(self) -> None:
        """Wait until it is known what to watch at first."""

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
        """What has to be listed anew now: once each time."""
        return ()

    def is_idle(self, key: Key) -> bool:
        """Whether nobody here needs these objects now, so that they need not be watched."""
        return False

    # At the exit.

    async def stop(self, deadline: float) -> None:
        """End all works by the deadline, which is a time of the event loop."""
        await tasks.gather(*[
            each.stop(stopping.DaemonStoppingReason.OPERATOR_EXITING, deadline)
            for each in self.works])

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        """
        Let others take over, by the deadline, which is a time of the event loop.

        Call this after all other writes of the operator. If any work goes on, it must not be
        ``is_released``: then, the others wait until the record or the Lease expires.
        """
