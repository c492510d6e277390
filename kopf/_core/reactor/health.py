"""
Health: what is wrong with an operator, so that only a new start can mend it.

An API that is unreachable, kinds that are absent, a frozen operator are not wrong in this sense.
Handlers that hang are their objects' problem as long as there are threads left for the others.
"""
import asyncio
import logging
from collections.abc import Callable, Mapping

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import vaults
from kopf._core.actions import calls

logger = logging.getLogger(__name__)

LOGIN_TIMEOUT = 90.0
"""How long (seconds) requests can wait for credentials until the operator is not healthy."""

FULL_WARNING = 60.0
"""
How long (seconds) synchronous handlers can wait for a thread, while none is given back, until those
who hold the threads are named in the log.
"""

FULL_TIMEOUT = 300.0
"""The same, until the operator is not healthy."""

INTERVAL = 30.0
"""How often (seconds) the threads are looked at while synchronous functions are waiting."""


class Monitor:
    """Whoever knows of a part of the operator, says what is wrong with it: None if nothing is."""

    def __init__(self, *, known: calls.Calls, clock: clocks.Clock) -> None:
        super().__init__()
        self._known = known
        self._clock = clock
        self._checks: dict[str, Callable[[float], str | None]] = {'threads': self._check_threads}
        self._warned = False

    def add(self, aspect: str, check: Callable[[float], str | None]) -> None:
        """Add an aspect: its check is called with the time of the event loop."""
        self._checks[aspect] = check

    def add_vault(self, vault: vaults.Vault) -> None:
        def check(now: float) -> str | None:
            since = vault.waiting_since
            if since is None or now - since < LOGIN_TIMEOUT:
                return None
            return f"no credentials for {now - since:.0f} s; see the log."
        self.add('login', check)

    def add_task(self, aspect: str, task: 'asyncio.Task[object]') -> None:
        """Add a task that has to run as long as the operator does."""
        self.add(aspect, lambda _: "it has ended." if task.done() else None)

    def diagnose(self) -> Mapping[str, str]:
        """What is wrong, by aspects; nothing if the operator is well."""
        now = self._clock.mono()
        found = {aspect: check(now) for aspect, check in self._checks.items()}
        return {aspect: problem for aspect, problem in found.items() if problem is not None}

    def dismiss(self) -> None:
        """The operator is going to end: nothing is expected of it any longer."""
        self._checks.clear()

    async def run(self) -> None:
        """Warn of threads that are not given back; for ever."""
        while True:
            await asyncio.sleep(INTERVAL)
            now = self._clock.mono()
            stuck = self._known.find_stuck(now, FULL_WARNING)
            if stuck and not self._warned:
                logger.warning(
                    f"Synchronous handlers wait for a thread, but all threads have been busy for "
                    f"more than {FULL_WARNING:.0f} seconds: {calls.describe(stuck, now)}. Make "
                    f"them quicker, or async, or raise settings.execution.max_workers.")
            self._warned = bool(stuck)

    def _check_threads(self, now: float) -> str | None:
        stuck = self._known.find_stuck(now, FULL_TIMEOUT)
        return f"all are busy: {calls.describe(stuck, now)}." if stuck else None
