import pytest

from kopf._kits import commanding
from kopf._kits.typed import roles
from kopf._kits.typed.rights import Right


def make_rules(*given):
    role, = roles.make_roles(given, 'any')
    return role['rules']


def test_rights_of_all_namespaces_make_a_cluster_role():
    assert roles.make_roles([Right('', 'pods', 'list')], 'any') == [{
        'apiVersion': 'rbac.authorization.k8s.io/v1',
        'kind': 'ClusterRole',
        'metadata': {'name': 'any'},
        'rules': [{'apiGroups': [''], 'resources': ['pods'], 'verbs': ['list']}],
    }]


def test_rights_of_namespaces_make_a_role_for_each():
    made = roles.make_roles([
        Right('', 'pods', 'list', namespace='b'), Right('', 'pods', 'list', namespace='a'),
        Right('', 'nodes', 'list')], 'any')
    assert [(role['kind'], role['metadata'].get('namespace')) for role in made] == [
        ('ClusterRole', None), ('Role', 'a'), ('Role', 'b')]


def test_rights_of_the_own_namespace_make_a_role_without_a_namespace():
    role, = roles.make_roles([Right('', 'pods', 'list', namespace='')], 'any')
    assert (role['kind'], role['metadata']) == ('Role', {'name': 'any'})


def test_verbs_of_a_resource_are_in_one_rule_in_the_usual_order():
    verbs = ['watch', 'use', 'patch', 'list', 'get', 'approve']
    assert make_rules(*(Right('', 'pods', verb) for verb in verbs)) == [{
        'apiGroups': [''], 'resources': ['pods'],
        'verbs': ['get', 'list', 'watch', 'patch', 'approve', 'use']}]


def test_resources_with_the_same_verbs_are_in_one_rule():
    assert make_rules(Right('', 'pods/status', 'patch'), Right('', 'pods', 'patch')) == [{
        'apiGroups': [''], 'resources': ['pods', 'pods/status'], 'verbs': ['patch']}]


def test_named_rights_have_rules_of_their_own():
    assert make_rules(Right('', 'pods', 'get', 'x'), Right('', 'pods', 'list')) == [
        {'apiGroups': [''], 'resources': ['pods'], 'verbs': ['list']},
        {'apiGroups': [''], 'resources': ['pods'], 'resourceNames': ['x'], 'verbs': ['get']}]


@pytest.mark.parametrize('wider, narrower', [
    (Right('', 'pods', 'get'), Right('', 'pods', 'get', 'x')),
    (Right('', 'pods', 'get'), Right('', 'pods', 'get', namespace='a')),
    (Right('', 'pods', '*'), Right('', 'pods', 'get')),
])
def test_rights_that_others_include_are_left_out(wider, narrower):
    assert roles.make_roles([wider, narrower], 'any') == roles.make_roles([wider], 'any')


def test_roles_for_the_own_namespace_stay_beside_those_for_others():
    both = [Right('', 'pods', 'get', namespace=''), Right('', 'pods', 'get', namespace='a')]
    assert len(roles.make_roles(both, 'any')) == 2


def test_roles_are_read_as_they_are_made():
    given = {
        Right('', 'pods', 'list'), Right('', 'pods/log', 'get'), Right('apps', 'x', 'get', 'name'),
        Right('', 'events', 'create', namespace='a'), Right('', 'leases', 'get', namespace='')}
    made = roles.make_roles(given, 'any')
    assert set(roles.read_roles(made)) == given
    assert set(roles.read_roles([*made, None])) == given


def test_other_objects_have_no_rights():
    assert list(roles.read_roles([
        {'kind': 'ServiceAccount'}, {'kind': 'ClusterRole', 'metadata': {'name': 'x'}}])) == []


@pytest.mark.parametrize('change', [
    {'metadata': None}, {'metadata': 'x'}, {'rules': {'a': 'b'}}, {'rules': [None]},
    {'rules': [{'apiGroups': ''}]}, {'rules': [{'apiGroups': [''], 'resources': [1]}]}])
def test_roles_that_are_none_of_the_api_are_shown(change):
    role = {'kind': 'Role', 'metadata': {'name': 'x'}, 'rules': [], **change}
    with pytest.raises(commanding.CommandError, match=r"This Role is none of the API: .*kind"):
        list(roles.read_roles([role]))


@pytest.mark.parametrize('source, name', [
    ('handlers.py', 'kopf-handlers'), ('path/to/my_Operator.py', 'kopf-my-operator'),
    ('package.module', 'kopf-module')])
def test_roles_are_named_after_the_handlers(source, name):
    assert roles.make_name([source, 'other']) == name


def test_without_any_rights_there_are_no_roles():
    assert roles.dump(roles.make_roles([], 'any')) == ''


NEEDED = [Right('', 'pods', 'list', namespace='a'), Right('', 'pods', 'patch', 'x', 'a')]


@pytest.mark.parametrize('granted', [
    NEEDED, [Right('', 'pods', 'list'), Right('', 'pods', 'patch', 'x')]])
def test_the_same_rights_do_not_differ(granted):
    assert list(roles.compare(NEEDED, granted)) == []


def test_missing_rights_are_told():
    assert list(roles.compare(NEEDED, NEEDED[1:])) == ["Missing: list pods in 'a'"]


@pytest.mark.parametrize('right, text', [
    (Right('', 'pods', 'delete', namespace='a'), "delete pods in 'a'"),
    (Right('', 'pods', 'list', namespace='b'), "list pods in 'b'"),
    (Right('', 'pods', 'patch', namespace='a'), "patch pods in 'a'"),
    (Right('', '*', '*'), "* *"),
])
def test_rights_that_are_not_needed_are_told(right, text):
    assert list(roles.compare(NEEDED, [*NEEDED, right])) == [f"Not needed: {text}"]


def test_rights_of_the_own_namespace_can_be_granted_in_any():
    own = Right('', 'leases', 'get', 'x', '')
    assert list(roles.compare([own], [Right('', 'leases', 'get', 'x', 'a')])) == []
    assert list(roles.compare([own], [own])) == []
