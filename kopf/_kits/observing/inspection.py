"""
Inspection: the present state of an operator, as the metrics and `debug` show it.

Nothing is counted in advance: all is found when somebody asks. The objects can be very many, so the
event loop gets the control back again and again.
"""
import asyncio
import itertools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Protocol, TypeVar

from kopf._cogs.aiokits import sharing
from kopf._core.actions import decisions, observers
from kopf._core.engines.daemons import companions
from kopf._core.path import intake, objects
from kopf._core.reactor import operating
from kopf._core.reactor.roles import works
from kopf._core.reactor.watches import watchsets

TOUR_STEP = 1000
"""How many objects are looked at in one iteration of the event loop."""

MIN_AGE = 1.0
"""For how long (seconds) a page is shown again at least, instead of looking at all objects."""

MAX_AGE = 10.0
"""For how long at most."""

MAX_SHARE = 0.1
"""Which part of the time is spent on looking at objects, if that takes less than a second."""

_T = TypeVar('_T')

REASONS = ('held', 'throttled', 'paused', 'echo', 'retry', 'interval')
"""What resting objects can wait for, see `find_reason`."""


class Shadow(observers.Observer, Protocol):
    """What compares the operator with the one in production."""

    @property
    def counts(self) -> Mapping[tuple[Any, str], int]:
        """The numbers of differences by their categories and kinds."""

    def describe(self) -> Mapping[str, Any]:
        """Describe the differences for `debug`."""

    def make_headers(self) -> Mapping[str, str]:
        """Make the headers of a request of the operator, in the context in which it is sent."""


class Inspector:
    """Looks at the parts of an operator; changes nothing."""

    def __init__(self, operator: operating.Operator, shadow: Shadow | None = None) -> None:
        self.operator = operator
        self.shadow = shadow

    def describe_leadership(self) -> str | None:
        """Describe the role of the replica: 'leader' or 'standby'; None without an election."""
        return self.operator.role.describe().get('leadership')

    @property
    def _works(self) -> Sequence[works.Works]:
        """What handles objects; also of the shards that are being released or lost."""
        return [*self.operator.role.works, *self.operator.role.ending]

    @property
    def informers(self) -> Iterator[intake.Informer]:
        return itertools.chain.from_iterable(each.informers for each in self._works)

    @property
    def companions(self) -> Iterator[companions.Companion]:
        """The daemons and timers."""
        return itertools.chain.from_iterable(list(each.spawner.alive) for each in self._works)

    def list_watches(self) -> Collection[watchsets.WatchState]:
        """List the watches; none before the startup handlers have succeeded."""
        watches = self.operator.watches
        return () if watches is None else watches.list_states()

    async def tour(self) -> AsyncIterator[objects.Item]:
        """Iterate over all objects. Those that are gone meanwhile can be among them."""
        number = 0
        for informer in list(self.informers):
            for item in list(informer):
                number += 1
                if number % TOUR_STEP == 0:
                    await asyncio.sleep(0)
                yield item


def share(read: Callable[[], Awaitable[_T]], *, name: str) -> sharing.Shared[_T]:
    """
    Let those who ask share what is read of the operator, in its event loop.

    The longer it takes to read, the longer it is used again, so that nobody can keep the event loop
    busy by asking.
    """
    now = asyncio.get_running_loop().time

    async def run() -> tuple[_T, float]:
        began = now()
        found = await read()
        return found, min(MAX_AGE, max(MIN_AGE, (now() - began) / MAX_SHARE))

    return sharing.Shared(run, name=name)


def find_reason(item: objects.Item) -> str | None:
    """
    Find what a resting object waits for; None if it waits only for changes.

    "held": the end of its namesake; "throttled": the delay after an error of Kopf or of the API
    server; "paused": the end of the pause of the object; "echo": the own write; "retry": the next
    attempt of a handler; "interval": the interval of a reconciling handler.
    """
    if item.phase is objects.Phase.AWAITING_NAMESAKE:
        return 'held'
    if item.phase is not objects.Phase.RESTING:
        return None
    if item.throttler is not None and item.due is not None:
        return 'throttled'
    if isinstance(item.held, decisions.Pause):
        return 'paused'
    if item.due is None:
        return None
    if item.inbox.is_expecting:
        return 'echo'
    is_interval = item.cycle is None and item.reconcilers is not None and (
        item.reconcilers.is_resync)
    return 'interval' if is_interval else 'retry'
