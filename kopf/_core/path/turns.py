"""
Processing of one object after something new has arrived in its inbox.

First, the event handlers get the raw events. Then the changes of the newest state are handled,
until the object is at rest or its handlers have to wait. Then its reconcilers are called. An error
throttles only the object that caused it; after the delay, the object is processed again, even if it
has not changed.
"""
import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from kopf._cogs.aiokits import timeouts, wakeups
from kopf._cogs.clients import errors as apierrors
from kopf._cogs.structs import bodies, dicts, patches, references
from kopf._core.actions import (
    application,
    claims,
    decisions,
    execution,
    feedbackloops,
    finalizers,
    loggers,
    observers,
)
from kopf._core.engines import indexing
from kopf._core.engines.daemons import spawning
from kopf._core.engines.daemons.companions import Companions, Spawner
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.reconciling.reconcilers import Reconcilers
from kopf._core.intents import causes, handlers, stopping
from kopf._core.path import handling, objects, saving, switches

HOT_ROUNDS = 3
"""
After how many changes in a row Kopf begins to batch them; each comes while the previous is handled.
"""

LATE_SAVING = 1.0
"""How long (seconds) to try to write the outcomes if a handler ends after the exit deadline."""

AwaitIndexing = Callable[[references.Resource, str], Awaitable[None]]
"""
Waits until the newest known state of an object (its resource, its uid) is in those indices that
another processor fills.
"""


class Processor:
    """Processes all objects of an operator, from the first event of each to its end."""

    def __init__(
            self,
            env: saving.Environment,
            *,
            switch: switches.Switch,
            alarms: wakeups.Wakeups,
            indexers: indexing.OperatorIndexers,
            hub: Hub,
            fills: Callable[[handlers.IndexingHandler], bool] = lambda handler: True,
            await_indexing: AwaitIndexing | None = None,
            only_indexing: bool = False,
    ) -> None:
        """
        The ``alarms`` schedule the objects whose handlers wait until some time. This processor puts
        objects only into the indices for which ``fills`` is true. With ``only_indexing``, no other
        handlers are called.
        """
        self.env = env
        self._switch = switch
        self._alarms = alarms
        self._indexers = indexers
        self._fills = fills
        self._await_indexing = await_indexing
        self._only_indexing = only_indexing
        self.spawner = Spawner(
            client=env.client, context=env,
            get_memo=env.get_memo,
            confirm=switch.confirm)
        self._hub = hub

    def is_congested(self) -> bool:
        """Whether so many requests are in progress that objects of the first lists should wait."""
        return self.env.client.congested

    def is_overloaded(self) -> bool:
        """Whether so many requests wait that handlers should not be called for more objects."""
        return self.env.client.overloaded

    def start(self, item: objects.Item) -> Callable[[], Awaitable[None]] | None:
        """
        Begin to process the object; return the remaining work, or None if there is none.

        This method recognises states that need nothing, without a task: after a start, there can be
        thousands of such objects.
        """
        if self._only_indexing:
            item.inbox.take()
            return None
        first = item.inbox.peek()
        if first is None or not self._switch.admits(is_gone=item.gone):
            if first is None:
                item.inbox.forget_reminder()
            else:
                item.inbox.remind()
            return None
        item.identify(first)
        found: handling.Handling | None = None
        served = item.handlers
        if not item.gone and not item.is_engaged and item.inbox.pending is first and not (
                served.watching or served.spawning or served.reconciling):
            if not self._is_changing(item, first):
                item.inbox.take()
                return None
            found = self._make_handling(item, first)
            try:
                step = found.prepare()
            except Exception as e:
                item.inbox.take()
                self._throttle(item, e, self._get_logger(first))
                return None
            if isinstance(step, decisions.Nothing) and not isinstance(step, decisions.Protect):
                item.inbox.take()
                self._alarms.cancel(item)
                found.rest(step)
                return None
        return functools.partial(self._work, item, first, found)

    def _make_handling(self, item: objects.Item, raw: bodies.RawBody) -> handling.Handling:
        return handling.Handling(
            self.env, item, raw, self._get_logger(raw), switch=self._switch, alarms=self._alarms,
            accompany=self._accompany)

    async def index(self, item: objects.Item, raw: bodies.RawBody) -> float | None:
        """Index the state; return when to retry failed indexing handlers, or None for never."""
        self.env.enter()
        due: float | None = None
        try:
            due = await self._indexers.index(
                filter(self._fills, item.handlers.indexing), uid=item.uid, resource=item.resource,
                raw=raw, memo=self.env.get_memo(item), context=self.env,
                is_gone=lambda: item.gone)
        except Exception as e:
            self._get_logger(raw).error(f"Indexing has failed: {e!r}", exc_info=True)
        if self._await_indexing is not None:
            await self._await_indexing(item.resource, item.uid)
        return due

    def discard(self, item: objects.Item) -> None:
        """Remove the object, which is gone, from the indices."""
        self._indexers.discard(item.uid, filter(self._fills, item.handlers.indexing))

    async def _work(
            self, item: objects.Item, raw: bodies.RawBody,
            found: handling.Handling | None,
    ) -> None:
        """Process the object, and notify the observers, also of errors."""
        self.env.enter()
        try:
            await self.env.observer.follow(
                observers.Observer.reconciliation, self._conclude(item, raw, found),
                item.resource, raw)
        except Exception:  # it is logged
            pass

    async def _conclude(
            self, item: objects.Item, raw: bodies.RawBody,
            found: handling.Handling | None,
    ) -> observers.Sequel:
        """
        Process the object, and find what follows. An error throttles this object only.

        :raises Exception: the error, after it was logged, and the object throttled if needed.
        """
        try:
            await self._process(item, raw, found)
            # After the others: a patch that always fails must not hold them up.
            if item.unsent is not None and not item.gone and self._switch.admits():
                await self._send(item, raw, item.unsent)
        except apierrors.NotLeadingError as e:
            self._switch.confirm()
            item.inbox.remind()
            self._let_go(item)
            self._get_logger(raw).info(str(e))
            raise
        except Exception as e:
            if not (item.gone and isinstance(e, apierrors.APINotFoundError)):
                self._throttle(item, e, self._get_logger(raw))
            raise
        if item.throttler is not None and item.throttler.is_told:
            self._get_logger(raw).info("Throttling is over. Switching back to normal operations.")
        item.recover()
        if item.inbox.has_news:
            return observers.Sequel.AGAIN
        return observers.Sequel.REST if item.due is None else observers.Sequel.LATER

    def _get_logger(self, raw: bodies.RawBody) -> loggers.ObjectLogger:
        return loggers.ObjectLogger(body=bodies.Body(raw), settings=self.env.settings)

    async def _process(
            self, item: objects.Item, first: bodies.RawBody,
            found: handling.Handling | None,
    ) -> None:
        """
        Call the event handlers, then reconcile the newest state; repeat if there is news.

        An object can change all the time, faster than it is handled: no handlers must starve.
        """
        inbox, rounds = item.inbox, 0
        while True:
            self._switch.confirm()
            while self._switch.admits(is_gone=item.gone) and (event := inbox.take_event()):
                await self._watch(item, event)
                self._switch.confirm()
            if not self._switch.admits(is_gone=item.gone):
                inbox.remind()
                return
            is_news = inbox.has_pending
            raw = inbox.take(first)
            is_response = found is not None and found.saver.raw is raw
            if item.gone:
                if raw is not None and item.noticed:
                    self._get_logger(raw).debug("Deleted, really deleted, and we are notified.")
                return
            if raw is None:
                return
            if item.vanished:
                inbox.keep(raw)  # the end is reported with the newest state
                return
            self._alarms.cancel(item)
            if item.handlers.reconciling:
                if item.reconcilers is None:
                    item.engage(Reconcilers(self._hub, item, self.env.client))
                if is_news or not inbox.is_keeping:
                    inbox.keep(raw)  # so that it is kept up to date by the own writes of this pass
            if self._is_changing(item, raw):
                if found is None or found.saver.raw is not raw:
                    if found is not None:
                        found.discard()
                    found = self._make_handling(item, raw)
                await self._reconcile(item, found)
            if item.handlers.reconciling:
                await self._run_reconcilers(
                    item, raw, is_news=is_news and not is_response, is_hot=rounds >= HOT_ROUNDS)
                if not inbox.has_pending:
                    inbox.pack()  # after a start, thousands of objects rest at once
            if inbox.pending is not None:
                rounds += 1
                is_own = found is not None and found.saver.raw is inbox.pending
                if rounds >= HOT_ROUNDS and not is_own and not finalizers.is_deleting(
                        inbox.pending):
                    await asyncio.sleep(self.env.settings.queueing._batch_window)
            if not self._switch.admits() or not (inbox.has_pending or inbox.has_events):
                return

    async def _run_reconcilers(
            self, item: objects.Item, raw: bodies.RawBody, *, is_news: bool, is_hot: bool,
    ) -> None:
        """
        Call the reconciling handlers, and schedule their next calls. ``is_news`` is whether the
        state comes from others, and is not the response to an own write.

        If a newer state is there already, or is not indexed yet, the handlers wait for that, unless
        the object ``is_hot``.
        """
        member = item.reconcilers
        if member is None or item.gone or item.vanished or (
                isinstance(item.held, decisions.Protect)):
            return
        newest = raw
        if item.inbox.version != bodies.parse_version(raw):
            kept = item.recall()
            if kept is not None and bodies.parse_version(kept) != bodies.parse_version(raw):
                newest = kept
        # The own writes of this pass have no echoes, but they are changes of the object.
        if is_news or (newest is not raw and not member.has_written):
            member.note_change()
        elif newest is not raw and self._is_different(item, raw, newest):
            member.note_answer()
        if item.inbox.has_pending and not is_hot:
            return
        if self._is_stopped() or not (item.is_indexed or is_hot):
            item.inbox.remind()  # the item is released when it is resumed or indexed
            return
        pause, is_held = self.env.find_pause(item.inbox.pending or newest), False
        item.notice()
        item.enter(objects.Phase.CALLING)
        try:
            if pause is not None:
                is_held = await member.hold(newest, pause, is_stopped=self._is_stopped)
            else:
                await member.run(
                    newest, is_stopped=self._is_stopped, is_paused=lambda: self.env.find_pause(
                        item.inbox.pending or item.recall() or newest) is not None)
        finally:
            item.enter(objects.Phase.WORKING)
        if member.has_written and self._is_changing(item, newest):
            item.inbox.remind()  # the handlers of changes have not seen what was written
        due = member.due
        if pause is not None:
            until = None if pause.until is None else self.env.clock.now().at(pause.until)
            due = min(filter(None, (until, member.due_paused)), default=None)
            if is_held:
                item.hold(decisions.Pause(pause.describe(), until=until), self._get_logger(newest))
        elif isinstance(item.held, decisions.Pause):
            item.go_on(self._get_logger(newest))
        if due is not None and (item.due is None or due < item.due):
            self._alarms.sleep(item, due)

    def _is_stopped(self) -> bool:
        self._switch.confirm()
        return not self._switch.admits()

    def _is_different(self, item: objects.Item, a: bodies.RawBody, b: bodies.RawBody) -> bool:
        """Whether the states differ in more than in the records of handlers."""
        essence, other = map(claims.Ledger(self.env.settings, item.handlers).build_essence, (a, b))
        return essence != other or a.get('status') != b.get('status')

    def _is_changing(self, item: objects.Item, raw: bodies.RawBody) -> bool:
        served, finalizer = item.handlers, self.env.settings.persistence.finalizer
        return bool(served.changing or served.spawning or item.companions) or (
            not served.is_kept_elsewhere and finalizers.is_present(raw, finalizer))

    async def _reconcile(self, item: objects.Item, found: handling.Handling) -> None:
        """Reconcile the object, and then keep only what is needed while it rests."""
        is_backlog = item.initial
        try:
            await found.run()
        except asyncio.CancelledError:
            await self._settle_at_exit(item, found.saver)
            raise
        except application.OvertakenError as e:
            found.give_way(e)
            if not found.is_stopped:
                return
        except Exception:
            item.inbox.keep(found.saver.raw)
            raise
        if found.is_stopped and not self._switch.is_stopping:
            # The newest state, as the watch may show none after this.
            item.inbox.keep(found.saver.raw)
            item.inbox.remind()
            self._let_go(item)
            return
        if item.gone or self._switch.is_stopping:
            return
        if item.cycle is None and item.slowdown is None and item.due is None:
            item.drop()
        if is_backlog:
            item.inbox.pack()  # after a start, thousands of objects rest at once

    def _let_go(self, item: objects.Item) -> None:
        """
        Forget the cycle if it is fully written, because other operators can continue it.

        When this operator handles the object again, it restores the cycle from the object.
        """
        if item.cycle is not None and not item.cycle.dirty:
            item.proceed(None)

    def reconsider(self, item: objects.Item, raw: bodies.RawBody) -> None:
        """
        Drop the cycle after a pause, if another operator has handled the object meanwhile.

        What event handlers have patched before the pause is dropped in any case.
        """
        item.note_unsent(None)
        if item.cycle is None or item.is_at_work:
            return
        self._let_go(item)
        ledger = claims.Ledger(self.env.settings, item.handlers)
        if ledger.judge(raw, known=item.recall()) is claims.Verdict.OVERTAKEN:
            item.proceed(None)

    def _accompany(self, item: objects.Item, raw: bodies.RawBody) -> bool:
        """
        Start and stop the daemons and timers of this state; return whether there are any.

        They start only when the object has the finalizer, unless the settings have none. Otherwise,
        the object could disappear before they are stopped.
        """
        served, companions = item.handlers, item.companions
        if item.gone:  # those that ran are stopping, and none can begin: nobody would stop it
            return companions is not None and companions.alive
        if companions is None:
            if not served.spawning:
                return False
            companions = Companions(self.spawner, item, item.resource, raw)
            item.accompany(companions)
        if finalizers.is_deleting(raw):
            companions.stop(stopping.DaemonStoppingReason.RESOURCE_DELETED)
            return companions.alive
        selected = companions.select(served.spawning, raw)
        finalizer = self.env.settings.persistence.finalizer
        if not selected or finalizer is None or finalizers.is_present(raw, finalizer):
            is_paused = self.env.find_pause(item.inbox.pending or raw) is not None
            spawning.adjust(companions, selected, is_paused=is_paused)
        if not selected and companions.forgettable:
            item.accompany(None)
            return False
        return bool(selected) or companions.alive

    async def _settle_at_exit(self, item: objects.Item, saver: saving.Saver) -> None:
        """Wait for the PATCH that was sent while a handler ran: its effect must be known."""
        try:
            async with timeouts.timeout_at(self._switch.deadline):
                await saver.settle()
        except (apierrors.APIError, application.PatchError, TimeoutError):
            pass  # `save` tries once more
        except application.OvertakenError as e:
            saver.give_way(e)
        finally:
            item.inbox.keep(saver.raw)

    async def save(self, item: objects.Item) -> None:
        """Write the outcomes when the operator exits; log those that cannot be written in time."""
        raw = item.recall()
        if item.cycle is None or not item.cycle.dirty or item.gone or raw is None:
            return
        deadline = self._switch.deadline
        if deadline is not None:
            deadline = max(deadline, asyncio.get_running_loop().time() + LATE_SAVING)
        # This logger posts no Kubernetes events: most likely, the API server is unavailable.
        logger = loggers.LocalObjectLogger(body=bodies.Body(raw), settings=self.env.settings)
        saver = saving.Saver(item, raw, env=self.env, logger=logger, switch=self._switch)
        try:
            async with timeouts.timeout_at(deadline):
                try:
                    if saver.judge(raw) is claims.Verdict.OVERTAKEN:  # by a timer's response
                        raise application.OvertakenError(raw)
                    await self._save_or_close(item, saver, raw)
                except application.OvertakenError as e:
                    saver.give_way(e)
                    if item.cycle is not None and item.cycle.dirty:
                        await saver.save()
        except Exception as e:
            ids = ', '.join(repr(id_) for id_ in item.cycle.unwritten)
            logger.warning(f"What is done could not be written before the exit. The next operator "
                           f"will call these handlers again: {ids}. The reason: {e!r}")

    async def _save_or_close(
            self, item: objects.Item, saver: saving.Saver, raw: bodies.RawBody,
    ) -> None:
        """
        Write the outcomes; close the cycle if the result of the closing PATCH is not known.

        If that PATCH was applied, and the outcomes were written after it, then the next process
        would take them for outcomes of the next cycle.
        """
        conclusion = item.get_cycle().closing
        if conclusion is None:
            await saver.save()
            return
        old, _ = decisions.fetch_old(bodies.Body(raw), self.env.settings)
        await saver.close(
            [handler.id for handler in item.handlers.changing], conclusion=conclusion, old=old)

    def _throttle(self, item: objects.Item, e: Exception, logger: Any) -> None:
        throttler = item.back_off()
        delay = throttler.next_delay(self.env.settings.queueing.error_delays)
        if delay is None:
            item.recover()
            logger.error(f"An unexpected error: {e!r}. The object is left alone until its next "
                         f"change, as no throttling is configured.", exc_info=e)
            return
        throttler.tell(e, delay, logger)
        if not item.gone and not self._switch.is_stopping:
            self._alarms.sleep(item, asyncio.get_running_loop().time() + delay)

    async def _watch(self, item: objects.Item, event: bodies.RawEvent) -> None:
        """Call the event handlers for a raw event. Their errors are logged and ignored."""
        body = bodies.Body(event['object'])
        logger = loggers.LocalObjectLogger(body=body, settings=self.env.settings)
        patch = patches.Patch(item.unsent, body=body)
        cause = causes.WatchingCause(
            logger=logger,
            memo=self.env.get_memo(item),
            indices=self.env.indices,
            resource=item.resource,
            body=bodies.OwnBody(event['object']),
            patch=patch,
            type=event['type'],
            event=event,
        )
        called: set[object] = set()
        for handler in item.handlers.watching:
            key = handler.key
            if key not in called and execution.is_matching(handler, cause, context=self.env):
                called.add(key)
                item.notice()
                item.enter(objects.Phase.CALLING)
                try:
                    outcome = await execution.execute(handler, cause, context=self.env)
                finally:  # if it is interrupted by an exit, the outcomes of others are written
                    item.enter(objects.Phase.WORKING)
                if outcome.result is not None:
                    dicts.ensure(patch, ('status', handler.id), outcome.result)
        if patch and event['type'] != 'DELETED':
            await self._send(item, event['object'], patch)

    async def _send(self, item: objects.Item, seen: bodies.RawBody, patch: patches.Patch) -> None:
        """
        Send the patch of event handlers that have seen this state, if it changes anything.

        Unless the API refuses the patch for good, an error throttles the object. After that, the
        patch is sent again, together with what the handlers have patched meanwhile.
        """
        logger = loggers.LocalObjectLogger(body=bodies.Body(seen), settings=self.env.settings)
        raw = item.inbox.newest or seen
        target = application.Target(self.env.client, item.resource, logger, self.env.observer)
        item.note_unsent(patch)
        try:
            newest = None if application.is_in_place(raw, patch) else (
                await application.apply(target, raw, patch))
        except application.REFUSALS as e:
            logger.error(f"The patch of event handlers is refused: {e}")
            newest = None
        item.note_unsent(None)
        if newest is not None:
            feedback = feedbackloops.follow(item.feedback, seen, newest)
            item.note_feedback(feedback)
            if feedback.is_new:
                logger.warning(
                    f"{feedback.patches} times in a row, the event handlers were called only "
                    f"because they had patched the object. They are called again as fast as the "
                    f"API server allows it. Patch the object only if it is not as it should be.")
            if item.accept(newest):
                item.inbox.put(newest)
