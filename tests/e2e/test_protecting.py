"""
Protected objects are not deleted: by the webhook, and by the finalizer if it was passed by.
"""
import asyncio
import json
import uuid

import pytest

import kopf
from tests.e2e.kubes import Kind, KubeError

CONFIGURATIONS = Kind(
    'admissionregistration.k8s.io', 'v1', 'validatingwebhookconfigurations',
    'ValidatingWebhookConfiguration', namespaced=False)


@pytest.fixture()
async def managed(kube, borrow):
    """The name of the configurations of the test; they are gone after it, when it has ended."""
    name = f'auto.a{uuid.uuid4().hex[:8]}.test'
    yield name
    try:
        await kube.delete(CONFIGURATIONS, name)
    except KubeError as e:
        assert e.status == 404


async def refuse(kube, kind, name):
    """Delete the object until it is refused, as a dry run; return the error."""
    while True:
        try:
            await kube.request('DELETE', kind.get_path(name, 'default'), params={'dryRun': 'All'})
        except KubeError as e:
            return e
        await asyncio.sleep(0.1)


async def delete_unrefused(kube, kind, name):
    """Delete the object as soon as the API server knows that the webhook is gone."""
    while True:
        try:
            return await kube.delete(kind, name)
        except KubeError as e:
            if 'webhook' not in str(e):
                raise
        await asyncio.sleep(0.1)


async def test_a_protected_object_is_not_deleted(
        kube, kind, embedded, settings, managed, registry):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = managed
    kopf.protected(*kind.selector)
    operator = embedded()
    await kube.create(kind, 'obj', spec={'protected': True})
    await kube.create(kind, 'other', spec={})
    async with asyncio.timeout(30):
        error = await refuse(kube, kind, 'obj')
    assert error.status == 403
    todo = "--type=merge -p '{\"spec\":{\"protected\":false}}'"
    assert json.dumps(
        f"it is protected from deletion, as its spec.protected is true. To delete it, type first: "
        f"kubectl patch {kind.plural}.{kind.group} obj -n default {todo}")[1:-1] in str(error)
    await kube.delete(kind, 'other')
    await kube.wait_gone(kind, 'other')

    operator.stop()  # now, nobody refuses it
    async with asyncio.timeout(30):
        await delete_unrefused(kube, kind, 'obj')
    settings.admission.managed = None
    embedded()
    obj = await kube.wait_for(kind, 'obj', lambda obj: obj.get('status', {}).get('conditions'))
    [condition] = obj['status']['conditions']
    assert (condition['type'], condition['status']) == ('Protected', 'True')
    assert todo in condition['message']
    await kube.patch(kind, 'obj', {'spec': {'protected': False}})
    await kube.wait_gone(kind, 'obj')
