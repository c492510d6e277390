"""
Checks of operators without running them: what they would watch, and what is wrong.
"""
import difflib
import enum
import inspect
import numbers
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.structs import references
from kopf._core.intents import callbacks, handlers, registries
from kopf._kits import decorators

DETAILS = ('operations', 'owns', 'subresource', 'field', 'value', 'old', 'new', 'labels',
           'annotations', 'when', 'prune', 'recreate', 'conditions', 'interval', 'idle', 'sharp',
           'initial_delay', 'errors', 'timeout', 'retries', 'backoff')
"""The filters and limits of handlers, in the order in which they are shown."""

DEFAULTS = (('owns', ()), ('prune', True), ('recreate', False), ('conditions', False))
"""The defaults of the options of handlers, which are not shown."""


PROTOCOLS: Mapping[type[handlers.Handler], Any] = {
    handlers.ActivityHandler: callbacks.ActivityFn,
    handlers.IndexingHandler: callbacks.IndexingFn,
    handlers.WatchingHandler: callbacks.WatchingFn,
    handlers.ChangingHandler: callbacks.ChangingFn,
    handlers.DaemonHandler: callbacks.DaemonFn,
    handlers.TimerHandler: callbacks.TimerFn,
    handlers.ReconcilingHandler: callbacks.ReconcilingFn,
    handlers.ExternalHandler: callbacks.ReconcilingFn,
    handlers.CallHandler: callbacks.ExternalFn,
    handlers.WebhookHandler: callbacks.WebhookFn,
}


def describe(registry: registries.OperatorRegistry) -> Iterator[str]:
    """Describe each handler and what it handles, in one line per handler."""
    for activity in registry._activities:
        yield _describe("The operator", activity.activity.value, activity)
    groups: dict[references.Selector | None, list[handlers.ResourceHandler]] = {}
    for handler in registry.iter_resource_handlers():
        groups.setdefault(handler.selector, []).append(handler)
    for selector, members in groups.items():
        for member in members:
            yield _describe(str(selector), decorators.name_decorator(member), member)
    for name, converter in registry._converters.items():
        yield f"{name}: conversions between {', '.join(sorted(converter.versions))}"


def find_faults(registry: registries.OperatorRegistry) -> Iterator[str]:
    """Describe the mistakes that can be found without a cluster, in one line per mistake."""
    known: dict[tuple[object, ...], handlers.ResourceHandler] = {}
    indices = {str(handler.id) for handler in registry._indexing}
    calls = [call for handler in registry.iter_resource_handlers()
             if isinstance(handler, handlers.ExternalHandler)
             for call in handler.declaration.calls.values()]
    for each in [*registry._activities, *registry.iter_resource_handlers(), *calls]:
        yield from _find_faults_of_args(each, indices)
        yield from _find_faults_of_numbers(each)
    yield from registry.find_missing_indices()
    yield from filter(None, [each.find_fault() for each in registry._converters.values()])
    yield from registry.find_wrong_reconcilers()
    declared = dict.fromkeys(each.declared for each in registry.iter_resource_handlers())
    faults = [each.find_fault() for each in declared if each is not None]
    yield from filter(None, dict.fromkeys(faults))  # versions of a kind have the same ones
    for handler in registry.iter_resource_handlers():
        key = handler.selector, decorators.name_decorator(handler), handler.id
        other = known.setdefault(key, handler)
        if other.fn is not handler.fn and not isinstance(handler, handlers.ReconcilingHandler):
            yield (f"{handler.selector}: two handlers have the id {handler.id!r}: {_locate(other)} "
                   f"and {_locate(handler)}. They would share their progress: rename one of the "
                   f"functions, or set id=...")
        yield from _find_faults_of_filters(handler)
        yield from _find_faults_of_status(handler)
        if handler.when is not None and callbacks.is_async(handler.when):
            yield (f"{handler.selector}: the filter when= of {handler.id!r} is async, so it always "
                   f"matches. Make it a synchronous function.")


def _find_faults_of_args(handler: handlers.Handler, indices: Collection[str]) -> Iterator[str]:
    """Find the parameters of the function that are never passed, so each call would fail."""
    known = [*_get_kwargs(handler), *indices]
    code = getattr(handler.fn, '__code__', None)
    params = inspect.signature(handler.fn, follow_wrapped=False).parameters if code else {}
    for name, param in params.items():
        if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD) or (
                param.default is not param.empty):
            continue
        if param.kind == param.POSITIONAL_ONLY:
            yield (f"{_place(handler)}: the argument {name!r} is positional-only, but handlers get "
                   f"only keyword arguments. Remove the slash from the parameters.")
        elif name == 'self':
            yield (f"{_place(handler)}: the function has the parameter 'self'. Decorate functions, "
                   f"not methods: there is no object to call a method of.")
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else (
                f"it is none of {', '.join(known)}.")
            yield (f"{_place(handler)}: handlers of this kind do not get an argument {name!r}, so "
                   f"each call fails; {hint}")
    if isinstance(handler, handlers.IndexingHandler) and handler.id in _get_kwargs(handler):
        yield (f"{_place(handler)}: the index hides the argument {handler.id!r} of all handlers. "
               f"Rename the function, or set id=...")


def _find_faults_of_numbers(handler: handlers.Handler) -> Iterator[str]:
    for name in (*handler.numeric, 'initial_delay'):
        value = getattr(handler, name, None)
        if name == 'retries' and value is not None and value < 1:
            yield (f"{_place(handler)}: retries={value!r} means that the handler is never called. "
                   f"It is the number of attempts: at least 1.")
        elif name != 'retries' and isinstance(value, numbers.Real) and value < 0:
            yield f"{_place(handler)}: {name}={value!r} is negative. It is a number of seconds."
    if isinstance(handler, handlers.TimerHandler) and (
            handler.interval is None and handler.idle is None):
        yield (f"{_place(handler)}: neither interval= nor idle= is set, so the timer is called "
               f"only once for each object. Add for example: interval=60")


def _find_faults_of_filters(handler: handlers.ResourceHandler) -> Iterator[str]:
    for what in ('labels', 'annotations'):
        for key, criterion in (getattr(handler, what) or {}).items():
            if not (isinstance(criterion, str | handlers.MetaFilterToken) or callable(criterion)):
                yield (f"{_place(handler)}: {what}={{{key!r}: {criterion!r}}} never matches: "
                       f"{what} are strings. For several values, use a function, for example: "
                       f"lambda value, **_: value in ['x', 'y']")
    if handler.field and not all(handler.field):
        yield (f"{_place(handler)}: the field {'.'.join(handler.field)!r} has an empty key, so it "
               f"never matches.")


def _find_faults_of_status(handler: handlers.ResourceHandler) -> Iterator[str]:
    """Find fields that Kopf writes into the status of a declared kind, but that its class lacks."""
    if handler.declared is None:
        return
    is_reporting = getattr(handler, 'conditions', False) or getattr(handler, 'protects', None)
    fields = {'conditions': 'kopf.Conditions = field(default_factory=list)'} if is_reporting else {}
    if isinstance(handler, handlers.ExternalHandler):
        fields[handler.id] = 'dict[str, Any] = field(default_factory=dict)'
    for name, code in fields.items():
        if handler.declared.lacks(f'.status.{name}'):
            yield (f"{_place(handler)}: the API does not store status.{name}, which Kopf writes. "
                   f"Add it to the class of the status, for example: {name}: {code}")


def _place(handler: handlers.Handler) -> str:
    """Name the handler, in the same way as in the descriptions."""
    if isinstance(handler, handlers.ActivityHandler):
        return f"{handler.activity.value} {handler.id!r}"
    assert isinstance(handler, handlers.ResourceHandler)
    return f"{handler.selector}: {decorators.name_decorator(handler)} {handler.id!r}"


def _get_kwargs(handler: handlers.Handler) -> list[str]:
    """Get the arguments that the handlers of this kind get, as their protocol declares them."""
    protocol = PROTOCOLS[type(handler)]
    return [name for name, param in inspect.signature(protocol.__call__).parameters.items()
            if param.kind == param.KEYWORD_ONLY]


def _describe(target: str, kind: str, handler: handlers.Handler) -> str:
    details = [f'{name}={_show(value)}' for name in DETAILS
               if (value := getattr(handler, name, None)) is not None
               and (name, value) not in DEFAULTS]
    return f"{target}: {kind} {handler.id} {' '.join(details)}".rstrip()


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
