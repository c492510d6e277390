"""
Memberships: the participation of an operator in one peering object.

At first, a member writes its own record. Only then, it judges the records of the others. In this
order, of two operators that start at the same time, at least one sees the other.

Then, the member renews its record until it leaves. If the record could not be renewed for its
lifetime, it has expired for the others, and they may have taken over. So, the member pauses its own
operator until the record is renewed.

A member that takes over waits for a moment: until the peers of lower priorities write into their
records that they have finished what was under way.
"""
import asyncio
import contextlib
import enum
import logging
import math
import random
from collections.abc import Callable, Collection

from kopf._cogs.aiokits import alarms, clocks, tasks, timeouts
from kopf._cogs.clients import api, errors, listing, patching, streaks
from kopf._cogs.structs import bodies, references
from kopf._core.engines.peering import judging, records

logger = logging.getLogger('kopf._core.engines.peering')

RENEWAL = (0.4, 0.6)
"""
When to renew the record, as fractions of its lifetime.

It is a random moment in this range, so that the requests of many operators are spread in time.
"""

PATIENCE = 0.2
"""How long one attempt to renew the record can take, as a fraction of its lifetime."""

MIN_INTERVAL = 1.0
"""
How long (seconds) to wait before the own record is written again after others have removed it.

It is also the minimal timeout (seconds) of a request.
"""

STALLED = 0.5
"""If a watch does not show a write for longer than this (seconds), it counts as stalled."""


class Standing(enum.Enum):
    """The state of an operator in a peering."""

    UNKNOWN = enum.auto()
    """It is not known yet whether the peering object exists, or who the others are."""

    ABSENT = enum.auto()
    """The peering object does not exist, or there are no permissions to use it."""

    ACTIVE = enum.auto()
    """No living peer has a higher or the same priority."""

    YIELDING = enum.auto()
    """Some living peers have a higher priority."""

    CLASHING = enum.auto()
    """Some living peers have the same priority, and none has a higher one."""

    LOST = enum.auto()
    """The own record could not be renewed in time: for the others, it has expired."""


PAUSED = frozenset({Standing.YIELDING, Standing.CLASHING, Standing.LOST})
"""The states in which the operator must be paused."""


class Membership:
    """
    The participation of an operator in one peering object.

    The states of the object come by `see` and `miss`. The own record is renewed by a
    background task until `leave`.
    """

    def __init__(
            self,
            namespace: references.Namespace,
            standing: Standing = Standing.UNKNOWN,
            *,
            client: api.Client,
            clock: clocks.Clock,
            resource: references.Resource,
            identity: str,
            on_change: Callable[[], None],
            on_end: Callable[[asyncio.Task[None]], None] = lambda _: None,
            is_idle: Callable[[], bool] = lambda: True,
            on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Join the peering.

        ``on_change`` is called when `standing` has changed. ``on_end`` is called with the task of
        the membership when that has ended; it fails only if no credentials are left, or by a bug.
        ``is_idle`` returns whether no handlers are under way; when that changes, call `judge`.
        ``on_stall`` is called when the watch does not bring the states of the object any more.
        """
        self.standing = standing
        self.resource = resource
        self.namespace = namespace
        settings = self._settings = client.settings
        self.name = settings.peering.name
        self._client = client
        self._clock = clock
        self._identity = identity
        self._on_change = on_change
        self._is_idle = is_idle
        self._on_stall = on_stall
        self._fed: bodies.Version = None
        self._answered: bodies.Version = None
        self._title = repr(self.name) + (f' in {namespace!r}' if namespace is not None else '')
        self._streak = streaks.Streak(
            f"Keep-alive in {self._title}", settings=settings, logger=logger)
        self._roster: judging.Roster = {}
        self._present = False
        self._version: bodies.Version = None
        self._renewed: float | None = None
        """The monotonic time when the last successful renewal was begun."""
        self._written = False
        """Whether the own record may exist."""
        self._due = asyncio.Event()
        self._leaving = asyncio.Event()
        self._forbidden = False
        self._waking = alarms.Alarm(lambda _: self.judge())
        self._verdict = judging.Verdict()
        self._paused: bool | None = None
        """The field ``paused`` of the own record, as the API server has confirmed it."""
        self._said: bool | None = None
        """
        The field ``paused`` of the own record, as it was sent last, maybe without a response yet.
        """
        self._free_since: float | None = None
        """Since when no living peer has a higher or the same priority; monotonic."""
        self._renewing = alarms.Alarm(lambda _: self._due.set())
        """When to write the own record again, as somebody has removed it; not too often."""
        self._task = asyncio.get_running_loop().create_task(
            self._keep_alive(), name=f"keep-alive in {self._title}")
        self._task.add_done_callback(on_end)

    def see(self, raw: bodies.RawBody, *, live: bool, restored: bool = False) -> None:
        """
        Take a state of the peering object.

        ``live`` is whether the state comes from an uninterrupted watch, not from a list.
        ``restored`` is whether the cluster has been restored from a backup: then, resource versions
        can go back.
        """
        version = self._fed = bodies.parse_version(raw)
        self._see(raw, version, live=live, restored=restored)

    def _see(
            self, raw: bodies.RawBody, version: int | str | None, *, live: bool, restored: bool,
    ) -> None:
        if not restored and self._present and not bodies.is_newer(version, self._version):
            return
        self._version = version
        found, self._present = not self._present, True
        peers = records.parse_peers(raw.get('status'))
        own = peers.pop(self._identity, None)
        self._roster = judging.observe(
            self._roster, peers, now=self._clock.now(), live=live and not found)
        if found:
            self._due.set()
        elif self._renewed is not None and own is None:
            self._renewing.set(self._clock.mono() + MIN_INTERVAL)
        self.judge()

    @property
    def expires_at(self) -> float:
        """When (monotonic time) the operator must be paused unless the own record is renewed."""
        return self._renewed + self._lifetime if (
            self._renewed is not None and self.standing is Standing.ACTIVE) else math.inf

    def confirm(self) -> None:
        """Check whether the own record has expired, though the timer for that is late."""
        if self._clock.mono() >= self.expires_at:
            self.judge()

    def miss(self) -> None:
        """Note that the peering object does not exist."""
        self._present = False
        self._version = self._renewed = None
        self._roster = {}
        self._paused = self._said = self._fed = self._answered = None
        self.judge()

    def _forbid(self) -> None:
        """Act as if the object did not exist: there are no permissions to use it."""
        if not self._forbidden:
            self._forbidden = True
            logger.warning(f"There is no permission to list, watch, and patch {self.resource} "
                           f"{self._title}: other operators cannot be known.")
        self.miss()

    async def leave(self, deadline: float, *, is_released: bool = True) -> None:
        """
        Remove the own record, so that the others need not wait until it expires.

        Unless ``is_released``, the record stays, but is not renewed any more. The deadline is a
        time of the event loop. Errors are logged, not raised.
        """
        self._leaving.set()
        self._due.set()
        self._waking.cancel()
        self._renewing.cancel()
        # A renewal under way must not come after the removal.
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait([self._task], timeout=max(0.0, left / 2))
        await tasks.cancel([self._task])
        if not self._written or not self._present or not is_released:
            return
        try:
            async with timeouts.timeout_at(deadline):
                await self._patch({self._identity: None}, retry=True)
        except Exception as e:
            logger.warning(f"The record in the peering {self._title} is left to expire: {e!r}")
        else:
            self._log(f"Keep-alive in {self._title}: left.")

    @property
    def _lifetime(self) -> float:
        return self._settings.peering.lifetime

    @property
    def _timeout(self) -> float:
        return max(MIN_INTERVAL, self._lifetime * PATIENCE)

    async def _keep_alive(self) -> None:
        while not self._leaving.is_set():
            self.judge()  # some records can have expired by now
            self._due.clear()
            if not self._present:
                await self._due.wait()
                continue
            try:
                pause = await self._renew()
            except errors.APIError as e:
                pause = min(self._streak.fail(e), self._lifetime * PATIENCE)
                await timeouts.wait(self._leaving, pause)
            else:
                await timeouts.wait(self._due, pause)

    async def _renew(self) -> float:
        """
        Write the own record, and remove the expired ones; return the pause (seconds) until next.
        """
        begun = self._clock.now()
        if self._answered is not None and self._renewed is not None and (
                begun.mono > self._renewed + STALLED and
                bodies.is_newer(self._answered, self._fed)):
            self._log(f"The watch-stream of the peering {self._title} is stalled.")
            self._on_stall()
        live = self._renewed is not None and begun.mono < self._renewed + self._lifetime
        dead = () if self._renewed is None or not live else judging.find_dead(
            self._roster, seen=self._renewed)
        own = records.Peer(
            identity=self._identity, priority=self._settings.peering.priority,
            lifetime=self._settings.peering.lifetime, lastseen=begun.wall,
            paused=self._get_paused())
        record = own.as_record()
        if self._paused is not None:
            record.setdefault('paused', None)
        self._written, self._said = True, own.paused
        try:
            newest = await self._exchange(record, dead)
            if newest is None:
                await self._verify_absence()
        except errors.APIForbiddenError:
            # The denial can last for a moment only. If the others were forgotten because of it, a
            # paused operator would resume beside them.
            if live or any(peer.until > begun.mono for peer in self._roster.values()):
                raise
            self._forbid()
            return self._lifetime
        self._streak.end()
        if newest is None:
            self._log(f"Keep-alive in {self._title}: not found.")
            self.miss()
            return self._lifetime
        self._log(f"Keep-alive in {self._title}: ok.")
        self._forbidden = False
        self._renewed, self._paused = begun.mono, own.paused
        self._answered = bodies.parse_version(newest)
        self._see(newest, self._answered, live=live, restored=False)
        self.judge()
        elapsed = self._clock.mono() - begun.mono
        return max(0.0, self._lifetime * random.uniform(*RENEWAL) - elapsed)

    async def _exchange(
            self, record: dict[str, object], dead: Collection[str],
    ) -> bodies.RawBody | None:
        """Write the own record, and remove the dead ones unless the object has changed."""
        if dead:
            with contextlib.suppress(errors.APIConflictError):  # their peers can have come back
                return await self._patch(
                    {**dict.fromkeys(dead), self._identity: record}, version=self._version)
        return await self._patch({self._identity: record})

    async def _patch(
            self,
            changes: dict[str, object],
            *,
            version: bodies.Version = None,
            retry: bool = False,
    ) -> bodies.RawBody | None:
        meta = {} if version is None else {'metadata': {'resourceVersion': str(version)}}
        return await patching.patch(
            self._client, resource=self.resource, namespace=self.namespace, name=self.name,
            payload={**meta, 'status': changes}, retry=retry, timeout=self._timeout,
            subresource='status' if 'status' in self.resource.subresources else None)

    async def _verify_absence(self) -> None:
        """
        Verify by the list that the peering object does not exist.

        HTTP 404 to a patch alone does not mean that: while a CRD is changing, the API server also
        responds so for existing objects. If the others were forgotten because of it, a paused
        operator would resume beside them.

        :raises errors.APINotFoundError: if the object is in the list, or the list is also HTTP 404.
        :raises errors.APIError: for all other errors of the API.
        """
        raw = await self._client.request(
            'GET', patching.get_list_path(self.resource, self.namespace),
            params={'fieldSelector': f'metadata.name={self.name}'},
            retry=False, timeout=self._timeout, parsed=False)
        _, found = listing.parse_list(raw, self.resource)
        if any(found):
            raise errors.APINotFoundError(
                "The API denies that the object is there, though it lists the object.", status=404)

    def judge(self) -> None:
        """Update `standing` as of now, and set the timer for when it can change by itself."""
        if self._leaving.is_set():
            return
        self._waking.cancel()
        now = self._clock.mono()
        verdict = self._verdict = judging.judge(
            self._roster, now=now, priority=self._settings.peering.priority)
        previous, self.standing = self.standing, self._get_standing(verdict, now)
        end = None if self._renewed is None else self._renewed + self._lifetime
        ends = [verdict.until, end, self._get_yielding_end(now)]
        until = min((t for t in ends if t is not None and t > now), default=None)
        if until is not None:
            self._waking.set(until)
        if self.standing is not previous:
            if self.standing is Standing.LOST:
                self._client.reset_writes()  # they must not arrive when others have taken over
            self._explain(previous, verdict)
            self._on_change()
        if self._renewed is not None and self._get_paused() is not self._said:
            self._due.set()

    def _get_standing(self, verdict: judging.Verdict, now: float) -> Standing:
        if not self._present:
            return Standing.ABSENT
        if self._renewed is None:
            return self.standing  # the own record must be written first; see the module's docstring
        if now >= self._renewed + self._lifetime:
            self._free_since = None
            return Standing.LOST
        if verdict.paused:
            self._free_since = None
            return Standing.YIELDING if verdict.masters else Standing.CLASHING
        if self._free_since is None:
            self._free_since = now
        if self.standing in (Standing.ACTIVE, Standing.ABSENT):
            return Standing.ACTIVE
        if self._paused is not None or self._get_yielding_end(now) is not None:
            # Go on waiting: until the own record says that this operator is not paused, and until
            # the peers of lower priorities have finished.
            return self.standing
        return Standing.ACTIVE

    def _get_yielding_end(self, now: float) -> float | None:
        if self._free_since is None or self.standing is Standing.ACTIVE:
            return None
        return judging.get_yielding_end(
            self._roster, priority=self._settings.peering.priority, since=self._free_since,
            patience=self._lifetime, now=now)

    def _get_paused(self) -> bool | None:
        """The field ``paused`` as the own record should have it; see `records.Peer`."""
        return self._is_idle() if self._verdict.paused else None

    def _explain(self, previous: Standing, verdict: judging.Verdict) -> None:
        match self.standing:
            case Standing.YIELDING:
                logger.info(f"Pausing operations in favour of {[*verdict.masters]}.")
            case Standing.CLASHING:
                rivals = [*verdict.rivals]
                logger.warning(f"Possibly conflicting operators with the same priority: {rivals}.")
                logger.warning(
                    f"Pausing all operators, including self ({self._identity}). Give them "
                    f"different priorities, e.g. by --priority.")
            case Standing.LOST:
                logger.warning(
                    f"Pausing operations: the record in the peering {self._title} could not be "
                    f"renewed for {self._lifetime} seconds, others may have taken over.")
            case Standing.ACTIVE if previous is Standing.LOST:
                logger.info("Resuming operations after the pause. The peering is reached again.")
            case Standing.ACTIVE if previous in PAUSED:
                logger.info("Resuming operations after the pause. Conflicting operators "
                            "are gone.")

    def _log(self, message: str) -> None:
        if not self._settings.peering.stealth:
            logger.debug(message)
