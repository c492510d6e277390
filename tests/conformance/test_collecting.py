import pytest

from tests.conformance.apis import make, unique


@pytest.fixture()
def temporary(api):
    """A namespace that the test deletes by itself; its path."""
    name = unique('tmp')
    api.post('/api/v1/namespaces', make(name, kind='Namespace')).ok
    yield f'/api/v1/namespaces/{name}'
    api.delete(f'/api/v1/namespaces/{name}')


def owned(name, owner, **fields):
    reference = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': owner['metadata']['name'],
                 'uid': owner['metadata']['uid'], **fields}
    return make(name, metadata={'ownerReferences': [reference]})


def test_a_new_namespace_is_active_and_has_a_label(api, temporary):
    obj = api.get(temporary).ok
    assert obj['status'] == {'phase': 'Active'}
    assert obj['spec'] == {'finalizers': ['kubernetes']}
    assert obj['metadata']['labels'] == {
        'kubernetes.io/metadata.name': obj['metadata']['name']}


@pytest.mark.parametrize('name', ['default', 'kube-system', 'kube-public'])
def test_some_namespaces_are_there_from_the_beginning(api, name):
    assert api.get(f'/api/v1/namespaces/{name}').ok['status']['phase'] == 'Active'


@pytest.mark.parametrize('name', ['default', 'kube-system'])
def test_some_namespaces_cannot_be_deleted(api, name):
    answer = api.delete(f'/api/v1/namespaces/{name}')
    assert answer.error == (403, 'Forbidden')
    assert answer['message'] == (
        f'namespaces "{name}" is forbidden: this namespace may not be deleted')


def test_a_deleted_namespace_goes_with_everything_in_it(api, temporary):
    api.post(f'{temporary}/configmaps', make('one')).ok
    answer = api.delete(temporary).ok
    assert answer['status']['phase'] == 'Terminating'
    api.wait_gone(temporary)
    assert api.get(f'{temporary}/configmaps/one').status == 404


def test_a_namespace_waits_for_finalizers_in_it(api, temporary):
    api.post(f'{temporary}/configmaps', make('one', metadata={'finalizers': ['x.test/f']})).ok
    api.delete(temporary).ok
    obj = api.wait(f'{temporary}/configmaps/one', lambda answer: answer['metadata'].get(
        'deletionTimestamp'))
    assert obj['metadata']['finalizers'] == ['x.test/f']
    assert api.get(temporary).ok['status']['phase'] == 'Terminating'
    api.patch(f'{temporary}/configmaps/one', {'metadata': {'finalizers': None}}).ok
    api.wait_gone(temporary)


def test_nothing_is_created_in_a_namespace_in_deletion(api, temporary):
    api.post(f'{temporary}/configmaps', make('one', metadata={'finalizers': ['x.test/f']})).ok
    name = api.delete(temporary).ok['metadata']['name']
    answer = api.post(f'{temporary}/configmaps', make('two'))
    assert answer.error == (403, 'Forbidden')
    assert answer['message'] == (
        f'configmaps "two" is forbidden: unable to create new content in namespace {name} because '
        f'it is being terminated')
    assert answer.causes == [('NamespaceTerminating', 'metadata.namespace')]
    api.patch(f'{temporary}/configmaps/one', {'metadata': {'finalizers': None}}).ok


def test_a_namespace_is_finalized_by_a_subresource(api, temporary):
    obj = api.get(temporary).ok
    answer = api.put(f'{temporary}/finalize', {**obj, 'spec': {'finalizers': ['kubernetes']}})
    assert answer.ok['spec'] == {'finalizers': ['kubernetes']}


def test_dependents_go_after_their_owners(api, cms):
    owner = api.post(cms, make('owner')).ok
    api.post(cms, owned('one', owner)).ok
    api.delete(f'{cms}/owner').ok
    api.wait_gone(f'{cms}/one')


def test_dependents_of_absent_owners_go_at_once(api, cms):
    owner = api.post(cms, make('owner')).ok
    api.delete(f'{cms}/owner').ok
    api.post(cms, owned('one', owner)).ok
    api.wait_gone(f'{cms}/one')


def test_dependents_of_dependents_go_too(api, cms):
    owner = api.post(cms, make('owner')).ok
    middle = api.post(cms, owned('middle', owner)).ok
    api.post(cms, owned('last', middle)).ok
    api.delete(f'{cms}/owner').ok
    api.wait_gone(f'{cms}/last')


def test_dependents_stay_while_one_of_their_owners_is_there(api, cms):
    first, second = (api.post(cms, make(name)).ok for name in ('first', 'second'))
    obj = owned('one', first)
    obj['metadata']['ownerReferences'] += owned('one', second)['metadata']['ownerReferences']
    api.post(cms, obj).ok
    api.delete(f'{cms}/first').ok
    answer = api.wait(f'{cms}/one', lambda answer: len(
        answer['metadata']['ownerReferences']) == 1)
    assert answer['metadata']['ownerReferences'][0]['name'] == 'second'


def test_orphans_lose_their_owner(api, cms):
    owner = api.post(cms, make('owner')).ok
    api.post(cms, owned('one', owner)).ok
    api.delete(f'{cms}/owner', propagationPolicy='Orphan').ok
    api.wait_gone(f'{cms}/owner')
    answer = api.wait(
        f'{cms}/one', lambda answer: not answer['metadata'].get('ownerReferences'))
    assert 'ownerReferences' not in answer['metadata']


def test_an_owner_waits_for_its_dependents_in_the_foreground(api, cms):
    owner = api.post(cms, make('owner')).ok
    held = owned('one', owner, blockOwnerDeletion=True)
    held['metadata']['finalizers'] = ['x.test/f']
    api.post(cms, held).ok
    answer = api.delete(f'{cms}/owner', propagationPolicy='Foreground').ok
    assert answer['metadata']['finalizers'] == ['foregroundDeletion']
    api.wait(f'{cms}/one', lambda answer: answer['metadata'].get('deletionTimestamp'))
    assert api.get(f'{cms}/owner').ok['metadata']['deletionTimestamp']
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok
    api.wait_gone(f'{cms}/owner')


def test_the_policy_can_be_in_the_body(api, cms):
    api.post(cms, make('owner', metadata={'finalizers': ['x.test/f']})).ok
    answer = api.delete(f'{cms}/owner', {'propagationPolicy': 'Foreground'}).ok
    assert answer['metadata']['finalizers'] == ['x.test/f', 'foregroundDeletion']
    api.patch(f'{cms}/owner', {'metadata': {'finalizers': None}}).ok


def test_only_known_policies_are_accepted(api, cms):
    api.post(cms, make('one')).ok
    answer = api.delete(f'{cms}/one', propagationPolicy='Nonsense')
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueNotSupported', 'propagationPolicy')]


def test_custom_objects_own_and_are_owned(api, cms, frees, kinds):
    owner = api.post(frees, kinds.make('frees', 'owner')).ok
    reference = {'apiVersion': owner['apiVersion'], 'kind': 'Free', 'name': 'owner',
                 'uid': owner['metadata']['uid']}
    api.post(cms, make('one', metadata={'ownerReferences': [reference]})).ok
    api.delete(f'{frees}/owner').ok
    api.wait_gone(f'{cms}/one')


def test_pods_without_a_node_are_gone_at_once(api, ns):
    path = f'/api/v1/namespaces/{ns}/pods'
    api.post(path, make('one', kind='Pod', spec={'containers': [{'name': 'a', 'image': 'x'}]})).ok
    api.delete(f'{path}/one').ok
    assert api.get(f'{path}/one').status == 404


def test_pods_on_a_node_have_their_time(api, ns):
    path = f'/api/v1/namespaces/{ns}/pods'
    api.post(path, make('one', kind='Pod', spec={
        'nodeName': 'n', 'containers': [{'name': 'a', 'image': 'x'}]})).ok
    answer = api.delete(f'{path}/one').ok
    assert answer['metadata']['deletionGracePeriodSeconds'] == 30
    assert answer['metadata']['deletionTimestamp']
    assert api.delete(f'{path}/one', gracePeriodSeconds='0').ok
    assert api.get(f'{path}/one').status == 404
