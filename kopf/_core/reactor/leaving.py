"""
Leaving: what tells an operator to stop, and how it is made sure that it does.

It is told by a signal, a flag, or the cancellation of its tasks. It has no time limit of its own,
but from the first signal to the end of the process; and what it waits for is said in the log.
"""
import _thread
import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kopf._cogs.aiokits import flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.configs import configuration
from kopf._core.actions import calls, tracebacks

logger = logging.getLogger('kopf._core.reactor.running')

HUNG_TASKS_TIMEOUT = 5.0
"""How long (seconds) the tasks that handlers have left behind can live when the operator exits."""

REMINDER_INTERVAL = 10.0
"""How often (seconds) it is said what an exiting operator waits for."""

MAX_NAMED = 10
"""How many tasks and threads are named at most."""

owns_process_var: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'owns_process_var', default=False)
"""Whether nothing but the operator is in the process, so that it may end with the operator."""


class Exiting:
    """
    The exiting of one operator: signals, and the limit of time.

    It is in force as long as somebody holds it. Only the first signal counts, the others are told
    what is going on: they must not kill what ends.
    """

    def __init__(self, known: calls.Calls, settings: configuration.OperatorSettings) -> None:
        super().__init__()
        self.signalled: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self.known = known
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._owns_process = owns_process_var.get()
        self._holders = 0
        self._handled: dict[signal.Signals, Any] = {}
        """The signals, and what was done on them before."""
        self._is_limited = False
        self._over = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            for number, previous in self._handled.items():
                self._loop.remove_signal_handler(number)
                if previous is not None:
                    signal.signal(number, previous)
            self._handled.clear()
            if not self._owns_process:
                self._over.set()

    def handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("OS signals are ignored: running not in the main thread.")
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # e.g. on Windows
                previous = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._receive, number)
                self._handled[number] = previous
                # The loop is woken up by other means than this. But if it is blocked, this is
                # all that is called.
                signal.signal(number, self._limit)
                signal.siginterrupt(number, False)

    async def wait(self, stop_flag: flags.Flag | None) -> None:
        """Wait until the operator has to stop, for whatever reason, and tell of it."""
        waiting: set[asyncio.Future[Any]] = {self.signalled}
        if stop_flag is not None:
            waiting.add(asyncio.ensure_future(flags.wait_flag(stop_flag)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await aiotasks.cancel([item for item in waiting if isinstance(item, asyncio.Task)])
        if self.signalled.done():
            name = self.signalled.result().name
            logger.info(f"Signal {name} is received. Operator is stopping.")
        else:
            logger.info("Stop-flag is raised. Operator is stopping.")

    def _receive(self, number: signal.Signals) -> None:
        if self.signalled.done():
            logger.info(f"Signal {number.name} is received again. Operator is stopping already. "
                        f"{describe_waiting(self.known, self._loop)}")
            return
        self.signalled.set_result(number)

    def _limit(self, *_: object) -> None:
        timeout = self._settings.process.ultimate_exiting_timeout
        if not self._is_limited and timeout is not None:
            self._is_limited = True
            # Not by `threading`: it has locks, and a signal can come when they are taken.
            _thread.start_new_thread(self._exit_in, (timeout,))

    def _exit_in(self, timeout: float) -> None:
        if not self._over.wait(timeout):
            self._exit_hard(timeout)

    def _exit_hard(self, timeout: float) -> None:
        """Leave in any case, even if something hangs: Python would wait for its threads forever."""
        if not self._holders and not is_interpreter_exiting():
            return  # the operator is gone, and whoever has called it goes on
        what = describe_waiting(self.known, self._loop, everything=True)
        logger.error(
            f"The operator has not exited in {timeout} seconds; leaving regardless. {what}")
        logging.shutdown()
        os._exit(1)


_exitings: weakref.WeakKeyDictionary[asyncio.Task[Any], Exiting] = weakref.WeakKeyDictionary()


def start(
        core: asyncio.Task[Any], known: calls.Calls, settings: configuration.OperatorSettings,
) -> Exiting:
    """Be ready to leave: listen to signals, as long as the operator's core runs."""
    exiting = _exitings[core] = Exiting(known, settings)
    exiting.hold()
    exiting.handle_signals()
    core.add_done_callback(lambda _: exiting.release())
    return exiting


@contextlib.contextmanager
def prolong(root_tasks: Collection[asyncio.Task[Any]]) -> Iterator[calls.Calls]:
    """The operator of these tasks leaves not before the end of the block. These are its calls."""
    exitings = [_exitings[task] for task in root_tasks if task in _exitings]
    with contextlib.ExitStack() as stack:
        for exiting in exitings:
            stack.enter_context(exiting.held())
        yield exitings[0].known if exitings else calls.Calls()


@contextlib.contextmanager
def remind(known: calls.Calls) -> Iterator[None]:
    """Say from time to time what is waited for."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def tell() -> None:
        logger.info(f"Operator is still stopping. {describe_waiting(known, loop)}")
        timers[:] = [loop.call_later(REMINDER_INTERVAL, tell)]

    timers.append(loop.call_later(REMINDER_INTERVAL, tell))
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


async def finish_tasks(
        *, ignored: Collection[asyncio.Task[Any]], known: calls.Calls | None = None,
) -> None:
    """Let all other tasks of the loop end; cancel them, and those they start, if it takes long."""
    known = calls.Calls() if known is None else known

    def find() -> list[asyncio.Task[Any]]:
        current = asyncio.current_task()
        return [task for task in asyncio.all_tasks()
                if task not in ignored and task is not current]

    if hung := find():
        await asyncio.wait(hung, timeout=HUNG_TASKS_TIMEOUT)
    if hung := find():
        names = _describe_tasks(hung, known)
        logger.warning(f"Cancelling the tasks that are left behind: {names}.")
    while hung := find():
        for task in hung:
            task.cancel()
        _, pending = await asyncio.wait(hung, timeout=REMINDER_INTERVAL)
        if pending:
            names = _describe_tasks(pending, known)
            logger.warning(f"The tasks do not end though cancelled: {names}.")
        for task in hung:
            if task.done() and not task.cancelled():
                task.exception()


def describe_waiting(
        known: calls.Calls, loop: asyncio.AbstractEventLoop, *, everything: bool = False,
) -> str:
    """
    What there still is of the operator: the functions of the author, his tasks and threads.

    The tasks of the framework are of interest only if nothing else is left to blame.
    """
    parts: list[str] = []
    if known:
        parts.append(f"Handlers: {calls.describe(known, loop.time())}.")
    with contextlib.suppress(RuntimeError):  # from another thread, it can fail
        others = asyncio.all_tasks(loop) - known.get_tasks()
        if tasks := _describe_tasks(others, known, everything=everything):
            parts.append(f"Tasks: {tasks}.")
    frames = sys._current_frames()
    places = {
        thread.name: tracebacks.locate(frames.get(thread.ident or 0), own=not everything)
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
        and thread.ident not in known.get_threads()}
    threads = _name((name, place) for name, place in places.items() if everything or place)
    if threads:
        parts.append(f"Threads: {threads}.")
    if not parts and not everything:
        return f"No handlers. {describe_waiting(known, loop, everything=True)}"
    return ' '.join(parts)


def _describe_tasks(
        tasks: Iterable[asyncio.Task[Any]], known: calls.Calls, *, everything: bool = True,
) -> str:
    called = {call.task: call for call in known}
    items: list[tuple[str, str | None]] = []
    for task in tasks:
        frame = tracebacks.find_awaiting(task)
        if task in called:
            items.append((called[task].describe(task.get_loop().time()), None))
        elif everything or tracebacks.locate(frame, own=True):
            items.append((task.get_name(), tracebacks.locate(frame, own=not everything)))
    return _name(items)


def _name(items: Iterable[tuple[str, str | None]]) -> str:
    texts = sorted(f"{name} (at {place})" if place else name for name, place in items)
    more = len(texts) - MAX_NAMED
    return ', '.join([*texts[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])


def is_interpreter_exiting() -> bool:
    """Whether the main program is over, and Python waits for the threads."""
    return getattr(threading, '_SHUTTING_DOWN', False) or not threading.main_thread().is_alive()
