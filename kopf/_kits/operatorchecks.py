"""
Checks of operators without running them: what they would watch, and what is wrong.
"""
import enum
import inspect
from collections.abc import Iterator
from typing import Any

from kopf._cogs.structs import references
from kopf._core.intents import callbacks, handlers, registries

DETAILS = ('operations', 'owns', 'subresource', 'field', 'value', 'old', 'new', 'labels',
           'annotations', 'when', 'prune', 'recreate', 'conditions', 'interval', 'idle', 'sharp',
           'initial_delay', 'errors', 'timeout', 'retries', 'backoff')
"""The filters and limits of handlers, in the order in which they are shown."""

DEFAULTS = (('owns', ()), ('prune', True), ('recreate', False), ('conditions', False))
"""What is not shown, as handlers have it if nothing else is said."""


def describe(registry: registries.OperatorRegistry) -> Iterator[str]:
    """Describe each handler and what it handles, in one line per handler."""
    for activity in registry._activities:
        yield _describe("The operator", activity.activity.value, activity)
    groups: dict[references.Selector | None, list[handlers.ResourceHandler]] = {}
    for handler in registry.iter_resource_handlers():
        groups.setdefault(handler.selector, []).append(handler)
    for selector, members in groups.items():
        for member in members:
            yield _describe(str(selector), _name_kind(member), member)


def find_faults(registry: registries.OperatorRegistry) -> Iterator[str]:
    """Describe the mistakes that can be found without a cluster, in one line per mistake."""
    known: dict[tuple[object, ...], handlers.ResourceHandler] = {}
    for handler in registry.iter_resource_handlers():
        other = known.setdefault((handler.selector, _name_kind(handler), handler.id), handler)
        if other.fn is not handler.fn:
            yield (f"{handler.selector}: two handlers have the id {handler.id!r}: {_locate(other)} "
                   f"and {_locate(handler)}. They would share their progress: rename one of the "
                   f"functions, or set id=...")
        if handler.when is not None and callbacks.is_async(handler.when):
            yield (f"{handler.selector}: the filter when= of {handler.id!r} is async, so it always "
                   f"matches. Make it a synchronous function.")


def _describe(target: str, kind: str, handler: handlers.Handler) -> str:
    details = [f'{name}={_show(value)}' for name in DETAILS
               if (value := getattr(handler, name, None)) is not None
               and (name, value) not in DEFAULTS]
    return f"{target}: {kind} {handler.id} {' '.join(details)}".rstrip()


def _name_kind(handler: handlers.ResourceHandler) -> str:
    """Get the name of the decorator."""
    match handler:
        case handlers.WebhookHandler():
            return handler.reason
        case handlers.IndexingHandler():
            return 'index'
        case handlers.WatchingHandler():
            return 'event'
        case handlers.DaemonHandler():
            return 'daemon'
        case handlers.TimerHandler():
            return 'timer'
        case handlers.ReconcilingHandler():
            return 'reconcile'
        case handlers.ChangingHandler(reason=None, initial=True):
            return 'resume'
        case handlers.ChangingHandler(reason=None):
            return 'field'
        case handlers.ChangingHandler():
            return str(handler.reason)
    return 'handler'


def _show(value: Any) -> str:
    match value:
        case (references.Selector(), *_):
            return ','.join(map(str, value))
        case tuple():
            return '.'.join(map(str, value))
        case frozenset():
            return ','.join(sorted(map(str, value)))
        case enum.Enum():
            return value.name
        case dict():
            return '{' + ', '.join(f'{key}: {_show(val)}' for key, val in value.items()) + '}'
    if callable(value):
        return str(getattr(value, '__qualname__', repr(value)))
    return repr(value)


def _locate(handler: handlers.Handler) -> str:
    fn = inspect.unwrap(handler.fn)
    code = getattr(fn, '__code__', None)
    return f'{code.co_filename}:{code.co_firstlineno}' if code is not None else repr(fn)
