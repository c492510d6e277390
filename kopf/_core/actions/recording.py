"""
Records of a handling cycle on its object: the progress of handlers, and the states they have seen.

These functions read bodies and make patches; they do no I/O. The storages in the settings decide
where the records are. Authors can write their own storages.
"""
import enum
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import capacity, compaction, configuration, conventions, diffbase, progress
from kopf._cogs.structs import bodies, ids, patches
from kopf._core.actions import cycles, essences, progression
from kopf._core.intents import causes, handlers

VERSION = 1
"""The version of the format of the records of cycles. Records of other versions are ignored."""

MAX_LENGTH = 100_000
"""
The longest record of a cycle. Longer ones are not stored.

Kubernetes limits all annotations of an object to 256 KiB together.
"""


class SeenStates(NamedTuple):
    """The states that handlers have seen, besides the last-handled state: see `cycles`."""
    base: bodies.BodyEssence | None = None
    divergent: bodies.BodyEssence | None = None


MAX_MESSAGES = 16 * 1024
"""How many bytes of UTF-8 the messages of all handlers have together in the records, about."""

MAX_MESSAGE, MIN_MESSAGE = 2 * 1024, 64
"""How many bytes of UTF-8 the message of a handler can have, depending on how many there are."""


class Scope(enum.IntEnum):
    """How much of a cycle is recorded: the most for which there is room in the annotations."""
    NOTHING = 0
    HANDLERS = 1
    """The progress of the handlers, without their messages."""
    MESSAGES = 2
    """The progress of the handlers."""
    SIGHTINGS = 3
    """That, and the states that the handlers have seen."""


class Progress(NamedTuple):
    """A patch with the records of an unfinished cycle."""
    patch: patches.Patch
    repeated: frozenset[ids.HandlerId]
    """
    The handlers that the next process calls again from the first attempt.

    Their progress is not recorded, because that, or the states that they have seen, is too large.
    """


def fetch_state(
        handler_id: ids.HandlerId,
        *,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        now: clocks.Moment,
) -> progression.HandlerState | None:
    """
    Read the recorded progress of a handler.

    :raises ValueError: if the record is not readable.
    """
    record = settings.persistence.progress_storage.fetch(key=handler_id, body=body)
    return progression.HandlerState.from_record(record, now=now) if record else None


def fetch_all(
        handler_ids: Iterable[ids.HandlerId],
        *,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        states: Mapping[ids.HandlerId, progression.HandlerState] = {},
) -> Mapping[ids.HandlerId, object]:
    """
    Read the records of the handlers and of all of their sub-handlers, as they are.

    The records of handlers with known ``states`` are not read: they are None. If a previous process
    has called the sub-handlers of a finished handler, only the records on the object name them.
    """
    found: dict[ids.HandlerId, object] = {}
    queue = [*handler_ids, *states]
    for handler_id in queue:  # it grows meanwhile
        if handler_id in found:
            continue
        record, state = None, states.get(handler_id)
        if state is None:
            record = settings.persistence.progress_storage.fetch(key=handler_id, body=body)
        found[handler_id] = record
        queue.extend(map(
            ids.HandlerId, _get_subrefs(record or {}) if state is None else state.subrefs))
    return found


def restore(
        declared: Collection[handlers.ChangingHandler],
        *,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        now: clocks.Moment,
        initial: bool = False,
        called: Collection[ids.HandlerId] = (),
) -> cycles.Cycle | None:
    """
    Restore the cycle that another process, e.g. before a restart, has recorded on the object.

    If the object is ``initial``, i.e. not resumed yet by this process, then the resuming handlers
    that other processes have called are called again, but not those that this process has
    ``called``.

    :raises ValueError: if a record is not readable.
    """
    resuming = {handler.id for handler in declared if handler.initial and initial} - {*called}
    found = {
        handler.id: state.anew(now=now) if state.finished and handler.id in resuming else state
        for handler in declared
        if (state := fetch_state(handler.id, body=body, settings=settings, now=now)) is not None}
    seen = fetch_seen(body, settings=settings)
    if not found and seen is None and (
            settings.persistence.progress_storage.touched(body=body) is None):
        return None
    seen = seen or SeenStates()
    purpose = next(iter(found.values())).purpose if found else None
    return cycles.Cycle(
        reason=causes.Reason(purpose or causes.Reason.NOOP),
        states=progression.State(found),
        roots=frozenset(found),
        has_records=True,
        base=seen.base if found else None,
        divergent=seen.divergent,
    )


def find_unknown(
        declared: Iterable[handlers.ChangingHandler],
        *,
        purpose: causes.Reason,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
) -> Sequence[str]:
    """
    Find the annotations with the progress for this purpose of handlers that are not declared.

    Only annotations with the prefixes of the storage are found. Sub-handlers are not: they belong
    to their parents.
    """
    annotations: Mapping[str, str] = (body.get('metadata') or {}).get('annotations') or {}
    written = [item for item in annotations.items() if '"started"' in item[1]]
    if not written:  # most objects have only their last-handled state
        return []
    storage, found = settings.persistence.progress_storage, set[str]()
    for item in progress.iter_annotating(storage):
        records = {
            key: record for key, value in written
            if key.startswith(f'{item.prefix}/') and (record := parse_record(value))}
        own = {key for handler in declared for key in item.make_keys(handler.id, body=body)}
        unknown = {
            key for key, record in records.items() if record.get('purpose') == purpose
            and key not in own and not any(key.startswith(f'{name}.') for name in own)}
        found |= unknown - {
            key for record in records.values() for ref in _get_subrefs(record)
            for key in item.make_keys(ref, body=body)}
    return sorted(found)


def parse_record(value: str) -> progress.ProgressRecord | None:
    """Parse an annotation if it is the record of a handler, of any operator; else, None."""
    try:
        record: progress.ProgressRecord = json.loads(value) if value.startswith('{') else {}
    except (ValueError, RecursionError):
        return None
    return record if 'started' in record else None


def _get_subrefs(record: Mapping[str, Any]) -> Iterable[str]:
    subrefs = record.get('subrefs')
    return [ref for ref in subrefs if isinstance(ref, str)] if isinstance(subrefs, list) else []


def make_progress(
        cycle: cycles.Cycle,
        *,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        expected: bodies.BodyEssence,
        contributed: Iterable[patches.Patch],
) -> Progress:
    """
    Record an unfinished cycle.

    ``contributed`` are the patches that are sent together with the record. ``expected`` is the
    essence of the object after these patches.
    """
    storage = settings.persistence.progress_storage
    encoded: str | None = None
    if cycle.reason in cycles.CHANGES:
        base = None if cycle.base is None else essences.advance(cycle.base, contributed, expected)
        since = settings.persistence.diffbase_storage.fetch(body=body)
        encoded = encode_seen(SeenStates(base, cycle.divergent), since=since)
    for scope in reversed(Scope):
        if scope == Scope.SIGHTINGS and len(encoded or '') > MAX_LENGTH:
            continue
        made = _make_progress(cycle, scope, encoded, body=body, storage=storage)
        after = {**conventions.get_annotations(body), **conventions.get_annotations(made.patch)}
        if capacity.count_annotations(after) <= capacity.MAX_ANNOTATIONS:
            break
    storage.flush()
    return made


def _make_progress(
        cycle: cycles.Cycle,
        scope: Scope,
        encoded: str | None,
        *,
        body: bodies.Body,
        storage: progress.ProgressStorage,
) -> Progress:
    patch = patches.Patch()
    repeated: frozenset[ids.HandlerId] = frozenset()
    if scope == Scope.NOTHING:
        repeated = frozenset(cycle.states)
    elif scope < Scope.SIGHTINGS and encoded is not None:
        repeated = frozenset(id_ for id_, state in cycle.states.items() if state.finished)
    if cycle.reason in cycles.CHANGES:
        value = encoded if scope == Scope.SIGHTINGS else None
        if value != storage.fetch_cycle(body=body):
            storage.store_cycle(body=body, patch=patch, value=value)
    failing = sum(state.message is not None for state in cycle.states.values())
    max_message = 0 if scope < Scope.MESSAGES else (
        max(MIN_MESSAGE, min(MAX_MESSAGE, MAX_MESSAGES // (failing or 1))))
    for handler_id, state in cycle.states.items():
        if handler_id in repeated:
            storage.purge(key=handler_id, body=body, patch=patch)
        elif handler_id in cycle.unsaved or not state.attempts or (
                not state.subrefs.isdisjoint(cycle.unsaved)):
            record = state.as_record(max_message=max_message)
            storage.store(key=handler_id, record=record, body=body, patch=patch)
    return Progress(patch, repeated)


def make_closing(
        cycle: cycles.Cycle,
        handler_ids: Iterable[ids.HandlerId],
        *,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
        conclusion: cycles.Conclusion | None = None,
) -> patches.Patch:
    """
    Remove all records of a cycle that ends; record the divergent state for the next cycle.

    The object can have records of a former process that came after the beginning of this cycle.
    """
    patch = patches.Patch()
    storage = settings.persistence.progress_storage
    encoded = None if conclusion is None else _encode_divergent(conclusion)
    known = storage.fetch_cycle(body=body)
    if encoded != known:
        storage.store_cycle(body=body, patch=patch, value=encoded)
    if cycle.has_records or known is not None:
        for handler_id in fetch_all(handler_ids, body=body, settings=settings, states=cycle.states):
            storage.purge(key=handler_id, body=body, patch=patch)
        if storage.touched(body=body) is not None:
            storage.touch(body=body, patch=patch, value=None)
        storage.flush()
    return patch


def is_committed(
        conclusion: cycles.Conclusion,
        *,
        old: bodies.BodyEssence | None,
        body: bodies.Body,
        settings: configuration.OperatorSettings,
) -> bool:
    """Whether the object has this conclusion: if so, the closing PATCH has been applied."""
    expected = None if conclusion.divergent is None else SeenStates(divergent=conclusion.divergent)
    return old == conclusion.base and fetch_seen(body, settings=settings) == expected


def is_too_large(conclusion: cycles.Conclusion, *, body: bodies.Body) -> bool:
    """Whether the divergent state is too large for a record beside the annotations of others."""
    encoded = _encode_divergent(conclusion)
    if encoded is None:
        return False
    taken = capacity.count_annotations(
        conventions.get_foreign_annotations(body.metadata.annotations))
    return len(encoded) > min(capacity.MAX_ANNOTATIONS - diffbase.RESERVE - taken, MAX_LENGTH)


def fetch_seen(body: bodies.Body, *, settings: configuration.OperatorSettings) -> SeenStates | None:
    """
    Read the states that handlers have seen; None if there is no record.

    The result is empty for records of other versions, for damaged ones, and for outdated ones. A
    record is outdated if the last-handled state has changed since: another operator has handled
    the object.
    """
    encoded = settings.persistence.progress_storage.fetch_cycle(body=body)
    if encoded is None:
        return None
    try:
        record = json.loads(encoded)
        if record['version'] != VERSION or record['since'] != _fingerprint(
                settings.persistence.diffbase_storage.fetch(body=body)):
            return SeenStates()
        return SeenStates(*(
            essences.strip(compaction.unpack(record[key])) if record.get(key) is not None else None
            for key in SeenStates._fields))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return SeenStates()


def encode_seen(seen: SeenStates, *, since: bodies.BodyEssence | None) -> str | None:
    """Make a record; None if nothing was seen. ``since`` is the current last-handled state."""
    if seen.base is None and seen.divergent is None:
        return None
    states = {key: val for key, val in seen._asdict().items() if val is not None}
    record: dict[str, Any] = {'version': VERSION, 'since': _fingerprint(since), **states}
    encoded = compaction.encode(record)
    if compaction.has_digests(states, encoded):
        record.update((key, compaction.mark(essence)) for key, essence in states.items())
        encoded = compaction.encode(record)
    return encoded


def _encode_divergent(conclusion: cycles.Conclusion) -> str | None:
    return encode_seen(SeenStates(divergent=conclusion.divergent), since=conclusion.base)


def _fingerprint(essence: bodies.BodyEssence | None) -> str:
    return compaction.digest(essence)[-16:]
