"""
What ``kopf manifests`` prints: the API accepts all of it, and the operator runs by it.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import uuid

import aiohttp
import pytest
import yaml

from tests.e2e import accounts
from tests.e2e.kubes import Kind, KubeError
from tests.e2e.operators import Operator
from tests.e2e.ports import find_free_ports
from tests.e2e.replicas import LEADING
from tests.e2e.test_deployment import get_path

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'
CACHES = Kind('example.com', 'v1', 'caches', 'Cache')
DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')
RULES_SINCE = 25
"""The minor version of Kubernetes since which it takes definitions as they are declared."""

LEASED = ['--leader-elect=it', '--metrics=http://0.0.0.0:8080/metrics', '--replicas=2']
SHARED = ['--crd', EXAMPLES / 'crd.yaml']
"""The kind of the examples, which they do not declare."""

OPERATORS = {
    'minimal': ([*SHARED, EXAMPLES / '01-minimal/example.py'], set()),
    'typed': ([EXAMPLES / '23-typed-kinds/example.py'], {'CustomResourceDefinition'}),
    'databases': ([EXAMPLES / '26-database/example.py'], {'CustomResourceDefinition'}),
    'tenants': ([EXAMPLES / '27-tenant/example.py'], {'CustomResourceDefinition'}),
    'dns': ([EXAMPLES / '28-dns/example.py'], {'CustomResourceDefinition'}),
    'webhooks': ([*SHARED, '--startup', EXAMPLES / '13-admission/example.py'], {'Service'}),
    'lease': ([*SHARED, *LEASED, EXAMPLES / '19-deployment/example.py'],
              {'PodDisruptionBudget', 'Role', 'RoleBinding'}),
    'shards': ([*SHARED, '--shards=4', '--replicas=3', EXAMPLES / '01-minimal/example.py'],
               {'PodDisruptionBudget', 'Role', 'RoleBinding'}),
    'peering': ([*SHARED, '--peering', 'NAME', EXAMPLES / '01-minimal/example.py'],
                {'CustomResourceDefinition', 'ClusterKopfPeering'}),
    'namespaced peering': (
        [*SHARED, '-n', 'default', '--peering', 'NAME', EXAMPLES / '01-minimal/example.py'],
        {'CustomResourceDefinition', 'KopfPeering', 'Role', 'RoleBinding'}),
}
"""The arguments for some operators, and what they have beyond that of each one."""

ALWAYS = {'Namespace', 'ServiceAccount', 'ClusterRole', 'ClusterRoleBinding', 'Deployment'}

pytestmark = pytest.mark.usefixtures('examples_alone')


@pytest.fixture()
def name():
    """The name of the operator, and of its namespace."""
    return f'operator-{uuid.uuid4().hex[:8]}'


@pytest.fixture()
async def show(kube, name, minor):
    """Run ``kopf manifests``, and return what is printed; what it describes goes after the test."""
    def show(*args):
        old = [f'--kubernetes=1.{minor}'] if minor < RULES_SINCE else []
        scope = [] if '-n' in args else ['-A']
        process = subprocess.run(
            [sys.executable, '-m', 'kopf', 'manifests', '--image=registry.example.com/it:1',
             '--name', name, *scope, *old, *(name if arg == 'NAME' else arg for arg in args)],
            capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        shown.append(process.stdout)
        return process.stdout

    shown = []
    yield show
    for obj in (obj for text in shown for obj in yaml.safe_load_all(text)):
        if obj['kind'] != 'CustomResourceDefinition':  # others use them, too
            try:
                await kube.request('DELETE', f"{get_path(obj)}/{obj['metadata']['name']}")
            except KubeError as e:
                assert e.status == 404


async def apply(kube, text):
    """Apply all objects, one after another, with all that the API can find wrong in them."""
    for obj in yaml.safe_load_all(text):
        await kube.request(
            'PATCH', f"{get_path(obj)}/{obj['metadata']['name']}", body=obj,
            content_type='application/apply-patch+yaml',
            params={'fieldManager': 'kubectl', 'force': 'true', 'fieldValidation': 'Strict'})
        if obj['kind'] == 'CustomResourceDefinition':
            names = obj['spec']['names']
            await kube.wait_served(Kind(
                obj['spec']['group'], 'v1', names['plural'], names['kind'],
                namespaced=obj['spec']['scope'] == 'Namespaced'))
        if obj['kind'] == 'Namespace':  # where the API would warn of pods that can do much
            await kube.request(
                'PATCH', f"{get_path(obj)}/{obj['metadata']['name']}",
                body={'metadata': {'labels': {'pod-security.kubernetes.io/warn': 'restricted'}}},
                content_type='application/merge-patch+json')


@pytest.mark.parametrize('operator', OPERATORS)
async def test_the_api_accepts_all_that_is_printed(kube, show, operator):
    args, kinds = OPERATORS[operator]
    text = show(*args)
    assert {obj['kind'] for obj in yaml.safe_load_all(text)} == ALWAYS | kinds
    await apply(kube, text)
    await apply(kube, text)  # as after each change
    assert kube.warnings == []


@pytest.mark.skipif(shutil.which('kubectl') is None, reason="There is no kubectl.")
@pytest.mark.parametrize('operator', OPERATORS)
def test_kubectl_applies_all_that_is_printed(cluster, show, tmp_path, operator):
    def apply(source, text=None):
        process = subprocess.run(
            ['kubectl', 'apply', '--warnings-as-errors', '--cache-dir', tmp_path / 'cache',
             '-f', source],
            env={**os.environ, 'KUBECONFIG': cluster}, input=text, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr

    args, _ = OPERATORS[operator]
    text = show(*args)
    if '--peering' in args:  # kubectl knows no kind that it has defined itself
        folder = tmp_path / 'manifests'
        show(*args, '--split', folder)
        apply(folder / '0-definitions.yaml')
        apply(folder)
    apply('-', text)


async def test_the_operator_runs_with_exactly_the_printed_rights(
        kube, cluster, show, name, tmp_path):
    port = find_free_ports(1)
    objs = list(yaml.safe_load_all(show(
        f'--liveness=http://0.0.0.0:{port}/healthz', f'--metrics=http://0.0.0.0:{port}/metrics',
        '--leader-elect=it', '--verbose', EXAMPLES / '23-typed-kinds/example.py')))
    await apply(kube, yaml.safe_dump_all(objs))
    path = pathlib.Path(
        await accounts.log_in(kube, cluster, tmp_path / 'account', name, namespace=name))
    config = yaml.safe_load(path.read_text())
    config['contexts'][0]['context']['namespace'] = name  # that of the pod
    path.write_text(yaml.safe_dump(config))

    deployment = next(obj for obj in objs if obj['kind'] == 'Deployment')
    container, = deployment['spec']['template']['spec']['containers']
    assert container['command'] == ['kopf', 'run']
    ports = {each['name']: each['containerPort'] for each in container['ports']}
    assert ports == {'http': port}
    op = Operator(container['args'], kubeconfig=str(path), env={'POD_ID': 'pod1'})
    try:
        await op.wait_for(LEADING)
        for probe in ['livenessProbe', 'readinessProbe']:
            assert await request(port, container[probe]['httpGet']['path']) == 200
        assert await request(port, '/metrics') == 200
        await kube.create(CACHES, name, spec={'replicas': 2})
        await kube.wait_for(
            DEPLOYMENTS, name, lambda obj: obj['spec']['replicas'] == 2, timeout=90)
        await op.wait_for("Patching with: .*/status")  # which needs another right
        await kube.delete(CACHES, name)
        await kube.wait_gone(CACHES, name)
    finally:
        assert op.stop() == 0, op.text
        await kube.clear_kind(CACHES)
    assert op.find('[Ff]orbidden|cannot list') == []


async def request(port, path):
    async with aiohttp.ClientSession() as session:
        async with session.get(f'http://127.0.0.1:{port}{path}') as response:
            return response.status
