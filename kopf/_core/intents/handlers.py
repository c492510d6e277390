"""
Handlers: the author's functions with the options of their decorators.

Handlers are compared by identity: two equal declarations are two handlers.
"""
import dataclasses
import enum
import functools
import inspect
import logging
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol

from kopf._cogs.configs import sections
from kopf._cogs.structs import dicts, ids, references, reviews
from kopf._core.intents import callbacks, causes, typedargs
from kopf._core.intents.handlererrors import ErrorsMode


class MetaFilterToken(enum.Enum):
    """Filters by the presence of a value."""
    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT: Final = MetaFilterToken.PRESENT
"""In filters: any value is present, also an empty one."""

ABSENT: Final = MetaFilterToken.ABSENT
"""In filters: there is no value."""

COPIED = ('diff', 'event', 'new', 'old')
"""
The kwargs with plain dicts that Kopf needs unchanged later: e.g. ``new`` becomes the last-handled
state. Bodies are not among them: they protect their contents themselves.
"""

Mapper = Callable[..., Any] | str
"""
How the names of the reconciled objects are found for a watched object: by a function, or by the
index with this id.
"""

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
        case _ if hasattr(fn, '__wrapped__'):  # by `functools.wraps`, also of a partial
            return get_callable_id(fn.__wrapped__)
        case types.FunctionType(__name__='<lambda>', __code__=code):
            return f'lambda:{code.co_filename}:{code.co_firstlineno}'
        case types.FunctionType() | types.MethodType():
            return fn.__qualname__
    if isinstance(fn, type):
        raise ValueError(f"Cannot get id of {fn!r}; it is a class. Decorate a function instead.")
    if not callable(fn):
        raise ValueError(f"Cannot get id of {fn!r}; it is not a function.")
    raise ValueError(f"Cannot get id of {fn!r}; only functions have names, so set id= explicitly.")


def generate_id(
        fn: Callable[..., Any],
        id: str | None = None,
        *,
        field: dicts.FieldPath | None = None,
        parent: ids.HandlerId | None = None,
) -> ids.HandlerId:
    """
    Make a handler id: ``parent/fn/spec.field``, without the absent parts.

    :raises TypeError: if ``id`` is not a string.
    :raises ValueError: if there is no ``id``, and the function has no name.
    """
    if id is not None and not isinstance(id, str):
        raise TypeError(f"id= must be a string, not {id!r}.")
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
    success_level: int = logging.INFO
    """The level at which the log says that the handler has succeeded."""
    failure_level: int = logging.ERROR
    """The level at which the log says that the handler has failed."""

    title: ClassVar[str] = 'Handler'
    """What it is called in the log."""

    numeric: ClassVar[tuple[str, ...]] = ('timeout', 'retries', 'backoff')
    """The options that must be numbers: all in seconds, except for ``retries``."""

    def __post_init__(self) -> None:
        callbacks.verify_handler(self.fn)
        for name in self.numeric:
            value = getattr(self, name)
            if value is not None and not sections.is_number(value):
                unit = 'attempts' if name == 'retries' else 'seconds'
                raise TypeError(f"{name}= must be a number of {unit}, not {value!r}.")
        if self.errors is not None and not isinstance(self.errors, ErrorsMode):
            raise TypeError(f"errors= must be one of kopf.ErrorsMode, for example "
                            f"kopf.ErrorsMode.PERMANENT, not {self.errors!r}.")

    def __repr__(self) -> str:
        return f'{self.title} {self.id!r}'

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; otherwise, it needs a thread."""
        return callbacks.is_async(self.fn)

    @functools.cached_property
    def key(self) -> tuple[Hashable, ids.HandlerId]:
        """
        The function and the id. If several handlers with the same key match a cause, only the first
        one is called.
        """
        # The function can be an object that is called, e.g. of a dataclass.
        return self.fn if isinstance(self.fn, Hashable) else id(self.fn), self.id


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ActivityHandler(Handler):
    activity: causes.Activity

    title = 'Activity'


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
    arguments: Mapping[str, typedargs.Argument] | None = None
    """The arguments that are given as values of the author's classes; None for most handlers."""
    declared: references.Declaration | None = None
    """The declared kind whose class selects the resource."""

    criteria: ClassVar[tuple[str, ...]] = ('value',)
    """The options that are criteria for the field."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.when is not None:
            callbacks.verify_filter('when=', self.when)
        for name, criteria in (('labels', self.labels), ('annotations', self.annotations)):
            for key, criterion in criteria.items() if criteria else ():
                callbacks.verify_filter(f'{name}={{{key!r}: ...}}', criterion, gets_value=True)
        for name in self.criteria:
            if (criterion := getattr(self, name)) is not None:
                callbacks.verify_filter(f'{name}=', criterion, gets_value=True)

    @functools.cached_property
    def copied_kwargs(self) -> Collection[str]:
        """
        The kwargs of which each call gets its own copies, as the function can change them in place.

        The function hardly changes a kwarg that it does not name, so such kwargs are not copied.
        """
        code = getattr(inspect.unwrap(self.fn), '__code__', None)
        return COPIED if code is None else [name for name in COPIED if name in code.co_varnames]

    @functools.cached_property
    def unfiltered(self) -> bool:
        """Whether all objects match, so that the filters need not be checked."""
        return not (self.labels or self.annotations or self.when is not None or self.field)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IndexingHandler(ResourceHandler):
    """A handler that fills an index; if ``sharded``, with the objects of the held shards only."""
    sharded: bool = False
    success_level: int = logging.DEBUG  # there would be a line for each object of the cluster

    title = 'Indexer'

    def __post_init__(self) -> None:
        super().__post_init__()
        sharded: object = self.sharded
        if not isinstance(sharded, bool):
            raise TypeError(f"sharded= must be True or False, not {sharded!r}.")


class WatchingHandler(ResourceHandler):
    """A handler of raw events."""


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
    protects: str | None = None
    """Why the deletion of the object waits; then, the function is never called."""
    old: ValueFilter = None
    new: ValueFilter = None

    criteria = ('value', 'old', 'new')

    @property
    def is_for_all(self) -> bool:
        """Whether the handler is for any change of a field, and so for objects without it."""
        return self.reason is None and bool(self.field_needs_change) and (
            self.value is None and self.old is None and self.new is None)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SpawningHandler(ResourceHandler):
    """A handler that runs beside an object; the object has the finalizer as long as it matches."""

    initial_delay: float | callbacks.DelayFn | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        delay = self.initial_delay
        if callable(delay):
            callbacks.verify_filter('initial_delay=', delay)
        elif delay is not None and not sections.is_number(delay):
            raise TypeError(f"initial_delay= must be a number of seconds, or a function that "
                            f"returns it, not {self.initial_delay!r}.")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DaemonHandler(SpawningHandler):
    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None

    title = 'Daemon'
    numeric = (*SpawningHandler.numeric, 'cancellation_backoff', 'cancellation_timeout',
               'cancellation_polling')


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TimerHandler(SpawningHandler):
    interval: float | None = None
    sharp: bool | None = None
    idle: float | None = None

    title = 'Timer'
    numeric = (*SpawningHandler.numeric, 'interval', 'idle')


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ReconcilingHandler(ResourceHandler):
    """
    A handler that returns the desired owned resources: any iterable of manifests.

    ``owns`` are their kinds. ``watches`` are other kinds, each with a function that returns the
    names of the objects to reconcile, or with the function or the id of such an index.
    ``after`` are the externals whose keys it needs. ``interval`` is in seconds; None if only
    changes matter.
    """
    after: tuple['ExternalDeclaration', ...] = ()
    owns: tuple[references.Selector, ...] = ()
    watches: tuple[tuple[references.Selector, Mapper], ...] = ()
    interval: float | None = None
    prune: bool = True
    recreate: bool = False
    conditions: bool = False

    title = 'Reconciler'
    numeric = (*ResourceHandler.numeric, 'interval')

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval is not None and self.interval < 0:
            raise ValueError(f"interval= must not be negative, but it is {self.interval!r}.")

    def describe_wait(self, raw: Mapping[str, Any]) -> str | None:
        """Say for which externals of the object the handler waits; None if it does not."""
        absent = [other.id for other in self.after if other.get_key(raw) is None]
        return f"it waits for {', '.join(absent)}" if absent else None


class ExternalDeclaration(Protocol):
    """The declaration of an external, and its functions."""

    id: str
    dependencies: Sequence[str]
    """The ids of the externals whose things must exist before this one."""

    @property
    def calls(self) -> 'Mapping[str, CallHandler]': ...

    def get_key(self, body: Mapping[str, Any], /) -> Any:
        """Get the key of the thing that an object has in the system; None if it is not known."""

    def find_fault(self, others: 'Iterable[ExternalDeclaration]') -> str | None:
        """Say what is wrong with the declaration, now that all others are declared."""

    def make_driver(self, hub: Any) -> Any:
        """Make the driver that works with the system for all objects of an operator."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ExternalHandler(ReconcilingHandler):
    """An external system. Instead of calling the function, a driver works with the system."""
    declaration: ExternalDeclaration

    title = 'External'


class CallHandler(ResourceHandler):
    """One of the author's functions of an external."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WebhookHandler(ResourceHandler):
    reason: Literal['validating', 'mutating']
    operations: frozenset[reviews.Operation] | None = None
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool | None = None
    ignore_failures: bool | None = None

    title = 'Webhook'
