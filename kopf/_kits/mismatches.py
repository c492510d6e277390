"""
Mismatches: why a handler does not match an object, in words.

The verdicts are those of `filters`, which decides without words, since it is called for each state
of each object. Tests hold that both always agree.
"""
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import concealing, dicts, diffs
from kopf._core.intents import causes, filters, handlers

NOUNS: Mapping[causes.Reason, str] = {
    causes.Reason.CREATE: 'creations',
    causes.Reason.UPDATE: 'updates',
    causes.Reason.DELETE: 'deletions',
    causes.Reason.RESUME: 'resuming',
}

OCCASIONS: Mapping[causes.Reason, str] = {
    causes.Reason.CREATE: 'this is a creation',
    causes.Reason.UPDATE: 'this is an update',
    causes.Reason.DELETE: 'this is a deletion',
    causes.Reason.RESUME: 'nothing has changed',
    causes.Reason.NOOP: 'nothing has changed',
}


def find(handler: handlers.ResourceHandler, cause: causes.ResourceCause) -> str | None:
    """
    Find the first criterion that the object does not meet; None if the handler matches.

    A callback that raises an error is a mismatch, too.
    """
    if isinstance(handler, handlers.ChangingHandler) and (
            isinstance(cause, causes.ChangingCause) and not filters.concerns(handler, cause)):
        return _describe_reason(handler, cause)
    try:
        return _find(handler, cause, cause.kwargs)
    except filters.FilterError as e:
        return f"its filter fails: {e.error!r}"


def _find(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any],
) -> str | None:
    meta = cause.body.get('metadata') or {}
    for what in ('labels', 'annotations'):
        for key, criterion in (getattr(handler, what) or {}).items():
            value = (meta.get(what) or {}).get(key)
            if not _check(handler, value, criterion, kwargs):
                shown = concealing.conceal_value(value, ('metadata', what, key), cause.resource)
                return _describe_value(f"the {what.removesuffix('s')} {key!r}", shown, criterion)
    if handler.field:
        found = (
            _find_in_change(handler, cause, kwargs)
            if isinstance(handler, handlers.ChangingHandler) and
            isinstance(cause, causes.ChangingCause) else
            _find_in_state(handler, cause, kwargs))
        if found is not None:
            return found
    if handler.when is not None:
        try:
            matches = bool(handler.when(**kwargs))
        except Exception as e:
            raise filters.FilterError(handler, e) from e
        if not matches:
            return f"when={_name(handler.when)} returns false"
    return None


def _find_in_state(
        handler: handlers.ResourceHandler,
        cause: causes.ResourceCause,
        kwargs: Mapping[str, Any],
) -> str | None:
    value = dicts.resolve(cause.body, handler.field, None)
    criterion = handlers.PRESENT if handler.value is None else handler.value
    if _check(handler, value, criterion, kwargs):
        return None
    return _describe_value(_name_field(handler), _conceal(handler, cause, value), criterion)


def _find_in_change(
        handler: handlers.ChangingHandler,
        cause: causes.ChangingCause,
        kwargs: Mapping[str, Any],
) -> str | None:
    field = _name_field(handler)
    old = dicts.resolve(cause.old, handler.field, None)
    new = dicts.resolve(cause.body if cause.new is None else cause.new, handler.field, None)
    if handler.old is not None or handler.new is not None:
        for value, criterion, when in ((old, handler.old, 'before'), (new, handler.new, 'now')):
            if criterion is not None and not _check(handler, value, criterion, kwargs):
                return _describe_value(
                    f"{field} ({when})", _conceal(handler, cause, value), criterion)
    elif handler.value is not None or not handler.field_needs_change:
        criterion = handlers.PRESENT if handler.value is None else handler.value
        is_met = _check(handler, new, criterion, kwargs)
        if not is_met and not (
                handler.field_needs_change and _check(handler, old, criterion, kwargs)):
            return _describe_value(field, _conceal(handler, cause, new), criterion)
    if handler.field_needs_change and not diffs.diff(old, new):
        return f"{field} has not changed: {_show(_conceal(handler, cause, new))}"
    return None


def _check(
        handler: handlers.ResourceHandler,
        value: Any,
        criterion: Any,
        kwargs: Mapping[str, Any],
) -> bool:
    try:
        return filters.is_met(value, criterion, kwargs)
    except Exception as e:
        raise filters.FilterError(handler, e) from e


def _describe_reason(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> str:
    if handler.initial and not cause.initial:
        return "it is for resuming: for objects that exist when the operator starts"
    if handler.initial:
        return "it is not for objects that are being deleted, as deleted=True is not set"
    nouns = 'changes' if handler.reason is None else NOUNS[handler.reason]
    return f"it is for {nouns}, but {OCCASIONS[cause.reason]}"


def _describe_value(what: str, value: Any, criterion: Any) -> str:
    actual = "is absent" if value is None else f"is {_show(value)}"
    if criterion is handlers.PRESENT:
        return f"{what} {actual}"
    if criterion is handlers.ABSENT:
        return f"{what} {actual}, but must be absent"
    if callable(criterion):
        return f"{what} {actual}, for which {_name(criterion)} returns false"
    return f"{what} {actual}, but must be {_show(criterion)}"


def _conceal(
        handler: handlers.ResourceHandler, cause: causes.ResourceCause, value: Any,
) -> Any:
    return concealing.conceal_value(value, handler.field or (), cause.resource)


def _name_field(handler: handlers.ResourceHandler) -> str:
    return f"the field {'.'.join(handler.field or ())}"


def _name(fn: Any) -> str:
    return str(getattr(fn, '__qualname__', repr(fn)))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}…'


MAX_SHOWN = 80
"""How many characters of a value are shown."""
