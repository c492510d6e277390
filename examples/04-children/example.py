"""
Children: a website is served by a deployment, from a config map. Both are adopted: they get the
name, the namespace and the labels of the website (the pods in the deployment, too), and are owned
by it, so that they go when it goes, without a handler for that. One handler makes one child, so
that a retry never makes the other one again. It needs ``pip install kubernetes``. Type ``kubectl
apply -f examples/04-children/crd.yaml -f examples/04-children/obj.yaml``, and ``kubectl get
configmaps,deployments --show-labels``; change the text of the website, and see the page follow;
delete the website, and see them go.
"""
import pathlib

import kopf
import kubernetes.client
import yaml

HERE = pathlib.Path(__file__).parent


@kopf.on.login()
def login(**kwargs):
    return kopf.login_via_client(**kwargs)


@kopf.on.create('websites')
def create_page(spec, namespace, **_):
    page = kubernetes.client.V1ConfigMap(data=render_page(spec))
    adopt(page)
    api = kubernetes.client.CoreV1Api()
    create_once(api.create_namespaced_config_map, namespace, page)


@kopf.on.create('websites')
def create_server(spec, name, namespace, **_):
    server = yaml.safe_load((HERE / 'deployment.yaml').read_text())
    server['spec']['replicas'] = spec['replicas']
    server['spec']['selector']['matchLabels'] = {'website': name}
    server['spec']['template']['spec']['volumes'][0]['configMap']['name'] = name
    kopf.label(server, {'website': name}, nested='spec.template')
    adopt(server)
    api = kubernetes.client.AppsV1Api()
    create_once(api.create_namespaced_deployment, namespace, server)


@kopf.on.update('websites', field='spec.text')
def rewrite_page(spec, name, namespace, **_):
    api = kubernetes.client.CoreV1Api()
    api.patch_namespaced_config_map(name, namespace, {'data': render_page(spec)})


def render_page(spec):
    return {'index.html': f"<h1>{spec['text']}</h1>"}


def adopt(child):
    """The parent is the object that is being handled; it need not be passed down to here."""
    kopf.adopt(child, strict=True, nested='spec.template')


def create_once(create, namespace, child):
    """The handler can have been killed after it had created the child: it is not created twice."""
    try:
        create(namespace, child)
    except kubernetes.client.ApiException as e:
        if e.status != 409:
            raise
