"""
Candidacies: acquire one Lease, renew it, and release it, as `electing` decides.
"""
import asyncio
import logging
import random
from collections.abc import Callable

from kopf._cogs.aiokits import tasks, tenures, timeouts
from kopf._cogs.clients import api, errors, renewals
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, leases
from kopf._core.engines.leadership import electing

logger = logging.getLogger('kopf._core.engines.leadership')

VERBS = 'get, watch, create, update'
"""What an operator must be allowed to do with its Lease."""

ATTEMPT = 'attempt'
"""All failures to acquire or to renew the Lease are of one kind."""


class Candidacy:
    """
    The participation of this replica in the election by one Lease.

    `run` acquires and renews the Lease until it is cancelled. After that, `release` gives the Lease
    away. Both are in the event loop of the election. What comes of it is in the tenure, which other
    threads can read.
    """

    def __init__(
            self,
            client: api.Client,
            *,
            candidate: electing.Candidate,
            settings: configuration.LeadershipSettings,
            tenure: tenures.Tenure,
            on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when a term of the tenure has begun or ended."""
        super().__init__()
        self._renewal = renewals.Renewal(
            client, namespace=candidate.namespace, deadline=settings.renew_deadline,
            tenure=tenure, verbs=VERBS, quiet=(errors.APIConflictError,), logger=logger)
        self._client = self._renewal.client
        self._candidate = candidate
        self._settings = settings
        self._tenure = tenure
        self._on_change = on_change
        self._seen: leases.Sighting | None = None
        self._holder: str | None = None
        """The other replica that leads, as it was logged last."""
        self._freed = asyncio.Event()
        """Whether the Lease has become free since the last attempt to acquire it."""
        self._title = f"{candidate.namespace}/{candidate.name}"

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
                step = await self._attempt()
                if self._tenure.term is None:
                    pause = electing.get_pause(
                        step, period=self._settings.retry_period, now=self._tenure.now(),
                        share=random.random())
                    await timeouts.wait(self._freed, pause)
        finally:
            await tasks.cancel([following])

    async def _follow(self) -> None:
        """Notice when the Lease becomes free. If that fails, the next attempt notices it."""
        while True:
            try:
                async for raw in self._client.follow(self._candidate.name):
                    if not leases.Sighting(raw, self._tenure.now()).holder:
                        self._freed.set()
            except errors.APIForbiddenError:
                return
            except (errors.APIError, credentials.LoginError) as e:
                logger.debug(f"Cannot watch the Lease {self._title}: {str(e) or repr(e)}")
            await asyncio.sleep(self._settings.retry_period)

    async def release(self) -> None:
        """
        Give the Lease away, if this replica has it. Nothing must be written after this.

        Errors are logged: the Lease expires in any case.
        """
        was_leading = self._tenure.term is not None
        self._tenure.end()
        if self._seen is None or self._seen.holder != self._candidate.identity:
            return
        try:
            try:
                await self._give_away()
            except errors.APIConflictError:  # an interrupted renewal has succeeded, or it is lost
                await self._read()
                await self._give_away()
        except (errors.APIError, credentials.LoginError, TimeoutError) as e:
            logger.warning(f"Could not release the Lease {self._title}, it is left to expire: "
                           f"{str(e) or repr(e)}")
        else:
            if was_leading:
                logger.info(f"Released the Lease {self._title}.")

    async def _give_away(self) -> None:
        assert self._seen is not None
        step = electing.release(self._seen, candidate=self._candidate, now=self._renewal.now)
        if step is not None:
            raw = await self._client.put(self._seen.raw, step.body)
            self._seen = leases.see(self._seen, raw, now=self._tenure.now())

    async def _attempt(self) -> electing.Step | None:
        """Try to acquire or to renew the Lease; return the last step, or None after an error."""
        step = await self._renewal.attempt(
            ATTEMPT, self._make_complaint(), self._take_steps())
        if isinstance(step, electing.Wait):
            self._tenure.end()
            if step.holder != self._holder:
                self._holder = step.holder
                logger.info(f"Standing by: the Lease {self._title} is held by {step.holder!r}.")
        return step

    def _make_complaint(self) -> str:
        verb = "acquire" if self._tenure.term is None else "renew"
        return f"Could not {verb} the Lease {self._title}, and will try again: "

    async def _take_steps(self) -> electing.Step:
        try:
            step = await self._advance(is_fresh=False)
        except (errors.APIConflictError, errors.APINotFoundError):
            step = electing.Read()  # others have changed or deleted the Lease
        if isinstance(step, electing.Read):
            await self._read()
            step = await self._advance(is_fresh=True)
        return step

    async def _advance(self, *, is_fresh: bool) -> electing.Step:
        """Carry out the next step, unless it is to read."""
        now = self._renewal.now
        step = electing.decide(
            self._seen, candidate=self._candidate, now=now, is_fresh=is_fresh)
        if self._seen is None or not isinstance(step, electing.Write):
            return step
        was_own = self._seen.holder == self._candidate.identity
        raw = await self._client.put(self._seen.raw, step.body)
        self._seen = leases.Sighting(raw, now.mono)
        if self._renewal.note(now, anew=not was_own):
            self._holder = None
            logger.info(f"Acquired the Lease {self._title} as {self._candidate.identity!r}.")
            self._on_change()
        return step

    async def _read(self) -> None:
        raw = await self._client.get(self._candidate.name)
        self._seen = leases.see(self._seen, raw, now=self._tenure.now())
