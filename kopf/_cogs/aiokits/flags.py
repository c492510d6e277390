"""
Flags between tasks, event loops, and threads.

Applications that embed an operator can use what they have: events and futures, of asyncio or
threads.
"""
import asyncio
import concurrent.futures
import threading
from typing import Any

Flag = asyncio.Future[Any] | asyncio.Event | concurrent.futures.Future[Any] | threading.Event

POLLING = 0.5
"""How often (seconds) a `threading.Event` is checked: it cannot notify an event loop."""


async def wait_flag(flag: Flag) -> Any:
    """
    Wait until the flag is raised. Return the result if it is a future, else true.

    :raises TypeError: if it is neither an event nor a future.
    """
    if isinstance(flag, asyncio.Future):
        return await asyncio.shield(flag)
    if isinstance(flag, asyncio.Event):
        return await flag.wait()
    if isinstance(flag, concurrent.futures.Future):
        return await asyncio.shield(asyncio.wrap_future(flag))
    if isinstance(flag, threading.Event):
        # Not in a thread that waits for the event: the thread would never end if the flag is never
        # raised, and Python waits for its threads when it exits.
        while not flag.is_set():
            await asyncio.sleep(POLLING)
        return True
    raise TypeError(f"Not a flag: {flag!r}. Use an event or a future of asyncio or of threads.")


def raise_flag(flag: Flag) -> None:
    """
    Raise the flag: set the event, or set the result of the future to None, unless it is done.

    :raises TypeError: if it is neither an event nor a future.
    """
    if isinstance(flag, (asyncio.Future, concurrent.futures.Future)):
        if not flag.done():
            flag.set_result(None)
    elif isinstance(flag, (asyncio.Event, threading.Event)):
        flag.set()
    else:
        raise TypeError(f"Not a flag: {flag!r}. Use an event or a future of asyncio or of threads.")
