import json

import pytest

from kopf._cogs.structs.managedfields import differs, find_unrecorded, owns, restrict

FIELDS_OF_DEPLOYMENT = json.loads(r'''{
    "f:metadata": {"f:finalizers": {"v:\"example.com/f\"": {}}, "f:labels": {"f:a": {}},
                   "f:ownerReferences": {"k:{\"uid\":\"u-1\"}": {}}},
    "f:spec": {"f:replicas": {}, "f:selector": {}, "f:template": {
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
            ".": {}, "f:args": {}, "f:command": {}, "f:image": {}, "f:name": {},
            "f:env": {"k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}},
                      "k:{\"name\":\"F\"}": {".": {}, "f:name": {}, "f:value": {}}},
            "f:ports": {
                "k:{\"containerPort\":53,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}},
                "k:{\"containerPort\":53,\"protocol\":\"UDP\"}": {
                    ".": {}, "f:containerPort": {}, "f:name": {}, "f:protocol": {}}},
            "f:resources": {"f:limits": {"f:cpu": {}, "f:memory": {}}}}},
            "f:nodeSelector": {}, "f:tolerations": {},
            "f:volumes": {"k:{\"name\":\"v\"}": {".": {}, "f:emptyDir": {}, "f:name": {}}}}}}}''')
DEPLOYMENT = {
    'metadata': {
        'labels': {'a': 'b'}, 'finalizers': ['example.com/f'], 'ownerReferences': [
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': 'o', 'uid': 'u-1',
             'controller': True, 'blockOwnerDeletion': True}]},
    'spec': {
        'replicas': 0,
        'selector': {'matchLabels': {'a': 'b'}},
        'template': {
            'metadata': {'labels': {'a': 'b'}},
            'spec': {
                'containers': [{
                    'name': 'c', 'image': 'i', 'args': ['1', '2'], 'command': [],
                    'resources': {'limits': {'cpu': '1000m', 'memory': '1024Mi'}},
                    'env': [{'name': 'E', 'value': ''}, {'name': 'F', 'value': '1'}],
                    'ports': [{'containerPort': 53},
                              {'containerPort': 53, 'protocol': 'UDP', 'name': 'u'}]}],
                'volumes': [{'name': 'v', 'emptyDir': {}}],
                'tolerations': [{'key': 'k', 'operator': 'Exists'}],
                'nodeSelector': {}}}}}


def test_all_fields_of_an_applied_deployment_are_owned():
    assert owns(FIELDS_OF_DEPLOYMENT, DEPLOYMENT)


def iter_paths(fields, path=()):
    for key, nested in fields.items():
        yield (*path, key)
        yield from iter_paths(nested, (*path, key))


@pytest.mark.parametrize('path', [
    path for path in iter_paths(FIELDS_OF_DEPLOYMENT) if path[-1] != '.'
], ids=lambda path: path[-1])
def test_each_field_that_is_lost_is_noticed(path):
    fields = json.loads(json.dumps(FIELDS_OF_DEPLOYMENT))
    parent = fields
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    if not parent:  # the API server leaves no empty parents behind
        parent['f:other'] = {}
    assert not owns(fields, DEPLOYMENT)


@pytest.mark.parametrize(('fields', 'value'), [
    ({'f:type': {}}, {'type': 'Opaque', 'binaryData': None}),
    ({'f:binaryData': {}, 'f:data': {'f:x': {}}}, {'data': {'x': 'y'}, 'binaryData': None}),
    ({'f:data': {'f:x': {}}}, {'data': {'x': 'y'}}),
    ({'f:immutable': {}}, {'immutable': False}),
    ({'f:replicas': {}}, {'replicas': 0}),
    ({'f:stringData': {'f:a': {}}}, {'stringData': {'a': 'b'}}),
    ({'f:selector': {}, 'f:x': {}}, {'selector': {'a': {'b': 'c'}}}),
])
def test_applied_fields_are_owned(fields, value):
    assert owns(fields, value)


@pytest.mark.parametrize(('fields', 'value'), [
    ({'f:data': {'f:y': {}}}, {'data': {'x': 'y'}}),
    ({'f:list': {'v:"a"': {}}}, {'list': ['a', 'b']}),
    ({'f:list': {'k:{"a":1}': {'f:a': {}}}}, {'list': [{'a': 2}]}),
    ({'f:list': {'k:{"a":1}': {'f:a': {}}}}, {'list': [{'a': 1, 'b': 2}]}),
    (None, {'data': {}}),
])
def test_other_fields_are_not_owned(fields, value):
    assert not owns(fields, value)


# What the oldest supported Kubernetes answers to the same manifest as a newer one.
EMPTIES = {'spec': {
    'podSelector': {}, 'selector': {}, 'more': {'nested': {}}, 'volumes': [
        {'name': 'v', 'emptyDir': {}}, {'name': 'w', 'emptyDir': {}}], 'tolerations': []}}
OLD_FIELDS = json.loads(r'''{"f:spec": {
    "f:podSelector": {}, "f:tolerations": {}, "f:volumes": {
        "k:{\"name\":\"v\"}": {".": {}, "f:name": {}},
        "k:{\"name\":\"w\"}": {".": {}, "f:name": {}}}}}''')


def test_unrecorded_empty_mappings_are_found():
    found = set(find_unrecorded(OLD_FIELDS, EMPTIES))
    assert found == {
        ('spec', 'selector'), ('spec', 'more'), ('spec', 'volumes', '[]', 'emptyDir')}
    assert not owns(OLD_FIELDS, EMPTIES) and owns(OLD_FIELDS, EMPTIES, unrecorded=found)


def test_recorded_empty_mappings_that_are_lost_are_noticed_nevertheless():
    found = set(find_unrecorded(OLD_FIELDS, EMPTIES))
    fields = {'f:spec': {
        key: val for key, val in OLD_FIELDS['f:spec'].items() if key != 'f:podSelector'}}
    assert not owns(fields, EMPTIES, unrecorded=found)


def test_newer_kubernetes_records_all_fields():
    assert set(find_unrecorded(FIELDS_OF_DEPLOYMENT, DEPLOYMENT)) == set()


def test_other_absent_fields_are_not_unrecorded_ones():
    assert set(find_unrecorded({'f:a': {}}, {'a': 1, 'b': 2, 'c': [1], 'd': None})) == set()


def test_empty_lists_of_custom_kinds_can_be_unrecorded():
    fields, value = {'f:a': {}}, {'a': 1, 'items': []}
    found = set(find_unrecorded(fields, value))
    assert found == {('items',)}
    assert not owns(fields, value) and owns(fields, value, unrecorded=found)
    assert not owns(fields, {'a': 1, 'items': [1]}, unrecorded=found)


def test_empty_lists_with_keys_are_not_recorded_in_built_in_kinds():
    assert owns({'f:a': {}}, {'a': 1, 'env': []})
    assert not owns({'f:a': {}}, {'a': 1, 'env': [{'name': 'a'}]})
    assert not owns({'f:a': {}}, {'a': 1, 'args': []})
    assert not owns({'f:a': {}}, {'a': 1, 'env': {}})


def test_an_item_with_a_defaulted_key_is_found_among_all_that_it_can_be():
    fields = json.loads(r'''{"f:ports": {
        "k:{\"containerPort\":53,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}},
        "k:{\"containerPort\":53,\"protocol\":\"UDP\"}": {
            ".": {}, "f:containerPort": {}, "f:name": {}}}}''')
    assert owns(fields, {'ports': [{'containerPort': 53, 'name': 'n'}]})


def test_values_are_restricted_to_owned_fields_and_lists_remain_whole():
    fields = {'f:a': {'f:b': {}}, 'f:list': {'k:{"n":1}': {'f:n': {}}}, 'f:atomic': {}}
    value = {'a': {'b': 1, 'c': 2}, 'list': [{'n': 1, 'm': 2}], 'atomic': {'x': 'y'}, 'other': 1}
    assert restrict(fields, value) == {
        'a': {'b': 1}, 'list': [{'n': 1, 'm': 2}], 'atomic': {'x': 'y'}}


POD = {'spec': {'containers': [{'name': 'main', 'env': [{'name': 'A'}]}], 'volumes': []}}
LIVE = {'spec': {'containers': [
    {'name': 'main', 'env': [{'name': 'A'}], 'resources': {}, 'imagePullPolicy': 'Always'}]}}


@pytest.mark.parametrize(('wanted', 'expected'), [
    (POD, False),
    ({'spec': {**POD['spec'], 'hostNetwork': False}}, False),
    ({'spec': {**POD['spec'], 'hostNetwork': True}}, True),
    ({'spec': {'containers': [{'name': 'main'}]}}, True),
    ({'spec': {'containers': [{'name': 'main', 'env': [{'name': 'B'}]}]}}, True),
    ({'spec': {'containers': [*POD['spec']['containers'], {'name': 'other'}]}}, True),
    ({'spec': {}}, True),
    (None, True),
])
def test_changes_by_a_manifest_are_found_in_spite_of_defaults(wanted, expected):
    assert differs(wanted, LIVE) is expected


def test_owned_fields_that_a_manifest_no_longer_has_are_changes():
    assert differs({'spec': {}}, {'spec': {'hostNetwork': True}})
