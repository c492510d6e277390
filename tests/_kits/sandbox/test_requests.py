import pytest

from kopf._kits.sandbox import requests
from kopf._kits.sandbox.requests import Accepted, Address
from kopf._kits.sandbox.statuses import NotAcceptable


@pytest.mark.parametrize(('path', 'address'), [
    ('/api/v1/pods', Address('', 'v1', 'pods')),
    ('/api/v1/namespaces', Address('', 'v1', 'namespaces')),
    ('/api/v1/namespaces/x', Address('', 'v1', 'namespaces', '', 'x')),
    ('/api/v1/namespaces/x/status', Address('', 'v1', 'namespaces', '', 'x', 'status')),
    ('/api/v1/namespaces/x/finalize', Address('', 'v1', 'namespaces', '', 'x', 'finalize')),
    ('/api/v1/namespaces/x/pods', Address('', 'v1', 'pods', 'x')),
    ('/api/v1/namespaces/x/pods/', Address('', 'v1', 'pods', 'x')),
    ('/apis/apps/v1/namespaces/x/deployments/y/scale',
     Address('apps', 'v1', 'deployments', 'x', 'y', 'scale')),
    ('/api/v1/watch/pods', Address('', 'v1', 'pods', watch=True)),
    ('/api/v1/nodes/a%20b', Address('', 'v1', 'nodes', '', 'a b')),
    ('/apis/apps/v1', Address('apps', 'v1')),
    ('/version', None),
    ('//api/v1/pods', None),
])
def test_paths_are_addresses(path, address):
    assert requests.parse_address(path) == address


@pytest.mark.parametrize(('method', 'path', 'query', 'verb'), [
    ('GET', '/api/v1/pods', '', 'list'),
    ('GET', '/api/v1/pods', 'watch=1', 'watch'),
    ('GET', '/api/v1/pods', 'watch=yes', 'watch'),
    ('GET', '/api/v1/pods', 'watch=false', 'list'),
    ('GET', '/api/v1/nodes/x', '', 'get'),
    ('POST', '/api/v1/nodes', '', 'create'),
    ('PUT', '/api/v1/nodes/x', '', 'update'),
    ('PATCH', '/api/v1/nodes/x', '', 'patch'),
    ('DELETE', '/api/v1/nodes/x', '', 'delete'),
    ('DELETE', '/api/v1/nodes', '', 'deletecollection'),
])
def test_methods_are_verbs(method, path, query, verb):
    address = requests.parse_address(path)
    assert requests.verb_of(method, address, requests.parse_query(query)) == verb


@pytest.mark.parametrize(('header', 'accepted'), [
    ('', Accepted()),
    ('*/*', Accepted()),
    ('application/yaml', Accepted('application/yaml')),
    ('application/vnd.kubernetes.protobuf,application/json', Accepted()),
    ('application/json;as=Table;v=v1;g=meta.k8s.io,application/json',
     Accepted('application/json', 'Table')),
    ('application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json', Accepted()),
    ('application/json;q=0.1,application/yaml', Accepted('application/yaml')),
])
def test_the_best_format_is_chosen(header, accepted):
    assert requests.negotiate(header) == accepted


@pytest.mark.parametrize('header', [
    'text/html', 'application/vnd.kubernetes.protobuf', 'application/json;as=Unknown'])
def test_formats_that_are_not_there_are_not_acceptable(header):
    with pytest.raises(NotAcceptable):
        requests.negotiate(header)
