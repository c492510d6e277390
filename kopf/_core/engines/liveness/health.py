"""
Health: finds the problems of an operator that a restart can solve, and nothing else can.

Other problems are not reported: if the API server is unreachable, if a resource is absent, or if
the operator is paused, then restarts would not help. A hanging handler concerns only its own
object, as long as there are threads left for other handlers.
"""
import asyncio
import logging
from collections.abc import Callable, Mapping

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import vaults
from kopf._core.actions import inflight

logger = logging.getLogger(__name__)

LOGIN_TIMEOUT = 90.0
"""How long (seconds) requests can wait for credentials before the operator is unhealthy."""

FULL_WARNING = 60.0
"""
How long (seconds) all threads can be busy, and handlers wait for one, before the log warns of that.

The time is counted since the last thread was given to a handler.
"""

FULL_TIMEOUT = 300.0
"""The same, before the operator is unhealthy."""

INTERVAL = 30.0
"""How often (seconds) the threads are checked for the warning."""


class Monitor:
    """
    The checks of the operator's parts, by aspects.

    A check gets the time of the event loop. It returns a description of the problem, or None.
    """

    def __init__(self, *, underway: inflight.Calls, clock: clocks.Clock) -> None:
        self._underway = underway
        self._clock = clock
        self._checks: dict[str, Callable[[float], str | None]] = {'threads': self._check_threads}
        self._warned = False

    def add(self, aspect: str, check: Callable[[float], str | None]) -> None:
        """Add the check of an aspect."""
        self._checks[aspect] = check

    def add_vault(self, vault: vaults.Vault) -> None:
        def check(now: float) -> str | None:
            since = vault.waiting_since
            if since is None or now - since < LOGIN_TIMEOUT:
                return None
            return f"no credentials for {now - since:.0f} s; see the log."
        self.add('login', check)

    def add_task(self, aspect: str, task: 'asyncio.Task[object]') -> None:
        """Add a check that the task is running: it must run as long as the operator does."""
        self.add(aspect, lambda _: "it has ended." if task.done() else None)

    def diagnose(self) -> Mapping[str, str]:
        """Find the problems by aspects; an empty mapping if the operator is healthy."""
        found = {aspect: check(self._clock.mono()) for aspect, check in self._checks.items()}
        return {aspect: problem for aspect, problem in found.items() if problem is not None}

    def dismiss(self) -> None:
        """Remove all checks, as the operator is stopping: its parts end one after another."""
        self._checks.clear()

    async def run(self) -> None:
        """Log warnings of threads that are busy for a long time, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            now = self._clock.mono()
            stuck = self._underway.find_stuck(now, FULL_WARNING)
            if stuck and not self._warned:
                logger.warning(
                    f"Synchronous handlers wait for a thread, but all threads have been busy for "
                    f"more than {FULL_WARNING:.0f} seconds: {inflight.describe(stuck, now)}. Make "
                    f"them quicker, or async, or raise settings.execution.max_workers.")
            self._warned = bool(stuck)

    def _check_threads(self, now: float) -> str | None:
        stuck = self._underway.find_stuck(now, FULL_TIMEOUT)
        return f"all are busy: {inflight.describe(stuck, now)}." if stuck else None
