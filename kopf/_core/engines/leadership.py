"""
Leadership: the replicas of an operator elect the one that works, with a Lease of Kubernetes.

The algorithm is that of client-go (``tools/leaderelection``), so that an operator in Go with the
same Lease excludes this one, and is excluded by it. The replica in the Lease is the leader. It
renews the Lease all the time. The others take over when the Lease has not changed for its duration
by their own clocks. A leader that could not renew the Lease in time stops all writes before that.

All writes of the Lease are guarded by its resource version: of several replicas that decide the
same at the same time, one succeeds. A thread of its own keeps the Lease, as handlers can block the
event loop of the operator. The module guarantees that of all replicas whose requests arrive within
the time between the renewal deadline and the duration of the Lease, only one writes at a time.
"""
import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks, tasks, tenures, timeouts
from kopf._cogs.clients import api, errors, leasing, renewals
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, leases

logger = logging.getLogger('kopf._core.engines.leadership')

VERBS = 'get, watch, create, update'
"""What an operator must be allowed to do with its Lease."""

JITTER = 1.2
"""Each pause of a candidate is ``retry_period`` times a random factor, from 1 to 1 + JITTER."""

MIN_PAUSE = 0.05
"""The shortest pause (seconds) between two attempts."""

ATTEMPT = 'attempt'
"""All failures to acquire or to renew the Lease are of one kind."""


class Candidacy:
    """
    The participation of this replica in the election by one Lease.

    `run` acquires and renews the Lease until it is cancelled. After that, `release` gives the Lease
    away. Both run in the event loop of the election. The result is in the tenure, which other
    threads can read.
    """

    def __init__(
            self,
            client: api.Client,
            *,
            identity: str,
            namespace: str,
            name: str,
            settings: configuration.LeadershipSettings,
            tenure: tenures.Tenure,
            on_change: Callable[[], None],
    ) -> None:
        """
        The ``identity`` is the unique name of the replica; the other names are those of the Lease.

        ``on_change`` is called when a term of the tenure has begun or ended.
        """
        deadline = settings.renew_deadline
        self._client = leasing.LeaseClient(client, namespace=namespace, deadline=deadline)
        self._renewal = renewals.Renewal(
            client=self._client, tenure=tenure, deadline=deadline, verbs=VERBS, logger=logger,
            quiet=(errors.APIConflictError,))
        self._identity = identity
        self._namespace, self._name = namespace, name
        self._settings = settings
        self._tenure = tenure
        self._on_change = on_change
        self._seen = leases.Sighting(None, 0.0)
        self._holder: str | None = None
        """The other replica that leads, as it was logged last."""
        self._freed = asyncio.Event()
        """Whether the Lease has become free since the last attempt to acquire it."""
        self._title = f"{namespace}/{name}"

    async def run(self) -> None:
        """Acquire the Lease, and renew it; after a loss, acquire it again; until cancelled."""
        while True:
            await self._acquire()
            await self._renewal.keep(
                self._attempt, get_pause=lambda: self._settings.retry_period,
                on_timeout=lambda: self._renewal.fail(
                    ATTEMPT, self._make_complaint(), "the API server has not responded in time"))
            reason = f"it is held by {self._holder!r}" if self._holder is not None else (
                f"it could not be renewed for {self._renewal.explain_loss(ATTEMPT)}")
            logger.warning(f"Lost the Lease {self._title}: {reason}. Nothing is written any more.")
            self._on_change()

    async def _acquire(self) -> None:
        """
        Attempt to acquire the Lease: regularly, and as soon as it is free.

        client-go waits for the next regular attempt, which is up to 4.4 seconds by default.
        """
        following = asyncio.create_task(self._follow())
        try:
            while self._tenure.term is None:
                self._freed.clear()
                rival = await self._attempt()
                if self._tenure.term is None:
                    # The pauses vary, so that the replicas are not in step. But when the Lease of
                    # another replica expires, it is taken over without a further pause.
                    pause = self._settings.retry_period * (1 + JITTER * random.random())
                    if rival is not None:
                        pause = max(MIN_PAUSE, min(pause, rival.until - self._tenure.now()))
                    await timeouts.wait(self._freed, pause)
        finally:
            await tasks.cancel([following])

    async def _follow(self) -> None:
        """Notice when the Lease becomes free. If that fails, the next attempt notices it."""
        while True:
            try:
                async for raw in self._client.follow(self._name):
                    if not leases.Sighting(raw, self._tenure.now()).holder:
                        self._freed.set()
            except errors.APIForbiddenError:
                return
            except (errors.APIError, credentials.LoginError) as e:
                logger.debug(f"Cannot watch the Lease {self._title}: {str(e) or repr(e)}")
            await asyncio.sleep(self._settings.retry_period)

    async def release(self) -> None:
        """
        Give the Lease away, if this replica has it. After this, nothing may be written.

        Errors are logged: the Lease expires in any case.
        """
        was_leading = self._tenure.term is not None
        self._tenure.end()
        if not self._is_own:
            return
        try:
            try:
                await self._give_away()
            except errors.APIConflictError:  # a cut-off renewal has succeeded, or it is lost
                await self._read()
                if self._is_own:
                    await self._give_away()
        except (errors.APIError, credentials.LoginError, TimeoutError) as e:
            logger.warning(f"Could not release the Lease {self._title}, it is left to expire: "
                           f"{str(e) or repr(e)}")
        else:
            if was_leading:
                logger.info(f"Released the Lease {self._title}.")

    async def _give_away(self) -> None:
        """Leave the Lease without a holder, so that another replica can take it at once."""
        await self._put(self._renewal.now, holder='', duration=1,
                        transitions=self._seen.transitions)

    async def _attempt(self) -> leases.Sighting | None:
        """Try to acquire or to renew the Lease; return it if another replica leads."""
        rival = await self._renewal.attempt(ATTEMPT, self._make_complaint(), self._elect())
        if rival is not None:
            self._tenure.end()
            if rival.holder != self._holder:
                self._holder = rival.holder
                logger.info(f"Standing by: the Lease {self._title} is held by {rival.holder!r}.")
        return rival

    def _make_complaint(self) -> str:
        verb = "acquire" if self._tenure.term is None else "renew"
        return f"Could not {verb} the Lease {self._title}, and will try again: "

    async def _elect(self) -> leases.Sighting | None:
        """
        Acquire or renew the Lease; or return it if another replica leads, at least for now.

        This is ``tryAcquireOrRenew`` of client-go. A leader whose Lease has not expired renews it
        without reading: usually, nobody else has changed the Lease.
        """
        if self._is_own and self._is_valid:
            # Others can have changed or deleted the Lease.
            with contextlib.suppress(errors.APIConflictError, errors.APINotFoundError):
                await self._take()
                return None
        await self._read()
        if self._seen.holder and self._is_valid and not self._is_own:
            return self._seen
        await self._take()
        return None

    @property
    def _is_own(self) -> bool:
        return self._seen.holder == self._identity

    @property
    def _is_valid(self) -> bool:
        """Whether the Lease, as it was seen last, has not expired."""
        return self._tenure.now() < self._seen.until

    async def _take(self) -> None:
        """Create the Lease, or replace it if it has not changed. Then, this replica leads."""
        now, seen, was_own = self._renewal.now, self._seen, self._is_own
        raw = await self._put(
            now, holder=self._identity, duration=int(self._settings.lease_duration),
            transitions=seen.transitions + (not was_own and seen.raw is not None),
            acquired=seen.spec.get('acquireTime') if was_own else None)
        self._seen = leases.Sighting(raw, now.mono)
        if self._renewal.note(now, anew=not was_own):
            self._holder = None
            logger.info(f"Acquired the Lease {self._title} as {self._identity!r}.")
            self._on_change()

    async def _put(
            self, now: clocks.Moment, *,
            holder: str, duration: int, transitions: int, acquired: str | None = None,
    ) -> Mapping[str, Any]:
        return await self._client.put(self._seen.raw, leases.make(
            self._seen.raw, namespace=self._namespace, name=self._name, holder=holder,
            duration=duration, now=now.wall, transitions=transitions, acquired=acquired))

    async def _read(self) -> None:
        raw = await self._client.get(self._name)
        self._seen = leases.see(self._seen, raw, now=self._tenure.now())
