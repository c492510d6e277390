import pytest

from kopf._cogs.configs import configuration
from kopf._cogs.logins import serviceaccounts
from kopf._cogs.structs.credentials import LoginError

login = serviceaccounts.login_with_service_account


@pytest.fixture()
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(serviceaccounts, 'FOLDER', str(tmp_path))
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


def test_rotated_tokens_are_followed(folder):
    (folder / 'token').write_text('old')
    info = login()
    (folder / 'token').write_text('new')
    assert info.as_http_headers() == {'Authorization': 'Bearer new'}


def test_unreadable_files_are_errors(folder):
    (folder / 'token').mkdir()
    with pytest.raises(LoginError):
        login()
