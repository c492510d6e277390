"""
The walk-through of the documentation, step by step, as its reader sees it.
"""

import asyncio
import pathlib
import shutil
import uuid

import pytest
import yaml

from tests.e2e.journals import get_last_handled, wait_handled
from tests.e2e.kubes import CRDS, Kind, Kube, KubeError
from tests.e2e.operators import Operator

EVC = Kind('kopf.dev', 'v1', 'ephemeralvolumeclaims', 'EphemeralVolumeClaim')
PVC = Kind('', 'v1', 'persistentvolumeclaims', 'PersistentVolumeClaim')
STORAGE_CLASSES = Kind(
    'storage.k8s.io', 'v1', 'storageclasses', 'StorageClass', namespaced=False)

EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples' / '18-walkthrough'

CLIENT = '''
import base64
import json
import os
import ssl
import urllib.request

import yaml


def request(method, path, body, content_type):
    with open(os.environ['KUBECONFIG']) as file:
        config = yaml.safe_load(file)
    cluster, user = config['clusters'][0]['cluster'], config['users'][0]['user']
    ca = base64.b64decode(cluster['certificate-authority-data']).decode()
    request = urllib.request.Request(
        cluster['server'] + path, method=method, data=json.dumps(body).encode(),
        headers={'Authorization': f"Bearer {user['token']}", 'Content-Type': content_type})
    context = ssl.create_default_context(cadata=ca)
    with urllib.request.urlopen(request, context=context) as response:
        return json.loads(response.read())


def create_pvc(namespace, body):
    path = f'/api/v1/namespaces/{namespace}/persistentvolumeclaims'
    return request('POST', path, body, 'application/json')


def patch_pvc(namespace, name, body):
    path = f'/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}'
    return request('PATCH', path, body, 'application/merge-patch+json')
'''

HANDLERS = '''
@kopf.on.create('ephemeralvolumeclaims')
def make(spec, name, namespace, logger, **_):
    if 'size' not in spec:
        raise kopf.PermanentError("There is no size.")
    create_pvc(namespace, {
        'apiVersion': 'v1', 'kind': 'PersistentVolumeClaim', 'metadata': {'name': name},
        'spec': {
            'storageClassName': STORAGE_CLASS, 'accessModes': ['ReadWriteOnce'],
            'resources': {'requests': {'storage': spec['size']}}}})
    logger.info(f"{name} is made.")
    return {'made': name}


@kopf.on.update('ephemeralvolumeclaims')
def resize(spec, status, namespace, logger, **_):
    made = status['make']['made']
    patch_pvc(namespace, made, {'spec': {'resources': {'requests': {'storage': spec['size']}}}})
    logger.info(f"{made} is resized.")
'''

RELABEL_BY_STATES = '''
@kopf.on.field('ephemeralvolumeclaims', field='metadata.labels')
def relabel(new, status, namespace, **_):
    patch_pvc(namespace, status['make']['made'], {'metadata': {'labels': new}})
'''

RELABEL_BY_DIFF = '''
@kopf.on.field('ephemeralvolumeclaims', field='metadata.labels')
def relabel(diff, status, namespace, **_):
    labels = {}
    for _, (label,), _, value in diff:
        labels[label] = value
    patch_pvc(namespace, status['make']['made'], {'metadata': {'labels': labels}})
'''


@pytest.fixture(scope='module')
def definition(cluster):
    """The kind of the example; it is made once, for it takes seconds."""
    async def make():
        async with Kube(cluster) as kube:
            body = yaml.safe_load((EXAMPLE / 'crd.yaml').read_text())
            await kube.request('POST', CRDS, body=body)
            await kube.wait_served(EVC)
            await kube.wait_known_as_owners(EVC)

    async def unmake():
        async with Kube(cluster) as kube:
            await kube.delete_kind(EVC)

    asyncio.run(make())
    yield
    asyncio.run(unmake())


@pytest.fixture()
async def evc(kube, definition):
    yield EVC
    await kube.clear_kind(EVC)


@pytest.fixture()
async def storage_class(kube):
    name = f'standard-{uuid.uuid4().hex[:8]}'
    await kube.create(
        STORAGE_CLASSES, name, provisioner='example.com/none', allowVolumeExpansion=True)
    yield name
    await kube.delete(STORAGE_CLASSES, name)


@pytest.fixture()
async def name(kube):
    """The name of both the claim and its child; the child is gone after the test."""
    name = f'my-claim-{uuid.uuid4().hex[:8]}'
    yield name
    try:
        await kube.patch(PVC, name, {'metadata': {'finalizers': None}})
        await kube.delete(PVC, name)
    except KubeError as e:
        if e.status != 404:
            raise


async def test_a_claim_is_followed_by_its_child_from_the_beginning_to_the_end(
        kube, evc, operator, storage_class, name):

    # Starting the operator: the object is there already, and is handled only once.
    skeleton = '''
import logging

@kopf.on.create('ephemeralvolumeclaims')
def look(body, **_):
    logging.info(f"Seen: {body}")
'''
    await kube.create(evc, 'skeleton')
    process = operator(skeleton)
    await process.wait_for("Creation is in progress: .*'name': 'skeleton'")
    await process.wait_for("root .* Seen: ")
    await process.wait_for("Handler 'look' succeeded")
    await process.wait_for("Creation is processed: 1 succeeded; 0 failed")
    await process.wait_for("Handling cycle is finished, waiting for new changes")
    handled = await wait_handled(kube, evc, 'skeleton')
    assert get_last_handled(handled) == {}
    assert process.stop() == 0
    process = operator(skeleton)
    await process.wait_for("Starting the watch-stream for ephemeralvolumeclaims")
    await kube.create(evc, 'barrier')
    await wait_handled(kube, evc, 'barrier')
    assert await kube.get(evc, 'skeleton') == handled
    assert len(process.find("Seen: ")) == 1
    assert process.stop() == 0
    await kube.delete(evc, 'skeleton')
    await kube.delete(evc, 'barrier')

    # Creating the objects: wrong ones have failed, good ones have a child.
    handlers = CLIENT + f'STORAGE_CLASS = {storage_class!r}\n' + HANDLERS
    process = operator(handlers + RELABEL_BY_STATES)
    await kube.create(evc, 'nothing')
    await process.wait_for("Handler 'make' failed permanently: There is no size.")
    await kube.create(evc, name, spec={'size': '1G'})
    obj = await wait_handled(kube, evc, name)
    assert obj['status'] == {'make': {'made': name}}
    pvc = await kube.get(PVC, name)
    assert pvc['spec']['resources'] == {'requests': {'storage': '1G'}}
    assert 'ownerReferences' not in pvc['metadata']
    assert process.find(f"default/{name}.* {name} is made.")
    assert not process.find("Patching failed with inconsistencies")

    # Updating the objects: the child is updated, too. (Only those in use can be resized.)
    await kube.patch(PVC, name, {'spec': {'volumeName': 'any'}})
    await kube.patch(
        PVC, name, {'status': {'phase': 'Bound', 'capacity': {'storage': '1G'}}},
        subresource='status')
    await kube.patch(evc, name, {'spec': {'size': '2G'}})
    await process.wait_for(f"{name} is resized.")
    await kube.wait_for(
        PVC, name, lambda obj: obj['spec']['resources']['requests']['storage'] == '2G')
    await wait_handled(kube, evc, name)

    # Diffing the fields: labels go to the child and from it, and the child's own ones stay.
    await kube.patch(PVC, name, {'metadata': {'labels': {'own': 'label'}}})
    await kube.patch(
        evc, name, {'metadata': {'labels': {'project': 'demo', 'team': 'blue'}}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {
        'project': 'demo', 'team': 'blue', 'own': 'label'}
    assert process.stop() == 0
    errors = [line for line in process.lines if '[ERROR ' in line]
    assert len(errors) == 1
    assert 'There is no size' in errors[0]
    process = operator(handlers + RELABEL_BY_DIFF)
    await kube.patch(
        evc, name, {'metadata': {'labels': {'project': None, 'team': 'red'}}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {'team': 'red', 'own': 'label'}

    # Deletion: nothing holds the object, and the child is not adopted.
    assert 'finalizers' not in (await kube.get(evc, name))['metadata']
    await kube.delete(evc, name)
    await kube.wait_gone(evc, name)
    await process.wait_for(f"default/{name}.* Deleted, really deleted, and we are notified")
    assert (await kube.get(PVC, name))['metadata']['name'] == name
    assert process.stop() == 0
    assert not process.find('ERROR')


@pytest.fixture()
def example(cluster, storage_class, tmp_path):
    """The operator of the example, which has it all together."""
    folder = tmp_path / 'example'
    shutil.copytree(EXAMPLE, folder)
    template = (folder / 'pvc.yaml').read_text()
    (folder / 'pvc.yaml').write_text(template.replace(': standard', f': {storage_class}'))
    op = Operator(
        ['--all-namespaces', '--standalone', '--verbose', str(folder / 'example.py')],
        kubeconfig=cluster)
    yield op
    op.stop()
    print(op.text)


async def test_the_example_has_it_all_together(kube, evc, example, name):
    obj = yaml.safe_load((EXAMPLE / 'evc.yaml').read_text())
    await kube.create(evc, 'nothing')
    await example.wait_for("'create_volume' failed permanently: Say in spec.size how large")
    await kube.patch(evc, 'nothing', {'spec': {'size': '1G'}})
    await example.wait_for("'resize_volume/spec.size' failed permanently: There is no volume claim")
    claim = await kube.create(evc, name, spec=obj['spec'])
    obj = await wait_handled(kube, evc, name)
    assert obj['status'] == {'create_volume': {'pvc': name}}
    pvc = await kube.get(PVC, name)
    assert pvc['spec']['resources'] == {'requests': {'storage': '1G'}}
    owner, = pvc['metadata']['ownerReferences']
    assert owner['uid'] == claim['metadata']['uid']

    await kube.patch(PVC, name, {
        'metadata': {'labels': {'own': 'label'}}, 'spec': {'volumeName': 'any'}})
    await kube.patch(
        PVC, name, {'status': {'phase': 'Bound', 'capacity': {'storage': '1G'}}},
        subresource='status')
    await kube.patch(evc, name, {
        'spec': {'size': '2G'}, 'metadata': {'labels': {'project': 'demo', 'team': 'red'}}})
    await wait_handled(kube, evc, name)
    pvc = await kube.get(PVC, name)
    assert pvc['spec']['resources'] == {'requests': {'storage': '2G'}}
    assert pvc['metadata']['labels'] == {'own': 'label', 'project': 'demo', 'team': 'red'}
    await kube.patch(evc, name, {'metadata': {'labels': None}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {'own': 'label'}

    await kube.patch(PVC, name, {'metadata': {'finalizers': None}})  # those of absent controllers
    await kube.delete(evc, name)
    await kube.wait_collected(PVC, name)
