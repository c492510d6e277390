"""
Plans: what an operator would do is what it does then, and nothing is written to find that out.
"""
import asyncio
import json
import subprocess
import sys
import uuid

import pytest
import yaml

from kopf import testing
from kopf._kits.planning import plans
from kopf._kits.sandbox.kinds import Kind as SandboxKind
from kopf._kits.testing import apis
from tests.e2e.kubes import CONFIGMAPS, NAMESPACES, Kind
from tests.e2e.pairs import make_pairs
from tests.e2e.proxy import Proxy

SECRETS = Kind('', 'v1', 'secrets', 'Secret')
SERVICES = Kind('', 'v1', 'services', 'Service')
DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')
CHILDREN = [CONFIGMAPS, SECRETS, SERVICES, DEPLOYMENTS]

QUIET = 1.0
"""For how long (seconds) nothing must change until an operator counts as being at rest."""

PAIRS = make_pairs()


@pytest.fixture()
async def namespace(kube):
    name = f'plan-{uuid.uuid4().hex[:8]}'
    await kube.create(NAMESPACES, name)
    yield name
    await kube.delete(NAMESPACES, name)


@pytest.fixture()
def credentials(cluster):
    with open(cluster, encoding='utf-8') as file:
        return apis.read_credentials(yaml.safe_load(file))


@pytest.fixture()
def look(kube, kind, namespace):
    """List all objects that are there, by their kinds and names."""
    async def look():
        return {
            (kind, obj['metadata']['name']): {
                **obj, 'apiVersion': kind.api_version, 'kind': kind.kind}
            for kind in [kind, *CHILDREN]
            for obj in await kube.list_objects(kind, namespace=namespace)
            if not obj['metadata']['name'].startswith(('kube-root-ca', 'default-token'))}
    return look


@pytest.fixture()
def run(credentials, namespace, look):
    """Run a version until it rests."""
    async def run(path):
        async with testing.Operator(
                path, credentials=credentials, namespaces=[namespace]) as operator:
            operator.settings.posting.enabled = False
            operator.is_fresh = True
            await operator.wait_log("Watching .* handler", timeout=30)
            known, since = None, 0.0
            now = asyncio.get_running_loop().time
            while known is None or now() < since + QUIET:
                found = len(operator.log), {
                    key: obj['metadata']['resourceVersion'] for key, obj in (await look()).items()}
                if found != known:
                    known, since = found, now()
                await asyncio.sleep(0.1)
    return run


def find_changes(before, after):
    """Find what was really done, as items of a plan."""
    return plans.make_items([
        (testing.Difference(
            SandboxKind(group=kind.group, version=kind.version, plural=kind.plural,
                        kind=kind.kind),
            ((before.get(key) or after[key])['metadata']['namespace'], name),
            before.get(key), after.get(key)), ["somebody"], kind == DEPLOYMENTS)
        for key in sorted(before.keys() | after.keys(), key=str)
        for kind, name in [key]])


def simplify(items):
    """What is compared: for each field of each object, the old and the new value."""
    return {
        (str(item.place), item.action, part, json.dumps(what, sort_keys=True, default=vars))
        for item in items for part, found in (
            ('', [item.restarts]), ('finalizers', item.finalizers),
            ('fields', item.fields), ('status', item.status))
        for what in found}


def name_pair(pair):
    style = 'applying' if 'def apply' in pair.style else 'reconciling'
    return f"{style} {','.join(pair.change) or 'nothing'}"


@pytest.mark.parametrize('pair', PAIRS, ids=name_pair)
async def test_the_plan_is_what_the_next_version_does(
        pair, kube, kind, namespace, tmp_path, run, look, cluster):
    old, new = tmp_path / 'old.py', tmp_path / 'new.py'
    old.write_text(pair.write(kind.selector, is_new=False))
    new.write_text(pair.write(kind.selector, is_new=True))
    for name, number in (('one', 2), ('two', 3)):
        await kube.create(kind, name, namespace=namespace, spec={'n': number})
    await run(old)

    before = await look()
    with Proxy(cluster) as proxy:
        proxy.write_kubeconfig(tmp_path / 'kubeconfig')
        made = await asyncio.to_thread(
            testing.plan, new, namespaces=[namespace], allow=['127.0.0.1'],  # for the proxy
            origin=apis.read_credentials(yaml.safe_load((tmp_path / 'kubeconfig').read_text())))
    assert {request.method for request in proxy.requests} == {'GET'}
    assert await look() == before

    await run(new)
    assert simplify(made.items) == simplify(find_changes(before, await look()))
    assert not made.problems
    assert bool(made.refused) == pair.is_refused
    assert bool(made.items or made.refused) == pair.is_planted
    assert pair.actions <= {item.action for item in made.items}
    assert not pair.field or any(
        field.path.endswith(pair.field) for item in made.items for field in item.fields)
    assert [item.restarts for item in made.restarts] == [pair.restarts] * 2 * bool(pair.restarts)


async def test_the_command_plans_in_a_cluster(kube, kind, tmp_path, cluster):
    await kube.create(kind, 'obj', spec={'n': 1})
    path = tmp_path / 'handlers.py'
    path.write_text(f'''
import kopf

@kopf.on.create(*{kind.selector!r})
async def create(patch, **_):
    patch.spec['n'] = 2
''')
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, '-m', 'kopf', 'plan', '-o', 'json', path], check=False,
        capture_output=True, text=True, env={'KUBECONFIG': str(cluster), 'PATH': '/usr/bin:/bin'})
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines()
            if 'the webhook that converts them' not in line] == []  # the kinds of other tests
    item, = json.loads(done.stdout)['items']
    assert item['fields'] == [{'path': 'spec.n', 'old': 1, 'new': 2}]
    assert (await kube.get(kind, 'obj'))['spec'] == {'n': 1}
