"""
Writing of outcomes and patches: at the end of a cycle, before a delay, or when they get old.

One PATCH carries as much as possible. What cannot be written stays in the cycle of the item, and
the next PATCH carries it.
"""
import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api
from kopf._cogs.structs import bodies, dicts, ids, memos, patches, references
from kopf._core.actions import (
    application,
    claims,
    cycles,
    decisions,
    essences,
    execution,
    finalizers,
    lifecycles,
    recording,
    versions,
)
from kopf._core.engines.reconciling import conditions, serversideapply
from kopf._core.intents import causes
from kopf._core.path import objects, switches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment(execution.Context):
    """What all objects of an operator have in common."""
    client: api.Client
    memo: Any
    lifecycle: lifecycles.LifeCycleFn | None = None
    locked: set[references.Resource] = dataclasses.field(default_factory=set)
    """The resources whose finalizers this operator does not need, but may not remove."""

    @functools.cached_property
    def applier(self) -> serversideapply.Applier:
        return serversideapply.Applier(self.client)

    def get_memo(self, item: objects.Item) -> Any:
        """Get the memo of the object. The first call makes it from the memo of the operator."""
        if item.memo is None:
            item.remember(memos.make_own(self.memo))
        return item.memo

    def enter(self) -> None:
        """
        Let all later writes of this context (`contextvars`) belong to the present term, and let
        `kopf.apply` write with the same client.
        """
        self.client.enter_term()
        self.applier.enter()


class Saver:
    """The writes of one handling of changes."""

    def __init__(
            self,
            item: objects.Item,
            raw: bodies.RawBody,
            *,
            env: Environment,
            logger: Any,
            switch: switches.Switch,
    ) -> None:
        self.item = item
        self.env = env
        self.settings = env.settings
        self.logger = logger
        self._switch = switch
        self.pauses = switch.pauses
        """The number of pauses at the beginning: after another one, Kopf must decide again."""
        self.raw = raw
        """The newest state that is known from the server."""
        self.expected: bodies.BodyEssence | None = None
        """The essence of the object after the latest write, unless others have changed it."""
        self.ledger = claims.Ledger(env.settings, item.handlers)
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[bodies.RawBody | None] | None = None

    @property
    def target(self) -> application.Target:
        env, item = self.env, self.item
        return application.Target(
            env.client, item.resource, self.logger, env.observer,
            application.Fence(self._is_doubtful, self._judge_met, self.ledger, item.confirm))

    def is_shared(self) -> bool:
        """Whether another operator could have begun to handle the object."""
        return self._switch.check_shared(self.pauses)

    def _is_doubtful(self) -> bool:
        """Whether another process could have handled the object since the known state."""
        return not self.item.is_confirmed or self.is_shared()

    def _judge_met(self, known: bodies.RawBody, newest: bodies.RawBody) -> claims.Verdict:
        """Judge the state that a write has found on the server instead of the known one."""
        return self.ledger.judge(newest, known=known, made=self.item.unconfirmed)

    def judge(
            self,
            raw: bodies.RawBody,
            known: bodies.RawBody | None = None,
            *,
            view: decisions.View | None = None,
            expected: bodies.BodyEssence | None = None,
    ) -> claims.Verdict:
        """
        Judge ``newest``, a newer state than ``known``; by default, than the one of the cycle.

        Until the API has answered a PATCH, the known state can be so old that the previous process
        has handled newer ones.
        """
        item = self.item
        is_exclusive = item.cycle is None or item.is_confirmed
        if known is None and not is_exclusive:
            known = item.basis
        return self.ledger.judge(
            raw, known=known, made=item.unconfirmed,
            conclusion=None if item.cycle is None else item.cycle.closing,
            view=view, expected=expected, is_exclusive=is_exclusive)

    def go_on_from(self, raw: bodies.RawBody) -> None:
        """Take a state from the watch as the newest one."""
        self.raw = raw

    def arm(self) -> None:
        """Schedule a PATCH for when the oldest outcome gets too old. `disarm` cancels it."""
        cycle = self.item.cycle
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

    @property
    def is_busy(self) -> bool:
        """Whether a PATCH was begun while a handler was running; see `settle`."""
        return self._task is not None

    @property
    def is_overtaken(self) -> bool:
        """Whether a PATCH that was begun while a handler was running has found newer records."""
        task = self._task
        return task is not None and task.done() and not task.cancelled() and isinstance(
            task.exception(), application.OvertakenError)

    async def settle(self) -> None:
        """Wait for the PATCH that was begun while a handler was running, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                await tasks.cancel([task])
                raise
            task.result()

    async def save(self) -> bodies.RawBody | None:
        """Write everything that is not written; return the newest state, or None if gone."""
        self.disarm()
        await self.settle()
        return await self._save()

    async def _save(self) -> bodies.RawBody | None:
        cycle = self.item.get_cycle().recorded()
        self.item.proceed(cycle)
        merged: Any = self.raw
        effects: list[patches.Patch] = []
        for contribution in cycle.contributions:
            effects.append(self._get_effect(merged, contribution.patch))
            merged = patches.merge(merged, effects[-1])
        expected = self.expected = self.ledger.build_essence(merged)

        def make_own(body: bodies.Body) -> patches.Patch:
            progress = recording.make_progress(
                self.item.get_cycle(), body=body, settings=self.settings, expected=expected,
                contributed=effects if self.item.get_cycle().contributions else ())
            if progress.repeated:
                names = ', '.join(sorted(progress.repeated))
                self.logger.warning(
                    f"The object is too large to remember all of the progress of its handlers: "
                    f"if the operator restarts now, these are called again: {names}.")
            return progress.patch

        return await self._send(make_own)

    async def close(
            self,
            handler_ids: Sequence[ids.HandlerId],
            *,
            conclusion: cycles.Conclusion,
            old: bodies.BodyEssence | None,
    ) -> bodies.RawBody | None:
        """Write the remaining patches and the last-handled state; remove the progress."""
        self.disarm()
        await self.settle()

        def make_own(body: bodies.Body) -> patches.Patch:
            own = recording.make_closing(
                self.item.get_cycle(), handler_ids, body=body, settings=self.settings,
                conclusion=conclusion)
            if conclusion.base != old:
                self.store_handled(conclusion.base, body, own)
            return own

        return await self._send(make_own, closing=True)

    def store_handled(
            self, essence: bodies.BodyEssence, body: bodies.Body, patch: patches.Patch,
    ) -> None:
        """Put an essence into the patch as the new last-handled state."""
        self.settings.persistence.diffbase_storage.store(
            body=body, patch=patch, essence=versions.mark(
                essence, body=body, converter=self.item.handlers.converter))

    async def release(
            self, handler_ids: Sequence[ids.HandlerId],
    ) -> tuple[bodies.RawBody | None, bool]:
        """
        Remove the finalizer and all records; return the newest state, and whether it worked.

        What the handlers have patched is written before: with the last finalizer, the object goes
        as it was stored, and nobody would ever see a patch in the same request.
        """
        self.disarm()
        if self.item.get_cycle().contributions and await self.save() is None:
            return None, True
        own = recording.make_closing(
            self.item.get_cycle(), handler_ids, body=bodies.Body(self.raw), settings=self.settings)
        return await self._exchange(finalizers.switch(
            _merge(self.raw, own), self.settings.persistence.finalizer, is_added=False))

    async def switch_finalizer(
            self, patch: patches.Patch, *, is_added: bool,
    ) -> bodies.RawBody | None:
        """
        Add or remove the finalizer, and apply the patch; return the newest state, None if gone.

        Nothing is written if the object has changed on the server. When the finalizer is added, and
        no other operator can have begun to handle the object, only changes of the finalizers and of
        the patched annotations prevent that. The newest state shows all other changes.
        """
        wanted = finalizers.switch(self.raw, self.settings.persistence.finalizer, is_added=is_added)
        guards = finalizers.guard(self.raw, patch) if is_added and not self.is_shared() else None
        try:
            newest, _ = await self._exchange(_merge(wanted, patch), guards or application.VERSION)
        except application.FenceRaisedError:
            newest, _ = await self._exchange(_merge(wanted, patch))
        return newest

    def _verify_unshared(self) -> None:
        if self.is_shared():
            raise application.FenceRaisedError

    async def _exchange(
            self, wanted: bodies.RawBody,
            guards: Sequence[dicts.FieldPath] = application.VERSION,
    ) -> tuple[bodies.RawBody | None, bool]:
        raw, target, is_exact = self.raw, self.target, guards is application.VERSION
        with self.item.attempting(wanted):
            newest, applied = await application.exchange(
                target, raw, patches.make_json_patch(raw, wanted), guards=guards,
                permit=None if is_exact else self._verify_unshared)
            if newest is not None and not (applied and is_exact):
                target.verify(wanted if applied else raw, newest)
        self._accept(newest)
        if newest is not None and applied:
            application.verify_finalizers(raw, wanted, newest)
        return newest, applied

    async def report_protection(self, message: str) -> bodies.RawBody | None:
        """Set the condition of an object whose deletion waits; return the newest state."""
        patch = patches.Patch()
        conditions.add(
            patch, observed=conditions.observe(self.item.resource, self.raw), type='Protected',
            status='True', reason='DeletionWaits', message=message)
        if application.is_in_place(self.raw, patch):
            return None
        try:
            return await self._apply(self.raw, patch, patches.Patch())
        except application.REFUSALS as e:
            self.logger.error(f"The condition of the protection is refused: {e}")
            return None

    async def _send(
            self, make_own: Callable[[bodies.Body], patches.Patch], *, closing: bool = False,
    ) -> bodies.RawBody | None:
        """Send the contributions of the handlers, and then the framework's own fields."""
        cycle = self.item.get_cycle()
        carried = {} if closing else {id_: cycle.states.get(id_) for id_ in cycle.unsaved}
        own = make_own(bodies.Body(self.raw))
        newest: bodies.RawBody | None = self.raw
        try:
            for batch, members in _combine(cycle.contributions, own):
                effect = self._get_effect(self.raw, batch) if members and not closing else None
                if newest is not None:
                    newest = await self._apply(newest, batch, own)
                if members:
                    self._account(members, newest, effect)
        except application.REFUSALS:
            if not self.item.get_cycle().contributions:
                raise
            newest = await self._send_separately()
            if newest is not None:
                own = make_own(bodies.Body(newest))
                newest = await self._apply(newest, own, own) if own else newest
        if not closing:  # a closed cycle is dropped
            self.item.proceed(self.item.get_cycle().saved(carried, now=self.env.clock.mono()))
        return newest

    async def _apply(
            self, raw: bodies.RawBody, batch: patches.Patch, own: patches.Patch,
    ) -> bodies.RawBody | None:
        with self.item.attempting(*self._foresee(raw, batch, own)):
            newest = await application.apply(
                self.target, raw, batch, commit_in_status='status' in own and 'metadata' not in own)
        self._accept(newest)
        return newest

    def _foresee(
            self, raw: Any, batch: patches.Patch, own: patches.Patch,
    ) -> Sequence[bodies.RawBody]:
        """Find what a PATCH makes of the object: as a whole, and by each of its requests alone."""
        made: Any = _merge(raw, batch)
        if batch.fns:  # they carry the framework's fields
            made = _merge(made, own)
        if 'status' not in made or 'status' not in self.item.resource.subresources:
            return [made]
        return [made, *({**a, 'status': b.get('status')} for a, b in [(made, raw), (raw, made)])]

    async def _send_separately(self) -> bodies.RawBody | None:
        """
        Send each contribution alone, to find those that the API server refuses.

        Only the handlers of refused patches fail. The patches of the other handlers are applied.
        """
        newest: bodies.RawBody | None = self.raw
        for contribution in self.item.get_cycle().contributions:
            effect = self._get_effect(self.raw, contribution.patch)
            try:
                if newest is not None:
                    newest = await self._apply(newest, contribution.patch, patches.Patch())
            except application.REFUSALS as e:
                text = application.describe_refusal(e)
                self.logger.error(
                    f"Handler {contribution.handler_id!r} failed permanently: its {text}")
                self.item.proceed(self.item.get_cycle().refuse(contribution, f"The {text}"))
            else:
                self._account([contribution], newest, effect)
        return newest

    def _account(
            self,
            members: Sequence[cycles.Contribution],
            newest: bodies.RawBody | None,
            effect: patches.Patch | None,
    ) -> None:
        """
        Note that these contributions are on the object.

        They must not be sent again: e.g. a function that increments a field would do so twice.
        """
        stored = None if newest is None or not effect else self.ledger.build_essence(newest)
        self.item.proceed(self.item.get_cycle().sent(members, effect=effect, stored=stored))

    def _get_effect(self, raw: Mapping[str, Any], patch: patches.Patch) -> patches.Patch:
        """Convert the functions of a patch to the fields that they change; empty if they fail."""
        if not patch.fns:
            return patch
        with contextlib.suppress(Exception):  # the error is reported when the patch is applied
            effect = patches.Patch(application.get_effect(raw, patch.apply(raw)))
            execution.encode(effect)
            return effect
        return patches.Patch()

    def _accept(self, newest: bodies.RawBody | None) -> None:
        if newest is None:
            self.item.vanish()
        else:
            is_reduced = self.settings.persistence.diffbase_storage._is_reduced
            if is_reduced(newest) and not is_reduced(self.raw):
                self.logger.warning(
                    "The object is too large to store all of its last-handled state: handlers will "
                    "not get the old values of its largest fields when these change.")
            self.take(newest)

    def take(self, newest: bodies.RawBody) -> None:
        """Take a state from a response as the newest one."""
        self.raw = newest
        self.item.accept(newest)
        self.item.confirm()

    def give_way(self, overtaken: application.OvertakenError) -> None:
        """Continue from the state that another operator has left: it must not be overwritten."""
        self.logger.info(f"{overtaken} What this operator has done is not written.")
        if self.item.cycle is not None:
            self.item.proceed(self.begin_anew(self.item.cycle, overtaken.newest))
        self.take(overtaken.newest)

    def begin_anew(self, cycle: cycles.Cycle, raw: bodies.RawBody) -> cycles.Cycle | None:
        """
        Restore the cycle from newer records than those that it was restored from.

        The handlers that were called meanwhile can have seen an outdated state. If the newest state
        differs from it, they are called again, even if a previous process has called them for the
        newest state.
        """
        now = self.env.clock.now()
        restored = recording.restore(
            self.item.handlers.changing, body=bodies.Body(raw), settings=self.settings, now=now,
            initial=self.item.initial,
            called=[id_ for id_, state in cycle.states.items() if state.finished])
        newest = self.ledger.build_essence(raw)
        outdated = {handler_id: seen for handler_id, seen in cycle.unsaved.items()
                    if seen is not None and seen != newest}
        if not outdated:
            return restored
        if restored is not None:
            return restored.forget(outdated, now=now)
        divergent = functools.reduce(  # the cycle is closed: only a difference calls them
            lambda known, seen: essences.rebase(seen, known, newest), outdated.values())
        return cycles.Cycle(
            reason=causes.Reason.UPDATE, unsaved=outdated, has_records=True, divergent=divergent)


def _merge(raw: bodies.RawBody, patch: patches.Patch) -> bodies.RawBody:
    return cast(bodies.RawBody, patches.merge(raw, patch))


def _merge_in(patch: patches.Patch, body: Any) -> None:
    merged = patches.merge(body, patch)
    body.clear()
    body.update(merged)


def _combine(
        contributions: Iterable[cycles.Contribution], own: patches.Patch | None = None,
) -> list[tuple[patches.Patch, list[cycles.Contribution]]]:
    """Combine consecutive patches, to send as few as possible with the same effect."""
    batches: list[tuple[patches.Patch, list[cycles.Contribution]]] = []
    parts = [(item.patch, [item]) for item in contributions]
    if own:
        parts.append((own, []))
    for part, members in parts:
        last, before = batches[-1] if batches else (None, [])
        if last is not None and last.fns and not members:
            # One PATCH carries the framework's fields and the last functions: both or neither.
            batches[-1] = patches.Patch(last, fns=[functools.partial(_merge_in, part)]), before
            continue
        merged = patches.combine(last, part) if last is not None and not last.fns else None
        if merged is not None:
            batches[-1] = patches.Patch(merged, fns=part.fns), [*before, *members]
        else:
            batches.append((part, members))
    return batches
