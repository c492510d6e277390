import pytest

from kopf._kits.sandbox import kinds, schemas

DEPLOYMENT = schemas.define('io.k8s.api.apps.v1.Deployment')
CONFIGMAP = schemas.define('io.k8s.api.core.v1.ConfigMap')
SECRET = schemas.define('io.k8s.api.core.v1.Secret')
LEASE = schemas.define('io.k8s.api.coordination.v1.Lease')
CRD = schemas.define(
    'io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition')


@pytest.mark.parametrize('schema, obj, text', [
    (CONFIGMAP, {'data': {'a': 5}},
     "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"),
    (CONFIGMAP, {'data': 5},
     "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string"),
    (CONFIGMAP, {'metadata': 5},
     "json: cannot unmarshal number into Go struct field ConfigMap.metadata of type v1.ObjectMeta"),
    (CONFIGMAP, {'metadata': {'generation': 'x'}},
     "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.generation of type "
     "int64"),
    (CONFIGMAP, {'metadata': {'finalizers': 'x'}},
     "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.finalizers of type "
     "[]string"),
    (DEPLOYMENT, {'spec': {'replicas': 'x'}},
     "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type "
     "int32"),
    (CRD, {'spec': {'versions': 'foo'}},
     "json: cannot unmarshal string into Go struct field CustomResourceDefinitionSpec.spec.versions"
     " of type []v1.CustomResourceDefinitionVersion"),
    (SECRET, {'data': {'a': '%'}}, "illegal base64 data at input byte 0"),
    (LEASE, {'spec': {'renewTime': 'x'}},
     'parsing time "x" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "x" as "2006"'),
])
def test_values_of_wrong_types_are_refused_in_the_words_of_the_api(schema, obj, text):
    with pytest.raises(schemas.Undecodable) as e:
        schemas.decode(schema, obj)
    assert str(e.value) == text


def test_unknown_fields_are_dropped_and_told():
    obj = {'spec': {'foo': 1, 'template': {'spec': {'containers': [{'name': 'x', 'bar': 2}]}}}}
    decoded, unknown = schemas.decode(DEPLOYMENT, obj)
    assert decoded == {'spec': {'template': {'spec': {'containers': [{'name': 'x'}]}}}}
    assert unknown == ['spec.foo', 'spec.template.spec.containers[0].bar']


def test_what_needs_no_change_is_returned_itself():
    obj = {'metadata': {'name': 'x', 'labels': {'a': ''}}, 'data': {'a': 'b'}}
    assert schemas.decode(CONFIGMAP, obj)[0] is obj


def test_nulls_are_nothing_in_structures_and_zeros_elsewhere():
    decoded, _ = schemas.decode(CONFIGMAP, {
        'data': {'a': None}, 'immutable': None, 'metadata': {'finalizers': [None]}})
    assert decoded == {'data': {'a': ''}, 'metadata': {'finalizers': ['']}}


def test_empty_containers_are_as_good_as_none():
    decoded, _ = schemas.decode(CONFIGMAP, {'data': {}, 'metadata': {'labels': {}, 'name': 'x'}})
    assert decoded == {'metadata': {'name': 'x'}}


def test_times_are_kept_in_utc():
    decoded, _ = schemas.decode(LEASE, {
        'metadata': {'creationTimestamp': '2020-01-01T02:00:00.5+02:00'},
        'spec': {'renewTime': '2020-01-01T02:00:00.500000+02:00'}})
    assert decoded == {
        'metadata': {'creationTimestamp': '2020-01-01T00:00:00Z'},
        'spec': {'renewTime': '2020-01-01T00:00:00.500000Z'}}


def test_schemas_in_definitions_are_decoded_all_the_way():
    schema = {'type': 'array', 'items': {'type': 'object', 'foo': 1}}
    obj = {'spec': {'versions': [{'schema': {'openAPIV3Schema': schema}}]}}
    _, unknown = schemas.decode(CRD, obj)
    assert unknown == ['spec.versions[0].schema.openAPIV3Schema.items.foo']


def test_every_built_in_kind_has_a_schema():
    for kind in kinds.builtin_kinds():
        assert schemas.schema_of(kind).name.endswith(f'.{kind.kind}')
