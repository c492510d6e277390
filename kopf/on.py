"""
Decorators that declare handlers.

::

    import kopf

    @kopf.on.create('kopfexamples')
    def created(spec: kopf.Spec, **_: object) -> None:
        ...

Decorated functions remain as they are, so they can be decorated again, called, or passed around.
The decorators have these parameters in common:

* The positional ones, ``group``, ``version``, ``kind``, ``plural``, ``singular``, ``shortcut``,
  ``category`` select the resources, see `kopf.Resource`.
* ``id`` identifies the handler on the objects and in the logs; by default, it is made
  of the function's name and the field.
* ``param`` is passed to the function as it is.
* ``errors``, ``timeout``, ``retries``, ``backoff`` say what to do if the function fails;
  the times are in seconds.
* ``labels``, ``annotations``, ``when``, ``field``, ``value``, ``old``, ``new`` restrict the objects
  and their changes for which the function is called.
* ``registry`` is where the handler goes, instead of the default registry.

Contradictory, unknown, or missing specifications raise TypeError or ValueError at once.
"""
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from kopf._cogs.structs import dicts, references, reviews
from kopf._core.intents import callbacks, causes, handlers, registries
from kopf._core.intents.errors import ErrorsMode

ActivityFnT = TypeVar('ActivityFnT', bound=callbacks.ActivityFn)
ChangingFnT = TypeVar('ChangingFnT', bound=callbacks.ChangingFn)
DaemonFnT = TypeVar('DaemonFnT', bound=callbacks.DaemonFn)
IndexingFnT = TypeVar('IndexingFnT', bound=callbacks.IndexingFn)
TimerFnT = TypeVar('TimerFnT', bound=callbacks.TimerFn)
WatchingFnT = TypeVar('WatchingFnT', bound=callbacks.WatchingFn)
WebhookFnT = TypeVar('WebhookFnT', bound=callbacks.WebhookFn)

_MetaFilter = Mapping[str, str | handlers.MetaFilterToken | callbacks.MetaFilterFn]


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
    """Declare a handler that is called before the operator begins its work."""
    def decorator(fn: ActivityFnT) -> ActivityFnT:
        _registry(registry)._activities.append(handlers.ActivityHandler(
            id=handlers.generate_id(fn, id), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            activity=causes.Activity.STARTUP,
        ))
        return fn
    return decorator


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
    """Declare a handler that is called after the operator has ended its work."""
    def decorator(fn: ActivityFnT) -> ActivityFnT:
        _registry(registry)._activities.append(handlers.ActivityHandler(
            id=handlers.generate_id(fn, id), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            activity=causes.Activity.CLEANUP,
        ))
        return fn
    return decorator


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
    """Declare a handler that returns credentials for the API, or None if it has none."""
    def decorator(fn: ActivityFnT) -> ActivityFnT:
        _registry(registry)._activities.append(handlers.ActivityHandler(
            id=handlers.generate_id(fn, id), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            activity=causes.Activity.AUTHENTICATION,
        ))
        return fn
    return decorator


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
    """Declare a handler whose result is shown by the liveness endpoint."""
    def decorator(fn: ActivityFnT) -> ActivityFnT:
        _registry(registry)._activities.append(handlers.ActivityHandler(
            id=handlers.generate_id(fn, id), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            activity=causes.Activity.PROBE,
        ))
        return fn
    return decorator


def validate(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler that can refuse changes before they are made, by raising an error.

    By default, it is called for all operations with the objects themselves; otherwise, for these
    ``operations`` or this ``subresource`` (``"*"``: for any, and for the objects themselves).
    With ``persistent``, it stays in force while the operator does not run; with
    ``ignore_failures``, changes are accepted when the operator cannot be reached;
    ``side_effects`` tells Kubernetes that dry runs are not safe.
    """
    real_operations = _verify_operations(operation, operations)
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: WebhookFnT) -> WebhookFnT:
        _registry(registry)._webhooks.append(handlers.WebhookHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            reason='validate',
            operations=real_operations, subresource=subresource, persistent=persistent,
            side_effects=side_effects, ignore_failures=ignore_failures,
        ))
        return fn
    return decorator


def mutate(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler that can amend changes before they are made, by filling the patch.

    By default, it is called for all operations with the objects themselves; otherwise, for these
    ``operations`` or this ``subresource`` (``"*"``: for any, and for the objects themselves).
    With ``persistent``, it stays in force while the operator does not run; with
    ``ignore_failures``, changes are accepted when the operator cannot be reached;
    ``side_effects`` tells Kubernetes that dry runs are not safe.
    """
    real_operations = _verify_operations(operation, operations)
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: WebhookFnT) -> WebhookFnT:
        _registry(registry)._webhooks.append(handlers.WebhookHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            reason='mutate',
            operations=real_operations, subresource=subresource, persistent=persistent,
            side_effects=side_effects, ignore_failures=ignore_failures,
        ))
        return fn
    return decorator


def resume(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of objects that existed before the operator has started.

    It is called once for each such object in the life of the process, together with the handlers
    of creation or updates if there are any to be called. With ``deleted``, it is also called for
    the objects that are being deleted.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        _registry(registry)._changing.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            reason=None, initial=True, deleted=deleted,
        ))
        return fn
    return decorator


def create(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of new objects."""
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        _registry(registry)._changing.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            reason=causes.Reason.CREATE,
        ))
        return fn
    return decorator


def update(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of changes in existing objects, or in a field of them.

    The ``value`` is checked in both the old and new states, and either is enough.
    """
    path = _verify(labels, annotations, field, value, old, new)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        _registry(registry)._changing.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value, old=old, new=new,
            reason=causes.Reason.UPDATE, field_needs_change=True,
        ))
        return fn
    return decorator


def delete(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of objects that are being deleted.

    The deletion waits for it, unless the handler is ``optional``: then, the object can be gone
    before the handler is called, and then it is not called at all.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        _registry(registry)._changing.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            reason=causes.Reason.DELETE, requires_finalizer=not optional,
        ))
        return fn
    return decorator


def field(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of changes in a field, including its first value at creation.

    The ``value`` is checked in both the old and new states, and either is enough.
    """
    path = _verify(labels, annotations, field, value, old, new)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: ChangingFnT) -> ChangingFnT:
        _registry(registry)._changing.append(handlers.ChangingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value, old=old, new=new,
            reason=None, field_needs_change=True,
        ))
        return fn
    return decorator


def index(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
) -> Callable[[IndexingFnT], IndexingFnT]:
    """Declare a function of which the results are indexed in memory, to be read by all handlers.

    It is called for every object at the start, and then for every change of it. If the result
    is a dict, its keys are the keys of the index. The index is passed to handlers by its id.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: IndexingFnT) -> IndexingFnT:
        _registry(registry)._indexing.append(handlers.IndexingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
        ))
        return fn
    return decorator


def event(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a handler of raw events, as the API tells them: nothing is stored on the objects.

    Errors are logged, and the handler is not tried again.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: WatchingFnT) -> WatchingFnT:
        _registry(registry)._watching.append(handlers.WatchingHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
        ))
        return fn
    return decorator


def daemon(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a function that runs for each object as long as the object exists.

    It has to stop when its ``stopped`` is set. After ``cancellation_backoff``, it is cancelled
    if it is a coroutine; after ``cancellation_timeout`` more, it is abandoned;
    in the meantime, it is checked every ``cancellation_polling`` seconds.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: DaemonFnT) -> DaemonFnT:
        _registry(registry)._spawning.append(handlers.DaemonHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            requires_finalizer=True, initial_delay=initial_delay,
            cancellation_backoff=cancellation_backoff,
            cancellation_timeout=cancellation_timeout,
            cancellation_polling=cancellation_polling,
        ))
        return fn
    return decorator


def timer(
        arg1: references.SelectorFn | references.Marker | str | None = None,
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
    """Declare a function that is called for each object again and again while the object exists.

    The ``interval`` is between the end of a call and the next one; if ``sharp``, between
    the starts. With ``idle``, the object must not have changed for that long.
    """
    path = _verify(labels, annotations, field, value)
    selector = references.Selector(
        arg1, arg2, arg3,
        group=group, version=version, kind=kind, plural=plural,
        singular=singular, shortcut=shortcut, category=category,
    )

    def decorator(fn: TimerFnT) -> TimerFnT:
        _registry(registry)._spawning.append(handlers.TimerHandler(
            id=handlers.generate_id(fn, id, field=path), fn=fn, param=param,
            errors=errors, timeout=timeout, retries=retries, backoff=backoff,
            selector=selector, labels=labels, annotations=annotations, when=when,
            field=path, value=value,
            requires_finalizer=True, initial_delay=initial_delay,
            interval=interval, sharp=sharp, idle=idle,
        ))
        return fn
    return decorator


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
    Declare a sub-handler of the handler that is now running.

    The parent handler does not succeed until all its sub-handlers do; it is called again for each
    try, and has to declare the same ones again. Their ids begin with the id of the parent.

    :raises LookupError: outside of handlers of changes.
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
    Do as `subhandler` does, but with the function as an argument instead of decorating it.

    :raises LookupError: outside of handlers of changes.
    """
    return subhandler(
        id=id, param=param,
        errors=errors, timeout=timeout, retries=retries, backoff=backoff,
        labels=labels, annotations=annotations, when=when,
    )(fn)


def _registry(registry: registries.OperatorRegistry | None) -> registries.OperatorRegistry:
    return registries.get_default_registry() if registry is None else registry


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
        for key, criterion in (pattern or {}).items():
            if criterion is None:
                raise ValueError(
                    f"None is no filter for {what}, as for {key!r}: "
                    f"use kopf.PRESENT or kopf.ABSENT.")
    return path


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
    return frozenset(operations)
