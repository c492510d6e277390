"""
Sandboxes over the cluster: operators see its objects, and write nothing to it.
"""
import asyncio
import pathlib
import signal
import uuid

import pytest

from tests.e2e.kubes import CONFIGMAPS, Kube
from tests.e2e.proxy import Proxy
from tests.e2e.replicas import read_audit

HANDLERS = '''
@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
async def fn(name, namespace, spec, patch, **_):
    patch.status['seen'] = spec.get('size')
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'size': str(spec.get('size'))},
        'metadata': {'name': f'{KIND[2]}-{name}', 'namespace': namespace}})
    print(f"it is {name} of the size {spec.get('size')}")

@kopf.on.delete(*KIND)
def delete_fn(name, **_):
    print(f"it was {name}")
'''


AGENT = f'upstream-{uuid.uuid4().hex[:8]}'


@pytest.fixture()
def proxy(cluster):
    """What all requests to the cluster go through; the audit log knows them by their agent."""
    with Proxy(cluster, agent=AGENT) as proxy:
        yield proxy


@pytest.fixture()
async def running(operator, proxy, kind, tmp_path):
    """An operator on a sandbox over the cluster, and a client of the sandbox."""
    path = tmp_path / 'sandbox'
    op = operator(HANDLERS, '--sandbox', '--upstream', f'--kubeconfig-out={path}', kind=kind,
                  kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))
    while not path.exists():
        await asyncio.sleep(0.02)
    async with Kube(str(path)) as here:
        yield op, here


def stateless(obj):
    return {**obj, 'metadata': {**obj['metadata'], 'resourceVersion': ''}}


async def test_operators_on_a_sandbox_write_nothing_to_the_cluster_below(
        cluster, kube, kind, proxy, running):
    op, here = running
    created = await kube.create(kind, 'obj', spec={'size': 1})
    await op.wait_for("it is obj of the size 1")
    found = await here.wait_for(kind, 'obj', lambda obj: obj.get('status') == {'seen': 1})
    assert found['metadata']['uid'] == created['metadata']['uid']
    assert found['metadata']['finalizers'] == ['kopf.zalando.org/KopfFinalizerMarker']
    assert (await here.get(CONFIGMAPS, f'{kind.plural}-obj'))['data'] == {'size': '1'}

    changed = await kube.patch(kind, 'obj', {'spec': {'size': 2}})
    await op.wait_for("it is obj of the size 2")
    assert stateless(await kube.get(kind, 'obj')) == stateless(changed)

    await kube.delete(kind, 'obj')
    await op.wait_for("it was obj")
    await here.wait_gone(kind, 'obj')
    await kube.wait_gone(kind, 'obj')

    op.send(signal.SIGTERM)
    assert await op.wait() == 0
    assert op.find(r"Requests to the upstream: .*\d+ list")
    assert {request.method for request in proxy.requests} == {'GET'}
    audit = pathlib.Path(cluster).with_name('audit.log')
    if audit.exists():
        entries = read_audit(audit, AGENT)
        assert {entry['verb'] for entry in entries} <= {'get', 'list', 'watch'}
        assert entries


async def test_what_is_deleted_on_a_sandbox_takes_what_the_cluster_has_for_it(
        kube, kind, proxy, running):
    op, here = running
    owner = await kube.create(kind, 'owner')
    ref = {'apiVersion': kind.api_version, 'kind': kind.kind, 'name': 'owner',
           'uid': owner['metadata']['uid']}
    name = f'{kind.plural}-child'
    await kube.request('POST', CONFIGMAPS.get_path(namespace='default'), body={
        'apiVersion': 'v1', 'kind': 'ConfigMap',
        'metadata': {'name': name, 'ownerReferences': [ref]}})
    await op.wait_for("it is owner")
    await here.delete(kind, 'owner')
    await op.wait_for("it was owner")
    await here.wait_gone(CONFIGMAPS, name)
    assert (await kube.get(kind, 'owner'))['metadata']['uid'] == owner['metadata']['uid']
    assert await kube.delete(CONFIGMAPS, name)
    assert {request.method for request in proxy.requests} == {'GET'}
