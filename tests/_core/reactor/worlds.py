"""
A small world for the passes: an API with one object at a time, virtual time, and crashes.

It is not a mock of what is tested, but the other side of it: merge-patches, JSON patches,
preconditions, versions, finalizers and deletions work as in Kubernetes, and so does the watch,
which can be late. Requests can fail before or after they are committed.
"""
import asyncio
import collections
import contextvars
import copy
import gc
import json
import urllib.parse

import kopf
from kopf._cogs.aiokits import wakeups
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs import patches
from kopf._cogs.structs.memos import Memo
from kopf._cogs.structs.references import Resource
from kopf._core.actions import application, observers
from kopf._core.engines import indexing
from kopf._core.engines.reconciling.hub import Hub
from kopf._core.intents import registries
from kopf._core.intents.stopping import DaemonStoppingReason
from kopf._core.path import intake, queueing, saving, switches, turns
from kopf._kits.testing.virtual import run as run_virtually

LATE = 1.0
"""How much later (seconds) than the others some responses come."""

EXIT_TIMEOUT = 5
"""How long an operator has for leaving, in seconds."""


class Api:
    """Objects by name, and all their changes in order."""

    def __init__(self):
        self.version = 0
        self.uids = 0
        self.objects = {}
        self.history = []
        self.requests = []
        self.faults = []
        """
        What happens to the next requests: None; they are lost "before" or "after" the commit;
        the response comes "late"; it is 404, as if the resource were "absent"; they are committed,
        but that is "denied" by 404; or the list shows the first state of the object, which is
        "older".
        """
        self.latency = 0.01
        self.admit = lambda raw: raw
        """What a mutating admission webhook makes of each patched object."""
        self._watchers = []

    async def wait_for_news(self):
        """Wait until something changes."""
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def create(self, name='obj', **fields):
        self.uids += 1
        meta = {'name': name, 'namespace': 'ns', 'uid': f'uid{self.uids}'}
        meta.update(fields.pop('metadata', {}))
        self._commit('ADDED', {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
                               'metadata': meta, **fields})

    def edit(self, patch, name='obj'):
        if name in self.objects:
            self._commit('MODIFIED', patches.merge(self.objects[name], patch))

    def delete(self, name='obj'):
        if name in self.objects:
            raw = self.objects[name]
            if raw['metadata'].get('finalizers'):
                if 'deletionTimestamp' not in raw['metadata']:
                    self.edit({'metadata': {'deletionTimestamp': '2020-01-01T00:00:00Z'}}, name)
            else:
                self._commit('DELETED', raw)

    def _commit(self, type, raw):
        name = raw['metadata']['name']
        known = self.objects.get(name)
        raw = copy.deepcopy(raw)
        if type == 'MODIFIED' and known is not None and raw == known:
            return
        self.version += 1
        raw['metadata']['resourceVersion'] = str(self.version)
        if 'deletionTimestamp' in raw['metadata'] and not raw['metadata'].get('finalizers'):
            type = 'DELETED'
        if type == 'DELETED':
            del self.objects[name]
        else:
            self.objects[name] = raw
        self.history.append((type, raw))
        while self._watchers:
            watcher = self._watchers.pop()
            if not watcher.done():
                watcher.set_result(None)

    def patch(self, name, subresource, content_type, payload):
        if name not in self.objects:
            raise errors.APINotFoundError("not found", status=404)
        raw = self.objects[name]
        if content_type == 'application/merge-patch+json':
            meta = payload.get('metadata', {})
            if 'uid' in meta and meta['uid'] != raw['metadata']['uid']:
                raise errors.APIConflictError("another uid", status=409)
            if meta.get('resourceVersion', raw['metadata']['resourceVersion']) != (
                    raw['metadata']['resourceVersion']):
                raise errors.APIConflictError("another version", status=409)
            new = patches.merge(raw, payload)
        else:
            new = apply_json_patch(raw, payload)
        self._commit('MODIFIED', self.admit(restrict(raw, new, subresource)))
        return copy.deepcopy(self.history[-1][1] if name not in self.objects
                             else self.objects[name])


def restrict(raw, new, subresource):
    """What may be changed at once where the status is separate."""
    if subresource == 'status':
        return {**raw, 'status': new.get('status', {})}
    return new


def apply_json_patch(raw, ops):
    new = copy.deepcopy(raw)
    for op in ops:
        *path, key = [part.replace('~1', '/').replace('~0', '~')
                      for part in op['path'].split('/')[1:]]
        parent = new
        for part in path:
            parent = parent[part]
        match op['op']:
            case 'test' if parent.get(key) != op['value']:
                raise errors.APIUnprocessableError("test failed", status=422)
            case 'add' | 'replace':
                parent[key] = op['value']
            case 'remove':
                del parent[key]
    return new


class Client:
    """
    What the passes see of the API; it can die, and then nothing gets through any more.

    While it is cut off, all requests fail. They are tried again once a second, if they may be.
    """
    congested = False
    overloaded = False

    def __init__(self, api, settings):
        self.api = api
        self.settings = settings
        self.dead = False
        self.cut = False
        self.leads = True
        self.terms = 1
        self._term = contextvars.ContextVar('term')

    def unfenced(self):
        return self

    def enter_term(self):
        self._term.set(self.terms)

    def verify_term(self):
        if not self.leads or self._term.get(self.terms) != self.terms:
            raise errors.NotLeadingError("not leading")

    async def request(
            self, method, path, *, body=None, content_type=None, params=None, permit=None, **_):
        if method == 'GET':
            return await self._list(path, params['fieldSelector'].removeprefix('metadata.name='))
        self.verify_term()
        while self.cut:
            await asyncio.sleep(1)
            self.verify_term()
        if permit is not None:
            permit()
        return await self._exchange(lambda: self.api.patch(
            *parse_path(path), content_type, json.loads(body)), path)

    async def _list(self, path, name):
        is_old = self.api.faults[:1] == ['older']
        items = await self._exchange(
            lambda: [raw for _, raw in self.api.history if raw['metadata']['name'] == name][:1]
            if is_old else [obj for key, obj in self.api.objects.items() if key == name], path)
        return json.dumps({'kind': 'KopfExampleList', 'metadata': {
            'resourceVersion': str(self.api.version)}, 'items': items}).encode()

    async def _exchange(self, act, path):
        fault = self.api.faults.pop(0) if self.api.faults else None
        await self._travel()
        if fault == 'before':
            raise errors.APIConnectionError("lost on the way", status=0)
        self.api.requests.append(path)
        if fault == 'absent':
            await self._travel()
            raise errors.APINotFoundError("the server could not find it", status=404)
        if fault in ('conflict', 'stale'):
            await self._travel()
            raise errors.APIConflictError("changed", status=409) if fault == 'conflict' else (
                errors.APIUnprocessableError(application.FAILED_TEST, status=422))
        result = act()
        await self._travel()
        if fault == 'denied':
            raise errors.APINotFoundError("the server could not find it", status=404)
        if fault == 'after':
            raise errors.APIConnectionError("the reply is lost", status=0)
        if fault == 'late':
            await asyncio.sleep(LATE)
        return result

    async def _travel(self):
        await asyncio.sleep(self.api.latency)
        if self.dead:
            await asyncio.get_running_loop().create_future()


def parse_path(path):
    parts = urllib.parse.urlsplit(path).path.split('/kopfexamples/')[1].split('/')
    return parts[0], parts[1] if len(parts) > 1 else None


class Operator:
    """One run of an operator: it lists, then sees what comes, until it stops or crashes."""

    def __init__(self, api, registry, *, subresource=False, watch_delay=0.005, watch_step=None,
                 observer=None, **persistence):
        """The watch shows so many changes at a time, by default all that there are."""
        self.api = api
        self.settings = OperatorSettings()
        self.settings.posting.enabled = False
        self.settings.execution.default_backoff = 1
        for key, value in persistence.items():
            setattr(self.settings.persistence, key, value)
        self.client = Client(api, self.settings)
        self.memo = Memo()
        self.watch_delay = watch_delay
        self.watch_step = watch_step
        self.indexers = indexing.OperatorIndexers()
        self.indexers.ensure(registry._indexing)
        env = saving.Environment(
            client=self.client, settings=self.settings, clock=Clock(), memo=self.memo,
            indices=self.indexers,
            observer=observers.Notifier(() if observer is None else [observer]))
        self.switch = switches.Switch()
        self.alarms = wakeups.Wakeups()
        self.processor = turns.Processor(
            env, switch=self.switch, alarms=self.alarms, indexers=self.indexers,
            hub=Hub(context=env, get_memo=env.get_memo))
        self.spawner = self.processor.spawner
        self.queue = queueing.WorkQueue(
            settings=self.settings, switch=self.switch, alarms=self.alarms,
            processor=self.processor, observer=env.observer)
        self.informers = intake.InformerFactory(self.queue)
        resource = Resource(
            'kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True,
            subresources=frozenset({'status'} if subresource else ()))
        binding = registries.resolve(registry, [resource])
        self.informer = self.informers.open(resource, None, binding.handlers[resource])
        self.informers.seal()
        self._seen = 0
        self._watching = None

    def start(self, *, behind=0):
        """The list can lack so many of the latest changes (no deletions); the watch shows them."""
        self._seen = len(self.api.history) - behind
        shown = dict(self.api.objects)
        if behind:
            shown = {raw['metadata']['name']: raw for _, raw in self.api.history[:self._seen]}
        self.informer.list_started(restored=False)
        for raw in shown.values():
            self.informer.listed(copy.deepcopy(raw))
        self.informer.list_ended()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def lose_sight(self):
        """Until it is started again, nothing is seen; and then, it is seen by a list."""
        self._watching.cancel()
        await asyncio.wait([self._watching])

    async def freeze(self):
        """Let others work, as soon as this one has finished what is under way."""
        self.informers.pause()
        self.spawner.pause()
        if self._watching is not None:
            await self.lose_sight()
        await self.queue.rest()
        await self.spawner.rest()

    def thaw(self):
        self.informers.resume()
        self.spawner.resume()
        self.start()

    def stand_by(self):
        """Let others work at once, as after the loss of a Lease; the watch goes on."""
        self.client.leads = False
        self.informers.stand_by()
        self.spawner.stand_by()

    def take_over(self):
        self.client.leads = True
        self.client.terms += 1
        self.informers.take_over()
        self.spawner.resume()

    async def _watch(self):
        loop = asyncio.get_running_loop()
        tick = loop.time()
        while True:
            while self._seen == len(self.api.history):
                await self.api.wait_for_news()
            while tick <= loop.time():
                tick += self.watch_delay
            await asyncio.sleep(tick - loop.time())
            self._see()

    def _see(self):
        events = self.api.history[self._seen:][:self.watch_step]
        self._seen += len(events)
        for type, raw in events:
            self.informer.changed(type, copy.deepcopy(raw))

    def is_at_rest(self):
        return self._seen == len(self.api.history) and not self.queue.size and all(
            item.due is None and not item.inbox.has_news and
            (item.cycle is None or not item.cycle.dirty)
            for item in self.informer)

    async def rest(self, limit=10_000):
        """Wait until everything is handled."""
        deadline = asyncio.get_running_loop().time() + limit
        while not self.is_at_rest():
            await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() < deadline, "there is no end to it"

    async def stop(self):
        """As by a signal."""
        self._watching.cancel()
        await asyncio.wait([self._watching])
        deadline = asyncio.get_running_loop().time() + EXIT_TIMEOUT
        await self.informers.stop(deadline)
        await self.spawner.stop(DaemonStoppingReason.OPERATOR_EXITING, deadline)

    def get_unwritten(self):
        """The handlers whose outcomes would be lost in a crash."""
        return {id for item in self.informer if item.cycle for id in item.cycle.unwritten}

    async def crash(self):
        """As by kill -9: what is not written is lost, nothing gets out any more."""
        self._watching.cancel()
        self.client.dead = True
        self.switch.stop(asyncio.get_running_loop().time())
        self.alarms.close()
        for item in self.informer:
            item.proceed(None)
        self.spawner.stopping = DaemonStoppingReason.OPERATOR_EXITING
        tasks = [*self.queue._workers.values(), *self.spawner.tasks]
        for companion in list(self.spawner.alive):
            companion.stopper.set(DaemonStoppingReason.OPERATOR_EXITING)
        for task in tasks:
            task.cancel()
        await asyncio.wait([self._watching, *tasks])
        for companion in list(self.spawner.alive):
            companion._cancel_timer()
        await self.informers.stop(asyncio.get_running_loop().time())


async def check_always(check):
    """Check at each moment of virtual time, when all is done that is to be done at it."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.wait_idle(after=loop.time())
        check()


async def accompany(declare, **fields):
    """Start an operator with the handlers that are declared, and with one object there already."""
    registry = registries.OperatorRegistry()
    declare(registry)
    api = Api()
    api.create('obj', **{'spec': {}, **fields})
    operator = Operator(api, registry)
    operator.start()
    return api, operator


async def succeed(api, declare, *, lasts):
    """Let the next process of an operator handle what there is, for so long."""
    registry = registries.OperatorRegistry()
    declare(registry)
    operator = Operator(api, registry)
    operator.start()
    await asyncio.sleep(lasts)
    await operator.stop()


def live(declare, *moves, lasts=10, backoff=1, **fields):
    """
    Let an operator handle one object for so long; returns the API as it is then.

    The moves are (time, function of the API).
    """
    async def run():
        api, operator = await accompany(declare, **fields)
        operator.settings.execution.default_backoff = backoff
        for when, move in moves:
            await asyncio.sleep(when - asyncio.get_running_loop().time())
            move(api)
        await asyncio.sleep(lasts - asyncio.get_running_loop().time())
        await operator.stop()
        return api

    return run_virtually(run())


async def count_per_object(registry):
    """Count what the garbage collector has for each object at rest, by type, without the API."""
    api = Api()
    operator = Operator(api, registry)
    operator.start()
    counts = []
    for batch in range(3):
        for number in range(100):
            api.create(f'{batch}-{number}', spec={})
        await asyncio.sleep(30)
        gc.collect()
        own = set(map(id, api.history))
        counts.append(collections.Counter(
            type(item) for item in gc.get_objects() if id(item) not in own))
    await operator.stop()
    return {cls: count / 100 for cls, count in (counts[2] - counts[1]).items()}


def now():
    return round(asyncio.get_running_loop().time(), 1)


def make_counting_registry(done):
    """
    Make the handlers of one of several operators: they count what each has done with each change,
    by the handler, the object, and what it was and is. One is slow, one fails at first.
    """
    registry = kopf.OperatorRegistry()

    def get(old):
        return None if old is None else old['spec']['n']

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def slow(name, spec, old, **_):
        await asyncio.sleep(1)
        done['slow', name, get(old), spec['n']] += 1

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def failing(name, spec, old, retry, **_):
        if retry < 1:
            raise kopf.TemporaryError("not yet", delay=2)
        done['failing', name, get(old), spec['n']] += 1

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def quick(name, spec, old, **_):
        done['quick', name, get(old), spec['n']] += 1

    return registry


def assert_handled(newest, done):
    """Each of these handlers must have seen the newest state of each object."""
    for name, last in newest.items():
        for handler in ['slow', 'failing', 'quick']:
            assert any(key[:2] == (handler, name) and key[3] == last for key in done)
