import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._kits.sandbox import crdrules, crds, schemas
from tests._kits.sandbox import recorded

CRD = schemas.define(
    'io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition')
NOW = '2026-01-01T00:00:00Z'
VERSION = {'name': 'v1', 'served': True, 'storage': True, 'schema': {'openAPIV3Schema': {
    'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}


def make(name='foos', **spec):
    return crds.complete({
        'apiVersion': crds.API_VERSION, 'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{name}.s2.test'},
        'spec': {'group': 's2.test', 'scope': 'Namespaced', 'versions': [VERSION],
                 'names': {'plural': name, 'kind': name[:-1].capitalize()}, **spec}})


def serve(crd, *others):
    return {**crd, 'status': crds.status_of(crd, others, NOW)}


def validate(crd, old=None):
    return [(cause.field, cause.message) for cause in crdrules.validate(crd, old)]


@pytest.mark.parametrize(
    'row', recorded.load('definitions'), ids=lambda row: json.dumps(row['schema'])[20:90])
def test_a_schema_is_taken_or_refused_as_by_the_real_api(row):
    crd = make(versions=[{**VERSION, 'schema': row['schema']}])
    if isinstance(row['causes'], str):
        with pytest.raises(schemas.Undecodable) as e:
            schemas.decode(CRD, crd)
        assert row['causes'].endswith(f': {e.value}')
        return
    crd, _ = schemas.decode(CRD, crd)
    found = crdrules.validate(crd)
    assert sorted([cause.type, cause.field, cause.message] for cause in found) == sorted(
        row['causes'])


def test_names_that_are_left_out_are_made_of_the_kind():
    names = make()['spec']['names']
    assert names == {'plural': 'foos', 'kind': 'Foo', 'singular': 'foo', 'listKind': 'FooList'}


def test_a_definition_is_completed_once():
    crd = make(conversion={'strategy': 'Webhook', 'webhook': {'clientConfig': {
        'service': {'name': 'x', 'namespace': 'y'}}}})
    assert crd['spec']['conversion']['webhook']['clientConfig']['service']['port'] == 443
    assert crds.complete(crd) == crd


def test_a_definition_with_free_names_is_established():
    crd = serve(make())
    assert crds.is_established(crd)
    assert crd['status'] == {
        'conditions': [
            {'type': 'NamesAccepted', 'status': 'True', 'lastTransitionTime': NOW,
             'reason': 'NoConflicts', 'message': 'no conflicts found'},
            {'type': 'Established', 'status': 'True', 'lastTransitionTime': NOW,
             'reason': 'InitialNamesAccepted',
             'message': 'the initial names have been accepted'}],
        'acceptedNames': {
            'plural': 'foos', 'singular': 'foo', 'kind': 'Foo', 'listKind': 'FooList'},
        'storedVersions': ['v1'],
    }


def test_a_status_that_is_right_stays_as_it_is():
    crd = serve(make())
    assert crds.status_of(crd, [], '2027-01-01T00:00:00Z') == crd['status']


def test_names_that_another_definition_has_are_not_accepted():
    other = serve(make())
    crd = serve(make('bars', names={'plural': 'bars', 'kind': 'Foo', 'singular': 'foo'}), other)
    assert not crds.is_established(crd)
    [accepted, established] = crd['status']['conditions']
    assert (accepted['reason'], accepted['message']) == (
        'ListKindConflict', '"FooList" is already in use')
    assert (established['reason'], established['message']) == (
        'NotAccepted', 'not all names are accepted')
    assert crd['status']['acceptedNames']['plural'] == 'bars'


def test_all_storage_versions_ever_are_remembered():
    crd = serve(make())
    crd['spec'] = {**crd['spec'], 'versions': [
        {**VERSION, 'storage': False}, {**VERSION, 'name': 'v2'}]}
    assert serve(crd)['status']['storedVersions'] == ['v1', 'v2']


def test_a_storage_version_that_was_used_cannot_go():
    old = serve(make())
    new = serve(make(versions=[{**VERSION, 'name': 'v2'}]))
    new['status'] = crds.status_of({**new, 'status': old['status']}, [], NOW)
    assert [field for field, _ in validate(new, old)] == ['status.storedVersions[0]']


@pytest.mark.parametrize('spec, causes', [
    ({'scope': 'X'}, [
        ('spec.scope', 'Unsupported value: "X": supported values: "Cluster", "Namespaced"')]),
    ({'group': 'foo'}, [
        ('metadata.name',
         'Invalid value: "foos.s2.test": must be spec.names.plural+"."+spec.group'),
        ('spec.group', 'Invalid value: "foo": should be a domain with at least one dot')]),
    ({'versions': []}, [
        ('spec.versions',
         'Invalid value: null: must have exactly one version marked as storage version'),
        ('status.storedVersions', 'Invalid value: null: must have at least one stored version')]),
    ({'versions': [{'name': 'v1', 'served': True, 'storage': True}]}, [
        ('spec.versions[0].schema.openAPIV3Schema', 'Required value')]),
    ({'versions': [VERSION, {**VERSION, 'name': 'v2'}]}, [
        ('spec.versions', 'Invalid value: ' + json.dumps([
            {'Name': name, 'Served': True, 'Storage': True, 'Deprecated': False,
             'DeprecationWarning': None, 'Schema': None, 'Subresources': None,
             'AdditionalPrinterColumns': None, 'SelectableFields': None} for name in ('v1', 'v2')
        ], separators=(',', ':')) + ': must have exactly one version marked as storage version'),
        ('status.storedVersions', 'Invalid value: ["v1"]: must have the storage version v2')]),
    ({'names': {'plural': 'foos', 'kind': 'Foo', 'listKind': 'Foo'}}, [
        ('spec.names.listKind', 'Invalid value: "Foo": kind and listKind may not be the same')]),
    ({'names': {'plural': 'foos'}}, [
        ('spec.names.singular', 'Required value'), ('spec.names.kind', 'Required value'),
        ('spec.names.listKind', 'Required value')]),
    ({'preserveUnknownFields': True}, [
        ('spec.preserveUnknownFields',
         'Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to '
         'true in spec.versions[*].schema instead')]),
    ({'conversion': {'strategy': 'Webhook'}}, [
        ('spec.conversion.webhookClientConfig',
         'Required value: required when strategy is set to Webhook'),
        ('spec.conversion.conversionReviewVersions', 'Required value')]),
    ({'versions': [{**VERSION, 'subresources': {'scale': {
        'specReplicasPath': 'spec.x', 'statusReplicasPath': '.spec.y',
        'labelSelectorPath': '.foo'}}}]}, [
        ('spec.subresources.scale.specReplicasPath',
         'Invalid value: "spec.x": must be a simple json path starting with .'),
        ('spec.subresources.scale.statusReplicasPath',
         'Invalid value: ".spec.y": should be a json path under .status'),
        ('spec.subresources.scale.labelSelectorPath',
         'Invalid value: ".foo": should be a json path under either .spec or .status')]),
    ({'versions': [{**VERSION, 'additionalPrinterColumns': [
        {'name': 'a', 'type': 'foo', 'jsonPath': 'x'},
        {'name': 'b', 'type': 'date', 'format': 'foo', 'jsonPath': '.a'}]}]}, [
        ('spec.additionalPrinterColumns[0].type',
         'Invalid value: "foo": must be one of boolean,date,integer,number,string'),
        ('spec.additionalPrinterColumns[0].JSONPath',
         'Invalid value: "x": must be a simple json path starting with .'),
        ('spec.additionalPrinterColumns[1].format',
         'Invalid value: "foo": must be one of byte,date,date-time,double,float,int32,int64,'
         'password')]),
    ({'versions': [{**VERSION, 'selectableFields': [{'jsonPath': '.spec.x'}]}]}, [
        ('spec.selectableFields[0].jsonPath',
         'Invalid value: ".spec.x": is an invalid path: does not refer to a valid field')]),
])
def test_a_definition_is_refused_in_the_words_of_the_api(spec, causes):
    assert validate(make(**spec)) == causes


def test_unknown_formats_are_warned_of():
    schema = {'type': 'object', 'properties': {'a': {'type': 'string', 'format': 'foo'}}}
    crd = make(versions=[{**VERSION, 'schema': {'openAPIV3Schema': schema}}])
    assert crdrules.warn(crd) == ['unrecognized format "foo"']


def test_served_versions_become_kinds_in_the_order_of_preference():
    names = ['v1alpha1', 'v2', 'v10', 'v1', 'foo', 'v3beta1', 'v9']
    versions = [{**VERSION, 'name': name, 'storage': name == 'v1', 'served': name != 'v9'}
                for name in names]
    found = crds.kinds_of(make(versions=versions))
    assert [kind.version for kind in found] == ['v10', 'v2', 'v1', 'v3beta1', 'v1alpha1', 'foo']
    assert {kind.storage_version for kind in found} == {'v1'}


def test_a_kind_has_what_its_version_declares():
    version = {
        **VERSION,
        'subresources': {'status': {}, 'scale': {
            'specReplicasPath': '.spec.n', 'statusReplicasPath': '.status.n'}},
        'additionalPrinterColumns': [{'name': 'N', 'type': 'integer', 'jsonPath': '.spec.n'}],
    }
    names = {'plural': 'foos', 'kind': 'Foo', 'shortNames': ['f'], 'categories': ['all']}
    [kind] = crds.kinds_of(make(names=names, versions=[version]))
    assert kind.has_status
    assert kind.scaling is not None and kind.scaling.spec_path == '.spec.n'
    assert [column.name for column in kind.columns] == ['Name', 'N']
    assert (kind.short_names, kind.categories) == (('f',), ('all',))
    assert kind.list_kind == 'FooList'


def test_a_kind_with_no_columns_shows_its_age():
    [kind] = crds.kinds_of(make())
    assert [column.name for column in kind.columns] == ['Name', 'Age']


def test_a_deprecated_version_warns_and_names_the_better_one():
    versions = [{**VERSION, 'name': 'v1', 'deprecated': True},
                {**VERSION, 'name': 'v2', 'storage': False}]
    v2, v1 = crds.kinds_of(make(versions=versions))
    assert v1.warning == 's2.test/v1 Foo is deprecated; use s2.test/v2 Foo'
    assert not v2.warning


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
KEYWORDS = st.sampled_from([
    'type', 'properties', 'items', 'additionalProperties', 'default', 'enum', 'pattern', 'format',
    'required', 'nullable', 'anyOf', 'not', 'x-kubernetes-list-type', 'x-kubernetes-list-map-keys',
    'x-kubernetes-validations', 'x-kubernetes-preserve-unknown-fields', 'minimum', 'maxLength'])
JUNK = st.recursive(SCALARS | st.sampled_from(['object', 'array', 'string', 'integer']), lambda x: (
    st.lists(x, max_size=2) | st.dictionaries(KEYWORDS, x, max_size=4)), max_leaves=12)


@given(JUNK, JUNK)
def test_no_junk_in_a_definition_breaks_anything(junk, value):
    """What is taken for a definition can then be used on any object."""
    crd = {'metadata': {'name': 'foos.s2.test'}, 'spec': {
        'group': 's2.test', 'scope': 'Namespaced', 'names': {'plural': 'foos', 'kind': 'Foo'},
        'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': {
            'openAPIV3Schema': {'type': 'object', 'properties': {'spec': junk}}}}]}}
    before = copy.deepcopy(crd)
    try:
        decoded, _ = schemas.decode(CRD, crd)
    except schemas.Undecodable:
        return
    finally:
        assert crd == before
    decoded = crds.complete(decoded)
    if not crdrules.validate(decoded):
        [kind] = crds.kinds_of(decoded)
        schema = schemas.schema_of(kind)
        obj, _ = schemas.prune(schema, {'metadata': {}, 'spec': value})
        schemas.validate(schema, schemas.default(schema, obj))


SPECS = st.dictionaries(st.sampled_from([
    'group', 'names', 'scope', 'versions', 'conversion', 'preserveUnknownFields']),
    st.recursive(
        SCALARS | st.sampled_from(['v1', 'foos', 'Foo', 'Cluster', 'Webhook', 's2.test']),
        lambda x: st.lists(x, max_size=2) | st.dictionaries(st.sampled_from([
            'name', 'served', 'storage', 'schema', 'openAPIV3Schema', 'subresources', 'scale',
            'additionalPrinterColumns', 'selectableFields', 'plural', 'kind', 'strategy', 'webhook',
            'clientConfig', 'service', 'shortNames', 'specReplicasPath', 'jsonPath']), x)))


@given(SPECS)
def test_no_junk_instead_of_a_definition_breaks_anything(spec):
    try:
        crd, _ = schemas.decode(CRD, {'metadata': {'name': 'x'}, 'spec': spec})
    except schemas.Undecodable:
        return
    crd = crds.complete(crd)
    crd['status'] = crds.initial_status(crd)
    crdrules.warn(crd)
    if not crdrules.validate(crd):
        crds.status_of(crd, [], NOW)
