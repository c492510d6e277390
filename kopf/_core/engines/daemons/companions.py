"""
Companions: what daemons and timers have in common.

A companion that has ended on its own or has failed permanently is not started again for its object.
A companion that has to stop goes through the stages of stopping: the ``stopped`` flag is set, then
the task is cancelled (threads cannot be), and finally the companion is abandoned.
"""
import asyncio
import contextlib
import logging
import warnings
from concurrent.futures import Executor
from typing import Any, Protocol

from kopf._cogs.aiokits import clocks
from kopf._cogs.aiokits.wakeups import Wakeups
from kopf._cogs.clients import api
from kopf._cogs.clients import errors as apierrors
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, patches, references
from kopf._core.actions import application, execution, progression, throttlers
from kopf._core.intents import causes, handlers, stopping

Reason = stopping.DaemonStoppingReason


class Host(Protocol):
    """The object of the companions: the interface to the reactor."""

    def recall(self) -> bodies.RawBody | None:
        """The newest known state of the object; None if there is none."""

    def take_over(self, raw: bodies.RawBody) -> None:
        """Take a newer state: the response to a patch."""

    def wake_up(self) -> None:
        """Reconcile the object again, as soon as possible."""


class Spawner(Protocol):
    """What all companions of an operator share."""
    client: api.Client
    context: execution.Context
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    wakeups: Wakeups
    stopping: Reason | None
    """Why all companions are being stopped, i.e. the operator exits; None if it does not."""
    alive: 'set[Companion]'
    """The companions that have begun and not ended."""
    tasks: set[asyncio.Task[Any]]
    """The tasks of the running companions, also of abandoned ones."""

    @property
    def daemons_executor(self) -> Any:
        """The executor that calls synchronous daemons."""

    def writing(self, companion: 'Companion') -> contextlib.AbstractAsyncContextManager[None]:
        """Make a context manager for the writes of a companion: it limits their time at exit."""

    def give_up(self, companion: 'Companion') -> None:
        """End the writes of the companion, which is abandoned."""

    def start(self, companion: 'Companion') -> None:
        """Begin the companion in one of the next iterations of the event loop, in this order."""

    def note_running(self, daemon: 'Companion') -> None:
        """Call ``flush`` of the companion periodically from now on."""

    def note_ended(self, daemon: 'Companion') -> None:
        """Stop calling ``flush`` of the companion."""


class Companions(Protocol):
    """What all companions of one object share."""
    host: Host
    resource: references.Resource
    changed: float
    """The monotonic time of the latest change of the object, or of its first sight."""

    @property
    def spawner(self) -> Spawner:
        """What the companions of all objects share."""

    @property
    def logger(self) -> logging.LoggerAdapter[Any]:
        """The logger of the object."""

    def get_body(self) -> bodies.Body:
        """A body that always shows the newest state of the object."""

    def make_cause(self, body: bodies.Body) -> causes.SpawningCause:
        """Make the cause, of which the kwargs of the handler are taken."""

    def rest(self) -> None:
        """Note that a handler has returned."""

    def forget(self, companion: 'Companion', *, done: bool) -> None:
        """Remove the companion, which has ended. If ``done``, it must not be started again."""


class Companion:
    """
    One daemon or timer of one object: sleeping, running, or being stopped.

    A companion ends exactly once. An abandoned companion has ended, though its task or thread runs.
    """
    __slots__ = (
        '_ended', '_patch', '_throttler', '_timer', 'companions', 'due', 'handler', 'state',
        'stopper', 'task')

    def __init__(
            self, companions: Companions, handler: handlers.SpawningHandler,
    ) -> None:
        self.companions = companions
        self.handler = handler
        self.state: progression.HandlerState | None = None
        self.stopper = stopping.DaemonStopper()
        self.task: asyncio.Task[float | None] | None = None
        self.due: float | None = None
        """The monotonic time to wake up; None unless the companion sleeps."""
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        """The next stage of stopping."""
        self._patch: patches.Patch | None = None
        self._throttler: throttlers.Throttler | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def spawner(self) -> Spawner:
        return self.companions.spawner

    @property
    def ended(self) -> 'asyncio.Future[None]':
        """A future that is done when the companion has ended."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self not in self.spawner.alive:
                self._ended.set_result(None)
        return self._ended

    def is_abandoned(self) -> bool:
        """Whether the companion has ended, though its task or thread still runs."""
        return self.task is not None and self not in self.spawner.alive

    @property
    def has_limit(self) -> bool:
        """Whether the stages of stopping come to an end, even if the companion does not stop."""
        return self.task is None or self.get_cancellation()[1] is not None

    def get_cancellation(self) -> tuple[float | None, float | None, float | None]:
        """The backoff, the timeout, and the polling interval of stopping, in seconds."""
        return None, None, None

    def spawn(self) -> None:
        """Begin at once, or after the initial delay of the handler."""
        self.spawner.alive.add(self)
        delay = self.handler.initial_delay
        if callable(delay):
            cause = self.companions.make_cause(self.companions.get_body())
            try:
                delay = float(delay(**cause.kwargs))
            except Exception as e:
                execution.fail(self.handler, e, cause.logger)
                asyncio.get_running_loop().call_soon(self._end, True)
                return
            finally:
                self.companions.rest()
        if delay:
            self._sleep(self.spawner.clock.mono() + delay)
        else:
            self.spawner.start(self)

    def note_change(self) -> None:
        """React to a change of the object."""

    def flush(self) -> None:
        """Send the patch to the API server while the handler still runs."""

    def _sleep(self, until: float) -> None:
        self.spawner.wakeups.sleep(self, until)

    def wake_up(self) -> None:
        """Begin: the due time has come."""
        self.spawner.start(self)

    def begin(self) -> None:
        """Call the handler, unless the companion has been stopped or begun in the meantime."""
        if self.task is None and not self.stopper.is_set():
            self.task = asyncio.get_running_loop().create_task(self._attempt())
            self.task.add_done_callback(self._settle)
            self.spawner.tasks.add(self.task)

    def _settle(self, task: 'asyncio.Task[float | None]') -> None:
        """End, or sleep until the next attempt. The task can be cancelled before its first step."""
        until: float | None = None
        try:
            until = self._get_repetition() if task.cancelled() else task.result()
        finally:
            self.task = None
            self.spawner.tasks.discard(task)
            self.companions.rest()
            if self.stopper.is_set():
                self._end(done=False)
            elif until is None:
                self._end(done=True)
            elif until != progression.NEVER:
                self._sleep(until)

    async def _attempt(self) -> float | None:
        """Make one attempt; return the time of the next one, or None if there will be no more."""
        spawner, handler = self.spawner, self.handler
        spawner.client.enter_term()
        cause = self.companions.make_cause(self.companions.get_body())
        now = spawner.clock.now()
        state = self.state = self.state or progression.HandlerState.new(now=now)
        waiter = self.stopper.async_waiter if handler.is_async else self.stopper.sync_waiter
        self._patch = cause.patch
        outcome: progression.Outcome | None = None
        try:
            outcome = await execution.execute(
                handler, cause, context=spawner.context, state=state,
                extras={'stopped': waiter}, executor=self._executor)
        finally:
            if outcome is not None:
                self.state = state.after(outcome, now=spawner.clock.now())
                if outcome.result is not None:
                    dicts.ensure(cause.patch, ('status', handler.id), outcome.result)
            is_saved = await self._save(cause.patch, cause.logger)
            self._patch = None
        return self._judge(invoked=now.mono) if is_saved else None

    @property
    def _executor(self) -> Executor | None:
        """The executor that calls the synchronous handler; None for the one of all handlers."""
        return None

    def _judge(self, *, invoked: float) -> float | None:
        """Find the time of the next attempt after this one; None if there will be no more."""
        assert self.state is not None
        if self.state.finished:
            return None
        return progression.space(self.state.due, invoked=invoked)

    async def _save(self, patch: patches.Patch, logger: Any) -> bool:
        """
        Send the patch to the API server, with retries until it is taken.

        Returns false if the API server refuses the patch: then, the companion has failed
        permanently. When the operator exits, or when the companion is abandoned, the retries end:
        the patch is lost, and the log says so.
        """
        while patch:
            if self.is_abandoned():  # its object can belong to the next companion, or to others
                patch.clear()
                logger.warning(
                    f"The patch of {self.handler!r} is lost: the handler did not exit in time.")
                return True
            taken = patches.Patch({key: patch.pop(key) for key in list(patch)}, fns=patch.fns)
            patch.fns.clear()
            raw = self.companions.host.recall()
            if raw is None:
                return True
            target = application.Target(
                self.spawner.client, self.companions.resource, logger,
                self.spawner.context.observer)
            try:
                async with self.spawner.writing(self):
                    newest = await application.apply(target, raw, taken)
            except apierrors.NotLeadingError as e:
                logger.warning(f"The patch of {self.handler!r} is lost: {e}")
                return True
            except application.REFUSALS as e:
                logger.error(f"{self.handler!r} failed permanently: its patch is refused: {e}")
                return False
            except (apierrors.APIError, TimeoutError) as e:
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
        """
        Wait after an error of the API; return false if there will be no next try.

        There is no wait for abandoned companions.
        """
        if self.is_abandoned():
            return True
        self._throttler = self._throttler or throttlers.Throttler()
        delay = self._throttler.next_delay(self.spawner.settings.queueing.error_delays)
        if delay is not None and self.spawner.stopping is None:
            self._throttler.tell(e, delay, logger)
            try:
                async with self.spawner.writing(self):
                    await asyncio.sleep(delay)
                return True
            except TimeoutError:  # the operator exits
                if self.is_abandoned():
                    return True
        logger.error(f"The patch of {self.handler!r} is lost: {e!r}")
        return False

    def pause(self) -> None:
        """Stop, as the operator is paused. Timers only wait instead."""
        self.stop(Reason.OPERATOR_PAUSING)

    def interrupt(self) -> None:
        """Cancel the call under way, as the operator does not lead. Daemons are stopped anyway."""

    def _get_repetition(self) -> float | None:
        """Find the time to repeat a cancelled call; None if it is not repeated."""
        return None

    def resume(self) -> None:
        """Go on after the pause. It is called once the object has been listed again."""

    def stop(self, reason: stopping.DaemonStoppingReason) -> None:
        """Begin to stop, or add one more reason to it. A sleeping companion ends at once."""
        was_set = self.stopper.is_set()
        self.stopper.set(reason)
        if self.task is None:
            self._cancel_timer()
            asyncio.get_running_loop().call_soon(self._end_once)
        elif not was_set:
            self._linger(self.spawner.settings.background.instant_exit_zero_time_cycles or 0)

    def _end_once(self) -> None:
        if self.task is None and self in self.spawner.alive:
            self._end(done=False)

    def _linger(self, iterations: int) -> None:
        """
        Wait briefly before the next stage: most daemons return soon after the flag is set.

        Depending on the settings, wait for ``instant_exit_timeout`` (seconds), or for the given
        number of iterations of the event loop.
        """
        loop = asyncio.get_running_loop()
        timeout = self.spawner.settings.background.instant_exit_timeout
        if timeout is not None:
            self._timer = loop.call_later(timeout, self._escalate)
        elif iterations > 0:
            self._timer = loop.call_soon(self._linger, iterations - 1)
        else:
            self._escalate()

    def _escalate(self) -> None:
        backoff, _, _ = self.get_cancellation()
        if backoff is not None and backoff > 0:
            self.stopper.set(Reason.DAEMON_SIGNALLED)
            self._log(logging.DEBUG, f"{self.handler!r} is signalled to exit gracefully.")
            self._timer = asyncio.get_running_loop().call_later(backoff, self._force)
        else:
            self._force()

    def _force(self) -> None:
        _, timeout, _ = self.get_cancellation()
        if timeout is None:
            self._poll()
            return
        self._log(logging.DEBUG, f"{self.handler!r} is signalled to exit by force.")
        self.stopper.set(Reason.DAEMON_CANCELLED)
        if self.handler.is_async and self.task is not None:
            self.task.cancel()
        self._timer = asyncio.get_running_loop().call_later(timeout, self._abandon)

    def _poll(self) -> None:
        _, _, polling = self.get_cancellation()
        if polling is None:
            polling = self.spawner.settings.background.cancellation_polling
        self._log(logging.DEBUG, f"{self.handler!r} is still exiting. The next check is in "
                                 f"{polling} seconds.")
        self._timer = asyncio.get_running_loop().call_later(polling, self._poll)

    def _abandon(self) -> None:
        self.stopper.set(Reason.DAEMON_ABANDONED)
        self._log(logging.WARNING, f"{self.handler!r} did not exit in time. Leaving it orphaned.")
        self._end(done=False)
        self._patch = None  # it is not sent any more while the handler still runs
        self.spawner.give_up(self)
        warnings.warn(f"{self.handler!r} did not exit in time.", ResourceWarning, stacklevel=1)

    def _end(self, done: bool) -> None:
        if self not in self.spawner.alive:
            return  # it was abandoned before
        self._cancel_timer()
        if done:
            self._log(logging.DEBUG, f"{self.handler!r} has exited on its own and will not be "
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

    def _log(self, level: int, message: str) -> None:
        self.companions.logger.log(level, message)
