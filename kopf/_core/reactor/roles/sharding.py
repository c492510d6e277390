"""
The sharding of an operator: it handles the objects of the shards that it holds.

The thread that keeps the Leases acquires and loses shards at any time. Here, the works of the
shards begin and end accordingly. To release a shard, its works end first; then, the thread gives
the shard away. A shard that comes back waits until its former works have ended.
"""
import asyncio
import contextvars
import logging
import random
from collections.abc import Collection, Coroutine, Mapping

from kopf._cogs.aiokits import clocks, tasks, tenures
from kopf._cogs.clients import outposts, vaults
from kopf._cogs.configs import configuration
from kopf._core.engines import indexing
from kopf._core.engines.peering import records
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.sharding import holdings, participations, partitions, rosters
from kopf._core.path import queueing, saving
from kopf._core.reactor.roles import coordination, divisions, leadership, shardworks

logger = logging.getLogger('kopf._core.engines.sharding')


class Sharding(divisions.Division):
    """The sharding as the operator's event loop sees it. The operator begins with no shards."""

    def __init__(
            self,
            *,
            env: saving.Environment,
            vault: vaults.Vault,
            hub: Hub,
            indexers: indexing.OperatorIndexers,
            identity: str | None,
            parts: Collection[coordination.Standby],
    ) -> None:
        """
        Make the instance when the credentials are known. The settings must have a count of shards.

        ``parts`` work only in one replica: the one that holds the first shard. They begin as
        standbys.

        :raises SettingsError: if the settings contradict each other, or if there is no namespace.
        """
        settings = env.settings
        verify(settings)
        self._group = make_group(settings, identity=identity, namespace=leadership.find_namespace(
            settings, vault.select_all()))
        super().__init__(
            env, hub=hub, indexers=indexers,
            partition=partitions.Partition(self._group.count, settings.sharding.by))
        self._env, self._hub, self._indexers = env, hub, indexers
        self._pool = queueing.WorkerPool()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._ending: dict[holdings.Grant, tuple[shardworks.Shard, asyncio.Task[None]]] = {}
        """The works that are ending, or whose shards are not given away yet."""
        self._own = holdings.Holdings(tenures.Tenure(clocks.choose(tenures.read_clock)))
        self._parts = parts
        self._first: shardworks.Shard | None = None
        """The works of the first shard, if it is held: then, the parts have taken over."""
        self._outpost = outposts.Outpost(
            name='kopf-sharding', settings=settings, vault=vault,
            assign=lambda client: participations.Participation(
                client, group=self._group, settings=settings.leadership, own=self._own,
                on_change=self._outpost.notify, get_busy=lambda: frozenset(
                    shard for shard, item in list(self.held.items()) if item.is_busy)),
            on_change=self._changed.set, on_end=self._own.tenure.end)
        self._outpost.start()

    @property
    def ending(self) -> Collection[shardworks.Shard]:
        return [item for item, _ in self._ending.values()]

    @property
    def share(self) -> float:
        return len(self.held) / self._group.count

    def describe(self) -> Mapping[str, str]:
        return {'shards': f'{len(self._own.grants)} of {self._group.count}'}

    async def settle(self) -> None:
        """Wait until the first share of the shards is known."""
        await self._settled.wait()

    async def run(self) -> None:
        """
        Begin and end the works of the shards as these come and go, until cancelled.

        :raises Exception: a bug of the thread that keeps the Leases.
        """
        while True:
            self._changed.clear()
            self._outpost.check()
            self._adjust()
            if self._own.is_settled:
                self._settled.set()
            await self._changed.wait()

    def _adjust(self) -> None:
        for grant, (item, task) in list(self._ending.items()):
            if not self._own.covers(grant):
                item.confirm()
            if task.done():
                task.result()
                if not self._own.covers(grant):
                    del self._ending[grant]
        lost, released, gained = [], [], []
        for shard, item in list(self.held.items()):
            if not self._own.covers(item.grant):
                lost.append(shard)
                self._end(item, item.lose())
            elif shard in self._own.leaving:
                released.append(shard)
                self._end(item, self._release(item))
        busy = {grant.shard for grant in self._ending}
        for shard, grant in self._own.grants.items():
            if shard in self.held or shard in busy:
                continue
            if shard in self._own.leaving:
                self._surrender(grant)
            else:
                gained.append(shard)
                self.include(contextvars.copy_context().run(
                    shardworks.Shard, self._env, grant, own=self._own, hub=self._hub,
                    pool=self._pool, indexers=self._indexers,
                    await_indexing=self.indices.wait_indexed))
        self._lead()
        total = f"{len(self.held)} of {self._group.count} shards are held now."
        if lost:
            logger.warning(f"Lost the shards {_join(lost)}; {total}")
            self._env.client.reset_writes()
        if released:
            logger.info(f"Releasing the shards {_join(released)}; {total}")
        if gained:
            logger.info(f"Gained the shards {_join(gained)}; {total}")

    def _lead(self) -> None:
        """Let the parts take over and stand by, as the first shard comes and goes."""
        first = self.held.get(0)
        if first is not self._first:
            self._first = first
            for part in self._parts:
                if first is None:
                    part.stand_by()
                else:
                    part.take_over()

    def _end(self, item: shardworks.Shard, work: Coroutine[None, None, None]) -> None:
        self.exclude(item.grant)
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        self._ending[item.grant] = item, task

    async def _release(self, item: shardworks.Shard) -> None:
        await item.release(self._env.settings.sharding.handover_timeout)
        self._surrender(item.grant)

    def _surrender(self, grant: holdings.Grant) -> None:
        """Give the shard away: all work in it has ended."""
        self._outpost.call(lambda: self._own.surrendered.put_nowait(grant))

    async def stop(self, deadline: float) -> None:
        await tasks.gather(super().stop(deadline), *[
            _hurry(item, task, self._env.settings.queueing.exit_timeout)
            for item, task in self._ending.values()])
        await self.stop_indexing(asyncio.get_running_loop().time())

    async def leave(self, deadline: float, *, is_released: bool) -> None:
        await self._outpost.stop(release_by=deadline if is_released else None)
        await tasks.cancel([task for _, task in self._ending.values()])


async def _hurry(item: shardworks.Shard, ending: asyncio.Task[None], patience: float) -> None:
    """Wait for works that are ending already, but not longer than ``patience`` (seconds)."""
    await asyncio.wait([ending], timeout=patience)
    if not ending.done():
        await item.finish(0)


def make_group(
        settings: configuration.OperatorSettings, *, identity: str | None, namespace: str,
) -> rosters.Group:
    """Describe the replicas, and this one, with a unique identity."""
    own, leadership = settings.sharding, settings.leadership
    assert own.count is not None
    name = identity if identity is not None else records.make_identity()
    return rosters.Group(
        name=own.name, count=own.count, by=own.by if isinstance(own.by, str) else 'custom',
        namespace=namespace,
        me=f'{name}/{random.getrandbits(32):08x}',  # replicas can have the same $POD_ID
        duration=int(leadership.lease_duration), deadline=leadership.renew_deadline)


def verify(settings: configuration.OperatorSettings) -> None:
    """
    Check that the settings do not contradict each other.

    :raises SettingsError: if they do.
    """
    own = settings.sharding
    if settings.leadership.name is not None:
        raise configuration.SettingsError(
            "Sharding and leader election exclude each other: omit either --shards "
            "(settings.sharding.count), or --leader-elect (settings.leadership.name).")
    if leadership.has_peering(settings):
        raise configuration.SettingsError(
            "Sharding and peering exclude each other: omit either --shards "
            "(settings.sharding.count), or --peering, --priority, --dev (settings.peering).")
    if not isinstance(own.count, int) or own.count < 1:
        raise configuration.SettingsError(
            f"settings.sharding.count must be a whole number from 1 on, or None: not "
            f"{own.count!r}.")
    if own.by not in ('uid', 'own-uid', 'namespace') and not callable(own.by):
        raise configuration.SettingsError(
            f"settings.sharding.by must be 'uid', 'own-uid', 'namespace', or a function: "
            f"not {own.by!r}.")
    leadership.verify_durations(settings.leadership)


def _join(shards: Collection[int]) -> str:
    return ', '.join(map(str, sorted(shards)))
