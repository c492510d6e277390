import os
import pathlib
import ssl

import aiohttp
import pytest
import yaml

from kopf._kits.sandbox.requests import Target, User
from kopf._kits.sandbox.server import Sandbox
from tests._kits.sandbox.conftest import CMS, Http, cm

RBAC = 'rbac.authorization.k8s.io'


def token_of(sandbox, name):
    config = sandbox.kubeconfig()
    return next(user['user']['token'] for user in config['users'] if user['name'] == name)


async def grant(sandbox, rules, subject, *, cluster=False):
    prefix = 'Cluster' if cluster else ''
    base = {'apiVersion': f'{RBAC}/v1', 'metadata': {'name': 'x'}}
    await sandbox.create({**base, 'kind': f'{prefix}Role', 'rules': rules})
    await sandbox.create({
        **base, 'kind': f'{prefix}RoleBinding', 'subjects': [subject],
        'roleRef': {'apiGroup': RBAC, 'kind': f'{prefix}Role', 'name': 'x'}})


@pytest.fixture()
async def plain(sandbox, session):
    return Http(session, sandbox.url, token_of(sandbox, 'plain'))


async def test_tokens_tell_who_asks(sandbox, session):
    http = Http(session, sandbox.url, token_of(sandbox, 'admin'))
    answer = await http('POST', '/apis/authentication.k8s.io/v1/selfsubjectreviews', {})
    assert answer.body['status']['userInfo']['username'] == 'admin'


async def test_wrong_tokens_are_unauthorized(sandbox, session):
    answer = await Http(session, sandbox.url, 'wrong')('GET', CMS)
    assert (answer.status, answer.body['message']) == (401, 'Unauthorized')


async def test_without_rights_it_is_forbidden(plain):
    answer = await plain('GET', f'{CMS}/a')
    assert (answer.status, answer.body['reason']) == (403, 'Forbidden')
    assert answer.body['message'] == (
        'configmaps "a" is forbidden: User "plain" cannot get resource "configmaps" '
        'in API group "" in the namespace "default"')


async def test_without_rights_the_discovery_can_be_read(plain):
    assert (await plain('GET', '/apis')).status == 200
    assert (await plain('GET', '/metrics')).status == 403


async def test_roles_give_rights_in_their_namespace(sandbox, plain):
    rules = [{'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['list']}]
    await grant(sandbox, rules, {'kind': 'User', 'name': 'plain'})
    assert (await plain('GET', CMS)).status == 200
    assert (await plain('GET', '/api/v1/configmaps')).status == 403
    assert (await plain('POST', CMS, cm('a'))).status == 403


@pytest.mark.parametrize('subject', [
    {'kind': 'User', 'name': 'plain'}, {'kind': 'Group', 'name': 'nobodies'},
    {'kind': 'Group', 'name': 'system:authenticated'}])
async def test_cluster_roles_give_rights_everywhere(sandbox, plain, subject):
    rules = [{'apiGroups': ['*'], 'resources': ['*'], 'verbs': ['*']}]
    await grant(sandbox, rules, subject, cluster=True)
    assert (await plain('GET', '/api/v1/configmaps')).status == 200


@pytest.mark.parametrize(('rule', 'target', 'is_allowed'), [
    ({'resources': ['pods']}, {'resource': 'pods', 'subresource': 'status'}, False),
    ({'resources': ['pods/status']}, {'resource': 'pods', 'subresource': 'status'}, True),
    ({'resources': ['*/scale']}, {'resource': 'pods', 'subresource': 'scale'}, True),
    ({'resources': ['*']}, {'resource': 'pods', 'subresource': 'scale'}, True),
    ({'resources': ['pods'], 'resourceNames': ['a']}, {'resource': 'pods', 'name': 'a'}, True),
    ({'resources': ['pods'], 'resourceNames': ['a']}, {'resource': 'pods', 'name': 'b'}, False),
    ({'resources': ['pods'], 'resourceNames': ['a']}, {'resource': 'pods'}, False),
    ({'resources': ['pods'], 'apiGroups': ['x']}, {'resource': 'pods'}, False),
    ({'nonResourceURLs': ['/x/*']}, {'path': '/x/y'}, True),
    ({'nonResourceURLs': ['/x']}, {'path': '/x/y'}, False),
])
async def test_rules_allow_what_they_say(sandbox, rule, target, is_allowed):
    rule = {'apiGroups': [''], 'verbs': ['get'], **rule}
    await grant(sandbox, [rule], {'kind': 'User', 'name': 'plain'}, cluster=True)
    assert sandbox._access.allows(User('plain'), Target(verb='get', **target)) is is_allowed


async def test_aggregated_roles_have_the_rules_of_others(sandbox):
    await sandbox.create({
        'apiVersion': f'{RBAC}/v1', 'kind': 'ClusterRoleBinding', 'metadata': {'name': 'x'},
        'subjects': [{'kind': 'User', 'name': 'plain'}],
        'roleRef': {'apiGroup': RBAC, 'kind': 'ClusterRole', 'name': 'view'}})
    user = User('plain')
    assert sandbox._access.allows(user, Target(verb='get', resource='pods', namespace='x'))
    assert not sandbox._access.allows(user, Target(verb='get', resource='secrets', namespace='x'))


async def test_service_accounts_have_tokens_as_long_as_they_are_there(sandbox, http, session):
    path = '/api/v1/namespaces/default/serviceaccounts'
    await http('POST', path, {'metadata': {'name': 'a'}})
    token = (await http('POST', f'{path}/a/token', {
        'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest',
        'spec': {}})).body['status']['token']
    robot = Http(session, sandbox.url, token)
    answer = await robot('GET', CMS)
    assert 'User "system:serviceaccount:default:a" cannot list' in answer.body['message']
    rules = [{'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['list']}]
    await grant(sandbox, rules, {'kind': 'ServiceAccount', 'name': 'a', 'namespace': 'default'})
    assert (await robot('GET', CMS)).status == 200
    await http('DELETE', f'{path}/a')
    assert (await robot('GET', CMS)).status == 401


async def test_forged_tokens_of_service_accounts_are_refused(sandbox, http, session):
    path = '/api/v1/namespaces/default/serviceaccounts'
    await http('POST', path, {'metadata': {'name': 'a'}})
    token = (await http('POST', f'{path}/a/token', {
        'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest',
        'spec': {}})).body['status']['token']
    head, body, signature = token.split('.')
    for forged in (f'{head}.{body}.', f'{head}.{body}.{signature[:-2]}', f'{head}..{signature}',
                   f'{head}.{body[:-1]}.{signature}', 'ä', '..'):
        answer = await Http(session, sandbox.url)('GET', CMS, Authorization=f'Bearer {forged}')
        assert answer.status == 401


async def test_masters_can_be_others(http):
    answer = await http('GET', CMS, Impersonate_User='someone')
    assert 'User "someone" cannot list' in answer.body['message']


async def test_others_cannot_be_masters(plain):
    answer = await plain('GET', CMS, Impersonate_User='someone',
                         Impersonate_Group='system:masters')
    assert 'User "plain" cannot impersonate resource "users"' in answer.body['message']


async def test_secrets_are_not_in_logs(sandbox, session, caplog):
    caplog.set_level('DEBUG')
    http = Http(session, sandbox.url, token_of(sandbox, 'admin'))
    await http('POST', '/api/v1/namespaces/default/secrets', {
        'metadata': {'name': 'a'}, 'stringData': {'a': 'very-secret'}})
    await http('POST', '/api/v1/namespaces/default/secrets', b'{"data":"very-secret"')
    assert 'very-secret' not in caplog.text
    assert token_of(sandbox, 'admin') not in caplog.text


@pytest.mark.parametrize('cls', [pathlib.Path, str])
async def test_the_kubeconfig_is_only_for_its_owner(sandbox, tmp_path, cls):
    path = tmp_path / 'kubeconfig'
    sandbox.write_kubeconfig(cls(path))
    assert path.stat().st_mode & 0o077 == 0
    assert yaml.safe_load(path.read_text())['current-context'] == 'admin'


@pytest.fixture()
async def secure():
    pytest.importorskip('cryptography')
    async with Sandbox(tls=True) as sandbox:
        yield sandbox


async def test_over_tls_strangers_are_anonymous(secure, session):
    answer = await Http(session, secure.url)('GET', CMS)
    assert answer.status == 403
    assert 'User "system:anonymous" cannot list' in answer.body['message']


async def test_over_tls_certificates_tell_who_asks(secure, tmp_path):
    certificates = secure._certificates
    context = ssl.create_default_context(cadata=certificates.authority.decode())
    path = tmp_path / 'pem'
    path.write_bytes(certificates.admin + certificates.admin_key)
    context.load_cert_chain(path)
    connector = aiohttp.TCPConnector(force_close=True, ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f'{secure.url}/api/v1/secrets') as response:
            assert response.status == 200


async def test_over_tls_there_are_three_contexts(secure):
    assert [context['name'] for context in secure.kubeconfig()['contexts']] == [
        'admin', 'plain', 'cert']


@pytest.mark.parametrize('host', [
    '127.0.0.1', '127.0.0.1:1', 'localhost:80', 'LOCALHOST', '[::1]:5'])
async def test_it_is_served_under_addresses_and_as_localhost(sandbox, session, host):
    async with session.get(f'{sandbox.url}{CMS}', headers={'Host': host}) as response:
        assert response.status == 200


@pytest.mark.parametrize('host', [
    'evil.example', 'evil.example:8001', 'localhost.evil.example', '127.0.0.1.evil.example', '[',
    'user@evil.example', ''])
async def test_pages_whose_names_point_here_are_refused(sandbox, session, host):
    async with session.get(f'{sandbox.url}{CMS}', headers={'Host': host}) as response:
        assert response.status == 403
        assert 'as localhost' in (await response.json())['message']


async def test_over_tls_any_name_will_do(secure, session):
    headers = {'Host': 'name'}
    async with session.get(f'{secure.url}/healthz', headers=headers, ssl=False) as response:
        assert response.status == 200


async def test_the_kubeconfig_is_for_its_owner_also_where_there_was_a_file(sandbox, tmp_path):
    path = tmp_path / 'kubeconfig'
    path.write_text('old')
    path.chmod(0o644)
    with path.open() as reader:
        sandbox.write_kubeconfig(path)
        assert reader.read() == 'old'  # replaced at once, not overwritten
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ['kubeconfig']


async def test_the_kubeconfig_is_written_through_links_and_to_pipes(sandbox, tmp_path):
    target, link, pipe = tmp_path / 'target', tmp_path / 'link', tmp_path / 'pipe'
    link.symlink_to(target)
    sandbox.write_kubeconfig(link)
    assert link.is_symlink()
    assert yaml.safe_load(target.read_text())['current-context'] == 'admin'
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        sandbox.write_kubeconfig(pipe)
        assert yaml.safe_load(reader.read())['current-context'] == 'admin'
