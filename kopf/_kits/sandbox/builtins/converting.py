from kopf._kits.sandbox import statuses

#: The fields of events: their names in the core group, and in the group of their own.
EVENT_FIELDS = (
    ('involvedObject', 'regarding'),
    ('message', 'note'),
    ('source', 'deprecatedSource'),
    ('firstTimestamp', 'deprecatedFirstTimestamp'),
    ('lastTimestamp', 'deprecatedLastTimestamp'),
    ('count', 'deprecatedCount'),
    ('reportingComponent', 'reportingController'),
)


def convert(obj: statuses.Obj, api_version: str) -> statuses.Obj:
    """
    The object as it is in another version or group: events, and horizontal pod autoscalers.

    All others are the same in all versions but for the ``apiVersion``.
    """
    result = {**obj, 'apiVersion': api_version}
    kind, was = obj.get('kind'), obj.get('apiVersion')
    if was == api_version:
        return obj
    if kind == 'Event':
        names = dict(EVENT_FIELDS)
        if api_version == 'v1':
            names = {new: old for old, new in EVENT_FIELDS}
        return {names.get(key, key): value for key, value in result.items()}
    if kind == 'HorizontalPodAutoscaler' and 'autoscaling/v1' in (was, api_version):
        return _to_v1(result) if api_version == 'autoscaling/v1' else _to_v2(result)
    return result


def _to_v1(scaler: statuses.Obj) -> statuses.Obj:
    spec, status = dict(scaler.get('spec') or {}), dict(scaler.get('status') or {})
    for metric in spec.pop('metrics', None) or ():
        percentage = statuses.dig(metric, 'resource.target.averageUtilization')
        is_cpu = metric.get('type') == 'Resource' and statuses.dig(metric, 'resource.name') == 'cpu'
        if is_cpu and percentage is not None:
            spec['targetCPUUtilizationPercentage'] = percentage
    spec.pop('behavior', None)
    for key in ('currentMetrics', 'conditions'):
        status.pop(key, None)
    status.setdefault('currentReplicas', 0)
    return {**scaler, 'spec': spec, 'status': status}


def _to_v2(scaler: statuses.Obj) -> statuses.Obj:
    spec, status = dict(scaler.get('spec') or {}), dict(scaler.get('status') or {})
    percentage = spec.pop('targetCPUUtilizationPercentage', None)
    if percentage is not None:
        spec['metrics'] = [{'type': 'Resource', 'resource': {
            'name': 'cpu', 'target': {'type': 'Utilization', 'averageUtilization': percentage}}}]
    status.pop('currentCPUUtilizationPercentage', None)
    status.setdefault('currentMetrics', None)
    if not status.get('currentReplicas'):
        status.pop('currentReplicas', None)
    return {**scaler, 'spec': spec, 'status': status}
