"""
Owned resources: a deployment serves a blog from a config map. The handlers adopt both objects:
they get the name, the namespace, and the labels of the blog (the pods in the deployment, too).
Kubernetes deletes them with the blog, which is their owner, so the operator needs no handler for
that. Each handler creates one object, so that a retry never creates the other object again.
``kopf.needs`` shows ``kopf rbac`` what the client of the handlers must be allowed to do. This
example needs ``pip install kubernetes``. Type ``kubectl apply -f
examples/04-owned-resources/crd.yaml -f examples/04-owned-resources/obj.yaml``, and ``kubectl get
configmaps,deployments --show-labels``. Change the text of the blog, and see that the page
follows; delete the blog, and see that both objects disappear. ``kopf.testing.explore`` does not
try its faults, as it sees no requests of sync clients. The example would not survive
``refuse-409``: it takes any HTTP 409 for an object that exists already.
"""
import pathlib

import kopf
import kubernetes.client
import yaml

HERE = pathlib.Path(__file__).parent


@kopf.on.login()
def login(**kwargs):
    return kopf.login_via_client(**kwargs)


@kopf.on.create('blogs')
@kopf.needs('configmaps', verbs=['create'])
@kopf.needs('blogs/finalizers', verbs=['update'])  # to be an owner that is deleted last
def create_page(spec, namespace, **_):
    page = kubernetes.client.V1ConfigMap(data=render_page(spec))
    adopt(page)
    api = kubernetes.client.CoreV1Api()
    create_once(api.create_namespaced_config_map, namespace, page)


@kopf.on.create('blogs')
@kopf.needs('deployments.apps', verbs=['create'])
def create_server(spec, name, namespace, **_):
    server = yaml.safe_load((HERE / 'deployment.yaml').read_text())
    server['spec']['replicas'] = spec['replicas']
    server['spec']['selector']['matchLabels'] = {'blog': name}
    server['spec']['template']['spec']['volumes'][0]['configMap']['name'] = name
    kopf.label(server, {'blog': name}, nested='spec.template')
    adopt(server)
    api = kubernetes.client.AppsV1Api()
    create_once(api.create_namespaced_deployment, namespace, server)


@kopf.on.update('blogs', field='spec.text')
@kopf.needs('configmaps', verbs=['patch'])
def rewrite_page(spec, name, namespace, **_):
    api = kubernetes.client.CoreV1Api()
    api.patch_namespaced_config_map(name, namespace, {'data': render_page(spec)})


def render_page(spec):
    return {'index.html': f"<h1>{spec['text']}</h1>"}


def adopt(obj):
    """The owner is the object that is being handled, so no argument needs to pass the owner."""
    kopf.adopt(obj, strict=True, nested='spec.template')


def create_once(create, namespace, obj):
    """Ignore 409: an attempt that was killed after the request has created the object."""
    try:
        create(namespace, obj)
    except kubernetes.client.ApiException as e:
        if e.status != 409:
            raise
