"""
Owned resources that need each other. In virtual time, on the sandbox.
"""
import kopf
from kopf import testing

TENANTS = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'tenants.example.com'},
    'spec': {
        'group': 'example.com', 'scope': 'Cluster',
        'names': {'kind': 'Tenant', 'plural': 'tenants', 'singular': 'tenant'},
        'versions': [{
            'name': 'v1', 'served': True, 'storage': True, 'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}]}}


@testing.virtual_time
async def test_owned_resources_can_be_in_a_namespace_that_is_made_in_the_same_call():
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False

    @kopf.reconcile('tenants', owns=['configmaps', 'serviceaccounts', 'namespaces'],
                    registry=registry)
    async def fn(name, **_):
        calls.append(name)
        place = {'name': name, 'namespace': name}
        return [
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': place},
            {'apiVersion': 'v1', 'kind': 'ServiceAccount', 'metadata': place},
            {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}}]

    async with testing.open_api('sandbox') as api:
        await api.client.load(TENANTS)
        async with api.operator(registry=registry) as operator:
            await api.client.create('tenants', 'parent')
            objs = [
                await api.client.wait('namespaces', 'parent'),
                await api.client.wait('serviceaccounts', 'parent', namespace='parent'),
                await api.client.wait('configmaps', 'parent', namespace='parent')]
        assert calls == ['parent'] and not any('failed' in line for line in operator.log)
        versions = [int(obj['metadata']['resourceVersion']) for obj in objs]
        assert versions == sorted(versions)
