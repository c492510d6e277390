"""
Tasks: how to end them, so that none is left behind.
"""
import asyncio
from collections.abc import Collection, Coroutine
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
