import base64
import json
import sys

import pytest
import yaml

from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs
from kopf._cogs.structs.credentials import LoginError

login = kubeconfigs.login_with_kubeconfig


@pytest.fixture()
def config(tmp_path, monkeypatch):
    """Write kubeconfigs, and point to them. A context ``ctx`` is made of the cluster and user."""
    def make(*files, **parts):
        if parts:
            files = [make_content(**parts)]
        paths = []
        for number, content in enumerate(files):
            path = tmp_path / f'dir{number}' / 'config'
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
            paths.append(str(path))
        monkeypatch.setenv('KUBECONFIG', ':'.join(paths))
        return tmp_path / 'dir0'
    return make


def make_content(cluster=None, user=None, context=None, name='ctx', current='ctx'):
    return {
        'current-context': current,
        'clusters': [
            {'name': f'{name}-c', 'cluster': {'server': 'https://host', **(cluster or {})}}],
        'users': [{'name': f'{name}-u', 'user': user or {}}],
        'contexts': [{'name': name, 'context': {
            'cluster': f'{name}-c', 'user': f'{name}-u', **(context or {})}}],
    }


def test_there_is_nothing_without_files(monkeypatch, tmp_path):
    monkeypatch.delenv('KUBECONFIG', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    assert login() is None


def test_there_is_nothing_if_all_files_are_absent(monkeypatch):
    monkeypatch.setenv('KUBECONFIG', '/nowhere/config:/nowhere/either')
    assert login() is None


def test_there_is_nothing_without_a_current_context(config):
    config(make_content(current=''))
    assert login() is None


@pytest.mark.parametrize('tail', ['---', '---\nx: y', '---\n{', '...'])
def test_only_the_first_document_counts(config, tail):
    path = config(cluster={}) / 'config'
    path.write_text(f'---\n{path.read_text()}{tail}\n')
    assert login().server == 'https://host'


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
def test_files_written_on_windows_are_read(config, encoding):
    path = config(cluster={}) / 'config'
    path.write_text(path.read_text(), encoding=encoding)
    assert login().server == 'https://host'


def test_the_file_at_home_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv('KUBECONFIG', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / '.kube').mkdir()
    (tmp_path / '.kube' / 'config').write_text(yaml.safe_dump(make_content()))
    assert login().server == 'https://host'


def test_settings_are_not_needed_but_respected(config):
    config(make_content())
    settings = configuration.OperatorSettings()
    settings.networking.trust_env = True
    assert login().trust_env is False
    assert login(settings=settings, logger=None, anything='else').trust_env is True


def test_the_flags_of_the_cluster(config):
    config(cluster={
        'insecure-skip-tls-verify': True, 'tls-server-name': 'name', 'proxy-url': 'http://p'})
    info = login()
    assert info.insecure is True
    assert info.tls_server_name == 'name'
    assert info.proxy_url == 'http://p'


def test_the_namespace_of_the_context(config):
    config(context={'namespace': 'ns'})
    assert login().default_namespace == 'ns'


def test_impersonation_is_not_done_and_told(config, caplog):
    config(user={'token': 't', 'as': 'somebody'})
    assert login().token == 't'
    assert "impersonates 'somebody'" in caplog.text


def test_tokens(config):
    config(user={'token': 'x'})
    assert login().as_http_headers() == {'Authorization': 'Bearer x'}


def test_tokens_in_files_relative_to_the_kubeconfig(config):
    folder = config(user={'tokenFile': 'sub/token'})
    (folder / 'sub').mkdir()
    (folder / 'sub' / 'token').write_text('x\n')
    assert login().as_http_headers() == {'Authorization': 'Bearer x'}


def test_names_and_passwords(config):
    config(user={'username': 'u', 'password': 'p'})
    assert login().as_http_headers() == {'Authorization': 'Basic dTpw'}


def test_certificates_in_files_relative_to_the_kubeconfig(config):
    folder = config(
        cluster={'certificate-authority': 'ca.crt'},
        user={'client-certificate': 'a/tls.crt', 'client-key': '/abs/tls.key'})
    info = login()
    assert info.ca_path == str(folder / 'ca.crt')
    assert info.certificate_path == str(folder / 'a' / 'tls.crt')
    assert info.private_key_path == '/abs/tls.key'


def test_certificates_as_data(config):
    config(
        cluster={'certificate-authority-data': 'QUFB'},
        user={'client-certificate-data': 'QkJC', 'client-key-data': 'Q0ND'})
    info = login()
    assert (info.ca_data, info.certificate_data, info.private_key_data) == ('QUFB', 'QkJC', 'Q0ND')


def test_data_go_before_files(config):
    config(
        cluster={'certificate-authority-data': 'QUFB', 'certificate-authority': 'ca'},
        user={'client-certificate-data': 'QkJC', 'client-certificate': 'crt',
              'client-key-data': 'Q0ND', 'client-key': 'key'})
    info = login()
    assert info.ca_path is info.certificate_path is info.private_key_path is None


def test_of_several_files_the_first_ones_count(config):
    first, second = make_content(name='a', current=''), make_content(name='b', current='b')
    second['users'].append({'name': 'a-u', 'user': {'token': 'wrong'}})
    first['users'][0]['user'] = {'token': 'right'}
    first['current-context'] = 'a'
    config(first, second)
    assert login().token == 'right'


def test_contexts_can_be_in_other_files_than_their_clusters(config):
    first, second = make_content(), make_content(user={'token': 'x'}, cluster={'server': 'https://2'})
    first['clusters'] = first['users'] = None
    second['contexts'] = []
    config(first, second)
    assert (login().server, login().token) == ('https://2', 'x')


def test_paths_are_relative_to_the_file_they_are_in(config, tmp_path):
    config(make_content(name='a', current='b'),
           make_content(name='b', user={'client-certificate': 'crt', 'client-key': 'key'}))
    assert login().certificate_path == str(tmp_path / 'dir1' / 'crt')


def test_absent_files_do_not_matter_among_others(config, monkeypatch, tmp_path):
    config(make_content())
    monkeypatch.setenv('KUBECONFIG', f'/nowhere/config::{tmp_path}/dir0/config')
    assert login().server == 'https://host'


def test_users_are_not_necessary(config):
    content = make_content()
    content['contexts'][0]['context'].pop('user')
    config(content)
    assert login().as_http_headers() == {}


@pytest.mark.parametrize('change, message', [
    (lambda content: content.update({'current-context': 'x'}),
     "no 'x' in the kubeconfig's contexts"),
    (lambda content: content.update({'clusters': []}), "no 'ctx-c' in the kubeconfig's clusters"),
    (lambda content: content.update({'users': []}), "no 'ctx-u' in the kubeconfig's users"),
    (lambda content: content['clusters'][0].update({'cluster': {}}), "No server"),
    (lambda content: content['users'][0].update(
        {'user': {'auth-provider': {'name': 'gcp'}}}), "auth-provider is not supported"),
])
def test_what_lacks_is_told(config, change, message):
    content = make_content()
    change(content)
    config(content)
    with pytest.raises(LoginError, match=message):
        login()


@pytest.mark.parametrize('text', [
    's3cret', '- s3cret', 'users: s3cret', 'users: [s3cret]', 'users: [{user: s3cret}]',
    'clusters: [{name: x, cluster: [s3cret]}]',
])
def test_wrong_structures_are_told_without_secrets(config, text):
    config(text)
    with pytest.raises(LoginError, match="wrong structure") as caught:
        login()
    assert 's3cret' not in str(caught.value)


@pytest.mark.parametrize('text', ['a: [s3cret', '\ttoken: s3cret', 'a: "s3cret', 'a: b: s3cret'])
def test_wrong_syntax_is_told_without_secrets(config, text):
    config('x: y\n' + text)
    with pytest.raises(LoginError, match="not YAML") as caught:
        login()
    assert 's3cret' not in str(caught.value)


def test_empty_files_are_as_good_as_none(config):
    config('', make_content())
    assert login().server == 'https://host'


def plugin(status, **spec):
    credential = {
        'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', 'status': status}
    return {'exec': {
        'apiVersion': 'client.authentication.k8s.io/v1', 'command': sys.executable,
        'args': ['-c', f'print({json.dumps(credential)!r})'], 'interactiveMode': 'Never', **spec}}


def test_plugins_give_tokens(config):
    config(user=plugin({'token': 'x', 'expirationTimestamp': '2030-01-02T03:04:05Z'}))
    info = login()
    assert info.token == 'x'
    assert info.expiration.isoformat() == '2030-01-02T03:04:05+00:00'


def test_plugins_give_certificates(config):
    config(user=plugin({'clientCertificateData': '-----BEGIN A', 'clientKeyData': '-----BEGIN B'}))
    info = login()
    assert info.certificate_data == '-----BEGIN A'
    assert info.private_key_data == '-----BEGIN B'


def test_plugins_with_relative_paths_are_near_the_kubeconfig(config):
    folder = config(user={'exec': {
        'apiVersion': 'client.authentication.k8s.io/v1', 'command': './plugin',
        'interactiveMode': 'Never'}})
    path = folder / 'plugin'
    path.write_text(
        '#!/bin/sh\necho \'{"apiVersion": "client.authentication.k8s.io/v1", '
        '"kind": "ExecCredential", "status": {"token": "x"}}\'\n')
    path.chmod(0o755)
    assert login().token == 'x'


def test_the_token_of_the_plugin_goes_before_the_one_in_the_file(config):
    config(user={'token': 'old', **plugin({'token': 'new'})})
    assert login().token == 'new'


def test_broken_certificates_are_found_when_connecting(config):
    config(cluster={'certificate-authority-data': base64.b64encode(b'x').decode()})
    with pytest.raises(LoginError):
        login().as_ssl_context()


@pytest.mark.parametrize('value', ['false', 'true', '', 0, 1, ['x']])
def test_verification_is_turned_off_only_by_a_boolean(config, value):
    folder = config(cluster={'insecure-skip-tls-verify': value})
    with pytest.raises(LoginError) as e:
        login()
    assert str(e.value) == (
        f"The field insecure-skip-tls-verify must be true or false, without quotes, but it is "
        f"{value!r} in the kubeconfig {folder}/config: clusters 'ctx-c'.")


@pytest.mark.parametrize('value', [True, False, None])
def test_verification_is_as_the_boolean_says(config, value):
    config(cluster={'insecure-skip-tls-verify': value})
    assert login().insecure is value


def test_plugins_are_told_of_the_cluster_only_by_a_boolean(config):
    config(user={'exec': {'command': 'x', 'provideClusterInfo': 'false'}})
    with pytest.raises(LoginError, match='The field exec.provideClusterInfo must be true or false'):
        login()


def test_schemes_of_servers_are_normalised(config):
    config(cluster={'server': 'HTTPS://host/'})
    assert login().server == 'https://host'


@pytest.mark.parametrize('server', ['https://host:port', 'ftp://host', 'host:6443', 5])
def test_servers_without_proper_urls_are_errors(config, server):
    config(cluster={'server': server})
    with pytest.raises(LoginError, match='The URL of the cluster in kubeconfigs'):
        login()
