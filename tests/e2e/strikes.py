"""
Strikes: signals that hit an operator at one of its requests to the API, which go through a proxy.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal

from aiohttp import web

from tests.e2e.operators import Operator
from tests.e2e.proxy import Proxy, abort, is_watch

Moment = Literal['before', 'after']
"""Before the request gets to the API; or after that, but before its answer comes back."""


class Strike:
    """Hits the operator at its n-th request of those that count, once."""

    def __init__(
            self,
            step: int,
            moment: Moment,
            signum: signal.Signals,
            *,
            does_count: Callable[[web.Request], bool],
    ) -> None:
        super().__init__()
        self.step = step
        self.moment = moment
        self.signum = signum
        self.does_count = does_count
        self.operator: Operator | None = None
        self.request: web.Request | None = None
        self.time = 0.0
        self._count = 0
        self._lock = threading.Lock()
        self._is_called_off = False

    async def act(self, request: web.Request, proxy: Proxy) -> web.StreamResponse:
        """Be in the place of the requests which do count."""
        self._count += 1
        if self._count != self.step:
            return await proxy.pass_through(request)
        if self.moment == 'before':
            self._hit(request)
            return await proxy.pass_through(request)
        if is_watch(request):
            async with proxy.forward(request):
                self._hit(request)
            return await proxy.pass_through(request)
        response = await proxy.pass_through(request)
        self._hit(request)
        return response

    def _hit(self, request: web.Request) -> None:
        with self._lock:
            if self._is_called_off:
                return
            assert self.operator is not None
            self.request = request
            self.time = time.time()
            if self.signum == signal.SIGKILL:
                self.operator.kill()
                abort(request)
                raise asyncio.CancelledError
            self.operator.send(self.signum)

    def call_off(self) -> bool:
        """Do not hit any more; false if it is too late."""
        with self._lock:
            self._is_called_off = self.request is None
        return self._is_called_off

    def __str__(self) -> str:
        return f"{self.signum.name} {self.moment} request #{self.step}: {self.request}"
