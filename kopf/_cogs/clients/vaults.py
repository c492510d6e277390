"""
The vault: all credentials of an operator, and the logins that retrieve new ones.
"""
import asyncio
import contextlib
import datetime
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from kopf._cogs.structs import credentials

logger = logging.getLogger(__name__)

LoginFn = Callable[[], Awaitable[Mapping[str, credentials.Credentials]]]
ConnectedFn = Callable[[credentials.Credentials], None]

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""
The pauses (seconds) before the next logins if their credentials are rejected: a minute in total.
"""

REFRESH_INTERVAL = 30.0
"""The minimal time (seconds) between logins that only look for newer credentials."""

MAX_REJECTED = 100
"""
How many rejected credentials are remembered at most.

The limit is for credential plugins that issue a new token at each login, which is rejected each
time.
"""


class Vault:
    """
    The credentials, by the ids of the login handlers that have returned them.

    Of the credentials that are not expired, those with the highest priority are used, a random one
    if there are several. When no credentials are left, ``login`` retrieves all credentials again:
    once, however many requests wait for them.

    Credentials that the API server rejects (HTTP 401) are put aside. They are ignored if a login
    returns them again, so there is no endless loop of logins:

    * If the API server has never accepted any credentials, and the next login returns no other
      ones, then they are wrong: `LoginError` is raised at once.
    * If it has, its authentication may be broken only temporarily. So, ``login`` is repeated after
      the `PAUSES`. If it returns nothing new, the rejected credentials are tried once more each
      time. The first success ends that. After the last pause, `LoginError` is raised, also by
      `guard`.

    Credentials that expire unused, e.g. while the API server is unreachable, do not count as
    rejected.
    """

    def __init__(
            self,
            items: Mapping[str, credentials.Credentials] | None = None,
            /,
            *,
            login: LoginFn | None = None,
    ) -> None:
        self.login = login
        self.advice: str | None = None
        self.proven: bool = False
        """Whether the API server has ever accepted credentials of this vault."""
        self.on_trial: bool = True
        """Whether the API server has accepted nothing since the latest login or rejection."""
        self.waiting_since: float | None = None
        """
        Since when requests wait for new credentials (a time of the event loop); None if they do
        not.

        Unsuccessful logins in between do not reset it.
        """
        self._items: dict[str, credentials.Credentials] = {}
        self._rejected: dict[credentials.Credentials, str] = {}
        """The rejected credentials with their keys; those rejected last are last."""
        self._best: Sequence[credentials.Credentials] = ()
        self._best_until: datetime.datetime | None = None
        self._setbacks = -1
        """
        The number of consecutive logins whose credentials were rejected.

        It begins with -1, so that there is one more login without a pause before the first success.
        """
        self._lost_since: float | None = None
        self._lock = asyncio.Lock()
        self._refreshed = -math.inf
        self._reason: str | None = None
        """Why the latest credentials were unusable; None if the API server has rejected them."""
        self._expired: Sequence[datetime.datetime] = ()
        """When the credentials of the latest login have expired, if all of them had already."""
        self._connected: set[str] = set()
        self._on_connected: ConnectedFn | None = None
        self._is_guarded = False
        self._failed = asyncio.Event()
        self._failure = ''
        self.populate(items or {})

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(self._items)})"

    @property
    def is_empty(self) -> bool:
        """Whether there are no credentials."""
        return not self._items

    def log_in_by(self, login: LoginFn) -> None:
        """Set the function that returns credentials when these are needed."""
        self.login = login

    def advise(self, advice: str | None) -> None:
        """Set what to do if the API server does not answer, and never has."""
        self.advice = advice

    def follow(self, on_connected: ConnectedFn) -> None:
        """Call the function with the first credentials that each API server accepts."""
        self._on_connected = on_connected

    def populate(self, items: Mapping[str, credentials.Credentials]) -> None:
        """Add the credentials, except for those that are known or have been rejected."""
        self._items.update({
            key: item for key, item in items.items()
            if item not in self._rejected and item != self._items.get(key)})
        self._rank()

    def select(self) -> credentials.Credentials | None:
        """Choose the credentials to use now; None if there are no usable ones."""
        if self._best_until is not None and self._best_until <= datetime.datetime.now(datetime.UTC):
            self._rank()
        if not self._best:
            return None
        return self._best[0] if len(self._best) == 1 else random.choice(self._best)

    def select_all(self) -> Sequence[credentials.Credentials]:
        """Choose all credentials that `select` chooses from."""
        self._rank()
        return self._best

    def holds(self, item: credentials.Credentials) -> bool:
        """Whether the vault has this very instance."""
        return any(item is held for held in self._items.values())

    def invalidate(self, rejected: credentials.Credentials, reason: str | None = None) -> None:
        """
        Put aside the credentials: the API server has rejected them, or they are unusable, for the
        ``reason``.
        """
        self._reason = reason
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
        """Note that the API server has accepted the credentials."""
        if not self.holds(item):
            return  # the response is late: the credentials have been replaced in the meantime
        if self._setbacks > 0:
            logger.info("The API accepts the credentials again.")
        if item.server not in self._connected:
            self._connected.add(item.server)
            if self._on_connected is not None:
                self._on_connected(item)
        self.proven = True
        self.on_trial = False
        self._rejected.pop(item, None)
        self._setbacks = 0
        self._lost_since = None

    async def obtain(self) -> credentials.Credentials:
        """
        Get the credentials to use now; log in if there are no usable ones.

        :raises LoginError: if there are no usable credentials after the login.
        """
        chosen = self.select()
        if chosen is None:
            async with self._lock:
                chosen = self.select()
                if chosen is None:
                    chosen = await self._renew()
        return chosen

    async def refresh(self) -> None:
        """
        Log in again, as the present credentials can be outdated: e.g. the server has another CA.

        They remain if the login fails or returns the same ones.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self.login is not None and now >= self._refreshed + REFRESH_INTERVAL:
                self._refreshed = now
                with contextlib.suppress(credentials.LoginError):
                    self.populate(await self.login())

    async def guard(self) -> None:
        """
        Wait until the logins have failed for good.

        :raises LoginError: always, when that has happened.
        """
        self._is_guarded = True
        await self._failed.wait()
        raise credentials.LoginError(self._failure)

    async def _renew(self) -> credentials.Credentials:
        if self._is_guarded and self._failed.is_set():  # it is over
            raise credentials.LoginError(self._failure)
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
                    found = await self.login()
                    self.populate(found)
                    self._note_expiration(found.values())
                if not self._items and self.proven and self._setbacks > 0:
                    self._forgive()
                chosen = self.select()
                if chosen is not None:
                    self.on_trial = True
                    return chosen
                if not self.proven:
                    break
                self._setbacks = max(0, self._setbacks) + 1
            raise credentials.LoginError(self._explain())
        except credentials.LoginError as e:
            self._failure = str(e)
            self._failed.set()
            raise
        finally:
            self.waiting_since = None

    def _forgive(self) -> None:
        """
        Take back the rejected credentials, the latest ones of each key, to try them once more.
        """
        self._items = {key: item for item, key in self._rejected.items() if item.is_usable()}
        self._rank()

    def _note_expiration(self, found: Collection[credentials.Credentials]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        times = [item.expires for item in found if item.is_expired(now)]
        self._expired = [time for time in times if time is not None] if (
            len(times) == len(found)) else ()

    def _rank(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._items = {key: item for key, item in self._items.items() if not item.is_expired(now)}
        top = max((item.priority for item in self._items.values()), default=0)
        self._best = [item for item in self._items.values() if item.priority == top]
        self._best_until = min(
            (item.expires for item in self._best if item.expires is not None), default=None)

    def _explain(self) -> str:
        """Say why there are no credentials."""
        if self._expired:
            expired, now = (f'{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC' for time in (
                max(self._expired), datetime.datetime.now(datetime.UTC)))
            return (f"The login has returned only credentials that had expired before: at "
                    f"{expired}, but it is {now} by the clock here. Check that clock, and where "
                    f"the credentials come from.")
        if not self._rejected:
            return "There are no valid credentials for the API: no login handler has returned any."
        return self._reason or (
            "The API rejects the credentials; there are no others. "
            "Check them, and whether they are for this cluster.")
