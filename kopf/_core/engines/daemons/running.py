"""
Daemons: functions that run as long as they want, or as long as the object exists.
"""
import asyncio
from typing import Any

from kopf._cogs.structs import patches
from kopf._core.engines.daemons.companions import Companion
from kopf._core.intents import handlers


class Daemon(Companion):
    """A function that runs as long as it wants; when it returns, it is done."""
    sort = 'Daemon'
    __slots__ = ()
    handler: handlers.DaemonHandler

    def get_cancellation(self) -> tuple[float | None, float | None, float | None]:
        handler = self.handler
        return (
            handler.cancellation_backoff, handler.cancellation_timeout,
            handler.cancellation_polling)

    @property
    def _executor(self) -> Any:
        return self.spawner.daemons_executor

    async def _attempt(self) -> float | None:
        self.spawner.note_running(self)
        try:
            return await super()._attempt()
        finally:
            self.spawner.note_ended(self)

    def flush(self) -> None:
        """Carry over what is in the patch by now, though the function still runs."""
        if self._patch:
            logger = self.companions.logger
            task = asyncio.get_running_loop().create_task(self._flush(self._patch, logger))
            self.spawner.tasks.add(task)
            task.add_done_callback(self.spawner.tasks.discard)

    async def _flush(self, patch: patches.Patch, logger: Any) -> None:
        await self._save(patch, logger)
