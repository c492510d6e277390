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

from kopf._core.actions import calls
from kopf._core.intents import handlers

kwargs_var: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar('kwargs_var')
"""The kwargs of the handler that is being called, in whatever it calls, in threads too."""


async def invoke(
        handler: handlers.Handler, kwargs: Mapping[str, Any], executor: Executor,
) -> Any:
    """Call the handler and return its result; it sees the context variables of the caller."""
    token = kwargs_var.set(kwargs)
    known = calls.calls_var.get()
    call = calls.Call(handler, kwargs, None if handler.is_async else executor)
    if known is not None:
        known.add(call)
    try:
        if handler.is_async:
            return await handler.fn(**kwargs)
        return await _invoke_in_thread(handler, kwargs, executor, call)
    finally:
        kwargs_var.reset(token)
        if known is not None:
            known.discard(call)


async def _invoke_in_thread(
        handler: handlers.Handler, kwargs: Mapping[str, Any], executor: Executor, call: calls.Call,
) -> Any:
    context = contextvars.copy_context()
    running = executor.submit(context.run, _call, functools.partial(handler.fn, **kwargs), call)
    future = asyncio.wrap_future(running)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            if running.cancel():  # only what is not started yet
                raise
    result = future.result()
    return await result if inspect.isawaitable(result) else result


def _call(fn: Callable[[], Any], call: calls.Call) -> Any:
    call.begin()
    try:
        return fn()
    except StopIteration as e:  # futures cannot have it: their waiters would wait for ever
        raise RuntimeError("StopIteration is raised.") from e
