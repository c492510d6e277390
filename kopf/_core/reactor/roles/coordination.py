"""
Coordination: which operator handles which objects, if several of them could.

An operator has *works*: everything that handles objects. There is one instance for all objects; or
one for each shard, as long as the shard is held.
"""
from collections.abc import Collection, Mapping
from typing import Protocol

from kopf._cogs.aiokits import tasks
from kopf._cogs.structs import references
from kopf._core.intents import stopping
from kopf._core.path import objects
from kopf._core.reactor.roles.works import Works
from kopf._core.reactor.watches import consumers


class Standby(Protocol):
    """A part of the operator that must do nothing while the operator stands by, or is paused."""

    def stand_by(self) -> None: ...

    def take_over(self) -> None: ...


class Coordination(consumers.Consumer):
    """
    The coordination of an operator with others.

    By default, there are no others: the operator handles all objects all the time.
    """

    def __init__(self, *works: Works) -> None:
        super().__init__()
        self._works = works
        if works:
            self.informers = works[0].informers

    @property
    def works(self) -> Collection[Works]:
        """What handles the objects."""
        return self._works

    @property
    def ending(self) -> Collection[Works]:
        """The works that are ending, because others take over their objects."""
        return ()

    @property
    def share(self) -> float:
        """Which part of all objects this operator handles."""
        return 1.0

    def find(self, resource: references.Resource, uid: str) -> objects.Item | None:
        """Find the item of an object; None if the object is not known, or not handled here."""
        found = (each.informers.find(resource, uid) for each in self.works)
        return next((item for item in found if item is not None), None)

    def confirm(self) -> None:
        """Stop handling at once if the clock says so, even if nobody has noticed it yet."""

    def describe(self) -> Mapping[str, str]:
        """Describe the role of the operator, for the health checks."""
        return {}

    async def run(self) -> None:
        """
        Do what is agreed with the others, until cancelled.

        :raises Exception: if that is impossible from now on.
        """

    async def stop(self, deadline: float) -> None:
        """End all works by the deadline, which is a time of the event loop."""
        await tasks.gather(*[
            each.stop(stopping.DaemonStoppingReason.OPERATOR_EXITING, deadline)
            for each in self.works])

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        """
        Let others take over, by the deadline, which is a time of the event loop.

        Call this after all other writes of the operator. If any work still runs, do not set
        ``is_released``: then, the others wait until the record or the Lease expires.
        """
