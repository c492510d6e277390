import asyncio
import inspect

import pytest
import yaml

import kopf
from kopf._cogs.clients import piggybacking
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
    assert info.scheme in (None, 'Bearer')


def test_libraries_without_anything_to_log_in_with_are_errors(login, kubeconfig):
    pytest.importorskip(LIBRARIES[login])
    with pytest.raises(credentials.LoginError, match="neither a service account nor a kubeconfig"):
        log_in(login)


def test_libraries_that_are_not_installed_are_no_way_to_log_in(login, monkeypatch):
    monkeypatch.setattr(piggybacking, '_import', lambda name: None)
    assert log_in(login) is None
