import pathlib
import re
import sys

import pytest
import yaml
from click.testing import CliRunner

import kopf
from kopf import cli
from kopf._kits.projects import manifests
from kopf._kits.typed import kinds

ROOT = pathlib.Path(__file__).parents[3]
CRD = ROOT / 'examples' / 'crd.yaml'
PLAIN = '''
import kopf

@kopf.on.create('kopfexamples')
def create(**_):
    pass
'''
STARTING = '''
@kopf.on.startup()
def configure(settings, **_):
    settings.'''
CHECKED = '''
@kopf.on.validate('kopfexamples')
def check(**_):
    pass
'''
TYPED = '''
import dataclasses
import kopf

@dataclasses.dataclass
class Size:
    n: int = 0

@kopf.crd('a.example.com', 'v1', plural='things', scale=kopf.Scale('.spec.n', '.status.n'))
class Thing:
    spec: Size
    status: Size | None = None

@kopf.crd('b.example.com', 'v1', plural='others')
class Other:
    spec: Size

@kopf.on.create(Thing)
@kopf.on.create(Other)
def create(**_):
    pass
'''


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(kinds, '_declared', {})
    default = kopf.get_default_registry()
    yield
    kopf.set_default_registry(default)


@pytest.fixture()
def run(tmp_path, monkeypatch):
    """Run ``kopf manifests`` in this process; returns click's result."""
    def run(*args, text=PLAIN, image='any', env=None):
        kopf.set_default_registry(kopf.OperatorRegistry())
        pathlib.Path('handlers.py').write_text(text)
        for name in [name for name in sys.modules if name.startswith('__kopf_script_')]:
            monkeypatch.delitem(sys.modules, name)  # loaded by a former run
        kinds._declared.clear()
        return CliRunner(env=env).invoke(cli.main, [
            'manifests', '--crd', str(CRD), *args, f'--image={image}', 'handlers.py'])

    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture()
def show(run):
    """Run ``kopf manifests``, and return the objects by their kinds and names."""
    def show(*args, **kwargs):
        result = run(*args, **kwargs)
        assert result.exit_code == 0, result.output
        return {(obj['kind'], obj['metadata']['name']): obj
                for obj in yaml.safe_load_all(result.stdout)}
    return show


@pytest.fixture()
def deploy(show):
    """Run ``kopf manifests``, and return the deployment and its container."""
    def deploy(*args, **kwargs):
        deployment = show(*args, **kwargs)['Deployment', 'kopf-handlers']
        container, = deployment['spec']['template']['spec']['containers']
        return deployment['spec'], container
    return deploy


def test_the_same_is_printed_each_time(run):
    args = ['-A', '--leader-elect=it', '--replicas=2']
    assert run(*args).stdout == run(*args).stdout


def test_nothing_in_the_yaml_refers_to_something_else_in_it(run):
    result = run('-A', '--leader-elect=it', '--replicas=2', '--pod-monitor',
                 '--metrics=http://0.0.0.0:8080/', text=PLAIN + CHECKED)
    assert '&id' not in result.stdout


@pytest.mark.parametrize(
    'image', ['a"b: {c}', "it's #1", '$name', 'null', '1.0', 'naïve 🙂', 'a\nb'])
def test_values_are_printed_as_they_are(deploy, image):
    _, container = deploy('-A', '--leader-elect', '--name=kopf-handlers', image=image)
    assert container['image'] == image


def test_the_namespace_precedes_what_is_in_it(show):
    assert [kind for kind, _ in show('-A', '--standalone')] == [
        'Namespace', 'ServiceAccount', 'ClusterRole', 'ClusterRoleBinding', 'Deployment']


@pytest.mark.parametrize('namespace', ['default', 'kube-system'])
def test_namespaces_of_kubernetes_are_not_made(show, namespace):
    objs = show('-A', '--operator-namespace', namespace)
    assert not [kind for kind, _ in objs if kind == 'Namespace']
    assert objs['Deployment', 'kopf-handlers']['metadata']['namespace'] == namespace


def test_all_is_named_as_is_said(show):
    objs = show('-n', 'a', '--leader-elect', '--name=it', '--operator-namespace=there')
    assert {name for kind, name in objs if kind != 'Namespace'} == {'it'}
    assert ('Namespace', 'there') in objs
    assert objs['Deployment', 'it']['metadata']['namespace'] == 'there'


def test_the_roles_are_bound_to_the_account(run):
    result = run('-n', 'a', '--leader-elect')
    objs = list(yaml.safe_load_all(result.stdout))
    account = {'kind': 'ServiceAccount', 'name': 'kopf-handlers', 'namespace': 'kopf-handlers'}
    roles = [obj for obj in objs if obj['kind'] in ('Role', 'ClusterRole')]
    bindings = [obj for obj in objs if obj['kind'].endswith('Binding')]
    assert [obj['metadata'] for obj in bindings] == [obj['metadata'] for obj in roles]
    assert [obj['subjects'] for obj in bindings] == [[account]] * len(roles)
    assert {obj['metadata'].get('namespace') for obj in roles} == {None, 'a', 'kopf-handlers'}


@pytest.mark.parametrize('args, expected', [
    (['-A'], ['--liveness=http://0.0.0.0:8080/healthz', '--all-namespaces']),
    (['-n', 'a', '-n', 'b*', '--standalone', '-v', '--log-format=json'],
     ['--liveness=http://0.0.0.0:8080/healthz', '--standalone', '--verbose', '--log-format=json',
      '--namespace=a', '--namespace=b*']),
    (['-A', '--leader-elect', '-L', 'http://:80/x', '-p', '5', '--standalone'],
     ['--standalone', '--liveness=http://:80/x', '--priority=5', '--leader-elect=kopf-operator',
      '--all-namespaces']),
    ([], ['--all-namespaces', '--liveness=http://0.0.0.0:8080/healthz']),
])
def test_the_arguments_are_those_of_the_operator(deploy, args, expected):
    _, container = deploy(*args)
    assert container['command'] == ['kopf', 'run']
    assert container['args'] == [*expected, 'handlers.py']


def test_options_of_the_environment_are_arguments_of_the_operator(deploy):
    _, container = deploy(env={'KOPF_MANIFESTS_NAMESPACE': 'a', 'KOPF_MANIFESTS_IMAGE': 'x'})
    assert '--namespace=a' in container['args']


def test_what_develops_is_refused(run):
    assert "No such option" in run('-A', '--reload').output


def test_one_replica_goes_before_the_next_one_comes(deploy):
    deployment, _ = deploy('-A')
    assert deployment['strategy'] == {'type': 'Recreate'}


@pytest.mark.parametrize('option', ['--leader-elect', '--shards=4', '--processes=2'])
def test_several_replicas_are_replaced_one_by_one(show, option):
    objs = show('-A', option, '--replicas=3')
    deployment = objs['Deployment', 'kopf-handlers']['spec']
    assert (deployment['replicas'], deployment['strategy']) == (3, {'type': 'RollingUpdate'})
    budget = objs['PodDisruptionBudget', 'kopf-handlers']
    assert budget['apiVersion'] == 'policy/v1'
    assert budget['spec']['selector'] == deployment['selector']


def test_budgets_are_those_of_the_version(show):
    objs = show('-A', '--shards=4', '--replicas=2', '--kubernetes=1.20')
    assert objs['PodDisruptionBudget', 'kopf-handlers']['apiVersion'] == 'policy/v1beta1'


@pytest.mark.parametrize('args, error', [
    (['--replicas=2'], "2 replicas need a Lease"),
    (['--replicas=2', '--peering=x'], "2 replicas need a Lease"),
    (['--peering=x', '--leader-elect'], "Peering and leader election exclude each other"),
    (['--shards=4', '--leader-elect'], "Sharding and leader election exclude each other"),
    (['--name=It'], "'It' is no DNS label: .* Give another one: --name"),
    (['--operator-namespace=a.b'], "'a.b' is no DNS label: .*: --operator-namespace"),
    (['--liveness=http://127.0.0.1:80/x'], "such as --liveness=http://0.0.0.0:8080/x"),
    (['--liveness=http://:0/'], "such as --liveness=http://0.0.0.0:8080/"),
    (['--metrics=http://localhost:80'], "such as --metrics=http://0.0.0.0:8080/metrics"),
    (['--metrics=http://:8080'], "write their hosts in the same way"),
    (['--pod-monitor'], "add --metrics="),
    (['--kustomize'], "--kustomize needs --split"),
    (['--kubernetes=new'], "'new' is no version of Kubernetes"),
    (['--split=handlers.py'], "handlers.py cannot be written: "),
])
def test_what_cannot_work_is_refused(run, args, error):
    result = run('-A', *args)
    assert result.exit_code in (1, 2)
    assert re.search(error, ' '.join(result.output.split()))


def test_containers_have_no_more_rights_than_they_need(deploy):
    deployment, container = deploy('-A')
    assert deployment['template']['spec']['securityContext'] == {
        'runAsNonRoot': True, 'seccompProfile': {'type': 'RuntimeDefault'}}
    assert container['securityContext'] == {
        'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
        'capabilities': {'drop': ['ALL']}}


@pytest.mark.parametrize('args, memory', [([], '100Mi'), (['--processes=3'], '300Mi')])
def test_each_process_needs_memory(deploy, args, memory):
    _, container = deploy('-A', *args)
    assert container['resources']['requests']['memory'] == memory


def test_the_health_checks_tell_whether_it_serves(deploy):
    _, container = deploy('-A', '--liveness=http://0.0.0.0:81/live')
    assert container['ports'] == [{'name': 'http', 'containerPort': 81}]
    for probe in ['livenessProbe', 'readinessProbe']:
        assert container[probe]['httpGet'] == {'path': '/live', 'port': 'http'}


@pytest.mark.parametrize('url, port, ports', [
    ('http://0.0.0.0:8080', 'http', {'http': 8080}),
    ('http://0.0.0.0:81', 'metrics', {'http': 8080, 'metrics': 81})])
def test_monitors_select_what_the_pods_have(show, url, port, ports):
    objs = show('-A', f'--metrics={url}', '--pod-monitor')
    monitor = objs['PodMonitor', 'kopf-handlers']['spec']
    pod = objs['Deployment', 'kopf-handlers']['spec']['template']
    assert monitor['selector'] == {'matchLabels': pod['metadata']['labels']}
    assert monitor['podMetricsEndpoints'] == [{'port': port, 'path': '/metrics'}]
    container, = pod['spec']['containers']
    assert {each['name']: each['containerPort'] for each in container['ports']} == ports


def test_clusters_without_monitors_get_none(show):
    objs = show('-A', '--metrics=http://0.0.0.0:8080')
    assert not [kind for kind, _ in objs if kind == 'PodMonitor']


def test_metrics_of_startup_handlers_are_monitored(show):
    text = PLAIN + STARTING + "metrics.endpoint = 'http://0.0.0.0:82/'\n"
    objs = show('-A', '--startup', '--pod-monitor', text=text)
    monitor = objs['PodMonitor', 'kopf-handlers']['spec']
    assert monitor['podMetricsEndpoints'] == [{'port': 'metrics', 'path': '/'}]


@pytest.mark.parametrize('server, port, warning', [
    (None, 9443, "The port of the webhooks is taken to be 9443."),
    ("kopf.WebhookServer(addr='127.0.0.1')", 9443, "host='kopf-handlers.kopf-handlers.svc'"),
    ("kopf.WebhookServer(host='kopf-handlers.kopf-handlers.svc', port=99)", 99, ''),
    ("kopf.WebhookServiceServer(service='kopf-handlers')", 443, ''),
    ("kopf.WebhookServiceServer(service='kopf-handlers', namespace='kopf-handlers')", 443, ''),
    ("kopf.WebhookServiceServer(service='other')", 443, "Server(service='kopf-handlers')"),
    ("kopf.WebhookServiceServer(service='kopf-handlers', namespace='x')", 443, "another name"),
    ("kopf.WebhookAutoTunnel()", 9443, ''),
])
def test_webhooks_have_a_service(show, caplog, server, port, warning):
    text = PLAIN + CHECKED + ('' if server is None else f"{STARTING}admission.server = {server}\n")
    objs = show('-A', '--startup', text=text)
    service = objs['Service', 'kopf-handlers']['spec']
    pod = objs['Deployment', 'kopf-handlers']['spec']['template']
    container, = pod['spec']['containers']
    assert service['selector'] == pod['metadata']['labels']
    assert service['ports'][0]['port'] == port
    inner = 9443 if port == 443 else port
    assert {'name': service['ports'][0]['targetPort'], 'containerPort': inner} in container['ports']
    assert container['readinessProbe']['tcpSocket'] == {'port': 'webhooks'}
    warned = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert warning in ''.join(warned) and len(warned) == bool(warning)


@pytest.mark.parametrize('args, expected', [
    (['-A'], [('ClusterKopfPeering', None)]),
    (['-n', 'b', '-n', 'a', '-n', 'c*'], [('KopfPeering', 'a'), ('KopfPeering', 'b')])])
def test_peerings_have_their_kinds_and_objects(run, args, expected):
    objs = list(yaml.safe_load_all(run(*args, '--peering=x').stdout))
    assert objs[:2] == list(yaml.safe_load_all((ROOT / 'peering.yaml').read_text()))
    assert [(obj['kind'], obj['metadata'].get('namespace'))
            for obj in objs if obj['metadata']['name'] == 'x'] == expected


@pytest.mark.parametrize('args', [[], ['--standalone', '--peering=x']])
def test_others_have_no_peering(show, args):
    assert not [kind for kind, _ in show('-A', *args) if 'Peering' in kind or 'Custom' in kind]


def test_people_see_and_change_the_objects(show):
    objs = show('-A', text=TYPED)
    view, edit = (objs['ClusterRole', f'kopf-handlers-{role}'] for role in ('view', 'edit'))
    label = 'rbac.authorization.k8s.io/aggregate-to-'
    assert view['metadata']['labels'] == {f'{label}view': 'true'}
    assert edit['metadata']['labels'] == {f'{label}edit': 'true', f'{label}admin': 'true'}
    for role in (view, edit):
        assert [(rule['apiGroups'], rule['resources']) for rule in role['rules']] == [
            (['b.example.com'], ['others']), (['a.example.com'], ['things', 'things/scale'])]
    assert view['rules'][0]['verbs'] == ['get', 'list', 'watch']
    assert 'delete' in edit['rules'][0]['verbs']


def test_definitions_are_as_if_printed_alone(run):
    run('-A', '--split=it', text=TYPED)
    result = CliRunner().invoke(cli.main, ['crd', 'handlers.py'])
    assert pathlib.Path('it/0-definitions.yaml').read_text() == result.stdout


def test_each_concern_has_a_file(run, show):
    args = ['-A', '--leader-elect', '--replicas=2']
    assert run(*args, '--split=it', text=TYPED).output == ''
    texts = {path.name: path.read_text() for path in pathlib.Path('it').iterdir()}
    assert sorted(texts) == [
        '0-definitions.yaml', '1-namespace.yaml', '2-rights.yaml', '3-users.yaml',
        '5-deployment.yaml']
    objs = [obj for name in sorted(texts) for obj in yaml.safe_load_all(texts[name])]
    assert objs == [*show(*args, text=TYPED).values()]


def test_files_that_are_not_needed_any_more_go_and_others_stay(run):
    run('-A', '--split=it', text=TYPED)
    pathlib.Path('it/own.yaml').touch()
    run('-A', '--split=it')
    assert sorted(path.name for path in pathlib.Path('it').iterdir()) == [
        '1-namespace.yaml', '2-rights.yaml', '5-deployment.yaml', 'own.yaml']


def test_kustomize_knows_the_files(run):
    run('-A', '--split=it', '--kustomize')
    kustomization = yaml.safe_load(pathlib.Path('it/kustomization.yaml').read_text())
    assert kustomization['kind'] == 'Kustomization'
    assert kustomization['resources'] == [
        '1-namespace.yaml', '2-rights.yaml', '5-deployment.yaml']


def test_all_files_are_known():
    assert len({*manifests.FILES}) == len(manifests.FILES)
