import pytest
import yaml

from kopf._kits.typed import catalogue

DEFINITION = yaml.safe_load('''
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: things, kind: Thing, shortNames: [th], categories: [all]}
  versions:
  - {name: v1beta1, served: true, storage: false}
  - {name: v1, served: true, storage: true, subresources: {status: {}}}
  - {name: v2, served: false, storage: false}
''')


def find(plural, *definitions):
    return [resource for resource in catalogue.list_resources(definitions)
            if resource.plural == plural]


def test_resources_of_kubernetes_are_known():
    pods, = find('pods')
    assert (pods.group, pods.version, pods.kind, pods.singular) == ('', 'v1', 'Pod', 'pod')
    assert pods.namespaced and pods.preferred
    assert 'po' in pods.shortcuts and 'all' in pods.categories
    assert {'status', 'log'} <= pods.subresources and {'list', 'watch'} <= pods.verbs


def test_served_versions_of_definitions_are_known_the_preferred_one_first():
    first, second = find('things', DEFINITION)
    assert (first.version, first.preferred, first.subresources) == ('v1', True, {'status'})
    assert (second.version, second.preferred, second.subresources) == ('v1beta1', False, set())
    assert first.namespaced is False
    assert (first.kind, first.singular) == ('Thing', 'thing')
    assert (first.shortcuts, first.categories) == ({'th'}, {'all'})


@pytest.mark.parametrize('obj', [None, [], {'kind': 'Pod'}])
def test_other_objects_are_no_definitions(obj):
    assert len(catalogue.list_resources([obj])) == len(catalogue.list_resources())


@pytest.mark.parametrize('change', [
    {'spec': None}, {'spec': {}}, {'spec': {'group': 'x', 'names': {}, 'versions': []}},
    {'spec': {**DEFINITION['spec'], 'versions': [None]}}, {'spec': 'x'},
    {'spec': {'version': 'v1', 'names': {'plural': 'x', 'kind': 'X'}, 'group': 'x'}}])
def test_incomplete_definitions_are_named(change):
    with pytest.raises(catalogue.DefinitionError, match="'things.example.com' is incomplete"):
        catalogue.list_resources([{**DEFINITION, **change}])


def test_all_documents_of_files_are_read(tmp_path):
    path = tmp_path / 'objs.yaml'
    path.write_text('a: 1\n---\nb: 2\n')
    assert list(catalogue.read_files([path, path])) == [{'a': 1}, {'b': 2}] * 2


def test_objects_of_lists_are_read_as_others(tmp_path):
    path = tmp_path / 'objs.yaml'
    items = [DEFINITION, {'kind': 'RoleList', 'items': [{'kind': 'Role'}]}]
    path.write_text(yaml.safe_dump({'kind': 'List', 'items': items}))
    objs = list(catalogue.read_files([path]))
    assert objs == [DEFINITION, {'kind': 'Role'}]
    assert len(catalogue.list_resources(objs, builtin=False)) == 2


@pytest.mark.parametrize('content', [b'{', b'\xff'])
def test_files_that_are_no_yaml_are_named(tmp_path, content):
    path = tmp_path / 'objs.yaml'
    path.write_bytes(content)
    with pytest.raises(catalogue.DefinitionError, match=r"objs.yaml cannot be read as YAML: "):
        list(catalogue.read_files([path]))
    with pytest.raises(catalogue.DefinitionError, match=r"absent.yaml cannot be read as YAML: "):
        list(catalogue.read_files([tmp_path / 'absent.yaml']))
