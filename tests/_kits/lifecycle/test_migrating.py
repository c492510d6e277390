import asyncio
import copy

import pytest

import kopf
from kopf import testing
from kopf._cogs.clients.vaults import Vault
from kopf._kits import commanding
from kopf._kits.lifecycle import migrating, sweeping
from tests.crds import make_crd

NAME = 'things.example.com'
ACTIVE = [
    "things.example.com: objects are stored in v1, v2. All are written in v2 now.",
    "things.example.com: all objects are stored in v2 now."]
CONDITION = {'reason': 'any', 'message': '', 'lastTransitionTime': '2026-01-01T00:00:00Z'}


@pytest.fixture()
def lines():
    """What the command says."""
    return []


@pytest.fixture()
def migrate(lines):
    """Run the command on the API."""
    async def migrate(api, kind='things'):
        vault = Vault({'test': api.credentials})
        async with sweeping.begin('migrated', say=lines.append, vault=vault) as sweep:
            return await migrating.migrate(sweep, kind)
    return migrate


async def prepare(api, count=3):
    """Store objects in the version v1, and then make v2 the storage version."""
    definition = copy.deepcopy(make_crd('Thing', 'things'))
    version, = definition['spec']['versions']
    definition['spec']['versions'].append({**version, 'name': 'v2', 'storage': False})
    await api.client.load(definition)
    for number in range(count):
        await api.client.create({'apiVersion': 'example.com/v1', 'kind': 'Thing',
                                 'metadata': {'name': f'x{number}'}, 'spec': {'size': number}})
    await store_in(api, 'v2')


async def store_in(api, name):
    found = await api.client.get('customresourcedefinitions', NAME)
    await api.client.patch('customresourcedefinitions', NAME, {'spec': {'versions': [
        {**version, 'storage': version['name'] == name}
        for version in found['spec']['versions']]}})


async def get_stored(api):
    found = await api.client.get('customresourcedefinitions', NAME)
    return found['status']['storedVersions']


async def get_versions(api):
    return {item['metadata']['name']: int(item['metadata']['resourceVersion'])
            for item in await api.client.list('things')}


@testing.virtual_time
async def test_all_pages_are_written_and_the_other_versions_forgotten(migrate, lines, monkeypatch):
    monkeypatch.setattr('kopf._cogs.clients.listing.DEFAULT_CHUNK_SIZE', 7)
    async with testing.open_api('sandbox') as api:
        await prepare(api, 50)
        before = await get_versions(api)
        assert await migrate(api)
        after = await get_versions(api)
        assert await get_stored(api) == ['v2']
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] <= before[name]] == []
    assert lines == ACTIVE


@testing.virtual_time
async def test_objects_that_are_stored_in_the_present_version_are_left_alone(migrate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        assert await migrate(api)
        before = await get_versions(api)
        assert await migrate(api)
        assert await get_versions(api) == before
    assert lines[2:] == ["things.example.com: all objects are stored in v2 already."]


@testing.virtual_time
async def test_a_migration_that_was_interrupted_is_repeated(migrate, lines, monkeypatch):
    write, written = sweeping.Sweep.write, []

    async def write_some(sweep, resource, meta, changes):
        written.append(meta['name'])
        if len(written) > 5:
            raise asyncio.CancelledError
        await write(sweep, resource, meta, changes)

    async with testing.open_api('sandbox') as api:
        await prepare(api, 20)
        monkeypatch.setattr(sweeping.Sweep, 'write', write_some)
        with pytest.raises(asyncio.CancelledError):
            await migrate(api)
        assert await get_stored(api) == ['v1', 'v2']
        monkeypatch.setattr(sweeping.Sweep, 'write', write)
        assert await migrate(api)
        assert await get_stored(api) == ['v2']


@testing.virtual_time
async def test_objects_that_others_write_or_delete_are_done(migrate, monkeypatch):
    write = sweeping.Sweep.write

    async def write_late(sweep, resource, meta, changes):
        if meta['name'] == 'x0':
            await api.client.patch('things', 'x0', {'spec': {'size': 100}})
        if meta['name'] == 'x1':
            await api.client.delete('things', 'x1')
        await write(sweep, resource, meta, changes)

    monkeypatch.setattr(sweeping.Sweep, 'write', write_late)
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        assert await migrate(api)
        assert (await api.client.get('things', 'x0'))['spec'] == {'size': 100}


@testing.virtual_time
async def test_refused_objects_are_named_and_nothing_is_forgotten(migrate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        fault = api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='patch', resource='things', name='x1', status=422))
        assert not await migrate(api)
        assert await get_stored(api) == ['v1', 'v2']
        assert lines[1].startswith("thing default/x1: ")
        assert lines[2].startswith("things.example.com: 1 not written. ")
        api.sandbox.faults.remove(fault)
        assert await migrate(api)
        assert await get_stored(api) == ['v2']


@testing.virtual_time
async def test_versions_are_not_forgotten_if_the_definition_changes_meanwhile(
        migrate, monkeypatch):
    write = sweeping.Sweep.write

    async def write_late(sweep, resource, meta, changes):
        if meta['name'] == 'x2':
            await store_in(api, 'v1')
        await write(sweep, resource, meta, changes)

    monkeypatch.setattr(sweeping.Sweep, 'write', write_late)
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        with pytest.raises(commanding.CommandError, match="has changed meanwhile. Run the command"):
            await migrate(api)
        assert await get_stored(api) == ['v1', 'v2']


@testing.virtual_time
async def test_the_status_of_the_definition_can_be_changed_by_others(migrate):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='patch', resource='customresourcedefinitions/status', status=409,
            count=2))
        assert await migrate(api)
        assert await get_stored(api) == ['v2']


@testing.virtual_time
async def test_only_custom_resources_are_migrated(migrate):
    async with testing.open_api('sandbox') as api:
        with pytest.raises(commanding.CommandError, match="pods.v1 is not defined by a Custom"):
            await migrate(api, 'pods')


def test_no_handler_of_changes_is_called(migrate):
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.event('things', registry=registry)
    def noticed(name, **_):
        seen.append(('event', name))

    @kopf.on.create('things', registry=registry)
    @kopf.on.update('things', registry=registry)
    def changed(name, reason, **_):
        seen.append((str(reason), name))

    @testing.virtual_time
    async def act():
        async with testing.open_api('sandbox') as api:
            await prepare(api)
            async with api.operator(registry=registry):
                await asyncio.sleep(10)
                assert sorted(item for item in seen if item[0] != 'event') == [
                    ('create', 'x0'), ('create', 'x1'), ('create', 'x2')]
                await store_in(api, 'v1')
                await asyncio.sleep(10)
                seen.clear()
                assert await migrate(api)
                await asyncio.sleep(10)
    act()
    assert sorted(seen) == [('event', 'x0'), ('event', 'x1'), ('event', 'x2')]


def define_migrations(version):
    """Define the migrations as a custom resource: the sandbox does not have them."""
    definition = copy.deepcopy(make_crd('StorageVersionMigration', 'storageversionmigrations',
                                        scope='Cluster'))
    definition['metadata'] = {
        'name': 'storageversionmigrations.storagemigration.k8s.io',
        'annotations': {'api-approved.kubernetes.io': 'https://example.com'}}
    definition['spec']['group'] = 'storagemigration.k8s.io'
    definition['spec']['versions'][0]['name'] = version
    return definition


@pytest.fixture()
def migrate_by(migrate):
    """Run the command on an API whose controller sets these conditions, one after another."""
    async def control(api, types, seen):
        while not (found := await api.client.list('storageversionmigrations')):
            await asyncio.sleep(0.1)
        seen.append(found[0]['spec']['resource'])
        conditions = []
        for type_ in types:
            await asyncio.sleep(10)
            conditions.append({'type': type_, 'status': 'True', **CONDITION})
            await api.client.patch('storageversionmigrations', found[0]['metadata']['name'],
                                   {'status': {'conditions': conditions}}, subresource='status')

    def migrate_by(*types, version='v1'):
        seen = []

        @testing.virtual_time
        async def act():
            async with testing.open_api('sandbox') as api:
                await prepare(api)
                await api.client.load(define_migrations(version))
                before = await get_versions(api)
                controlling = asyncio.create_task(control(api, types, seen))
                assert await migrate(api)
                await controlling
                assert await get_stored(api) == ['v2']
                assert await api.client.list('storageversionmigrations') == []
                return await get_versions(api) != before
        return act(), seen
    return migrate_by


@pytest.mark.parametrize(('version', 'extra'), [
    ('v1', {}), ('v1beta1', {}), ('v1alpha1', {'version': 'v2'})])
def test_the_cluster_migrates_the_objects_if_it_can(migrate_by, lines, version, extra):
    is_written, seen = migrate_by('Running', 'Succeeded', version=version)
    assert not is_written
    assert seen == [{'group': 'example.com', 'resource': 'things', **extra}]
    assert lines == ACTIVE


@pytest.mark.parametrize('types', [(), ('Running',), ('Running', 'Failed')])
def test_what_the_cluster_does_not_migrate_is_written(migrate_by, lines, types):
    is_written, _ = migrate_by(*types)
    assert is_written
    assert lines[1] == "things.example.com: the objects are written one by one instead."


@testing.virtual_time
async def test_without_the_right_to_ask_the_cluster_the_objects_are_written(migrate, lines):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        await api.client.load(define_migrations('v1'))
        api.sandbox.faults.add(testing.Fault(
            action='refuse', resource='storageversionmigrations', status=403))
        assert await migrate(api)
        assert await get_stored(api) == ['v2']
    assert "the cluster does not migrate the objects: " in lines[1]


@testing.virtual_time
async def test_the_versions_are_kept_if_the_cluster_forgets_them_without_success(
        migrate, monkeypatch):
    """As Kubernetes 1.36 does. They are kept before the first write: it could be the last one."""
    original, seen = sweeping.Sweep.write, []

    async def write(sweep, resource, meta, changes):
        seen.append(await get_stored(api))
        await original(sweep, resource, meta, changes)

    async def forget(api):
        while not (found := await api.client.list('storageversionmigrations')):
            await asyncio.sleep(0.1)
        await api.client.patch('customresourcedefinitions', NAME, {
            'status': {'storedVersions': ['v2']}}, subresource='status')
        await api.client.patch(
            'storageversionmigrations', found[0]['metadata']['name'],
            {'status': {'conditions': [{'type': 'Failed', 'status': 'True', **CONDITION}]}},
            subresource='status')

    async with testing.open_api('sandbox') as api:
        await prepare(api)
        await api.client.load(define_migrations('v1beta1'))
        api.sandbox.faults.add(testing.Fault(
            action='refuse', verb='patch', resource='things', name='x1', status=422))
        monkeypatch.setattr(sweeping.Sweep, 'write', write)
        forgetting = asyncio.create_task(forget(api))
        assert not await migrate(api)
        await forgetting
        assert await get_stored(api) == ['v1', 'v2']
    assert seen == [['v1', 'v2']] * 3


@testing.virtual_time
async def test_a_migration_by_the_cluster_that_was_begun_before_a_kill_proves_nothing(migrate):
    async with testing.open_api('sandbox') as api:
        await prepare(api)
        await api.client.load(define_migrations('v1beta1'))
        await api.client.create('storageversionmigrations', f'kopf-{NAME}')
        await api.client.patch('customresourcedefinitions', NAME, {
            'status': {'storedVersions': ['v2']}}, subresource='status')
        before = await get_versions(api)
        assert await migrate(api)
        after = await get_versions(api)
        assert [name for name in after if after[name] == before[name]] == []
