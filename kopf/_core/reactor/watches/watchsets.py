"""
Sets of watches: each keeps some watches running, and tells which of them are dead or late.
"""
import asyncio
import collections
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from kopf._cogs.aiokits import pulses, tasks
from kopf._cogs.structs import references

Key = tuple[references.Resource, references.Namespace]
"""What one watch is for."""

K = TypeVar('K', bound=tuple[Any, ...])

Watch = Callable[..., Coroutine[Any, Any, None]]
"""Watches until cancelled. It gets the ``pulse``."""


class WatchState(NamedTuple):
    """A watch, as it is now."""
    resource: references.Resource
    namespace: references.Namespace
    pulse: pulses.Pulse
    is_running: bool


class WatchSet(Generic[K]):
    """
    The watches by their keys, which begin with the resource and the namespace.

    Every watch runs in a task until it is stopped. A watch that is started again goes on with the
    same pulse, unless it was forgotten.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called when any task has ended: then, call `check`."""
        self._on_end = on_end
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._pulses: dict[K, pulses.Pulse] = {}
        self._ended: list[asyncio.Task[None]] = []
        """What has ended since the last `check`."""
        self._past = collections.Counter[references.Resource]()
        """The restarts of the forgotten watches, by their resources."""

    def __contains__(self, key: K) -> bool:
        """Whether this watch was started, and not stopped."""
        return key in self._tasks

    def start(self, key: K, watch: Watch, *, name: str) -> None:
        """Start a watch, instead of the one that was started before, if any."""
        if key in self._tasks:
            self._tasks[key].cancel()
        pulse = self._pulses.setdefault(key, pulses.Pulse())
        pulse.expect(None)
        task = asyncio.get_running_loop().create_task(watch(pulse=pulse), name=name)
        task.add_done_callback(self.note_end)
        self._tasks[key] = task

    def note_end(self, task: asyncio.Task[None]) -> None:
        """Note that a watch has ended, or another task that belongs to a watch."""
        if not task.cancelled():
            task.exception()  # for `check`; if the operator exits before that, asyncio is silent
        self._ended.append(task)
        self._on_end()

    async def stop(self, keys: Collection[K]) -> None:
        """Stop these watches, if they run, and wait until they have ended."""
        await tasks.cancel([self._tasks.pop(key) for key in keys if key in self._tasks])

    async def stop_all(self) -> None:
        await self.stop([*self._tasks])

    def forget(self, keys: Collection[K]) -> None:
        """Forget what is known of these watches: other watches can get their keys."""
        for key in keys:
            if (pulse := self._pulses.pop(key, None)) is not None:
                self._past[key[0]] += pulse.restarts

    def drop_dead(self) -> Collection[K]:
        """Find the watches that have ended though nobody has stopped them: they can start again."""
        dead = [key for key, task in self._tasks.items() if task.done()]
        for key in dead:
            del self._tasks[key]
        return dead

    def check(self) -> None:
        """Raise the error of a failed task, if there is any."""
        while self._ended:
            task = self._ended.pop()
            if not task.cancelled():
                task.result()

    def count_restarts(self) -> collections.Counter[references.Resource]:
        """
        Count how many times watches were connected again, by their resources.

        These numbers only grow: those of watches that are stopped or forgotten are included.
        """
        total = self._past.copy()
        for key, pulse in self._pulses.items():
            total[key[0]] += pulse.restarts
        return total

    def list_states(self) -> Collection[WatchState]:
        return [
            WatchState(key[0], key[1], self._pulses[key], not task.done())
            for key, task in self._tasks.items()]
