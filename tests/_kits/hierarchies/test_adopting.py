import copy

import pytest

import kopf
from kopf.testing import invoke, invoke_sync

OWNER = kopf.Body({
    'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
    'metadata': {
        'name': 'owner', 'namespace': 'ns', 'uid': 'uid1', 'labels': {'somelabel': 'somevalue'}},
})
REFERENCE = {
    'controller': True, 'blockOwnerDeletion': True, 'apiVersion': 'kopf.dev/v1',
    'kind': 'KopfExample', 'name': 'owner', 'uid': 'uid1'}
OTHER = {'uid': 'other'}


def changed(fn, obj, *args, **kwargs):
    obj = copy.deepcopy(obj)
    assert fn(obj, *args, **kwargs) is None
    return obj


@pytest.mark.parametrize('obj, forced, labels', [
    ({}, False, {'l': 'v'}),
    ({'metadata': None}, False, {'l': 'v'}),
    ({'metadata': {'labels': None}}, False, {'l': 'v'}),
    ({'metadata': {'labels': {'a': 'b'}}}, False, {'a': 'b', 'l': 'v'}),
    ({'metadata': {'labels': {'l': 'x'}}}, False, {'l': 'x'}),
    ({'metadata': {'labels': {'l': 'x'}}}, True, {'l': 'v'}),
])
def test_labels_are_added_and_those_there_stay_unless_forced(obj, forced, labels):
    assert changed(kopf.label, obj, {'l': 'v'}, forced=forced)['metadata']['labels'] == labels


def test_force_is_the_former_name_of_forced():
    with pytest.warns(DeprecationWarning, match='forced='):
        obj = changed(kopf.label, {'metadata': {'labels': {'l': 'x'}}}, {'l': 'v'}, force=True)
    assert obj['metadata']['labels'] == {'l': 'v'}


@pytest.mark.parametrize('nested', [
    'spec.template', ['spec.template'], [('spec', 'template')], ['spec.template', 'spec.absent']])
def test_templates_are_labelled_where_they_are(nested):
    objs = [{'kind': 'Job'}, {'kind': 'Deployment', 'spec': {'template': {}}}]
    kopf.label(objs, {'l': 'v'}, nested=nested)
    metadata = {'labels': {'l': 'v'}}
    assert objs == [
        {'kind': 'Job', 'metadata': metadata},
        {'kind': 'Deployment', 'metadata': metadata, 'spec': {'template': {'metadata': metadata}}}]


def test_owners_are_added_once():
    obj = {'metadata': {'ownerReferences': [OTHER]}}
    for _ in range(2):
        kopf.append_owner_reference(obj, OWNER)
    assert obj == {'metadata': {'ownerReferences': [OTHER, REFERENCE]}}


def test_owners_can_be_no_controllers_and_not_block_the_deletion():
    obj = changed(
        kopf.append_owner_reference, {}, OWNER, controller=False, block_owner_deletion=False)
    expected = {**REFERENCE, 'controller': False, 'blockOwnerDeletion': False}
    assert obj == {'metadata': {'ownerReferences': [expected]}}


def test_owners_are_removed():
    obj = {'metadata': {'ownerReferences': [REFERENCE, OTHER]}}
    kopf.remove_owner_reference(obj, OWNER)
    assert obj == {'metadata': {'ownerReferences': [OTHER]}}
    assert changed(kopf.remove_owner_reference, {}, OWNER) == {}


@pytest.mark.parametrize('meta, options, expected', [
    ({}, {}, {'generateName': 'some-'}),
    ({}, {'strict': True}, {'name': 'some'}),
    ({'name': 'x'}, {}, {'name': 'x'}),
    ({'generateName': 'x-'}, {'strict': True}, {'generateName': 'x-'}),
    ({'name': 'x'}, {'forced': True}, {'generateName': 'some-'}),
    ({'generateName': 'x-'}, {'strict': True, 'forced': True}, {'name': 'some'}),
])
def test_names_are_prefixes_or_exact(meta, options, expected):
    obj = changed(kopf.harmonize_naming, {'metadata': meta}, 'some', **options)
    assert obj == {'metadata': expected}


@pytest.mark.parametrize('meta, forced, expected', [
    ({}, False, 'other'), ({'namespace': 'x'}, False, 'x'), ({'namespace': 'x'}, True, 'other')])
def test_namespaces_are_set(meta, forced, expected):
    obj = changed(kopf.adjust_namespace, {'metadata': meta}, 'other', forced=forced)
    assert obj == {'metadata': {'namespace': expected}}


ADOPTED = {
    'ownerReferences': [REFERENCE], 'name': 'owner', 'namespace': 'ns',
    'labels': {'somelabel': 'somevalue'}}


def test_adopted_objects_have_it_all():
    obj = {'spec': {'template': {}}}
    kopf.adopt(obj, OWNER, strict=True, forced=True, nested='spec.template')
    assert obj == {
        'metadata': ADOPTED,
        'spec': {'template': {'metadata': {'labels': {'somelabel': 'somevalue'}}}}}


@pytest.mark.parametrize('make', [list, tuple, iter, lambda objs: [[objs]]])
def test_any_iterables_are_taken(make):
    objs = [{}, {}]
    kopf.adopt(make(objs), OWNER, strict=True)
    assert objs == [{'metadata': ADOPTED}] * 2


@pytest.mark.parametrize('obj', [1, 'string', object()])
def test_what_is_no_object_is_an_error(obj):
    with pytest.raises(TypeError, match="Neither an object"):
        kopf.label(obj, {})


@pytest.mark.parametrize('fn', [
    kopf.adopt, kopf.append_owner_reference, kopf.remove_owner_reference, kopf.harmonize_naming,
    kopf.adjust_namespace, kopf.label])
def test_outside_of_handlers_there_is_no_owner(fn):
    with pytest.raises(LookupError, match="name the owner"):
        fn({})


@pytest.mark.parametrize('fn, expected', [
    (lambda obj: kopf.label(obj), {'labels': {'somelabel': 'somevalue'}}),
    (lambda obj: kopf.label(obj, None), {'labels': {'somelabel': 'somevalue'}}),
    (kopf.append_owner_reference, {'ownerReferences': [REFERENCE]}),
    (kopf.harmonize_naming, {'generateName': 'owner-'}),
    (lambda obj: kopf.harmonize_naming(obj, strict=True), {'name': 'owner'}),
    (lambda obj: kopf.adjust_namespace(obj, forced=True), {'namespace': 'ns'}),
])
def test_what_is_not_said_is_taken_from_the_handled_object(fn, expected):
    objs = [{'kind': 'Job'}, {'kind': 'Deployment'}]
    invoke_sync(lambda **_: fn(objs), OWNER)
    assert objs == [
        {'kind': 'Job', 'metadata': expected}, {'kind': 'Deployment', 'metadata': expected}]


def test_the_handled_object_can_be_no_owner_any_more():
    obj = {'metadata': {'ownerReferences': [REFERENCE, OTHER]}}
    invoke_sync(lambda **_: kopf.remove_owner_reference(obj), OWNER)
    assert obj == {'metadata': {'ownerReferences': [OTHER]}}


def test_no_labels_are_not_those_of_the_handled_object():
    obj = {'kind': 'Job'}
    invoke_sync(lambda **_: kopf.label(obj, {}), OWNER)
    assert not obj.get('metadata', {}).get('labels')


def test_labels_are_given_one_after_another_as_documented():
    objs = [{'kind': 'Job'}, {'kind': 'Deployment', 'spec': {'template': {}}}]

    def fn(**_):
        kopf.label(objs, {'label1': 'value1', 'somelabel': 'not-this'}, nested='spec.template')
        kopf.label(objs, forced=True, nested='spec.template')

    invoke_sync(fn, OWNER)
    metadata = {'labels': {'label1': 'value1', 'somelabel': 'somevalue'}}
    assert objs[0]['metadata'] == objs[1]['metadata'] == metadata
    assert objs[1]['spec']['template']['metadata'] == metadata


def test_templates_alone_are_labelled_if_they_are_given_alone():
    obj = {'kind': 'Deployment', 'spec': {'template': {}}}
    kopf.label(obj['spec']['template'], {'l': 'v'})
    assert obj == {
        'kind': 'Deployment', 'spec': {'template': {'metadata': {'labels': {'l': 'v'}}}}}


def help_deep_inside():
    obj = {}
    kopf.adopt(obj, strict=True)
    return obj


def test_the_owner_is_the_handled_object_in_threads():
    def fn(**_):
        return help_deep_inside()
    assert invoke_sync(fn, OWNER).result == {'metadata': ADOPTED}


async def test_the_owner_is_the_handled_object_in_coroutines():
    async def fn(**_):
        return help_deep_inside()
    assert (await invoke(fn, OWNER)).result == {'metadata': ADOPTED}


@pytest.mark.parametrize('package', ['kubernetes', 'kubernetes_asyncio'])
@pytest.mark.filterwarnings('ignore')
def test_models_of_the_clients_are_adopted(package):
    client = pytest.importorskip(f'{package}.client')
    template = client.V1PodTemplateSpec()
    spec = client.V1DeploymentSpec(selector={}, template=template)
    obj = client.V1Deployment(spec=spec)
    for _ in range(2):
        kopf.adopt(obj, OWNER, strict=True, nested='spec.template')
    assert obj.metadata.labels == {'somelabel': 'somevalue'}
    assert obj.metadata.name == 'owner' and obj.metadata.namespace == 'ns'
    owner, = obj.metadata.owner_references
    assert isinstance(owner, client.V1OwnerReference)
    assert (owner.api_version, owner.uid, owner.controller) == ('kopf.dev/v1', 'uid1', True)
    assert template.metadata.labels == {'somelabel': 'somevalue'}
    kopf.remove_owner_reference(obj, OWNER)
    assert obj.metadata.owner_references == []
    kopf.harmonize_naming(obj, 'some', forced=True)
    assert obj.metadata.name is None and obj.metadata.generate_name == 'some-'


@pytest.mark.filterwarnings('ignore')
def test_objects_of_pykube_are_adopted():
    pykube = pytest.importorskip('pykube')
    pod = pykube.objects.Pod(None, {})
    kopf.adopt(pod, OWNER, strict=True)
    assert pod.obj == {'metadata': ADOPTED}
