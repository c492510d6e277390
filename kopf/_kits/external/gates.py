"""
Gates: how many calls a system gets, and when: by its limit, and by whether it is there at all.

All objects share a gate. Who may not call is queued, is woken up when there is room, and asks again
then; nothing is polled. The most urgent comes first. When a system has failed several times in a
row, only probes are let through, until one of them succeeds. Who fails again although others have
succeeded meanwhile has a problem of its own: that is no failure of the system.
"""
import asyncio
import collections
import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Sequence

BREAKING = 5
"""After how many failures in a row a system is considered unavailable."""

PROBING = 5.0
"""The time (seconds) to the first probe. It doubles with each one that fails."""

MAX_PROBING = 30.0

PATIENCE = 5.0
"""How long (seconds) somebody who was woken up has for asking again: then, the next one is."""

MAX_WOKEN = 100
"""How many are woken up at once, and have not asked again yet."""

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
    :raises TypeError: if a part is no number.
    :raises ValueError: if a number is not positive, or not finite.
    """
    count: float
    per: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        concurrency = 1 if self.concurrency is None else self.concurrency
        if not all(isinstance(each, int | float) for each in (self.count, self.per, concurrency)):
            raise TypeError(f"The parts of a rate are numbers: {self!r}.")
        if not (0 < self.count < math.inf and 0 < self.per < math.inf and concurrency >= 1):
            raise ValueError(f"The numbers of a rate must be positive and finite: {self!r}.")

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


@dataclasses.dataclass(eq=False, slots=True)
class Caller:
    """Somebody who calls: one external of one object."""
    wake: Callable[[], None]
    is_safe: bool = True
    """Whether its call can be repeated, so that it can be a probe."""
    failed: int | None = None
    """How many calls had succeeded when one of its calls failed last; None if none has failed."""


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
        self._queues: Sequence[dict[Caller, float | None]] = [{} for _ in Urgency]
        """Who waits, in this order, for each urgency; and when they were woken up."""
        self._running: dict[Caller, float] = {}
        """Who is let in, and when their calls have reached the system at the latest."""
        self._counted: collections.deque[float] = collections.deque()
        """When the calls that have ended lately have reached the system at the latest."""
        self._held = -math.inf
        """Until when the system wants no calls."""
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._successes = 0
        self._probing = PROBING
        self.breaks = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    @property
    def is_broken(self) -> bool:
        """Whether the system is considered unavailable."""
        return self._failures >= BREAKING

    @property
    def is_closed(self) -> bool:
        """Whether the system is unavailable, or wants no calls for a while."""
        return self.is_broken or self._held > self._time()

    @property
    def is_idle(self) -> bool:
        """Whether it can be replaced by a new gate: nobody calls or waits, and no call counts."""
        self._measure()
        return not (any(self._queues) or self._running or self._counted or self._failures or (
            self.is_closed))

    # Who may call.

    def enter(self, caller: Caller, urgency: Urgency, *, is_safe: bool) -> bool:
        """
        Ask for a call; false if it must wait, and is woken up. Else, `begin` and `leave` must
        follow, or only `leave` if there is no call.
        """
        caller.is_safe = is_safe
        is_next = any(queue.get(caller) is not None for queue in self._queues) or (
            not any(self._queues[:urgency + 1]))
        if is_next and self._measure()[1] <= self._time():
            self.forget(caller)
            self._running[caller] = math.inf
            return True
        place = next(
            (queue for queue in self._queues[:urgency] if caller in queue), self._queues[urgency])
        place[caller] = None
        for queue in self._queues[urgency + 1:]:
            queue.pop(caller, None)
        self._arm()
        return False

    def begin(self, caller: Caller) -> None:
        """Note that the call begins now, which can be long after it was let in."""
        self._running[caller] = self._time() + TRAVEL
        self._arm()

    def leave(
            self, caller: Caller, *, has_failed: bool | None, until: float | None = None,
    ) -> bool | None:
        """
        Note the end of a call: whether the system has failed, or None if that is not known; and
        until when it wants no calls. Return whether it is news that it is away, or that it is back.
        """
        now, was_broken, arrival = self._time(), self.is_broken, self._running.pop(caller)
        has_begun = arrival < math.inf
        if has_begun and self._rate is not None:
            self._counted.append(min(arrival, now))
        if has_failed:
            self._failures += self.is_broken or caller.failed in (None, self._successes)
            caller.failed = self._successes
        elif has_failed is not None:
            self._failures, self._successes = 0, self._successes + 1
        if self.is_broken and has_begun:
            if not was_broken:
                self._probing, self.breaks = PROBING, self.breaks + 1
            elif has_failed:
                self._probing = min(MAX_PROBING, self._probing * 2)
            self._hold(now + self._probing)
        if until is not None:
            self._hold(until)
        self._arm()
        return None if self.is_broken is was_broken else self.is_broken

    def _hold(self, until: float) -> None:
        self._held = max(self._held, until)

    def forget(self, caller: Caller) -> None:
        """Let somebody not wait any more."""
        for queue in self._queues:
            queue.pop(caller, None)

    def _measure(self) -> tuple[float, float]:
        """
        Measure for how many calls there is room, and when the next one may begin: inf if that is
        not before one of the others has reached the system, or has ended.
        """
        now, room, due, rate = self._time(), math.inf, self._held, self._rate
        limit = None if rate is None else rate.concurrency
        if rate is not None:
            count, per = rate.share(self._get_share())
            while self._counted and self._counted[0] + per <= now:
                self._counted.popleft()
            arrivals = sorted(time for time in itertools.chain(
                self._counted, self._running.values()) if time + per > now)
            room = count - len(arrivals)
            if room <= 0:
                due = max(due, arrivals[-count] + per)
        if self.is_broken:
            limit = 1  # one probe at a time
        if limit is not None:
            room = min(room, limit - len(self._running))
            due = due if limit > len(self._running) else math.inf
        return room, due

    # Waking up.

    def _arm(self) -> None:
        """Wake up the first ones when they may call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._measure()[1] if any(self._queues) else math.inf
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(max(due, self._time()), self._wake)

    def _wake(self) -> None:
        self._timer, now = None, self._time()
        room, due = self._measure()
        if due > now:
            self._arm()
            return
        queues = reversed(self._queues) if self.is_broken else self._queues  # reads are best probes
        places = ((caller, queue) for queue in queues for caller in queue)
        waiting = sorted(places, key=lambda place: (
            not place[0].is_safe, place[0].failed is not None)) if self.is_broken else (
            list(itertools.islice(places, MAX_WOKEN)))
        for caller, queue in waiting:
            if room < 1:
                break
            woken = queue[caller]
            if woken is not None and woken + PATIENCE < now:
                del queue[caller]
                continue
            if woken is None:
                queue[caller] = now
                caller.wake()
            room -= 1
        if any(self._queues):
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._wake)
