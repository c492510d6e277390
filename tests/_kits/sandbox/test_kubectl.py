"""The sandbox as kubectl sees it: one server, over TLS, and one namespace per test."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import uuid

import pytest
import yaml

from kopf.testing import run_sandbox

ROOT = pathlib.Path(__file__).parents[3]
OLDEST = 32
"""The minor version of kubectl from which on it is expected to work."""

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: toys.kubectl.test}
spec:
  group: kubectl.test
  scope: Namespaced
  names: {plural: toys, kind: Toy, singular: toy, shortNames: [ty], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: Something to play with.
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, minimum: 0, description: How big it is.}
              color: {type: string, enum: [red, blue]}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
TOY = """
apiVersion: kubectl.test/v1
kind: Toy
metadata: {name: a}
spec: {size: 3, color: red}
"""
CM = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a, labels: {app: x}}
data: {key: one}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  replicas: 2
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec: {containers: [{name: main, image: img}]}
"""


def find_kubectl():
    """A kubectl that is new enough, wherever it comes from; or the reason why there is none."""
    places = [shutil.which('kubectl')]
    if assets := os.environ.get('KUBEBUILDER_ASSETS'):
        places.append(f'{assets}/kubectl')
    script = ROOT / os.environ.get('KOPF_CLUSTER', '../shared/cluster/cluster')
    if script.exists():
        assets = subprocess.run(
            [script, 'assets'], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        places.append(f'{assets.stdout.strip()}/kubectl')
    found = [place for place in places if place and os.access(place, os.X_OK)]
    versions = {}
    for place in found:
        answer = subprocess.run(
            [place, 'version', '--client', '-o', 'json'], capture_output=True, text=True)
        minor = re.match('[0-9]+', json.loads(answer.stdout)['clientVersion']['minor'])
        versions[place] = int(minor.group())
    if not versions:
        return None, "There is no kubectl: neither on $PATH, nor in $KUBEBUILDER_ASSETS."
    newest = max(versions, key=versions.__getitem__)
    if versions[newest] < OLDEST:
        return None, f"The newest kubectl is 1.{versions[newest]}; 1.{OLDEST} is needed."
    return newest, ''


class Kubectl:
    """Runs kubectl in a namespace; a call returns what it has printed."""

    def __init__(self, program, folder, namespace=''):
        self.program = program
        self.folder = folder
        self.namespace = namespace

    def command(self, *args):
        where = ['-n', self.namespace] if self.namespace else []
        return [self.program, '--kubeconfig', self.folder / 'config',
                '--cache-dir', self.folder / 'cache', *where, *args]

    def run(self, *args, input=None, **env):
        return subprocess.run(
            self.command(*args), input=input, capture_output=True, text=True,
            env={'PATH': os.environ['PATH'], 'HOME': str(self.folder), **env})

    def __call__(self, *args, **kwargs):
        done = self.run(*args, **kwargs)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout

    def fail(self, *args, code=1, **kwargs):
        """What it complains of."""
        done = self.run(*args, **kwargs)
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done.stderr


def test_a_kubectl_is_taken_from_the_script_of_the_clusters(tmp_path, monkeypatch):
    for name, says in {
        'cluster': tmp_path, 'kubectl': '{"clientVersion": {"minor": "999"}}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv('KOPF_CLUSTER', str(tmp_path / 'cluster'))
    assert find_kubectl() == (f'{tmp_path}/kubectl', '')


@pytest.fixture(scope='module')
def everywhere(tmp_path_factory):
    program, reason = find_kubectl()
    if program is None:
        pytest.skip(reason)
    pytest.importorskip('cryptography')
    with run_sandbox(tls=True) as sandbox:
        folder = tmp_path_factory.mktemp('kubectl')
        sandbox.write_kubeconfig(folder / 'config')
        sandbox.run(sandbox.sandbox.load(yaml.safe_load(CRD)))
        everywhere = Kubectl(program, folder)
        everywhere.sandbox = sandbox
        yield everywhere


@pytest.fixture()
def kubectl(everywhere):
    name = f'ns-{uuid.uuid4().hex[:8]}'
    sandbox = everywhere.sandbox
    sandbox.run(sandbox.sandbox.create(
        {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}}))
    return Kubectl(everywhere.program, everywhere.folder, name)


@pytest.fixture()
def load(everywhere, kubectl):
    """Puts objects in the namespace without kubectl."""
    def load(*texts):
        for text in texts:
            for obj in yaml.safe_load_all(text):
                obj['metadata']['namespace'] = kubectl.namespace
                everywhere.sandbox.run(everywhere.sandbox.sandbox.create(obj))
    return load


@pytest.fixture()
def found(everywhere, kubectl):
    """Gets an object of the namespace without kubectl."""
    def found(resource, name):
        return everywhere.sandbox.run(
            everywhere.sandbox.sandbox.get(resource, name, kubectl.namespace))
    return found


def squeezed(text):
    """Lines with their words; the ages are of no interest."""
    return [re.sub(r'\b[0-9]+s\b', 'AGE', ' '.join(line.split()))
            for line in text.splitlines()]


def test_objects_are_shown_in_columns(kubectl, load):
    load(TOY, CM, DEPLOYMENT)
    assert squeezed(kubectl('get', 'toys')) == ['NAME SIZE', 'a 3']
    assert squeezed(kubectl('get', 'ty', '-o', 'wide')) == ['NAME SIZE COLOR', 'a 3 red']
    assert squeezed(kubectl('get', 'all')) == [
        'NAME READY UP-TO-DATE AVAILABLE AGE', 'deployment.apps/a 0/2 0 0 AGE', '',
        'NAME SIZE', 'toy.kubectl.test/a 3']
    assert squeezed(kubectl('get', 'cm', '-l', 'app=x', '--show-labels')) == [
        'NAME DATA AGE LABELS', 'a 1 AGE app=x']
    assert squeezed(kubectl('get', 'deploy', '-o', 'wide')) == [
        'NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR',
        'a 0/2 0 0 AGE main img app=x']
    assert squeezed(kubectl('get', 'toys', '-A', '--field-selector', 'metadata.name=a',
                            '--sort-by', '.spec.size', '--no-headers'))


def test_objects_are_shown_as_they_are(kubectl, load):
    load(TOY)
    assert yaml.safe_load(kubectl('get', 'toy', 'a', '-o', 'yaml'))['spec'] == {
        'size': 3, 'color': 'red'}
    assert json.loads(kubectl('get', 'toys', '-o', 'json'))['items'][0]['kind'] == 'Toy'


@pytest.mark.parametrize('output, shown', [
    ('name', 'toy.kubectl.test/a\n'),
    ('jsonpath={.items[*].spec.size}', '3'),
    ('custom-columns=N:.metadata.name,S:.spec.size', 'N     S\na     3\n'),
    ('go-template={{range .items}}{{.spec.color}}{{end}}', 'red'),
])
def test_objects_are_shown_in_part(kubectl, load, output, shown):
    load(TOY)
    assert kubectl('get', 'toys', '-o', output) == shown


def test_what_is_not_there_is_told(kubectl):
    assert kubectl.fail('get', 'toy', 'x') == \
        'Error from server (NotFound): toys.kubectl.test "x" not found\n'
    assert kubectl('get', 'toy', 'x', '--ignore-not-found') == ''
    assert kubectl.fail('get', 'nothing') == \
        'error: the server doesn\'t have a resource type "nothing"\n'
    assert 'No resources found' in kubectl.run('get', 'toys').stderr


def test_changes_are_shown_as_they_happen(kubectl, load):
    load(TOY)
    with subprocess.Popen(
            kubectl.command('get', 'toys', '-w', '--output-watch-events'), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            seen = [process.stdout.readline() for _ in range(2)]
            kubectl('patch', 'toy', 'a', '--type=merge', '-p', '{"spec":{"size":4}}')
            kubectl('delete', 'toy', 'a', '--wait=false')
            seen += [process.stdout.readline() for _ in range(2)]
        finally:
            process.terminate()
    assert squeezed(''.join(seen)) == [
        'EVENT NAME SIZE', 'ADDED a 3', 'MODIFIED a 4', 'DELETED a 4']


def test_objects_are_described(kubectl, load):
    load(TOY, CM, DEPLOYMENT)
    assert squeezed(kubectl('describe', 'toy', 'a'))[-4:] == [
        'Spec:', 'Color: red', 'Size: 3', 'Events: <none>']
    assert 'Replicas: 2 desired | 0 updated | 0 total' in ' '.join(
        squeezed(kubectl('describe', 'deploy', 'a')))
    assert 'Status: Active' in squeezed(kubectl('describe', 'ns', kubectl.namespace))


def test_events_are_a_part_of_the_description(kubectl, load, found):
    load(CM)
    uid = found('cm', 'a')['metadata']['uid']
    load(f"""
        apiVersion: v1
        kind: Event
        metadata: {{name: e}}
        involvedObject: {{kind: ConfigMap, name: a, namespace: {kubectl.namespace}, uid: {uid}}}
        reason: Because
        message: It is so.
        type: Normal
    """)
    assert 'Because' in kubectl('describe', 'cm', 'a')
    assert 'ConfigMap/a' in kubectl('events')


@pytest.mark.parametrize('field, type', [
    ('toy.spec.size', 'FIELD: size <integer>'),
    ('deployments.spec.strategy', 'FIELD: strategy <DeploymentStrategy>'),
    ('pod.spec.containers', 'FIELD: containers <[]Container>'),
])
def test_fields_are_explained(kubectl, field, type):
    assert type in squeezed(kubectl('explain', field))


def test_definitions_are_explained_in_the_words_of_their_authors(kubectl):
    assert 'Something to play with.' in kubectl('explain', 'toy')
    assert 'How big it is.' in kubectl('explain', 'toy.spec.size')
    assert 'size\t<integer>' in kubectl('explain', 'toy', '--recursive')
    assert kubectl.fail('explain', 'toy.nope') == 'error: field "nope" does not exist\n'


def test_configurations_are_applied_by_the_client(kubectl, found):
    assert kubectl('apply', '-f', '-', input=f'{CM}---{TOY}') == \
        'configmap/a created\ntoy.kubectl.test/a created\n'
    assert kubectl('apply', '-f', '-', input=f'{CM}---{TOY}') == \
        'configmap/a unchanged\ntoy.kubectl.test/a unchanged\n'
    changed = CM.replace('{key: one}', '{other: two}')
    assert kubectl('apply', '-f', '-', input=changed) == 'configmap/a configured\n'
    assert found('cm', 'a')['data'] == {'other': 'two'}
    assert kubectl('apply', '--dry-run=server', '-f', '-', input=CM) == \
        'configmap/a configured (server dry run)\n'
    assert 'unknown field "spec.sized"' in kubectl.fail(
        'apply', '-f', '-', input=TOY.replace('size', 'sized'))
    assert 'spec.color: Unsupported value: "green"' in kubectl.fail(
        'apply', '-f', '-', input=TOY.replace('red', 'green'))


def test_configurations_are_applied_by_the_server(kubectl):
    apply = ('apply', '--server-side', '-f', '-')
    changed = TOY.replace('size: 3', 'size: 4')
    assert kubectl(*apply, input=TOY) == 'toy.kubectl.test/a serverside-applied\n'
    conflict = kubectl.fail(*apply, '--field-manager=other', input=changed)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.size' in conflict
    kubectl(*apply, '--field-manager=other', '--force-conflicts', input=changed)
    shown = yaml.safe_load(kubectl('get', 'toy', 'a', '-o', 'yaml', '--show-managed-fields'))
    owners = {entry['manager']: entry['fieldsV1'].get('f:spec', {})
              for entry in shown['metadata']['managedFields']}
    assert owners == {'kubectl': {'f:color': {}}, 'other': {'f:color': {}, 'f:size': {}}}


def test_configurations_go_over_from_the_client_to_the_server_and_back(kubectl, found):
    kubectl('apply', '-f', '-', input=CM)
    kubectl('apply', '--server-side', '-f', '-', input=CM.replace('one', 'two'))
    assert found('cm', 'a')['data'] == {'key': 'two'}
    assert kubectl('apply', '-f', '-', input=CM) == 'configmap/a configured\n'
    assert found('cm', 'a')['data'] == {'key': 'one'}


@pytest.mark.parametrize('options', [[], ['--server-side']])
def test_differences_are_shown_before_they_are_made(kubectl, options):
    kubectl('apply', *options, '-f', '-', input=TOY)
    done = kubectl.run('diff', *options, '-f', '-', input=TOY.replace('size: 3', 'size: 4'))
    assert done.returncode == 1, done.stderr
    assert '-  size: 3\n+  size: 4\n' in done.stdout
    assert kubectl('diff', *options, '-f', '-', input=TOY) == ''


def test_objects_are_edited(kubectl, load, found):
    load(TOY)
    assert kubectl('edit', 'toy', 'a', KUBE_EDITOR='sed -i s/red/blue/') == \
        'toy.kubectl.test/a edited\n'
    assert found('toy', 'a')['spec']['color'] == 'blue'
    assert 'is invalid' in kubectl.fail('edit', 'toy', 'a', KUBE_EDITOR='sed -i s/blue/green/')
    assert 'no changes made' in kubectl.run('edit', 'toy', 'a', KUBE_EDITOR='true').stderr


@pytest.mark.parametrize('type, patch', [
    ('merge', '{"spec":{"template":{"spec":{"hostname":"x"}}}}'),
    ('json', '[{"op":"add","path":"/spec/template/spec/hostname","value":"x"}]'),
    ('strategic',
     '{"spec":{"template":{"spec":{"hostname":"x","containers":[{"name":"more","image":"i"}]}}}}'),
])
def test_objects_are_patched(kubectl, load, type, patch, found):
    load(DEPLOYMENT)
    assert kubectl('patch', 'deploy', 'a', f'--type={type}', '-p', patch) == \
        'deployment.apps/a patched\n'
    spec = found('deploy', 'a')['spec']['template']['spec']
    assert spec['hostname'] == 'x'
    assert len(spec['containers']) == (2 if type == 'strategic' else 1)


def test_custom_objects_are_not_patched_strategically(kubectl, load):
    load(TOY)
    assert 'is not supported by kubectl.test/v1, Kind=Toy' in kubectl.fail(
        'patch', 'toy', 'a', '-p', '{"spec":{"size":9}}')


def test_labels_and_annotations_are_set_and_removed(kubectl, load, found):
    load(TOY)
    assert kubectl('label', 'toy', 'a', 'x=y') == 'toy.kubectl.test/a labeled\n'
    assert '--overwrite is false' in kubectl.fail('label', 'toy', 'a', 'x=z')
    assert kubectl('annotate', 'toys', '--all', 'note=1') == 'toy.kubectl.test/a annotated\n'
    metadata = found('toy', 'a')['metadata']
    assert (metadata['labels'], metadata['annotations']) == ({'x': 'y'}, {'note': '1'})
    kubectl('label', 'toy', 'a', 'x-')
    assert 'labels' not in found('toy', 'a')['metadata']


def test_objects_are_scaled(kubectl, load, found):
    load(TOY, DEPLOYMENT)
    assert kubectl('scale', 'deploy/a', 'toy/a', '--replicas=5') == \
        'deployment.apps/a scaled\ntoy.kubectl.test/a scaled\n'
    assert found('deploy', 'a')['spec']['replicas'] == 5
    assert found('toy', 'a')['spec']['size'] == 5
    assert 'Expected replicas to be 1, was 5' in kubectl.fail(
        'scale', 'deploy/a', '--replicas=6', '--current-replicas=1')


def test_conditions_are_waited_for(kubectl, load):
    load(TOY)
    assert 'timed out' in kubectl.fail(
        'wait', 'toy/a', '--for=condition=Ready', '--timeout=100ms')
    with subprocess.Popen(
            kubectl.command('wait', 'toy/a', '--for=condition=Ready', '--timeout=10s'),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        kubectl('patch', 'toy', 'a', '--subresource=status', '--type=merge', '-p',
                '{"status":{"conditions":[{"type":"Ready","status":"True"}],"size":1}}')
        assert process.communicate()[0] == 'toy.kubectl.test/a condition met\n'
    kubectl('wait', 'toy/a', '--for=jsonpath={.status.size}=1')
    kubectl('delete', 'toy', 'a', '--wait=false')
    kubectl('wait', 'toy/a', '--for=delete')


OWNED = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  ownerReferences:
  - {{apiVersion: kubectl.test/v1, kind: Toy, name: a, uid: {uid}, blockOwnerDeletion: true}}
"""


@pytest.mark.parametrize('cascade, left', [
    ('background', ''), ('foreground', ''), ('orphan', 'configmap/owned\n')])
def test_objects_are_deleted_with_what_they_own(kubectl, load, cascade, left, found):
    load(TOY)
    load(OWNED.format(uid=found('toy', 'a')['metadata']['uid']))
    assert 'toy.kubectl.test "a" deleted' in kubectl('delete', 'toy', 'a', f'--cascade={cascade}')
    if not left:
        kubectl('wait', 'cm/owned', '--for=delete', '--timeout=5s')
    assert kubectl('get', 'cm', '-o', 'name') == left
    assert kubectl('get', 'toys', '-o', 'name') == ''


def test_objects_are_deleted_as_they_are_selected(kubectl, load):
    load(CM, CM.replace('a,', 'b,').replace('x}', 'y}'))
    assert 'configmap "a" deleted' in kubectl('delete', 'cm', '-l', 'app=x')
    assert 'configmap "b" deleted' in kubectl('delete', 'cm', '--all', '--dry-run=server')
    assert kubectl('get', 'cm', '-o', 'name') == 'configmap/b\n'
    assert 'not found' in kubectl.fail('delete', 'cm', 'a')


ROLE = """
apiVersion: v1
kind: ServiceAccount
metadata: {{name: robot}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: player}}
rules: [{{apiGroups: [kubectl.test], resources: [toys], verbs: [get]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: player}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: player}}
subjects: [{{kind: ServiceAccount, name: robot, namespace: {namespace}}}]
"""


def test_rights_are_told(kubectl, load):
    assert kubectl('auth', 'can-i', 'create', 'toys') == 'yes\n'
    nobody = ('--context', 'plain')
    assert kubectl.run(*nobody, 'auth', 'can-i', 'create', 'toys').stdout == 'no\n'
    assert 'Error from server (Forbidden)' in kubectl.fail(*nobody, 'get', 'toys')
    assert kubectl('--context', 'cert', 'auth', 'can-i', 'create', 'toys') == 'yes\n'
    load(ROLE.format(namespace=kubectl.namespace))
    token = kubectl('create', 'token', 'robot').strip()
    robot = ('--user', '', '--token', token)
    assert kubectl(*robot, 'auth', 'can-i', 'get', 'toys') == 'yes\n'
    assert kubectl.run(*robot, 'auth', 'can-i', 'list', 'toys').stdout == 'no\n'
    assert f'system:serviceaccount:{kubectl.namespace}:robot' in kubectl(*robot, 'auth', 'whoami')


def test_resources_are_listed(kubectl):
    assert squeezed(kubectl('api-resources', '--api-group=kubectl.test', '-o', 'wide'))[1:] == [
        'toys ty kubectl.test/v1 true Toy '
        'delete,deletecollection,get,list,patch,create,update,watch all']
    assert 'deployments.apps' in kubectl('api-resources', '-o', 'name').splitlines()
    assert {'v1', 'apps/v1', 'kubectl.test/v1'} <= set(kubectl('api-versions').splitlines())


def test_definitions_can_be_used_once_they_are_established(kubectl):
    crd = CRD.replace('toy', 'gem').replace('Toy', 'Gem').replace('[ty]', '[gm]')
    kubectl('apply', '-f', '-', input=crd)
    kubectl('wait', '--for=condition=Established', 'crd/gems.kubectl.test')
    kubectl('apply', '-f', '-', input=TOY.replace('Toy', 'Gem'))
    kubectl('delete', 'crd', 'gems.kubectl.test')
    assert 'could not find the requested resource' in kubectl.fail('get', 'gems')


def test_namespaces_are_deleted_with_all_in_them(everywhere, kubectl, load):
    load(TOY, CM)
    everywhere('delete', 'ns', kubectl.namespace)
    assert kubectl('get', 'toys,cm', '-o', 'name') == ''
