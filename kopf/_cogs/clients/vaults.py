"""
The vault: all credentials that an operator has, and how it gets new ones.
"""
import asyncio
import datetime
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kopf._cogs.structs import credentials

logger = logging.getLogger(__name__)

LoginFn = Callable[[], Awaitable[Mapping[str, credentials.Credentials]]]

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Before the next logins, in seconds, while what they bring is rejected: a minute altogether."""

MAX_REJECTED = 100
"""How many rejected credentials are remembered at most: there are new ones every few seconds."""


class Vault:
    """
    The credentials by the ids of the login handlers that they came from.

    Of those not expired, one with the highest priority is chosen, a random one of several. When
    none is left, all are retrieved anew by ``login``: once, however many requests wait for it.

    Credentials that the API rejects (401) are put aside, and ignored if a login brings them again:
    wrong ones end the operator at once, and there is no endless loop of logins. But an API errs,
    too: its own authentication can be out for a moment. So, once it has accepted anything, the
    operator has patience: it logs in again and again, after the `PAUSES`; if that brings nothing
    new, those put aside get one more chance each time. The first success ends this. If they stay
    invalid to the end of the last pause, it is over: `LoginError` is raised, and `guard` tells.
    Credentials that expire unused, e.g. while the API is not reachable, do not count as rejected.
    """

    def __init__(
            self,
            items: Mapping[str, credentials.Credentials] | None = None,
            /,
            *,
            login: LoginFn | None = None,
    ) -> None:
        super().__init__()
        self.login = login
        self.proven: bool = False
        """Whether the API has ever accepted anything from here."""
        self.on_trial: bool = True
        """Whether the API has accepted nothing since the latest login; `accept` tells of it."""
        self.waiting_since: float | None = None
        """Since when new credentials are waited for, in seconds of the event loop's time; None if
        they are not. It is counted from the last success, however many tries there were since."""
        self._items: dict[str, credentials.Credentials] = {}
        self._rejected: dict[credentials.Credentials, str] = {}  # with their keys, the latest last
        self._best: Sequence[credentials.Credentials] = ()
        self._best_until: datetime.datetime | None = None
        self._setbacks = -1  # rejections in a row; the first one before any success is for free
        self._lost_since: float | None = None
        self._lock = asyncio.Lock()
        self._failed = asyncio.Event()
        self._failure = ''
        self.populate(items or {})

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(self._items)})"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all, neither of use nor expired."""
        return not self._items

    def populate(self, items: Mapping[str, credentials.Credentials]) -> None:
        """Add the credentials, except for those that are known to be rejected."""
        self._items.update({
            key: item for key, item in items.items() if item not in self._rejected
        })
        self._rank()

    def select(self) -> credentials.Credentials | None:
        """The credentials to be used now, if there are any."""
        if self._best_until is not None and self._best_until <= _now():
            self._rank()
        if not self._best:
            return None
        return self._best[0] if len(self._best) == 1 else random.choice(self._best)

    def holds(self, item: credentials.Credentials) -> bool:
        """Whether this very item is there to be used."""
        return any(item is held for held in self._items.values())

    def invalidate(self, rejected: credentials.Credentials) -> None:
        """Do not use these credentials any more: the API does not accept them."""
        key = next((key for key, item in self._items.items() if item == rejected), '')
        self._rejected.pop(rejected, None)
        self._rejected[rejected] = key
        if len(self._rejected) > MAX_REJECTED:
            del self._rejected[next(iter(self._rejected))]
        self._items = {key: item for key, item in self._items.items() if item != rejected}
        self._rank()
        if self.on_trial and not self._best:
            self._setbacks += 1
        self.on_trial = True

    def accept(self, item: credentials.Credentials) -> None:
        """The API accepts these credentials."""
        if not self.holds(item):
            return  # an answer that is late
        if self._setbacks > 0:
            logger.info("The API accepts the credentials again.")
        self.proven = True
        self.on_trial = False
        self._rejected.pop(item, None)
        self._setbacks = 0
        self._lost_since = None

    async def obtain(self) -> credentials.Credentials:
        """
        The credentials to be used now, after a new login if needed.

        Raises `LoginError` if there are still none; or whatever the login raises.
        """
        chosen = self.select()
        if chosen is None:
            async with self._lock:
                chosen = self.select()
                if chosen is None:
                    chosen = await self._renew()
        return chosen

    async def guard(self) -> None:
        """Wait until there are no credentials, and will be none; then raise `LoginError`."""
        await self._failed.wait()
        raise credentials.LoginError(self._failure)

    async def _renew(self) -> credentials.Credentials:
        if self._lost_since is None:
            self._lost_since = asyncio.get_running_loop().time()
        self.waiting_since = self._lost_since
        try:
            while self._setbacks <= len(PAUSES):
                if self._setbacks > 0:
                    pause = PAUSES[self._setbacks - 1] * random.uniform(1.0, 1.2)
                    logger.warning(
                        f"There are no credentials that the API accepts. "
                        f"Logging in again in {pause:.1f} seconds.")
                    await asyncio.sleep(pause)
                if self.login is not None:
                    self.populate(await self.login())
                if not self._items and self.proven and self._setbacks > 0:
                    self._forgive()
                chosen = self.select()
                if chosen is not None:
                    self.on_trial = True
                    return chosen
                if not self.proven:
                    break
                self._setbacks = max(0, self._setbacks) + 1
            raise self._make_error()
        except credentials.LoginError as e:
            self._failure = str(e)
            self._failed.set()
            raise
        finally:
            self.waiting_since = None

    def _forgive(self) -> None:
        """Give one more chance to the latest ones of each key: the API could have been wrong."""
        self._items = {key: item for item, key in self._rejected.items() if item.is_usable()}
        self._rank()

    def _rank(self) -> None:
        now = _now()
        self._items = {key: item for key, item in self._items.items() if not item.is_expired(now)}
        top = max((item.priority for item in self._items.values()), default=0)
        self._best = [item for item in self._items.values() if item.priority == top]
        self._best_until = min(
            (item.expires for item in self._best if item.expires is not None), default=None)

    def _make_error(self) -> credentials.LoginError:
        if self._rejected:
            return credentials.LoginError(
                "The API rejects the credentials; there are no others. "
                "Check them, and whether they are for this cluster.")
        return credentials.LoginError(
            "There are no valid credentials for the API: no login handler has returned any.")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
