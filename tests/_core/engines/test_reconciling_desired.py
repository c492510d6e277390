import datetime
import json
import types

import kubernetes_asyncio
import pykube
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.references import Resource
from kopf._core.engines.reconciling import desired
from kopf._core.engines.reconciling.desired import (
    DIGEST_ANNOTATION,
    HANDLER_LABEL,
    OWNER_LABEL,
    flatten,
    get_manager,
    make_digest,
    prepare,
)

CONFIGMAPS = Resource('', 'v1', 'configmaps', kind='ConfigMap', namespaced=True)
NAMESPACES = Resource('', 'v1', 'namespaces', kind='Namespace', namespaced=False)
DEPLOYMENTS = Resource(
    'apps', 'v1', 'deployments', kind='Deployment', namespaced=True,
    subresources=frozenset({'status'}))
KINDS = {(kind.group, kind.kind): kind for kind in (CONFIGMAPS, NAMESPACES, DEPLOYMENTS)}


def make_parent(*, namespace='ns', labels=None, uid='uid1'):
    meta = {'name': 'parent', 'uid': uid, 'labels': labels or {}}
    if namespace is not None:
        meta['namespace'] = namespace
    return Body({'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': meta})


def make(result, *, parent=None, kinds=KINDS, manager='kopf/fn'):
    """Prepare what a handler has returned; fail if anything is wrong with it."""
    found, errors = prepare(
        result, parent=parent or make_parent(), find=kinds.get, manager=manager)
    assert not errors
    return list(found.values())


def fail(result, **kwargs):
    """Prepare what a handler has returned; return the text of the only error."""
    found, errors = prepare(
        result, parent=make_parent(**kwargs), find=KINDS.get, manager='kopf/fn')
    assert not found
    error, = errors
    return str(error)


def configmap(name=None, **fields):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}, **fields}


# Names.

def test_children_keep_their_names():
    child, = make(configmap('child'))
    assert child.key == ('', 'ConfigMap', 'ns', 'child')
    assert child.manifest['metadata']['name'] == 'child'


def test_children_without_names_are_named_as_the_parent():
    child, = make({'apiVersion': 'v1', 'kind': 'ConfigMap'})
    assert child.key.name == child.manifest['metadata']['name'] == 'parent'


def generate(*prefixes, parent=None, manager='kopf/fn'):
    return [child.key.name for child in make(
        [{**configmap(), 'metadata': {'generateName': prefix}} for prefix in prefixes],
        parent=parent, manager=manager)]


def test_generated_names_begin_as_wanted_and_differ():
    first, second = generate('a-', 'a-')
    assert first.startswith('a-') and second.startswith('a-') and first != second


def test_generated_names_are_the_same_each_time():
    assert generate('a-', 'b-') == generate('a-', 'b-')


def test_generated_names_do_not_depend_on_other_children():
    before = make([{**configmap(), 'metadata': {'generateName': 'a-'}}])
    after = make([configmap('x'), None, *[
        {**configmap(), 'metadata': {'generateName': prefix}} for prefix in ('b-', 'a-')]])
    assert before[0].key == after[2].key


def test_generated_names_differ_between_parents_and_handlers():
    assert len({*generate('a-'), *generate('a-', parent=make_parent(uid='uid2')),
                *generate('a-', manager='kopf/other')}) == 3


def test_generated_names_are_no_longer_asked_for():
    child, = make({**configmap(), 'metadata': {'generateName': 'a-'}})
    assert 'generateName' not in child.manifest['metadata']


def test_names_win_over_names_to_be_generated():
    child, = make({**configmap(), 'metadata': {'name': 'child', 'generateName': 'a-'}})
    assert child.key.name == 'child' and 'generateName' not in child.manifest['metadata']


# Namespaces, and the scope of the cluster.

def test_children_are_in_the_namespace_of_the_parent():
    child, = make(configmap('child'))
    assert child.manifest['metadata']['namespace'] == 'ns'


def test_children_can_be_in_other_namespaces_and_have_no_owner_then():
    child, = make({**configmap(), 'metadata': {'name': 'child', 'namespace': 'other'}})
    assert child.key.namespace == child.manifest['metadata']['namespace'] == 'other'
    assert not child.is_owned and 'ownerReferences' not in child.manifest['metadata']


def test_cluster_scoped_children_have_no_namespace_and_no_namespaced_owner():
    child, = make({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {
        'name': 'child', 'namespace': 'ignored'}})
    assert child.key.namespace is None and 'namespace' not in child.manifest['metadata']
    assert not child.is_owned and 'ownerReferences' not in child.manifest['metadata']


@pytest.mark.parametrize('manifest', [
    {'apiVersion': 'v1', 'kind': 'Namespace'},
    {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'namespace': 'ns'}},
], ids=['cluster-scoped', 'namespaced'])
def test_all_children_of_cluster_scoped_parents_are_owned(manifest):
    child, = make(manifest, parent=make_parent(namespace=None))
    owner, = child.manifest['metadata']['ownerReferences']
    assert child.is_owned and owner['uid'] == 'uid1'


def test_namespaced_children_of_cluster_scoped_parents_need_a_namespace():
    assert fail(configmap('child'), namespace=None) == (
        "ConfigMap needs a namespace, as its parent has none.")


# Labels, annotations, and owners.

def test_children_have_the_labels_of_the_parent_and_their_own_win():
    child, = make({**configmap(), 'metadata': {'labels': {'a': 'own', 'b': 'own'}}},
                  parent=make_parent(labels={'a': 'parent', 'c': 'parent'}))
    labels = dict(child.manifest['metadata']['labels'])
    assert labels.pop(OWNER_LABEL) == 'uid1'
    assert labels.pop(HANDLER_LABEL) == make_digest('kopf/fn')
    assert labels == {'a': 'own', 'b': 'own', 'c': 'parent'}


def test_children_of_children_are_labelled_with_their_own_parent():
    child, = make(configmap('child'), parent=make_parent(
        labels={OWNER_LABEL: 'grandparent', HANDLER_LABEL: 'other'}))
    labels = child.manifest['metadata']['labels']
    assert labels == {OWNER_LABEL: 'uid1', HANDLER_LABEL: make_digest('kopf/fn')}


def test_children_are_controlled_by_the_parent():
    child, = make(configmap('child'))
    assert child.is_owned and child.manifest['metadata']['ownerReferences'] == [{
        'apiVersion': 'example.com/v1', 'kind': 'Thing', 'name': 'parent', 'uid': 'uid1',
        'controller': True, 'blockOwnerDeletion': True}]


def test_other_owners_remain():
    other = {'apiVersion': 'v1', 'kind': 'Pod', 'name': 'pod', 'uid': 'uid2'}
    own = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'name': 'parent', 'uid': 'uid1'}
    child, = make({**configmap(), 'metadata': {'ownerReferences': [own, other]}})
    assert [ref['uid'] for ref in child.manifest['metadata']['ownerReferences']] == ['uid2', 'uid1']


def test_what_only_the_api_server_sets_is_left_out():
    child, = make({**configmap('child', data={'a': 'b'}), 'metadata': {
        'name': 'child', 'uid': 'u', 'resourceVersion': '1', 'generation': 1, 'managedFields': [],
        'creationTimestamp': None, 'deletionTimestamp': '2020-01-01T00:00:00Z', 'selfLink': '/',
        'deletionGracePeriodSeconds': 0}})
    assert child.manifest['metadata'].keys() == {
        'name', 'namespace', 'labels', 'annotations', 'ownerReferences'}
    assert child == make(configmap('child', data={'a': 'b'}))[0]


def test_the_status_is_left_out_if_it_is_a_subresource():
    child, = make({'apiVersion': 'apps/v1', 'kind': 'Deployment', 'status': {}})
    assert 'status' not in child.manifest


def test_the_status_is_applied_if_it_is_no_subresource():
    child, = make(configmap('child', status={'x': 'y'}))
    assert child.manifest['status'] == {'x': 'y'}


# Versions.

def test_manifests_of_other_versions_are_sent_in_their_version():
    child, = make({'apiVersion': 'apps/v1beta2', 'kind': 'Deployment'})
    assert child.resource.version == 'v1beta2' and child.watched is DEPLOYMENTS


# Digests.

@given(st.permutations(['apiVersion', 'kind', 'metadata', 'data']))
def test_the_order_of_keys_does_not_matter_to_digests(keys):
    manifest = configmap('child', data={'a': 'b'})
    child, = make({key: manifest[key] for key in keys})
    assert child.digest == make(manifest)[0].digest
    assert child.manifest['metadata']['annotations'] == {DIGEST_ANNOTATION: child.digest}


@pytest.mark.parametrize('other', [
    configmap('child', data={'a': 'c'}),
    configmap('child', data={'a': 'b', 'b': 'c'}),
    {**configmap('child', data={'a': 'b'}), 'metadata': {'name': 'child', 'labels': {'a': 'b'}}},
])
def test_other_manifests_have_other_digests(other):
    assert make(other)[0].digest != make(configmap('child', data={'a': 'b'}))[0].digest


# What handlers return.

@pytest.mark.parametrize('result', [
    [configmap('a'), configmap('b')],
    (configmap('a'), configmap('b')),
    iter([configmap('a'), configmap('b')]),
    [[configmap('a')], [None, [configmap('b')]]],
    {'a': configmap('a'), 'b': configmap('b')}.values(),
    [types.MappingProxyType(configmap('a')), Body(configmap('b'))],
])
def test_manifests_come_in_any_iterable(result):
    assert [child.key.name for child in make(result)] == ['a', 'b']


@pytest.mark.parametrize('result', [None, [], (), [None], iter([])])
def test_nothing_is_returned_in_any_way(result):
    assert make(result) == []


def test_the_values_of_the_handler_are_not_changed():
    manifest = configmap('child', data={'a': 'b'})
    before = json.dumps(manifest)
    make(manifest)
    assert json.dumps(manifest) == before


def test_models_of_clients_are_manifests():
    client = kubernetes_asyncio.client
    model = client.V1ConfigMap(
        api_version='v1', kind='ConfigMap', metadata=client.V1ObjectMeta(name='child'),
        binary_data={'a': 'b'})
    assert make([model]) == make(configmap('child', binaryData={'a': 'b'}))
    assert list(flatten(model)) == [model]


def test_times_in_models_of_clients_are_texts():
    client = kubernetes_asyncio.client
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    model = client.V1ConfigMap(
        api_version='v1', kind='ConfigMap', data={'at': moment},
        metadata=client.V1ObjectMeta(name='child', creation_timestamp=moment))
    child, = make(model)
    assert child.manifest['data'] == {'at': '2020-01-02T03:04:05Z'}


def test_objects_of_pykube_are_manifests():
    obj = pykube.ConfigMap(None, configmap('child', data={'a': 'b'}))
    assert make(obj) == make([obj]) == make(configmap('child', data={'a': 'b'}))


# Errors.

@pytest.mark.parametrize(('result', 'text'), [
    ('text', "Neither a manifest nor an iterable of manifests: 'text'"),
    (b'bytes', "Neither a manifest nor an iterable of manifests: b'bytes'"),
    (True, "Neither a manifest nor an iterable of manifests: True"),
    ([1], "Neither a manifest nor an iterable of manifests: 1"),
    ({}, "A manifest needs apiVersion and kind: {}"),
    ({'kind': 'ConfigMap'}, "A manifest needs apiVersion and kind: {'kind': 'ConfigMap'}"),
    ({'kind': 'Secret', 'stringData': {'key': 'secret'}},
     "A manifest needs apiVersion and kind: {'kind': 'Secret', 'stringData': '…'}"),
    ({'kind': 1, 'apiVersion': 'v1'}, "A manifest needs apiVersion and kind:"),
    ({'kind': 'Pod', 'apiVersion': 'v1'}, "Pod of v1 is not among the owned kinds in the cluster"),
    (configmap('a', metadata='text'), "The metadata of ConfigMap must be a mapping"),
    (configmap('a', metadata={'name': 1}), "The name of ConfigMap must be a name, not 1"),
    (configmap('a', metadata={'generateName': 1}),
     "The generateName of ConfigMap must be a name, not 1"),
    (configmap('a', metadata={'namespace': {}}),
     "The namespace of ConfigMap must be a name, not {}"),
    (configmap('a', metadata={'namespace': '..'}),
     "The namespace of ConfigMap must be a name, not '..'"),
    (configmap('a', metadata={'name': '\ud800'}),
     "The name of ConfigMap must be a name, not '\\ud800'"),
    (configmap('a', metadata={'labels': ['x']}),
     "The labels of ConfigMap must be a mapping, not ['x']"),
    (configmap('a', metadata={'annotations': 'x'}),
     "The annotations of ConfigMap must be a mapping, not 'x'"),
    (configmap('a', metadata={'ownerReferences': ['x']}),
     "The ownerReferences of ConfigMap must be a list of mappings, not ['x']"),
    (configmap('a', data={'a': object}), "A manifest is not JSON: "),
    (configmap('a', data={'a': float('nan')}), "A manifest is not JSON: "),
    (configmap('a', data={('a', 'b'): 'c'}), "A manifest is not JSON: "),
])
def test_wrong_manifests_are_clear_errors(result, text):
    assert fail(result).startswith(text)


def test_endless_manifests_are_errors():
    manifest = configmap('a', data={})
    manifest['data']['data'] = manifest['data']
    assert fail(manifest).startswith("A manifest is not JSON")


def test_wrong_manifests_do_not_hold_the_others():
    found, errors = prepare(
        ['x', configmap('a'), {}], parent=make_parent(), find=KINDS.get, manager='m')
    assert [key.name for key in found] == ['a'] and len(errors) == 2


def test_two_children_of_one_name_are_an_error():
    found, errors = prepare(
        [configmap('a', data={'a': '1'}), configmap('a')], parent=make_parent(),
        find=KINDS.get, manager='m')
    assert [child.manifest.get('data') for child in found.values()] == [{'a': '1'}]
    assert [*map(str, errors)] == [
        "ConfigMap ns/a is returned twice. Give each its own name."]


# Field managers.

def test_field_managers_are_named_by_the_operator_and_the_handler():
    assert get_manager('kopf', 'fn/spec.field') == 'kopf/fn/spec.field'


@pytest.mark.parametrize(('one', 'two'), [
    ('x' * 200, 'x' * 201), ('fn\n', 'fn\t'),
], ids=['long', 'unprintable'])
def test_names_that_managers_cannot_have_are_cut_and_still_differ(one, two):
    names = {get_manager('kopf', one), get_manager('kopf', two)}
    assert len(names) == 2
    assert all(len(name) <= 128 and name.isprintable() for name in names)


# The fields of managers: all `fieldsV1` here are answers of real API servers.

def test_the_names_of_labels_are_valid_for_any_uid_and_manager():
    assert len(make_digest('x')) == 16 and make_digest('x').isalnum()
    assert desired.OWNER_LABEL != desired.HANDLER_LABEL


@pytest.mark.parametrize('name', ['parent', None])
def test_a_parent_does_not_own_itself(name):
    things = Resource('example.com', 'v2', 'things', kind='Thing', namespaced=True)
    kinds = {('example.com', 'Thing'): things}
    manifest = {'apiVersion': 'example.com/v2', 'kind': 'Thing', 'metadata': {'name': name}}
    found, errors = prepare(
        manifest, parent=make_parent(), find=kinds.get, manager='kopf/fn')
    assert not found
    assert str(errors[0]) == (
        "Thing ns/parent is the parent itself. Give the owned resource another name.")
    assert make({**manifest, 'metadata': {'name': 'other'}}, kinds=kinds)


def test_an_error_names_some_problems_in_the_same_order():
    error = desired.ChildrenError([f'{number:04}' for number in reversed(range(500))])
    assert str(error) == '; '.join([*(f'{number:04}' for number in range(20)), 'and 480 more'])
    assert str(desired.ChildrenError(['b', 'a'])) == 'a; b'
