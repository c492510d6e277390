"""
Cells of tables that are computed from an object, rather than being one of its fields.
"""
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox import autoscalers, encoding
from kopf._kits.sandbox.kinds import Resource, get_traits
from kopf._kits.sandbox.statuses import Obj, dig

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


_SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'y': 365 * 86400}

_PRECISIONS = (
    (120, 's', ''), (600, 'm', 's'), (3 * 3600, 'm', ''), (8 * 3600, 'h', 'm'),
    (48 * 3600, 'h', ''), (8 * 86400, 'd', 'h'), (730 * 86400, 'd', ''), (2920 * 86400, 'y', 'd'),
    (math.inf, 'y', ''))
"""Below so many seconds, durations are told in this unit, and the rest in that one, if in any."""


def duration(total: float) -> str:
    seconds = int(total)
    if seconds < -1:
        return '<invalid>'
    unit, smaller = next(units for limit, *units in _PRECISIONS if seconds < limit)
    count, rest = divmod(max(seconds, 0), _SECONDS[unit])
    more = rest // _SECONDS[smaller] if smaller else 0
    return f'{count}{unit}{more}{smaller}' if more else f'{count}{unit}'


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


def _count(*paths: str) -> Cell:
    return lambda obj, now: sum(len(dig(obj, path) or ()) for path in paths)


def _field(path: str, default: Any = '<none>') -> Cell:
    return lambda obj, now: default if dig(obj, path) in (None, '') else dig(obj, path)


def _reference(path: str) -> Cell:
    return lambda obj, now: f"{dig(obj, f'{path}.kind')}/{dig(obj, f'{path}.name')}"


def _since(path: str) -> Cell:
    return lambda obj, now: age(dig(obj, path), now) if dig(obj, path) else '<none>'


def _ratio(done: str, total: str, default: int = 0) -> Cell:
    def cell(obj: Obj, now: datetime.datetime) -> str:
        wanted = dig(obj, total)
        return f"{dig(obj, done) or 0}/{default if wanted is None else wanted}"
    return cell


def _containers(part: str, path: str) -> Cell:
    return lambda obj, now: ','.join(
        str(container.get(part, '')) for container in dig(obj, f'{path}.containers') or ())


def _selector(path: str) -> Cell:
    return lambda obj, now: ','.join(
        f'{key}={value}' for key, value in sorted((dig(obj, path) or {}).items())) or '<none>'


def _pod_ready(obj: Obj, now: datetime.datetime) -> str:
    statuses = dig(obj, 'status.containerStatuses') or ()
    ready = sum(bool(status.get('ready')) for status in statuses)
    return f"{ready}/{len(dig(obj, 'spec.containers') or ())}"


def _pod_status(obj: Obj, now: datetime.datetime) -> str:
    if dig(obj, 'metadata.deletionTimestamp'):
        return 'Terminating'
    for status in dig(obj, 'status.containerStatuses') or ():
        for state in ('waiting', 'terminated'):
            reason = dig(status, f'state.{state}.reason')
            if reason:
                return str(reason)
    return str(dig(obj, 'status.reason') or dig(obj, 'status.phase') or '')


def _pod_restarts(obj: Obj, now: datetime.datetime) -> str:
    return str(sum(status.get('restartCount', 0)
                   for status in dig(obj, 'status.containerStatuses') or ()))


def _ports(obj: Obj, now: datetime.datetime) -> str:
    shown = []
    for port in dig(obj, 'spec.ports') or ():
        node = f":{port['nodePort']}" if port.get('nodePort') else ''
        shown.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ','.join(shown) or '<none>'


def _external_ip(obj: Obj, now: datetime.datetime) -> str:
    spec = obj.get('spec') or {}
    if spec.get('type') == 'ExternalName':
        return str(spec.get('externalName', ''))
    if spec.get('type') == 'LoadBalancer':
        points = dig(obj, 'status.loadBalancer.ingress') or ()
        shown = [point.get('ip') or point.get('hostname') for point in points]
        return ','.join(filter(None, [*shown, *(spec.get('externalIPs') or ())])) or '<pending>'
    return ','.join(spec.get('externalIPs') or ()) or '<none>'


def _node_status(obj: Obj, now: datetime.datetime) -> str:
    ready = next((condition for condition in dig(obj, 'status.conditions') or ()
                  if condition.get('type') == 'Ready'), None)
    state = 'Unknown' if ready is None else 'Ready' if ready.get('status') == 'True' else 'NotReady'
    return f'{state},SchedulingDisabled' if dig(obj, 'spec.unschedulable') else state


def _node_roles(obj: Obj, now: datetime.datetime) -> str:
    prefix = 'node-role.kubernetes.io/'
    labels = dig(obj, 'metadata.labels') or {}
    return ','.join(sorted(label[len(prefix):] for label in labels if label.startswith(prefix))) \
        or '<none>'


def _node_address(type: str) -> Cell:
    return lambda obj, now: next(
        (address.get('address') for address in dig(obj, 'status.addresses') or ()
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
    start = parse_time(dig(obj, 'status.startTime'))
    if start is None:
        return ''
    end = parse_time(dig(obj, 'status.completionTime')) or now
    return duration((end - start).total_seconds())


def _job_status(obj: Obj, now: datetime.datetime) -> str:
    conditions = {condition.get('type') for condition in dig(obj, 'status.conditions') or ()
                  if condition.get('status') == 'True'}
    for type in ('Complete', 'Failed'):
        if type in conditions:
            return type
    if dig(obj, 'metadata.deletionTimestamp'):
        return 'Terminating'
    return 'Suspended' if dig(obj, 'spec.suspend') else 'Running'


def _ingress_hosts(obj: Obj, now: datetime.datetime) -> str:
    hosts = [rule['host'] for rule in dig(obj, 'spec.rules') or () if rule.get('host')]
    more = f' + {len(hosts) - 3} more...' if len(hosts) > 3 else ''
    return ','.join(hosts[:3]) + more or '*'


def _subjects(type: str) -> Cell:
    return lambda obj, now: ', '.join(
        f"{subject.get('namespace')}/{subject.get('name')}" if type == 'ServiceAccount'
        else str(subject.get('name'))
        for subject in obj.get('subjects') or () if subject.get('kind') == type)


def _access_modes(obj: Obj, now: datetime.datetime) -> str:
    short = {'ReadWriteOnce': 'RWO', 'ReadOnlyMany': 'ROX', 'ReadWriteMany': 'RWX',
             'ReadWriteOncePod': 'RWOP'}
    modes = dig(obj, 'status.accessModes') or () if dig(obj, 'spec.volumeName') else ()
    return ','.join(short.get(mode, mode) for mode in modes)


_MAKERS: Mapping[str, Callable[..., Cell]] = {
    'address': _node_address, 'containers': _containers, 'count': _count, 'field': _field,
    'ratio': _ratio, 'reference': _reference, 'seen': _event_seen, 'selector': _selector,
    'since': _since, 'subjects': _subjects}
"""What makes the cells of the data, by the names there."""

_EVENTS: dict[str, Cell] = {
    'Object': _event_object, 'Source': _event_source,
    'Message': lambda obj, now: str(obj.get('message') or obj.get('note') or '').strip(),
    'Count': lambda obj, now: obj.get('count') or obj.get('deprecatedCount') or 1,
}

_SPECIAL: Mapping[Resource, Mapping[str, Cell]] = {
    ('', 'events'): _EVENTS,
    ('events.k8s.io', 'events'): _EVENTS,
    ('', 'pods'): {
        'Ready': _pod_ready, 'Status': _pod_status, 'Restarts': _pod_restarts,
        'Readiness Gates': lambda obj, now: '<none>'},
    ('', 'services'): {'External-IP': _external_ip, 'Port(s)': _ports},
    ('', 'nodes'): {'Status': _node_status, 'Roles': _node_roles},
    ('', 'persistentvolumeclaims'): {'Access Modes': _access_modes},
    ('batch', 'jobs'): {'Status': _job_status, 'Duration': _job_duration},
    ('batch', 'cronjobs'): {
        'Suspend': lambda obj, now: str(bool(dig(obj, 'spec.suspend')))},
    ('networking.k8s.io', 'ingresses'): {
        'Hosts': _ingress_hosts, 'Address': lambda obj, now: '',
        'Ports': lambda obj, now: '80, 443' if dig(obj, 'spec.tls') else '80'},
    ('storage.k8s.io', 'storageclasses'): {
        'AllowVolumeExpansion': lambda obj, now: bool(obj.get('allowVolumeExpansion'))},
    ('autoscaling', 'horizontalpodautoscalers'): {
        'Targets': autoscalers.targets,
        'MinPods': lambda obj, now: str(dig(obj, 'spec.minReplicas') or '<unset>')},
}


def get_computed(resource: Resource) -> Mapping[str, Cell]:
    """The computed cells of a built-in resource, by the names of columns."""
    told = get_traits(resource).get('cells', {})
    return {**_SPECIAL.get(resource, {}), **{
        name: _MAKERS[maker](*args) for name, (maker, *args) in told.items()}}
