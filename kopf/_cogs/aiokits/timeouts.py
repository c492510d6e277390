"""
Time limits of blocks of code, on any patch release of Python.

In early patch releases of Python 3.11, `asyncio.timeout` fails in a task that was cancelled before
and goes on, e.g. to write what is done: instead of a TimeoutError, it raises the CancelledError by
which it interrupts its block.
"""
import asyncio
import contextlib
import math
import sys
import types

if sys.version_info >= (3, 12):
    from asyncio import Timeout
else:
    class Timeout(asyncio.Timeout):  # type: ignore[misc]  # there is no other way to extend it
        """An `asyncio.Timeout` that ignores the earlier cancellations of its task."""

        async def __aenter__(self) -> 'Timeout':
            task = asyncio.current_task()
            self._cancelled_before = 0 if task is None else task.cancelling()
            await super().__aenter__()
            return self

        async def __aexit__(
                self,
                exc_type: type[BaseException] | None,
                exc_val: BaseException | None,
                exc_tb: types.TracebackType | None,
        ) -> None:
            await super().__aexit__(exc_type, exc_val, exc_tb)
            task = asyncio.current_task()
            if self.expired() and exc_type is asyncio.CancelledError and (
                    task is not None and task.cancelling() <= self._cancelled_before):
                raise TimeoutError from exc_val


def timeout(delay: float | None) -> Timeout:
    """
    Limit the time of a block (seconds; None for no limit), as `asyncio.timeout` does.

    :raises TimeoutError: by the context manager, if the block takes longer.
    """
    return timeout_at(None if delay is None else asyncio.get_running_loop().time() + delay)


def timeout_at(when: float | None) -> Timeout:
    """
    Limit the time of a block (a time of the event loop; None for no limit), as
    `asyncio.timeout_at` does.

    :raises TimeoutError: by the context manager, if the block has not ended by then.
    """
    return Timeout(when)


def read(setting: float | None) -> float | None:
    """
    Read the time limit (seconds) of a setting. As in aiohttp, 0 and less is no limit, i.e. None; so
    is infinity.
    """
    return setting if setting is not None and 0 < setting < math.inf else None


async def wait(event: asyncio.Event, delay: float | None) -> None:
    """Wait until the event is set, but not longer than that (seconds; None for no limit)."""
    with contextlib.suppress(TimeoutError):
        async with timeout(delay):
            await event.wait()
