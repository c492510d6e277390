"""
Interruption of coroutines after a timeout: the coroutine sees a timeout, not a cancellation.

`asyncio.timeout` raises TimeoutError only outside of its block. Inside, the code sees a
CancelledError, and the task is cancelled. This module raises TimeoutError inside, where the
coroutine awaits, and the task is not cancelled: the coroutine can await more, e.g. to clean up.
"""
import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T_co = TypeVar('T_co', covariant=True)


class TimedOutError(asyncio.CancelledError, TimeoutError):
    """
    The timeout of the coroutine is over.

    This error is also a CancelledError, for the code between the coroutine and what it awaits:
    locks, queues, task groups, and HTTP clients restore their state on cancellations only.
    """


class Limited(Awaitable[T_co], Generic[T_co]):
    """
    A coroutine with a timeout (seconds). After the timeout, the coroutine is interrupted once.

    If the coroutine catches the interruption, it can continue for as long as it needs. Its result
    is the result.
    """

    def __init__(self, coro: Coroutine[Any, Any, T_co], timeout: float) -> None:
        super().__init__()
        self.cr_await = coro  # so that the tools which show the stack of a task find the coroutine
        self._timeout = timeout
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.Handle | None = None
        self._cancelling = 0
        self._is_due = False
        self._is_expired = False

    def expired(self) -> bool:
        """Whether the coroutine has been interrupted."""
        return self._is_expired

    def __await__(self) -> Generator[Any, Any, T_co]:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._timer = loop.call_later(self._timeout, self._interrupt)
        return self

    def __iter__(self) -> 'Limited[T_co]':
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._go_on(self.cr_await.send, value)

    def throw(self, exc: Any, value: Any = None, _: Any = None, /) -> Any:
        """Raise an error in the coroutine. The class and the error can be separate arguments."""
        exc = value if isinstance(value, BaseException) else exc
        if not self._is_due or not isinstance(exc, asyncio.CancelledError):
            return self._go_on(self.cr_await.throw, exc)
        assert self._task is not None
        self._is_due = False
        if self._task.uncancel() <= self._cancelling:
            self._is_expired = True
            return self._go_on(self.cr_await.throw, TimedOutError("The time is over."))
        # Somebody else has cancelled the task at the same time. The cancellation goes first.
        waiting = self._go_on(self.cr_await.throw, exc)
        if self._task.cancelling() <= self._cancelling:  # e.g. a timeout in the coroutine took it
            self._timer = asyncio.get_running_loop().call_soon(self._interrupt)
        return waiting

    def close(self) -> None:
        self._stop()
        self.cr_await.close()

    def _go_on(self, step: Any, arg: object) -> Any:
        try:
            return step(arg)
        except BaseException:
            self._stop()
            raise

    def _interrupt(self) -> None:
        self._is_due = True
        if self._task is not None:
            self._task.cancel()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
