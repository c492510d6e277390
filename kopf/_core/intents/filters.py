"""
Filters: which handlers match a cause.

All functions depend only on their arguments; so should the callbacks of the authors. A field with
``null`` (None) counts as absent, as in Kubernetes.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kopf._cogs.structs import bodies, dicts, diffs
from kopf._core.intents import causes, handlers

HandlerT = TypeVar('HandlerT', bound=handlers.Handler)

Mismatch = tuple[str, dicts.FieldPath, Any, Any]
"""
The criterion that an object does not meet: its sort, the field, the value, and the criterion.

It is a bare tuple, and has no words, because it is made for each state of each object. Only when
somebody asks, the words are made of it.
"""

OTHER_REASON: Mismatch = ('reason', (), None, None)
"""The handler is for other reasons than that of the cause."""


class FilterError(Exception):
    """A callback in the filter of a handler has failed; ``error`` is the error of the callback."""

    def __init__(self, handler: handlers.ResourceHandler, error: Exception) -> None:
        super().__init__(f"{handler!r} has a failing filter: {error!r}")
        self.handler = handler
        self.error = error


class Selection(NamedTuple):
    """The handlers of an object for one cause, in the order of declaration."""

    handlers: Sequence[handlers.ChangingHandler]
    """The matching handlers, each pair of a function and an id once; and then the failing ones."""

    in_scope: bool
    """
    Whether any handler is for this object, for this cause or another one (see `is_in_scope`), or a
    filter has failed.
    """

    needs_finalizer: bool
    """Whether any handler in scope must be called before the object disappears."""

    failing: Mapping[handlers.ChangingHandler, Exception] = {}
    """The handlers whose filters have failed, with the errors of their callbacks."""


def select(
        candidates: Iterable[handlers.ChangingHandler], cause: causes.ChangingCause,
) -> Selection:
    """
    Select the handlers for the cause, and find whether any handlers are for the object.

    The filters of handlers for other reasons are evaluated only if the finalizer or the scope
    depends on them, because their callbacks can fail for the reason of the cause: e.g. a filter of
    an update handler can assume that ``old`` is not None.
    """
    matching: list[handlers.ChangingHandler] = []
    failing: dict[handlers.ChangingHandler, Exception] = {}
    others: list[handlers.ChangingHandler] = []
    in_scope = needs_finalizer = is_creation = False
    for handler in candidates:
        if not concerns(handler, cause):
            others.append(handler)
            continue
        is_creation = is_creation or handler.reason == causes.Reason.CREATE
        try:
            is_scoped, mismatch = (True, None) if handler.unfiltered else _judge(handler, cause)
        except FilterError as e:
            failing[handler] = e.error
            is_scoped = True
        else:
            if mismatch is None:
                matching.append(handler)
        if is_scoped:
            in_scope = True
            needs_finalizer = needs_finalizer or bool(handler.requires_finalizer)
    others.sort(key=lambda handler: not handler.requires_finalizer)
    for handler in others:
        if not (needs_finalizer if handler.requires_finalizer else in_scope) and (
                is_in_scope(handler, cause)):
            in_scope = True
            needs_finalizer = needs_finalizer or bool(handler.requires_finalizer)
    if not in_scope and not is_creation and cause.reason == causes.Reason.CREATE:
        in_scope = any(_awaits_addition(handler, cause) for handler in others)
    return Selection([*deduplicate(matching), *failing], in_scope, needs_finalizer, failing)


def deduplicate(candidates: list[HandlerT]) -> list[HandlerT]:
    """
    Keep only the first one of the handlers with the same function and the same id.

    Exception: a handler of the change is preferred to a resuming handler. For example, a function
    with ``@kopf.on.resume`` and ``@kopf.on.update`` is called once for an update, as the latter.
    """
    if len(candidates) < 2:
        return candidates
    unique: dict[object, HandlerT] = {}
    for handler in candidates:
        known = unique.setdefault(handler.key, handler)
        if getattr(known, 'initial', None) and not getattr(handler, 'initial', None):
            unique[handler.key] = handler
    return list(unique.values())


def matches(handler: handlers.ResourceHandler, cause: causes.ResourceCause) -> bool:
    """
    Check if the handler matches the cause.

    :raises FilterError: if any of the callbacks fails.
    """
    return find_mismatch(handler, cause) is None


def find_mismatch(
        handler: handlers.ResourceHandler, cause: causes.ResourceCause,
) -> Mismatch | None:
    """
    Find the first criterion that the object does not meet; None if the handler matches the cause.

    :raises FilterError: if any of the callbacks fails.
    """
    if (isinstance(handler, handlers.ChangingHandler) and
            isinstance(cause, causes.ChangingCause) and not concerns(handler, cause)):
        return OTHER_REASON
    return None if handler.unfiltered else _judge(handler, cause)[1]


def is_in_scope(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> bool:
    """
    Check if the object is in the handler's scope, for this cause or any other.

    An object is in scope if the object matches the filters now, or matched before the change; or if
    a callback fails. Of the criteria for a field, only ``value`` is checked, by default `PRESENT`:
    the value now or before the change must match; for handlers that need the finalizer, the value
    now. ``old`` and ``new`` are not checked. For ``@kopf.on.field`` without criteria, all objects
    are in scope.
    """
    try:
        return handler.unfiltered or _judge(handler, cause)[0]
    except FilterError:
        return True


def _awaits_addition(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> bool:
    """
    Check if the object would be in scope of this update handler if it had the field.

    When the field is added later, this must be an update. If there are creation handlers, these are
    called instead, because the object comes in scope only then.
    """
    if handler.reason != causes.Reason.UPDATE or handler.field is None or handler.value is not None:
        return False
    try:
        _, mismatch = _judge(handler, cause)
        return mismatch is not None and mismatch[0] == 'field' and (
            handler.when is None or bool(handler.when(**cause.kwargs)))
    except Exception:
        return True


def concerns(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> bool:
    """Check if the handler is for the reason of the cause. Filters are not evaluated."""
    if handler.reason is not None:
        return handler.reason == cause.reason
    if handler.initial:
        return cause.initial and (cause.reason != causes.Reason.DELETE or bool(handler.deleted))
    return not handler.field_needs_change or cause.reason in (
        causes.Reason.CREATE, causes.Reason.UPDATE)


def _judge(
        handler: handlers.ResourceHandler, cause: causes.ResourceCause,
) -> tuple[bool, Mismatch | None]:
    """
    Evaluate the filters: whether the object is in scope, and the first mismatch, if there is any.

    The reason is not checked.
    """
    kwargs = cause.kwargs
    try:
        if handler.labels or handler.annotations:
            meta = bodies.get_raw(cause.body).get('metadata') or {}
            for stanza, pattern in (
                    ('labels', handler.labels), ('annotations', handler.annotations)):
                values = meta.get(stanza) or {}
                for key, criterion in pattern.items() if pattern else ():
                    value = values.get(key)
                    if not is_met(value, criterion, kwargs):
                        return False, (stanza, ('metadata', stanza, key), value, criterion)
        in_scope, mismatch = True, None
        if handler.field:
            if isinstance(handler, handlers.ChangingHandler) and (
                    isinstance(cause, causes.ChangingCause)):
                in_scope, mismatch = _judge_change(handler, handler.field, cause, kwargs)
            else:
                value = dicts.resolve(bodies.get_raw(cause.body), handler.field, None)
                criterion = handlers.PRESENT if handler.value is None else handler.value
                if not is_met(value, criterion, kwargs):
                    return False, ('field', handler.field, value, criterion)
        if in_scope and handler.when is not None and not handler.when(**kwargs):
            return False, mismatch or ('when', (), None, handler.when)
        return in_scope, mismatch
    except Exception as e:
        raise FilterError(handler, e) from e


def _judge_change(
        handler: handlers.ChangingHandler,
        field: dicts.FieldPath,
        cause: causes.ChangingCause,
        kwargs: Mapping[str, Any],
) -> tuple[bool, Mismatch | None]:
    old = dicts.resolve(cause.old, field, None)
    new = dicts.resolve(bodies.get_raw(cause.body) if cause.new is None else cause.new, field, None)
    is_same = handler.field_needs_change and not diffs.diff(old, new)
    unchanged: Mismatch | None = ('change', field, new, None) if is_same else None

    criterion = handlers.PRESENT if handler.value is None else handler.value
    is_fitting = is_met(new, criterion, kwargs)
    in_scope = is_fitting or handler.is_for_all or (  # no deletion is of a former state
        not handler.requires_finalizer and is_met(old, criterion, kwargs))
    if handler.field_needs_change:
        is_fitting = in_scope
    if handler.old is not None and not is_met(old, handler.old, kwargs):
        return in_scope, ('old', field, old, handler.old)
    if unchanged is None and handler.new is not None and not is_met(new, handler.new, kwargs):
        return in_scope, ('new', field, new, handler.new)
    return in_scope, unchanged if is_fitting else ('field', field, new, criterion)


def is_met(value: Any, criterion: Any, kwargs: Mapping[str, Any]) -> bool:
    """Check a value (None if absent) against a criterion of a filter, which can be a callback."""
    if criterion is handlers.PRESENT:
        return value is not None
    if criterion is handlers.ABSENT:
        return value is None
    if callable(criterion):
        return bool(criterion(value, **kwargs))
    return bool(value == criterion)
