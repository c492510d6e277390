"""
The authors' functions as the framework calls them: handlers, filters, and combinations of filters.

Everything is passed by names, so that functions take what they need and leave the rest
to ``**_``. Sync and async functions are equally good for handlers, but filters are always sync.

For type checkers, the parameters of the protocols have the narrowest types that make sense, so
that handlers can be annotated with these or with any wider ones: a ``namespace: str`` is right for
those who know that their objects have one, and so is a ``namespace: str | None``. Filters and the
like are mostly lambdas, whose types are not inferred from protocols: nothing is said of these.
"""
import datetime
import functools
import inspect
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, patches, references, reviews

if TYPE_CHECKING:
    from kopf._core.intents import causes

Logger = logging.Logger | logging.LoggerAdapter[Any]
"""What handlers get as their ``logger``."""


class ActivityFn(Protocol):
    """A handler of what happens to the operator itself."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            activity: 'causes.Activity', settings: configuration.OperatorSettings,
            **kwargs: Any,
    ) -> object: ...


class IndexingFn(Protocol):
    """An indexing function: its result is what is indexed."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            **kwargs: Any,
    ) -> object: ...


class WatchingFn(Protocol):
    """A handler of raw events."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            event: bodies.RawEvent, type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            **kwargs: Any,
    ) -> object: ...


class ChangingFn(Protocol):
    """A handler of changes; also a sub-handler."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            diff: diffs.Diff, old: Any, new: Any, reason: 'causes.Reason',
            **kwargs: Any,
    ) -> object: ...


class WebhookFn(Protocol):
    """A handler of admission reviews."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            diff: diffs.Diff, old: Any, new: Any,
            operation: reviews.Operation, subresource: str, dryrun: bool, warnings: list[str],
            headers: reviews.Headers, sslpeer: reviews.SSLPeer, userinfo: reviews.UserInfo,
            **kwargs: Any,
    ) -> object: ...


class DaemonFn(Protocol):
    """A daemon: it runs until its ``stopped`` is set."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            stopped: Any,
            **kwargs: Any,
    ) -> object: ...


class TimerFn(Protocol):
    """A function that is called again and again."""
    def __call__(
            self, *,
            retry: int, started: datetime.datetime, runtime: datetime.timedelta,
            param: Any, logger: Any, memo: Any,
            body: bodies.Body, spec: bodies.Spec, meta: bodies.Meta, status: bodies.Status,
            uid: str, name: str, namespace: str, resource: references.Resource,
            labels: bodies.Labels, annotations: bodies.Annotations, patch: patches.Patch,
            stopped: Any,
            **kwargs: Any,
    ) -> object: ...


WhenFilterFn = Callable[..., object]
"""Whether a handler is to be called; the kwargs are those of the handler."""

MetaFilterFn = Callable[..., object]
"""Whether it is the right value; the value goes first, None if it is absent, then the kwargs."""

DelayFn = Callable[..., float]
"""For how many seconds a daemon or a timer is to wait before its start."""

_FnT = TypeVar('_FnT', bound=Callable[..., object])


def not_(fn: _FnT) -> _FnT:
    """Make a filter that is true when the function is false."""
    def negated(*args: Any, **kwargs: Any) -> bool:
        return not fn(*args, **kwargs)
    return cast(_FnT, negated)


def all_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """Make a filter that is true when all the functions are true, or if there are none."""
    def combined(*args: Any, **kwargs: Any) -> bool:
        return all(fn(*args, **kwargs) for fn in fns)
    return combined


def any_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """Make a filter that is true when at least one of the functions is true."""
    def combined(*args: Any, **kwargs: Any) -> bool:
        return any(fn(*args, **kwargs) for fn in fns)
    return combined


def none_(fns: Collection[Callable[..., object]]) -> Callable[..., bool]:
    """Make a filter that is true when all the functions are false, or if there are none."""
    return not_(any_(fns))


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
