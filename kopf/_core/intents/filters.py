"""
Matching of handlers with causes: which handlers are to be called for what has happened.

Everything here is a function of its arguments, and so are the authors' callbacks supposed to be.
None is absence, as Kubernetes has it: a field that is null is a field that is not there.
"""
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kopf._cogs.structs import dicts, diffs
from kopf._core.intents import causes, handlers

HandlerT = TypeVar('HandlerT', bound=handlers.Handler)
ResourceHandlerT = TypeVar('ResourceHandlerT', bound=handlers.ResourceHandler)


class FilterError(Exception):
    """A callback of a handler's filter has failed: see the ``__cause__``, or ``error``."""

    def __init__(self, handler: handlers.ResourceHandler, error: Exception) -> None:
        super().__init__(f"{handler!r} has a failing filter: {error!r}")
        self.handler = handler
        self.error = error


class _Verdict(NamedTuple):
    in_scope: bool
    matching: bool


_YES = _Verdict(True, True)
_NO = _Verdict(False, False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """All about one cause: in the order of declaration, every callback called once per value."""

    scoped: Sequence[handlers.ChangingHandler]
    """The handlers that have the object in their scope, as in `prematches`."""

    matching: Sequence[handlers.ChangingHandler]
    """The handlers to be called, as in `select`."""

    errors: Sequence[FilterError]
    """The handlers of which it is not known, because their filters fail."""


def survey(candidates: Iterable[handlers.ChangingHandler], cause: causes.ChangingCause) -> Survey:
    """Sort out the handlers of changes; with failures in the result instead of being raised."""
    scoped: list[handlers.ChangingHandler] = []
    matching: list[handlers.ChangingHandler] = []
    errors: list[FilterError] = []
    for handler in candidates:
        try:
            verdict = _YES if handler.unfiltered else _judge(handler, cause, cause.kwargs)
        except FilterError as e:
            errors.append(e)
            continue
        if verdict.in_scope:
            scoped.append(handler)
        if verdict.matching and concerns(handler, cause):
            matching.append(handler)
    return Survey(scoped=scoped, matching=deduplicate(matching), errors=errors)


def select(
        candidates: Iterable[ResourceHandlerT],
        cause: causes.ResourceCause,
) -> list[ResourceHandlerT]:
    """
    Get the handlers to be called, in the order of declaration, each function & id once.

    :raises FilterError: if any of the callbacks fails.
    """
    return deduplicate([handler for handler in candidates if matches(handler, cause)])


def deduplicate(candidates: list[HandlerT]) -> list[HandlerT]:
    """
    Leave only one of the handlers with the same function and the same id: the first one.

    But a function that resumes, and also handles the very change, does the latter.
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
    Check if the handler is to be called; the kwargs of callbacks are the cause's by default.

    :raises FilterError: if any of the callbacks fails.
    """
    if (isinstance(handler, handlers.ChangingHandler) and
            isinstance(cause, causes.ChangingCause) and not concerns(handler, cause)):
        return False
    return handler.unfiltered or _judge(
        handler, cause, cause.kwargs if kwargs is None else kwargs).matching


def prematches(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any] | None = None,
) -> bool:
    """
    Check if the object is in the handler's scope, whatever has happened to it.

    An object is in scope if it matches now, or did before the change. Handlers of changes
    of a field have an object in their scope when such a change can begin with its current state:
    so, if only ``new=`` or none of the values are specified, they have all the objects.

    :raises FilterError: if any of the callbacks fails.
    """
    return handler.unfiltered or _judge(
        handler, cause, cause.kwargs if kwargs is None else kwargs).in_scope


def concerns(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> bool:
    """Check if the handler is for this reason; the filters aside."""
    if handler.reason is not None:
        return handler.reason == cause.reason and (cause.initial or not handler.initial)
    if handler.initial:
        return cause.initial and (cause.reason != causes.Reason.DELETE or bool(handler.deleted))
    return not handler.field_needs_change or cause.reason != causes.Reason.DELETE


def _judge(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any],
) -> _Verdict:
    """Check everything but the reason."""
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
    return _YES if _is(value, criterion, kwargs) else _NO


def _judge_change(
        handler: handlers.ChangingHandler,
        cause: causes.ChangingCause,
        kwargs: Mapping[str, Any],
) -> _Verdict:
    old = dicts.resolve(cause.old, handler.field, None)
    new = dicts.resolve(cause.body if cause.new is None else cause.new, handler.field, None)
    changed = not handler.field_needs_change or bool(diffs.diff(old, new))

    if handler.old is not None or handler.new is not None:
        was = handler.old is None or _is(old, handler.old, kwargs)
        can_be = was or _is(new, handler.old, kwargs)
        return _Verdict(
            in_scope=can_be,
            matching=was and changed and (
                handler.new is None or _is(new, handler.new, kwargs)),
        )

    if handler.value is None and handler.field_needs_change:
        return _Verdict(in_scope=True, matching=changed)

    criterion = handlers.PRESENT if handler.value is None else handler.value
    is_now = _is(new, criterion, kwargs)
    in_scope = is_now or _is(old, criterion, kwargs)
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
    return all(_is(values.get(key), criterion, kwargs) for key, criterion in pattern.items())


def _is(value: Any, criterion: Any, kwargs: Mapping[str, Any]) -> bool:
    if criterion is handlers.PRESENT:
        return value is not None
    if criterion is handlers.ABSENT:
        return value is None
    if callable(criterion):
        return bool(criterion(value, **kwargs))
    return bool(value == criterion)
