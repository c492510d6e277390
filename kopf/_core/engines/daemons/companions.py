"""
Companions of an object: what daemons and timers have in common.

A companion that has ended by itself, or has failed for good, is not started again for that object.
Those that have to stop go through the stages of stopping: they are told to, then they are cancelled
if they can be, then they are left alone.
"""
import asyncio
import datetime
import logging
import math
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from kopf._cogs.clients import errors as apierrors
from kopf._cogs.structs import bodies, dicts, patches
from kopf._core.actions import (
    application,
    execution,
    invocation,
    progression,
    throttlers,
)
from kopf._core.intents import causes, handlers, stopping

if TYPE_CHECKING:
    from kopf._core.engines.daemons import spawning

Reason = stopping.DaemonStoppingReason

PRECISION = 0.001
"""How much earlier than planned is early enough, in seconds: timers are not more precise."""

NEVER = math.inf
"""When a companion is due that only a change of the object can wake up."""


class Host(Protocol):
    """The object that is accompanied, as the reactor knows it."""

    def recall(self) -> bodies.RawBody | None:
        """The newest known state."""

    def take_over(self, raw: bodies.RawBody) -> None:
        """There is a newer state: the response to a patch."""

    def wake_up(self) -> None:
        """Look at the object again, as soon as possible."""


class Companion:
    """
    One handler that accompanies one object: asleep, or running, or being stopped.

    It ends exactly once. After that, nothing of it is left but what could not be stopped.
    """
    sort = ''
    """What it is called in the log."""

    __slots__ = (
        '_ended', '_patch', '_throttler', '_timer', 'companions', 'due', 'handler', 'state',
        'stopper', 'task')

    def __init__(
            self, companions: 'spawning.Companions', handler: handlers.SpawningHandler,
    ) -> None:
        self.companions = companions
        self.handler = handler
        self.state: progression.HandlerState | None = None
        self.stopper = stopping.DaemonStopper()
        self.task: asyncio.Task[None] | None = None
        self.due: float | None = None
        """When it wakes up, if it is asleep."""
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        """The next stage of stopping."""
        self._patch: patches.Patch | None = None
        self._throttler: throttlers.Throttler | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def spawner(self) -> 'spawning.Spawner':
        return self.companions.spawner

    @property
    def ended(self) -> 'asyncio.Future[None]':
        """It is done when the companion has ended."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self not in self.spawner.alive:
                self._ended.set_result(None)
        return self._ended

    @property
    def title(self) -> str:
        return f"{self.sort} {self.handler.id!r}"

    @property
    def has_limit(self) -> bool:
        """Whether it is abandoned by itself if it does not stop."""
        return self.task is None or self.get_cancellation()[1] is not None

    def get_cancellation(self) -> tuple[float | None, float | None, float | None]:
        """The backoff, the timeout, and the polling interval of stopping."""
        return None, None, None

    def spawn(self) -> None:
        """Begin: now, or after the initial delay."""
        self.spawner.alive.add(self)
        delay = self.handler.initial_delay
        if callable(delay):
            cause = self.companions.make_cause(self.companions.get_body())
            try:
                delay = float(delay(**cause.kwargs))
            except Exception as e:
                execution.fail(self.handler, e, cause.logger, title=self.sort)
                asyncio.get_running_loop().call_soon(self._end, True)
                return
            finally:
                self.companions.rest()
        if delay:
            self._sleep(self.spawner.clock.mono() + delay)
        else:
            self.spawner.start(self)

    def note_change(self) -> None:
        """The object has changed."""

    def _sleep(self, until: float) -> None:
        self.spawner.wakeups.sleep(self, until)

    def wake_up(self) -> None:
        """Its time has come."""
        self.spawner.start(self)

    def begin(self) -> None:
        """Call the function, unless things have changed since it was decided."""
        if self.task is None and not self.stopper.is_set():
            self.task = asyncio.get_running_loop().create_task(self._run())
            self.spawner.tasks.add(self.task)

    async def _run(self) -> None:
        task = self.task
        until: float | None = None
        try:
            until = await self._attempt()
        except asyncio.CancelledError:
            pass  # only the framework does it, at the end
        finally:
            assert task is not None
            self.task = None
            self.spawner.tasks.discard(task)
            self.companions.rest()
            if self.stopper.is_set():
                self._end(done=False)
            elif until is None:
                self._end(done=True)
            elif until != NEVER:
                self._sleep(until)

    async def _attempt(self) -> float | None:
        """Call the function once; return when to do it again, or None if it is done for good."""
        spawner, handler = self.spawner, self.handler
        cause = self.companions.make_cause(self.companions.get_body())
        now = spawner.clock.now()
        state = self.state = self.state or progression.HandlerState.new(now=now)
        waiter = self.stopper.async_waiter if handler.is_async else self.stopper.sync_waiter
        kwargs = {
            **cause.kwargs, 'param': handler.param, 'retry': state.retries,
            'started': state.started, 'stopped': waiter,
            'runtime': datetime.timedelta(seconds=state.age(now.mono)), **spawner.indices}
        self._patch = cause.patch
        outcome: progression.Outcome | None = None
        try:
            outcome = await execution.attempt(
                handler,
                call=lambda: invocation.invoke(handler, kwargs, self._executor),
                state=state,
                settings=spawner.settings,
                clock=spawner.clock,
                logger=cause.logger,
                title=self.sort,
            )
        finally:
            if outcome is not None and outcome.result is not None:
                dicts.ensure(cause.patch, ('status', handler.id), outcome.result)
            is_saved = await self._save(cause.patch, cause.logger)
            self._patch = None
        return self._judge(outcome, cause, invoked=now.mono) if is_saved else None

    @property
    def _executor(self) -> Any:
        return self.spawner.settings.execution.executor

    def _judge(
            self, outcome: progression.Outcome, cause: causes.SpawningCause, *, invoked: float,
    ) -> float | None:
        """When to call the function again after this outcome; None if it is done for good."""
        assert self.state is not None
        if not outcome.final:
            now = self.spawner.clock.now()
            self.state = self.state.after(outcome, now=now)
            return max(now.mono, self.state.due)
        return None

    async def _save(self, patch: patches.Patch, logger: Any) -> bool:
        """Carry the patch to the object; false if that is impossible for good."""
        while patch:
            taken = patches.Patch({key: patch.pop(key) for key in list(patch)}, fns=patch.fns)
            patch.fns.clear()
            raw = self.companions.host.recall()
            if raw is None:
                return True
            target = application.Target(self.spawner.client, self.companions.resource, logger)
            try:
                newest = await application.apply(target, raw, taken)
            except (apierrors.APIError, application.PatchError) as e:
                if application.is_refusal(e):
                    logger.error(f"{self.title} failed permanently: its patch is refused: {e}")
                    return False
                if not await self._back_off(e, logger):
                    return True
                merged = patches.combine(taken, patches.Patch(patch))
                patch.update(merged if merged is not None else {**taken, **patch})
                patch.fns[:0] = taken.fns
                continue
            self._throttler = None
            if newest is not None:
                self.companions.host.take_over(newest)
        return True

    async def _back_off(self, e: Exception, logger: Any) -> bool:
        """Wait after an error of the API; false if there is nothing to wait for."""
        self._throttler = self._throttler or throttlers.Throttler()
        delay = self._throttler.next_delay(self.spawner.settings.queueing.error_delays)
        if delay is None or self.spawner.stopping is not None:
            logger.error(f"The patch of {self.title} is lost: {e!r}")
            return False
        logger.error(f"Throttling for {delay} seconds due to an unexpected error: {e!r}")
        await asyncio.sleep(delay)
        return True

    def pause(self) -> None:
        """The operator is frozen."""
        self.stop(Reason.OPERATOR_PAUSING)

    def resume(self) -> None:
        """The operator is not frozen any more, and the object is as it is known."""

    def stop(self, reason: stopping.DaemonStoppingReason) -> None:
        """Begin to stop it, or tell one more reason. Those asleep end at once."""
        was_set = self.stopper.is_set()
        self.stopper.set(reason | Reason.DAEMON_SIGNALLED)
        if self.task is None:
            self._cancel_timer()
            asyncio.get_running_loop().call_soon(self._end_once)
        elif not was_set:
            self._linger(self.spawner.settings.background.instant_exit_zero_time_cycles or 0)

    def _end_once(self) -> None:
        if self.task is None and self in self.spawner.alive:
            self._end(done=False)

    def _linger(self, turns: int) -> None:
        """Let it end at once, if it can."""
        loop = asyncio.get_running_loop()
        timeout = self.spawner.settings.background.instant_exit_timeout
        if timeout is not None:
            self._timer = loop.call_later(timeout, self._escalate)
        elif turns > 0:
            self._timer = loop.call_soon(self._linger, turns - 1)
        else:
            self._escalate()

    def _escalate(self) -> None:
        backoff, _, _ = self.get_cancellation()
        if backoff is not None and backoff > 0:
            self._tell(logging.DEBUG, f"{self.title} is signalled to exit gracefully.")
            self._timer = asyncio.get_running_loop().call_later(backoff, self._force)
        else:
            self._force()

    def _force(self) -> None:
        _, timeout, _ = self.get_cancellation()
        if timeout is None:
            self._poll()
            return
        self._tell(logging.DEBUG, f"{self.title} is signalled to exit by force.")
        self.stopper.set(Reason.DAEMON_CANCELLED)
        if self.handler.is_async and self.task is not None:
            self.task.cancel()
        self._timer = asyncio.get_running_loop().call_later(timeout, self._abandon)

    def _poll(self) -> None:
        _, _, polling = self.get_cancellation()
        if polling is None:
            polling = self.spawner.settings.background.cancellation_polling
        self._tell(logging.DEBUG, f"{self.title} is still exiting. The next check is in "
                                  f"{polling} seconds.")
        self._timer = asyncio.get_running_loop().call_later(polling, self._poll)

    def _abandon(self) -> None:
        self.stopper.set(Reason.DAEMON_ABANDONED)
        self._tell(logging.WARNING, f"{self.title} did not exit in time. Leaving it orphaned.")
        self._end(done=False)
        warnings.warn(f"{self.title} did not exit in time.", ResourceWarning, stacklevel=1)

    def _end(self, done: bool) -> None:
        if self not in self.spawner.alive:
            return  # it was abandoned before
        self._cancel_timer()
        if done:
            self._tell(logging.DEBUG, f"{self.title} has exited on its own and will not be "
                                      f"retried or restarted.")
        self.spawner.alive.discard(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self.companions.forget(self, done=done)

    def _cancel_timer(self) -> None:
        self.spawner.wakeups.cancel(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, level: int, message: str) -> None:
        self.companions.logger.log(level, message)
