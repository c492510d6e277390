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


def make_counter(seen):
    def count(body):
        seen.append(body['spec']['n'])
        body['spec']['n'] += 1
    return count


@virtual_time
@pytest.mark.parametrize('when', ['after the start', 'later'])
async def test_functions_of_patches_are_called_once_even_if_the_response_is_lost(crd, when):
    registry = kopf.OperatorRegistry()
    seen = []

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', field='spec.x', registry=registry)
    async def fn(spec, patch, **_):
        if spec['x'] == when:
            patch.fns.append(make_counter(seen))

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        fault = testing.Fault(
            action='lose', verb='patch', resource='kopfexamples*', count=1,
            skip=0 if when == 'after the start' else 2)
        api.sandbox.faults.add(fault)
        async with api.operator(registry=registry) as operator:
            await api.client.create('kopfexamples', 'obj', spec={'n': 0, 'x': 'after the start'})
            await asyncio.sleep(10)
            await api.client.patch('kopfexamples', 'obj', {'spec': {'x': 'later'}})
            await asyncio.sleep(100)
            obj = await api.client.get('kopfexamples', 'obj')
    assert fault.hits == 1
    assert seen == [0]
    assert obj['spec']['n'] == 1
    assert not any('Another operator' in line for line in operator.log)


@virtual_time
async def test_functions_of_timers_can_be_called_with_their_own_change_if_the_response_is_lost(crd):
    registry = kopf.OperatorRegistry()
    seen = []

    @kopf.timer('kopfexamples', registry=registry)
    async def fn(patch, **_):
        patch.fns.append(make_counter(seen))

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        api.sandbox.faults.add(testing.Fault(
            action='lose', verb='patch', resource='kopfexamples*', skip=1, count=1))
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'obj', spec={'n': 0})
            await asyncio.sleep(100)
    assert seen == [0, 1]
