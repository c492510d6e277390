"""
Streams: what the watch of one resource tells, sorted out by the objects.

What comes twice is recognised, what a list does not show any more is gone, and an object waits for
its older namesake to end.
"""
import collections
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from kopf._cogs.structs import bodies, references
from kopf._core.intents import registries, stopping
from kopf._core.reactor import lines

if TYPE_CHECKING:
    from kopf._core.reactor import queueing

logger = logging.getLogger(__name__)

MAX_EVENTS = 1000
"""How many unseen raw events of one object are kept in order; later ones are coalesced."""


class Stream:
    """All lines of one resource in one namespace (or in all of them), fed by its watch."""

    def __init__(
            self,
            queue: 'queueing.Lines',
            resource: references.Resource,
            handlers: registries.ResourceHandlers,
            resumed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.lines = queue
        self.resource = resource
        self.handlers = handlers
        self.by_uid: dict[str, lines.Line] = {}
        self.leaving: dict[tuple[str | None, str], lines.Line] = {}
        """The lines of the objects that are gone, but whose passes still run."""
        self.epoch = 0
        self.since = 0
        """Objects that were not in a list since this epoch cannot be trusted to be so."""
        self.listing = False
        self._complete = False
        self.unindexed = 0
        """How many of its objects are being indexed now."""
        self._resumed = resumed
        self._held: list[lines.Line] = []
        self._warned = False

    def begin(self, *, restored: bool) -> None:
        self.epoch += 1
        self.listing = True
        if restored:
            for line in self.by_uid.values():
                line.version = line.expected = None

    def listed(self, body: bodies.RawBody) -> None:
        first = not self._complete
        line, new = self._find(body, initial=first)
        is_back, line.epoch = line.epoch < self.since, self.epoch
        if is_back:
            self.lines.reconsider(line, body)
        if line.offer(body):
            line.show(body)
            type: Any = None if first else 'ADDED' if new else 'MODIFIED'
            self._record(line, type, body)
            if new and not first:
                self._held.append(line)  # its namesake may be not known to be gone yet
            else:
                self.lines.schedule(line, urgent=not first)
        elif is_back and line.woken:
            line.pending = body
            self.lines.schedule(line, urgent=False)

    def end(self) -> None:
        self.listing = False
        self._complete = True
        self._resumed = frozenset()
        for line in [line for line in self.by_uid.values() if line.epoch != self.epoch]:
            self._leave(line, None)
        held, self._held = self._held, []
        for line in held:
            if line.pending is not None:
                self._yield_to_namesake(line, line.pending)
            self.lines.schedule(line)
        self.lines.check_filled(self)

    @property
    def reached(self) -> str | None:
        """The newest version of the objects that has come, if versions are comparable."""
        versions = [line.version for line in self.by_uid.values() if isinstance(line.version, int)]
        return str(max(versions)) if versions else None

    def distrust(self) -> None:
        """
        It was not watched for a while: nothing of it is handled before it is listed anew.

        What was not changed meanwhile is looked at only where there was something to do.
        """
        self.since = self.epoch + 1 if self.epoch else 0
        for line in self.by_uid.values():
            if line.events:  # somebody wants to see the newest ones
                line.events.clear()
                line.version = None
            if (line.pending is not None or line.timer is not None or line.cycle is not None
                    or line.throttler is not None or line.companions is not None):
                line.woken = True
            line.cancel_timer()
            line.pending = line.expected = None

    def unavailable(self, error: Exception) -> None:
        self.lines.stop_filling(self, error)

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes | None = None,
    ) -> None:
        if type == 'DELETED' and not self.handlers.watching and (
                lines.get_uid(body) not in self.by_uid):
            return
        line, new = self._find(body, initial=False)
        if type == 'DELETED':
            self._leave(line, body)
            return
        if new:
            self._yield_to_namesake(line, body)
        is_new_state = line.offer(body)
        if is_new_state:
            line.show(body, packed)
        if self._record(line, type, body, packed) or is_new_state:
            self.lines.schedule(line)

    def _find(self, body: bodies.RawBody, *, initial: bool) -> tuple[lines.Line, bool]:
        uid = lines.get_uid(body)
        line = self.by_uid.get(uid)
        if line is not None:
            return line, False
        initial = initial and uid not in self._resumed
        line = self.by_uid[uid] = lines.Line(self, uid, initial=initial)
        line.epoch = self.epoch
        return line, True

    def _record(
            self,
            line: lines.Line,
            type: bodies.RawEventType,
            body: bodies.RawBody,
            packed: bytes | None = None,
    ) -> bool:
        """Keep the raw event where someone wants to see it."""
        if not self.handlers.watching:
            return False
        if line.events is None:
            line.events = collections.deque()
        if len(line.events) >= MAX_EVENTS:
            if not self._warned:
                self._warned = True
                logger.warning(
                    f"Events of {self.resource} come faster than their handlers see them; "
                    f"from now on, some of them are skipped (the newest ones never).")
            line.events.pop()
        line.events.append({'type': type, 'object': body})
        if type != 'DELETED':
            line.keep(body, packed)
        return True

    def _leave(self, line: lines.Line, body: bodies.RawBody | None) -> None:
        """The object is gone; its line ends with the pass that tells so."""
        self.by_uid.pop(line.uid, None)
        line.gone = True
        line.cancel_timer()
        last = body if body is not None else line.pending
        last = last if last is not None else line.recall()
        line.pending = last
        line.kept = None
        if line.companions is not None:
            line.companions.stop(stopping.DaemonStoppingReason.RESOURCE_DELETED)
        if self.handlers.indexing:
            self.lines.discard(line)
        if last is not None:
            self._record(line, 'DELETED', last)
            line.name = lines.get_name(last)
        if line.name is not None:
            self.leaving[line.name] = line
        if line.events or line.noticed or line.busy:
            self.lines.schedule(line)
        else:
            self.forget(line)

    def _yield_to_namesake(self, line: lines.Line, body: bodies.RawBody) -> None:
        if self.leaving:
            older = self.leaving.get(lines.get_name(body))
            if older is not None:
                older.follower = line
                line.held = True

    def forget(self, line: lines.Line) -> None:
        """The line has ended: let the one of its namesake begin."""
        if line.name is not None and self.leaving.get(line.name) is line:
            del self.leaving[line.name]
        if line.follower is not None:
            line.follower.held = False
            self.lines.schedule(line.follower)

    def iter_resumed(self) -> Iterator[str]:
        return (line.uid for line in self.by_uid.values() if not line.initial)
