"""
One attempt of one handler of any kind. Kopf calls all handlers from this module.

Every attempt ends with an outcome, whatever exception the handler raises. Only cancellations, and
exceptions that are not `Exception` (e.g. `SystemExit`), are raised to the caller.
"""
import asyncio
import dataclasses
import datetime
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from kopf._cogs.aiokits import clocks, interrupts
from kopf._cogs.configs import configuration, sections
from kopf._cogs.structs import bodies, dicts, diffs, encoders, nesting, patches
from kopf._core.actions import invocation, observers, progression, subhandling, tracebacks
from kopf._core.actions.brakes import NO_BRAKES, Brakes
from kopf._core.intents import (
    causes,
    filters,
    handlererrors,
    handlers,
    pauses,
    registries,
    typedargs,
)

encode = encoders.make_encode(json.JSONEncoder(allow_nan=False))
"""Encode as strict JSON, without NaN. It raises ValueError, TypeError, RecursionError."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What all attempts in an operator have in common."""
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    indices: Mapping[str, Any]
    observer: observers.Notifier = observers.NOBODY
    brakes: Brakes = NO_BRAKES

    def find_pause(self, raw: bodies.RawBody) -> pauses.Pause | None:
        """Find what pauses the handlers of an object in this state now."""
        pause = pauses.find(raw, self.settings.pausing.annotation)
        return None if pause is None or pause.is_over(self.clock.now().wall) else pause


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """The differences between the kinds of handlers."""

    default_errors: handlererrors.ErrorsMode = handlererrors.ErrorsMode.TEMPORARY
    """What arbitrary errors mean, unless the handler declares its own mode."""

    is_retried: bool = True
    """Whether there is another attempt after the delay of an error."""

    stores_result: bool = False
    """Whether results are stored on the object. Such results must be encodable as JSON."""

    applies_result: bool = False
    """Whether the attempt succeeds only after its result is applied to the cluster."""

    is_backoff_growing: bool = False
    """Whether the default delay after errors doubles with each failed attempt, as in client-go."""

    has_own_patch: bool = False
    """Whether each attempt gets a new patch, checked afterwards, instead of the cause's patch."""

    has_own_threads: bool = False
    """
    Whether synchronous functions have threads which the handlers of objects cannot occupy.

    The handlers of objects can wait for the operator itself: e.g. `kopf.apply` waits for a login,
    or for an admission.
    """


QUICK = 1.0
"""Below this delay (seconds), growing backoffs repeat the same error too fast for the log."""

POLICIES: Mapping[type[handlers.Handler], Policy] = {
    handlers.ActivityHandler: Policy(has_own_threads=True),
    handlers.IndexingHandler: Policy(
        default_errors=handlererrors.ErrorsMode.IGNORED, is_retried=False),
    handlers.WatchingHandler: Policy(
        default_errors=handlererrors.ErrorsMode.IGNORED, is_retried=False, stores_result=True),
    handlers.ChangingHandler: Policy(stores_result=True, has_own_patch=True),
    handlers.ReconcilingHandler: Policy(
        applies_result=True, has_own_patch=True, is_backoff_growing=True),
    handlers.CallHandler: Policy(is_backoff_growing=True),
    handlers.DaemonHandler: Policy(stores_result=True),
    handlers.TimerHandler: Policy(stores_result=True),
    handlers.WebhookHandler: Policy(
        default_errors=handlererrors.ErrorsMode.PERMANENT, is_retried=False,
        has_own_threads=True),
}


def execute(
        handler: handlers.Handler,
        cause: causes.Cause,
        *,
        context: Context,
        state: progression.HandlerState | None = None,
        extras: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        family: subhandling.Family | None = None,
        filter_error: Exception | None = None,
) -> Coroutine[Any, Any, progression.Outcome]:
    """
    Call the handler once, unless its limits are exceeded, and notify the observer.

    Without ``state``, this is the first attempt, and it begins now. ``extras`` are additional
    kwargs. Synchronous functions run in the ``executor``, by default in one of the settings. With
    ``family``, the handler can have sub-handlers; those that the handler has declared but not
    executed are executed when its function returns. With ``filter_error``, the handler is not
    called, and the attempt fails with this error.

    When the timeout of a running async handler is over, the handler is interrupted. Threads
    cannot be interrupted.
    """
    work = attempt(
        handler, cause, context=context, state=state, extras=extras, executor=executor,
        family=family, filter_error=filter_error)
    return context.observer.follow(observers.Observer.attempt, work, handler, cause)


async def attempt(
        handler: handlers.Handler,
        cause: causes.Cause,
        *,
        context: Context,
        state: progression.HandlerState | None = None,
        extras: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        family: subhandling.Family | None = None,
        filter_error: Exception | None = None,
) -> progression.Outcome:
    """Do as `execute` does, but the caller notifies the observer, as its attempt takes longer."""
    settings, clock, logger = context.settings, context.clock, cause.logger
    policy, name = POLICIES[type(handler)], repr(handler)
    now = clock.now()
    state = state or progression.HandlerState.new(now=now)
    age = state.age(now.mono)
    left = None if handler.timeout is None else handler.timeout - age
    if left is not None and left <= 0:
        return _time_out(handler, age, logger)
    if handler.retries is not None and state.attempts >= handler.retries:
        return _give_up(handler, handlererrors.HandlerRetriesError(
            f"{name} has exceeded {handler.retries} retries."), logger)

    patch: patches.Patch | None = None
    if policy.has_own_patch and isinstance(cause, causes.ResourceCause):
        patch = patches.Patch(body=cause.body)
    try:
        kwargs = _make_kwargs(handler, cause, state, age, patch, extras)
    except typedargs.MisfitError as e:
        return _hold(handler, e, settings, logger)
    limit: interrupts.Limited[Any] | None = None
    logger.debug(f"{name} is invoked.")
    try:
        if filter_error is not None:
            raise filter_error
        if executor is None:
            threads = settings.execution
            executor = threads._reserve if policy.has_own_threads else threads.executor
        call = invocation.invoke(handler, kwargs, executor, cause.kwargs) if family is None else (
            _invoke_with_family(handler, kwargs, executor, cause.kwargs, family))
        if left is not None and handler.is_async:
            limit = interrupts.Limited(call, left)
        result = await (call if limit is None else limit)
        if policy.stores_result:
            result = _take_result(result)
    except handlererrors.HandlerChildrenRetry as e:
        logger.debug(f"{name} has unfinished sub-handlers. Will retry soon.")
        outcome = progression.Outcome(
            final=False, delay=e.delay, exception=e, message=str(None), waiting=True)
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:  # also the panics of libraries in Rust
        task = asyncio.current_task()
        if isinstance(e, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # else, only something that the handler awaited was cancelled: an error
        is_over = limit is not None and limit.expired()
        if isinstance(e, interrupts.TimedOutError) and not is_over:
            raise  # the timeout is that of the parent of this sub-handler
        if is_over:
            outcome = _time_out(handler, state.age(clock.mono()), logger)
        else:
            outcome = judge(
                tracebacks.trim(e), handler, state=state, settings=settings, logger=logger)
    else:
        if result is None or not policy.applies_result:
            logger.log(handler.success_level, f"{name} succeeded.")
        outcome = progression.Outcome(final=True, result=result)

    if patch:
        assert isinstance(cause, causes.ResourceCause)
        try:
            stored = patches.Patch(_as_stored(patch), body=cause.body, fns=patch.fns)
        except (TypeError, ValueError, RecursionError) as e:
            outcome = fail(handler, ValueError(f"its patch is not JSON: {e}"), logger)
        else:
            outcome = outcome._replace(patch=stored)
            if not isinstance(stored.get('metadata', {}), dict):
                outcome = fail(handler, ValueError(
                    f"its patch replaces the metadata with {stored['metadata']!r}"), logger)
    if family is not None and family.members:
        outcome = outcome._replace(subrefs=family.members)
    return outcome


def _make_kwargs(
        handler: handlers.Handler,
        cause: causes.Cause,
        state: progression.HandlerState,
        age: float,
        patch: patches.Patch | None,
        extras: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """
    Combine the kwargs of the cause and of the attempt. Indices replace kwargs of their names.

    :raises typedargs.MisfitError: if the object does not fit the types of the handler.
    """
    kwargs = {
        **cause.kwargs,
        'param': handler.param,
        'retry': state.retries,
        'started': state.started,
        'runtime': datetime.timedelta(seconds=age),
    }
    if patch is not None:
        kwargs['patch'] = patch
    if isinstance(handler, handlers.ResourceHandler):
        if handler.field and isinstance(cause, causes.ChangingCause):
            kwargs.update(cause.describe_change(handler.field))
        if handler.arguments is not None:
            kwargs.update(typedargs.decode(handler.arguments, kwargs, cause.decoded))
        for name in handler.copied_kwargs:
            if name in kwargs:
                kwargs[name] = _copy(kwargs[name])
    if extras:
        kwargs.update(extras)
    kwargs.update(cause.indices)
    return kwargs


def _copy(value: Any) -> Any:
    if isinstance(value, diffs.Diff):
        return diffs.Diff(item._replace(
            old=dicts.copy(item.old), new=dicts.copy(item.new)) for item in value)
    return dicts.copy(value)


async def _invoke_with_family(
        handler: handlers.Handler, kwargs: Mapping[str, Any], executor: Executor,
        untyped: Mapping[str, Any], family: subhandling.Family,
) -> Any:
    token = registries.parent_var.set(family)
    try:
        result = await invocation.invoke(handler, kwargs, executor, untyped)
        if family.declared and not family.executed:
            await family.execute(family.declared)
        return result
    finally:
        registries.parent_var.reset(token)


def _hold(
        handler: handlers.Handler,
        e: typedargs.MisfitError,
        settings: configuration.OperatorSettings,
        logger: Any,
) -> progression.Outcome:
    """
    Make the outcome of a handler that is not called, as the object does not fit its types.

    This is no attempt. The next change of the object calls the handler. A timer gets here only if
    the object has changed while the timer was waiting: it waits until this change stops the timer.
    """
    text = _complain(handler, e, logger)
    if isinstance(handler, handlers.TimerHandler):
        return progression.Outcome(
            final=False, waiting=True, delay=get_backoff(handler, settings, retries=0),
            exception=e, message=text)
    return progression.Outcome(final=True, exception=e, message=text)


def _complain(handler: handlers.Handler, e: typedargs.MisfitError, logger: Any) -> str:
    text = describe_misfit(e)
    logger.log(handler.failure_level, f"{handler!r} is not called: {text}")
    return text


def find_misfits(
        candidates: Iterable[handlers.ResourceHandler],
        get_cause: Callable[[], causes.ChangingCause],
) -> Sequence[tuple[handlers.ResourceHandler, typedargs.MisfitError]]:
    """Find the handlers that cannot be called, as the object does not fit their types."""
    found = []
    for handler in candidates:
        if handler.arguments is not None:
            cause = get_cause()
            kwargs = {**cause.kwargs, **cause.describe_change(handler.field or cause.field)}
            try:
                typedargs.decode(handler.arguments, kwargs, cause.decoded)
            except typedargs.MisfitError as e:
                found.append((handler, e))
    return found


def find_misfit(
        candidates: Iterable[handlers.ResourceHandler],
        get_cause: Callable[[], causes.ChangingCause],
) -> str | None:
    """Say why some of the handlers cannot be called: the object does not fit their types."""
    found = find_misfits(candidates, get_cause)
    if not found:
        return None
    names = ', '.join(repr(handler.id) for handler, _ in found)
    reasons = dict.fromkeys(reason for _, e in found for reason in e.reasons)
    return f"The object does not fit the types of {names}: {'; '.join(reasons)}"


def describe_misfit(e: typedargs.MisfitError) -> str:
    return f"the object does not fit its types: {e}"


def is_matching(
        handler: handlers.ResourceHandler, cause: causes.ResourceCause, *, context: Context,
) -> bool:
    """
    Whether the handler is for the object, and the object fits the types of the handler.

    If the object does not fit, or if a filter fails, log that, and notify the observers.
    """
    try:
        if not (handler.unfiltered or filters.matches(handler, cause)):
            return False
        if handler.arguments is not None:
            typedargs.decode(handler.arguments, cause.kwargs, cause.decoded)
    except filters.FilterError as e:
        reason = str(fail(handler, e.error, cause.logger).message)
    except typedargs.MisfitError as e:
        reason = _complain(handler, e, cause.logger)
    else:
        return True
    context.observer.omission(handler, cause.resource, cause.body, reason)
    return False


def fail(handler: handlers.Handler, exception: BaseException, logger: Any) -> progression.Outcome:
    """Make the outcome of a handler that fails permanently, and log it without a traceback."""
    text = _describe(exception)
    logger.log(handler.failure_level, f"{handler!r} failed permanently: {text}")
    return progression.Outcome(final=True, exception=exception, message=text)


def judge(
        e: BaseException,
        handler: handlers.Handler,
        *,
        state: progression.HandlerState,
        settings: configuration.OperatorSettings,
        logger: Any,
) -> progression.Outcome:
    """
    Make the outcome of a failed attempt, and log it. Errors that were never raised, such as those
    of applying a result, have no traceback in the log.

    `PermanentError` and `TemporaryError` say what they mean; for other errors, the mode decides.
    """
    if isinstance(e, handlererrors.TemporaryError) and not (
            e.delay is None or sections.is_number(e.delay)):  # it is set by a subclass
        wrong = TypeError(f"delay= must be a number of seconds, not {e.delay!r}.")
        e = wrong.with_traceback(e.__traceback__)
    mode = handler.errors if handler.errors is not None else (
        POLICIES[type(handler)].default_errors)
    is_last = handler.retries is not None and state.attempts + 1 >= handler.retries
    text, level = _describe(e), handler.failure_level

    if isinstance(e, handlererrors.PermanentError):
        return fail(handler, e, logger)

    if isinstance(e, handlererrors.TemporaryError):
        if is_last:
            return _give_up(handler, handlererrors.HandlerRetriesError(
                f"{handler!r} failed temporarily but will exceed {handler.retries} retries: {text}",
            ), logger)
        when = f"in {_count_seconds(e.delay)}" if e.delay and e.delay > 0 else "at once"
        end = f" (will try again {when})" if POLICIES[type(handler)].is_retried else ""
        logger.log(handler.failure_level, f"{handler!r} failed temporarily: {text}{end}")
        return progression.Outcome(final=False, delay=e.delay, exception=e, message=text)

    outcome = progression.Outcome(final=True, exception=e, message=text)
    if mode == handlererrors.ErrorsMode.IGNORED:
        message = f"{handler!r} failed with an exception and will ignore it: {text}"
        outcome = progression.Outcome(final=True, ignored=e)
    elif mode == handlererrors.ErrorsMode.PERMANENT:
        message = f"{handler!r} failed with an exception and will stop now: {text}"
    elif is_last:
        message = (f"{handler!r} failed with an exception and will stop now (it would exceed "
                   f"{handler.retries} retries on the next attempt): {text}")
        outcome = outcome._replace(message=message)
    else:
        backoff = get_backoff(handler, settings, state.attempts)
        message = (f"{handler!r} failed with an exception and will try again in "
                   f"{_count_seconds(backoff)}: {text}")
        outcome = outcome._replace(final=False, delay=backoff)
        if POLICIES[type(handler)].is_backoff_growing and backoff < QUICK and text == state.message:
            level = logging.DEBUG
    is_raised = e.__traceback__ is not None
    logger.log(level, message, exc_info=(type(e), e, e.__traceback__) if is_raised else None)
    return outcome


def get_backoff(
        handler: handlers.Handler, settings: configuration.OperatorSettings, retries: int,
) -> float:
    """Get the delay (seconds) before the next attempt after an arbitrary error."""
    if handler.backoff is not None:
        return handler.backoff
    if POLICIES[type(handler)].is_backoff_growing:
        own = settings.reconciling
        return min(own.max_error_delay, own.error_delay * 2.0 ** min(retries, 100))
    return settings.execution.default_backoff


def _time_out(handler: handlers.Handler, age: float, logger: Any) -> progression.Outcome:
    return _give_up(handler, handlererrors.HandlerTimeoutError(
        f"{handler!r} has timed out after {datetime.timedelta(seconds=age)}."), logger)


def _give_up(
        handler: handlers.Handler, e: handlererrors.PermanentError, logger: Any,
) -> progression.Outcome:
    logger.log(handler.failure_level, str(e))
    return progression.Outcome(final=True, exception=e, message=str(e))


def _take_result(result: Any) -> Any:
    if result is None or isinstance(result, (str, bool)):
        return result
    if not isinstance(result, dict) and isinstance(result, Mapping):
        result = dict(result)  # e.g. a spec or labels, as handlers get them
    try:
        return _as_stored(result)
    except (TypeError, ValueError, RecursionError) as e:
        raise handlererrors.PermanentError(
            f"the result cannot be stored: {e}. Return only what JSON can have.") from e


def _as_stored(value: Any) -> Any:
    """
    Make of a value what the API returns after a write: tuples become lists, keys become strings.

    Otherwise, the stored value would look changed by others, and Kopf would call the handlers
    again. It is also a copy: the author can change the original before the copy is sent.
    """
    return nesting.parse(encode(value))


def _count_seconds(number: float) -> str:
    return "1 second" if number == 1 else f"{number} seconds"


def _describe(e: BaseException) -> str:
    try:
        return repr(e) if isinstance(e, KeyError) else str(e) or repr(e)
    except Exception:  # errors are of any classes, and have any arguments
        return f"{type(e).__name__}, which cannot be shown"
