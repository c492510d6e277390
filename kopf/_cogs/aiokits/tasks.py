"""
Tasks: ending them, so that none is left behind.
"""
import asyncio
from collections.abc import Collection
from typing import Any


async def cancel(tasks: Collection['asyncio.Task[Any]']) -> None:
    """Cancel the tasks, and wait until they have ended. Their results and errors are ignored."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
