"""
Writing what is done to the object: at the end of a cycle, before a pause, or when it gets old.

One PATCH carries as much as possible. What could not be written stays in the line's cycle,
and is written with the next attempt to write anything.
"""
import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs, ids, patches
from kopf._core.actions import application, cycles, decisions, execution
from kopf._core.reactor import lines


class Saver:
    """The writes of one turn. `raw` is always the newest state as the server has it."""

    def __init__(
            self,
            line: lines.Line,
            raw: bodies.RawBody,
            *,
            client: api.Client,
            settings: configuration.OperatorSettings,
            clock: clocks.Clock,
            logger: Any,
    ) -> None:
        super().__init__()
        self.line = line
        self.raw = raw
        self.settings = settings
        self.clock = clock
        self.logger = logger
        self.target = application.Target(client, line.stream.resource, logger)
        self.moved = False
        """Whether anything was written, so that the state is not the initial one any more."""
        self.overtaken = False
        """Whether the essence or the deletion mark are not what they should be after own writes."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[bodies.RawBody | None] | None = None

    def is_urgent(self, extra_fields: Iterable[dicts.FieldPath]) -> bool:
        """Whether the next handlers have to see what the server makes of the unwritten changes."""
        cycle = self.line.cycle
        if cycle is None or not cycle.dirty:
            return False
        delay = self.settings.persistence.flush_delay
        age = 0.0 if cycle.oldest is None else self.clock.mono() - cycle.oldest
        if delay <= 0 or age >= delay:
            return True
        ignored = {'status'} if not any(path[:1] == ('status',) for path in extra_fields) else ()
        return any(
            contribution.patch.fns or any(key not in ignored for key in contribution.patch)
            for contribution in cycle.contributions)

    def arm(self) -> None:
        """While a handler runs, write what others have done when it becomes too old."""
        cycle = self.line.cycle
        delay = self.settings.persistence.flush_delay
        if self._timer is None and self._task is None and delay > 0 and (
                cycle is not None and cycle.oldest is not None):
            self._timer = asyncio.get_running_loop().call_at(cycle.oldest + delay, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._save())

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def settle(self) -> None:
        """Wait for the write that was begun while a handler was running, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task])
            task.result()

    async def save(self) -> bodies.RawBody | None:
        """Write all that is done & not written; return the newest state, or None if it is gone."""
        self.disarm()
        await self.settle()
        return await self._save()

    async def _save(self) -> bodies.RawBody | None:
        cycle = self.line.cycle
        assert cycle is not None
        merged: Mapping[str, Any] = self.raw
        effects: list[patches.Patch] = []
        for contribution in cycle.contributions:
            effects.append(self._get_effect(merged, contribution.patch))
            merged = patches.merge(merged, effects[-1])
        expected = self._essence_of(merged)
        newest = await self._send(cycle, lambda body: cycle.progress_patch(
            body=body, settings=self.settings, expected=expected,
            contributed=effects if cycle.contributions else ()))
        self.overtaken = self.overtaken or (
            newest is not None and self._essence_of(newest) != expected)
        return newest

    async def close(
            self,
            handler_ids: Sequence[ids.HandlerId],
            *,
            essence: bodies.BodyEssence | None,
            ahead: bodies.BodyEssence | None = None,
    ) -> bodies.RawBody | None:
        """Write all that is left, the new last-handled state, and that there is no progress."""
        self.disarm()
        await self.settle()
        cycle = self.line.cycle
        assert cycle is not None

        def make_own(body: bodies.Body) -> patches.Patch:
            own = cycle.closing_patch(
                handler_ids, body=body, settings=self.settings, ahead=ahead)
            if essence is not None:
                self.settings.persistence.diffbase_storage.store(
                    body=body, patch=own, essence=essence)
            return own

        return await self._send(cycle, make_own, closing=True)

    async def release(
            self, handler_ids: Sequence[ids.HandlerId],
    ) -> tuple[bodies.RawBody | None, bool]:
        """Remove the finalizer and all other traces; return the newest state, and if it is done."""
        cycle = self.line.cycle
        assert cycle is not None
        separate = 'status' in self.target.resource.subresources
        batches = [batch for batch, _ in _combine(cycle.contributions)]
        if len(batches) > 1 or any(
                batch.fns or ('status' in batch and separate) for batch in batches):
            if await self.save() is None:
                return None, True
            batches = []
        try:
            return await self._exchange(self._get_released(handler_ids, *batches))
        except (errors.APIError, application.PatchError) as e:
            if not application.is_refusal(e) or not batches:
                raise
        if await self._send_separately(cycle) is None:
            return None, True
        return await self._exchange(self._get_released(handler_ids))

    def _get_released(
            self, handler_ids: Sequence[ids.HandlerId], batch: Mapping[str, Any] | None = None,
    ) -> bodies.RawBody:
        cycle = self.line.cycle
        assert cycle is not None
        own = cycle.closing_patch(
            handler_ids, body=bodies.Body(self.raw), settings=self.settings)
        merged: Any = patches.merge(patches.merge(self.raw, batch or {}), own)
        return decisions.without_finalizer(merged, self.settings.persistence.finalizer)

    async def exchange(
            self, wanted: bodies.RawBody, patch: dict[str, Any],
    ) -> bodies.RawBody | None:
        """Make the object what is wanted, if it is still the same; return its newest state."""
        newest, _ = await self._exchange(patches.merge(wanted, patch))  # type: ignore[arg-type]
        return newest

    async def _exchange(self, wanted: bodies.RawBody) -> tuple[bodies.RawBody | None, bool]:
        ops = patches.make_json_patch(self.raw, wanted)
        newest, applied = await application.exchange(self.target, self.raw, ops)
        self._accept(newest)
        return newest, applied

    async def _send(
            self,
            cycle: cycles.Cycle,
            make_own: Callable[[bodies.Body], patches.Patch],
            *,
            closing: bool = False,
    ) -> bodies.RawBody | None:
        """Send the contributions of the handlers, and the framework's own keys as the last ones."""
        own = make_own(bodies.Body(self.raw))
        states = {id_: cycle.states[id_] for id_ in cycle.unsaved}
        newest: bodies.RawBody | None = self.raw
        try:
            for batch, members in _combine(cycle.contributions, own):
                effect = self._get_effect(self.raw, batch)
                if newest is not None:
                    newest = await self._apply(newest, batch, own)
                self._account(cycle, members, newest, None if closing else effect)
        except (errors.APIError, application.PatchError) as e:
            if not application.is_refusal(e) or not cycle.contributions:
                raise
            newest = await self._send_separately(cycle)
            if newest is not None:
                own = make_own(bodies.Body(newest))
                newest = await self._apply(newest, own, own) if own else newest
        cycle.unsaved = {
            id_ for id_ in cycle.unsaved if id_ not in states or
            cycle.states[id_] is not states[id_]}
        cycle.oldest = self.clock.mono() if cycle.dirty else None
        return newest

    async def _apply(
            self, raw: bodies.RawBody, batch: patches.Patch, own: patches.Patch,
    ) -> bodies.RawBody | None:
        newest = await application.apply(
            self.target, raw, batch, commit_in_status='status' in own and 'metadata' not in own)
        self._accept(newest)
        return newest

    async def _send_separately(self, cycle: cycles.Cycle) -> bodies.RawBody | None:
        """Find out whose patch is refused: that handler has failed; the others' patches count."""
        newest: bodies.RawBody | None = self.raw
        for contribution in list(cycle.contributions):
            effect = self._get_effect(self.raw, contribution.patch)
            try:
                if newest is not None:
                    newest = await self._apply(newest, contribution.patch, patches.Patch())
            except (errors.APIError, application.PatchError) as e:
                if not application.is_refusal(e):
                    raise
                how = ("cannot be made" if isinstance(e, application.PatchError)
                       else "is refused by the API")
                self.logger.error(f"Handler {contribution.handler_id!r} failed permanently: "
                                  f"its patch {how}: {e}")
                cycle.refuse(contribution.handler_id, f"The patch {how}: {e}")
                cycle.contributions.remove(contribution)
            else:
                self._account(cycle, [contribution], newest, effect)
        return newest

    def _account(
            self,
            cycle: cycles.Cycle,
            members: Sequence[cycles.Contribution],
            newest: bodies.RawBody | None,
            effect: patches.Patch | None,
    ) -> None:
        """These are on the object now, and must not be sent again: functions could add up."""
        if newest is not None and cycle.seen is not None and effect:
            cycle.advance([effect], self._essence_of(newest))
        cycle.contributions = [item for item in cycle.contributions if item not in members]

    def _get_effect(self, raw: Mapping[str, Any], patch: patches.Patch) -> patches.Patch:
        """The same, with what its functions are going to do as fields; nothing if they cannot."""
        if not patch.fns:
            return patch
        effect = patches.Patch()
        with contextlib.suppress(Exception):  # it is told when it is really applied
            for item in diffs.diff(raw, patch.apply(raw)):
                dicts.ensure(effect, item.field, item.new)
            execution.encode(effect)
            return effect
        return patches.Patch()

    def _accept(self, newest: bodies.RawBody | None) -> None:
        self.moved = True
        if newest is not None:
            self.raw = newest
            self.line.accept(newest)

    def _essence_of(self, raw: Any) -> bodies.BodyEssence:
        return decisions.build_essence(
            bodies.Body(raw), settings=self.settings,
            extra_fields=self.line.stream.handlers.extra_fields)


def _merge_in(patch: patches.Patch, body: Any) -> None:
    merged = patches.merge(body, patch)
    body.clear()
    body.update(merged)


def _combine(
        contributions: Iterable[cycles.Contribution], own: patches.Patch | None = None,
) -> list[tuple[patches.Patch, list[cycles.Contribution]]]:
    """As few patches as possible that are equal to all of these, one after another."""
    batches: list[tuple[patches.Patch, list[cycles.Contribution]]] = []
    parts = [(contribution.patch, [contribution]) for contribution in contributions]
    for part, members in [*parts, (own or patches.Patch(), [])]:
        if not part:
            continue
        last, before = batches[-1] if batches else (None, [])
        if last is not None and last.fns and not members:
            # The own keys go along with the last functions, so that both are written, or none.
            batches[-1] = patches.Patch(last, fns=[functools.partial(_merge_in, part)]), before
            continue
        merged = patches.combine(last, part) if last is not None and not last.fns else None
        if merged is not None:
            batches[-1] = patches.Patch(merged, fns=part.fns), [*before, *members]
        else:
            batches.append((patches.Patch(part), members))
    return batches
