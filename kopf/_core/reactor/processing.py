"""
The passes: what is done for an object when there is something new about it.

A pass first shows the raw events to those who want to see them, then handles the newest state, turn
by turn, until the object is at rest or waits for its time. Its errors are the object's own: they
back off on that object, and are tried again also if nothing changes.
"""
import asyncio
import datetime
import functools
import logging
from typing import Any

from kopf._cogs.clients import errors as apierrors
from kopf._cogs.structs import bodies, patches
from kopf._core.actions import (
    application,
    decisions,
    execution,
    invocation,
    loggers,
    progression,
    throttlers,
)
from kopf._core.engines import indexing
from kopf._core.engines.daemons import spawning
from kopf._core.intents import causes, errors, filters, handlers, registries, stopping
from kopf._core.reactor import handling, lines, saving, turns

objects_logger = logging.getLogger('kopf.objects')

SAVING_TIMEOUT = 5.0
"""How long (seconds) what is done can be written when the operator exits."""


HOT_ROUNDS = 3
"""After so many changes in a row, each while handling another, the next ones are batched."""


class Processor:
    """All the passes of an operator."""

    def __init__(
            self, env: turns.Environment, indexers: indexing.OperatorIndexers | None = None,
    ) -> None:
        super().__init__()
        self.env = env
        self.indexers = indexers if indexers is not None else indexing.OperatorIndexers()
        self.spawner = spawning.Spawner(
            client=env.client, settings=env.settings, clock=env.clock, indices=env.indices,
            get_memo=functools.partial(turns.get_memo, env))

    def is_congested(self) -> bool:
        """Whether there is enough at work, so that what is not urgent should wait."""
        return self.env.client.congested

    def settle(self, line: lines.Line) -> bool:
        """
        Process the state if that needs no pass: nothing is to be done, to be told, or to wait for.
        """
        raw = line.pending
        served = line.stream.handlers
        if raw is None or served.watching or served.spawning or (
                line.cycle is not None or line.throttler is not None or
                line.companions is not None):
            return False
        if not self._is_changing(line, raw):
            line.pending = None
            return True
        if (line.initial and any(handler.initial for handler in served.changing)) or (
                objects_logger.isEnabledFor(logging.DEBUG)):
            return False
        if any(handler.requires_finalizer for handler in served.changing) or (
                decisions.is_blocked(raw, self.env.settings.persistence.finalizer)):
            return False
        try:
            if self.env.settings.persistence.diffbase_storage.fetch(body=bodies.Body(raw)) is None:
                return False
            view = decisions.look(
                raw, settings=self.env.settings, extra_fields=served.extra_fields)
            reason, _ = decisions.detect(view, initial=False)
            if reason != causes.Reason.NOOP or self._has_traces(view, served):
                return False
        except Exception:  # e.g. of the author's storage: the pass meets it again, and tells of it
            return False
        line.pending = None
        line.initial = False
        line.noticed = True
        return True

    def _has_traces(self, view: decisions.View, served: registries.ResourceHandlers) -> bool:
        storage = self.env.settings.persistence.progress_storage
        return storage.touched(body=view.body) is not None or any(
            storage.fetch(key=handler.id, body=view.body) for handler in served.changing)

    async def index(self, line: lines.Line, raw: bodies.RawBody) -> float | None:
        """Put the state into the indices; return when to try it again, if that is wanted."""
        try:
            return await self.indexers.index(
                line.stream.handlers.indexing, uid=line.uid, resource=line.stream.resource,
                raw=raw, memo=turns.get_memo(self.env, line), settings=self.env.settings,
                clock=self.env.clock)
        except Exception as e:
            self._get_logger(raw).error(f"Indexing has failed: {e!r}", exc_info=True)
            return None

    def discard(self, line: lines.Line) -> None:
        self.indexers.discard(line.uid, line.stream.handlers.indexing)

    async def process(self, line: lines.Line) -> None:
        """Make a pass for the object."""
        first = line.peek()
        if line.stream.lines.check_paused() and not line.gone:
            line.woken = True
            return
        if first is None:
            line.woken = False
            return
        try:
            await self._process(line)
        except Exception as e:
            self._throttle(line, e, self._get_logger(first))
        else:
            if line.throttler is not None:
                line.throttler = None
                self._get_logger(first).info(
                    "Throttling is over. Switching back to normal operations.")

    def _get_logger(self, raw: bodies.RawBody) -> loggers.ObjectLogger:
        return loggers.ObjectLogger(body=bodies.Body(raw), settings=self.env.settings)

    async def _process(self, line: lines.Line) -> None:
        while True:
            while line.events and (line.gone or not line.stream.lines.check_paused()):
                await self._watch(line, line.events.popleft())
            raw = line.take()
            if line.gone:
                if raw is not None and line.noticed:
                    self._get_logger(raw).debug("Deleted, really deleted, and we are notified.")
                return
            if raw is None or not self._is_changing(line, raw):
                return
            line.cancel_timer()
            await self._handle(line, raw, self._get_logger(raw))
            if line.stream.lines.stopping or line.stream.lines.paused or not (
                    line.pending is not None or line.events):
                return

    def _is_changing(self, line: lines.Line, raw: bodies.RawBody) -> bool:
        served = line.stream.handlers
        return bool(served.changing or served.spawning or line.companions) or (
            decisions.is_blocked(raw, self.env.settings.persistence.finalizer))

    async def _handle(self, line: lines.Line, raw: bodies.RawBody, logger: Any) -> None:
        """Turn by turn, until there is nothing more to do; newer states of others come first."""
        state: bodies.RawBody | None = raw
        backlog = line.initial
        rounds = 0
        while state is not None:
            line.keep(state)  # should anything fail
            accompanied = self._accompany(line, state)
            turn = handling.HandlingTurn(self.env, line, state, logger, accompanied=accompanied)
            try:
                state = await turn.run()
            except asyncio.CancelledError:
                await self._save_at_exit(line, turn.saver)
                raise
            except Exception:
                line.keep(turn.saver.raw)
                raise
            if turn.is_stopped and not line.stream.lines.stopping:
                line.woken = True
                self._let_go(line)
                return
            if line.gone or line.stream.lines.stopping:
                return
            if line.pending is not None:
                rounds += 1
                if rounds >= HOT_ROUNDS and not decisions.is_deleting(line.pending):
                    await asyncio.sleep(self.env.settings.queueing._batch_window)
                state = line.take()
        if line.cycle is None:
            line.drop()
        if backlog:
            line.pack()  # there are thousands of them at a time

    def _let_go(self, line: lines.Line) -> None:
        """Others can go on from what is written; if they do, that is where to go on from."""
        if line.cycle is not None and not line.cycle.dirty:
            line.cycle = None

    def reconsider(self, line: lines.Line, raw: bodies.RawBody) -> None:
        """Give up what was begun if another operator has had its hands on the object meanwhile."""
        if line.cycle is None or line.busy:
            return
        self._let_go(line)
        known = line.recall()
        if known is None or self._get_traces(line, known) != self._get_traces(line, raw):
            line.cycle = None

    def _get_traces(self, line: lines.Line, raw: bodies.RawBody) -> object:
        """All that an operator leaves on an object when it handles it."""
        persistence, body = self.env.settings.persistence, bodies.Body(raw)
        return persistence.diffbase_storage.fetch(body=body), [
            persistence.progress_storage.fetch(key=handler.id, body=body)
            for handler in line.stream.handlers.changing]

    def _accompany(self, line: lines.Line, raw: bodies.RawBody) -> bool:
        """
        Start and stop the daemons & timers as the state demands; return if there are any.

        They are started when the finalizer is on the object, so that no deletion is missed.
        """
        served = line.stream.handlers
        if not served.spawning and line.companions is None:
            return False
        if line.companions is None:
            line.companions = spawning.Companions(
                self.spawner, line, line.stream.resource, raw)
        if decisions.is_deleting(raw):
            line.companions.stop(stopping.DaemonStoppingReason.RESOURCE_DELETED)
            return line.companions.alive
        selected = line.companions.select(served.spawning, raw)
        if not selected or decisions.is_blocked(raw, self.env.settings.persistence.finalizer):
            line.companions.adjust(selected)
        if not selected and line.companions.forgettable:
            line.companions = None
            return False
        return bool(selected) or line.companions.alive

    async def _save_at_exit(self, line: lines.Line, saver: saving.Saver) -> None:
        saver.disarm()
        if line.cycle is not None and line.cycle.dirty and not line.gone:
            async with asyncio.timeout(SAVING_TIMEOUT):
                await saver.save()

    def _throttle(self, line: lines.Line, e: Exception, logger: Any) -> None:
        if line.throttler is None:
            line.throttler = throttlers.Throttler()
        delay = line.throttler.next_delay(self.env.settings.queueing.error_delays)
        exc_info = (type(e), e, e.__traceback__)
        if delay is None:
            line.throttler = None
            logger.error(f"An unexpected error: {e!r}. The object is left alone until its next "
                         f"change, as no throttling is configured.", exc_info=exc_info)
            return
        logger.error(f"Throttling for {delay} seconds due to an unexpected error: {e!r}",
                     exc_info=exc_info)
        if not line.gone and not line.stream.lines.stopping:
            line.wait_until(asyncio.get_running_loop().time() + delay)

    async def _watch(self, line: lines.Line, event: bodies.RawEvent) -> None:
        """Show a raw event to its handlers. Their errors are told, and ignored."""
        body = bodies.Body(event['object'])
        logger = loggers.LocalObjectLogger(body=body, settings=self.env.settings)
        patch = patches.Patch(body=body)
        cause = causes.WatchingCause(
            logger=logger,
            memo=turns.get_memo(self.env, line),
            indices=self.env.indices,
            resource=line.stream.resource,
            body=body,
            patch=patch,
            type=event['type'],
            event=event,
        )
        state = progression.HandlerState.new(now=self.env.clock.now())
        called: set[object] = set()
        for handler in line.stream.handlers.watching:
            if handler.key not in called and self._is_watching(handler, cause):
                called.add(handler.key)
                line.interruptible = True
                await self._watch_once(handler, cause, state)
                line.interruptible = False
        line.noticed = line.noticed or bool(called)
        if patch and event['type'] != 'DELETED':
            target = application.Target(self.env.client, line.stream.resource, logger)
            try:
                newest = await application.apply(target, event['object'], patch)
            except (apierrors.APIError, application.PatchError) as e:
                if not application.is_refusal(e):
                    raise
                logger.error(f"The patch of event handlers is refused: {e}")
                return
            if newest is not None:
                line.accept(newest)
                line.pending = line.pending if line.pending is not None else newest

    def _is_watching(self, handler: handlers.WatchingHandler, cause: causes.WatchingCause) -> bool:
        try:
            return handler.unfiltered or filters.matches(handler, cause)
        except filters.FilterError as e:
            execution.fail(handler, e.error, cause.logger)
            return False

    async def _watch_once(
            self,
            handler: handlers.WatchingHandler,
            cause: causes.WatchingCause,
            state: progression.HandlerState,
    ) -> None:
        kwargs = {
            **cause.kwargs, 'param': handler.param, 'retry': 0, 'started': state.started,
            'runtime': datetime.timedelta(0), **cause.indices}
        await execution.attempt(
            handler,
            call=lambda: invocation.invoke(
                handler, kwargs, self.env.settings.execution.executor),
            state=state,
            settings=self.env.settings,
            clock=self.env.clock,
            logger=cause.logger,
            default_errors=errors.ErrorsMode.IGNORED,
        )
