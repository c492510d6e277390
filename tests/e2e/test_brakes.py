"""
Brakes: a handler that suddenly returns nothing, for very many objects at once.
"""
import asyncio
import os
import sys

import pytest

import kopf
from tests.e2e.kubes import CONFIGMAPS
from tests.e2e.proxy import Proxy

PARENTS = int(os.environ.get('KOPF_BRAKES_PARENTS', '100'))
BUDGET = max(20, PARENTS // 10)


@pytest.fixture()
def proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


def count_deletions(proxy):
    return sum(request.method == 'DELETE' for request in proxy.requests)


async def wait(condition):
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.2)


async def test_no_child_over_the_budget_is_deleted_until_its_parent_is_released(
        cluster, kube, kind, proxy, embedded, settings, monkeypatch, tmp_path):
    inverted, refused = asyncio.Event(), {}
    settings.brakes.stop = True

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def fn(name, **_):
        return [] if inverted.is_set() else {
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{kind.plural}-{name}'}}

    async def list_children():
        found = await kube.list_objects(CONFIGMAPS)
        return {obj['metadata']['name'] for obj in found
                if obj['metadata']['name'].startswith(f'{kind.plural}-')}

    async def are_all_there():
        return len(await list_children()) == PARENTS

    async def are_the_others_refused():
        parents = await kube.list_objects(kind)
        refused.update({
            obj['metadata']['name']: item['message'] for obj in parents
            for item in obj.get('status', {}).get('conditions', ())
            if item['type'] == 'Ready' and item['status'] == 'False'})
        return len(refused) == PARENTS - BUDGET

    monkeypatch.setenv('KUBECONFIG', proxy.write_kubeconfig(tmp_path / 'proxy.yaml'))
    embedded(settings=settings)
    for number in range(PARENTS):
        await kube.create(kind, f'obj{number}')
    await wait(are_all_there)
    assert count_deletions(proxy) == 0

    inverted.set()
    for number in range(PARENTS):
        await kube.patch(kind, f'obj{number}', {'metadata': {'labels': {'a': 'b'}}})  # no edit
    await wait(are_the_others_refused)
    assert count_deletions(proxy) == BUDGET
    assert len(await list_children()) == PARENTS - BUDGET
    name, message = next(iter(refused.items()))
    assert f"kopf brakes release {kind.plural} -A --selector=''" in message

    process = await asyncio.create_subprocess_exec(
        sys.executable, '-m', 'kopf', 'brakes', 'release', str(kind.plural), name,
        '--namespace=default', env={**os.environ, 'KUBECONFIG': cluster})
    assert await process.wait() == 0
    await kube.wait_gone(CONFIGMAPS, f'{kind.plural}-{name}')
    assert count_deletions(proxy) == BUDGET + 1
