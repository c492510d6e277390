import asyncio

import pytest

import kopf
from kopf import testing
from kopf.testing import virtual_time


@pytest.fixture()
def seen():
    return {}


@pytest.fixture()
def registry(seen):
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings, **_):
        settings.networking.error_backoffs = [10, 20]
        settings.queueing.error_delays = [100]
        settings.posting.enabled = False

    @kopf.on.create('kopfexamples', registry=registry)
    async def fn(name, **_):
        seen[name] = asyncio.get_running_loop().time()

    return registry


@virtual_time
@pytest.mark.parametrize(('count', 'delay'), [(1, 10), (2, 30), (3, 130)])
async def test_requests_about_one_object_are_tried_again_and_do_not_hold_up_others(
        registry, seen, crd, count, delay):
    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        api.sandbox.faults.add(testing.Fault(
            action='refuse', status=500, verb='patch', name='bad', count=count))
        async with api.operator(registry=registry):
            written = {}
            for name in ('bad', 'good'):
                await api.client.create('kopfexamples', name)
            for name in ('good', 'bad'):
                await api.client.wait(
                    'kopfexamples', name,
                    lambda obj: 'annotations' in obj['metadata'], timeout=1000)
                written[name] = asyncio.get_running_loop().time()
    assert written['good'] - seen['good'] < 2
    assert delay <= written['bad'] - seen['bad'] < delay + 2
