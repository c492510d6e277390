"""
The complete operator of the walk-through: each website has a page, servers, an address, and a
record in a DNS. The objects in Kubernetes are levels, the record is in an external system, and the
announcement of a new title is an edge; the kind is a class. The DNS of another company is played by
``fakedns.py``. Type ``python examples/18-walkthrough/fakedns.py``, and in another terminal
``kopf run --sandbox --load examples/18-walkthrough/website.yaml -A
examples/18-walkthrough/example.py``. In a third one, after ``export KUBECONFIG=…`` as the operator
prints it, type ``kubectl get websites,deployments,services,configmaps``, and see the record with
``curl http://127.0.0.1:8053/records``. Change the record or the objects, and see that Kopf restores
all of them; type ``kubectl delete website hello``, and see that all of them disappear. The tests in
``test_example.py`` kill the operator after each of its writes and calls.
"""
import dataclasses
import os
from typing import Annotated, Any

import aiohttp
import kopf

DNS_URL = os.environ.get('DNS_URL', 'http://127.0.0.1:8053')


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebsiteSpec:
    """What a website should be like."""
    title: Annotated[str, kopf.Pattern('[^ ]')]  # The heading of the page.
    replicas: int = 1  # How many servers there are.
    domain: str | None = None  # The name in the DNS, if it is another than that of the website.


@kopf.crd('example.com', 'v1', plural='websites',
          columns=[kopf.Column('Title', '.spec.title'),
                   kopf.Column('Domain', '.status.dns.name'),
                   kopf.Column('Servers', '.status.ready')])
class Website:
    spec: WebsiteSpec
    status: dict[str, Any] | None = None


@kopf.reconcile(Website, owns=['configmaps', 'deployments.apps', 'services'], conditions=True)
def website(spec: WebsiteSpec, name, children, patch, **_):
    labels = {'website': name}
    yield {
        'apiVersion': 'v1',
        'kind': 'ConfigMap',
        'metadata': {'name': name},
        'data': {'index.html': f"<h1>{spec.title}</h1>"},
    }
    yield {
        'apiVersion': 'apps/v1',
        'kind': 'Deployment',
        'metadata': {'name': name},
        'spec': {
            'replicas': spec.replicas,
            'selector': {'matchLabels': labels},
            'template': {
                'metadata': {'labels': labels},
                'spec': {
                    'containers': [{
                        'name': 'web',
                        'image': 'nginx:1.28',
                        'volumeMounts': [{'name': 'page', 'mountPath': '/usr/share/nginx/html'}],
                    }],
                    'volumes': [{'name': 'page', 'configMap': {'name': name}}],
                },
            },
        },
    }
    yield {
        'apiVersion': 'v1',
        'kind': 'Service',
        'metadata': {'name': name},
        'spec': {'selector': labels, 'ports': [{'port': 80, 'protocol': 'TCP'}]},
    }
    deployment = children.get('deployments', name)
    patch.status['ready'] = deployment.status.get('readyReplicas', 0) if deployment else 0


@kopf.on.update(Website, field='spec.title')
def announce(old: str, new: str, logger, **_):
    logger.info(f"{old!r} is called {new!r} now.")


dns = kopf.external(Website, id='dns', interval=5, consistency=0, shown=['name'])


@dns.desired
def desire(spec: WebsiteSpec, name, namespace, **_):
    return {'name': spec.domain or f'{name}.example.com', 'target': f'{name}.{namespace}.svc'}


@dns.observe
async def observe(key, **_):
    try:
        return await call('GET', f'/records/{key}')
    except aiohttp.ClientResponseError as e:
        if e.status == 404:
            return None
        raise


@dns.find
async def find(token, **_):
    found = await call('GET', '/records', params={'token': token})
    return found['items'][0]['id'] if found['items'] else None


@dns.create
async def create(desired, token, **_):
    record = await call('POST', '/records', json={**desired, 'token': token})
    return record['id']


@dns.update
async def update(key, desired, **_):
    await call('PATCH', f'/records/{key}', json=desired)


@dns.delete
async def delete(key, **_):
    await call('DELETE', f'/records/{key}')


async def call(method, path, **options) -> Any:
    async with (
            aiohttp.ClientSession(DNS_URL, raise_for_status=True) as session,
            session.request(method, path, **options) as response):
        return await response.json() if response.status != 204 else None
