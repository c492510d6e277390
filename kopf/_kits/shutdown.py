"""
The shutdown of an operator: what starts it, what it waits for, and how it is enforced.

A signal (SIGINT, SIGTERM), the stop flag, or the cancellation of the operator's tasks starts the
shutdown. Only a shutdown by a signal has a time limit: after
``settings.process.ultimate_exiting_timeout``, the process exits at once, whatever still runs.
"""
import _thread
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Collection, Container, Iterator
from typing import Any

from kopf._cogs.aiokits import flags, forks
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.configs import configuration
from kopf._core.actions import inflight
from kopf._core.reactor import waiting

logger = logging.getLogger('kopf._core.reactor.running')

HUNG_TASKS_TIMEOUT = 5.0
"""
How long (seconds) the tasks that handlers have started have to end when the operator exits.
"""

IMPATIENCE = 0.5
"""
How long (seconds) after the first signal another Ctrl+C counts as a second one.

Tools that run operators often forward a Ctrl+C that the terminal has also sent to the operator.
"""

EXIT_PATIENCE = 0.5
"""How long (seconds) each thread of a command has to end when the process exits."""

INTERRUPTED = 130
"""The exit code after a second Ctrl+C, as of all programs that Ctrl+C kills."""


class Shutdown:
    """
    The shutdown of one operator: its signal handlers, and its time limit.

    The signal handlers are installed as long as this object is held (see `hold`), i.e. until the
    shutdown is over. The first signal starts the shutdown. Further signals only log what the
    shutdown waits for: they must not interrupt the cleanup. But a second Ctrl+C ends the process at
    once, if the process runs nothing but the operator.
    """

    def __init__(self, underway: inflight.Calls, settings: configuration.OperatorSettings) -> None:
        self.signalled: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        self.underway = underway
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._owns_process = waiting.owns_process_var.get()
        self._holders = 0
        self._handled: dict[signal.Signals, Any] = {}
        """The handled signals, and their previous handlers."""
        self._signalled_at: float | None = None
        self._is_told = False
        """Whether the log says that a signal is received."""
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
                forks.forget_signal(number)
                if self._owns_process and self.signalled.done():
                    # The process is about to exit. The default handler of another signal would turn
                    # its exit code into that of a killed process.
                    signal.signal(
                        number, self._limit if number == signal.SIGINT else signal.SIG_IGN)
                elif previous is not None:
                    signal.signal(number, previous)
            self._handled.clear()
            if not self._owns_process:
                self._over.set()

    def handle_signals(self) -> None:
        """Install the signal handlers; outside of the main thread, Python does not allow that."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("OS signals are ignored: running not in the main thread.")
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # e.g. on Windows
                previous = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._receive, number)
                self._handled[number] = previous
                forks.keep_signal(number, previous)
                # The event loop gets the signal by its wake-up file descriptor, regardless of this
                # handler. But if a handler of the operator blocks the loop, then this function is
                # the only one that is called, so it enforces the time limit.
                signal.signal(number, self._limit)
                signal.siginterrupt(number, False)

    async def wait(self, stop_flag: flags.Flag | None) -> None:
        """Wait for a signal or for the stop flag, and log which of them has come."""
        waiting: set[asyncio.Future[Any]] = {self.signalled}
        raised: asyncio.Task[Any] | None = None
        if stop_flag is not None:
            raised = asyncio.create_task(flags.wait_flag(stop_flag))
            waiting.add(raised)
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await aiotasks.cancel([item for item in waiting if isinstance(item, asyncio.Task)])
        if self.signalled.done():
            number = self.signalled.result()
            hint = " Another Ctrl+C leaves at once, without waiting for the handlers." if (
                number == signal.SIGINT and self._owns_process and self.underway) else ""
            self._is_told = True
            logger.info(f"Signal {number.name} is received. Operator is stopping.{hint}")
        elif raised is not None:
            result = None if raised.cancelled() else raised.result()  # or the error of a future
            state = 'raised' if result is None else f'set to {result!r}'
            logger.info(f"Stop-flag is {state}. Operator is stopping.")

    def _receive(self, number: signal.Signals) -> None:
        if self.signalled.done():
            is_another = number == self.signalled.result() and self._is_told
            if not is_another and not self._is_repeated():
                return  # the same Ctrl+C, forwarded as SIGTERM; or sent twice, as timeout(1) does
            logger.info(f"Signal {number.name} is received again. Operator is stopping already. "
                        f"{waiting.describe(self.underway, self._loop, everything=False)}")
            return
        self.signalled.set_result(number)

    def _is_repeated(self) -> bool:
        """Check if a signal is more than an echo of the first one."""
        return self._signalled_at is None or time.monotonic() - self._signalled_at > IMPATIENCE

    def _limit(self, number: int, *_: object) -> None:
        # Not `threading`: it takes locks when it starts a thread, and the code interrupted by the
        # signal can hold these same locks, which would be a deadlock.
        if self._signalled_at is None:
            self._signalled_at = time.monotonic()
            timeout = self._settings.process.ultimate_exiting_timeout
            if timeout is not None:
                _thread.start_new_thread(self._exit_in, (timeout,))
        elif number == signal.SIGINT and self._owns_process and self._is_repeated():
            _thread.start_new_thread(self._exit_at_once, ())

    def _exit_in(self, timeout: float) -> None:
        if not self._over.wait(min(timeout, threading.TIMEOUT_MAX)):
            self._exit_hard(timeout)

    def _exit_at_once(self) -> None:
        what = waiting.describe(self.underway, self._loop, everything=False)
        logger.warning(f"Signal SIGINT is received again. Leaving at once; the next operator will "
                       f"repeat what was not written. {what}")
        logging.shutdown()
        os._exit(INTERRUPTED)

    def _exit_hard(self, timeout: float) -> None:
        """Kill the process: a regular exit of Python would wait for hanging threads forever."""
        if not self._holders and not is_interpreter_exiting():
            return  # the operator has ended, but the application that has run it goes on
        what = waiting.describe(self.underway, self._loop, everything=True)
        logger.error(
            f"The operator has not exited in {timeout} seconds; leaving regardless. {what}")
        logging.shutdown()
        os._exit(1)


_shutdowns: weakref.WeakKeyDictionary[asyncio.Task[Any], Shutdown] = weakref.WeakKeyDictionary()


def start(
        core: asyncio.Task[Any], underway: inflight.Calls, settings: configuration.OperatorSettings,
) -> Shutdown:
    """Listen to signals as long as the operator's core task runs."""
    shutdown = _shutdowns[core] = Shutdown(underway, settings)
    shutdown.hold()
    shutdown.handle_signals()
    core.add_done_callback(lambda _: shutdown.release())
    return shutdown


@contextlib.contextmanager
def prolong(root_tasks: Collection[asyncio.Task[Any]]) -> Iterator[inflight.Calls]:
    """
    Go on handling signals until the end of the block, even after the core task has ended.

    Yields the calls of the operator that are under way.
    """
    shutdowns = [_shutdowns[task] for task in root_tasks if task in _shutdowns]
    with contextlib.ExitStack() as stack:
        for shutdown in shutdowns:
            stack.enter_context(shutdown.held())
        yield shutdowns[0].underway if shutdowns else inflight.Calls()


class Foreign(Container[asyncio.Task[Any]]):
    """All tasks that do not belong to one operator, if it is known who has started each task."""


async def finish_tasks(
        *, ignored: Container[asyncio.Task[Any]], underway: inflight.Calls | None = None,
        timeout: float = HUNG_TASKS_TIMEOUT,
) -> None:
    """
    Wait until all tasks of the event loop have ended, except the ignored ones and the current one.

    After the timeout, the tasks are cancelled, and so are the tasks that they start then. While
    another operator runs in the event loop, no task is, unless it is known which are `Foreign`.
    """
    underway = inflight.Calls() if underway is None else underway

    def find() -> list[asyncio.Task[Any]]:
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        for core in [ref() for ref in _shutdowns.keyrefs()]:
            if core is not None and core.get_loop() is loop and not core.done() and (
                    not isinstance(ignored, Foreign)):
                return []
        return [task for task in asyncio.all_tasks() if task not in ignored and task is not current]

    if hung := find():
        await asyncio.wait(hung, timeout=timeout)
    if hung := find():
        names = waiting.describe_tasks(hung, underway)
        logger.warning(f"Cancelling the tasks that are left behind: {names}.")
    while hung := find():
        for task in hung:
            task.cancel()
        _, pending = await asyncio.wait(hung, timeout=waiting.REMINDER_INTERVAL)
        if pending:
            names = waiting.describe_tasks(pending, underway)
            logger.warning(f"The tasks do not end though cancelled: {names}.")
        for task in hung:
            if task.done() and not task.cancelled():
                task.exception()


def exit_regardless(code: int, known: Collection[threading.Thread]) -> None:
    """
    Let the process exit with this code, even if threads hang that were not there before.

    Otherwise, Python would wait for them forever.
    """
    fresh = [each for each in threading.enumerate() if not (each.daemon or each in known)]

    def leave() -> None:
        while not is_interpreter_exiting():
            time.sleep(0.1)
        for thread in fresh:
            thread.join(EXIT_PATIENCE)  # those of idle pools end now
        if any(thread.is_alive() for thread in fresh):
            logging.shutdown()
            sys.stdout.flush()
            os._exit(code)

    if fresh:
        threading.Thread(target=leave, name='leaving', daemon=True).start()


def is_interpreter_exiting() -> bool:
    """Whether the main thread has ended, and Python waits for the other threads."""
    return getattr(threading, '_SHUTTING_DOWN', False) or not threading.main_thread().is_alive()
