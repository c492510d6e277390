"""
An operator in a cluster: with an account of its own, and with no more rights than are documented.
"""

import asyncio
import contextlib
import json
import pathlib
import re
import uuid

import aiohttp
import pytest
import yaml

import kopf
from tests import expressions
from tests.e2e import accounts
from tests.e2e.journals import wait_handled
from tests.e2e.kubes import CONFIGMAPS, CRDS, Kind, Kube, KubeError
from tests.e2e.operators import Operator
from tests.e2e.ports import find_free_ports
from tests.e2e.proxy import Proxy
from tests.e2e.replicas import LEADING, STANDING_BY
from tests.e2e.test_peering import NARROW, WIDE, install

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'
EXAMPLE = EXAMPLES / '19-deployment'
KEX = Kind('kopf.dev', 'v1', 'kopfexamples', 'KopfExample')

WEBHOOKS = Kind('admissionregistration.k8s.io', 'v1', 'validatingwebhookconfigurations',
                'ValidatingWebhookConfiguration', namespaced=False)


@pytest.fixture()
async def name(kube):
    """The name of the account, and of whatever it needs; all of it is gone after the test."""
    name = f'operator-{uuid.uuid4().hex[:8]}'
    yield name
    await accounts.delete(kube, name, [{'kind': 'ClusterRole'}, {'kind': 'Role'}])
    for path in [WEBHOOKS.get_path(f'{name}.test'), WIDE.get_path(name), NARROW.get_path(name)]:
        try:
            await kube.request('DELETE', path)
        except KubeError as e:
            assert e.status == 404


@pytest.fixture()
def be_an_account(kube, name, cluster, monkeypatch, tmp_path):
    """
    Make an account with these rights, in the whole cluster and in the default namespace.

    Operators in the test are that account; it returns the path of its kubeconfig.
    """
    async def be(*, clustered, namespaced):
        path = await accounts.create(kube, cluster, tmp_path / 'kubeconfig', name, [
            {'kind': kind, 'rules': [
                {'apiGroups': [group], 'resources': resources, 'verbs': verbs}
                for group, resources, verbs in rules]}
            for kind, rules in [('ClusterRole', clustered), ('Role', namespaced)]])
        monkeypatch.setenv('KUBECONFIG', path)
        return path
    return be


async def test_the_documented_rights_are_enough(
        kube, kind, name, be_an_account, embedded, settings, journal, caplog):
    settings.posting.enabled = True
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = f'{name}.test'

    @kopf.on.validate(*kind.selector, labels={'never': 'there'})
    def check(**_):
        pass

    @kopf.on.create(*kind.selector)
    def created(body, **_):
        kopf.info(body, reason='Explicit', message="hello")
        return 'done'

    @kopf.on.update(*kind.selector)
    def updated(name, **_):
        journal.append(name)

    @kopf.on.delete(*kind.selector)
    def deleted(**_):
        pass

    await be_an_account(clustered=[
        ('apiextensions.k8s.io', ['customresourcedefinitions'], ['list', 'watch']),
        ('', ['namespaces'], ['list', 'watch']),
        ('admissionregistration.k8s.io',
         ['validatingwebhookconfigurations', 'mutatingwebhookconfigurations'], ['create', 'patch']),
        (kind.group, [kind.plural], ['list', 'watch']),
    ], namespaced=[
        ('', ['events'], ['create']),
        (kind.group, [kind.plural], ['list', 'watch', 'patch']),
    ])
    operator = embedded(clusterwide=True)
    obj = await kube.create(kind, 'obj')
    await wait_handled(kube, kind, 'obj')
    await kube.patch(kind, 'obj', {'spec': {'field': 1}})
    await journal.wait('obj')
    await kube.wait_events(obj, 1)
    await kube.wait_for(WEBHOOKS, f'{name}.test', lambda obj: len(obj['webhooks']) == 1)
    await kube.delete(kind, 'obj')
    await kube.wait_gone(kind, 'obj')
    operator.stop()
    await kube.wait_for(WEBHOOKS, f'{name}.test', lambda obj: not obj.get('webhooks'))
    assert [record.getMessage() for record in caplog.records if record.levelname != 'INFO'
            and record.levelname != 'DEBUG' and 'OS signals' not in record.getMessage()] == []


async def test_without_mutating_handlers_their_configuration_needs_no_rights(
        kube, kind, name, be_an_account, embedded, settings, caplog):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = f'{name}.test'

    @kopf.on.validate(*kind.selector, labels={'never': 'there'})
    def check(**_):
        pass

    await be_an_account(clustered=[
        ('apiextensions.k8s.io', ['customresourcedefinitions'], ['list', 'watch']),
        ('', ['namespaces'], ['list', 'watch']),
        ('admissionregistration.k8s.io', ['validatingwebhookconfigurations'], ['create', 'patch']),
        (kind.group, [kind.plural], ['list', 'watch']),
    ], namespaced=[])
    operator = embedded(clusterwide=True)
    await kube.wait_for(WEBHOOKS, f'{name}.test', lambda obj: len(obj['webhooks']) == 1)
    operator.stop()
    await kube.wait_for(WEBHOOKS, f'{name}.test', lambda obj: not obj.get('webhooks'))
    assert [message for message in caplog.messages if 'webhook configurations' in message] == []


OWNING = [
    ('apiextensions.k8s.io', ['customresourcedefinitions'], ['list', 'watch']),
    ('', ['namespaces'], ['list', 'watch']),
    ('', ['configmaps'], ['list', 'watch', 'create', 'patch', 'delete']),
]


async def test_the_documented_rights_for_owned_resources_are_enough(
        kube, kind, name, be_an_account, embedded, caplog):

    @kopf.reconcile(*kind.selector, owns=['configmaps'], conditions=True)
    def reconcile(name, spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'n': str(spec['n'])}}
        if spec['n'] == 1:
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-more'}}
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
            'name': name, 'namespace': 'kube-system'}}

    await be_an_account(namespaced=[], clustered=[
        *OWNING, (kind.group, [kind.plural], ['list', 'watch', 'patch']),
        (kind.group, [f'{kind.plural}/finalizers'], ['update'])])
    embedded(clusterwide=True)
    await kube.create(kind, name, spec={'n': 1})
    await kube.wait_for(CONFIGMAPS, f'{name}-more', bool)
    await kube.patch(kind, name, {'spec': {'n': 2}})
    await kube.wait_for(CONFIGMAPS, name, lambda obj: obj['data'] == {'n': '2'})
    await kube.wait_gone(CONFIGMAPS, f'{name}-more')
    await kube.wait_for(kind, name, lambda obj: obj['status']['conditions'])
    await kube.delete(kind, name)
    await kube.wait_gone(kind, name)
    await kube.wait_gone(CONFIGMAPS, name, namespace='kube-system')
    assert [record.getMessage() for record in caplog.records if record.levelname != 'INFO'
            and record.levelname != 'DEBUG' and 'OS signals' not in record.getMessage()] == []


async def test_missing_rights_for_owned_resources_are_named_and_hold_no_other_handlers(
        kube, kind, name, be_an_account, embedded, journal, caplog):

    @kopf.reconcile(*kind.selector, owns=['configmaps', 'secrets'], id='first')
    def first(**_):
        journal.append('first')

    @kopf.reconcile(*kind.selector, owns=['configmaps'], id='second')
    def second(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap'}

    await be_an_account(namespaced=[], clustered=[
        *OWNING, (kind.group, [kind.plural], ['list', 'watch', 'patch']),
        (kind.group, [f'{kind.plural}/finalizers'], ['update'])])
    embedded(clusterwide=True)
    await kube.create(kind, name)
    await kube.wait_for(CONFIGMAPS, name, bool)
    await journal.wait_until(lambda: (
        "Reconciler 'first' will not be called until secrets.v1 can be listed. The operator needs "
        "the rights to list, watch, create, patch, and delete secrets.v1" in caplog.text))
    assert journal == []


@pytest.mark.parametrize('peering', [WIDE, NARROW], ids=['cluster-wide', 'namespaced'])
async def test_the_documented_rights_for_peering_are_enough(
        kube, kind, name, be_an_account, operator, peering):
    rules = [
        (peering.group, [peering.plural], ['list', 'watch', 'patch']),
        (kind.group, [kind.plural], ['list', 'watch', 'patch']),
    ]
    kubeconfig = await be_an_account(
        clustered=rules if peering is WIDE else [], namespaced=rules if peering is NARROW else [])
    await install(kube, peering.group)
    await kube.create(peering, name)
    scope = ('--all-namespaces',) if peering is WIDE else ('--namespace', 'default')
    op = operator('''
@kopf.on.create(*KIND)
def fn(name, **_):
    print(f"created {name}")
''', kind=kind, kubeconfig=kubeconfig, env={'POD_ID': 'me'},
        scope=(*scope, '--verbose', '--peering', name))
    await kube.wait_for(peering, name, lambda obj: 'me' in obj.get('status', {}))
    await kube.create(kind, 'obj')
    await op.wait_for("created obj")
    assert op.stop() == 0
    assert not (await kube.get(peering, name)).get('status')


@pytest.fixture()
async def deployed(kube, examples_alone):
    """All that the example has in its files is in the cluster; it is gone after the test."""
    definition, = load(EXAMPLES / 'crd.yaml')
    try:
        await kube.request('POST', CRDS, body=definition)
    except KubeError as e:
        assert e.status == 409  # other examples use it, too
    await kube.wait_served(KEX)
    objs = [*load(EXAMPLE / 'rbac.yaml'), *load(EXAMPLE / 'deployment.yaml')]
    groups = await kube.request('GET', '/apis')
    versions = {version['groupVersion'] for group in groups['groups']
                for version in group['versions']}
    for obj in objs:
        if obj['apiVersion'] == 'policy/v1' and 'policy/v1' not in versions:
            obj['apiVersion'] = 'policy/v1beta1'  # before Kubernetes 1.21
        while True:
            try:
                await kube.request('POST', get_path(obj), body=obj)
                break
            except KubeError as e:
                assert e.status == 409  # the former namespace is still terminating
                await asyncio.sleep(0.5)
    yield objs
    for obj in reversed(objs):
        await kube.request('DELETE', f"{get_path(obj)}/{obj['metadata']['name']}")


def load(path):
    return list(yaml.safe_load_all(path.read_text()))


def get_path(obj):
    group, _, version = obj['apiVersion'].rpartition('/')
    namespace = obj['metadata'].get('namespace')
    return Kind(group, version, f"{obj['kind'].lower()}s", obj['kind']).get_path(
        namespace=namespace)


def find_rights(requests):
    """The rights that were needed for the requests."""
    for request in requests:
        match = re.fullmatch(
            r'/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?:namespaces/[^/]+/)?(?P<resource>[^/]+)'
            r'(?P<name>/[^/]+)?', request.path)
        if match:
            reading = 'watch' if request.is_watch else 'get' if match['name'] else 'list'
            verbs = [{'GET': reading, 'POST': 'create', 'PUT': 'update', 'PATCH': 'patch'}[
                request.method]]
            if request.method == 'PATCH' and request.status == 201:  # a server-side apply
                verbs.append('create')
            for verb in verbs:
                yield match['group'] or '', match['resource'], verb


@pytest.fixture()
async def run_replica(kube, cluster, tmp_path, deployed):
    """Run the command of the image as the account of the example, with another port."""
    account = await accounts.log_in(
        kube, cluster, tmp_path / 'account', 'operator', namespace='kopf-example')
    async with Kube(account) as own:
        await own.wait_known_as_owners(KEX)

    entrypoint = re.search(
        r'^ENTRYPOINT (.+)$', (EXAMPLE / 'Dockerfile').read_text(), re.MULTILINE)
    command = json.loads(entrypoint[1])
    assert command[:3] == ['kopf', 'run', '/src/example.py']

    with contextlib.ExitStack() as stack:
        def run(name, port):
            proxy = stack.enter_context(Proxy(account))
            path = tmp_path / f'{name}.config'
            config = yaml.safe_load(pathlib.Path(proxy.write_kubeconfig(path)).read_text())
            config['contexts'][0]['context']['namespace'] = 'kopf-example'  # that of the pod
            path.write_text(yaml.safe_dump(config))
            args = [arg.replace('0.0.0.0:8080', f'127.0.0.1:{port}') for arg in command[3:]]
            op = Operator(
                [*args, '--verbose', str(EXAMPLE / 'example.py')], kubeconfig=str(path),
                env={'POD_ID': name})
            stack.callback(op.stop)
            return op, proxy
        yield run


async def read_leadership(port):
    async with aiohttp.ClientSession() as session:
        async with session.get(f'http://127.0.0.1:{port}/healthz') as response:
            assert response.status == 200
            role = (await response.json())['leadership']
        async with session.get(f'http://127.0.0.1:{port}/metrics') as response:
            assert response.status == 200
            series = expressions.parse_text(await response.text())
    return role, series['leader_election_master_status']


async def test_replicas_of_the_example_take_over_with_exactly_the_rights_that_they_have(
        kube, deployed, run_replica):
    name = f'obj-{uuid.uuid4().hex[:8]}'
    ports = [find_free_ports(1), find_free_ports(1)]
    deployment = next(obj for obj in deployed if obj['kind'] == 'Deployment')['spec']
    container, = deployment['template']['spec']['containers']
    assert container['livenessProbe']['httpGet']['path'] == '/healthz'
    assert deployment['replicas'] == len(ports)

    # The first one leads, and the second one waits.
    first, proxy1 = run_replica('pod1', ports[0])
    await first.wait_for(LEADING)
    second, proxy2 = run_replica('pod2', ports[1])
    await second.wait_for(STANDING_BY)
    assert await read_leadership(ports[0]) == ('leader', [({'name': 'kopf-example'}, 1)])
    assert await read_leadership(ports[1]) == ('standby', [({'name': 'kopf-example'}, 0)])
    obj = await kube.create(KEX, name, spec={'field': 'first'})
    await wait_handled(kube, KEX, name)

    # As in a rolling update: the leader is stopped, and a new replica is started.
    assert first.stop() == 0
    await second.wait_for(LEADING)
    third, proxy3 = run_replica('pod3', ports[0])
    await third.wait_for(STANDING_BY)
    await kube.patch(KEX, name, {'spec': {'field': 'second'}})
    await kube.wait_for(CONFIGMAPS, name, lambda obj: obj['data'] == {'field': 'second'})
    await wait_handled(kube, KEX, name)

    # As after the loss of a node: what happens meanwhile is handled.
    second.kill()
    await kube.patch(KEX, name, {'spec': {'field': 'third'}})
    await kube.wait_for(
        CONFIGMAPS, name, lambda obj: obj['data'] == {'field': 'third'}, timeout=60)
    await wait_handled(kube, KEX, name)
    await kube.wait_events(obj, 3)
    await kube.delete(KEX, name)
    await kube.wait_gone(KEX, name)
    assert third.stop() == 0
    for op in [first, second, third]:
        assert op.find("[Ff]orbidden") == []

    requests = [  # others can have installed the kinds for peering
        request for proxy in [proxy1, proxy2, proxy3] for request in proxy.requests
        if 'kopfpeerings' not in request.path]
    assert {request.status for request in requests} & {401, 403} == set()
    needed = set(find_rights(requests))
    granted = {
        (group, resource, verb) for role in deployed if role['kind'] in ('ClusterRole', 'Role')
        for rule in role['rules'] for group in rule['apiGroups']
        for resource in rule['resources'] for verb in rule['verbs']}
    assert needed <= granted
    # Where the API streams the first state, lists are needed only after some failures. There are no
    # requests for what makes an owner.
    assert {verb for _, _, verb in granted - needed} - {'list'} == {'update'}
    assert ('kopf.dev', 'kopfexamples/finalizers', 'update') in granted - needed
