"""
Filters: which handlers match a cause.

All functions depend only on their arguments; so should the callbacks of the authors. A field with
``null`` (None) counts as absent, as in Kubernetes.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kopf._cogs.structs import dicts, diffs
from kopf._core.intents import causes, handlers

HandlerT = TypeVar('HandlerT', bound=handlers.Handler)
ResourceHandlerT = TypeVar('ResourceHandlerT', bound=handlers.ResourceHandler)


class FilterError(Exception):
    """A callback in the filter of a handler has failed; ``error`` is the error of the callback."""

    def __init__(self, handler: handlers.ResourceHandler, error: Exception) -> None:
        super().__init__(f"{handler!r} has a failing filter: {error!r}")
        self.handler = handler
        self.error = error


class _Verdict(NamedTuple):
    in_scope: bool
    matching: bool


_YES = _Verdict(True, True)
_NO = _Verdict(False, False)
_FAILING = _Verdict(True, False)


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
    depends on them, because their callbacks can fail for these reasons: e.g. a filter of an update
    handler can assume that ``old`` is not None.
    """
    matching: list[handlers.ChangingHandler] = []
    failing: dict[handlers.ChangingHandler, Exception] = {}
    others: list[handlers.ChangingHandler] = []
    in_scope = needs_finalizer = False
    for handler in candidates:
        if not concerns(handler, cause):
            others.append(handler)
            continue
        try:
            verdict = _YES if handler.unfiltered else _judge(handler, cause, cause.kwargs)
        except FilterError as e:
            failing[handler] = e.error
            verdict = _FAILING
        if verdict.in_scope:
            in_scope = True
            needs_finalizer = needs_finalizer or bool(handler.requires_finalizer)
        if verdict.matching:
            matching.append(handler)
    others.sort(key=lambda handler: not handler.requires_finalizer)
    for handler in others:
        if not (needs_finalizer if handler.requires_finalizer else in_scope) and (
                _may_be_in_scope(handler, cause)):
            in_scope = True
            needs_finalizer = needs_finalizer or bool(handler.requires_finalizer)
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


def matches(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any] | None = None,
) -> bool:
    """
    Check if the handler matches the cause. The callbacks get ``kwargs``, or those of the cause.

    :raises FilterError: if any of the callbacks fails.
    """
    if (isinstance(handler, handlers.ChangingHandler) and
            isinstance(cause, causes.ChangingCause) and not concerns(handler, cause)):
        return False
    return handler.unfiltered or _judge(
        handler, cause, cause.kwargs if kwargs is None else kwargs).matching


def is_in_scope(
        handler: handlers.ChangingHandler,
        cause: causes.ChangingCause,
) -> bool:
    """
    Check if the object is in the handler's scope, for this cause or any other.

    An object is in scope if the object matches the filters now, or matched before the change. For
    handlers of changes of a field, an object is in scope if such a change can begin with the
    present state. For example, with ``field='spec.x', new=5``, all objects are in scope, because
    any object can get this value; with ``old=5``, only objects that have or had it are in scope.

    :raises FilterError: if any of the callbacks fails.
    """
    return handler.unfiltered or _judge(handler, cause, cause.kwargs).in_scope


def _may_be_in_scope(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> bool:
    try:
        return is_in_scope(handler, cause)
    except FilterError:
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
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any],
) -> _Verdict:
    """Evaluate the filters; the reason is not checked."""
    try:
        meta = cause.body.get('metadata') or {}
        if handler.labels and not _has_all(meta.get('labels'), handler.labels, kwargs):
            return _NO
        if handler.annotations and not _has_all(
                meta.get('annotations'), handler.annotations, kwargs):
            return _NO
        verdict = _YES
        if handler.field:
            verdict = (
                _judge_change(handler, cause, kwargs)
                if isinstance(handler, handlers.ChangingHandler) and
                isinstance(cause, causes.ChangingCause) else
                _judge_state(handler, cause, kwargs)
            )
        if verdict.in_scope and handler.when is not None and not handler.when(**kwargs):
            return _NO
        return verdict
    except Exception as e:
        raise FilterError(handler, e) from e


def _judge_state(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any],
) -> _Verdict:
    value = dicts.resolve(cause.body, handler.field, None)
    criterion = handlers.PRESENT if handler.value is None else handler.value
    return _YES if is_met(value, criterion, kwargs) else _NO


def _judge_change(
        handler: handlers.ChangingHandler,
        cause: causes.ChangingCause,
        kwargs: Mapping[str, Any],
) -> _Verdict:
    old = dicts.resolve(cause.old, handler.field, None)
    new = dicts.resolve(cause.body if cause.new is None else cause.new, handler.field, None)
    changed = not handler.field_needs_change or bool(diffs.diff(old, new))

    if handler.old is not None or handler.new is not None:
        was = handler.old is None or is_met(old, handler.old, kwargs)
        can_be = was or is_met(new, handler.old, kwargs)
        return _Verdict(
            in_scope=can_be,
            matching=was and changed and (
                handler.new is None or is_met(new, handler.new, kwargs)),
        )

    if handler.value is None and handler.field_needs_change:
        return _Verdict(in_scope=True, matching=changed)

    criterion = handlers.PRESENT if handler.value is None else handler.value
    is_now = is_met(new, criterion, kwargs)
    in_scope = is_now or is_met(old, criterion, kwargs)
    return _Verdict(
        in_scope=in_scope,
        matching=(in_scope and changed) if handler.field_needs_change else is_now,
    )


def _has_all(
        values: Mapping[str, str] | None,
        pattern: handlers.MetaFilter,
        kwargs: Mapping[str, Any],
) -> bool:
    values = values or {}
    return all(is_met(values.get(key), criterion, kwargs) for key, criterion in pattern.items())


def is_met(value: Any, criterion: Any, kwargs: Mapping[str, Any]) -> bool:
    """Check a value (None if absent) against a criterion of a filter, which can be a callback."""
    if criterion is handlers.PRESENT:
        return value is not None
    if criterion is handlers.ABSENT:
        return value is None
    if callable(criterion):
        return bool(criterion(value, **kwargs))
    return bool(value == criterion)
