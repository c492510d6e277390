"""
Calling the functions of operators' authors, sync and async, in their ways.

Async functions run in the event loop. Sync ones run in the threads of an executor; a thread cannot
be stopped, so a cancelled invocation goes on until its thread has ended, and then has its result.
"""
import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any


async def invoke(
        fn: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any], executor: Executor,
) -> Any:
    """Call the function and return its result; it sees the context variables of the caller."""
    if is_async(fn):
        return await fn(*args, **kwargs)
    context = contextvars.copy_context()
    running = executor.submit(context.run, _call, functools.partial(fn, *args, **kwargs))
    future = asyncio.wrap_future(running)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            if running.cancel():  # only what is not started yet
                raise
    result = future.result()
    return await result if inspect.isawaitable(result) else result


def _call(fn: Callable[[], Any]) -> Any:
    try:
        return fn()
    except StopIteration as e:  # futures cannot have it: their waiters would wait for ever
        raise RuntimeError("StopIteration is raised.") from e


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether the function is to be awaited: also behind partials, wrappers and callables."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(fn):
        return True
    if inspect.isroutine(fn):
        wrapped = getattr(fn, '__wrapped__', None)
        return wrapped is not None and is_async(wrapped)
    return inspect.iscoroutinefunction(getattr(fn, '__call__', None))  # noqa: B004
