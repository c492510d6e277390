"""
Each right that is printed for a feature is used by this feature: without it, something is refused.
"""
import asyncio
import contextlib
import pathlib

import kopf
from kopf import testing
from kopf._kits.typed.rights import FEATURES
from tests.crds import make_crd

PEERING = pathlib.Path(__file__).parents[3] / 'peering.yaml'


def make(kind, name='one', **spec):
    return {'apiVersion': 'example.com/v1', 'kind': kind, 'metadata': {
        'name': name, **({'namespace': 'default'} if kind == 'Thing' else {})}, 'spec': spec}


def handle_changes(registry):
    @kopf.on.create('things', registry=registry, id='create_fn')
    @kopf.on.create('wides', registry=registry, id='create_fn')
    async def create_fn(logger, **_):
        logger.info("Made.")
        return 'made'


async def watch(**_):
    pass


SILENT = {'create events'}
"""What handlers need that have nothing to say."""


def handle_levels(registry):
    @kopf.reconcile('things', registry=registry, owns=['configmaps'],
                    watches={'secrets': lambda name, **_: [name]})
    def reconcile_fn(name, spec, **_):
        if not spec.get('empty'):
            yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
                   'data': {'field': spec.get('field', '')}}

async def change_all(api, operator):
    await api.client.create(make('Thing', field='a'))
    await api.client.create(make('Wide'))
    await operator.wait_log('Watching')
    for spec in [{'field': 'b'}, {'empty': True}]:
        await api.client.patch('things', 'one', {'spec': spec})
        await settle()


async def settle():
    await asyncio.sleep(60)  # of virtual time


def get_rights(feature, **names):
    """Get how the rights of a feature are shown."""
    resource = FEATURES[feature].resource
    for old, new in names.items():
        resource = resource.replace(old, new)
    return {f'{verb} {resource}' for verb in FEATURES[feature].verbs}


async def run(registry, settings=None, **options):
    """Run an operator through changes of its objects; return what it has not used."""
    async with testing.open_api('sandbox') as api:
        await api.client.load(
            make_crd('Thing', 'things'), make_crd('Wide', 'wides', scope='Cluster'), PEERING)
        async with api.operator(
                registry=registry, settings=settings, rbac=True, **options) as operator:
            await change_all(api, operator)
        assert not operator.confinement.refused
        return {str(right) for right in operator.confinement.rights}, {
            *operator.confinement.unused}


@testing.virtual_time
async def test_changes_use_all_rights():
    registry = kopf.OperatorRegistry()
    handle_changes(registry)
    rights, unused = await run(registry)
    for plural in ('things.example.com', 'wides.example.com'):
        for feature in ('watching', 'changing'):
            assert get_rights(feature, PLURAL=plural) <= rights - unused
        assert f'patch {plural}/status' in rights - unused
    assert 'create events' in rights - unused
    assert get_rights('definitions') <= rights - unused
    assert unused == set()


@testing.virtual_time
async def test_reconciliation_uses_all_rights_but_that_of_owners():
    registry = kopf.OperatorRegistry()
    handle_levels(registry)
    rights, unused = await run(registry)
    for feature, plural in [('owning', 'configmaps'), ('using', 'secrets')]:
        assert get_rights(feature, PLURAL=plural) <= rights
    # The sandbox demands nothing of owners; see the tests of examples on real APIs. Only handlers
    # with conditions or finalizers write to their objects.
    assert unused == {'update things.example.com/finalizers', *SILENT,
                      'patch things.example.com', 'patch things.example.com/status'}


@testing.virtual_time
async def test_patterns_of_namespaces_use_all_rights():
    registry = kopf.OperatorRegistry()
    kopf.on.event('things', registry=registry)(watch)
    rights, unused = await run(registry, namespaces=['def*'])
    assert get_rights('namespaces') <= rights
    assert unused == SILENT


@testing.virtual_time
async def test_peering_uses_all_rights():
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    kopf.on.event('things', registry=registry)(watch)
    settings.peering.name, settings.peering.mandatory = 'example', True
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'), PEERING)
        await api.client.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering',
                                 'metadata': {'name': 'example'}})
        async with api.operator(
                registry=registry, settings=settings, rbac=True, standalone=False) as operator:
            await operator.wait_log('Watching things', timeout=60)
            await settle()
        assert not operator.confinement.refused
        peering = {f"{verb} clusterkopfpeerings.kopf.dev 'example'"
                   for verb in FEATURES['peering'].verbs}
        assert peering <= {str(right) for right in operator.confinement.rights}
        assert {*operator.confinement.unused} == SILENT


async def run_replicas(make_settings, joined):
    """
    Run two replicas in real time; the first one leaves when the second one logs ``joined``.
    Return the rights, and which of them none of the two has used.
    """
    replicas = []

    def find_unused():
        return set.intersection(*({*each.confinement.unused} for each in replicas))

    def is_at_work():
        return all(text.startswith(('delete ', 'get ')) for text in find_unused() - SILENT)

    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                registry = kopf.OperatorRegistry()
                kopf.on.event('things', registry=registry)(watch)
                replicas.append(await stack.enter_async_context(api.operator(
                    registry=registry, settings=make_settings(), rbac=True)))
            await replicas[0].wait_log('Watching things', timeout=60)
            await testing.wait_for(is_at_work, timeout=60)
            await replicas[1].wait_log(joined, timeout=60)
            await replicas[0].stop()
            await replicas[1].wait_log('Watching things', timeout=60)
        assert not [each.confinement.refused for each in replicas if each.confinement.refused]
        return {str(right) for right in replicas[0].confinement.rights}, find_unused()


async def test_the_election_of_leaders_uses_all_rights():
    def make_settings():
        settings = kopf.OperatorSettings()
        settings.leadership.name, settings.leadership.retry_period = 'lease', 0.1
        return settings

    rights, unused = await run_replicas(make_settings, 'Connected')
    where = " in the operator's namespace"
    assert {f"{verb} leases.coordination.k8s.io 'lease'{where}"
            for verb in FEATURES['lease'].verbs} <= rights
    assert f"create leases.coordination.k8s.io{where}" in rights
    assert unused == SILENT


async def test_shards_use_the_rights_but_those_for_what_is_left_over():
    def make_settings():
        settings = kopf.OperatorSettings()
        settings.sharding.count, settings.leadership.retry_period = 4, 0.1
        return settings

    rights, unused = await run_replicas(make_settings, 'Gained the shards')
    where = " in the operator's namespace"
    assert {f"{verb} leases.coordination.k8s.io{where}"
            for verb in FEATURES['shards'].verbs} <= rights
    left_over = {f'{verb} leases.coordination.k8s.io{where}' for verb in ('get', 'delete')}
    assert unused - left_over == SILENT


async def test_managed_webhooks_use_all_rights():
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = 'example.com'
    kopf.on.validate('things', registry=registry)(watch)
    kopf.on.mutate('things', registry=registry)(watch)
    async with testing.open_api('sandbox') as api:
        await api.client.load(make_crd('Thing', 'things'))
        async with api.operator(registry=registry, settings=settings, rbac=True) as operator:
            for plural in ('validatingwebhookconfigurations', 'mutatingwebhookconfigurations'):
                await api.client.wait(plural, 'example.com', lambda obj: obj['webhooks'])
        assert not operator.confinement.refused
        rights = {str(right) for right in operator.confinement.rights}
        for plural in ('validatingwebhookconfigurations', 'mutatingwebhookconfigurations'):
            assert {f'create {plural}.admissionregistration.k8s.io',
                    f"patch {plural}.admissionregistration.k8s.io 'example.com'"} <= rights
        assert operator.confinement.unused == []
