"""
Time limits of many short operations, with one timer of the event loop for all of them.

Operations usually end before their limits. `asyncio.timeout` would make and cancel a timer for each
of them, which is expensive for thousands of requests.
"""
import asyncio
import types

from kopf._cogs.aiokits import alarms


class Deadlines:
    """The time limits that share one timer. They belong to the event loop where they are used."""

    def __init__(self) -> None:
        self._limits: dict[Limit, float] = {}
        self._alarm = alarms.Alarm(self._check)

    def limit(self, timeout: float | None) -> 'Limit':
        """
        Make a context manager that limits the time of its block (seconds; None for no limit).

        As with `asyncio.timeout`, the block is cancelled.

        :raises TimeoutError: by the context manager, if the block takes longer.
        """
        return Limit(self, timeout)

    def close(self) -> None:
        self._alarm.cancel()

    def add(self, limit: 'Limit', deadline: float) -> None:
        self._limits[limit] = deadline
        self._alarm.set(deadline)

    def remove(self, limit: 'Limit') -> bool:
        """Return whether the time was not over."""
        return self._limits.pop(limit, None) is not None

    def _check(self, now: float) -> None:
        for limit in [limit for limit, deadline in self._limits.items() if deadline <= now]:
            del self._limits[limit]
            assert limit.task is not None
            limit.task.cancel()
        if self._limits:
            self._alarm.set(min(self._limits.values()))


class Limit:
    """The context manager made by `Deadlines.limit`."""
    __slots__ = ('_cancelling', '_deadlines', '_timeout', 'task')

    def __init__(self, deadlines: Deadlines, timeout: float | None) -> None:
        self._deadlines = deadlines
        self._timeout = timeout
        self.task: asyncio.Task[object] | None = None

    def __enter__(self) -> None:
        if self._timeout is not None:
            self.task = asyncio.current_task()
            if self.task is None:
                raise RuntimeError("The time can be limited only in a task.")
            self._cancelling = self.task.cancelling()
            self._deadlines.add(self, asyncio.get_running_loop().time() + self._timeout)

    def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            tb: types.TracebackType | None,
    ) -> None:
        if self.task is not None and not self._deadlines.remove(self) and (
                self.task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError):
            raise TimeoutError() from exc
