"""
What is read by those who make a mistake in a command line, or in a file that it names.
"""
import re
import socket

import pytest
from click.testing import CliRunner

import kopf.testing
from kopf import cli

FILES = {
    'handlers.py': "import kopf\n\n@kopf.on.event('things')\ndef fn(**_): ...\n",
    'other.py': "import kopf\n\n@kopf.on.event('things')\ndef fn(**_): ...\n",
    'notes.txt': "hello",
    'binary.py': "\0",
    'folder/handlers.py': "",
    'broken.yaml': "apiVersion: [v1\n",
    'tabs.yaml': "apiVersion:\n\tv1\n",
    'list.yaml': "- kind: ConfigMap\n",
    'no-kind.yaml': "apiVersion: v1\nmetadata: {name: x}\n",
    'no-version.yaml': "kind: ConfigMap\nmetadata: {name: x}\n",
    'no-name.yaml': "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: v1\nkind: Pod\n",
    'no-crd.yaml': "apiVersion: kopf.dev/v1\nkind: KopfExample\nmetadata: {name: x}\n",
    'bad-name.yaml': "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: My_Map}\n",
    'bad-label.yaml': "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, labels: {a: true}}\n",
    'no-namespace.yaml': "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: dev}\n",
    'state.json': "garbage",
}

COMMANDS = [
    # Commands and options.
    ("kopf rnu handlers.py", r"No such command 'rnu'\. Did you mean 'run'\?"),
    ("kopf handlers.py -A",
     r"No such command 'handlers\.py'\. Did you mean: kopf run handlers\.py -A"),
    ("kopf -A handlers.py", r"No such option '-A'\..* for example: kopf run -A handlers\.py"),
    ("kopf --verbose run handlers.py",
     r"No such option '--verbose'\..* for example: kopf run --verbose handlers\.py"),
    ("kopf run", r"No file or module with handlers is given\. For example: kopf run -A handlers"),
    ("kopf run -A -n default handlers.py",
     r"Use either --namespace or --all-namespaces, but not both"),
    ("kopf run --all-namespace handlers.py",
     r"No such option '--all-namespace'\. \(Did you mean .*'--all-namespaces'"),
    ("kopf run -A --peering", r"Option '--peering' requires an argument"),
    ("kopf run -A --priority high handlers.py",
     r"Invalid value for '-p' / '--priority': 'high' is not a valid integer"),
    ("kopf run -A --log-format text handlers.py",
     r"Invalid value for '--log-format': 'text' is not one of 'plain', 'full', 'json'"),
    ("kopf run -A --liveness 8080 handlers.py",
     r"Invalid value for '-L' / '--liveness': .* Use http://host:port/path"),
    ("kopf run -A --load crd.yaml handlers.py", r"--load': File 'crd\.yaml' does not exist"),
    ("kopf run -A --load no-crd.yaml handlers.py", r"--load, .* need --sandbox"),
    ("kopf run -A --allow example.com handlers.py", r"--allow need --shadow"),
    ("kopf run -A --shadow --sandbox handlers.py", r"use it without --sandbox, "),
    ("kopf freeze -A --lifetime 10", r"Missing option '-P' / '--peering'"),
    ("kopf freeze -A --peering x", r"Missing option '-t' / '--lifetime'"),
    ("kopf freeze -A --peering x --lifetime 1h", r"'--lifetime': '1h' is not a valid integer"),
    ("kopf completion powershell", r"'powershell' is not one of 'bash', 'zsh', 'fish'"),

    # Files with handlers.
    ("kopf run -A absent.py", r"Cannot load absent\.py: there is no such file\."),
    ("kopf check handlers", r"there is no such file\. Did you mean handlers\.py\?"),
    ("kopf check handlers.py:fn", r"there is no such file\. Did you mean handlers\.py\?"),
    ("kopf check folder",
     r"it is not a file, but a folder\. Name the files in it, for example: folder/\*\.py"),
    ("kopf check notes.txt", r"not a file of Python: its name must end with \.py"),
    ("kopf check binary.py", r"Cannot load binary\.py: (Syntax|Value)Error: .*null bytes"),
    ("kopf check -m handlers.py", r"handlers\.py as a module: it is a file\. Name it without -m"),
    ("kopf check -m absent", r"No module named 'absent'\nCheck the name, or install it into "),
    ("kopf check handlers.py other.py", r"two handlers have the id 'fn': .*handlers\.py:3 and .*"),

    # The sandbox.
    ("kopf sandbox --port http", r"Invalid value for '--port': 'http' is not a valid integer"),
    ("kopf sandbox --port 80808", r"Invalid value for '--port': 80808 is not in the range"),
    ("kopf sandbox --port {used}",
     r"The sandbox cannot start: .*\. Stop the program that uses the port, .* --port=0"),
    ("kopf sandbox --load broken.yaml", r"broken\.yaml is not valid YAML: (.*\n)+.*line 1"),
    ("kopf sandbox --load tabs.yaml", r"tabs\.yaml is not valid YAML: .*\n.*'\\t' that cannot"),
    ("kopf sandbox --load list.yaml", r"list\.yaml: document 1 is not a Kubernetes object"),
    ("kopf sandbox --load no-kind.yaml", r"no-kind\.yaml: document 1: .* It has no kind\."),
    ("kopf sandbox --load no-version.yaml",
     r"no-version\.yaml: document 1: .* It has no apiVersion\."),
    ("kopf sandbox --load no-name.yaml",
     r"no-name\.yaml: document 1: .* metadata\.name: Required value"),
    ("kopf sandbox --load no-crd.yaml",
     r"no-crd\.yaml: document 1: .* Load its CustomResourceDefinition, too, or check the kind"),
    ("kopf sandbox --load bad-name.yaml",
     r"document 1: .* metadata\.name: .*\"My_Map\": a lowercase"),
    ("kopf sandbox --load bad-label.yaml",
     r"document 1: .*\.metadata\.labels\.a: expected string, got"),
    ("kopf sandbox --load no-namespace.yaml", r"document 1: namespaces \"dev\" not found"),
    ("kopf sandbox --load folder", r"'--load': File 'folder' is a directory"),
    ("kopf sandbox --state state.json", r"The state in state\.json is damaged"),
    ("kopf sandbox --state absent/state", r"The folder of 'absent/state' does not exist\. Create"),
    ("kopf sandbox --kubeconfig-out absent/config",
     r"The folder of 'absent/config' does not exist\. Create it first"),
    ("kopf sandbox --fault break", r"There is no fault 'break', only: refuse, delay, "),
    ("kopf sandbox --fault refuse:status=abc",
     r"'abc' in the fault 'refuse:status=abc' is not a number"),
    ("kopf sandbox --fault refuse:sttus=500",
     r"'sttus=500' in the fault .* is not understood; it can have: verb, resource"),
    ("kopf sandbox --fault refuse:verb=ptch",
     r"'ptch' in the fault .* matches no verb of the API: get, list, watch"),
]

KUBECONFIG = '''
current-context: dev
contexts: [{name: dev, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://localhost:1"}}]
users: [{name: me, user: {token: abc}}]
'''

KUBECONFIGS = [
    (None, r"there is neither a kubeconfig \(.*; there is no such file: .*config\) nor a service "
           r"account of a pod\. Make one, or declare a handler with @kopf\.on\.login\(\)"),
    ("", r"No context is selected in the kubeconfig .*: kubectl config use-context NAME"),
    (KUBECONFIG.replace('current-context: dev', ''),
     r"No context is selected in the kubeconfig .*: kubectl config use-context NAME"),
    ("clusters: [", r"The kubeconfig .*config is not YAML \(line 1\)\."),
    ("- clusters", r"The kubeconfig .*config has a wrong structure\."),
    (KUBECONFIG.replace('current-context: dev', 'current-context: prod'),
     r"There is no 'prod' in the kubeconfig's contexts\. There is: 'dev'\."),
    (KUBECONFIG.replace('cluster: here', 'cluster: there'),
     r"There is no 'there' in the kubeconfig's clusters\. There is: 'here'\."),
    (KUBECONFIG.replace('user: me', 'user: you'),
     r"There is no 'you' in the kubeconfig's users\. There is: 'me'\."),
    (KUBECONFIG.replace('"https://localhost:1"', 'localhost:1'),
     r"The URL of the cluster in kubeconfigs must begin with https:// .*: 'localhost:1'"),
    (KUBECONFIG.replace('"}}', '", certificate-authority: ca.crt}}'),
     r"The cluster 'here' .* has the certificate-authority .*/ca\.crt, but there is no such file"),
    (KUBECONFIG.replace('token: abc', 'client-certificate: me.crt, client-key: me.key'),
     r"The user 'me' .* has the client-certificate .*/me\.crt, but there is no such file"),
    (KUBECONFIG.replace('token: abc', 'exec: {command: no-such-helper, '
                        'apiVersion: client.authentication.k8s.io/v1}'),
     r"Nothing to log in with: The credential plugin 'no-such-helper' is not found\."),
    (KUBECONFIG.replace('"}}', '", certificate-authority-data: "%%%"}}'),
     r"Error: The TLS credentials are unusable: "),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the files, as the current one."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'config'))
    return tmp_path


@pytest.fixture()
def used():
    with socket.create_server(('127.0.0.1', 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize('typed, read', COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_mistakes_in_commands_are_explained(used, typed, read):
    result = CliRunner().invoke(cli.main, typed.format(used=used).split()[1:])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)  # no traceback
    assert re.search(read, result.output), result.output


@pytest.mark.parametrize('content, read', KUBECONFIGS)
def test_mistakes_in_kubeconfigs_are_explained_in_a_line(folder, content, read):
    if content is not None:
        (folder / 'config').write_text(content)
    with kopf.testing.KopfRunner(
        ['run', '--all-namespaces', '--quiet', 'handlers.py'], reraise=False, timeout=30,
        registry=kopf.OperatorRegistry(),
    ) as runner:
        runner.future.result(30)
    assert runner.exit_code == 1
    assert 'Traceback' not in runner.output
    assert re.search(read, runner.output.splitlines()[-1]), runner.output
