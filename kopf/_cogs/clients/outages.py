"""
Outages: the pace of requests about one kind of objects while none of them is properly answered.

Each request has its own backoffs, but there can be one for each of thousands of objects. An API
that is out, or that just tries to come up, should not be stormed by all of them. Kinds are apart:
one whose webhook is broken does not hold the others up.
"""
import asyncio
import collections
import random
import re

BURST = 10
"""How many tries are made without waiting, so that backoffs of single requests are kept."""

INTERVAL = 1.0
"""How many seconds (or a bit more) are between the next ones, of all requests about the kind."""

_KIND = re.compile(r'(/(?:api|apis/[^/?]+)/[^/?]+)/(?:namespaces/[^/?]+/)?([^/?]+)')


class Outages:
    """The outages as one client sees them; most of the time there are none, and this is false."""

    def __init__(self) -> None:
        super().__init__()
        self._outages: dict[str, _Outage] = {}

    def __bool__(self) -> bool:
        return bool(self._outages)

    def begin(self, path: str) -> None:
        """A request has failed in a way in which others are expected to fail, too."""
        self._outages.setdefault(_get_kind(path), _Outage())

    def end(self, path: str) -> None:
        """There is a proper answer: those who wait can go on."""
        outage = self._outages.pop(_get_kind(path), None)
        if outage is not None:
            outage.end()

    def end_all(self) -> None:
        while self._outages:
            self._outages.popitem()[1].end()

    async def wait_turn(self, path: str) -> None:
        """Wait until there may be another try, or until the outage is over."""
        outage = self._outages.get(_get_kind(path))
        if outage is not None:
            await outage.wait_turn()


class _Outage:

    def __init__(self) -> None:
        super().__init__()
        self._credit = float(BURST)
        self._counted = asyncio.get_running_loop().time()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._let_go()

    async def wait_turn(self) -> None:
        self._count()
        if self._credit >= 1 and not self._waiting:
            self._credit -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _count(self) -> None:
        now = asyncio.get_running_loop().time()
        self._credit = min(BURST, self._credit + (now - self._counted) / INTERVAL)
        self._counted = now

    def _schedule(self) -> None:
        if self._timer is None and self._waiting:
            pause = INTERVAL * max(0, 1 - self._credit) * random.uniform(1.0, 1.3)
            self._timer = asyncio.get_running_loop().call_later(pause, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._credit = 0.0
        self._counted = asyncio.get_running_loop().time()
        self._let_go()
        self._schedule()

    def _let_go(self) -> None:
        """The first one in line, if it has not left."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _get_kind(path: str) -> str:
    """What the path is about, whatever the namespace and the name."""
    found = _KIND.match(path)
    return f'{found[1]}/{found[2]}' if found else ''
