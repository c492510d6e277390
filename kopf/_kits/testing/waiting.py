"""
Waiting for conditions in tests, with a description of the last value if the time is over.
"""
import asyncio
import inspect
import pprint
import types
from collections.abc import Callable
from typing import Any

from kopf._cogs.aiokits import timeouts
from kopf._cogs.clients import errors
from kopf._kits.testing import virtual

TIMEOUT = 10.0
"""The default timeout of waiting, in seconds: of virtual time, if the loop has it."""

NOT_YET = (AssertionError, LookupError, TypeError, AttributeError, errors.APINotFoundError)
"""The errors of conditions that mean "not yet", e.g. because a key does not exist yet."""

MAX_SHOWN = 4000


async def wait_for(
        condition: Callable[[], Any],
        *,
        timeout: float = TIMEOUT,
        explain: Callable[[Any], str] | None = None,
) -> Any:
    """
    Wait until a condition is satisfied, and return its value.

    The condition is satisfied when the function returns something true, or `None` (a function of
    assertions; a lambda has none). It is not satisfied yet while the function fails an assertion,
    or does not find a key, an index, an attribute, or an object in the API. Other errors are raised
    at once.

    ::

        await kopf.testing.wait_for(lambda: len(calls) == 2)

    See "Test operators" in the documentation.

    :param condition: a function without arguments, sync or async.
    :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
    :param explain: a function that makes the text of the error from the last value or error.
        Default: the text shows the condition, and its last value or error.
    :returns: the value of the condition.
    :raises AssertionError: if the condition is not satisfied in time.
    """
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    attempt, since = 0, loop.time()
    seen: Any = "nothing yet: it has not returned"
    try:
        async with timeouts.timeout(timeout):
            while True:
                await virtual.pause(attempt, since)
                attempt, since = attempt + 1, loop.time()
                try:
                    value = condition()
                    value = await value if inspect.isawaitable(value) else value
                except NOT_YET as e:
                    seen = e
                else:
                    if is_met(condition, value):
                        return value
                    seen = value
    except TimeoutError:
        if loop.time() < deadline:
            raise  # this timeout is an error of the condition
    raise AssertionError(
        explain(seen) if explain is not None else _explain(condition, seen, timeout=timeout))


def is_met(condition: Callable[..., Any], value: Any) -> bool:
    """Whether this result satisfies a condition. `None` of a lambda is e.g. of a missing key."""
    return bool(value) or (
        value is None and getattr(condition, '__name__', '') != '<lambda>')


def wait_for_sync(condition: Callable[[], Any], *, timeout: float = TIMEOUT) -> Any:
    """
    Wait until a condition is satisfied, in a test without an event loop.

    It is `kopf.testing.wait_for` in sync tests.

    ::

        kopf.testing.wait_for_sync(lambda: len(calls) == 2, timeout=30)

    See "Test operators" in the documentation.

    :param condition: a function without arguments, sync or async.
    :param timeout: how long to wait, in (real) seconds. Default: 10.
    :returns: the value of the condition.
    :raises AssertionError: if the condition is not satisfied in time.
    """
    return asyncio.run(wait_for(condition, timeout=timeout))


def _explain(condition: Callable[[], Any], seen: Any, *, timeout: float) -> str:
    """Describe the condition, its last value or error, and the data to which it refers."""
    lines = [f"The condition was not met in {timeout:g} seconds: {describe(condition)}"]
    lines += [f"Last seen: {show(seen)}"]
    lines += [f"  with {name} = {show(value)}" for name, value in _get_context(condition).items()]
    return '\n'.join(lines)


def describe(condition: Callable[..., Any]) -> str:
    """Name the condition. The name of a lambda is its source line."""
    name: str = getattr(condition, '__qualname__', repr(condition))
    if '<lambda>' in name:
        try:
            return inspect.getsource(condition).strip()
        except (OSError, TypeError):
            pass
    return name


def _get_context(condition: Callable[[], Any]) -> dict[str, Any]:
    """Find the variables to which the condition refers."""
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
