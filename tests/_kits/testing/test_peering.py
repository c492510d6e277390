import pathlib

import kopf
from kopf import testing
from kopf.testing import virtual_time

PEERING_KINDS = pathlib.Path(__file__).parents[3] / 'peering.yaml'
PEERING = {
    'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering',
    'metadata': {'name': 'late', 'namespace': 'default'}}


@virtual_time
async def test_operators_wait_for_kinds_of_peering_that_come_late_and_are_known_by_their_identity(
        crd):
    registry, created = kopf.OperatorRegistry(), []

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(name, **_):
        created.append(name)

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        await api.client.create('kopfexamples', 'obj')
        async with api.operator(
                registry=registry, identity='me', standalone=False, peering_name='late',
                namespaces=['default']) as operator:
            await operator.wait_log("but it is mandatory")
            await api.client.load(PEERING_KINDS)
            assert not created
            await api.sandbox.load(PEERING)

            async def is_member():
                peering = await api.sandbox.get('kopfpeerings', 'late')
                return list(peering.get('status', {})) == ['me']

            await testing.wait_for(is_member, timeout=60)
            await testing.wait_for(lambda: created == ['obj'], timeout=60)
