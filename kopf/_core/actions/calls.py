"""
Calls: which functions of the author are at work now, where, and for how long.

It is known so that those that hang can be named: in the log, in the health checks, at exit.
"""
import asyncio
import collections
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from types import FrameType
from typing import Any

from kopf._core.actions import tracebacks
from kopf._core.intents import handlers

MAX_NAMED = 5
"""How many calls are named at most where many of them hang."""


class Call:
    """One call of one function. It waits in the executor until it has a thread, if it needs one."""
    __slots__ = ('began', 'executor', 'handler', 'kwargs', 'loop', 'requested', 'task', 'thread')

    def __init__(
            self,
            handler: handlers.Handler,
            kwargs: Mapping[str, Any],
            executor: Executor | None,
    ) -> None:
        self.handler = handler
        self.kwargs = kwargs
        self.executor = executor
        """Where the synchronous functions are called; None for the asynchronous ones."""
        self.loop = asyncio.get_running_loop()
        self.requested = self.loop.time()
        self.began: float | None = self.requested if executor is None else None
        """When the function was called; None while it waits for a thread."""
        self.task = asyncio.current_task()
        self.thread: int | None = None

    def begin(self) -> None:
        """It is called now, in the current thread."""
        self.thread = threading.get_ident()
        self.began = self.loop.time()

    def describe(self, now: float) -> str:
        """What it is, for what object, for how long, and where it is now."""
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


class Calls:
    """All the calls of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: set[Call] = set()

    def __iter__(self) -> Iterator[Call]:
        return iter(sorted(self._calls, key=lambda call: call.requested))

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        self._calls.add(call)

    def discard(self, call: Call) -> None:
        self._calls.discard(call)

    def get_tasks(self) -> set['asyncio.Task[Any]']:
        return {call.task for call in self if call.task is not None}

    def get_threads(self) -> set[int | None]:
        return {call.thread for call in self}

    def find_stuck(self, now: float, timeout: float) -> list[Call]:
        """
        The calls that have filled an executor: others wait for a thread, and none has come by for
        the timeout, in seconds.
        """
        by_executor: dict[Executor, list[Call]] = collections.defaultdict(list)
        for call in self:
            if call.executor is not None:
                by_executor[call.executor].append(call)
        stuck: list[Call] = []
        for calls in by_executor.values():
            waiting = [call for call in calls if call.began is None]
            running = [call for call in calls if call.began is not None]
            moments = [call.began or 0 for call in running]
            if waiting and running and now - max(
                    *moments, min(call.requested for call in waiting)) >= timeout:
                stuck.extend(running)
        return stuck


calls_var: ContextVar[Calls | None] = ContextVar('calls_var', default=None)
"""The calls of the operator to which the current task belongs."""


def describe(calls: Iterable[Call], now: float) -> str:
    """Name the calls, those that last for the longest time first; not too many of them."""
    calls = list(calls)
    texts = [call.describe(now) for call in calls[:MAX_NAMED]]
    if len(calls) > MAX_NAMED:
        texts.append(f"and {len(calls) - MAX_NAMED} more")
    return '; '.join(texts)
