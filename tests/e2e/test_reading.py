"""
Handlers read other objects on the connections of the operator.
"""
import uuid

import kopf
from tests.e2e.kubes import CONFIGMAPS


async def test_async_and_sync_handlers_read_objects(kube, kind, embedded):
    name, read = f'config-{uuid.uuid4().hex[:8]}', {}
    crd = f'{kind.plural}.{kind.group}'

    @kopf.on.create(*kind.selector)
    async def create(**_):
        config = await kopf.get('configmaps', name)
        read['async'] = config and config['data'], await kopf.get('configmaps', f'{name}-absent')
        found = await kopf.list_('configmaps', labels={'name': name})
        read['list'] = [obj.metadata.name for obj in found]
        read['crds'] = (await kopf.get('customresourcedefinitions', crd)).metadata.name

    @kopf.on.create(*kind.selector)
    def create_too(name, **_):
        read['sync'] = kopf.get(kind.selector, name).result(timeout=10).spec

    await kube.create(CONFIGMAPS, name, labels={'name': name}, data={'k': 'v'})
    try:
        embedded()
        await kube.create(kind, 'obj', spec={'n': 1})
        await kube.wait_for(kind, 'obj', lambda obj: any(
            'last-handled' in key for key in obj['metadata'].get('annotations', {})))
    finally:
        await kube.delete(CONFIGMAPS, name)
    assert read == {
        'async': ({'k': 'v'}, None), 'list': [name], 'crds': crd, 'sync': {'n': 1}}
