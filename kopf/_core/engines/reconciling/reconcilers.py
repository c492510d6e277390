"""
Reconcilers: when the handlers of `kopf.reconcile` are called for an object, and what follows.

They run as a part of the processing of an object, after its handlers of changes, so never together
with these, and never twice at once for an object.
"""
import asyncio
import functools
import json
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api
from kopf._cogs.helpers import ratelimits
from kopf._cogs.structs import bodies, ids, patches
from kopf._core.actions import application, execution, finalizers, loggers, observers, progression
from kopf._core.engines.reconciling import children, conditions
from kopf._core.engines.reconciling.hub import FINALIZER, Host, Hub, Limits, Member, describe_place
from kopf._core.engines.reconciling.upkeep import Upkeep, delete
from kopf._core.intents import causes, filters, handlers, pauses

if TYPE_CHECKING:
    from kopf._core.engines.reconciling import externals

UNVERSIONED = {'metadata': {'resourceVersion': None, 'generation': None, 'managedFields': None}}
"""A patch that removes what changes in an object by any write."""

SPREAD = 0.1
"""By which part the intervals vary, so that not all objects are reconciled at once."""

RESTORATIONS = 10
"""How many times the children of an object are restored at once; then, once in the period."""

RESTORATION_PERIOD = 1.0
"""How often (seconds) the children are restored if others change or delete them all the time."""

MAX_NAMED = 5
"""How many children the log names at most."""


class Reconcilers(Member):
    """The reconciling handlers of one object, with the state of their attempts."""
    __slots__ = (
        '_client', '_hub', '_is_new', '_is_reported', '_notes', '_observed', '_problems',
        '_reconciled', '_reporter', '_restorations', '_states', '_summoned', '_told',
        '_told_pause', '_vain', '_verdicts', 'has_written')

    def __init__(self, hub: Hub, host: Host, client: api.Client) -> None:
        super().__init__(host)
        self._hub = hub
        self._client = client
        self._is_new = not host.initial and not hub.store.of(host.uid)
        """Whether the object cannot have children yet."""
        self.has_written = False
        """Whether the last run has changed the object itself."""
        self._reconciled: int | None = None
        """The digest of the content for which no handler failed the last time; None until then."""
        self._restorations: ratelimits.TokenBucket | None = None
        """How often the children can still be restored, if they were lately."""
        self._states = progression.State()
        """The failed attempts in a row, and when the handlers are called again."""
        self._problems: dict[ids.HandlerId, conditions.Problems] = {}
        """The problems of those handlers that have failed in their last calls."""
        self._reporter: ids.HandlerId | None = None
        """The handler with ``conditions=True``, if the object matches its filters."""
        self._observed: int | None = None
        """The generation of the object with which the run has begun, for the conditions."""
        self._is_reported = True
        """Whether the conditions are as the last calls of the handlers require."""
        self._told: tuple[ids.HandlerId | None, ...] = ()  # a set takes more memory
        """
        What the log says already: which handlers the object does not match any more; and (None)
        that the deletion waits for children that must not be listed.
        """
        self._told_pause: pauses.Pause | None = None
        """The pause of the object that was reported."""
        self._notes: dict[ids.HandlerId, Any] = {}
        """What the drivers of externals remember."""
        self._verdicts: dict[str, Any] | None = None
        """What the externals have reported; None without any."""
        self._summoned: tuple[ids.HandlerId, ...] = ()
        """The externals, and the handlers after them, that run again though nothing has changed."""
        self._vain: tuple[str | None, tuple[int, ...]] = (None, ())
        """The digests of the patches that have not changed the object, and its version then."""
        hub.join(self)

    @property
    def _externals(self) -> list[handlers.ExternalHandler]:
        return [handler for handler in self.host.handlers.reconciling
                if isinstance(handler, handlers.ExternalHandler)]

    @property
    def due(self) -> float | None:
        """When to run again, though nothing has changed (monotonic time); None for never."""
        due = min((state.due for state in self._states.values()), default=progression.NEVER)
        if self._is_triggered:
            due = min(due, self._hub.context.clock.mono() + self._get_wait())
        return None if due == progression.NEVER else due

    @property
    def due_paused(self) -> float | None:
        """When to look again at a paused object, though nothing has changed."""
        due = min((self._states[handler.id].due for handler in self._externals
                   if handler.id in self._states), default=progression.NEVER)
        return None if due == progression.NEVER else due

    @property
    def is_resync(self) -> bool:
        """Whether the next run is only because of an interval, so that it can wait."""
        return not self._is_triggered and not self._summoned and self.due is not None and all(
            state.is_new for state in self._states.values())

    def leave(self) -> None:
        """Stop: the object is gone, or handled elsewhere."""
        self.is_left = True
        self._hub.leave(self)
        for handler in self._externals:
            if handler.id in self._notes:
                self._hub.get_driver(handler).leave(self._notes.pop(handler.id))

    def _summon(self, handler_id: ids.HandlerId) -> None:
        """Run one handler soon."""
        self._summoned = (*self._summoned, handler_id)
        now = self._hub.context.clock.now()
        state = self._states.get(handler_id) or progression.HandlerState.new(now=now)
        self._states[handler_id] = state._replace(due=now.mono)
        self.host.wake_up()

    def _dismiss(self, handler: handlers.ReconcilingHandler) -> None:
        self._summoned = tuple(id_ for id_ in self._summoned if id_ != handler.id)

    def note_answer(self) -> None:
        """Run when the object is processed: others have answered an own write with theirs."""
        self._is_triggered = True
        self._count_repetition()

    async def hold(
            self, raw: bodies.RawBody, pause: pauses.Pause, *,
            is_stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """
        Report once that the object is paused. Call this instead of `run`, which reports the end.

        Return whether any handlers, or the deletion, wait for the end of the pause.

        :raises errors.APIError: if the object cannot be patched.
        """
        self.has_written = False
        target = self._aim_at(raw)
        cause = self._make_cause(raw, target, children.OperatorChildren(
            self._hub.store, self.host.uid, raw['metadata'].get('namespace'), {}))
        held = [handler for handler in self.host.handlers.reconciling
                if execution.is_matching(handler, cause, context=self._hub.context)]
        newest: bodies.RawBody | None = raw
        for handler in self._externals:  # they are observed, or forgotten if they do not match
            if newest is not None:
                newest = await self._drive(handler, newest, Limits(
                    lambda: True, is_stopped), is_last=False)
        if newest is not None and pause != self._told_pause and any(
                handler.conditions for handler in held):
            self._is_reported = False
            conditions.report_pause(cause.patch, pause.describe(), observed=conditions.observe(
                self.host.resource, raw))
            try:
                await self._apply_patch(newest, cause.patch, target)
            except application.REFUSALS as e:
                target.logger.error(f"The condition of the pause is refused: {e}")
            self._told_pause = pause
        return bool(held) or finalizers.is_present(raw, FINALIZER)

    async def run(
            self, raw: bodies.RawBody, *, is_paused: Callable[[], bool] = lambda: False,
            is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Call the handlers that are due, and apply what they return, until the object ``is_paused``,
        or the operator ``is_stopped``.

        :raises errors.APIError: if the object cannot be patched.
        """
        self._told_pause = None
        is_triggered, self._is_triggered = self._is_triggered, False
        is_asked, self._is_asked = self._is_asked, False
        self._has_applied = self.has_written = False
        self._observed = conditions.observe(self.host.resource, raw)
        content = hash(json.dumps([  # what people declare: generations can also count statuses
            value for key, value in raw.items() if key not in ('metadata', 'status')]))
        self.is_edited = self._reconciled not in (None, content)
        limits = Limits(is_paused, is_stopped)
        try:
            if finalizers.is_deleting(raw):
                await self._end(raw, limits, is_triggered=is_triggered)
                return
            if is_triggered and not is_asked and self._get_wait() > clocks.PRECISION:
                is_triggered, self._is_triggered = False, True  # later
            newest = await self._call(raw, limits, is_triggered=is_triggered)
            if newest is not None and not self._problems:
                self._reconciled = content
        except (Exception, asyncio.CancelledError):
            self._is_triggered = self._is_asked = True  # the reactor tries again
            raise
        finally:
            self._is_new = self._is_new and not self._has_applied
        if self._has_applied and not is_asked:
            self._count_repetition()

    async def _end(self, raw: bodies.RawBody, limits: Limits, *, is_triggered: bool) -> None:
        """
        Delete what the object has in external systems, and the children that Kubernetes does not
        delete with it.

        The external systems come after the deletion handlers and the daemons, which can need them.
        """
        newest: bodies.RawBody | None = raw
        is_used = finalizers.is_present(raw, self._hub.context.settings.persistence.finalizer)
        now, called = self._hub.context.clock.mono(), [] if is_used else self._externals
        self._states = progression.State({
            handler.id: self._states[handler.id] for handler in called
            if handler.id in self._states})
        for handler in called:
            state = self._states.get(handler.id)
            if newest is not None and (is_triggered or state is None or state.is_due(now)):
                newest = await self._drive(handler, newest, limits, is_last=True)
        if newest is not None:
            await self._clean_up(newest)

    # Children that others change or delete all the time must not become a hot loop: e.g. Kubernetes
    # deletes the children of a deleted object before an interrupted watch shows its deletion. The
    # same goes for an object that somebody, or a handler, changes whenever this has written to it.

    def _count_repetition(self) -> None:
        now = self._hub.context.clock.mono()
        bucket = self._restorations = self._restorations or ratelimits.TokenBucket(
            burst=RESTORATIONS, period=RESTORATION_PERIOD, now=now)
        if not bucket.take(now):  # it came by another reason, or was rounded
            bucket.empty(now)

    def _get_wait(self) -> float:
        return 0.0 if self._restorations is None else self._restorations.get_wait(
            self._hub.context.clock.mono())

    async def _call(
            self, raw: bodies.RawBody, limits: Limits, *, is_triggered: bool,
    ) -> bodies.RawBody | None:
        now = self._hub.context.clock.mono()
        called = [
            handler for handler in self.host.handlers.reconciling if is_triggered or (
                handler.id in self._states and self._states[handler.id].is_due(now))]
        newest: bodies.RawBody | None = raw
        while called and newest is not None:
            handler = called.pop(0)
            newest = await self._drive(
                handler, newest, limits, is_last=not called,
            ) if isinstance(handler, handlers.ExternalHandler) else await self._run(
                handler, newest, is_last=not called)
            if called and (limits.is_paused() or limits.is_stopped()):
                self._is_triggered = self._is_asked = True  # later
                return None
        if newest is not None and not self._is_reported:  # the last handler was not called
            patch = patches.Patch()
            self._report(patch)
            return await self._apply_patch(newest, patch, self._aim_at(newest))
        return newest

    async def _run(
            self,
            handler: handlers.ReconcilingHandler,
            raw: bodies.RawBody,
            strays: children.Strays = MappingProxyType({}),
            *,
            is_last: bool,
    ) -> bodies.RawBody | None:
        """
        Call the handler, and apply what it returns; after the last one, report the conditions.

        ``strays`` are the children that the watch does not show, because others have changed their
        labels. They are found when the handler has returned their manifests. Then the handler is
        called again, because it must see what it overwrites.
        """
        hub, context = self._hub, self._hub.context
        namespace = raw['metadata'].get('namespace')
        now = context.clock.now()
        state = self._states.get(handler.id) or progression.HandlerState.new(now=now)
        state = self._states[handler.id] = state.begun(now=now)._replace(due=progression.NEVER)
        self._dismiss(handler)
        if not all(hub.store.is_ready(kind, namespace) for kind in hub.get_kinds(handler).values()):
            hub.waiting.add(self)
            return raw
        target = self._aim_at(raw)
        known = children.OperatorChildren(hub.store, self.host.uid, namespace, strays)
        cause = self._make_cause(raw, target, known)
        upkeep = Upkeep(hub, target, raw, self, handler, known)
        filter_error: Exception | None = None
        try:
            if not handler.unfiltered and not filters.matches(handler, cause):
                self._abandon(upkeep)
                return raw
        except filters.FilterError as e:
            filter_error = e.error
        self._told = tuple(told for told in self._told if told != handler.id)
        if (wait := handler.describe_wait(raw)) is not None:
            self._reporter = self._reporter or (handler.id if handler.conditions else None)
            self._note_problems(handler.id, conditions.Problems((wait,), is_stalled=False))
            return raw

        outcome = await context.observer.follow(
            observers.Observer.attempt, upkeep.attempt(
                cause, state, filter_error, is_new=self._is_new,
                hold=functools.partial(self._exchange, raw, target, FINALIZER, is_added=True)),
            handler, cause)
        if upkeep.found:
            return await self._run(handler, raw, {**strays, **upkeep.found}, is_last=is_last)
        if upkeep.newest is None:
            return None
        self._note(handler, outcome)
        return await self._finish(upkeep, upkeep.newest, outcome, is_last)

    async def _drive(
            self, handler: handlers.ExternalHandler, raw: bodies.RawBody,
            limits: Limits, *, is_last: bool,
    ) -> bodies.RawBody | None:
        """Let the driver of an external do what it can do now."""
        from kopf._core.engines.reconciling import externals  # only if it is used
        driver, now = self._hub.get_driver(handler), self._hub.context.clock.now()
        self._dismiss(handler)
        state = self._states.get(handler.id) or progression.HandlerState.new(now=now)
        target = self._aim_at(raw)
        cause = self._make_cause(raw, target, children.OperatorChildren(
            self._hub.store, self.host.uid, raw['metadata'].get('namespace'), {}))
        if not finalizers.is_deleting(raw) and not execution.is_matching(
                handler, cause, context=self._hub.context):
            self._forget(handler)
            return raw
        if handler.id not in self._notes:
            self._notes[handler.id] = driver.join(
                self.host.uid, functools.partial(self._summon, handler.id))
        if self._verdicts is None:
            self._verdicts = {}
        run = externals.Run(
            handler=handler, raw=raw, target=target, cause=cause, context=self._hub.context,
            state=state, exchange=self._exchange, limits=limits,
            is_edited=self.is_edited, verdicts=self._verdicts,
            siblings=[other.declaration for other in self._externals])
        result = await driver.drive(run, self._notes[handler.id])
        outcome = result.outcome or progression.Outcome(final=result.is_settled)
        if result.outcome is not None:
            state = state.after(outcome, now=now)
        elif result.is_settled:
            state = progression.HandlerState.new(now=now)
        due = self._hub.context.clock.mono() if handler.id in self._summoned else result.due
        self._states[handler.id] = state._replace(
            due=progression.space(due, invoked=now.mono), success=False, failure=False)
        if run.raw is None:
            return None
        for other in self._externals if run.raw is not raw else ():
            if other is not handler:  # it can wait for this one
                self._summon(other.id)
        newest = await self._finish(
            run, run.raw, outcome._replace(patch=run.cause.patch or None), is_last)
        for follower in self.host.handlers.reconciling:
            if handler.declaration in follower.after and newest is not None and (
                    _show(handler, newest) != _show(handler, raw)):
                self._summon(follower.id)
        return newest

    def _make_cause(
            self, raw: bodies.RawBody, target: application.Target, known: children.OperatorChildren,
    ) -> causes.ReconcilingCause:
        hub, host = self._hub, self.host
        return causes.ReconcilingCause(
            logger=target.logger, memo=hub.get_memo(host), indices=hub.context.indices,
            resource=host.resource, body=bodies.OwnBody(raw), patch=patches.Patch(), children=known)

    async def _finish(
            self, upkeep: 'Upkeep | externals.Run', raw: bodies.RawBody,
            outcome: progression.Outcome, is_last: bool,
    ) -> bodies.RawBody | None:
        """
        Write the patch of the handler, and the conditions.

        If the API server refuses the patch, the handler has failed, and no others are affected.
        """
        handler, problems = upkeep.handler, upkeep.problems
        patch = outcome.patch if outcome.patch is not None else patches.Patch()
        if handler.conditions:
            self._reporter = self._reporter or handler.id
            if isinstance(upkeep, Upkeep) or not upkeep.is_told:
                self._is_reported = False
        self._note_problems(handler.id, conditions.Problems(
            tuple(sorted(problems)), outcome.final and bool(outcome.exception or outcome.message)))
        if is_last and not self._is_reported:
            self._report(patch)
        try:
            return await self._apply_patch(raw, patch, upkeep.target)
        except application.REFUSALS as e:
            text = f"its {application.describe_refusal(e)}"
        failed = execution.fail(handler, application.PatchError(text), upkeep.target.logger)
        if isinstance(upkeep, Upkeep):
            self._states.pop(handler.id, None)
        if outcome.patch is None:  # the conditions themselves are refused
            return raw
        problems.append(text)
        return await self._finish(upkeep, raw, failed, is_last)

    def _abandon(self, upkeep: Upkeep) -> None:
        """Say once that the object with children does not match the filters any more."""
        handler = upkeep.handler
        self._forget(handler)
        left = [] if handler.id in self._told else list(upkeep.find_known())
        if left:
            self._told += (handler.id,)
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            upkeep.target.logger.info(
                f"{handler!r} does not match this object any more. Its owned resources stay as "
                f"they are: {', '.join(map(str, left[:MAX_NAMED]))}{more}.")

    def _forget(self, handler: handlers.ReconcilingHandler) -> None:
        """Forget the results of a handler that the object does not match."""
        self._states.pop(handler.id, None)
        self._note_problems(handler.id, conditions.Problems((), is_stalled=False))
        if self._reporter == handler.id:
            self._reporter = None
        if self._verdicts is not None and handler.id in self._verdicts:
            self._verdicts.clear()  # the others say it again, without this one

    def _note_problems(self, handler_id: ids.HandlerId, found: conditions.Problems) -> None:
        former = self._problems.pop(handler_id, None)
        if found.messages:
            self._problems[handler_id] = found
        if self._reporter is not None and self._problems.get(handler_id) != former:
            self._is_reported = False

    def _report(self, patch: patches.Patch) -> None:
        """Set the conditions, which are about all handlers of the object."""
        self._is_reported = True
        if self._reporter is not None:
            conditions.report(
                patch, self._problems, reporter=self._reporter, observed=self._observed)

    def _note(self, handler: handlers.ReconcilingHandler, outcome: progression.Outcome) -> None:
        """Note the outcome, and when the handler is called again."""
        now = self._hub.context.clock.now()
        state = self._states.pop(handler.id)  # after a permanent failure, until the next change
        if not outcome.final:
            state = state.after(outcome, now=now)
        elif outcome.exception is None and handler.interval is not None:
            pause = handler.interval * random.uniform(1 - SPREAD, 1 + SPREAD)
            state = progression.HandlerState.new(now=now)._replace(due=now.mono + pause)
        else:
            return
        due = progression.space(state.due, invoked=now.mono)
        self._states[handler.id] = state._replace(due=due)

    async def _apply_patch(
            self, raw: bodies.RawBody, patch: patches.Patch, target: application.Target,
    ) -> bodies.RawBody | None:
        """Apply the patch of a handler, unless it is known to change nothing."""
        if application.is_in_place(raw, patch):
            return raw
        version, digest = raw['metadata'].get('resourceVersion'), hash(repr(dict(patch)))
        vain = self._vain[1] if self._vain[0] == version else ()
        if digest in vain:
            if not patch.fns:
                return raw
            patch = patches.Patch(fns=patch.fns)
        sent: list[bodies.RawBody] = []
        if patch.fns:  # they are called once for each attempt: for what is sent
            patch = patches.Patch(patch, fns=[sent.append])
        newest = await application.apply(target, raw, patch)
        if newest is not None and newest['metadata'].get('resourceVersion') == version:
            self._vain = version, (*vain, digest)  # e.g. the schema lacks the status
        if newest is not None and newest is not raw:
            expected: Any = sent[-1] if sent else patches.merge(raw, patch)
            self._accept(newest, has_news=_has_news(raw, newest, expected))
        return newest

    async def _exchange(
            self, raw: Any, target: application.Target, finalizer: str,
            annotations: Mapping[str, str | None] = MappingProxyType({}), *, is_added: bool,
    ) -> tuple[bodies.RawBody | None, bool]:
        """
        Write annotations, and add or remove a finalizer; return the newest state, and whether this
        was written. It is written only if the fields still have the values that were read.
        """
        wanted: Any = raw if finalizers.is_present(raw, finalizer) is is_added else (
            finalizers.switch(raw, finalizer, is_added=is_added))
        if annotations:
            merged = patches.merge(raw['metadata'].get('annotations') or {}, annotations)
            wanted = {**wanted, 'metadata': {**wanted['metadata'], 'annotations': merged}}
        written = {'metadata': {'annotations': annotations}} if annotations else {}
        newest, is_written = await application.exchange(
            target, raw, patches.make_json_patch(raw, wanted),
            guards=finalizers.guard(raw, written) or application.VERSION)
        if newest is not None:
            self._accept(newest, has_news=not is_written or _has_news(raw, newest, wanted))
            if is_written:
                application.verify_finalizers(raw, wanted, newest)
        return newest, is_written

    def _accept(self, newest: bodies.RawBody, *, has_news: bool) -> None:
        """Take the response to an own write; run again if others have changed the object."""
        self.host.accept(newest)
        self.has_written = True
        if has_news:
            self.note_answer()
            self.host.wake_up()

    async def _clean_up(self, raw: bodies.RawBody) -> None:
        """Delete the children that Kubernetes does not delete, then release the object."""
        if not finalizers.is_present(raw, FINALIZER):
            return
        store, target, served = self._hub.store, self._aim_at(raw), self.host.handlers.reconciling
        kinds = dict.fromkeys(
            kind for handler in served for kind in self._hub.get_kinds(handler).values())
        if not self._hub.uncertain.isdisjoint(served) or not all(
                store.is_listed(kind, None) for kind in kinds):
            self._hub.waiting.add(self)
            forbidden = [(kind, name) for kind in kinds for name in store.find_forbidden(kind)]
            if forbidden and None not in self._told:
                self._told += (None,)
                kind, name = forbidden[0]
                target.logger.warning(
                    f"The deletion waits until {kind} can be listed{describe_place(name)}, as "
                    f"owned resources can be there. The operator needs the right to list them. If "
                    f"there are none, remove the finalizer {FINALIZER}.")
            return
        left = [child for child in store.of(self.host.uid).values()
                if not child.is_owned and child.is_applied]
        for child in left:
            if not child.is_deleting:
                await delete(target, child)
        if not left:
            await self._exchange(raw, target, FINALIZER, is_added=False)

    def _aim_at(self, raw: bodies.RawBody) -> application.Target:
        """Get what is needed to write for the object in this state."""
        context = self._hub.context
        logger = loggers.LocalObjectLogger(body=bodies.Body(raw), settings=context.settings)
        return application.Target(self._client, self.host.resource, logger, context.observer)


def _show(handler: handlers.ExternalHandler, raw: bodies.RawBody) -> Any:
    """Get what other handlers can see of an external on its object."""
    return handler.declaration.get_key(raw), (raw.get('status') or {}).get(handler.id)


def _has_news(raw: bodies.RawBody, newest: bodies.RawBody, expected: bodies.RawBody) -> bool:
    """
    Whether the response to an own patch has changes by others, which the watch does not show again.

    ``expected`` is what the patch makes of the object, or of a newer state after a conflict. The
    values of the changed fields do not count: the API server can have normalised them.
    """
    if bodies.parse_version(expected) != bodies.parse_version(raw):
        return True
    effect = application.get_effect(raw, expected)
    before, after = (
        patches.merge(patches.merge(state, effect), UNVERSIONED) for state in (raw, newest))
    return before != after
