"""
A small world of replicas that share shards: Leases in memory, virtual time, suspensions, outages.
"""
import asyncio
import copy
import json
import urllib.parse

from kopf._cogs.aiokits.tenures import Tenure
from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import LeadershipSettings
from kopf._core.engines.sharding import rosters
from kopf._core.engines.sharding.holdings import Holdings
from kopf._core.engines.sharding.participations import Participation

DURATION, DEADLINE, PERIOD = 15, 10, 2
LATENCY = 0.01


def now():
    return asyncio.get_running_loop().time()


class Api:
    """The Leases, and who has held which shard, since when."""

    def __init__(self):
        self.leases = {}
        self.version = 0
        self.holders = {}
        self.moves = 0
        self.requests = 0
        self.sent = {'GET': 0, 'POST': 0, 'PUT': 0, 'DELETE': 0}

    def request(self, method, path, body):
        self.sent[method] += 1
        parts = urllib.parse.urlsplit(path)
        name = parts.path.partition('/leases/')[2]
        if method == 'GET' and not name:
            label, _, value = urllib.parse.parse_qs(parts.query)['labelSelector'][0].partition('=')
            return {'items': [raw for raw in self.leases.values()
                              if raw['metadata'].get('labels', {}).get(label) == value]}
        if method == 'POST':
            name = body['metadata']['name']
            if name in self.leases:
                raise errors.APIConflictError("it exists", status=409)
        elif name not in self.leases:
            raise errors.APINotFoundError("not found", status=404)
        version = self.leases.get(name, {}).get('metadata', {}).get('resourceVersion')
        if method == 'DELETE' and body['preconditions']['resourceVersion'] != version:
            raise errors.APIConflictError("it has changed", status=409)
        if method == 'PUT' and body['metadata']['resourceVersion'] != version:
            raise errors.APIConflictError("it has changed", status=409)
        if method == 'DELETE':
            return self.leases.pop(name)
        if method != 'GET':
            self.version += 1
            body['metadata']['resourceVersion'] = str(self.version)
            self.leases[name] = body
            shard = body['metadata'].get('labels', {}).get(rosters.SHARD)
            if shard is not None:
                self.moves += bool(body['spec']['holderIdentity'])
                self.holders[int(shard)] = body['spec']['holderIdentity']
        return self.leases[name]


class Replica:
    """
    A replica, and its connection to the API; the process can be suspended.

    It works on what it holds, which takes so long (seconds) that it is not given away before.
    """

    def __init__(self, api, name, *, count, by='uid', work=0.0):
        self.api = api
        self.name = name
        self.cut = False
        self.work = work
        self.held_of_late = {}
        self.clashes = []
        self._running = asyncio.Event()
        self._running.set()
        self.own = Holdings(Tenure(now))
        self.group = rosters.Group(
            name='app', namespace='ns', count=count, by=by, me=name, duration=DURATION,
            deadline=DEADLINE)
        self.participation = Participation(
            self, group=self.group, own=self.own, on_change=self._react,
            settings=LeadershipSettings(
                lease_duration=DURATION, renew_deadline=DEADLINE, retry_period=PERIOD))
        self.task = None
        self._leaving = set()

    def start(self):
        self.task = asyncio.get_running_loop().create_task(self.participation.run())
        return self

    def _react(self):
        for shard in self.own.leaving - self._leaving:
            self._leaving.add(shard)
            asyncio.get_running_loop().call_later(self.work, self._finish, shard)

    def _finish(self, shard):
        self._leaving.discard(shard)
        grant = self.own.grants.get(shard)
        if grant is not None:
            self.own.surrendered.put_nowait(grant)

    async def kill(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled()
        self.own.tenure.end()

    async def stop(self):
        await self.kill()
        await self.participation.release()

    def suspend(self):
        self._running.clear()

    def go_on(self):
        self._running.set()

    @property
    def held(self):
        """What it may write about now."""
        return set(self.own.grants) if self._running.is_set() else set()

    async def request(self, method, path, *, body=None, timeout, retry):
        assert not retry
        try:
            async with asyncio.timeout(timeout):
                await self._running.wait()
                await asyncio.sleep(LATENCY)
                if self.cut:
                    raise errors.APIConnectionError("cut off")
                answer = copy.copy(self.api.request(
                    method, path, None if body is None else json.loads(body)))
                await asyncio.sleep(LATENCY)
                await self._running.wait()
                return answer
        except TimeoutError:
            raise errors.APIConnectionError("timed out") from None


class Watch:
    """Looks all the time whether any shard is held by two."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.clashes = []
        self.looks = 0

    async def run(self, period=0.25):
        while True:
            self.look()
            await asyncio.sleep(period)

    def look(self):
        self.looks += 1
        seen = {}
        for replica in self.replicas:
            for shard in replica.held:
                if shard in seen:
                    self.clashes.append((now(), shard, seen[shard], replica.name))
                seen[shard] = replica.name


def count_held(replicas):
    return [len(replica.held) for replica in replicas]


def is_fair(replicas, count):
    held = count_held(replicas)
    return sum(held) == count and max(held) - min(held) <= 1


async def wait_fair(replicas, count, *, limit=300.0):
    """Wait until the replicas hold fair shares; return how long that took (seconds)."""
    begun = now()
    while not is_fair(replicas, count):
        await asyncio.sleep(0.1)
        assert now() - begun < limit, f"There is no end to it: {count_held(replicas)}"
    return now() - begun
