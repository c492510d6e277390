"""
Candidacies: acquire one Lease, renew it, and release it, as `electing` decides.
"""
import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import Callable

from kopf._cogs.aiokits import clocks, tasks, tenures, timeouts
from kopf._cogs.clients import errors, leasing
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, leases
from kopf._core.engines.leadership import electing

logger = logging.getLogger('kopf._core.engines.leadership')

VERBS = 'get, watch, create, update'
"""What an operator must be allowed to do with its Lease."""


class Candidacy:
    """
    The participation of this replica in the election by one Lease.

    `run` acquires and renews the Lease until it is cancelled. After that, `release` gives the Lease
    away. Both are in the event loop of the election. What comes of it is in the tenure, which other
    threads can read.
    """

    def __init__(
            self,
            client: leasing.Client,
            *,
            candidate: electing.Candidate,
            settings: configuration.LeadershipSettings,
            tenure: tenures.Tenure,
            on_change: Callable[[], None],
            clock: Callable[[], float] = tenures.read_clock,
    ) -> None:
        """``on_change`` is called when a term of the tenure has begun or ended."""
        super().__init__()
        self._client = leasing.LeaseClient(
            client, namespace=candidate.namespace, deadline=settings.renew_deadline)
        self._candidate = candidate
        self._settings = settings
        self._tenure = tenure
        self._on_change = on_change
        self._clock = clock
        self._seen: leases.Sighting | None = None
        self._failure: str | None = None
        """The failure of the latest attempts that was logged; None after a success."""
        self._holder: str | None = None
        """The other replica that leads, as it was logged last."""
        self._freed = asyncio.Event()
        """Whether the Lease has become free since the last attempt to acquire it."""
        self._title = f"{candidate.namespace}/{candidate.name}"

    async def run(self) -> None:
        """Acquire the Lease, and renew it; after a loss, acquire it again; until cancelled."""
        while True:
            await self._acquire()
            reason = await self._renew()
            self._tenure.end()
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
                        step, period=self._settings.retry_period, now=self._clock(),
                        share=random.random())
                    with contextlib.suppress(TimeoutError):
                        async with timeouts.timeout(pause):
                            await self._freed.wait()
        finally:
            await tasks.cancel([following])

    async def _follow(self) -> None:
        """Notice when the Lease becomes free. If that fails, the next attempt notices it."""
        while True:
            try:
                async for raw in self._client.follow(self._candidate.name):
                    if not leases.Sighting(raw, self._clock()).holder:
                        self._freed.set()
            except errors.APIForbiddenError:
                return
            except (errors.APIError, credentials.LoginError) as e:
                logger.debug(f"Cannot watch the Lease {self._title}: {str(e) or repr(e)}")
            await asyncio.sleep(self._settings.retry_period)

    async def _renew(self) -> str:
        """Renew the Lease until it is lost; return why."""
        while True:
            await asyncio.sleep(min(self._settings.retry_period, self._tenure.left))
            if self._tenure.term is None:
                break
            try:
                async with timeouts.timeout(self._tenure.left):
                    step = await self._attempt()
            except TimeoutError:
                self._fail("the API server has not responded in time")
            else:
                if isinstance(step, electing.Wait):
                    return f"it is held by {step.holder!r}"
        deadline = self._settings.renew_deadline
        return f"it could not be renewed for {deadline:g} seconds" + (
            f", {self._failure}" if self._failure is not None else "")

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
        step = electing.release(self._seen, candidate=self._candidate, now=self._now())
        if step is not None:
            raw = await self._client.replace(step.body)
            self._seen = leases.see(self._seen, raw, now=self._clock())

    async def _attempt(self) -> electing.Step | None:
        """
        Try to acquire or to renew the Lease; return the last step, or None after an error.

        After a conflict, the last step is to read.
        """
        try:
            try:
                step = await self._advance(is_fresh=False)
            except (errors.APIConflictError, errors.APINotFoundError):
                step = electing.Read()  # others have changed or deleted the Lease
            if isinstance(step, electing.Read):
                await self._read()
                step = await self._advance(is_fresh=True)
        except errors.APIConflictError:
            return electing.Read()  # another replica was quicker
        except errors.APIForbiddenError as e:
            self._fail(self._client.explain(e, verbs=VERBS))
            return None
        except (errors.APIError, credentials.LoginError) as e:
            self._fail(str(e) or repr(e))
            return None
        self._failure = None
        if isinstance(step, electing.Wait) and step.holder != self._holder:
            self._holder = step.holder
            logger.info(f"Standing by: the Lease {self._title} is held by {step.holder!r}.")
        return step

    async def _advance(self, *, is_fresh: bool) -> electing.Step:
        """Carry out the next step, unless it is to read."""
        now = self._now()
        step = electing.decide(
            self._seen, candidate=self._candidate, now=now, is_fresh=is_fresh)
        if isinstance(step, electing.Read | electing.Wait):
            return step
        was_own = self._seen is not None and self._seen.holder == self._candidate.identity
        if isinstance(step, electing.Create):
            raw = await self._client.create(step.body)
        else:
            raw = await self._client.replace(step.body)
        # The time before the request counts: for the others, the Lease was changed after that.
        self._seen = leases.Sighting(raw, now.mono)
        until = now.mono + self._settings.renew_deadline
        if was_own and self._tenure.term is not None:
            self._tenure.prolong(until)
        else:
            self._tenure.begin(until)
            self._holder = None
            logger.info(f"Acquired the Lease {self._title} as {self._candidate.identity!r}.")
            self._on_change()
        return step

    async def _read(self) -> None:
        raw = await self._client.get(self._candidate.name)
        self._seen = leases.see(self._seen, raw, now=self._clock())

    def _fail(self, reason: str) -> None:
        """Log why the attempts fail, once until that changes."""
        if reason != self._failure:
            verb = "acquire" if self._tenure.term is None else "renew"
            logger.warning(
                f"Could not {verb} the Lease {self._title}, and will try again: {reason}")
        self._failure = reason

    def _now(self) -> clocks.Moment:
        return clocks.Moment(self._clock(), datetime.datetime.now(datetime.UTC))
