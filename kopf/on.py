"""
The decorators that register handlers.

::

    import kopf

    @kopf.on.create('kopfexamples')
    def created(spec: kopf.Spec, **_: object) -> None:
        ...

A decorator returns the function unchanged. You can decorate a function several times, call the
function, or pass it around. Each decorator describes its own parameters. The parameters below have
the same meaning in all decorators that accept them. All times are in seconds.

**The resource.** Name it once: by position, or by one keyword. See "Select resources" in the
documentation.

* ``arg1``: a name (plural, singular, short, or the kind), such as ``'pods'`` or
  ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that gets a
  `kopf.Resource` and returns whether the resource is selected. If more arguments follow: the group,
  or the group and the version, as in ``'apps', 'v1', 'deployments'`` and ``'apps/v1',
  'deployments'``.
* ``arg2``: the version or the name, after the group.
* ``arg3``: the name, after the group and the version.
* ``group``: the API group; ``''`` is the core API. Default: any group.
* ``version``: the version of the group. Default: the preferred version.
* ``kind``: the kind of the resource, such as ``'Pod'``.
* ``plural``: the plural name of the resource, such as ``'pods'``.
* ``singular``: the singular name of the resource, such as ``'pod'``.
* ``shortcut``: a short name of the resource, such as ``'po'``.
* ``category``: a category: all its resources are selected, e.g. those of ``'all'``.

**The handler.** See "Write handlers" in the documentation.

* ``id``: a string that identifies the handler in the log and in the stored progress. Keep it stable
  as long as there are objects. Default: the qualified name of the function, and the field, if there
  is one.
* ``param``: any value. The handler gets it as the argument ``param``. Default: `None`.
* ``registry``: the `kopf.OperatorRegistry` that gets the handler. Default: the default registry.

**Errors and retries.** See "Handle errors and retries" in the documentation.

* ``errors``: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
  `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
* ``timeout``: the time limit in seconds for all attempts together, delays included. Default: no
  limit.
* ``retries``: the maximum number of attempts, including the first attempt. Default: no limit.
* ``backoff``: the delay in seconds before a retry after such an exception. Default:
  ``settings.execution.default_backoff`` (60 seconds).

**Filters.** An object must satisfy all given filters. A criterion is a value, `kopf.PRESENT`,
`kopf.ABSENT`, or a function that gets the value as its positional argument and the arguments of the
handler as keyword arguments. See "Filter objects and changes" in the documentation.

* ``labels``: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or a
  function of the value. Default: no filter.
* ``annotations``: a dict of names of annotations to such criteria. Default: no filter.
* ``when``: a function that gets the arguments of the handler as keyword arguments, and returns
  whether to call the handler. Default: no filter.
* ``field``: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys. The
  field must be present if no criterion says otherwise. Default: the whole object.
* ``value``: a criterion for the field. It requires ``field``. Default: any value.
* ``old``: a criterion for the field before the change. It requires ``field``, and excludes
  ``value``. Default: any value, or none.
* ``new``: a criterion for the field after the change. It requires ``field``, and excludes
  ``value``. Default: any value, or none.

Wrong arguments raise an error at once, when the decorator is called or when it gets the function:

* `TypeError`: no resource, several, or a name that no resource can have; an option of a wrong
  type; ``value``, ``old``, or ``new`` without ``field``, or ``value`` together with ``old`` or
  ``new``; a generator; a function that does not accept the keyword arguments of handlers or
  filters, because ``**_`` is missing.
* `ValueError`: `None` as a criterion for a label or an annotation; a field that is neither a string
  nor strings; an object without a name as the handler, if there is no ``id``; functions of one
  index with different values of ``sharded``.
"""
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from kopf._cogs.helpers import deprecations
from kopf._cogs.structs import dicts, references, reviews
from kopf._cogs.structs.bodies import Body, Spec, Status
from kopf._core.intents import callbacks, causes, handlers, registries
from kopf._core.intents.handlererrors import ErrorsMode

P = ParamSpec('P')
ActivityFnT = TypeVar('ActivityFnT', bound=callbacks.ActivityFn)
ChangingFnT = TypeVar('ChangingFnT', bound=callbacks.ChangingFn[Body, Spec, Status])
DaemonFnT = TypeVar('DaemonFnT', bound=callbacks.DaemonFn[Body, Spec, Status])
IndexingFnT = TypeVar('IndexingFnT', bound=callbacks.IndexingFn[Body, Spec, Status])
ReconcilingFnT = TypeVar('ReconcilingFnT', bound=callbacks.ReconcilingFn[Body, Spec, Status])
TimerFnT = TypeVar('TimerFnT', bound=callbacks.TimerFn[Body, Spec, Status])
WatchingFnT = TypeVar('WatchingFnT', bound=callbacks.WatchingFn[Body, Spec, Status])
WebhookFnT = TypeVar('WebhookFnT', bound=callbacks.WebhookFn[Any, Any, Any])
_ChangingFnT = TypeVar('_ChangingFnT', bound=callbacks.ChangingFn[Any, Any, Any])
_DaemonFnT = TypeVar('_DaemonFnT', bound=callbacks.DaemonFn[Any, Any, Any])
_IndexingFnT = TypeVar('_IndexingFnT', bound=callbacks.IndexingFn[Any, Any, Any])
_ReconcilingFnT = TypeVar('_ReconcilingFnT', bound=callbacks.ReconcilingFn[Any, Any, Any])
_TimerFnT = TypeVar('_TimerFnT', bound=callbacks.TimerFn[Any, Any, Any])
_WatchingFnT = TypeVar('_WatchingFnT', bound=callbacks.WatchingFn[Any, Any, Any])
_FnT = TypeVar('_FnT', bound=Callable[..., object])
_TypedT = TypeVar('_TypedT', covariant=True)
_PlainT = TypeVar('_PlainT', covariant=True)
_ConvertingFnT = TypeVar(
    '_ConvertingFnT', bound=Callable[[dict[str, Any]], dict[str, Any] | None])

_Kind = str | tuple[str, str] | tuple[str, str, str] | type[Any]
"""A resource: its name; or the group, the version, and the name; or a class of `kopf.crd`."""

_MetaFilter = Mapping[str, str | handlers.MetaFilterToken | callbacks.MetaFilterFn]
_Key = references.SelectorFn | references.Marker | str | None
_Declared = Callable[Concatenate[references.SelectorKey, P], object]

# The decorators for type checkers: if a class selects the resource, the handlers can be typed.


class _Declaring(Protocol[P, _TypedT, _PlainT]):
    @overload
    def __call__(self, arg1: type[Any], /, *args: P.args, **kwargs: P.kwargs) -> _TypedT: ...

    @overload
    def __call__(self, arg1: _Key = None, /, *args: P.args, **kwargs: P.kwargs) -> _PlainT: ...


class _TypedChanging(Protocol):
    def __call__(self, fn: _ChangingFnT, /) -> _ChangingFnT: ...


class _Changing(Protocol):
    def __call__(self, fn: ChangingFnT, /) -> ChangingFnT: ...


class _TypedDaemon(Protocol):
    def __call__(self, fn: _DaemonFnT, /) -> _DaemonFnT: ...


class _Daemon(Protocol):
    def __call__(self, fn: DaemonFnT, /) -> DaemonFnT: ...


class _TypedIndexing(Protocol):
    def __call__(self, fn: _IndexingFnT, /) -> _IndexingFnT: ...


class _Indexing(Protocol):
    def __call__(self, fn: IndexingFnT, /) -> IndexingFnT: ...


class _TypedReconciling(Protocol):
    def __call__(self, fn: _ReconcilingFnT, /) -> _ReconcilingFnT: ...


class _Reconciling(Protocol):
    def __call__(self, fn: ReconcilingFnT, /) -> ReconcilingFnT: ...


class _TypedTimer(Protocol):
    def __call__(self, fn: _TimerFnT, /) -> _TimerFnT: ...


class _Timer(Protocol):
    def __call__(self, fn: TimerFnT, /) -> TimerFnT: ...


class _TypedWatching(Protocol):
    def __call__(self, fn: _WatchingFnT, /) -> _WatchingFnT: ...


class _Watching(Protocol):
    def __call__(self, fn: WatchingFnT, /) -> WatchingFnT: ...


class _Reviewing(Protocol):
    @overload
    def __call__(
            self,
            arg1: references.SelectorKey = None,
            arg2: references.Marker | str | None = None,
            arg3: references.Marker | str | None = None,
            /,
            *,
            group: str | None = None,
            version: str | None = None,
            kind: str | None = None,
            plural: str | None = None,
            singular: str | None = None,
            shortcut: str | None = None,
            category: str | None = None,
            id: str | None = None,
            param: Any | None = None,
            operations: Collection[reviews.Operation] | None = None,
            subresource: str | None = None,
            persistent: bool | None = None,
            side_effects: bool | None = None,
            ignore_failures: bool | None = None,
            labels: _MetaFilter | None = None,
            annotations: _MetaFilter | None = None,
            when: callbacks.WhenFilterFn | None = None,
            field: dicts.FieldSpec = None,
            value: handlers.ValueFilter = None,
            registry: registries.OperatorRegistry | None = None,
    ) -> Callable[[WebhookFnT], WebhookFnT]: ...

    @overload
    @deprecations.deprecated("operation= is deprecated, use operations={...}.", category=None)
    def __call__(
            self,
            arg1: references.SelectorKey = None,
            arg2: references.Marker | str | None = None,
            arg3: references.Marker | str | None = None,
            /,
            *,
            group: str | None = None,
            version: str | None = None,
            kind: str | None = None,
            plural: str | None = None,
            singular: str | None = None,
            shortcut: str | None = None,
            category: str | None = None,
            id: str | None = None,
            param: Any | None = None,
            operation: reviews.Operation,
            operations: Collection[reviews.Operation] | None = None,
            subresource: str | None = None,
            persistent: bool | None = None,
            side_effects: bool | None = None,
            ignore_failures: bool | None = None,
            labels: _MetaFilter | None = None,
            annotations: _MetaFilter | None = None,
            when: callbacks.WhenFilterFn | None = None,
            field: dicts.FieldSpec = None,
            value: handlers.ValueFilter = None,
            registry: registries.OperatorRegistry | None = None,
    ) -> Callable[[WebhookFnT], WebhookFnT]: ...


def _changing(fn: _Declared[P]) -> _Declaring[P, _TypedChanging, _Changing]:
    return cast(_Declaring[P, _TypedChanging, _Changing], fn)


def _daemon(fn: _Declared[P]) -> _Declaring[P, _TypedDaemon, _Daemon]:
    return cast(_Declaring[P, _TypedDaemon, _Daemon], fn)


def _indexing(fn: _Declared[P]) -> _Declaring[P, _TypedIndexing, _Indexing]:
    return cast(_Declaring[P, _TypedIndexing, _Indexing], fn)


def _reconciling(fn: _Declared[P]) -> _Declaring[P, _TypedReconciling, _Reconciling]:
    return cast(_Declaring[P, _TypedReconciling, _Reconciling], fn)


def _timer(fn: _Declared[P]) -> _Declaring[P, _TypedTimer, _Timer]:
    return cast(_Declaring[P, _TypedTimer, _Timer], fn)


def _watching(fn: _Declared[P]) -> _Declaring[P, _TypedWatching, _Watching]:
    return cast(_Declaring[P, _TypedWatching, _Watching], fn)


def _reviewing(fn: Callable[..., object]) -> _Reviewing:
    return cast(_Reviewing, fn)


def startup(
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ActivityFnT], ActivityFnT]:
    """
    Register a handler that Kopf calls before the operator begins its work.

    The operator sends no requests to the cluster before all startup handlers have succeeded. If a
    startup handler fails permanently, the operator does not start. Handlers get ``settings``, and
    can change them.

    ::

        @kopf.on.startup()
        def configure(settings, **_):
            settings.posting.enabled = False

    See "Prepare and clean up the operator" in the documentation.

    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for an option of a wrong type; for a generator, or a function without
        ``**_``.
    :raises ValueError: for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ActivityHandler, locals(), activity=causes.Activity.STARTUP)


def cleanup(
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ActivityFnT], ActivityFnT]:
    """
    Register a handler that Kopf calls when the operator has ended its work.

    By then, all handling has ended, and all daemons have stopped. Kopf does not call cleanup
    handlers if the process is killed.

    ::

        @kopf.on.cleanup()
        async def disconnect(memo, **_):
            await memo.pool.close()

    See "Prepare and clean up the operator" in the documentation.

    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for an option of a wrong type; for a generator, or a function without
        ``**_``.
    :raises ValueError: for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ActivityHandler, locals(), activity=causes.Activity.CLEANUP)


def login(
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ActivityFnT], ActivityFnT]:
    """
    Register a handler that returns credentials for the API server.

    The handler returns `kopf.ConnectionInfo` or `kopf.AiohttpSession`, or `None` if it has no
    credentials. Kopf calls all login handlers at the start, and again when the API server rejects
    the credentials or when they expire. Without login handlers, Kopf uses its own.

    ::

        @kopf.on.login()
        def login(**kwargs):
            return kopf.login_with_kubeconfig(**kwargs)

    See "Authenticate to the API server" in the documentation.

    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for an option of a wrong type; for a generator, or a function without
        ``**_``.
    :raises ValueError: for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ActivityHandler, locals(), activity=causes.Activity.AUTHENTICATION)


def probe(
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ActivityFnT], ActivityFnT]:
    """
    Register a handler whose result the liveness endpoint returns under the id of the handler.

    The result must be JSON. If the handler raises an error, the operator is unhealthy. The next
    request is the retry: ``retries`` and ``backoff`` have no effect.

    ::

        @kopf.on.probe(id='queue')
        def count_jobs(memo, **_):
            return len(memo.jobs)

    See "Serve health checks" in the documentation.

    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for an option of a wrong type; for a generator, or a function without
        ``**_``.
    :raises ValueError: for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ActivityHandler, locals(), activity=causes.Activity.PROBE)


@_reviewing
def validate(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        operation: reviews.Operation | None = None,
        operations: Collection[reviews.Operation] | None = None,
        subresource: str | None = None,
        persistent: bool | None = None,
        side_effects: bool | None = None,
        ignore_failures: bool | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[WebhookFnT], WebhookFnT]:
    """
    Register an admission handler that can refuse a change before the API server stores the object.

    To refuse the change, the handler raises `kopf.AdmissionError` or any other exception. Kopf does
    not retry the handler.

    ::

        @kopf.on.validate('websites', operations=['CREATE', 'UPDATE'])
        def check_title(spec, **_):
            if not spec.get('title'):
                raise kopf.AdmissionError("spec.title must not be empty.")

    See "Validate and mutate objects" in the documentation.

    :param operation: one operation. Deprecated: use ``operations``.
    :param operations: the operations to handle: a collection of ``'CREATE'``, ``'UPDATE'``,
        ``'DELETE'``, ``'CONNECT'``. Default: all operations.
    :param subresource: the subresource to handle, e.g. ``'status'``. ``'*'`` means the object
        itself and all subresources. Default: only the object itself.
    :param persistent: whether the webhook remains in the cluster after the shutdown of the
        operator, so that nobody can change these objects meanwhile. Default: no.
    :param side_effects: whether the handler changes something outside of the object, except in dry
        runs. Default: no.
    :param ignore_failures: whether the API server accepts the change, unmodified, if it cannot
        reach the operator. Default: no, the API server refuses the change.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for wrong resources, options, filters, or functions; for a string as the
        ``operations``.
    :raises ValueError: for empty or unknown ``operations``; for `None` as a criterion for a label
        or an annotation.
    """
    options = {**locals()}
    options['operations'] = _verify_operations(options.pop('operation'), operations)
    return _declare(handlers.WebhookHandler, options, reason='validating')


@_reviewing
def mutate(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        operation: reviews.Operation | None = None,
        operations: Collection[reviews.Operation] | None = None,
        subresource: str | None = None,
        persistent: bool | None = None,
        side_effects: bool | None = None,
        ignore_failures: bool | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[WebhookFnT], WebhookFnT]:
    """
    Register an admission handler that can change an object before the API server stores the object.

    The handler puts the changes into ``patch``. It can also refuse the change, as handlers of
    `kopf.on.validate` do. Kopf does not retry the handler.

    ::

        @kopf.on.mutate('websites', operations=['CREATE'])
        def set_defaults(spec, patch, **_):
            patch.spec['replicas'] = spec.get('replicas', 1)

    See "Validate and mutate objects" in the documentation.

    :param operation: one operation. Deprecated: use ``operations``.
    :param operations: the operations to handle: a collection of ``'CREATE'``, ``'UPDATE'``,
        ``'DELETE'``, ``'CONNECT'``. Default: all operations but deletions.
    :param subresource: the subresource to handle, e.g. ``'status'``. ``'*'`` means the object
        itself and all subresources. Default: only the object itself.
    :param persistent: whether the webhook remains in the cluster after the shutdown of the
        operator, so that nobody can change these objects meanwhile. Default: no.
    :param side_effects: whether the handler changes something outside of the object, except in dry
        runs. Default: no.
    :param ignore_failures: whether the API server accepts the change, unmodified, if it cannot
        reach the operator. Default: no, the API server refuses the change.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for wrong resources, options, filters, or functions; for a string as the
        ``operations``.
    :raises ValueError: for empty or unknown ``operations``; for `None` as a criterion for a label
        or an annotation.
    """
    options = {**locals()}
    options['operations'] = _verify_operations(options.pop('operation'), operations)
    return _declare(handlers.WebhookHandler, options, reason='mutating')


def convert(
        resource: str,
        old: str,
        new: str,
        *,
        lossless: bool = True,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[_ConvertingFnT], _ConvertingFnT]:
    """
    Register a function that converts the objects of a kind from one version to another.

    The function gets an object as a dict. It changes the dict in place, or returns another one. It
    also gets parts of objects, as server-side apply sends them, so any field can be absent. To
    refuse an object, it raises `kopf.Lossy`. Each pair of versions needs a function for each
    direction.

    ::

        @kopf.on.convert('websites.example.com', 'v1', 'v2')
        def upgrade(obj):
            obj['spec']['heading'] = obj['spec'].pop('title', '')

    See "Serve several versions of a kind" in the documentation.

    :param resource: the name of the definition, e.g. ``'databases.example.com'``.
    :param old: the version that the function gets.
    :param new: the version that the function makes.
    :param lossless: whether to keep what the other version cannot express, in an annotation, and to
        restore it on the way back. Default: yes.
    :param registry: the `kopf.OperatorRegistry` for the function. Default: the default registry.
    :raises DeclarationError: if ``resource`` is no name of a definition, if both versions are the
        same, if the conversion is registered already, or if the function is async.
    """
    from kopf._kits.conversion import declaring  # only if it is used
    return declaring.declare(resource, old, new, lossless=lossless, registry=registry)


@_changing
def resume(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        deleted: bool | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a handler of objects that existed before the operator started.

    Kopf calls the handler once for each such object in the lifetime of the operator, apart from
    retries. If there is also a creation or an update to handle, Kopf calls the resuming handlers
    together with the handlers of that cause.

    ::

        @kopf.on.resume('websites')
        def resumed(name, logger, **_):
            logger.info(f"{name} existed before the operator started.")

    See "Write handlers" in the documentation.

    :param deleted: whether to also call the handler for objects that are being deleted. Default:
        no.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ChangingHandler, locals(), initial=True)


@_changing
def create(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a handler of new objects: objects that this operator has never handled before.

    Kopf retries the handler until it succeeds or fails permanently, and stores its result in the
    status of the object.

    ::

        @kopf.on.create('websites')
        def created(spec, patch, **_):
            patch.status['title'] = spec['title']

    See "Write handlers" in the documentation.

    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ChangingHandler, locals(), reason=causes.Reason.CREATE)


@_changing
def update(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        old: handlers.ValueFilter = None,
        new: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a handler of changes in existing objects, or in one field of them.

    Only changes of the essence count: everything except the status and the system's own metadata.
    To handle changes there, name the field.

    ::

        @kopf.on.update('websites', field='spec.title')
        def renamed(old, new, logger, **_):
            logger.info(f"The title was {old!r}, and is {new!r}.")

    See "Write handlers" and "Filter objects and changes" in the documentation.

    :param field: the field that must have changed; ``old``, ``new``, and ``diff`` of the handler
        contain only this field. Default: the whole object.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param value: a criterion that either the old or the new value of the field must satisfy. It
        excludes ``old`` and ``new``. Default: any value.
    :param old: a criterion for the field before the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :param new: a criterion for the field after the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(
        handlers.ChangingHandler, locals(), reason=causes.Reason.UPDATE, field_needs_change=True)


@_changing
def delete(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        optional: bool | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a handler of objects whose deletion somebody has requested.

    The object remains until the handler has succeeded or failed permanently: Kopf adds a finalizer
    to the object for this.

    ::

        @kopf.on.delete('websites')
        def deleted(name, memo, **_):
            memo.hosting.remove(name)

    See "Write handlers" in the documentation.

    :param optional: whether the object can disappear without the handler. If so, Kopf adds no
        finalizer for this handler, and calls it only if something else holds the object back.
        Default: no.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    options = {**locals()}
    options['requires_finalizer'] = not options.pop('optional')
    return _declare(handlers.ChangingHandler, options, reason=causes.Reason.DELETE)


@_changing
def field(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec,
        value: handlers.ValueFilter = None,
        old: handlers.ValueFilter = None,
        new: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a handler of changes in one field, the first value of a new object included.

    Kopf calls the handler when the field is added, changed, or removed. ``old``, ``new``, and
    ``diff`` of the handler contain only this field.

    ::

        @kopf.on.field('websites', field='spec.replicas')
        def scaled(old, new, logger, **_):
            logger.info(f"There were {old} replicas, and there are {new}.")

    See "Write handlers" and "Filter objects and changes" in the documentation.

    :param field: the field: ``'spec.field'``, or a list or a tuple of keys. Required.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param value: a criterion that either the old or the new value of the field must satisfy. It
        excludes ``old`` and ``new``. Default: any value.
    :param old: a criterion for the field before the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :param new: a criterion for the field after the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.ChangingHandler, locals(), field_needs_change=True)


@_indexing
def index(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        sharded: bool = False,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[IndexingFnT], IndexingFnT]:
    """
    Register a function whose results Kopf keeps in memory as an index, which all handlers can read.

    Kopf calls the function for every object at the start, and whenever an object changes. The keys
    of a returned dict are the keys of the index; all other values go under the key `None`; `None`
    itself changes nothing. Handlers get the index as a keyword argument named by the ``id``.
    Functions with the same id fill the same index.

    ::

        @kopf.index('pods', labels={'app': kopf.PRESENT})
        def pods_of_apps(labels, name, **_):
            return {labels['app']: name}

    See `kopf.Index`, and "Index objects in memory" in the documentation.

    :param id: the name of the index. Default: the name of the function, without the field.
    :param errors: what exceptions mean. Default: ``IGNORED``, the previous values of the object
        remain.
    :param sharded: whether the index has only the objects of the shards that this replica holds.
        It must be the same for all functions of the index. Without sharding, it changes nothing.
        See "Scaling: share the work by shards" in the documentation. Default: no, the index has all
        objects.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.IndexingHandler, locals())


@_watching
def event(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[WatchingFnT], WatchingFnT]:
    """
    Register a handler of raw events, as the API server sends them.

    Kopf stores nothing on the objects for this handler, except its result and its patch. Kopf logs
    errors, and does not retry the handler. After each restart, Kopf calls the handler for all
    existing objects.

    ::

        @kopf.on.event('pods')
        def log_phase(event, status, logger, **_):
            logger.info(f"{event['type']}: {status.get('phase')}")

    See "Write handlers" in the documentation.

    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.WatchingHandler, locals())


@_daemon
def daemon(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        initial_delay: float | callbacks.DelayFn | None = None,
        cancellation_backoff: float | None = None,
        cancellation_timeout: float | None = None,
        cancellation_polling: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[DaemonFnT], DaemonFnT]:
    """
    Register a function that runs alongside each object, as long as the object exists.

    The function must exit when its argument ``stopped`` is set. Synchronous functions run in
    threads, and Kopf cannot interrupt them. The object remains until its daemons have ended or Kopf
    has abandoned them.

    ::

        @kopf.daemon('websites', cancellation_timeout=10)
        async def poll(stopped, memo, name, **_):
            while not await stopped.wait(60):
                await memo.hosting.ping(name)

    See "Run daemons" in the documentation.

    :param initial_delay: the delay in seconds before the first call for an object; or a function
        that gets the arguments of the handler as keyword arguments, and returns seconds. Default:
        no delay.
    :param cancellation_backoff: how long, in seconds, the daemon has to exit after ``stopped`` is
        set, before Kopf cancels it. Default: no extra time.
    :param cancellation_timeout: how long, in seconds, the daemon has to exit after Kopf has
        cancelled it. Then, Kopf abandons the daemon with a `ResourceWarning`. Default: Kopf does
        not cancel the daemon, and waits for it, unless the operator exits.
    :param cancellation_polling: how often, in seconds, Kopf checks a daemon without a
        ``cancellation_timeout``, and logs that it waits. Default:
        ``settings.background.cancellation_polling`` (60 seconds).
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.DaemonHandler, locals())


@_timer
def timer(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        interval: float | None = None,
        initial_delay: float | callbacks.DelayFn | None = None,
        sharp: bool | None = None,
        idle: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[TimerFnT], TimerFnT]:
    """
    Register a function that Kopf calls repeatedly for each object, as long as the object exists.

    After an error, Kopf calls the function again after the ``backoff`` or the ``delay`` of the
    error, instead of the interval. A permanent error stops the timer of this object.

    ::

        @kopf.timer('websites', interval=60)
        def measure(name, memo, patch, **_):
            patch.status['visits'] = memo.hosting.count(name)

    See "Run timers" in the documentation.

    :param interval: the time in seconds between the end of one call and the beginning of the next
        call. Default: Kopf calls the function only once, unless ``idle`` is set.
    :param initial_delay: the delay in seconds before the first call for an object; or a function
        that gets the arguments of the handler as keyword arguments, and returns seconds. Default:
        no delay.
    :param sharp: whether the interval is between the beginnings of calls; Kopf skips missed calls.
        Default: no.
    :param idle: how long, in seconds, the object must not have changed before a call. Without
        ``interval``, Kopf calls the function once each time the object has come to rest. Default:
        0.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    """
    return _declare(handlers.TimerHandler, locals())


@_reconciling
def reconcile(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        owns: Iterable[_Kind] = (),
        watches: Mapping[_Kind, Callable[..., Any] | str] | None = None,
        after: Iterable[handlers.ExternalDeclaration] = (),
        interval: float | None = None,
        prune: bool = True,
        recreate: bool = False,
        conditions: bool = False,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        registry: registries.OperatorRegistry | None = None,
) -> Callable[[ReconcilingFnT], ReconcilingFnT]:
    """
    Register a function that returns the desired owned resources of an object.

    The function returns or yields manifests. Kopf creates, changes, and deletes the owned resources
    accordingly, by server-side apply. Kopf calls the function for each object after the start, and
    whenever the object or one of its owned resources has changed. If the function returns `None`,
    Kopf applies and deletes nothing.

    ::

        @kopf.reconcile('websites', owns=['configmaps'])
        def website(spec, name, **_):
            return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                    'data': {'index.html': f"<h1>{spec['title']}</h1>"}}

    See "Reconcile owned resources" in the documentation.

    :param owns: the kinds of owned resources: each is a name, such as ``'deployments'`` or
        ``'deployments.apps'``, or a tuple of the group, the version, and the name. Default: none.
    :param watches: other kinds that the objects use, each with a function or an index. The function
        gets a changed object as keyword arguments (``name``, ``namespace``, ``labels``, ``body``,
        and so on), and returns the names of the objects to reconcile: a name, or an iterable of
        names in the same namespace or of pairs of a namespace and a name. If the function names
        neither ``body`` nor ``spec`` nor ``status``, only the metadata is watched. An index is the
        function with `kopf.index`, or its id: its keys are the names of the used objects, or pairs
        of a namespace and a name; its values are what such a function returns. Default: none.
    :param after: the externals of the same objects whose keys the function needs: it is called when
        they are known, and again when they or their fields in the status change. Default: none.
    :param interval: how often, in seconds, to call the function even if nothing has changed. It
        varies by a tenth, so that not all objects are handled at once. Default: never.
    :param prune: whether to delete the owned resources that the function does not return any more.
        Default: yes.
    :param recreate: whether to delete an owned resource that cannot be changed in place, so that
        the next call creates it again. Default: no, the object has an error.
    :param conditions: whether to keep the conditions ``Ready``, ``Reconciling``, and ``Stalled`` in
        the status of the object. Default: no.
    :param backoff: the delay in seconds before the next attempt after an error. Default: it doubles
        from ``settings.reconciling.error_delay`` to ``settings.reconciling.max_error_delay``.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param id: a string that identifies the handler in the log and in the stored progress. Keep it
        stable as long as there are objects. Default: the qualified name of the function, and the
        field, if there is one.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: for no resource or several; for an option of a wrong type; for ``value``,
        ``old``, or ``new`` without ``field``; for a generator, or a function without ``**_``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``; for a
        negative ``interval``.
    """
    if isinstance(owns, str):
        raise TypeError(f"owns= must be a collection, e.g. [{owns!r}].")
    if not isinstance(watches, Mapping | None) or not all(
            callable(mapper) or isinstance(mapper, str) for mapper in (watches or {}).values()):
        raise TypeError(f"watches= must be a dict of resources to functions or indices, for "
                        f"example {{'configmaps': users}}, not {watches!r}.")
    options = {**locals()}
    options['after'] = tuple(after)
    if not all(hasattr(other, 'get_key') for other in options['after']):
        raise TypeError(f"after= must be a collection of externals, e.g. [billing], not {after!r}.")
    options['owns'] = tuple(map(references.make_selector, owns))
    options['watches'] = tuple(
        (references.make_selector(name), mapper) for name, mapper in (watches or {}).items())
    return _declare(handlers.ReconcilingHandler, options)


def subhandler(
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
        field: dicts.FieldSpec = None,
        value: handlers.ValueFilter = None,
        old: handlers.ValueFilter = None,
        new: handlers.ValueFilter = None,
) -> Callable[[ChangingFnT], ChangingFnT]:
    """
    Register a sub-handler of the handler that runs at the moment.

    Kopf calls the parent handler again whenever some of its sub-handlers are due again, until all
    of them have finished. The parent must register the same sub-handlers in each call. Their ids
    begin with the id of the parent.

    ::

        @kopf.on.create('websites')
        def created(**_):
            @kopf.subhandler()
            def upload(spec, **_): ...

    See "Split handlers into sub-handlers" in the documentation.

    :param id: the id of the sub-handler, after the id of the parent and a slash. Default: the name
        of the function.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param field: a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys.
        The field must be present if no criterion says otherwise. Default: the whole object.
    :param value: a criterion for the field. It requires ``field``. Default: any value.
    :param old: a criterion for the field before the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :param new: a criterion for the field after the change. It requires ``field``, and excludes
        ``value``. Default: any value, or none.
    :raises TypeError: for an option of a wrong type; for ``value``, ``old``, or ``new`` without
        ``field``.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a field that is
        neither a string nor strings; for a callable without a name, if there is no ``id``.
    :raises LookupError: outside of a handler of changes.
    """
    path = _verify(labels, annotations, field, value, old, new)

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        try:
            parent = registries.parent_var.get()
        except LookupError:
            raise LookupError(
                "Sub-handlers can only be declared while a handler of changes is running: "
                "inside of the function, not next to it.") from None
        parent.declared.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path, parent=parent.handler.id),
            fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            labels=labels, annotations=annotations, when=when,
            field=path, value=value, old=old, new=new,
            field_needs_change=getattr(parent.handler, 'field_needs_change', None),
        ))
        return fn
    return decorator


def register(
        fn: ChangingFnT,
        *,
        id: str | None = None,
        param: Any | None = None,
        errors: ErrorsMode | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        backoff: float | None = None,
        labels: _MetaFilter | None = None,
        annotations: _MetaFilter | None = None,
        when: callbacks.WhenFilterFn | None = None,
) -> ChangingFnT:
    """
    Register a function as a sub-handler: the same as `kopf.subhandler`, but not as a decorator.

    ::

        @kopf.on.create('websites')
        def created(spec, **_):
            for language in spec['languages']:
                kopf.register(functools.partial(upload, language=language), id=language)

    See "Split handlers into sub-handlers" in the documentation.

    :param fn: the function. For lambdas and partial functions, also set the ``id``.
    :param id: the id of the sub-handler, after the id of the parent and a slash. Default: the name
        of the function.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param errors: a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and
        `kopf.PermanentError`. Default: ``TEMPORARY``, a retry.
    :param timeout: the time limit in seconds for all attempts together, delays included. Default:
        no limit.
    :param retries: the maximum number of attempts, including the first attempt. Default: no limit.
    :param backoff: the delay in seconds before a retry after such an exception. Default:
        ``settings.execution.default_backoff`` (60 seconds).
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :returns: the function.
    :raises TypeError: for an option of a wrong type.
    :raises ValueError: for `None` as a criterion for a label or an annotation; for a callable
        without a name, if there is no ``id``.
    :raises LookupError: outside of a handler of changes.
    """
    return subhandler(
        id=id, param=param,
        errors=errors, timeout=timeout, retries=retries, backoff=backoff,
        labels=labels, annotations=annotations, when=when,
    )(fn)


_POSITIONAL = ('arg1', 'arg2', 'arg3')
_NAMING = ('group', 'version', 'kind', 'plural', 'singular', 'shortcut', 'category')


def _declare(
        cls: type[handlers.Handler], given: Mapping[str, Any], **fixed: Any,
) -> Callable[[_FnT], _FnT]:
    """
    Make the decorator that registers handlers of this type.

    ``given`` are the arguments of the public function, which have the names of the options of the
    handler; ``fixed`` are the other options of the handler.
    """
    options = {**given, **fixed}
    id_, registry, path = options.pop('id'), options.pop('registry'), None
    declared: references.Declaration | None = None
    if issubclass(cls, handlers.ResourceHandler):
        path = options['field'] = _verify(
            options['labels'], options['annotations'], options['field'], options['value'],
            options.get('old'), options.get('new'))
        declared = options['declared'] = references.get_declaration(options['arg1'])
        options['selector'] = references.Selector(
            *[options.pop(name) for name in _POSITIONAL],
            **{name: options.pop(name) for name in _NAMING})

    def decorator(fn: _FnT) -> _FnT:
        target = registries.get_default_registry() if registry is None else registry
        if declared is not None:
            options['arguments'] = declared.bind(
                fn, path, is_lasting=issubclass(cls, handlers.DaemonHandler),
                is_whole=issubclass(cls, handlers.WebhookHandler))
        target.append(cls(
            id=handlers.generate_id(
                fn, id_, field=None if cls is handlers.IndexingHandler else path),
            fn=callbacks.collect(fn) if cls is handlers.ReconcilingHandler else fn,
            **options))
        return fn
    return decorator


def _verify(
        labels: _MetaFilter | None,
        annotations: _MetaFilter | None,
        field: dicts.FieldSpec,
        value: handlers.ValueFilter,
        old: handlers.ValueFilter = None,
        new: handlers.ValueFilter = None,
) -> dicts.FieldPath | None:
    path = dicts.parse_field(field) or None
    if value is not None and (old is not None or new is not None):
        raise TypeError("Either value= or old=/new= can be used, but not both.")
    if path is None and (value is not None or old is not None or new is not None):
        raise TypeError("value=, old=, new= are for a field, so field= is needed too.")
    for what, pattern in [('labels', labels), ('annotations', annotations)]:
        if pattern is not None and not isinstance(pattern, Mapping):
            raise TypeError(f"{what}= must be a dict of names to values, for example "
                            f"{{'name': 'value'}}, not {pattern!r}.")
        for key, criterion in (pattern or {}).items():
            if criterion is None:
                raise ValueError(
                    f"None is no filter for {what}, as for {key!r}: "
                    f"use kopf.PRESENT or kopf.ABSENT.")
    return path


_OPERATIONS = ('CREATE', 'UPDATE', 'DELETE', 'CONNECT', '*')


def _verify_operations(
        operation: reviews.Operation | None,
        operations: Collection[reviews.Operation] | None,
) -> frozenset[reviews.Operation] | None:
    if operation is not None:
        warnings.warn("operation= is deprecated, use operations={...}.",
                      DeprecationWarning, stacklevel=3)
        operations = {operation, *(operations or ())}
    if operations is None:
        return None
    if not operations:
        raise ValueError("operations= must name at least one operation, or be left out.")
    if isinstance(operations, str):
        raise TypeError(f"operations= must be a collection, e.g. {{{operations!r}}}.")
    for each in operations:
        if each not in _OPERATIONS:
            import difflib  # only for an error
            close = difflib.get_close_matches(str(each).upper(), _OPERATIONS, n=1)
            raise ValueError(f"operations= contains {each!r}" + (
                f"; did you mean {close[0]!r}?" if close else
                f", but only these are possible: {', '.join(_OPERATIONS)}."))
    return frozenset(operations)
