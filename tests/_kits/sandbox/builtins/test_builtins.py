import copy
import json
import re

import pytest

from kopf._kits.sandbox import builtins, kinds, schemas
from kopf._kits.sandbox.builtins import quantities
from tests._kits.sandbox import recorded

KINDS = kinds.Kinds(kinds.builtin_kinds())
UID = '11111111-1111-1111-1111-111111111111'
ASSIGNED = [
    (r'[0-9a-f]{8}-[0-9a-f-]{27}', 'UID'), (r'10\.0\.0\.\d+', 'IP'),
    (r'"nodePort": \d+', '"nodePort": 0'), (r'"lastPhaseTransitionTime": "[^"]*", ', ''),
]


def normalized(obj):
    """The object without what is assigned by chance."""
    obj = copy.deepcopy(obj)
    for key in ('uid', 'namespace'):
        obj['metadata'].pop(key, None)
    text = json.dumps(obj, sort_keys=True)
    for pattern, replacement in ASSIGNED:
        text = re.sub(pattern, replacement, text)
    return json.loads(text)


def create(sent):
    kind = KINDS.named(sent['apiVersion'], sent['kind'])
    sent = {**sent, 'metadata': {**sent['metadata'], 'uid': UID}}
    if kind.namespaced:
        sent['metadata']['namespace'] = 's2'
    obj, _ = schemas.decode(schemas.schema_of(kind), sent)
    obj = builtins.complete(kind, obj)
    return kind, builtins.complete(kind, builtins.prepare_creation(kind, obj))


@pytest.mark.parametrize(
    'row', recorded.load('builtins'), ids=lambda row: row['sent']['kind'])
def test_an_object_is_completed_as_by_the_real_api(row):
    kind, obj = create(row['sent'])
    assert normalized(obj) == normalized(row['stored'])
    assert builtins.validate(kind, obj) == []
    assert builtins.complete(kind, obj) == obj


def sample(kind_name, **changes):
    for row in recorded.load('builtins'):
        if row['sent']['kind'] == kind_name:
            return create(row['sent'])
    raise AssertionError(kind_name)


@pytest.mark.parametrize('kind_name, change, generation', [
    ('Deployment', {'spec': {'replicas': 2}}, 2),
    ('Deployment', {'metadata': {'annotations': {'a': 'b'}}}, 2),
    ('Deployment', {'metadata': {'labels': {'a': 'b'}}}, 1),
    ('Deployment', {'status': {'replicas': 2}}, 1),
    ('StatefulSet', {'metadata': {'annotations': {'a': 'b'}}}, 1),
    ('Job', {'spec': {'parallelism': 3}}, 2),
    ('Service', {'spec': {'sessionAffinity': 'ClientIP'}}, None),
    ('ConfigMap', {'data': {'a': 'c'}}, None),
])
def test_the_generation_counts_changes_of_what_is_wanted(kind_name, change, generation):
    kind, old = sample(kind_name)
    new = builtins.complete(kind, merged(old, change))
    updated = builtins.prepare_update(kind, new, old)
    assert updated['metadata'].get('generation') == generation


def merged(old, change):
    from kopf._kits.sandbox import patching
    return patching.apply_merge_patch(old, change)


SELECTOR = {'matchLabels': {'a': 'c'}}
IMMUTABLE_SET = (
    "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
    "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
    "and 'minReadySeconds' are forbidden")


@pytest.mark.parametrize('kind_name, change, causes', [
    ('Deployment', {'spec': {'selector': SELECTOR}}, [
        ('spec.template.metadata.labels',
         'Invalid value: {"a":"b"}: `selector` does not match template `labels`'),
        ('spec.selector', 'Invalid value: {"matchLabels":{"a":"c"}}: field is immutable')]),
    ('Deployment', {'spec': {'replicas': -1}}, [
        ('spec.replicas', 'Invalid value: -1: must be greater than or equal to 0')]),
    ('Deployment', {'spec': {'template': {'spec': {'containers': [{}]}}}}, [
        ('spec.template.spec.containers[0].name', 'Required value'),
        ('spec.template.spec.containers[0].image', 'Required value')]),
    ('Deployment', {'spec': {'template': {'spec': {'restartPolicy': 'Never'}}}}, [
        ('spec.template.spec.restartPolicy',
         'Unsupported value: "Never": supported values: "Always"')]),
    ('StatefulSet', {'spec': {'serviceName': 'y'}}, [('spec', IMMUTABLE_SET)]),
    ('Job', {'spec': {'completions': 3}}, [
        ('spec.completions', 'Invalid value: 3: field is immutable')]),
    ('Service', {'spec': {'clusterIP': '10.0.0.99'}}, [
        ('spec.clusterIPs[0]', 'Invalid value: ["10.0.0.99"]: may not change once set')]),
    ('Service', {'spec': {'clusterIP': None}}, []),
    ('Service', {'spec': {'clusterIP': ''}}, []),
    ('Service', {'spec': {'type': 'NodePort'}}, []),
    ('Service', {'spec': {'type': 'ExternalName', 'externalName': 'a.b'}}, []),
    ('Service', {'spec': {'type': 'X'}}, [
        ('spec.type', 'Unsupported value: "X": supported values: '
                      '"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"')]),
    ('Service', {'spec': {'ports': []}}, [('spec.ports', 'Required value')]),
    ('Service', {'spec': {'ports': [{'port': 1}, {'port': 2}]}}, [
        ('spec.ports[0].name', 'Required value'), ('spec.ports[1].name', 'Required value')]),
    ('Secret', {'type': 'x'}, [('type', 'Invalid value: "x": field is immutable')]),
    ('ConfigMap', {'data': {'..': 'c'}}, [('data[..]', 'Invalid value: "..": must not be \'..\'')]),
    ('RoleBinding', {'roleRef': {'name': 'y'}}, [
        ('roleRef', 'Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role",'
                    '"Name":"y"}: cannot change roleRef')]),
    ('StorageClass', {'reclaimPolicy': 'Retain'}, [
        ('reclaimPolicy', 'Invalid value: "Retain": field is immutable')]),
    ('Lease', {'spec': {'leaseDurationSeconds': 0}}, [
        ('spec.leaseDurationSeconds', 'Invalid value: 0: must be greater than 0')]),
    ('CronJob', {'spec': {'schedule': 'x'}}, [
        ('spec.schedule', 'Invalid value: "x": expected exactly 5 fields, found 1: [x]')]),
    ('Ingress', {'spec': {'rules': None}}, [
        ('spec', 'Invalid value: null: either `defaultBackend` or `rules` must be specified')]),
])
def test_a_change_is_refused_in_the_words_of_the_api(kind_name, change, causes):
    kind, old = sample(kind_name)
    decoded, _ = schemas.decode(schemas.schema_of(kind), merged(old, change))
    new = builtins.prepare_update(kind, builtins.complete(kind, decoded), old)
    found = builtins.validate(kind, new) + builtins.validate_update(kind, new, old)
    assert [(cause.field, cause.message) for cause in found] == causes


def test_data_marked_immutable_cannot_be_changed_nor_unmarked():
    kind, old = sample('ConfigMap')
    old = {**old, 'immutable': True}
    new = {**old, 'data': {'x': 'y'}, 'immutable': False}
    assert [cause.field for cause in builtins.validate_update(kind, new, old)] == [
        'immutable', 'data']


def test_pods_can_change_their_images_only():
    kind, old = sample('Pod')
    image = merged(old, {'spec': {'containers': [{**old['spec']['containers'][0], 'image': 'z'}]}})
    assert not builtins.validate_update(kind, image, old)
    [cause] = builtins.validate_update(kind, merged(old, {'spec': {'hostPID': True}}), old)
    assert cause.field == 'spec'


def test_services_get_addresses_that_are_free():
    kind, obj = sample('Service')
    del obj['spec']['clusterIP'], obj['spec']['clusterIPs']
    used = {'10.0.0.1', '10.0.0.2'}
    assert builtins.prepare_creation(kind, obj, used=used)['spec']['clusterIP'] == '10.0.0.3'


def test_events_are_the_same_in_both_groups():
    core = {'apiVersion': 'v1', 'kind': 'Event', 'metadata': {'name': 'x'}, 'message': 'hello',
            'involvedObject': {'name': 'y'}, 'count': 5, 'reason': 'z', 'source': {}}
    other = builtins.convert(core, 'events.k8s.io/v1')
    assert other == {
        'apiVersion': 'events.k8s.io/v1', 'kind': 'Event', 'metadata': {'name': 'x'},
        'note': 'hello', 'regarding': {'name': 'y'}, 'deprecatedCount': 5, 'reason': 'z',
        'deprecatedSource': {}}
    assert builtins.convert(other, 'v1') == core


def test_autoscalers_keep_their_cpu_target_in_both_versions():
    kind, old = create({
        'apiVersion': 'autoscaling/v1', 'kind': 'HorizontalPodAutoscaler',
        'metadata': {'name': 'x'},
        'spec': {'scaleTargetRef': {'kind': 'X', 'name': 'y'}, 'maxReplicas': 3}})
    new = builtins.convert(old, 'autoscaling/v2')
    assert new['spec']['metrics'][0]['resource']['target']['averageUtilization'] == 80
    assert builtins.convert(new, 'autoscaling/v1')['spec'] == old['spec']


@pytest.mark.parametrize('text, canonical', [
    ('1000m', '1'), ('1500m', '1500m'), ('0.5Gi', '512Mi'), ('1', '1'), ('0', '0'), ('0.1', '100m'),
    ('1.5G', '1500M'), ('1024Mi', '1Gi'), ('100Mi', '100Mi'), ('1000k', '1M'), ('-1', '-1'),
    ('1e3', '1e3'), ('0.0000000001', '1n'), ('512Ki', '512Ki'), ('2048', '2048'), ('+5', '5'),
])
def test_quantities_are_told_in_their_shortest_form(text, canonical):
    assert quantities.canonicalize(text) == canonical
