"""
The command that releases the objects of an operator, so that they can be deleted without it.
"""
import asyncio
import re

import pytest

from tests.e2e import commands

COUNT = 150
FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'
HANDLERS = '''
@kopf.on.create(*KIND)
def created(**_):
    pass

@kopf.on.delete(*KIND)
def deleted(**_):
    raise kopf.TemporaryError("not yet", delay=3600)
'''


@pytest.fixture()
def release(cluster, kind):
    """Run the command; returns the exit code and the output."""
    return lambda *options: commands.run(cluster, *list_args(kind), *options)


def list_args(kind):
    return ['release', '-n', 'default', f'{kind.plural}.{kind.group}', '--leader-elect=false']


async def prepare(kube, kind, count=COUNT, finalizers=(FINALIZER,)):
    for start in range(0, count, 25):
        await asyncio.gather(*(
            kube.create(kind, f'obj{number}', finalizers=[*finalizers])
            for number in range(start, min(start + 25, count))))


async def get_finalizers(kube, kind):
    return {obj['metadata']['name']: obj['metadata'].get('finalizers', [])
            for obj in await kube.list_objects(kind)}


async def test_objects_can_be_deleted_after_the_operator(kube, kind, operator, release):
    op = operator(HANDLERS, kind=kind)
    names = [f'obj{number}' for number in range(20)]
    await asyncio.gather(*(kube.create(kind, name) for name in names))
    await asyncio.gather(*(
        kube.wait_for(kind, name, lambda obj: (
            obj['metadata']['finalizers'] and obj['metadata']['annotations'])) for name in names))
    assert op.stop() == 0
    code, output = await release('--annotations')
    assert code == 0
    assert f"{kind.plural}.v1.{kind.group}: 20 released, 0 left." in output
    assert [obj for obj in await kube.list_objects(kind)
            if {'finalizers', 'annotations'} & obj['metadata'].keys()] == []
    await asyncio.gather(*(kube.delete(kind, name) for name in names))
    assert await kube.list_objects(kind) == []


async def test_finalizers_that_others_add_at_the_same_time_are_not_lost(kube, kind, release):
    await prepare(kube, kind)
    added = []

    async def add(name):
        """Add one as a client in Go does: with the list that was read, and its version."""
        obj = await kube.get(kind, name)
        obj['metadata']['finalizers'] = [*obj['metadata'].get('finalizers', []), 'example.com/x']
        await kube.replace(kind, obj)
        added.append(name)

    releasing = asyncio.create_task(release())
    for number in range(COUNT):
        await asyncio.gather(add(f'obj{number}'), return_exceptions=True)
        await asyncio.sleep(0.02)
    code, output = await releasing
    assert code == 0, output
    assert len(added) > COUNT / 2
    assert await get_finalizers(kube, kind) == {
        f'obj{number}': ['example.com/x'] if f'obj{number}' in added else []
        for number in range(COUNT)}


async def test_a_release_that_was_killed_is_continued(kube, kind, cluster, release):
    await prepare(kube, kind)
    async with commands.start(cluster, *list_args(kind)) as process:
        while all((await get_finalizers(kube, kind)).values()):
            assert process.returncode is None
        process.kill()
        await process.wait()
    code, output = await release()
    assert code == 0
    # The API can still do what it was asked for before the kill, so the second run counts.
    left, = map(int, re.findall(r': (\d+) to release\.', output))
    assert 0 < left < COUNT
    assert f": {left} released, 0 left." in output
    assert not any((await get_finalizers(kube, kind)).values())


async def test_it_is_refused_while_the_operator_holds_its_lease(
        kube, kind, cluster, operator, lease):
    op = operator(HANDLERS, f'--leader-elect={lease}', kind=kind)
    await kube.create(kind, 'obj')
    await kube.wait_for(kind, 'obj', lambda obj: obj['metadata']['finalizers'])
    args = [*list_args(kind), f'--leader-elect={lease}']
    code, output = await commands.run(cluster, *args)
    assert code == 1
    assert f"Error: The operator runs: the Lease default/{lease} is held by " in output
    assert await get_finalizers(kube, kind) == {'obj': [FINALIZER]}
    assert op.stop() == 0
    assert (await commands.run(cluster, *args))[0] == 0
    assert await get_finalizers(kube, kind) == {'obj': []}


async def test_objects_that_are_being_deleted_vanish_only_if_asked_for(kube, kind, release):
    await prepare(kube, kind, 3)
    await kube.delete(kind, 'obj1')
    code, output = await release()
    assert code == 1
    assert "Error: Being deleted: 1 (default/obj1). " in output
    assert (await release('--dry-run', '--deleting'))[0] == 0
    assert set(map(tuple, (await get_finalizers(kube, kind)).values())) == {(FINALIZER,)}
    assert (await release('--deleting'))[0] == 0
    assert await get_finalizers(kube, kind) == {'obj0': [], 'obj2': []}
