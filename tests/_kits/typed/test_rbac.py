import pathlib

import pytest
import yaml

import kopf
from kopf import testing
from kopf._cogs.clients.vaults import Vault
from kopf._cogs.structs import credentials
from kopf._kits import commanding
from kopf._kits.testing import apis
from kopf._kits.typed import rbac, roles
from kopf._kits.typed.rights import Right

CRD = pathlib.Path(__file__).parents[3] / 'examples' / 'crd.yaml'
KEX = {Right('kopf.dev', 'kopfexamples', verb) for verb in ('list', 'watch')}


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()
    kopf.index('kopfexamples', registry=registry)(lambda **_: None)
    return registry


@pytest.fixture()
def settings():
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    return settings


@pytest.fixture()
def inquire(registry, settings):
    def inquire(*namespaces, vault=None):
        return rbac.Inquiry(
            registry=registry, settings=settings, vault=vault, namespaces=namespaces)
    return inquire


async def find(inquiry, *definitions, cluster=False, startup=False):
    return await inquiry.find(definitions=definitions, cluster=cluster, startup=startup)


async def test_resources_are_those_of_files(inquire):
    assert await find(inquire(), CRD) == KEX


@testing.virtual_time
async def test_resources_are_those_of_the_cluster(inquire):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        inquiry = inquire(vault=Vault({'test': api.credentials}))
        assert await find(inquiry, cluster=True) == KEX


@testing.virtual_time
async def test_resources_of_files_are_known_beside_those_of_the_cluster(inquire):
    async with testing.open_api('sandbox') as api:
        inquiry = inquire(vault=Vault({'test': api.credentials}))
        assert await find(inquiry, CRD, cluster=True) == KEX


@pytest.mark.parametrize('namespaces, plural', [
    ((), 'clusterkopfpeerings'), (('a',), 'kopfpeerings')])
async def test_peerings_depend_on_the_namespaces(inquire, settings, namespaces, plural):
    settings.peering.standalone = False
    found = await find(inquire(*namespaces), CRD)
    assert {right.resource for right in found if 'peering' in right.resource} == {plural}


@pytest.mark.parametrize('startup', [True, False])
async def test_startup_handlers_are_called_on_request(inquire, registry, startup):
    called = []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.peering.standalone = False
        called.append('startup')

    kopf.on.cleanup(registry=registry)(lambda **_: called.append('cleanup'))
    found = await find(inquire(), CRD, startup=startup)
    assert any(right.resource == 'clusterkopfpeerings' for right in found) == startup
    assert called == (['startup', 'cleanup'] if startup else [])


@pytest.mark.parametrize(('startup', 'managed', 'is_hooked', 'is_told'), [
    (False, None, True, True), (True, None, True, False), (False, 'x', True, False),
    (False, None, False, False)])
async def test_it_is_told_if_a_startup_handler_can_set_up_the_webhooks(
        inquire, registry, settings, caplog, startup, managed, is_hooked, is_told):
    kopf.on.startup(registry=registry)(lambda **_: None)
    if is_hooked:
        kopf.on.validate('kopfexamples', registry=registry)(lambda **_: None)
    settings.admission.managed = managed
    await find(inquire(), CRD, startup=startup)
    assert any('add --startup' in record.message for record in caplog.records) == is_told


async def test_roles_of_files_are_compared(inquire, tmp_path):
    path = tmp_path / 'roles.yaml'
    path.write_text(yaml.safe_dump_all(roles.make_roles([*KEX][:1], 'any')))
    assert [*await inquire().verify(KEX, str(path))] == [f"Missing: {[*KEX][1]}"]


@testing.virtual_time
async def test_the_cluster_tells_what_the_current_user_may_not_do(inquire):
    own = Right('coordination.k8s.io', 'leases', 'get', 'x', '')
    granted = [Right('', 'pods/log', 'get', namespace='kube-system'), own]
    needed = {*granted, *KEX, Right('', 'pods/log', 'get')}
    async with testing.open_api('sandbox') as api:
        for role in roles.make_roles(granted, 'any'):
            if role['kind'] == 'Role':
                role['metadata'].setdefault('namespace', 'default')
            await api.client.create(role)
            await api.client.create({
                'apiVersion': role['apiVersion'], 'kind': f"{role['kind']}Binding",
                'metadata': role['metadata'], 'subjects': [{
                    'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'User', 'name': 'plain'}],
                'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': role['kind'],
                            'name': 'any'}})
        plain = apis.read_credentials({**api.kubeconfig, 'current-context': 'plain'})
        inquiry = inquire(vault=Vault({'test': plain}))
        assert [*await inquiry.verify(needed, 'cluster')] == [
            "Missing: get pods/log", "Missing: list kopfexamples.kopf.dev",
            "Missing: watch kopfexamples.kopf.dev"]


@testing.virtual_time
async def test_a_cluster_that_refuses_is_an_error(inquire):
    async with testing.open_api('sandbox') as api:
        api.sandbox.faults.add(testing.Fault(action='refuse', verb='create', status=403))
        inquiry = inquire(vault=Vault({'test': api.credentials}))
        with pytest.raises(commanding.CommandError, match="The cluster cannot be asked: "):
            await inquiry.verify(KEX, 'cluster')


async def test_no_credentials_are_an_error(inquire):
    with pytest.raises(credentials.LoginError):
        await find(inquire(vault=Vault(login=_refuse)), cluster=True)


async def _refuse():
    raise credentials.LoginError("no way")
