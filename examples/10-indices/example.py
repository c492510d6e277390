"""
Indices: data of other objects, in memory, without requests to the API server. Here, an index
contains which pods take their environment from which config map. When somebody changes the data of
a config map, the operator warns about the pods that still use the former data. The operator handles
only config maps with the label ``watched``. Type
``kubectl apply -f examples/10-indices/objs.yaml``, then
``kubectl patch configmap colours --patch '{"data": {"background": "black"}}'``, and see the warning
in the log, or with ``kubectl describe``. Delete the pod, change the data again, and see that no pod
is concerned.
"""
import kopf


@kopf.index('pods')
def pods_by_config(spec, namespace, name, **_):
    return {
        (namespace, source['configMapRef']['name']): name
        for container in spec['containers']
        for source in container.get('envFrom', [])
        if 'configMapRef' in source
    }


@kopf.on.update('configmaps', field='data', labels={'watched': 'yes'})
def warn_of_former_data(namespace, name, pods_by_config, logger, **_):
    pods = sorted(pods_by_config.get((namespace, name), []))
    if pods:
        logger.warning(f"The former data are still in use: restart {', '.join(pods)}.")
    else:
        logger.info("No pod is concerned.")
