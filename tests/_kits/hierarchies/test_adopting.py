import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
CLUSTERWIDE = kopf.Body({
    'apiVersion': 'v1', 'kind': 'Node', 'metadata': {'name': 'owner', 'uid': 'uid2'}})


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


@pytest.mark.parametrize('nested', [None, '', [], [None]])
def test_without_nested_fields_only_the_objects_are_labelled(nested):
    obj = changed(kopf.label, {'spec': {'template': {}}}, {'l': 'v'}, nested=nested)
    assert obj == {'metadata': {'labels': {'l': 'v'}}, 'spec': {'template': {}}}


def test_all_templates_of_a_list_are_labelled():
    obj = {'spec': {'volumeClaimTemplates': [{}, {'metadata': {'labels': {'l': 'x'}}}]}}
    kopf.label(obj, {'l': 'v'}, nested='spec.volumeClaimTemplates')
    assert obj['spec']['volumeClaimTemplates'] == [
        {'metadata': {'labels': {'l': 'v'}}}, {'metadata': {'labels': {'l': 'x'}}}]


@pytest.mark.parametrize('spec', [{}, {'template': None}, None, {'a': [{'template': {}}]}])
def test_templates_that_are_not_there_are_ignored(spec):
    nested = ['spec.template', 'spec.a.template']
    obj = changed(kopf.label, {'spec': spec}, {'l': 'v'}, nested=nested)
    assert obj == {'metadata': {'labels': {'l': 'v'}}, 'spec': spec}


def test_a_template_that_is_no_template_is_an_error():
    with pytest.raises(TypeError, match="Neither an object"):
        kopf.label({'spec': {'template': 'string'}}, {'l': 'v'}, nested='spec.template')


def test_only_the_template_is_labelled_if_it_is_what_is_given():
    obj = {'spec': {'template': {}}}
    kopf.label(obj['spec']['template'], {'l': 'v'})
    assert obj == {'spec': {'template': {'metadata': {'labels': {'l': 'v'}}}}}


def test_templates_are_labelled_by_force():
    obj = {'spec': {'template': {'metadata': {'labels': {'l': 'x'}}}}}
    kopf.label(obj, {'l': 'v'}, forced=True, nested='spec.template')
    assert obj['spec']['template'] == {'metadata': {'labels': {'l': 'v'}}}


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


def test_what_is_not_to_be_told_of_owners_is_left_out():
    obj = changed(
        kopf.append_owner_reference, {}, OWNER, controller=None, block_owner_deletion=None)
    reference, = obj['metadata']['ownerReferences']
    assert not {'controller', 'blockOwnerDeletion'} & set(reference)


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


def test_children_of_clusterwide_owners_have_no_namespace():
    obj = {'metadata': {'namespace': 'x'}}
    kopf.adopt(obj, CLUSTERWIDE, forced=True, strict=True)
    assert obj['metadata']['namespace'] is None
    assert obj['metadata']['name'] == 'owner'


ADOPTED = {
    'ownerReferences': [REFERENCE], 'name': 'owner', 'namespace': 'ns',
    'labels': {'somelabel': 'somevalue'}}


def test_adopted_objects_have_it_all():
    obj = {'spec': {'template': {}}}
    kopf.adopt(obj, OWNER, strict=True, forced=True, nested='spec.template')
    assert obj == {
        'metadata': ADOPTED,
        'spec': {'template': {'metadata': {'labels': {'somelabel': 'somevalue'}}}}}


def test_adopted_objects_keep_what_they_have_unless_forced():
    metadata = {'name': 'x', 'namespace': 'y', 'labels': {'somelabel': 'z'}}
    obj = changed(kopf.adopt, {'metadata': metadata}, OWNER, strict=True)
    assert obj == {'metadata': {**metadata, 'ownerReferences': [REFERENCE]}}
    obj = changed(kopf.adopt, {'metadata': metadata}, OWNER, strict=True, forced=True)
    assert obj == {'metadata': ADOPTED}


def test_adopted_objects_are_named_by_the_api_unless_it_is_to_be_strict():
    obj = changed(kopf.adopt, {}, OWNER)
    assert obj['metadata']['generateName'] == 'owner-'
    assert 'name' not in obj['metadata']


TEXTS = st.text('abc', max_size=2)
METADATA = st.fixed_dictionaries({}, optional={
    'name': TEXTS,
    'generateName': TEXTS,
    'namespace': TEXTS | st.none(),
    'labels': st.dictionaries(TEXTS, TEXTS) | st.none(),
    'ownerReferences': st.lists(st.sampled_from([OTHER, REFERENCE]), unique_by=id) | st.none(),
})


@given(
    obj=st.fixed_dictionaries({}, optional={'metadata': METADATA | st.none()}),
    labels=st.dictionaries(TEXTS, TEXTS), forced=st.booleans(), strict=st.booleans())
def test_what_is_adopted_once_more_does_not_change(obj, labels, forced, strict):
    raw = {**OWNER, 'metadata': {**OWNER['metadata'], 'labels': labels}}
    once = changed(kopf.adopt, obj, kopf.Body(raw), forced=forced, strict=strict)
    assert changed(kopf.adopt, once, kopf.Body(raw), forced=forced, strict=strict) == once
    metadata, had = once['metadata'], obj.get('metadata') or {}
    known = had.get('labels') or {}
    assert metadata['labels'] == ({**known, **labels} if forced else {**labels, **known})
    assert bool(metadata.get('name')) != bool(metadata.get('generateName')) or had.get('name')
    assert metadata['namespace'] == ((not forced and had.get('namespace')) or 'ns')
    assert metadata['ownerReferences'].count(REFERENCE) == 1
    assert (OTHER in metadata['ownerReferences']) == (OTHER in (had.get('ownerReferences') or ()))


@pytest.mark.parametrize('fn, expected', [
    (kopf.adopt, {'metadata': {**ADOPTED, 'ownerReferences': [REFERENCE]}}),
    (kopf.append_owner_reference, {'metadata': {'ownerReferences': [REFERENCE]}}),
    (kopf.remove_owner_reference, {}),
])
def test_owners_can_be_plain_dicts(fn, expected):
    options = {'strict': True} if fn is kopf.adopt else {}
    assert changed(fn, {}, dict(OWNER), **options) == expected


@pytest.mark.parametrize('make', [
    list, tuple, iter, lambda objs: [[objs]], lambda objs: dict(enumerate(objs)).values()])
def test_any_iterables_are_taken(make):
    objs = [{}, {}]
    kopf.adopt(make(objs), OWNER, strict=True)
    assert objs == [{'metadata': ADOPTED}] * 2


def test_nothing_is_no_object():
    objs = [None, {}]
    kopf.label(objs, {'l': 'v'})
    kopf.label(None, {'l': 'v'})
    assert objs == [None, {'metadata': {'labels': {'l': 'v'}}}]


@pytest.mark.parametrize('obj', [1, 'string', object(), OWNER, OWNER.spec])
def test_what_is_no_object_or_cannot_be_changed_is_an_error(obj):
    with pytest.raises(TypeError, match="Neither an object"):
        kopf.label(obj, {})


def test_what_is_in_an_object_is_not_told_in_an_error():
    with pytest.raises(TypeError) as error:
        kopf.label(kopf.Body({'data': {'password': 'secret'}}), {})
    assert 'secret' not in str(error.value)


@pytest.mark.parametrize('fn', [
    kopf.adopt, kopf.append_owner_reference, kopf.remove_owner_reference, kopf.harmonize_naming,
    kopf.adjust_namespace, kopf.label])
def test_outside_of_handlers_there_is_no_owner(fn):
    with pytest.raises(LookupError, match="name the owner"):
        fn({})


@pytest.mark.parametrize('fn', [
    kopf.adopt, kopf.append_owner_reference, kopf.remove_owner_reference])
def test_what_is_no_object_is_no_owner(fn):
    with pytest.raises(TypeError, match="An owner is the body of an object"):
        fn({}, owner='name')


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


def fill_in_deep_inside():
    """Everything is taken from the handled object, also where it is said by None."""
    obj = {}
    kopf.label(obj, None)
    kopf.harmonize_naming(obj, None, strict=True)
    kopf.adjust_namespace(obj)
    kopf.append_owner_reference(obj, None)
    return obj


def test_namespaces_can_be_taken_away():
    obj = {'metadata': {'namespace': 'other'}}
    kopf.adjust_namespace(obj, None)
    assert obj == {'metadata': {'namespace': 'other'}}
    kopf.adjust_namespace(obj, None, forced=True)
    assert obj == {'metadata': {'namespace': None}}


def test_what_is_none_is_taken_from_the_handled_object():
    def fn(**_):
        return fill_in_deep_inside()
    assert invoke_sync(fn, OWNER).result == {'metadata': ADOPTED}


def test_what_is_omitted_is_taken_from_the_handled_object():
    def fn(**_):
        obj = {'metadata': {'ownerReferences': [REFERENCE, OTHER], 'namespace': 'x', 'name': 'y'}}
        kopf.label(obj)
        kopf.harmonize_naming(obj, strict=True, forced=True)
        kopf.adjust_namespace(obj, forced=True)
        kopf.remove_owner_reference(obj)
        kopf.append_owner_reference(obj)
        return obj
    expected = {'metadata': {**ADOPTED, 'ownerReferences': [OTHER, REFERENCE]}}
    assert invoke_sync(fn, OWNER).result == expected


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


@pytest.mark.filterwarnings('ignore')
def test_several_objects_of_all_libraries_are_adopted_at_once():
    pykube = pytest.importorskip('pykube')
    client = pytest.importorskip('kubernetes.client')
    asyncio_client = pytest.importorskip('kubernetes_asyncio.client')
    objs = [{}, pykube.objects.Pod(None, {}), client.V1Pod(), asyncio_client.V1Pod()]
    kopf.adopt(objs, OWNER, strict=True)
    assert objs[0] == objs[1].obj == {'metadata': ADOPTED}
    assert [obj.metadata.name for obj in objs[2:]] == ['owner', 'owner']
    assert isinstance(objs[2].metadata, client.V1ObjectMeta)
    assert isinstance(objs[3].metadata, asyncio_client.V1ObjectMeta)


@pytest.mark.filterwarnings('ignore')
def test_templates_in_objects_of_pykube_are_labelled():
    pykube = pytest.importorskip('pykube')
    deployment = pykube.Deployment(None, {'spec': {'template': {}}})
    kopf.label(deployment, {'l': 'v'}, nested='spec.template')
    assert deployment.obj['spec']['template'] == {'metadata': {'labels': {'l': 'v'}}}


@pytest.mark.parametrize('package', ['kubernetes', 'kubernetes_asyncio'])
@pytest.mark.parametrize('nested', ['spec.volumeClaimTemplates', 'spec.volume_claim_templates'])
@pytest.mark.filterwarnings('ignore')
def test_all_templates_in_models_are_labelled(package, nested):
    client = pytest.importorskip(f'{package}.client')
    claims = [client.V1PersistentVolumeClaim(), client.V1PersistentVolumeClaim()]
    obj = client.V1StatefulSet(spec=client.V1StatefulSetSpec(
        selector={}, service_name='any', template=client.V1PodTemplateSpec(),
        volume_claim_templates=claims))
    kopf.label(obj, {'l': 'v'}, nested=[nested, 'spec.absent', 'absent.template'])
    assert [claim.metadata.labels for claim in obj.spec.volume_claim_templates] == [{'l': 'v'}] * 2


@pytest.mark.parametrize('forced, labels, namespace', [
    (False, {'l': 'x', 'm': 'v'}, 'y'), (True, {'l': 'v', 'm': 'v'}, 'ns')])
@pytest.mark.filterwarnings('ignore')
def test_models_keep_what_they_have_unless_forced(forced, labels, namespace):
    client = pytest.importorskip('kubernetes.client')
    obj = client.V1Pod(metadata=client.V1ObjectMeta(labels={'l': 'x'}, namespace='y'))
    kopf.label(obj, {'l': 'v', 'm': 'v'}, forced=forced)
    kopf.adjust_namespace(obj, 'ns', forced=forced)
    assert obj.metadata.labels == labels
    assert obj.metadata.namespace == namespace


@pytest.mark.filterwarnings('ignore')
def test_dicts_in_models_of_kubernetes_asyncio_are_taken_as_they_are():
    client = pytest.importorskip('kubernetes_asyncio.client')
    obj = client.V1Deployment(metadata={'labels': {'l': 'x'}}, spec={'template': {}})
    kopf.adopt(obj, OWNER, strict=True, nested='spec.template')
    assert obj.spec == {'template': {'metadata': {'labels': {'somelabel': 'somevalue'}}}}
    assert obj.metadata['labels'] == {'l': 'x', 'somelabel': 'somevalue'}
    assert obj.metadata['ownerReferences'][0].uid == 'uid1'
    kopf.remove_owner_reference(obj, OWNER)
    assert obj.metadata['ownerReferences'] == []
