"""
Operators that have only the rights that ``kopf rbac`` prints for them.
"""
import asyncio

import pytest

import kopf
from kopf import testing
from tests.crds import make_crd

CRD = make_crd('Thing', 'things')
THING = {'apiVersion': 'example.com/v1', 'kind': 'Thing',
         'metadata': {'name': 'one', 'namespace': 'default'}, 'spec': {}}


@pytest.fixture()
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.create('things', registry=registry, id='create_fn')
    async def create_fn(namespace, **_):
        return 'made'

    @kopf.reconcile('things', registry=registry, owns=['configmaps'])
    def reconcile_fn(name, **_):
        return [{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}}]

    return registry


@pytest.mark.parametrize('namespaces', [[], ['default']])
@testing.virtual_time
async def test_the_printed_rights_are_enough_and_those_that_are_not_used_are_told(
        registry, namespaces):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry, rbac=True, namespaces=namespaces) as operator:
            await api.client.create(THING)
            await api.client.wait('things', 'one', lambda obj: obj['status']['create_fn'])
            await api.client.wait('configmaps', 'one', lambda obj: obj)
        confinement = operator.confinement
        where = " in 'default'" if namespaces else ""
        assert confinement.refused == (['list namespaces'] if namespaces else [])  # it can without
        assert f'delete configmaps{where}' in confinement.unused
        assert f'patch things/status{where}' not in confinement.unused


@testing.virtual_time
async def test_what_a_handler_does_besides_is_refused_and_told(registry):
    @kopf.on.create('things', registry=registry, retries=1)
    async def apply_fn(namespace, **_):
        await kopf.apply({'apiVersion': 'v1', 'kind': 'Secret',
                          'metadata': {'name': 'some', 'namespace': namespace}})

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry, rbac=True) as operator:
            await api.client.create(THING)
            await operator.wait_log('secrets "some" is forbidden')
        assert operator.confinement.refused == ["patch secrets 'some' in 'default'"]


def test_other_operators_can_use_the_registry_of_a_confined_one(registry):
    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @testing.virtual_time
    async def operate(**options):
        async with testing.open_api('sandbox') as api:
            await api.client.load(CRD)
            async with api.operator(registry=registry, **options) as operator:
                await api.client.create(THING)
                await operator.wait_log("Creation is processed")

    operate(rbac=True)
    operate()


@testing.virtual_time
async def test_the_settings_of_startup_handlers_count(registry):
    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=0)
        settings.admission.managed = 'things.example.com'

    @kopf.on.validate('things', registry=registry)
    def validate_fn(**_):
        pass

    webhooks = {f'{verb} validatingwebhookconfigurations.admissionregistration.k8s.io{name}'
                for verb, name in [('create', ''), ('patch', " 'things.example.com'")]}
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        operator = api.operator(registry=registry, rbac=True)
        for _ in range(2):
            async with operator:
                await operator.wait_log("Reconfiguring the validating webhook")
            assert operator.confinement.refused == []  # it can do without mutating webhooks
            rights = {str(right) for right in operator.confinement.rights}
            assert webhooks <= rights and not rights & {'create events'}
            roles = await api.client.list('clusterroles')
            assert sum(role['metadata']['name'].startswith(operator.confinement.user)
                       for role in roles) == 1


def test_confined_operators_are_explored_and_walk(registry):
    async def scenario(client):
        await client.create(THING)
        await client.wait('configmaps', 'one', timeout=600)

    testing.explore(
        scenario, registry=registry, load=[CRD], rbac=True, strikes=['crash', 'handover'])
    testing.walk('things', registry=registry, load=[CRD], rbac=True, specs=[{}, {'x': 1}], walks=1)


@testing.virtual_time
async def test_a_real_api_is_not_confined_by_tests(monkeypatch):
    async with testing.open_api('sandbox') as api:
        api.sandbox = None
        with pytest.raises(ValueError, match='needs a sandbox'):
            api.operator(registry=kopf.OperatorRegistry(), rbac=True)


def test_it_is_an_option_of_the_fixture(kopf_client, kopf_operator, registry):
    kopf_client.load(CRD)
    operator = kopf_operator(registry=registry, rbac=True)
    kopf_client.create(THING)
    kopf_client.wait('things', 'one', lambda obj: obj['status']['create_fn'])
    assert not operator.confinement.refused


FINALIZER = 'kopf.zalando.org/KopfFinalizerMarker'


@testing.virtual_time
async def test_finalizers_of_other_operators_are_no_errors_of_those_that_may_not_remove_them():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.event('things', registry=registry)
    async def event_fn(name, meta, **_):
        seen.append((name, 'deletionTimestamp' in meta))

    def make(name):
        return {**THING, 'metadata': {
            'name': name, 'namespace': 'default', 'finalizers': [FINALIZER]}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry, rbac=True) as operator:
            for name in ('one', 'two', 'three'):
                await api.client.create(make(name))
            await asyncio.sleep(5)
            await api.client.delete('things', 'one')
            await api.client.delete('things', 'two')
            await asyncio.sleep(1300)
            removals = operator.text.count("Removing the finalizer, thus allowing")
            await api.client.patch('things', 'one', {'metadata': {'finalizers': None}})
            await api.client.wait_gone('things', 'one')
    assert seen[-1] == ('one', True)
    assert removals == 2 * 3  # they are tried again, but seldom
    assert operator.text.count(f"The finalizer '{FINALIZER}' stays on this object") == 1
    assert 'Throttling' not in operator.text
