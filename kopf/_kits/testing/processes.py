"""
Simulated processes: several operators and an API server in one event loop, in virtual time.

Nothing is arbitrary, so a run can be repeated exactly. A process can be killed at any moment, as by
``kill -9``: no code of it runs any more, and its connections break.
"""
import asyncio
import contextvars
import datetime
import heapq
import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kopf._kits.testing import pipes, virtual

R = TypeVar('R')

MAX_CANCELLATIONS = 10
"""How often a task of a killed process is cancelled until it is left alone."""

ORIGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""The wall time at the beginning of a run: the same for each run."""

current: contextvars.ContextVar['Process | None'] = contextvars.ContextVar(
    'current_process', default=None)
"""The process to which the running code belongs; None for the API server and for the test."""

peer: contextvars.ContextVar['Process | None'] = contextvars.ContextVar(
    'peer_process', default=None)
"""In the API server: the process whose request is served; None if the request is of the test."""

connection: contextvars.ContextVar[pipes.Pipe | None] = contextvars.ContextVar(
    'connection', default=None)
"""In a server: the client's end of the connection; None if the client is not in this loop."""


class Process:
    """
    What runs in a context of its own: tasks, callbacks, connections. `run` starts something in it.
    """

    def __init__(self, name: str, loop: 'ProcessLoop') -> None:
        self.name = name
        self.loop = loop
        self.alive = True
        self.death: asyncio.Future[None] = loop.create_future()
        """Is done as soon as the process is killed."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._many = 100
        self._links: list[pipes.Pipe] = []
        self._frozen: list[asyncio.Handle] = []
        self._context = contextvars.copy_context()
        self._context.run(current.set, self)

    def run(self, fn: Callable[..., R], *args: Any) -> R:
        """Call a function in the context of the process."""
        return self._context.copy().run(fn, *args)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Note a task of the process."""
        self._tasks.append(task)
        if len(self._tasks) > self._many:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._many = 2 * len(self._tasks) + 100

    def link(self, near: pipes.Pipe) -> None:
        """Note a connection of the process, by its near end."""
        self._links = [pipe for pipe in self._links if not pipe.is_closing()]
        self._links.append(near)

    def kill(self) -> None:
        """
        End the process as ``kill -9`` does: none of its code runs any more.

        What it has sent is still delivered.
        """
        self.alive = False
        if not self.death.done():
            self.death.set_result(None)
        for pipe in self._links:
            if not pipe.is_closing():
                pipe.sever()
        self.loop.kill_servers(self)
        self.loop.freeze(self)

    def freeze(self, handle: asyncio.Handle) -> None:
        """Keep a callback of the killed process, so that its tasks can be ended later."""
        self._frozen.append(handle)

    async def bury(self) -> None:
        """End the tasks of the killed process. They have no connections, and get none."""
        self.loop.unfreeze(self, self._frozen)
        self._frozen.clear()
        for pipe in self._links:
            pipe.lose()
        self._links.clear()
        for _ in range(MAX_CANCELLATIONS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)
            for task in left:
                if task.done() and not task.cancelled():
                    task.exception()  # or asyncio complains that nobody has looked at it
        else:
            self.loop.forget(self, left)
        self._tasks.clear()  # some of them are keys of weak dicts whose values refer to the loop


class NumberedTask(asyncio.Task[Any]):
    """A task with a reproducible hash, so that sets of tasks have the same order in each run."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self.number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


class ProcessLoop(virtual.VirtualLoop):
    """
    An event loop with virtual time, in which processes can be killed.

    ``origin`` is the wall time at the beginning.
    """

    farewell = virtual.PATIENCE  # there are many runs, and many of their ends

    def __init__(self, *, origin: datetime.datetime = ORIGIN) -> None:
        self._numbers = itertools.count()
        self._dead: set[Process] = set()
        self._known: weakref.WeakSet[NumberedTask] = weakref.WeakSet()
        super().__init__()
        self._origin = origin
        self.set_task_factory(self._make_task)

    def _make_task(
            self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context: contextvars.Context | None = options.get('context')
        process = current.get() if context is None else context.get(current)
        task = NumberedTask(next(self._numbers), coro, loop=loop, **options)
        self._known.add(task)
        if process is not None:
            process.own(task)
        return task

    def close(self) -> None:
        super().close()
        for task in self._known:  # `asyncio.all_tasks` goes through the tasks of all loops
            asyncio._unregister_task(task)

    # The callbacks.

    def _run_once(self) -> None:
        if self._dead:
            self._sift(self._ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def _sift(self, ready: Any) -> None:
        present = [ready.popleft() for _ in range(len(ready))]  # threads can append at any moment
        kept = [handle for handle in present if not self._is_frozen(handle)]
        ready.extendleft(reversed(kept))

    def _is_frozen(self, handle: Any) -> bool:
        process: Process | None = handle._context.get(current)
        if process not in self._dead or process is None:
            return False
        process.freeze(handle)
        return True

    def freeze(self, process: Process) -> None:
        """Run no callbacks of this process any more."""
        self._dead.add(process)
        self._sift(self._ready)  # type: ignore[attr-defined]
        kept = []
        for handle in self._scheduled:  # type: ignore[attr-defined]
            if handle.cancelled() or not self._is_frozen(handle):
                kept.append(handle)
            else:
                handle._scheduled = False
        heapq.heapify(kept)
        self._scheduled[:] = kept  # type: ignore[attr-defined]

    def unfreeze(self, process: Process, handles: list[asyncio.Handle]) -> None:
        """Run the callbacks of this process again, beginning with these."""
        self._dead.discard(process)
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def forget(self, process: Process, tasks: list[Any]) -> None:
        """Never continue these tasks of the process, and do not wait for them at the end."""
        self.freeze(process)
        virtual.forget(tasks)

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Do not wait for the threads: some of them never end."""
        self._threads.shutdown(wait=False)

    # The connections.

    def kill_servers(self, process: Process) -> None:
        """Close the listening sockets of this process, so that another one can have the ports."""
        for listener in self._listeners.values():
            if listener.is_open and listener.context.get(current) is process:
                self.remove_reader(listener.sock)
                listener.sock.close()

    async def sock_connect(self, sock: Any, address: Any) -> None:
        listener = self._find_listener(address)
        if listener is not None and not listener.is_open:
            raise ConnectionRefusedError("The server is closed.")
        await super().sock_connect(sock, address)

    def join(
            self, address: tuple[str, int], context: contextvars.Context,
    ) -> tuple[pipes.Pipe, pipes.Pipe]:
        process, host = current.get(), context.get(current)
        context = context.copy()
        context.run(peer.set, process)
        near, far = super().join(address, context)
        context.run(connection.set, near)
        if process is not None:
            process.link(near)
        if host is not None:
            host.link(far)
        return near, far
