"""
Tasks: how to end them, so that none is left behind.
"""
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar('T')


async def cancel(tasks: Collection['asyncio.Task[Any]']) -> None:
    """Cancel the tasks, and wait until they have ended. Their results and errors are ignored."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


@contextlib.contextmanager
def revealing() -> Iterator[None]:
    """
    Raise a cancellation that was swallowed in the block, e.g. while a thread was working.

    :raises CancelledError: if the task was cancelled in the block, and has gone on.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


@contextlib.contextmanager
def preferring_errors() -> Iterator[None]:
    """Let a cancellation end the block, but not replace the error that is raised meanwhile."""
    error = sys.exception()
    try:
        yield
    except asyncio.CancelledError:
        if not isinstance(error, Exception):
            raise


async def end(task: 'asyncio.Task[Any]', deadline: float) -> None:
    """
    Cancel a task that finishes what is under way then; interrupt that at the deadline, a time of
    the event loop.
    """
    task.cancel()
    await asyncio.wait([task], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    await cancel([task])


async def gather(*coros: Coroutine[Any, Any, T]) -> list[T]:
    """
    Run the coroutines concurrently, and return their results.

    When one of them fails, the others are cancelled and awaited, unlike with `asyncio.gather`;
    then, the error is raised.
    """
    tasks = [asyncio.create_task(coro) for coro in coros]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def for_each(fn: Callable[[T], Awaitable[None]], items: Iterable[T], *, limit: int) -> None:
    """Await the function for all items, for a limited number of them at once; see `gather`."""
    vacant = asyncio.Semaphore(limit)

    async def do(item: T) -> None:
        async with vacant:
            await fn(item)

    await gather(*map(do, items))
