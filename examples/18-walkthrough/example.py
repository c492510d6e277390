"""
The complete operator of the walk-through: an EphemeralVolumeClaim (EVC) owns a
PersistentVolumeClaim (PVC) of the same name. The operator copies the size and the labels of the EVC
to the PVC, and keeps the other labels of the PVC. When somebody deletes the EVC, Kubernetes deletes
the PVC, too. An EVC without a size fails permanently. This example needs
``pip install kubernetes``. Type ``kubectl apply`` with ``crd.yaml`` and ``evc.yaml`` of this
folder, and ``kubectl get evc,pvc``. Then type ``kubectl label evc my-claim owner=me``, or
``kubectl patch evc my-claim --type merge -p '{"spec": {"size": "2G"}}'`` (if the storage class can
expand volumes), and see that the PVC follows; then type ``kubectl delete evc my-claim``.
``kopf.testing.explore`` does not try its faults, as it sees no requests of sync clients. The
example would not survive ``refuse-409`` at the creation of the PVC: it takes any HTTP 409 for a PVC
that exists already.
"""
import pathlib

import kopf
import kubernetes.client
import yaml

TEMPLATE = (pathlib.Path(__file__).parent / 'pvc.yaml').read_text()


@kopf.on.login()
def login(**kwargs):
    return kopf.login_via_client(**kwargs)


@kopf.on.create('ephemeralvolumeclaims')
def create_fn(spec, name, namespace, logger, **_):
    pvc = yaml.safe_load(TEMPLATE.format(name=name, size=get_size(spec)))
    if 'storageClassName' in spec:
        pvc['spec']['storageClassName'] = spec['storageClassName']
    kopf.adopt(pvc)
    api = kubernetes.client.CoreV1Api()
    try:
        api.create_namespaced_persistent_volume_claim(namespace, pvc)
        logger.info(f"The PVC is created: {name}")
    except kubernetes.client.ApiException as e:
        if e.status != 409:  # 409: an earlier attempt has created it
            raise
    return {'pvc-name': name}


@kopf.on.update('ephemeralvolumeclaims', field='spec.size')
def resize(spec, status, namespace, logger, **_):
    size = get_size(spec)
    patch_pvc(status, namespace, {'spec': {'resources': {'requests': {'storage': size}}}})
    logger.info(f"The PVC is resized to {size}.")


@kopf.on.update('ephemeralvolumeclaims', field='metadata.labels')
def relabel(old, new, status, namespace, logger, **_):
    labels = {**dict.fromkeys(old or {}), **(new or {})}  # None removes a label
    patch_pvc(status, namespace, {'metadata': {'labels': labels}})
    logger.info(f"The PVC is relabelled: {labels}")


def get_size(spec):
    if not spec.get('size'):
        raise kopf.PermanentError("A claim needs a size.")
    return spec['size']


def patch_pvc(status, namespace, patch):
    if 'create_fn' not in status:
        raise kopf.PermanentError("There is no PVC: delete the claim, and create it anew.")
    api = kubernetes.client.CoreV1Api()
    name = status['create_fn']['pvc-name']
    api.patch_namespaced_persistent_volume_claim(name, namespace, patch)
