"""
The complete operator of the walk-through: an EphemeralVolumeClaim (EVC) owns a
PersistentVolumeClaim (PVC) of the same name. The operator copies the size and the labels of the EVC
to the PVC, and keeps the other labels of the PVC. When somebody deletes the EVC, Kubernetes deletes
the PVC, too. An EVC without a size fails permanently. This example needs
``pip install kubernetes``, and the storage class that ``pvc.yaml`` names. Type ``kubectl apply``
with ``crd.yaml`` and ``evc.yaml`` of this folder, and ``kubectl get evc,pvc``. Then type
``kubectl label evc my-claim team=blue``, or give ``spec.size`` a higher value with
``kubectl edit evc my-claim`` (if the storage class can expand volumes), and see that the PVC
follows; then type ``kubectl delete evc my-claim``.
``kopf.testing.explore`` does not try its faults, as it sees no requests of sync clients. The
example would not survive ``refuse-409`` at the creation of the PVC: it takes any HTTP 409 for a PVC
that exists already.
"""
import pathlib

import kopf
import kubernetes
import yaml

TEMPLATE = pathlib.Path(__file__).with_name('pvc.yaml').read_text()


@kopf.on.create('ephemeralvolumeclaims')
def create_volume(spec, name, namespace, logger, **_):
    pvc = yaml.safe_load(TEMPLATE.format(name=name, size=get_size(spec)))
    kopf.adopt(pvc)
    try:
        kubernetes.client.CoreV1Api().create_namespaced_persistent_volume_claim(namespace, pvc)
    except kubernetes.client.ApiException as e:
        if e.status != 409:  # 409: an earlier attempt has created it
            raise
    logger.info(f"The volume claim exists: {name}")
    return {'pvc': name}


@kopf.on.update('ephemeralvolumeclaims', field='spec.size')
def resize_volume(spec, status, namespace, logger, **_):
    size = get_size(spec)
    change_volume(status, namespace, {'spec': {'resources': {'requests': {'storage': size}}}})
    logger.info(f"The volume claim is resized to {size}.")


@kopf.on.update('ephemeralvolumeclaims', field='metadata.labels')
def copy_labels(old, new, status, namespace, **_):
    labels = {**dict.fromkeys(old or {}), **(new or {})}  # None removes a label
    change_volume(status, namespace, {'metadata': {'labels': labels}})


def get_size(spec):
    if not spec.get('size'):
        raise kopf.PermanentError("Say in spec.size how large the volume must be.")
    return spec['size']


def change_volume(status, namespace, patch):
    if 'create_volume' not in status:
        raise kopf.PermanentError("There is no volume claim. Delete and create this object anew.")
    pvc = status['create_volume']['pvc']
    kubernetes.client.CoreV1Api().patch_namespaced_persistent_volume_claim(pvc, namespace, patch)
