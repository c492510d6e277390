"""
The election of a leader by a Lease, in the event loop of the simulation and by its clock.

Reality has a thread for this, so that handlers cannot delay the renewals. Here, nothing blocks the
event loop, and the seed decides when the election continues.
"""
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, outposts, vaults
from kopf._cogs.configs import configuration
from tests.simulation.guarantees import Violation

LEASE = 'simulation'
LEASES = ('coordination.k8s.io', 'leases')


class Outpost:
    """Does the same as the class of this name in `outposts`, without a thread."""

    def __init__(
            self, *, name: str, assign: Callable[[api.Client], outposts.Duty],
            settings: configuration.OperatorSettings, vault: vaults.Vault,
            on_change: Callable[[], None], on_end: Callable[[], None],
    ) -> None:
        self.notify = on_change
        self._name = name
        self._assign = assign
        self._client = api.Client(credentials=vault, settings=settings)

    def start(self) -> None:
        self._duty = self._assign(self._client)
        self._task = asyncio.create_task(self._duty.run(), name=self._name)

    def check(self) -> None:
        if self._task.done():
            self._task.result()

    async def stop(self, *, release_by: float | None) -> None:
        await tasks.cancel([self._task])
        if release_by is not None:
            with contextlib.suppress(TimeoutError):
                left = release_by - asyncio.get_running_loop().time()
                async with asyncio.timeout(max(left, outposts.MIN_RELEASE_TIME)):
                    await self._duty.release()
        await self._client.close()


class Elections:
    """Hears of all Leases, calls, and writes, and raises `Violation`."""

    def __init__(self) -> None:
        self.leader: str | None = None
        """The holder of the Lease, by its name; None if it is released."""
        self._has_begun = False

    def hold(self, lease: Any) -> bool:
        """Take a new state of the Lease; return whether the leader is another one now."""
        holder = lease['spec'].get('holderIdentity') or None
        is_other = holder is not None and holder != self.leader
        if is_other:
            self._has_begun = False
        self.leader = holder or self.leader
        return is_other

    def act(self, name: str, what: str) -> None:
        """Note an act of a replica: after the first act of a leader, the others do nothing."""
        if name == self.leader:
            self._has_begun = True
        elif self._has_begun:
            raise Violation('one leader', f"{name} {what} in the term of {self.leader}")
