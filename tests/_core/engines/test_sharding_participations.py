"""
Replicas that share shards, in virtual time: they come and go, are suspended, and are cut off.
"""
import asyncio
import collections
import os
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopf import testing
from kopf._cogs.clients import errors, leasing
from kopf._core.engines.sharding import hashing, rosters
from tests._core.engines import sharders
from tests._core.engines.sharders import (
    DEADLINE,
    DURATION,
    PERIOD,
    Api,
    Replica,
    Watch,
    count_held,
    is_fair,
    now,
    wait_fair,
)
from tests._core.reactor.worlds import run_virtually

COUNT = 32


class World:

    def __init__(self, number, **kwargs):
        self.api = Api()
        self.kwargs = {'count': COUNT, **kwargs}
        self.replicas = []
        self.watch = Watch(self.replicas)
        self.add(number)

    def add(self, number=1, **kwargs):
        for _ in range(number):
            self.replicas.append(Replica(
                self.api, f'r{len(self.replicas):03}', **{**self.kwargs, **kwargs}).start())
        return self.replicas[-1]

    async def __aenter__(self):
        self.watching = asyncio.create_task(self.watch.run())
        await wait_fair(self.replicas, self.kwargs['count'])
        return self

    async def __aexit__(self, *_):
        self.watching.cancel()
        for replica in self.replicas:
            if not replica.task.done():
                await replica.kill()
        assert self.watch.clashes == []


@testing.virtual_time
async def test_replicas_that_start_together_move_nothing():
    async with World(3) as world:
        await asyncio.sleep(100)
        assert world.api.moves == COUNT
        assert sorted(count_held(world.replicas)) == [10, 11, 11]


@testing.virtual_time
async def test_slow_requests_are_no_reason_to_lose_shards(monkeypatch):
    monkeypatch.setattr(sharders, 'LATENCY', 0.49 * DEADLINE * leasing.PATIENCE)
    async with World(3) as world:
        await asyncio.sleep(1000)
        assert [replica.own.tenure.term for replica in world.replicas] == [1, 1, 1]
        assert sorted(count_held(world.replicas)) == [10, 11, 11]


@testing.virtual_time
async def test_shards_are_told_of_while_it_takes_long_to_take_the_others(monkeypatch):
    monkeypatch.setattr(sharders, 'LATENCY', 1.9)
    told = []
    replica = Replica(Api(), 'a', count=300)
    replica.participation._on_change = lambda: told.append(len(replica.own.grants))
    replica.start()
    await asyncio.sleep(2 * DURATION)
    assert replica.own.is_settled
    assert 0 < told[-1] < 300
    await replica.kill()


@testing.virtual_time
async def test_shards_of_a_killed_replica_are_taken_when_it_expires():
    async with World(3) as world:
        killed, *others = world.replicas
        had = len(killed.held)
        await killed.kill()
        took = await wait_fair(others, COUNT)
        assert DURATION - PERIOD < took < DURATION + 2 * PERIOD
        assert world.api.moves == COUNT + had


@testing.virtual_time
async def test_shards_of_a_replica_that_leaves_are_taken_at_the_next_look():
    async with World(3) as world:
        left, *others = world.replicas
        had = len(left.held)
        await left.stop()
        assert await wait_fair(others, COUNT) < 2 * PERIOD
        assert world.api.moves == COUNT + had


@testing.virtual_time
async def test_newcomer_gets_only_its_share():
    async with World(3) as world:
        world.add()
        assert await wait_fair(world.replicas, COUNT) < 4 * PERIOD
        await asyncio.sleep(100)
        assert world.api.moves == COUNT + COUNT // 4


@testing.virtual_time
async def test_shard_stays_until_the_work_under_way_has_ended():
    async with World(1, work=50) as world:
        world.add()
        await asyncio.sleep(49)
        assert count_held(world.replicas) == [COUNT, 0]
        await wait_fair(world.replicas, COUNT)


@testing.virtual_time
async def test_suspended_replica_holds_nothing_when_it_goes_on():
    async with World(2) as world:
        suspended, other = world.replicas
        suspended.suspend()
        await wait_fair([other], COUNT)
        suspended.go_on()
        assert suspended.held == set()
        await wait_fair(world.replicas, COUNT)


@testing.virtual_time
async def test_replica_that_is_cut_off_briefly_keeps_its_shards():
    async with World(2) as world:
        world.replicas[0].cut = True
        await asyncio.sleep(DEADLINE - 2 * PERIOD)
        world.replicas[0].cut = False
        await asyncio.sleep(100)
        assert world.api.moves == COUNT


@testing.virtual_time
async def test_replica_that_comes_back_before_it_expires_takes_its_shards_by_new_writes():
    async with World(2) as world:
        cut = world.replicas[0]
        cut.cut = True
        while cut.held:
            await asyncio.sleep(0.1)
        cut.cut = False
        await wait_fair(world.replicas, COUNT)
        assert world.api.moves > COUNT


@testing.virtual_time
async def test_deleted_leases_of_shards_are_not_taken_at_once_by_others():
    async with World(2) as world:
        for name in [name for name in world.api.leases if '-shard-' in name]:
            del world.api.leases[name]
        await wait_fair(world.replicas, COUNT)
        assert world.watch.clashes == []


@testing.virtual_time
async def test_deleted_membership_is_written_again():
    async with World(2) as world:
        del world.api.leases[world.replicas[0].group.name_member('r000')]
        await asyncio.sleep(100)
        assert is_fair(world.replicas, COUNT)
        assert world.api.moves == COUNT


@testing.virtual_time
async def test_leases_of_the_dead_are_removed():
    async with World(3) as world:
        await world.replicas[1].kill()
        await world.replicas[2].stop()
        await wait_fair(world.replicas[:1], COUNT)
        await asyncio.sleep(100)
        members = [raw for raw in world.api.leases.values()
                   if raw['metadata']['labels'][rosters.ROLE] == 'member']
        assert len(members) == 1


@testing.virtual_time
async def test_replicas_with_another_number_of_shards_wait_until_the_former_ones_have_left():
    async with World(2) as world:
        newer = world.add(count=64)
        newer_too = world.add(count=64)
        await asyncio.sleep(100)
        assert count_held([newer, newer_too]) == [0, 0]
        await world.replicas[0].stop()
        await asyncio.sleep(100)
        assert count_held([newer, newer_too]) == [0, 0]
        await world.replicas[1].stop()
        left = now()
        world.watch.replicas = [newer, newer_too]  # the numbers of their shards mean others
        await wait_fair([newer, newer_too], 64)
        assert now() - left >= DURATION


def elect(api, holder):
    """Let an operator hold the Lease of its leader election, which has the same name."""
    known = api.leases.get('app', {'metadata': {'name': 'app'}})
    api.request('PUT' if 'app' in api.leases else 'POST', '/leases/app', {
        **known, 'spec': {
            'holderIdentity': holder, 'leaseDurationSeconds': 15, 'renewTime': f'{now()}'}})


@testing.virtual_time
async def test_a_leader_that_has_exited_leaves_its_lease_to_the_sharding(caplog):
    api = Api()
    elect(api, 'leader')
    replicas = [Replica(api, f'r{number}', count=4).start() for number in range(2)]
    await asyncio.sleep(DURATION - 1)
    assert count_held(replicas) == [0, 0]
    assert caplog.text.count(
        "Waiting for the Lease ns/app: it is not of the sharding, and 'leader' holds it, e.g. as "
        "the leader.") == 2
    await asyncio.sleep(2 * DURATION + 3 * PERIOD)
    assert count_held(replicas) == [2, 2]
    for replica in replicas:
        await replica.kill()


@testing.virtual_time
async def test_a_living_leader_is_waited_for():
    api = Api()
    replica = Replica(api, 'r', count=4).start()
    for _ in range(100):
        elect(api, 'leader')
        await asyncio.sleep(PERIOD)
        assert count_held([replica]) == [0]
    await asyncio.sleep(2 * DURATION + 3 * PERIOD)
    assert count_held([replica]) == [4]
    await replica.kill()


@testing.virtual_time
async def test_a_leader_that_has_taken_the_lease_of_the_scheme_is_let_alone_while_it_renews(caplog):
    async with World(2) as world:
        for number in range(50):
            elect(world.api, 'leader')
            await asyncio.sleep(PERIOD)
            if number > DURATION / PERIOD:
                assert count_held(world.replicas) == [0, 0]
        assert world.api.leases['app']['spec']['holderIdentity'] == 'leader'
        await wait_fair(world.replicas, COUNT)
    assert "in force is 'leader'" in caplog.text


@testing.virtual_time
async def test_leases_that_have_lost_their_labels_get_them_again():
    async with World(2) as world:
        for name in ('app', 'app-shard-0', next(
                name for name in world.api.leases if 'shard' not in name and name != 'app')):
            raw = world.api.leases[name]
            world.api.request('PUT', f'/leases/{name}', {
                **raw, 'metadata': {**raw['metadata'], 'labels': {}}})
        await asyncio.sleep(5 * DURATION)
        assert sum(count_held(world.replicas)) == COUNT
        assert all(raw['metadata']['labels'].get(rosters.LABEL) == 'app'
                   for raw in world.api.leases.values())


@testing.virtual_time
async def test_lack_of_rights_is_told_once(caplog):
    class Forbidding(Replica):
        async def request(self, *args, **kwargs):
            raise errors.APIForbiddenError(
                'leases.coordination.k8s.io "lease" is forbidden: User "me" cannot get', status=403)

    replica = Forbidding(Api(), 'me', count=COUNT).start()
    await asyncio.sleep(100)
    await replica.kill()
    line, = [record.message for record in caplog.records if 'forbidden' in record.message]
    assert 'verbs: [list, get, create, update, delete]' in line


@testing.virtual_time
async def test_a_missing_namespace_is_told_once(caplog):
    class Homeless(Replica):
        async def request(self, method, path, **kwargs):
            if method == 'GET' and path.endswith('leases'):
                return {'items': []}
            raise errors.APINotFoundError('namespaces "ns" not found', status=404)

    replica = Homeless(Api(), 'me', count=COUNT).start()
    await asyncio.sleep(100)
    await replica.kill()
    assert [record.message for record in caplog.records] == [
        'Could not renew the membership of the sharding ns/app, and will try again: namespaces '
        '"ns" not found']


FAULTS = ['kill', 'stop', 'suspend', 'cut', 'add']


@pytest.mark.parametrize('work', [0.0, 4.0])
@given(data=st.data())
@settings(max_examples=15)
def test_no_shard_is_held_by_two_whatever_happens(work, data):
    steps = data.draw(st.lists(st.tuples(
        st.sampled_from(FAULTS), st.integers(0, 9), st.floats(0, 40)), max_size=10))

    async def run():
        async with World(3, work=work) as world:
            for fault, which, pause in steps:
                alive = [item for item in world.replicas if not item.task.done()]
                chosen = alive[which % len(alive)]
                if fault == 'add' or len(alive) < 2:
                    world.add()
                elif fault == 'suspend':
                    chosen.suspend() if chosen._running.is_set() else chosen.go_on()
                elif fault == 'cut':
                    chosen.cut = not chosen.cut
                elif fault == 'kill' or chosen.cut or not chosen._running.is_set():
                    await chosen.kill()
                else:
                    await chosen.stop()
                await asyncio.sleep(pause)
            for replica in world.replicas:
                replica.go_on()
                replica.cut = False
            await wait_fair([item for item in world.replicas if not item.task.done()], COUNT)

    run_virtually(run())


@testing.virtual_time
async def test_many_replicas_list_rarely_enough():
    async with World(20, count=128) as world:
        before = dict(world.api.sent)
        await asyncio.sleep(100)
        assert world.api.sent['GET'] - before['GET'] < 20 * 100 / 3


@pytest.mark.timeout(900)
@testing.virtual_time
async def test_many_replicas_rehome_soon_with_few_moves_and_requests():
    """
    ``$KOPF_SHARDING_REPLICAS`` is how many there are. With ``pytest -s``, the figures are printed.
    """
    number = int(os.environ.get('KOPF_SHARDING_REPLICAS', '20'))
    count, objects, tenth = 10 * number, 100 * number ** 2, number // 10
    source = random.Random(0)
    sizes = collections.Counter(
        hashing.find_shard_of_uid(str(uuid.UUID(int=source.getrandbits(128), version=4)), count)
        for _ in range(objects))

    async def measure(what, act, *, at_most):
        api, begun = world.api, now()
        moves, sent = api.moves, sum(api.sent.values())
        await act()
        alive = [replica for replica in world.replicas if not replica.task.done()]
        took = await wait_fair(alive, count)
        moved, rate = api.moves - moves, (sum(api.sent.values()) - sent) / (now() - begun)
        shares = [sum(sizes[shard] for shard in replica.held) for replica in alive]
        print(f"{what}: {moved} of {count} shards move, fair after {took:.1f} s, "
              f"{rate:.0f} requests/s; objects of a replica: {min(shares)} to {max(shares)} "
              f"({objects / len(alive):.0f} would be fair)")
        assert moved <= at_most
        assert took < DURATION + 6 * PERIOD
        await asyncio.sleep(3 * DURATION)
        assert api.moves - moves == moved

    async def kill(number):
        alive = [replica for replica in world.replicas if not replica.task.done()]
        for replica in alive[:number]:
            await replica.kill()

    async def leave():
        for replica in world.replicas[-tenth:]:
            await replica.stop()

    async def add():
        world.add(tenth)

    async with World(number, count=count) as world:
        before = sum(world.api.sent.values())
        await asyncio.sleep(100)
        rate = (sum(world.api.sent.values()) - before) / 100
        print(f"\n{number} replicas at rest: {rate:.0f} requests/s")
        assert rate < number
        await measure("1 is killed", lambda: kill(1), at_most=10)
        await measure(f"{tenth} exit", leave, at_most=11 * tenth)
        await measure(f"{tenth} are added", add, at_most=11 * tenth)
        await measure(f"{2 * tenth} are killed", lambda: kill(2 * tenth), at_most=22 * tenth)
