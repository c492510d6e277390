"""
An operator in an hour of faults of the API, in virtual time.
"""
import asyncio
import collections
import gc
import logging
import random

import pytest

import kopf
from kopf import testing
from kopf._core.path.objects import Item
from kopf._kits.sandbox import statuses
from kopf.testing import virtual_time

FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
NAMES = [f'obj{number}' for number in range(20)]
HOUR = 3600
OUTAGE = 600
WATCHES = 2  # of the kind, and of the definitions of kinds

FAULTS = [
    {'action': 'refuse', 'status': 500, 'chance': 0.5},
    {'action': 'refuse', 'status': 503, 'verb': 'watch'},
    {'action': 'refuse', 'status': 429, 'chance': 0.5},
    {'action': 'refuse', 'status': 403, 'verb': 'list'},
    {'action': 'refuse', 'status': 404, 'verb': 'watch', 'resource': 'kopfexamples'},
    {'action': 'refuse', 'status': 409, 'verb': 'patch', 'chance': 0.5},
    {'action': 'delay', 'seconds': 20, 'chance': 0.3},
    {'action': 'drop', 'chance': 0.5},
    {'action': 'lose', 'chance': 0.5},
    {'action': 'cut', 'chance': 0.5},
    {'action': 'cut', 'verb': 'watch'},
    {'action': 'slow', 'seconds': 3, 'chance': 0.5},
    {'action': 'expire', 'verb': 'watch', 'chance': 0.5},
    {'action': 'compact', 'verb': 'watch', 'count': 5},
]


class Life:
    """The handlers, what they have seen, and the changes that are made meanwhile."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.registry = kopf.OperatorRegistry()
        self.last = {}
        self.deleted = collections.Counter()
        self.running = collections.Counter()
        self.number = 0

        @kopf.on.create('kopfexamples', id='handle', registry=self.registry)
        @kopf.on.update('kopfexamples', id='handle', registry=self.registry)
        async def handle(uid, spec, **_):
            await asyncio.sleep(self.random.random())
            self.stumble()
            self.last[uid] = spec['number']
            return spec['number']

        @kopf.on.delete('kopfexamples', registry=self.registry)
        def delete(uid, **_):
            self.stumble()
            self.deleted[uid] += 1

        @kopf.daemon('kopfexamples', registry=self.registry)
        async def accompany(uid, stopped, **_):
            self.running[uid] += 1
            await stopped.wait()
            self.running[uid] -= 1

        @kopf.timer('kopfexamples', interval=60, registry=self.registry)
        async def tick(patch, **_):
            patch.status['ticked'] = True

        @kopf.on.startup(registry=self.registry)
        async def configure(settings, **_):
            settings.watching.inactivity_timeout = 90

    def stumble(self):
        if self.random.random() < 0.1:
            raise self.random.choice([kopf.TemporaryError("again", delay=5), Exception("oops")])

    async def change(self, sandbox):
        name = self.random.choice(NAMES)
        self.number += 1
        try:
            obj = await sandbox.get('kopfexamples', name)
        except statuses.APIError:
            await sandbox.create({
                'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
                'metadata': {'name': name, 'namespace': 'default'}, 'spec': {'number': 0}})
            return
        if self.random.random() < 0.1:
            await sandbox.delete('kopfexamples', name)
        elif 'deletionTimestamp' not in obj['metadata']:
            await sandbox.patch('kopfexamples', name, {'spec': {'number': self.number}})


def count_tasks():
    """The tasks of the operator, but for those of daemons."""
    files = [getattr(task.get_coro(), 'cr_code').co_filename for task in asyncio.all_tasks()]
    return sum('/_core/' in file or '/_cogs/' in file for file in files
               if '/engines/daemons/' not in file)


def find_lines():
    gc.collect()
    return [item for item in gc.get_objects() if isinstance(item, Item)]


@pytest.fixture()
def silence():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@virtual_time
async def test_after_an_hour_of_faults_all_is_handled_and_nothing_is_left_behind(crd, silence):
    life = Life(seed=1)
    tasks = []
    others = find_lines()  # a test that has failed before keeps its own by the traceback
    async with testing.open_api('sandbox') as api:
        sandbox = api.sandbox
        await sandbox.load(crd)
        async with api.operator(registry=life.registry):
            for number in range(HOUR // 10):
                await asyncio.sleep(10 * life.random.random() * 2)
                for _ in range(life.random.randrange(4)):
                    await life.change(sandbox)
                if number % 6 == 0:
                    sandbox.faults.clear()
                if number % 6 in (0, 3):
                    sandbox.faults.add(testing.Fault(
                        **life.random.choice(FAULTS), seed=number))
                if number % 90 == 89:
                    sandbox.faults.clear()
                    await asyncio.sleep(300)
                    tasks.append(count_tasks())

            outage = [sandbox.faults.add(testing.Fault(action='drop', verb=verb))
                      for verb in ('list', 'watch', '*')]
            for _ in range(OUTAGE // 10):
                await life.change(sandbox)
                await asyncio.sleep(10)
            assert outage[0].hits + outage[1].hits < OUTAGE * WATCHES
            assert count_tasks() < tasks[0] + len(NAMES)

            sandbox.faults.clear()
            await asyncio.sleep(900)
            objects = {obj['metadata']['uid']: obj for obj in await sandbox.list('kopfexamples')}
            assert objects
            for uid, obj in objects.items():
                assert 'deletionTimestamp' not in obj['metadata']
                assert obj['metadata']['finalizers'] == [FINALIZER]
                assert life.last[uid] == obj['spec']['number'] == obj['status']['handle']
                assert set(obj['metadata']['annotations']) == {
                    'kopf.zalando.org/last-handled-configuration'}
            assert +life.running == dict.fromkeys(objects, 1)
            assert len(set(tasks)) == 1
            assert len([line for line in find_lines() if line not in others]) == len(objects)
