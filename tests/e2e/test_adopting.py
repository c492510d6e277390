"""
Children of the handled objects: made for the API by the handlers, and garbage-collected by it.
"""

import uuid

import kopf
from tests.e2e.journals import wait_handled
from tests.e2e.kubes import CONFIGMAPS


async def test_adopted_children_are_accepted_and_go_with_their_parent(
        kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def fn(**_):
        objs = [{'data': {'field': 'exact'}}, {'data': {'field': 'generated'}}]
        kopf.adopt(objs[0], strict=True)
        kopf.adopt(objs[1])
        journal.extend(objs)

    embedded()
    name = f'obj-{uuid.uuid4().hex[:8]}'
    parent = await kube.create(kind, name, labels={'some': 'label'})
    await wait_handled(kube, kind, name)
    path = CONFIGMAPS.get_path(namespace='default')
    children = [await kube.request('POST', path, body=body) for body in journal]
    names = [child['metadata']['name'] for child in children]
    assert names[0] == name
    assert names[1].startswith(f'{name}-')
    for child in children:
        assert child['metadata']['labels'] == {'some': 'label'}
        owner, = child['metadata']['ownerReferences']
        assert owner['uid'] == parent['metadata']['uid']
    await kube.delete(kind, name)
    await kube.wait_gone(kind, name)
    for name in names:
        await kube.wait_collected(CONFIGMAPS, name)


async def test_children_that_are_not_owned_any_more_stay(kube, kind, journal, embedded):

    @kopf.on.create(*kind.selector)
    def fn(**_):
        obj = {'data': {}}
        kopf.adopt(obj)
        kopf.remove_owner_reference(obj)
        journal.append(obj)

    embedded()
    await kube.create(kind, 'obj')
    await wait_handled(kube, kind, 'obj')
    assert journal[0]['metadata']['ownerReferences'] == []
    child = await kube.request('POST', CONFIGMAPS.get_path(namespace='default'), body=journal[0])
    await kube.delete(kind, 'obj')
    await kube.wait_gone(kind, 'obj')
    assert await kube.get(CONFIGMAPS, child['metadata']['name'])
    await kube.delete(CONFIGMAPS, child['metadata']['name'])
