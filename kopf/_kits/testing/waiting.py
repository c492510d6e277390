"""
Waiting for what is to happen, and telling what has happened instead.
"""
import asyncio
import inspect
import pprint
import types
from collections.abc import Callable
from typing import Any

from kopf._cogs.clients import errors
from kopf._kits.testing import virtual

TIMEOUT = 10.0
"""How long is waited for something if not told (seconds, virtual ones too)."""

NOT_YET = (AssertionError, LookupError, TypeError, AttributeError, errors.APINotFoundError)
"""The errors of conditions that look for what is not there yet."""

MAX_SHOWN = 4000


async def wait_for(
        condition: Callable[[], Any],
        *,
        timeout: float = TIMEOUT,
        explain: Callable[[Any], str] | None = None,
) -> Any:
    """
    Wait until the condition holds, and return its value.

    It is a function, sync or async. It holds when it returns something true, or `None`: a function
    of assertions. It does not hold as long as an assertion in it fails, or something is absent:
    a key, an index, an attribute, an object of the API (404). Other errors are raised at once.

    :raises AssertionError: after so many seconds, with what was seen at last; it is told in other
        words if there is a function for that, which gets the last value or error.
    """
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    attempt, since = 0, loop.time()
    seen: Any = "nothing yet: it has not returned"
    try:
        async with asyncio.timeout(timeout):
            while True:
                await virtual.pause(attempt, since)
                attempt, since = attempt + 1, loop.time()
                try:
                    value = condition()
                    value = await value if inspect.isawaitable(value) else value
                except NOT_YET as e:
                    seen = e
                else:
                    if value is None or value:
                        return value
                    seen = value
    except TimeoutError:
        if loop.time() < deadline:
            raise  # it is of the condition
    raise AssertionError(
        explain(seen) if explain is not None else _explain(condition, seen, timeout=timeout))


def wait_for_sync(condition: Callable[[], Any], *, timeout: float = TIMEOUT) -> Any:
    """Do as `wait_for` does, in a test without a loop; the time is the real one."""
    return asyncio.run(wait_for(condition, timeout=timeout))


def _explain(condition: Callable[[], Any], seen: Any, *, timeout: float) -> str:
    """Say what was waited for, and what was seen instead."""
    lines = [f"It has not become so in {timeout:g} seconds: {describe(condition)}"]
    lines += [f"It was at last: {show(seen)}"]
    lines += [f"  with {name} = {show(value)}" for name, value in _get_context(condition).items()]
    return '\n'.join(lines)


def describe(condition: Callable[..., Any]) -> str:
    """Name the condition; a lambda is shown as it is written."""
    name: str = getattr(condition, '__qualname__', repr(condition))
    if '<lambda>' in name:
        try:
            return inspect.getsource(condition).strip()
        except (OSError, TypeError):
            pass
    return name


def _get_context(condition: Callable[[], Any]) -> dict[str, Any]:
    """The data that the condition refers to."""
    try:
        found = inspect.getclosurevars(condition)
    except (TypeError, ValueError):
        return {}
    return {
        name: value for name, value in {**found.globals, **found.nonlocals}.items()
        if not isinstance(value, types.ModuleType) and not callable(value)}


def show(value: object) -> str:
    """Show a value or an error, in one or several lines."""
    if isinstance(value, BaseException):
        text = str(value)
        return f"{type(value).__name__}: {text}" if text else type(value).__name__
    text = pprint.pformat(value, width=100)
    return text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}...'
