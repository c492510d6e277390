"""
Daemons: handlers that run in the background until they return or are stopped.
"""
import asyncio
from concurrent.futures import Executor
from typing import Any

from kopf._cogs.structs import patches
from kopf._core.engines.daemons.companions import Companion, Companions
from kopf._core.intents import handlers


class Daemon(Companion):
    """A companion that is called once, and again only if it fails."""
    __slots__ = ('_flushing', '_is_refused')
    handler: handlers.DaemonHandler

    def __init__(self, companions: Companions, handler: handlers.SpawningHandler) -> None:
        super().__init__(companions, handler)
        self._flushing: asyncio.Task[None] | None = None
        self._is_refused = False

    def get_cancellation(self) -> tuple[float | None, float | None, float | None]:
        handler = self.handler
        return (
            handler.cancellation_backoff, handler.cancellation_timeout,
            handler.cancellation_polling)

    @property
    def _executor(self) -> Executor | None:
        """
        By default, each daemon has a thread of its own: in a pool with a limited number of threads,
        long-running daemons would block all other handlers. If ``settings.execution.executor`` is
        set, daemons also run in it.
        """
        has_own = self.spawner.settings.execution.has_default_executor
        return self.spawner.threads if has_own else None

    async def _attempt(self) -> float | None:
        self.spawner.arm()
        return await super()._attempt()

    def flush(self) -> None:
        self.spawner.arm()
        if self._patch and self._flushing is None and self._context is not None:
            self._flushing = self.spawner.run(self, self._flush(self._patch), self._context.copy())

    async def _flush(self, patch: patches.Patch) -> None:
        try:
            self._is_refused |= not await super()._save(patch, self.companions.logger)
        finally:
            self._flushing = None

    async def _save(self, patch: patches.Patch, logger: Any) -> bool:
        if self._flushing is not None:  # the flush took the older changes, so they are sent first
            await asyncio.wait([self._flushing])
        return await super()._save(patch, logger) and not self._is_refused
