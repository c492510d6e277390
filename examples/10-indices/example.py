"""
Indices: what is known of some objects while others are handled, from memory, without a request.
Here, they tell which pods have their environment from which config map, so that whoever changes the
data of a config map is told which pods still have the former data. Other config maps than those
that are labelled for that are left alone. Type ``kubectl apply -f examples/10-indices/objs.yaml``,
then ``kubectl patch configmap colours --patch '{"data": {"background": "black"}}'``, and see the
warning in the log, or with ``kubectl describe``; delete the pod, change the data again, and see
that no pod is concerned.
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
