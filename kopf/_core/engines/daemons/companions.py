"""
Companions: what daemons and timers have in common, and what they share.

A companion that has ended on its own or has failed permanently is not started again for its object.
A companion that has to stop goes through the stages of stopping: the ``stopped`` flag is set, then
the task is cancelled (threads cannot be), and finally the companion is abandoned.
"""
import asyncio
import contextlib
import contextvars
import logging
import math
import warnings
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from kopf._cogs.aiokits import alarms, threads, timeouts, wakeups
from kopf._cogs.clients import api
from kopf._cogs.clients import errors as apierrors
from kopf._cogs.structs import bodies, credentials, dicts, patches, references
from kopf._core.actions import application, execution, loggers, progression, throttlers
from kopf._core.intents import causes, handlers, stopping

T = TypeVar('T')

Reason = stopping.DaemonStoppingReason

STARTS_PER_ITERATION = 16
"""
How many companions are started per iteration of the event loop.

There can be thousands of them at once, e.g. when the operator starts; the loop must not be blocked.
"""

LAST_WRITING = 1.0
"""How long (seconds) a companion can write its patch at exit, however late it ends."""

NONE: frozenset[object] = frozenset()
"""All objects share this value, as there can be many thousands."""


class Host(Protocol):
    """The object of the companions: the interface to the reactor."""

    def recall(self) -> bodies.RawBody | None:
        """The newest known state of the object; None if there is none."""

    def take_over(self, raw: bodies.RawBody) -> None:
        """Take a newer state: the response to a patch."""

    def wake_up(self) -> None:
        """Reconcile the object again, as soon as possible."""


class Spawner:
    """The companions of all objects of an operator."""

    def __init__(
            self,
            *,
            client: api.Client,
            context: execution.Context,
            get_memo: Callable[[Any], Any],
            confirm: Callable[[], object] = lambda: None,
    ) -> None:
        """
        ``get_memo`` returns the memo of an object by its `Host`. ``confirm`` is called before
        handlers are; it pauses the operator if that is overdue by the clock.
        """
        self.get_memo = get_memo
        self.confirm = confirm
        self.client = client
        self.context = context
        self.settings = context.settings
        self.clock = context.clock
        self.stopping: Reason | None = None
        """Why all companions are being stopped, i.e. the operator exits; None if it does not."""
        self.paused = False
        self.alive: set[Companion] = set()
        """The companions that have begun and not ended."""
        self.leaving: dict[tuple[object, object], set[Host]] = {}
        """
        The hosts that wait for the end of a companion, by the object and the handler of the
        companion. It was stopped with its object, but the object can come back before its end, e.g.
        in another version of its resource.
        """
        self.wakeups = wakeups.Wakeups(batch=STARTS_PER_ITERATION)
        self.tasks: dict[asyncio.Task[Any], Companion] = {}
        """The tasks of the running companions, also of abandoned ones."""
        self._ending = asyncio.Event()
        self._flushing = alarms.Alarm(self._flush)
        self.deadline: float | None = None
        """When all writes end, as the operator exits: a time of the event loop."""
        self.threads = threads.ThreadPerCall('kopf-daemon')

    def run(
            self, companion: 'Companion', work: Coroutine[Any, Any, T],
            context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Do the work of the companion in a task."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks[task] = companion
        task.add_done_callback(self.tasks.pop)
        return task

    def arm(self) -> None:
        """Flush the patches of what runs after ``settings.persistence.flush_delay``."""
        self._flushing.set(self.clock.mono() + max(0.1, self.settings.persistence.flush_delay))

    def _flush(self, _: float) -> None:
        for companion in dict.fromkeys(self.tasks.values()):
            companion.flush()

    def pause(self) -> None:
        """Stop all daemons, and let all timers wait, while the operator is paused."""
        self.paused = True
        for companion in list(self.alive):
            companion.pause(Reason.OPERATOR_PAUSING)

    async def rest(self) -> None:
        """Wait until no handlers of companions run, except for those of abandoned companions."""
        await self._wait_for(lambda item: item.task is not None)

    def stand_by(self) -> None:
        """The same as `pause`, but timers are interrupted; it can be called again."""
        self.pause()
        for companion in list(self.alive):
            companion.interrupt()

    def resume(self) -> None:
        """End the pause. The companions of an object go on after its next reconciliation."""
        self.paused = False

    async def stop(self, reason: Reason, deadline: float) -> None:
        """
        Stop all companions, by their stages of stopping.

        The deadline is a time of the event loop. Companions without a ``cancellation_timeout`` are
        cancelled at the deadline. Writes are given up before the deadline.

        Threads cannot be cancelled. This method returns without them; Python waits for them at
        exit.
        """
        self.stopping, self.deadline = reason, deadline - LAST_WRITING
        for companion in list(self.alive):
            companion.limit_writing(self.deadline)
            companion.stop(reason)
        self._flushing.cancel()
        await self._wait_for(lambda item: item.has_limit)
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout_at(deadline):
                await self._wait_for(lambda _: True)
        for companion in self.alive:
            companion.stopper.set(Reason.DAEMON_CANCELLED)
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=LAST_WRITING)
        self.wakeups.close()

    async def _wait_for(self, is_awaited: Callable[['Companion'], bool]) -> None:
        """Wait until these companions have ended, or ``is_awaited`` is not true any more."""
        awaited = [item for item in self.alive if is_awaited(item)]
        while awaited:  # each is looked at when those after it have ended: there can be thousands
            if awaited[-1] in self.alive and is_awaited(awaited[-1]):
                self._ending.clear()
                await self._ending.wait()
            else:
                awaited.pop()

    def note_ending(self) -> None:
        """Note that a handler has returned, or that a companion has ended."""
        self._ending.set()


class Companions:
    """
    The companions of one object, and the live view of the object that they share.

    There is an instance for each object that has companions. So, an instance takes little memory:
    everything that can be made on demand is made on demand.
    """
    __slots__ = (
        '_done', '_identity', '_live', 'host', 'idle_since', 'members', 'resource', 'spawner')

    def __init__(
            self,
            spawner: Spawner,
            host: Host,
            resource: references.Resource,
            raw: bodies.RawBody,
    ) -> None:
        self.spawner = spawner
        meta = raw['metadata']
        self._identity = meta.get('uid'), meta['name'], meta.get('namespace')
        self.host = host
        self.resource = resource
        self.idle_since = spawner.clock.mono()
        """The monotonic time of the latest change of the object, or of its first sight."""
        self.members: tuple[Companion, ...] = ()
        """The companions that run, sleep, or are being stopped."""
        self._done = NONE
        self._live: bodies.LiveBody | None = None

    @property
    def logger(self) -> loggers.ObjectLogger:
        """The logger of the object. It refers to the object's name, and does not keep its state."""
        uid, name, namespace = self._identity
        known: Any = {
            'apiVersion': self.resource.api_version, 'kind': self.resource.kind,
            'metadata': {'name': name, 'namespace': namespace, 'uid': uid}}
        return loggers.ObjectLogger(body=bodies.Body(known), settings=self.spawner.settings)

    @property
    def alive(self) -> bool:
        """Whether any companion runs, sleeps, or is being stopped."""
        return bool(self.members)

    @property
    def forgettable(self) -> bool:
        """Whether there are no companions, and none that have ended and must not start again."""
        return not self.members and not self._done

    def select(
            self, declared: Iterable[handlers.SpawningHandler], raw: bodies.RawBody,
    ) -> Collection[handlers.SpawningHandler]:
        """
        Select the handlers that match the object in this state, except for those that are done.
        """
        cause = self.make_cause(bodies.Body(raw))
        selected: dict[object, handlers.SpawningHandler] = {}
        for handler in declared:
            if handler.key not in self._done and execution.is_matching(
                    handler, cause, context=self.spawner.context):
                selected.setdefault(handler.key, handler)
        return list(selected.values())

    def add(self, companion: 'Companion') -> None:
        """Begin one more companion."""
        self.members += (companion,)
        companion.spawn()

    def stop(self, reason: Reason) -> None:
        if self._live is not None:
            self._live.load()  # they can read the object until they end, but the item can forget it
        for companion in self.members:
            self.spawner.leaving.setdefault(self._make_key(companion.handler), set())
            companion.stop(reason)

    def _make_key(self, handler: handlers.SpawningHandler) -> tuple[object, object]:
        return self._identity, handler.key

    def awaits(self, handler: handlers.SpawningHandler) -> bool:
        """
        Whether a former companion of the handler for the same object has not ended yet. If so, its
        end wakes up the host.
        """
        awaiting = self.spawner.leaving.get(self._make_key(handler))
        if awaiting is not None:
            awaiting.add(self.host)
        return awaiting is not None

    def show(self, raw: bodies.RawBody) -> None:
        """Take a new state of the object."""
        self.idle_since = self.spawner.clock.mono()
        if self._live is not None:
            self._live._replace_with(raw)
        is_paused = self.spawner.context.find_pause(raw) is not None
        for companion in self.members:
            companion.note_change()
            if is_paused:
                companion.pause(Reason.RESOURCE_PAUSED)

    def get_body(self) -> bodies.Body:
        """A body that always shows the newest state; all running companions share it."""
        if self._live is None:
            self._live = bodies.LiveBody(self.host.recall)
        return self._live

    def make_cause(self, body: bodies.Body) -> causes.SpawningCause:
        return causes.SpawningCause(
            logger=self.logger,
            identity=self._identity,
            memo=self.spawner.get_memo(self.host),
            indices=self.spawner.context.indices,
            resource=self.resource,
            body=body,
            patch=patches.Patch(body=body),
        )

    def forget(self, companion: 'Companion', *, done: bool) -> None:
        """Remove the companion, which has ended. If ``done``, it must not be started again."""
        self.members = tuple(other for other in self.members if other is not companion)
        if done:
            self._done |= {companion.handler.key}
        self.rest()
        self.host.wake_up()
        for host in self.spawner.leaving.pop(self._make_key(companion.handler), ()):
            host.wake_up()

    def rest(self) -> None:
        """
        Note that a handler has returned, or that a companion has ended. When no handler runs, the
        live body is not needed any more.
        """
        self.spawner.note_ending()
        if not any(companion.task is not None for companion in self.members):
            self._live = None


class Companion:
    """
    One daemon or timer of one object: sleeping, running, or being stopped.

    A companion ends exactly once. An abandoned companion has ended, though its task or thread runs.
    """
    __slots__ = (
        '_context', '_limit', '_patch', '_timer', 'companions', 'due', 'handler', 'state',
        'stopper', 'task')

    def __init__(self, companions: Companions, handler: handlers.SpawningHandler) -> None:
        self.companions = companions
        self.handler = handler
        self.state: progression.HandlerState | None = None
        self.stopper = stopping.DaemonStopper()
        self.task: asyncio.Task[float | None] | None = None
        self.due: float | None = None
        """The monotonic time to begin; None unless the companion sleeps."""
        self._timer: asyncio.TimerHandle | None = None
        """The next stage of stopping."""
        self._patch: patches.Patch | None = None
        self._context: contextvars.Context | None = None
        """The context of the call under way: that of its term, and of its span."""
        self._limit: timeouts.Timeout | None = None
        """The time limit of the write under way, or of the pause before it."""

    @property
    def spawner(self) -> Spawner:
        return self.companions.spawner

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
                if math.isnan(delay):
                    raise ValueError("initial_delay= must be a number of seconds, not nan.")
            except Exception as e:
                execution.fail(self.handler, e, cause.logger)
                asyncio.get_running_loop().call_soon(self._end, True)
                return
            finally:
                self.companions.rest()
        self._sleep(self.spawner.clock.mono() + (delay or 0))

    def note_change(self) -> None:
        """React to a change of the object."""

    def flush(self) -> None:
        """Send the patch to the API server while the handler still runs."""

    def _sleep(self, until: float) -> None:
        self.spawner.wakeups.sleep(self, until)

    def wake_up(self) -> None:
        """Begin: the due time has come."""
        self.spawner.confirm()
        self.begin()

    def begin(self) -> None:
        """Call the handler, unless the companion has been stopped or begun in the meantime."""
        if self.task is None and not self.stopper.is_set():
            self._context = contextvars.copy_context()
            self.task = self.spawner.run(self, self._attempt(), self._context)
            self.task.add_done_callback(self._settle)

    def _settle(self, task: 'asyncio.Task[float | None]') -> None:
        """End, or sleep until the next attempt. The task can be cancelled before its first step."""
        until: float | None = None
        try:
            with contextlib.suppress(credentials.LoginError):  # which ends the operator
                until = self._get_repetition() if task.cancelled() else task.result()
        finally:
            self.task = self._context = None
            self.companions.rest()
            if self.stopper.is_set():
                self._end(done=False)
            elif until is None:
                self._end(done=True)
            elif until != progression.NEVER:
                self._sleep(until)

    async def _attempt(self) -> float | None:
        """Make one attempt; return the time of the next one, or None if it was the last one."""
        spawner, handler = self.spawner, self.handler
        spawner.client.enter_term()
        cause = self.companions.make_cause(self.companions.get_body())
        now = spawner.clock.now()
        state = self.state = self.state or progression.HandlerState.new(now=now)
        waiter = self.stopper.make_waiter(is_async=handler.is_async)
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
        """Find the time of the next attempt after this one; None if it was the last one."""
        assert self.state is not None
        if self.state.success:
            return self._repeat(invoked=invoked)
        return None if self.state.failure else progression.space(self.state.due, invoked=invoked)

    def _repeat(self, *, invoked: float) -> float | None:
        """Find the time of the next call after a successful one; None if it was the last one."""
        return None

    async def _save(self, patch: patches.Patch, logger: Any) -> bool:
        """
        Send the patch to the API server, with retries until the API server accepts it.

        Returns false if the API server refuses the patch: then, the companion has failed
        permanently. When the operator exits, or when the companion is abandoned, the retries end:
        the patch is lost, and the log says so.
        """
        throttler: throttlers.Throttler | None = None
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
                async with self._writing():
                    newest = await application.apply(target, raw, taken)
            except apierrors.NotLeadingError as e:
                logger.warning(f"The patch of {self.handler!r} is lost: {e}")
                return True
            except application.REFUSALS as e:
                logger.error(f"{self.handler!r} failed permanently: its patch is refused: {e}")
                return False
            except (apierrors.APIError, TimeoutError) as e:
                throttler = throttler or throttlers.Throttler()
                if not self.is_abandoned() and not await self._back_off(e, throttler, logger):
                    logger.error(f"The patch of {self.handler!r} is lost: {e!r}")
                    return True
                merged = patches.combine(taken, patches.Patch(patch))
                patch.update(merged if merged is not None else {**taken, **patch})
                patch.fns[:0] = taken.fns
                continue
            throttler = None
            if newest is not None:
                self.companions.host.take_over(newest)
        return True

    async def _back_off(self, e: Exception, throttler: throttlers.Throttler, logger: Any) -> bool:
        """Wait after an error of the API; return false if there is no next attempt."""
        delay = throttler.next_delay(self.spawner.settings.queueing.error_delays)
        if delay is None or self.spawner.stopping is not None:
            return False
        throttler.tell(e, delay, logger)
        try:
            async with self._writing():
                await asyncio.sleep(delay)
        except TimeoutError:  # the operator exits, or the companion is abandoned
            return self.is_abandoned()
        return True

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """
        Limit the time of the block when the operator exits: of a write, or of a pause before it.

        :raises TimeoutError: if the block has not ended in time, or if the companion is abandoned.
        """
        until = self.spawner.deadline
        if until is not None:
            until = max(until, asyncio.get_running_loop().time() + LAST_WRITING)
        async with timeouts.timeout_at(until) as self._limit:
            try:
                yield
            finally:
                self._limit = None

    def limit_writing(self, until: float) -> None:
        """Limit the write under way, if there is one, by a time of the event loop."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(until)

    def pause(self, reason: Reason) -> None:
        """Stop, as the operator or the object is paused. Timers only wait instead."""
        self.stop(reason)

    def interrupt(self) -> None:
        """Cancel the call under way, as the operator does not lead. Daemons are stopped anyway."""

    def _get_repetition(self) -> float | None:
        """Find the time to repeat a cancelled call; None if it is not repeated."""
        return None

    def resume(self) -> None:
        """Go on after the pause. It is called once the object has been listed again."""

    def stop(self, reason: Reason) -> None:
        """Begin to stop, or add one more reason to it. A sleeping companion ends at once."""
        was_set = self.stopper.is_set()
        self.stopper.set(reason)
        if self.task is None:
            self._cancel_timer()
            asyncio.get_running_loop().call_soon(self._end, False)
        elif not was_set:
            self._advance(self._go_through_stages())

    def _advance(self, stages: Iterator[float]) -> None:
        """Go on to the next stage of stopping."""
        delay = next(stages, None)
        if delay is not None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._advance, stages)

    def _go_through_stages(self) -> Iterator[float]:
        """Go through the stages of stopping; yield the delay (seconds) before each next one."""
        background = self.spawner.settings.background
        if background.instant_exit_timeout is not None:
            yield background.instant_exit_timeout
        else:  # most daemons return soon after the flag is set
            for _ in range(background.instant_exit_zero_time_cycles or 0):
                yield 0
        backoff, timeout, polling = self.get_cancellation()
        if backoff is not None and backoff > 0:
            self.stopper.set(Reason.DAEMON_SIGNALLED)
            self._log(logging.DEBUG, f"{self.handler!r} is signalled to exit gracefully.")
            yield backoff
        level = logging.DEBUG  # most daemons exit before the second check
        while timeout is None:
            delay = background.cancellation_polling if polling is None else polling
            self._log(
                level, f"{self.handler!r} is still exiting. The next check is in {delay} seconds.")
            level = logging.WARNING
            yield delay
        self._log(logging.DEBUG, f"{self.handler!r} is signalled to exit by force.")
        self.stopper.set(Reason.DAEMON_CANCELLED)
        if self.handler.is_async and self.task is not None:
            self.task.cancel()
        yield timeout
        self._abandon()

    def _abandon(self) -> None:
        self.stopper.set(Reason.DAEMON_ABANDONED)
        self._log(logging.WARNING, f"{self.handler!r} did not exit in time. Leaving it orphaned.")
        self._end(done=False)
        self._patch = None  # it is not sent any more while the handler still runs
        self.limit_writing(asyncio.get_running_loop().time())
        warnings.warn(f"{self.handler!r} did not exit in time.", ResourceWarning, stacklevel=1)

    def _end(self, done: bool) -> None:
        if self not in self.spawner.alive:
            return  # it was abandoned before
        self._cancel_timer()
        if done:
            self._log(logging.DEBUG, f"{self.handler!r} has exited on its own and will not be "
                                     f"retried or restarted.")
        self.spawner.alive.discard(self)
        self.companions.forget(self, done=done)

    def _cancel_timer(self) -> None:
        self.spawner.wakeups.cancel(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log(self, level: int, message: str) -> None:
        self.companions.logger.log(level, message)
