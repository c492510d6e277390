"""
Threads of sync handlers, in lockstep with the event loop: only one of all runs at a time.

They are real threads. But a thread runs only while the loop waits for it: from a moment that the
seed decides until the thread sleeps, waits for an event, or ends. Its code takes no time; `pause`
and `Event.wait` take virtual time. The threads of a killed process stop where they are.
"""
import asyncio
import collections
import concurrent.futures
import contextvars
import functools
import inspect
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from kopf._cogs.configs import configuration
from kopf._kits.testing import processes
from tests import seeded

DELAYS = (0.0, 0.0, 0.0, 0.001, 0.03)
"""How much later (seconds) than it can a thread goes on: other threads have the processor."""

PATIENCE = 60.0
"""How long (seconds of real time) the loop waits for a thread, which must not block."""


class Loop(seeded.SeededLoop):
    """The loop of these threads. It waits for them while they run, so they never hold its time."""

    def hold_for(self, running: 'concurrent.futures.Future[Any]', call: object) -> None:
        pass

    def make_flag(self) -> None:
        """Make no flag: `Event` replaces those of the real time."""


class Host(seeded.SeededProcess):
    """A process with threads."""

    def __init__(self, name: str, loop: seeded.SeededLoop) -> None:
        super().__init__(name, loop)
        self.threads: list[Thread] = []
        """Those that have not ended, also if they have not begun."""

    async def bury(self) -> None:
        for thread in list(self.threads):
            thread.end()
        await super().bury()


class Pool(configuration._DefaultExecutor):
    """
    The threads of a process, at most so many at a time.

    It is a default executor, so that sync daemons have threads of their own; see `make_unlimited`.
    """

    def __init__(self, host: Host, size: float = math.inf) -> None:
        super().__init__()
        self._host = host
        self._size = size
        self._waiting: collections.deque[Thread] = collections.deque()
        self._running: set[Thread] = set()

    def submit(
            self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any,
    ) -> 'concurrent.futures.Future[Any]':
        thread = Thread(self._host, functools.partial(fn, *args, **kwargs), self._leave)
        self._waiting.append(thread)
        self._admit()
        return thread.future

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._size:
            thread = self._waiting.popleft()
            self._running.add(thread)
            thread.wake_up()

    def _leave(self, thread: 'Thread') -> None:
        self._running.discard(thread)
        self._admit()


def make_unlimited(name: str) -> Pool:
    """Make an executor of the current process without a limit; it replaces `ThreadPerCall`."""
    host = processes.current.get()
    assert isinstance(host, Host)
    return Pool(host)


class Thread(threading.Thread):
    """
    A thread that calls one function, whenever it gets the turn by the loop.

    Threads of newer Pythons have ``_handle`` and ``_context`` already.
    """

    def __init__(
            self, host: Host, fn: Callable[[], Any], leave: Callable[['Thread'], None],
    ) -> None:
        super().__init__(daemon=True)
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._host = host
        self._fn = fn
        self._leave = leave
        self._variables = contextvars.copy_context()  # of the process, so it stops when that does
        self._turn = threading.Semaphore(0)
        self._rest = threading.Semaphore(0)
        self._alarm: asyncio.TimerHandle | None = None
        self._outcome: Callable[[], None] | None = None
        self._is_killed = False
        host.threads.append(self)

    def wake_up(self, after: float = 0.0) -> None:
        """Let the thread begin or go on after so many seconds, or somewhat later."""
        if not self._is_killed:
            self._call_later(after, self._go_on)

    def _call_later(self, seconds: float, fn: Callable[[], None]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = self._host.loop
        self._alarm = loop.call_later(
            seconds + loop.random.choice(DELAYS), fn, context=self._variables)

    def _go_on(self) -> None:
        if self.is_alive():
            self._turn.release()
        elif self.future.set_running_or_notify_cancel():
            self.start()
        else:
            self._forget()
            return
        if not self._rest.acquire(timeout=PATIENCE):
            raise RuntimeError("A thread of the simulation blocks.")
        if self._outcome is not None:
            self._call_later(0, self._finish)

    def run(self) -> None:
        try:
            self._outcome = functools.partial(self.future.set_result, self._fn())
        except BaseException as e:
            self._outcome = functools.partial(self.future.set_exception, e)
        self._rest.release()

    def pause(self, seconds: float | None) -> None:
        """Let the loop go on: for so many seconds, or until `wake_up`. It is for the thread."""
        if seconds is not None:
            self.wake_up(seconds)
        self._rest.release()
        self._turn.acquire()
        if self._is_killed:
            raise SystemExit

    def _finish(self) -> None:
        assert self._outcome is not None
        self._outcome()
        self._forget()

    def _forget(self) -> None:
        self._host.threads.remove(self)
        self._leave(self)

    def end(self) -> None:
        """End the thread of a killed process, and whoever waits for its result."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._host.threads.remove(self)
        self._is_killed = True
        if not self.future.cancel():
            self._turn.release()
            self.join()
            self.future.set_exception(concurrent.futures.CancelledError())


class Event:
    """Does the same as `threading.Event`, for these threads."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._waiting: list[Thread] = []

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            thread.wake_up()

    def wait(self, timeout: float | None = None) -> bool:
        thread = threading.current_thread()
        assert isinstance(thread, Thread), "It blocks the loop."
        if not self._is_set:
            self._waiting.append(thread)
            thread.pause(timeout)
            self._waiting.remove(thread)
        return self._is_set


def make_sync(fn: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Make a sync handler of an async one that awaits nothing else than `pause` and `wait`."""
    def handler(**kwargs: Any) -> Any:  # not `functools.wraps`: it would count as async
        try:
            fn(**kwargs).send(None)
        except StopIteration as e:
            return e.value
        raise RuntimeError("A handler awaits in a thread.")
    return handler


async def pause(seconds: float) -> None:
    """Sleep: as the current thread, or as the current task."""
    thread = threading.current_thread()
    if isinstance(thread, Thread):
        thread.pause(seconds)
    else:
        await asyncio.sleep(seconds)


async def wait(stopped: Any) -> None:
    """Wait for the flag of a daemon, which is of the one kind or of the other."""
    waiting = stopped.wait()
    if inspect.isawaitable(waiting):
        await waiting
