"""
Workers on demand: a few tasks at most that work items off, and none when there is nothing to do.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar('T')


class Workers(Generic[T]):
    """
    Tasks that take items from a source and process them, at most ``limit`` at the same time.

    ``source`` gives the next item, or `None` if there is none now; `notify` tells that there is
    one. A worker without an item waits for ``idle_timeout`` seconds, and then ends. ``process``
    must not raise; if it does, the error goes to the loop's exception handler, and the work goes
    on.

    It belongs to the event loop in which it was made; only `notify_threadsafe` can be called
    elsewhere.
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
        self._idle: collections.deque[asyncio.Future[None]] = collections.deque()
        self._closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def notify(self) -> None:
        """
        Have a worker look for an item: an idle one, or a new one, unless all of them are busy.
        """
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return
        if len(self._tasks) < self._limit and not self._closing:
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def notify_threadsafe(self) -> None:
        """The same from any thread, and also when the loop is over: then it does nothing."""
        if asyncio._get_running_loop() is self._loop:
            self.notify()
            return
        try:
            self._loop.call_soon_threadsafe(self.notify)
        except RuntimeError:
            pass

    async def close(self, timeout: float) -> None:
        """
        Work off what is left in the source, but not longer than the timeout in seconds, and end.

        When it returns or is cancelled, no task is left behind.
        """
        self._closing = True
        try:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=timeout)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            async with asyncio.timeout(self._idle_timeout):
                await future
        except TimeoutError:
            # Notified in the same turn of the loop, and so nobody else is going to take the item.
            return future.done() and not future.cancelled()
        return True
