"""
What is found is shown by the roles; that it is needed, and enough, is shown end-to-end.
"""
import re

import pytest

import kopf
from kopf._kits.typed import catalogue, granting
from kopf._kits.typed.rights import FEATURES, Right

BARE = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'bares.example.com'},
    'spec': {
        'group': 'example.com', 'scope': 'Namespaced', 'names': {'plural': 'bares', 'kind': 'Bare'},
        'versions': [{'name': 'v1', 'served': True, 'storage': True, 'subresources': {}}]}}
THING = {**BARE, 'spec': {
    **BARE['spec'], 'names': {'plural': 'things', 'kind': 'Thing'},
    'versions': [{**BARE['spec']['versions'][0], 'subresources': {'status': {}}}]}}
WIDE = {**BARE, 'spec': {
    **BARE['spec'], 'names': {'plural': 'wides', 'kind': 'Wide'}, 'scope': 'Cluster'}}
DEFINITIONS = [BARE, THING, WIDE]
CRDS = {Right('apiextensions.k8s.io', 'customresourcedefinitions', verb)
        for verb in ('list', 'watch')}
LEASES = 'coordination.k8s.io', 'leases'


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def settings():
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    return settings


@pytest.fixture()
def find(registry, settings):
    def find(*namespaces, is_complete=False, definitions=DEFINITIONS):
        return granting.find_rights(
            registry, settings, resources=catalogue.list_resources(definitions),
            is_complete=is_complete, namespaces=namespaces)
    return find


def rights(group, resource, *verbs, **kwargs):
    return {Right(group, resource, verb, **kwargs) for verb in verbs}


async def fn(**_):
    pass


def patching(patch, **_):
    pass


def returning(**_):
    return 123


def forwarding(**kwargs):
    print(kwargs)


@pytest.mark.parametrize('decorate', [
    kopf.on.create, kopf.on.update, kopf.on.delete, kopf.on.resume, kopf.daemon, kopf.timer,
    kopf.reconcile])
def test_those_who_keep_something_on_objects_may_patch_them(registry, find, decorate):
    decorate('bares', registry=registry)(fn)
    assert find() == rights('example.com', 'bares', 'list', 'watch', 'patch')


def test_those_with_the_status_as_a_subresource_may_patch_it(registry, find):
    kopf.on.create('things', registry=registry)(fn)
    assert find() == (rights('example.com', 'things', 'list', 'watch', 'patch')
                      | rights('example.com', 'things/status', 'patch'))


@pytest.mark.parametrize('decorate', [kopf.on.event, kopf.index])
def test_those_who_only_look_may_not_patch(registry, find, decorate):
    decorate('things', registry=registry)(fn)
    assert find() == rights('example.com', 'things', 'list', 'watch')


@pytest.mark.parametrize('writing', [
    patching, returning, forwarding, lambda **_: 123, eval('lambda **_: 123')])
def test_event_handlers_that_write_may_patch(registry, find, writing):
    kopf.on.event('bares', registry=registry, id='fn')(writing)
    assert find() == rights('example.com', 'bares', 'list', 'watch', 'patch')


def test_admission_handlers_alone_need_nothing(registry, find):
    kopf.on.validate('things', registry=registry)(fn)
    assert find() == set()


def test_managed_webhooks_are_written_by_their_name(registry, settings, find):
    settings.admission.managed = 'name'
    kopf.on.validate('things', registry=registry)(fn)
    group, plural = 'admissionregistration.k8s.io', 'validatingwebhookconfigurations'
    assert find('a') == (
        rights(group, plural, 'create') | rights(group, plural, 'patch', name='name'))


@pytest.mark.parametrize('kwargs, name, namespace', [
    ({}, 'x-webhook-tls', ''), ({'secret': 'y', 'namespace': 'z'}, 'y', 'z')])
def test_certificates_behind_a_service_are_in_one_secret(
        registry, settings, find, kwargs, name, namespace):
    settings.admission.server = kopf.WebhookServiceServer(service='x', **kwargs)
    assert not [right for right in find() if right.resource == 'secrets']
    kopf.on.validate('bares', registry=registry)(fn)
    assert {right for right in find() if right.resource == 'secrets'} == (
        rights('', 'secrets', 'create', namespace=namespace)
        | rights('', 'secrets', 'list', 'watch', 'patch', name=name, namespace=namespace))


def test_managed_webhooks_without_handlers_are_not_written(registry, settings, find):
    settings.admission.managed = 'name'
    assert find() == set()


@pytest.mark.parametrize('managed', [None, 'name'])
def test_conversions_are_written_to_the_definition_of_their_name(registry, settings, find, managed):
    settings.admission.managed = managed
    kopf.on.convert('things.example.com', 'v1', 'v2', registry=registry)(lambda obj: None)
    group, plural = 'apiextensions.k8s.io', 'customresourcedefinitions'
    written = rights(group, plural, 'patch', name='things.example.com') if managed else set()
    assert find() == rights(group, plural, 'list') | written


def test_reconcilers_may_do_with_their_children_what_they_must(registry, find):
    kopf.reconcile('bares', owns=['configmaps', 'deployments.apps'], registry=registry)(fn)
    verbs = 'list', 'watch', 'create', 'patch', 'delete'
    assert find() == (
        rights('example.com', 'bares', 'list', 'watch', 'patch')
        | rights('example.com', 'bares/finalizers', 'update')
        | rights('', 'configmaps', *verbs) | rights('apps', 'deployments', *verbs))


def test_reconcilers_may_watch_what_they_use(registry, find):
    kopf.reconcile('bares', watches={'secrets': lambda name, **_: name}, registry=registry)(fn)
    assert find() == (rights('example.com', 'bares', 'list', 'watch', 'patch')
                      | rights('', 'secrets', 'list', 'watch'))


def test_served_namespaces_have_the_same_rights_each(registry, find):
    kopf.on.event('bares', registry=registry)(fn)
    assert find('a', 'b') == (rights('example.com', 'bares', 'list', 'watch', namespace='a')
                              | rights('example.com', 'bares', 'list', 'watch', namespace='b'))


def test_cluster_scoped_resources_are_served_beside_namespaces(registry, find):
    kopf.on.event('wides', registry=registry)(fn)
    assert find('a') == rights('example.com', 'wides', 'list', 'watch')


@pytest.mark.parametrize('pattern', ['a*', 'a,b', '!a', re.compile('a')])
def test_patterns_of_namespaces_need_all_namespaces(registry, settings, find, pattern):
    kopf.on.event('bares', registry=registry)(fn)
    common = rights('example.com', 'bares', 'list', 'watch')
    assert find('b', pattern) == common | rights('', 'namespaces', 'list')
    settings.scanning.disabled = False
    assert find('b', pattern) == common | rights('', 'namespaces', 'list', 'watch') | CRDS


def test_events_are_posted_where_the_objects_are(registry, settings, find):
    settings.posting.enabled = True
    kopf.on.event('bares', registry=registry)(fn)
    assert find('a') >= rights('', 'events', 'create', namespace='a')
    assert not find('a') & rights('', 'events', 'create', namespace='default')


def test_events_of_cluster_scoped_objects_are_posted_in_the_default_namespace(
        registry, settings, find):
    settings.posting.enabled = True
    kopf.on.event('wides', registry=registry)(fn)
    assert find('a') >= rights('', 'events', 'create', namespace='default')


@pytest.mark.parametrize('selector, followed', [
    ('things', True), ('pods', True), ('things.example.com', True), (('v1', 'pods'), False)])
def test_definitions_are_followed_where_kinds_can_come_and_go(
        registry, settings, find, selector, followed):
    settings.scanning.disabled = False
    args = [selector] if isinstance(selector, str) else selector
    kopf.on.event(*args, registry=registry)(fn)
    assert (find() >= CRDS) == followed


def test_definitions_are_followed_because_of_peering(registry, settings, find):
    settings.scanning.disabled = settings.peering.standalone = False
    kopf.on.event('v1', 'pods', registry=registry)(fn)
    assert find() >= CRDS
    settings.leadership.name = 'name'
    assert not find() >= CRDS


def test_definitions_are_not_followed_if_nothing_is_watched(settings, find):
    settings.scanning.disabled = False
    assert find() == set()


@pytest.mark.parametrize('clusterwide, plural', [
    (True, 'clusterkopfpeerings'), (False, 'kopfpeerings')])
def test_peers_meet_in_the_object_of_their_name(settings, find, clusterwide, plural):
    settings.peering.standalone = False
    settings.peering.name = 'name'
    settings.peering.clusterwide = clusterwide
    namespaces = () if clusterwide else ('a',)
    assert find(*namespaces) == rights(
        'kopf.dev', plural, 'list', 'watch', 'patch', name='name',
        namespace=None if clusterwide else 'a')


@pytest.mark.parametrize('namespace', ['', 'own'])
def test_leaders_have_the_lease_of_their_name(settings, find, namespace):
    settings.peering.standalone = False
    settings.leadership.name = 'name'
    settings.leadership.namespace = namespace or None
    assert find('a') == (
        rights(*LEASES, 'create', namespace=namespace)
        | rights(*LEASES, 'get', 'watch', 'update', name='name', namespace=namespace))


def test_shares_have_leases_of_many_names(settings, find):
    settings.peering.standalone = False
    settings.leadership.name = 'name'
    settings.sharding.count = 3
    assert find('a') == rights(
        *LEASES, 'list', 'get', 'create', 'update', 'delete', namespace='')


def test_what_handlers_need_is_given_where_objects_are_served(registry, find):
    @kopf.on.startup(registry=registry)
    @kopf.needs('nodes', verbs=['get'])
    @kopf.needs('pods/log', verbs=['get'])
    def fn(**_):
        pass

    assert find('a') == rights('', 'nodes', 'get') | rights('', 'pods/log', 'get', namespace='a')


def test_what_handlers_need_of_single_objects_is_not_given_for_others(registry, find):
    @kopf.on.startup(registry=registry)
    @kopf.needs('nodes', verbs=['get'], names=['x', 'y'])
    def fn(**_):
        pass

    assert find('a') == rights('', 'nodes', 'get', name='x') | rights('', 'nodes', 'get', name='y')


def test_what_the_functions_of_externals_need_is_given(registry, find):
    external = kopf.external('things', id='it', registry=registry)
    before = find('a')

    @external.observe
    @kopf.needs('nodes', verbs=['get'])
    def observe(**_):
        pass

    assert find('a') == before | rights('', 'nodes', 'get')


@pytest.mark.parametrize('selector, message', [
    ('unknown', r"Handler 'fn': there is no resource unknown among the known ones. The given "
                r"definitions are of: bares.v1.example.com, things.v1.example.com, wides.v1"
                r".example.com. Give its definition \(--crd FILE\), or ask the cluster "
                r"\(--cluster\)."),
    ('podss', r"no resource podss among the known ones. Did you mean pods.v1\?"),
    (kopf.EVERYTHING, r"Handler 'fn': which resources are selected by any_name=EVERYTHING "
                      r"depends on the cluster. Ask the cluster: --cluster"),
    (lambda resource: True, r"Ask the cluster: --cluster"),
])
def test_resources_must_be_known(registry, find, selector, message):
    kopf.on.event(selector, registry=registry)(fn)
    with pytest.raises(granting.GrantError, match=message):
        find()


@pytest.mark.parametrize('option', [
    {'owns': ['unknown']}, {'watches': {'unknown': lambda **_: None}}])
def test_resources_of_reconcilers_must_be_known(registry, find, option):
    kopf.reconcile('things', registry=registry, **option)(fn)
    with pytest.raises(granting.GrantError, match="Reconciler 'fn': there is no resource unknown"):
        find()


def test_resources_that_handlers_need_must_be_known(registry, find):
    kopf.on.login(registry=registry)(kopf.needs('unknown', verbs=['get'])(lambda **_: None))
    with pytest.raises(granting.GrantError, match="there is no resource unknown"):
        find()


def test_everything_is_what_the_cluster_has(registry, find):
    kopf.index(kopf.EVERYTHING, registry=registry)(fn)
    found = {(right.group, right.resource) for right in find(is_complete=True)}
    assert {('example.com', 'things'), ('', 'pods'), ('apps', 'deployments')} <= found
    assert ('', 'events') not in found


def test_ambiguous_resources_must_be_told_apart(registry, find):
    other = {**BARE, 'spec': {**BARE['spec'], 'group': 'other.com'}}
    kopf.on.event('bares', registry=registry)(fn)
    with pytest.raises(granting.GrantError, match=(
            r"bares is ambiguous. Use one of: bares.example.com, bares.other.com")):
        find(definitions=[BARE, other])


def test_selectors_that_fail_are_reported(registry, find):
    kopf.on.event(lambda resource: 1 / 0, registry=registry)(fn)
    with pytest.raises(granting.GrantError, match="Handler 'fn': .* fails: ZeroDivisionError"):
        find(is_complete=True)


def test_all_features_are_found_by_these_tests():
    """Each key of the table is used by the code that finds the rights."""
    source = granting.__loader__.get_source(granting.__name__)
    assert set(FEATURES) == set(re.findall(r"_use\(\s*'(\w+)'", source))
