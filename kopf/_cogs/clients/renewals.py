"""
Renewals: keep a Lease in time, by the clock of its tenure, and tell what fails.
"""
import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kopf._cogs.aiokits import clocks, tenures, timeouts
from kopf._cogs.clients import errors, leasing
from kopf._cogs.structs import credentials

T = TypeVar('T')


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Renewal:
    """
    The renewal of one Lease, and what else is attempted with Leases beside it.

    A failure is logged once, until that attempt succeeds or fails for another reason.
    """
    client: leasing.LeaseClient
    tenure: tenures.Tenure
    deadline: float
    """For how long (seconds) the tenure lasts after a renewal."""
    verbs: str
    """What the operator must be allowed to do with Leases."""
    quiet: tuple[type[errors.APIError], ...]
    """The failures that need no log: the next attempt shows what others have done."""
    logger: logging.Logger
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    """The latest failures that were logged, by what was tried; until the next success."""
    _begun: float = 0.0
    """The monotonic time when the latest renewal was begun."""

    @property
    def now(self) -> clocks.Moment:
        return clocks.Moment(self.tenure.now(), datetime.datetime.now(datetime.UTC))

    async def attempt(self, key: str, complaint: str, work: Awaitable[T]) -> T | None:
        """Do something; return its result, or None. ``complaint`` begins what is logged then."""
        try:
            result = await work
        except self.quiet:
            return None
        except errors.APIForbiddenError as e:
            self.fail(key, complaint, self.client.explain(e, verbs=self.verbs))
        except (errors.APIError, credentials.LoginError) as e:
            self.fail(key, complaint, str(e) or repr(e))
        else:
            self.failures.pop(key, None)
            return result
        return None

    def fail(self, key: str, complaint: str, reason: str) -> None:
        if self.failures.get(key) != reason:
            self.logger.warning(f"{complaint}{reason}")
        self.failures[key] = reason

    def explain_loss(self, key: str) -> str:
        """Tell for how long there was no renewal, and the latest failure, if there was any."""
        reason = self.failures.get(key)
        return f"{self.deadline:g} seconds" + (f", {reason}" if reason is not None else "")

    def note(self, sent: clocks.Moment, *, anew: bool = False) -> bool:
        """
        Note a successful renewal; return whether a new term begins with it, e.g. ``anew``.

        The time before the request counts: for the others, the Lease was changed after that.
        """
        self._begun = sent.mono
        return self.tenure.renew(sent.mono + self.deadline, anew=anew)

    async def keep(
            self, renew: Callable[[], Awaitable[Any]], *, get_pause: Callable[[], float],
            on_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Renew again and again with these pauses (seconds), until the term has ended. After each
        success, ``renew`` must `note` it.

        A pause is counted from the last request: a slow API server leaves no time to wait longer.
        """
        while self.tenure.term is not None:
            pause = max(0.0, self._begun + get_pause() - self.tenure.now())
            # A hundredth later, it has surely ended: floats can be too coarse for a shorter sleep.
            await asyncio.sleep(min(pause, self.tenure.left + 0.01))
            if self.tenure.term is not None:
                self._begun = self.tenure.now()
                try:
                    async with timeouts.timeout(self.tenure.left):
                        await renew()
                except TimeoutError:
                    on_timeout()
