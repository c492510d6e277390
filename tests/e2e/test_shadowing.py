"""
Shadows: a new version is compared with the one in production, which notices nothing of that.
"""
import collections
import pathlib
import re
import signal
import uuid

import pytest

from tests.e2e.kubes import CONFIGMAPS
from tests.e2e.proxy import Proxy
from tests.e2e.replicas import read_audit

HANDLERS = '''
import asyncio

COLOUR = 'blue'

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.standalone = True

@kopf.on.create(*KIND, id='fn')
@kopf.on.update(*KIND, id='fn')
async def fn(name, namespace, body, spec, patch, **_):
    manifest = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{KIND[2]}-{name}'},
                'data': {'size': str(spec.get('size')), 'colour': COLOUR}}
    kopf.adopt(manifest, owner=body)
    await kopf.apply(manifest)
    patch.status['seen'] = spec.get('size')

@kopf.on.delete(*KIND)
async def delete_fn(name, **_):
    print(f"it was {name}")
'''


@pytest.fixture()
def agents():
    return [f'{name}-{uuid.uuid4().hex[:8]}' for name in ('production', 'shadow')]


def is_handled(obj, size):
    """Whether all requests for this size are done: the last one writes the last-handled state."""
    annotations = obj['metadata'].get('annotations') or {}
    return f'"size":{size}' in annotations.get('kopf.zalando.org/last-handled-configuration', '')


async def work(kube, kind, op, names):
    """Let an operator handle some changes, and count its requests."""
    for name in names:
        await kube.create(kind, name, spec={'size': 1})
        await kube.wait_for(kind, name, lambda obj: is_handled(obj, 1))
        await kube.patch(kind, name, {'spec': {'size': 2}})
        await kube.wait_for(kind, name, lambda obj: is_handled(obj, 2))
        await kube.delete(kind, name)
        await op.wait_for(f"it was {name}")
        await kube.wait_gone(kind, name)


def count(requests):
    """Count the requests that write, regardless of the names; events are posted some time later."""
    return collections.Counter(
        (request.method, re.sub(r'(?<=-)?(one|two)\d', 'NAME', request.path.partition('?')[0]))
        for request in requests if request.method != 'GET' and '/events' not in request.path)


async def test_a_shadow_finds_the_difference_and_production_works_as_before(
        cluster, kube, kind, operator, agents, tmp_path):
    with (Proxy(cluster, agent=agents[0]) as production,
          Proxy(cluster, agent=agents[1]) as watched):
        op = operator(HANDLERS, kind=kind,
                      kubeconfig=production.write_kubeconfig(tmp_path / 'production'))
        await op.wait_for("Watching .* handler")
        await work(kube, kind, op, ['one1', 'one2'])
        before = count(production.requests)
        production.requests.clear()

        path = tmp_path / 'sandbox'
        shadow = operator(
            HANDLERS.replace('blue', 'red'), '--shadow', '--shadow-window=1',
            f'--kubeconfig-out={path}', kind=kind, scope=('--all-namespaces',),
            kubeconfig=watched.write_kubeconfig(tmp_path / 'watched'))
        await shadow.wait_for("Watching .* handler")
        await work(kube, kind, op, ['two1', 'two2'])
        assert count(production.requests) == before

        await kube.create(kind, 'stays', spec={'size': 1})
        name = f'{kind.plural}-stays'
        await shadow.wait_for(rf'different: configmaps default/{name}: data.colour: "blue" in '
                              rf'production, "red" here \(by fn for .* default/stays\)')
        assert (await kube.get(CONFIGMAPS, name))['data']['colour'] == 'blue'
        await kube.delete(kind, 'stays')
        await kube.wait_gone(kind, 'stays')

        shadow.send(signal.SIGTERM)
        assert await shadow.wait() == 0
        assert shadow.find(r"Differences from production: 1 \(1 different\).")
        assert {request.method for request in watched.requests} == {'GET'}
    audit = pathlib.Path(cluster).with_name('audit.log')
    if audit.exists():
        entries = read_audit(audit, agents[1])
        assert entries
        assert {entry['verb'] for entry in entries} <= {'get', 'list', 'watch'}
