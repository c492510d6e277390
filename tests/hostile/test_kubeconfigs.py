"""
Kubeconfigs are written by people and by programs: whatever is in them, there are credentials, or
there is an error that says what is wrong; the same goes for all that is made of the credentials.
"""
import asyncio
import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients import connections
from kopf._cogs.logins import execplugins, kubeconfigs
from kopf._cogs.structs import credentials
from tests.hostile import anything

SECRET = 's3cret'
CONTENT = {
    'current-context': 'ctx',
    'clusters': [{'name': 'c', 'cluster': {
        'server': 'https://host:6443/path', 'insecure-skip-tls-verify': True,
        'tls-server-name': 'name', 'proxy-url': 'http://proxy:3128',
        'certificate-authority': 'ca.crt', 'certificate-authority-data': 'eA=='}}],
    'users': [
        {'name': 'u', 'user': {
            'token': SECRET, 'tokenFile': 'token', 'username': 'me', 'password': SECRET,
            'client-certificate': 'tls.crt', 'client-certificate-data': 'eA==',
            'client-key': 'tls.key', 'client-key-data': 'eA=='}},
        {'name': 'p', 'user': {'exec': {
            'apiVersion': execplugins.API_VERSIONS[0], 'command': 'plugin', 'args': ['arg'],
            'env': [{'name': 'KEY', 'value': 'val'}], 'interactiveMode': 'Never',
            'provideClusterInfo': True, 'installHint': 'Install it.'}}},
    ],
    'contexts': [{'name': 'ctx', 'context': {
        'cluster': 'c', 'user': 'u', 'namespace': 'default'}}],
}
PLUGGED = {**CONTENT, 'contexts': [{'name': 'ctx', 'context': {'cluster': 'c', 'user': 'p'}}]}
PRINTED = {
    'apiVersion': execplugins.API_VERSIONS[0], 'kind': 'ExecCredential', 'status': {
        'token': SECRET, 'clientCertificateData': 'x', 'clientKeyData': SECRET,
        'expirationTimestamp': '2030-01-02T03:04:05Z'}}

notations = st.sampled_from([
    '2020-01-01', '.nan', '!!set {a, b}', '!!binary eA==', '&a [*a]', '&a {a: *a}', '{1: 2}',
    '[' * 400, '{a: ' * 400, '!!python/object:os.system x', '*absent', '{[a]: b}', '{? {a: b}}'])
"""What is YAML (more or less), but no JSON."""


@pytest.fixture(scope='module')
def write(tmp_path_factory):
    """Write the only kubeconfig, in YAML."""
    path = tmp_path_factory.mktemp('kubeconfigs') / 'config'

    def write(text):
        path.write_text(text, encoding='utf-8')

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('KUBECONFIG', str(path))
        patch.setattr(execplugins.subprocess, 'run', lambda *_, **__: DONE)
        yield write


class DONE:
    """A plugin that has done what it should."""
    returncode = 0
    stdout = json.dumps(PRINTED).encode()


def use_all():
    """Use the kubeconfig in all ways; return the message of the error, if it is of no use."""
    try:
        kubeconfigs.verify()
        info = kubeconfigs.login_with_kubeconfig()
    except credentials.LoginError as e:
        return str(e)
    return None if info is None else asyncio.run(use(info))


async def use(info):
    assert SECRET not in repr(info)
    try:
        await connections.Connection(info).close()
        info.as_ssl_context()
    except credentials.LoginError as e:
        return str(e)
    return None


def assert_clear(message):
    assert message is None or (SECRET not in message and len(message) < 20_000)


@given(anything.damaged(CONTENT) | anything.damaged(PLUGGED))
def test_any_values_in_any_place(write, content):
    write(json.dumps(content))
    assert_clear(use_all())


@given(anything.damaged(CONTENT, inner=st.just('@')) | (
    anything.damaged(PLUGGED, inner=st.just('@'))), notations)
def test_any_yaml_in_any_place(write, content, notation):
    write(re.sub('["\']@["\']', lambda _: notation, yaml.safe_dump(content, width=10 ** 6)))
    assert_clear(use_all())


@given(st.text(st.characters(codec='utf-8')) | notations)
def test_any_text(write, text):
    write(text)
    assert_clear(use_all())


@given(st.binary(max_size=50) | anything.damaged(PRINTED).map(json.dumps).map(str.encode) | (
    anything.damaged(PRINTED, inner=anything.deep).map(anything.encode).map(str.encode)))
def test_any_output_of_plugins(write, output):
    write(json.dumps(PLUGGED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DONE, 'stdout', output)
        assert_clear(use_all())


@pytest.mark.parametrize('value', ['a\0b', '\ud800', 'x' * 5000], ids=['null', 'half', 'long'])
@pytest.mark.parametrize('field', ['tokenFile', 'client-certificate', 'client-key'])
def test_impossible_paths(write, field, value):
    user = {'client-certificate': 'tls.crt', field: value}
    write(json.dumps({**CONTENT, 'users': [{'name': 'u', 'user': user}]}))
    assert_clear(use_all())
