"""
Leaving: what tells an operator to stop, and how it is made sure that it does.
"""
import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection
from typing import Any

from kopf._cogs.aiokits import flags
from kopf._cogs.aiokits import tasks as aiotasks
from kopf._cogs.configs import configuration

logger = logging.getLogger('kopf._core.reactor.running')

HUNG_TASKS_TIMEOUT = 5.0
"""How long (seconds) the tasks that handlers have left behind can live when the operator exits."""


class Signals:
    """The first of the signals to stop; the others change nothing: they must not kill what ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def handle(self, *, until: asyncio.Task[Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("OS signals are ignored: running not in the main thread.")
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # e.g. on Windows
                loop.add_signal_handler(number, self._receive, number)
                until.add_done_callback(
                    lambda _, number=number: loop.remove_signal_handler(number))  # type: ignore[misc]

    def _receive(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)


async def wait_for_stop(
        stop_flag: flags.Flag | None,
        signals: Signals,
        settings: configuration.OperatorSettings,
) -> None:
    """Wait until the operator has to stop, for whatever reason, and tell of it."""
    waiting: set[asyncio.Future[Any]] = {signals.first}
    if stop_flag is not None:
        waiting.add(asyncio.ensure_future(flags.wait_flag(stop_flag)))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await aiotasks.cancel([item for item in waiting if isinstance(item, asyncio.Task)])
    if signals.first.done():
        logger.info(f"Signal {signals.first.result().name} is received. Operator is stopping.")
        limit_exiting(settings.process.ultimate_exiting_timeout)
    else:
        logger.info("Stop-flag is raised. Operator is stopping.")


async def finish_tasks(*, ignored: Collection[asyncio.Task[Any]]) -> None:
    """Let all other tasks of the loop end, or cancel them if that takes too long."""
    current = asyncio.current_task()
    hung = [task for task in asyncio.all_tasks() if task not in ignored and task is not current]
    if hung:
        await asyncio.wait(hung, timeout=HUNG_TASKS_TIMEOUT)
        await aiotasks.cancel([task for task in hung if not task.done()])


def limit_exiting(timeout: float | None) -> None:
    """Leave in any case, even if something hangs: Python would wait for its threads forever."""
    if timeout is None:
        return
    timer = threading.Timer(timeout, _exit_hard, [timeout])
    timer.daemon = True
    timer.start()


def _exit_hard(timeout: float) -> None:
    names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
    logger.error(f"The operator has not exited in {timeout} seconds; leaving regardless. "
                 f"These threads are still running: {', '.join(names)}.")
    logging.shutdown()
    os._exit(1)
