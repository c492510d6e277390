"""
The same tests on all servers: the sandbox, also over an upstream, which is empty or filled; the
real API of ``$KOPF_E2E_KUBECONFIG``, and the sandbox over it.

What they answer is asserted with the same words, so that a difference is a failure of one.
"""
import os
import pathlib
import uuid
from collections.abc import Iterator

import pytest
import yaml

from kopf._kits.testing.apis import read_credentials
from kopf.testing import SandboxThread, Upstream, run_sandbox
from tests.conformance.apis import AGGREGATED, Api, Object, unique
from tests.conformance.kinds import Kinds, make_crds

OLDEST = 36
"""The minor version from which on the answers are as the tests expect them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith('tests/conformance/'):
            item.add_marker(pytest.mark.filterwarnings('ignore::ResourceWarning'))


def load_real_config() -> Object:
    """The kubeconfig of the real API; skips the test where there is none, or an old one."""
    path = os.environ.get('KOPF_E2E_KUBECONFIG')
    if not path:
        pytest.skip("There is no $KOPF_E2E_KUBECONFIG.")
    config = yaml.safe_load(pathlib.Path(path).read_text())
    version = Api(config).get('/version').ok
    if int(version['minor']) < OLDEST:
        pytest.skip(f"It is for Kubernetes 1.{OLDEST} and newer, not {version['gitVersion']}.")
    return config


@pytest.fixture(scope='session', params=[
    'sandbox', 'filled', *(
        pytest.param(name, marks=pytest.mark.e2e)
        for name in ('real', 'upstream', 'upstream-real'))])
def config(request: pytest.FixtureRequest) -> Iterator[Object]:
    """The kubeconfig of the server, with the contexts "admin" and "plain"."""
    if request.param == 'real':
        yield load_real_config()
        return
    pytest.importorskip('cryptography')
    if request.param == 'upstream-real':
        upstream = Upstream(read_credentials(load_real_config()))
        with run_sandbox(tls=True, upstream=upstream) as sandbox:
            yield sandbox.kubeconfig()
        assert set(upstream.requests) == {'get', 'list', 'watch'}
        return
    if request.param == 'sandbox':
        with run_sandbox(tls=True) as sandbox:
            yield sandbox.kubeconfig()
        return
    with run_sandbox() as upstream:
        if request.param == 'filled':
            fill(upstream)
        with run_sandbox(tls=True, upstream=Upstream(upstream.credentials)) as sandbox:
            yield sandbox.kubeconfig()


def fill(sandbox: SandboxThread) -> None:
    """Create objects of all sorts that the tests use, under other names."""
    found = Kinds('filled.test')
    sandbox.client.load(*make_crds(found))
    for number in range(10):
        name = f'filled-{number}'
        sandbox.client.create({
            'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}})
        for namespace in ('default', name):
            sandbox.client.create({
                'apiVersion': 'v1', 'kind': 'ConfigMap',
                'metadata': {'name': name, 'namespace': namespace}, 'data': {'key': name}})
            sandbox.client.create({
                **found.make('things', name, **found.example),
                'metadata': {'name': name, 'namespace': namespace}})


@pytest.fixture(scope='session')
def api(config: Object) -> Iterator[Api]:
    """A client with all the rights."""
    client = Api(config)
    yield client
    client.close()


@pytest.fixture(scope='session')
def plain(config: Object) -> Iterator[Api]:
    """A client without any rights."""
    client = Api(config, 'plain')
    yield client
    client.close()


@pytest.fixture(scope='session')
def kinds(api: Api) -> Iterator[Kinds]:
    """Kinds of custom resources, all in one group of their own."""
    found = Kinds(f'g{uuid.uuid4().hex[:8]}.test')
    crds = make_crds(found)
    for crd in crds:
        api.post(found.crds, crd).ok
    for crd in crds:
        name = crd['spec']['names']['plural']
        api.wait(found.path(name), lambda answer: answer.status == 200)
    for crd in crds:  # in the first seconds of a kind, creations are refused
        path = found.path(crd['spec']['names']['plural'], namespace='default')
        body = found.make(crd['spec']['names']['plural'], 'first', **found.example)
        api.wait(path, lambda _, path=path, body=body: api.post(path, body).status in (201, 409))
        api.delete(f'{path}/first').ok
    # A real API tells of the versions of a group one after another, and at different times.
    api.wait(f'/apis/{found.group}', lambda answer: (
        answer.status == 200 and len(answer['versions']) == 2))
    api.wait('/apis', lambda answer: [
        len(item['versions']) for item in answer['groups'] if item['name'] == found.group] == [2])
    api.wait('/apis', accept=AGGREGATED, predicate=lambda answer: [
        len(item['versions']) for item in answer['items']
        if item['metadata']['name'] == found.group] == [2])
    api.wait('/openapi/v3', lambda answer: f'apis/{found.group}/v1' in answer['paths'])
    yield found
    for crd in crds:
        api.delete(f"{found.crds}/{crd['metadata']['name']}")


@pytest.fixture()
def ns(api: Api) -> Iterator[str]:
    """A namespace of the test's own."""
    name = unique('ns')
    body = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}}
    api.post('/api/v1/namespaces', body).ok
    yield name
    api.delete(f'/api/v1/namespaces/{name}')


@pytest.fixture()
def cms(ns: str) -> str:
    """The path of the config maps in the namespace of the test."""
    return f'/api/v1/namespaces/{ns}/configmaps'


@pytest.fixture()
def things(kinds: Kinds, ns: str) -> str:
    """The path of objects with a strict schema, a status, a scale, and columns."""
    return kinds.path('things', namespace=ns)


@pytest.fixture()
def frees(kinds: Kinds, ns: str) -> str:
    """The path of objects with any content, without subresources."""
    return kinds.path('frees', namespace=ns)
