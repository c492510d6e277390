"""
Cells of tables that are computed from an object, rather than being one of its fields.
"""
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox import autoscalers, encoding
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.statuses import Obj

Cell = Callable[[Obj, datetime.datetime], Any]


def parse_time(text: Any) -> datetime.datetime | None:
    """Parse a timestamp of the API; None if it is not a timestamp."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def age(text: Any, now: datetime.datetime) -> str:
    """Format the age for people: ``5s``, ``3m20s``, ``2d4h``."""
    time = parse_time(text)
    return '<unknown>' if time is None else duration((now - time).total_seconds())


def duration(total: float) -> str:
    seconds = int(total)
    if seconds < -1:
        return '<invalid>'
    if seconds < 0:
        return '0s'
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f'{seconds}s'
    if minutes < 10:
        return f'{minutes}m{seconds % 60}s' if seconds % 60 else f'{minutes}m'
    if minutes < 180:
        return f'{minutes}m'
    if hours < 8:
        return f'{hours}h{minutes % 60}m' if minutes % 60 else f'{hours}h'
    if hours < 48:
        return f'{hours}h'
    if days < 8:
        return f'{days}d{hours % 24}h' if hours % 24 else f'{days}d'
    if days < 365 * 2:
        return f'{days}d'
    years = days // 365
    if years < 8:
        return f'{years}y{days % 365}d' if days % 365 else f'{years}y'
    return f'{years}y'


def empty(type: str, aged: bool) -> Any:
    if aged:
        return '<unknown>'
    return {'integer': 0, 'number': 0, 'boolean': False}.get(type, '')


def typed(found: Sequence[Any], type: str) -> Any:
    """The value of a column of this type; of several values, they are joined where it is text."""
    value = found[0]
    match type:
        case 'integer' | 'number':
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                return None
            return int(value) if type == 'integer' else value
        case 'boolean':
            return value if isinstance(value, bool) else None
    return ' '.join(each if isinstance(each, str) else encoding.encode(each).decode()
                    for each in found)


def _dig(obj: Any, *path: str) -> Any:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _count(*paths: tuple[str, ...]) -> Cell:
    return lambda obj, now: sum(len(_dig(obj, *path) or ()) for path in paths)


def _field(*path: str, default: Any = '<none>') -> Cell:
    return lambda obj, now: default if _dig(obj, *path) in (None, '') else _dig(obj, *path)


def _since(*path: str, otherwise: str = '<none>') -> Cell:
    return lambda obj, now: age(_dig(obj, *path), now) if _dig(obj, *path) else otherwise


def _join(*path: str) -> Cell:
    return lambda obj, now: ','.join(map(str, _dig(obj, *path) or ())) or '<none>'


def _ratio(done: tuple[str, ...], total: tuple[str, ...], default: int = 0) -> Cell:
    def cell(obj: Obj, now: datetime.datetime) -> str:
        wanted = _dig(obj, *total)
        return f"{_dig(obj, *done) or 0}/{default if wanted is None else wanted}"
    return cell


def _containers(part: str, *path: str) -> Cell:
    return lambda obj, now: ','.join(
        str(container.get(part, '')) for container in _dig(obj, *path, 'containers') or ())


def _selector(*path: str) -> Cell:
    return lambda obj, now: ','.join(
        f'{key}={value}' for key, value in sorted((_dig(obj, *path) or {}).items())) or '<none>'


def _pod_ready(obj: Obj, now: datetime.datetime) -> str:
    statuses = _dig(obj, 'status', 'containerStatuses') or ()
    ready = sum(bool(status.get('ready')) for status in statuses)
    return f"{ready}/{len(_dig(obj, 'spec', 'containers') or ())}"


def _pod_status(obj: Obj, now: datetime.datetime) -> str:
    if _dig(obj, 'metadata', 'deletionTimestamp'):
        return 'Terminating'
    for status in _dig(obj, 'status', 'containerStatuses') or ():
        for state in ('waiting', 'terminated'):
            reason = _dig(status, 'state', state, 'reason')
            if reason:
                return str(reason)
    return str(_dig(obj, 'status', 'reason') or _dig(obj, 'status', 'phase') or '')


def _pod_restarts(obj: Obj, now: datetime.datetime) -> str:
    return str(sum(status.get('restartCount', 0)
                   for status in _dig(obj, 'status', 'containerStatuses') or ()))


def _ports(obj: Obj, now: datetime.datetime) -> str:
    shown = []
    for port in _dig(obj, 'spec', 'ports') or ():
        node = f":{port['nodePort']}" if port.get('nodePort') else ''
        shown.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ','.join(shown) or '<none>'


def _external_ip(obj: Obj, now: datetime.datetime) -> str:
    spec = obj.get('spec') or {}
    if spec.get('type') == 'ExternalName':
        return str(spec.get('externalName', ''))
    if spec.get('type') == 'LoadBalancer':
        points = _dig(obj, 'status', 'loadBalancer', 'ingress') or ()
        shown = [point.get('ip') or point.get('hostname') for point in points]
        return ','.join(filter(None, [*shown, *(spec.get('externalIPs') or ())])) or '<pending>'
    return ','.join(spec.get('externalIPs') or ()) or '<none>'


def _node_status(obj: Obj, now: datetime.datetime) -> str:
    ready = next((condition for condition in _dig(obj, 'status', 'conditions') or ()
                  if condition.get('type') == 'Ready'), None)
    state = 'Unknown' if ready is None else \
        'Ready' if ready.get('status') == 'True' else 'NotReady'
    return f'{state},SchedulingDisabled' if _dig(obj, 'spec', 'unschedulable') else state


def _node_roles(obj: Obj, now: datetime.datetime) -> str:
    prefix = 'node-role.kubernetes.io/'
    labels = _dig(obj, 'metadata', 'labels') or {}
    return ','.join(sorted(label[len(prefix):] for label in labels if label.startswith(prefix))) \
        or '<none>'


def _node_address(type: str) -> Cell:
    return lambda obj, now: next(
        (address.get('address') for address in _dig(obj, 'status', 'addresses') or ()
         if address.get('type') == type), '<none>')


def _event_object(obj: Obj, now: datetime.datetime) -> str:
    involved = obj.get('involvedObject') or obj.get('regarding') or {}
    kind = str(involved.get('kind', '')).lower()
    return f"{kind}/{involved.get('name', '')}" if involved.get('name') else kind


def _event_source(obj: Obj, now: datetime.datetime) -> str:
    source = obj.get('source') or obj.get('deprecatedSource') or {}
    parts = [source.get('component') or obj.get('reportingComponent')
             or obj.get('reportingController'), source.get('host')]
    return ', '.join(part for part in parts if part)


def _event_seen(which: str) -> Cell:
    def cell(obj: Obj, now: datetime.datetime) -> str:
        time = (obj.get(f'{which}Timestamp')
                or obj.get(f'deprecated{which[0].upper()}{which[1:]}Timestamp')
                or obj.get('eventTime'))
        return age(time, now) if time else '<unknown>'
    return cell


def _job_duration(obj: Obj, now: datetime.datetime) -> str:
    start = parse_time(_dig(obj, 'status', 'startTime'))
    if start is None:
        return ''
    end = parse_time(_dig(obj, 'status', 'completionTime')) or now
    return duration((end - start).total_seconds())


def _job_status(obj: Obj, now: datetime.datetime) -> str:
    conditions = {condition.get('type') for condition in _dig(obj, 'status', 'conditions') or ()
                  if condition.get('status') == 'True'}
    for type in ('Complete', 'Failed'):
        if type in conditions:
            return type
    if _dig(obj, 'metadata', 'deletionTimestamp'):
        return 'Terminating'
    return 'Suspended' if _dig(obj, 'spec', 'suspend') else 'Running'


def _ingress_hosts(obj: Obj, now: datetime.datetime) -> str:
    hosts = [rule['host'] for rule in _dig(obj, 'spec', 'rules') or () if rule.get('host')]
    more = f' + {len(hosts) - 3} more...' if len(hosts) > 3 else ''
    return ','.join(hosts[:3]) + more or '*'


def _ingress_ports(obj: Obj, now: datetime.datetime) -> str:
    return '80, 443' if _dig(obj, 'spec', 'tls') else '80'


def _role(obj: Obj, now: datetime.datetime) -> str:
    role = obj.get('roleRef') or {}
    return f"{role.get('kind')}/{role.get('name')}"


def _subjects(type: str) -> Cell:
    return lambda obj, now: ', '.join(
        f"{subject.get('namespace')}/{subject.get('name')}" if type == 'ServiceAccount'
        else str(subject.get('name'))
        for subject in obj.get('subjects') or () if subject.get('kind') == type)


def _access_modes(obj: Obj, now: datetime.datetime) -> str:
    short = {'ReadWriteOnce': 'RWO', 'ReadOnlyMany': 'ROX', 'ReadWriteMany': 'RWX',
             'ReadWriteOncePod': 'RWOP'}
    modes = _dig(obj, 'status', 'accessModes') or () if _dig(obj, 'spec', 'volumeName') else ()
    return ','.join(short.get(mode, mode) for mode in modes)


def _workload(spec: tuple[str, ...] = ('spec', 'template', 'spec')) -> dict[str, Cell]:
    return {
        'Containers': _containers('name', *spec), 'Images': _containers('image', *spec),
        'Selector': _selector('spec', 'selector', 'matchLabels'),
    }


_EVENTS: dict[str, Cell] = {
    'Last Seen': _event_seen('last'), 'First Seen': _event_seen('first'),
    'Type': _field('type', default=''), 'Reason': _field('reason', default=''),
    'Object': _event_object, 'Source': _event_source,
    'Subobject': _field('involvedObject', 'fieldPath', default=''),
    'Message': lambda obj, now: str(obj.get('message') or obj.get('note') or '').strip(),
    'Count': lambda obj, now: obj.get('count') or obj.get('deprecatedCount') or 1,
}

_REPLICAS: dict[str, Cell] = {
    'Ready': _ratio(('status', 'readyReplicas'), ('spec', 'replicas')), **_workload()}

_BINDINGS: dict[str, Cell] = {
    'Role': _role, 'Users': _subjects('User'), 'Groups': _subjects('Group'),
    'ServiceAccounts': _subjects('ServiceAccount')}

_WEBHOOKS: dict[str, Cell] = {'Webhooks': _count(('webhooks',))}

#: By resources and the names of columns.
COMPUTED: Mapping[Resource, Mapping[str, Cell]] = {
    ('', 'configmaps'): {'Data': _count(('data',), ('binaryData',))},
    ('', 'secrets'): {'Data': _count(('data',))},
    ('', 'serviceaccounts'): {'Secrets': _count(('secrets',))},
    ('', 'events'): _EVENTS,
    ('events.k8s.io', 'events'): _EVENTS,
    ('', 'pods'): {
        'Ready': _pod_ready, 'Status': _pod_status, 'Restarts': _pod_restarts,
        'IP': _field('status', 'podIP'), 'Node': _field('spec', 'nodeName'),
        'Nominated Node': _field('status', 'nominatedNodeName'),
        'Readiness Gates': lambda obj, now: '<none>',
    },
    ('', 'services'): {
        'Cluster-IP': _field('spec', 'clusterIP'), 'External-IP': _external_ip,
        'Port(s)': _ports, 'Selector': _selector('spec', 'selector'),
    },
    ('', 'nodes'): {
        'Status': _node_status, 'Roles': _node_roles,
        'Version': _field('status', 'nodeInfo', 'kubeletVersion', default=''),
        'Internal-IP': _node_address('InternalIP'), 'External-IP': _node_address('ExternalIP'),
        'OS-Image': _field('status', 'nodeInfo', 'osImage', default='<unknown>'),
        'Kernel-Version': _field('status', 'nodeInfo', 'kernelVersion', default='<unknown>'),
        'Container-Runtime': _field(
            'status', 'nodeInfo', 'containerRuntimeVersion', default='<unknown>'),
    },
    ('', 'persistentvolumeclaims'): {
        'Capacity': _field('status', 'capacity', 'storage', default=''),
        'Access Modes': _access_modes,
        'StorageClass': _field('spec', 'storageClassName', default=''),
        'VolumeMode': _field('spec', 'volumeMode', default='<unset>'),
        'VolumeAttributesClass': _field('spec', 'volumeAttributesClassName', default='<unset>'),
    },
    ('apps', 'deployments'): _REPLICAS,
    ('apps', 'statefulsets'): _REPLICAS,
    ('apps', 'replicasets'): _workload(),
    ('apps', 'daemonsets'): {
        'Node Selector': _selector('spec', 'template', 'spec', 'nodeSelector'), **_workload()},
    ('batch', 'jobs'): {
        'Status': _job_status, 'Duration': _job_duration,
        'Completions': _ratio(('status', 'succeeded'), ('spec', 'completions'), 1), **_workload(),
    },
    ('batch', 'cronjobs'): {
        'Timezone': _field('spec', 'timeZone'), 'Active': _count(('status', 'active')),
        'Suspend': lambda obj, now: str(bool(_dig(obj, 'spec', 'suspend'))),
        'Last Schedule': _since('status', 'lastScheduleTime'),
        **_workload(('spec', 'jobTemplate', 'spec', 'template', 'spec')),
    },
    ('networking.k8s.io', 'ingresses'): {
        'Class': _field('spec', 'ingressClassName'), 'Hosts': _ingress_hosts,
        'Address': lambda obj, now: '', 'Ports': _ingress_ports,
    },
    ('networking.k8s.io', 'networkpolicies'): {
        'Pod-Selector': _selector('spec', 'podSelector', 'matchLabels')},
    ('rbac.authorization.k8s.io', 'rolebindings'): _BINDINGS,
    ('rbac.authorization.k8s.io', 'clusterrolebindings'): _BINDINGS,
    ('admissionregistration.k8s.io', 'validatingwebhookconfigurations'): _WEBHOOKS,
    ('admissionregistration.k8s.io', 'mutatingwebhookconfigurations'): _WEBHOOKS,
    ('policy', 'poddisruptionbudgets'): {
        'Min Available': _field('spec', 'minAvailable', default='N/A'),
        'Max Unavailable': _field('spec', 'maxUnavailable', default='N/A')},
    ('storage.k8s.io', 'storageclasses'): {
        'AllowVolumeExpansion': lambda obj, now: bool(obj.get('allowVolumeExpansion'))},
    ('autoscaling', 'horizontalpodautoscalers'): {
        'Reference': lambda obj, now: '/'.join(
            str(_dig(obj, 'spec', 'scaleTargetRef', part) or '') for part in ('kind', 'name')),
        'Targets': autoscalers.targets,
        'MinPods': lambda obj, now: str(_dig(obj, 'spec', 'minReplicas') or '<unset>'),
        'MaxPods': _field('spec', 'maxReplicas', default=0),
        'Replicas': _field('status', 'currentReplicas', default=0),
    },
}
