import pytest

from tests.conformance.apis import Api, make

RBAC = 'rbac.authorization.k8s.io'


def test_those_without_rights_are_forbidden(plain, cms, ns):
    answer = plain.get(cms)
    assert answer.error == (403, 'Forbidden')
    assert answer['message'] == (
        f'configmaps is forbidden: User "plain" cannot list resource "configmaps" in API group "" '
        f'in the namespace "{ns}"')
    assert answer['details'] == {'kind': 'configmaps'}


@pytest.mark.parametrize(('method', 'suffix', 'verb', 'name'), [
    ('GET', '/one', 'get', '"one" '), ('POST', '', 'create', ''),
    ('PUT', '/one', 'update', '"one" '), ('PATCH', '/one', 'patch', '"one" '),
    ('DELETE', '/one', 'delete', '"one" '),
    ('DELETE', '', 'deletecollection', ''),
])
def test_every_verb_is_forbidden_by_itself(plain, cms, ns, method, suffix, verb, name):
    body = None if method in ('GET', 'DELETE') else make('one')
    answer = plain.request(
        method, cms + suffix, body,
        content_type='application/merge-patch+json' if method == 'PATCH' else 'application/json')
    assert answer.error == (403, 'Forbidden')
    assert answer['message'] == (
        f'configmaps {name}is forbidden: User "plain" cannot {verb} resource "configmaps" in API '
        f'group "" in the namespace "{ns}"')


def test_the_whole_cluster_is_forbidden_by_itself(plain):
    answer = plain.get('/api/v1/configmaps')
    assert answer['message'] == (
        'configmaps is forbidden: User "plain" cannot list resource "configmaps" in API group "" '
        'at the cluster scope')


def test_custom_kinds_are_forbidden_with_their_group(plain, things, kinds, ns):
    answer = plain.get(things)
    assert answer['message'] == (
        f'things.{kinds.group} is forbidden: User "plain" cannot list resource "things" in API '
        f'group "{kinds.group}" in the namespace "{ns}"')
    assert answer['details'] == {'group': kinds.group, 'kind': 'things'}


def test_subresources_are_forbidden_by_themselves(plain, things, kinds, ns):
    answer = plain.patch(f'{things}/one/status', {})
    assert answer['message'] == (
        f'things.{kinds.group} "one" is forbidden: User "plain" cannot patch resource '
        f'"things/status" in API group "{kinds.group}" in the namespace "{ns}"')


def test_watching_is_forbidden_by_itself(plain, cms):
    answer = plain.get(cms, watch='true')
    assert answer.error == (403, 'Forbidden')
    assert 'cannot watch resource' in answer['message']


@pytest.mark.parametrize('path', ['/api', '/apis', '/api/v1', '/version', '/healthz'])
def test_everybody_sees_what_is_served(plain, path):
    assert plain.get(path).status == 200


def test_unknown_tokens_are_unauthorized(api, cms):
    answer = api.get(cms, headers={'Authorization': 'Bearer nonsense'})
    assert answer.error == (401, 'Unauthorized')
    assert answer['message'] == 'Unauthorized'


def test_strangers_are_anonymous(api, cms):
    stranger = Api(api.config)
    stranger.auth = {}
    answer = stranger.get(cms)
    assert answer.error == (403, 'Forbidden')
    assert 'User "system:anonymous" cannot list' in answer['message']


def bind(api, ns, rules, subject):
    path = f'/apis/{RBAC}/v1/namespaces/{ns}'
    api.post(f'{path}/roles', make('one', kind='Role', version=f'{RBAC}/v1', rules=rules)).ok
    api.post(f'{path}/rolebindings', make(
        'one', kind='RoleBinding', version=f'{RBAC}/v1', subjects=[subject],
        roleRef={'apiGroup': RBAC, 'kind': 'Role', 'name': 'one'})).ok


PLAIN = {'kind': 'User', 'name': 'plain', 'apiGroup': RBAC}


def test_a_role_gives_rights_in_its_namespace(api, plain, cms, ns):
    bind(api, ns, [{'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['list']}], PLAIN)
    plain.wait(cms, lambda answer: answer.status == 200)
    assert plain.get(f'{cms}/one').error == (403, 'Forbidden')
    assert plain.get('/api/v1/namespaces/default/configmaps').error == (403, 'Forbidden')


@pytest.mark.parametrize('rule', [
    {'apiGroups': ['*'], 'resources': ['*'], 'verbs': ['*']},
    {'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['get'], 'resourceNames': ['one']},
])
def test_rights_can_be_for_all_or_for_names(api, plain, cms, ns, rule):
    api.post(cms, make('one')).ok
    api.post(cms, make('two')).ok
    bind(api, ns, [rule], PLAIN)
    plain.wait(f'{cms}/one', lambda answer: answer.status == 200)
    assert plain.get(f'{cms}/two').status == (403 if 'resourceNames' in rule else 200)


def test_groups_have_rights_too(api, plain, cms, ns):
    bind(api, ns, [{'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['list']}],
         {'kind': 'Group', 'name': 'nobodies', 'apiGroup': RBAC})
    plain.wait(cms, lambda answer: answer.status == 200)


def test_the_status_is_a_right_of_its_own(api, plain, things, kinds, ns):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    bind(api, ns, [{'apiGroups': [kinds.group], 'resources': ['things/status'],
                    'verbs': ['patch']}], PLAIN)
    plain.wait(f'{things}/one', lambda _: plain.patch(
        f'{things}/one/status', {'status': {'phase': 'x'}}).status == 200)
    assert plain.patch(f'{things}/one', {'spec': {'size': 2}}).error == (403, 'Forbidden')


def test_service_accounts_have_tokens_and_rights(api, cms, ns):
    path = f'/api/v1/namespaces/{ns}/serviceaccounts'
    api.post(path, make('one', kind='ServiceAccount')).ok
    answer = api.post(f'{path}/one/token', {
        'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}}).ok
    account = Api(api.config)
    account.auth = {'Authorization': f"Bearer {answer['status']['token']}"}
    refused = account.get(cms)
    assert f'User "system:serviceaccount:{ns}:one" cannot list' in refused['message']
    bind(api, ns, [{'apiGroups': [''], 'resources': ['configmaps'], 'verbs': ['list']}],
         {'kind': 'ServiceAccount', 'name': 'one', 'namespace': ns})
    account.wait(cms, lambda answer: answer.status == 200)


def review(client, **attributes):
    answer = client.post('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
        'apiVersion': 'authorization.k8s.io/v1', 'kind': 'SelfSubjectAccessReview',
        'spec': {'resourceAttributes': attributes}})
    assert answer.status == 201
    return answer['status']['allowed']


def test_everybody_can_ask_what_is_allowed(api, plain, ns):
    asked = {'namespace': ns, 'verb': 'list', 'group': '', 'resource': 'configmaps'}
    assert review(api, **asked) is True
    assert review(plain, **asked) is False


def test_everybody_can_ask_for_all_rules(api, ns):
    answer = api.post('/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', {
        'apiVersion': 'authorization.k8s.io/v1', 'kind': 'SelfSubjectRulesReview',
        'spec': {'namespace': ns}}).ok
    assert {'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']} in answer['status'][
        'resourceRules']


def test_everybody_can_ask_who_they_are(plain):
    answer = plain.post('/apis/authentication.k8s.io/v1/selfsubjectreviews', {
        'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}).ok
    user = answer['status']['userInfo']
    assert user['username'] == 'plain'
    assert set(user['groups']) == {'nobodies', 'system:authenticated'}


@pytest.mark.parametrize(('body', 'message'), [
    (b'[]', 'json: cannot unmarshal array into Go value'),
    (b'"x"', 'json: cannot unmarshal string into Go value'),
    (b'', 'unexpected end of JSON input'),
    (b'{"spec": 5}', 'json: cannot unmarshal number into Go struct field TokenRequest.spec of'),
    (b'{"spec": {"audiences": 5}}', 'Go struct field TokenRequestSpec.spec.audiences of'),
    (b'{"spec": {"expirationSeconds": "x"}}', 'Go struct field TokenRequestSpec.spec.expiration'),
    (b'{"kind": "Other", "apiVersion": "v1"}', 'cannot be handled as a TokenRequest'),
])
def test_requests_for_tokens_are_decoded_as_objects(api, ns, body, message):
    path = f'/api/v1/namespaces/{ns}/serviceaccounts'
    api.post(path, make('robot', 'ServiceAccount')).ok
    answer = api.post(f'{path}/robot/token', body)
    assert answer.error == (400, 'BadRequest')
    assert message in answer['message']
