import asyncio
import contextlib
import random

import pytest

import kopf
from kopf import testing
from kopf._kits.sandbox import upstreams
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.shadowing import shadows
from kopf._kits.testing import apis
from tests._kits.sandbox.conftest import CRD

WINDOW = 60.0


class Link(upstreams._Link):
    """The connection to the upstream, in the event loop of the test, in virtual time."""

    def start(self):
        self._loop = asyncio.get_running_loop()
        self.client = upstreams._Reader(self._vault, self._settings, self._count)

    async def call(self, fn):
        return await fn()

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def _close(self):
        tasks = [task for each in self._watches.values() for task in each]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()


def declare(
        *, field='blue', count=2, child='conf', extra=False, phase='ok', ready='True',
        holds=True, delay=0.0, is_light_kept=False, is_denied=False, slowness=0.0, seed=0,
        finalizer='kopf.zalando.org/KopfFinalizerMarker'):
    """
    Declare the handlers of a version of an operator. With the slowness (seconds), they take random
    times, and fail at times.
    """
    rng = random.Random(seed)
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.persistence.finalizer = finalizer

    @kopf.reconcile('toys', id='children', owns=['configmaps', 'deployments'],
                    registry=registry)
    async def children(spec, name, **_):
        await asyncio.sleep(delay + rng.random() * slowness)
        labels = {'app': name}
        yield {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}, 'spec': {
            'replicas': count * spec.get('n', 1), 'selector': {'matchLabels': labels},
            'template': {'metadata': {'labels': labels}, 'spec': {'containers': [
                {'name': 'app', 'image': 'nginx:1'}]}}}}
        if child is not None:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap',
                   'metadata': {'name': f'{name}-{child}'},
                   'data': {'field': field, 'n': str(spec.get('n', 1))}}
        if not spec.get('light') or is_light_kept:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-heavy'}}
        if extra:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-extra'}}

    @kopf.on.create('toys', id='tell', registry=registry)
    @kopf.on.update('toys', id='tell', registry=registry)
    async def tell(spec, patch, **_):
        patch.status.update(phase=phase, n=spec.get('n', 1), conditions=[
            {'type': 'Ready', 'status': ready, 'lastTransitionTime': '2020-01-01T00:00:00Z'}])

    @kopf.on.create('toys', id='found', registry=registry)
    async def found(name, patch, body, **_):
        await asyncio.sleep(rng.random() * slowness)
        if rng.random() < slowness / 20:
            raise kopf.TemporaryError("try again", delay=3)
        manifest = {'apiVersion': 'v1', 'kind': 'ConfigMap',
                    'metadata': {'name': f'{name}-found'}, 'data': {'of': name}}
        kopf.adopt(manifest, owner=body)
        await kopf.apply(manifest)
        patch.spec['found'] = True

    if holds:
        @kopf.on.delete('toys', registry=registry)
        async def release(**_):
            await asyncio.sleep(1)

    if is_denied:
        @kopf.on.validate('toys', registry=registry)
        async def check(spec, **_):
            if spec.get('n', 1) > 1:
                raise kopf.AdmissionError("too many")

    return registry


class Stage:
    """A cluster with an operator in production, and a shadow of it."""

    def __init__(self, there, here, shadow, upstream):
        self.there = there
        self.here = here
        self.shadow = shadow
        self.upstream = upstream

    @property
    def told(self):
        return [str(each) for each in self.shadow.latest]

    async def wait(self, windows=3.0):
        await asyncio.sleep(windows * self.shadow.window)


@contextlib.asynccontextmanager
async def perform(old, new, *, existing=(), **options):
    """Run both versions of an operator, beginning with the one in production."""
    async with contextlib.AsyncExitStack() as stack:
        there = await stack.enter_async_context(Sandbox())
        await there.create(CRD)
        for obj in existing:
            await there.create(obj)
        await stack.enter_async_context(testing.Operator(
            registry=old, credentials=apis.read_credentials(there.kubeconfig())))
        await asyncio.sleep(30)
        shadow = shadows.Shadow(new, **{'window': WINDOW, **options})
        upstream = shadow.make_upstream(apis.read_credentials(there.kubeconfig()))
        here = await stack.enter_async_context(Sandbox(upstream=upstream))
        shadow.hold_back()
        operator = await stack.enter_async_context(testing.Operator(
            registry=new, credentials=apis.read_credentials(here.kubeconfig()), _shadow=shadow,
            _adjust=shadow.isolate))
        await operator.wait_log("Watching toys")
        await asyncio.sleep(5)
        yield Stage(there, here, shadow, upstream)


@pytest.fixture(autouse=True)
def _inline(monkeypatch):
    monkeypatch.setattr(upstreams, '_Link', Link)
    monkeypatch.setattr(upstreams, 'BURST', 10_000)
