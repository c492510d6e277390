"""
The sharding of an operator: what it refuses, where objects belong, and what it costs where it is
not used.
"""
import collections
import logging
import subprocess
import sys
import uuid

import pytest

from kopf._cogs.configs.configuration import OperatorSettings, SettingsError
from kopf._core.engines.sharding.partitions import Partition
from kopf._core.reactor.roles import sharding


@pytest.fixture()
def settings():
    settings = OperatorSettings()
    settings.sharding.count = 8
    return settings


def make_partition(settings):
    return Partition(settings.sharding.count, settings.sharding.by)


def make_body(uid='u1', *, namespace='ns', owners=(), **metadata):
    return {'metadata': {'uid': uid, 'name': 'x', 'namespace': namespace,
                         'ownerReferences': list(owners), **metadata}}


def test_without_a_count_nothing_of_it_is_even_imported():
    program = '''if True:
        import asyncio, sys, kopf, kopf.cli
        from kopf._cogs.clients.vaults import Vault
        stopped = asyncio.Event()
        stopped.set()
        asyncio.run(kopf.operator(
            registry=kopf.OperatorRegistry(), clusterwide=True, standalone=True,
            stop_flag=stopped, vault=Vault({'': kopf.ConnectionInfo(server='http://127.0.0.1')})))
        print([name for name in sys.modules if 'kopf._core' in name and (
            'shard' in name or 'divisions' in name)])
    '''
    output = subprocess.check_output([sys.executable, '-c', program], text=True)
    assert output.strip() == '[]'


def test_leader_election_at_the_same_time_is_refused(settings):
    settings.leadership.name = 'lease'
    with pytest.raises(SettingsError, match=r'Sharding and leader election exclude each other'):
        sharding.verify(settings)


@pytest.mark.parametrize(('name', 'value'), [
    ('mandatory', True), ('priority', 1), ('name', 'other')])
def test_peering_at_the_same_time_is_refused(settings, name, value):
    setattr(settings.peering, name, value)
    with pytest.raises(SettingsError, match=r'Sharding and peering exclude each other'):
        sharding.verify(settings)
    settings.peering.standalone = True
    sharding.verify(settings)


def test_durations_have_to_fit(settings):
    settings.leadership.renew_deadline = settings.leadership.lease_duration
    with pytest.raises(SettingsError, match='lease_duration'):
        sharding.verify(settings)


@pytest.mark.parametrize('count', [0, -1, 2.5])
def test_there_is_a_whole_number_of_shards(settings, count):
    settings.sharding.count = count
    with pytest.raises(SettingsError, match='must be a whole number from 1 on'):
        sharding.verify(settings)


def test_shards_are_by_what_is_known(settings):
    settings.sharding.by = 'name'
    with pytest.raises(SettingsError, match="'uid', 'own-uid', 'namespace', or a function"):
        sharding.verify(settings)


def test_shards_have_about_the_same_number_of_objects(settings):
    find = make_partition(settings).find
    counts = collections.Counter(find(make_body(str(uuid.uuid4()))) for _ in range(8000))
    assert set(counts) == set(range(8))
    assert all(800 < count < 1200 for count in counts.values())


def test_owned_object_belongs_to_the_shard_of_its_controller(settings):
    find = make_partition(settings).find
    for _ in range(20):
        parent, child, other = (str(uuid.uuid4()) for _ in range(3))
        owners = [{'uid': other, 'controller': False}, {'uid': parent, 'controller': True}]
        assert find(make_body(child, owners=owners)) == find(make_body(parent))
        assert find(make_body(child, owners=owners[:1])) == find(make_body(child))


def test_owned_object_belongs_to_a_shard_of_its_own_if_shards_are_by_own_uids(settings):
    settings.sharding.by = 'own-uid'
    find = make_partition(settings).find
    for _ in range(20):
        parent, child = (str(uuid.uuid4()) for _ in range(2))
        assert find(make_body(child, owners=[{'uid': parent, 'controller': True}])) == (
            find(make_body(child)))


@pytest.mark.parametrize('by', ['uid', 'namespace', lambda body: body['metadata']['name']])
def test_api_server_selects_by_own_uids_only(settings, by):
    settings.sharding.by = by
    assert make_partition(settings).select([0]) is None
    settings.sharding.by = 'own-uid'
    partition = make_partition(settings)
    find, select = partition.find, partition.select
    for _ in range(20):
        body = make_body(str(uuid.uuid4()), owners=[{'uid': 'x', 'controller': True}])
        assert select([find(body)]).covers(body)


def test_replicas_with_other_shards_than_by_own_uids_never_work_at_the_same_time(settings):
    schemes = set()
    for by in ['uid', 'own-uid']:
        settings.sharding.by = by
        schemes.add(sharding.make_group(settings, identity='pod', namespace='ns').scheme)
    assert len(schemes) == 2


def test_shards_by_namespace_keep_namespaces_together(settings):
    settings.sharding.by = 'namespace'
    find = make_partition(settings).find
    assert len({find(make_body(str(i))) for i in range(50)}) == 1
    assert len({find(make_body(namespace=f'ns{i}')) for i in range(50)}) > 4


def test_cluster_scoped_objects_are_together_if_shards_are_by_namespace(settings):
    settings.sharding.by = 'namespace'
    find = make_partition(settings).find
    assert len({find({'metadata': {'uid': str(i), 'name': 'x'}}) for i in range(50)}) == 1


def test_shards_by_a_function_are_by_what_it_returns(settings):
    settings.sharding.by = lambda body: body.metadata.labels['team']
    find = make_partition(settings).find
    assert len({find(make_body(str(i), labels={'team': 'red'})) for i in range(50)}) == 1
    assert len({find(make_body(labels={'team': f'team{i}'})) for i in range(50)}) > 4


def test_object_for_which_the_function_fails_is_found_by_its_uid(settings, caplog):
    caplog.set_level(logging.ERROR)
    settings.sharding.by = lambda body: body['metadata']['labels']['team']
    find = make_partition(settings).find
    assert len({find(make_body(str(i))) for i in range(50)}) > 4
    assert 'settings.sharding.by has failed for ns/x' in caplog.text


def test_replicas_with_the_same_identity_are_different_members(settings):
    one, other = (
        sharding.make_group(settings, identity='pod', namespace='ns') for _ in range(2))
    assert one.me.startswith('pod/')
    assert one.me != other.me
