"""
Handlers as units: one call of one handler, as the framework makes it, and what came of it.
"""
import asyncio
import concurrent.futures
import copy
import dataclasses
import datetime
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs, ids, memos, patches, references
from kopf._core.actions import decisions, execution, invocation, lifecycles, loggers, progression
from kopf._core.engines import posting
from kopf._core.intents import causes, errors, handlers, registries, stopping
from kopf._core.reactor import subhandling
from kopf._kits.testing import capturing, virtual

EXAMPLE = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample'}

ADMISSION: Mapping[str, Any] = {
    'operation': 'CREATE', 'subresource': None, 'dryrun': False, 'headers': {}, 'sslpeer': {},
    'userinfo': {'username': 'tester', 'uid': '', 'groups': []},
}
"""What admission handlers get if nothing else is told."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invocation:
    """What came of a call of a handler."""

    result: Any
    error: BaseException | None
    """With what it has failed, now or for good; `None` if it has succeeded."""
    delay: float | None
    """In how many seconds it is to be tried again; `None` if it is not."""
    patch: patches.Patch
    """What it wants to be changed in the object."""
    body: bodies.RawBody
    """What the object becomes: with the patch, and with the results in the status."""
    log: list[str]
    events: list[Any]
    """The Kubernetes events that it has asked to post: with a ``type``, ``reason``, ``message``."""
    memo: Any
    warnings: list[str]
    """Of an admission handler: what it has to tell to the one who makes the change."""

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def failed(self) -> bool:
        """Whether it has failed for good: it is not tried again."""
        return self.error is not None and self.delay is None

    @property
    def allowed(self) -> bool:
        """Whether an admission handler lets the change pass."""
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
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        **kwargs: Any,
) -> Invocation:
    """
    Call a handler once, sync or async, and return what came of it; errors do not get out of it.

    The function is called with all the kwargs that it gets in an operator, as it was declared in
    the registry (by default, in the default one): with its param, its field, its limits. If it was
    declared several times, the reason tells as what: ``create``, ``update``, ``delete``,
    ``resume``; ``event``, ``timer``, ``daemon``, ``index``; ``startup``, ``cleanup``, ``login``,
    ``probe``; ``validate``, ``mutate``. If not at all, it is a handler of changes.

    The body is that of the object, or a part of it: what an object must have is added. The old one
    makes the ``old``, ``new``, ``diff``. Retry is how many tries there were, and runtime is since
    when, in seconds. All other kwargs are passed to the function, instead of the framework's own of
    the same names: ``type`` for events, ``operation`` and ``userinfo`` for admission, indices, ...
    """
    settings = settings if settings is not None else configuration.OperatorSettings()
    registry = registry if registry is not None else registries.get_default_registry()
    handler = _find(fn, reason, registry)
    raw = _complete(body or {})
    memo = memo if memo is not None else memos.Memo()
    sink: list[Any] = []
    log: list[str] = []
    lifted: list[str] = kwargs.setdefault('warnings', []) if isinstance(
        handler, handlers.WebhookHandler) else []
    with capturing.capture(log), _Threads(settings) as executor:
        token = posting.event_queue_var.set(_Events(sink))
        try:
            call = _Call(settings, executor, kwargs)
            cause = _make_cause(handler, raw, old, reason, memo, settings, kwargs)
            outcome = await call.attempt(handler, cause, retry=retry, runtime=runtime)
        finally:
            posting.event_queue_var.reset(token)
    shown: Any = patches.Patch(call.patch).apply(raw)
    for handler_id, result in call.results.items():
        if result is not None and isinstance(handler, handlers.ChangingHandler):
            dicts.ensure(shown, ('status', handler_id), result)
    retried = outcome.delay if not outcome.final else None
    return Invocation(
        result=outcome.result, error=outcome.exception,
        delay=retried if outcome.final else retried or 0.0, patch=call.patch, body=shown,
        log=log, events=sink, memo=memo, warnings=lifted)


def invoke_sync(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Invocation:
    """Do as `invoke` does, in a test without a loop."""
    return asyncio.run(invoke(fn, *args, **kwargs))


class _Call:
    """A call of a handler, and of its sub-handlers in it."""

    def __init__(
            self,
            settings: configuration.OperatorSettings,
            executor: concurrent.futures.Executor,
            kwargs: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.patch = patches.Patch()
        self.results: dict[ids.HandlerId, Any] = {}
        self._settings = settings
        self._executor = executor
        self._kwargs = kwargs
        self._clock = clocks.Clock()

    async def attempt(
            self, handler: handlers.Handler, cause: causes.Cause, *, retry: int, runtime: float,
    ) -> progression.Outcome:
        now = self._clock.now()
        state = progression.HandlerState(
            started=now.wall - datetime.timedelta(seconds=runtime), began=now.mono - runtime,
            retries=retry)

        async def run_children(
                children: list[handlers.ChangingHandler],
                lifecycle: lifecycles.LifeCycleFn | None,
                other: causes.Cause | None,
        ) -> None:
            delays = []
            for child in children:
                outcome = await self.attempt(child, other or cause, retry=retry, runtime=runtime)
                delays += [] if outcome.final else [outcome.delay]
            if delays:
                raise errors.HandlerChildrenRetry(delay=min(delay or 0 for delay in delays))

        async def call() -> Any:
            family = subhandling.Family(handler, run_children)
            token = registries.parent_var.set(family)
            try:
                kwargs = self._get_kwargs(handler, cause, state)
                result = await invocation.invoke(handler, kwargs, self._executor)
                if family.declared and not family.executed:
                    await family.execute(family.declared)
                return result
            finally:
                registries.parent_var.reset(token)

        outcome = await execution.attempt(
            handler, call=call, state=state, settings=self._settings, clock=self._clock,
            logger=cause.logger, default_errors=_get_mode(handler),
            any_result=not isinstance(handler, handlers.ChangingHandler))
        self.results[handler.id] = outcome.result
        return outcome

    def _get_kwargs(
            self, handler: handlers.Handler, cause: causes.Cause, state: progression.HandlerState,
    ) -> dict[str, Any]:
        kwargs = {
            **cause.kwargs, 'param': handler.param, 'retry': state.retries,
            'started': state.started,
            'runtime': datetime.timedelta(seconds=state.age(self._clock.mono()))}
        if isinstance(cause, causes.ResourceCause):
            kwargs['patch'] = self.patch
        field = getattr(handler, 'field', None)
        if field and isinstance(cause, causes.ChangingCause):
            kwargs['old'] = dicts.resolve(cause.old, field, None)
            kwargs['new'] = dicts.resolve(cause.new, field, None)
            kwargs['diff'] = diffs.reduce(cause.diff, field)
        if isinstance(handler, handlers.SpawningHandler):
            stopper = stopping.DaemonStopper()
            kwargs['stopped'] = (
                stopper.async_waiter if handler.is_async else stopper.sync_waiter)
        if isinstance(handler, handlers.WebhookHandler):
            kwargs |= ADMISSION
            kwargs.pop('reason', None)
        return {**kwargs, **self._kwargs}


class _Threads:
    """The threads for sync handlers; none is left after the block."""

    def __init__(self, settings: configuration.OperatorSettings) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._executor = concurrent.futures.ThreadPoolExecutor(settings.execution.max_workers)
        if isinstance(loop, virtual.VirtualLoop):
            virtual.hold(loop, self._executor)

    def __enter__(self) -> concurrent.futures.Executor:
        return self._executor

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False)


class _Events:
    """Where the events go instead of the API."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__()
        self._events = events

    def put_nowait(self, event: Any, /) -> None:
        self._events.append(event)


def _find(
        fn: Callable[..., Any], reason: str | None, registry: registries.OperatorRegistry,
) -> handlers.Handler:
    for handler in _iter_declared(registry):
        if handler.fn is fn and (reason is None or _can_be(handler, reason)):
            return handler
    return handlers.ChangingHandler(fn=fn, id=handlers.generate_id(fn))


def _iter_declared(registry: registries.OperatorRegistry) -> Iterator[handlers.Handler]:
    yield from registry._changing
    yield from registry._activities
    yield from (handler for handler in registry.iter_resource_handlers()
                if not isinstance(handler, handlers.ChangingHandler))


def _can_be(handler: handlers.Handler, reason: str) -> bool:
    match handler:
        case handlers.ChangingHandler():
            return handler.reason is None or handler.reason == reason
        case handlers.ActivityHandler():
            return handler.activity == {'login': 'authentication'}.get(reason, reason)
        case handlers.WebhookHandler():
            return handler.reason == reason
        case handlers.WatchingHandler():
            return reason == 'event'
        case handlers.TimerHandler():
            return reason == 'timer'
        case handlers.DaemonHandler():
            return reason == 'daemon'
    return reason == 'index'


def _get_mode(handler: handlers.Handler) -> errors.ErrorsMode:
    match handler:
        case handlers.WatchingHandler() | handlers.IndexingHandler():
            return errors.ErrorsMode.IGNORED
        case handlers.WebhookHandler():
            return errors.ErrorsMode.PERMANENT
    return errors.ErrorsMode.TEMPORARY


def _complete(body: Mapping[str, Any]) -> bodies.RawBody:
    """The body with what every object has."""
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
) -> causes.Cause:
    body = bodies.Body(raw)
    logger = loggers.ObjectLogger(body=body, settings=settings)
    if isinstance(handler, handlers.ActivityHandler):
        return causes.ActivityCause(
            logger=logger, memo=memo, indices={}, activity=handler.activity, settings=settings)
    group, _, version = raw['apiVersion'].rpartition('/')
    plural = f"{raw['kind'].lower()}s"
    common: dict[str, Any] = {
        'logger': logger, 'memo': memo, 'indices': {}, 'body': body, 'patch': patches.Patch(),
        'resource': references.Resource(group, version, plural, kind=raw['kind'])}
    if isinstance(handler, handlers.WatchingHandler):
        type_ = given.get('type')
        return causes.WatchingCause(**common, type=type_, event={'type': type_, 'object': raw})
    if not isinstance(handler, (handlers.ChangingHandler, handlers.WebhookHandler)):
        return causes.ResourceCause(**common)
    fields = [handler.field] if handler.field else []
    new = decisions.build_essence(body, settings=settings, extra_fields=fields)
    known = None if old is None else decisions.build_essence(
        bodies.Body(_complete(old)), settings=settings, extra_fields=fields)
    declared = handler.reason if isinstance(handler, handlers.ChangingHandler) else None
    default = declared or (causes.Reason.CREATE if old is None else causes.Reason.UPDATE)
    detected = causes.Reason(reason) if reason in set(causes.Reason) else default
    return causes.ChangingCause(
        **common, reason=detected, initial=detected == causes.Reason.RESUME,
        diff=diffs.diff(known, new), old=known, new=new)
