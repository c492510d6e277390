"""
Deployment: an operator in a cluster, in two pods. One pod works, and the other pod waits to take
over. The operator has only the permissions that its handlers and Kopf need. For each example
object, the operator creates a config map. In this folder, build a wheel of Kopf with
``pip wheel --no-deps --wheel-dir dist ../..``, and the image with the ``Dockerfile``. Push the
image to your registry, and put its name into ``deployment.yaml``. In the root of the repository, do
the rest. Type ``kubectl apply -f peering.yaml -f examples/crd.yaml``, then
``kubectl apply -f examples/19-deployment/rbac.yaml -f examples/19-deployment/deployment.yaml``,
then ``kubectl logs -f --prefix -l app=kopf-example -n kopf-example``. Apply ``examples/obj.yaml``,
and see which pod handles the object. Delete that pod, and see that the other pod takes over.
"""
import os
import zlib

import kopf
import kubernetes.client


@kopf.on.startup()
def configure(settings, **_):
    # Pods with the same priority would only block each other.
    settings.peering.priority = zlib.crc32(os.environ['POD_NAME'].encode())


@kopf.on.login()
def login(**kwargs):
    return kopf.login_via_client(**kwargs)


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
def keep_config(spec, name, namespace, logger, **_):
    config = kubernetes.client.V1ConfigMap(data={key: str(val) for key, val in spec.items()})
    kopf.adopt(config, strict=True)
    api = kubernetes.client.CoreV1Api()
    try:
        api.create_namespaced_config_map(namespace, config)
    except kubernetes.client.ApiException as e:
        if e.status != 409:
            raise
        api.patch_namespaced_config_map(name, namespace, {'data': config.data})
    logger.info("The config map is as it should be.")


@kopf.on.delete('kopfexamples')
def say_goodbye(logger, **_):
    logger.info("The config map goes with its owner.")


@kopf.on.probe(id='pod')
def tell_name(**_):
    return os.environ['POD_NAME']
