import json

import aiohttp
import pytest

from kopf._kits.sandbox.server import Sandbox

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'toys.sandbox.test'},
    'spec': {
        'group': 'sandbox.test', 'scope': 'Namespaced',
        'names': {'plural': 'toys', 'kind': 'Toy', 'shortNames': ['ty']},
        'versions': [{
            'name': 'v1', 'served': True, 'storage': True, 'subresources': {'status': {}},
            'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}},
        }],
    },
}


class Answer:
    """What the server has said; an attribute per part."""

    def __init__(self, status, headers, raw):
        self.status = status
        self.headers = headers
        self.raw = raw

    @property
    def body(self):
        return json.loads(self.raw)


class Http:
    """A client of the sandbox with nothing between it and the wire."""

    def __init__(self, session, url, token=''):
        self.session = session
        self.url = url
        self.headers = {'Authorization': f'Bearer {token}'} if token else {}

    async def __call__(self, method, path, body=None, *, type='application/json', **headers):
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {**self.headers, **{name.replace('_', '-'): v for name, v in headers.items()}}
        if raw is not None:
            headers['Content-Type'] = type
        async with self.session.request(
                method, self.url + path, data=raw, headers=headers, ssl=False) as response:
            return Answer(response.status, response.headers, await response.read())

    async def watch(self, path, **params):
        """All events until the stream ends."""
        query = {'watch': 'true', 'timeoutSeconds': '1', **params}
        async with self.session.get(
                self.url + path, params=query, headers=self.headers, ssl=False) as response:
            assert response.status == 200
            return [json.loads(line) async for line in response.content]


@pytest.fixture()
async def sandbox():
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture()
async def session():
    # Connections that are kept alive would be seen as left behind by a test.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture()
async def http(sandbox, session):
    return Http(session, sandbox.url)


@pytest.fixture()
async def toys(sandbox):
    """The path of the objects of a custom resource."""
    await sandbox.load(CRD)
    return '/apis/sandbox.test/v1/namespaces/default/toys'


def toy(name, **kwargs):
    return {'apiVersion': 'sandbox.test/v1', 'kind': 'Toy', 'metadata': {'name': name}, **kwargs}


CMS = '/api/v1/namespaces/default/configmaps'


def cm(name, **kwargs):
    metadata = {'name': name, **kwargs.pop('metadata', {})}
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, **kwargs}
