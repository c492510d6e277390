"""
The requests for Leases.
"""
import contextlib
import json

import pytest

from kopf._cogs.clients import leasing
from kopf._cogs.clients.errors import (
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
)

PATH = '/apis/coordination.k8s.io/v1/namespaces/ns/leases'
LEASE = {'metadata': {'name': 'a b', 'resourceVersion': '7'}}


class Client:
    """Notes the requests, and responds as it is told."""

    def __init__(self, response=None):
        self.requests = []
        self._response = response if response is not None else LEASE

    async def request(self, method, path, *, body=None, timeout=None, retry=True):
        self.requests.append((method, path, None if body is None else json.loads(body)))
        assert (timeout, retry) == (5, False)
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


class Watched(Client):
    """Streams these chunks, and ends the stream, or breaks it."""

    def __init__(self, *chunks):
        super().__init__()
        self._chunks = [*chunks, b'']

    @contextlib.asynccontextmanager
    async def stream(self, path, *, params):
        self.requests.append((path, params))
        yield self

    async def readany(self):
        chunk = self._chunks.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


def make_event(type_, **meta):
    return json.dumps({'type': type_, 'object': {'metadata': meta}}).encode() + b'\n'


async def follow(client, states):
    async for raw in make_leases(client).follow('a b'):
        states.append(raw)


async def test_lease_is_followed_until_the_stream_ends():
    line = make_event('MODIFIED', name='2')
    client = Watched(make_event('ADDED', name='1') + line[:9], line[9:], make_event('BOOKMARK'),
                     make_event('DELETED', name='3'))
    states = []
    await follow(client, states)
    assert states == [{'metadata': {'name': '1'}}, {'metadata': {'name': '2'}}, None]
    assert client.requests == [(PATH, {'watch': 'true', 'fieldSelector': 'metadata.name=a b'})]


@pytest.mark.parametrize('chunk', [
    b'{]\n', b'[]\n', b'{}\n', b'{"type": "ADDED"}\n', make_event('ADDED', name=1),
    b'x' * (leasing.MAX_LINE + 1)])
async def test_what_is_no_event_is_an_error_of_the_server(chunk):
    states = []
    with pytest.raises(APIServerError):
        await follow(Watched(make_event('ADDED', name='1'), chunk), states)
    assert states == [{'metadata': {'name': '1'}}]


def make_leases(client):
    return leasing.LeaseClient(client, namespace='ns', deadline=10)


@pytest.mark.parametrize('call, request_', [
    (lambda own: own.get('a b'), ('GET', f'{PATH}/a%20b', None)),
    (lambda own: own.put(None, LEASE), ('POST', PATH, LEASE)),
    (lambda own: own.put(LEASE, LEASE), ('PUT', f'{PATH}/a%20b', LEASE)),
    (lambda own: own.delete(LEASE), (
        'DELETE', f'{PATH}/a%20b', {'preconditions': {'resourceVersion': '7'}})),
], ids=['get', 'create', 'replace', 'delete'])
async def test_requests_have_half_the_time_and_are_not_repeated(call, request_):
    client = Client()
    assert await call(make_leases(client)) in (LEASE, None)
    assert client.requests == [request_]


async def test_absent_lease_is_none():
    client = Client(APINotFoundError("not found", status=404))
    assert await make_leases(client).get('x') is None


@pytest.mark.parametrize('response, found', [
    ({'items': [LEASE]}, [LEASE]), ({'items': None}, []), ({}, [])])
async def test_leases_are_found_by_their_label(response, found):
    client = Client(response)
    assert list(await make_leases(client).find(label='kopf.dev/x', value='y')) == found
    assert client.requests == [('GET', f'{PATH}?labelSelector=kopf.dev%2Fx%3Dy', None)]


def test_lack_of_rights_is_explained_by_the_rule_that_is_needed():
    error = APIForbiddenError('leases is forbidden: User "x" cannot get', status=403)
    assert make_leases(Client()).explain(error, verbs='get, update').endswith(
        "cannot get. Add this rule to the Role of the operator in the namespace 'ns': "
        "{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update]}")


def test_other_refusals_are_not_explained_by_a_lack_of_rights():
    error = APIForbiddenError('leases "x" is forbidden: exceeded quota', status=403)
    assert make_leases(Client()).explain(error, verbs='get, update') == str(error)
