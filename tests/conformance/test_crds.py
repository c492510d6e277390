import copy

import pytest

from tests.conformance.apis import AGGREGATED, MERGE, unique
from tests.conformance.kinds import ANYTHING, THING, Kinds, version


@pytest.fixture()
def fresh(api):
    """Kinds of a group that nobody else uses; those created by the test are gone after it."""
    found = Kinds(f"{unique('g')}.test")
    yield found
    for item in api.get(found.crds).ok['items']:
        if item['spec']['group'] == found.group:
            api.delete(f"{found.crds}/{item['metadata']['name']}")


@pytest.fixture()
def make_crd(api, fresh):
    """Create a CRD, and wait until it is served; returns the CRD."""
    def create(*args, **kwargs):
        crd = fresh.crd(*args, **kwargs)
        path = f"{fresh.crds}/{crd['metadata']['name']}"
        api.post(fresh.crds, crd).ok
        return api.wait(path, lambda answer: any(
            item['type'] == 'Established' and item['status'] == 'True'
            for item in answer['status'].get('conditions') or [])).json
    return create


@pytest.mark.parametrize(('spec', 'field', 'message'), [
    ({'size': 0}, 'spec.size', 'Invalid value: 0: spec.size in body should be greater than or '
                               'equal to 1'),
    ({'size': 11}, 'spec.size', 'Invalid value: 11: spec.size in body should be less than or equal '
                                'to 10'),
    ({'size': 'x'}, 'spec.size', 'Invalid value: "string": spec.size in body must be of type '
                                 'integer: "string"'),
    ({'size': 1.5}, 'spec.size', 'Invalid value: "number": spec.size in body must be of type '
                                 'integer: "number"'),
    ({}, 'spec.size', 'Required value'),
    ({'color': 'blue'}, 'spec.color', 'Unsupported value: "blue": supported values: "red", '
                                      '"green"'),
    ({'code': 'A1'}, 'spec.code', "Invalid value: \"A1\": spec.code in body should match "
                                  "'^[a-z]+$'"),
    ({'code': 'abcdef'}, 'spec.code', 'Too long: may not be more than 5 bytes'),
    ({'code': 'a'}, 'spec.code', 'Invalid value: "a": spec.code in body should be at least 2 chars '
                                 'long'),
    ({'email': 'x'}, 'spec.email', 'Invalid value: "x": spec.email in body must be of type '
                                   'date-time: "x"'),
    ({'flag': 'x'}, 'spec.flag', 'Invalid value: "string": spec.flag in body must be of type '
                                 'boolean: "string"'),
    ({'ratio': 0}, 'spec.ratio', 'Invalid value: 0: spec.ratio in body should be greater than 0'),
    ({'even': 3}, 'spec.even', 'Invalid value: 3: spec.even in body should be a multiple of 2'),
    ({'items': ['a', 'b', 'c', 'd']}, 'spec.items', 'Too many: 4: must have at most 3 items'),
    ({'items': 'x'}, 'spec.items', 'Invalid value: "string": spec.items in body must be of type '
                                   'array: "string"'),
    ({'items': [1]}, 'spec.items[0]', 'Invalid value: "integer": spec.items[0] in body must be of '
                                      'type string: "integer"'),
    ({'labels': {'a': '1', 'b': '2', 'c': '3'}}, 'spec.labels', 'Too many: 3: must have at most 2 '
                                                                'items'),
    ({'labels': {'a': 1}}, 'spec.labels.a', 'Invalid value: "integer": spec.labels.a in body must '
                                            'be of type string: "integer"'),
    ({'port': 1.5}, 'spec.port', 'Invalid value: "number": spec.port in body must be of type '
                                 'integer,string: "number"'),
    ({'tags': ['a', 'a']}, 'spec.tags[1]', 'Duplicate value: "a"'),
    ({'ports': [{'name': 'a'}, {'name': 'a'}]}, 'spec.ports[1]', 'Duplicate value: {"name":"a"}'),
    ({'ports': [{}]}, 'spec.ports[0].name', 'Required value'),
    ({'nested': {'b': 1}}, 'spec.nested.b', 'Invalid value: "integer": spec.nested.b in body must '
                                            'be of type string: "integer"'),
    ({'template': {}}, 'spec.template.apiVersion', 'Required value'),
])
def test_what_is_not_by_the_schema_is_refused(api, things, kinds, spec, field, message):
    full = spec if spec == {} else {'size': 5, **spec}
    answer = api.post(things, kinds.make('things', 'one', spec=full))
    assert answer.error == (422, 'Invalid')
    assert (field, message) in zip([field for _, field in answer.causes], answer.messages)


def test_all_faults_are_told_at_once(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 0, 'color': 'blue'}))
    assert {field for _, field in answer.causes} == {'spec.size', 'spec.color'}
    assert answer['message'].startswith(f'Thing.{kinds.group} "one" is invalid: [')


def test_exactly_one_of_the_alternatives_is_needed(api, things, kinds):
    spec = {'size': 1, 'choice': {'one': 'x', 'two': 'y'}}
    answer = api.post(things, kinds.make('things', 'one', spec=spec))
    assert answer.error == (422, 'Invalid')
    assert 'must validate one and only one schema (oneOf)' in answer['message']


def test_the_reasons_of_faults_are_told(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={
        'color': 'blue', 'code': 'abcdef', 'items': ['a', 'b', 'c', 'd'], 'tags': ['a', 'a']}))
    assert set(answer.causes) == {
        ('FieldValueRequired', 'spec.size'), ('FieldValueNotSupported', 'spec.color'),
        ('FieldValueTooLong', 'spec.code'), ('FieldValueTooMany', 'spec.items'),
        ('FieldValueDuplicate', 'spec.tags[1]')}


def test_defaults_are_filled_in(api, things, kinds):
    spec = {'size': 1, 'nested': {}, 'ports': [{'name': 'a'}]}
    assert api.post(things, kinds.make('things', 'one', spec=spec)).ok['spec'] == {
        'size': 1, 'replicas': 1, 'color': 'red', 'nested': {'a': 'x'},
        'ports': [{'name': 'a', 'protocol': 'TCP'}]}


def test_nulls_become_defaults(api, things, kinds):
    spec = {'size': 1, 'color': None, 'maybe': None}
    assert api.post(things, kinds.make('things', 'one', spec=spec)).ok['spec'] == {
        'size': 1, 'replicas': 1, 'color': 'red', 'maybe': None}


def test_unknown_fields_are_dropped(api, things, kinds):
    spec = {'size': 1, 'unknown': 1, 'nested': {'unknown': 2}, 'any': {'kept': 3},
            'ports': [{'name': 'a', 'unknown': 4}]}
    answer = api.post(things, kinds.make('things', 'one', spec=spec, unknown=5)).ok
    assert 'unknown' not in answer
    assert 'unknown' not in answer['spec']
    assert answer['spec']['nested'] == {'a': 'x'}
    assert answer['spec']['any'] == {'kept': 3}
    assert answer['spec']['ports'] == [{'name': 'a', 'protocol': 'TCP'}]


def test_unknown_fields_are_warned_of(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'unknown': 1}),
                      fieldValidation='Warn')
    assert answer.headers.get_all('Warning') == ['299 - "unknown field \\"spec.unknown\\""']


def test_unknown_fields_are_warned_of_by_default(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'unknown': 1}))
    assert answer.headers.get_all('Warning') == ['299 - "unknown field \\"spec.unknown\\""']


def test_refusals_have_warnings_too(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 'x', 'unknown': 1}))
    assert answer.error == (422, 'Invalid')
    assert answer.headers.get_all('Warning') == ['299 - "unknown field \\"spec.unknown\\""']


def test_unknown_fields_are_refused_if_asked_for(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'unknown': 1}),
                      fieldValidation='Strict')
    assert answer.error == (400, 'BadRequest')
    assert answer['message'] == (
        'Thing in version "v1" cannot be handled as a Thing: strict decoding error: unknown field '
        '"spec.unknown"')


def test_unknown_fields_are_ignored_if_asked_for(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'unknown': 1}),
                      fieldValidation='Ignore')
    assert answer.ok
    assert answer.headers.get_all('Warning') is None


def test_duplicate_fields_are_warned_of(api, things, kinds):
    body = (f'{{"apiVersion": "{kinds.group}/v1", "kind": "Thing", "metadata": {{"name": "one"}}, '
            f'"spec": {{"size": 1, "size": 2}}}}').encode()
    answer = api.post(things, body, fieldValidation='Warn')
    assert answer.ok['spec']['size'] == 2
    assert answer.headers.get_all('Warning') == ['299 - "duplicate field \\"spec.size\\""']


def test_only_known_ways_of_field_validation_are_accepted(api, things, kinds):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1}), fieldValidation='X')
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueNotSupported', 'fieldValidation')]


def test_any_content_is_kept_where_it_is_wanted(api, frees, kinds):
    spec = {'a': [1, {'b': None}], 'c': 1.5, 'd': True, 'e': '', 'f': {}}
    assert api.post(frees, kinds.make('frees', 'one', spec=spec, extra=1)).ok['spec'] == spec


def test_ints_and_strings_are_both_accepted_where_wanted(api, things, kinds):
    for name, port in [('one', 80), ('two', '80%')]:
        obj = api.post(things, kinds.make('things', name, spec={'size': 1, 'port': port})).ok
        assert obj['spec']['port'] == port


def test_whole_numbers_are_integers(api, things, kinds):
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 2.0})).ok
    assert obj['spec']['size'] == 2
    assert isinstance(obj['spec']['size'], int)


def test_embedded_resources_keep_their_metadata(api, things, kinds):
    template = {'apiVersion': 'v1', 'kind': 'X', 'metadata': {'name': 'y', 'unknown': 1}, 'z': 1}
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'template': template})).ok
    assert obj['spec']['template'] == {**template, 'metadata': {'name': 'y'}}


@pytest.mark.parametrize(('template', 'field', 'message'), [
    ({'kind': ''}, 'kind', 'Invalid value: "": must not be empty'),
    ({'kind': 'A b'}, 'kind', 'Invalid value: "A b": may have mixed case, but should otherwise '
                              'match: a DNS-1035 label must'),
    ({'apiVersion': 'a/b/c'}, 'apiVersion',
     'Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c'),
    ({'metadata': {'namespace': 'a.b'}}, 'metadata.namespace',
     'Invalid value: "a.b": must not contain dots'),
    ({'metadata': {'generation': -1}}, 'metadata.generation',
     'Invalid value: -1: must be greater than or equal to 0'),
    ({'metadata': {'finalizers': ['/x']}}, 'metadata.finalizers',
     'Invalid value: "/x": prefix part must be non-empty'),
    ({'metadata': {'ownerReferences': [{'apiVersion': 'v1', 'kind': 'X', 'name': 'x'}]}},
     'metadata.ownerReferences.uid', 'Invalid value: "": must not be empty'),
])
def test_embedded_resources_are_validated(api, things, kinds, template, field, message):
    answer = api.post(things, kinds.make('things', 'one', spec={
        'size': 1, 'template': {'apiVersion': 'v1', 'kind': 'Pod', **template}}))
    (cause,) = answer['details']['causes']
    assert cause['field'] == f'spec.template.{field}'
    assert cause['message'].startswith(message)


def test_the_status_of_a_new_object_is_dropped(api, things, kinds):
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 1}, status={'phase': 'x'})).ok
    assert 'status' not in obj


def test_the_status_of_a_new_object_is_kept_where_it_is_no_subresource(api, frees, kinds):
    assert api.post(frees, kinds.make('frees', 'one', status={'a': 1})).ok['status'] == {'a': 1}


def test_the_status_is_replaced_by_itself(api, things, kinds):
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    changed = {**obj, 'spec': {'size': 2}, 'status': {'phase': 'x', 'unknown': 1}}
    new = api.put(f'{things}/one/status', changed).ok
    assert (new['spec']['size'], new['status']) == (1, {'phase': 'x'})


def test_the_status_is_validated(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    answer = api.patch(f'{things}/one/status', {'status': {'phase': 1}})
    assert answer.error == (422, 'Invalid')
    assert answer.causes == [('FieldValueTypeInvalid', 'status.phase')]


def test_the_scale_is_told(api, things, kinds, ns):
    obj = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'replicas': 3})).ok
    api.patch(f'{things}/one/status', {'status': {'replicas': 2, 'selector': 'a=b'}}).ok
    scale = api.get(f'{things}/one/scale').ok
    assert (scale['kind'], scale['apiVersion']) == ('Scale', 'autoscaling/v1')
    assert scale['spec'] == {'replicas': 3}
    assert scale['status'] == {'replicas': 2, 'selector': 'a=b'}
    assert scale['metadata']['uid'] == obj['metadata']['uid']
    assert (scale['metadata']['name'], scale['metadata']['namespace']) == ('one', ns)


def test_the_scale_can_be_changed(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    assert api.patch(f'{things}/one/scale', {'spec': {'replicas': 7}}).ok['spec'] == {
        'replicas': 7}
    assert api.get(f'{things}/one').ok['spec']['replicas'] == 7


def test_the_scale_can_be_replaced(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    scale = api.get(f'{things}/one/scale').ok
    scale['spec'] = {'replicas': 5}
    assert api.put(f'{things}/one/scale', scale).ok['spec'] == {'replicas': 5}


@pytest.mark.parametrize('replicas', [-1, 'x'])
def test_bad_scales_are_refused(api, things, kinds, replicas):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    answer = api.patch(f'{things}/one/scale', {'spec': {'replicas': replicas}})
    assert answer.error == (422, 'Invalid')


@pytest.mark.parametrize(('replicas', 'message'), [
    (-1, 'Invalid value: -1: should be a non-negative integer'),
    (2**31, 'Invalid value: 2147483648: should be less than or equal to 2147483647'),
    (1.5, 'Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, '
          'expected int64'),
])
def test_objects_with_bad_scales_are_refused(api, things, kinds, replicas, message):
    answer = api.post(things, kinds.make('things', 'one', spec={'size': 1, 'replicas': replicas}))
    assert answer.error == (422, 'Invalid')
    assert ('FieldValueInvalid', '.spec.replicas') in answer.causes
    assert message in answer.messages


def test_bad_selectors_of_scales_are_refused(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 1})).ok
    answer = api.patch(f'{things}/one/status', {'status': {'selector': 5}})
    assert answer.messages[-1] == ('Invalid value: "": .status.selector accessor error: '
                                   '5 is of the type int64, expected string')


def test_a_new_kind_gets_its_conditions_and_names(make_crd):
    crd = make_crd('toys')
    status = crd['status']
    assert [(item['type'], item['status'], item['reason']) for item in status['conditions']] == [
        ('NamesAccepted', 'True', 'NoConflicts'),
        ('Established', 'True', 'InitialNamesAccepted')]
    assert status['acceptedNames'] == {
        'plural': 'toys', 'singular': 'toy', 'kind': 'Toy', 'listKind': 'ToyList'}
    assert status['storedVersions'] == ['v1']


def test_what_is_not_told_of_a_kind_is_defaulted(make_crd):
    spec = make_crd('toys')['spec']
    assert spec['names'] == {
        'plural': 'toys', 'singular': 'toy', 'kind': 'Toy', 'listKind': 'ToyList'}
    assert spec['conversion'] == {'strategy': 'None'}


def test_a_kind_is_gone_with_its_objects(api, make_crd, fresh, ns):
    crd = make_crd('toys')
    path = fresh.path('toys', namespace=ns)
    api.wait(path, lambda _: api.post(path, fresh.make('toys', 'one')).status == 201)
    api.delete(f"{fresh.crds}/{crd['metadata']['name']}").ok
    api.wait_gone(f"{fresh.crds}/{crd['metadata']['name']}")
    api.wait_gone(path)


def test_a_kind_in_deletion_holds_a_finalizer(api, make_crd, fresh):
    crd = make_crd('toys')
    assert crd['metadata'].get('finalizers') is None
    answer = api.delete(f"{fresh.crds}/{crd['metadata']['name']}").ok
    assert answer['metadata']['finalizers'] == ['customresourcecleanup.apiextensions.k8s.io']


@pytest.fixture()
def held(api, make_crd, fresh, ns):
    """The path of a namespace's toys, whose kind is in deletion: a finalizer holds one toy."""
    crd = make_crd('toys')
    path, name = fresh.path('toys', namespace=ns), f"{fresh.crds}/{crd['metadata']['name']}"
    toy = fresh.make('toys', 'one')
    toy['metadata']['finalizers'] = ['a.b/c']
    api.wait(path, lambda _: api.post(path, toy).status == 201)
    api.delete(name).ok
    api.wait(name, lambda answer: len(answer['status']['conditions']) == 3)
    api.wait(f'{path}/one', lambda answer: 'deletionTimestamp' in answer['metadata'])
    yield path
    api.patch(f'{path}/one', {'metadata': {'finalizers': None}})
    api.wait_gone(name)


def test_a_kind_in_deletion_tells_so(api, held, fresh):
    condition = api.get(f'{fresh.crds}/toys.{fresh.group}')['status']['conditions'][-1]
    del condition['lastTransitionTime']
    assert condition == {
        'type': 'Terminating', 'status': 'True', 'reason': 'InstanceDeletionInProgress',
        'message': "CustomResource deletion is in progress"}


def test_a_kind_in_deletion_has_fewer_verbs(api, held, fresh):
    few = ['delete', 'deletecollection', 'get', 'list', 'watch']
    api.wait(f'/apis/{fresh.group}/v1', lambda answer: answer.status == 200 and sorted(
        answer['resources'][0]['verbs']) == few)
    api.wait('/apis', lambda answer: [
        sorted(item['versions'][0]['resources'][0]['verbs']) for item in answer['items']
        if item['metadata']['name'] == fresh.group] == [few], accept=AGGREGATED)


def test_objects_of_a_kind_in_deletion_can_be_changed(api, held):
    assert api.patch(f'{held}/one', {'metadata': {'labels': {'a': 'b'}}}).ok
    assert api.put(f'{held}/one', api.get(f'{held}/one').ok).ok


def test_objects_of_a_kind_in_deletion_cannot_be_created(api, held, fresh):
    for answer in [api.post(held, fresh.make('toys', 'two')),
                   api.apply(f'{held}/two', fresh.make('toys', 'two'))]:
        assert answer.error == (403, 'Forbidden')
        assert answer['message'] == (
            f'toys.{fresh.group} "two" is forbidden: create not allowed while custom resource '
            f'definition is terminating')


def test_versions_that_are_not_served_are_not_found(api, make_crd, fresh, ns):
    make_crd('toys', version('v1'), {**version('v2'), 'served': False, 'storage': False})
    api.wait(fresh.path('toys', namespace=ns), lambda answer: answer.status == 200)
    assert api.get(fresh.path('toys', namespace=ns, version='v2')).status == 404


def test_versions_are_preferred_by_their_stability(api, make_crd, fresh):
    names = ['v1', 'v2', 'v10beta1', 'v2alpha1', 'v11']
    make_crd('toys', *[version(name) for name in names])
    answer = api.wait(  # a real API shows one after another
        f'/apis/{fresh.group}',
        lambda answer: answer.status == 200 and len(answer.ok['versions']) == len(names))
    assert [item['version'] for item in answer['versions']] == [
        'v11', 'v2', 'v1', 'v10beta1', 'v2alpha1']


def test_an_unchanged_object_is_written_only_if_it_is_stored_in_a_former_version(
        api, make_crd, fresh, ns):
    crd = make_crd('toys', version('v1'), version('v2'))
    path, definition = fresh.path('toys', namespace=ns), f"{fresh.crds}/{crd['metadata']['name']}"
    api.wait(path, lambda _: api.post(path, fresh.make('toys', 'one')).status == 201)
    made = api.get(f'{path}/one').ok

    def write(obj):
        guard = {key: obj['metadata'][key] for key in ('uid', 'resourceVersion')}
        return api.patch(f'{path}/one', {'metadata': guard}, MERGE).ok

    assert write(made) == made
    crd = api.get(definition).ok
    for item in crd['spec']['versions']:
        item['storage'] = item['name'] == 'v2'
    assert api.put(definition, crd).ok['status']['storedVersions'] == ['v1', 'v2']
    api.wait(f'{path}/one', lambda _: write(made) != made)  # it takes a moment in a real API
    written = api.get(f'{path}/one').ok
    assert written['metadata'] == {
        **made['metadata'], 'resourceVersion': written['metadata']['resourceVersion']}
    assert write(written) == written


def test_versions_are_not_stored_any_more_when_somebody_says_so(api, make_crd, fresh):
    crd = make_crd('toys', version('v1'), version('v2'))
    path = f"{fresh.crds}/{crd['metadata']['name']}"
    for item in crd['spec']['versions']:
        item['storage'] = item['name'] == 'v2'
    api.put(path, {**api.get(path).ok, 'spec': crd['spec']}).ok
    crd = api.patch(f'{path}/status', {'status': {'storedVersions': ['v2']}}, MERGE).ok
    assert crd['status']['storedVersions'] == ['v2']
    crd['spec']['versions'] = [item for item in crd['spec']['versions'] if item['name'] == 'v2']
    assert api.put(path, crd).ok['status']['storedVersions'] == ['v2']


def test_an_unchanged_object_is_refused_only_by_rules_about_its_former_state(
        api, make_crd, fresh, ns):
    crd = make_crd('toys', version('v1'))
    path, definition = fresh.path('toys', namespace=ns), f"{fresh.crds}/{crd['metadata']['name']}"
    api.wait(path, lambda _: api.post(path, fresh.make('toys', 'one', a=9, b=[9])).status == 201)

    def change(rule):
        size = {'type': 'integer', 'x-kubernetes-validations': [{'rule': rule}]}
        schema = {'type': 'object', 'properties': {
            'a': size, 'b': {'type': 'array', 'maxItems': 9, 'items': {
                'type': 'integer', 'x-kubernetes-validations': [{'rule': 'self < 5'}]}}}}
        crd = api.get(definition).ok
        crd['spec']['versions'] = [version('v1', schema)]
        api.put(definition, crd).ok

    change('self < 5')
    api.wait(path, lambda _: api.patch(f'{path}/one', {'a': 8}, MERGE).status == 422)
    assert api.patch(f'{path}/one', {'metadata': {}}, MERGE).ok
    change('oldSelf < 5')
    api.wait(path, lambda _: api.patch(f'{path}/one', {'metadata': {}}, MERGE).causes == [
        ('FieldValueInvalid', 'a')])


def test_a_change_of_the_schema_counts_at_once(api, make_crd, fresh, ns):
    strict = {'type': 'object', 'properties': {'a': {'type': 'integer'}}}
    crd = make_crd('toys', version('v1', strict))
    path, name = fresh.path('toys', namespace=ns), crd['metadata']['name']
    api.wait(path, lambda _: api.post(path, fresh.make('toys', 'one', a=1, b=2)).status == 201)
    assert 'b' not in api.get(f'{path}/one').json
    crd = api.get(f'{fresh.crds}/{name}').ok
    crd['spec']['versions'][0]['schema']['openAPIV3Schema'] = ANYTHING
    api.put(f'{fresh.crds}/{name}', crd).ok
    api.wait(path, lambda _: 'b' in api.patch(f'{path}/one', {'b': 2}, MERGE).json)


def test_stored_objects_are_read_by_the_present_schema(api, make_crd, fresh, ns):
    number, three = {'type': 'integer'}, {'type': 'integer', 'default': 3}
    crd = make_crd('toys', version('v1', {'type': 'object', 'properties': {'a': number}}))
    path, name = fresh.path('toys', namespace=ns), crd['metadata']['name']
    api.wait(path, lambda _: api.post(path, fresh.make('toys', 'one', a=1)).status == 201)
    before = api.get(f'{path}/one').ok

    def check(properties, expected):
        crd = api.get(f'{fresh.crds}/{name}').ok
        crd['spec']['versions'][0]['schema']['openAPIV3Schema'] = {
            'type': 'object', 'properties': properties}
        api.put(f'{fresh.crds}/{name}', crd).ok
        expected = {key: before[key] for key in ('apiVersion', 'kind', 'metadata')} | expected
        api.wait(f'{path}/one', lambda answer: answer.json == expected)
        api.wait(path, lambda answer: answer.json.get('items') == [expected])

    check({'a': number, 'b': three}, {'a': 1, 'b': 3})
    check({'b': three}, {'b': 3})
    check({'a': number}, {'a': 1})
    check({'a': number, 'b': three}, {'a': 1, 'b': 3})
    before = api.patch(f'{path}/one', {'metadata': {'labels': {'x': 'y'}}}).ok
    assert (before['a'], before['b']) == (1, 3)
    check({'a': number, 'b': number}, {'a': 1, 'b': 3})


def test_names_in_use_are_not_accepted(api, make_crd, fresh):
    make_crd('toys')
    other = fresh.crd('toyz', kind='Toy')
    api.post(fresh.crds, other).ok
    path = f'{fresh.crds}/toyz.{fresh.group}'
    answer = api.wait(path, lambda answer: answer['status'].get('conditions'))
    conditions = {item['type']: item for item in answer['status']['conditions']}
    assert conditions['NamesAccepted']['status'] == 'False'
    assert conditions['NamesAccepted']['reason'] in ('KindConflict', 'ListKindConflict')
    assert conditions['Established']['status'] == 'False'


def change(crd, path, value):
    crd = copy.deepcopy(crd)
    target = crd
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return crd


SCHEMA = ('spec', 'versions', 0, 'schema', 'openAPIV3Schema')


@pytest.mark.parametrize(('path', 'value', 'field', 'message'), [
    (('metadata', 'name'), 'x.y', 'metadata.name',
     'Invalid value: "x.y": must be spec.names.plural+"."+spec.group'),
    (('spec', 'scope'), 'Nowhere', 'spec.scope',
     'Unsupported value: "Nowhere": supported values: "Cluster", "Namespaced"'),
    (('spec', 'scope'), None, 'spec.scope', 'Required value'),
    (('spec', 'group'), None, 'spec.group', 'Required value'),
    (('spec', 'names', 'kind'), None, 'spec.names.kind', 'Required value'),
    (('spec', 'names', 'plural'), 'Toys', 'spec.names.plural', None),
    (('spec', 'versions'), [], 'spec.versions', None),
    (('spec', 'versions', 0, 'storage'), False, 'spec.versions',
     'Invalid value: [{"Name":"v1","Served":true,"Storage":false,"Deprecated":false,'
     '"DeprecationWarning":null,"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,'
     '"SelectableFields":null}]: must have exactly one version marked as storage version'),
    (('spec', 'versions', 0, 'name'), 'V_1', 'spec.versions[0].name', None),
    (('spec', 'versions', 0, 'schema'), None, 'spec.versions[0].schema.openAPIV3Schema',
     'Required value'),
    (SCHEMA, {'properties': {}}, 'spec.validation.openAPIV3Schema.type',
     'Required value: must not be empty at the root'),
    ((*SCHEMA, 'type'), 'array', 'spec.validation.openAPIV3Schema.type',
     'Invalid value: "array": must be object at the root'),
    ((*SCHEMA, 'properties'), {'a': {}},
     'spec.validation.openAPIV3Schema.properties[a].type',
     'Required value: must not be empty for specified object fields'),
    ((*SCHEMA, 'properties'), {'a': {'type': 'nonsense'}},
     'spec.validation.openAPIV3Schema.properties[a].type', None),
    ((*SCHEMA, 'properties'), {'a': {'type': 'array'}},
     'spec.validation.openAPIV3Schema.properties[a].items',
     'Required value: must be specified'),
    ((*SCHEMA, 'properties'), {'a': {'type': 'integer', 'default': 'x'}},
     'spec.validation.openAPIV3Schema.properties[a].default', None),
    ((*SCHEMA, 'properties'), {'a': {'type': 'string', 'pattern': '('}},
     'spec.validation.openAPIV3Schema.properties[a].pattern', None),
    ((*SCHEMA, '$ref'), '#/x', 'spec.validation.openAPIV3Schema.$ref', None),
    ((*SCHEMA, 'x-kubernetes-preserve-unknown-fields'), False,
     'spec.validation.openAPIV3Schema.x-kubernetes-preserve-unknown-fields', None),
])
def test_broken_kinds_are_refused(api, fresh, path, value, field, message):
    answer = api.post(fresh.crds, change(fresh.crd('toys'), path, value))
    assert answer.error == (422, 'Invalid')
    messages = dict(zip([field for _, field in answer.causes], answer.messages))
    assert field in messages
    assert message is None or messages[field] == message


@pytest.mark.parametrize(('path', 'value', 'field'), [
    (('spec', 'scope'), 'Cluster', 'spec.scope'),
    (('spec', 'names', 'kind'), 'Other', 'spec.names.kind'),
])
def test_some_of_a_kind_cannot_be_changed(api, make_crd, fresh, path, value, field):
    crd = make_crd('toys')
    answer = api.put(f"{fresh.crds}/{crd['metadata']['name']}", change(crd, path, value))
    assert answer.error == (422, 'Invalid')
    assert ('FieldValueInvalid', field) in answer.causes
    assert any('field is immutable' in message for message in answer.messages)


@pytest.mark.parametrize(('rule', 'spec', 'message'), [
    ({'rule': 'self.size > 1'}, {'size': 1}, 'failed rule: self.size > 1'),
    ({'rule': 'self.size > 1', 'message': 'too small'}, {'size': 1}, 'too small'),
    ({'rule': 'self.size > 1'}, {'size': 2}, None),
    ({'rule': 'self.size > 1'}, {}, 'no such key: size evaluating rule: self.size > 1'),
    ({'rule': 'self.size > 1', 'message': 'too small'}, {},
     'no such key: size evaluating rule: too small'),
    ({'rule': "self.wait < duration('1m')", 'message': 'too long'}, {'wait': '1h5m'}, 'too long'),
    ({'rule': "self.wait < duration('1m')"}, {'wait': '0.5s'}, None),
    ({'rule': 'self.key.size() == 2'}, {'key': 'YWI='}, None),
])
def test_rules_are_checked(api, make_crd, fresh, ns, rule, spec, message):
    make_crd('toys', version('v1', make_ruled(rule)))
    path = fresh.path('toys', namespace=ns)
    answer = create_first(api, path, fresh.make('toys', 'one', spec=spec))
    if message is None:
        assert answer.ok
    else:
        assert answer.causes == [('FieldValueInvalid', 'spec')]
        value = '"object": ' if message.startswith('no such key') else ''
        assert answer.messages == [f'Invalid value: {value}{message}']


def test_rules_about_the_former_state_can_be_for_new_objects_too(api, make_crd, fresh, ns):
    make_crd('toys', version('v1', make_ruled({
        'rule': 'oldSelf.hasValue() ? self.size > oldSelf.value().size : self.size == 1',
        'optionalOldSelf': True, 'message': 'no'})))
    path = fresh.path('toys', namespace=ns)
    refused = create_first(api, path, fresh.make('toys', 'one', spec={'size': 2}))
    assert refused.messages == ['Invalid value: no']
    api.post(path, fresh.make('toys', 'one', spec={'size': 1})).ok
    api.patch(f'{path}/one', {'spec': {'size': 2}}).ok
    assert api.patch(f'{path}/one', {'spec': {'size': 1}}).messages == ['Invalid value: no']


def test_rules_of_whole_objects_have_no_field(api, make_crd, fresh, ns):
    make_crd('toys', version('v1', {'type': 'object', 'x-kubernetes-validations': [
        {'rule': "self.metadata.name == 'x'", 'message': 'no'}]}))
    path = fresh.path('toys', namespace=ns)
    refused = create_first(api, path, fresh.make('toys', 'one'))
    assert refused.causes == [('FieldValueInvalid', '<nil>')]


def make_ruled(rule):
    """A schema with a rule about the spec."""
    return {'type': 'object', 'properties': {'spec': {
        'type': 'object', 'x-kubernetes-validations': [rule],
        'properties': {
            'size': {'type': 'integer'}, 'wait': {'type': 'string', 'format': 'duration'},
            'key': {'type': 'string', 'format': 'byte', 'maxLength': 10}}}}}


def create_first(api, path, obj):
    """Try to create an object of a new kind, as soon as that is served."""
    answers = []

    def is_answered(_):
        answers.append(api.post(path, obj))
        return answers[-1].status not in (404, 429)

    api.wait(path, is_answered)
    return answers[-1]


def test_schemas_are_answered_as_they_were_given(api, make_crd, fresh):
    crd = make_crd('toys', version('v1', THING))
    assert crd['spec']['versions'][0]['schema']['openAPIV3Schema'] == THING
