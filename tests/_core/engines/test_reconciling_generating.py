"""
Generated values: made once, when they are absent. In virtual time, on the sandbox.
"""
import base64

import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'


class Maker:
    """Makes another value each time."""

    def __init__(self):
        self.made = []

    def __call__(self):
        self.made.append(f'word-{len(self.made) + 1}')
        return self.made[-1]


@pytest.fixture()
def make():
    return Maker()


@pytest.fixture()
def registry(make):
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('kopfexamples', owns=['secrets'], id='fn', registry=registry)
    async def fn(spec, **_):
        yield {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'child'},
               'stringData': {'word': kopf.generated(make)},
               'data': {'n': base64.b64encode(str(spec.get('n')).encode()).decode()}}

    return registry


def read(secret, key='word'):
    return base64.b64decode(secret['data'][key]).decode()


def list_managers(obj):
    return [(entry['manager'], entry['operation']) for entry in obj['metadata']['managedFields']]


@testing.virtual_time
async def test_a_value_is_made_at_the_creation_and_stays(registry, make):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.create('kopfexamples', 'parent', spec={'n': 1})
            secret = await api.client.wait('secrets', 'child', timeout=5)
            assert read(secret) == 'word-1'
            await api.client.patch('kopfexamples', 'parent', {'spec': {'n': 2}})
            secret = await api.client.wait(
                'secrets', 'child', lambda obj: read(obj, 'n') == '2', timeout=5)
            assert read(secret) == 'word-1'
            assert list_managers(secret) == [('kopf/fn', 'Apply')]
        assert make.made == ['word-1']
