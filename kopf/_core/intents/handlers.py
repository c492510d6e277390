"""
Handlers: the authors' functions with everything that was declared about them.

They are compared by identity: the same declaration made twice is two handlers.
"""
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from kopf._cogs.structs import dicts, ids, references, reviews
from kopf._core.intents import callbacks, causes
from kopf._core.intents.errors import ErrorsMode


class MetaFilterToken(enum.Enum):
    """Filters by the mere presence of a value."""
    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT: Final = MetaFilterToken.PRESENT
"""In filters: any value, an empty one too."""

ABSENT: Final = MetaFilterToken.ABSENT
"""In filters: no value."""

MetaFilter = Mapping[str, str | MetaFilterToken | callbacks.MetaFilterFn]
ValueFilter = Any | MetaFilterToken | callbacks.MetaFilterFn | None


def get_callable_id(fn: Callable[..., Any]) -> str:
    """
    Name a function in a way that is the same after a restart.

    :raises ValueError: for what is not made of a function (e.g. classes or callable objects).
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
    """Make an id of a handler: ``parent/fn/spec.field``, without the parts that are not there."""
    parts = [parent, get_callable_id(fn) if id is None else id, '.'.join(field or ())]
    return ids.HandlerId('/'.join(part for part in parts if part))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Handler:
    """
    A function, and how it is called & retried; the times are in seconds.

    It is shown in logs as ``Handler 'id'``, or by what it is instead of "Handler".
    """
    id: ids.HandlerId
    fn: Callable[..., Any]
    param: Any = None
    errors: ErrorsMode | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff: float | None = None

    def __repr__(self) -> str:
        return f'Handler {self.id!r}'

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; otherwise, it needs a thread."""
        return callbacks.is_async(self.fn)

    @property
    def key(self) -> tuple[Callable[..., Any], ids.HandlerId]:
        """By what the handlers of one occasion are deduplicated."""
        return self.fn, self.id


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ActivityHandler(Handler):
    activity: causes.Activity

    def __repr__(self) -> str:
        return f'Activity {self.id!r}'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ResourceHandler(Handler):
    """
    A handler for objects. Without a selector, its parent has chosen the object (sub-handlers).

    The field is None for objects as a whole. A value of None is no filter but the presence.
    """
    selector: references.Selector | None = None
    labels: MetaFilter | None = None
    annotations: MetaFilter | None = None
    when: callbacks.WhenFilterFn | None = None
    field: dicts.FieldPath | None = None
    value: ValueFilter = None

    @functools.cached_property
    def unfiltered(self) -> bool:
        """Whether all the objects match it, so that there is nothing to check."""
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
    A handler of changes; what is None is not checked.

    Without a reason, it is called for any: for resuming if ``initial``, then for deletions only if
    ``deleted``; for changes of its field if ``field_needs_change``; or always (sub-handlers).
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
class WebhookHandler(ResourceHandler):
    reason: Literal['validate', 'mutate']
    operations: frozenset[reviews.Operation] | None = None
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool | None = None
    ignore_failures: bool | None = None

    def __repr__(self) -> str:
        return f'Webhook {self.id!r}'
