"""
Outages: the pace of requests while the API gives no proper answers to any of them.

Each request has its own backoffs, but there can be one for each of thousands of objects. An API
that is out, or that just tries to come up, should not be stormed by all of them.
"""
import asyncio
import collections
import random

BURST = 10
"""How many tries are made without waiting, so that backoffs of single requests are kept."""

INTERVAL = 1.0
"""How many seconds (or a bit more) are between the next ones, of all requests together."""


class Outage:
    """The outage of one API, as one client sees it; most of the time there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.ongoing = False
        self._credit = float(BURST)
        self._counted = 0.0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A request has failed in a way in which others are expected to fail, too."""
        self.ongoing = True

    def end(self) -> None:
        """There is a proper answer: those who wait can go on."""
        self.ongoing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._let_go()

    async def wait_turn(self) -> None:
        """Wait until there may be another try, or until the outage is over."""
        if not self.ongoing:
            return
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
        self._count()
        self._credit = max(0.0, self._credit - 1)
        self._let_go()
        self._schedule()

    def _let_go(self) -> None:
        """The first one in line, if it has not left."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
