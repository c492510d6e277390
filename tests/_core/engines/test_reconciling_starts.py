"""Reconciling handlers are called when their owned resources are listed."""
import kopf
from kopf import testing
from tests.docs.snippets import DOCS

EXAMPLES = DOCS.parent / 'examples'


@testing.virtual_time
async def test_objects_seen_before_the_owned_resources_are_listed_are_reconciled_then():
    registry = kopf.OperatorRegistry()

    @kopf.reconcile('kopfexamples', owns=['configmaps'], id='example', registry=registry)
    def example(**_):
        yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'key': 'value'}}

    async with testing.open_api('sandbox') as api:
        await api.client.load(EXAMPLES / 'crd.yaml')
        await api.client.load(EXAMPLES / 'obj.yaml')
        api.sandbox.faults.add(testing.Fault(
            action='delay', verb='list', resource='configmaps', count=1, seconds=5))
        async with api.operator(registry=registry):
            made = await api.client.wait('configmaps', 'kopf-example-1', timeout=30)
    assert made['data'] == {'key': 'value'}
