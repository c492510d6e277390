"""
Workers on demand: a limited number of tasks that process items, and none when there are no items.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kopf._cogs.aiokits import tasks, timeouts

T = TypeVar('T')


class Workers(Generic[T]):
    """
    Tasks that take items from a source and process them, at most ``limit`` at the same time.

    ``source`` returns the next item, or None if there is none now; call `notify` when there is a
    new item. A worker without an item waits for ``idle_timeout`` seconds, then ends. ``process``
    must not raise; if it does, the error goes to the exception handler of the event loop, and the
    worker goes on with the next item.

    All methods except for `notify_threadsafe` must be called in the event loop of the constructor.
    """

    def __init__(
            self,
            process: Callable[[T], Awaitable[None]],
            *,
            source: Callable[[], T | None],
            limit: int,
            idle_timeout: float,
    ) -> None:
        self._process = process
        self._source = source
        self._limit = limit
        self._idle_timeout = idle_timeout
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = 0
        self._news = asyncio.Event()
        self._closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def notify(self) -> None:
        """
        Note that there is a new item: wake up an idle worker, or start one unless the limit is
        reached.
        """
        is_awaited = self._idle > 0 and not self._news.is_set()
        self._news.set()
        if not is_awaited and len(self._tasks) < self._limit and not self._closing:
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def notify_threadsafe(self) -> None:
        """Do as `notify`, from any thread. Nothing happens if the event loop is closed."""
        if asyncio._get_running_loop() is self._loop:
            self.notify()
            return
        try:
            self._loop.call_soon_threadsafe(self.notify)
        except RuntimeError:
            pass

    async def close(self, timeout: float) -> None:
        """
        Process the remaining items of the source, for the timeout (seconds) at most, and end.

        No task is left behind when this method returns or is cancelled.
        """
        self._closing = True
        try:
            self._news.set()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=timeout)
        finally:
            await tasks.cancel(self._tasks.copy())

    async def _work(self) -> None:
        while True:
            item = self._source()
            if item is not None:
                try:
                    await self._process(item)
                except Exception as e:
                    self._loop.call_exception_handler(
                        {'message': "A worker failed to process an item.", 'exception': e})
            elif self._closing or not await self._wait():
                return

    async def _wait(self) -> bool:
        self._idle += 1
        self._news.clear()  # there are no items
        await timeouts.wait(self._news, self._idle_timeout)
        self._idle -= 1
        return self._news.is_set()  # maybe just when the time was over
