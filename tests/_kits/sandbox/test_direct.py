import pytest

from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.statuses import AlreadyExists, Conflict, Invalid, NotFound
from tests._kits.sandbox.conftest import CRD, cm, toy


async def test_resources_have_many_names(sandbox):
    await sandbox.create(cm('a'))
    for name in ('configmaps', 'configmap', 'ConfigMap', 'cm'):
        assert (await sandbox.get(name, 'a'))['metadata']['name'] == 'a'
    assert await sandbox.list('deployments.apps') == []
    with pytest.raises(NotFound):
        await sandbox.list('deployments.x')


async def test_errors_are_those_of_the_api(sandbox):
    made = await sandbox.create(cm('a'))
    with pytest.raises(AlreadyExists):
        await sandbox.create(cm('a'))
    with pytest.raises(Invalid):
        await sandbox.create(cm('A'))
    await sandbox.patch('cm', 'a', {'data': {'x': 'y'}})
    with pytest.raises(Conflict):
        await sandbox.replace(made)
    with pytest.raises(NotFound):
        await sandbox.delete('cm', 'b')


@pytest.mark.parametrize(('type', 'patch'), [
    ('merge', {'data': {'x': 'z'}}), ('strategic', {'data': {'x': 'z'}}),
    ('json', [{'op': 'replace', 'path': '/data/x', 'value': 'z'}]),
    ('apply', cm('a', data={'x': 'z'})),
])
async def test_patches_are_of_all_types(sandbox, type, patch):
    await sandbox.create(cm('a', data={'x': 'y'}))
    assert (await sandbox.patch('cm', 'a', patch, type=type))['data'] == {'x': 'z'}


async def test_the_status_is_apart(sandbox):
    await sandbox.load(CRD)
    await sandbox.create(toy('a', spec={'x': 1}))
    patch = {'spec': {'x': 2}, 'status': {'y': 3}}
    obj = await sandbox.patch('toys', 'a', patch)
    assert (obj['spec'], obj.get('status')) == ({'x': 2}, None)
    obj = await sandbox.patch('toys', 'a', {**patch, 'spec': {'x': 4}}, subresource='status')
    assert (obj['spec'], obj['status']) == ({'x': 2}, {'y': 3})
    assert obj['metadata']['generation'] == 2


async def test_files_are_loaded_with_definitions_first(tmp_path):
    path = tmp_path / 'objects.yaml'
    path.write_text('''
kind: List
apiVersion: v1
items:
- {apiVersion: sandbox.test/v1, kind: Toy, metadata: {name: a, namespace: x}}
---
---
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
''')
    crd = tmp_path / 'crd.json'
    crd.write_text(str(CRD).replace("True", "true").replace("'", '"'))
    async with Sandbox(load=[path, crd]) as sandbox:
        assert await sandbox.get('toys', 'a', 'x')
        await sandbox.load(path)


@pytest.mark.parametrize(('text', 'error', 'message'), [
    ('{kind: List, items: []}\n--- [1]', ValueError, 'yaml: document 2 is not a Kubernetes object'),
    ('{', ValueError, 'yaml is not valid YAML'),
    ('kind: Unknown', ValueError, 'document 1: no matches .* It has no apiVersion'),
])
async def test_files_that_are_none_are_refused(tmp_path, text, error, message):
    path = tmp_path / 'objects.yaml'
    path.write_text(text)
    with pytest.raises(error, match=message):
        await Sandbox(load=[path]).start()


async def test_lists_are_selected(sandbox):
    await sandbox.create(cm('a', metadata={'labels': {'x': 'y'}}))
    await sandbox.create(cm('b'))
    names = [obj['metadata']['name'] for obj in await sandbox.list('cm', labels='x=y')]
    assert names == ['a']
    names = [obj['metadata']['name'] for obj in await sandbox.list('cm', fields='metadata.name=b')]
    assert names == ['b']
