"""
An operator by edges grows step by step: it makes a child, and changes it as the parent changes.
"""

import asyncio
import uuid

import pytest

from tests.e2e.journals import get_last_handled, wait_handled
from tests.e2e.kubes import CRDS, Kind, Kube, KubeError

DISK = Kind('walkthrough.kopf.dev', 'v1', 'scratchdisks', 'ScratchDisk')
PVC = Kind('', 'v1', 'persistentvolumeclaims', 'PersistentVolumeClaim')
STORAGE_CLASSES = Kind(
    'storage.k8s.io', 'v1', 'storageclasses', 'StorageClass', namespaced=False)

DEFINITION = {
    'apiVersion': 'apiextensions.k8s.io/v1',
    'kind': 'CustomResourceDefinition',
    'metadata': {'name': f'{DISK.plural}.{DISK.group}'},
    'spec': {
        'group': DISK.group,
        'scope': 'Namespaced',
        'names': {'plural': DISK.plural, 'kind': DISK.kind},
        'versions': [{
            'name': DISK.version,
            'served': True,
            'storage': True,
            'subresources': {'status': {}},
            'schema': {'openAPIV3Schema': {
                'type': 'object',
                'properties': {
                    'spec': {'type': 'object', 'properties': {'size': {'type': 'string'}}},
                    'status': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
                },
            }},
        }],
    },
}

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
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the default since 3.13
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
@kopf.on.create('scratchdisks')
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


@kopf.on.update('scratchdisks')
def resize(spec, status, namespace, logger, **_):
    made = status['make']['made']
    patch_pvc(namespace, made, {'spec': {'resources': {'requests': {'storage': spec['size']}}}})
    logger.info(f"{made} is resized.")
'''

RELABEL_BY_STATES = '''
@kopf.on.field('scratchdisks', field='metadata.labels')
def relabel(new, status, namespace, **_):
    patch_pvc(namespace, status['make']['made'], {'metadata': {'labels': new}})
'''

RELABEL_BY_DIFF = '''
@kopf.on.field('scratchdisks', field='metadata.labels')
def relabel(diff, status, namespace, **_):
    labels = {}
    for _, (label,), _, value in diff:
        labels[label] = value
    patch_pvc(namespace, status['make']['made'], {'metadata': {'labels': labels}})
'''


@pytest.fixture(scope='module')
def definition(cluster):
    """The kind of the parents; it is made once, for it takes seconds."""
    async def make():
        async with Kube(cluster) as kube:
            await kube.request('POST', CRDS, body=DEFINITION)
            await kube.wait_served(DISK)
            await kube.wait_known_as_owners(DISK)

    async def unmake():
        async with Kube(cluster) as kube:
            await kube.delete_kind(DISK)

    asyncio.run(make())
    yield
    asyncio.run(unmake())


@pytest.fixture()
async def disk(kube, definition):
    yield DISK
    await kube.clear_kind(DISK)


@pytest.fixture()
async def storage_class(kube):
    name = f'standard-{uuid.uuid4().hex[:8]}'
    await kube.create(
        STORAGE_CLASSES, name, provisioner='example.com/none', allowVolumeExpansion=True)
    yield name
    await kube.delete(STORAGE_CLASSES, name)


@pytest.fixture()
async def name(kube):
    """The name of both the parent and its child; the child is gone after the test."""
    name = f'disk-{uuid.uuid4().hex[:8]}'
    yield name
    try:
        await kube.patch(PVC, name, {'metadata': {'finalizers': None}})
        await kube.delete(PVC, name)
    except KubeError as e:
        if e.status != 404:
            raise


async def test_a_parent_is_followed_by_its_child_from_the_beginning_to_the_end(
        kube, disk, operator, storage_class, name):

    # Starting the operator: the object is there already, and is handled only once.
    skeleton = '''
import logging

@kopf.on.create('scratchdisks')
def look(body, **_):
    logging.info(f"Seen: {body}")
'''
    await kube.create(disk, 'skeleton')
    process = operator(skeleton)
    await process.wait_for("Creation is in progress: .*'name': 'skeleton'")
    await process.wait_for("root .* Seen: ")
    await process.wait_for("Handler 'look' succeeded")
    await process.wait_for("Creation is processed: 1 succeeded; 0 failed")
    await process.wait_for("Handling cycle is finished, waiting for new changes")
    handled = await wait_handled(kube, disk, 'skeleton')
    assert get_last_handled(handled) == {}
    assert process.stop() == 0
    process = operator(skeleton)
    await process.wait_for("Starting the watch-stream for scratchdisks")
    await kube.create(disk, 'barrier')
    await wait_handled(kube, disk, 'barrier')
    assert await kube.get(disk, 'skeleton') == handled
    assert len(process.find("Seen: ")) == 1
    assert process.stop() == 0
    await kube.delete(disk, 'skeleton')
    await kube.delete(disk, 'barrier')

    # Creating the objects: wrong ones have failed, good ones have a child.
    handlers = CLIENT + f'STORAGE_CLASS = {storage_class!r}\n' + HANDLERS
    process = operator(handlers + RELABEL_BY_STATES)
    await kube.create(disk, 'nothing')
    await process.wait_for("Handler 'make' failed permanently: There is no size.")
    await kube.create(disk, name, spec={'size': '1G'})
    obj = await wait_handled(kube, disk, name)
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
    await kube.patch(disk, name, {'spec': {'size': '2G'}})
    await process.wait_for(f"{name} is resized.")
    await kube.wait_for(
        PVC, name, lambda obj: obj['spec']['resources']['requests']['storage'] == '2G')
    await wait_handled(kube, disk, name)

    # Diffing the fields: labels go to the child and from it, and the child's own ones stay.
    await kube.patch(PVC, name, {'metadata': {'labels': {'own': 'label'}}})
    await kube.patch(
        disk, name, {'metadata': {'labels': {'project': 'demo', 'team': 'blue'}}})
    await wait_handled(kube, disk, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {
        'project': 'demo', 'team': 'blue', 'own': 'label'}
    assert process.stop() == 0
    errors = [line for line in process.lines if '[ERROR ' in line]
    assert len(errors) == 1
    assert 'There is no size' in errors[0]
    process = operator(handlers + RELABEL_BY_DIFF)
    await kube.patch(
        disk, name, {'metadata': {'labels': {'project': None, 'team': 'red'}}})
    await wait_handled(kube, disk, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {'team': 'red', 'own': 'label'}

    # Deletion: nothing holds the object, and the child is not adopted.
    assert 'finalizers' not in (await kube.get(disk, name))['metadata']
    await kube.delete(disk, name)
    await kube.wait_gone(disk, name)
    await process.wait_for(f"default/{name}.* Deleted, really deleted, and we are notified")
    assert (await kube.get(PVC, name))['metadata']['name'] == name
    assert process.stop() == 0
    assert not process.find('ERROR')
