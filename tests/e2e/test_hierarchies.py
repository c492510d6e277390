"""
Children are adopted by whoever is being handled, in handlers of all sorts, with all the libraries.
"""
import asyncio

import kubernetes_asyncio
import pykube
import pytest

import kopf
from tests.e2e.kubes import CONFIGMAPS

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')


class Household:
    """What a handler calls, and what knows nothing of handlers."""

    def prepare(self):
        return self._make({'spec': {'template': {}}})

    def _make(self, child):
        kopf.adopt(child, strict=True, nested='spec.template')
        return child


def is_adopted(child, parent):
    owner, = child['metadata']['ownerReferences']
    return (
        owner['uid'] == parent['metadata']['uid']
        and child['metadata']['name'] == parent['metadata']['name']
        and child['metadata']['namespace'] == parent['metadata']['namespace']
        and child['metadata']['labels'] == {'l': 'v'}
        and child['spec']['template']['metadata']['labels'] == {'l': 'v'})


def get_children(journal, name):
    return {sort: child for sort, child in list(journal) if child['metadata']['name'] == name}


async def test_the_owner_is_known_deep_inside_of_handlers_of_all_sorts(
        kube, kind, embedded, journal):
    household = Household()

    def adopt(sort):
        journal.append((sort, household.prepare()))

    @kopf.index(*kind.selector)
    def by_name(**_):
        adopt('index')

    @kopf.on.event(*kind.selector)
    async def on_event(type, **_):
        if type != 'DELETED':
            await asyncio.to_thread(adopt, 'event')

    @kopf.on.create(*kind.selector)
    def on_create(**_):
        adopt('create')

        @kopf.subhandler()
        def sub(**_):
            adopt('subhandler')

    @kopf.on.field(*kind.selector, field='spec.field')
    async def on_field(**_):
        adopt('field')

    @kopf.daemon(*kind.selector)
    def daemon(**_):
        adopt('daemon')

    @kopf.timer(*kind.selector, interval=3600)
    def timer(**_):
        adopt('timer')

    @kopf.on.delete(*kind.selector)
    def on_delete(**_):
        adopt('delete')

    embedded()
    parents = [
        await kube.create(kind, name, labels={'l': 'v'}, spec={'field': 'value'})
        for name in ('one', 'two')]
    sorts = {'index', 'event', 'create', 'subhandler', 'field', 'daemon', 'timer'}
    for parent in parents:
        name = parent['metadata']['name']
        await journal.wait_until(lambda: sorts <= get_children(journal, name).keys())
        await kube.delete(kind, name)
        await kube.wait_gone(kind, name)
        children = get_children(journal, name)
        assert children.keys() == sorts | {'delete'}
        assert all(is_adopted(child, parent) for child in children.values())


async def test_children_made_by_any_library_go_with_their_parent(
        kube, kind, embedded, cluster, journal):

    @kopf.on.create(*kind.selector)
    def by_pykube(name, **_):
        api = pykube.HTTPClient(pykube.KubeConfig.from_file(cluster))
        child = pykube.ConfigMap(api, {'data': {}})
        kopf.adopt(child)
        child.create()
        journal.append(child.name)
        api.session.close()

    @kopf.on.create(*kind.selector)
    async def by_asyncio_client(namespace, **_):
        child = kubernetes_asyncio.client.V1ConfigMap()
        kopf.adopt(child)
        config = kubernetes_asyncio.client.Configuration()
        await kubernetes_asyncio.config.load_kube_config(cluster, client_configuration=config)
        async with kubernetes_asyncio.client.ApiClient(config) as api:
            core = kubernetes_asyncio.client.CoreV1Api(api)
            child = await core.create_namespaced_config_map(namespace, child)
        journal.append(child.metadata.name)

    embedded()
    parent = await kube.create(kind, 'parent', labels={'l': 'v'})
    await journal.wait_length(2)
    for name in journal:
        child = await kube.get(CONFIGMAPS, name)
        assert name.startswith('parent-') and child['metadata']['labels'] == {'l': 'v'}
        owner, = child['metadata']['ownerReferences']
        assert owner['uid'] == parent['metadata']['uid']
    await kube.delete(kind, 'parent')
    for name in journal:
        await kube.wait_collected(CONFIGMAPS, name)
