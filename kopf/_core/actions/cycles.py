"""
The memory of one open handling cycle of one object.

A cycle begins when the first handler is due for a cause, and ends when all of them have finished.
Outcomes which no PATCH has carried to the object yet stay here, also through outages, so that
nothing is done again while the process lives. The object, once written, has the rest.
"""
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration, diffbase, progress
from kopf._cogs.structs import bodies, dicts, ids, patches
from kopf._core.actions import progression
from kopf._core.intents import causes

MAX_VIEWS_LENGTH = 100_000
"""Larger states are not kept for restarts: all annotations of an object have 256 KB together."""


@dataclasses.dataclass(slots=True, eq=False)
class Contribution:
    """What one attempt of a handler wants to be changed; several attempts have several."""
    handler_id: ids.HandlerId
    patch: patches.Patch


@dataclasses.dataclass(slots=True)
class Cycle:
    reason: causes.Reason
    states: progression.State = dataclasses.field(default_factory=progression.State)
    roots: set[ids.HandlerId] = dataclasses.field(default_factory=set)
    """The top-level handlers that took part, for counting."""
    unsaved: set[ids.HandlerId] = dataclasses.field(default_factory=set)
    contributions: list[Contribution] = dataclasses.field(default_factory=list)
    oldest: float | None = None
    """When the oldest unsaved outcome came, in the monotonic time."""
    stored: bool = False
    """Whether there is anything of the progress on the object."""
    seen: bodies.BodyEssence | None = None
    """
    The essence that the earliest finished handler saw, advanced by the own patches since then.
    It becomes the last-handled one, so that the later foreign changes are seen by all handlers.
    """
    diverged: bodies.BodyEssence | None = None
    """What a finished handler saw that is not the above, because of foreign changes in between."""
    ahead: bodies.BodyEssence | None = None
    """What some have seen in the previous cycle beyond the state that is last-handled now."""
    closing: tuple[bodies.BodyEssence, bodies.BodyEssence | None] | None = None
    """What the commit leaves as the last-handled state and ahead of it, once it is being sent."""

    @property
    def horizon(self) -> bodies.BodyEssence | None:
        """The state which is to be left by an update, should the object have returned from it."""
        return self.seen if self.seen is not None else self.ahead

    @property
    def is_complete(self) -> bool:
        """Whether all handlers that took part have finished; none if none did."""
        return bool(self.roots) and all(
            id_ in self.states and self.states[id_].finished for id_ in self.roots)

    @property
    def dirty(self) -> bool:
        return bool(self.unsaved or self.contributions)

    def note(
            self,
            handler_id: ids.HandlerId,
            outcome: progression.Outcome,
            patch: patches.Patch,
            *,
            essence: bodies.BodyEssence,
            now: clocks.Moment,
    ) -> None:
        """Remember what came of an attempt; its patch counts also if it has failed."""
        state = self.states[handler_id].after(outcome, now=now)
        self.states[handler_id] = state
        self.unsaved.add(handler_id)
        self.oldest = now.mono if self.oldest is None else self.oldest
        if state.finished and self.seen is None:
            self.seen = essence
        elif state.finished and self.seen is not None and self.seen != essence:
            self.diverged = essence if self.diverged is None else (
                uncover(essence, self.diverged, returned_to=self.seen))
        if outcome.result is not None:
            patch = patches.Patch(patch)
            dicts.ensure(patch, ('status', handler_id), outcome.result)
        if patch:
            self.contributions.append(Contribution(handler_id, patch))

    def load(
            self, handler_id: ids.HandlerId, *, body: bodies.Body,
            settings: configuration.OperatorSettings, now: clocks.Moment, any_purpose: bool = False,
    ) -> progression.HandlerState:
        """
        The state of a handler: the remembered one, or from the object, or a new one.

        States of other purposes (e.g. creation's when the object is being deleted) do not count.
        """
        state = self.states.get(handler_id)
        if state is None and self.stored:
            storage = settings.persistence.progress_storage
            record = storage.fetch(key=handler_id, body=body)
            state = progression.HandlerState.from_record(record, now=now) if record else None
        if state is None or not (any_purpose or state.purpose in (None, self.reason.value)):
            state = progression.HandlerState.new(now=now, purpose=self.reason)
        self.states[handler_id] = state
        return state

    def restart(self, reason: causes.Reason) -> None:
        """Go on with another cause: what is not written yet is kept, the counting starts anew."""
        self.reason = reason
        self.roots.clear()
        self.seen = self.diverged = None

    def refuse(self, handler_id: ids.HandlerId, message: str) -> None:
        """The handler has failed for good after all: its changes cannot be made."""
        state = self.states[handler_id]
        self.states[handler_id] = state._replace(
            success=False, failure=True, message=message, delayed=None,
            stopped=state.stopped or state.started)
        self.unsaved.add(handler_id)

    def progress_patch(
            self,
            *,
            body: bodies.Body,
            settings: configuration.OperatorSettings,
            expected: bodies.BodyEssence,
            contributed: Iterable[patches.Patch],
    ) -> patches.Patch:
        """
        The framework's own keys for a cycle that goes on.

        The essence is what is expected to be there with what is contributed: they go together.
        """
        self.stored = True
        patch = patches.Patch()
        storage = settings.persistence.progress_storage
        for handler_id, state in self.states.items():
            if handler_id in self.unsaved or not state.retries:
                storage.store(key=handler_id, record=state.as_record(), body=body, patch=patch)
        if self.reason in (causes.Reason.CREATE, causes.Reason.UPDATE):
            seen = None if self.seen is None else advance(self.seen, contributed, expected)
            views = [seen, self.diverged] if seen is not None else [self.ahead]
            _store_views(views, storage=storage, body=body, patch=patch)
        storage.flush()
        return patch

    def closing_patch(
            self,
            handler_ids: Iterable[ids.HandlerId],
            *,
            body: bodies.Body,
            settings: configuration.OperatorSettings,
            ahead: bodies.BodyEssence | None = None,
    ) -> patches.Patch:
        """The framework's own keys for a cycle that ends: nothing of the progress is left."""
        patch = patches.Patch()
        storage = settings.persistence.progress_storage
        _store_views([ahead], storage=storage, body=body, patch=patch)
        if not self.stored:
            return patch
        for handler_id in self._find_family(handler_ids, body=body, storage=storage):
            storage.purge(key=handler_id, body=body, patch=patch)
        if ahead is None:
            storage.touch(body=body, patch=patch, value=None)
        storage.flush()
        return patch

    def _find_family(
            self,
            handler_ids: Iterable[ids.HandlerId],
            *,
            body: bodies.Body,
            storage: progress.ProgressStorage,
    ) -> set[ids.HandlerId]:
        """
        All handlers with all of their sub-handlers, as far as they are known.

        Those below a finished one are known only from the records, if a previous process ran them.
        """
        found: set[ids.HandlerId] = set()
        queue = [*handler_ids, *self.states]
        while queue:
            handler_id = queue.pop()
            if handler_id not in found:
                found.add(handler_id)
                state = self.states.get(handler_id)
                if state is not None:
                    queue.extend(state.subrefs)
                else:
                    record = storage.fetch(key=handler_id, body=body)
                    queue.extend(record.get('subrefs') or () if record else ())
        return found

    def advance(self, contributed: Iterable[patches.Patch], essence: bodies.BodyEssence) -> None:
        """Take the own patches, as the server has stored them, into the state that was seen."""
        if self.seen is not None:
            self.seen = advance(self.seen, contributed, essence)

    def begin_closing(
            self, essence: bodies.BodyEssence, ahead: bodies.BodyEssence | None, *,
            old: bodies.BodyEssence | None, body: bodies.Body,
            settings: configuration.OperatorSettings,
    ) -> None:
        """Remember what the commit leaves, unless it is there already: it would tell nothing."""
        self.closing = essence, ahead
        if self.is_closed(old=old, body=body, settings=settings):
            self.closing = None

    def is_closed(
            self, *, old: bodies.BodyEssence | None, body: bodies.Body,
            settings: configuration.OperatorSettings,
    ) -> bool:
        """Whether the commit has arrived, though its answer has not."""
        if self.closing is None:
            return False
        essence, ahead = self.closing
        return old == essence and load_views(body, settings) == ([] if ahead is None else [ahead])

    def unsent_results(self) -> list[patches.Patch]:
        """The results of handlers that are not on the object yet, each as a patch of its own."""
        return [
            patches.Patch({'status': {item.handler_id: item.patch['status'][item.handler_id]}})
            for item in self.contributions if item.handler_id in (item.patch.get('status') or ())]


def uncover(
        old: bodies.BodyEssence, ahead: bodies.BodyEssence, *, returned_to: bodies.BodyEssence,
) -> bodies.BodyEssence:
    """
    The old state, but with what was seen ahead of it in those fields where the object was changed
    since and is now as it was in the old state: so that the way back is a change, too.
    """
    return cast(bodies.BodyEssence, _uncover(
        cast(dict[str, Any], old), cast(dict[str, Any], ahead), cast(dict[str, Any], returned_to)))


def _uncover(
        old: Mapping[str, Any], ahead: Mapping[str, Any], newest: Mapping[str, Any],
) -> dict[str, Any]:
    result = dict(old)
    for key in {**newest, **ahead}:
        states = [source.get(key) for source in (old, ahead, newest)]
        if states[1] == states[2]:
            continue
        if all(state is None or isinstance(state, Mapping) for state in states):
            value: Any = _uncover(*(state or {} for state in states)) or None
        else:
            value = states[1] if states[0] == states[2] else states[0]
        if value is not None:
            result[key] = value
        else:
            result.pop(key, None)
    return result


def advance(
        seen: bodies.BodyEssence, contributed: Iterable[patches.Patch], essence: bodies.BodyEssence,
) -> bodies.BodyEssence:
    """Take over from the newer essence whatever the patches have touched."""
    result = cast(dict[str, Any], seen)
    for patch in contributed:
        for path in leaves(patch):
            is_stanza = dicts.resolve(patch, path) == {}
            if not (is_stanza and isinstance(dicts.resolve(result, path, None), Mapping)):
                result = _take_over(result, path, cast(dict[str, Any], essence))
    return cast(bodies.BodyEssence, _reorder(result, cast(dict[str, Any], essence)))


def leaves(patch: Mapping[str, Any], path: dicts.FieldPath = ()) -> Iterable[dicts.FieldPath]:
    """The fields which a merge-patch sets or removes."""
    for key, value in patch.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def _take_over(
        source: Mapping[str, Any], path: dicts.FieldPath, newer: Mapping[str, Any],
) -> dict[str, Any]:
    """A copy with one field as it is in the newer state; its parents are empty only as there."""
    key, below = path[0], path[1:]
    result = dict(source)
    if below:
        children = [
            child if isinstance(child, Mapping) else {}
            for child in (source.get(key), newer.get(key))]
        result[key] = _take_over(children[0], below, children[1])
        if not result[key] and newer.get(key) != {}:
            del result[key]
    elif key in newer:
        result[key] = newer[key]
    else:
        result.pop(key, None)
    return result


def _reorder(source: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The same, but with the keys in the same order, so that it is stored as the server has it."""
    keys = [*(key for key in like if key in source), *(key for key in source if key not in like)]
    return {
        key: _reorder(source[key], like[key])
        if isinstance(source[key], Mapping) and isinstance(like.get(key), Mapping) else source[key]
        for key in keys}


def _store_views(
        views: Iterable[bodies.BodyEssence | None],
        *,
        storage: progress.ProgressStorage,
        body: bodies.Body,
        patch: patches.Patch,
) -> None:
    encoded = '\n'.join(diffbase.encode_essence(view) for view in views if view is not None)
    if encoded and len(encoded) <= MAX_VIEWS_LENGTH and storage.touched(body=body) != encoded:
        storage.touch(body=body, patch=patch, value=encoded)


def load_views(
        body: bodies.Body, settings: configuration.OperatorSettings,
) -> list[bodies.BodyEssence | None]:
    """What a previous process has kept of what its handlers saw: none, one, or two of these."""
    encoded = settings.persistence.progress_storage.touched(body=body)
    if encoded is None or not encoded.startswith('{'):
        return []
    return [diffbase.decode_essence(line) for line in encoded.split('\n')]
