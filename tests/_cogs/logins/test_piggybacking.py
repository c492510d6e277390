import asyncio
import copy
import inspect
import json
import logging
import subprocess
import sys
import traceback

import pytest
import yaml

import kopf
from kopf._cogs.logins import piggybacking
from kopf._cogs.structs import credentials

LIBRARIES = {
    kopf.login_via_client: 'kubernetes',
    kopf.login_via_async_client: 'kubernetes_asyncio',
    kopf.login_via_pykube: 'pykube',
}
CONFIG = {
    'current-context': 'context',
    'contexts': [{'name': 'context', 'context': {
        'cluster': 'cluster', 'user': 'user', 'namespace': 'ns'}}],
    'clusters': [{'name': 'cluster', 'cluster': {
        'server': 'https://example.com', 'insecure-skip-tls-verify': True}}],
    'users': [{'name': 'user', 'user': {'token': 'secret'}}],
}

pytestmark = pytest.mark.filterwarnings('ignore')


def log_in(login):
    result = login()
    return asyncio.run(result) if inspect.isawaitable(result) else result


@pytest.fixture(params=LIBRARIES, ids=LIBRARIES.values())
def login(request):
    return request.param


@pytest.fixture()
def kubeconfig(tmp_path, monkeypatch):
    path = tmp_path / 'config'
    monkeypatch.setenv('KUBECONFIG', str(path))
    return path


def test_libraries_log_in_by_kubeconfigs(login, kubeconfig):
    pytest.importorskip(LIBRARIES[login])
    kubeconfig.write_text(yaml.safe_dump(CONFIG))
    info = log_in(login)
    assert (info.server, info.token, info.insecure) == ('https://example.com', 'secret', True)
    assert info.default_namespace == 'ns'
    assert info.scheme in (None, 'Bearer')


def test_by_default_libraries_log_in_by_the_kubeconfig_at_home(login, tmp_path, monkeypatch):
    pytest.importorskip(LIBRARIES[login])
    for module in ('kubernetes.config.kube_config', 'kubernetes_asyncio.config.kube_config'):
        if module in sys.modules:  # imported while the variable was another one
            monkeypatch.setattr(f'{module}.KUBE_CONFIG_DEFAULT_LOCATION', '/nowhere')
    monkeypatch.delenv('KUBECONFIG', raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / '.kube').mkdir()
    (tmp_path / '.kube' / 'config').write_text(yaml.safe_dump(CONFIG))
    assert log_in(login).server == 'https://example.com'


def test_libraries_without_anything_to_log_in_with_are_errors(login, kubeconfig):
    pytest.importorskip(LIBRARIES[login])
    with pytest.raises(credentials.LoginError, match="neither a service account nor a kubeconfig"):
        log_in(login)


def test_libraries_that_are_not_installed_are_no_way_to_log_in(login, monkeypatch):
    monkeypatch.setattr(piggybacking, '_import', lambda name: None)
    assert log_in(login) is None


# What libraries do not tell by themselves, and what they tell too much.


def write(kubeconfig, user, **cluster):
    config = copy.deepcopy(CONFIG)
    config['users'][0]['user'] = user
    config['clusters'][0]['cluster'].update(cluster)
    kubeconfig.write_text(yaml.safe_dump(config))


def make_plugin(code, text):
    return {'exec': {
        'apiVersion': 'client.authentication.k8s.io/v1', 'command': sys.executable,
        'interactiveMode': 'Never', 'args': [
            '-c', f'import sys; print({text!r}); '
                  f'print("s3cret", file=sys.stderr); sys.exit({code})',
        ]}}


@pytest.fixture()
def installed(login):
    return pytest.importorskip(LIBRARIES[login])


@pytest.mark.usefixtures('installed')
def test_proxies_and_names_in_tls_are_those_of_the_kubeconfig(login, kubeconfig, monkeypatch):
    monkeypatch.setenv('HTTPS_PROXY', 'http://elsewhere')
    write(kubeconfig, {'token': 'x'}, **{'proxy-url': 'http://proxy', 'tls-server-name': 'name'})
    info = log_in(login)
    assert (info.proxy_url, info.tls_server_name) == ('http://proxy', 'name')
    write(kubeconfig, {'token': 'x'})
    info = log_in(login)
    assert (info.proxy_url, info.tls_server_name) == (None, None)


@pytest.mark.usefixtures('installed')
def test_tokens_in_files_are_followed(login, kubeconfig):
    write(kubeconfig, {'tokenFile': 'token'})
    path = kubeconfig.parent / 'token'
    path.write_text('one\n')
    info = log_in(login)
    assert info.as_http_headers() == {'Authorization': 'Bearer one'}
    path.write_text('two\n')
    assert info.as_http_headers() == {'Authorization': 'Bearer two'}


@pytest.mark.usefixtures('installed')
def test_plugins_give_tokens(login, kubeconfig):
    write(kubeconfig, make_plugin(0, json.dumps({
        'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',
        'status': {'token': 'issued'}})))
    assert log_in(login).as_http_headers() == {'Authorization': 'Bearer issued'}


@pytest.mark.usefixtures('installed')
@pytest.mark.parametrize('code', [0, 1])
def test_failed_plugins_are_errors_without_secrets(login, kubeconfig, caplog, code):
    caplog.set_level(logging.DEBUG)
    write(kubeconfig, make_plugin(code, 's3cret'))
    with pytest.raises(credentials.LoginError, match="plugin") as e:
        log_in(login)
    shown = caplog.text + ''.join(traceback.format_exception(e.value))
    assert 's3cret' not in shown


@pytest.mark.usefixtures('installed')
@pytest.mark.parametrize('content', [
    'users: [{user: {token: s3cret}}',
    'users: s3cret',
    'current-context: absent\n',
    yaml.safe_dump({**CONFIG, 'users': [{'name': 'user', 'user': {
        'client-certificate-data': 's3cret!', 'client-key-data': 's3cret!'}}]}),
])
def test_broken_kubeconfigs_are_errors_without_secrets(login, kubeconfig, caplog, content):
    caplog.set_level(logging.DEBUG)
    kubeconfig.write_text(content)
    with pytest.raises(credentials.LoginError) as e:
        log_in(login)
    shown = caplog.text + ''.join(traceback.format_exception(e.value))
    assert 's3cret' not in shown


@pytest.mark.usefixtures('installed')
def test_priorities_of_libraries_are_those_known(login, kubeconfig):
    kubeconfig.write_text(yaml.safe_dump(CONFIG))
    expected = {'kubernetes': 10, 'kubernetes_asyncio': 15, 'pykube': 20}[LIBRARIES[login]]
    assert log_in(login).priority == expected


def test_the_logging_of_others_is_as_before():
    with piggybacking._hush():
        pass
    assert logging.getLogger().filters == []


def test_libraries_are_not_imported_before_they_are_needed():
    code = ('import sys, kopf, kopf.cli, kopf._kits.running; '
            'sys.exit(len({"pykube", "kubernetes", "kubernetes_asyncio"} & set(sys.modules)))')
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


IMPORTS_LATER = '''
import importlib.util
import sys
from kopf._cogs.logins import piggybacking

for _ in range(2):
    piggybacking.configure_on_import()
assert importlib.util.find_spec('kubernetes')  # as those do who want to know if it is installed
assert 'kubernetes' not in sys.modules
from kubernetes import client
print(client.Configuration.get_default_copy().host)
print(sum(isinstance(each, piggybacking._ConfiguringFinder) for each in sys.meta_path))
piggybacking.configure_on_import()
print(sum(isinstance(each, piggybacking._ConfiguringFinder) for each in sys.meta_path))
'''


@pytest.mark.parametrize('config, expected', [
    (CONFIG, 'https://example.com'),
    ({}, ''),  # as the library does it by itself
])
def test_the_official_client_is_configured_when_it_is_imported_later(kubeconfig, config, expected):
    pytest.importorskip('kubernetes')
    kubeconfig.write_text(yaml.safe_dump(config))
    process = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', IMPORTS_LATER], check=True, text=True,
        stdout=subprocess.PIPE)
    assert process.stdout.splitlines() == [expected, '0', '0']


def test_libraries_do_not_turn_verification_off_by_strings(login, kubeconfig):
    pytest.importorskip(LIBRARIES[login])
    config = copy.deepcopy(CONFIG)
    config['clusters'][0]['cluster']['insecure-skip-tls-verify'] = 'false'
    kubeconfig.write_text(yaml.safe_dump(config))
    with pytest.raises(credentials.LoginError, match=r"insecure-skip-tls-verify must be true"):
        log_in(login)
