"""
Outages: a common limit on the rate of retried requests while the API server fails.

Each request has its own backoffs, but thousands of objects can have a request each. All together,
they would overload an API server that is just recovering.

Each resource has a limit of its own: e.g. if the webhook of one resource is broken, the requests
for other resources go on.
"""
import asyncio
import random
import re

from kopf._cogs.aiokits import timeouts
from kopf._cogs.helpers import ratelimits

BURST = 10
"""How many requests are made without this limit, so that a few requests keep their own backoffs."""

INTERVAL = 1.0
"""How many seconds (or up to 30% more) are between all further requests for one resource."""

_KIND = re.compile(r'(/(?:api|apis/[^/?]+)/[^/?]+)/(?:namespaces/[^/?]+/)?([^/?]+)')


class Outages:
    """
    The current outages of one client, by resources. It is false if there are none, i.e. usually.
    """

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._outages)

    def begin(self, path: str) -> None:
        """Begin an outage: a request has failed so that other requests probably fail as well."""
        self._outages.setdefault(_get_kind(path), _Outage())

    def end(self, path: str) -> None:
        """End the outage: a request was answered. All waiting requests go on."""
        outage = self._outages.pop(_get_kind(path), None)
        if outage is not None:
            outage.ended.set()

    def end_all(self) -> None:
        while self._outages:
            self._outages.popitem()[1].ended.set()

    async def wait(self, path: str) -> None:
        """Wait until the request may be made by the limit, or until the outage ends."""
        outage = self._outages.get(_get_kind(path))
        if outage is not None:
            await outage.wait()


class _Outage:

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._turns = asyncio.Lock()  # the waiting requests come in turn; cancelled ones leave
        self._bucket = ratelimits.TokenBucket(
            burst=BURST, period=INTERVAL, now=asyncio.get_running_loop().time())

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._turns.locked() and self._bucket.take(loop.time()):
            return
        async with self._turns:
            pause = self._bucket.get_wait(loop.time()) * random.uniform(1.0, 1.3)
            await timeouts.wait(self.ended, pause)
            self._bucket.empty(loop.time())


def _get_kind(path: str) -> str:
    """Get the resource from the path, without the namespace and the name."""
    found = _KIND.match(path)
    return f'{found[1]}/{found[2]}' if found else ''
