"""
Shards that are held, each with the works for its objects.

The works begin when the shard is acquired. If the shard is released, they end like an operator that
exits; if it is lost, like an operator that loses its Lease. The clock is checked at all writes.
"""
import asyncio
import dataclasses

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors
from kopf._core.engines import indexing
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.sharding import holdings
from kopf._core.intents import stopping
from kopf._core.path import queueing, saving, switches, turns
from kopf._core.reactor.roles import works

WRITING_TIME = 2.0
"""How long (seconds) the outcomes can be written after the time of the handlers."""


class Shard(works.Works, api.Tenure):
    """
    The works of one shard while it is held, and the permission to write about its objects.

    These works put their objects only into the sharded indices. `divisions` puts the objects of all
    shards into the complete indices.
    """

    def __init__(
            self,
            env: saving.Environment,
            grant: holdings.Grant,
            *,
            own: holdings.Holdings,
            hub: Hub,
            pool: queueing.WorkerPool,
            indexers: indexing.OperatorIndexers,
            await_indexing: turns.AwaitIndexing,
    ) -> None:
        self.grant = grant
        self._own = own
        self._is_lost = False
        client = env.client.unfenced()
        client.fence_writes(self)
        super().__init__(
            dataclasses.replace(env, client=client), switch=switches.Switch(confirm=self.confirm),
            hub=hub, indexers=indexers, fills=lambda handler: handler.sharded,
            await_indexing=await_indexing, pool=pool)

    @property
    def term(self) -> int | None:
        return self.grant.term if self._own.covers(self.grant) else None

    def verify(self, term: int | None) -> None:
        """
        Check by the clock that the shard is held.

        :raises errors.NotLeadingError: if it is not.
        """
        if term is None or not self._own.covers(self.grant):
            raise errors.NotLeadingError(
                f"Nothing is written: the operator does not hold the shard {self.grant.shard} "
                f"any more.")

    def confirm(self) -> None:
        """Stop handling at once if the shard is lost by the clock, even if nobody has noticed."""
        if not self._is_lost and not self._own.covers(self.grant):
            self._is_lost = True
            self.stand_by()

    async def finish(self, patience: float) -> None:
        """End all work within that time (seconds), then interrupt it."""
        await self.stop(
            stopping.DaemonStoppingReason.OPERATOR_PAUSING, _get_deadline(patience),
            patience=patience)

    async def release(self, patience: float) -> None:
        """End all work as `finish` does, and also wait for all daemons, however long it takes."""
        await self.finish(patience)
        await self._retire()

    async def lose(self) -> None:
        """End all work at once, and wait for what cannot be interrupted; nothing is written."""
        self.confirm()
        deadline = _get_deadline(0)
        await tasks.gather(
            self.queue.rest(),
            self.spawner.stop(stopping.DaemonStoppingReason.OPERATOR_PAUSING, deadline))
        await self.queue.stop(deadline, [])
        await self._retire()  # if the shard is gained again, nothing must run twice

    async def _retire(self) -> None:
        await self.spawner.rest()
        for informer in self.informers:
            informer.retire()


def _get_deadline(patience: float) -> float:
    return asyncio.get_running_loop().time() + patience + WRITING_TIME
