import pytest

from kopf import testing
from kopf._kits.planning import plans
from kopf._kits.sandbox.kinds import builtin_kinds

KINDS = {kind.plural: kind for kind in builtin_kinds()}


def make_fields(base, local, plural='configmaps'):
    metadata = {'name': 'x', 'namespace': 'default', 'uid': 'u'}
    states = [{'apiVersion': 'v1', 'kind': 'X', **state,
               'metadata': {**metadata, **state.get('metadata', {})}} for state in (base, local)]
    items = plans.make_items([
        (testing.Difference(KINDS[plural], ('default', 'x'), *states), [], False)])
    return {field.path: (field.old, field.new) for item in items for field in item.fields}


def make_containers(**images):
    return {'spec': {'template': {'spec': {'containers': [
        {'name': name, 'image': image} for name, image in images.items()]}}}}


@pytest.mark.parametrize('old, new, expected', [
    ({'a': 1}, {'a': 2}, {'spec.a': (1, 2)}),
    ({'a': {'b': 1, 'c': 1}}, {'a': {'b': 2, 'c': 1}}, {'spec.a.b': (1, 2)}),
    ({'a': 1}, {'b': {'c': 2}}, {'spec.a': (1, None), 'spec.b': (None, {'c': 2})}),
    ({'a': [1, 2]}, {'a': [1, 3]}, {'spec.a[1]': (2, 3)}),
    ({'a': [1, 2]}, {'a': [1]}, {'spec.a': ([1, 2], [1])}),
    ({'a': []}, {'a': [1]}, {'spec.a': ([], [1])}),
    ({'a': [{'x': 1}]}, {'a': [{'x': 2}]}, {'spec.a[0].x': (1, 2)}),
    ({'a': {'x.y/z': 1}}, {'a': {'x.y/z': 2}}, {'spec.a[x.y/z]': (1, 2)}),
    ({'a': 1}, {'a': {'b': 1}}, {'spec.a': (1, {'b': 1})}),
    ({'a': [{'b': 1}]}, {'a': [{'b': True}]}, {'spec.a[0].b': (1, True)}),
])
def test_values_are_compared_field_by_field(old, new, expected):
    assert make_fields({'spec': old}, {'spec': new}) == expected


def test_items_of_lists_are_found_by_their_names():
    assert make_fields(make_containers(a='1', b='1'), make_containers(a='1', b='2')) == {
        'spec.template.spec.containers[b].image': ('1', '2')}


def test_another_order_of_items_with_names_is_one_field():
    assert make_fields(make_containers(a='1', b='1'), make_containers(b='2', x='1', a='1')) == {
        'spec.template.spec.containers': (['a', 'b'], ['b', 'a']),
        'spec.template.spec.containers[b].image': ('1', '2'),
        'spec.template.spec.containers[x]': (None, {'name': 'x', 'image': '1'})}


def test_the_order_of_owners_means_nothing():
    assert not make_fields(*({'metadata': {'ownerReferences': [{'name': name} for name in names]}}
                             for names in ('ab', 'ba')))


def test_an_added_item_with_a_name_is_one_field():
    assert make_fields(make_containers(a='1'), make_containers(a='1', b='2')) == {
        'spec.template.spec.containers[b]': (None, {'name': 'b', 'image': '2'})}


def test_items_with_the_same_name_are_found_by_their_places():
    old, new = ({'spec': {'a': [{'name': 'x', 'n': 1}, {'name': 'x', 'n': n}]}} for n in (2, 3))
    assert make_fields(old, new) == {'spec.a[1].n': (2, 3)}


@pytest.mark.parametrize('field', ['resourceVersion', 'generation', 'managedFields'])
def test_what_the_api_sets_is_no_change(field):
    assert not make_fields({'metadata': {field: 'a'}}, {'metadata': {field: 'b'}})


@pytest.mark.parametrize('annotation', [
    'kopf.zalando.org/last-handled-configuration', 'kopf.dev/applied'])
def test_own_annotations_are_no_change(annotation):
    assert not make_fields({}, {'metadata': {'annotations': {annotation: 'x'}}})


def test_annotations_of_marked_prefixes_are_no_change():
    assert not make_fields({}, {'metadata': {'annotations': {
        'example.com/kopf-managed': 'yes', 'example.com/progress': 'x'}}})


def test_other_annotations_are_changes():
    assert make_fields({}, {'metadata': {'annotations': {'a': 'x'}}}) == {
        'metadata.annotations.a': (None, 'x')}


@pytest.mark.parametrize('annotation', ['a', 'kubectl.kubernetes.io/last-applied-configuration'])
def test_annotations_of_secrets_are_concealed(annotation):
    fields = make_fields({}, {'metadata': {'annotations': {annotation: 'x'}}}, 'secrets')
    assert list(fields.values()) == [(None, '***')]


def test_defaults_that_an_older_cluster_lacks_are_no_change():
    spec = {'ports': [{'port': 80}], 'clusterIP': '10.0.0.1'}
    newer = {**spec, 'internalTrafficPolicy': 'Cluster', 'ipFamilies': ['IPv4'],
             'ipFamilyPolicy': 'SingleStack', 'clusterIPs': ['10.0.0.1']}
    assert not make_fields({'spec': spec}, {'spec': newer}, 'services')


def make_difference(name, base, local, plural='configmaps'):
    return testing.Difference(KINDS[plural], ('default', name), base, local), None, False


def make_obj(uid, *owners, **metadata):
    return {'apiVersion': 'v1', 'kind': 'X', 'metadata': {
        'name': uid, 'namespace': 'default', 'uid': uid, **metadata,
        'ownerReferences': [{'kind': 'X', 'name': owner, 'uid': owner} for owner in owners]}}


def test_what_is_deleted_with_its_owner_is_kept():
    difference, _, _ = make_difference('owner', make_obj('owner'), None)
    items = plans.make_items([
        (difference, ['fn'], False), make_difference('owned', make_obj('owned', 'owner'), None)])
    assert [item.place.name for item in items] == ['owned', 'owner']


def test_what_is_deleted_with_its_namespace_is_kept():
    namespace = testing.Difference(
        KINDS['namespaces'], ('', 'default'), make_obj('n'), make_obj('n', deletionTimestamp='x'))
    items = plans.make_items([
        (namespace, ['fn'], False), make_difference('inner', make_obj('inner'), None)])
    assert [item.place.name for item in items] == ['inner', 'default']
