"""What the settings of reconciling handlers do."""
import pytest

import kopf
from kopf import testing
from kopf._core.actions import execution
from kopf._core.intents import handlers
from tests.docs.snippets import DOCS

CRD = DOCS.parent / 'examples' / 'crd.yaml'
OBJ = DOCS.parent / 'examples' / 'obj.yaml'


@pytest.fixture()
def settings():
    settings = kopf.OperatorSettings()
    settings.reconciling.error_delay = 2
    settings.reconciling.max_error_delay = 10
    return settings


def get_delays(settings, attempts, **options):
    handler = handlers.ReconcilingHandler(fn=lambda **_: None, id='fn', **options)
    return [execution.get_backoff(handler, settings, retries) for retries in attempts]


def test_delays_double_from_the_first_one_to_the_limit(settings):
    assert get_delays(settings, range(5)) == [2, 4, 8, 10, 10]


def test_delays_stay_at_the_limit_after_any_number_of_attempts(settings):
    assert get_delays(settings, [10 ** 6]) == [10]


def test_a_backoff_of_the_handler_does_not_grow(settings):
    assert get_delays(settings, range(3), backoff=7) == [7, 7, 7]


@testing.virtual_time
async def test_the_field_manager_has_the_names_of_the_operator_and_of_the_handler():
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.reconciling.manager = 'mine'

    @kopf.reconcile('kopfexamples', id='example', owns=['configmaps'], registry=registry)
    def example(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'key': 'value'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(registry=registry):
            await api.client.load(OBJ)
            made = await api.client.wait('configmaps', 'kopf-example-1')
    entry, = made['metadata']['managedFields']
    assert (entry['manager'], entry['operation']) == ('mine/example', 'Apply')
