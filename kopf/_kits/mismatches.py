"""
Mismatches: why a handler does not match an object, in words.

`filters` decides, but without words, since it is called for each state of each object. This module
finds the words for its results.
"""
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import concealing
from kopf._core.actions import execution
from kopf._core.intents import causes, filters, handlers, typedargs

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
    causes.Reason.NOOP: 'nothing has changed (the status does not count)',
}


NAMES: Mapping[str, str] = {
    'labels': "the label {key!r}",
    'annotations': "the annotation {key!r}",
    'field': "the field {field}",
    'old': "the field {field} (before)",
    'new': "the field {field} (now)",
}

MAX_SHOWN = 80
"""How many characters of a value are shown."""


def find(handler: handlers.ResourceHandler, cause: causes.ResourceCause) -> str | None:
    """
    Find the first criterion that the object does not meet; None if the handler matches.

    A filter function that raises an error is also a mismatch.
    """
    try:
        mismatch = filters.find_mismatch(handler, cause)
    except filters.FilterError as e:
        return f"its filter fails: {e.error!r}"
    if mismatch is None:
        return _find_misfit(handler, cause)
    sort, path, value, criterion = mismatch
    field = '.'.join(path)
    value = concealing.conceal_value(value, path, cause.resource)
    match sort:
        case 'reason':
            assert isinstance(handler, handlers.ChangingHandler)
            assert isinstance(cause, causes.ChangingCause)
            return _describe_reason(handler, cause)
        case 'when':
            return f"when={_name(criterion)} returns false"
        case 'change':
            return f"the field {field} has not changed: {_show(value)}"
    what = NAMES[sort].format(field=field, key=path[-1])
    return f"{what} {_describe_value(value, criterion)}"


def _find_misfit(handler: handlers.ResourceHandler, cause: causes.ResourceCause) -> str | None:
    """Say why the object does not fit the types; handlers of changes are held instead."""
    if handler.arguments is not None and not isinstance(handler, handlers.ChangingHandler):
        try:
            typedargs.decode(handler.arguments, cause.kwargs, cause.decoded)
        except typedargs.MisfitError as e:
            return execution.describe_misfit(e)
    return None


def _describe_reason(handler: handlers.ChangingHandler, cause: causes.ChangingCause) -> str:
    if handler.initial and not cause.initial:
        return "it is for resuming: for objects that exist when the operator starts"
    if handler.initial:
        return "it is not for objects that are being deleted, as deleted=True is not set"
    nouns = 'changes' if handler.reason is None else NOUNS[handler.reason]
    return f"it is for {nouns}, but {OCCASIONS[cause.reason]}"


def _describe_value(value: Any, criterion: Any) -> str:
    actual = "is absent" if value is None else f"is {_show(value)}"
    if criterion is handlers.PRESENT:
        return actual
    if criterion is handlers.ABSENT:
        return f"{actual}, but must be absent"
    if callable(criterion):
        return f"{actual}, for which {_name(criterion)} returns false"
    return f"{actual}, but must be {_show(criterion)}"


def _name(fn: Any) -> str:
    return str(getattr(fn, '__qualname__', repr(fn)))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}…'
