"""
A small world of replicas that handle the objects of the shards which they hold, in virtual time.

The Leases are not a part of it: shards are granted and taken away by hand.
"""
import asyncio
import contextvars
import copy

from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.aiokits.tenures import Tenure
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.memos import Memo
from kopf._cogs.structs.references import Resource
from kopf._core.engines import indexing
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.engines.sharding import partitions
from kopf._core.engines.sharding.holdings import Grant, Holdings
from kopf._core.intents import registries
from kopf._core.path import queueing, saving
from kopf._core.reactor.roles import divisions, shardworks
from tests._core.reactor import worlds

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


class Partition(partitions.Partition):
    """Objects say by themselves where they belong; or all of them are in some namespace's shard."""

    def __init__(self, *, find_only=lambda namespace: None, is_by_metadata=True):
        super().__init__(8, 'uid')
        self.find_only = find_only
        self._is_by_metadata = is_by_metadata

    @property
    def is_by_metadata(self):
        return self._is_by_metadata

    def find(self, body):
        return int(body['metadata']['labels']['shard'])


class Client(worlds.Client):
    """A client that checks each write right before it is sent, and notes who writes."""

    def __init__(self, api, settings, who):
        super().__init__(api, settings)
        self.who = who
        self._tenure = None

    @property
    def is_limited(self):
        return self._tenure is not None

    def unfenced(self):
        return copy.copy(self)

    def fence_writes(self, tenure):
        self._tenure = tenure

    async def request(self, method, path, **kwargs):
        if method != 'GET':
            assert self._tenure is not None
            self._tenure.verify(self._tenure.term)
            self.api.writers.append((worlds.parse_path(path)[0], self.who))
        return await super().request(method, path, **kwargs)


class Replica:
    """One replica; it watches all objects."""

    def __init__(self, api, who, registry, *, lists=True):
        if not hasattr(api, 'writers'):
            api.writers = []
        self.api = api
        self.settings = OperatorSettings()
        self.settings.posting.enabled = False
        self.settings.execution.default_backoff = 1
        self.indexers = indexing.OperatorIndexers()
        self.indexers.ensure(registry._indexing)
        client = Client(api, self.settings, who)
        self.env = saving.Environment(
            client=client, settings=self.settings, clock=Clock(), memo=Memo(),
            indices=self.indexers)
        self.hub = Hub(
            context=self.env, get_memo=self.env.get_memo)
        self.own = Holdings(Tenure(lambda: asyncio.get_running_loop().time()))
        self.own.tenure.renew(float('inf'), anew=True)
        self.division = divisions.Division(
            self.env, hub=self.hub, indexers=self.indexers, partition=Partition())
        binding = registries.resolve(registry, [RESOURCE])
        self.feed = self.division.open(RESOURCE, None, binding.handlers[RESOURCE])
        self.division.seal()
        self.pool = queueing.WorkerPool()
        self._watching = None
        if lists:
            self.list()

    def list(self):
        """Begin the watch anew, by a list."""
        if self._watching is not None:
            self._watching.cancel()
        self.feed.select(anew=True)
        self.feed.list_started(restored=False)
        for raw in list(self.api.objects.values()):
            self.feed.listed(copy.deepcopy(raw))
        seen = len(self.api.history)
        self.feed.list_ended()
        self._watching = asyncio.get_running_loop().create_task(self._watch(seen))

    async def _watch(self, seen):
        while True:
            await asyncio.sleep(0.005)
            events = self.api.history[seen:]
            seen += len(events)
            for type, raw in events:
                screen = self.feed.screen
                if screen is None or not screen(type, {'metadata': copy.deepcopy(raw['metadata'])}):
                    self.feed.changed(type, copy.deepcopy(raw))

    def gain(self, *shards):
        for shard in shards:
            grant = Grant(shard, self.own.tenure.term)
            self.own.add(grant)
            self.begin(grant)
        if self._watching is not None:
            self.list()

    def begin(self, grant):
        self.division.include(contextvars.copy_context().run(
            shardworks.Shard, self.env, grant, own=self.own, hub=self.hub, pool=self.pool,
            indexers=self.indexers, await_indexing=self.division.indices.wait_indexed))

    async def release(self, shard):
        grant = self.own.grants[shard]
        await self.division.exclude(grant).release(self.settings.sharding.handover_timeout)
        self.own.remove([shard])

    def lose_by_the_clock(self):
        """Lose all shards, without notice."""
        self.own.tenure.end()

    async def lose(self):
        """Notice the loss of all shards."""
        self.own.clear()
        for item in list(self.division.works):
            await self.division.exclude(item.grant).lose()

    def is_at_rest(self):
        return all(
            not shard.is_busy and all(
                item.due is None and not item.inbox.has_news and
                (item.cycle is None or not item.cycle.dirty)
                for informer in shard.informers for item in informer)
            for shard in self.division.works)

    async def stop(self):
        """As by a signal."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        for shard in list(self.division.works):
            await shard.finish(worlds.EXIT_TIMEOUT)
        await self.division.stop_indexing(asyncio.get_running_loop().time())


async def rest(*replicas, limit=1000):
    """Wait until everything that is held is handled."""
    deadline = asyncio.get_running_loop().time() + limit
    await asyncio.sleep(0.05)
    while not all(replica.is_at_rest() for replica in replicas):
        await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().time() < deadline, "there is no end to it"


def make_api(**shards):
    """Make an API with objects by their names and shards."""
    api = worlds.Api()
    for name, shard in shards.items():
        create(api, name, shard)
    return api


def create(api, name, shard, **fields):
    api.create(name, metadata={'labels': {'shard': str(shard)}}, **{'spec': {'n': 0}, **fields})
