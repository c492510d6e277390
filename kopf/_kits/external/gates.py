"""
Gates: how many calls a system gets, and when: by its limit, and by whether it is there at all.

All objects share a gate. Who may not call is queued, is woken up when there is room, and asks again
then; nothing is polled. The most urgent comes first. When a system has failed several times in a
row, only probes are let through, until one of them succeeds.
"""
import asyncio
import collections
import dataclasses
import enum
import heapq
import itertools
import math
from collections.abc import Callable

BREAKING = 5
"""After how many failures in a row a system is held for unavailable."""

PROBING = 5.0
"""The time (seconds) to the first probe. It doubles with each one that fails."""

MAX_PROBING = 30.0

PATIENCE = 5.0
"""How long (seconds) somebody who was woken up has for asking again: then, the next one is."""


TRAVEL = 0.5
"""
How long (seconds) a call takes at most to reach the system. The gate does not see when it does; so
a call counts at its end, or after this time.
"""


@dataclasses.dataclass(frozen=True)
class Rate:
    """
    How many calls a system gets: at most ``count`` in any ``per`` seconds, as the system sees them.

    ::

        billing = kopf.external('tenants', id='billing', limit=kopf.Rate(5, per=60))

    See "Keep things in external systems" in the documentation.

    :param count: the number of calls.
    :param per: the time in seconds. Default: one second.
    :param concurrency: how many calls can be under way at once. Default: no limit.
    :raises ValueError: if a number is not positive.
    """
    count: float
    per: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        concurrency = 1 if self.concurrency is None else self.concurrency
        if self.count <= 0 or self.per <= 0 or concurrency < 1:
            raise ValueError(f"The numbers of a rate must be positive: {self!r}.")

    def share(self, share: float) -> tuple[int, float]:
        """Get the part of one of several replicas: so many calls in so many seconds."""
        count = self.count * min(share, 1.0)
        whole = max(1, math.floor(count))
        return whole, self.per * whole / count if count > 0 else math.inf


class Urgency(enum.IntEnum):
    """Who comes first."""
    CHANGE = 0
    QUESTION = 1
    ROUTINE = 2


class Caller:
    """Somebody who calls: one external of one object."""
    __slots__ = ('is_safe', 'is_woken', 'place', 'travel', 'wake')

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.place: tuple[Urgency, int] | None = None
        """Where it waits; None if it does not."""
        self.is_woken: float | None = None
        """When it was woken up."""
        self.is_safe = True
        """Whether its call can be repeated, so that it can be a probe."""
        self.travel: asyncio.TimerHandle | None = None
        """What counts its call, which can still be on the way to the system."""


class Gate:
    """The way to one system, with the same credentials."""

    def __init__(
            self, name: str, rate: Rate | None, *,
            get_share: Callable[[], float], time: Callable[[], float],
    ) -> None:
        self.name = name
        self._rate = rate
        self._get_share = get_share
        self._time = time
        self._numbers = itertools.count()
        self._queue: list[tuple[Urgency, int, Caller]] = []
        self._counted: collections.deque[float] = collections.deque()
        """When the latest calls have reached the system at the latest."""
        self._entered = 0
        """How many are let in whose calls have not reached the system yet for certain."""
        self._running = 0
        self._held = -math.inf
        """Until when the system wants no calls."""
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._probing = PROBING
        self.broken_since: float | None = None
        """Since when the system is held for unavailable."""
        self.breaks = 0

    def __len__(self) -> int:
        return sum(caller.place == (urgency, number) for urgency, number, caller in self._queue)

    @property
    def is_closed(self) -> bool:
        """Whether the system is unavailable, or wants no calls for a while."""
        return self.is_broken or self._held > self._time()

    @property
    def is_broken(self) -> bool:
        return self.broken_since is not None

    # Who may call.

    def enter(self, caller: Caller, urgency: Urgency, *, is_safe: bool) -> bool:
        """
        Ask for a call; false if it must wait, and is woken up. Else, `begin` and `leave` must
        follow, or only `leave` if there is no call.
        """
        now, caller.is_safe = self._time(), is_safe
        is_next = caller.is_woken is not None or self._is_first(urgency)
        if is_next and self._find_time(now) <= now and self._has_room():
            self.forget(caller)
            self._running += 1
            self._entered += 1
            return True
        self.wait(caller, urgency)
        return False

    def wait(self, caller: Caller, urgency: Urgency) -> None:
        """Queue somebody, who is woken up when there is room."""
        if caller.place is None or urgency < caller.place[0]:
            caller.place = urgency, next(self._numbers)
            heapq.heappush(self._queue, (*caller.place, caller))
        caller.is_woken = None
        self._arm()

    def begin(self, caller: Caller) -> None:
        """Note that the call begins now, which can be long after it was let in."""
        caller.travel = asyncio.get_running_loop().call_later(TRAVEL, self._count, caller)

    def _count(self, caller: Caller) -> None:
        caller.travel = None
        self._entered -= 1
        if self._rate is not None:
            self._counted.append(self._time())
        self._arm()

    def leave(
            self, caller: Caller, *, has_failed: bool | None, has_begun: bool = True,
            until: float | None = None,
    ) -> bool | None:
        """
        Note the end of a call: whether the system has failed, or None if that is not known; and
        until when it wants no calls. Return whether it is news that it is away, or that it is back.
        """
        now, news = self._time(), None
        self._running -= 1
        self._entered -= not has_begun
        if caller.travel is not None:
            caller.travel.cancel()
            self._count(caller)
        if until is not None:
            self._held = max(self._held, until)
        if has_failed:
            self._failures += 1
            if self.broken_since is not None:
                self._probing = min(MAX_PROBING, self._probing * 2)
                self._held = max(self._held, now + self._probing)
            elif self._failures >= BREAKING:
                self.broken_since, self._probing, news = now, PROBING, True
                self._held = max(self._held, now + self._probing)
                self.breaks += 1
        elif has_failed is None:
            if self.is_broken and has_begun:  # this was the probe
                self._held = max(self._held, now + self._probing)
        else:
            self._failures = 0
            if self.broken_since is not None:
                self.broken_since, news = None, False
        self._arm()
        return news

    def forget(self, caller: Caller) -> None:
        """Let somebody not wait any more."""
        caller.place = caller.is_woken = None

    def _is_first(self, urgency: Urgency) -> bool:
        self._clean()
        return not self._queue or urgency < self._queue[0][0]

    def _clean(self) -> None:
        while self._queue and self._queue[0][2].place != self._queue[0][:2]:
            heapq.heappop(self._queue)

    def _has_room(self) -> bool:
        limit = None if self._rate is None else self._rate.concurrency
        if self.is_broken:
            limit = 1  # one probe at a time
        return limit is None or self._running < limit

    def _find_time(self, now: float) -> float:
        """Find when the next call may begin."""
        if self._rate is None:
            return self._held
        count, per = self._rate.share(self._get_share())
        while self._counted and self._counted[0] + per <= now:
            self._counted.popleft()
        room = count - self._entered
        if room <= 0:
            return math.inf  # until one of their calls counts
        free = -math.inf if len(self._counted) < room else self._counted[-room] + per
        return max(free, self._held)

    def _count_room(self, now: float) -> float:
        if self.is_broken:
            return 1 - self._running
        room = math.inf
        if self._rate is not None:
            room = self._rate.share(self._get_share())[0] - len(self._counted) - self._entered
            if self._rate.concurrency is not None:
                room = min(room, self._rate.concurrency - self._running)
        return room

    # Waking up.

    def _arm(self) -> None:
        """Wake up the first ones when they may call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._clean()
        if not self._queue or not self._has_room():
            return
        delay = max(0.0, self._find_time(self._time()) - self._time())
        if delay < math.inf:
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self._time()
        if self._find_time(now) > now:
            self._arm()
            return
        room, waiting = self._count_room(now), [
            entry for entry in heapq.nsmallest(len(self._queue) if self.is_broken else 100,
                                               self._queue)
            if entry[2].place == entry[:2]]
        if self.is_broken:
            waiting.sort(key=lambda entry: not entry[2].is_safe)
        is_left = False
        for *_, caller in waiting:
            if room < 1:
                break
            if caller.is_woken is None:
                caller.is_woken = now
                caller.wake()
            elif caller.is_woken + PATIENCE < now:
                self.forget(caller)
                continue
            room, is_left = room - 1, True
        if is_left:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._wake)
