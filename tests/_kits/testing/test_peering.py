import asyncio
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


async def serve_at(url):
    """Pretend to be a webhook server: no object is reviewed in these tests."""
    yield {'url': url}
    await asyncio.Event().wait()


@virtual_time
async def test_only_the_operator_that_works_registers_its_webhooks(crd):
    registry = kopf.OperatorRegistry()
    kopf.on.validate('kopfexamples', id='check', registry=registry)(lambda **_: None)

    def make(api, priority):
        settings = kopf.OperatorSettings()
        settings.admission.server = lambda _: serve_at(f'https://127.0.0.1/{priority}')
        settings.admission.managed = 'auto.kopf.dev'
        return api.operator(
            registry=registry, settings=settings, identity=str(priority), standalone=False,
            peering_name='late', priority=priority, namespaces=['default'])

    async with testing.open_api('sandbox') as api:
        await api.client.load(crd)
        await api.client.load(PEERING_KINDS)
        await api.sandbox.load(PEERING)

        async def wait_url(expected):
            async def is_there():
                found = await api.sandbox.get('validatingwebhookconfigurations', 'auto.kopf.dev')
                urls = [item['clientConfig']['url'] for item in found.get('webhooks') or []]
                return urls == [f'https://127.0.0.1/{item}/check' for item in expected]
            await testing.wait_for(is_there, timeout=60)

        async with make(api, 2) as leading:
            await leading.wait_log("Reconfiguring the validating webhook auto.kopf.dev.")
            await wait_url([2])
            async with make(api, 1) as waiting:
                await waiting.wait_log("Pausing operations")
                await asyncio.sleep(10)
                await wait_url([2])
            await wait_url([2])
            async with make(api, 3):
                await wait_url([3])
            await wait_url([2])
        await wait_url([])
