"""
The command that stores all objects of a custom resource in its present storage version.
"""
import asyncio
import dataclasses

import pytest

from tests._kits.typed.pairs import rules
from tests.e2e import commands
from tests.e2e.kubes import CRDS

COUNT = 150
HANDLERS = '''
@kopf.on.event(*KIND)
def noticed(name, **_):
    print(f"event of {name}")

@kopf.on.create(*KIND)
def created(name, **_):
    print(f"creation of {name}")

@kopf.on.update(*KIND)
def updated(name, **_):
    print(f"update of {name}")
'''


@pytest.fixture()
async def kind(make_kind):
    """A kind whose objects were stored in v1, and are stored in v2 from now on: see `prepare`."""
    return await make_kind(more_versions=['v2'])


@pytest.fixture()
def migrate(cluster, kind):
    """Run the command; returns the exit code and the output."""
    return lambda: commands.run(cluster, *list_args(kind))


def list_args(kind):
    return ['migrate', f'{kind.plural}.{kind.group}']


async def prepare(kube, kind, count=COUNT):
    for start in range(0, count, 25):
        await asyncio.gather(*(
            kube.create(kind, f'obj{number}', spec={'size': number})
            for number in range(start, min(start + 25, count))))
    await change_definition(kube, kind, lambda version: {
        **version, 'storage': version['name'] == 'v2'})


async def change_definition(kube, kind, change):
    path = f'{CRDS}/{kind.plural}.{kind.group}'
    definition = await kube.request('GET', path)
    versions = [changed for version in definition['spec']['versions']
                if (changed := change(version)) is not None]
    definition['spec']['versions'] = versions
    await kube.set_spec(path, definition['spec'])
    await asyncio.sleep(1)  # a moment later, the API interrupts the lists and the writes
    await kube.wait_served(dataclasses.replace(kind, version=versions[0]['name']))


async def get_stored(kube, kind):
    definition = await kube.request('GET', f'{CRDS}/{kind.plural}.{kind.group}')
    return definition['status']['storedVersions']


async def get_versions(kube, kind):
    return {obj['metadata']['name']: obj['metadata']['resourceVersion']
            for obj in await kube.list_objects(kind)}


async def test_a_version_can_be_removed_after_a_migration_that_was_killed(
        kube, kind, cluster, migrate):
    await prepare(kube, kind)
    assert await get_stored(kube, kind) == ['v1', 'v2']
    before = await get_versions(kube, kind)
    async with commands.start(cluster, *list_args(kind)) as process:
        while await get_versions(kube, kind) == before:
            assert process.returncode is None
        process.kill()
        await process.wait()
    assert await get_stored(kube, kind) == ['v1', 'v2']
    killed = await get_versions(kube, kind)
    assert 0 < sum(killed[name] == before[name] for name in before) < COUNT

    code, output = await migrate()
    assert (code, await get_stored(kube, kind)) == (0, ['v2']), output
    after = await get_versions(kube, kind)
    assert [name for name in before if after[name] == before[name]] == []
    assert [name for name in before  # what was written before is not written again
            if killed[name] != before[name] and after[name] != killed[name]] == []
    await change_definition(
        kube, kind, lambda version: version if version['name'] == 'v2' else None)
    only = dataclasses.replace(kind, version='v2')
    assert {obj['metadata']['name']: obj['spec'] for obj in await kube.list_objects(only)} == {
        f'obj{number}': {'size': number} for number in range(COUNT)}
    await kube.delete_kind(only)


async def test_writes_of_others_at_the_same_time_are_not_lost(kube, kind, cluster):
    await prepare(kube, kind)
    before = await get_versions(kube, kind)
    written = dict.fromkeys(before, 0)

    async def write(name):
        written[name] += 1
        await kube.patch(kind, name, {'spec': {'written': written[name]}})

    async with commands.start(cluster, *list_args(kind)) as process:
        ending = asyncio.create_task(process.communicate())
        while not ending.done():
            for name in before:
                await write(name)
        output, _ = await ending
        assert process.returncode == 0, output
    assert await get_stored(kube, kind) == ['v2']
    assert {obj['metadata']['name']: obj['spec']['written']
            for obj in await kube.list_objects(kind)} == written


async def test_objects_that_are_invalid_now_are_named(kube, kind, minor, migrate):
    """Since 1.30, an unchanged object stays valid, except for rules about its former state."""
    await prepare(kube, kind, 50)
    size = {'type': 'integer', **({'maximum': 48} if minor < 30 else rules('oldSelf < 49'))}
    await change_definition(kube, kind, lambda version: {**version, 'schema': {
        'openAPIV3Schema': {'type': 'object', 'properties': {
            'spec': {'type': 'object', 'properties': {'size': size}}}}}})
    code, output = await migrate()
    assert code == 1
    assert f"{kind.kind.lower()} default/obj49: " in output
    assert ": 1 not written." in output
    assert await get_stored(kube, kind) == ['v1', 'v2']
    await kube.delete(kind, 'obj49')
    code, output = await migrate()
    assert (code, await get_stored(kube, kind)) == (0, ['v2']), output


async def test_no_handler_of_changes_is_called(kube, kind, operator, migrate):
    await prepare(kube, kind, 20)
    op = operator(HANDLERS, kind=kind)
    await op.wait_for("creation of", count=20)
    await change_definition(kube, kind, lambda version: {
        **version, 'storage': version['name'] == 'v1'})
    await asyncio.gather(*(  # stored in v1 again
        kube.patch(kind, f'obj{number}', {'metadata': {'labels': {'a': 'b'}}})
        for number in range(20)))
    await op.wait_for("update of", count=20)
    await asyncio.gather(*(  # the last writes of the operator
        kube.wait_for(kind, f'obj{number}', lambda obj: '"a":"b"' in obj['metadata'][
            'annotations']['kopf.zalando.org/last-handled-configuration'])
        for number in range(20)))
    await change_definition(kube, kind, lambda version: {
        **version, 'storage': version['name'] == 'v2'})
    seen = len(op.find("event of"))
    code, output = await migrate()
    assert code == 0, output
    await op.wait_for("event of", count=seen + 1)
    await asyncio.sleep(2)
    assert len(op.find("update of")) == 20
    assert len(op.find("creation of")) == 20
