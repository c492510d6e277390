import fractions
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses, wordings
from kopf._kits.sandbox.builtins import quantities

Causes = Iterator[statuses.Cause]

FLAG = "field is immutable when `immutable` is set"
MUTABLE_BY_SET = ('replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit',
                  'persistentVolumeClaimRetentionPolicy', 'minReadySeconds')


def validate_update(kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj) -> list[statuses.Cause]:
    """What is wrong with a change of the object; not with the new object itself."""
    found = [
        wordings.immutable(field, statuses.dig(new, field))
        for field in kinds.get_traits(kind.resource).get('immutable', ())
        if statuses.dig(new, field) != statuses.dig(old, field)
    ]
    special = _CHANGES.get(kind.resource)
    return found + (list(special(new, old)) if special is not None else [])


def _change_set(new: statuses.Obj, old: statuses.Obj) -> Causes:
    fixed, before = (statuses.omit(obj['spec'], *MUTABLE_BY_SET) for obj in (new, old))
    if fixed != before:
        listed = ', '.join(f"'{key}'" for key in MUTABLE_BY_SET[:-1])
        yield wordings.forbidden(
            'spec', f"updates to statefulset spec for fields other than {listed} and "
                    f"'{MUTABLE_BY_SET[-1]}' are forbidden")


def _change_data(new: statuses.Obj, old: statuses.Obj) -> Causes:
    if old.get('immutable'):
        if not new.get('immutable'):
            yield wordings.forbidden('immutable', FLAG)
        for key in ('data', 'binaryData'):
            if (new.get(key) or {}) != (old.get(key) or {}):
                yield wordings.forbidden(key, FLAG)


def _change_pod(new: statuses.Obj, old: statuses.Obj) -> Causes:
    def fixed(pod: statuses.Obj) -> Mapping[str, Any]:
        spec = statuses.omit(pod['spec'], 'activeDeadlineSeconds', 'tolerations',
                             'terminationGracePeriodSeconds')
        for part in ('containers', 'initContainers'):
            spec[part] = [statuses.omit(container, 'image', 'imagePullPolicy')
                          for container in spec.get(part) or ()]
        return spec

    if fixed(new) != fixed(old):
        yield wordings.forbidden(
            'spec',
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
            "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
            "(allow it to be set to 1 if it was previously negative)\n")


def _change_claim(new: statuses.Obj, old: statuses.Obj) -> Causes:
    def fixed(claim: statuses.Obj) -> Mapping[str, Any]:
        bound = statuses.dig(old, 'status.phase') == 'Bound'
        released = ('resources', 'volumeAttributesClassName') if bound else ()
        late = [key for key in ('storageClassName', 'volumeName') if key not in old['spec']]
        return statuses.omit(claim['spec'], *released, *late)

    if fixed(new) != fixed(old):
        yield wordings.forbidden(
            'spec', "spec is immutable after creation except resources.requests and "
                    "volumeAttributesClassName for bound claims\n")
    # A size that was asked for can be taken back, but not down to what there is already.
    size, before = (_get_size(obj, 'spec.resources.requests.storage') for obj in (new, old))
    capacity = _get_size(old, 'status.capacity.storage')
    if size < before and size <= capacity:
        yield wordings.forbidden(
            'spec.resources.requests.storage', "field can not be less than status.capacity")


def _get_size(claim: statuses.Obj, field: str) -> fractions.Fraction:
    return quantities.parse(str(statuses.dig(claim, field) or 0))


def _change_service(new: statuses.Obj, old: statuses.Obj) -> Causes:
    before, after = old['spec'].get('clusterIPs'), new['spec'].get('clusterIPs')
    if before and new['spec'].get('type') != 'ExternalName':
        wanted = [new['spec'].get('clusterIP'), *(after or ())[1:]]
        if wanted[0] != before[0]:
            yield wordings.invalid('spec.clusterIPs[0]', wanted, "may not change once set")


def _change_binding(new: statuses.Obj, old: statuses.Obj) -> Causes:
    if new.get('roleRef') != old.get('roleRef'):
        reference = new.get('roleRef') or {}
        shown = {'APIGroup': reference.get('apiGroup', ''), 'Kind': reference.get('kind', ''),
                 'Name': reference.get('name', '')}
        yield wordings.invalid('roleRef', shown, "cannot change roleRef")


_CHANGES: Mapping[kinds.Resource, Callable[[statuses.Obj, statuses.Obj], Causes]] = {
    ('', 'pods'): _change_pod,
    ('', 'services'): _change_service,
    ('', 'configmaps'): _change_data,
    ('', 'secrets'): _change_data,
    ('', 'persistentvolumeclaims'): _change_claim,
    ('apps', 'statefulsets'): _change_set,
    ('rbac.authorization.k8s.io', 'rolebindings'): _change_binding,
    ('rbac.authorization.k8s.io', 'clusterrolebindings'): _change_binding,
}
