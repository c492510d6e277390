"""
The watch of the children comes 5 seconds late: no child is made twice. In virtual time.
"""
import asyncio

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf import testing
from kopf._cogs.clients.errors import APIError
from kopf._kits.testing import virtual
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
LAG = 5

COUNTS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just('want'), COUNTS, st.sampled_from('xy')),
    st.tuples(st.just('delete'), COUNTS),
    st.tuples(st.just('edit'), COUNTS),
    st.tuples(st.just('lose'), st.sampled_from(['patch', 'delete'])),
    st.tuples(st.just('wait'), st.sampled_from([0.001, 0.1, 1, 4.9, 5.1, 30])),
    st.tuples(st.just('restart')),
)


def make_registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['configmaps'], registry=registry)
    async def fn(spec, **_):
        for _number in range(spec['count']):
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'generateName': 'child-'},
                   'data': {'v': spec['value']}}

    return registry


class World:
    """A cluster with one parent and its generated children, and an operator."""

    def __init__(self, api):
        self.api = api
        self.client = api.client
        self.count, self.most = 0, 0
        self.value = 'x'
        self.names = set()
        """All names that children ever had."""
        self.operator = None

    async def start(self):
        self.operator = self.api.operator(registry=make_registry())
        await self.operator.__aenter__()

    async def stop(self):
        await self.operator.__aexit__(None, None, None)

    async def look(self):
        """Look at the children; check that there are no more than were ever wanted at once."""
        children = await self.client.list('configmaps')
        self.names.update(obj['metadata']['name'] for obj in children)
        assert len(self.names) <= self.most
        return sorted(children, key=lambda obj: obj['metadata']['name'])

    async def do(self, what, *args):
        match what:
            case 'want':
                self.count, self.value = args
                self.most = max(self.most, self.count)
                await self.client.patch('kopfexamples', 'parent', {
                    'spec': {'count': self.count, 'value': self.value}})
            case 'delete' | 'edit':
                children = await self.look()
                if children:
                    name = children[args[0] % len(children)]['metadata']['name']
                    try:
                        if what == 'delete':
                            await self.client.delete('configmaps', name)
                        else:
                            await self.client.patch('configmaps', name, {'data': {'v': 'z'}})
                    except APIError as e:  # pruned meanwhile, or the fault is for this request
                        assert e.status in (0, 404)
            case 'lose':
                self.api.sandbox.faults.add(testing.Fault(
                    action='lose', verb=args[0], resource='configmaps', count=1))
            case 'wait':
                await asyncio.sleep(args[0])
            case 'restart':
                await self.stop()
                await self.start()
        await self.look()

    async def is_converged(self):
        return [obj['data'] for obj in await self.look()] == [{'v': self.value}] * self.count


async def live(steps):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        api.sandbox.faults.add(testing.Fault(
            action='slow', verb='watch', resource='configmaps', seconds=LAG))
        world = World(api)
        await world.client.create('kopfexamples', 'parent', spec={'count': 0, 'value': 'x'})
        await world.start()
        try:
            for step in steps:
                await world.do(*step)
            await testing.wait_for(world.is_converged, timeout=3600)
            before = await world.look()
            await asyncio.sleep(600)
            assert await world.look() == before
        finally:
            await world.stop()


@given(steps=st.lists(STEPS, min_size=1, max_size=15))
@hypothesis.example(steps=[('want', 2, 'x'), ('wait', 0.1), ('restart',), ('want', 3, 'y')])
@hypothesis.example(steps=[('want', 2, 'x'), ('wait', 0.1), ('delete', 0), ('want', 2, 'y')])
@hypothesis.example(steps=[('lose', 'patch'), ('want', 3, 'x'), ('restart',), ('want', 1, 'x')])
def test_no_child_is_made_twice_however_late_the_watch_is(steps):
    """With ``--hypothesis-profile=thorough``, these are 1,000 runs."""
    virtual.run(live(steps))
