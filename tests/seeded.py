"""
Event loops and processes in which a seed decides what is arbitrary in reality: which task runs
next, and how long each piece of data is on its way. So, a run can be repeated exactly.
"""
import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Any

from kopf._kits.testing import pipes, processes


class SeededProcess(processes.Process):
    """A process whose connections can be cut, and which can end together with its node."""

    def __init__(self, name: str, loop: 'SeededLoop') -> None:
        super().__init__(name, loop)
        self.cut_until = 0.0
        """Until when (the time of the loop) nothing gets through its connections."""

    def owns(self, task: object) -> bool:
        """Whether the task was started in this process."""
        return any(task is own for own in self._tasks)

    def link(self, near: pipes.Pipe) -> None:
        late = [pipe for pipe in self._links
                if pipe.is_closing() and isinstance(pipe.other, LatePipe) and pipe.other._incoming]
        super().link(near)
        self._links += late

    def lose_sent(self) -> None:
        """Lose what is still on its way, also through the connections that are closed already."""
        for pipe in self._links:
            if isinstance(pipe.other, LatePipe):
                pipe.other.discard()

    def kill(self, *, lossy: bool = False) -> None:
        """End the process. If it is ``lossy``, what it has sent is lost, as at a loss of a node."""
        for pipe in self._links if lossy else ():
            if not pipe.is_closing() and isinstance(pipe.other, LatePipe):
                pipe.other.discard()
        super().kill()


class SeededLoop(processes.ProcessLoop):
    """
    An event loop whose arbitrary decisions follow from a seed.

    ``disorder`` is the probability that the tasks which can run are run in another order than that
    in which they were woken up. ``latency`` is the range of the delays of data, in seconds.
    """

    def __init__(self, seed: int | str = 0, **options: Any) -> None:
        self.random = random.Random(seed)
        self.disorder = 0.0
        self.latency = (0.0, 0.0)
        super().__init__(**options)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if self._dead:
            self._sift(ready)
        is_arranged = len(ready) > 1 and (self._dead or self.disorder)
        if is_arranged and self.random.random() < self.disorder:
            places = [i for i, handle in enumerate(list(ready)) if _is_step(handle)]
            steps = [ready[i] for i in places]
            self.random.shuffle(steps)
            for i, handle in zip(places, steps, strict=True):
                ready[i] = handle
        super()._run_once()

    def get_delay(self, process: processes.Process | None) -> float:
        """Return after how many seconds data of the process arrives that is sent now."""
        low, high = self.latency
        delay = self.random.uniform(low, high) if high else 0.0
        cut = process.cut_until - self.time() if isinstance(process, SeededProcess) else 0.0
        return max(cut, 0.0) + delay

    async def sock_connect(self, sock: Any, address: Any) -> None:
        listener = self._find_listener(address)
        host = None if listener is None else listener.context.get(processes.current)
        process = processes.current.get() or host
        if process is not None:
            await asyncio.sleep(self.get_delay(process))
            if not process.alive:
                raise ConnectionRefusedError("The process is killed.")
        await super().sock_connect(sock, address)

    def join(
            self, address: tuple[str, int], context: contextvars.Context,
    ) -> tuple[pipes.Pipe, pipes.Pipe]:
        process = processes.current.get() or context.get(processes.current)
        near, far = super().join(address, context)
        for pipe in (near, far):
            assert isinstance(pipe, LatePipe)
            pipe.get_delay = lambda: self.get_delay(process)
        return near, far

    def make_pipe(self, context: contextvars.Context, extra: dict[str, Any]) -> pipes.Pipe:
        return LatePipe(self, context, extra)


class LatePipe(pipes.Pipe):
    """An end of a connection that data reaches after some time."""

    get_delay: Callable[[], float]
    """Is called for each piece of data: after how many seconds it reaches this end."""
    _is_late = False
    """Whether data is on its way that takes some time."""

    def abort(self) -> None:
        if isinstance(self.other, LatePipe) and self.other._is_late and not self._closing:
            self.other.discard()  # a reset: what is not transmitted yet is discarded
        self.close()

    def discard(self) -> None:
        self._incoming.clear()
        self._size = 0

    def _schedule(self) -> None:
        if not self._scheduled and not self._closing:
            self._scheduled = True
            delay = self.get_delay()
            self._is_late = delay > 0
            if self._is_late:
                self._loop.call_later(delay, self._deliver, context=self._context)
            else:
                self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._is_late = False
        super()._deliver()


def _is_step(handle: Any) -> bool:
    """Whether the callback is a step of a task."""
    return isinstance(getattr(handle._callback, '__self__', None), asyncio.Task)
