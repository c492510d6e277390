"""
Which kinds and namespaces are served, on a real API, as they come and go, and by what rights.
"""
import asyncio
import contextlib
import logging
import uuid

import pytest

import kopf
from kopf._cogs.clients import api, scanning
from kopf._cogs.cluster import discovery
from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs
from kopf._cogs.structs import credentials
from kopf._core.reactor.watches import consumers, orchestration
from tests._core.reactor.test_orchestration import make_hub
from tests.e2e.kubes import NAMESPACES, Kind
from tests.e2e.test_watching import State


class Lines:
    def __init__(self):
        self.states = {}
        self.dropped = []

    def open(self, resource, namespace, handlers):
        self.states[resource.plural, namespace] = State()
        return self.states[resource.plural, namespace]

    def close(self, resource, namespace, *, deleted):
        self.states.pop((resource.plural, namespace))
        self.dropped.append((resource.plural, namespace))

    def forget_except(self, namespaces):
        pass

    def seal(self):
        pass

    async def wait(self, *keys):
        async with asyncio.timeout(240):  # Kubernetes takes its time to delete namespaces
            while set(self.states) != set(keys):
                await asyncio.sleep(0.02)


@pytest.fixture()
def lines():
    return Lines()


@pytest.fixture()
def settings():
    return configuration.OperatorSettings()


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def info(cluster, monkeypatch):
    monkeypatch.setenv('KUBECONFIG', cluster)
    return kubeconfigs.login_with_kubeconfig()


@pytest.fixture()
def serve(info, settings, registry, lines):
    @contextlib.asynccontextmanager
    async def run(*namespaces, info=info):
        async with api.Client(credentials=info, settings=settings) as client:
            consumer = consumers.Consumer()
            consumer.informers = lines
            task = asyncio.create_task(orchestration.Orchestration(
                client=client, registry=registry, consumer=consumer,
                hub=make_hub(client, settings), namespaces=namespaces,
                clusterwide=not namespaces, insights=discovery.Insights(),
                logger=logging.getLogger('test')).serve())
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    return run


@pytest.fixture()
def handle(registry):
    def declare(kind):
        @kopf.on.event(*kind.selector, registry=registry)
        def fn(**_):
            pass
    return declare


@pytest.fixture()
async def namespace(kube):
    """The name of a namespace of the test's own."""
    name = f'ns-{uuid.uuid4().hex[:8]}'
    await kube.create(NAMESPACES, name)
    yield name
    with contextlib.suppress(Exception):
        await kube.delete(NAMESPACES, name)


@pytest.fixture()
async def restricted(kube, info, namespace):
    """Make credentials of a service account that has only these rights."""
    made = []

    async def make(*rules, clusterwide=False):
        name = f'sa-{uuid.uuid4().hex[:8]}'
        base = f'/api/v1/namespaces/{namespace}/serviceaccounts'
        rbac = '/apis/rbac.authorization.k8s.io/v1'
        await kube.request('POST', base, body={'metadata': {'name': name}})
        token = await kube.request('POST', f'{base}/{name}/token', body={
            'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}})
        prefix, path = ('Cluster', rbac) if clusterwide else ('', f'{rbac}/namespaces/{namespace}')
        await kube.request('POST', f'{path}/{prefix.lower()}roles', body={
            'metadata': {'name': name},
            'rules': [{'apiGroups': [group], 'resources': [plural], 'verbs': ['list', 'watch']}
                      for group, plural in rules]})
        made.append(f'{path}/{prefix.lower()}roles/{name}')
        await kube.request('POST', f'{path}/{prefix.lower()}rolebindings', body={
            'metadata': {'name': name},
            'roleRef': {
                'apiGroup': 'rbac.authorization.k8s.io', 'kind': f'{prefix}Role', 'name': name},
            'subjects': [{'kind': 'ServiceAccount', 'name': name, 'namespace': namespace}]})
        made.append(f'{path}/{prefix.lower()}rolebindings/{name}')
        return credentials.ConnectionInfo(
            server=info.server, ca_data=info.ca_data, token=token['status']['token'])

    yield make
    for path in made:
        await kube.request('DELETE', path)


async def test_kinds_that_come_late_are_served(serve, handle, kube, lines):
    kind = Kind.make_unique()
    handle(kind)
    async with serve():
        await asyncio.sleep(0.5)
        assert not lines.states
        await kube.create_kind(kind)
        await kube.create(kind, 'obj')
        await lines.wait((kind.plural, None))
        await lines.states[kind.plural, None].wait_until(
            lambda: 'obj' in lines.states[kind.plural, None].objects)
        await kube.delete_kind(kind)
        await lines.wait()
    assert lines.dropped == [(kind.plural, None)]


async def test_kinds_that_are_recreated_with_another_scope_are_served(
        serve, handle, kube, lines, namespace,
):
    kind = Kind.make_unique()
    handle(kind)
    await kube.create_kind(kind)
    try:
        async with serve(namespace):
            await lines.wait((kind.plural, namespace))
            await kube.delete_kind(kind)
            await lines.wait()
            kind = Kind(kind.group, kind.version, kind.plural, kind.kind, namespaced=False)
            await kube.create_kind(kind)
            await lines.wait((kind.plural, None))
    finally:
        await kube.delete_kind(kind)


async def test_namespaces_that_come_late_are_served(serve, handle, kube, lines, kind):
    prefix = f'late-{uuid.uuid4().hex[:8]}'  # others can leave such namespaces, too
    name = f'{prefix}-one'
    handle(kind)
    async with serve(f'{prefix}-*'):
        await asyncio.sleep(0.3)
        assert not lines.states
        await kube.create(NAMESPACES, name)
        await kube.create(kind, 'obj', namespace=name)
        await lines.wait((kind.plural, name))
        state = lines.states[kind.plural, name]
        await state.wait_until(lambda: 'obj' in state.objects)
        await kube.delete(NAMESPACES, name)
        await lines.wait()


async def test_without_rights_for_crds_and_namespaces_the_exact_names_are_served(
        serve, handle, lines, kind, namespace, restricted, kube, caplog,
):
    handle(kind)
    info = await restricted((kind.group, kind.plural))
    await kube.create(kind, 'obj', namespace=namespace)
    async with serve(namespace, 'other-*', info=info):
        await lines.wait((kind.plural, namespace))
        await lines.states[kind.plural, namespace].wait_until(
            lambda: 'obj' in lines.states[kind.plural, namespace].objects)
    texts = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert len([text for text in texts if "no permission to watch CRDs" in text]) == 1
    assert len([text for text in texts if "no permission to watch namespaces" in text]) == 1


async def test_rights_that_come_late_are_used(serve, handle, lines, kind, restricted, settings):
    settings.networking.error_backoffs = [0.2] * 100
    handle(kind)
    info = await restricted(clusterwide=False)
    async with serve(info=info):
        await lines.wait((kind.plural, None))
        await asyncio.sleep(0.5)
        assert not lines.states[kind.plural, None].seen


async def test_rejected_tokens_end_it(serve, handle, kind, info):
    handle(kind)
    wrong = credentials.ConnectionInfo(server=info.server, ca_data=info.ca_data, token='wrong')
    async with serve(info=wrong) as task:
        with pytest.raises(credentials.LoginError):
            await asyncio.wait_for(task, 10)


async def test_both_forms_of_scanning_find_the_same(info, settings, kind):
    async with api.Client(credentials=info, settings=settings) as client:
        one = await scanning.scan(client)
        two = await scanning.scan_groups(client, groups={res.group for res in one.resources})
    assert {(repr(res), res.kind, res.singular, res.shortcuts, res.categories, res.subresources,
             res.namespaced, res.preferred, res.verbs) for res in one.resources
            if res.group in ('', 'apps', 'batch', kind.group)} == {
        (repr(res), res.kind, res.singular, res.shortcuts, res.categories, res.subresources,
         res.namespaced, res.preferred, res.verbs) for res in two.resources
        if res.group in ('', 'apps', 'batch', kind.group)}


async def test_client_certificates_work(cluster, monkeypatch, settings, tmp_path):
    import yaml
    with open(cluster) as file:
        config = yaml.safe_load(file)
    if 'cert' not in {context['name'] for context in config['contexts']}:
        pytest.skip("The cluster has no user with a certificate.")
    config['current-context'] = 'cert'
    (tmp_path / 'config').write_text(yaml.safe_dump(config))
    monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'config'))
    async with api.Client(
        credentials=kubeconfigs.login_with_kubeconfig(), settings=settings,
    ) as client:
        assert (await client.request('GET', '/version'))['major'] == '1'


@pytest.mark.parametrize('name, ok', [('kubernetes.default.svc', True), ('wrong.test', False)])
async def test_servers_are_verified_by_another_name_if_given(info, settings, name, ok):
    import dataclasses

    from kopf._cogs.clients import errors
    settings.networking.error_backoffs = []
    named = dataclasses.replace(info, tls_server_name=name)
    async with api.Client(credentials=named, settings=settings) as client:
        if ok:
            await client.request('GET', '/version')
        else:
            with pytest.raises(errors.APIConnectionError, match='wrong.test|certificate'):
                await client.request('GET', '/version')
