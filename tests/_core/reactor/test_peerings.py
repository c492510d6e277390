"""
The peerings of an operator of many namespaces. In virtual time, on the sandbox.
"""
import asyncio
import collections
import contextlib
import gc
import json
import re
import sys

import pytest

import kopf
from kopf import testing
from kopf._cogs.aiokits.pulses import Pulse
from kopf._core.engines.peering import memberships
from kopf._core.reactor.roles import peering
from kopf._core.reactor.watches import orchestration, peers
from kopf.testing import Fault
from tests.docs.snippets import DOCS

PEERING = DOCS.parent / 'peering.yaml'
MODULES = {module.__file__ for module in (memberships, orchestration, peering, peers)}


class Work:
    """How much the modules do, in executed opcodes: on each machine the same."""

    def __init__(self):
        self.done = 0

    def _trace(self, frame, event, arg):
        if frame.f_code.co_filename not in MODULES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._count

    def _count(self, frame, event, arg):
        self.done += 1
        return self._count

    @contextlib.contextmanager
    def count(self):
        previous = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(previous)


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.event('configmaps', registry=registry)
    def event_fn(namespace, **_):
        registry.seen.add(namespace)

    registry.seen = set()
    return registry


def make(kind, name, **fields):
    return {'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': name, **fields}}


async def fill(api, count, *, with_peering=False, first=0):
    """Make the namespaces, each with a config map, and maybe with a peering object."""
    if first == 0:
        await api.client.load(PEERING)
    for n in range(first, count):
        await api.client.create(make('Namespace', f'many-{n}'))
        await api.client.create(make('ConfigMap', 'one', namespace=f'many-{n}'))
        if with_peering:
            await api.client.create('kopfpeerings', 'default', namespace=f'many-{n}')


@pytest.mark.parametrize('with_peering', [False, True])
def test_the_work_of_a_start_grows_with_the_namespaces(registry, with_peering):
    @testing.virtual_time
    async def measure(count):
        registry.seen.clear()
        async with testing.open_api('sandbox') as api:
            await fill(api, count, with_peering=with_peering)
            work = Work()
            with work.count():
                async with api.operator(
                        registry=registry, namespaces=['many-*'], standalone=False):
                    await testing.wait_for(lambda: len(registry.seen) == count, timeout=60)
        return work.done

    few, many = measure(20), measure(80)
    assert many < 6 * few


@testing.virtual_time
async def test_nothing_is_left_of_the_peerings_of_namespaces_that_come_and_go(registry):
    def count():
        gc.collect()
        return collections.Counter(
            type(item) for item in gc.get_objects()
            if type(item) in (Pulse, memberships.Membership, peers.PeeringWatch))

    async with testing.open_api('sandbox') as api:
        await fill(api, 1, with_peering=True)
        async with api.operator(
                registry=registry, namespaces=['many-*'], standalone=False):
            await testing.wait_for(lambda: registry.seen == {'many-0'})
            before = count()
            await fill(api, 5, with_peering=True, first=1)
            await testing.wait_for(lambda: len(registry.seen) == 5)
            for n in range(1, 5):
                await api.client.delete('namespaces', f'many-{n}')
            await asyncio.sleep(60)
            assert count() == before


@testing.virtual_time
async def test_all_namespaces_without_peering_objects_at_the_start_are_warned_of_at_once(registry):
    async with testing.open_api('sandbox') as api:
        await fill(api, 12)
        async with api.operator(
                registry=registry, namespaces=['many-*'], standalone=False) as operator:
            await testing.wait_for(lambda: len(registry.seen) == 12)
            await api.client.create(make('Namespace', 'many-late'))
            await operator.wait_log("'many-late'")
        warnings = [line for line in operator.log if 'peering object is not found' in line]
    assert [line.partition(', falling')[0] for line in warnings] == [
        "Default peering object is not found in "
        "'many-0', 'many-1', 'many-10', 'many-11', 'many-2', 7 more",
        "Default peering object is not found in 'many-late'"]


@testing.virtual_time
@pytest.mark.parametrize('verb', ['patch', 'list', 'watch'])
async def test_a_paused_operator_stays_paused_when_the_peering_object_is_forbidden_at_times(verb):
    first, second = kopf.OperatorRegistry(), kopf.OperatorRegistry()
    seen = []

    @kopf.on.event('configmaps', registry=second)
    def event_fn(**_):
        seen.append('event')

    @kopf.on.event('configmaps', registry=first)
    def ignore(**_):
        pass

    async with testing.open_api('sandbox') as api:
        await fill(api, 1, with_peering=True)
        options = {'namespaces': ['many-0'], 'standalone': False}
        async with api.operator(registry=first, priority=1, **options):
            await api.client.wait(
                'kopfpeerings', 'default', lambda obj: obj['status'], namespace='many-0')
            async with api.operator(registry=second, priority=0, **options) as operator:
                await operator.wait_log("Pausing operations in favour of")
                if verb != 'patch':
                    api.sandbox.faults.add(Fault(
                        action='cut', verb='watch', resource='kopfpeerings', count=2))
                fault = api.sandbox.faults.add(Fault(
                    action='refuse', verb=verb, resource='kopfpeerings*', status=403, count=4))
                await asyncio.sleep(300)
                assert fault.hits == 4
                assert not seen


@testing.virtual_time
async def test_a_new_operator_does_not_begin_alone_when_the_first_list_is_forbidden(registry):
    async with testing.open_api('sandbox') as api:
        await fill(api, 1, with_peering=True)
        options = {'namespaces': ['many-0'], 'standalone': False}
        async with api.operator(registry=kopf.OperatorRegistry(), priority=1, **options):
            await api.client.wait(
                'kopfpeerings', 'default', lambda obj: obj['status'], namespace='many-0')
            fault = api.sandbox.faults.add(Fault(
                action='refuse', verb='*', resource='kopfpeerings*', status=403, count=2))
            async with api.operator(registry=registry, priority=0, **options) as operator:
                await operator.wait_log("Pausing operations in favour of")
                await asyncio.sleep(300)
                assert fault.hits == 2
                assert not registry.seen


@testing.virtual_time
async def test_a_new_operator_begins_alone_when_it_has_no_rights_for_some_seconds(registry):
    async with testing.open_api('sandbox') as api:
        await fill(api, 1, with_peering=True)
        api.sandbox.faults.add(Fault(
            action='refuse', verb='*', resource='kopfpeerings*', status=403))
        async with api.operator(
                registry=registry, namespaces=['many-0'], standalone=False) as operator:
            await testing.wait_for(lambda: registry.seen, timeout=5)
            await operator.wait_log("There is no permission to list and watch kopfpeerings")


@testing.virtual_time
@pytest.mark.parametrize('mandatory', [False, True])
async def test_the_absence_of_the_peering_object_comes_with_the_command_that_creates_it(mandatory):
    settings = kopf.OperatorSettings()
    settings.peering.mandatory = mandatory
    async with testing.open_api('sandbox') as api:
        await fill(api, 1)
        async with api.operator(registry=kopf.OperatorRegistry(), settings=settings,
                                namespaces=['many-*'], standalone=False) as operator:
            [line] = await operator.wait_log("echo")
            obj, command = re.search(r"echo '(.+)' \| (.+)$", line).groups()
            assert command == 'kubectl create -n many-0 -f -'
            await api.client.create(json.loads(obj), namespace='many-0')
            await api.client.wait(
                'kopfpeerings', 'default', lambda obj: obj['status'], namespace='many-0')


@testing.virtual_time
async def test_without_the_definitions_they_are_named_too(registry):
    async with testing.open_api('sandbox') as api:
        async with api.operator(registry=registry, standalone=False) as operator:
            [line] = await operator.wait_log("peering object is not found")
    assert "kopf crd --peering | kubectl apply -f -; echo '" in line
    assert "If there are none, add --standalone." in line
