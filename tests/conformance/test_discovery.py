import pytest

from tests.conformance.apis import AGGREGATED


def find(items, name):
    [found] = [item for item in items if item['name'] == name]
    return found


def test_the_core_versions_are_told(api):
    answer = api.get('/api').ok
    assert (answer['kind'], answer['versions']) == ('APIVersions', ['v1'])


def test_the_groups_are_told_with_their_preferred_versions(api, kinds):
    answer = api.get('/apis').ok
    assert (answer['kind'], answer['apiVersion']) == ('APIGroupList', 'v1')
    assert find(answer['groups'], 'apps')['preferredVersion'] == {
        'groupVersion': 'apps/v1', 'version': 'v1'}
    assert find(answer['groups'], kinds.group)['versions'] == [
        {'groupVersion': f'{kinds.group}/v1', 'version': 'v1'},
        {'groupVersion': f'{kinds.group}/v1beta1', 'version': 'v1beta1'}]


def test_a_group_is_told_by_itself(api, kinds):
    answer = api.get(f'/apis/{kinds.group}').ok
    assert (answer['kind'], answer['apiVersion'], answer['name']) == (
        'APIGroup', 'v1', kinds.group)
    assert answer['preferredVersion']['version'] == 'v1'


@pytest.mark.parametrize('path', [
    '/apis/absent.test', '/apis/apps/v9', '/apis/absent.test/v1', '/apis/apps/v1/absents',
    '/api/v1/absents', '/api/v1/namespaces/default/absents', '/api/v2', '/absent',
])
def test_an_absent_path_is_not_found(api, path):
    answer = api.get(path)
    assert answer.status == 404
    if answer.headers['Content-Type'] == 'application/json':
        assert answer.json['message'] == 'the server could not find the requested resource'
    else:
        assert answer.raw == b'404 page not found\n'


def test_the_core_resources_are_told(api):
    answer = api.get('/api/v1').ok
    assert (answer['kind'], answer['groupVersion']) == ('APIResourceList', 'v1')
    pods = find(answer['resources'], 'pods')
    assert pods['kind'] == 'Pod'
    assert pods['namespaced'] is True
    assert pods['singularName'] == 'pod'
    assert pods['shortNames'] == ['po']
    assert pods['categories'] == ['all']
    assert sorted(pods['verbs']) == [
        'create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch']


@pytest.mark.parametrize(('path', 'name', 'kind', 'namespaced', 'short'), [
    ('/api/v1', 'namespaces', 'Namespace', False, ['ns']),
    ('/api/v1', 'services', 'Service', True, ['svc']),
    ('/api/v1', 'configmaps', 'ConfigMap', True, ['cm']),
    ('/api/v1', 'secrets', 'Secret', True, None),
    ('/api/v1', 'serviceaccounts', 'ServiceAccount', True, ['sa']),
    ('/api/v1', 'events', 'Event', True, ['ev']),
    ('/api/v1', 'persistentvolumeclaims', 'PersistentVolumeClaim', True, ['pvc']),
    ('/api/v1', 'persistentvolumes', 'PersistentVolume', False, ['pv']),
    ('/api/v1', 'nodes', 'Node', False, ['no']),
    ('/api/v1', 'endpoints', 'Endpoints', True, ['ep']),
    ('/api/v1', 'replicationcontrollers', 'ReplicationController', True, ['rc']),
    ('/api/v1', 'resourcequotas', 'ResourceQuota', True, ['quota']),
    ('/apis/events.k8s.io/v1', 'events', 'Event', True, ['ev']),
    ('/apis/apps/v1', 'deployments', 'Deployment', True, ['deploy']),
    ('/apis/apps/v1', 'statefulsets', 'StatefulSet', True, ['sts']),
    ('/apis/apps/v1', 'daemonsets', 'DaemonSet', True, ['ds']),
    ('/apis/apps/v1', 'replicasets', 'ReplicaSet', True, ['rs']),
    ('/apis/batch/v1', 'jobs', 'Job', True, None),
    ('/apis/batch/v1', 'cronjobs', 'CronJob', True, ['cj']),
    ('/apis/networking.k8s.io/v1', 'ingresses', 'Ingress', True, ['ing']),
    ('/apis/networking.k8s.io/v1', 'networkpolicies', 'NetworkPolicy', True, ['netpol']),
    ('/apis/coordination.k8s.io/v1', 'leases', 'Lease', True, None),
    ('/apis/rbac.authorization.k8s.io/v1', 'roles', 'Role', True, None),
    ('/apis/rbac.authorization.k8s.io/v1', 'clusterrolebindings', 'ClusterRoleBinding', False,
     None),
    ('/apis/admissionregistration.k8s.io/v1', 'validatingwebhookconfigurations',
     'ValidatingWebhookConfiguration', False, None),
    ('/apis/apiextensions.k8s.io/v1', 'customresourcedefinitions', 'CustomResourceDefinition',
     False, ['crd', 'crds']),
    ('/apis/storage.k8s.io/v1', 'storageclasses', 'StorageClass', False, ['sc']),
    ('/apis/policy/v1', 'poddisruptionbudgets', 'PodDisruptionBudget', True, ['pdb']),
    ('/apis/autoscaling/v2', 'horizontalpodautoscalers', 'HorizontalPodAutoscaler', True, ['hpa']),
    ('/apis/scheduling.k8s.io/v1', 'priorityclasses', 'PriorityClass', False, ['pc']),
])
def test_a_kind_of_the_api_itself_is_served(api, path, name, kind, namespaced, short):
    found = find(api.get(path).ok['resources'], name)
    assert (found['kind'], found['namespaced'], found.get('shortNames')) == (
        kind, namespaced, short)
    assert api.get(f'{path}/{name}').ok['kind'] == f'{kind}List'


def test_custom_resources_are_told_with_their_names(api, kinds):
    answer = api.get(f'/apis/{kinds.group}/v1').ok
    thing = find(answer['resources'], 'things')
    assert thing.pop('storageVersionHash')
    assert thing == {
        'name': 'things', 'singularName': 'thing', 'namespaced': True, 'kind': 'Thing',
        'shortNames': ['tg', 'tng'], 'categories': ['all', 'toys'],
        'verbs': ['delete', 'deletecollection', 'get', 'list', 'patch', 'create', 'update',
                  'watch'],
    }


def test_subresources_are_told_as_resources(api, kinds):
    answer = api.get(f'/apis/{kinds.group}/v1').ok
    assert find(answer['resources'], 'things/status') == {
        'name': 'things/status', 'singularName': '', 'namespaced': True, 'kind': 'Thing',
        'verbs': ['get', 'patch', 'update']}
    assert find(answer['resources'], 'things/scale') == {
        'name': 'things/scale', 'singularName': '', 'namespaced': True, 'kind': 'Scale',
        'group': 'autoscaling', 'version': 'v1', 'verbs': ['get', 'patch', 'update']}


def test_kinds_without_subresources_have_none(api, kinds):
    names = [item['name'] for item in api.get(f'/apis/{kinds.group}/v1').ok['resources']]
    assert [name for name in names if name.startswith('frees')] == ['frees']


def test_other_versions_tell_what_they_serve(api, kinds):
    names = [item['name'] for item in api.get(f'/apis/{kinds.group}/v1beta1').ok['resources']]
    assert names == ['things']


def test_everything_is_told_at_once_to_those_who_ask(api, kinds):
    answer = api.get('/apis', accept=AGGREGATED)
    assert set(answer.headers['Content-Type'].split(';')) == set(AGGREGATED.split(';'))
    assert answer.ok['kind'] == 'APIGroupDiscoveryList'
    [group] = [item for item in answer['items'] if item['metadata']['name'] == kinds.group]
    assert [item['version'] for item in group['versions']] == ['v1', 'v1beta1']
    [thing] = [item for item in group['versions'][0]['resources'] if item['resource'] == 'things']
    assert thing['responseKind'] == {'group': kinds.group, 'version': 'v1', 'kind': 'Thing'}
    assert thing['scope'] == 'Namespaced'
    assert thing['singularResource'] == 'thing'
    assert thing['shortNames'] == ['tg', 'tng']
    assert thing['categories'] == ['all', 'toys']
    assert {item['subresource'] for item in thing['subresources']} == {'status', 'scale'}


def test_the_core_is_told_at_once_by_itself(api):
    answer = api.get('/api', accept=AGGREGATED).ok
    [group] = answer['items']
    assert group['metadata'].get('name', '') == ''
    [version] = group['versions']
    assert version['version'] == 'v1'
    pods = next(item for item in version['resources'] if item['resource'] == 'pods')
    assert {'status', 'eviction'} <= {item['subresource'] for item in pods['subresources']}


def test_the_version_is_told(api):
    answer = api.get('/version').ok
    assert answer['major'] == '1'
    assert {'minor', 'gitVersion', 'platform', 'goVersion'} <= set(answer)


@pytest.mark.parametrize('path', ['/healthz', '/readyz', '/livez'])
def test_the_server_says_that_it_is_well(api, path):
    answer = api.get(path)
    assert (answer.status, answer.raw) == (200, b'ok')


def test_the_schemas_are_told_by_groups(api, kinds):
    paths = api.get('/openapi/v3').ok['paths']
    assert {'api/v1', 'apis/apps/v1'} <= set(paths)
    url = paths[f'apis/{kinds.group}/v1']['serverRelativeURL']
    schemas = api.get(url).ok['components']['schemas']
    [thing] = [schema for schema in schemas.values() if {
        'group': kinds.group, 'version': 'v1', 'kind': 'Thing'
    } in schema.get('x-kubernetes-group-version-kind', [])]
    assert set(thing['properties']) == {'apiVersion', 'kind', 'metadata', 'spec', 'status'}
    assert thing['properties']['spec']['properties']['size'] == {
        'type': 'integer', 'minimum': 1, 'maximum': 10}
