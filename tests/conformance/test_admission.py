import pytest

from tests.conformance.apis import make, unique

hooks = pytest.importorskip('tests.conformance.hooks', reason="It needs trustme.")

PATH = '/apis/admissionregistration.k8s.io/v1'


@pytest.fixture()
def hook():
    with hooks.Hook() as hook:
        yield hook


@pytest.fixture()
def register(api, hook, cms, ns):
    """Register the hook for the config maps of the test, and wait until it is called."""
    paths = []

    def register(sort='validating', **options):
        name = unique('hook')
        path = f'{PATH}/{sort}webhookconfigurations'
        webhook = {
            'name': 'hook.conformance.test', 'clientConfig': hook.client_config,
            'sideEffects': 'None', 'admissionReviewVersions': ['v1'], 'timeoutSeconds': 5,
            'namespaceSelector': {'matchLabels': {'kubernetes.io/metadata.name': ns}},
            'rules': [{'apiGroups': [''], 'apiVersions': ['v1'], 'operations': ['*'],
                       'resources': ['configmaps']}],
            **options}
        api.post(path, {
            'apiVersion': 'admissionregistration.k8s.io/v1',
            'kind': f'{sort.capitalize()}WebhookConfiguration', 'metadata': {'name': name},
            'webhooks': [webhook]}).ok
        paths.append(f'{path}/{name}')
        if webhook.get('matchConditions') is None and 'objectSelector' not in webhook:
            probe, verbs = make('probe'), webhook['rules'][0]['operations']
            api.post(cms, probe)
            def is_called(_):
                if 'DELETE' in verbs:
                    api.delete(f'{cms}/probe', dryRun='All')
                elif 'UPDATE' in verbs:
                    api.put(f'{cms}/probe', {**probe, 'data': {'x': unique()}}, dryRun='All')
                else:
                    api.post(cms, make(unique()), dryRun='All')
                return hook.requests
            api.wait('/version', is_called)
            hook.requests.clear()

    yield register
    for path in paths:
        api.delete(path).ok


def test_a_validating_hook_sees_the_request(api, hook, register, cms, ns):
    register()
    api.post(cms, make('one', data={'a': 'b'}), dryRun='All').ok
    [review] = hook.requests
    assert (review['kind'], review['apiVersion']) == ('AdmissionReview', 'admission.k8s.io/v1')
    request = review['request']
    assert request['kind'] == {'group': '', 'version': 'v1', 'kind': 'ConfigMap'}
    assert request['resource'] == {'group': '', 'version': 'v1', 'resource': 'configmaps'}
    assert (request['name'], request['namespace'], request['operation']) == ('one', ns, 'CREATE')
    assert request['userInfo']['username'] == 'admin'
    assert request['object']['data'] == {'a': 'b'}
    assert request['oldObject'] is None
    assert request['dryRun'] is True
    assert request['options']['kind'] == 'CreateOptions'


@pytest.mark.parametrize(('operation', 'has_new', 'has_old'), [
    ('UPDATE', True, True), ('DELETE', False, True)])
def test_a_hook_sees_the_old_and_the_new_object(api, hook, register, cms, operation, has_new,
                                                has_old):
    api.post(cms, make('one', data={'a': 'b'})).ok
    register()
    if operation == 'UPDATE':
        api.patch(f'{cms}/one', {'data': {'a': 'c'}}).ok
    else:
        api.delete(f'{cms}/one').ok
    request = hook.requests[0]['request']
    assert request['operation'] == operation
    assert (request['object'] is not None, request['oldObject'] is not None) == (has_new, has_old)
    assert request['oldObject']['data'] == {'a': 'b'}


def test_a_refusal_is_told(api, hook, register, cms):
    register()
    hook.answer = lambda _: {'allowed': False, 'status': {'message': 'never', 'code': 418}}
    answer = api.post(cms, make('one'))
    assert answer.status == 418
    assert answer['message'] == (
        'admission webhook "hook.conformance.test" denied the request: never')
    assert api.get(f'{cms}/one').status == 404


def test_a_refusal_without_a_reason_is_told_too(api, hook, register, cms):
    register()
    hook.answer = lambda _: {'allowed': False}
    answer = api.post(cms, make('one'))
    assert answer.error[0] == 400
    assert answer['message'] == (
        'admission webhook "hook.conformance.test" denied the request without explanation')


def test_warnings_are_passed_on(api, hook, register, cms):
    register()
    hook.answer = lambda _: {'allowed': True, 'warnings': ['beware']}
    answer = api.post(cms, make('one'))
    assert answer.ok
    assert answer.headers.get_all('Warning') == ['299 - "beware"']


def test_a_mutating_hook_changes_the_object(api, hook, register, cms):
    register('mutating')
    hook.answer = lambda _: hooks.patch({'op': 'add', 'path': '/data', 'value': {'by': 'hook'}})
    assert api.post(cms, make('one')).ok['data'] == {'by': 'hook'}
    assert api.get(f'{cms}/one').ok['data'] == {'by': 'hook'}


def test_what_a_hook_makes_is_validated(api, hook, register, cms):
    register('mutating')
    hook.answer = lambda _: hooks.patch({'op': 'add', 'path': '/data', 'value': {'a b': 'x'}})
    answer = api.post(cms, make('one'))
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueInvalid', 'data[a b]')]


def test_a_broken_patch_is_an_error_of_the_server(api, hook, register, cms):
    register('mutating')
    hook.answer = lambda _: hooks.patch({'op': 'remove', 'path': '/absent'})
    assert api.post(cms, make('one')).error == (500, 'InternalError')


@pytest.mark.parametrize(('response', 'why'), [
    ({'allowed': 'yes'}, 'failed to call webhook: json: cannot unmarshal string into Go struct '
                         'field AdmissionResponse.response.allowed of type bool'),
    ({'allowed': True, 'warnings': 'x'}, 'failed to call webhook: json: cannot unmarshal string '
     'into Go struct field AdmissionResponse.response.warnings of type []string'),
    ({'allowed': False, 'status': {'code': '403'}}, 'failed to call webhook: json: cannot '
     'unmarshal string into Go struct field Status.response.status.code of type int32'),
    ({'allowed': True, 'uid': 'x'}, 'received invalid webhook response: expected response.uid='),
    (hooks.patch({'op': 'add', 'path': '/data', 'value': {}}),
     'received invalid webhook response: validating webhook may not return response.patch'),
])
def test_answers_that_are_none_refuse_everything(api, hook, register, cms, response, why):
    register()
    hook.answer = lambda _: response
    answer = api.post(cms, make('one'))
    assert answer.error == (500, 'InternalError')
    assert answer['message'].startswith(
        f'Internal error occurred: failed calling webhook "hook.conformance.test": {why}')


@pytest.mark.parametrize(('response', 'why'), [
    ({'patch': 'W10='}, 'received invalid webhook response: webhook returned response.patch but '
                        'not response.patchType'),
    ({'patchType': 'JSONPatch'}, 'received invalid webhook response: webhook returned '
                                 'response.patchType but not response.patch'),
    ({'patchType': 'JSONPatch', 'patch': 'eHh4'}, 'received undecodable patch in webhook response'),
])
def test_patches_that_are_none_refuse_everything(api, hook, register, cms, response, why):
    register('mutating')
    hook.answer = lambda _: {'allowed': True, **response}
    answer = api.post(cms, make('one'))
    assert answer.error == (500, 'InternalError')
    assert answer['message'].startswith(
        f'Internal error occurred: failed calling webhook "hook.conformance.test": {why}')


def test_a_mutating_hook_cannot_change_what_is_deleted(api, hook, register, cms):
    api.post(cms, make('one', data={'a': 'b'})).ok
    register('mutating', rules=[{'apiGroups': [''], 'apiVersions': ['v1'],
                                 'operations': ['DELETE'], 'resources': ['configmaps']}])
    hook.answer = lambda _: hooks.patch({'op': 'remove', 'path': '/data'})
    answer = api.delete(f'{cms}/one')
    assert answer.error == (500, 'InternalError')
    assert answer['message'].endswith(
        'attempted to modify the object, which is not supported for this operation')
    assert api.get(f'{cms}/one').ok


def test_a_mutating_hook_cannot_move_the_object(api, hook, register, cms):
    register('mutating')
    hook.answer = lambda _: hooks.patch(
        {'op': 'replace', 'path': '/metadata/namespace', 'value': 'default'})
    assert api.post(cms, make('one')).error == (400, 'BadRequest')


def test_a_mutating_hook_changes_only_what_a_client_could(api, hook, register, things, kinds):
    register('mutating', rules=[{'apiGroups': [kinds.group, ''], 'apiVersions': ['*'],
                                 'operations': ['*'], 'resources': ['things', 'configmaps']}])
    hook.answer = lambda _: hooks.patch(
        {'op': 'add', 'path': '/status', 'value': {'phase': 'x'}},
        {'op': 'replace', 'path': '/metadata/generation', 'value': 50})
    made = api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    assert 'status' not in made
    assert made['metadata']['generation'] == 1
    hook.answer = lambda _: hooks.patch({'op': 'replace', 'path': '/kind', 'value': 'Other'})
    assert api.post(things, kinds.make('things', 'two', spec={'size': 1})).causes == [
        ('FieldValueInvalid', 'kind')]


def test_an_object_in_deletion_cannot_be_created_again(api, cms):
    api.post(cms, make('one', metadata={'finalizers': ['conformance.test/x']})).ok
    api.delete(f'{cms}/one').ok
    answer = api.post(cms, make('one'))
    api.patch(f'{cms}/one', {'metadata': {'finalizers': None}}).ok
    assert answer.error == (409, 'AlreadyExists')
    assert answer['message'] == 'object is being deleted: configmaps "one" already exists'


def test_a_hook_that_is_away_refuses_everything(api, hook, register, cms):
    register(failurePolicy='Fail')
    hook.answer = lambda _: {'allowed': True, 'uid': 'another'}
    answer = api.post(cms, make('one'))
    assert answer.error == (500, 'InternalError')
    assert answer['message'].startswith(
        'Internal error occurred: failed calling webhook "hook.conformance.test": ')


def test_a_hook_that_is_away_can_be_ignored(api, hook, register, cms):
    register(failurePolicy='Ignore')
    hook.answer = lambda _: {'allowed': True, 'uid': 'another'}
    assert api.post(cms, make('one')).ok


def test_a_slow_hook_is_not_waited_for(api, hook, register, cms):
    register(timeoutSeconds=1)
    hook.delay = 1.5
    answer = api.post(cms, make('one'))
    assert answer.error == (500, 'InternalError')
    assert 'context deadline exceeded' in answer['message']


def test_only_the_operations_of_the_rules_are_asked_for(api, hook, register, cms):
    register(rules=[{'apiGroups': [''], 'apiVersions': ['v1'], 'operations': ['UPDATE'],
                     'resources': ['configmaps']}])
    api.post(cms, make('one')).ok
    assert hook.requests == []
    api.patch(f'{cms}/one', {'data': {'a': 'b'}}).ok
    assert [review['request']['operation'] for review in hook.requests] == ['UPDATE']


def test_only_the_selected_objects_are_asked_for(api, hook, register, cms):
    register(objectSelector={'matchLabels': {'a': 'b'}})
    api.wait('/version', lambda _: api.post(
        cms, make(unique(), metadata={'labels': {'a': 'b'}})) and hook.requests)
    hook.requests.clear()
    api.post(cms, make('one')).ok
    assert hook.requests == []


def test_a_hook_with_side_effects_forbids_dry_runs(api, hook, register, cms):
    answer = api.post(f'{PATH}/validatingwebhookconfigurations', {
        'apiVersion': 'admissionregistration.k8s.io/v1', 'kind': 'ValidatingWebhookConfiguration',
        'metadata': {'name': unique()}, 'webhooks': [{
            'name': 'hook.conformance.test', 'clientConfig': hook.client_config,
            'sideEffects': 'Some', 'admissionReviewVersions': ['v1'], 'rules': []}]})
    assert answer.error == (422, 'Invalid')
    assert ('FieldValueNotSupported', 'webhooks[0].sideEffects') in answer.causes


def test_what_is_not_told_of_a_hook_is_defaulted(api, hook, ns):
    name = unique()
    path = f'{PATH}/validatingwebhookconfigurations'
    [webhook] = api.post(path, {
        'apiVersion': 'admissionregistration.k8s.io/v1', 'kind': 'ValidatingWebhookConfiguration',
        'metadata': {'name': name}, 'webhooks': [{
            'name': 'hook.conformance.test', 'clientConfig': hook.client_config,
            'sideEffects': 'None', 'admissionReviewVersions': ['v1'],
            'rules': [{'apiGroups': ['x'], 'apiVersions': ['v1'], 'operations': ['*'],
                       'resources': ['y']}]}]}).ok['webhooks']
    api.delete(f'{path}/{name}').ok
    assert webhook['failurePolicy'] == 'Fail'
    assert webhook['matchPolicy'] == 'Equivalent'
    assert webhook['timeoutSeconds'] == 10
    assert webhook['namespaceSelector'] == webhook['objectSelector'] == {}
    assert webhook['rules'][0]['scope'] == '*'


def test_custom_objects_are_asked_for_with_their_names(api, hook, register, things, kinds):
    register(rules=[{'apiGroups': [kinds.group, ''], 'apiVersions': ['*'], 'operations': ['*'],
                     'resources': ['things', 'things/status', 'configmaps']}])
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    api.patch(f'{things}/one/status', {'status': {'phase': 'x'}}).ok
    created, patched = [review['request'] for review in hook.requests]
    assert created['resource'] == {'group': kinds.group, 'version': 'v1', 'resource': 'things'}
    assert created['object']['spec']['color'] == 'red'
    assert (patched.get('subResource'), patched['operation']) == ('status', 'UPDATE')
