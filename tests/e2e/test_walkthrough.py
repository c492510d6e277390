"""
The walk-through of the documentation, step by step, as its reader sees it.
"""

import asyncio
import pathlib
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
TEMPLATE = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: "{name}"
spec:
  storageClassName: "{storage_class}"
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: "{size}"
"""

@kopf.on.create('ephemeralvolumeclaims')
def create_fn(spec, name, namespace, logger, **kwargs):
    size = spec.get('size')
    if not size:
        raise kopf.PermanentError(f"Size must be set. Got {size!r}.")
    storage_class = spec['storageClassName']
    data = yaml.safe_load(TEMPLATE.format(name=name, size=size, storage_class=storage_class))
    obj = create_pvc(namespace, data)
    logger.info(f"PVC child is created: {obj['metadata']['name']}")
    return {'pvc-name': obj['metadata']['name']}


@kopf.on.update('ephemeralvolumeclaims')
def update_fn(spec, status, namespace, logger, **kwargs):
    size = spec.get('size', None)
    if not size:
        raise kopf.PermanentError(f"Size must be set. Got {size!r}.")
    pvc_name = status['create_fn']['pvc-name']
    patch_pvc(namespace, pvc_name, {'spec': {'resources': {'requests': {'storage': size}}}})
    logger.info(f"PVC child is updated: {pvc_name}")


'''

RELABEL_BY_STATES = '''
@kopf.on.field('ephemeralvolumeclaims', field='metadata.labels')
def relabel(old, new, status, namespace, **kwargs):
    pvc_name = status['create_fn']['pvc-name']
    patch_pvc(namespace, pvc_name, {'metadata': {'labels': new}})
'''

RELABEL_BY_DIFF = '''
@kopf.on.field('ephemeralvolumeclaims', field='metadata.labels')
def relabel(diff, status, namespace, **kwargs):
    labels_patch = {field[0]: new for op, field, old, new in diff}
    pvc_name = status['create_fn']['pvc-name']
    patch_pvc(namespace, pvc_name, {'metadata': {'labels': labels_patch}})
'''


@pytest.fixture(scope='module')
def definition(cluster):
    """The kind of the example; it is made once, for it takes seconds."""
    async def make():
        async with Kube(cluster) as kube:
            body = yaml.safe_load((EXAMPLE / 'crd.yaml').read_text())
            await kube.request('POST', CRDS, body=body)
            await kube.wait_served(EVC)

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
def create_fn(body, **kwargs):
    logging.info(f"A handler is called with body: {body}")
'''
    await kube.create(evc, 'skeleton')
    process = operator(skeleton)
    await process.wait_for("Creation is in progress: .*'name': 'skeleton'")
    await process.wait_for("root .* A handler is called with body: ")
    await process.wait_for("Handler 'create_fn' succeeded")
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
    assert len(process.find("A handler is called with body")) == 1
    assert process.stop() == 0
    await kube.delete(evc, 'skeleton')
    await kube.delete(evc, 'barrier')

    # Creating the objects: wrong ones have failed, good ones have a child.
    process = operator(CLIENT + HANDLERS + RELABEL_BY_STATES)
    await kube.create(evc, 'nothing')
    await process.wait_for("Handler 'create_fn' failed permanently: Size must be set. Got None.")
    await kube.create(evc, name, spec={'size': '1G', 'storageClassName': storage_class})
    obj = await wait_handled(kube, evc, name)
    assert obj['status'] == {'create_fn': {'pvc-name': name}}
    pvc = await kube.get(PVC, name)
    assert pvc['spec']['resources'] == {'requests': {'storage': '1G'}}
    assert 'ownerReferences' not in pvc['metadata']
    assert process.find(f"default/{name}.* PVC child is created: {name}")
    assert not process.find("Patching failed with inconsistencies")

    # Updating the objects: the child is updated, too. (Only those in use can be resized.)
    await kube.patch(PVC, name, {'spec': {'volumeName': 'any'}})
    await kube.patch(
        PVC, name, {'status': {'phase': 'Bound', 'capacity': {'storage': '1G'}}},
        subresource='status')
    await kube.patch(evc, name, {'spec': {'size': '2G'}})
    await process.wait_for(f"PVC child is updated: {name}")
    await kube.wait_for(
        PVC, name, lambda obj: obj['spec']['resources']['requests']['storage'] == '2G')
    await wait_handled(kube, evc, name)

    # Diffing the fields: labels go to the child and from it, and the child's own ones stay.
    await kube.patch(PVC, name, {'metadata': {'labels': {'own': 'label'}}})
    await kube.patch(
        evc, name, {'metadata': {'labels': {'application': 'some-app', 'owner': 'me'}}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {
        'application': 'some-app', 'owner': 'me', 'own': 'label'}
    assert process.stop() == 0
    errors = [line for line in process.lines if '[ERROR ' in line]
    assert len(errors) == 1
    assert 'Size must be set' in errors[0]
    process = operator(CLIENT + HANDLERS + RELABEL_BY_DIFF)
    await kube.patch(
        evc, name, {'metadata': {'labels': {'application': None, 'owner': 'not-me'}}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {'owner': 'not-me', 'own': 'label'}

    # Deletion: nothing holds the object, and the child is not adopted.
    assert 'finalizers' not in (await kube.get(evc, name))['metadata']
    await kube.delete(evc, name)
    await kube.wait_gone(evc, name)
    await process.wait_for(f"default/{name}.* Deleted, really deleted, and we are notified")
    assert (await kube.get(PVC, name))['metadata']['name'] == name
    assert process.stop() == 0
    assert not process.find('ERROR')


@pytest.fixture()
def example(cluster):
    """The operator of the example, which has it all together."""
    op = Operator(
        ['--all-namespaces', '--standalone', '--verbose', str(EXAMPLE / 'example.py')],
        kubeconfig=cluster)
    yield op
    op.stop()
    print(op.text)


async def test_the_example_has_it_all_together(kube, evc, example, storage_class, name):
    obj = yaml.safe_load((EXAMPLE / 'evc.yaml').read_text())
    await kube.create(evc, 'nothing')
    await example.wait_for("'create_fn' failed permanently: A claim needs a size.")
    claim = await kube.create(evc, name, spec={**obj['spec'], 'storageClassName': storage_class})
    obj = await wait_handled(kube, evc, name)
    assert obj['status'] == {'create_fn': {'pvc-name': name}}
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
        'spec': {'size': '2G'}, 'metadata': {'labels': {'application': 'some', 'owner': 'me'}}})
    await wait_handled(kube, evc, name)
    pvc = await kube.get(PVC, name)
    assert pvc['spec']['resources'] == {'requests': {'storage': '2G'}}
    assert pvc['metadata']['labels'] == {'own': 'label', 'application': 'some', 'owner': 'me'}
    await kube.patch(evc, name, {'metadata': {'labels': None}})
    await wait_handled(kube, evc, name)
    assert (await kube.get(PVC, name))['metadata']['labels'] == {'own': 'label'}

    await kube.patch(PVC, name, {'metadata': {'finalizers': None}})  # those of absent controllers
    await kube.delete(evc, name)
    await kube.wait_collected(PVC, name)
