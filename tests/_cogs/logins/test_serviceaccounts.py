import socket

import pytest

from kopf._cogs.configs import configuration
from kopf._cogs.logins import serviceaccounts
from kopf._cogs.structs.credentials import LoginError

login = serviceaccounts.login_with_service_account


@pytest.fixture()
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(serviceaccounts, 'FOLDER', str(tmp_path))
    monkeypatch.delenv('KUBERNETES_SERVICE_HOST', raising=False)
    return tmp_path


@pytest.mark.usefixtures('folder')
def test_there_is_nothing_outside_of_pods():
    assert login() is None


def test_there_is_nothing_without_a_token(folder):
    (folder / 'token').write_text('\n')
    assert login() is None


def test_there_is_all_inside_of_pods(folder):
    (folder / 'token').write_text('x\n')
    (folder / 'ca.crt').write_text('CA')
    (folder / 'namespace').write_text('ns\n')
    info = login(settings=configuration.OperatorSettings(), logger=None)
    assert info.server == 'https://kubernetes.default.svc'
    assert info.ca_path == str(folder / 'ca.crt')
    assert info.default_namespace == 'ns'
    assert info.as_http_headers() == {'Authorization': 'Bearer x'}


@pytest.mark.parametrize(('address', 'port', 'server'), [
    ('10.96.0.1', '6443', 'https://10.96.0.1:6443'),
    ('fd00::1', None, 'https://[fd00::1]:443'),
    (None, None, 'https://kubernetes.default.svc'),
])
def test_the_address_counts_without_the_dns_of_the_cluster(
        folder, monkeypatch, address, port, server):
    def refuse(*_):
        raise socket.gaierror("Name or service not known")

    (folder / 'token').write_text('x')
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    for name, value in [('HOST', address), ('PORT', port)]:
        if value is None:
            monkeypatch.delenv(f'KUBERNETES_SERVICE_{name}', raising=False)
        else:
            monkeypatch.setenv(f'KUBERNETES_SERVICE_{name}', value)
    assert login().server == server


def test_the_name_counts_with_the_dns_of_the_cluster(folder, monkeypatch):
    (folder / 'token').write_text('x')
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *_: [])
    monkeypatch.setenv('KUBERNETES_SERVICE_HOST', '10.96.0.1')
    assert login().server == 'https://kubernetes.default.svc'


def test_rotated_tokens_are_followed(folder):
    (folder / 'token').write_text('old')
    info = login()
    (folder / 'token').write_text('new')
    assert info.as_http_headers() == {'Authorization': 'Bearer new'}


def test_unreadable_files_are_errors(folder):
    (folder / 'token').mkdir()
    with pytest.raises(LoginError):
        login()
