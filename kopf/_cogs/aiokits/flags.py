"""
Flags to tell between tasks, loops and threads that something has happened.

Embedding applications have what they have: events and futures, of asyncio and of threads.
"""
import asyncio
import concurrent.futures
import threading
from typing import Any

Flag = asyncio.Future[Any] | asyncio.Event | concurrent.futures.Future[Any] | threading.Event

POLLING = 0.5
"""How often the flags of threads are looked at (seconds), where nothing tells of them."""


async def wait_flag(flag: Flag) -> Any:
    """Wait until the flag is raised, and return its value if it can have any."""
    if isinstance(flag, asyncio.Future):
        return await asyncio.shield(flag)
    if isinstance(flag, asyncio.Event):
        return await flag.wait()
    if isinstance(flag, concurrent.futures.Future):
        return await asyncio.shield(asyncio.wrap_future(flag))
    if isinstance(flag, threading.Event):
        # A thread blocked in waiting could not be ended if the flag is never raised.
        while not flag.is_set():
            await asyncio.sleep(POLLING)
        return True
    raise TypeError(f"Not a flag: {flag!r}. Use an event or a future of asyncio or of threads.")


def raise_flag(flag: Flag) -> None:
    """Raise the flag, if it is not raised yet."""
    if isinstance(flag, (asyncio.Future, concurrent.futures.Future)):
        if not flag.done():
            flag.set_result(None)
    elif isinstance(flag, (asyncio.Event, threading.Event)):
        flag.set()
    else:
        raise TypeError(f"Not a flag: {flag!r}. Use an event or a future of asyncio or of threads.")
