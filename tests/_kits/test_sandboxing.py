import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import yaml
from click.testing import CliRunner

import kopf
from kopf import cli, testing
from kopf._kits import sandboxing
from tests import rights

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kopfexamples.kopf.dev}
spec:
  group: kopf.dev
  scope: Namespaced
  names: {kind: KopfExample, plural: kopfexamples, singular: kopfexample}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: kopf.dev/v1
kind: KopfExample
metadata: {name: obj, namespace: default}
"""


@pytest.fixture()
def controls():
    """What lets the command line run an operator without files."""
    registry = kopf.OperatorRegistry()
    kopf.on.event('kopfexamples', registry=registry)(lambda **_: None)
    return cli.CLIControls(registry=registry)


@pytest.fixture()
def start(tmp_path):
    """Start the command line with a kubeconfig to be written; returns the process and its path."""
    processes = []

    def start(*args):
        path = tmp_path / 'kubeconfig'
        path.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, '-m', 'kopf', *args, '--kubeconfig-out', str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
            env={**os.environ, 'PYTHONUNBUFFERED': '1'})
        processes.append(process)
        while not path.exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
        return process, yaml.safe_load(path.read_text())

    yield start
    for process in processes:
        process.terminate()  # so that it removes its temporary files
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@pytest.fixture()
def crd(tmp_path):
    path = tmp_path / 'crd.yaml'
    path.write_text(CRD)
    return str(path)


def get(config, path, *, method='GET', body=None):
    server = config['clusters'][0]['cluster']['server']
    user = next(item['user'] for item in config['users'] if item['name'] == 'admin')
    request = urllib.request.Request(
        server + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={'Authorization': f"Bearer {user['token']}", 'Content-Type': 'application/json'})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def stop(process):
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    return process.returncode, out


def test_the_sandbox_runs_by_itself_and_tells_how_to_reach_it(start, crd, tmp_path):
    process, config = start('sandbox', '--load', crd)
    path = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/obj'
    assert get(config, path)['metadata']['name'] == 'obj'
    code, out = stop(process)
    assert code == 0
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'}" in out
    assert "The sandbox is at http://127.0.0.1:" in out


def test_an_operator_runs_on_a_sandbox_of_its_own(start, crd, script):
    path = script("""
@kopf.on.create('kopfexamples')
def fn(name, **_):
    print(f"And here we are! {name}")
    return 1
""")
    process, config = start('run', '--sandbox', '--load', crd, '-A', '--standalone', path)
    url = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/obj'
    while get(config, url).get('status') != {'fn': 1}:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    code, out = stop(process)
    assert code == 0
    assert "And here we are! obj" in out


@pytest.mark.parametrize('place', ["import kubernetes.client\n", ""], ids=['early', 'late'])
def test_the_official_client_of_handlers_reaches_the_sandbox(start, crd, script, place):
    path = script(f"""
{place}
@kopf.on.create('kopfexamples')
def fn(name, namespace, **_):
    import kubernetes.client
    api = kubernetes.client.CustomObjectsApi()
    api.patch_namespaced_custom_object(
        'kopf.dev', 'v1', namespace, 'kopfexamples', name, {{'status': {{'done': True}}}})
""")
    process, config = start('run', '--sandbox', '--load', crd, '-A', path)
    url = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/obj'
    read_until(process, 'Creation is processed: 1 succeeded')
    assert get(config, url)['status'] == {'done': True}


def test_a_client_that_is_made_at_the_import_reaches_the_sandbox(start, crd, script, upstream):
    upstream.client.create('configmaps', 'own')
    path = script("""
import kubernetes
try:
    kubernetes.config.load_incluster_config()
except kubernetes.config.ConfigException:
    kubernetes.config.load_kube_config()
api = kubernetes.client.CoreV1Api()

@kopf.on.create('kopfexamples')
def fn(name, namespace, **_):
    api.create_namespaced_config_map(namespace, {'metadata': {'name': name}})
    kubernetes.config.load_kube_config()
    kubernetes.client.CoreV1Api().create_namespaced_config_map(
        namespace, {'metadata': {'name': f'{name}-late'}})
""")
    process, config = start('run', '--sandbox', '--load', crd, '-A', path)
    read_until(process, 'Creation is processed: 1 succeeded')
    maps = get(config, '/api/v1/namespaces/default/configmaps')['items']
    assert {obj['metadata']['name'] for obj in maps} >= {'obj', 'obj-late'}
    assert [obj['metadata']['name'] for obj in upstream.client.list('configmaps')] == ['own']


def test_the_kubeconfig_is_only_for_its_owner(start, tmp_path):
    start('sandbox')
    assert (tmp_path / 'kubeconfig').stat().st_mode & 0o777 == 0o600


def test_the_options_of_the_sandbox_need_it(crd):
    process = subprocess.run([sys.executable, '-m', 'kopf', 'run', '-A', '--load', crd],
                             capture_output=True, text=True)
    assert process.returncode == 2
    assert ("--load, --state, --upstream, --kubeconfig-out, --fault need --sandbox."
            in process.stderr)


@pytest.mark.parametrize('option, text, message', [
    ('--state', 'garbage', "is damaged"),
    ('--load', 'a: [', "The sandbox cannot start"),
    ('--load', 'kind: Nothing\napiVersion: v1\nmetadata: {name: x}\n', "no matches for kind"),
])
@pytest.mark.parametrize('command', [['sandbox'], ['run', '--sandbox', '--all-namespaces']])
def test_files_of_no_use_are_told_in_a_line(tmp_path, controls, command, option, text, message):
    path = tmp_path / 'file'
    path.write_text(text)
    result = CliRunner().invoke(cli.main, [*command, option, str(path)], obj=controls)
    assert result.exit_code == 1
    assert message in result.output
    assert 'Traceback' not in result.output


@pytest.mark.parametrize('command', [['sandbox'], ['run', '--sandbox', '--all-namespaces']])
@pytest.mark.parametrize('spec', ['nonsense:x=1', 'nonsense', 'refuse:count=x'])
def test_faults_of_no_sense_are_told_in_a_line(controls, command, spec):
    result = CliRunner().invoke(cli.main, [*command, '--fault', spec], obj=controls)
    assert result.exit_code == 2
    assert "Invalid value for --fault" in result.output


TYPED = '''
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = {default}

@kopf.crd('example.com', 'v1', plural='sizes')
class Size:
    spec: Spec

@kopf.on.create(Size)
def create_fn(spec: Spec, name, logger, **_):
    logger.info(f"{{name}} has the size {{spec.size}}.")
'''


def read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return line
    pytest.fail(''.join(lines))


@pytest.mark.parametrize('option', ['--reload', '--processes=2'])
def test_child_processes_define_the_typed_kinds_on_the_sandbox(start, tmp_path, option):
    path = tmp_path / 'handlers.py'
    path.write_text(TYPED.format(default=1))
    process, config = start('run', '-A', '--sandbox', option, str(path))
    read_until(process, 'Watching sizes')
    obj = {'apiVersion': 'example.com/v1', 'kind': 'Size', 'spec': {}}
    url = '/apis/example.com/v1/namespaces/default/sizes'
    get(config, url, method='POST', body={**obj, 'metadata': {'name': 'one'}})
    read_until(process, 'one has the size 1.')
    if option == '--reload':
        path.write_text(TYPED.format(default=2))
        read_until(process, 'Watching sizes')
        get(config, url, method='POST', body={**obj, 'metadata': {'name': 'two'}})
        read_until(process, 'two has the size 2.')
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def test_child_processes_with_typed_kinds_connect_once(start, tmp_path):
    path = tmp_path / 'handlers.py'
    path.write_text(TYPED.format(default=1))
    process, _ = start('run', '-A', '--sandbox', '--reload', str(path))
    read_until(process, 'Connected to')
    assert 'Watching sizes' in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.wait(30)


LOADED = '''
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sizes.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Size, plural: sizes}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
'''


def test_child_processes_leave_the_definitions_that_users_have_loaded(start, tmp_path):
    (tmp_path / 'crd.yaml').write_text(LOADED)
    path = tmp_path / 'handlers.py'
    path.write_text(TYPED.format(default=1))
    process, _ = start(
        'run', '-A', '--sandbox', '--load', str(tmp_path / 'crd.yaml'), '--reload', str(path))
    read_until(process, "The cluster has another definition of sizes.example.com than the code.")
    process.send_signal(signal.SIGTERM)
    process.wait(30)


CONFINED = '''
import kopf

@kopf.on.create('configmaps')
async def create_fn(name, namespace, logger, **_):
    if name == 'mine':
        await kopf.apply({'apiVersion': 'v1', 'kind': 'Secret',
                          'metadata': {'name': 'some', 'namespace': namespace}})
'''
CONFINED_EARLY = '''
import kopf, kubernetes
kubernetes.config.load_kube_config()
api = kubernetes.client.CoreV1Api()

@kopf.on.create('configmaps')
def create_fn(name, namespace, **_):
    if name == 'mine':
        api.create_namespaced_secret(namespace, {'metadata': {'name': 'some'}})
'''


@pytest.mark.parametrize('text, told, refused', [
    (CONFINED, 'secrets "some" is forbidden', "patch secrets 'some' in 'default'"),
    (CONFINED_EARLY, 'secrets is forbidden', "create secrets in 'default'")])
def test_an_operator_has_only_the_printed_rights_on_request(start, tmp_path, text, told, refused):
    path = tmp_path / 'handlers.py'
    path.write_text(text)
    process, config = start('run', '-A', '--sandbox', '--rbac', str(path))
    read_until(process, 'Watching configmaps')
    get(config, '/api/v1/namespaces/default/configmaps', method='POST', body={
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'mine'}})
    read_until(process, told)
    code, out = stop(process)
    assert code == 0
    assert f"Refused, as `kopf rbac` does not print it: {refused}\n" in out
    assert "Not used" not in out


@pytest.fixture()
def upstream(crd, tmp_path, monkeypatch):
    """A sandbox with objects, which ``$KUBECONFIG`` refers to."""
    with testing.run_sandbox() as sandbox:
        sandbox.client.load(crd)
        sandbox.write_kubeconfig(tmp_path / 'upstream')
        monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'upstream'))
        yield sandbox


@pytest.mark.parametrize('option', ['--upstream', '--upstream=admin'])
def test_a_sandbox_has_the_objects_of_its_upstream(start, upstream, option):
    process, config = start('sandbox', option)
    path = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/obj'
    uid = upstream.client.get('kopfexamples', 'obj')['metadata']['uid']
    assert get(config, path)['metadata']['uid'] == uid
    code, out = stop(process)
    assert code == 0
    assert "Requests to the upstream: 2 get, 3 list, " in out


HANDLERS = """
@kopf.on.create('kopfexamples')
def fn(name, **_):
    print(f"And here we are! {name}")
"""
LOGIN = """
@kopf.on.login()
def log_in(**_):
    return kopf.ConnectionInfo(server={url!r})
"""


@pytest.fixture()
def restrict(upstream, tmp_path, monkeypatch):
    """A function that makes a user with these rights, to whom ``$KUBECONFIG`` refers then."""
    def restrict(*objects):
        token = upstream.sandbox.add_user('limited', lambda *_: None)
        upstream.client.load(*objects)
        config = upstream.kubeconfig()
        for user in config['users']:
            user['user'] = {'token': token}
        (tmp_path / 'limited').write_text(json.dumps(config))
        monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'limited'))
    return restrict


@pytest.mark.parametrize('args', [['--sandbox', '--upstream', '--reload'], ['--shadow']])
def test_named_namespaces_are_served_without_rights_to_list_them(
        start, script, upstream, restrict, args):
    upstream.client.create('namespaces', 'ns')
    upstream.client.create('kopfexamples', 'other', namespace='ns', spec={})
    restrict(*rights.make_role(rights.make_rule('customresourcedefinitions')),
             *rights.make_role(rights.make_rule('kopfexamples'), namespace='ns'))
    process, _ = start('run', *args, '-n', 'ns', script(HANDLERS))
    read_until(process, "And here we are! other")
    assert stop(process)[0] == 0


@pytest.mark.parametrize('args', [['--sandbox', '--upstream'], ['--shadow']])
def test_what_the_upstream_refuses_is_told_at_the_end(start, script, restrict, args):
    restrict(*rights.make_role(rights.make_rule('namespaces', 'customresourcedefinitions')))
    process, _ = start('run', *args, '-A', script(HANDLERS))
    read_until(process, "Watching of kopfexamples.v1.kopf.dev cluster-wide has failed")
    code, out = stop(process)
    assert code == 0
    assert "! kopfexamples.kopf.dev cannot be read: The upstream refuses: " in out
    assert "! secrets" not in out


def test_a_shadow_says_at_the_end_what_is_not_served(start, script, upstream):
    process, _ = start('run', '--shadow', '-A', script(HANDLERS.replace('examples', 'exampels')))
    read_until(process, "Unresolved resources cannot be served")
    code, out = stop(process)
    assert code == 0
    assert "! Unresolved resources cannot be served" in out


@pytest.mark.parametrize('args', [[], ['--reload'], ['--processes=2']])
def test_operators_handle_the_objects_of_the_upstream(start, script, upstream, args):
    process, _ = start('run', '--sandbox', '--upstream', '-A', *args, script(HANDLERS))
    read_until(process, "And here we are! obj")
    code, out = stop(process)
    assert code == 0
    assert "Requests to the upstream: " in out
    assert 'finalizers' not in upstream.client.get('kopfexamples', 'obj')['metadata']


def test_login_handlers_are_for_the_upstream(start, script, upstream, monkeypatch):
    monkeypatch.setenv('KUBECONFIG', '/dev/null')
    process, _ = start('run', '--sandbox', '--upstream', '-A', script(HANDLERS + LOGIN.format(
        url=upstream.url)))
    read_until(process, "And here we are! obj")
    assert stop(process)[0] == 0


@pytest.mark.parametrize('args', [[], ['--reload'], ['--processes=2']])
def test_login_handlers_do_not_lead_out_of_the_sandbox(start, script, upstream, args):
    process, _ = start('run', '--sandbox', '--upstream', '-A', *args, script(
        HANDLERS + LOGIN.format(url=upstream.url)))
    read_until(process, "And here we are! obj")
    assert stop(process)[0] == 0
    assert 'annotations' not in upstream.client.get('kopfexamples', 'obj')['metadata']


def test_clients_of_handlers_find_no_service_account(monkeypatch):
    monkeypatch.setenv('KUBECONFIG', '/dev/null')
    monkeypatch.setenv('KUBERNETES_SERVICE_HOST', '10.0.0.1')
    with sandboxing.accompany():
        assert 'KUBERNETES_SERVICE_HOST' not in os.environ
        assert os.environ['KUBECONFIG'] != '/dev/null'
    assert os.environ['KUBERNETES_SERVICE_HOST'] == '10.0.0.1'
    assert os.environ['KUBECONFIG'] == '/dev/null'


@pytest.mark.parametrize('command', [['sandbox'], ['run', '--sandbox', '--all-namespaces']])
def test_an_upstream_of_no_use_is_told_in_a_line(controls, upstream, command):
    result = CliRunner().invoke(cli.main, [*command, '--upstream=absent'], obj=controls)
    assert result.exit_code == 1
    assert "The sandbox cannot start: There is no 'absent' in the kubeconfig" in result.output
    assert 'Traceback' not in result.output


@pytest.mark.parametrize('command', [['sandbox'], ['run', '--sandbox', '--all-namespaces']])
def test_with_an_upstream_no_state_is_kept(controls, tmp_path, command):
    result = CliRunner().invoke(
        cli.main, [*command, '--upstream', f'--state={tmp_path}/state'], obj=controls)
    assert result.exit_code == 2
    assert "Use either --state or --upstream" in result.output


@pytest.mark.parametrize('args', [[], ['--sandbox', '--reload'], ['--sandbox', '--processes=2']])
def test_only_one_process_on_a_sandbox_can_have_the_printed_rights(args):
    result = CliRunner().invoke(cli.main, ['run', '-A', '--rbac', *args, 'handlers.py'])
    assert result.exit_code == 2
    assert "--rbac needs --sandbox, and one process: without --reload." in result.output


OLD = """
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.name = 'ours'
    settings.leadership.name = 'ours'

@kopf.on.create('kopfexamples')
def fn(patch, **_):
    patch.status['colour'] = 'blue'
"""


def test_a_shadow_writes_nothing_and_reports_differences(start, crd, tmp_path, monkeypatch):
    _, config = start('sandbox', '--load', crd)
    kubeconfig = tmp_path / 'production'
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv('KUBECONFIG', str(kubeconfig))
    (tmp_path / 'old.py').write_text(OLD)
    (tmp_path / 'new.py').write_text(OLD.replace("'blue'", "'red'") + """
    import subprocess
    try:
        subprocess.run(['true'])
    except OSError as e:
        print(e)
""")
    base = '/apis/kopf.dev/v1/namespaces/default/kopfexamples'
    with socket.create_server(('127.0.0.1', 0)) as server:
        url = f'http://127.0.0.1:{server.getsockname()[1]}'
    shadow, _ = start('run', '-A', '--shadow', '--shadow-window=0.3', f'--metrics={url}/metrics',
                      f'--debug-endpoint={url}/debug', 'new.py')
    read_until(shadow, 'Creation is processed')
    assert 'status' not in get(config, f'{base}/obj')
    read_until(shadow, 'more: kopfexamples.kopf.dev default/obj: status: nothing in production')
    with urllib.request.urlopen(f'{url}/metrics') as response:
        assert ('kopf_shadow_differences_total{category="more",kind="kopfexample"} 1.0'
                in response.read().decode())
    with urllib.request.urlopen(f'{url}/debug') as response:
        assert json.load(response)['shadow']['total'] == {'more': 1}
    leases = get(config, '/apis/coordination.k8s.io/v1/leases')['items']
    assert [lease['metadata']['name'] for lease in leases] == []
    code, out = stop(shadow)
    assert code == 0
    assert '{"colour": "red"} here (by fn for kopfexamples.kopf.dev default/obj)' in out
    assert "Refused: the program true, by fn for kopfexamples" in out
    assert "Differences from production: 1 (1 more)." in out
    assert "not judged" not in out


def test_a_shadow_says_what_it_has_not_judged(start, crd, tmp_path, monkeypatch):
    _, config = start('sandbox', '--load', crd)
    kubeconfig = tmp_path / 'production'
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv('KUBECONFIG', str(kubeconfig))
    (tmp_path / 'new.py').write_text(OLD)
    shadow, _ = start('run', '-A', '--shadow', 'new.py')
    read_until(shadow, 'Creation is processed')
    code, out = stop(shadow)
    assert code == 0
    assert out.endswith(
        "Objects that are not judged, as they differ for less than the window of 60 seconds: 1.\n"
        "Differences from production: none.\n")


@pytest.mark.parametrize('option', ['--sandbox', '--upstream', '--rbac', '--reload',
                                    '--processes=2'])
def test_a_shadow_has_a_sandbox_of_its_own(option, tmp_path):
    (tmp_path / 'handlers.py').write_text(OLD)
    result = CliRunner().invoke(cli.main, [
        'run', '-A', '--shadow', option, str(tmp_path / 'handlers.py')])
    assert result.exit_code == 2
    assert "--shadow is for one process on a sandbox of its own" in result.output
