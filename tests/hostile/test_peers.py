"""
Peers: what other operators have left in a peering or in Leases is anything: others write it, too.
The operator lives on, does nothing in a hurry, and works as soon as that is gone.
"""
import asyncio
import datetime
import json
import pathlib

from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits import tenures
from kopf._cogs.aiokits.clocks import Moment
from kopf._cogs.clients import errors
from kopf._cogs.clients.leasing import LeaseClient
from kopf._cogs.configs.configuration import LeadershipSettings
from kopf._cogs.structs import nesting
from kopf._core.engines import leadership
from kopf._core.engines.sharding import rosters
from kopf.testing import virtual_time
from tests.hostile import anything, worlds

KINDS = pathlib.Path(__file__).parents[2] / 'peering.yaml'
PEERING = '/apis/kopf.dev/v1/clusterkopfpeerings/default'
RECORD = {
    'priority': 100, 'lifetime': 60, 'lastseen': '2020-01-01T00:00:00.000000+00:00',
    'message': 'text', 'paused': True}
LEASE = {
    'apiVersion': 'coordination.k8s.io/v1', 'kind': 'Lease',
    'metadata': {'name': 'kopf-operator', 'namespace': 'default', 'uid': 'u',
                 'resourceVersion': '1', 'labels': {'a': 'b'}, 'annotations': {'a': 'b'}},
    'spec': {'holderIdentity': 'other', 'leaseDurationSeconds': 15, 'leaseTransitions': 3,
             'acquireTime': '2020-01-01T00:00:00.000000Z',
             'renewTime': '2020-01-01T00:00:00.000000Z'}}

records = anything.damaged(RECORD)
GROUP = rosters.Group(
    name='kopf-operator', namespace='default', count=2, by='uid', me='me', duration=15, deadline=10)

statuses = anything.values | st.dictionaries(
    st.sampled_from(['other', '', 'x' * 300, 'a/b', 'kopf']), records, min_size=1, max_size=4)


async def assert_work(world):
    await world.create('good')
    await world.wait_handled('good')


async def assert_little_is_done(world):
    asked, said = await world.rest(200)
    assert asked < 50 and said < 100, (asked, said, world.show())


@given(statuses, statuses)
@virtual_time
async def test_anything_in_peerings(before, while_it_runs):
    async def write(world, status):
        await world.liar.send(
            'PATCH', PEERING, anything.encode({'status': status}), 'application/merge-patch+json')

    async def prepare(world):
        await world.api.sandbox.load(KINDS, {
            'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering',
            'metadata': {'name': 'default'}})
        await write(world, before)

    async with worlds.open_world(
            worlds.make_registry(), prepare=prepare, standalone=False) as world:
        await assert_little_is_done(world)
        await write(world, while_it_runs)
        await assert_little_is_done(world)
        await world.api.sandbox.delete('clusterkopfpeerings', 'default')
        await world.api.sandbox.load({
            'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering',
            'metadata': {'name': 'default'}})
        await assert_work(world)


class Server:
    """An API client that gets always the same answer."""

    def __init__(self, answer):
        self._answer = nesting.parse(anything.encode(answer))
        self.count = 0

    async def request(self, method, path, **_):
        self.count += 1
        return self._answer

    def stream(self, path, **_):
        raise errors.APIForbiddenError("nothing can be watched", status=403)


def ask(fn, answer):
    """Ask for Leases; return what is found, or None if the answer is refused as wrong."""
    try:
        return asyncio.run(fn(LeaseClient(Server(answer), namespace='default', deadline=10)))
    except errors.APIServerError:
        return None


@given(anything.damaged(LEASE), st.sampled_from(['me', 'other']))
@virtual_time
async def test_anything_in_the_lease_of_leaders(lease, identity):
    server = Server(lease)
    candidacy = leadership.Candidacy(
        server, identity=identity, namespace='default', name='x', settings=LeadershipSettings(),
        tenure=tenures.Tenure(asyncio.get_running_loop().time), on_change=lambda: None)
    running = asyncio.create_task(candidacy.run())
    await asyncio.sleep(100)
    assert 20 < server.count < 200
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    await candidacy.release()


@given(st.lists(anything.damaged(LEASE, most=2), min_size=1, max_size=3) | anything.values,
       st.sampled_from(['member', 'shard', 'scheme']), st.floats(0, 100))
def test_anything_in_the_leases_of_shards(found, role, passed):
    found = ask(lambda client: client.find(label='x', value='y'), {'items': found})
    if found is not None:
        for raw in found:
            raw['metadata'].setdefault('labels', {})
            if raw['metadata']['labels'] is not None:
                raw['metadata']['labels'][rosters.ROLE] = role
        seen = rosters.see(rosters.see({}, found, group=GROUP, now=1000.0), found, group=GROUP,
                           now=1000.0 + passed)
        view = rosters.assess(seen, group=GROUP, now=1000.0 + passed)
        rosters.is_scheme_settled(seen, group=GROUP, view=view, now=1000.0 + passed)
        now = Moment(1000.0 + passed, datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        for raw in found:
            for kind, shard in [('member', None), ('shard', 1), ('scheme', None)]:
                json.dumps(rosters.make(
                    raw, 'x', 'me', role=kind, shard=shard, group=GROUP, now=now))
