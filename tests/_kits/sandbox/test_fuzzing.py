"""
Bad input of all kinds over HTTP: it is always answered by the API's own errors, and never by one
of the sandbox; afterwards it still serves.
"""
import http.client
import json
import threading
import urllib.parse

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._kits.testing.sandboxthreads import run_sandbox

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'things.fuzz.test'},
    'spec': {
        'group': 'fuzz.test', 'scope': 'Namespaced', 'names': {'plural': 'things', 'kind': 'Thing'},
        'versions': [{
            'name': 'v1', 'served': True, 'storage': True,
            'subresources': {'status': {}, 'scale': {
                'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.replicas'}},
            'additionalPrinterColumns': [
                {'name': 'Any', 'type': 'string', 'jsonPath': '.spec.any[*].x'},
                {'name': 'Time', 'type': 'date', 'jsonPath': '.spec.time'}],
            'schema': {'openAPIV3Schema': {'type': 'object', 'properties': {
                'spec': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True,
                         'properties': {
                             'replicas': {'type': 'integer'},
                             'port': {'x-kubernetes-int-or-string': True},
                             'list': {'type': 'array', 'x-kubernetes-list-type': 'set',
                                      'items': {'type': 'string'}},
                             'text': {'type': 'string', 'pattern': '^[a-z]*$', 'default': 'x'}}},
                'status': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
            }}},
        }],
    },
}


@pytest.fixture(scope='module')
def server():
    with run_sandbox() as thread:
        host, _, port = thread.url.removeprefix('http://').rpartition(':')

        def ask(method, path, body=None, headers=None):
            connection = http.client.HTTPConnection(host, int(port), timeout=200)
            try:
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        for path, obj in (
                ('/apis/apiextensions.k8s.io/v1/customresourcedefinitions', CRD),
                ('/api/v1/namespaces/default/configmaps', {'metadata': {'name': 'one'}}),
                ('/apis/fuzz.test/v1/namespaces/default/things', {
                    'apiVersion': 'fuzz.test/v1', 'kind': 'Thing', 'metadata': {'name': 'one'}}),
        ):
            status, _ = ask('POST', path, json.dumps(obj), {'Content-Type': 'application/json'})
            assert status == 201
        yield ask


def check(status, body):
    assert 200 <= status < 600
    assert b'in the sandbox' not in body, body
    if status >= 400 and not body.startswith(b'404 page not found'):
        error = json.loads(body)
        assert (error['kind'], error['code']) == ('Status', status)
        assert error['message']


words = st.sampled_from([
    'api', 'apis', 'v1', 'namespaces', 'default', 'configmaps', 'pods', 'secrets', 'events', 'one',
    'two', 'status', 'scale', 'apps', 'deployments', 'fuzz.test', 'things', 'watch', 'nodes',
    'apiextensions.k8s.io', 'customresourcedefinitions', 'things.fuzz.test', 'finalize', 'log',
    'autoscaling', 'v2', 'horizontalpodautoscalers', 'events.k8s.io', 'openapi', 'v3', 'healthz',
    'serviceaccounts', 'token', '%2e%2e', '%00', '%ff', 'ä', '*', '.', '..', '',
])
paths = st.one_of(
    st.lists(st.one_of(words, st.text(max_size=5).map(urllib.parse.quote)), max_size=8)
    .map(lambda parts: '/' + '/'.join(urllib.parse.quote(part, safe='%') for part in parts)),
    st.sampled_from([
        '/api/v1/namespaces/default/configmaps', '/api/v1/namespaces/default/configmaps/one',
        '/apis/fuzz.test/v1/namespaces/default/things',
        '/apis/fuzz.test/v1/namespaces/default/things/one',
        '/apis/fuzz.test/v1/namespaces/default/things/one/status',
        '/apis/fuzz.test/v1/namespaces/default/things/one/scale',
        '/apis/fuzz.test/v1/things', '/api/v1/namespaces', '/api/v1/namespaces/default/pods',
        '/apis/apps/v1/namespaces/default/deployments',
        '/apis/apiextensions.k8s.io/v1/customresourcedefinitions',
        '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
        '/apis/rbac.authorization.k8s.io/v1/clusterroles',
        '/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations',
    ]),
)
selectors = st.one_of(
    st.text(alphabet='ab=!<>(),. \\-/in', max_size=20), st.text(max_size=10),
    st.sampled_from([
        'a in (b,c)', 'a notin (', '!a', 'a>5', 'metadata.name=one', 'status.phase!=']))
numbers = st.one_of(st.integers(-5, 5).map(str), st.text(max_size=4),
                    st.sampled_from(['1' * 30, '99999999', '0x1', '1_0', '']))
queries = st.fixed_dictionaries({}, optional={
    'labelSelector': selectors, 'fieldSelector': selectors, 'limit': numbers,
    'resourceVersion': numbers, 'resourceVersionMatch': st.sampled_from(['Exact', 'x', '']),
    'continue': st.text(max_size=20), 'dryRun': st.sampled_from(['All', 'x']),
    'fieldManager': st.text(max_size=5), 'force': st.sampled_from(['true', 'x']),
    'fieldValidation': st.sampled_from(['Strict', 'Warn', 'Ignore', 'x']),
    'includeObject': st.text(max_size=6), 'propagationPolicy': st.text(max_size=6),
    'gracePeriodSeconds': numbers, 'timeoutSeconds': st.just('1'),
})
content_types = st.sampled_from([
    'application/json', 'application/yaml', 'application/merge-patch+json',
    'application/json-patch+json', 'application/strategic-merge-patch+json',
    'application/apply-patch+yaml', 'application/vnd.kubernetes.protobuf', 'text/plain', '', ';;',
])
accepts = st.sampled_from([
    'application/json', 'application/yaml', '*/*', '', 'application/vnd.kubernetes.protobuf',
    'application/json;as=Table;v=v1;g=meta.k8s.io', ';q=x,;;as', 'application/json;as=Nothing',
    'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io',
])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([
        'v1', 'ConfigMap', 'fuzz.test/v1', 'Thing', 'one', 'default', 'All', '\ud800']))
keys = st.one_of(st.text(max_size=4), st.sampled_from([
    'apiVersion', 'kind', 'metadata', 'name', 'namespace', 'labels', 'annotations', 'finalizers',
    'ownerReferences', 'managedFields', 'spec', 'status', 'data', 'replicas', 'op', 'path', 'value',
    'rules', 'webhooks', 'template', 'containers', 'selector', 'versions', 'names', 'schema',
    'openAPIV3Schema', 'properties', 'type', 'preconditions', 'generateName', 'resourceVersion',
    'uid', '$patch', '$setElementOrder/list', 'list', 'port', 'text', 'resourceAttributes']))
values = st.recursive(scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)), max_leaves=15)
objects = st.builds(
    lambda base, metadata, rest: {**base, 'metadata': metadata, **rest},
    st.sampled_from([{}, {'apiVersion': 'v1', 'kind': 'ConfigMap'},
                     {'apiVersion': 'fuzz.test/v1', 'kind': 'Thing'}]),
    st.one_of(values, st.dictionaries(keys, values, max_size=3).map(
        lambda found: {'name': 'one', **found})),
    st.dictionaries(keys, values, max_size=3))
patches = st.lists(st.fixed_dictionaries({}, optional={
    'op': st.sampled_from(['add', 'remove', 'replace', 'move', 'copy', 'test', 'x']),
    'path': st.one_of(st.text(alphabet='/~0-a1', max_size=6), st.sampled_from([
        '/metadata/labels/a', '/metadata/name', '/spec', '/spec/list/-', '', '/kind',
        '/metadata'])),
    'from': st.sampled_from(['/metadata', '/spec', '/x']), 'value': values}), max_size=3)
bodies = st.one_of(
    st.binary(max_size=30),
    st.one_of(values, objects, patches).map(lambda found: json.dumps(found).encode()),
    objects.map(lambda found: json.dumps(found).encode()[:-3]),
    st.binary(max_size=30).map(lambda raw: b'k8s\0' + raw),
    st.sampled_from([b'', b'{}', b'[]', b'null', b'{"a":' * 3000, b'[' * 200_000, b'a: &a [*a]',
                     b'1e999', b'NaN', b'9' * 5000, b'{"metadata":{"name":"\\ud800"}}',
                     b'- ' * 3000, b'? ? ? ?', b'!!python/object:x {}']))


@hypothesis.given(
    method=st.sampled_from(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'HEAD', 'TRACE']),
    path=paths, query=queries, content_type=content_types, accept=accepts, body=bodies)
@hypothesis.settings(max_examples=200, suppress_health_check=list(hypothesis.HealthCheck))
def test_nothing_breaks_the_server(server, method, path, query, content_type, accept, body):
    query = urllib.parse.urlencode(query, errors='replace')
    headers = {'Content-Type': content_type, 'Accept': accept}
    status, answer = server(method, f'{path}?{query}', body, headers)
    if method != 'HEAD':
        check(status, answer)
    status, _ = server('GET', '/api/v1/namespaces')
    assert status == 200


def test_a_huge_body_is_refused_and_the_server_goes_on(server):
    status, answer = server(
        'POST', '/api/v1/namespaces/default/configmaps', b'{"data":{"a":"' + b'x' * 4_000_000,
        {'Content-Type': 'application/json'})
    assert status == 413
    check(status, answer)
    assert server('GET', '/version')[0] == 200


def test_many_at_once_are_answered(server):
    answers = []

    def ask():
        answers.extend(server('GET', '/api/v1/namespaces')[0] for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 100
