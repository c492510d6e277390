"""
Priorities: which of the waiting objects is processed next.

Live changes precede the backlog: the objects of the first lists. The backlog is started only while
there is spare capacity, and so are live changes of objects that are only reconciled. Otherwise,
thousands of objects would take all memory and connections, and live changes would wait. In an
overload, when very many writes wait already, live changes are also deferred, in their order; but
not those of objects with handlers of raw events.
"""
import collections
import enum
from collections.abc import Callable, Sequence, Sized

from kopf._core.path.objects import Item

MAX_OVERTAKEN = 16
"""After how many live changes in a row one object starts that waits for spare capacity."""


class Rank(enum.IntEnum):
    """What an object waits for. Objects of the same rank are in order."""

    LIVE = 0
    """Nothing but room: a change has come by the watch."""

    DEFERRED = 1
    """The end of an overload, or the start of an earlier live change that waits for this end."""

    PATIENT = 2
    """Spare capacity: a change has come by the watch, but the object is only reconciled."""

    BACKLOG = 3
    """Spare capacity: the object is in the first list."""


class Capacity(enum.IntEnum):
    """How much can be started in addition."""

    NONE = 0
    """So many requests wait that Kopf should begin with no further objects (overload)."""

    SOME = 1
    """There is no overload, but all connections are busy with requests (congestion)."""

    SPARE = 2
    """Requests are sent at once."""


def pick(waiting: Sequence[Sized], capacity: Capacity, *, overtaken: int) -> Rank | None:
    """
    Select the rank whose first object is started next; None if all have to wait.

    ``waiting`` are the objects of each rank. ``overtaken`` is how many live changes were started
    since the last object that waited for spare capacity, so that such objects do not starve.
    """
    patient = (
        Rank.PATIENT if waiting[Rank.PATIENT] else
        Rank.BACKLOG if waiting[Rank.BACKLOG] else None)
    if waiting[Rank.LIVE]:
        return Rank.LIVE if patient is None or overtaken < MAX_OVERTAKEN else patient
    if waiting[Rank.DEFERRED] and capacity >= Capacity.SOME:
        return Rank.DEFERRED
    return patient if capacity >= Capacity.SPARE else None


class PriorityQueue:
    """The objects that wait, each once."""

    def __init__(self, *, is_overloaded: Callable[[], bool] = lambda: False) -> None:
        """``is_overloaded`` tells whether deferrable live changes must wait."""
        self._is_overloaded = is_overloaded
        self._ranks = tuple(collections.OrderedDict[Item, None]() for _ in Rank)
        self._overtaken = 0

    def __bool__(self) -> bool:
        return any(self._ranks)

    def put(self, item: Item, *, urgent: bool) -> int:
        """Add an item that does not wait yet; return how many items of its rank wait now."""
        if not urgent:
            rank = Rank.BACKLOG
        elif item.is_patient:
            rank = Rank.PATIENT
        elif item.is_deferrable and (self._ranks[Rank.DEFERRED] or self._is_overloaded()):
            rank = Rank.DEFERRED
        else:
            rank = Rank.LIVE
        self._ranks[rank][item] = None
        return len(self._ranks[rank])

    def promote(self, item: Item) -> bool:
        """Take the item out of the backlog, as it has changed; return whether it was there."""
        backlog = self._ranks[Rank.BACKLOG]
        if item not in backlog:
            return False
        del backlog[item]
        self.put(item, urgent=True)
        return True

    def pick(self, capacity: Capacity) -> tuple[Item, Rank] | None:
        """Remove and return the next item, with its rank; None if all have to wait."""
        rank = pick(self._ranks, capacity, overtaken=self._overtaken)
        if rank is None:
            return None
        if rank is Rank.LIVE:
            self._overtaken += 1
        elif rank is not Rank.DEFERRED:
            self._overtaken = 0
        return self._ranks[rank].popitem(last=False)[0], rank

    def clear(self) -> list[Item]:
        """Remove and return all items, those first that would be started first."""
        items = [item for waiting in self._ranks for item in waiting]
        for waiting in self._ranks:
            waiting.clear()
        return items
