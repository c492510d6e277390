"""
Replicas that handle the objects of the shards they hold, while shards come and go; in a small world
in virtual time.
"""
import asyncio
import collections
import copy
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kopf
from kopf import testing
from kopf._core.engines.reconciling import serversideapply
from kopf._core.engines.sharding.holdings import Grant
from kopf._core.intents import registries
from kopf._core.intents.stopping import DaemonStoppingReason
from kopf._core.reactor.roles import divisions
from kopf._kits.observing import inspection
from tests._core.reactor.sharders import (
    RESOURCE,
    Partition,
    Replica,
    create,
    make_api,
    rest,
)
from tests._core.reactor.worlds import assert_handled, make_counting_registry, run_virtually


def ignore(**_):
    """Handle nothing, so that there is a handler."""


def register_seeing(registry, calls):
    """Note which objects event handlers and resuming handlers see."""
    @kopf.on.event('kopfexamples', registry=registry)
    async def see(name, type, **_):
        calls.append((name, type))

    @kopf.on.resume('kopfexamples', registry=registry)
    async def resume(name, **_):
        calls.append((name, 'resume'))


@testing.virtual_time
async def test_only_objects_of_held_shards_are_handled(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    api = make_api(x=0, y=1)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await rest(replica)
    create(api, 'z', 1)
    create(api, 'w', 0)
    await rest(replica)
    assert set(calls) == {'x', 'w'}
    assert {name for name, _ in api.writers} == {'x', 'w'}
    await replica.stop()


@testing.virtual_time
async def test_replica_without_shards_handles_nothing(registry, calls):
    @kopf.on.event('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    replica = Replica(make_api(x=0), 'a', registry)
    await asyncio.sleep(10)
    assert calls == []
    await replica.stop()


@testing.virtual_time
async def test_resume_and_event_handlers_see_the_objects_of_a_shard_that_is_gained(
        registry, calls):
    register_seeing(registry, calls)

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        pass

    api = make_api(x=0, y=1)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await rest(replica)
    calls.clear()
    replica.gain(1)
    await rest(replica)
    assert [call for call in calls if call[0] == 'x'] == []
    assert calls[0] == ('y', None)
    assert ('y', 'resume') in calls
    await replica.stop()


@testing.virtual_time
async def test_shard_is_released_after_its_handlers_and_their_outcomes_are_written(
        registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(**_):
        await asyncio.sleep(5)
        calls.append('first')

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(**_):
        calls.append('second')

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    await a.release(0)
    assert 4 <= asyncio.get_running_loop().time() - begun < 5
    assert calls == ['first']
    b.gain(0)
    await rest(b)
    assert calls == ['first', 'second']
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_change_during_a_release_does_not_repeat_the_handlers_under_way(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def first(spec, **_):
        await asyncio.sleep(5)
        calls.append(('first', spec['n']))

    @kopf.on.create('kopfexamples', registry=registry)
    async def second(spec, **_):
        calls.append(('second', spec['n']))

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    await asyncio.sleep(1)
    releasing = asyncio.create_task(a.release(0))
    await asyncio.sleep(1)
    api.edit({'spec': {'n': 1}}, 'x')
    await releasing
    b.gain(0)
    await rest(b)
    assert calls == [('first', 0), ('second', 1)]
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_handlers_that_take_too_long_are_interrupted_before_a_handover(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def slow(retry, **_):
        calls.append('begin')
        await asyncio.sleep(100)
        calls.append('end')

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.settings.sharding.handover_timeout = 20
    a.gain(0)
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    await a.release(0)
    assert 19.9 < asyncio.get_running_loop().time() - begun < 21
    b.gain(0)
    await rest(b)
    assert calls == ['begin', 'begin', 'end']
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_nothing_is_handled_in_a_shard_after_its_release(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.timer('kopfexamples', interval=3, registry=registry)
    async def handle(**_):
        calls.append('handled')

    api = make_api(x=0)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await asyncio.sleep(5)
    await replica.release(0)
    calls.clear()
    api.edit({'spec': {'n': 1}}, 'x')
    await asyncio.sleep(100)
    assert calls == []
    await replica.stop()


@testing.virtual_time
async def test_handlers_are_interrupted_and_nothing_is_written_when_a_shard_is_lost(
        registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def slow(**_):
        calls.append('begin')
        await asyncio.sleep(10)
        calls.append('end')

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    await asyncio.sleep(5)
    a.lose_by_the_clock()
    await a.lose()
    b.gain(0)
    await rest(b)
    assert calls == ['begin', 'begin', 'end']
    assert set(api.writers) == {('x', 'b')}
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_nothing_is_written_if_the_loss_is_known_only_by_the_clock(registry, calls):
    @kopf.on.create('kopfexamples', registry=registry)
    async def slow(**_):
        await asyncio.sleep(10)
        calls.append('end')

    @kopf.timer('kopfexamples', interval=7, initial_delay=8, registry=registry)
    async def tick(**_):
        calls.append('tick')

    api = make_api(x=0)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await asyncio.sleep(5)
    writes = len(api.writers)
    replica.lose_by_the_clock()
    await asyncio.sleep(100)
    assert 'tick' not in calls
    assert len(api.writers) == writes
    await replica.stop()


@testing.virtual_time
async def test_daemons_stop_at_the_release_and_start_where_the_shard_goes(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, patch, **_):
        calls.append('started')
        await stopped.wait()
        calls.append(stopped.reason & ~DaemonStoppingReason.DAEMON_SIGNALLED)
        patch.status['by'] = len(calls)

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    await asyncio.sleep(5)
    await a.release(0)
    assert calls == ['started', DaemonStoppingReason.OPERATOR_PAUSING]
    assert api.objects['x']['status']['by'] == 2
    b.gain(0)
    await asyncio.sleep(5)
    assert calls[2:] == ['started']
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_timers_tick_only_where_the_shard_is_held(registry, calls):
    @kopf.timer('kopfexamples', interval=10, registry=registry)
    async def tick(**_):
        calls.append(round(asyncio.get_running_loop().time()))

    api = make_api(x=0)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    await asyncio.sleep(15)
    await a.release(0)
    await asyncio.sleep(20)
    b.gain(0)
    await asyncio.sleep(15)
    assert calls == [0, 10, 35, 45]
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_indices_are_complete_whatever_is_held(registry, calls):
    @kopf.index('kopfexamples', id='names', registry=registry)
    async def names(name, spec, **_):
        return {spec['n']: name}

    @kopf.on.update('kopfexamples', registry=registry)
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(names, spec, **_):
        calls.append(sorted(names.get(spec['n'], [])))

    api = make_api(x=0, y=1, z=2)
    replica = Replica(api, 'a', registry)
    assert len(replica.indexers['names']) == 0
    replica.gain(0)
    await rest(replica)
    assert calls == [['x', 'y', 'z']]
    api.edit({'spec': {'n': 1}}, 'y')
    await asyncio.sleep(1)
    api.delete('z')
    await asyncio.sleep(1)
    api.edit({'spec': {'n': 1}}, 'x')
    await rest(replica)
    assert calls[1:] == [['x', 'y']]
    assert sorted(replica.indexers['names']) == [1]
    await replica.release(0)
    await asyncio.sleep(1)
    assert sorted(replica.indexers['names'][1]) == ['x', 'y']
    await replica.stop()


@testing.virtual_time
async def test_handlers_wait_until_objects_of_foreign_shards_are_indexed(registry, calls):
    @kopf.index('kopfexamples', id='names', registry=registry)
    async def names(name, **_):
        await asyncio.sleep(10 if name == 'y' else 0)
        return name

    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(names, **_):
        calls.append((round(asyncio.get_running_loop().time()), sorted(names[None])))

    api = make_api(x=0, y=1)
    replica = Replica(api, 'a', registry, lists=False)
    replica.gain(0)
    replica.list()
    await rest(replica, limit=100)
    await asyncio.sleep(20)
    assert calls == [(10, ['x', 'y'])]
    await replica.stop()


@testing.virtual_time
async def test_state_is_indexed_before_it_is_handled(registry, calls):
    @kopf.index('kopfexamples', id='sizes', registry=registry)
    async def sizes(name, spec, **_):
        await asyncio.sleep(2)
        return {name: spec['n']}

    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(name, sizes, spec, **_):
        calls.append((spec['n'], list(sizes[name])))

    api = make_api(x=0)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await asyncio.sleep(10)
    for n in (1, 2):
        api.edit({'spec': {'n': n}}, 'x')
        await asyncio.sleep(10)
    assert calls == [(1, [1]), (2, [2])]
    await replica.stop()


@testing.virtual_time
async def test_sharded_index_has_the_objects_of_held_shards_only(registry, calls):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, **_):
        calls.append(name)
        return name

    api = make_api(x=0, y=1, z=2)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await rest(replica)
    assert sorted(replica.indexers['names'][None]) == ['x']
    replica.gain(1)
    create(api, 'w', 0)
    create(api, 'v', 2)
    await rest(replica)
    assert sorted(replica.indexers['names'][None]) == ['w', 'x', 'y']
    api.delete('x')
    await rest(replica)
    assert sorted(replica.indexers['names'][None]) == ['w', 'y']
    await replica.release(0)
    assert sorted(replica.indexers['names'][None]) == ['y']
    replica.lose_by_the_clock()
    await replica.lose()
    assert len(replica.indexers['names']) == 0
    assert set(calls) == {'x', 'y', 'w'}
    await replica.stop()


@testing.virtual_time
async def test_handlers_of_a_gained_shard_wait_until_its_objects_are_in_sharded_indices(
        registry, calls):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, **_):
        await asyncio.sleep(10 if name == 'z' else 0)
        return name

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', registry=registry)
    async def handle(name, names, **_):
        calls.append((name, round(asyncio.get_running_loop().time()), sorted(names[None])))

    api = make_api(x=0, y=1, z=1)
    replica = Replica(api, 'a', registry)
    replica.gain(0)
    await asyncio.sleep(5)
    replica.gain(1)
    await asyncio.sleep(1)
    api.edit({'spec': {'n': 1}}, 'x')
    await asyncio.sleep(20)
    assert calls[:2] == [('x', 0, ['x']), ('x', 6, ['x', 'y'])]
    assert sorted(calls[2:]) == [
        ('y', 15, ['x', 'y', 'z']), ('z', 15, ['x', 'y', 'z'])]
    await replica.stop()


@testing.virtual_time
async def test_handlers_under_way_keep_their_sharded_indices_until_the_shard_is_released(
        registry, calls):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, **_):
        return name

    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(names, **_):
        await asyncio.sleep(5)
        calls.append(sorted(names[None]))

    replica = Replica(make_api(x=0), 'a', registry)
    replica.gain(0)
    await asyncio.sleep(1)
    await replica.release(0)
    assert calls == [['x']]
    assert len(replica.indexers['names']) == 0
    await replica.stop()


@testing.virtual_time
async def test_sharded_and_complete_indices_of_one_resource_differ(registry):
    @kopf.index('kopfexamples', id='everybody', registry=registry)
    @kopf.index('kopfexamples', id='own', sharded=True, registry=registry)
    async def names(name, **_):
        return name

    replica = Replica(make_api(x=0, y=1), 'a', registry)
    replica.gain(0)
    await rest(replica)
    assert sorted(replica.indexers['everybody'][None]) == ['x', 'y']
    assert sorted(replica.indexers['own'][None]) == ['x']
    await replica.release(0)
    await asyncio.sleep(1)
    assert sorted(replica.indexers['everybody'][None]) == ['x', 'y']
    assert len(replica.indexers['own']) == 0
    await replica.stop()


@testing.virtual_time
async def test_failures_of_sharded_indices_are_retried_and_forgotten_with_the_shard(
        registry, calls):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, retry, **_):
        calls.append((retry, round(asyncio.get_running_loop().time())))
        if retry < 2:
            raise kopf.TemporaryError("not yet", delay=10)
        return name

    replica = Replica(make_api(x=0), 'a', registry)
    replica.gain(0)
    await asyncio.sleep(15)
    await replica.release(0)
    await asyncio.sleep(15)
    assert calls == [(0, 0), (1, 10)]
    replica.gain(0)
    await asyncio.sleep(25)
    assert calls[2:] == [(0, 30), (1, 40), (2, 50)]
    assert list(replica.indexers['names'][None]) == ['x']
    await replica.stop()


@testing.virtual_time
async def test_object_whose_shard_changes_while_it_is_indexed_stays_in_sharded_indices(registry):
    @kopf.index('kopfexamples', id='sizes', sharded=True, registry=registry)
    async def sizes(spec, **_):
        await asyncio.sleep(10 if spec['n'] == 0 else 1)
        return spec['n']

    api = make_api(x=0)
    replica = Replica(api, 'a', registry)
    replica.gain(0, 1)
    await asyncio.sleep(5)
    api.edit({'metadata': {'labels': {'shard': '1'}}, 'spec': {'n': 1}}, 'x')
    await asyncio.sleep(2)
    assert list(replica.indexers['sizes'][None]) == [1]
    await asyncio.sleep(20)
    assert list(replica.indexers['sizes'][None]) == [1]
    await replica.stop()


@testing.virtual_time
async def test_resource_of_a_sharded_index_that_cannot_be_listed_is_logged_once(
        registry, calls, caplog):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, **_):
        return name

    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    replica = Replica(make_api(x=0), 'a', registry, lists=False)
    replica.gain(0, 1)
    for _ in range(2):
        replica.feed.unavailable(Exception("forbidden"))
    assert caplog.text.count("The indices are incomplete") == 1
    replica.list()
    await rest(replica)
    assert calls == ['x']
    await replica.stop()


@testing.virtual_time
async def test_filling_of_sharded_indices_is_shown(registry):
    @kopf.index('kopfexamples', id='names', sharded=True, registry=registry)
    async def names(name, **_):
        await asyncio.sleep(10 if name == 'y' else 0)
        return name

    replica = Replica(make_api(x=0, y=0, z=1, v=2), 'a', registry)
    replica.gain(0, 1)
    await asyncio.sleep(5)
    assert replica.feed.filling == (1, 2)
    await asyncio.sleep(10)
    assert replica.feed.filling is None
    await replica.stop()


@testing.virtual_time
async def test_resource_that_cannot_be_listed_does_not_hold_the_handlers_back(registry, calls):
    @kopf.index('kopfexamples', id='names', registry=registry)
    async def names(name, **_):
        return name

    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        calls.append(name)

    api = make_api(x=0)
    replica = Replica(api, 'a', registry, lists=False)
    replica.gain(0)
    replica.feed.unavailable(Exception("forbidden"))
    replica.list()
    await rest(replica)
    assert calls == ['x']
    await replica.stop()


@testing.virtual_time
async def test_object_whose_shard_changes_is_handled_where_it_belongs_now(registry, calls):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, **_):
        calls.append('started')
        await stopped.wait()
        calls.append('stopped')

    api = make_api(x=0)
    replica = Replica(api, 'a', registry)
    replica.gain(0, 1)
    await asyncio.sleep(1)
    api.edit({'metadata': {'labels': {'shard': '1'}}}, 'x')
    await asyncio.sleep(1)
    assert sorted(calls) == ['started', 'started', 'stopped']
    api.edit({'metadata': {'labels': {'shard': '2'}}}, 'x')
    await asyncio.sleep(1)
    assert sorted(calls) == ['started', 'started', 'stopped', 'stopped']
    await replica.stop()


@testing.virtual_time
async def test_foreign_objects_are_screened_unless_they_are_indexed_or_no_metadata_tells(registry):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    @kopf.index('kopfexamples', sharded=True, registry=registry)
    def own(**_):
        pass

    replica = Replica(make_api(), 'a', registry)
    replica.gain(0)
    screen = replica.feed.screen
    assert [screen('ADDED', {'metadata': {
        'name': 'x', 'uid': 'x', 'resourceVersion': '1234', 'labels': {'shard': shard}}})
        for shard in ('0', '1')] == [False, True]
    replica.division.partition = Partition(is_by_metadata=False)
    assert replica.feed.screen is None
    await replica.stop()

    kopf.index('kopfexamples', id='all', registry=registry)(own)
    replica = Replica(make_api(), 'a', registry)
    assert replica.feed.screen is None
    await replica.stop()


class Shards(tuple):
    """Stands for a selection: which shards are requested."""

    def __new__(cls, shards):
        return super().__new__(cls, sorted(shards))


@testing.virtual_time
async def test_api_server_is_to_select_the_held_shards(registry):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = Replica(make_api(), 'a', registry)
    replica.division.partition.select = Shards
    replica.gain(0, 1, 2)
    assert replica.feed.select(anew=True) == (0, 1, 2)
    await replica.release(1)
    assert replica.feed.select(anew=False) == (0, 2)
    await replica.stop()


@testing.virtual_time
async def test_api_server_is_to_select_nothing_for_complete_indices(registry):
    @kopf.index('kopfexamples', registry=registry)
    def everybody(**_):
        pass

    replica = Replica(make_api(), 'a', registry)
    replica.division.partition.select = Shards
    replica.gain(0)
    assert replica.feed.select(anew=True) is None
    await replica.stop()


@testing.virtual_time
async def test_shard_that_is_gained_during_a_list_is_only_in_the_next_list(registry, calls):
    register_seeing(registry, calls)
    api = make_api(x=0, y=1)
    replica = Replica(api, 'a', registry, lists=False)
    replica.division.partition.select = Shards
    replica.gain(0)
    assert replica.feed.select(anew=True) == (0,)
    replica.gain(1)
    replica.feed.list_started(restored=False)  # the response is still that for the shard 0
    replica.feed.listed(copy.deepcopy(api.objects['x']))
    replica.feed.list_ended()
    assert replica.feed.select(anew=False) == (0,)
    replica.list()
    await rest(replica)
    assert [call for call in calls if call[0] == 'y'][:2] == [('y', None), ('y', 'resume')]
    await replica.stop()


@pytest.mark.parametrize(('decorator', 'kwargs', 'expected'), [
    (kopf.on.event, {}, True),
    (kopf.on.update, {}, True),
    (kopf.timer, {'interval': 10}, True),
    (kopf.reconcile, {}, True),
    (kopf.on.validate, {}, True),  # for the memos
    (kopf.index, {'id': 'own', 'sharded': True}, True),
    (kopf.index, {'id': 'more'}, False),
])
@testing.virtual_time
async def test_complete_indices_need_no_lists_for_gained_shards(
        registry, decorator, kwargs, expected):
    @kopf.index('kopfexamples', id='everybody', registry=registry)
    @decorator('kopfexamples', registry=registry, **kwargs)
    def handle(name, **_):
        return name

    replica = Replica(make_api(), 'a', registry)
    await asyncio.sleep(divisions.GATHERING_TIME)
    replica.own.add(grant := Grant(0, replica.own.tenure.term))
    replica.begin(grant)
    assert list(replica.division.take_relisting()) == ([(RESOURCE, None)] if expected else [])
    await replica.stop()


@testing.virtual_time
async def test_shards_gained_during_a_list_or_soon_after_it_share_the_next_list(registry):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = Replica(make_api(), 'a', registry, lists=False)
    division, loop = replica.division, asyncio.get_running_loop()
    woken = division.woken
    replica.feed.select(anew=True)
    replica.feed.list_started(restored=False)
    for shard in range(5):
        await asyncio.sleep(1)
        replica.gain(shard)
        assert not division.take_relisting()
    woken.clear()
    replica.feed.list_ended()
    ended = loop.time()
    assert woken.is_set()
    replica.gain(5)
    assert not division.take_relisting()
    woken.clear()
    await asyncio.wait_for(woken.wait(), 100)
    assert loop.time() == pytest.approx(ended + divisions.GATHERING_TIME)
    assert list(division.take_relisting()) == [(RESOURCE, None)]
    assert not division.take_relisting()
    await replica.stop()


@testing.virtual_time
async def test_shards_gained_before_a_list_is_requested_need_no_other_list(registry):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = Replica(make_api(), 'a', registry, lists=False)
    replica.feed.select(anew=True)  # this request fails, e.g. after its timeout
    replica.gain(0)
    replica.feed.select(anew=True)
    replica.feed.list_started(restored=False)
    replica.feed.list_ended()
    await asyncio.sleep(100)
    assert not replica.division.take_relisting()
    await replica.stop()


@pytest.fixture()
async def divide(registry):
    """Make a replica of an operator for the namespaces 0 and 1, which are in the shards 0 and 1."""
    started = []

    def make(namespaces=('0', '1')):
        replica = Replica(make_api(), 'a', registry, lists=False)
        started.append(replica)
        served = registries.resolve(registry, [RESOURCE]).handlers[RESOURCE]
        replica.division = divisions.Division(
            replica.env, hub=replica.hub, indexers=replica.indexers,
            partition=Partition(find_only=lambda namespace: namespace and int(namespace)))
        replica.feeds = {
            namespace: replica.division.open(RESOURCE, namespace, served)
            for namespace in namespaces}
        replica.division.seal()
        return replica

    yield make
    for replica in started:
        await replica.stop()


def find_idle(replica):
    return [namespace for namespace in replica.feeds
            if replica.division.is_idle((RESOURCE, namespace))]


async def test_vanished_namespaces_are_not_remembered_as_those_to_be_listed(registry, divide):
    kopf.on.resume('kopfexamples', registry=registry)(ignore)
    replica = divide()
    replica.gain(0, 1)
    replica.division.close(RESOURCE, '0')
    replica.division.forget_except(['1'])
    assert [key for key, item in replica.division._distributors.items() if item.is_unlisted] == [
        (RESOURCE, '1')]


async def test_namespaces_of_foreign_shards_are_idle(registry, divide):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = divide()
    woken = replica.division.woken
    assert find_idle(replica) == ['0', '1']
    replica.gain(0)
    assert woken.is_set()
    assert find_idle(replica) == ['1']
    replica.gain(1)
    assert find_idle(replica) == []
    woken.clear()
    await replica.release(0)
    assert woken.is_set()
    assert find_idle(replica) == ['0']


async def test_namespaces_with_complete_indices_are_never_idle(registry, divide):
    kopf.index('kopfexamples', registry=registry)(ignore)
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    assert find_idle(divide()) == []


async def test_watches_of_several_namespaces_are_never_idle(registry, divide):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    assert find_idle(divide([None])) == []


@testing.virtual_time
async def test_shards_wait_for_the_lists_of_their_own_namespaces_only(registry, divide, calls):
    kopf.index('kopfexamples', sharded=True, registry=registry)(ignore)

    @kopf.on.event('kopfexamples', registry=registry)
    async def see(name, **_):
        calls.append(name)

    replica = divide()
    replica.gain(0)
    feed = replica.feeds['0']
    feed.select(anew=True)
    feed.list_started(restored=False)
    feed.listed({'metadata': {'name': 'x', 'uid': 'x', 'resourceVersion': '1', 'namespace': '0',
                              'labels': {'shard': '0'}}})
    feed.list_ended()
    await asyncio.sleep(10)
    assert calls == ['x']


@testing.virtual_time
async def test_namespaces_are_listed_anew_only_for_their_own_shards(registry, divide):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = divide()
    for feed in replica.feeds.values():
        feed.select(anew=True)
        feed.list_started(restored=False)
        feed.list_ended()
    await asyncio.sleep(divisions.GATHERING_TIME)
    replica.gain(1)
    assert list(replica.division.take_relisting()) == [(RESOURCE, '1')]


@testing.virtual_time
async def test_screened_objects_of_a_list_are_counted(registry):
    kopf.on.event('kopfexamples', registry=registry)(ignore)
    replica = Replica(make_api(), 'a', registry, lists=False)
    replica.gain(0)
    replica.feed.list_started(restored=False)
    assert replica.feed.screen(None, {'metadata': {
        'name': 'x', 'uid': 'x', 'labels': {'shard': '1'}}})
    assert replica.feed.listing == 1
    await replica.stop()


@testing.virtual_time
async def test_deleted_objects_are_released_by_the_holder_of_their_shard_only(registry, calls):
    @kopf.on.delete('kopfexamples', registry=registry)
    async def delete(name, **_):
        calls.append(name)

    api = make_api(x=0, y=1)
    a, b = Replica(api, 'a', registry), Replica(api, 'b', registry)
    a.gain(0)
    b.gain(1)
    await rest(a, b)
    for name in 'xy':
        api.delete(name)
    await rest(a, b)
    assert sorted(calls) == ['x', 'y']
    assert not api.objects
    assert set(api.writers) == {('x', 'a'), ('y', 'b')}
    await a.stop()
    await b.stop()


@testing.virtual_time
async def test_apply_is_limited_to_the_time_of_the_shard_also_after_delays(registry, calls):
    def note(what):
        calls.append((what, serversideapply.applier_var.get().client.is_limited))

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(retry, **_):
        note('create')
        if retry < 1:
            raise kopf.TemporaryError("not yet", delay=5)

    @kopf.timer('kopfexamples', interval=10, registry=registry)
    async def tick(**_):
        note('tick')

    @kopf.daemon('kopfexamples', initial_delay=7, registry=registry)
    async def daemon(**_):
        note('daemon')

    replica = Replica(make_api(x=0), 'a', registry)
    replica.gain(0)
    await asyncio.sleep(25)
    assert sorted(calls) == [
        ('create', True), ('create', True), ('daemon', True),
        ('tick', True), ('tick', True), ('tick', True)]
    await replica.stop()


@testing.virtual_time
async def test_limit_of_workers_is_for_all_shards(registry, calls):
    running = set()

    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        running.add(name)
        calls.append(len(running))
        await asyncio.sleep(1)
        running.remove(name)

    api = make_api(x=0, y=1, z=2, w=0, v=1, u=2)
    replica = Replica(api, 'a', registry)
    replica.settings.queueing.worker_limit = 2
    replica.gain(0, 1, 2)
    await asyncio.sleep(3.9)
    assert len(calls) == 6
    assert max(calls) == 2
    await replica.stop()


@testing.virtual_time
async def test_inspection_shows_the_objects_of_all_held_shards(registry):
    @kopf.daemon('kopfexamples', registry=registry)
    async def daemon(stopped, **_):
        await stopped.wait()

    replica = Replica(make_api(x=0, y=1, z=2), 'a', registry)
    replica.gain(0, 1)
    await rest(replica)
    inspector = inspection.Inspector(types.SimpleNamespace(role=replica.division))
    assert len([item async for item in inspector.tour()]) == 2
    assert len(list(inspector.companions)) == 2
    await replica.stop()


ACTIONS = st.lists(st.one_of(
    st.tuples(st.just('edit'), st.sampled_from('abcd')),
    st.tuples(st.just('move'), st.sampled_from([0, 1, 2])),
    st.tuples(st.just('lose'), st.sampled_from([0, 1])),
    st.tuples(st.just('wait'), st.sampled_from([0.001, 0.02, 0.3, 2, 8])),
), max_size=25)


@given(ACTIONS)
@settings(max_examples=60, deadline=None)
def test_every_state_that_lasts_is_handled_and_none_twice_unless_a_shard_was_lost(actions):
    async def live():
        api, done = make_api(a=0, b=1, c=2, d=0), collections.Counter()
        replicas = [Replica(api, str(i), make_counting_registry(done)) for i in range(2)]
        holders = {shard: shard % 2 for shard in range(3)}
        for shard, who in holders.items():
            replicas[who].gain(shard)
        newest, n = dict.fromkeys('abcd', 0), 0
        for what, value in actions:
            match what:
                case 'edit':
                    n += 1
                    newest[value] = n
                    api.edit({'spec': {'n': n}}, value)
                case 'wait':
                    await asyncio.sleep(value)
                case 'move':
                    await replicas[holders[value]].release(value)
                    holders[value] = 1 - holders[value]
                    replicas[holders[value]].gain(value)
                case 'lose':
                    lost = [shard for shard, who in holders.items() if who == value]
                    replicas[value].lose_by_the_clock()
                    await replicas[value].lose()
                    replicas[value].own.tenure.renew(float('inf'), anew=True)
                    for shard in lost:
                        holders[shard] = 1 - value
                        replicas[1 - value].gain(shard)
        await rest(*replicas, limit=100)
        assert_handled(newest, done)
        if all(what != 'lose' for what, _ in actions):
            assert set(done.values()) == {1}
        for replica in replicas:
            await replica.stop()

    run_virtually(live())


@testing.virtual_time
async def test_no_shard_knows_all_objects_that_handlers_can_read(registry, calls):
    @kopf.timer('kopfexamples', interval=100, registry=registry)  # so that states are kept
    @kopf.on.create('kopfexamples', registry=registry)
    async def handle(name, **_):
        recall = serversideapply.get_applier('get').recall
        calls.append((name, recall(RESOURCE, None, None), recall(RESOURCE, None, 'y')))

    replica = Replica(make_api(x=0, y=1), 'a', registry)
    replica.gain(0)
    await rest(replica)
    assert calls and all(call == ('x', None, None) for call in calls)
    await replica.stop()
