"""
The gate between indexing and all other handling.

Nothing is handled before all the objects of all the indexed resources are in the indices; later, no
state of an object is handled before it is in the indices. A resource which comes late delays only
its own objects. What cannot be listed is not waited for.
"""
import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from kopf._cogs.aiokits import tasks
from kopf._cogs.structs import bodies
from kopf._core.reactor.lines import Line
from kopf._core.reactor.streams import Stream

if TYPE_CHECKING:
    from kopf._core.reactor import queueing

logger = logging.getLogger(__name__)


class Gate:
    """Who has to wait until the indices are filled; and the indexing itself."""

    def __init__(
            self,
            lines: 'queueing.Lines',
            *,
            index: Callable[[Line, bodies.RawBody], Awaitable[float | None]] | None,
    ) -> None:
        super().__init__()
        self._lines = lines
        self._index = index
        self._unfilled: set[Stream] = set()
        self._is_known = index is None
        self._is_open = index is None
        self._detained: list[tuple[Line, bool]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[Line, asyncio.TimerHandle] = {}

    def known(self) -> None:
        """All that has to be filled at first is known."""
        self._is_known = True
        self._check()

    def reset(self, streams: Iterable[Stream]) -> None:
        """Close until these are filled again: they have to be listed anew."""
        self._unfilled.update(streams)
        self._is_open = self._index is None or (self._is_open and not self._unfilled)

    def close_for(self, stream: Stream) -> None:
        self._unfilled.add(stream)

    def open_for(self, stream: Stream, error: Exception | None = None) -> None:
        """The stream is filled, or cannot be."""
        if stream in self._unfilled:
            if error is not None:
                logger.warning(f"The indices are incomplete: {stream.resource} is not "
                               f"available: {error}")
            self._unfilled.remove(stream)
            self._check()

    def _check(self) -> None:
        self._is_open = self._is_open or (self._is_known and not self._unfilled)
        if self._is_open:
            detained, self._detained = self._detained, []
            for line, urgent in detained:
                line.queued = False
                self._lines.schedule(line, urgent=urgent)

    def detain(self, line: Line, *, urgent: bool) -> bool:
        """Let the line wait if it has to."""
        if self._is_open and (not self._unfilled or line.stream not in self._unfilled):
            return False
        self._detained.append((line, urgent))
        return True

    def index(self, line: Line, raw: bodies.RawBody) -> None:
        """Index the state as soon as the previous one is indexed, if there is any."""
        line.unindexed = raw
        if not line.indexing and self._index is not None and not self._lines.stopping:
            line.indexing = True
            line.stream.unindexed += 1
            task = asyncio.get_running_loop().create_task(self._run(line, self._index))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(
            self, line: Line, index: Callable[[Line, bodies.RawBody], Awaitable[float | None]],
    ) -> None:
        due: float | None = None
        try:
            while line.unindexed is not None and not line.gone:
                raw, line.unindexed = line.unindexed, None
                due = await index(line, raw)
        finally:
            line.indexing = False
            line.stream.unindexed -= 1
        self._cancel_retry(line)
        if line.gone:
            self._lines.discard(line)
        elif due is not None:
            self._retries[line] = asyncio.get_running_loop().call_at(due, self._retry, line, raw)
        self._lines.check_filled(line.stream)
        if line.pending is not None or line.events or line.woken or line.gone:
            self._lines.schedule(line, urgent=line.stream.epoch > 1 or not line.stream.listing)

    def _retry(self, line: Line, raw: bodies.RawBody) -> None:
        """Try a failed state again, unless there is a newer one."""
        del self._retries[line]
        if not line.gone and not line.indexing:
            newest = line.pending if line.pending is not None else line.recall()
            self.index(line, newest if newest is not None else raw)

    def _cancel_retry(self, line: Line) -> None:
        handle = self._retries.pop(line, None)
        if handle is not None:
            handle.cancel()

    async def stop(self) -> None:
        for line in list(self._retries):
            self._cancel_retry(line)
        await tasks.cancel(self._tasks)
