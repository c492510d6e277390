"""
Dry runs: an operator on a sandbox over a cluster, in virtual time, until it rests.
"""
import contextvars
import datetime
from collections.abc import Collection
from typing import Any

from kopf._core.engines import activities
from kopf._kits.planning import attribution
from kopf._kits.sandbox import faults, requests
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.overlays import Difference
from kopf._kits.sandbox.storage import Change, Key
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import clients, processes, runs, snapshots

handlers_var: contextvars.ContextVar[Collection[str] | None] = contextvars.ContextVar(
    'handlers_var', default=None)
"""In the API server: who is behind the request that is served."""


async def _do_nothing(client: clients.Client) -> None:
    pass


class DryRun(runs.Run):
    """One run of an operator. Afterwards, there are the ``differences``, and who wants them."""

    def __init__(self, setup: runs.Setup, upstream: Upstream, *, horizon: float) -> None:
        super().__init__(setup, upstream=upstream)
        self.differences: list[Difference] = []
        self.handlers: dict[tuple[Resource, Key], dict[str, None]] = {}
        """By the objects: the handlers that have written to them."""
        self.attribution = attribution.Attribution()
        self._upstream = upstream
        self._horizon = horizon

    def rehearse(self) -> None:
        self.play(_do_nothing)

    async def open(self) -> None:
        await self.start(_observer=self.attribution)

    def conclude(self) -> None:
        self.differences = [
            difference for difference in self._upstream.changes()
            if difference.kind.plural not in snapshots.IGNORED_RESOURCES]

    async def wait_rest(self) -> None:
        await super().wait_rest()

    def meet(self, target: requests.Target) -> faults.Fault | None:
        near = processes.connection.get()
        sender = None if near is None else near.sender
        handlers_var.set(() if sender is None else attribution.find_handlers(sender))
        return None

    def answer(self, target: requests.Target) -> faults.Fault | None:
        return None

    def hear(self, change: Change) -> None:
        if self._upstream.is_speaking:
            return
        if change.resource[1] not in snapshots.IGNORED_RESOURCES:
            self._latest = self.loop.time()
            known = self.handlers.setdefault((change.resource, change.new.key), {})
            known.update(dict.fromkeys(handlers_var.get() or ()))
