import json
import re

import pytest

from tests.conformance.apis import PARTIAL, make, unique

TIME = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ'


def test_a_created_object_is_answered_with_what_the_server_adds(api, cms, ns):
    answer = api.post(cms, make('one', data={'a': 'b'}))
    assert answer.status == 201
    assert list(answer.json) == ['kind', 'apiVersion', 'metadata', 'data']
    meta = answer.json['metadata']
    assert (meta['name'], meta['namespace']) == ('one', ns)
    assert re.fullmatch(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', meta['uid'])
    assert int(meta['resourceVersion']) > 0
    assert re.fullmatch(TIME, meta['creationTimestamp'])
    assert answer.headers['Content-Type'] == 'application/json'


def test_a_created_object_has_its_manager_by_the_user_agent(api, cms):
    meta = api.post(cms, make('one', data={'a': 'b'}), headers={'User-Agent': 'tester/1.2 (x)'}).ok[
        'metadata']
    [entry] = meta['managedFields']
    assert re.fullmatch(TIME, entry.pop('time'))
    assert entry == {
        'manager': 'tester', 'operation': 'Update', 'apiVersion': 'v1', 'fieldsType': 'FieldsV1',
        'fieldsV1': {'f:data': {'.': {}, 'f:a': {}}}}


def test_a_created_object_has_its_manager_by_the_parameter(api, cms):
    meta = api.post(cms, make('one', data={'a': 'b'}), fieldManager='me').ok['metadata']
    assert meta['managedFields'][0]['manager'] == 'me'


def test_what_the_server_decides_cannot_be_given(api, cms):
    answer = api.post(cms, make('one', metadata={
        'uid': 'mine', 'creationTimestamp': '2020-01-01T00:00:00Z',
        'selfLink': '/x', 'deletionTimestamp': '2020-01-01T00:00:00Z'})).ok
    meta = answer['metadata']
    assert meta['uid'] != 'mine'
    assert not meta['creationTimestamp'].startswith('2020-')
    assert not {'selfLink', 'deletionTimestamp'} & set(meta)


def test_a_version_cannot_be_given_to_a_new_object(api, cms):
    answer = api.post(cms, make('one', metadata={'resourceVersion': '1'}))
    assert answer.error == (500, None)
    assert answer['message'] == 'resourceVersion should not be set on objects to be created'


def test_an_object_is_read_as_it_was_created(api, cms):
    created = api.post(cms, make('one', data={'a': 'b'})).ok
    assert api.get(f'{cms}/one').ok == created


def test_a_second_object_of_the_name_is_refused(api, cms):
    api.post(cms, make('one')).ok
    answer = api.post(cms, make('one'))
    assert answer.error == (409, 'AlreadyExists')
    assert answer['message'] == 'configmaps "one" already exists'
    assert answer['details'] == {'name': 'one', 'kind': 'configmaps'}


def test_an_absent_object_is_not_found(api, cms):
    answer = api.get(f'{cms}/absent')
    assert answer.error == (404, 'NotFound')
    assert answer['message'] == 'configmaps "absent" not found'
    assert answer['details'] == {'name': 'absent', 'kind': 'configmaps'}


def test_an_absent_custom_object_is_not_found_with_its_group(api, things, kinds):
    answer = api.get(f'{things}/absent')
    assert answer.error == (404, 'NotFound')
    assert answer['message'] == f'things.{kinds.group} "absent" not found'
    assert answer['details'] == {'name': 'absent', 'group': kinds.group, 'kind': 'things'}


def test_objects_cannot_be_created_in_absent_namespaces(api):
    answer = api.post('/api/v1/namespaces/absent/configmaps', make('one'))
    assert answer.error == (404, 'NotFound')
    assert answer['message'] == 'namespaces "absent" not found'
    assert answer['details'] == {'name': 'absent', 'kind': 'namespaces'}


def test_the_namespace_of_the_object_must_be_that_of_the_path(api, cms):
    answer = api.post(cms, make('one', metadata={'namespace': 'default'}))
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'the namespace of the provided object does not match the namespace sent on the request')


def test_the_kind_of_the_object_must_be_that_of_the_path(api, cms):
    answer = api.post(cms, make('one', kind='Secret'))
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'Secret in version "v1" cannot be handled as a ConfigMap: converting '
        '(v1.Secret) to (core.ConfigMap): unknown conversion')


def test_a_replaced_object_gets_another_version_and_keeps_its_uid(api, cms):
    old = api.post(cms, make('one', data={'a': 'b'})).ok
    answer = api.put(f'{cms}/one', make('one', data={'c': 'd'}))
    assert answer.status == 200
    new = answer.json
    assert new['data'] == {'c': 'd'}
    assert new['metadata']['uid'] == old['metadata']['uid']
    assert new['metadata']['creationTimestamp'] == old['metadata']['creationTimestamp']
    assert int(new['metadata']['resourceVersion']) > int(old['metadata']['resourceVersion'])


def test_replacing_with_the_same_changes_nothing(api, cms):
    old = api.post(cms, make('one', data={'a': 'b'})).ok
    assert api.put(f'{cms}/one', old).ok == old


def test_replacing_by_an_old_version_is_a_conflict(api, cms):
    old = api.post(cms, make('one', data={'a': 'b'})).ok
    api.put(f'{cms}/one', make('one', data={'a': 'c'})).ok
    answer = api.put(f'{cms}/one', {**old, 'data': {'a': 'd'}})
    assert answer.error == (409, 'Conflict')
    assert answer['message'] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; please '
        'apply your changes to the latest version and try again')
    assert answer['details'] == {'name': 'one', 'kind': 'configmaps'}


def test_replacing_another_uid_is_a_conflict(api, cms):
    api.post(cms, make('one')).ok
    answer = api.put(f'{cms}/one', make('one', metadata={'uid': 'another'}))
    assert answer.error == (409, 'Conflict')
    assert 'Precondition failed: UID in precondition: another' in answer['message']


def test_replacing_an_absent_object_is_not_found(api, cms):
    assert api.put(f'{cms}/absent', make('absent')).error == (404, 'NotFound')


def test_replacing_custom_objects_needs_their_version(api, frees, kinds):
    api.post(frees, kinds.make('frees', 'one')).ok
    answer = api.put(f'{frees}/one', kinds.make('frees', 'one', spec={'a': 1}))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'metadata.resourceVersion')]
    assert answer.messages == ['Invalid value: 0: must be specified for an update']
    assert answer['message'].startswith(f'frees.{kinds.group} "one" is invalid: ')


def test_the_name_of_the_object_must_be_that_of_the_path(api, cms):
    api.post(cms, make('one')).ok
    answer = api.put(f'{cms}/one', make('two'))
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'the name of the object (two) does not match the name on the URL (one)')


def test_a_deleted_object_is_gone(api, cms):
    api.post(cms, make('one')).ok
    answer = api.delete(f'{cms}/one').ok
    assert (answer['kind'], answer['status'], answer['details']['name']) == (
        'Status', 'Success', 'one')
    assert api.get(f'{cms}/one').status == 404


def test_the_answer_to_a_deletion_tells_the_uid(api, cms):
    uid = api.post(cms, make('one')).ok['metadata']['uid']
    assert api.delete(f'{cms}/one').ok['details'] == {
        'name': 'one', 'kind': 'configmaps', 'uid': uid}


def test_deleting_an_absent_object_is_not_found(api, cms):
    answer = api.delete(f'{cms}/absent')
    assert answer.error == (404, 'NotFound')


def test_a_namesake_has_another_uid(api, cms):
    first = api.post(cms, make('one')).ok
    api.delete(f'{cms}/one').ok
    second = api.post(cms, make('one')).ok
    assert first['metadata']['uid'] != second['metadata']['uid']


@pytest.mark.parametrize(('field', 'name', 'why'), [
    ('uid', 'UID', 'deleted and then recreated'),
    ('resourceVersion', 'ResourceVersion', 'modified'),
])
def test_an_object_is_deleted_only_if_it_is_the_expected_one(api, cms, field, name, why):
    known = api.post(cms, make('one')).ok['metadata'][field]
    answer = api.delete(f'{cms}/one', {
        'kind': 'DeleteOptions', 'apiVersion': 'v1', 'preconditions': {field: '1'}})
    assert answer.error == (409, 'Conflict')
    assert answer['message'] == (
        f'Operation cannot be fulfilled on ConfigMap "one": the {name} in the precondition (1) '
        f'does not match the {name} in record ({known}). The object might have been {why}')
    assert api.get(f'{cms}/one').ok


@pytest.mark.parametrize(('options', 'message'), [
    ({'gracePeriodSeconds': 'x'}, "json: cannot unmarshal string into Go struct field "
                                  "DeleteOptions.gracePeriodSeconds of type int64"),
    ({'dryRun': 'All'}, "json: cannot unmarshal string into Go struct field "
                        "DeleteOptions.dryRun of type []string"),
    ({'kind': 'Pod'}, 'no kind "Pod" is registered for version "meta.k8s.io/v1" '
                      'in scheme "pkg/runtime/scheme.go:111"'),
])
def test_options_of_a_deletion_have_their_types(api, cms, options, message):
    api.post(cms, make('one')).ok
    answer = api.delete(f'{cms}/one', options)
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == message


def test_the_expected_object_is_deleted(api, cms):
    uid = api.post(cms, make('one')).ok['metadata']['uid']
    api.delete(f'{cms}/one', {'preconditions': {'uid': uid}}).ok
    assert api.get(f'{cms}/one').status == 404


def test_all_objects_of_a_namespace_are_deleted_at_once(api, cms):
    for name in ('one', 'two'):
        api.post(cms, make(name)).ok
    answer = api.delete(cms).ok
    assert answer['kind'] == 'ConfigMapList'
    assert [item['metadata']['name'] for item in answer['items']] == ['one', 'two']
    assert api.get(cms).ok['items'] == []


def test_objects_are_deleted_at_once_only_if_they_are_the_expected_ones(api, cms):
    api.post(cms, make('one')).ok
    answer = api.delete(cms, {'preconditions': {'uid': '1'}})
    assert answer.error == (409, 'Conflict')
    assert api.get(f'{cms}/one').ok


@pytest.mark.parametrize('behavior', [
    None, {}, {'scaleDown': {'policies': [{'type': 'Pods', 'value': 1, 'periodSeconds': 60}]}},
    {'scaleUp': {'stabilizationWindowSeconds': 5}}])
def test_autoscalers_have_defaults_both_ways_if_anything_is_said_of_one(api, ns, behavior):
    scaler = api.post(f'/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers', {
        'apiVersion': 'autoscaling/v2', 'kind': 'HorizontalPodAutoscaler',
        'metadata': {'name': 'one'}, 'spec': {
            'maxReplicas': 2, 'behavior': behavior, 'scaleTargetRef': {
                'apiVersion': 'apps/v1', 'kind': 'Deployment', 'name': 'x'}}}).ok
    made = scaler['spec'].get('behavior')
    if behavior is None:
        assert made is None
        return
    assert made['scaleUp']['stabilizationWindowSeconds'] == (5 if 'scaleUp' in behavior else 0)
    assert [policy['value'] for policy in made['scaleUp']['policies']] == [4, 100]
    assert [policy['value'] for policy in made['scaleDown']['policies']] == [
        1 if 'scaleDown' in behavior else 100]


def test_selected_objects_are_deleted_at_once(api, cms):
    api.post(cms, make('one', metadata={'labels': {'a': 'b'}})).ok
    api.post(cms, make('two', metadata={'labels': {'a': 'c'}})).ok
    api.delete(cms, labelSelector='a=b').ok
    assert [item['metadata']['name'] for item in api.get(cms).ok['items']] == ['two']


@pytest.mark.parametrize('verb', ['create', 'replace', 'patch', 'delete'])
def test_nothing_is_stored_in_a_dry_run(api, cms, verb):
    created = api.post(cms, make('one', data={'a': 'b'})).ok
    match verb:
        case 'create':
            answer = api.post(cms, make('two'), dryRun='All')
        case 'replace':
            answer = api.put(f'{cms}/one', make('one', data={'c': 'd'}), dryRun='All')
        case 'patch':
            answer = api.patch(f'{cms}/one', {'data': {'a': 'x'}}, dryRun='All')
        case _:
            answer = api.delete(f'{cms}/one', dryRun='All')
    assert answer.ok
    assert [item['metadata']['name'] for item in api.get(cms).ok['items']] == ['one']
    assert api.get(f'{cms}/one').ok == created


def test_a_dry_run_tells_what_would_be(api, cms):
    old = api.post(cms, make('one', data={'a': 'b'})).ok
    new = api.patch(f'{cms}/one', {'data': {'a': 'x'}}, dryRun='All').ok
    assert new['data'] == {'a': 'x'}
    assert new['metadata']['resourceVersion'] == old['metadata']['resourceVersion']


def test_only_all_is_a_dry_run(api, cms):
    answer = api.post(cms, make('one'), dryRun='Some')
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueNotSupported', 'dryRun')]


def test_objects_of_several_versions_are_the_same_ones(api, things, kinds, ns):
    created = api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    path = kinds.path('things', namespace=ns, version='v1beta1')
    other = api.get(f'{path}/one').ok
    assert other['apiVersion'] == f'{kinds.group}/v1beta1'
    assert other['metadata']['uid'] == created['metadata']['uid']
    assert other['spec'] == created['spec']


def test_cluster_wide_objects_have_no_namespace(api, kinds):
    name = unique()
    created = api.post(kinds.path('globes'), kinds.make('globes', name, spec={'a': 1})).ok
    assert 'namespace' not in created['metadata']
    api.delete(f"{kinds.path('globes')}/{name}").ok


def test_only_the_metadata_is_answered_to_those_who_ask(api, cms, ns):
    api.post(cms, make('one', data={'a': 'b'})).ok
    answer = api.get(f'{cms}/one', accept=PARTIAL).ok
    assert (answer['kind'], answer['apiVersion']) == ('PartialObjectMetadata', 'meta.k8s.io/v1')
    assert set(answer) == {'kind', 'apiVersion', 'metadata'}
    assert answer['metadata']['namespace'] == ns


def test_bodies_can_be_yaml(api, cms):
    text = b'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: b}\n'
    assert api.post(cms, text, content_type='application/yaml').ok['data'] == {'a': 'b'}


def test_plain_words_of_yaml_mean_what_they_mean_in_its_version_for_kubernetes(api, kinds, ns):
    words = {
        'y': True, 'N': False, 'on': True, 'tRue': 'tRue', '1e3': 1000, '08': 8, '017': 15,
        '0o17': 15, '0x1F': 31, '0b12': '0b12', '1_000': 1000, '.5': 0.5, '1e-3': 0.001,
        '12:30': '12:30', '2026-12-01': '2026-12-01', '=': '='}
    thing = kinds.make('things', 'one', spec={'size': 5, 'any': 'WORDS'})
    text = json.dumps(thing).replace('"WORDS"', f"[{', '.join(words)}]").encode()
    created = api.post(
        kinds.path('things', namespace=ns), text, content_type='application/yaml').ok
    assert created['spec']['any'] == [*words.values()]


def test_answers_can_be_yaml(api, cms):
    api.post(cms, make('one', data={'a': 'b'})).ok
    answer = api.get(f'{cms}/one', accept='application/yaml')
    assert answer.headers['Content-Type'] == 'application/yaml'
    assert b'\nkind: ConfigMap\n' in answer.raw
    assert b'\ndata:\n  a: b\n' in b'\n' + answer.raw


def test_a_body_without_kind_and_version_is_taken_for_what_the_path_says(api, cms):
    assert api.post(cms, {'metadata': {'name': 'one'}}).ok['kind'] == 'ConfigMap'


def test_custom_bodies_need_their_kind_and_version(api, frees):
    body = b'{"metadata": {"name": "one"}}'
    answer = api.post(frees, body)
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        f"the object provided is unrecognized (must be of type Free): Object 'Kind' is missing in "
        f"'{body.decode()}' ({body.decode()})")


def test_custom_bodies_must_be_of_the_kind_of_the_path(api, things, kinds):
    answer = api.post(things, kinds.make('frees', 'one'))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'kind')]
    assert answer['message'] == (
        f'Free.{kinds.group} "one" is invalid: kind: Invalid value: "Free": must be Thing')


@pytest.mark.parametrize(('quantity', 'expected'), [
    ('5mm', "unable to parse quantity's suffix"),
    ('1Gii', "unable to parse quantity's suffix"),
    ('1e', "unable to parse quantity's suffix"),
    ('1.2.3', 'quantities must match the regular expression '
              "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
    ('1500m', None),
    (None, None),
])
def test_quantities_are_well_formed(api, ns, quantity, expected):
    answer = api.post(f'/api/v1/namespaces/{ns}/pods', make('one', kind='Pod', spec={'containers': [
        {'name': 'x', 'image': 'x', 'resources': {'requests': {'cpu': quantity}}}]}))
    if expected is None:
        (container,) = answer.ok['spec']['containers']
        assert container['resources']['requests'] == {'cpu': '1500m' if quantity else '0'}
    else:
        assert answer.error == (400, 'BadRequest')
        assert answer['message'] == (
            f'Pod in version "v1" cannot be handled as a Pod: {expected}')


def test_only_pods_request_what_they_are_limited_to(api, ns):
    limited = {'containers': [
        {'name': 'x', 'image': 'x', 'resources': {'limits': {'memory': '1Gi'}}}]}
    pod = api.post(f'/api/v1/namespaces/{ns}/pods', make('one', kind='Pod', spec=limited)).ok
    template = {'metadata': {'labels': {'a': 'b'}}, 'spec': limited}
    deployment = api.post(f'/apis/apps/v1/namespaces/{ns}/deployments', {
        'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': 'one'}, 'spec': {
            'replicas': 0, 'selector': {'matchLabels': {'a': 'b'}}, 'template': template}}).ok
    assert pod['spec']['containers'][0]['resources']['requests'] == {'memory': '1Gi'}
    (container,) = deployment['spec']['template']['spec']['containers']
    assert container['resources'] == {'limits': {'memory': '1Gi'}}


def test_some_zeros_are_as_good_as_none(api, ns):
    probe = {'tcpSocket': {'port': 80}, 'initialDelaySeconds': 0, 'periodSeconds': 0}
    container = {
        'name': 'x', 'image': 'x',
        'ports': [{'containerPort': 80, 'hostPort': 0, 'protocol': ''}],
        'readinessProbe': probe, 'securityContext': {'runAsUser': 0}}
    deployment = api.post(f'/apis/apps/v1/namespaces/{ns}/deployments', {
        'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': 'one'}, 'spec': {
            'replicas': 0, 'minReadySeconds': 0, 'revisionHistoryLimit': 0,
            'selector': {'matchLabels': {'a': 'b'}},
            'template': {'metadata': {'labels': {'a': 'b'}}, 'spec': {'containers': [container]}}},
    }).ok
    assert 'minReadySeconds' not in deployment['spec']
    assert (deployment['spec']['replicas'], deployment['spec']['revisionHistoryLimit']) == (0, 0)
    (container,) = deployment['spec']['template']['spec']['containers']
    assert container['ports'] == [{'containerPort': 80, 'protocol': 'TCP'}]
    assert container['securityContext'] == {'runAsUser': 0}
    assert 'initialDelaySeconds' not in container['readinessProbe']
    assert container['readinessProbe']['periodSeconds'] == 10
    service = api.post(f'/api/v1/namespaces/{ns}/services', make('one', kind='Service', spec={
        'ports': [{'port': 80, 'nodePort': 0}]})).ok
    assert 'nodePort' not in service['spec']['ports'][0]


@pytest.mark.parametrize('labels', [{}, {'of': 'job'}])
def test_jobs_have_the_labels_of_their_pods_or_their_own(api, ns, labels):
    spec = {'suspend': True, 'template': {'metadata': {'labels': {'of': 'pod'}}, 'spec': {
        'restartPolicy': 'Never', 'containers': [{'name': 'x', 'image': 'x'}]}}}
    job = api.post(f'/apis/batch/v1/namespaces/{ns}/jobs', {
        'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': {'name': 'one', 'labels': labels},
        'spec': spec}).ok
    of_pods = job['spec']['template']['metadata']['labels']
    assert of_pods['of'] == 'pod' and of_pods['job-name'] == 'one'
    assert job['metadata']['labels'] == (labels or of_pods)


def test_pods_that_are_nowhere_have_empty_logs(api, ns):
    path = f'/api/v1/namespaces/{ns}/pods'
    api.post(path, make('one', kind='Pod', spec={'containers': [{'name': 'a', 'image': 'x'}]})).ok
    answer = api.get(f'{path}/one/log')
    assert (answer.status, answer.raw) == (204, b'')
    assert api.get(f'{path}/two/log').error == (404, 'NotFound')


@pytest.mark.parametrize(('size', 'status'), [
    ('1G', 422), ('500M', 422), ('1000M', 422), ('1001M', 200), ('2G', 200), ('3G', 200)])
def test_claims_of_volumes_cannot_be_smaller_than_the_volumes(api, ns, size, status):
    storage = unique('standard')
    api.post('/apis/storage.k8s.io/v1/storageclasses', make(
        storage, kind='StorageClass', apiVersion='storage.k8s.io/v1',
        provisioner='example.com/none', allowVolumeExpansion=True)).ok
    try:
        claims = f'/api/v1/namespaces/{ns}/persistentvolumeclaims'
        api.post(claims, make('one', kind='PersistentVolumeClaim', spec={
            'storageClassName': storage, 'accessModes': ['ReadWriteOnce'], 'volumeName': 'any',
            'resources': {'requests': {'storage': '1G'}}})).ok
        api.patch(f'{claims}/one/status', {
            'status': {'phase': 'Bound', 'capacity': {'storage': '1G'}}}).ok
        api.patch(f'{claims}/one', {'spec': {'resources': {'requests': {'storage': '2G'}}}}).ok
        answer = api.patch(
            f'{claims}/one', {'spec': {'resources': {'requests': {'storage': size}}}})
        assert answer.status == status
        if status == 422:
            assert answer.causes == [('FieldValueForbidden', 'spec.resources.requests.storage')]
            assert answer['message'] == (
                'PersistentVolumeClaim "one" is invalid: spec.resources.requests.storage: '
                'Forbidden: field can not be less than status.capacity')
    finally:
        api.delete(f'/apis/storage.k8s.io/v1/storageclasses/{storage}')
