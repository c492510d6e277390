"""
Renewals: keep a Lease in time, by the clock of its tenure, and tell what fails.
"""
import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kopf._cogs.aiokits import clocks, tenures, timeouts
from kopf._cogs.clients import api, errors, leasing
from kopf._cogs.structs import credentials

T = TypeVar('T')


class Renewal:
    """
    The renewal of one Lease, and what else is attempted with Leases beside it.

    A failure is logged once, until that attempt succeeds or fails for another reason.
    """

    def __init__(
            self,
            client: api.Client,
            *,
            namespace: str,
            deadline: float,
            tenure: tenures.Tenure,
            verbs: str,
            quiet: tuple[type[errors.APIError], ...],
            logger: logging.Logger,
    ) -> None:
        """
        ``deadline`` is for how long (seconds) the tenure lasts after a renewal. ``verbs`` are what
        the operator must be allowed to do with Leases. ``quiet`` are failures that need no log: the
        next attempt shows what others have done.
        """
        super().__init__()
        self.client = leasing.LeaseClient(client, namespace=namespace, deadline=deadline)
        self.failures: dict[str, str] = {}
        """The latest failures that were logged, by what was tried; until the next success."""
        self._begun = 0.0
        """The monotonic time when the latest renewal was begun."""
        self._deadline = deadline
        self._tenure = tenure
        self._verbs = verbs
        self._quiet = quiet
        self._logger = logger

    @property
    def now(self) -> clocks.Moment:
        return clocks.Moment(self._tenure.now(), datetime.datetime.now(datetime.UTC))

    async def attempt(self, key: str, complaint: str, work: Awaitable[T]) -> T | None:
        """Do something; return its result, or None. ``complaint`` begins what is logged then."""
        try:
            result = await work
        except self._quiet:
            return None
        except errors.APIForbiddenError as e:
            self.fail(key, complaint, self.client.explain(e, verbs=self._verbs))
        except (errors.APIError, credentials.LoginError) as e:
            self.fail(key, complaint, str(e) or repr(e))
        else:
            self.failures.pop(key, None)
            return result
        return None

    def fail(self, key: str, complaint: str, reason: str) -> None:
        if self.failures.get(key) != reason:
            self._logger.warning(f"{complaint}{reason}")
        self.failures[key] = reason

    def explain_loss(self, key: str) -> str:
        """Tell for how long there was no renewal, and the latest failure, if there was any."""
        reason = self.failures.get(key)
        return f"{self._deadline:g} seconds" + (f", {reason}" if reason is not None else "")

    def note(self, sent: clocks.Moment, *, anew: bool = False) -> bool:
        """
        Note a successful renewal; return whether a new term begins with it, e.g. ``anew``.

        The time before the request counts: for the others, the Lease was changed after that.
        """
        self._begun = sent.mono
        return self._tenure.renew(sent.mono + self._deadline, anew=anew)

    async def keep(
            self, renew: Callable[[], Awaitable[Any]], *, get_pause: Callable[[], float],
            on_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Renew again and again with these pauses (seconds), until the term has ended.

        A pause is counted from the last request: a slow API server leaves no time to wait longer.
        """
        while self._tenure.term is not None:
            pause = max(0.0, self._begun + get_pause() - self._tenure.now())
            await asyncio.sleep(min(pause, self._tenure.left))
            if self._tenure.term is not None:
                self._begun = self._tenure.now()
                try:
                    async with timeouts.timeout(self._tenure.left):
                        await renew()
                except TimeoutError:
                    on_timeout()
