"""
Time limits of many short operations, with one timer of the event loop for all of them.

Operations usually end before their limits. `asyncio.timeout` would make and cancel a timer for each
of them, which is expensive for thousands of requests.
"""
import asyncio
import types

from kopf._cogs.aiokits import wakeups


class Limit:
    """
    Limits the time of its block (seconds; None for no limit).

    As with `asyncio.timeout`, the block is cancelled.

    :raises TimeoutError: by the context manager, if the block takes longer.
    """
    __slots__ = ('_alarms', '_cancelling', '_is_over', '_task', '_timeout', 'due')

    def __init__(self, alarms: wakeups.Wakeups, timeout: float | None) -> None:
        self._alarms = alarms
        self._timeout = timeout
        self._is_over = False
        self._task: asyncio.Task[object] | None = None
        self.due: float | None = None

    def __enter__(self) -> None:
        if self._timeout is not None:
            self._task = asyncio.current_task()
            if self._task is None:
                raise RuntimeError("The time can be limited only in a task.")
            self._cancelling = self._task.cancelling()
            self._alarms.sleep(self, asyncio.get_running_loop().time() + self._timeout)

    def wake_up(self) -> None:
        """Interrupt the block, as its time is over."""
        assert self._task is not None
        self._is_over = True
        self._task.cancel()

    def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            tb: types.TracebackType | None,
    ) -> None:
        self._alarms.cancel(self)
        task, self._task = self._task, None  # the wake-ups can keep the limit for longer
        if self._is_over and task is not None and (
                task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError):
            raise TimeoutError() from exc
