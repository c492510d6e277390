"""
Handlers: the author's functions with the options of their decorators.

Handlers are compared by identity: two equal declarations are two handlers.
"""
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from kopf._cogs.structs import dicts, ids, references, reviews
from kopf._core.intents import callbacks, causes
from kopf._core.intents.handlererrors import ErrorsMode


class MetaFilterToken(enum.Enum):
    """Filters by the presence of a value."""
    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT: Final = MetaFilterToken.PRESENT
"""In filters: any value is present, also an empty one."""

ABSENT: Final = MetaFilterToken.ABSENT
"""In filters: there is no value."""

MetaFilter = Mapping[str, str | MetaFilterToken | callbacks.MetaFilterFn]
ValueFilter = Any | MetaFilterToken | callbacks.MetaFilterFn | None


def get_callable_id(fn: Callable[..., Any]) -> str:
    """
    Get an id of a function that stays the same after a restart: the progress is kept by handler
    ids.

    :raises ValueError: if it is not a function, e.g. a class or a callable object.
    """
    match fn:
        case functools.partial():
            return get_callable_id(fn.func)
        case types.FunctionType(__name__='<lambda>', __code__=code):
            return f'lambda:{code.co_filename}:{code.co_firstlineno}'
        case types.FunctionType() | types.MethodType():
            return fn.__qualname__
    if hasattr(fn, '__wrapped__'):
        return get_callable_id(fn.__wrapped__)
    raise ValueError(f"Cannot get id of {fn!r}; only functions have names, so set id= explicitly.")


def generate_id(
        fn: Callable[..., Any],
        id: str | None = None,
        *,
        field: dicts.FieldPath | None = None,
        parent: ids.HandlerId | None = None,
) -> ids.HandlerId:
    """Make a handler id: ``parent/fn/spec.field``, without the absent parts."""
    parts = [parent, get_callable_id(fn) if id is None else id, '.'.join(field or ())]
    return ids.HandlerId('/'.join(part for part in parts if part))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Handler:
    """
    A function, and how it is called and retried. All times are in seconds.

    In the log, it is ``Handler 'id'``, or e.g. ``Daemon 'id'`` in subclasses.
    """
    id: ids.HandlerId
    fn: Callable[..., Any]
    param: Any = None
    errors: ErrorsMode | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff: float | None = None

    def __post_init__(self) -> None:
        callbacks.verify_kwargs(self.fn)

    def __repr__(self) -> str:
        return f'Handler {self.id!r}'

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; otherwise, it needs a thread."""
        return callbacks.is_async(self.fn)

    @property
    def key(self) -> tuple[Callable[..., Any], ids.HandlerId]:
        """
        Of several handlers with the same key that match a cause, only the first one is called.
        """
        return self.fn, self.id


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ActivityHandler(Handler):
    activity: causes.Activity

    def __repr__(self) -> str:
        return f'Activity {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ResourceHandler(Handler):
    """
    A handler of objects.

    ``selector`` is None for sub-handlers: they are called for the objects of their parent handler.
    ``field`` is None for handlers of the whole object. If ``value`` is None, the field must be
    present, with any value; except for handlers of a field's changes (`kopf.on.field`,
    `kopf.on.update`), where the field can also be absent.
    """
    selector: references.Selector | None = None
    labels: MetaFilter | None = None
    annotations: MetaFilter | None = None
    when: callbacks.WhenFilterFn | None = None
    field: dicts.FieldPath | None = None
    value: ValueFilter = None

    @functools.cached_property
    def unfiltered(self) -> bool:
        """Whether all objects match, so that the filters need not be checked."""
        return not (self.labels or self.annotations or self.when is not None or self.field)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IndexingHandler(ResourceHandler):

    def __repr__(self) -> str:
        return f'Indexer {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WatchingHandler(ResourceHandler):
    pass


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ChangingHandler(ResourceHandler):
    """
    A handler of changes. Options that are None are not checked.

    ``reason`` is None for handlers that are not bound to one reason: handlers of resuming have
    ``initial``, and are called for objects that are being deleted only with ``deleted``; handlers
    of fields have ``field_needs_change``; sub-handlers are called for any reason.
    """
    reason: causes.Reason | None = None
    initial: bool | None = None
    deleted: bool | None = None
    requires_finalizer: bool | None = None
    field_needs_change: bool | None = None
    old: ValueFilter = None
    new: ValueFilter = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SpawningHandler(ResourceHandler):
    requires_finalizer: bool | None = None
    initial_delay: float | callbacks.DelayFn | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DaemonHandler(SpawningHandler):
    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None

    def __repr__(self) -> str:
        return f'Daemon {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TimerHandler(SpawningHandler):
    interval: float | None = None
    sharp: bool | None = None
    idle: float | None = None

    def __repr__(self) -> str:
        return f'Timer {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ReconcilingHandler(ResourceHandler):
    """
    A handler that returns which owned resources there should be: any iterable of manifests.

    ``owns`` are their kinds. ``watches`` are other kinds, each with a function that returns the
    names of the objects to reconcile. ``interval`` is in seconds; None if only changes matter.
    """
    owns: tuple[references.Selector, ...] = ()
    watches: tuple[tuple[references.Selector, Callable[..., Any]], ...] = ()
    interval: float | None = None
    prune: bool = True
    recreate: bool = False
    conditions: bool = False

    def __repr__(self) -> str:
        return f'Reconciler {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WebhookHandler(ResourceHandler):
    reason: Literal['validate', 'mutate']
    operations: frozenset[reviews.Operation] | None = None
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool | None = None
    ignore_failures: bool | None = None

    def __repr__(self) -> str:
        return f'Webhook {self.id!r}'
