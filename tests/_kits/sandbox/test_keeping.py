import asyncio
import os

import pytest

from kopf._kits.sandbox import keeping
from kopf._kits.sandbox.keeping import StateError
from kopf._kits.sandbox.server import Sandbox
from tests._kits.sandbox.conftest import CRD, cm, toy


@pytest.fixture()
def path(tmp_path):
    return tmp_path / 'state'


async def test_everything_is_there_the_next_time(path):
    async with Sandbox(state=path) as sandbox:
        await sandbox.load(CRD)
        made = await sandbox.create(toy('a', spec={'x': 1}))
        labelled = await sandbox.create(cm('b', metadata={'labels': {'x': 'y'}}))
    async with Sandbox(state=path) as sandbox:
        assert await sandbox.get('toys', 'a') == made
        assert await sandbox.list('configmaps', labels='x=y') == [labelled]
        later = await sandbox.create(toy('c'))
    assert int(later['metadata']['resourceVersion']) > int(made['metadata']['resourceVersion'])


async def test_what_is_no_regular_file_is_not_replaced(path):
    os.mkfifo(path)
    with pytest.raises(StateError, match="no regular file"):
        async with Sandbox(state=path):
            pass
    assert path.is_fifo()


async def test_links_are_followed(path, tmp_path):
    path.symlink_to(tmp_path / 'real')
    async with Sandbox(state=path) as sandbox:
        await sandbox.create(cm('a'))
    assert path.is_symlink() and (tmp_path / 'real').is_file()


async def test_revisions_from_before_are_gone(path):
    async with Sandbox(state=path) as sandbox:
        made = await sandbox.create(cm('a'))
    async with Sandbox(state=path) as sandbox:
        assert sandbox._cluster.store.compacted >= int(made['metadata']['resourceVersion'])


async def test_what_was_being_deleted_is_deleted(path):
    async with Sandbox(state=path) as sandbox:
        await sandbox.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'x'}})
        await sandbox.create(cm('a', metadata={'namespace': 'x', 'finalizers': ['a.b/c']}))
        await sandbox.delete('namespaces', 'x')
        await asyncio.sleep(0.01)
    async with Sandbox(state=path) as sandbox:
        await sandbox.patch('configmaps', 'a', {'metadata': {'finalizers': None}}, 'x')
        for _ in range(300):
            if not [ns for ns in await sandbox.list('ns') if ns['metadata']['name'] == 'x']:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the namespace is still there")


async def test_changes_are_saved_while_it_runs(path, monkeypatch):
    monkeypatch.setattr(keeping, 'DELAY', 0.01)
    async with Sandbox(state=path) as sandbox:
        await sandbox.create(cm('a-name'))
        for _ in range(300):
            if path.exists() and b'a-name' in path.read_bytes():
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("it is not saved")


async def test_nobody_else_can_read_it(path):
    async with Sandbox(state=path):
        pass
    assert path.stat().st_mode & 0o077 == 0
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize('damage', [
    lambda raw: b'x',
    lambda raw: b'{}\n',
    lambda raw: b'[]\n',
    lambda raw: raw[:len(raw) // 2],
    lambda raw: raw.rpartition(b'\n{')[0],
    lambda raw: raw.replace(b'kopf-sandbox/1', b'kopf-sandbox/9'),
    lambda raw: raw.replace(b'"uid"', b'"uix"', 1),
    lambda raw: b'\0' * 100,
])
async def test_a_damaged_file_is_told_of_and_left_as_it_is(path, damage):
    async with Sandbox(state=path) as sandbox:
        await sandbox.create(cm('a'))
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(StateError, match=str(path)):
        await Sandbox(state=path).start()
    assert path.read_bytes() == damaged


async def test_an_empty_file_is_a_new_beginning(path):
    path.touch()
    async with Sandbox(state=path) as sandbox:
        assert await sandbox.list('namespaces')
