"""
Decisions: what an object's state means, compared with what was last handled.

Pure functions: no I/O, no time, no logging.
"""
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs
from kopf._core.intents import causes


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A state of an object, as change detection sees it."""
    raw: bodies.RawBody
    body: bodies.Body
    essence: bodies.BodyEssence
    old: bodies.BodyEssence | None
    """The last-handled essence; None if the object was never handled."""
    deleting: bool
    blocked: bool
    """Whether our own finalizer is on the object."""


def look(
        raw: bodies.RawBody,
        *,
        settings: configuration.OperatorSettings,
        extra_fields: Iterable[dicts.FieldPath],
) -> View:
    """
    Reduce an object to what matters.

    :raises ValueError: if the last-handled state is there, but not readable.
    """
    body = bodies.Body(raw)
    persistence = settings.persistence
    essence = build_essence(body, settings=settings, extra_fields=extra_fields)
    old = persistence.diffbase_storage.fetch(body=body)
    if old is not None:
        old = persistence.progress_storage.clear(essence=old)
    return View(
        raw=raw,
        body=body,
        essence=essence,
        old=old,
        deleting=is_deleting(raw),
        blocked=is_blocked(raw, settings.persistence.finalizer),
    )


def build_essence(
        body: bodies.Body,
        *,
        settings: configuration.OperatorSettings,
        extra_fields: Iterable[dicts.FieldPath],
) -> bodies.BodyEssence:
    persistence = settings.persistence
    essence = persistence.diffbase_storage.build(body=body, extra_fields=extra_fields)
    return persistence.progress_storage.clear(essence=essence)


def is_deleting(raw: Mapping[str, Any]) -> bool:
    return raw['metadata'].get('deletionTimestamp') is not None


def is_blocked(raw: Mapping[str, Any], finalizer: str) -> bool:
    return finalizer in (raw['metadata'].get('finalizers') or ())


def detect(view: View, *, initial: bool) -> tuple[causes.Reason, diffs.Diff]:
    """The cause of handling, and the changes since the last one."""
    diff = diffs.diff(view.old, view.essence)
    if view.deleting:
        return (causes.Reason.DELETE if view.blocked else causes.Reason.FREE), diff
    if view.old is None:
        return causes.Reason.CREATE, diff
    if diff:
        return causes.Reason.UPDATE, diff
    return (causes.Reason.RESUME if initial else causes.Reason.NOOP), diff


def with_finalizer(raw: bodies.RawBody, finalizer: str) -> bodies.RawBody:
    finalizers = [*(raw['metadata'].get('finalizers') or ()), finalizer]
    return _with_finalizers(raw, finalizers)


def without_finalizer(raw: bodies.RawBody, finalizer: str) -> bodies.RawBody:
    finalizers = [key for key in raw['metadata'].get('finalizers') or () if key != finalizer]
    return _with_finalizers(raw, finalizers)


def _with_finalizers(raw: bodies.RawBody, finalizers: list[str]) -> bodies.RawBody:
    meta: dict[str, Any] = {**raw['metadata'], 'finalizers': finalizers}
    if not finalizers:
        del meta['finalizers']
    return cast(bodies.RawBody, {**raw, 'metadata': meta})
