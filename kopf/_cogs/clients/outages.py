"""
Outages: a common limit on the rate of retried requests while the API server fails.

Each request has its own backoffs, but thousands of objects can have a request each. All together,
they would overload an API server that is just recovering.

Each resource has a limit of its own: e.g. if the webhook of one resource is broken, the requests
for other resources go on.
"""
import asyncio
import collections
import random
import re

from kopf._cogs.helpers import quotas

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
        super().__init__()
        self._outages: dict[str, _Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._outages)

    def begin(self, path: str) -> None:
        """Begin an outage: a request has failed so that other requests will probably fail, too."""
        self._outages.setdefault(_get_kind(path), _Outage())

    def end(self, path: str) -> None:
        """End the outage: a request was answered. All waiting requests go on."""
        outage = self._outages.pop(_get_kind(path), None)
        if outage is not None:
            outage.end()

    def end_all(self) -> None:
        while self._outages:
            self._outages.popitem()[1].end()

    async def wait(self, path: str) -> None:
        """Wait until the request may be made by the limit, or until the outage ends."""
        outage = self._outages.get(_get_kind(path))
        if outage is not None:
            await outage.wait()


class _Outage:

    def __init__(self) -> None:
        super().__init__()
        self._bucket = quotas.Bucket(
            burst=BURST, period=INTERVAL, now=asyncio.get_running_loop().time())
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._let_go()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting and self._bucket.take(loop.time()):
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        self._schedule()
        await waiter

    def _schedule(self) -> None:
        if self._timer is None and self._waiting:
            loop = asyncio.get_running_loop()
            pause = self._bucket.get_wait(loop.time()) * random.uniform(1.0, 1.3)
            self._timer = loop.call_later(pause, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._bucket.empty(asyncio.get_running_loop().time())
        self._let_go()
        self._schedule()

    def _let_go(self) -> None:
        """Let the first waiting request go on, except for cancelled ones."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def _get_kind(path: str) -> str:
    """Get the resource from the path, without the namespace and the name."""
    found = _KIND.match(path)
    return f'{found[1]}/{found[2]}' if found else ''
