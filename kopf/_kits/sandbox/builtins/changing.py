import functools
import ipaddress
from collections.abc import Callable, Container, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses
from kopf._kits.sandbox.builtins import completing

EVICTIONS = ('node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable')

SERVICES: kinds.Resource = ('', 'services')
KEEPING_STATUS = frozenset([('', 'nodes')])
"""Those that can be created with a status."""


def prepare_creation(
        kind: kinds.Kind, obj: statuses.Obj, *, used: Container[str] = frozenset(),
) -> statuses.Obj:
    """
    The (completed) object as it is when it is new: no status of the client's, generated fields.

    ``used`` are the cluster IPs that are taken. To be completed again, for the status. The spec is
    changed in place.
    """
    result = dict(obj)
    if kind.has_status and kind.resource not in KEEPING_STATUS:
        result.pop('status', None)
    if _is_counted(kind):
        result['metadata'] = {**result['metadata'], 'generation': 1}
    if kind.resource == SERVICES:
        _assign_addresses(result, used)
    elif kind.resource in _ON_CREATION:
        _ON_CREATION[kind.resource](result)
    return result


def prepare_update(
        kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj, *,
        used: Container[str] = frozenset(),
) -> statuses.Obj:
    """
    The (completed) object as it is when it replaces the old one, not by a subresource: with
    the old status, what is assigned once, and its changes counted. The spec is changed in place.
    """
    result = dict(new)
    if kind.has_status:
        result.pop('status', None)
        if 'status' in old:
            result['status'] = old['status']
    if kind.resource == SERVICES:
        _keep_addresses(result['spec'], old['spec'])
        _assign_addresses(result, used)
    if kind.resource == ('', 'namespaces'):
        result['spec'] = old.get('spec') or {}
    if kind.resource == ('apps', 'daemonsets'):
        _count_templates(result, old)
    if _is_counted(kind) and _has_changed(kind, result, old):
        generation = old['metadata'].get('generation', 0) + 1
        result['metadata'] = {**result['metadata'], 'generation': generation}
    return result


def _is_counted(kind: kinds.Kind) -> bool:
    return kind.custom or bool(kinds.get_traits(kind.resource).get('counted'))


def _count_templates(new: statuses.Obj, old: statuses.Obj) -> None:
    """Daemon sets count the changes of their templates by an annotation."""
    metadata = new['metadata']
    known = (old['metadata'].get('annotations') or {}).get(completing.TEMPLATE_GENERATION, '1')
    changed = new['spec'].get('template') != old['spec'].get('template')
    count = str(int(known) + changed) if known.isdecimal() else known
    new['metadata'] = {**metadata, 'annotations': {
        **(metadata.get('annotations') or {}), completing.TEMPLATE_GENERATION: count}}


def _has_changed(kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj) -> bool:
    """Whether a change counts as a new generation."""
    ignored = ('metadata', 'apiVersion', 'kind', *(('status',) if kind.has_status else ()))
    return statuses.omit(new, *ignored) != statuses.omit(old, *ignored) or (
        kind.resource == ('apps', 'deployments')
        and (statuses.dig(new, 'metadata.annotations') or {})
        != (statuses.dig(old, 'metadata.annotations') or {}))


def _create_pod(pod: statuses.Obj) -> None:
    spec = pod['spec']
    tolerations = spec.setdefault('tolerations', [])
    for key in EVICTIONS:
        if not any(known.get('effect', 'NoExecute') == 'NoExecute'
                   and known.get('key', key) == key for known in tolerations):
            tolerations.append({'key': key, 'operator': 'Exists', 'effect': 'NoExecute',
                                'tolerationSeconds': 300})
    pod['spec'] = {'priority': 0, 'preemptionPolicy': 'PreemptLowerPriority', **spec}
    pod['status'] = {'phase': 'Pending', 'qosClass': _quality(spec)}


def _quality(spec: Mapping[str, Any]) -> str:
    containers = [*spec.get('containers', ()), *spec.get('initContainers', ())]
    resources = [container.get('resources') or {} for container in containers]
    if not any(one.get('limits') or one.get('requests') for one in resources):
        return 'BestEffort'
    guaranteed = all(
        one.get('limits') and {'cpu', 'memory'} <= set(one['limits'])
        and one['limits'] == one.get('requests', one['limits']) for one in resources)
    return 'Guaranteed' if guaranteed else 'Burstable'


def _create_job(job: statuses.Obj) -> None:
    """A job selects its own pods only, unless it selects manually."""
    spec, metadata = job['spec'], job['metadata']
    if spec.get('manualSelector') or 'uid' not in metadata:
        return
    uid, name = metadata['uid'], metadata.get('name', '')
    template = spec.setdefault('template', {})
    inner = template.get('metadata') or {}
    labels = {
        **(inner.get('labels') or {}),
        'batch.kubernetes.io/controller-uid': uid, 'batch.kubernetes.io/job-name': name,
        'controller-uid': uid, 'job-name': name,
    }
    template['metadata'] = {**inner, 'labels': labels}
    job['metadata'] = {**metadata, 'labels': metadata.get('labels') or labels}
    selector = spec.setdefault('selector', {})
    selector['matchLabels'] = {
        **(selector.get('matchLabels') or {}), 'batch.kubernetes.io/controller-uid': uid}


def _protect(finalizer: str, obj: statuses.Obj) -> None:
    finalizers = obj['metadata'].get('finalizers') or []
    if finalizer not in finalizers:
        obj['metadata'] = {**obj['metadata'], 'finalizers': [*finalizers, finalizer]}


def _create_namespace(namespace: statuses.Obj) -> None:
    spec = namespace.setdefault('spec', {})
    finalizers = spec.setdefault('finalizers', [])
    if 'kubernetes' not in finalizers:
        finalizers.append('kubernetes')
    namespace['status'] = {'phase': 'Active'}


def _create_node(node: statuses.Obj) -> None:
    taint = {'key': 'node.kubernetes.io/not-ready', 'effect': 'NoSchedule'}
    taints = node.setdefault('spec', {}).setdefault('taints', [])
    if not any(taint.items() <= known.items() for known in taints):
        taints.append(taint)


def _keep_addresses(spec: dict[str, Any], before: Mapping[str, Any]) -> None:
    """A service keeps its addresses and ports where an update does not mention them."""
    if spec.get('type') == 'ExternalName' or before.get('type') == 'ExternalName':
        return
    kept = {key: before[key] for key in ('clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy')
            if key in before and not spec.get(key)}
    if 'clusterIP' in kept and spec.get('clusterIPs') == before.get('clusterIPs'):
        kept['clusterIPs'] = before['clusterIPs']
    spec |= kept
    known = {(port.get('protocol'), port.get('port')): port['nodePort']
             for port in before.get('ports') or () if 'nodePort' in port}
    for port in spec.get('ports') or ():
        number = known.get((port.get('protocol'), port.get('port')))
        if number is not None and spec.get('type') in ('NodePort', 'LoadBalancer'):
            port.setdefault('nodePort', number)


def _assign_addresses(service: statuses.Obj, used: Container[str]) -> None:
    spec = service['spec']
    type_ = spec.get('type')
    if type_ == 'ExternalName':
        service['spec'] = statuses.omit(
            spec, 'clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy',
            'internalTrafficPolicy')
        return
    if not spec.get('clusterIP'):
        addresses = spec.get('clusterIPs') or [_free_address(used)]
        spec['clusterIP'] = addresses[0]
    spec.setdefault('clusterIPs', [spec['clusterIP']])
    spec.setdefault('ipFamilies', ['IPv6' if ':' in spec['clusterIP'] else 'IPv4'])
    spec.setdefault('ipFamilyPolicy', 'SingleStack')
    first = 30000 + sum(map(ord, service['metadata'].get('uid', ''))) % 2767
    for index, port in enumerate(spec.get('ports') or ()):
        if type_ not in ('NodePort', 'LoadBalancer'):
            port.pop('nodePort', None)
        elif not port.get('nodePort'):
            port['nodePort'] = first + index


def _free_address(used: Container[str]) -> str:
    network = ipaddress.ip_network('10.0.0.0/16')
    return next(str(address) for address in network.hosts()
                if int(address) & 0xff and str(address) not in used)


_ON_CREATION: dict[kinds.Resource, Callable[[statuses.Obj], None]] = {
    ('', 'pods'): _create_pod,
    ('', 'namespaces'): _create_namespace,
    ('', 'nodes'): _create_node,
    ('', 'persistentvolumeclaims'): functools.partial(_protect, 'kubernetes.io/pvc-protection'),
    ('', 'persistentvolumes'): functools.partial(_protect, 'kubernetes.io/pv-protection'),
    ('batch', 'jobs'): _create_job,
}
