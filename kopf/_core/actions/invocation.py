"""
Invocation of handlers, both synchronous and asynchronous.

Asynchronous handlers run in the event loop. Synchronous handlers run in threads of an executor. A
thread cannot be stopped, so a cancelled invocation goes on until its thread ends, and then returns
the result. Only a wait of the thread for Kopf itself, e.g. for `kopf.apply`, is interrupted.
"""
import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._core.actions import inflight
from kopf._core.intents import handlers

kwargs_var: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar('kwargs_var')
"""
The kwargs of the cause for which the current handler is called: without those of the attempt, and
without values of the author's classes. It is set in the handler and in all functions that it calls.
"""


async def invoke(
        handler: handlers.Handler, kwargs: Mapping[str, Any], executor: Executor,
        untyped: Mapping[str, Any] | None = None,
) -> Any:
    """
    Call the handler, with the context variables of the caller, and return the result.

    ``untyped`` are the kwargs for `kwargs_var`, without values of the author's classes; by default,
    those of the handler.
    """
    token = kwargs_var.set(kwargs if untyped is None else untyped)
    known = inflight.calls_var.get()
    call = inflight.Call(handler, kwargs, None if handler.is_async else executor)
    if known is not None:
        known[call] = None
    try:
        if handler.is_async:
            return await handler.fn(**kwargs)
        return await _invoke_in_thread(handler, kwargs, executor, call)
    finally:
        kwargs_var.reset(token)
        if known is not None:
            del known[call]


async def _invoke_in_thread(
        handler: handlers.Handler, kwargs: Mapping[str, Any], executor: Executor,
        call: inflight.Call,
) -> Any:
    context = contextvars.copy_context()
    context.run(inflight.call_var.set, call)
    running = executor.submit(context.run, _call, functools.partial(handler.fn, **kwargs), call)
    future = asyncio.wrap_future(running)
    clocks.hold_for(running, call)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            if running.cancel():  # it succeeds only before the handler has a thread
                raise
            call.interrupt()
    result = future.result()
    return await result if inspect.isawaitable(result) else result


def _call(fn: Callable[[], Any], call: inflight.Call) -> Any:
    call.begin()
    try:
        return fn()
    except StopIteration as e:  # asyncio's futures do not accept it: the caller would wait forever
        raise RuntimeError("StopIteration is raised.") from e
