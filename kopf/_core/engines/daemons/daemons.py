"""
Daemons: handlers that run in the background until they return or are stopped.
"""
import asyncio
import contextvars
from typing import Any

from kopf._cogs.structs import patches
from kopf._core.engines.daemons.companions import Companion, Companions
from kopf._core.intents import handlers


class Daemon(Companion):
    """A companion that is called once, and again only if it fails."""
    __slots__ = ('_context', '_flushing', '_is_refused')
    handler: handlers.DaemonHandler

    def __init__(
            self, companions: Companions, handler: handlers.SpawningHandler,
    ) -> None:
        super().__init__(companions, handler)
        self._context: contextvars.Context | None = None
        """The context of the handler, while it runs: its patch belongs to the same term."""
        self._flushing: asyncio.Task[None] | None = None
        self._is_refused = False

    def get_cancellation(self) -> tuple[float | None, float | None, float | None]:
        handler = self.handler
        return (
            handler.cancellation_backoff, handler.cancellation_timeout,
            handler.cancellation_polling)

    @property
    def _executor(self) -> Any:
        return self.spawner.daemons_executor

    async def _attempt(self) -> float | None:
        self._context = contextvars.copy_context()
        self.spawner.note_running(self)
        try:
            return await super()._attempt()
        finally:
            self._context = None
            self.spawner.note_ended(self)

    def flush(self) -> None:
        if self._patch and self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(
                self._flush(self._patch), context=self._context)
            self.spawner.tasks.add(self._flushing)
            self._flushing.add_done_callback(self.spawner.tasks.discard)

    async def _flush(self, patch: patches.Patch) -> None:
        try:
            self._is_refused |= not await super()._save(patch, self.companions.logger)
        finally:
            self._flushing = None

    async def _save(self, patch: patches.Patch, logger: Any) -> bool:
        if self._flushing is not None:  # the flush took the older changes, so they are sent first
            await asyncio.wait([self._flushing])
        return await super()._save(patch, logger) and not self._is_refused
