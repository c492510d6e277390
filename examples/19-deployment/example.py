"""
Deployment: an operator in a cluster, in two replicas. The one that holds the Lease works, and the
other one waits, ready to take over at once. Both serve health checks and metrics. The operator has
only the permissions that its handlers and Kopf need. For each example object, the operator creates
a config map. In this folder, build a wheel of Kopf with
``pip wheel --no-deps --wheel-dir dist ../..``, and the image with the ``Dockerfile``. Push the
image to your registry, and put its name into ``deployment.yaml``. In the root of the repository, do
the rest. Type ``kubectl apply -f examples/crd.yaml``, then
``kubectl apply -f examples/19-deployment/rbac.yaml -f examples/19-deployment/deployment.yaml``,
then ``kubectl logs -f --prefix -l app=kopf-example -n kopf-example``. Apply ``examples/obj.yaml``,
and see which pod handles the object: ``kubectl get lease -n kopf-example`` shows its name, too.
Delete that pod, and see that the other pod takes over.
"""
import kopf


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
@kopf.needs('configmaps', verbs=['create', 'patch'])
@kopf.needs('kopfexamples/finalizers', verbs=['update'])
async def keep_config(spec, logger, **_):
    config = {
        'apiVersion': 'v1', 'kind': 'ConfigMap',
        'data': {key: str(val) for key, val in spec.items()},
    }
    kopf.adopt(config, strict=True)
    await kopf.apply(config)  # by Kopf, so that only the leader writes
    logger.info("The config map is as it should be.")


@kopf.on.delete('kopfexamples')
async def say_goodbye(logger, **_):
    logger.info("The config map goes with its owner.")
