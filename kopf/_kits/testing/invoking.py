"""
Unit tests of handlers: one call of one handler, as made by Kopf, and its outcome.
"""
import asyncio
import concurrent.futures
import contextlib
import copy
import dataclasses
import datetime
import queue
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs, ids, memos, patches
from kopf._core.actions import decisions, execution, lifecycles, loggers, progression, subhandling
from kopf._core.engines import posting
from kopf._core.engines.reconciling import desired
from kopf._core.intents import causes, handlererrors, handlers, registries, stopping
from kopf._kits import decorators, explanations
from kopf._kits.testing import capturing, previews

EXAMPLE = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample'}

REASONS = (
    'create', 'update', 'delete', 'resume', 'field', 'event', 'timer', 'daemon', 'index', 'startup',
    'reconcile', 'cleanup', 'login', 'probe', 'validate', 'mutate')
"""The decorators of which one can be chosen."""

ADMISSION: dict[str, Any] = {
    'subresource': None, 'dryrun': False, 'headers': {}, 'sslpeer': {},
    'userinfo': {'username': 'tester', 'uid': '', 'groups': []},
}
"""The default kwargs of admission handlers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invocation:
    """
    The outcome of one call of a handler, see `kopf.testing.invoke`.

    ``result`` is what the handler has returned, as it is stored: for example, tuples are lists.
    ``log`` are the messages of the log, and ``memo`` is the memo that the handler got.
    """

    result: Any
    error: BaseException | None
    """The error, temporary or permanent; `None` if the handler has succeeded."""
    delay: float | None
    """After how many seconds Kopf would retry the handler; `None` if Kopf would not."""
    patch: patches.Patch
    """The patch of the handler and of its sub-handlers."""
    body: bodies.RawBody
    """The object with the patch applied, and with the results in the status."""
    log: list[str]
    events: list[Any]
    """The Kubernetes events of the handler, with ``type``, ``reason``, ``message``."""
    memo: Any
    warnings: list[str]
    """The warnings of an admission handler, which the API server shows to its client."""
    children: list[bodies.RawBody]
    """
    The owned resources that a handler of `kopf.reconcile` wants, as Kopf would apply them: with
    names, labels, and owners. Wrong manifests are in ``error``.
    """
    created: list[str]
    """Which of them are not among the given ones, for example ``ConfigMap default/example``."""
    changed: dict[str, diffs.Diff]
    """
    What would change in the given ones: from the given manifests to those that the handler wants,
    apart from the status and from what Kopf adds. Those that would not change are left out.
    """
    deleted: list[str]
    """Which of the given ones would be deleted, as the handler does not want them any more."""

    @property
    def succeeded(self) -> bool:
        """Whether the handler has succeeded."""
        return self.error is None

    @property
    def failed(self) -> bool:
        """Whether the handler has failed permanently, so that Kopf would not retry it."""
        return self.error is not None and self.delay is None

    @property
    def allowed(self) -> bool:
        """Whether an admission handler has accepted the change."""
        return self.error is None


async def invoke(
        fn: Callable[..., Any],
        body: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        old: Mapping[str, Any] | None = None,
        retry: int = 0,
        runtime: float = 0,
        memo: Any = None,
        children: Iterable[Mapping[str, Any]] = (),
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        **kwargs: Any,
) -> Invocation:
    """
    Call a handler once, sync or async, as an operator calls it, and return the outcome.

    The function gets all keyword arguments that it gets in an operator, with the ``param``, the
    field, and the limits of its decorator. Its errors are not raised: they are in the outcome.

    ::

        outcome = await kopf.testing.invoke(website, {'spec': {'title': 'Hello'}})
        assert outcome.created == ['ConfigMap default/example']

    See "Test operators" in the documentation.

    :param fn: the handler.
    :param body: the object, or a part of it: required fields are added. Default: an example object.
    :param reason: which decorator applies, if there are several: ``'create'``, ``'update'``,
        ``'delete'``, ``'resume'``; ``'event'``, ``'timer'``, ``'daemon'``, ``'index'``;
        ``'reconcile'``; ``'startup'``, ``'cleanup'``, ``'login'``, ``'probe'``; ``'validate'``,
        ``'mutate'``. Default: the first one; without decorators, the function is called as a
        handler of changes.
    :param old: the previous state of the object, for ``old``, ``new``, and ``diff``. Default: none.
    :param retry: the number of previous attempts.
    :param runtime: the time in seconds since the beginning of the first attempt.
    :param memo: the memo. Default: an empty `kopf.Memo`.
    :param children: the owned resources that exist, for handlers of `kopf.reconcile`: manifests,
        with a status if needed. They count as applied by this handler. Default: none.
    :param registry: the registry with the handler. Default: the default registry.
    :param settings: the settings. Default: new `kopf.OperatorSettings`.
    :param kwargs: more arguments for the function, which replace those of Kopf: ``type`` for
        events, ``operation`` and ``userinfo`` for admission, indices, and so on.
    :returns: the outcome.
    :raises TypeError: if ``fn`` is not a function, or the object is not a dict.
    :raises ValueError: if there is no such ``reason``.
    """
    if not callable(fn):
        raise TypeError(f"The handler must be a function, but it is {fn!r}. Pass the function "
                        f"itself, without calling it.")
    for title, obj in (('object', body), ('old object', old)):
        if obj is not None and not isinstance(obj, Mapping):
            raise TypeError(f"The {title} must be a dict, for example: {{'spec': {{}}}}, but it "
                            f"is {obj!r}.")
    if reason is not None and reason not in REASONS:
        raise ValueError(f"There is no reason {reason!r}, only: {', '.join(REASONS)}.")
    settings = settings if settings is not None else configuration.OperatorSettings()
    registry = registry if registry is not None else registries.get_default_registry()
    handler = _find(fn, reason, registry)
    raw = complete(body or {})
    memo = memo if memo is not None else memos.Memo()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    log: list[str] = []
    lifted: list[str] = kwargs.setdefault('warnings', []) if isinstance(
        handler, handlers.WebhookHandler) else []
    with capturing.capture(log), contextlib.ExitStack() as stack:
        executor = concurrent.futures.ThreadPoolExecutor(settings.execution.max_workers)
        stack.callback(executor.shutdown, wait=False)  # then, the threads take no more calls
        stack.callback(posting.event_queue_var.reset, posting.event_queue_var.set(events))
        call = _Call(settings, executor, kwargs, retry=retry, runtime=runtime)
        given = previews.GivenChildren(bodies.Body(raw), children)
        cause = _make_cause(handler, raw, old, reason, memo, settings, kwargs, call.patch, given)
        outcome = await call.attempt(handler, cause)
        preview = previews.Preview()
        if isinstance(handler, handlers.ReconcilingHandler) and isinstance(
                cause, causes.ReconcilingCause) and outcome.exception is None:
            preview = previews.preview(
                outcome.result, given, cause=cause, handler=handler, settings=settings)
            if preview.problems:
                outcome = execution.judge(
                    desired.ChildrenError(preview.problems), handler, state=call.make_state(),
                    settings=settings, logger=cause.logger)._replace(result=outcome.result)
    shown: Any = patches.Patch(call.patch).apply(raw)
    for handler_id, result in call.results.items():
        if result is not None and isinstance(handler, handlers.ChangingHandler):
            dicts.ensure(shown, ('status', handler_id), result)
    return Invocation(
        result=outcome.result, error=outcome.exception, children=[*preview.children],
        created=[*preview.created], changed={**preview.changed}, deleted=[*preview.deleted],
        delay=None if outcome.final else outcome.delay or 0.0, patch=call.patch, body=shown,
        log=log, events=[events.get_nowait() for _ in range(events.qsize())], memo=memo,
        warnings=lifted)


def invoke_sync(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Invocation:
    """
    Call a handler once, as `kopf.testing.invoke` does, in a test without an event loop.

    ::

        outcome = kopf.testing.invoke_sync(website, {'spec': {'title': 'Hello'}})
        assert outcome.created == ['ConfigMap default/example']

    See "Test operators" in the documentation.

    :param fn: the handler.
    :param args: the positional arguments of `kopf.testing.invoke` after the function.
    :param kwargs: the keyword arguments of `kopf.testing.invoke`.
    :returns: the outcome.
    :raises RuntimeError: if an event loop is running.
    """
    if asyncio._get_running_loop() is None:
        return asyncio.run(invoke(fn, *args, **kwargs))
    raise RuntimeError("There is an event loop already: use `await kopf.testing.invoke(...)`.")


@dataclasses.dataclass
class _Call:
    """A call of a handler and of its sub-handlers."""
    settings: configuration.OperatorSettings
    executor: concurrent.futures.Executor
    kwargs: dict[str, Any]
    retry: int
    runtime: float
    patch: patches.Patch = dataclasses.field(default_factory=patches.Patch)
    results: dict[ids.HandlerId, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context = execution.Context(settings=self.settings, clock=clocks.Clock(), indices={})

    async def attempt(self, handler: handlers.Handler, cause: causes.Cause) -> progression.Outcome:

        async def run_children(
                children: list[handlers.ChangingHandler],
                lifecycle: lifecycles.LifeCycleFn | None,
                other: causes.Cause | None,
        ) -> None:
            delays = []
            for child in children:
                outcome = await self.attempt(child, other or cause)
                delays += [] if outcome.final else [outcome.delay]
            if delays:
                raise handlererrors.HandlerChildrenRetry(delay=min(delay or 0 for delay in delays))

        waiter = stopping.DaemonStopper().make_waiter(is_async=handler.is_async)
        extras: dict[str, Any] = (
            {'stopped': waiter} if isinstance(handler, handlers.SpawningHandler) else {})
        family = subhandling.Family(handler, run_children) if isinstance(
            handler, handlers.ChangingHandler) else None
        outcome = await execution.execute(
            handler, cause, context=self._context, state=self.make_state(),
            extras=extras | self.kwargs, executor=self.executor, family=family)
        if outcome.patch is not None:
            merged = patches.combine(self.patch, outcome.patch)
            self.patch.update(merged if merged is not None else outcome.patch)
            self.patch.fns.extend(outcome.patch.fns)
        self.results[handler.id] = outcome.result
        return outcome

    def make_state(self) -> progression.HandlerState:
        now = self._context.clock.now()
        return progression.HandlerState(
            started=now.wall - datetime.timedelta(seconds=self.runtime),
            began=now.mono - self.runtime, retries=self.retry)


def _find(
        fn: Callable[..., Any], reason: str | None, registry: registries.OperatorRegistry,
) -> handlers.Handler:
    found = [
        handler for handler in _iter_declared(registry)
        if _has_function(handler, fn) and (reason is None or _can_be(handler, reason))]
    for handler in found:  # others can have this reason
        if isinstance(handler, handlers.ResourceHandler) and (
                decorators.name_decorator(handler) == reason):
            return handler
    return found[0] if found else handlers.ChangingHandler(fn=fn, id=handlers.generate_id(fn))


def _has_function(handler: handlers.Handler, fn: Callable[..., Any]) -> bool:
    known = handler.fn
    return known is fn or (  # generators are wrapped
        isinstance(handler, handlers.ReconcilingHandler)
        and getattr(known, '__wrapped__', None) is fn)


def _iter_declared(registry: registries.OperatorRegistry) -> Iterator[handlers.Handler]:
    yield from registry._changing
    yield from registry._activities
    yield from (handler for handler in registry.iter_resource_handlers()
                if not isinstance(handler, handlers.ChangingHandler))


def _can_be(handler: handlers.Handler, reason: str) -> bool:
    match handler:
        case handlers.ActivityHandler():
            return handler.activity == {'login': 'authentication'}.get(reason, reason)
        case handlers.ChangingHandler(reason=None):
            return reason == 'field' or reason in causes.HANDLED_REASONS
        case handlers.ResourceHandler():
            return decorators.name_decorator(handler) == reason
    return False


def complete(body: Mapping[str, Any]) -> bodies.RawBody:
    """Add the fields that every object has."""
    meta = {'name': 'example', 'namespace': 'default', 'uid': str(uuid.uuid4())}
    raw = {**EXAMPLE, **copy.deepcopy(dict(body))}
    raw['metadata'] = {**meta, **(raw.get('metadata') or {})}
    return cast(bodies.RawBody, raw)


def _make_cause(
        handler: handlers.Handler,
        raw: bodies.RawBody,
        old: Mapping[str, Any] | None,
        reason: str | None,
        memo: Any,
        settings: configuration.OperatorSettings,
        given: Mapping[str, Any],
        patch: patches.Patch,
        given_children: previews.GivenChildren,
) -> causes.Cause:
    body = bodies.Body(raw)
    logger = loggers.ObjectLogger(body=body, settings=settings)
    if isinstance(handler, handlers.ActivityHandler):
        return causes.ActivityCause(
            logger=logger, memo=memo, indices={}, activity=handler.activity, settings=settings)
    group, _, version = raw['apiVersion'].rpartition('/')
    common: dict[str, Any] = {
        'logger': logger, 'memo': memo, 'indices': {}, 'body': body, 'patch': patch,
        'resource': previews.guess_resource(group, raw['kind'], version)}
    if isinstance(handler, handlers.WebhookHandler):
        before = None if old is None else complete(old)
        after: bodies.RawBody | None = raw
        admission = ADMISSION | {'operation': 'CREATE' if before is None else 'UPDATE'}
        admission |= {key: given[key] for key in [*admission, 'warnings'] if key in given}
        if admission['operation'] == 'DELETE':
            before, after = raw, None
        return causes.WebhookCause(
            **common, **admission, diff=diffs.diff(before, after),
            old=None if before is None else bodies.Body(before),
            new=None if after is None else bodies.Body(after))
    if not isinstance(handler, handlers.ChangingHandler):
        assert isinstance(handler, handlers.ResourceHandler)
        return explanations.make_cause(
            handler, raw, common, type=given.get('type'), owned=given_children)
    fields = [handler.field] if handler.field else []
    new = decisions.build_essence(body, settings=settings, extra_fields=fields)
    known = None if old is None else decisions.build_essence(
        bodies.Body(complete(old)), settings=settings, extra_fields=fields)
    default = handler.reason or (causes.Reason.CREATE if old is None else causes.Reason.UPDATE)
    detected = causes.Reason(reason) if reason in causes.HANDLED_REASONS else default
    return causes.ChangingCause(
        **common, reason=detected, initial=detected == causes.Reason.RESUME,
        diff=diffs.diff(known, new), old=known, new=new)
