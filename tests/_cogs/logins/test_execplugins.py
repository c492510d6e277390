import base64
import json
import sys

import pytest

from kopf._cogs.logins import execplugins
from kopf._cogs.structs.credentials import LoginError

V1 = 'client.authentication.k8s.io/v1'
V1BETA1 = 'client.authentication.k8s.io/v1beta1'


def run(code, cluster=None, **spec):
    return execplugins.run({
        'apiVersion': V1, 'command': sys.executable, 'args': ['-c', code],
        'interactiveMode': 'Never', **spec,
    }, cluster=cluster or {})


def say(status, version=V1, kind='ExecCredential'):
    document = json.dumps({'apiVersion': version, 'kind': kind, 'status': status})
    return f'print({document!r})'


@pytest.mark.parametrize('version', [V1, V1BETA1])
def test_tokens_are_issued(version):
    issued = run(say({'token': 'x'}, version), apiVersion=version)
    assert issued.fields == {'token': 'x'}
    assert issued.expiration is None


def test_secrets_are_not_shown():
    assert 's3cret' not in repr(run(say({'token': 's3cret'})))


@pytest.mark.parametrize('stamp', [
    '2030-01-02T03:04:05Z', '2030-01-02T03:04:05+00:00', '2030-01-02T05:04:05.000+02:00',
])
def test_credentials_expire(stamp):
    issued = run(say({'token': 'x', 'expirationTimestamp': stamp}))
    assert issued.expiration.timestamp() == 1893553445


def test_the_environment_is_extended(monkeypatch):
    monkeypatch.setenv('OUTER', 'a')
    code = '''if 1:
        import json, os
        print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": os.environ["OUTER"] + os.environ["INNER"]}}))
    '''
    assert run(code, env=[{'name': 'INNER', 'value': 'b'}]).fields == {'token': 'ab'}
    for empty in [{'name': 'INNER', 'value': None}, {'name': 'INNER'}]:
        assert run(code, env=[empty]).fields == {'token': 'a'}


def get_info(**kwargs):
    """Let the plugin give back what it was told."""
    version = kwargs.get('apiVersion', V1)
    code = f'''if 1:
        import json, os
        print(json.dumps({{"apiVersion": "{version}", "kind": "ExecCredential",
            "status": {{"token": os.environ["KUBERNETES_EXEC_INFO"]}}}}))
    '''
    return json.loads(run(code, **kwargs).fields['token'])


@pytest.mark.parametrize('version', [V1, V1BETA1])
def test_plugins_know_the_version(version):
    assert get_info(apiVersion=version) == {
        'apiVersion': version, 'kind': 'ExecCredential', 'spec': {'interactive': False}}


def test_plugins_know_the_cluster_if_needed(tmp_path):
    (tmp_path / 'ca').write_bytes(b'CA')
    cluster = {
        'server': 'https://host', 'certificate-authority': str(tmp_path / 'ca'),
        'tls-server-name': 'name', 'proxy-url': 'http://proxy', 'insecure-skip-tls-verify': True,
        'extensions': [
            {'name': 'other', 'extension': 1},
            {'name': 'client.authentication.k8s.io/exec', 'extension': {'a': 'b'}}],
    }
    assert get_info(cluster=cluster, provideClusterInfo=True)['spec']['cluster'] == {
        'server': 'https://host', 'certificate-authority-data': base64.b64encode(b'CA').decode(),
        'tls-server-name': 'name', 'proxy-url': 'http://proxy', 'insecure-skip-tls-verify': True,
        'config': {'a': 'b'},
    }
    assert 'cluster' not in get_info(cluster=cluster)['spec']


def test_the_ca_of_the_cluster_must_be_readable():
    with pytest.raises(LoginError):
        run('', cluster={'certificate-authority': '/nowhere'}, provideClusterInfo=True)


@pytest.mark.parametrize('output', [
    '', 's3cret', '{', '[]', '"s3cret"', '{"kind": "Other"}', '{"kind": "ExecCredential"}',
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential', 'status': 's3cret'}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential', 'status': {'token': 123}}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential', 'status': {'token': ''}}),
    json.dumps({'apiVersion': V1BETA1, 'kind': 'ExecCredential', 'status': {'token': 's3cret'}}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential',
                'status': {'clientCertificateData': 's3cret'}}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential',
                'status': {'token': 'x', 'clientKeyData': 's3cret'}}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential',
                'status': {'token': 'x', 'expirationTimestamp': 's3cret'}}),
    json.dumps({'apiVersion': V1, 'kind': 'ExecCredential',
                'status': {'token': 'x', 'expirationTimestamp': 123}}),
])
def test_rubbish_is_an_error_without_secrets(output):
    with pytest.raises(LoginError, match='has printed') as caught:
        run(f'print({output!r})')
    assert 's3cret' not in str(caught.value)


def test_binary_rubbish_is_an_error():
    with pytest.raises(LoginError):
        run('import sys; sys.stdout.buffer.write(bytes(range(256)))')


def test_failed_plugins_are_errors_without_secrets():
    with pytest.raises(LoginError, match='exit code 3') as caught:
        run('import sys; print("s3cret"); print("s3cret", file=sys.stderr); sys.exit(3)')
    assert 's3cret' not in str(caught.value)


def test_what_plugins_say_without_a_terminal_is_not_shown_as_it_can_be_secret(capfd):
    with pytest.raises(LoginError):
        run('import sys; print("s3cret", file=sys.stderr); sys.exit(3)')
    assert capfd.readouterr().err == ''


def test_killed_plugins_are_errors():
    with pytest.raises(LoginError, match='has failed'):
        run('import os; os.kill(os.getpid(), 9)')


def test_hung_plugins_are_errors(monkeypatch):
    monkeypatch.setattr(execplugins, 'TIMEOUT', 0.3)
    with pytest.raises(LoginError, match='not finished in 0.3s'):
        run('import time; time.sleep(30)')


def test_plugins_cannot_wait_for_input():
    with pytest.raises(LoginError, match='has failed'):
        run('input()')


@pytest.mark.parametrize('command', ['no-such-plugin', '/nowhere/plugin'])
def test_absent_plugins_are_errors_with_a_hint(command):
    with pytest.raises(LoginError, match='is not found. Install it!'):
        run('', command=command, installHint="Install it!")


def test_what_is_not_executable_is_an_error(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(LoginError, match='cannot be run'):
        run('', command=str(tmp_path / 'file'))


@pytest.mark.parametrize('version', [None, '', 'client.authentication.k8s.io/v1alpha1'])
def test_other_versions_are_errors(version):
    with pytest.raises(LoginError, match='not supported'):
        run('', apiVersion=version)


def test_a_command_is_needed():
    with pytest.raises(LoginError, match='no command'):
        run('', command=None)


def test_without_a_terminal_interactive_plugins_are_errors(monkeypatch):
    monkeypatch.setattr('sys.stdin', None)
    with pytest.raises(LoginError, match='terminal'):
        run('', interactiveMode='Always')
