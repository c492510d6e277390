"""
Conditions in the status of objects, by the conventions of the Kubernetes API.

See "Typical status properties" in the API conventions of Kubernetes, and the kstatus of its CLI
utilities for ``Ready``, ``Reconciling``, and ``Stalled``.
"""
import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.structs import bodies, ids, patches, references

PAUSED = {'type': 'Paused', 'reason': 'PausedByAnnotation'}
"""The condition of paused objects. Authors can have another one of the same type."""

REASON = r'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?'
"""What reasons Kubernetes allows: ``metav1.Condition``."""

MAX_MESSAGE = 1000
"""How much of the errors the messages of conditions have, in characters."""


def observe(resource: references.Resource | None, raw: Mapping[str, Any]) -> int | None:
    """
    Get the generation of the state that a condition is about. None if generations say nothing:
    without the subresource, each write of the status makes a new generation.
    """
    is_observed = resource is not None and 'status' in resource.subresources
    return bodies.get_raw(raw)['metadata'].get('generation') if is_observed else None


def add(patch: patches.Patch, *, observed: int | None, **condition: str) -> None:
    """
    Let the patch set a condition with these fields, its times, and the ``observed`` generation: the
    object can have a newer generation when the patch is sent.
    """
    now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    wanted: dict[str, Any] = {**condition, 'lastTransitionTime': now}
    if observed is not None:
        wanted['observedGeneration'] = observed
    patch.fns.append(functools.partial(_set_condition, wanted))


def _set_condition(condition: Mapping[str, Any], body: bodies.RawBody) -> None:
    content: Any = body
    status = content.get('status')
    if status is None:
        status = content['status'] = {}
    status['conditions'] = put(status.get('conditions') or [], condition, ['type'])


def put(
        known: Sequence[Mapping[str, Any]], item: Mapping[str, Any], keys: Sequence[str],
) -> list[Mapping[str, Any]]:
    """
    Merge an item into a list by keys, such as a condition, whose key is the type.

    The time of the last transition changes only with the status.
    """
    for number, old in enumerate(known):
        if all(old.get(key) == item.get(key) for key in keys):
            merged = {**old, **item}
            if old.get('status') == item.get('status') and 'lastTransitionTime' in old:
                merged['lastTransitionTime'] = old['lastTransitionTime']
            return [*known[:number], merged, *known[number + 1:]]
    return [*known, item]


class Problems(NamedTuple):
    """Why a handler has failed to reconcile an object."""
    messages: tuple[str, ...]
    is_stalled: bool
    """Whether the handler has failed permanently."""


def report(
        patch: patches.Patch,
        problems: Mapping[ids.HandlerId, Problems],
        *,
        reporter: ids.HandlerId,
        observed: int | None,
) -> None:
    """
    Set the conditions of an object after its reconciliation, as kstatus reads them.

    The ``observed`` generation is that of the state that was reconciled. The problems are those of
    all handlers that have failed. The order is stable: the reporter comes first, and needs no name.
    """
    messages = [
        message if id_ == reporter else f"{id_}: {message}"
        for id_ in sorted(problems, key=lambda id_: (id_ != reporter, id_))
        for message in problems[id_].messages]
    message = '; '.join(messages)[:MAX_MESSAGE]
    is_stalled = any(found.is_stalled for found in problems.values())
    is_retrying = bool(problems) and not is_stalled
    reason = 'Failed' if is_stalled else 'Retrying' if is_retrying else 'Reconciled'
    values = {'Ready': not problems, 'Reconciling': is_retrying, 'Stalled': is_stalled}
    for type, is_so in values.items():
        text = message if is_so or type == 'Ready' else ''
        add(patch, observed=observed, type=type, status=str(is_so), reason=reason, message=text)
    patch.fns.append(_end_pause)


def report_pause(patch: patches.Patch, message: str, *, observed: int | None) -> None:
    """
    Set the condition of a paused object, until the next `report`. Other conditions stay.
    """
    add(patch, observed=observed, status='True', message=message[:MAX_MESSAGE], **PAUSED)


def _end_pause(body: bodies.RawBody) -> None:
    """Remove the condition: an operator that does not run during a pause would not set it."""
    status: Any = body.get('status')
    known = (status or {}).get('conditions') or []
    left = [item for item in known if any(item.get(key) != PAUSED[key] for key in PAUSED)]
    if len(left) < len(known):
        status['conditions'] = left
