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

PAUSED = 'Paused'

MAX_MESSAGE = 1000
"""How much of the errors the messages of conditions have, in characters."""


def add(
        patch: patches.Patch,
        resource: references.Resource | None,
        *,
        only_known: bool = False,
        **condition: str,
) -> None:
    """Let the patch set a condition with these fields, and its times; or change a known one."""
    is_observed = resource is not None and 'status' in resource.subresources
    now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    patch.fns.append(functools.partial(
        _set_condition, {**condition, 'lastTransitionTime': now}, is_observed, only_known))


def _set_condition(
        condition: dict[str, Any], is_observed: bool, only_known: bool, body: bodies.RawBody,
) -> None:
    content: Any = body
    status = content.get('status') or {}
    known = status.get('conditions') or []
    if only_known and all(item.get('type') != condition['type'] for item in known):
        return
    content['status'] = status
    wanted = dict(condition)
    generation = content['metadata'].get('generation')
    if is_observed and generation is not None:
        wanted['observedGeneration'] = generation
    status['conditions'] = put(known, wanted, ['type'])


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
        resource: references.Resource,
) -> None:
    """
    Set the conditions of an object after its reconciliation, as kstatus reads them.

    The problems are those of all handlers that have failed. The order is stable: the reporter comes
    first, and needs no name.
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
        add(patch, resource, type=type, status=str(is_so), reason=reason, message=text)
    add(patch, resource, only_known=True, type=PAUSED, status='False', reason=reason, message='')


def report_pause(patch: patches.Patch, message: str, *, resource: references.Resource) -> None:
    """Set the condition of a paused object. The others are left as they were before."""
    add(patch, resource, type=PAUSED, status='True', reason=PAUSED, message=message[:MAX_MESSAGE])
