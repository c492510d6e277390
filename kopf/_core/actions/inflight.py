"""
Calls in flight: which handlers are running now, where in the code, and for how long.

With these, hanging handlers are named: in the log, in the health checks, and in the shutdown.
"""
import asyncio
import collections
import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from types import FrameType
from typing import Any

from kopf._core.actions import tracebacks
from kopf._core.intents import handlers

MAX_NAMED = 5
"""How many calls are described at most."""


class Call:
    """One call of one handler. A synchronous handler waits for a thread of the executor first."""
    __slots__ = (
        '_awaited', 'began', 'executor', 'handler', 'is_interrupted', 'kwargs', 'loop', 'requested',
        'task', 'thread')

    def __init__(
            self,
            handler: handlers.Handler,
            kwargs: Mapping[str, Any],
            executor: Executor | None,
    ) -> None:
        self.handler = handler
        self.kwargs = kwargs
        self.executor = executor
        """The executor of a synchronous handler; None for an asynchronous handler."""
        self.loop = asyncio.get_running_loop()
        self.requested = self.loop.time()
        self.began: float | None = self.requested if executor is None else None
        """The time of the event loop when the call began; None while it waits for a thread."""
        self.task = asyncio.current_task()
        self.thread: int | None = None
        self.is_interrupted = False
        self._awaited: Future[Any] | None = None
        """What the thread waits for, if that can be interrupted."""

    @contextlib.contextmanager
    def awaiting(self, work: Future[Any]) -> Iterator[None]:
        """Note that the current thread waits for this work of the event loop."""
        self._awaited = work
        try:
            if self.is_interrupted:
                work.cancel()
            yield
        finally:
            self._awaited = None

    def interrupt(self) -> None:
        """
        Cancel what the thread waits for, now and from now on.

        The thread itself cannot be interrupted.
        """
        self.is_interrupted = True  # before the look: the thread looks in the reverse order
        work = self._awaited
        if work is not None:
            work.cancel()

    def begin(self) -> None:
        """Note that the synchronous handler begins in the current thread."""
        self.thread = threading.get_ident()
        self.began = self.loop.time()

    def describe(self, now: float) -> str:
        """
        Describe the call: the handler, the object, the duration, and the current place in the code.
        """
        name, namespace = self.kwargs.get('name'), self.kwargs.get('namespace')
        target = f" for {namespace}/{name}" if namespace else f" for {name}" if name else ''
        if self.began is None:
            return f"{self.handler.id!r}{target} (waits for a thread {now - self.requested:.0f} s)"
        place = tracebacks.locate(self._get_frame())
        where = f", at {place}" if place else ''
        return f"{self.handler.id!r}{target} ({now - self.began:.0f} s{where})"

    def _get_frame(self) -> FrameType | None:
        if self.thread is not None:
            return sys._current_frames().get(self.thread)
        return tracebacks.find_awaiting(self.task) if self.task is not None else None


class Calls(dict[Call, None]):
    """The running calls of one operator, in the order of their beginnings."""

    def __iter__(self) -> Iterator[Call]:
        return iter([*self.keys()])  # other threads also read it

    def find_stuck(self, now: float, timeout: float) -> list[Call]:
        """
        Find the calls that occupy all threads of an executor, so that other calls wait.

        These are only the calls of executors in which no call has begun for the timeout (seconds).
        """
        by_executor: dict[Executor, list[Call]] = collections.defaultdict(list)
        for call in self:
            if call.executor is not None:
                by_executor[call.executor].append(call)
        stuck: list[Call] = []
        for calls in by_executor.values():
            waiting = [call.requested for call in calls if call.began is None]
            running = [call for call in calls if call.began is not None]
            if waiting and running and now - max(
                    min(waiting), *(call.began or 0 for call in running)) >= timeout:
                stuck.extend(running)
        return stuck


call_var: ContextVar[Call | None] = ContextVar('call_var', default=None)
"""The call of the synchronous handler that runs in the current thread."""

calls_var: ContextVar[Calls | None] = ContextVar('calls_var', default=None)
"""The calls of the current operator."""


def describe(calls: Iterable[Call], now: float) -> str:
    """Describe the longest calls, at most `MAX_NAMED` of them."""
    calls = list(calls)
    texts = [call.describe(now) for call in calls[:MAX_NAMED]]
    if len(calls) > MAX_NAMED:
        texts.append(f"and {len(calls) - MAX_NAMED} more")
    return '; '.join(texts)
