"""
The vault: all credentials that an operator has, and how it gets new ones.
"""
import asyncio
import datetime
import random
from collections.abc import Awaitable, Callable, Mapping

from kopf._cogs.structs import credentials

LoginFn = Callable[[], Awaitable[Mapping[str, credentials.Credentials]]]


class Vault:
    """
    The credentials by the ids of the login handlers that they came from.

    Of those not expired, one with the highest priority is chosen, a random one of several. When
    none is left, all are retrieved anew by ``login``: once, however many requests wait for it.
    Credentials that the API has rejected are remembered, and ignored if they come again.
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
        self.waiting_since: float | None = None
        """Since when new credentials are waited for, in the time of the event loop; or None."""
        self._items: dict[str, credentials.Credentials] = {}
        self._invalid: set[credentials.Credentials] = set()
        self._lock = asyncio.Lock()
        self.populate(items or {})

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(self._items)})"

    def populate(self, items: Mapping[str, credentials.Credentials]) -> None:
        """Add the credentials, except for those that are known to be rejected."""
        self._items.update({
            key: item for key, item in items.items() if item not in self._invalid
        })

    def select(self) -> credentials.Credentials | None:
        """The credentials to be used now, if there are any."""
        now = datetime.datetime.now(datetime.UTC)
        self._items = {key: item for key, item in self._items.items() if not item.is_expired(now)}
        top = max((item.priority for item in self._items.values()), default=0)
        best = [item for item in self._items.values() if item.priority == top]
        return random.choice(best) if best else None

    def invalidate(self, rejected: credentials.Credentials) -> None:
        """Never use these credentials again: the API does not accept them."""
        self._invalid.add(rejected)
        self._items = {key: item for key, item in self._items.items() if item != rejected}

    async def obtain(self) -> credentials.Credentials:
        """
        The credentials to be used now, after a new login if needed.

        Raises `LoginError` if there are still none; or whatever the login raises.
        """
        chosen = self.select()
        if chosen is None and self.login is not None:
            async with self._lock:
                chosen = self.select()
                if chosen is None:
                    self.waiting_since = asyncio.get_running_loop().time()
                    try:
                        self.populate(await self.login())
                    finally:
                        self.waiting_since = None
                    chosen = self.select()
        if chosen is None and self._invalid:
            raise credentials.LoginError("The API rejects the credentials; there are no others.")
        if chosen is None:
            raise credentials.LoginError("There are no valid credentials for the API.")
        return chosen
