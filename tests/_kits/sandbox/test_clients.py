"""The sandbox as the clients that people have see it: over TLS by its kubeconfig, and over HTTP."""
import contextlib
import itertools
import json
import queue
import threading
import warnings

import pytest

from kopf.testing import run_sandbox
from tests._kits.sandbox.conftest import CRD

# The clients leave their connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings('ignore::ResourceWarning'),
    pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

GROUP, VERSION, PLURAL = 'sandbox.test', 'v1', 'toys'
TOY = {'apiVersion': 'sandbox.test/v1', 'kind': 'Toy', 'metadata': {'name': 'a'},
       'spec': {'size': 1}}
CM = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'a', 'labels': {'x': 'y'}},
      'data': {'size': '1'}}
STORY = ['ADDED', 'MODIFIED', 'DELETED']


@pytest.fixture(scope='module', params=['https', 'http'])
def server(request):
    if request.param == 'https':
        pytest.importorskip('cryptography')
    with run_sandbox(tls=request.param == 'https') as sandbox:
        sandbox.run(sandbox.sandbox.load(CRD))
        yield sandbox


@pytest.fixture(scope='module')
def context(server):
    """By a certificate over TLS, by a token over plain HTTP."""
    return 'cert' if server.url.startswith('https:') else 'admin'


@pytest.fixture(scope='module')
def kubeconfig(server, tmp_path_factory):
    path = tmp_path_factory.mktemp('kube') / 'config'
    server.write_kubeconfig(path)
    return path


@contextlib.contextmanager
def collecting(stream):
    """Put what a blocking stream gives in a queue, from a thread of its own."""
    found = queue.Queue()

    def collect():
        for item in stream():
            found.put(item)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    yield found
    thread.join()
    assert not thread.is_alive()


# The official client.

@pytest.fixture()
def official(kubeconfig, context):
    kubernetes = pytest.importorskip('kubernetes')
    with kubernetes.config.new_client_from_config(str(kubeconfig), context=context) as client:
        yield client


def test_the_official_client_lives_with_a_builtin_kind(official):
    from kubernetes import client, watch
    api = client.CoreV1Api(official)
    made = api.create_namespaced_config_map('default', CM, field_manager='me')
    assert made.metadata.managed_fields[0].manager == 'me'

    version = api.list_namespaced_config_map('default').metadata.resource_version
    assert api.list_config_map_for_all_namespaces(label_selector='x=y').items[0].data == CM['data']
    assert api.read_namespaced_config_map('a', 'default').metadata.uid == made.metadata.uid
    body = {'data': {'size': '2'}}
    assert api.patch_namespaced_config_map('a', 'default', body).data == {'size': '2'}
    assert api.patch_namespaced_config_map(
        'a', 'default', {'data': {'more': '3'}}).data == {'size': '2', 'more': '3'}
    made = api.read_namespaced_config_map('a', 'default')
    made.data = {'size': '4'}
    assert api.replace_namespaced_config_map('a', 'default', made).data == {'size': '4'}
    with pytest.raises(client.ApiException, match='the object has been modified') as error:
        made.metadata.resource_version = version
        api.replace_namespaced_config_map('a', 'default', made)
    assert (error.value.status, json.loads(error.value.body)['reason']) == (409, 'Conflict')
    api.delete_namespaced_config_map('a', 'default')

    events = list(watch.Watch().stream(
        api.list_namespaced_config_map, 'default', resource_version=version,
        field_selector='metadata.name=a', timeout_seconds=1))
    assert [event['type'] for event in events] == ['MODIFIED'] * 3 + ['DELETED']
    assert events[0]['object'].data == {'size': '2'}
    with pytest.raises(client.ApiException) as error:
        api.read_namespaced_config_map('a', 'default')
    assert error.value.status == 404


def test_the_official_client_lives_with_a_custom_kind(official):
    from kubernetes import client, watch
    api = client.CustomObjectsApi(official)
    place = (GROUP, VERSION, 'default', PLURAL)
    made = api.create_namespaced_custom_object(*place, TOY)
    assert made['metadata']['generation'] == 1
    version = api.list_namespaced_custom_object(*place)['metadata']['resourceVersion']
    assert api.list_cluster_custom_object(GROUP, VERSION, PLURAL)['items'] == [made]
    found = api.patch_namespaced_custom_object(*place, 'a', {'spec': {'size': 2}})
    assert found['spec'] == {'size': 2}
    found = api.patch_namespaced_custom_object_status(*place, 'a', {'status': {'ready': True}})
    assert found['status'] == {'ready': True}
    assert api.get_namespaced_custom_object(*place, 'a') == found
    api.delete_namespaced_custom_object(*place, 'a', propagation_policy='Foreground')
    events = list(watch.Watch().stream(
        api.list_namespaced_custom_object, *place, resource_version=version, timeout_seconds=1))
    assert [event['type'] for event in events][-1] == 'DELETED'


def test_the_official_client_has_objects_as_types(official):
    from kubernetes import client
    api = client.AppsV1Api(official)
    labels = {'app': 'a'}
    api.create_namespaced_deployment('default', client.V1Deployment(
        metadata=client.V1ObjectMeta(name='a'),
        spec=client.V1DeploymentSpec(
            replicas=2, selector=client.V1LabelSelector(match_labels=labels),
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(labels=labels),
                spec=client.V1PodSpec(containers=[client.V1Container(name='a', image='b')])))))
    assert api.read_namespaced_deployment('a', 'default').spec.strategy.type == 'RollingUpdate'
    assert api.read_namespaced_deployment_scale('a', 'default').spec.replicas == 2
    found = api.patch_namespaced_deployment_scale('a', 'default', {'spec': {'replicas': 3}})
    assert found.spec.replicas == 3
    api.delete_namespaced_deployment('a', 'default')
    assert client.VersionApi(official).get_code().git_version.startswith('v1.')
    review = client.AuthorizationV1Api(official).create_self_subject_access_review({
        'spec': {'resourceAttributes': {'verb': 'get', 'resource': 'pods'}}})
    assert review.status.allowed
    names = [item.name for item in client.CoreV1Api(official).get_api_resources().resources]
    assert 'pods/eviction' in names


def test_the_dynamic_client_finds_the_kinds(official, tmp_path):
    from kubernetes.dynamic import DynamicClient
    dynamic = DynamicClient(official, cache_file=str(tmp_path / 'cache'))
    toys = dynamic.resources.get(api_version='sandbox.test/v1', kind='Toy')
    cms = dynamic.resources.get(api_version='v1', kind='ConfigMap')
    assert toys.create(body=TOY, namespace='default').spec.size == 1
    assert toys.patch(body={'spec': {'size': 2}}, namespace='default', name='a',
                      content_type='application/merge-patch+json').spec.size == 2
    applied = toys.server_side_apply(
        body={**TOY, 'spec': {'more': 3}}, namespace='default', name='a', field_manager='me')
    assert applied.spec.to_dict() == {'size': 2, 'more': 3}
    assert [item.metadata.name for item in toys.get(namespace='default').items] == ['a']
    event = next(iter(toys.watch(namespace='default', timeout=1)))
    assert event['object'].metadata.name == 'a'
    toys.delete(name='a', namespace='default')
    assert cms.get(namespace='default', label_selector='x=y').items == []


# pykube-ng

@pytest.fixture()
def pykube_api(kubeconfig, context):
    pykube = pytest.importorskip('pykube')
    config = pykube.KubeConfig.from_file(str(kubeconfig))
    config.set_current_context(context)
    api = pykube.HTTPClient(config, timeout=200)
    yield api
    api.session.close()


def test_pykube_lives_with_a_builtin_kind(pykube_api):
    import pykube
    cms = pykube.ConfigMap.objects(pykube_api).filter(namespace='default', selector={'x': 'y'})
    watch = cms.watch(since=pykube.now)  # before anything happens, however late the thread is
    with collecting(lambda: itertools.islice(watch, len(STORY))) as events:
        found = pykube.ConfigMap(pykube_api, CM)
        found.create()
        assert found.exists()
        found.patch({'data': {'size': '2'}})
        assert found.obj['data'] == {'size': '2'}
        assert [cm.name for cm in cms.iterator()] == ['a']
        found.delete()
        assert [events.get(timeout=200).type for _ in STORY] == STORY


def test_pykube_lives_with_a_custom_kind(pykube_api):
    import pykube
    kind = pykube.object_factory(pykube_api, 'sandbox.test/v1', 'Toy')
    assert issubclass(kind, pykube.objects.NamespacedAPIObject)
    found = kind(pykube_api, {**TOY, 'metadata': {'name': 'a', 'namespace': 'default'}})
    found.create()
    found.obj['spec']['size'] = 2
    found.update()
    found.patch({'status': {'ready': True}}, subresource='status')
    found.reload()
    assert (found.obj['spec'], found.obj['status']) == ({'size': 2}, {'ready': True})
    assert [toy.name for toy in kind.objects(pykube_api).filter(namespace='default')] == ['a']
    found.delete(propagation_policy='Background')
    assert not found.exists()


# kubernetes_asyncio

@pytest.fixture()
async def asynchronous(kubeconfig, context):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        kubernetes = pytest.importorskip('kubernetes_asyncio')
    client = await kubernetes.config.new_client_from_config(str(kubeconfig), context=context)
    yield client
    await client.close()


async def test_the_asynchronous_client_lives_with_a_builtin_kind(asynchronous):
    from kubernetes_asyncio import client, watch
    api = client.CoreV1Api(asynchronous)
    await api.create_namespaced_config_map('default', CM)
    listed = await api.list_namespaced_config_map('default', label_selector='x=y')
    assert [item.data for item in listed.items] == [{'size': '1'}]
    body = {'data': {'size': '2'}}
    assert (await api.patch_namespaced_config_map('a', 'default', body)).data == {'size': '2'}
    assert (await api.delete_namespaced_config_map('a', 'default')).status == 'Success'
    async with watch.Watch() as stream:
        events = [event async for event in stream.stream(
            api.list_namespaced_config_map, 'default', timeout_seconds=1,
            resource_version=listed.metadata.resource_version)]
    assert [event['type'] for event in events] == STORY[1:]
    with pytest.raises(client.ApiException) as error:
        await api.read_namespaced_config_map('a', 'default')
    assert error.value.status == 404


async def test_the_asynchronous_client_lives_with_a_custom_kind(asynchronous):
    from kubernetes_asyncio import client, watch
    api = client.CustomObjectsApi(asynchronous)
    place = (GROUP, VERSION, 'default', PLURAL)
    await api.create_namespaced_custom_object(*place, TOY)
    listed = await api.list_namespaced_custom_object(*place)
    assert [item['spec'] for item in listed['items']] == [{'size': 1}]
    found = await api.patch_namespaced_custom_object(
        *place, 'a', {'spec': {'size': 2}}, _content_type='application/merge-patch+json')
    assert found['spec'] == {'size': 2}
    await api.delete_namespaced_custom_object(*place, 'a')
    async with watch.Watch() as stream:
        events = [event async for event in stream.stream(
            api.list_namespaced_custom_object, *place, timeout_seconds=1,
            resource_version=listed['metadata']['resourceVersion'])]
    assert [event['type'] for event in events] == STORY[1:]
