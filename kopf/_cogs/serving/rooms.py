"""
Rooms: what all clients of a server take together: connections, memory, and lines of the log.
"""
import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Protocol

from kopf._cogs.helpers import quotas
from kopf._cogs.serving import exchanges

logger = logging.getLogger(__name__)

WARNING_PERIOD = 60.0
"""The shortest time (seconds) between two warnings with the same key."""


class Guest(Protocol):
    """A connection, maybe in the TLS handshake."""

    busy: bool
    """Whether a request is being answered."""
    served: bool
    """Whether a request was answered well. If so, the client is trusted more than strangers."""

    def leave(self) -> None:
        """Close the connection; if a request is being answered, then after the response."""

    def abort(self) -> None:
        """Close the connection immediately."""


class Room:
    """The connections of one server, and their common limits."""

    def __init__(self, policy: exchanges.Policy, title: str) -> None:
        super().__init__()
        self.policy = policy
        self.title = title
        """What is served, for messages: e.g. "webhooks"."""
        self.tasks: set[asyncio.Task[object]] = set()
        """Those that answer requests."""
        self._guests: dict[Guest, None] = {}
        self._memory = 0
        self._warnings = quotas.Quotas(burst=1, period=WARNING_PERIOD)

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests))

    def make_place(self) -> bool:
        """Close another connection if there are too many; false if none can be closed."""
        if len(self._guests) < self.policy.connections:
            return True
        idle = [guest for guest in self._guests if not (guest.busy and self.policy.leaving)]
        strangers = [guest for guest in idle if not guest.served]
        victim = random.choice(strangers) if strangers else next(iter(idle), None)
        self.warn('crowd', f"There are too many connections to the {self.title}; " + (
            "new ones are refused." if victim is None else
            "unused ones are dropped." if strangers else "idle ones are dropped."))
        if victim is not None:
            victim.abort()
            self.remove(victim)
        return victim is not None

    def add(self, guest: Guest) -> None:
        self._guests[guest] = None

    def prefer(self, guest: Guest) -> None:
        """Note that the connection was just used: among the idle ones, it is closed last."""
        if guest in self._guests:
            self._guests[guest] = self._guests.pop(guest)

    def remove(self, guest: Guest) -> None:
        self._guests.pop(guest, None)

    def add_task(self, task: asyncio.Task[object] | None) -> None:
        if task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def reserve(self, size: int) -> bool:
        """Reserve a part of the common memory (bytes); false if there is not enough."""
        if self._memory + size > self.policy.memory:
            return False
        self._memory += size
        return True

    def release(self, size: int) -> None:
        self._memory -= size

    def warn(self, key: str, text: str, *, level: int | None = None) -> None:
        """Log it at the level, or, if there are too many with the same key, as a debug message."""
        skipped = self._warnings.take(key, asyncio.get_running_loop().time())
        if skipped is None:
            logger.debug(text)
        else:
            logger.log(level or self.policy.level, (
                f"{text} ({skipped} more since the last warning.)" if skipped else text))
