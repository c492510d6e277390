"""
One attempt of one handler: its limits, its errors, and what follows of them.

Whatever a handler does, the attempt ends with an outcome; nothing but a cancellation gets out.
"""
import asyncio
import datetime
import json
from collections.abc import Awaitable, Callable
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._core.actions import progression, tracebacks
from kopf._core.intents import errors, handlers

encode = json.JSONEncoder(allow_nan=False).encode
"""Encode to JSON as it is in the standard; errors are ValueError, TypeError, RecursionError."""


async def attempt(
        handler: handlers.Handler,
        *,
        call: Callable[[], Awaitable[Any]],
        state: progression.HandlerState,
        settings: configuration.OperatorSettings,
        clock: clocks.Clock,
        logger: Any,
        default_errors: errors.ErrorsMode = errors.ErrorsMode.TEMPORARY,
        title: str = 'Handler',
        any_result: bool = False,
) -> progression.Outcome:
    """
    Make the call once, unless the limits of the handler are exceeded, and tell the story of it.

    An async handler that is running when its timeout comes is interrupted. Results must be JSON,
    for they are stored, unless any are good.
    """
    name = f"{title} {handler.id!r}"
    left = None if handler.timeout is None else handler.timeout - state.age(clock.mono())
    if left is not None and left <= 0:
        return _give_up(_make_timeout_error(name, state, clock), logger)
    if handler.retries is not None and state.retries >= handler.retries:
        return _give_up(errors.HandlerRetriesError(
            f"{name} has exceeded {handler.retries} retries."), logger)

    logger.debug(f"{name} is invoked.")
    limit = None
    if left is not None and handler.is_async:
        limit = asyncio.timeout(left)
    try:
        if limit is None:
            result = await call()
        else:
            async with limit:
                result = await call()
        if not any_result:
            _check_result(result)
    except errors.HandlerChildrenRetry as e:
        logger.debug(f"{name} has unfinished sub-handlers. Will retry soon.")
        return progression.Outcome(
            final=False, delay=e.delay, exception=e, message=str(None), waiting=True)
    except (Exception, asyncio.CancelledError) as e:
        task = asyncio.current_task()
        if isinstance(e, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # otherwise, something was cancelled that the handler waited for
        if limit is not None and limit.expired():
            return _give_up(_make_timeout_error(name, state, clock), logger)
        mode = handler.errors if handler.errors is not None else default_errors
        return _judge(tracebacks.trim(e), handler, mode, name, state, settings, logger)
    logger.info(f"{name} succeeded.")
    return progression.Outcome(final=True, result=result)


def fail(
        handler: handlers.Handler, exception: Exception, logger: Any, *, title: str = 'Handler',
) -> progression.Outcome:
    """The outcome of a handler that has failed for good by something outside of it."""
    message = f"{title} {handler.id!r} failed permanently: {exception}"
    logger.error(message)
    return progression.Outcome(final=True, exception=exception, message=_describe(exception))


def _judge(
        e: BaseException,
        handler: handlers.Handler,
        mode: errors.ErrorsMode,
        name: str,
        state: progression.HandlerState,
        settings: configuration.OperatorSettings,
        logger: Any,
) -> progression.Outcome:
    """What follows of an error: the author's word for it decides, then the mode of the handler."""
    is_last = handler.retries is not None and state.retries + 1 >= handler.retries
    backoff = handler.backoff if handler.backoff is not None else settings.execution.default_backoff
    text = _describe(e)

    if isinstance(e, errors.PermanentError):
        logger.error(f"{name} failed permanently: {text}")
        return progression.Outcome(final=True, exception=e, message=text)

    if isinstance(e, errors.TemporaryError):
        if is_last:
            message = f"{name} failed temporarily but will exceed {handler.retries} retries: {text}"
            return _give_up(errors.HandlerRetriesError(message), logger)
        logger.error(f"{name} failed temporarily: {text}")
        return progression.Outcome(final=False, delay=e.delay, exception=e, message=text)

    exc_info = (type(e), e, e.__traceback__)
    if mode == errors.ErrorsMode.IGNORED:
        logger.error(f"{name} failed with an exception and will ignore it: {text}",
                     exc_info=exc_info)
        return progression.Outcome(final=True)

    if mode == errors.ErrorsMode.PERMANENT:
        logger.error(f"{name} failed with an exception and will stop now: {text}",
                     exc_info=exc_info)
        return progression.Outcome(final=True, exception=e, message=text)

    if is_last:
        message = (f"{name} failed with an exception and will stop now (it would exceed "
                   f"{handler.retries} retries on the next attempt): {text}")
        logger.error(message, exc_info=exc_info)
        return progression.Outcome(final=True, exception=e, message=message)

    logger.error(f"{name} failed with an exception and will try again in {backoff} seconds: {text}",
                 exc_info=exc_info)
    return progression.Outcome(final=False, delay=backoff, exception=e, message=text)


def _make_timeout_error(
        name: str, state: progression.HandlerState, clock: clocks.Clock,
) -> errors.HandlerTimeoutError:
    runtime = datetime.timedelta(seconds=state.age(clock.mono()))
    return errors.HandlerTimeoutError(f"{name} has timed out after {runtime}.")


def _give_up(e: errors.PermanentError, logger: Any) -> progression.Outcome:
    logger.error(str(e))
    return progression.Outcome(final=True, exception=e, message=str(e))


def _check_result(result: object) -> None:
    if result is None or isinstance(result, (str, int, bool)):
        return
    try:
        encode(result)
    except (TypeError, ValueError, RecursionError) as e:
        raise errors.PermanentError(
            f"the result cannot be stored: {e}. Return only what JSON can have.") from e


def _describe(e: BaseException) -> str:
    return str(e) or repr(e)
