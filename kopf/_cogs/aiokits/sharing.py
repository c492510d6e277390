"""
Sharing: simultaneous callers share one run of something slow, and later ones share its result.
"""
import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kopf._cogs.aiokits import tasks

_T = TypeVar('_T')


class Shared(Generic[_T]):
    """The latest result of a function, which runs only when somebody asks, and never twice."""

    def __init__(self, run: Callable[[], Awaitable[tuple[_T, float]]], *, name: str) -> None:
        """``run`` returns the result, and for how long (seconds) it is used again."""
        super().__init__()
        self._run = run
        self._name = name
        self._now = asyncio.get_running_loop().time
        self._running: asyncio.Task[_T] | None = None
        self._cached: tuple[float, _T] | None = None

    async def get(self) -> _T:
        """
        Get the result. If this call is cancelled, the run goes on for the others.

        :raises Exception: the error of the run. It is not used again.
        """
        if self._cached is not None and self._now() < self._cached[0]:
            return self._cached[1]
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._refresh(), name=self._name)
        return await asyncio.shield(self._running)

    def forget(self) -> None:
        """Run anew for the next call, as the result is outdated."""
        self._cached = None

    async def close(self) -> None:
        if self._running is not None:
            await tasks.cancel([self._running])

    async def _refresh(self) -> _T:
        result, max_age = await self._run()
        self._cached = self._now() + max_age, result
        return result
