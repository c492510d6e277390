"""
Participations: keep the membership of this replica, and take and release shards as decided.

The membership is renewed independently of all else. In each round, the Leases are listed, then the
shards are taken or released, as `shares` decides.
"""
import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from kopf._cogs.aiokits import tasks, timeouts
from kopf._cogs.clients import api, errors, leasing, renewals
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, leases
from kopf._core.engines.sharding import holdings, rosters, shares

T = TypeVar('T')

logger = logging.getLogger('kopf._core.engines.sharding')

MAX_WRITES = 8
"""How many Leases are written at once."""

JITTER = 0.2
"""Each pause is multiplied with a random factor from 1 - JITTER to 1: replicas are not in step."""

RENEW, LIST = 'renew the membership', 'list the Leases'

VERBS = 'list, get, create, update, delete'
"""What an operator must be allowed to do with its Leases."""


class Participation:
    """
    The participation of this replica in the sharding.

    `run` goes on until it is cancelled. After that, `release` ends the membership. Both run in the
    event loop of the thread. The result is in the holdings, which other threads can read.
    """

    def __init__(
            self,
            client: api.Client,
            *,
            group: rosters.Group,
            settings: configuration.LeadershipSettings,
            own: holdings.Holdings,
            on_change: Callable[[], None],
            get_busy: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        """
        ``on_change`` is called when the holdings have changed. ``get_busy`` returns the shards with
        work under way; it is called in this thread.
        """
        deadline = settings.renew_deadline
        self._client = leasing.LeaseClient(client, namespace=group.namespace, deadline=deadline)
        self._renewal = renewals.Renewal(
            client=self._client, tenure=own.tenure, deadline=deadline, verbs=VERBS, logger=logger,
            quiet=(errors.APIConflictError, errors.APINotFoundError))
        self._group = group
        self._settings = settings
        self._own = own
        self._on_change = on_change
        self._get_busy = get_busy
        self._clock = own.tenure.now
        self._member: Mapping[str, Any] | None = None
        """The own Lease as it was written or read last."""
        self._seen: dict[str, leases.Sighting] = {}
        self._unlisted: dict[str, leases.Sighting] = {}
        """The Leases that have names of the sharding, but not its labels."""
        self._settled_at = 0.0
        """Until when other members are expected, if all start at once."""
        self._is_blocked = False

    async def run(self) -> None:
        """Be a member, and hold a fair share of the shards, until cancelled."""
        await self._join()
        self._settled_at = self._clock() + self._settings.retry_period
        logger.info(f"Joined the sharding {self._group.namespace}/{self._group.name} as "
                    f"{self._group.me!r}.")
        await tasks.gather(self._keep(), self._share(), self._surrender())

    async def release(self) -> None:
        """
        End the membership. After this, nothing may be written: others take the shards at once.

        Errors are logged: the membership expires in any case.
        """
        self._own.clear()
        self._own.tenure.end()
        if self._member is None:
            return
        try:
            await self._write_member('')
        except (errors.APIError, credentials.LoginError, TimeoutError) as e:
            logger.warning(f"Could not leave the sharding {self._group.name!r}, the membership is "
                           f"left to expire: {str(e) or repr(e)}")

    # The membership.

    async def _join(self) -> None:
        """Renew the membership until it is in force."""
        while self._own.tenure.term is None:
            await self._renew()
            if self._own.tenure.term is None:
                await asyncio.sleep(self._get_pause())

    async def _keep(self) -> None:
        """Renew the membership all the time; after a loss, join again."""
        while True:
            await self._renewal.keep(self._renew, get_pause=self._get_pause)
            self._own.clear()
            logger.warning(
                f"Lost all shards: the membership could not be renewed for "
                f"{self._renewal.explain_loss(RENEW)}. Nothing is written any more.")
            self._on_change()
            await self._join()

    async def _renew(self) -> None:
        sent = self._renewal.now
        if await self._attempt(RENEW, self._write_member(self._group.me)) is None:
            return
        if self._renewal.note(sent):
            self._own.clear()
            self._on_change()

    async def _write_member(self, holder: str) -> Mapping[str, Any]:
        """Write the own Lease, with this member as its holder, or nobody if the member leaves."""
        name = self._group.name_member(self._group.me)
        try:
            self._member = await self._put(self._member, name, holder, role='member')
        except (errors.APIConflictError, errors.APINotFoundError):
            # An earlier attempt has succeeded, but its response was lost; or the Lease was deleted.
            self._member = await self._client.get(name)
            self._member = await self._put(self._member, name, holder, role='member')
        return self._member

    # The shares.

    async def _share(self) -> None:
        """Look at the Leases, and take and release shards; again and again."""
        settings = self._settings
        while True:
            members = 1
            if self._own.tenure.term is not None:
                try:
                    async with timeouts.timeout(settings.lease_duration):
                        members = await self._look()
                except TimeoutError:
                    self._renewal.fail(LIST, self._make_complaint(LIST),
                                       "the API server has not responded in time")
            pause = self._vary(shares.get_pause(
                members, period=settings.retry_period, deadline=settings.renew_deadline,
                duration=settings.lease_duration))
            settling = self._settled_at - self._clock()
            # A hundredth later, it has surely passed: floats can be too coarse for a shorter sleep.
            await asyncio.sleep(min(pause, settling + 0.01) if settling > 0 else pause)

    async def _look(self) -> int:
        """Make a round; return the number of members."""
        group, term = self._group, self._own.tenure.term
        sent = self._clock()
        found = await self._attempt(LIST, self._client.find(label=rosters.LABEL, value=group.name))
        if found is None:
            return 1
        self._seen = dict(rosters.see(self._seen, found, group=group, now=self._clock()))
        view = rosters.assess(self._seen, group=group, now=sent)
        gone = [shard for shard in self._own.grants if view.holders[shard] != group.me]
        if gone:
            self._own.remove(gone)
            logger.warning(f"Lost shards to others, or their Leases were deleted: {gone}.")
            self._on_change()
        if await self._is_in_force(view, sent) and self._own.tenure.term == term is not None:
            await self._carry_out(shares.decide(
                view, me=group.me, held=self._own.grants, leaving=self._own.leaving,
                busy=self._get_busy(), is_settling=sent < self._settled_at), term)
            if min(view.members) == group.me:
                await tasks.for_each(self._delete, view.leftovers, limit=MAX_WRITES)
        return len(view.members)

    async def _is_in_force(self, view: rosters.View, now: float) -> bool:
        """Whether the own scheme is in force. If no living member has another one, set it."""
        group = self._group
        known = self._seen.get(group.name)
        scheme = '' if known is None else known.holder
        if rosters.is_scheme_settled(self._seen, group=group, view=view, now=now):
            self._is_blocked = False
            return True
        is_blocked = bool(view.others) or (
            known is not None and rosters.is_foreign(known, group=group, now=now))
        if scheme != group.scheme and is_blocked and not self._is_blocked:
            self._is_blocked = True
            logger.warning(
                f"Waiting until all replicas with other shards have exited: this one has "
                f"{group.count} shards by {group.by}; in force is {scheme!r}.")
        if scheme != group.scheme and not is_blocked:
            await self._attempt('set the scheme', self._put(
                self._find(group.name), group.name, group.scheme, role='scheme'))
        if scheme != group.scheme and self._own.grants:
            self._own.clear()
            logger.warning(f"Lost all shards: the scheme in force is {scheme!r} now.")
            self._on_change()
        return False

    async def _carry_out(self, plan: shares.Plan, term: int) -> None:
        if plan.release:
            self._own.leave(plan.release)
            self._on_change()
        acquire = functools.partial(self._acquire, term=term)
        try:
            await tasks.for_each(acquire, plan.acquire, limit=MAX_WRITES)
            await tasks.for_each(self._disown, plan.disown, limit=MAX_WRITES)
        finally:  # if it takes too long, the shards that are taken by then are handled
            is_first = not self._own.is_settled and (
                bool(plan.acquire) or self._clock() >= self._settled_at)
            if is_first:
                self._own.settle()
            if plan.acquire or is_first:
                self._on_change()

    async def _acquire(self, shard: int, *, term: int) -> None:
        if self._own.tenure.term == term and await self._write_shard(shard, self._group.me) and (
                self._own.tenure.term == term):
            self._own.add(holdings.Grant(shard, term))

    async def _disown(self, shard: int) -> None:
        await self._write_shard(shard, '')

    async def _surrender(self) -> None:
        """Give away the shards whose work has ended."""
        while True:
            grants = [await self._own.surrendered.get()]
            while not self._own.surrendered.empty():
                grants.append(self._own.surrendered.get_nowait())
            own = [grant.shard for grant in grants if self._own.covers(grant)]
            self._own.remove(own)
            # If that fails, the next round repeats it.
            await tasks.for_each(self._disown, own, limit=MAX_WRITES)
            self._on_change()

    async def _write_shard(self, shard: int, holder: str) -> bool:
        name = self._group.name_shard(shard)
        saved = await self._attempt('write the Leases of shards', self._put(
            self._find(name), name, holder, role='shard', shard=shard))
        if saved is not None:
            self._seen[name] = leases.Sighting(saved, self._clock())
        return saved is not None

    async def _delete(self, name: str) -> None:
        known = self._find(name)
        if known is not None:
            await self._attempt('delete Leases', self._client.delete(known))

    def _find(self, name: str) -> Mapping[str, Any] | None:
        """Find a Lease as it was seen last; None if there is none."""
        return self._seen[name].raw if name in self._seen else None

    # The requests.

    async def _put(
            self, known: Mapping[str, Any] | None, name: str, holder: str, *,
            role: str, shard: int | None = None,
    ) -> Mapping[str, Any]:
        make = functools.partial(
            rosters.make, name=name, holder=holder, role=role, shard=shard, group=self._group)
        try:
            return await self._client.put(known, make(known, now=self._renewal.now))
        except errors.APINotFoundError as e:
            if known is None:  # there is no such namespace, which is not quiet
                raise errors.APIClientError(str(e), status=404) from e
            raise
        except errors.APIConflictError:
            if known is not None or (known := await self._find_unlisted(name)) is None:
                raise
        return await self._client.put(known, make(known, now=self._renewal.now))

    async def _find_unlisted(self, name: str) -> Mapping[str, Any] | None:
        """Find a Lease without the labels of the sharding; None as long as it has a holder."""
        group, former = self._group, self._unlisted.pop(name, None)
        raw = await self._client.get(name)
        item = leases.see(former, raw, now=self._clock())
        if raw is None or item.labels.get(rosters.LABEL) == group.name:
            return None  # it has changed since the list
        if not rosters.is_foreign(item, group=group, now=self._clock()):
            return raw
        self._unlisted[name] = item
        if former is None:
            logger.warning(f"Waiting for the Lease {group.namespace}/{name}: it is not of the "
                           f"sharding, and {item.holder!r} holds it, e.g. as the leader.")
        return None

    async def _attempt(self, what: str, work: Awaitable[T]) -> T | None:
        return await self._renewal.attempt(what, self._make_complaint(what), work)

    def _make_complaint(self, what: str) -> str:
        return (f"Could not {what} of the sharding {self._group.namespace}/"
                f"{self._group.name}, and will try again: ")

    def _get_pause(self) -> float:
        return self._vary(self._settings.retry_period)

    def _vary(self, pause: float) -> float:
        return pause * (1 - JITTER * random.random())
