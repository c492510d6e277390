"""
The signatures of the author's functions: handlers, filters, and combinations of filters.

All arguments are keyword arguments. Functions declare those that they need, and ignore the rest
with ``**_``. Handlers can be synchronous or asynchronous; filters must be synchronous.

The parameters of the protocols have the narrowest sensible types, for type checkers. So, a handler
can use the same types or wider ones: e.g. ``namespace: str`` if its objects are namespaced, and
``namespace: str | None`` otherwise. Filters are usually lambdas; type checkers do not infer the
types of lambdas' arguments from protocols, so filters have no protocols.

The types of ``body``, ``spec``, and ``status`` are those of Kopf. In handlers of typed kinds, they
can be classes of the author; Kopf checks these classes when the handler is declared.
"""
import datetime
import functools
import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, offspring, patches, references, reviews

if TYPE_CHECKING:
    from kopf._core.intents import causes

BodyT = TypeVar('BodyT', contravariant=True)
SpecT = TypeVar('SpecT', contravariant=True)
StatusT = TypeVar('StatusT', contravariant=True)


class ActivityFn(Protocol):
    """A handler of an activity of the operator: startup, cleanup, authentication, probing."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            activity: 'causes.Activity', settings: configuration.OperatorSettings,
            **kwargs: Any,
    ) -> object: ...


class IndexingFn(Protocol[BodyT, SpecT, StatusT]):
    """An indexing handler: its result is put into the index."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            **kwargs: Any,
    ) -> object: ...


class WatchingFn(Protocol[BodyT, SpecT, StatusT]):
    """A handler of raw events."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            event: bodies.RawEvent, type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            **kwargs: Any,
    ) -> object: ...


class ChangingFn(Protocol[BodyT, SpecT, StatusT]):
    """A handler of changes, or a sub-handler."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            diff: diffs.Diff, old: Any, new: Any, reason: 'causes.Reason',
            **kwargs: Any,
    ) -> object: ...


SubFn = ChangingFn[Any, Any, Any]
"""A sub-handler."""


class WebhookFn(Protocol[BodyT, SpecT, StatusT]):
    """A handler of admission reviews."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            diff: diffs.Diff, old: Any, new: Any,
            operation: reviews.Operation, subresource: str, dryrun: bool, warnings: list[str],
            headers: reviews.Headers, sslpeer: reviews.SSLPeer, userinfo: reviews.UserInfo,
            **kwargs: Any,
    ) -> object: ...


class DaemonFn(Protocol[BodyT, SpecT, StatusT]):
    """A daemon: it should exit when ``stopped`` is set."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            stopped: Any,
            **kwargs: Any,
    ) -> object: ...


TimerFn = DaemonFn
"""A timer: it is called periodically, with the same arguments as a daemon."""


class ReconcilingFn(Protocol[BodyT, SpecT, StatusT]):
    """A function that returns the desired owned resources. ``children`` are the existing ones."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            reason: 'causes.Reason', children: offspring.Children,
            **kwargs: Any,
    ) -> object: ...


class ExternalFn(Protocol[BodyT, SpecT, StatusT]):
    """A function of an external. Arguments whose values are not known yet are None."""
    def __call__(
            self, *,
            key: Any, token: str | None, observed: Any, desired: Any, diff: diffs.Diff,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: BodyT, spec: SpecT, meta: bodies.Meta, status: StatusT,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            reason: 'causes.Reason', children: offspring.Children,
            **kwargs: Any,
    ) -> object: ...


def collect(fn: Callable[..., Any]) -> Callable[..., Any]:
    """
    Make generators ordinary functions, which return the list of what was yielded.

    So, the code of a generator runs where an ordinary function runs: a sync one in its thread.
    """
    if inspect.isasyncgenfunction(fn):
        @functools.wraps(fn)
        async def collect_async(**kwargs: Any) -> Any:
            return [item async for item in fn(**kwargs)]
        return collect_async
    if inspect.isgeneratorfunction(fn):
        return functools.wraps(fn)(lambda **kwargs: list(fn(**kwargs)))
    return fn


WhenFilterFn = Callable[..., object]
"""A filter of objects: gets the kwargs of the handler, and returns whether to call the handler."""

MetaFilterFn = Callable[..., object]
"""
A filter of a value: of a label, an annotation, or a field.

It gets the value as the first argument (None if it is absent), and the kwargs of the handler.
"""

DelayFn = Callable[..., float]
"""Gets the kwargs of a daemon or timer, and returns its initial delay in seconds."""

_FnT = TypeVar('_FnT', bound=Callable[..., object])


def not_(fn: _FnT) -> _FnT:
    """
    Make a filter that is true when the function is false.

    ::

        @kopf.on.create('websites', labels={'tier': kopf.not_(is_internal)})
        def publish(**_): ...

    See "Filter objects and changes" in the documentation.

    :param fn: a function for filters: of values or of whole objects.
    :returns: a function for filters of the same sort. See "Filter objects and changes" in the
        documentation.
    :raises TypeError: if it is not a function.
    """
    _verify_all([fn])

    def negated(*args: Any, **kwargs: Any) -> bool:
        return not fn(*args, **kwargs)
    return cast(_FnT, negated)


def all_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """
    Make a filter that is true when all functions are true, or when there are none.

    ::

        @kopf.on.create('websites', when=kopf.all_([is_public, is_paid]))
        def publish(**_): ...

    See "Filter objects and changes" in the documentation.

    :param fns: functions for filters, all of the same sort.
    :returns: a function for filters of the same sort.
    :raises TypeError: if any of them is not a function.
    """
    _verify_all(fns)

    def combined(*args: Any, **kwargs: Any) -> bool:
        return all(fn(*args, **kwargs) for fn in fns)
    return combined


def any_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """
    Make a filter that is true when at least one of the functions is true.

    ::

        @kopf.on.create('websites', when=kopf.any_([is_public, is_paid]))
        def publish(**_): ...

    See "Filter objects and changes" in the documentation.

    :param fns: functions for filters, all of the same sort.
    :returns: a function for filters of the same sort.
    :raises TypeError: if any of them is not a function.
    """
    _verify_all(fns)

    def combined(*args: Any, **kwargs: Any) -> bool:
        return any(fn(*args, **kwargs) for fn in fns)
    return combined


def none_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """
    Make a filter that is true when all functions are false, or when there are none.

    ::

        @kopf.on.create('websites', when=kopf.none_([is_draft, is_old]))
        def publish(**_): ...

    See "Filter objects and changes" in the documentation.

    :param fns: functions for filters, all of the same sort.
    :returns: a function for filters of the same sort.
    :raises TypeError: if any of them is not a function.
    """
    return not_(any_(fns))


def _verify_all(fns: object) -> None:
    """Also refuse iterators: they would be empty in the second call."""
    if not isinstance(fns, Collection) or not all(map(callable, fns)):
        raise TypeError(f"Filters are made of a collection of functions, not of {fns!r}.")


ALWAYS_PASSED = ('logger', 'memo', 'param', 'retry', 'runtime', 'started')
"""The kwargs that are passed to all handlers."""


PASSED_TO_FILTERS = ('logger', 'memo')
"""The kwargs that are passed to all filters."""

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def verify_handler(fn: Callable[..., Any]) -> None:
    """
    Refuse functions that cannot work as handlers: each call would fail, or do nothing.

    :raises TypeError: with a message that says what is wrong, and what to write.
    """
    # Sub-handlers are made in every call of their parents, so the usual case must cost nothing.
    code = getattr(fn, '__code__', None)
    if code is None:
        if not callable(fn):
            raise TypeError(f"A handler must be a function, but it is {fn!r}.")
        return
    if code.co_flags & _GENERATORS:
        raise TypeError(
            f"{fn.__name__}() contains `yield`, so a call would execute nothing of it. Return the "
            f"result, or move the generator into another function.")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return
    if missing := _find_missing(fn, ALWAYS_PASSED):
        raise TypeError(
            f"{fn.__name__}() does not accept all the keyword arguments that handlers get "
            f"({', '.join(missing)}, and others). Add **_: {_show_open(fn)}")


def verify_filter(name: str, fn: object, *, gets_value: bool = False) -> None:
    """
    Refuse functions that would fail whenever they are called as filters.

    ``name`` is the parameter of the decorator. With ``gets_value``, the function is a criterion for
    a value: anything but a function is accepted.

    :raises TypeError: and says what is wrong, and what to write.
    """
    if not callable(fn):
        if gets_value:
            return
        raise TypeError(f"{name} must be a function, for example: "
                        f"lambda spec, **_: spec.get('enabled'), but it is {fn!r}.")
    code = getattr(fn, '__code__', None)
    if code is None:  # a builtin, a partial, an object: their signatures are not always known
        return
    if not code.co_flags & inspect.CO_VARKEYWORDS and (
            missing := _find_missing(fn, PASSED_TO_FILTERS)):
        raise TypeError(
            f"The function in {name} does not accept all the keyword arguments that filters get "
            f"({', '.join(missing)}, and others). Add **_: {_show_open(fn)}")
    params = inspect.signature(fn, follow_wrapped=False).parameters.values()
    if gets_value and not any(param.kind in _POSITIONAL for param in params):
        raise TypeError(
            f"The function in {name} gets the value as its first, positional argument. Add it, for "
            f"example: lambda value, **_: value == 'x'")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
               inspect.Parameter.VAR_POSITIONAL)


def _find_missing(fn: Callable[..., Any], passed: Collection[str]) -> list[str]:
    params = inspect.signature(fn, follow_wrapped=False).parameters.values()
    names = {param.name for param in params if param.kind != inspect.Parameter.POSITIONAL_ONLY}
    return [name for name in passed if name not in names]


def _show_open(fn: Callable[..., Any]) -> str:
    """Show the signature as it should be."""
    params = inspect.signature(fn, follow_wrapped=False).parameters.values()
    shown = ', '.join([*(str(param) for param in params), '**_'])
    return f'lambda {shown}: ...' if fn.__name__ == '<lambda>' else f'def {fn.__name__}({shown})'


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether the function is a coroutine function, also a partial, wrapped, or callable one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(fn):
        return True
    if inspect.isroutine(fn):
        wrapped = getattr(fn, '__wrapped__', None)
        return wrapped is not None and is_async(wrapped)
    return inspect.iscoroutinefunction(getattr(fn, '__call__', None))  # noqa: B004
