"""
The authors' functions as the framework calls them: handlers, filters, and combinations of filters.

Everything is passed by names, so that functions take what they need and leave the rest
to ``**_``. They can also have parameters that only their author knows of (indices, those
bound by partials, those with defaults), so the types here say nothing of the parameters.
Sync and async functions are equally good for handlers, but filters are always sync.
"""
import functools
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Logger = logging.Logger | logging.LoggerAdapter[Any]
"""What handlers get as their ``logger``."""

ActivityFn = Callable[..., object]
"""A handler of what happens to the operator itself."""

IndexingFn = Callable[..., object]
"""An indexing function: its result is what is indexed."""

WatchingFn = Callable[..., object]
"""A handler of raw events."""

ChangingFn = Callable[..., object]
"""A handler of changes; also a sub-handler."""

WebhookFn = Callable[..., object]
"""A handler of admission reviews."""

DaemonFn = Callable[..., object]
"""A daemon: it runs until its ``stopped`` is set."""

TimerFn = Callable[..., object]
"""A function that is called again and again."""

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


def all_(fns: Collection[_FnT]) -> _FnT:
    """Make a filter that is true when all the functions are true, or if there are none."""
    def combined(*args: Any, **kwargs: Any) -> bool:
        return all(fn(*args, **kwargs) for fn in fns)
    return cast(_FnT, combined)


def any_(fns: Collection[_FnT]) -> _FnT:
    """Make a filter that is true when at least one of the functions is true."""
    def combined(*args: Any, **kwargs: Any) -> bool:
        return any(fn(*args, **kwargs) for fn in fns)
    return cast(_FnT, combined)


def none_(fns: Collection[_FnT]) -> _FnT:
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
