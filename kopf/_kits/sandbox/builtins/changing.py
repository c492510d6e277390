import ipaddress
from collections.abc import Callable, Container, Mapping
from typing import Any

from kopf._kits.sandbox import kinds, statuses
from kopf._kits.sandbox.builtins import completing

EVICTIONS = ('node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable')

KEEPING_STATUS = frozenset([('', 'nodes')])
"""Those that can be created with a status."""


def prepare_creation(
        kind: kinds.Kind, obj: statuses.Obj, *, used: Container[str] = frozenset(),
) -> statuses.Obj:
    """
    The (completed) object as it is when it is new: no status of the client's, generated fields.

    ``used`` are the cluster IPs that are taken. To be completed again, for the status.
    """
    result = dict(obj)
    if kind.has_status and kind.resource not in KEEPING_STATUS:
        result.pop('status', None)
    if _is_counted(kind):
        result['metadata'] = {**result['metadata'], 'generation': 1}
    special = _ON_CREATION.get(kind.resource)
    return special(result, used) if special is not None else result


def prepare_update(
        kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj, *,
        used: Container[str] = frozenset(),
) -> statuses.Obj:
    """
    The (completed) object as it is when it replaces the old one, not by a subresource: with
    the old status, what is assigned once, and its changes counted.
    """
    result = dict(new)
    keep_status(kind, result, old)
    if kind.resource == ('', 'services'):
        result = _assign_addresses(_keep_addresses(result, old), used)
    if kind.resource == ('', 'namespaces'):
        result['spec'] = old.get('spec') or {}
    if kind.resource == ('apps', 'daemonsets'):
        result = _count_templates(result, old)
    if _is_counted(kind):
        generation = old['metadata'].get('generation', 0)
        if has_changed(kind, result, old):
            generation += 1
        result['metadata'] = {**result['metadata'], 'generation': generation}
    return result


def _is_counted(kind: kinds.Kind) -> bool:
    return bool(kinds.get_traits(kind.resource).get('counted'))


def _count_templates(new: statuses.Obj, old: statuses.Obj) -> statuses.Obj:
    """Daemon sets count the changes of their templates by an annotation."""
    metadata = new['metadata']
    known = (old['metadata'].get('annotations') or {}).get(completing.TEMPLATE_GENERATION, '1')
    changed = new['spec'].get('template') != old['spec'].get('template')
    count = str(int(known) + changed) if known.isdecimal() else known
    annotations = {**(metadata.get('annotations') or {}), completing.TEMPLATE_GENERATION: count}
    return {**new, 'metadata': {**metadata, 'annotations': annotations}}


def keep_status(kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj) -> None:
    """Put the old status into the new object, if the status is a subresource."""
    if kind.has_status:
        new.pop('status', None)
        if 'status' in old:
            new['status'] = old['status']


def has_changed(kind: kinds.Kind, new: statuses.Obj, old: statuses.Obj) -> bool:
    """Whether a change counts as a new generation."""
    ignored = ('metadata', 'apiVersion', 'kind', *(('status',) if kind.has_status else ()))
    return statuses.omit(new, *ignored) != statuses.omit(old, *ignored) or (
        kind.resource == ('apps', 'deployments')
        and (statuses.dig(new, 'metadata.annotations') or {})
        != (statuses.dig(old, 'metadata.annotations') or {}))


def _create_pod(pod: statuses.Obj, used: Container[str]) -> statuses.Obj:
    spec = pod['spec']
    tolerations = list(spec.get('tolerations') or ())
    for key in EVICTIONS:
        if not any(known.get('effect', 'NoExecute') == 'NoExecute'
                   and known.get('key', key) == key for known in tolerations):
            tolerations.append({'key': key, 'operator': 'Exists', 'effect': 'NoExecute',
                                'tolerationSeconds': 300})
    spec = {'priority': 0, 'preemptionPolicy': 'PreemptLowerPriority', **spec,
            'tolerations': tolerations}
    return {**pod, 'spec': spec, 'status': {'phase': 'Pending', 'qosClass': _quality(spec)}}


def _quality(spec: Mapping[str, Any]) -> str:
    containers = [*spec.get('containers', ()), *spec.get('initContainers', ())]
    resources = [container.get('resources') or {} for container in containers]
    if not any(one.get('limits') or one.get('requests') for one in resources):
        return 'BestEffort'
    guaranteed = all(
        one.get('limits') and {'cpu', 'memory'} <= set(one['limits'])
        and one['limits'] == one.get('requests', one['limits']) for one in resources)
    return 'Guaranteed' if guaranteed else 'Burstable'


def _create_job(job: statuses.Obj, used: Container[str]) -> statuses.Obj:
    """A job selects its own pods only, unless it selects manually."""
    spec, metadata = job['spec'], job['metadata']
    if spec.get('manualSelector') or 'uid' not in metadata:
        return job
    uid, name = metadata['uid'], metadata.get('name', '')
    template = spec.get('template') or {}
    inner = template.get('metadata') or {}
    labels = {
        **(inner.get('labels') or {}),
        'batch.kubernetes.io/controller-uid': uid, 'batch.kubernetes.io/job-name': name,
        'controller-uid': uid, 'job-name': name,
    }
    selector = spec.get('selector') or {}
    matched = {**(selector.get('matchLabels') or {}), 'batch.kubernetes.io/controller-uid': uid}
    return {
        **job,
        'metadata': {**metadata, 'labels': metadata.get('labels') or labels},
        'spec': {
            **spec,
            'selector': {**selector, 'matchLabels': matched},
            'template': {**template, 'metadata': {**inner, 'labels': labels}},
        },
    }


def _protecting(finalizer: str) -> Callable[[statuses.Obj, Container[str]], statuses.Obj]:
    def protect(obj: statuses.Obj, used: Container[str]) -> statuses.Obj:
        finalizers = obj['metadata'].get('finalizers') or []
        if finalizer in finalizers:
            return obj
        return {**obj, 'metadata': {**obj['metadata'], 'finalizers': [*finalizers, finalizer]}}
    return protect


def _create_namespace(namespace: statuses.Obj, used: Container[str]) -> statuses.Obj:
    spec = namespace.get('spec') or {}
    finalizers = spec.get('finalizers') or []
    if 'kubernetes' not in finalizers:
        finalizers = [*finalizers, 'kubernetes']
    return {**namespace, 'spec': {**spec, 'finalizers': finalizers}, 'status': {'phase': 'Active'}}


def _create_node(node: statuses.Obj, used: Container[str]) -> statuses.Obj:
    taint = {'key': 'node.kubernetes.io/not-ready', 'effect': 'NoSchedule'}
    spec = node.get('spec') or {}
    taints = spec.get('taints') or []
    if any((known.get('key'), known.get('effect')) == (taint['key'], taint['effect'])
           for known in taints):
        return node
    return {**node, 'spec': {**spec, 'taints': [*taints, taint]}}


def _keep_addresses(new: statuses.Obj, old: statuses.Obj) -> statuses.Obj:
    """A service keeps its addresses and ports where an update does not mention them."""
    spec, before = new['spec'], old['spec']
    if spec.get('type') == 'ExternalName' or before.get('type') == 'ExternalName':
        return new
    kept = {key: before[key] for key in ('clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy')
            if key in before and not spec.get(key)}
    if 'clusterIP' in kept and spec.get('clusterIPs') == before.get('clusterIPs'):
        kept['clusterIPs'] = before['clusterIPs']
    known = {(port.get('protocol'), port.get('port')): port['nodePort']
             for port in before.get('ports') or () if 'nodePort' in port}
    spec = {**spec, **kept}
    if known and spec.get('type') in ('NodePort', 'LoadBalancer'):
        spec['ports'] = [
            port if 'nodePort' in port or (port.get('protocol'), port.get('port')) not in known
            else {**port, 'nodePort': known[port.get('protocol'), port.get('port')]}
            for port in spec.get('ports') or ()
        ]
    return {**new, 'spec': spec}


def _assign_addresses(service: statuses.Obj, used: Container[str]) -> statuses.Obj:
    spec = dict(service['spec'])
    type_ = spec.get('type')
    if type_ == 'ExternalName':
        return {**service, 'spec': statuses.omit(
            spec, 'clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy',
            'internalTrafficPolicy')}
    if not spec.get('clusterIP'):
        addresses = spec.get('clusterIPs') or [_free_address(used)]
        spec['clusterIP'] = addresses[0]
    spec.setdefault('clusterIPs', [spec['clusterIP']])
    spec.setdefault('ipFamilies', ['IPv6' if ':' in spec['clusterIP'] else 'IPv4'])
    spec.setdefault('ipFamilyPolicy', 'SingleStack')
    if type_ in ('NodePort', 'LoadBalancer'):
        number = sum(map(ord, service['metadata'].get('uid', ''))) % 2767
        spec['ports'] = [
            port if port.get('nodePort') else {**port, 'nodePort': 30000 + number + index}
            for index, port in enumerate(spec.get('ports') or ())
        ]
    elif 'ports' in spec:
        spec['ports'] = [statuses.omit(port, 'nodePort') for port in spec['ports']]
    return {**service, 'spec': spec}


def _free_address(used: Container[str]) -> str:
    network = ipaddress.ip_network('10.0.0.0/16')
    return next(str(address) for address in network.hosts()
                if int(address) & 0xff and str(address) not in used)


_ON_CREATION: dict[kinds.Resource, Callable[[statuses.Obj, Container[str]], statuses.Obj]] = {
    ('', 'pods'): _create_pod,
    ('', 'services'): _assign_addresses,
    ('', 'namespaces'): _create_namespace,
    ('', 'nodes'): _create_node,
    ('', 'persistentvolumeclaims'): _protecting('kubernetes.io/pvc-protection'),
    ('', 'persistentvolumes'): _protecting('kubernetes.io/pv-protection'),
    ('batch', 'jobs'): _create_job,
}
