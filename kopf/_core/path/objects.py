"""
Items: the objects as the work queue knows them.

The inbox of an item holds what has arrived for the object. The phase of the item says whether the
object waits or is processed. The processing uses the cycle, the throttler, the daemons and timers,
and the memo. There can be many thousands of items, so an item at rest has only a few references.
"""
import asyncio
import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from kopf._cogs.clients import errors
from kopf._cogs.structs import bodies, patches, references
from kopf._core.actions import cycles, decisions, feedbackloops, throttlers
from kopf._core.engines.daemons.companions import Companions
from kopf._core.engines.reconciling.reconcilers import Reconcilers
from kopf._core.intents import registries
from kopf._core.path import inboxes


class Phase(enum.Enum):
    """The states of an item in the work queue."""

    successors: 'tuple[Phase, ...]'
    """The phases that can follow."""

    RESTING = enum.auto()
    """The item waits for a change of the object, or for the time of its next attempt."""

    AWAITING_NAMESAKE = enum.auto()
    """The item waits until the end of an older object with the same name is reported."""

    QUEUED = enum.auto()
    """The item waits for a worker, or until the indices are filled."""

    WORKING = enum.auto()
    """The item is processed: Kopf decides or writes, which must not be interrupted."""

    CALLING = enum.auto()
    """The item is processed: a handler runs, which can be interrupted."""

    LEAVING = enum.auto()
    """The operator exits: the outcomes that are not written are written with the last attempt."""

    ENDED = enum.auto()
    """The object is gone, and its end is reported."""


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.RESTING: frozenset({Phase.AWAITING_NAMESAKE, Phase.QUEUED, Phase.LEAVING, Phase.ENDED}),
    Phase.AWAITING_NAMESAKE: frozenset({Phase.RESTING, Phase.LEAVING, Phase.ENDED}),
    Phase.QUEUED: frozenset({Phase.RESTING, Phase.WORKING, Phase.LEAVING, Phase.ENDED}),
    Phase.WORKING: frozenset({Phase.RESTING, Phase.CALLING, Phase.LEAVING, Phase.ENDED}),
    Phase.CALLING: frozenset({Phase.WORKING}),
    Phase.LEAVING: frozenset({Phase.RESTING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""The legal transitions. Staying in a phase is also legal."""

for _phase, _successors in TRANSITIONS.items():
    _phase.successors = tuple(_successors)  # not a set: the hashes of enumeration members are slow

AT_WORK = (Phase.WORKING, Phase.CALLING)


class Source(Protocol):
    """The informer of an item: it has the items of one resource in one namespace."""

    @property
    def resource(self) -> references.Resource: ...

    @property
    def handlers(self) -> registries.ResourceHandlers: ...

    def __len__(self) -> int:
        """How many objects are known."""

    @property
    def consistency_timeout(self) -> float:
        """How long (seconds) to wait for the echo of a write if versions are not comparable."""

    def schedule(
            self, item: 'Item', /, *, urgent: bool = True, packed: bytes | None = None,
    ) -> None:
        """
        Queue the item for processing; if it is not urgent, behind all live changes.

        ``packed`` is its newest state as a raw event in JSON, if that is available.
        """

    def index(self, item: 'Item', raw: bodies.RawBody, /) -> None:
        """Index the state before the item is processed."""

    def is_indexing(self, item: 'Item', /) -> bool:
        """Whether the newest state of the item is not in the indices yet."""

    def pack_later(self, item: 'Item', /) -> None:
        """Pack the kept state of the item after the item has rested for a while."""

    def forget(self, item: 'Item', /) -> None:
        """Forget the item: the object is gone, and its end is reported."""


class Item:
    """One object in the work queue, with everything that this process knows about the object."""
    __slots__ = (
        'companions',
        'cycle',
        'due',
        'feedback',
        'gone',
        'held',
        'inbox',
        'initial',
        'is_confirmed',
        'last_list',
        'memo',
        'name',
        'noticed',
        'phase',
        'reconcilers',
        'slowdown',
        'source',
        'throttler',
        'uid',
        'unconfirmed',
        'unsent',
        'vanished',
    )

    def __init__(self, source: Source, uid: str, *, initial: bool) -> None:
        self.source = source
        self.uid = uid
        self.inbox = inboxes.Inbox()
        self.due: float | None = None  # only `wakeups` sets it
        self.phase = Phase.RESTING
        self.initial = initial
        """Whether the object existed before the operator, and is not resumed yet."""
        self.noticed = False
        """Whether any handler was for the object, so that the end of the object is logged."""
        self.gone = False
        """Whether the object no longer exists, or is no longer served."""
        self.vanished = False
        """Whether a response says that the object is gone, but the watch does not show it yet."""
        self.is_confirmed = False
        """
        Whether the API has shown the newest state, e.g. in response to a PATCH.

        Until then, the known state can be older than what the previous process has written: if the
        API server is behind, or if the last PATCH of that process has come late.
        """
        self.unconfirmed: tuple[bodies.RawBody, ...] = ()
        """The states that the writes with unknown results make of the object."""
        self.last_list = 0
        """The number of the last list of the informer that has shown the object."""
        self.name: tuple[str | None, str] | None = None
        """The namespace and the name, if `identify` has set them."""
        self.cycle: cycles.Cycle | None = None
        """The current handling cycle; None if no cycle is known in this process."""
        self.slowdown: feedbackloops.Slowdown | None = None
        """What slows the handlers down, if they change the object by themselves."""
        self.feedback: feedbackloops.Feedback | None = None
        """The state after the last patch of event handlers, if they have patched the object."""
        self.unsent: patches.Patch | None = None
        """The patch of event handlers that is or was sent without a response."""
        self.held: decisions.Hold | None = None
        """Why the handlers were not called for the last state, as the log says."""
        self.throttler: throttlers.Throttler | None = None
        """The next delay, if the object is throttled after errors of Kopf or of the API server."""
        self.companions: Companions | None = None
        """The daemons and timers of the object, if there are any."""
        self.reconcilers: Reconcilers | None = None
        """The reconciling handlers of the object, if there are any."""
        self.memo: Any = None
        """The memo of the object; None until a handler needs the memo."""

    def __repr__(self) -> str:
        return f'<Item {self.uid} of {self.resource}: {self.phase.name}>'

    @property
    def resource(self) -> references.Resource:
        return self.source.resource

    @property
    def handlers(self) -> registries.ResourceHandlers:
        return self.source.handlers

    @property
    def is_patient(self) -> bool:
        """
        Whether the object is only reconciled. In a congestion, its writes would wait anyway.
        """
        served = self.source.handlers
        return bool(served.reconciling) and not (
            self.gone or served.watching or served.changing or served.spawning)

    @property
    def is_deferrable(self) -> bool:
        """
        Whether the object can wait in an overload. Raw events and the ends of objects cannot.
        """
        return not (self.gone or self.source.handlers.watching)

    # The phase.

    @property
    def is_at_work(self) -> bool:
        return self.phase in AT_WORK

    def enter(self, phase: Phase) -> None:
        """
        Change the phase.

        :raises RuntimeError: if the transition is not legal.
        """
        current = self.phase
        if phase is not current:
            if phase not in current.successors:
                raise RuntimeError(f"{self!r} cannot go on to {phase.name}.")
            self.phase = phase

    def wake_up(self) -> None:
        """Queue the item, though the object has not changed."""
        if not self.gone:
            self.inbox.remind()
            self.source.schedule(
                self, urgent=self.cycle is not None or self.reconcilers is None or (
                    not self.reconcilers.is_resync))

    # The object.

    def resume(self) -> None:
        """Note that the object is resumed, or that no resuming handlers are for the object."""
        self.initial = False

    def notice(self) -> None:
        self.noticed = True

    def note_deletion(self) -> None:
        """Note that the object is gone."""
        self.gone = True

    def vanish(self) -> None:
        """
        Note that a response says that the object is gone: no handler is called for it any more.

        Its end is reported as soon as the watch shows it.
        """
        self.vanished = True

    def see(self, number: int) -> None:
        """Note that the list with this number shows the object."""
        self.last_list = number

    def identify(self, raw: bodies.RawBody | None) -> None:
        """Set the name, or forget the name, which is only needed during the processing."""
        self.name = None if raw is None else get_name(raw)

    # The states of the object.

    def offer(self, raw: bodies.RawBody) -> bool:
        """Take a state from the watch; return whether the state is new."""
        inbox = self.inbox
        now = asyncio.get_running_loop().time() if inbox.is_expecting else 0.0
        is_new = inbox.offer(raw, now=now)
        if is_new:
            self.vanished = False
        return is_new

    def accept(self, raw: bodies.RawBody) -> bool:
        """
        Take the response to an own write; false if a newer state is known.

        A cycle can have begun with an outdated state. So if there is one, only the response to a
        write of this cycle shows that nobody else has written.
        """
        now = asyncio.get_running_loop().time()
        is_newest = self.inbox.accept(raw, patience=now + self.source.consistency_timeout)
        if self.cycle is None:
            self.confirm()
        if is_newest:
            self.show(raw)
            if raw['metadata'].get('deletionTimestamp') and not raw['metadata'].get('finalizers'):
                self.vanish()  # a late watch can still bring the former state, of this version
        return is_newest

    @contextlib.contextmanager
    def attempting(self, *made: bodies.RawBody) -> Iterator[None]:
        """
        Note that a PATCH is sent in this block, and which states its parts make of the object.

        The result is known if the PATCH succeeds or has a conflict. But if the response to an
        earlier attempt was lost, the conflict can be one with that attempt.
        """
        former = self.unconfirmed
        self.unconfirmed = (*former, *(state for state in made if state not in former))
        try:
            yield
        except errors.APIConflictError as e:
            if e.earlier is None:
                self.unconfirmed = former
            raise
        self.unconfirmed = ()

    def confirm(self) -> None:
        """Note that the API has shown the newest state."""
        self.is_confirmed = True

    def take_over(self, raw: bodies.RawBody) -> None:
        """Take the response to a write of a daemon or a timer; if it has news, queue the item."""
        inbox = self.inbox
        has_news = inbox.has_pending or inbox.version != bodies.parse_version(raw)
        is_newest = self.accept(raw)
        if has_news:
            if is_newest:
                inbox.put(raw)
            self.source.schedule(self)

    def show(self, raw: bodies.RawBody, packed: bytes | None = None) -> None:
        """Show a new state to the daemons, timers, and indices, and update the kept state."""
        if self.companions is not None or self.inbox.is_keeping:
            # If the kept state were older than the handled one, it would be handled again.
            self.inbox.keep(raw, packed)
            if packed is None:
                self.source.pack_later(self)
        if self.companions is not None:
            self.companions.show(raw)
        if self.source.handlers.indexing:
            self.source.index(self, raw)

    def recall(self) -> bodies.RawBody | None:
        """Return the kept state, which is the newest known one; None if none is kept."""
        return self.inbox.recall()

    @property
    def basis(self) -> bodies.RawBody | None:
        """The state that the cycle is based on; None if none is kept."""
        return (self.throttler and self.throttler.basis) or self.recall()

    @property
    def is_indexed(self) -> bool:
        """Whether the newest known state is in the indices, or there are none of its kind."""
        return not self.source.handlers.indexing or not self.source.is_indexing(self)

    def drop(self) -> None:
        """Forget the kept state, unless event handlers, daemons, or reconcilers can need it."""
        if not self.source.handlers.watching and self.companions is None and (
                self.reconcilers is None):
            self.inbox.drop()

    # The processing of the object.

    def get_cycle(self) -> cycles.Cycle:
        assert self.cycle is not None
        return self.cycle

    def proceed(self, cycle: cycles.Cycle | None) -> None:
        """Replace the cycle with its next value, or with None when the cycle has ended."""
        self.cycle = cycle

    def slow_down(self, slowdown: feedbackloops.Slowdown | None) -> None:
        """Set what slows the handlers down, or None if nothing does."""
        self.slowdown = slowdown

    def note_feedback(self, feedback: feedbackloops.Feedback) -> None:
        """Note the state after a patch of event handlers: they are also called for this state."""
        self.feedback = feedback

    def note_unsent(self, patch: patches.Patch | None) -> None:
        """Note which patch of event handlers must be sent, also again if an error comes."""
        self.unsent = patch

    def hold(self, step: decisions.Hold, logger: Any) -> None:
        """Note why the handlers are not called, and log the reason if it is news."""
        if self.held is None or self.held.because != step.because:
            is_wanted = isinstance(step, decisions.Pause | decisions.Protect)
            (logger.info if is_wanted else logger.error)(step.because)
        self.held = step

    def go_on(self, logger: Any) -> None:
        """Note that the handlers can be called again, and log the end of a pause."""
        if isinstance(self.held, decisions.Pause):
            logger.info("The object is not paused any more.")
        self.held = None

    def accompany(self, companions: Companions | None) -> None:
        """Set the daemons and timers, or None if the object needs none."""
        self.companions = companions

    def engage(self, member: Reconcilers) -> None:
        """Set the reconciling handlers."""
        self.reconcilers = member

    def back_off(self) -> throttlers.Throttler:
        """Get the throttler, after an error."""
        self.throttler = self.throttler or throttlers.Throttler()
        # The inbox replaces this state when it shows newer ones to event handlers meanwhile.
        self.throttler.note_basis(None if self.is_confirmed else self.recall())
        return self.throttler

    def recover(self) -> None:
        """End the throttling, if there is one, after a success."""
        self.throttler = None

    def remember(self, memo: Any) -> None:
        self.memo = memo

    @property
    def is_engaged(self) -> bool:
        """Whether the object has a cycle, daemons, timers, reconcilers, or is slowed down."""
        return (self.cycle is not None or self.throttler is not None or self.slowdown is not None
                or self.companions is not None or self.reconcilers is not None)


def get_name(body: bodies.RawBody) -> tuple[str | None, str]:
    return body['metadata'].get('namespace'), body['metadata']['name']
