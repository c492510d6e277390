"""
What an operator waits for when it starts or stops: if that takes long, the log says it.
"""
import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._cogs.aiokits import alarms
from kopf._core.actions import inflight, tracebacks

logger = logging.getLogger('kopf._core.reactor.running')

REMINDER_INTERVAL = 5.0
"""How often (seconds) the log says what a startup or a shutdown waits for."""

MAX_NAMED = 10
"""How many tasks, and how many threads, the log names at most."""

owns_process_var: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'owns_process_var', default=False)
"""
Whether the process runs nothing but the operator, as with ``kopf run``.

Then, the process may end with the operator. An application that embeds an operator goes on.
"""


@contextlib.contextmanager
def remind(underway: inflight.Calls, what: str = "stopping") -> Iterator[None]:
    """Log what is waited for, every `REMINDER_INTERVAL` until the end of the block."""
    loop = asyncio.get_running_loop()

    def tell(_: float) -> None:
        logger.info(f"Operator is still {what}. {describe(underway, loop)}")
        alarm.set(loop.time() + REMINDER_INTERVAL)

    alarm = alarms.Alarm(tell)
    alarm.set(loop.time() + REMINDER_INTERVAL)
    try:
        yield
    finally:
        alarm.cancel()


def describe(
        underway: inflight.Calls, loop: asyncio.AbstractEventLoop, *,
        everything: bool | None = None,
) -> str:
    """
    Describe what still runs in the operator: the handlers, and the tasks and threads they started.

    Tasks and threads of Kopf itself are named only with ``everything``, or by default if there is
    nothing else.
    """
    parts: list[str] = []
    if underway:
        parts.append(f"Handlers: {inflight.describe(underway, loop.time())}.")
    with contextlib.suppress(RuntimeError):  # from another thread: the set of tasks can change
        others = asyncio.all_tasks(loop) - {call.task for call in underway}
        if tasks := describe_tasks(others, underway, everything=bool(everything)):
            parts.append(f"Tasks: {tasks}.")
    frames = sys._current_frames()
    places = {
        thread.name: tracebacks.locate(frames.get(thread.ident or 0), own=not everything)
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
        and thread.ident not in {call.thread for call in underway}}
    threads = _name((name, place) for name, place in places.items() if everything or place)
    if threads:
        parts.append(f"Threads: {threads}.")
    if not parts and everything is None:
        return f"No handlers. {describe(underway, loop, everything=True)}"
    return ' '.join(parts) or "No handlers."


def describe_tasks(
        tasks: Iterable[asyncio.Task[Any]], underway: inflight.Calls, *, everything: bool = True,
) -> str:
    """Name the tasks, with the places in the code; those of Kopf only with ``everything``."""
    called = {call.task: call for call in underway}
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
